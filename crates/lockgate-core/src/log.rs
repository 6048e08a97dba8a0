//! The log under a shard: an ordered, checksummed sequence of records that one owner appends to.
//!
//! The trait is narrow so that engines which already replicate (PostgreSQL, NATS JetStream, Kafka)
//! can stand behind it. It knows nothing of queues; a record is bytes.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{DiskError, Epoch, Position};

/// An append-only sequence of records with exactly one owner.
///
/// # Life of an instance
/// 1. [`recover`](Log::recover) once: hands over every surviving record in order.
/// 2. [`begin_epoch`](Log::begin_epoch) once: fences every earlier owner.
/// 3. [`append`](Log::append) any number of times, always at [`tail`](Log::tail).
///
/// Reading and syncing go through separate handles ([`reader`](Log::reader),
/// [`syncer`](Log::syncer)), so that the next group can be appended while the last one syncs.
///
/// # Failure
/// After any append error but [`AppendError::Full`], and after any sync error, the instance is dead:
/// every later append and sync fails, and only a new instance over the same storage can tell what
/// survived.
///
/// All methods may block and none may be called from an async task.
pub trait Log: Send {
    /// What this log can do. Constant for the life of the instance.
    fn capabilities(&self) -> LogCapabilities;

    /// Reads every surviving record from the first on, hands each to `visit` in order, cuts a torn
    /// tail, sets damage in the middle aside, and leaves the log ready for
    /// [`begin_epoch`](Log::begin_epoch). Recovering twice without an append in between visits the
    /// same records.
    ///
    /// # Errors
    /// If storage fails or holds a newer format. Damaged records are no error: they are counted in
    /// the report.
    fn recover(&mut self, visit: &mut dyn FnMut(LogRecord)) -> Result<RecoveryReport, LogError>;

    /// Takes ownership under `epoch`. From here on no append under a lower epoch succeeds, on this
    /// instance or any other over the same storage.
    ///
    /// # Errors
    /// [`AppendError::Fenced`] if an epoch at least as high was begun before.
    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError>;

    /// Where the next record goes.
    fn tail(&self) -> Position;

    /// Where a record with `len` payload bytes will start if it is appended when the tail is
    /// `cursor`; moves the cursor behind it. Pure: this is how commands are decided, with the
    /// positions their records will have, before anything is written.
    fn place(&self, cursor: &mut Position, len: usize) -> Position;

    /// Makes sure that the next `bytes` payload bytes in `records` records will fit, so that a full
    /// disk is met before a command is decided rather than after.
    ///
    /// # Errors
    /// [`ReserveError::Full`] changes nothing and may be tried again later.
    fn reserve(&mut self, bytes: u64, records: u64) -> Result<(), ReserveError>;

    /// Appends the group's records, all in order, starting at `expected`. When it returns, they have
    /// reached level `process` (or the level of [`LogCapabilities::append_level`]). May write into
    /// the gaps of `group`.
    ///
    /// After a crash a prefix of the group may survive; a single record survives whole or not at
    /// all.
    ///
    /// # Errors
    /// [`AppendError::Fenced`] if a higher epoch was begun, [`AppendError::Position`] if `expected`
    /// is not the tail: nothing was written. Any other error: unknown outcome, the instance is dead.
    fn append(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError>;

    /// A handle that syncs, for another thread.
    fn syncer(&self) -> Arc<dyn LogSync>;

    /// A handle that reads, for any thread.
    fn reader(&self) -> Arc<dyn LogReader>;

    /// Gives back everything before `before`: no record there will be read again. Space may come
    /// back later or in larger pieces.
    ///
    /// # Errors
    /// If storage fails; the log stays usable.
    fn trim(&mut self, before: Position) -> Result<(), LogError>;

    /// Gives back the range from `from` up to `to`, in the middle of the log: no record there will
    /// be read again.
    ///
    /// # Errors
    /// [`LogError::Unsupported`] without [`LogCapabilities::releases_ranges`].
    fn release(&mut self, from: Position, to: Position) -> Result<(), LogError>;
}

/// Syncs what has been appended. Shared; calls are serialised by the caller.
pub trait LogSync: Send + Sync {
    /// Makes every record appended before the call survive a power cut. Returns the position up to
    /// which that holds: every record that starts before it is durable.
    ///
    /// # Errors
    /// Any error is final for the log instance.
    fn sync(&self) -> Result<Position, LogError>;
}

/// Reads single records. Shared by any number of threads.
pub trait LogReader: Send + Sync {
    /// The payload of the record that starts at `at`, verified against its checksum and position.
    ///
    /// # Errors
    /// [`ReadError::Missing`] if no record starts there (any more), [`ReadError::Damaged`] if it
    /// does not verify.
    fn read(&self, at: Position) -> Result<Bytes, ReadError>;
}

/// A record handed over at recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it starts.
    pub position: Position,
    /// Its bytes.
    pub payload: Bytes,
}

