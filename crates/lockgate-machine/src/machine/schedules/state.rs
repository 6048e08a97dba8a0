//! What the machine holds of schedules, and the same in an image.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use lockgate_core::{
    CatchUp, Header, Message, MessageId, Overlap, Position, QueueId, QueueName, ScheduleId,
    ScheduleName, Sequence, Timing, WallTime,
};

use crate::{
    Firing, Rejection, ScheduleCounts, ScheduleSpec, ScheduleTo,
    codec::schedules::{put_schedule, schedule_from},
    columns::{Columns, ImageError, Row, column, damaged, narrow},
    slab::{NONE, Slab},
};

/// What a schedule takes besides its texts and its message.
const SCHEDULE_BYTES: u64 = 640;

/// What a header takes besides its texts.
const HEADER_BYTES: u64 = 96;

/// All schedules of a shard.
#[derive(Debug, Default)]
pub(in crate::machine) struct Schedules {
    pub(in crate::machine) rows: Slab<ScheduleState, 64>,
    pub(super) by_name: BTreeMap<ScheduleName, u32>,
    by_id: BTreeMap<ScheduleId, u32>,
    /// How many were ever made: the last number.
    pub(in crate::machine) made: u32,
    /// The last generation.
    pub(in crate::machine) revision: u64,
    /// Those whose time has come, by that time.
    due: BTreeSet<(WallTime, u32)>,
    /// Of these, those of which the engine does not know. Volatile.
    untold: BTreeSet<(WallTime, u32)>,
    /// Those that wait for the message of their last firing, by its place.
    waiting: BTreeSet<(QueueId, Sequence, u32)>,
    /// Those that fire once and have, by when: they stay to be seen until their place is needed.
    over: BTreeSet<(WallTime, u32)>,
    /// What all of them take.
    pub(super) bytes: u64,
    /// The record of the log in which a caller changed any of them last. Volatile.
    pub(super) changed_at: Position,
}

/// A schedule.
#[derive(Clone, Debug)]
pub(in crate::machine) struct ScheduleState {
    pub(super) id: ScheduleId,
    pub(super) name: ScheduleName,
    pub(super) spec: Arc<ScheduleSpec>,
    pub(super) generation: u64,
    pub(super) created: WallTime,
    pub(super) changed: WallTime,
    /// A time of its series.
    pub(super) anchor: WallTime,
    pub(super) next: Option<WallTime>,
    pub(super) planned: Option<WallTime>,
    pub(super) paused: bool,
    /// Whether its next time had come in time and it had to wait for the last message.
    pub(super) waited: bool,
    pub(super) last: Option<Firing>,
    pub(super) counts: ScheduleCounts,
    /// Its timer while it is armed, else `NONE`.
    pub(in crate::machine) timer: u32,
}

/// A schedule of a [`StateView`](crate::StateView).
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleView {
    pub name: ScheduleName,
    pub spec: Arc<ScheduleSpec>,
    pub generation: u64,
    pub created: WallTime,
    pub changed: WallTime,
    pub anchor: WallTime,
    pub next: Option<WallTime>,
    pub planned: Option<WallTime>,
    pub paused: bool,
    pub waited: bool,
    pub last: Option<Firing>,
    pub counts: ScheduleCounts,
    /// Whether its time has come and it does not wait.
    pub is_due: bool,
}

