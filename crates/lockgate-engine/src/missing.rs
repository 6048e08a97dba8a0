//! Missing parts of the log that messages have their bytes in.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::{ControlFlow, Range},
};

use lockgate_core::{
    LogError, LogReader, LogSource, Position, QueueId, QueueName, ReadError, RecoveryReport,
    Scanned, Sequence,
};
use lockgate_machine::{Effect, LiveMessage, Machine, decode_record};

/// A part of the log that is missing, whole or in part, and the messages that have their bytes in
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingPart {
    /// The first position of the part.
    pub from: Position,
    /// What an operator calls it: a file of the folder, or rows of a table.
    pub name: String,
    /// Whether records are lost with it that no snapshot covers. Nobody knows what they did; their
    /// number is in [`StartReport::damaged`](crate::StartReport::damaged).
    pub holds_records: bool,
    /// Whether the part may have been given back before it was lost. Other records are lost that
    /// may have settled all its messages, so nobody can tell.
    pub may_be_given_back: bool,
    /// How many messages have their bytes in it.
    pub messages: u64,
    /// The queues of these messages, with how many each has, most first.
    pub queues: Vec<(QueueName, u64)>,
}

/// Messages that are whole in the log and that no start can use, because the record that created
/// their queue is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WithoutQueue {
    /// How many messages these are. Settled messages are not counted, as far as the remaining
    /// records tell; messages that have expired since are.
    pub messages: u64,
    /// How many queues they belong to. The names of these queues are lost.
    pub queues: u64,
}

impl fmt::Display for WithoutQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let several = |count| if count == 1 { "" } else { "s" };
        write!(
            f,
            "{} message{} to {} queue{} whose creation is lost",
            self.messages,
            several(self.messages),
            self.queues,
            several(self.queues),
        )
    }
}

impl WithoutQueue {
    /// Reads the records between the first and the last of `ignored` again. `ignored`: where the records
    /// start that have an effect which folding did nothing with, in order. `machine` is what folding came to.
    pub(crate) fn count(
        machine: &Machine,
        reader: &dyn LogReader,
        ignored: &[Position],
        last: Position,
    ) -> Result<Self, LogError> {
        let Some(&first) = ignored.first() else {
            return Ok(Self::default());
        };
        let mut found = Found::new();
        let scanned = reader.scan(first, Position(last.0.saturating_add(1)), &mut |scanned| {
            if let Scanned::Record { record, .. } = scanned {
                let is_ignored = ignored.binary_search(&record.position).is_ok();
                // What cannot be decoded does nothing, and was counted.
                for effect in decode_record(&record.payload).unwrap_or_default() {
                    match effect {
                        Effect::Accepted(stored) | Effect::Compacted(stored)
                            if is_ignored && machine.queue(stored.queue).is_none() =>
                        {
                            let messages = found.entry(stored.queue).or_default();
                            messages.insert(stored.sequence, stored.queue);
                        }
                        effect => settle(&mut found, &effect),
                    }
                }
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(()) => {}
            Err(ReadError::Log(error)) => return Err(error),
            // A scan tells of damage what it finds, and goes on.
            Err(error) => {
                return Err(LogError::Remote {
                    what: "reading the log again".to_owned(),
                    source: error.into(),
                });
            }
        }
        let queues = found.values().flat_map(BTreeMap::values);
        Ok(Self {
            messages: queues.clone().count() as u64,
            queues: queues.collect::<BTreeSet<_>>().len() as u64,
        })
    }
}

/// Messages by the queue they are in, with the one that took them.
type Found = BTreeMap<QueueId, BTreeMap<Sequence, QueueId>>;

/// Takes out what this effect has settled.
fn settle(found: &mut Found, effect: &Effect) {
    let mut take = |queue: &QueueId, sequence: &Sequence| found.get_mut(queue)?.remove(sequence);
    match effect {
        Effect::Acked { queue, sequence }
        | Effect::Dropped {
            queue, sequence, ..
        } => {
            take(queue, sequence);
        }
        Effect::Moved {
            from,
            sequence,
            to,
            to_sequence,
            ..
        } => {
            if let Some(queue) = take(from, sequence) {
                (found.entry(*to).or_default()).insert(*to_sequence, queue);
            }
        }
        Effect::Purged { queue } | Effect::QueueDeleted { queue } => {
            found.remove(queue);
        }
        _ => {}
    }
}

impl MissingPart {
    /// A part with records that no snapshot covers.
    pub(crate) fn of_records(range: &Range<Position>, name: String) -> Self {
        Self {
            from: range.start,
            name,
            holds_records: true,
            may_be_given_back: false,
            messages: 0,
            queues: Vec::new(),
        }
    }
}

/// So many queues of a part are named in a text.
const QUEUES_TOLD: usize = 3;

impl fmt::Display for MissingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.name)?;
        if self.holds_records {
            f.write_str("what was done since the last snapshot")?;
        }
        if self.messages > 0 {
            if self.holds_records {
                f.write_str(", and ")?;
            }
            write!(f, "{} messages: ", self.messages)?;
            for (index, (queue, messages)) in self.queues.iter().take(QUEUES_TOLD).enumerate() {
                let comma = if index > 0 { ", " } else { "" };
                write!(f, "{comma}{messages} of {queue}")?;
            }
            if let Some(more @ 1..) = self.queues.len().checked_sub(QUEUES_TOLD) {
                write!(f, " and others of {more} more queues")?;
            }
        }
        f.write_str(")")
    }
}

