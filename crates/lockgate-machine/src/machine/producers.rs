//! Producers of a queue, and which of their records the queue has accepted.
//!
//! # Invariants
//! - An incarnation is a revision of the shard (see [`records`](super::records)), so none comes twice, whatever was
//!   forgotten or deleted. Only the highest one of a producer may send.
//! - The mark of a lane, the highest number that was accepted, rises with the effect that accepts the message, and with
//!   nothing else but a duplicate by unique id. It never falls.
//! - A row is forgotten when it was not used for the queue's `producer_age`, or with its producer, and never earlier.
//! - Each of both kinds of rows is at most `producers_max`, unless the setting was lowered since.
//! - Rows outlive messages, purges and restarts. Who deletes the queue deletes them.

use std::collections::{BTreeMap, BTreeSet};

use lockgate_core::{
    Level, MachineTime, Millis, Now, Position, Produced, ProducerIncarnation, ProducerMark,
    ProducerName, ProducerRefused, QueueId, QueueName, with_prefix,
};

use super::{Machine, draft::Draft, send::check_range, state::Timer};
use crate::{
    Effect, ListProducers, ProducerPage, ProducerStatus, Query, Rejection, Reply,
    columns::{ImageError, Input, damaged},
    effect::ArrivalMark,
    slab::{NONE, Slab},
};

const LANES: usize = ProducerMark::LANES as usize;

/// What a producer takes of the memory beside its slab and its name: its places in the indexes.
const INDEX_BYTES: usize = 64;

/// The producers of one queue.
#[derive(Clone, Debug)]
pub(super) struct Producers {
    entries: Slab<ProducerEntry, 32>,
    openings: Slab<OpeningEntry, 32>,
    by_name: BTreeMap<ProducerName, u32>,
    /// By the index of the producer and the number of the opening.
    by_opening: BTreeMap<(u32, u64), u32>,
    /// By when each row was last seen to be in use.
    by_age: BTreeSet<(MachineTime, Aged)>,
    /// Forgotten producers, whose openings are to be freed.
    forgotten: BTreeSet<u32>,
    pub(super) timer: u32,
    /// When `timer` fires.
    timer_at: MachineTime,
    /// The record that last forgot something. Volatile.
    forgot_at: Position,
}

/// A producer. Pages are small, because a page is copied, and written, as a whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProducerEntry {
    pub(super) name: ProducerName,
    pub(super) incarnation: u64,
    /// When it was opened or one of its records came.
    pub(super) used: MachineTime,
    /// Under which time it stands in the order of age: a use does not move it, so that it costs little.
    pub(super) seen: MachineTime,
    /// Whether only its openings are still to be freed.
    pub(super) forgotten: bool,
    /// How many openings it has.
    openings: u32,
    /// The record that opened it. Volatile.
    opened_at: Position,
}

/// The marks of an opening of a producer's spool.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OpeningEntry {
    /// The index of the producer.
    pub(super) producer: u32,
    pub(super) opening: u64,
    /// The highest number of each lane; 0: none came.
    pub(super) lanes: [u64; LANES],
    pub(super) used: MachineTime,
    pub(super) seen: MachineTime,
    /// The record that last raised a mark. Volatile.
    raised_at: Position,
}

/// A row that ages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Aged {
    Opening(u32),
    Producer(u32),
}

impl ProducerEntry {
    pub(super) fn blank() -> Self {
        Self {
            name: ProducerName::new("-").expect("a valid name"),
            incarnation: 0,
            used: MachineTime(0),
            seen: MachineTime(0),
            forgotten: false,
            openings: 0,
            opened_at: Position(0),
        }
    }
}

impl OpeningEntry {
    pub(super) fn blank() -> Self {
        Self {
            producer: NONE,
            opening: 0,
            lanes: [0; LANES],
            used: MachineTime(0),
            seen: MachineTime(0),
            raised_at: Position(0),
        }
    }
}

