//! The findings of a check, for people and for programs.

use std::{collections::BTreeMap, fmt, ops::ControlFlow, path::Path};

use lockgate_core::{
    Clock as _, Location, LogError, Position, ReadError, Scanned, SnapshotStore, StorageFailure,
    with_sources,
};
use lockgate_engine::{MissingPart, StartError, StartReport, WithoutQueue, look_at_index};
use lockgate_log::{LogFile, SystemClock, segment_file};
use lockgate_machine::{
    Copies, Effect, Effects, ImageError, ImageLoader, ListQueues, Machine, MachineLimits, Query,
    QueryReply, QueueDescription, QueuePage, QueueTotals, decode_record,
};
use serde::{Serialize, Serializer};

use super::{Change, Granted, Overlay, Place, Tried};

/// The contents of a folder or shard, what is wrong with it, and what a start would do.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// The name of the folder or shard, for people.
    pub folder: String,
    pub verdict: Verdict,
    /// The standby that was read, if it was one: later changes of its primary are not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyFound>,
    /// The target folder of the restore that left this folder unfinished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished_restore_of: Option<String>,
    /// A restore into this shard has begun and not ended. Its data is not in the shard.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unfinished_restore: bool,
    /// The files, for a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Files>,
    /// Newest first.
    pub snapshots: Vec<SnapshotFound>,
    /// What a start would do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// Why a start would be refused. If that is because of missing parts, `start` shows a start
    /// that accepts the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Missing parts of the log without which a start is refused unless it accepts the loss.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingFound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<Records>,
    /// The index of unique ids, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexFound>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<QueueFound>>,
    /// What the state has besides messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Values>,
    /// Bytes of memory that the state takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_bytes: Option<u64>,
    /// The sums of the queues' limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<Granted>,
}

/// How far a standby of PostgreSQL has come, in PostgreSQL's terms.
#[derive(Debug, Serialize)]
pub struct StandbyFound {
    replayed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    received: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_commit: Option<String>,
}

impl StandbyFound {
    #[cfg(feature = "postgres")]
    pub fn of(standby: &lockgate_postgres::Standby) -> Self {
        Self {
            replayed: standby.replayed.clone(),
            received: standby.received.clone(),
            last_commit: standby.last_commit.clone(),
        }
    }
}

impl fmt::Display for StandbyFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a standby that has replayed up to {}", self.replayed)?;
        if let Some(received) = &self.received {
            write!(f, " of {received} received")?;
        }
        match &self.last_commit {
            Some(at) => write!(f, "; the last commit there is of {at}"),
            None => Ok(()),
        }
    }
}

/// The result of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything that was promised is there.
    Clean,
    /// A start would serve, but something is lost.
    Damaged,
    /// A start would refuse the folder.
    Refused,
}

