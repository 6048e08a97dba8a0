//! The local log: appending records.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, atomic::Ordering},
};

use lockgate_core::{
    AppendError, Disk, DiskError, DiskFile, Epoch, FolderLock, Level, Log, LogCapabilities,
    LogError, LogMaintenance, LogProgress, LogRange, LogReader, LogRecord, LogSource, LogSpace,
    OpenMode, Position, Purpose, RecordGroup, RecordStamp, RecoveryReport, ReserveError,
    SnapshotStore, SnapshotWriter, Storage,
};

use crate::{
    format::{
        Point, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN, SegmentHeader, first_record,
        offset_of, segment_of, segment_start,
    },
    names::{FileKind, StartMark, SyncedMark, segment_file, segment_name},
    options::{LocalLogOptions, OpenError},
    preallocated::{Large, NoRoom, Preallocated, Retired},
    reader::Reader,
    recover::{Plan, apply, mark_start, read, set_aside, starting_point},
    reserve::SharedReserve,
    shared::{LocalMaintenance, ProgressHandle, SegmentInfo, Shared},
    sizes::Limits,
    snapshots::Snapshots,
};

/// A log in one folder: segment files of checksummed records.
///
/// It makes one `write` per group of records and segment, and one `fdatasync` per sync and segment
/// written to. Exclusive: the folder stays locked for as long as the log lives.
///
/// Levels: an append has reached [`Level::Process`] when it returns, a sync [`Level::Disk`]. A
/// range is a segment: [`Log::release`] gives it back, to be used again or removed.
///
/// [`Log::log_maintenance`] writes the next segments ahead, so that a sync need not change
/// metadata, and recycles released segments. Until it is taken, [`Log::release`] recycles released
/// segments, and new segments are only allocated.
pub struct LocalLog {
    disk: Arc<dyn Disk>,
    options: LocalLogOptions,
    shared: Arc<Shared>,
    _lock: Box<dyn FolderLock>,
    phase: Phase,
    /// The highest epoch that was found or begun.
    epoch: Epoch,
    /// The number of the next record.
    next_number: u64,
    /// Where the log starts; `None` before the first start mark.
    start: Option<StartMark>,
    /// The mark of how far the log is durable, if this instance has written one.
    synced_mark: Option<SyncedMark>,
    /// Bytes of records appended by this instance.
    appended_bytes: u64,
    /// Bytes of the segments behind the present one. Changes only between two groups: a group
    /// learns its positions before anything is written.
    segment_bytes: u32,
    random: RandomState,
}

enum Phase {
    Opened,
    Recovered {
        /// The number of the next segment to begin.
        next_segment: u32,
        /// Changes of the folder to make before the next segment begins.
        to_apply: Option<Box<ToApply>>,
    },
    Serving(Writing),
}

/// What a recovery has planned and not done yet.
struct ToApply {
    plan: Plan,
    preallocated: Vec<u32>,
}

/// The segment that is being written.
#[derive(Clone)]
struct Writing {
    segment: u32,
    generation: u64,
    file: Arc<dyn DiskFile>,
    /// The end of the bytes that were written before, with zeros or in an earlier use.
    written_until: u32,
    /// The end of the allocated blocks: the segment's end, except on a full disk.
    allocated_until: u32,
    /// No record may end behind it, except one that is alone in its segment.
    limit: u32,
}

impl Writing {
    /// How many bytes of records still fit into allocated blocks.
    fn left(&self, tail: u32) -> u64 {
        u64::from(self.allocated_until.min(self.limit).saturating_sub(tail))
    }
}

/// If the disk has less room than this, the first segment begins with its header only.
const ALLOCATED_BYTES_MIN: u32 = 16 << 10;

/// The bytes with which an almost empty log begins; it takes a whole segment and a reserve when it
/// needs more. Most shards of a process may never be used. Half of it serves to empty the log on a
/// full disk.
const LITTLE_BYTES: u32 = 1 << 20;

/// The part of it that growth may not use.
const LITTLE_RESERVE_BYTES: u32 = LITTLE_BYTES / 2;