impl Default for Producers {
    fn default() -> Self {
        Self {
            entries: Slab::default(),
            openings: Slab::default(),
            by_name: BTreeMap::new(),
            by_opening: BTreeMap::new(),
            by_age: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            timer: NONE,
            timer_at: MachineTime::MAX,
            forgot_at: Position(0),
        }
    }
}

impl Producers {
    /// Producers, without those that are forgotten and not freed yet.
    pub(super) fn len(&self) -> u64 {
        self.by_name.len() as u64
    }

    pub(super) fn openings(&self) -> u64 {
        self.openings.len() as u64
    }

    /// Heap memory in bytes, without the texts of names.
    pub(super) fn bytes(&self) -> usize {
        let rows = self.entries.len() + self.openings.len();
        self.entries.bytes() + self.openings.bytes() + rows * INDEX_BYTES
    }

    /// An estimate of its bytes in an image.
    pub(super) fn image_bytes(&self) -> u64 {
        (self.entries.len() * 48 + self.openings.len() * 64) as u64
    }

    /// All producers by name: the incarnation, the last use, and the marks of the openings.
    pub(super) fn view(&self) -> BTreeMap<ProducerName, ProducerView> {
        let producers = self.by_name.iter().map(|(name, &index)| {
            let openings = self.by_opening.range((index, 0)..=(index, u64::MAX));
            let openings = openings.map(|(&(_, opening), &at)| {
                let entry = &self.openings[at];
                (opening, (entry.lanes, entry.used))
            });
            let entry = &self.entries[index];
            let view = ProducerView {
                incarnation: ProducerIncarnation(entry.incarnation),
                used: entry.used,
                openings: openings.collect(),
            };
            (name.clone(), view)
        });
        producers.collect()
    }

    fn find(&self, name: &str) -> Option<(u32, &ProducerEntry)> {
        let index = *self.by_name.get(name)?;
        Some((index, &self.entries[index]))
    }

    fn opening(&self, producer: u32, opening: u64) -> Option<&OpeningEntry> {
        let index = *self.by_opening.get(&(producer, opening))?;
        Some(&self.openings[index])
    }

    /// Notes a use of the producer by that incarnation, and returns its index.
    fn used(&mut self, name: &str, incarnation: u64, at: MachineTime) -> u32 {
        if let Some(&index) = self.by_name.get(name) {
            let entry = &mut self.entries[index];
            entry.incarnation = entry.incarnation.max(incarnation);
            entry.used = entry.used.max(at);
            return index;
        }
        let name = ProducerName::new(name).expect("it was checked where it was read from a record");
        let index = self.entries.insert(ProducerEntry {
            name: name.clone(),
            incarnation,
            used: at,
            seen: at,
            ..ProducerEntry::blank()
        });
        self.by_name.insert(name, index);
        self.by_age.insert((at, Aged::Producer(index)));
        index
    }

    /// Raises the mark of a lane to that number.
    fn raise(&mut self, mark: &ArrivalMark<'_>, position: Position) {
        let producer = self.used(mark.producer, mark.incarnation, mark.at);
        let index = match self.by_opening.get(&(producer, mark.opening)) {
            Some(&index) => index,
            None => {
                let index = self.openings.insert(OpeningEntry {
                    producer,
                    opening: mark.opening,
                    used: mark.at,
                    seen: mark.at,
                    ..OpeningEntry::blank()
                });
                self.by_opening.insert((producer, mark.opening), index);
                self.by_age.insert((mark.at, Aged::Opening(index)));
                self.entries[producer].openings += 1;
                index
            }
        };
        let entry = &mut self.openings[index];
        entry.used = entry.used.max(mark.at);
        entry.raised_at = position;
        // A lane is checked where it is read.
        if let Some(lane) = entry.lanes.get_mut(usize::from(mark.lane)) {
            *lane = mark.number.max(*lane);
        }
    }

    /// Forgets a producer at once; its openings are freed in steps.
    fn forget(&mut self, index: u32, position: Position) {
        let entry = &mut self.entries[index];
        entry.forgotten = true;
        self.by_age.remove(&(entry.seen, Aged::Producer(index)));
        let name = entry.name.clone();
        self.by_name.remove(&name);
        self.forgotten.insert(index);
        self.forgot_at = position;
    }

