//! The options of a local log.

use std::ops::RangeInclusive;

use lockgate_core::LockError;
#[cfg(doc)]
use lockgate_core::{Log, Purpose};

#[cfg(doc)]
use crate::LocalLog;
use crate::{
    format::{PAYLOAD_BYTES_LIMIT, RECORD_HEADER_LEN, SEGMENT_HEADER_LEN},
    preallocated::PREALLOCATED_MAX,
    reserve::SharedReserve,
};

/// The options of a [`LocalLog`].
#[derive(Clone, Debug)]
pub struct LocalLogOptions {
    /// The size of the largest segment files in bytes, from 8 KiB; default 64 MiB.
    ///
    /// Segments begin with 8 to 16 MiB, or with this size if it is smaller. They double when the
    /// log holds 128 of them, or when so many were written within 10 to 20 s. They halve when both
    /// are below 48. A record that is larger has its own segment. The log allocates each segment as
    /// a whole before it needs it. Only the first segment of a log that holds less than 512 KiB
    /// begins with 1 MiB. The log allocates the rest of it when sends have used half of it, or
    /// other commands all of it.
    ///
    /// Space comes back in whole segments. A log of many small ones has more files and syncs the
    /// folder more often.
    pub segment_bytes: u32,
    /// The largest payload of a record in bytes, up to 64 MiB and up to what fits into one segment;
    /// default 16 MiB. Recovery needs about this much memory.
    pub record_bytes_max: usize,
    /// The low mark: with fewer free bytes on the disk, [`Log::space`] returns
    /// [`SpaceState::Low`](lockgate_core::SpaceState::Low). Default: `None`, which means the larger
    /// of 2 GiB and a twentieth of the file system.
    pub low_bytes: Option<u64>,
    /// The stop mark: records that grow the log may take no segment that would leave fewer free
    /// bytes on the disk; default 256 MiB. Snapshots may use this space.
    pub free_bytes_min: u64,
    /// How many segments the log allocates ahead of need and keeps for [`Purpose::Maintenance`] on
    /// a full disk; default 3, or as many as the log holds if that is fewer. Two of three are for
    /// records, and one may go to a snapshot. While segments are smaller than the largest, the
    /// reserve has more of them: an eighth of what the log holds, but no more bytes than this many
    /// of the largest. Zero keeps no reserve. A log whose first segment is not whole yet has none.
    pub reserve_segments: u32,
    /// A bound on the reserves of all logs that are given clones of it. Default: `None`, which
    /// means no other bound for this log's reserve.
    pub shared_reserve: Option<SharedReserve>,
    /// How many segment files the log keeps open for reading; at least 1, default 64. See
    /// [`files_max`](Self::files_max).
    pub open_files_max: usize,
    /// How many zeros the log writes ahead of the records at a time, in a segment whose blocks were
    /// never written, such as the first one of a folder; default 4 MiB. A sync then need not change
    /// the file's metadata. With small groups every byte is written twice. 0 writes none.
    pub write_ahead_bytes_max: u32,
    /// A seed that makes the written bytes reproducible, for tests. Default: `None`, which draws
    /// every segment's generation at random, so that nobody who may send messages can make one that
    /// looks like a record.
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

/// Files that a log has open besides those for reading and the preallocated files: its folder and
/// locks, the segments that are written and synced, a snapshot and a backup, and files that threads
/// open concurrently.
const OTHER_FILES_MAX: usize = 32;

impl LocalLogOptions {
    /// The [`segment_bytes`](Self::segment_bytes) that servers allow; smaller ones are for tests.
    pub const SEGMENT_BYTES: RangeInclusive<u32> = 4 << 20..=1 << 30;

    /// Returns how many files a log with these options has open at most. If the process can open no
    /// more files, a log that needs another one refuses to grow, as on a full disk. So leave the
    /// log this many if you use many descriptors for other things.
    #[must_use]
    pub fn files_max(&self) -> usize {
        let preallocated = PREALLOCATED_MAX.max(self.reserve_segments as usize);
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
        /// The option, and what is wrong with it.
        what: &'static str,
    },
    /// Another process owns the folder, or it cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
}