/// The folder's files.
#[derive(Debug, Default, Serialize)]
pub struct Files {
    pub segments: u64,
    pub snapshots: u64,
    /// Segments and snapshots that an earlier start set aside because of damage.
    pub set_aside: u64,
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct SnapshotFound {
    #[serde(serialize_with = "as_text")]
    pub position: Position,
    pub bytes: u64,
    pub pieces: u64,
    /// Why a start would not load it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// What its contents contradict each other in. A start does not look for that, and loads it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contradiction: Option<String>,
    /// The snapshot's state, if it is valid.
    #[serde(skip)]
    pub machine: Option<Machine>,
}

#[derive(Debug, Serialize)]
pub struct Start {
    /// The number of the shard.
    pub shard: u16,
    /// The epoch that the start would begin.
    pub epoch: u64,
    /// The snapshot that the start would load.
    pub snapshot: Option<String>,
    /// Records behind the snapshot.
    pub records: u64,
    pub bytes: u64,
    pub tail_bytes_cut: u64,
    pub undecodable: u64,
    pub damaged: Vec<Stretch>,
    /// Messages that are in the log and cannot be used, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_queue: Option<WithoutQueueFound>,
    pub after_crash: bool,
    pub possibly_lost: u64,
    pub changes: Vec<Change>,
}

/// Messages and events, of whose queues and ledgers the creation is lost.
#[derive(Debug, Serialize)]
pub struct WithoutQueueFound {
    pub messages: u64,
    /// How many queues. Their names are lost.
    pub queues: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub events: u64,
    /// How many ledgers. Their names are lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub ledgers: u64,
    #[serde(skip)]
    pub told: WithoutQueue,
}

/// A part of the log that cannot be read.
#[derive(Debug, Serialize)]
pub struct Stretch {
    #[serde(serialize_with = "as_text")]
    pub from: Position,
    #[serde(serialize_with = "as_text")]
    pub to: Position,
    /// Records lost with it, if they can be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_as: Option<String>,
}

/// The result of reading all segments.
#[derive(Debug, Default, Serialize)]
pub struct Records {
    pub records: u64,
    pub bytes: u64,
    /// Parts that do not verify, besides those that a start would report.
    pub damaged: Vec<Stretch>,
    /// Live messages.
    pub messages: u64,
    /// Appends to ledgers whose events are kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub appends: u64,
    /// Live messages whose payload cannot be read, and appends whose events cannot.
    pub unreadable: u64,
    /// The parts of the log that should contain those payloads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable_in: Vec<Unreadable>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The index of unique ids.
#[derive(Debug, Serialize)]
pub struct IndexFound {
    /// Ids that were read; 0 if a part is damaged.
    pub ids: u64,
    pub bytes: u64,
    /// What cannot be read. A start would serve, and fail sends whose ids are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// A part of the log that lacks payloads.
#[derive(Debug, Serialize)]
pub struct Unreadable {
    #[serde(serialize_with = "as_text")]
    pub from: Position,
    pub messages: u64,
    /// Its file, if the log is a folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether all of it is missing.
    pub is_missing: bool,
}

/// Named values.
#[derive(Debug, Serialize)]
pub struct Values {
    /// Records of the shard.
    pub records: u64,
    /// Keys of all queues that have a state.
    pub states: u64,
    /// Bytes of memory that both take.
    pub bytes: u64,
}

#[derive(Debug, Serialize)]
pub struct QueueFound {
    pub name: String,
    pub ready: u64,
    pub in_flight: u64,
    pub delayed: u64,
    pub bytes: u64,
    pub keys: u64,
    pub parked_keys: u64,
    pub unique_ids: u64,
    /// Keys that have a state.
    pub states: u64,
    /// Whether the queue's totals agree with its contents.
    pub conserved: bool,
}

impl Findings {
    /// Checks everything in the folder or shard.
    ///
    /// # Errors
    /// If it cannot be read, which says nothing about its contents.
    pub fn of(place: &Place, folder: String) -> Result<Self, LogError> {
        let files = place.overlay().map(Files::of);
        let mut snapshots = snapshots(&*place.snapshots())?;
        for found in &mut snapshots {
            // The start below builds the state again; keeping both would take twice the memory.
            found.machine = None;
        }
        let mut findings = Self {
            folder,
            verdict: Verdict::Clean,
            standby: place.standby(),
            unfinished_restore_of: place.overlay().and_then(Overlay::unfinished_restore_of),
            unfinished_restore: place.has_unfinished_restore(),
            files,
            snapshots,
            start: None,
            refused: None,
            missing: Vec::new(),
            records: None,
            index: None,
            queues: None,
            values: None,
            state_bytes: None,
            granted: None,
        };
        let started = match super::start(place, false) {
            Err(error @ StartError::Missing { .. }) => {
                findings.refused = Some(with_sources(&error));
                if let StartError::Missing { parts, .. } = error {
                    findings.missing = parts.iter().map(MissingFound::of).collect();
                }
                // The start reports everything else.
                super::start(place, true)
            }
            started => started,
        };
        match started {
            Ok(mut tried) => {
                tried.housekeep();
                let start = Start::of(&tried.report, place);
                let records = Records::of(&tried, &start.damaged);
                let mut records = records.map_err(|error| match error {
                    ReadError::Log(error) => error,
                    error => LogError::Remote {
                        what: "reading the log".to_owned(),
                        source: StorageFailure::new(error),
                    },
                })?;
                if place.overlay().is_some() {
                    records.name_files();
                }
                // The start has dropped these messages.
                records.miss(&tried.report.missing, place.overlay().is_some());
                findings.records = Some(records);
                if let Some(folder) = place.index() {
                    findings.look_at_index(tried.machine(), &folder);
                }
                let descriptions = descriptions(tried.machine());
                findings.queues = Some(descriptions.iter().map(QueueFound::of).collect());
                findings.granted = Some(Granted::of(&descriptions));
                findings.values = Some(Values::of(tried.machine()));
                findings.state_bytes = Some(tried.machine().heap_bytes() as u64);
                findings.start = Some(start);
            }
            // The start would fail with this error as well, and a second attempt may succeed.
            Err(StartError::Recover(error @ LogError::Disk(_))) => return Err(error),
            Err(error) => findings.refused = Some(with_sources(&error)),
        }
        findings.verdict = findings.judge();
        Ok(findings)
    }