/// If no record fits into the end of a segment, and the end has at most so many bytes, it is filled
/// with zeros, so that the whole segment is written when it is used again.
const FILLED_BYTES_MAX: u32 = 1 << 20;

impl LocalLog {
    /// Opens the log in the folder and locks the folder for this instance. Reads nothing yet;
    /// [`LogSource::recover`] does.
    ///
    /// # Errors
    /// If the options are out of range or the folder has another owner.
    pub fn open(disk: Arc<dyn Disk>, options: LocalLogOptions) -> Result<Self, OpenError> {
        options.check()?;
        let lock = disk.lock()?;
        let limits = Limits {
            segment_bytes: options.segment_bytes,
            reserve_segments: options.reserve_segments,
            free_bytes_min: options.free_bytes_min,
            low_bytes: options.low_bytes,
        };
        let share = options.shared_reserve.as_ref().map(SharedReserve::share);
        let preallocated = Preallocated::new(disk.clone(), limits, share);
        let shared = Shared::new(disk.clone(), preallocated, options.open_files_max);
        Ok(Self {
            disk,
            shared: Arc::new(shared),
            segment_bytes: options.segment_bytes,
            options,
            _lock: lock,
            phase: Phase::Opened,
            epoch: Epoch(0),
            next_number: 1,
            start: None,
            synced_mark: None,
            appended_bytes: 0,
            random: RandomState::new(),
        })
    }

    /// Makes a segment of a preallocated file or of a new one, and writes its header; syncs
    /// neither. `record` is the length of its first record.
    fn create_segment(
        &self,
        segment: u32,
        synced: Point,
        record: u32,
    ) -> Result<Writing, DiskError> {
        // If the present file cannot be checked, the disk fails and nothing more is written.
        self.shared.check_newest()?;
        let whole = self.segment_bytes.max(SEGMENT_HEADER_LEN + record);
        let blocks = self.take_blocks(segment, whole)?;
        let header = SegmentHeader {
            segment,
            generation: self.draw_generation(segment),
            epoch: self.epoch,
            first_number: self.next_number,
            synced,
            was_blank: blocks.is_zero,
        };
        blocks.file.write_at(&header.encode(), 0)?;
        let info = SegmentInfo {
            generation: Some(header.generation),
            first_number: Some(header.first_number),
            bytes: blocks.allocated_until.into(),
        };
        self.shared.add_segment(segment, info, blocks.file.clone());
        self.shared.preallocated.note_begun();
        Ok(Writing {
            segment,
            generation: header.generation,
            file: blocks.file,
            written_until: blocks.written_until.max(SEGMENT_HEADER_LEN),
            allocated_until: blocks.allocated_until,
            limit: self.segment_bytes,
        })
    }

    /// Takes a file with so many allocated bytes and gives it the segment's name.
    fn take_blocks(&self, segment: u32, whole: u32) -> Result<Blocks, DiskError> {
        let name = segment_name(segment);
        if let Some(preallocated_file) = self.shared.preallocated.take(whole)? {
            self.disk.rename(&preallocated_file.name(), &name)?;
            self.shared.note_created();
            // Opened again, so that errors name the segment. If no more files can be opened, the
            // append uses the old handle.
            let file = match self.disk.open(&name, OpenMode::Existing) {
                Err(error) if error.is_out_of_descriptors() => preallocated_file.handle,
                opened => opened?,
            };
            return Ok(Blocks {
                file,
                written_until: preallocated_file.written_until,
                allocated_until: preallocated_file.bytes,
                is_zero: preallocated_file.is_zero,
            });
        }
        let file = self.disk.open(&name, OpenMode::CreateNew)?;
        self.shared.note_created();
        let is_first = matches!(self.phase, Phase::Recovered { .. });
        let mut wanted = if is_first && self.is_little() {
            LITTLE_BYTES
        } else {
            whole
        };
        self.shared.preallocated.note_little(wanted < whole);
        loop {
            match file.allocate(wanted.into()) {
                Ok(()) => break,
                // A log must be able to start on a full disk, to be emptied: it uses what there is.
                Err(error) if error.is_full() && is_first && wanted / 2 >= ALLOCATED_BYTES_MIN => {
                    wanted /= 2;
                }
                Err(error) if error.is_full() && is_first => {
                    wanted = SEGMENT_HEADER_LEN;
                    break;
                }
                // The append takes back what it has begun.
                Err(error) => return Err(error),
            }
        }
        Ok(Blocks {
            file,
            written_until: 0,
            allocated_until: wanted,
            is_zero: true,
        })
    }

