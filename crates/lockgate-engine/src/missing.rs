//! Finds missing parts of the log that contain bytes of messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::{ControlFlow, Range},
};

use lockgate_core::{
    LedgerId, LedgerName, LogError, LogReader, LogSource, Position, QueueId, QueueName, ReadError,
    RecoveryReport, Scanned, Sequence, StorageFailure, ledger::SequenceId,
};
use lockgate_machine::{
    Effect, EngineCommand, EventBlock, LiveBlock, LiveMessage, Machine, decode_record,
};

/// A part of the log that is missing, completely or in part, and the messages with bytes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingPart {
    /// The first position of the part.
    pub from: Position,
    /// Its name for an operator: a file of the folder, or rows of a table.
    pub name: String,
    /// Whether it contained records that no snapshot covers. What they did is unknown; their number
    /// is in [`StartReport::damaged`](crate::StartReport::damaged).
    pub holds_records: bool,
    /// Whether the part may have been released before it was lost. Other lost records may have
    /// settled all its messages, so this cannot be decided.
    pub may_be_given_back: bool,
    /// How many messages have bytes in it.
    pub messages: u64,
    /// The queues of these messages, with the number of messages of each, most first.
    pub queues: Vec<(QueueName, u64)>,
    /// The ledgers with events in it, with the number of events of each.
    pub ledgers: Vec<(LedgerName, u64)>,
}

/// Messages and events that are complete in the log and that no start can use, because the record that created
/// their queue or ledger is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WithoutQueue {
    /// How many messages these are. Messages that the remaining records settle are not counted;
    /// messages that have expired since are.
    pub messages: u64,
    /// How many queues they belong to. The queues' names are lost.
    pub queues: u64,
    /// How many events these are. Events that the remaining records trim are not counted; those that have become
    /// older than the retention are.
    pub events: u64,
    /// How many ledgers they belong to. The ledgers' names are lost.
    pub ledgers: u64,
}

impl fmt::Display for WithoutQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: u64, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let of_queues = (self.messages > 0 || self.events == 0).then(|| {
            let (messages, queues) = (count(self.messages, "message"), count(self.queues, "queue"));
            format!("{messages} to {queues} whose creation is lost")
        });
        let of_ledgers = (self.events > 0).then(|| {
            let (events, ledgers) = (count(self.events, "event"), count(self.ledgers, "ledger"));
            format!("{events} of {ledgers} whose creation is lost")
        });
        let both: Vec<_> = of_queues.into_iter().chain(of_ledgers).collect();
        f.write_str(&both.join(" and "))
    }
}

