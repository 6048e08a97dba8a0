//! What can be chosen for a local log.

use std::ops::RangeInclusive;

use lockgate_core::LockError;
#[cfg(doc)]
use lockgate_core::{Log, Purpose};

#[cfg(doc)]
use crate::LocalLog;
use crate::{
    format::{PAYLOAD_BYTES_LIMIT, RECORD_HEADER_LEN, SEGMENT_HEADER_LEN},
    preallocated::SPARES_MAX,
    reserve::SharedReserve,
};

/// What can be chosen for a [`LocalLog`].
#[derive(Clone, Debug)]
pub struct LocalLogOptions {
    /// Bytes of the largest segment files, from 8 KiB on; default 64 MiB. They begin with 8 to 16 MiB (or this,
    /// if it is less), become twice as large when the log holds, or was given in 10 to 20 s, 128 of them, and half
    /// as large when that is less than 48; a larger record has a segment of its own. Each is taken from the disk as
    /// a whole
    /// before it is needed, but for the first one of a log that holds less than 512 KiB: that one begins with 1 MiB,
    /// and is made whole when growth has used half of it or other work all of it. Space comes back in whole
    /// segments; a log of many small ones has more files and more syncs of names.
    pub segment_bytes: u32,
    /// The largest payload of a record in bytes; default 16 MiB, at most 64 MiB and at most what
    /// fits into one segment. Recovery needs about this much memory.
    pub record_bytes_max: usize,
    /// The low mark: with fewer free bytes on the disk [`Log::space`] says
    /// [`SpaceState::Low`](lockgate_core::SpaceState::Low). `None`, the default, is the larger of
    /// 2 GiB and a twentieth of the file system.
    pub low_bytes: Option<u64>,
    /// The stop mark: growth takes no segment that would leave fewer free bytes on the disk; default
    /// 256 MiB. Snapshots are written there.
    pub free_bytes_min: u64,
    /// So many segments are taken from the disk ahead of need and kept for
    /// [`Purpose::Maintenance`] while the log is full, or as many as the log holds if that is fewer;
    /// default 3: two of three are for records and one to give up to a snapshot. While segments are smaller than
    /// the largest there are more of them: an eighth of what the log holds, and no more bytes than so many of the
    /// largest. Zero keeps nothing back. A log whose first segment is not whole yet has none.
    pub reserve_segments: u32,
    /// Bounds what the reserves of several logs take together that are given clones of one. Default `None`: this
    /// log's own.
    pub shared_reserve: Option<SharedReserve>,
    /// How many segment files are kept open for reading; default 64, at least 1. See
    /// [`files_max`](Self::files_max).
    pub open_files_max: usize,
    /// In a segment whose blocks nobody wrote before, as the first one of a folder, at most so many
    /// zeros are written ahead of the records at a time, so that a sync need not change the file's
    /// metadata; default 4 MiB, 0 writes none. Costs every byte of small groups a second write.
    pub write_ahead_bytes_max: u32,
    /// Makes the bytes written reproducible, for tests. `None`, the default, draws every segment's
    /// generation at random, so that nobody who may send messages can make one that looks like a
    /// record.
    pub generation_seed: Option<u64>,
}

impl Default for LocalLogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            record_bytes_max: 16 << 20,
            low_bytes: None,
            free_bytes_min: 256 << 20,
            reserve_segments: 3,
            shared_reserve: None,
            open_files_max: 64,
            write_ahead_bytes_max: 4 << 20,
            generation_seed: None,
        }
    }
}

/// The smallest allowed [`LocalLogOptions::segment_bytes`].
const SEGMENT_BYTES_MIN: u32 = 8 << 10;

/// Files that a log has open beside those for reading and the preallocated files: its folder and its locks, the
/// segments that are written and synced, a snapshot and a backup, and what threads open side by side.
const OTHER_FILES_MAX: usize = 32;

impl LocalLogOptions {
    /// What [`segment_bytes`](Self::segment_bytes) servers are given; smaller ones are for tests.
    pub const SEGMENT_BYTES: RangeInclusive<u32> = 4 << 20..=1 << 30;

    /// How many files a log with these options has open at most. While the process can open no more
    /// files, a log that needs another one refuses to grow, as on a full disk; so whoever uses many
    /// descriptors for other things had better leave it these.
    #[must_use]
    pub fn files_max(&self) -> usize {
        let preallocated = SPARES_MAX.max(self.reserve_segments as usize);
        self.open_files_max + preallocated + OTHER_FILES_MAX
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let fits = (self.segment_bytes.saturating_sub(SEGMENT_HEADER_LEN) as usize)
            .saturating_sub(RECORD_HEADER_LEN);
        let what = if self.segment_bytes < SEGMENT_BYTES_MIN {
            "segment_bytes is below 8 KiB"
        } else if self.record_bytes_max > PAYLOAD_BYTES_LIMIT {
            "record_bytes_max is above 64 MiB"
        } else if self.record_bytes_max > fits {
            "a record of record_bytes_max does not fit into segment_bytes"
        } else if self.open_files_max == 0 {
            "open_files_max is zero"
        } else {
            return Ok(());
        };
        Err(OpenError::Options { what })
    }
}

/// Why a [`LocalLog`] could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options contradict each other or are out of range.
    #[error("the log's options are wrong: {what}")]
    Options {
        /// Which, and why.
        what: &'static str,
    },
    /// Somebody else owns the folder, or it cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
}