    fn remove_opening(&mut self, index: u32) {
        let entry = self.openings.remove(index);
        self.by_opening.remove(&(entry.producer, entry.opening));
        self.by_age.remove(&(entry.seen, Aged::Opening(index)));
        self.entries[entry.producer].openings -= 1;
    }

    /// Forgets what was not used for `age`, and frees what is forgotten, in at most `budget` steps.
    fn expire(&mut self, now: MachineTime, age: Millis, position: Position, budget: u32) {
        let is_over = |used: MachineTime| used.plus(age) <= now;
        for _ in 0..budget {
            if let Some(&producer) = self.forgotten.first() {
                let mut openings = self.by_opening.range((producer, 0)..=(producer, u64::MAX));
                match openings.next().map(|(_, &index)| index) {
                    Some(index) => self.remove_opening(index),
                    None => {
                        self.forgotten.remove(&producer);
                        self.entries.remove(producer);
                    }
                }
                continue;
            }
            let Some(&(seen, row)) = self.by_age.first().filter(|(seen, _)| is_over(*seen)) else {
                break;
            };
            let (used, seen_as) = match row {
                Aged::Opening(index) => {
                    let entry = &mut self.openings[index];
                    (entry.used, &mut entry.seen)
                }
                Aged::Producer(index) => {
                    let entry = &mut self.entries[index];
                    (entry.used, &mut entry.seen)
                }
            };
            match row {
                _ if !is_over(used) => {
                    *seen_as = used;
                    self.by_age.remove(&(seen, row));
                    self.by_age.insert((used, row));
                }
                Aged::Opening(index) => {
                    self.remove_opening(index);
                    self.forgot_at = position;
                }
                // Its openings were not used for longer.
                Aged::Producer(index) => self.forget(index, position),
            }
        }
    }

    /// When there is something to forget or to free. May be too early.
    fn next_expiry(&self, now: MachineTime, age: Millis) -> Option<MachineTime> {
        if !self.forgotten.is_empty() {
            return Some(now);
        }
        self.by_age.first().map(|(seen, _)| seen.plus(age))
    }

    /// Frees up to `budget` rows of a queue that is gone. Returns whether nothing is left.
    pub(super) fn free(&mut self, budget: &mut usize) -> bool {
        self.forgotten.clear();
        while *budget > 0 {
            *budget -= 1;
            self.by_age.pop_first();
            if let Some((_, index)) = self.by_opening.pop_first() {
                self.openings.remove(index);
            } else if let Some((_, index)) = self.by_name.pop_first() {
                self.entries.remove(index);
            } else {
                // Forgotten ones that were not freed yet have no more openings now.
                return true;
            }
        }
        false
    }

    pub(super) fn forget_positions(&mut self) {
        for (_, entry) in self.entries.iter_mut() {
            entry.opened_at = Position(0);
        }
        for (_, entry) in self.openings.iter_mut() {
            entry.raised_at = Position(0);
        }
        self.forgot_at = Position(0);
    }
}

/// A producer of a [`QueueView`](super::QueueView).
#[derive(Clone, Debug, PartialEq)]
pub struct ProducerView {
    /// The highest that was given.
    pub incarnation: ProducerIncarnation,
    /// When it was last used.
    pub used: MachineTime,
    /// The highest number of each lane of each opening, and when that was last used.
    pub openings: BTreeMap<u64, ([u64; LANES], MachineTime)>,
}

/// Parts of an image.
impl Producers {
    /// A copy that shares the pages, to be read while these change. It has no indexes.
    pub(super) fn share(&mut self) -> Self {
        Self {
            entries: self.entries.share(),
            openings: self.openings.share(),
            timer: self.timer,
            timer_at: self.timer_at,
            ..Self::default()
        }
    }

    pub(super) fn entries(&mut self) -> &mut Slab<ProducerEntry, 32> {
        &mut self.entries
    }

