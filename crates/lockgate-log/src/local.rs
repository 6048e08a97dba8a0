//! The local log: appending.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use lockgate_core::{
    AppendError, Disk, DiskError, DiskFile, Epoch, FolderLock, Level, LockError, Log,
    LogCapabilities, LogError, LogReader, LogRecord, LogSpace, LogSync, OpenMode, Position,
    Purpose, RecordGroup, RecoveryReport, ReserveError, SnapshotStore, SnapshotWriter,
};

use crate::{
    format::{
        PAYLOAD_BYTES_LIMIT, Point, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN,
        SegmentHeader, first_record, offset_of, segment_of,
    },
    names::{StartMark, damaged_name, segment_name},
    recover::{mark_start, recover},
    shared::{Reader, SegmentInfo, Shared, Syncer},
    snapshots::{Snapshots, Writing as SnapshotWriting},
};

/// What can be chosen for a [`LocalLog`].
#[derive(Clone, Debug)]
pub struct LocalLogOptions {
    /// Bytes of a segment file, from 8 KiB on; default 64 MiB. Space comes back in whole segments;
    /// a log of many small ones has more files and more syncs of names.
    pub segment_bytes: u32,
    /// The largest payload of a record in bytes; default 16 MiB, at most 64 MiB and at most what
    /// fits into one segment. Recovery needs about this much memory.
    pub record_bytes_max: usize,
    /// Bytes of the disk that [`Log::reserve`] keeps free, for the work that goes on while the disk
    /// is full; default 256 MiB. Zero keeps nothing back.
    pub free_bytes_min: u64,
    /// How many segment files are kept open for reading; default 64, at least 1.
    pub open_files_max: usize,
    /// At most so many zeros are written ahead of the records at a time, so that a sync need not
    /// change the file's metadata; default 4 MiB, 0 writes none. Costs every byte of small groups a
    /// second write, and at most so much space behind the last record.
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
            free_bytes_min: 256 << 20,
            open_files_max: 64,
            write_ahead_bytes_max: 4 << 20,
            generation_seed: None,
        }
    }
}

/// The smallest allowed [`LocalLogOptions::segment_bytes`].
const SEGMENT_BYTES_MIN: u32 = 8 << 10;