    /// Of a start that is refused for its missing parts, the index says nothing new.
    fn look_at_index(&mut self, machine: &Machine, folder: &Path) {
        match look_at_index(machine, folder) {
            Ok(found) if found.disk_bytes == 0 => {}
            Ok(found) => {
                self.index = Some(IndexFound {
                    ids: found.ids,
                    bytes: found.disk_bytes,
                    damage: found.damage.as_ref().map(|error| with_sources(error)),
                });
            }
            Err(error) if self.refused.is_none() => self.refused = Some(with_sources(&error)),
            Err(_) => {}
        }
    }

    fn judge(&self) -> Verdict {
        if self.refused.is_some() {
            return Verdict::Refused;
        }
        let in_snapshots = (self.snapshots.iter())
            .any(|found| found.damage.is_some() || found.contradiction.is_some());
        if in_snapshots || self.lacks_something() {
            Verdict::Damaged
        } else {
            Verdict::Clean
        }
    }

    /// The snapshot that a start would load, if its contents contradict each other.
    pub fn loads_contradiction(&self) -> Option<Position> {
        let loaded = self.start.as_ref()?.snapshot.as_ref()?;
        let found = (self.snapshots.iter()).find(|found| found.position.to_string() == *loaded)?;
        found.contradiction.as_ref().map(|_| found.position)
    }