/// A header with a text.
pub(super) fn header(name: &str, value: &str) -> Header {
    Header {
        name: name.into(),
        kind: "String".into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}

/// What a schedule takes of the memory for them.
pub(super) fn bytes_of(name: &ScheduleName, spec: &ScheduleSpec) -> u64 {
    let message = &spec.message;
    let texts = [
        name.as_str().len(),
        message.size(),
        message.key.as_ref().map_or(0, |key| key.as_str().len()),
        message.group.as_ref().map_or(0, |key| key.as_str().len()),
        message.content_type.as_ref().map_or(0, |text| text.len()),
        message.trace_context.as_ref().map_or(0, |text| text.len()),
        match &spec.to {
            ScheduleTo::Queue(queue) => queue.as_str().len(),
            ScheduleTo::Exchange {
                exchange,
                routing_key,
            } => exchange.as_str().len() + routing_key.as_str().len(),
        },
        match &spec.timing {
            Timing::Cron { expression, zone } => expression.len() + zone.len(),
            Timing::At(_) | Timing::Every { .. } => 0,
        },
    ];
    let texts: usize = texts.iter().sum();
    SCHEDULE_BYTES + message.headers.len() as u64 * HEADER_BYTES + texts as u64
}

impl ScheduleState {
    pub(super) fn new(id: ScheduleId, name: ScheduleName, spec: Arc<ScheduleSpec>) -> Self {
        Self {
            id,
            name,
            spec,
            generation: 0,
            created: WallTime(0),
            changed: WallTime(0),
            anchor: WallTime(0),
            next: None,
            planned: None,
            paused: false,
            waited: false,
            last: None,
            counts: ScheduleCounts::default(),
            timer: NONE,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.name, &self.spec)
    }

    /// Since when it is over, if it was to fire once.
    fn over_since(&self) -> Option<WallTime> {
        let is_over = self.next.is_none() && matches!(self.spec.timing, Timing::At(_));
        let fired = self.last.map_or(WallTime(0), |last| last.at);
        is_over.then(|| fired.max(self.changed))
    }

    /// The place of the message of the last firing.
    pub(super) fn last_place(&self) -> Option<(QueueId, Sequence)> {
        let id = self.last?.message?;
        Some((id.queue(), id.sequence()))
    }
}

impl Schedules {
    pub(super) fn named(&self, name: &ScheduleName) -> Option<(u32, &ScheduleState)> {
        let row = *self.by_name.get(name)?;
        Some((row, self.rows.get(row)?))
    }

    pub(super) fn with_id(&self, id: ScheduleId) -> Option<(u32, &ScheduleState)> {
        let row = *self.by_id.get(&id)?;
        Some((row, self.rows.get(row)?))
    }

    pub(super) fn next_id(&self) -> Result<ScheduleId, Rejection> {
        let next = self.made.checked_add(1);
        next.map(ScheduleId).ok_or(Rejection::ShardFull {
            what: "numbers of schedules",
            max: u64::from(u32::MAX),
        })
    }

    pub(super) fn next_generation(&self) -> Result<u64, Rejection> {
        let next = self.revision.checked_add(1);
        next.ok_or(Rejection::ShardFull {
            what: "generations of schedules",
            max: u64::MAX,
        })
    }

    /// Notes one that is over, if it is.
    pub(super) fn note_over(&mut self, row: u32) {
        if let Some(since) = self.rows.get(row).and_then(ScheduleState::over_since) {
            self.over.insert((since, row));
        }
    }

    /// Those that were to fire once and are over, the one first that is for the longest.
    pub(super) fn over(&self) -> impl Iterator<Item = &ScheduleState> {
        self.over.iter().filter_map(|(_, row)| self.rows.get(*row))
    }

    /// How many are due or wait.
    pub(super) fn due(&self) -> usize {
        self.due.len() + self.waiting.len()
    }

    pub(super) fn due_rows(&self) -> impl Iterator<Item = u32> {
        self.due.iter().map(|&(_, row)| row)
    }

    pub(super) fn is_due(&self, row: u32) -> bool {
        let next = self.rows.get(row).and_then(|state| state.next);
        next.is_some_and(|next| self.due.contains(&(next, row)))
    }

    pub(super) fn is_waiting(&self, row: u32) -> bool {
        let place = self.rows.get(row).and_then(ScheduleState::last_place);
        place.is_some_and(|(queue, sequence)| self.waiting.contains(&(queue, sequence, row)))
    }

    pub(super) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    pub(super) fn take_untold(&mut self) -> Option<u32> {
        self.untold.pop_first().map(|(_, row)| row)
    }

    /// Whether any waits for a message.
    pub(in crate::machine) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn insert(&mut self, state: ScheduleState) -> u32 {
        let (id, name) = (state.id, state.name.clone());
        self.bytes += state.bytes();
        let row = self.rows.insert(state);
        self.by_id.insert(id, row);
        self.by_name.insert(name, row);
        row
    }

    /// Removes a schedule, which is in no place.
    pub(super) fn remove(&mut self, row: u32) {
        let state = self.rows.remove(row);
        self.bytes -= state.bytes();
        self.by_id.remove(&state.id);
        self.by_name.remove(&state.name);
    }

    /// The time of a schedule has come. `waits`: the message of its last firing is there, and it waits for that. Only what began to
    /// wait in time is not missed, however long it waits.
    pub(super) fn come_due(&mut self, row: u32, waits: bool, now: WallTime) {
        let state = &mut self.rows[row];
        let is_late = |next| now.since(next) > state.spec.late_max;
        state.waited |= waits && !state.next.is_some_and(is_late);
        match (state.next, state.last_place().filter(|_| waits)) {
            (_, Some((queue, sequence))) => {
                self.waiting.insert((queue, sequence, row));
            }
            (Some(next), None) => {
                self.due.insert((next, row));
                self.untold.insert((next, row));
            }
            (None, None) => {}
        }
    }

    /// Takes a schedule out of those that are due or wait.
    pub(super) fn take_out(&mut self, row: u32) {
        let Some(state) = self.rows.get(row) else {
            return;
        };
        if let Some(next) = state.next {
            self.due.remove(&(next, row));
            self.untold.remove(&(next, row));
        }
        if let Some((queue, sequence)) = state.last_place() {
            self.waiting.remove(&(queue, sequence, row));
        }
        if let Some(since) = state.over_since() {
            self.over.remove(&(since, row));
        }
    }

    /// A message left its queue.
    pub(in crate::machine) fn message_left(&mut self, queue: QueueId, sequence: Sequence) {
        self.release((queue, sequence), (queue, sequence));
    }

    /// All messages left a queue.
    pub(in crate::machine) fn queue_emptied(&mut self, queue: QueueId) {
        self.release((queue, Sequence(0)), (queue, Sequence(u64::MAX)));
    }

    /// Those that wait for messages from the first place to the last one are due.
    fn release(&mut self, first: (QueueId, Sequence), last: (QueueId, Sequence)) {
        let all = (first.0, first.1, 0)..=(last.0, last.1, u32::MAX);
        let released: Vec<_> = self.waiting.range(all).copied().collect();
        for place in released {
            self.waiting.remove(&place);
            self.come_due(place.2, false, WallTime(0));
        }
    }

    pub(in crate::machine) fn forget_positions(&mut self) {
        self.changed_at = Position(0);
    }

    pub(in crate::machine) fn is_unused(&self) -> bool {
        self.made == 0
    }

    pub(in crate::machine) fn heap_bytes(&self) -> usize {
        self.rows.bytes() + usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    pub(in crate::machine) fn image_bytes(&self) -> u64 {
        self.bytes
    }

    /// The same without what follows from the rows.
    pub(in crate::machine) fn share(&mut self) -> Self {
        Self {
            rows: self.rows.share(),
            made: self.made,
            revision: self.revision,
            ..Self::default()
        }
    }

    /// Builds what follows from the rows, besides the places of those whose time has come.
    pub(in crate::machine) fn rebuild(&mut self) -> Result<(), ImageError> {
        for (row, state) in self.rows.iter() {
            if state.id.0 == 0 || state.id.0 > self.made || state.generation > self.revision {
                return Err(damaged("a schedule has a number that was not given out"));
            }
            self.bytes += state.bytes();
            let had_name = self.by_name.insert(state.name.clone(), row).is_some();
            if self.by_id.insert(state.id, row).is_some() || had_name {
                return Err(damaged("two schedules have one number or one name"));
            }
        }
        Ok(())
    }

    pub(in crate::machine) fn view(&self) -> BTreeMap<ScheduleId, ScheduleView> {
        let each = |(row, state): (u32, &ScheduleState)| {
            let view = ScheduleView {
                name: state.name.clone(),
                spec: state.spec.clone(),
                generation: state.generation,
                created: state.created,
                changed: state.changed,
                anchor: state.anchor,
                next: state.next,
                planned: state.planned,
                paused: state.paused,
                waited: state.waited,
                last: state.last,
                counts: state.counts,
                is_due: self.is_due(row),
            };
            (state.id, view)
        };
        self.rows.iter().map(each).collect()
    }

    /// What does not fit together, as sentences. `is_there`: whether a message is in its queue.
    pub(in crate::machine) fn problems(
        &self,
        is_there: impl Fn(QueueId, Sequence) -> bool,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                problems.push(format!("schedules: {what}"));
            }
        };
        let mut bytes = 0;
        let (mut due, mut waiting) = (0, 0);
        for (row, state) in self.rows.iter() {
            bytes += state.bytes();
            expect(
                self.by_name.get(&state.name) == Some(&row)
                    && self.by_id.get(&state.id) == Some(&row),
                "one is not found",
            );
            let places = [state.timer != NONE, self.is_due(row), self.is_waiting(row)];
            due += usize::from(places[1]);
            waiting += usize::from(places[2]);
            let count = places.iter().filter(|is_in| **is_in).count();
            let runs = state.next.is_some() && !state.paused;
            expect(count == usize::from(runs), "one is in no place, or in two");
            expect(
                !places[2]
                    || state.spec.overlap == Overlap::Queue
                        && state
                            .last_place()
                            .is_some_and(|(queue, at)| is_there(queue, at)),
                "one waits for a message that is not there",
            );
        }
        expect(
            self.by_name.len() == self.rows.len() && self.by_id.len() == self.rows.len(),
            "one is found that is not there",
        );
        expect(
            due == self.due.len() && waiting == self.waiting.len(),
            "one is due or waits that is not there",
        );
        expect(bytes == self.bytes, "their bytes do not add up");
        problems
    }
}