impl LocalLogOptions {
    fn check(&self) -> Result<(), OpenError> {
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

/// A log in one folder: segment files of checksummed records.
///
/// One `write` per group of records and segment, one `fdatasync` per sync and segment written to.
/// Exclusive: the folder stays locked for as long as the log lives.
///
/// Levels: an append has reached [`Level::Process`] when it returns, a sync
/// [`Level::Disk`]. Whole segments are given back by [`Log::trim`]; single ranges are not
/// ([`LogCapabilities::releases_ranges`] is false).
pub struct LocalLog {
    disk: Arc<dyn Disk>,
    options: LocalLogOptions,
    shared: Arc<Shared>,
    _lock: Box<dyn FolderLock>,
    phase: Phase,
    /// The highest epoch found or begun.
    epoch: Epoch,
    /// The number of the next record.
    next_number: u64,
    /// Where the log starts, if that was ever said.
    start: Option<StartMark>,
    /// Segment files with damage in them.
    damaged: BTreeSet<u32>,
    space: Space,
    /// Bytes of records appended by this instance.
    appended_bytes: u64,
    random: RandomState,
}

enum Phase {
    Opened,
    /// With the number of the segment to begin.
    Recovered(u32),
    Serving(Writing),
}

/// The segment being written.
#[derive(Clone)]
struct Writing {
    segment: u32,
    generation: u64,
    file: Arc<dyn DiskFile>,
    /// Where the bytes end that were written, be it with zeros.
    written_until: u32,
}

/// What is known of the disk's free space without asking it again.
#[derive(Default)]
struct Space {
    /// Free when last asked, less what was written since.
    free: u64,
    /// Bytes that may still be written before it is asked again: others use the disk too.
    until_asked: u64,
}

impl Space {
    fn spend(&mut self, bytes: u64) {
        self.free = self.free.saturating_sub(bytes);
        self.until_asked = self.until_asked.saturating_sub(bytes);
    }
}

/// Bytes of the disk a segment takes beside its records: its header, and the part of its last block
/// that stays empty.
const SEGMENT_COST: u64 = 2 * SEGMENT_HEADER_LEN as u64;

/// Free space is asked for at least once in so many bytes written.
const ASK_SPACE_EVERY: u64 = 16 << 20;

impl LocalLog {
    /// Opens the log in the folder and takes the folder for this instance alone. Reads nothing yet;
    /// [`Log::recover`] does.
    ///
    /// # Errors
    /// If the options are out of range or the folder belongs to somebody else.
    pub fn open(disk: Arc<dyn Disk>, options: LocalLogOptions) -> Result<Self, OpenError> {
        options.check()?;
        let lock = disk.lock()?;
        let shared = Shared::new(disk.clone(), options.open_files_max);
        Ok(Self {
            disk,
            shared: Arc::new(shared),
            options,
            _lock: lock,
            phase: Phase::Opened,
            epoch: Epoch(0),
            next_number: 1,
            start: None,
            damaged: BTreeSet::new(),
            space: Space::default(),
            appended_bytes: 0,
            random: RandomState::new(),
        })
    }

    /// Creates the segment and writes its header; neither is synced.
    fn create_segment(&self, segment: u32, synced: Point) -> Result<Writing, DiskError> {
        let header = SegmentHeader {
            segment,
            generation: self.draw_generation(segment),
            epoch: self.epoch,
            first_number: self.next_number,
            synced,
        };
        let file = self
            .disk
            .open(&segment_name(segment), OpenMode::CreateNew)?;
        self.shared.note_created();
        file.write_at(&header.encode(), 0)?;
        let info = SegmentInfo {
            generation: header.generation,
            first_number: header.first_number,
        };
        self.shared.add_segment(segment, info, file.clone());
        Ok(Writing {
            segment,
            generation: header.generation,
            file,
            written_until: SEGMENT_HEADER_LEN,
        })
    }

    fn draw_generation(&self, segment: u32) -> u64 {
        match self.options.generation_seed {
            None => self.random.hash_one((segment, self.epoch.0)),
            // An epoch is begun at most once and numbers its segments upwards, so the pair never
            // comes twice; two odd factors spread it over all bits.
            Some(seed) => (seed ^ self.epoch.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_add(u64::from(segment))
                .wrapping_mul(0xd134_2543_de82_ef95),
        }
    }

    /// Begins the first segment of `self.epoch` and makes it durable.
    fn begin_segment(&mut self, segment: u32) -> Result<Writing, DiskError> {
        let writing = self.create_segment(segment, self.shared.synced())?;
        writing.file.sync()?;
        self.disk.sync_folder()?;
        if self.start.is_none() {
            // Only now: the mark says that the header it points to was durable.
            self.start = Some(mark_start(&*self.disk, StartMark::FIRST)?);
        }
        Ok(writing)
    }

    /// Writes the records from `first` to before `end` of the group, which are in one segment.
    fn write_run(
        &self,
        writing: &Writing,
        run: &Run,
        group: &RecordGroup,
    ) -> Result<(), DiskError> {
        let start = group.frame(run.first).start;
        let end = group.frame(run.end - 1).end;
        writing
            .file
            .write_at(&group.bytes()[start..end], u64::from(offset_of(run.at)))?;
        self.shared.note_written(writing.segment, &writing.file);
        Ok(())
    }
}

/// A group of more bytes than this gains little from zeros written ahead, and they cost as much as it
/// does.
const AHEAD_GROUP_BYTES_MAX: u64 = 128 << 10;

/// The fewest zeros written ahead at a time.
const AHEAD_BYTES_MIN: u32 = 64 << 10;

static ZEROS: [u8; AHEAD_BYTES_MIN as usize] = [0; AHEAD_BYTES_MIN as usize];

impl LocalLog {
    /// Writes zeros behind the tail if there are none left for another group like the last one. A
    /// sync of bytes that were written before changes no metadata of the file, and is two to four
    /// times as fast. Returns how many bytes were written.
    fn write_ahead(
        &self,
        writing: &mut Writing,
        tail: u32,
        group_bytes: u64,
    ) -> Result<u64, DiskError> {
        writing.written_until = writing.written_until.max(tail);
        let left = u64::from(writing.written_until - tail);
        if left >= group_bytes || group_bytes > AHEAD_GROUP_BYTES_MAX {
            return Ok(0);
        }
        // As much again as was appended so far: a log that is hardly used pays little.
        let step = u32::try_from(self.appended_bytes).unwrap_or(u32::MAX);
        let step = step
            .max(AHEAD_BYTES_MIN)
            .min(self.options.write_ahead_bytes_max)
            .min(
                self.options
                    .segment_bytes
                    .saturating_sub(writing.written_until),
            );
        // Never from what is kept back, and only if a reservation has found out what there is.
        let spare = self.space.free.saturating_sub(self.options.free_bytes_min);
        if step == 0 || spare / 4 < u64::from(step) {
            return Ok(0);
        }
        let end = writing.written_until + step;
        while writing.written_until < end {
            let count = (end - writing.written_until).min(AHEAD_BYTES_MIN);
            let zeros = &ZEROS[..count as usize];
            match writing.file.write_at(zeros, writing.written_until.into()) {
                Ok(()) => writing.written_until += count,
                // Somebody else took the space. The records are written; nothing is lost but speed.
                Err(error) if error.is_full() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(step.into())
    }
}

/// Records of a group that stand in one segment: one write.
struct Run {
    first: usize,
    end: usize,
    /// Where the first one starts.
    at: Position,
}

/// Where a record of `len` payload bytes goes if the tail is at `cursor`: here if it fits, else at
/// the start of the next segment. Moves the cursor behind it.
fn place_in(segment_bytes: u32, cursor: &mut Position, len: usize) -> Position {
    let record_len = (RECORD_HEADER_LEN + len) as u64;
    let mut at = *cursor;
    if u64::from(offset_of(at)) + record_len > u64::from(segment_bytes) {
        at = first_record(segment_of(at).wrapping_add(1));
    }
    *cursor = Position(at.0 + record_len);
    at
}

impl Log for LocalLog {
    fn capabilities(&self) -> LogCapabilities {
        LogCapabilities {
            gap: RECORD_HEADER_LEN,
            record_bytes_max: self.options.record_bytes_max,
            append_level: Level::Process,
            sync_level: Level::Disk,
            releases_ranges: false,
            range_bits: 32,
        }
    }

    fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        Arc::new(Snapshots {
            disk: self.disk.clone(),
        })
    }

    fn recover(
        &mut self,
        from: Position,
        visit: &mut dyn FnMut(LogRecord),
    ) -> Result<RecoveryReport, LogError> {
        if matches!(self.phase, Phase::Serving(_)) {
            return Err(LogError::Unsupported {
                what: "recover again after an epoch was begun",
            });
        }
        self.shared.check_running()?;
        let recovered = recover(&*self.disk, &mut |record| {
            if record.position >= from {
                visit(record);
            }
        })?;
        self.epoch = recovered.report.epoch;
        self.next_number = recovered.next_number;
        self.start = recovered.start;
        self.damaged = recovered.damaged;
        self.shared.set_segments(recovered.segments);
        self.shared.start_at(Point {
            at: first_record(recovered.next_segment),
            number: recovered.next_number,
        });
        self.phase = Phase::Recovered(recovered.next_segment);
        Ok(recovered.report)
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError> {
        if epoch <= self.epoch {
            return Err(AppendError::Fenced {
                ours: epoch,
                theirs: self.epoch,
            });
        }
        self.shared.check_running().map_err(AppendError::Unknown)?;
        let Phase::Recovered(segment) = self.phase else {
            return Err(AppendError::Unknown(LogError::Unsupported {
                what: "begin an epoch but once, after it has recovered",
            }));
        };
        self.epoch = epoch;
        let writing = self
            .begin_segment(segment)
            .map_err(|error| AppendError::Unknown(self.shared.stop(error)))?;
        self.phase = Phase::Serving(writing);
        Ok(())
    }

    fn tail(&self) -> Position {
        self.shared.appended()
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        place_in(self.options.segment_bytes, cursor, len)
    }

    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError> {
        self.shared.check_running()?;
        if purpose == Purpose::Upkeep {
            return Ok(());
        }
        let headers = records.saturating_mul(RECORD_HEADER_LEN as u64);
        let needed = bytes.saturating_add(headers);
        // Every new segment costs something of its own, and two in a row are more than half full. One
        // more makes up for blocks that were begun before.
        let capacity = u64::from(self.options.segment_bytes - SEGMENT_HEADER_LEN);
        let segments = needed / (capacity / 2) + 2;
        let needed = needed.saturating_add(segments.saturating_mul(SEGMENT_COST));
        let wanted = needed.saturating_add(self.options.free_bytes_min);
        if self.space.free < wanted || self.space.until_asked < needed {
            self.space = Space {
                free: self.disk.space().map_err(LogError::Disk)?.free,
                until_asked: ASK_SPACE_EVERY.max(needed),
            };
        }
        if self.space.free < wanted {
            return Err(ReserveError::Full {
                needed,
                free: self.space.free.saturating_sub(self.options.free_bytes_min),
            });
        }
        Ok(())
    }

    fn space(&self) -> LogSpace {
        LogSpace {
            free_bytes: self.space.free,
            ..LogSpace::default()
        }
    }

    fn append(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        self.shared.check_running().map_err(AppendError::Unknown)?;
        if epoch < self.epoch {
            return Err(AppendError::Fenced {
                ours: epoch,
                theirs: self.epoch,
            });
        }
        let unsupported = |what| AppendError::Unknown(LogError::Unsupported { what });
        let Phase::Serving(writing) = &self.phase else {
            return Err(unsupported("append before an epoch was begun"));
        };
        if epoch > self.epoch {
            return Err(unsupported("append under an epoch that was not begun"));
        }
        let tail = self.tail();
        if expected != tail {
            return Err(AppendError::Position { expected, tail });
        }
        if group.gap() != RECORD_HEADER_LEN {
            return Err(unsupported(
                "append records with another gap than it asks for",
            ));
        }
        let max = self.options.record_bytes_max;
        let mut end = tail;
        for len in (0..group.len()).map(|index| group.payload(index).len()) {
            if len > max {
                return Err(AppendError::TooLarge { len, max });
            }
            self.place(&mut end, len);
        }
        if end < tail {
            // 2^58 bytes at the default segment size.
            return Err(unsupported("number more than 2^32 segments"));
        }

        let synced = self.shared.synced();
        let mut writing = writing.clone();
        let stop = |error| AppendError::Unknown(self.shared.stop(error));
        let mut cursor = tail;
        let mut run = Run {
            first: 0,
            end: 0,
            at: tail,
        };
        for index in 0..group.len() {
            let at = self.place(&mut cursor, group.payload(index).len());
            if segment_of(at) != writing.segment {
                if run.end > run.first {
                    self.write_run(&writing, &run, group).map_err(stop)?;
                }
                writing = self.create_segment(segment_of(at), synced).map_err(stop)?;
                run = Run {
                    first: index,
                    end: index,
                    at,
                };
            }
            let (gap, payload) = group.frame_mut(index);
            let header = RecordHeader {
                len: u32::try_from(payload.len()).expect("below the record limit"),
                generation: writing.generation,
                epoch,
                number: self.next_number,
                synced,
            };
            header.encode(at, gap, payload);
            self.next_number += 1;
            run.end = index + 1;
        }
        if run.end > run.first {
            self.write_run(&writing, &run, group).map_err(stop)?;
        }
        let written = group.bytes().len() as u64;
        let zeros = self
            .write_ahead(&mut writing, offset_of(cursor), written)
            .map_err(stop)?;

        // A sync that failed meanwhile may have dropped what was just written.
        self.shared.check_running().map_err(AppendError::Unknown)?;
        self.shared.publish(Point {
            at: cursor,
            number: self.next_number,
        });
        self.phase = Phase::Serving(writing);
        let new_segments = u64::from(segment_of(cursor) - segment_of(tail));
        self.space
            .spend(written + zeros + new_segments * SEGMENT_COST);
        self.appended_bytes += written;
        Ok(())
    }

    fn syncer(&self) -> Arc<dyn LogSync> {
        Arc::new(Syncer(self.shared.clone()))
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::new(Reader(self.shared.clone()))
    }

    fn begin_snapshot(&mut self) -> Result<Box<dyn SnapshotWriter>, LogError> {
        if !matches!(self.phase, Phase::Serving(_)) {
            return Err(LogError::Unsupported {
                what: "begin a snapshot before an epoch was begun",
            });
        }
        let point = Point {
            at: self.tail(),
            number: self.next_number,
        };
        Ok(Box::new(SnapshotWriting::new(self.disk.clone(), point)))
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        self.shared.check_running()?;
        let Some(start) = self.start else {
            return Ok(());
        };
        // The start mark promises a durable header, and the newest segment always stays.
        let limit = before.min(self.shared.synced().at).min(self.tail());
        let Some(new_start) = self.shared.segment_at(limit) else {
            return Ok(());
        };
        if new_start.segment <= start.segment {
            return Ok(());
        }
        self.disk
            .rename(&start.to_string(), &new_start.to_string())?;
        self.start = Some(new_start);
        // From here on the records before the mark are gone, also if the removals below are not
        // finished: recovery ends them. A folder that fails to sync may have lost a segment's name.
        self.disk
            .sync_folder()
            .map_err(|error| self.shared.stop(error))?;
        // Damaged files are set aside under another name; nothing deletes what it could not read.
        let kept = self.damaged.split_off(&new_start.segment);
        for segment in std::mem::replace(&mut self.damaged, kept) {
            self.shared.forget(segment);
            self.disk
                .rename(&segment_name(segment), &damaged_name(segment))?;
        }
        let trimmed = self.shared.segments_before(new_start.segment);
        for segment in trimmed {
            self.shared.forget(segment);
            self.disk.remove(&segment_name(segment))?;
        }
        // Space has come back: ask for it at the next reservation.
        self.space.until_asked = 0;
        Ok(())
    }

    fn release(&mut self, _range: Position) -> Result<(), LogError> {
        Err(LogError::Unsupported {
            what: "give back single ranges",
        })
    }
}

impl std::fmt::Debug for LocalLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalLog")
            .field("folder", &self.disk.describe())
            .field("epoch", &self.epoch)
            .field("tail", &self.tail())
            .finish_non_exhaustive()
    }
}
