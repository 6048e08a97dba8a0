//! Making a log of a backup.

use std::{
    collections::BTreeSet,
    io::{self, Read},
    sync::Arc,
};

use bytes::Bytes;
use lockgate_core::{
    AppendError, Epoch, Log, LogError, Now, Position, Purpose, QueueId, ReadError, RecordGroup,
    ReserveError, Scanned, Sequence, ShardId, SnapshotStore, Storage, WallTime,
};
use lockgate_machine::{
    DropReason, Effect, Effects, ImageError, ImageLoader, Machine, MachineLimits, decode_record,
    encode_record,
};

use super::{
    BackupReport,
    stream::{Kind, Reader},
};
use crate::recover::for_each_queue;

/// What a restore made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// When the backup was begun.
    pub created: WallTime,
    /// The number of the shard that was made: a start must name it.
    pub shard: ShardId,
    pub queues: u64,
    pub messages: u64,
    /// Messages whose payload the backup does not have, because it could not be read any more when
    /// the backup was taken; they are dropped as damaged.
    pub dropped: u64,
}

/// Why a restore was not finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// There is something in the log already. Nothing was changed.
    #[error("the log is not empty: a backup is restored into a new one only")]
    NotEmpty,
    /// What was given is something else.
    #[error("this is no backup of Lockgate")]
    NoBackup,
    /// A newer version wrote it.
    #[error(
        "the backup has format version {found}, this program reads up to {known}: use a newer one"
    )]
    NewerFormat {
        found: u32,
        /// The highest version known.
        known: u32,
    },
    /// It was cut or changed.
    #[error("the backup is damaged behind its byte {at}: {what}")]
    Damaged {
        /// Up to here it is good.
        at: u64,
        /// What is wrong behind it.
        what: &'static str,
    },
    /// The state in it makes no sense, or was written by a newer version.
    #[error("the state in the backup cannot be read")]
    Image(#[from] ImageError),
    /// It could not be read.
    #[error("reading the backup")]
    Input(#[source] io::Error),
    /// The log has no room for it.
    #[error("the backup does not fit")]
    Full(#[source] ReserveError),
    /// The log failed.
    #[error("writing the log")]
    Log(#[source] LogError),
    /// The log failed.
    #[error("writing the log")]
    Append(#[source] AppendError),
}

/// Records are appended together up to so many bytes.
const GROUP_BYTES: usize = 4 << 20;

/// Makes `log`, which must be empty, hold what the backup holds: the queues with their messages,
/// order, counts, remembered ids and leases. The leases last as long as they would have lasted, by the
/// time at which the backup was taken: nobody else gets the messages earlier, and who has the
/// receipts can still settle.
///
/// No token and no message id that is given out from now on was ever given out by the shard from
/// which the backup was taken, whatever that does meanwhile: a start draws a new incarnation and
/// begins a higher epoch.
///
/// The shard keeps the number it has in the backup, unless `shard` names another one, for a copy that is to
/// serve beside the shard it was taken from. Under another number messages keep their ids, with the old
/// number in them; leases go on until they end, but can no longer be settled: their tokens and receipts
/// are those of the old number.
///
/// Afterwards the log is closed. It blocks for as long as reading the backup and writing it takes.
///
/// # Errors
/// See [`RestoreError`]. The log then holds the beginning of what it should, and must be thrown
/// away; a start on it is refused.
pub fn restore(
    input: &mut dyn Read,
    storage: impl Into<Storage>,
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

    let epoch = machine.term().epoch.max(head.epoch).next();
    let begun = storage.log.begin_epoch(epoch);
    begun.map_err(RestoreError::Append)?;
    let mut writer = Writer::new(storage, epoch, machine);
    let mut messages = 0_u64;
    while kind == Kind::Message {
        writer.message(&content, &stream)?;
        messages += 1;
        kind = stream.block(&mut content)?;
    }
    if content != messages.to_le_bytes() {
        return Err(stream.damaged("messages are missing"));
    }
    stream.end()?;
    writer.append()?;
    let dropped = writer.drop_missing(messages)?;
    writer.append()?;
    if let Some(shard) = shard {
        writer.renumber(shard);
    }
    let machine = writer.finish()?;
    Ok(RestoreReport {
        created: head.created,
        shard: machine.shard().or(shard).unwrap_or_default(),
        queues: count_queues(&machine),
        messages,
        dropped,
    })
}

/// Reads a backup to its end, and makes the state in it: whether [`restore`] would take it.
///
/// Needs the memory that the state takes.
///
/// # Errors
/// As [`restore`], for what concerns the backup.
pub fn verify_backup(input: &mut dyn Read) -> Result<BackupReport, RestoreError> {
    let (mut stream, head) = Reader::begin(input)?;
    let mut content = Vec::new();
    let mut loader = ImageLoader::new(MachineLimits::default());
    let mut messages = 0_u64;
    loop {
        match stream.block(&mut content)? {
            Kind::Piece => loader.piece(&content)?,
            Kind::Message => messages += 1,
            Kind::End => break,
        }
    }
    if content != messages.to_le_bytes() {
        return Err(stream.damaged("messages are missing"));
    }
    stream.end()?;
    let mut machine = loader.finish_checked()?;
    while machine.housekeep(usize::MAX).is_unfinished() {}
    Ok(BackupReport {
        created: head.created,
        messages,
        unreadable: count_messages(&machine).saturating_sub(messages),
        bytes: stream.bytes,
    })
}

fn count_messages(machine: &Machine) -> u64 {
    machine.live_ranges().map(|(_, live)| live.messages).sum()
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

/// The log and the state it will have.
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

    /// Takes a message's record.
    fn message(&mut self, record: &[u8], stream: &Reader<'_>) -> Result<(), RestoreError> {
        let effects = decode_record(&Bytes::copy_from_slice(record))
            .map_err(|_| stream.damaged("a message makes no sense"))?;
        let [Effect::Compacted(stored)] = &effects[..] else {
            return Err(stream.damaged("a message is none"));
        };
        let place = self.machine.location(stored.queue, stored.sequence);
        if place.is_none() {
            return Err(stream.damaged("a message is in no queue"));
        }
        self.record(effects, record)
    }

    fn record(&mut self, effects: Effects, record: &[u8]) -> Result<(), RestoreError> {
        self.group.push(|buffer| buffer.extend_from_slice(record));
        self.effects.push(effects);
        if self.group.bytes().len() < GROUP_BYTES {
            return Ok(());
        }
        self.append()
    }

    /// Appends what was gathered, and folds it where it is now.
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

    /// Drops the messages that came without a payload. Returns how many.
    fn drop_missing(&mut self, messages: u64) -> Result<u64, RestoreError> {
        if count_messages(&self.machine) == messages {
            return Ok(0);
        }
        // Rare enough to walk everything.
        let there = self.written()?;
        let mut dropped = 0;
        for queue in self.machine.state_view().queues.into_values() {
            let id = queue.description.id;
            for &sequence in queue.messages.keys() {
                if !there.contains(&(id, sequence)) {
                    let effect = Effect::Dropped {
                        queue: id,
                        sequence,
                        reason: DropReason::Damaged,
                    };
                    let mut record = Vec::new();
                    encode_record(std::slice::from_ref(&effect), &mut record);
                    self.record(Effects::from_iter([effect]), &record)?;
                    dropped += 1;
                }
            }
        }
        Ok(dropped)
    }

    /// The messages in the new log.
    fn written(&self) -> Result<BTreeSet<(QueueId, Sequence)>, RestoreError> {
        let mut there = BTreeSet::new();
        let reader = self.log.reader();
        let scanned = reader.scan(self.first, self.log.tail(), &mut |scanned| {
            if let Scanned::Record { record, .. } = scanned {
                for effect in decode_record(&record.payload).unwrap_or_default() {
                    if let Effect::Compacted(stored) = effect {
                        there.insert((stored.queue, stored.sequence));
                    }
                }
            }
            std::ops::ControlFlow::Continue(())
        });
        scanned.map_err(|error| RestoreError::Log(log_error(error)))?;
        Ok(there)
    }

    /// Gives the state another number, of which the snapshot to come tells.
    fn renumber(&mut self, shard: ShardId) {
        if self.machine.shard() == Some(shard) {
            return;
        }
        if let Some(effect) = self.machine.renumbered(shard, self.epoch) {
            self.machine.fold(&[effect], self.log.tail());
        }
    }

    /// Makes all of it durable, with the state as a snapshot, without which the log is of no use.
    fn finish(mut self) -> Result<Machine, RestoreError> {
        self.log.progress().sync().map_err(RestoreError::Log)?;
        let position = self.log.tail();
        let snapshot = self.snapshots.begin(position, self.log.next_number());
        let mut snapshot = snapshot.map_err(RestoreError::Log)?;
        let mut frozen = self.machine.freeze();
        let mut piece = Vec::new();
        while frozen.next_piece(&mut piece) {
            snapshot.write(&piece).map_err(RestoreError::Log)?;
        }
        snapshot.finish().map_err(RestoreError::Log)?;
        let oldest = self.machine.live_ranges().map(|(first, _)| first).next();
        // A log that gives records back as soon as no recovery needs them must keep the payloads.
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
            source: error.into(),
        },
    }
}
