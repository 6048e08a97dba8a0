//! Where records wait on disk: the local log, with small files and without snapshots.
//!
//! Each record of the log is a message, or a checkpoint that says which messages are over. The last checkpoint counts: a
//! recovery has what is neither over there nor damaged. What a checkpoint does not know yet is sent again. Files go when
//! a durable checkpoint stands behind them and all of their messages are over.

pub(crate) mod codec;
pub(crate) mod done;
#[cfg(test)]
mod tests;
pub(crate) mod thread;

use std::{
    collections::VecDeque,
    fs,
    io::{self, Write as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use lockgate_core::{
    AppendError, Disk, DiskError, DiskOperation, Epoch, Log as _, LogError, LogReader,
    LogSource as _, Position, ProducerName, Purpose, ReadError, RecordGroup, RecoveryReport,
    ReserveError, Scanned,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, OpenError};
use tracing::warn;

use self::{
    codec::{Decoded, decode, encode_checkpoint, encode_message, encode_void, message_len},
    done::Done,
};
use crate::{
    buffer::{
        KeyCounts, Lack, Load, Loaded, RECORD_BYTES, Recovered, Staged, Streams, Used, key_hash,
    },
    options::SpoolOptions,
};

/// Kept of the buffer in which records are put together.
const GROUP_BYTES_KEPT: usize = 4 << 20;

/// The most bytes of a record, where files are large enough.
const RECORD_BYTES_MAX: usize = 16 << 20;

/// What a file has beside one record, at most.
const OVERHEAD: usize = 8 << 10;

/// So many bytes of the other stream are passed over at a time, so that writes do not wait for long.
const PASSED_MAX: u64 = 4 << 20;

/// The file that tells other programs what a folder is. Its name begins with a dot, so a folder whose log has gone may
/// still be used as one that is empty.
pub const SPOOL_MARK: &str = ".spool";

/// Why a spool could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpoolError {
    /// The folder cannot be used.
    #[error("the spool in {} cannot be opened", folder.display())]
    Disk {
        /// The spool's folder.
        folder: PathBuf,
        /// What the system said.
        source: DiskError,
    },
    /// Another producer has the folder open, or an option is out of range.
    #[error("the spool in {} cannot be opened", folder.display())]
    Open {
        /// The spool's folder.
        folder: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// The log in it could not be read, or cannot go on.
    #[error("the spool in {} cannot be read", folder.display())]
    Log {
        /// The spool's folder.
        folder: PathBuf,
        /// Why.
        source: LogError,
    },
    /// The log could not be begun anew.
    #[error("the spool in {} cannot be written", folder.display())]
    Append {
        /// The spool's folder.
        folder: PathBuf,
        /// Why.
        source: AppendError,
    },
    /// The folder has a log of something else, such as the data of a server. Nothing in it was changed.
    #[error(
        "{} has a log that is no spool, or one of a newer version: use another folder",
        folder.display()
    )]
    Foreign {
        /// The folder.
        folder: PathBuf,
    },
    /// A newer version has written records that this one cannot read. Nothing was changed.
    #[error(
        "the spool in {} has records of a newer version: open it with that version, or use another folder",
        folder.display()
    )]
    Newer {
        /// The spool's folder.
        folder: PathBuf,
    },
    /// The spool belongs to a producer of another name.
    #[error(
        "the spool in {} is of the producer {has}, and this one is {given}: open it by its name, or use another folder",
        folder.display()
    )]
    Name {
        /// The spool's folder.
        folder: PathBuf,
        /// The name in the spool.
        has: ProducerName,
        /// The name that was given.
        given: ProducerName,
    },
}

/// What was found in a spool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpoolReport {
    /// Records that an earlier run has left, and their bytes.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Records that were damaged. They may have been delivered. Their bytes are kept in files that end with `.damaged`.
    pub damaged_records: u64,
    /// Stretches of the files that cannot be read, those of `damaged_records` among them. How many records were in one at the end
    /// nobody knows.
    pub damaged_stretches: u64,
    /// Bytes at the end that were written by halves when the last run ended, and were cut.
    pub cut_bytes: u64,
}

/// What came of writing.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// There is no room now: the disk lacks that.
    Full(Lack),
    /// The log has failed.
    Failed(String),
}

struct File {
    /// Its first position, with the lowest bits cleared.
    range: u64,
    /// The spot of its first record.
    first: u64,
    bytes: u64,
}