    /// Whether anything is damaged besides snapshots that a start does not need.
    pub fn lacks_something(&self) -> bool {
        self.index.iter().any(|index| index.damage.is_some())
            || (self.start.iter()).any(|start| !start.damaged.is_empty() || start.undecodable > 0)
            || (self.records.iter()).any(|found| !found.damaged.is_empty() || found.unreadable > 0)
            || self.queues.iter().flatten().any(|queue| !queue.conserved)
    }
}

impl Files {
    fn of(overlay: &Overlay) -> Self {
        let mut files = Self::default();
        let all = overlay.sizes().into_iter();
        for (kind, bytes) in all.filter_map(|(name, bytes)| Some((LogFile::of(&name)?, bytes))) {
            files.bytes += bytes;
            match kind {
                LogFile::Segment => files.segments += 1,
                LogFile::Snapshot => files.snapshots += 1,
                LogFile::SetAside => files.set_aside += 1,
                _ => {}
            }
        }
        files
    }
}

/// Reads every snapshot to its end, newest first, and builds the state from it.
///
/// # Errors
/// If the folder cannot be read. A damaged snapshot is no error.
pub fn snapshots(store: &dyn SnapshotStore) -> Result<Vec<SnapshotFound>, LogError> {
    store
        .list()?
        .into_iter()
        .map(|at| snapshot(store, at))
        .collect()
}

fn snapshot(store: &dyn SnapshotStore, position: Position) -> Result<SnapshotFound, LogError> {
    let mut found = SnapshotFound {
        position,
        bytes: 0,
        pieces: 0,
        damage: None,
        contradiction: None,
        machine: None,
    };
    let mut loader = ImageLoader::new(MachineLimits::default());
    let mut read = || -> Result<(), ReadError> {
        let mut reader = store.open(position)?;
        found.bytes = reader.total_bytes();
        while let Some(piece) = reader.next_piece()? {
            found.pieces += 1;
            if found.damage.is_none()
                && let Err(error) = loader.piece(&piece)
            {
                found.damage = Some(with_sources(&error));
            }
        }
        Ok(())
    };
    match read() {
        Ok(()) => {}
        // As a start treats a snapshot that the disk cannot read.
        Err(error) => found.damage = Some(with_sources(&error)),
    }
    if found.damage.is_none() {
        match loader.finish_checked() {
            Ok(machine) => found.machine = Some(machine),
            Err(error @ ImageError::Inconsistent { .. }) => {
                found.contradiction = Some(with_sources(&error));
            }
            Err(error) => found.damage = Some(with_sources(&error)),
        }
    }
    Ok(found)
}

impl Start {
    fn of(report: &StartReport, place: &Place) -> Self {
        Self {
            shard: report.term.shard.get(),
            epoch: report.term.epoch.0,
            snapshot: report.snapshot.map(|at| at.to_string()),
            records: report.records,
            bytes: report.bytes,
            tail_bytes_cut: report.tail_bytes_cut,
            undecodable: report.undecodable,
            damaged: report
                .damaged
                .iter()
                .map(|range| Stretch {
                    from: range.from,
                    to: range.to,
                    records: Some(range.records),
                    kept_as: range.kept_as.clone(),
                })
                .collect(),
            without_queue: Some(report.without_queue)
                .filter(|told| !told.is_empty())
                .map(|told| WithoutQueueFound {
                    messages: told.messages,
                    queues: told.queues,
                    events: told.events,
                    ledgers: told.ledgers,
                    told,
                }),
            after_crash: report.crashed,
            possibly_lost: report.possibly_lost,
            changes: place.overlay().map_or_else(Vec::new, Overlay::changes),
        }
    }
}

impl Records {
    /// Reads every record, and looks for the payload of every message.
    fn of(tried: &Tried, known: &[Stretch]) -> Result<Self, ReadError> {
        let machine = tried.machine();
        let mut found = Self::default();
        let live = machine.live_ranges();
        // Messages whose payload was not found yet, by range.
        let mut unread: BTreeMap<Position, u64> =
            live.map(|(first, live)| (first, live.messages)).collect();
        let blocks = machine.live_blocks();
        found.appends = blocks;
        found.messages = unread.values().sum::<u64>() - blocks;
        tried
            .reader()
            .scan(Position(0), tried.tail(), &mut |scanned| {
                match scanned {
                    Scanned::Record { record, .. } => {
                        // The start has counted records that cannot be decoded.
                        let effects = decode_record(&record.payload).unwrap_or_default();
                        let is_start = |effect: &Effect| {
                            matches!(effect,
                        Effect::TermStarted { term, .. } if *term == tried.report.term)
                        };
                        if effects.iter().any(is_start) {
                            // The record that the trial start has just written in memory.
                            return ControlFlow::Continue(());
                        }
                        found.records += 1;
                        found.bytes += record.payload.len() as u64;
                        let read = live_payloads(machine, record.position, effects);
                        if let Some((_, left)) = unread.range_mut(..=record.position).next_back() {
                            *left = left.saturating_sub(read);
                        }
                    }
                    Scanned::Damaged { from, to } => {
                        if !known
                            .iter()
                            .any(|stretch| stretch.from <= from && to <= stretch.to)
                        {
                            found.damaged.push(Stretch {
                                from,
                                to,
                                records: None,
                                kept_as: None,
                            });
                        }
                    }
                }
                ControlFlow::Continue(())
            })?;
        found.unreadable = unread.values().sum();
        found.unreadable_in = unread
            .into_iter()
            .filter(|&(_, messages)| messages > 0)
            .map(|(from, messages)| Unreadable {
                from,
                messages,
                file: None,
                is_missing: false,
            })
            .collect();
        Ok(found)
    }