    pub(super) fn opening_entries(&mut self) -> &mut Slab<OpeningEntry, 32> {
        &mut self.openings
    }

    /// Appends everything besides the pages.
    pub(super) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timer.to_le_bytes());
        out.extend_from_slice(&self.timer_at.0.to_le_bytes());
        self.entries.encode_outline(out);
        self.openings.encode_outline(out);
    }

    /// Producers whose pages are still to be added.
    pub(super) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        Ok(Self {
            timer: input.u32()?,
            timer_at: MachineTime(input.u64()?),
            entries: Slab::decode_outline(input)?,
            openings: Slab::decode_outline(input)?,
            ..Self::default()
        })
    }

    /// Builds what follows from the rows.
    pub(super) fn rebuild(&mut self) -> Result<(), ImageError> {
        self.entries.check_complete()?;
        self.openings.check_complete()?;
        let mut openings = Vec::new();
        for (index, entry) in self.openings.iter() {
            self.by_opening
                .insert((entry.producer, entry.opening), index);
            self.by_age.insert((entry.seen, Aged::Opening(index)));
            openings.push(entry.producer);
        }
        for producer in openings {
            let entry = self.entries.get_mut(producer);
            entry
                .ok_or(damaged("an opening is of no producer"))?
                .openings += 1;
        }
        for (index, entry) in self.entries.iter() {
            if entry.forgotten {
                self.forgotten.insert(index);
            } else {
                self.by_name.insert(entry.name.clone(), index);
                self.by_age.insert((entry.seen, Aged::Producer(index)));
            }
        }
        Ok(())
    }

    /// Whether each row is found where it belongs.
    pub(super) fn is_sound(&self) -> bool {
        let is_named = |(index, entry): (u32, &ProducerEntry)| match entry.forgotten {
            true => self.forgotten.contains(&index),
            false => {
                self.by_name.get(&entry.name) == Some(&index)
                    && self.by_age.contains(&(entry.seen, Aged::Producer(index)))
            }
        };
        let is_opening = |(index, entry): (u32, &OpeningEntry)| {
            self.by_opening.get(&(entry.producer, entry.opening)) == Some(&index)
                && self.by_age.contains(&(entry.seen, Aged::Opening(index)))
                && self.entries.get(entry.producer).is_some()
        };
        let openings: u64 = self
            .entries
            .iter()
            .map(|(_, e)| u64::from(e.openings))
            .sum();
        self.entries.iter().all(is_named)
            && self.openings.iter().all(is_opening)
            && self.by_name.len() + self.forgotten.len() == self.entries.len()
            && self.by_opening.len() == self.openings.len()
            && self.by_age.len() == self.by_name.len() + self.openings.len()
            && openings == self.openings.len() as u64
    }
}

impl Machine {
    pub(super) fn decide_open_producer(
        &self,
        draft: &mut Draft,
        queue: &QueueName,
        producer: &ProducerName,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let queue = &self.queues[self.named_queue(queue)?];
        let (rows, known) = match queue.producers.as_deref() {
            Some(rows) => (rows.entries.len(), rows.find(producer.as_str()).is_some()),
            None => (0, false),
        };
        let max = queue.settings.producers_max;
        if !known && rows as u64 >= u64::from(max) {
            return Err(Rejection::ProducersFull {
                queue: queue.name.clone(),
                what: "producers",
                max,
            });
        }
        let incarnation = ProducerIncarnation(self.next_revision(now, 0).0);
        let opened = Effect::ProducerOpened {
            queue: queue.id,
            producer: producer.clone(),
            incarnation,
            at: now.machine,
        };
        draft.add(opened, self.administration_level());
        Ok(Reply::ProducerOpened(incarnation))
    }