impl WithoutQueue {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages == 0 && self.events == 0
    }

    /// Reads the records between the first and the last of `ignored` again. `ignored`: the starts of records
    /// with an effect that folding ignored, in order. `machine`: the state after folding.
    pub(crate) fn count(
        machine: &Machine,
        reader: &dyn LogReader,
        ignored: &[Position],
        last: Position,
    ) -> Result<Self, LogError> {
        let Some(&first) = ignored.first() else {
            return Ok(Self::default());
        };
        let (mut found, mut events) = (Found::new(), FoundEvents::new());
        let known: BTreeSet<LedgerId> = machine.ledgers().map(|ledger| ledger.id).collect();
        let scanned = reader.scan(first, Position(last.0.saturating_add(1)), &mut |scanned| {
            if let Scanned::Record { record, .. } = scanned {
                let is_ignored = ignored.binary_search(&record.position).is_ok();
                // Records that cannot be decoded have no effect and were counted.
                for effect in decode_record(&record.payload).unwrap_or_default() {
                    match effect {
                        Effect::Accepted(stored) | Effect::Compacted(stored)
                            if is_ignored && machine.queue(stored.queue).is_none() =>
                        {
                            let messages = found.entry(stored.queue).or_default();
                            messages.insert(stored.sequence, stored.queue);
                        }
                        Effect::EventsAppended(appended) if is_ignored => {
                            add_events(&mut events, &known, &appended.block);
                        }
                        Effect::EventsCompacted(block) if is_ignored => {
                            add_events(&mut events, &known, &block);
                        }
                        effect => {
                            settle(&mut found, &effect);
                            trim(&mut events, &effect);
                        }
                    }
                }
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(()) => {}
            Err(ReadError::Log(error)) => return Err(error),
            // The scan reports the damage that it finds, and continues.
            Err(error) => {
                return Err(LogError::Remote {
                    what: "reading the log again".to_owned(),
                    source: StorageFailure::new(error),
                });
            }
        }
        let queues = found.values().flat_map(BTreeMap::values);
        let blocks = events.values().flat_map(BTreeMap::values);
        let ledgers = events.values().filter(|blocks| !blocks.is_empty());
        Ok(Self {
            messages: queues.clone().count() as u64,
            queues: queues.collect::<BTreeSet<_>>().len() as u64,
            events: blocks.sum(),
            ledgers: ledgers.count() as u64,
        })
    }
}

/// Events by their ledger: how many begin at each place.
type FoundEvents = BTreeMap<LedgerId, BTreeMap<SequenceId, u64>>;

/// Adds the events of a ledger that is not known.
fn add_events(found: &mut FoundEvents, known: &BTreeSet<LedgerId>, block: &EventBlock) {
    let count = block.events.len() as u64;
    if count > 0 && !known.contains(&block.ledger) {
        found
            .entry(block.ledger)
            .or_default()
            .insert(block.first, count);
    }
}

/// Removes the events of which this effect lets go.
fn trim(found: &mut FoundEvents, effect: &Effect) {
    match effect {
        Effect::LedgerDeleted { ledger } => drop(found.remove(ledger)),
        Effect::EventsLost { ledger, first } => {
            if let Some(blocks) = found.get_mut(ledger) {
                blocks.remove(first);
            }
        }
        Effect::LedgerTrimmed { ledger, first } => {
            let Some(blocks) = found.get_mut(ledger) else {
                return;
            };
            let kept = blocks.split_off(first);
            // The rest of a block in which the first kept event is.
            let parted = std::mem::replace(blocks, kept).pop_last();
            if let Some((begins, count)) = parted
                && let Some(left @ 1..) = (begins.0.saturating_add(count)).checked_sub(first.0)
            {
                blocks.insert(*first, left);
            }
        }
        _ => {}
    }
}

/// Messages by their present queue, with the queue that accepted them.
type Found = BTreeMap<QueueId, BTreeMap<Sequence, QueueId>>;

/// Removes the messages that this effect settles.
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
            ledgers: Vec::new(),
        }
    }

    /// How many events have their bytes in it.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.ledgers.iter().map(|(_, events)| events).sum()
    }
}

/// The most queues of a part that a text names.
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
        for (index, (ledger, events)) in self.ledgers.iter().take(QUEUES_TOLD).enumerate() {
            let comma = match index > 0 || self.holds_records || self.messages > 0 {
                true => ", ",
                false => "",
            };
            write!(f, "{comma}{events} events of ledger {ledger}")?;
        }
        if let Some(more @ 1..) = self.ledgers.len().checked_sub(QUEUES_TOLD) {
            write!(f, " and others of {more} more ledgers")?;
        }
        f.write_str(")")
    }
}

/// The most parts that a text names.
const PARTS_TOLD: usize = 16;

