//! Parts of the log that messages have their bytes in and that are not there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use lockgate_core::{Log, Position, QueueId, QueueName, RecoveryReport, Sequence};
use lockgate_machine::{LiveMessage, Machine};

/// A part of the log that is not there, or not all of it, and the messages that have their bytes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingPart {
    /// Its first position.
    pub from: Position,
    /// What an operator knows it by: a file of the folder, or rows of a table.
    pub name: String,
    /// Whether records are lost with it that no snapshot covers: what they did is not known, and their
    /// number is in [`StartReport::damaged`](crate::StartReport::damaged).
    pub holds_records: bool,
    /// Whether nobody can say that it was lost: records are, and they may have settled all these messages,
    /// so that this part was given back before.
    pub may_be_given_back: bool,
    /// Messages that have their bytes in it.
    pub messages: u64,
    /// Whose they are, most messages first.
    pub queues: Vec<(QueueName, u64)>,
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

/// The parts in one line, or as much of them as one can read.
pub(crate) fn list(parts: &[MissingPart]) -> String {
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
        log: &dyn Log,
        recovered: &RecoveryReport,
        is_all_known: bool,
    ) -> Self {
        let capabilities = log.capabilities();
        let mut parts: BTreeMap<Position, MissingPart> = BTreeMap::new();
        for range in &recovered.missing {
            let part = MissingPart {
                from: range.start,
                name: log.name_of(range.start, range.end),
                holds_records: true,
                may_be_given_back: false,
                messages: 0,
                queues: Vec::new(),
            };
            parts.insert(range.start, part);
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