    pub(super) fn decide_forget_producer(
        &self,
        draft: &mut Draft,
        queue: &QueueName,
        producer: &ProducerName,
    ) -> Result<Reply, Rejection> {
        let queue = &self.queues[self.named_queue(queue)?];
        let producers = queue.producers.as_deref();
        if producers
            .and_then(|all| all.find(producer.as_str()))
            .is_none()
        {
            draft.rest_on(producers.and_then(|all| self.unless_durable(all.forgot_at)));
            return Err(Rejection::ProducerNotFound {
                queue: queue.name.clone(),
                producer: producer.clone(),
            });
        }
        let forgotten = Effect::ProducerForgotten {
            queue: queue.id,
            producer: producer.clone(),
        };
        draft.add(forgotten, self.administration_level());
        Ok(Reply::Done)
    }

    /// Refuses a record of a producer that may not send, that was accepted before, or that there is no room to remember.
    /// `level`: what its answer must reach.
    pub(super) fn check_mark(
        &self,
        draft: &mut Draft,
        index: u32,
        produced: &Produced,
        level: Level,
    ) -> Result<(), Rejection> {
        let queue = &self.queues[index];
        let refused = |refused| Rejection::Producer {
            queue: queue.name.clone(),
            producer: produced.mark.producer().clone(),
            refused,
        };
        let Some(producers) = queue.producers.as_deref() else {
            return Err(refused(ProducerRefused::Unknown));
        };
        let mark = &produced.mark;
        let found = producers.find(mark.producer().as_str());
        let Some((producer, entry)) =
            found.filter(|(_, entry)| produced.incarnation.0 <= entry.incarnation)
        else {
            draft.rest_on(self.unless_durable(producers.forgot_at));
            return Err(refused(ProducerRefused::Unknown));
        };
        let current = ProducerIncarnation(entry.incarnation);
        if produced.incarnation < current {
            draft.rest_on(self.unless_durable(entry.opened_at));
            return Err(refused(ProducerRefused::Fenced { current }));
        }
        let opening = producers.opening(producer, mark.opening());
        let place = (index, producer, mark.opening(), mark.lane());
        let lane = usize::from(mark.lane());
        let raised = opening.map_or(0, |opening| opening.lanes[lane]);
        let drafted = draft.marks.get(&place).copied().unwrap_or(0);
        if mark.number() <= raised.max(drafted) {
            if let Some(opening) = opening {
                if level >= Level::Disk {
                    draft.rest_on(self.unless_durable(opening.raised_at));
                }
                draft.refusal_level = level.min(Level::Process);
            }
            return Err(Rejection::SentBefore {
                queue: queue.name.clone(),
            });
        }
        if raised.max(drafted) < produced.after {
            return Err(refused(ProducerRefused::Gap));
        }
        if opening.is_none() {
            self.check_opening_room(draft, index, producers, (producer, mark.opening()))?;
        }
        // Only a transaction can contain a record of the same lane again before this one is folded.
        if draft.in_transaction {
            draft.marks.insert(place, mark.number());
        }
        Ok(())
    }

    fn check_opening_room(
        &self,
        draft: &Draft,
        index: u32,
        producers: &Producers,
        own: (u32, u64),
    ) -> Result<(), Rejection> {
        let queue = &self.queues[index];
        let drafted = draft.marks.keys().filter(|(of, ..)| *of == index);
        let drafted: BTreeSet<_> = drafted
            .map(|&(_, producer, opening, _)| (producer, opening))
            .filter(|place| !producers.by_opening.contains_key(place))
            .collect();
        let rows = producers.openings() + drafted.len() as u64;
        let max = queue.settings.producers_max;
        if rows >= u64::from(max) && !drafted.contains(&own) {
            return Err(Rejection::ProducersFull {
                queue: queue.name.clone(),
                what: "openings of producers",
                max,
            });
        }
        Ok(())
    }