pub(crate) struct Store {
    log: LocalLog,
    reader: Arc<dyn LogReader>,
    epoch: Epoch,
    group: RecordGroup,
    files: VecDeque<File>,
    /// Where the record of a spot is, from which the next load of a stream reads.
    cursors: Streams<Option<(u64, Position)>>,
    /// Where the last checkpoint stands, and the last that is durable.
    checkpoint: Option<Position>,
    durable_checkpoint: Option<Position>,
    /// Whether it was told that the log's mark could not be written.
    mark_failed: bool,
}

impl Store {
    /// Opens the spool, reads it, and takes it over.
    pub(crate) fn open(
        options: &SpoolOptions,
        name: Option<&ProducerName>,
        new_name: impl FnOnce() -> ProducerName,
    ) -> Result<(Self, Recovered, SpoolReport), SpoolError> {
        let folder = || options.folder.clone();
        let disk = FolderDisk::open(&options.folder).map_err(|source| SpoolError::Disk {
            folder: folder(),
            source,
        })?;
        let mark = options.folder.join(SPOOL_MARK);
        let kept = fs::read_to_string(&mark)
            .ok()
            .and_then(|text| marked(&text));
        let opened = Self::open_on(Arc::new(disk), options, name, kept.as_ref(), new_name)?;
        let name = &opened.1.name;
        if kept.as_ref() != Some(name)
            && let Err(error) = write_mark(&mark, name)
        {
            // The records have the name, too.
            warn!(file = %mark.display(), %error, "the mark of a spool is not written");
        }
        Ok(opened)
    }

    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        options: &SpoolOptions,
        name: Option<&ProducerName>,
        kept: Option<&ProducerName>,
        new_name: impl FnOnce() -> ProducerName,
    ) -> Result<(Self, Recovered, SpoolReport), SpoolError> {
        let folder = || options.folder.clone();
        let log_options = LocalLogOptions {
            segment_bytes: options.file_bytes,
            record_bytes_max: record_bytes_max(options.file_bytes),
            free_bytes_min: options.free_bytes_min,
            reserve_segments: 1,
            open_files_max: 8,
            ..LocalLogOptions::default()
        };
        let is_mark = |name: &String| name == SPOOL_MARK;
        let is_marked = kept.is_some() || disk.list().is_ok_and(|names| names.iter().any(is_mark));
        let mut log = LocalLog::open(disk, log_options).map_err(|source| SpoolError::Open {
            folder: folder(),
            source,
        })?;
        let unread = |source| SpoolError::Log {
            folder: folder(),
            source,
        };
        let (mut report, mut found) = recover(&mut log, is_marked).map_err(unread)?;
        // Before anything is changed.
        found.check(options, name, kept)?;
        let is_proven = is_marked || found.is_spool;
        let range_bits = log.capabilities().range_bits;
        let start = report.trimmed.0 >> range_bits;
        let ranges = log.ranges();
        let has_before = ranges
            .iter()
            .any(|range| (range.first.0 >> range_bits) < start);
        if !is_proven && has_before {
            // Nothing says whose files before the start are.
            return Err(SpoolError::Foreign { folder: folder() });
        }
        // Files before the start are there if a crash came before they were removed, or if the mark of the start is wrong.
        // What is over in them is known, or sent again, and the rest must not be left out.
        if log.start_at_oldest().map_err(unread)? {
            warn!(
                folder = %folder().display(),
                "the spool has files before the mark of where it starts, and begins with them"
            );
            (report, found) = recover(&mut log, is_proven).map_err(unread)?;
            found.check(options, name, kept)?;
        }
        if kept.is_some() && !found.is_spool {
            warn!(
                folder = %folder().display(),
                "there was a spool, and nothing of it can be read: if messages were in it, they are lost"
            );
        }
        if found.name.is_none() && name.is_none() && found.is_spool {
            warn!(
                folder = %folder().display(),
                "the spool has lost the name of its producer: what is in it and was sent before is sent a second time"
            );
        }
        let epoch = Epoch(report.epoch.0 + 1);
        log.begin_epoch(epoch)
            .map_err(|source| SpoolError::Append {
                folder: folder(),
                source,
            })?;
        let next = log.next_number();
        let done = found.done;
        found.pending.retain(|it| !done.contains(it.spot));
        let keys: Vec<u64> = found.pending.iter().filter_map(|it| it.key).collect();
        let recovered = Recovered {
            name: found
                .name
                .or_else(|| name.cloned())
                .unwrap_or_else(new_name),
            count: found.pending.len() as u64,
            keys: Some(KeyCounts::of(&keys)),
            done: over(&done, &found.pending, next),
            next,
            used: used(&found.files),
        };
        let report = SpoolReport {
            records: recovered.count,
            bytes: found.pending.iter().map(|it| it.bytes).sum(),
            damaged_records: report.records_lost() + found.unreadable,
            damaged_stretches: report.damaged.len() as u64 + found.unreadable,
            cut_bytes: report.tail_bytes_cut,
        };
        let store = Self {
            reader: log.reader(),
            epoch,
            group: RecordGroup::new(log.capabilities().gap),
            files: found.files,
            cursors: Streams::default(),
            checkpoint: None,
            durable_checkpoint: None,
            mark_failed: false,
            log,
        };
        Ok((store, recovered, report))
    }

    /// Bytes of the records in its files.
    pub(crate) fn used(&self) -> Used {
        used(&self.files)
    }

    /// Appends records: all of them, or none.
    pub(crate) fn write(&mut self, staged: &[Staged]) -> Result<(), WriteError> {
        self.group.clear(GROUP_BYTES_KEPT);
        let record_max = self.log.capabilities().record_bytes_max;
        let mut grows = false;
        let mut lens = Vec::with_capacity(staged.len());
        let mut checkpoint = None;
        for (at, staged) in staged.iter().enumerate() {
            lens.push(match staged {
                Staged::Message {
                    label,
                    expires,
                    message,
                    ..
                } => {
                    grows = true;
                    (self.group).push(|to| encode_message(*label, *expires, message, to))
                }
                Staged::Checkpoint(it) => {
                    checkpoint = Some(at);
                    self.group.push(|to| encode_checkpoint(it, record_max, to))
                }
                Staged::Void => self.group.push(encode_void),
            });
        }
        let purpose = match grows {
            true => Purpose::Growth,
            false => Purpose::Maintenance,
        };
        let bytes = lens.iter().map(|len| *len as u64).sum();
        let reserved = self.log.reserve(bytes, lens.len() as u64, purpose);
        reserved.map_err(|error| match lack(&error) {
            Some(lack) => WriteError::Full(lack),
            None => WriteError::Failed(lockgate_core::with_sources(&error)),
        })?;
        let (mut cursor, mut spot) = (self.log.tail(), self.log.next_number());
        let range_bits = self.log.capabilities().range_bits;
        let (mut files, mut checkpoint_at) = (Vec::new(), self.checkpoint);
        for (at, len) in lens.iter().enumerate() {
            let position = self.log.place(&mut cursor, *len);
            files.push((position.0 >> range_bits, spot, *len as u64));
            if checkpoint == Some(at) {
                checkpoint_at = Some(position);
            }
            spot += 1;
        }
        let at = self.log.tail();
        let appended = self.log.append(self.epoch, at, &mut self.group);
        appended.map_err(|error| match &error {
            AppendError::Full(why) => WriteError::Full(lack(why).unwrap_or(Lack::Bytes)),
            _ => WriteError::Failed(lockgate_core::with_sources(&error)),
        })?;
        self.checkpoint = checkpoint_at;
        for (range, spot, bytes) in files {
            add(&mut self.files, range, spot, bytes);
        }
        Ok(())
    }

    /// Makes everything durable that is written. Returns the spot behind it.
    pub(crate) fn sync(&mut self) -> Result<u64, String> {
        let before = self.log.next_number();
        let synced = self.log.progress().sync();
        synced.map_err(|error| lockgate_core::with_sources(&error))?;
        self.durable_checkpoint = self.checkpoint;
        if let Err(error) = self.log.mark_synced()
            && !std::mem::replace(&mut self.mark_failed, true)
        {
            warn!(
                error = lockgate_core::with_sources(&error),
                "how far the spool is durable is not written down; if its last file is damaged, nobody will notice"
            );
        }
        Ok(before)
    }

    /// Whether files could go if the last checkpoint were durable.
    pub(crate) fn wants_sync(&self, floor: u64) -> bool {
        self.durable_checkpoint != self.checkpoint && self.releasable(floor, self.checkpoint) > 0
    }

    /// How many files have nothing that a recovery needs.
    fn releasable(&self, floor: u64, checkpoint: Option<Position>) -> usize {
        let Some(checkpoint) = checkpoint else {
            return 0;
        };
        let range = checkpoint.0 >> self.log.capabilities().range_bits;
        let second = self.files.iter().skip(1);
        second
            .take_while(|file| file.first <= floor && file.range <= range)
            .count()
    }

    /// Gives back the files of which every message is over. Returns whether there were some.
    pub(crate) fn release(&mut self, floor: u64) -> Result<bool, String> {
        let count = self.releasable(floor, self.durable_checkpoint);
        let text = |error: LogError| lockgate_core::with_sources(&error);
        for _ in 0..count {
            self.files.pop_front();
        }
        if let (1.., Some(first)) = (count, self.files.front()) {
            let range_bits = self.log.capabilities().range_bits;
            let start = Position(first.range << range_bits);
            self.log.trim(start).map_err(text)?;
            // Those too in which nothing could be read: the next opening would begin with them.
            for range in self.log.ranges() {
                if range.first < start {
                    self.log.release(range.first).map_err(text)?;
                }
            }
        }
        Ok(count > 0)
    }

    /// Reads messages of a stream. Returns them, the spot behind what was read, and those between that cannot be read.
    pub(crate) fn load(&mut self, load: Load) -> Result<(Vec<Loaded>, u64, Vec<u64>), String> {
        let from = load.from;
        let position = match self.cursors[load.stream] {
            Some((spot, position)) if spot == from => position,
            // A file from its beginning: what comes before is passed over.
            _ => {
                let file = self.files.iter().rev().find(|file| file.first <= from);
                let file = file.or(self.files.front());
                Position(file.map_or(0, |file| file.range << self.log.capabilities().range_bits))
            }
        };
        let (mut loaded, mut unreadable) = (Vec::new(), Vec::new());
        let (mut next, mut bytes, mut passed) = (from, 0, 0);
        let (mut more, mut behind) = (None, None);
        let end = self.log.next_number().min(load.until);
        let scanned = self.reader.scan(position, self.log.tail(), &mut |scanned| {
            let Scanned::Record { record, stamp } = scanned else {
                return ControlFlow::Continue(());
            };
            if stamp.number < from {
                return ControlFlow::Continue(());
            }
            if stamp.number >= end {
                behind = Some(record.position);
                return ControlFlow::Break(());
            }
            if loaded.len() >= load.count || bytes >= load.bytes || passed >= PASSED_MAX {
                more = Some(record.position);
                return ControlFlow::Break(());
            }
            unreadable.extend(next..stamp.number);
            next = stamp.number + 1;
            match decode(record.payload) {
                Some(Decoded::Message(it)) if !load.takes(it.label) => {
                    passed += message_len(&it.message) as u64;
                }
                Some(Decoded::Message(it)) => {
                    bytes += message_len(&it.message) as u64 + RECORD_BYTES;
                    loaded.push(Loaded {
                        spot: stamp.number,
                        label: it.label,
                        expires: it.expires,
                        message: detached(it.message),
                    });
                }
                Some(_) => {}
                None => unreadable.push(stamp.number),
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Ok(()) | Err(ReadError::Damaged { .. } | ReadError::Missing { .. }) => {}
            Err(error) => return Err(lockgate_core::with_sources(&error)),
        }
        if more.is_none() && next < end {
            unreadable.extend(next..end);
            next = end;
        }
        self.cursors[load.stream] = more.or(behind).map(|position| (next, position));
        Ok((loaded, next, unreadable))
    }
}

/// Reads the log. Of a file that the disk does not read, also at a second attempt, what can be read is taken, and the file
/// is set aside: messages wait in the others. Not so if nothing shows that it is a spool: `is_spool`, or a record before
/// that place.
fn recover(log: &mut LocalLog, is_spool: bool) -> Result<(RecoveryReport, Found), LogError> {
    let range_bits = log.capabilities().range_bits;
    let mut failed = None;
    loop {
        let mut found = Found::default();
        let report = log.recover(Position(0), Epoch(0), &mut |record, stamp| {
            found.visit(range_bits, record.position, stamp.number, record.payload);
        });
        let error = match report {
            Ok(report) => return Ok((report, found)),
            Err(LogError::Disk(error)) if error.operation == DiskOperation::Read => error,
            Err(error) => return Err(error),
        };
        if failed.as_ref() != Some(&error.name) {
            failed = Some(error.name);
            continue;
        }
        let is_aside = (is_spool || found.is_spool) && log.set_aside(&error.name)?;
        if !is_aside {
            return Err(LogError::Disk(error));
        }
        warn!(
            file = error.name,
            error = lockgate_core::with_sources(&error),
            "the disk does not read a file of the spool, so it is kept as .damaged; what can be read of it is taken"
        );
        failed = None;
    }
}

/// What a line of the mark begins with that has the name of the producer.
const MARK_NAME: &str = "name: ";

/// The name in a mark. It stands beside the records, so that no damage of one file takes it.
fn marked(text: &str) -> Option<ProducerName> {
    let name = text.lines().find_map(|line| line.strip_prefix(MARK_NAME))?;
    ProducerName::new(name).ok()
}

/// In one step, and so that it survives a power cut.
fn write_mark(mark: &Path, name: &ProducerName) -> io::Result<()> {
    let new = mark.with_extension("new");
    let mut file = fs::File::create(&new)?;
    writeln!(
        file,
        "This folder is the spool of a producer.\n{MARK_NAME}{name}"
    )?;
    file.sync_all()?;
    fs::rename(&new, mark)?;
    match mark.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// The most bytes of a record that fits into a file of a spool.
pub(crate) fn record_bytes_max(file_bytes: u32) -> usize {
    RECORD_BYTES_MAX.min((file_bytes as usize).saturating_sub(OVERHEAD))
}

fn used(files: &VecDeque<File>) -> Used {
    let oldest = files.front().zip(files.get(1));
    Used {
        bytes: files.iter().map(|file| file.bytes).sum(),
        oldest: oldest.map(|(file, next)| (next.first, file.bytes)),
    }
}

/// A message whose bytes are its own: those that were read may share memory with much else.
fn detached(mut message: lockgate_core::Message) -> lockgate_core::Message {
    message.body = bytes::Bytes::copy_from_slice(&message.body);
    for header in &mut message.headers {
        header.value = bytes::Bytes::copy_from_slice(&header.value);
    }
    message
}

/// What the disk lacks, if it is that.
fn lack(error: &ReserveError) -> Option<Lack> {
    match error {
        ReserveError::Full { .. } => Some(Lack::Bytes),
        ReserveError::OutOfDescriptors(_) => Some(Lack::Files),
        _ => None,
    }
}

fn add(files: &mut VecDeque<File>, range: u64, spot: u64, bytes: u64) {
    match files.back_mut() {
        Some(file) if file.range == range => file.bytes += bytes,
        _ => files.push_back(File {
            range,
            first: spot,
            bytes,
        }),
    }
}

/// Everything that is not pending is over, damaged records too.
fn over(done: &Done, pending: &VecDeque<Pending>, next: u64) -> Done {
    let mut over = Done::below(done.floor().min(next));
    let mut from = over.floor();
    for spot in pending.iter().map(|it| it.spot).chain([next]) {
        over.insert_all(from, spot, done.has_message(from, spot));
        from = spot.saturating_add(1);
    }
    over
}

/// A message that is not over.
struct Pending {
    spot: u64,
    bytes: u64,
    /// The hash of its key.
    key: Option<u64>,
}

/// What a recovery has come across.
#[derive(Default)]
struct Found {
    name: Option<ProducerName>,
    done: Done,
    pending: VecDeque<Pending>,
    files: VecDeque<File>,
    unreadable: u64,
    is_newer: bool,
    /// There is a record of a spool.
    is_spool: bool,
}

impl Found {
    /// Refuses what is not the spool of this producer, and takes the name of the mark where the records have none.
    fn check(
        &mut self,
        options: &SpoolOptions,
        name: Option<&ProducerName>,
        kept: Option<&ProducerName>,
    ) -> Result<(), SpoolError> {
        let folder = || options.folder.clone();
        if self.name.is_none() && self.is_spool {
            // The record that has it is damaged. Without any records the numbers begin anew, and so must the name.
            self.name = kept.cloned();
        }
        if let (Some(given), Some(has)) = (name, &self.name)
            && given != has
        {
            return Err(SpoolError::Name {
                folder: folder(),
                has: has.clone(),
                given: given.clone(),
            });
        }
        // What was damaged is not read at all: records that are whole, and no records of a spool, are somebody else's.
        if self.unreadable > 0 && !self.is_spool {
            return Err(SpoolError::Foreign { folder: folder() });
        }
        if self.is_newer {
            return Err(SpoolError::Newer { folder: folder() });
        }
        Ok(())
    }

    fn visit(&mut self, range_bits: u32, at: Position, spot: u64, payload: bytes::Bytes) {
        add(
            &mut self.files,
            at.0 >> range_bits,
            spot,
            payload.len() as u64,
        );
        let is_newer = codec::is_newer(&payload);
        let decoded = decode(payload);
        self.is_spool |= decoded.is_some();
        match decoded {
            Some(Decoded::Message(it)) => {
                self.pending.push_back(Pending {
                    spot,
                    bytes: message_len(&it.message) as u64,
                    key: it.message.key.as_ref().map(key_hash),
                });
            }
            Some(Decoded::Checkpoint(it)) => {
                self.name = Some(it.name);
                while (self.pending.front()).is_some_and(|pending| pending.spot < it.done.floor()) {
                    self.pending.pop_front();
                }
                self.done = it.done;
            }
            Some(Decoded::Void) => {}
            None => {
                self.is_newer |= is_newer;
                self.unreadable += 1;
            }
        }
    }
}