/// So many parts are named in a text.
const PARTS_TOLD: usize = 16;

/// The parts in one line, or as much of them as one can read, and what of the others is of no use without
/// them.
pub(crate) fn list(parts: &[MissingPart], without_queue: &WithoutQueue) -> String {
    match without_queue.messages {
        0 => list_parts(parts),
        _ => format!(
            "{}; in the other parts {without_queue} cannot be used either",
            list_parts(parts)
        ),
    }
}

fn list_parts(parts: &[MissingPart]) -> String {
    let told: Vec<String> = (parts.iter().take(PARTS_TOLD))
        .map(MissingPart::to_string)
        .collect();
    let more = parts.get(PARTS_TOLD..).unwrap_or_default();
    match more.len() {
        0 => told.join(", "),
        others => {
            let messages: u64 = more.iter().map(|part| part.messages).sum();
            let told = told.join(", ");
            format!("{told}, and {others} more with {messages} messages")
        }
    }
}

/// What a start does not find.
#[derive(Debug, Default)]
pub(crate) struct Lacking {
    /// Parts that are not there.
    pub(crate) missing: Vec<MissingPart>,
    /// Parts that are too short for the messages in them.
    pub(crate) cut_short: Vec<MissingPart>,
    /// The messages of the missing parts.
    pub(crate) lost: Vec<(QueueId, Sequence)>,
}

impl Lacking {
    /// Compares what the recovered machine needs with what the log has. `is_all_known`: no record was lost or
    /// skipped.
    pub(crate) fn find(
        machine: &Machine,
        log: &dyn LogSource,
        recovered: &RecoveryReport,
        is_all_known: bool,
    ) -> Self {
        let capabilities = log.capabilities();
        let mut parts: BTreeMap<Position, MissingPart> = BTreeMap::new();
        for range in &recovered.missing {
            let name = log.name_of(range.start, range.end);
            parts.insert(range.start, MissingPart::of_records(range, name));
        }
        let held: BTreeMap<Position, u64> = (log.ranges().iter())
            .map(|range| (range.first, range.bytes))
            .collect();
        // Where a purge has left something to be freed, that counts here: only the walk below tells what is
        // really there. It takes time by the number of messages, so it is for the few that need it.
        let needs_a_look: BTreeSet<Position> = (machine.live_ranges())
            .filter(|(first, live)| held.get(first).is_none_or(|held| *held < live.bytes_min()))
            .map(|(first, _)| first)
            .collect();
        let mut found: BTreeMap<Position, InRange> = BTreeMap::new();
        if capabilities.releases_ranges && !needs_a_look.is_empty() {
            for message in machine.messages_in(|range| needs_a_look.contains(&range)) {
                found.entry(message.range).or_default().add(&message);
            }
        }
        let mut lacking = Self::default();
        for (from, found) in found {
            let end = from.range(capabilities.range_bits).end;
            let part = MissingPart {
                from,
                name: log.name_of(from, end),
                holds_records: false,
                // What nothing lives in is given back once it lies before the trim. If what emptied it is
                // lost, its messages look alive.
                may_be_given_back: !is_all_known && end <= recovered.trimmed,
                messages: found.messages.len() as u64,
                queues: found.queues(machine),
            };
            if let Some(bytes) = held.get(&from) {
                if *bytes < found.bytes_min {
                    lacking.cut_short.push(part);
                }
                continue;
            }
            lacking.lost.extend(found.messages);
            match parts.get_mut(&from) {
                Some(records) => {
                    records.messages = part.messages;
                    records.queues = part.queues;
                }
                None => {
                    parts.insert(from, part);
                }
            }
        }
        lacking.missing = parts.into_values().collect();
        lacking
    }

    /// Those of the missing parts that were there.
    pub(crate) fn certain(&self) -> Vec<MissingPart> {
        let certain = self.missing.iter().filter(|part| !part.may_be_given_back);
        certain.cloned().collect()
    }
}

/// The messages of a range.
#[derive(Default)]
struct InRange {
    messages: Vec<(QueueId, Sequence)>,
    bytes_min: u64,
}

impl InRange {
    fn add(&mut self, message: &LiveMessage) {
        self.messages.push((message.queue, message.sequence));
        self.bytes_min += message.bytes_min;
    }

    fn queues(&self, machine: &Machine) -> Vec<(QueueName, u64)> {
        let mut counts: BTreeMap<QueueId, u64> = BTreeMap::new();
        for (queue, _) in &self.messages {
            *counts.entry(*queue).or_default() += 1;
        }
        let named = |(queue, messages)| Some((machine.queue(queue)?.name, messages));
        let mut queues: Vec<(QueueName, u64)> = counts.into_iter().filter_map(named).collect();
        queues.sort_by(|(a, some), (b, others)| others.cmp(some).then_with(|| a.cmp(b)));
        queues
    }
}