/// What a log can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCapabilities {
    /// Bytes left free in front of each record of a [`RecordGroup`], for the log's own header.
    pub gap: usize,
    /// The largest payload of one record.
    pub record_bytes_max: usize,
    /// The level an append has reached when it returns.
    pub append_level: crate::Level,
    /// The level a sync reaches: [`Level::Disk`](crate::Level::Disk) or higher.
    pub sync_level: crate::Level,
    /// Whether [`Log::release`] works.
    pub releases_ranges: bool,
}

/// Records to append together, in one buffer with a gap in front of each for the log's header, so
/// that a payload is copied once between the caller and the operating system.
#[derive(Debug, Default)]
pub struct RecordGroup {
    gap: usize,
    buffer: Vec<u8>,
    /// Where each record's gap starts in the buffer.
    starts: Vec<usize>,
}

impl RecordGroup {
    /// An empty group whose records have `gap` free bytes in front.
    #[must_use]
    pub fn new(gap: usize) -> Self {
        Self {
            gap,
            ..Self::default()
        }
    }

    /// Adds a record: `write` appends its payload to the buffer. Returns the payload's length.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        self.starts.push(self.buffer.len());
        self.buffer.resize(self.buffer.len() + self.gap, 0);
        let start = self.buffer.len();
        write(&mut self.buffer);
        self.buffer.len() - start
    }

    /// Takes the last record out again, before it was placed: for one that turned out too large.
    pub fn pop(&mut self) {
        if let Some(start) = self.starts.pop() {
            self.buffer.truncate(start);
        }
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The gap in front of each record.
    #[must_use]
    pub fn gap(&self) -> usize {
        self.gap
    }

    /// All gaps and payloads, back to back.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Where the record's gap and payload stand in [`bytes`](Self::bytes).
    ///
    /// # Panics
    /// If there is no such record.
    #[must_use]
    pub fn frame(&self, index: usize) -> Range<usize> {
        let end = self
            .starts
            .get(index + 1)
            .copied()
            .unwrap_or(self.buffer.len());
        self.starts[index]..end
    }

    /// The record's gap and payload, for the log to fill in its header.
    ///
    /// # Panics
    /// If there is no such record.
    pub fn frame_mut(&mut self, index: usize) -> (&mut [u8], &mut [u8]) {
        let frame = self.frame(index);
        self.buffer[frame].split_at_mut(self.gap)
    }

    /// The record's payload.
    ///
    /// # Panics
    /// If there is no such record.
    #[must_use]
    pub fn payload(&self, index: usize) -> &[u8] {
        let frame = self.frame(index);
        &self.buffer[frame.start + self.gap..frame.end]
    }

    /// Forgets all records and keeps the buffer, unless a rare large group has made it larger than
    /// `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.starts.clear();
        self.buffer.clear();
        self.buffer.shrink_to(keep);
    }
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Records handed over.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// The highest epoch found; the next owner must begin a higher one.
    pub epoch: Epoch,
    /// Bytes of a torn tail that were cut.
    pub tail_bytes_cut: u64,
    /// Damage below the highest position known to have been synced: set aside, and counted by the
    /// missing record numbers.
    pub damaged: Vec<DamagedRange>,
}