/// An optional number as one that may be stored: one more, so that 0 is none.
fn optional(number: Option<WallTime>) -> u64 {
    number.map_or(0, |at| at.0.saturating_add(1))
}

fn of_optional(number: u64) -> Option<WallTime> {
    number.checked_sub(1).map(WallTime)
}

const PAUSED: u64 = 1;
const WAITED: u64 = 2;
const HAS_LAST: u64 = 4;
const HAS_MESSAGE: u64 = 8;

impl Row for ScheduleState {
    fn blank() -> Self {
        let name = ScheduleName::new("-").expect("it is a name");
        let queue = QueueName::new("-").expect("it is a name");
        let spec = ScheduleSpec {
            timing: Timing::At(WallTime(0)),
            to: ScheduleTo::Queue(queue),
            message: Arc::new(Message::default()),
            catch_up: CatchUp::default(),
            overlap: Overlap::default(),
            late_max: ScheduleSpec::LATE_MAX_DEFAULT,
        };
        Self::new(ScheduleId(0), name, Arc::new(spec))
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.number(
            u32::MAX.into(),
            |row| row.id.0.into(),
            |row, id| row.id = ScheduleId(narrow(id)),
        )?;
        column!(columns, u64 generation)?;
        column!(columns, wrapped created, WallTime)?;
        column!(columns, wrapped changed, WallTime)?;
        column!(columns, wrapped anchor, WallTime)?;
        columns.number(
            u64::MAX,
            |row| optional(row.next),
            |row, number| row.next = of_optional(number),
        )?;
        columns.number(
            u64::MAX,
            |row| optional(row.planned),
            |row, number| row.planned = of_optional(number),
        )?;
        columns.number(
            PAUSED | WAITED | HAS_LAST | HAS_MESSAGE,
            |row| {
                let last = row.last;
                let bits = [
                    (row.paused, PAUSED),
                    (row.waited, WAITED),
                    (last.is_some(), HAS_LAST),
                    (last.is_some_and(|last| last.message.is_some()), HAS_MESSAGE),
                ];
                bits.iter()
                    .map(|&(is_set, bit)| if is_set { bit } else { 0 })
                    .sum()
            },
            |row, bits| {
                row.paused = bits & PAUSED != 0;
                row.waited = bits & WAITED != 0;
                row.last = (bits & HAS_LAST != 0).then_some(Firing {
                    scheduled: None,
                    at: WallTime(0),
                    message: (bits & HAS_MESSAGE != 0).then_some(MessageId::from_bits(0)),
                });
            },
        )?;
        columns.number(
            u64::MAX,
            |row| row.last.map_or(0, |last| optional(last.scheduled)),
            |row, number| {
                if let Some(last) = &mut row.last {
                    last.scheduled = of_optional(number);
                }
            },
        )?;
        columns.number(
            u64::MAX,
            |row| row.last.map_or(0, |last| last.at.0),
            |row, number| {
                if let Some(last) = &mut row.last {
                    last.at = WallTime(number);
                }
            },
        )?;
        columns.bytes(
            |row, out| {
                if let Some(id) = row.last.and_then(|last| last.message) {
                    out.extend_from_slice(&id.to_bits().to_le_bytes());
                }
            },
            |row, bytes| {
                let message = row.last.as_mut().and_then(|last| last.message.as_mut());
                match message {
                    Some(message) => {
                        *message =
                            MessageId::from_bits(u128::from_le_bytes(bytes.try_into().ok()?));
                    }
                    None if bytes.is_empty() => {}
                    None => return None,
                }
                Some(())
            },
        )?;
        for index in 0..ScheduleCounts::STORED {
            columns.number(
                u64::MAX,
                |row| row.counts.stored()[index],
                |row, number| {
                    let mut stored = row.counts.stored();
                    stored[index] = number;
                    row.counts = ScheduleCounts::of_stored(stored);
                },
            )?;
        }
        column!(columns, index timer)?;
        columns.bytes(
            |row, out| put_schedule(&row.name, &row.spec, out),
            |row, bytes| {
                let (name, spec) = schedule_from(&Bytes::copy_from_slice(bytes))?;
                (row.name, row.spec) = (name, Arc::new(spec));
                Some(())
            },
        )
    }
}
