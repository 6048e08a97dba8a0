//! Turns a backup into a log.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    iter, mem,
    sync::Arc,
};

use bytes::Bytes;
use lockgate_core::{
    AppendError, Epoch, LedgerId, Log, LogError, Now, Position, Purpose, QueueId, ReadError,
    RecordGroup, ReserveError, Scanned, Sequence, ShardId, SnapshotStore, Storage, StorageFailure,
    WallTime, ledger::SequenceId,
};
use lockgate_index::{FolderIndex, IndexError, PieceCheck};
use lockgate_machine::{
    Copies, DropReason, Effect, Effects, EventBlock, ImageError, ImageLoader, Machine,
    MachineLimits, decode_record, encode_record,
};

use super::{
    BackupReport,
    stream::{Kind, Reader},
};
use crate::{recover::for_each_queue, unique_ids::misfits};

/// The result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// When the backup was begun.
    pub created: WallTime,
    /// The number of the restored shard, under which it must be opened.
    pub shard: ShardId,
    pub queues: u64,
    pub messages: u64,
    /// Records of the shard.
    pub records: u64,
    /// Keys of all queues that have a state.
    pub states: u64,
    /// Events of all ledgers.
    pub events: u64,
    /// Messages without a payload in the backup, because it could not be read when the backup was
    /// taken; they are dropped as damaged.
    pub dropped: u64,
    /// Appends to ledgers whose events could not be read when the backup was taken: their events are lost, and a read of them
    /// says so.
    pub lost_appends: u64,
}