    /// Adds the files of a folder to the parts.
    fn name_files(&mut self) {
        for place in &mut self.unreadable_in {
            place.file = Some(segment_file(place.from));
        }
        for stretch in &mut self.damaged {
            stretch.kept_as = Some(segment_file(stretch.from));
        }
    }
}

impl Records {
    /// Counts the messages of missing parts, which a start drops, together with the others.
    fn miss(&mut self, parts: &[MissingPart], is_folder: bool) {
        for part in parts.iter().filter(|part| part.messages > 0) {
            self.messages += part.messages;
            self.unreadable += part.messages;
            self.unreadable_in.push(Unreadable {
                from: part.from,
                messages: part.messages,
                file: is_folder.then(|| part.name.clone()),
                is_missing: true,
            });
        }
        self.unreadable_in.sort_by_key(|place| place.from);
    }
}

/// A missing part of the log.
#[derive(Debug, Serialize)]
pub struct MissingFound {
    /// Its name: a file, or rows.
    pub name: String,
    #[serde(serialize_with = "as_text")]
    pub from: Position,
    /// Whether it contained records that no snapshot covers.
    pub holds_records: bool,
    /// Messages with bytes in it.
    pub messages: u64,
    /// The queues of these messages, most messages first.
    pub queues: Vec<MissingOf>,
    /// The ledgers with events in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ledgers: Vec<EventsMissing>,
}

#[derive(Debug, Serialize)]
pub struct EventsMissing {
    ledger: String,
    events: u64,
}

#[derive(Debug, Serialize)]
pub struct MissingOf {
    queue: String,
    messages: u64,
}

impl MissingFound {
    fn of(part: &MissingPart) -> Self {
        let queues = part.queues.iter().map(|(queue, messages)| MissingOf {
            queue: queue.to_string(),
            messages: *messages,
        });
        let ledgers = part.ledgers.iter().map(|(ledger, events)| EventsMissing {
            ledger: ledger.to_string(),
            events: *events,
        });
        Self {
            name: part.name.clone(),
            from: part.from,
            holds_records: part.holds_records,
            messages: part.messages,
            queues: queues.collect(),
            ledgers: ledgers.collect(),
        }
    }
}

/// How many live messages have their payload in this record, and how many appends to ledgers their events.
fn live_payloads(machine: &Machine, position: Position, effects: Effects) -> u64 {
    let (copies, others) = Copies::of_record(effects);
    let messages = copies.iter().flat_map(Copies::messages);
    let messages = messages.filter(|(part, stored)| {
        let part = *part;
        machine.lives_at(stored.id, Location { position, part })
    });
    let blocks = others.iter().filter(|effect| match effect {
        Effect::EventsAppended(appended) => {
            let block = &appended.block;
            machine.has_events_at(block.ledger, block.first, position)
        }
        Effect::EventsCompacted(block) => {
            machine.has_events_at(block.ledger, block.first, position)
        }
        _ => false,
    });
    (messages.count() + blocks.count()) as u64
}

/// All queues of a state, in order of their names.
pub fn queues(machine: &Machine) -> Vec<QueueFound> {
    descriptions(machine).iter().map(QueueFound::of).collect()
}

fn descriptions(machine: &Machine) -> Vec<QueueDescription> {
    let clock = SystemClock::new();
    let now = lockgate_core::Now {
        wall: clock.wall(),
        ..machine.clock_state().now
    };
    let mut found: Vec<QueueDescription> = Vec::new();
    let mut after = None;
    loop {
        let page = Query::ListQueues(ListQueues {
            prefix: String::new(),
            after,
            limit: 1_000,
        });
        let Ok(QueryReply::Queues(QueuePage { queues, next })) = machine.query(&page, now) else {
            return found;
        };
        found.extend(queues);
        if next.is_none() {
            return found;
        }
        after = next;
    }
}

impl Values {
    fn of(machine: &Machine) -> Self {
        let counts = machine.record_counts();
        Self {
            records: counts.records,
            states: machine.key_state_count(),
            bytes: counts.bytes + counts.state_bytes,
        }
    }
}

impl QueueFound {
    fn of(queue: &QueueDescription) -> Self {
        let counts = &queue.counts;
        let pending = counts.ready + counts.in_flight + counts.delayed;
        Self {
            name: queue.name.to_string(),
            ready: counts.ready,
            in_flight: counts.in_flight,
            delayed: counts.delayed,
            bytes: counts.bytes,
            keys: counts.keys,
            parked_keys: counts.parked_keys,
            unique_ids: counts.unique_ids,
            states: counts.states,
            conserved: is_conserved(&queue.totals, pending),
        }
    }
}

/// Whether a queue's totals agree with its contents.
fn is_conserved(totals: &QueueTotals, pending: u64) -> bool {
    let came = totals.accepted + totals.moved_in;
    let went = totals.acknowledged + totals.moved_out + totals.dropped.total();
    came == went + pending
}

/// Writes positions as text, because many JSON readers lose digits of a number of 64 bits.
pub(crate) fn as_text<S: Serializer>(
    position: &Position,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(position)
}

#[cfg(test)]
mod index_tests {
    use std::{fs, sync::Arc};