/// A line with the parts, as many as one can read, and with the messages and events that are useless without them.
pub(crate) fn list(parts: &[MissingPart], without_queue: &WithoutQueue) -> String {
    match without_queue.is_empty() {
        true => list_parts(parts),
        false => format!(
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

/// The losses that a start finds.
#[derive(Debug, Default)]
pub(crate) struct Lacking {
    /// Missing parts.
    pub(crate) missing: Vec<MissingPart>,
    /// Parts that are too short for their messages.
    pub(crate) cut_short: Vec<MissingPart>,
    /// How to note the loss of the messages and events of the missing parts.
    pub(crate) lost: Vec<EngineCommand>,
}

impl Lacking {
    /// Compares what the recovered machine needs with what the log has. `is_all_known`: no record
    /// was lost or skipped.
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
        // The machine's count includes purged messages that are not freed yet; only the walk below
        // shows which messages exist. It takes time in the number of messages, so only the few
        // ranges that need it are walked.
        let needs_a_look: BTreeSet<Position> = (machine.live_ranges())
            .filter(|(first, live)| held.get(first).is_none_or(|held| *held < live.bytes_min()))
            .map(|(first, _)| first)
            .collect();
        let mut found: BTreeMap<Position, InRange> = BTreeMap::new();
        if capabilities.releases_ranges && !needs_a_look.is_empty() {
            for message in machine.messages_in(|range| needs_a_look.contains(&range)) {
                found.entry(message.range).or_default().add(&message);
            }
            for block in machine.blocks_in(|range| needs_a_look.contains(&range)) {
                found.entry(block.range).or_default().add_events(block);
            }
        }
        let mut lacking = Self::default();
        for (from, found) in found {
            let end = from.range(capabilities.range_bits).end;
            let part = MissingPart {
                from,
                name: log.name_of(from, end),
                holds_records: false,
                // A range without live messages is released once the log is trimmed behind it. If
                // the records that emptied it are lost, its messages look alive.
                may_be_given_back: !is_all_known && end <= recovered.trimmed,
                messages: found.messages.len() as u64,
                queues: found.queues(machine),
                ledgers: found.ledgers(),
            };
            if let Some(bytes) = held.get(&from) {
                if *bytes < found.bytes_min {
                    lacking.cut_short.push(part);
                }
                continue;
            }
            lacking.lost.extend(found.losses());
            match parts.get_mut(&from) {
                Some(records) => {
                    records.messages = part.messages;
                    records.queues = part.queues;
                    records.ledgers = part.ledgers;
                }
                None => {
                    parts.insert(from, part);
                }
            }
        }
        lacking.missing = parts.into_values().collect();
        lacking
    }

    /// The missing parts that were certainly needed.
    pub(crate) fn certain(&self) -> Vec<MissingPart> {
        let certain = self.missing.iter().filter(|part| !part.may_be_given_back);
        certain.cloned().collect()
    }
}

/// The messages and events of a range.
#[derive(Default)]
struct InRange {
    messages: Vec<(QueueId, Sequence)>,
    blocks: Vec<LiveBlock>,
    bytes_min: u64,
    /// Records whose shared payloads are in `bytes_min`.
    shared: BTreeSet<Position>,
}

impl InRange {
    fn add(&mut self, message: &LiveMessage) {
        self.messages.push((message.queue, message.sequence));
        self.bytes_min += message.bytes_min;
        if let Some((record, bytes)) = message.shared
            && self.shared.insert(record)
        {
            self.bytes_min += bytes;
        }
    }

    fn add_events(&mut self, block: LiveBlock) {
        self.bytes_min += block.bytes_min;
        self.blocks.push(block);
    }

    fn losses(self) -> impl Iterator<Item = EngineCommand> {
        let messages = self.messages.into_iter();
        let messages = messages.map(|(queue, sequence)| EngineCommand::Damaged { queue, sequence });
        let blocks = self.blocks.into_iter();
        messages.chain(blocks.map(|block| EngineCommand::LoseEvents {
            ledger: block.ledger,
            first: block.first,
        }))
    }

    fn ledgers(&self) -> Vec<(LedgerName, u64)> {
        let mut counts: BTreeMap<&LedgerName, u64> = BTreeMap::new();
        for block in &self.blocks {
            *counts.entry(&block.name).or_default() += block.events;
        }
        let named = counts.into_iter();
        named.map(|(name, events)| (name.clone(), events)).collect()
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