impl RecoveryReport {
    /// Number of records that were known to be durable and are lost.
    #[must_use]
    pub fn records_lost(&self) -> u64 {
        self.damaged.iter().map(|range| range.records).sum()
    }
}

/// A stretch of a log that was durable once and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// Where it starts.
    pub from: Position,
    /// Where the next readable record starts.
    pub to: Position,
    /// How many records it held, by the missing numbers.
    pub records: u64,
    /// Where the damaged bytes were set aside, for messages.
    pub kept_as: Option<String>,
}

/// Why [`Log::append`] or [`Log::begin_epoch`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// Somebody else owns the log under a higher epoch. Nothing was written.
    #[error("epoch {ours} was deposed by epoch {theirs}")]
    Fenced {
        /// The epoch given.
        ours: Epoch,
        /// The highest epoch begun.
        theirs: Epoch,
    },
    /// The expected position is not the log's tail. Nothing was written.
    #[error("append expected the tail at {expected}, it is at {tail}")]
    Position {
        /// What the caller expected.
        expected: Position,
        /// Where the tail is.
        tail: Position,
    },
    /// A record is larger than [`LogCapabilities::record_bytes_max`]. Nothing was written.
    #[error("a record of {len} bytes is larger than the log's limit of {max}")]
    TooLarge {
        /// Its payload's length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// There is no room; nothing was written, and that is certain also after a crash.
    #[error("the log is full")]
    Full(#[source] ReserveError),
    /// Unknown outcome: the instance is dead.
    #[error("appending to the log; whether the records are written is unknown")]
    Unknown(#[source] LogError),
}

/// Why room could not be reserved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// Not enough room; settling and deleting may make some.
    #[error("no room for {needed} more bytes, {free} are free")]
    Full {
        /// Bytes asked for.
        needed: u64,
        /// Bytes there are.
        free: u64,
    },
    /// Storage failed.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// A log operation that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The storage was written by a newer version.
    #[error("{what} has format version {found}, this program reads up to {known}: use a newer one")]
    NewerFormat {
        /// Which file or table.
        what: String,
        /// Its version.
        found: u32,
        /// The highest version known.
        known: u32,
    },
    /// An earlier failure ended this instance; the first reason is kept.
    #[error("the log has stopped after an earlier failure: {reason}")]
    Stopped {
        /// The first failure, with its sources.
        reason: String,
    },
    /// This log cannot do that; see [`LogCapabilities`].
    #[error("this log cannot {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// A remote engine failed, in its own words.
    #[error("{what}")]
    Remote {
        /// What was being done.
        what: String,
        /// The driver's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No record starts there, or it was trimmed or released.
    #[error("no record at {at}")]
    Missing {
        /// The position asked for.
        at: Position,
    },
    /// The record does not verify.
    #[error("the record at {at} is damaged: {what}")]
    Damaged {
        /// The position asked for.
        at: Position,
        /// What did not fit.
        what: &'static str,
    },
    /// Storage failed.
    #[error(transparent)]
    Log(#[from] LogError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_keeps_gaps_and_payloads_apart() {
        let mut group = RecordGroup::new(4);
        assert_eq!(group.push(|buffer| buffer.extend_from_slice(b"one")), 3);
        assert_eq!(group.push(|_| {}), 0);
        assert_eq!(group.push(|buffer| buffer.extend_from_slice(b"three")), 5);
        let (gap, payload) = group.frame_mut(2);
        gap.copy_from_slice(b"GAP!");
        assert_eq!(payload, b"three");
        assert_eq!(group.payload(0), b"one");
        assert_eq!(group.payload(1), b"");
        assert_eq!(group.bytes(), b"\0\0\0\0one\0\0\0\0GAP!three");
        group.pop();
        assert_eq!(group.bytes(), b"\0\0\0\0one\0\0\0\0");
        group.clear(0);
        assert!(group.is_empty() && group.bytes().is_empty());
    }
}