    use lockgate_core::{Clock as _, LedgerName, Now, ledger::LedgerOptions};
    use lockgate_engine::{
        Beginning, Driver, EngineOptions, FolderIndex, IndexOptions, Request, Work,
    };
    use lockgate_log::{FolderDisk, LocalLog};
    use lockgate_machine::{Command, CreateLedger, DeleteLedger};
    use lockgate_sim::ManualClock;

    use super::*;

    /// Makes a log with a ledger that was deleted. Returns the number of its space, which a start leaves to maintenance.
    fn log_of(folder: &std::path::Path) -> u64 {
        let disk = Arc::new(FolderDisk::open(folder).unwrap());
        let log = LocalLog::open(disk, Default::default()).unwrap();
        let clock = ManualClock::default();
        let beginning = || Beginning {
            wall: clock.wall(),
            since_boot: clock.since_boot(),
            boot_id: clock.boot_id(),
            incarnation: lockgate_core::Incarnation(1),
            secret: [7; 32],
        };
        let options = EngineOptions::default();
        let (mut driver, _): (Driver<u64>, _) = Driver::recover(log, &options, beginning).unwrap();
        let now = Now {
            wall: clock.wall(),
            machine: driver.machine_time(clock.since_boot()),
        };
        let name = LedgerName::new("l").unwrap();
        let create = CreateLedger {
            name: name.clone(),
            options: LedgerOptions::default(),
        };
        let delete = DeleteLedger { ledger: name };
        for command in [Command::from(create), Command::from(delete)] {
            let work = Work::from(command);
            driver.run_group([Request { work, ticket: 0 }], now, &mut |_| ());
        }
        driver.progress().sync().unwrap();
        (1 << 32) + 1
    }

    #[test]
    fn a_check_reads_the_index_and_changes_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("data");
        let deleted = log_of(&folder);
        let check = || Findings::of(&Place::folder(&folder).unwrap(), "it".to_owned()).unwrap();
        let found = check();
        assert_eq!(
            (found.verdict, found.index.is_some()),
            (Verdict::Clean, false)
        );
        assert!(!folder.join("index").exists());

        let index = FolderIndex::new(folder.join("index"), IndexOptions::default());
        let ids: Vec<_> = (1..=900)
            .map(|number| (u128::from(number) << 100, number))
            .collect();
        let open = index.open_or_make().unwrap();
        open.add(deleted, &ids, 900).unwrap();
        open.sync().unwrap();
        drop(open);
        index.close();
        let found = check();
        assert_eq!(found.verdict, Verdict::Clean, "{found:?}");
        assert_eq!(found.index.unwrap().ids, 900);

        // A queue that the log has never had.
        let open = index.open_or_make().unwrap();
        open.add(7, &[], 5).unwrap();
        open.sync().unwrap();
        let found = check();
        assert_eq!(found.verdict, Verdict::Refused);
        assert!(
            found.refused.as_ref().unwrap().contains("open already"),
            "{found:?}"
        );
        drop(open);
        index.close();
        let found = check();
        assert_eq!(found.verdict, Verdict::Refused);
        assert!(
            found.refused.as_ref().unwrap().contains("number 7:"),
            "{found:?}"
        );
        let open = index.open_or_make().unwrap();
        while !open.remove_space(7, 9).unwrap() {}
        open.sync().unwrap();
        drop(open);
        index.close();
        assert_eq!(check().verdict, Verdict::Clean);

        let runs = fs::read_dir(folder.join("index/ids/tables")).unwrap();
        // Opening reads small runs whole, and not the ids of the large one.
        let runs = runs.map(|run| run.unwrap().path());
        let large = runs
            .max_by_key(|run| fs::metadata(run).unwrap().len())
            .unwrap();
        let mut bytes = fs::read(&large).unwrap();
        let at = bytes.len() / 3;
        bytes[at] ^= 1;
        fs::write(large, bytes).unwrap();
        let found = check();
        assert_eq!(found.verdict, Verdict::Damaged, "{found:?}");
        assert!(found.index.unwrap().damage.is_some());
    }
}