    /// Whether part of a segment is enough: part of one held the whole log when it was recovered.
    fn is_little(&self) -> bool {
        self.segment_bytes > LITTLE_BYTES
            && self.shared.segment_bytes() <= u64::from(LITTLE_RESERVE_BYTES)
    }

    fn draw_generation(&self, segment: u32) -> u64 {
        match self.options.generation_seed {
            None => self.random.hash_one((segment, self.epoch.0)),
            // An epoch is begun at most once and numbers its segments upwards, so the pair is
            // unique. Two odd factors spread it over all bits.
            Some(seed) => (seed ^ self.epoch.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_add(u64::from(segment))
                .wrapping_mul(0xd134_2543_de82_ef95),
        }
    }

    /// Begins the first segment of `self.epoch` and makes it durable.
    fn begin_segment(&mut self, segment: u32) -> Result<Writing, DiskError> {
        let writing = self.create_segment(segment, self.shared.synced(), 0)?;
        writing.file.sync()?;
        self.disk.sync_folder()?;
        if self.start.is_none() {
            // After the header is durable, because the mark promises that.
            self.start = Some(mark_start(&*self.disk, StartMark::FIRST)?);
        }
        Ok(writing)
    }
}

/// A file for a segment.
struct Blocks {
    file: Arc<dyn DiskFile>,
    written_until: u32,
    allocated_until: u32,
    is_zero: bool,
}

/// What an append has done so far, to keep or to take back.
struct Appending {
    writing: Writing,
    cursor: Position,
    next_number: u64,
}

impl LocalLog {
    /// Writes the group behind the tail.
    fn write_group(
        &mut self,
        appending: &mut Appending,
        group: &mut RecordGroup,
    ) -> Result<(), DiskError> {
        let synced = self.shared.synced();
        let mut run = Run {
            first: 0,
            end: 0,
            at: appending.cursor,
        };
        for index in 0..group.len() {
            let len = group.payload(index).len();
            let at = self.place_behind(Some(&appending.writing), &mut appending.cursor, len);
            if segment_of(at) != appending.writing.segment {
                self.write_run(&mut appending.writing, &run, group)?;
                self.fill(&appending.writing)?;
                let record = record_bytes(len);
                appending.writing = self.create_segment(segment_of(at), synced, record)?;
                run = Run {
                    first: index,
                    end: index,
                    at,
                };
            }
            let (gap, payload) = group.frame_mut(index);
            let header = RecordHeader {
                len: u32::try_from(payload.len()).expect("below the record limit"),
                generation: appending.writing.generation,
                epoch: self.epoch,
                number: self.next_number,
                synced,
            };
            header.encode(at, gap, payload);
            self.next_number += 1;
            run.end = index + 1;
        }
        self.write_run(&mut appending.writing, &run, group)
    }

    /// Writes the group's records from `first` to before `end`, which are in one segment.
    fn write_run(
        &self,
        writing: &mut Writing,
        run: &Run,
        group: &RecordGroup,
    ) -> Result<(), DiskError> {
        if run.first == run.end {
            return Ok(());
        }
        let start = group.frame(run.first).start;
        let bytes = &group.bytes()[start..group.frame(run.end - 1).end];
        let offset = offset_of(run.at);
        writing.file.write_at(bytes, offset.into())?;
        let end = offset + u32::try_from(bytes.len()).expect("a run lies within a segment");
        writing.written_until = writing.written_until.max(end);
        self.shared.note_written(writing.segment, &writing.file);
        Ok(())
    }