/// Why a restore was not finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The log is not empty. Nothing was changed.
    #[error("the log is not empty: a backup is restored into a new one only")]
    NotEmpty,
    /// The input is no backup.
    #[error("this is no backup of Lockgate")]
    NoBackup,
    /// A newer version wrote it.
    #[error(
        "the backup has format version {found}, this program reads up to {known}: use a newer one"
    )]
    NewerFormat {
        found: u32,
        /// The highest version that this program reads.
        known: u32,
    },
    /// The backup was cut or changed.
    #[error("the backup is damaged behind its byte {at}: {what}")]
    Damaged {
        /// The bytes before this are good.
        at: u64,
        /// What is wrong behind them.
        what: &'static str,
    },
    /// The state in the backup is invalid, or a newer version wrote it.
    #[error("the state in the backup cannot be read")]
    Image(#[from] ImageError),
    /// The backup could not be read.
    #[error("reading the backup")]
    Input(#[source] io::Error),
    /// The log has no room for the backup.
    #[error("the backup does not fit")]
    Full(#[source] ReserveError),
    /// The backup has unique ids that are remembered for ever, and the log has no index for them.
    #[error(
        "unsupported: the backup has unique ids in an index, which needs a disk beside the log: restore it into a folder"
    )]
    NoIndex,
    /// The index of unique ids could not be made.
    #[error("making the index of unique ids")]
    Index(#[source] IndexError),
    /// The unique ids in the backup are damaged.
    #[error("reading the unique ids of the backup")]
    Ids(#[source] IndexError),
    /// The unique ids in the backup are not those of its state.
    #[error("the backup does not have the unique ids that it should have, for {}", spaces.join("; "))]
    MissingIds {
        /// The queues and ledgers, each with what is wrong.
        spaces: Vec<String>,
    },
    /// The log failed.
    #[error("writing the log")]
    Log(#[source] LogError),
    /// The log failed.
    #[error("writing the log")]
    Append(#[source] AppendError),
}

/// Records are appended in groups of up to so many bytes.
const GROUP_BYTES: usize = 4 << 20;

/// Fills `log`, which must be empty, with the contents of a backup: the queues with their messages, order,
/// counts, remembered ids and leases. Leases have the time left that they had when the backup was taken:
/// nobody else gets their messages earlier, and their holders can still settle them.
///
/// From now on no token and no message id is given out that the backup's shard ever gave out or
/// will give out: a start draws a new incarnation and begins a higher epoch.
///
/// The shard keeps its number from the backup, unless `shard` names another one, for a copy that
/// will serve next to the original. Under another number, messages keep their ids, which contain
/// the old number. Leases continue until they end, but can no longer be settled: their tokens and
/// receipts contain the old number.
///
/// Closes the log at the end. Blocks while the backup is read and the log written.
///
/// # Errors
/// See [`RestoreError`]. The log then holds nothing, or part of the backup: it must be deleted, and a
/// start on such a part is refused.
pub fn restore(
    input: &mut dyn Read,
    storage: impl Into<Storage>,
    shard: Option<ShardId>,
) -> Result<RestoreReport, RestoreError> {
    restore_with_index(input, storage, None, shard)
}

/// As [`restore`], into a log with an index for unique ids that are remembered for ever. It is made if the backup has
/// some, where none may be yet.
///
/// # Errors
/// As [`restore`]. The index must be deleted together with the log.
pub fn restore_with_index(
    input: &mut dyn Read,
    storage: impl Into<Storage>,
    index: Option<&FolderIndex>,
    shard: Option<ShardId>,
) -> Result<RestoreReport, RestoreError> {
    let mut storage = storage.into();
    check_empty(&mut storage)?;
    let (mut stream, head) = Reader::begin(input)?;
    let mut content = Vec::new();
    let capabilities = storage.log.capabilities();
    let mut loader = ImageLoader::new(MachineLimits {
        log_level: capabilities.sync_level,
        range_bits: capabilities.range_bits,
        ..MachineLimits::default()
    });
    let mut kind = stream.block(&mut content)?;
    while kind == Kind::Piece {
        loader.piece(&content)?;
        kind = stream.block(&mut content)?;
    }
    let mut machine = loader.finish_checked()?;
    while machine.housekeep(usize::MAX).is_unfinished() {}
    machine.forget_positions();
    if index.is_none() && machine.needs_index() {
        return Err(RestoreError::NoIndex);
    }
    let mut spaces = Vec::new();
    if kind == Kind::Ids {
        let index = index.ok_or(RestoreError::NoIndex)?;
        let mut failed = None;
        let mut check = PieceCheck::default();
        let loaded = index.load(iter::from_fn(|| {
            if kind != Kind::Ids {
                return None;
            }
            let piece = mem::take(&mut content);
            if let Err(error) = check.piece(&piece) {
                failed = Some(RestoreError::Ids(error));
                return None;
            }
            match stream.block(&mut content) {
                Ok(next) => kind = next,
                Err(error) => {
                    failed = Some(error);
                    return None;
                }
            }
            Some(Ok(piece))
        }));
        if let Some(error) = failed {
            return Err(error);
        }
        loaded.map_err(RestoreError::Index)?;
        (spaces, _) = check.finish().map_err(RestoreError::Ids)?;
    }
    check_ids(&machine, &spaces)?;

    let epoch = machine.term().epoch.max(head.epoch).next();
    let begun = storage.log.begin_epoch(epoch);
    begun.map_err(RestoreError::Append)?;
    let mut writer = Writer::new(storage, epoch, machine);
    writer.mark()?;
    let (mut records, mut lives, mut events) = (0_u64, 0, 0);
    while kind == Kind::Message {
        let written = writer.message(&content, &stream)?;
        lives += written.0;
        events += written.1;
        records += 1;
        kind = stream.block(&mut content)?;
    }
    if content != records.to_le_bytes() {
        return Err(stream.damaged("messages are missing"));
    }
    stream.end()?;
    writer.append()?;
    let (dropped, lost_appends) = writer.drop_missing(lives)?;
    writer.append()?;
    if let Some(shard) = shard {
        writer.renumber(shard);
    }
    let machine = writer.finish()?;
    Ok(RestoreReport {
        created: head.created,
        shard: machine.shard().or(shard).unwrap_or_default(),
        queues: count_queues(&machine),
        messages: count_messages(&machine),
        records: machine.record_counts().records,
        states: machine.key_state_count(),
        events,
        dropped,
        lost_appends,
    })
}

/// Reads a backup to its end and builds its state, to find out whether [`restore`] would accept it.
///
/// Needs the memory that the state takes.
///
/// # Errors
/// The errors of [`restore`] that concern the backup.
pub fn verify_backup(input: &mut dyn Read) -> Result<BackupReport, RestoreError> {
    let (mut stream, head) = Reader::begin(input)?;
    let mut content = Vec::new();
    let mut loader = ImageLoader::new(MachineLimits::default());
    let (mut records, mut messages, mut blocks) = (0_u64, 0, Vec::new());
    let mut ids: Option<PieceCheck> = None;
    loop {
        match stream.block(&mut content)? {
            Kind::Piece => loader.piece(&content)?,
            Kind::Ids => {
                let ids = ids.get_or_insert_default();
                ids.piece(&content).map_err(RestoreError::Ids)?;
            }
            Kind::Message => {
                records += 1;
                match moved(&content, &stream)? {
                    Moved::Events(block) => {
                        blocks.push((block.ledger, block.first, block.events.len() as u64));
                    }
                    Moved::Messages(effects) => messages += effects.len() as u64,
                }
            }
            Kind::End => break,
        }
    }
    if content != records.to_le_bytes() {
        return Err(stream.damaged("messages are missing"));
    }
    stream.end()?;
    let mut machine = loader.finish_checked()?;
    while machine.housekeep(usize::MAX).is_unfinished() {}
    let spaces = ids.map(PieceCheck::finish).transpose();
    let (spaces, _) = spaces.map_err(RestoreError::Ids)?.unwrap_or_default();
    check_ids(&machine, &spaces)?;
    let kept = blocks.into_iter();
    let events = kept
        .map(|(ledger, first, events)| machine.kept_of(ledger, first, events))
        .sum();
    Ok(BackupReport {
        created: head.created,
        messages,
        records: machine.record_counts().records,
        states: machine.key_state_count(),
        events,
        unreadable: count_messages(&machine).saturating_sub(messages),
        unreadable_events: machine.kept_events().saturating_sub(events),
        bytes: stream.bytes,
    })
}

/// Whether the index of a backup with these spaces is that of its state, as a start will ask.
fn check_ids(machine: &Machine, spaces: &[(u64, u64)]) -> Result<(), RestoreError> {
    let spaces = misfits(machine, spaces);
    match spaces.is_empty() {
        true => Ok(()),
        false => Err(RestoreError::MissingIds { spaces }),
    }
}

/// Messages, and blocks of events, with bytes in the log.
fn count_live(machine: &Machine) -> u64 {
    machine.live_ranges().map(|(_, live)| live.messages).sum()
}

fn count_messages(machine: &Machine) -> u64 {
    count_live(machine) - machine.live_blocks()
}

/// What a record of a backup holds.
enum Moved {
    /// [`Effect::Compacted`] of a message, or of several with one payload.
    Messages(Effects),
    Events(Box<EventBlock>),
}

fn moved(record: &[u8], stream: &Reader<'_>) -> Result<Moved, RestoreError> {
    let effects = decode_record(&Bytes::copy_from_slice(record))
        .map_err(|_| stream.damaged("a message makes no sense"))?;
    let is_message = |effect: &Effect| matches!(effect, Effect::Compacted(_));
    if !effects.is_empty() && effects.iter().all(is_message) {
        let (copies, _) = Copies::of_record(effects.iter().cloned());
        let readable: usize = copies.iter().map(|copies| copies.messages().len()).sum();
        return match readable == effects.len() {
            true => Ok(Moved::Messages(effects)),
            false => Err(stream.damaged("a message has no payload")),
        };
    }
    let is_one = effects.len() == 1;
    match effects.into_iter().next() {
        Some(Effect::EventsCompacted(block)) if is_one => Ok(Moved::Events(block)),
        _ => Err(stream.damaged("a message is none")),
    }
}

fn check_empty(Storage { log, snapshots }: &mut Storage) -> Result<(), RestoreError> {
    log.claim().map_err(RestoreError::Log)?;
    let listed = snapshots.list().map_err(RestoreError::Log)?;
    if !listed.is_empty() {
        return Err(RestoreError::NotEmpty);
    }
    let found = log
        .recover(Position(0), Epoch(0), &mut |_, _| {})
        .map_err(RestoreError::Log)?;
    let is_empty = found.records == 0
        && found.epoch == Epoch(0)
        && found.trimmed == Position(0)
        && found.damaged.is_empty();
    if is_empty {
        Ok(())
    } else {
        Err(RestoreError::NotEmpty)
    }
}

/// Messages and blocks of events that are in the new log.
#[derive(Default)]
struct There {
    messages: BTreeSet<(QueueId, Sequence)>,
    blocks: BTreeSet<(LedgerId, SequenceId)>,
}

/// The new log, and its state.
struct Writer {
    log: Box<dyn Log>,
    snapshots: Arc<dyn SnapshotStore>,
    epoch: Epoch,
    machine: Machine,
    first: Position,
    group: RecordGroup,
    effects: Vec<Effects>,
}

impl Writer {
    fn new(Storage { log, snapshots }: Storage, epoch: Epoch, machine: Machine) -> Self {
        Self {
            group: RecordGroup::new(log.capabilities().gap),
            first: log.tail(),
            log,
            snapshots,
            epoch,
            machine,
            effects: Vec::new(),
        }
    }

    /// Writes a first record with which no owner begins a log. A start that finds it and no snapshot
    /// behind it refuses: otherwise a restore that failed early would look like empty queues.
    fn mark(&mut self) -> Result<(), RestoreError> {
        let now = Now::default();
        let mut record = Vec::new();
        encode_record(&[Effect::Advanced { now, budget: 0 }], &mut record);
        self.record(Effects::new(), &record)?; // the state to come has its own time
        self.append()?;
        self.log.progress().sync().map_err(RestoreError::Log)?;
        Ok(())
    }

    /// Adds a record of messages, or of events. Returns the number of messages, or else 1, and of events.
    fn message(&mut self, record: &[u8], stream: &Reader<'_>) -> Result<(u64, u64), RestoreError> {
        let (effects, events) = match moved(record, stream)? {
            Moved::Messages(effects) => {
                let is_lost = |effect: &Effect| match effect {
                    Effect::Compacted(stored) => {
                        let place = self.machine.location(stored.queue, stored.sequence);
                        place.is_none()
                    }
                    _ => false,
                };
                if effects.iter().any(is_lost) {
                    return Err(stream.damaged("a message is in no queue"));
                }
                (effects, 0)
            }
            Moved::Events(block) => {
                if !self.machine.has_block(block.ledger, block.first) {
                    return Err(stream.damaged("events are in no ledger"));
                }
                let events = block.events.len() as u64;
                let events = self.machine.kept_of(block.ledger, block.first, events);
                (Effects::from_iter([Effect::EventsCompacted(block)]), events)
            }
        };
        let lives = effects.len() as u64;
        self.record(effects, record)?;
        Ok((lives, events))
    }

    fn record(&mut self, effects: Effects, record: &[u8]) -> Result<(), RestoreError> {
        self.group.push(|buffer| buffer.extend_from_slice(record));
        self.effects.push(effects);
        if self.group.bytes().len() < GROUP_BYTES {
            return Ok(());
        }
        self.append()
    }

    /// Appends the collected records, and folds them at their new positions.
    fn append(&mut self) -> Result<(), RestoreError> {
        let (bytes, records) = (self.group.bytes().len(), self.group.len());
        self.log
            .reserve(bytes as u64, records as u64, Purpose::Growth)
            .map_err(RestoreError::Full)?;
        let tail = self.log.tail();
        let lens = (0..records).map(|index| self.group.payload(index).len());
        let mut cursor = tail;
        let places: Vec<Position> = lens.map(|len| self.log.place(&mut cursor, len)).collect();
        self.log
            .append(self.epoch, tail, &mut self.group)
            .map_err(RestoreError::Append)?;
        for (effects, at) in self.effects.drain(..).zip(places) {
            self.machine.fold(&effects, at);
        }
        self.group.clear(2 * GROUP_BYTES);
        Ok(())
    }

    /// Notes what came without its bytes: messages are dropped, and events are lost. Returns how many messages and blocks.
    fn drop_missing(&mut self, lives: u64) -> Result<(u64, u64), RestoreError> {
        if count_live(&self.machine) == lives {
            return Ok((0, 0));
        }
        // Rare enough to walk over all messages.
        let there = self.written()?;
        let mut dropped = Vec::new();
        for queue in self.machine.state_view().queues.into_values() {
            let id = queue.description.id;
            let missing = queue.messages.into_keys();
            let missing = missing.filter(|&sequence| !there.messages.contains(&(id, sequence)));
            dropped.extend(missing.map(|sequence| Effect::Dropped {
                queue: id,
                sequence,
                reason: DropReason::Damaged,
            }));
        }
        let messages = dropped.len() as u64;
        let blocks = self.machine.blocks_in(|_| true).into_iter();
        let lost = blocks.filter(|block| !there.blocks.contains(&(block.ledger, block.first)));
        dropped.extend(lost.map(|block| Effect::EventsLost {
            ledger: block.ledger,
            first: block.first,
        }));
        let blocks = dropped.len() as u64 - messages;
        for effect in dropped {
            let mut record = Vec::new();
            encode_record(std::slice::from_ref(&effect), &mut record);
            self.record(Effects::from_iter([effect]), &record)?;
        }
        Ok((messages, blocks))
    }

    /// What is in the new log.
    fn written(&self) -> Result<There, RestoreError> {
        let mut there = There::default();
        let reader = self.log.reader();
        let scanned = reader.scan(self.first, self.log.tail(), &mut |scanned| {
            if let Scanned::Record { record, .. } = scanned {
                for effect in decode_record(&record.payload).unwrap_or_default() {
                    match effect {
                        Effect::Compacted(stored) => {
                            there.messages.insert((stored.queue, stored.sequence));
                        }
                        Effect::EventsCompacted(block) => {
                            there.blocks.insert((block.ledger, block.first));
                        }
                        _ => {}
                    }
                }
            }
            std::ops::ControlFlow::Continue(())
        });
        scanned.map_err(|error| RestoreError::Log(log_error(error)))?;
        Ok(there)
    }

    /// Gives the state another number; the next snapshot records it.
    fn renumber(&mut self, shard: ShardId) {
        if self.machine.shard() == Some(shard) {
            return;
        }
        if let Some(effect) = self.machine.renumbered(shard, self.epoch) {
            self.machine.fold(&[effect], self.log.tail());
        }
    }

    /// Makes everything durable and takes a snapshot, without which the log is useless.
    fn finish(mut self) -> Result<Machine, RestoreError> {
        self.log.progress().sync().map_err(RestoreError::Log)?;
        let position = self.log.tail();
        let snapshot = self.snapshots.begin(position, self.log.next_number());
        let mut snapshot = snapshot.map_err(RestoreError::Log)?;
        let mut frozen = self.machine.freeze();
        let mut buffer = Vec::new();
        while let Some(piece) = frozen.next_piece(&mut buffer) {
            snapshot.write(piece).map_err(RestoreError::Log)?;
        }
        snapshot.finish().map_err(RestoreError::Log)?;
        let oldest = self.machine.live_ranges().map(|(first, _)| first).next();
        // A log that releases records once no recovery needs them must keep the payloads.
        let before = match oldest {
            Some(oldest) if !self.log.capabilities().releases_ranges => oldest.min(position),
            _ => position,
        };
        self.log.trim(before).map_err(RestoreError::Log)?;
        Ok(self.machine)
    }
}

fn count_queues(machine: &Machine) -> u64 {
    let mut count = 0;
    for_each_queue(machine, Now::default(), |_| count += 1);
    count
}

fn log_error(error: ReadError) -> LogError {
    match error {
        ReadError::Log(error) => error,
        error => LogError::Remote {
            what: "reading what was just written".to_owned(),
            source: StorageFailure::new(error),
        },
    }
}