    pub(super) fn query_producers(
        &self,
        list: &ListProducers,
        now: Now,
    ) -> Result<ProducerPage, Rejection> {
        let index = self.named_queue(&list.queue)?;
        check_range("limit", list.limit as u64, 1, Query::LIMIT_MAX as u64)?;
        let Some(all) = self.queues[index].producers.as_deref() else {
            return Ok(ProducerPage::default());
        };
        let now = self.monotonic(now);
        let mut matching = with_prefix(&all.by_name, "", list.after.as_ref());
        let page = matching.by_ref().take(list.limit).map(|(name, &index)| {
            let entry = &all.entries[index];
            ProducerStatus {
                producer: name.clone(),
                incarnation: ProducerIncarnation(entry.incarnation),
                openings: u64::from(entry.openings),
                unused: now.machine.0.saturating_sub(entry.used.0),
            }
        });
        let producers: Vec<_> = page.collect();
        let last = producers.last().filter(|_| matching.next().is_some());
        Ok(ProducerPage {
            next: last.map(|last| last.producer.clone()),
            producers,
        })
    }

    pub(super) fn fold_producer_opened(
        &mut self,
        queue: QueueId,
        producer: &ProducerName,
        incarnation: ProducerIncarnation,
        at: MachineTime,
    ) -> Option<()> {
        let index = self.queue_index(queue)?;
        self.records.revision = self.records.revision.max(incarnation.0);
        let position = self.folding_at;
        self.queues[index].producers.get_or_insert_default();
        self.change_producers(index, |producers| {
            let row = producers.used(producer.as_str(), incarnation.0, at);
            producers.entries[row].opened_at = position;
        })
    }

    pub(super) fn fold_producer_forgotten(
        &mut self,
        queue: QueueId,
        producer: &ProducerName,
    ) -> Option<()> {
        let index = self.queue_index(queue)?;
        let position = self.folding_at;
        self.change_producers(index, |producers| {
            let (row, _) = producers.find(producer.as_str())?;
            producers.forget(row, position);
            Some(())
        })?
    }

    pub(super) fn fold_mark_raised(
        &mut self,
        queue: QueueId,
        produced: &Produced,
        at: MachineTime,
    ) -> Option<()> {
        let index = self.queue_index(queue)?;
        self.raise_mark(index, &ArrivalMark::new(produced, at))
    }

    /// Raises the mark of a lane, with the record that is being folded.
    pub(super) fn raise_mark(&mut self, index: u32, mark: &ArrivalMark<'_>) -> Option<()> {
        // Above it only if the record that opened the producer was lost.
        self.records.revision = self.records.revision.max(mark.incarnation);
        self.queues[index].producers.get_or_insert_default();
        let position = self.folding_at;
        self.change_producers(index, |producers| producers.raise(mark, position))
    }

    pub(super) fn expire_producers(&mut self, index: u32, now: Now, budget: u32) {
        let position = self.folding_at;
        let age = self.queues[index].settings.producer_age;
        self.change_producers(index, |producers| {
            producers.timer = NONE;
            producers.expire(now.machine, age, position, budget);
        });
    }

    /// Changes the producers of a queue, if it has some, and what follows from them.
    fn change_producers<T>(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut Producers) -> T,
    ) -> Option<T> {
        let producers = self.queues[index].producers.as_deref_mut()?;
        self.producer_bytes -= producers.image_bytes();
        let changed = change(producers);
        self.producer_bytes += producers.image_bytes();
        self.arm_producers(index);
        Some(changed)
    }

    /// Ensures that there is a timer for the row that may be forgotten first. An earlier timer stays: it finds nothing,
    /// and sets itself again.
    pub(super) fn arm_producers(&mut self, index: u32) {
        let queue = &mut self.queues[index];
        let (id, age) = (queue.id, queue.settings.producer_age);
        let Some(producers) = queue.producers.as_deref_mut() else {
            return;
        };
        let Some(next) = producers.next_expiry(self.clock.now.machine, age) else {
            return;
        };
        if producers.timer != NONE {
            if producers.timer_at <= next {
                return;
            }
            self.machine.remove(producers.timer);
        }
        producers.timer_at = next;
        // Behind the other timers of queues.
        let order = 1 << 60 | u64::from(id.0);
        let timer = Timer::Producers(index).to_bits();
        producers.timer = self.machine.insert(next.0, order, timer);
    }
}