    /// Fills the end of a segment to which nothing more will be written.
    fn fill(&self, writing: &Writing) -> Result<(), DiskError> {
        let from = writing.written_until;
        let left = writing.allocated_until.saturating_sub(from);
        if left == 0 || left > FILLED_BYTES_MAX {
            return Ok(());
        }
        match writing.file.write_at(&vec![0; left as usize], from.into()) {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(()),
        }
    }

    /// There was no room for the whole group: takes back what was written of it, up to `reached`,
    /// durably, so that a crash does not bring it back.
    fn take_back(&mut self, before: Appending, reached: Position) -> Result<(), DiskError> {
        let Writing { segment, file, .. } = &before.writing;
        self.shared.set_newest(*segment, file.clone());
        for segment in before.writing.segment + 1..=segment_of(reached) {
            if self.shared.forget(segment).is_some() {
                self.shared.preallocated.note_taken_back();
            }
            match self.disk.remove(&segment_name(segment)) {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        let mut writing = before.writing;
        let end = offset_of(before.cursor);
        writing.file.set_len(end.into())?;
        writing.file.sync()?;
        self.disk.sync_folder()?;
        writing.written_until = end;
        // As many as it had: the first segment stays small.
        let allocated = std::mem::replace(&mut writing.allocated_until, end);
        if writing.file.allocate(allocated.into()).is_ok() {
            writing.allocated_until = allocated;
        }
        self.next_number = before.next_number;
        self.phase = Phase::Serving(writing);
        Ok(())
    }
}

/// A group of more bytes than this gains little from zeros written ahead, and the zeros cost as
/// much as the group itself.
const AHEAD_GROUP_BYTES_MAX: u64 = 128 << 10;

/// The fewest zeros written ahead at a time.
const AHEAD_BYTES_MIN: u32 = 64 << 10;

static ZEROS: [u8; AHEAD_BYTES_MIN as usize] = [0; AHEAD_BYTES_MIN as usize];

impl LocalLog {
    /// Writes zeros behind the tail if too few are left for another group like the last one. A sync
    /// of blocks that were written before changes no metadata of the file, and is two to four times
    /// as fast.
    fn write_ahead(
        &self,
        writing: &mut Writing,
        tail: u32,
        group_bytes: u64,
    ) -> Result<(), DiskError> {
        let left = u64::from(writing.written_until.saturating_sub(tail));
        if left >= group_bytes || group_bytes > AHEAD_GROUP_BYTES_MAX {
            return Ok(());
        }
        // As many as were appended so far, so that a log with little traffic pays little.
        let step = u32::try_from(self.appended_bytes).unwrap_or(u32::MAX);
        let step = step
            .max(AHEAD_BYTES_MIN)
            .min(self.options.write_ahead_bytes_max)
            .min(
                writing
                    .allocated_until
                    .saturating_sub(writing.written_until),
            );
        let end = writing.written_until + step;
        while writing.written_until < end {
            let count = (end - writing.written_until).min(AHEAD_BYTES_MIN);
            let zeros = &ZEROS[..count as usize];
            match writing.file.write_at(zeros, writing.written_until.into()) {
                Ok(()) => writing.written_until += count,
                // The records are written; only speed is lost.
                Err(error) if error.is_full() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Records of a group that are in one segment: one write.
struct Run {
    first: usize,
    end: usize,
    /// Where the first one starts.
    at: Position,
}

/// The bytes of a record with a payload of this length.
fn record_bytes(len: usize) -> u32 {
    u32::try_from(RECORD_HEADER_LEN + len).unwrap_or(u32::MAX)
}

impl LocalLog {
    /// Where a record of `len` payload bytes goes if the tail is at `cursor`: there if it fits,
    /// else at the start of the next segment. Moves the cursor behind it.
    fn place_behind(
        &self,
        writing: Option<&Writing>,
        cursor: &mut Position,
        len: usize,
    ) -> Position {
        let here = writing.filter(|writing| writing.segment == segment_of(*cursor));
        let limit = here.map_or(self.segment_bytes, |writing| writing.limit);
        let record_len = u64::from(record_bytes(len));
        let mut at = *cursor;
        if u64::from(offset_of(at)) + record_len > u64::from(limit) {
            at = first_record(segment_of(at).wrapping_add(1));
        }
        *cursor = Position(at.0 + record_len);
        at
    }

    /// Between two groups: adapts the sizes of the present and the next segments to the log.
    fn adapt(&mut self) {
        self.segment_bytes = self.shared.preallocated.adapt(self.shared.segment_bytes());
        if let Phase::Serving(writing) = &mut self.phase
            && writing.allocated_until > self.segment_bytes
            && writing.limit > self.segment_bytes
        {
            // Ends the segment here. The unused rest of its blocks is released with the segment.
            writing.limit = offset_of(self.shared.appended());
        }
    }
}

impl LocalLog {
    /// The snapshots in the log's folder.
    #[must_use]
    pub fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        Arc::new(Snapshots(self.shared.clone()))
    }

    /// [Begins](SnapshotStore::begin) a snapshot as of the tail.
    ///
    /// # Errors
    /// As [`SnapshotStore::begin`].
    pub fn begin_snapshot(&self) -> Result<Box<dyn SnapshotWriter>, LogError> {
        self.snapshots().begin(self.tail(), self.next_number)
    }
}

impl LocalLog {
    /// Writes down how far the log is durable, so that a recovery notices the loss of records behind which there are none. It
    /// renames an empty file and syncs nothing: the death of the process keeps the mark, and a power cut may leave an
    /// older one.
    ///
    /// # Errors
    /// If there is no mark now, or an older one. The log goes on, and the next call writes one.
    pub fn mark_synced(&mut self) -> Result<(), DiskError> {
        let mark = SyncedMark(self.shared.synced());
        match self.synced_mark.take() {
            Some(before) if before == mark => {}
            Some(before) => self.disk.rename(&before.to_string(), &mark.to_string())?,
            None => drop(self.disk.open(&mark.to_string(), OpenMode::CreateNew)?),
        }
        self.synced_mark = Some(mark);
        Ok(())
    }

    /// Lets the log start with the oldest segment of those right before the mark of its start, or of all if the mark's own
    /// segment is not there: for whoever would rather see records again than miss some where that mark is wrong. Such
    /// segments are there also where a crash came between the mark and their release. [Recover](LogSource::recover)
    /// again then. Returns whether the mark was moved; it is not once an epoch has begun.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn start_at_oldest(&mut self) -> Result<bool, LogError> {
        let (Phase::Recovered { .. }, Some(start)) = (&self.phase, self.start) else {
            return Ok(false);
        };
        let marked = segment_of(start.0.at);
        let mut oldest = None;
        {
            let segments = self.shared.segments();
            let mut next = marked;
            for (&segment, info) in segments.range(..marked).rev() {
                if segments.contains_key(&marked) && segment.saturating_add(1) != next {
                    break;
                }
                next = segment;
                let at = first_record(segment);
                oldest = info
                    .first_number
                    .map(|number| StartMark(Point { at, number }))
                    .or(oldest);
            }
        }
        let Some(oldest) = oldest else {
            return Ok(false);
        };
        self.disk.rename(&start.to_string(), &oldest.to_string())?;
        self.disk.sync_folder()?;
        self.start = Some(oldest);
        Ok(true)
    }

    /// Sets a segment file aside that the disk does not read, as `.damaged`, and puts a copy in its place that has zeros for
    /// what cannot be read; no copy if there is no room for it. For a log that could not recover, because of that file:
    /// `name` is the one in the error. Returns whether it is the name of a segment; false also once an epoch has begun.
    /// [Recover](LogSource::recover) again then.
    ///
    /// # Errors
    /// If the disk fails otherwise.
    pub fn set_aside(&mut self, name: &str) -> Result<bool, LogError> {
        let name = name.rsplit('/').next().unwrap_or(name);
        let FileKind::Segment(segment) = FileKind::of(name) else {
            return Ok(false);
        };
        if matches!(self.phase, Phase::Serving(_)) {
            return Ok(false);
        }
        // An earlier recovery may have planned something with that file.
        self.phase = Phase::Opened;
        set_aside(&*self.disk, segment)?;
        Ok(true)
    }
}

impl From<LocalLog> for Storage {
    fn from(log: LocalLog) -> Self {
        Self {
            snapshots: log.snapshots(),
            log: Box::new(log),
        }
    }
}

impl LogSource for LocalLog {
    fn capabilities(&self) -> LogCapabilities {
        LogCapabilities {
            gap: RECORD_HEADER_LEN,
            record_bytes_max: self.options.record_bytes_max,
            append_level: Level::Process,
            sync_level: Level::Disk,
            // Both a write and a sync are complete when they return.
            groups_in_flight: 1,
            syncs_in_flight: 1,
            releases_ranges: true,
            range_bits: 32,
        }
    }

    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError> {
        if matches!(self.phase, Phase::Serving(_)) {
            return Err(LogError::Unsupported {
                what: "recover again after an epoch was begun",
            });
        }
        self.shared.check_running()?;
        let from = starting_point(&*self.disk, from)?;
        let mut recovered = read(&*self.disk, from, visit)?;
        recovered.report.epoch = recovered.report.epoch.max(lowest);
        self.epoch = recovered.report.epoch;
        self.next_number = recovered.next_number;
        self.start = recovered.start;
        self.shared
            .set_segments(recovered.segments, recovered.damaged);
        let snapshot_bytes = Snapshots(self.shared.clone()).bytes()?;
        self.shared
            .snapshot_bytes
            .store(snapshot_bytes, Ordering::Relaxed);
        self.shared.start_at(Point {
            at: first_record(recovered.next_segment),
            number: recovered.next_number,
        });
        self.phase = Phase::Recovered {
            next_segment: recovered.next_segment,
            to_apply: Some(Box::new(ToApply {
                plan: recovered.plan,
                preallocated: recovered.preallocated,
            })),
        };
        Ok(recovered.report)
    }

    fn tail(&self) -> Position {
        self.shared.appended()
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::new(Reader(self.shared.clone()))
    }

    fn ranges(&self) -> Vec<LogRange> {
        let held = self.shared.held();
        let segments = self.shared.segments();
        let bytes = |segment| segments.get(segment).map_or(0, |info| info.bytes);
        held.iter()
            .map(|segment| LogRange {
                first: segment_start(*segment),
                bytes: bytes(segment),
            })
            .collect()
    }

    fn name_of(&self, from: Position, to: Position) -> String {
        let last = segment_of(Position(to.0.saturating_sub(1)));
        if last > segment_of(from) {
            format!("{} to {}", segment_file(from), segment_name(last))
        } else {
            segment_file(from)
        }
    }
}

impl Log for LocalLog {
    fn apply_recovery(&mut self) -> Result<(), LogError> {
        let Phase::Recovered { to_apply, .. } = &mut self.phase else {
            return Ok(());
        };
        if let Some(todo) = to_apply {
            apply(&*self.disk, &todo.plan)?;
            let count = self.shared.segments().len();
            let held = (count, self.shared.segment_bytes());
            self.shared.preallocated.start(&todo.preallocated, held)?;
            self.segment_bytes = self.shared.preallocated.segment_bytes();
            *to_apply = None;
        }
        Ok(())
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError> {
        if epoch <= self.epoch {
            return Err(AppendError::Fenced {
                ours: epoch,
                theirs: self.epoch,
            });
        }
        self.shared.check_running().map_err(AppendError::Unknown)?;
        let Phase::Recovered {
            next_segment: segment,
            ..
        } = self.phase
        else {
            return Err(AppendError::Unknown(LogError::Unsupported {
                what: "begin an epoch but once, after it has recovered",
            }));
        };
        self.apply_recovery().map_err(AppendError::Unknown)?;
        self.epoch = epoch;
        let writing = self
            .begin_segment(segment)
            .map_err(|error| AppendError::Unknown(self.shared.stop(error)))?;
        self.phase = Phase::Serving(writing);
        self.shared.preallocated.look();
        Ok(())
    }

    fn next_number(&self) -> u64 {
        self.next_number
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        let writing = match &self.phase {
            Phase::Serving(writing) => Some(writing),
            _ => None,
        };
        self.place_behind(writing, cursor, len)
    }

    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError> {
        self.shared.check_running()?;
        let tail = offset_of(self.tail());
        let Phase::Serving(writing) = &mut self.phase else {
            return Ok(());
        };
        let headers = records.saturating_mul(RECORD_HEADER_LEN as u64);
        let needed = bytes.saturating_add(headers);
        let is_growth = purpose == Purpose::Growth;
        let segment_bytes = self.segment_bytes;
        let here = writing.left(tail);
        let grows_from_little = is_growth && self.shared.preallocated.is_little();
        let kept = if grows_from_little {
            u64::from(LITTLE_RESERVE_BYTES)
        } else {
            0
        };
        let whole = writing.limit;
        let lacking = whole.saturating_sub(writing.allocated_until);
        if needed.saturating_add(kept) > here && lacking > 0 {
            let preallocated = &self.shared.preallocated;
            let disk = |error| ReserveError::Log(LogError::Disk(error));
            loop {
                let taken = if grows_from_little && !preallocated.may_grow(lacking).map_err(disk)? {
                    false
                } else {
                    match writing.file.allocate(whole.into()) {
                        Ok(()) => true,
                        Err(error) if error.is_full() => false,
                        Err(error) => return Err(disk(error)),
                    }
                };
                if taken {
                    writing.allocated_until = whole;
                    let segment = writing.segment;
                    self.shared.set_segment_bytes(segment, whole);
                    preallocated.note_little(false);
                    break;
                }
                if is_growth || !preallocated.give_up_for_records().map_err(disk)? {
                    preallocated.note_full();
                    let free = here.saturating_sub(kept);
                    return Err(ReserveError::Full { needed, free });
                }
            }
        }
        let capacity = u64::from(segment_bytes - SEGMENT_HEADER_LEN);
        let segments = if needed <= u64::from(writing.limit.saturating_sub(tail)) {
            0
        } else {
            // The first record of a segment did not fit into the one before, so two successive
            // segments hold more than one could.
            (needed / capacity).saturating_mul(2).saturating_add(1)
        };
        let segments = usize::try_from(segments).unwrap_or(usize::MAX / 4);
        let mut large = Large::default();
        if needed > capacity && segment_bytes < self.options.segment_bytes {
            // The options may allow records that do not fit into a segment of this size.
            let largest = record_bytes(self.options.record_bytes_max);
            let bytes = u32::try_from(needed).unwrap_or(u32::MAX).min(largest);
            let count = records.min(needed / capacity);
            large = Large {
                count: usize::try_from(count).unwrap_or(usize::MAX / 4),
                // In whole blocks.
                bytes: (bytes + SEGMENT_HEADER_LEN).next_multiple_of(SEGMENT_HEADER_LEN),
            };
        }
        let mut created = Vec::new();
        let reserved = self
            .shared
            .preallocated
            .reserve(segments, large, is_growth, &mut created);
        for file in created {
            self.shared.note_preallocated(file);
        }
        match reserved {
            Ok(()) => Ok(()),
            Err(NoRoom::Full { free }) => Err(ReserveError::Full {
                needed,
                free: free.saturating_add(here),
            }),
            Err(NoRoom::OutOfDescriptors(error)) => Err(ReserveError::OutOfDescriptors(error)),
            Err(NoRoom::Disk(error)) => Err(LogError::Disk(error).into()),
        }
    }

    fn space(&self) -> LogSpace {
        let (in_preallocated, free_bytes, state) = self.shared.preallocated.space();
        let here = match &self.phase {
            Phase::Serving(writing) => writing.left(offset_of(self.shared.appended())),
            _ => 0,
        };
        let in_snapshots = self.shared.snapshot_bytes.load(Ordering::Relaxed);
        LogSpace {
            state,
            used_bytes: self.shared.segment_bytes() + in_preallocated + in_snapshots,
            ready_bytes: in_preallocated + here,
            free_bytes,
        }
    }

    fn submit(
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

        let before = Appending {
            writing: writing.clone(),
            cursor: tail,
            next_number: self.next_number,
        };
        let mut appending = Appending {
            writing: writing.clone(),
            ..before
        };
        let written = group.bytes().len() as u64;
        let outcome = self.write_group(&mut appending, group);
        let reached = appending.cursor;
        let mut writing = appending.writing;
        let outcome =
            outcome.and_then(|()| self.write_ahead(&mut writing, offset_of(reached), written));
        match outcome {
            Ok(()) => {}
            Err(error) if error.is_full() || error.is_out_of_descriptors() => {
                self.shared.check_running().map_err(AppendError::Unknown)?;
                self.take_back(before, reached)
                    .map_err(|error| AppendError::Unknown(self.shared.stop(error)))?;
                return Err(AppendError::Full(if error.is_full() {
                    self.shared.preallocated.note_full();
                    ReserveError::Full {
                        needed: written,
                        free: 0,
                    }
                } else {
                    ReserveError::OutOfDescriptors(error)
                }));
            }
            Err(error) => return Err(AppendError::Unknown(self.shared.stop(error))),
        }

        // A sync that failed meanwhile may have dropped the bytes just written.
        self.shared.check_running().map_err(AppendError::Unknown)?;
        self.shared.publish(Point {
            at: reached,
            number: self.next_number,
        });
        let is_next = writing.segment != before.writing.segment;
        self.phase = Phase::Serving(writing);
        self.shared.preallocated.note_appended(written);
        self.appended_bytes += written;
        if is_next {
            self.adapt();
        }
        Ok(())
    }

    fn progress(&self) -> Arc<dyn LogProgress> {
        Arc::new(ProgressHandle(self.shared.clone()))
    }

    fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        self.shared.preallocated.attend();
        Some(Arc::new(LocalMaintenance(self.shared.clone())))
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        self.shared.check_running()?;
        let Some(start) = self.start else {
            return Ok(());
        };
        // The mark promises that everything before it is durable, and the newest segment stays.
        let limit = before.min(self.shared.synced().at).min(self.tail());
        // A snapshot knows its number; without one, the beginning of a segment is used.
        let at_snapshot = Snapshots(self.shared.clone()).point(before)?;
        let new_start = match at_snapshot.filter(|point| point.at <= limit) {
            Some(point) => Some(StartMark(point)),
            None => self.shared.segment_at(limit),
        };
        let Some(new_start) = new_start.filter(|new_start| *new_start > start) else {
            return Ok(());
        };
        // The mark is durable before the first segment is given up: a recovery that finds the old
        // mark then also finds every segment that it promises.
        self.disk
            .rename(&start.to_string(), &new_start.to_string())?;
        self.start = Some(new_start);
        self.shared.preallocated.note_trimmed();
        Ok(())
    }

    fn release(&mut self, range: Position) -> Result<(), LogError> {
        self.shared.check_running()?;
        let segment = segment_of(range);
        if self
            .start
            .is_none_or(|start| segment >= segment_of(start.0.at))
        {
            return Err(LogError::Unsupported {
                what: "give back what a recovery may still start with",
            });
        }
        let forgotten = self.shared.forget(segment);
        let was_damaged = self.shared.damaged().remove(&segment);
        if forgotten.is_none() && !was_damaged {
            return Ok(());
        }
        // A segment with unreadable bytes is set aside, not deleted.
        self.shared.preallocated.retire(Retired {
            segment,
            bytes: forgotten.unwrap_or(0),
            is_damaged: was_damaged,
        });
        self.adapt();
        if !self.shared.preallocated.is_attended() {
            self.shared.judge_step(self.shared.preallocated.recycle())?;
        }
        Ok(())
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
