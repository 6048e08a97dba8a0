//! The state that a log, its progress and its readers share.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use lockgate_core::{
    AppendError, Disk, DiskError, DiskFile, DiskOperation, LogError, LogMaintenance, LogProgress,
    OpenMode, Position, Progress, SpaceState, StepOutcome, StorageFailure,
};

use crate::{
    format::{Point, first_record, segment_of},
    names::{StartMark, segment_name},
    preallocated::{Preallocated, StepError},
    reader::Lengths,
    sync::{AtomicU64, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) preallocated: Preallocated,
    /// Every segment whose records may be read, by number.
    segments: RwLock<BTreeMap<u32, SegmentInfo>>,
    /// Segment files with unreadable bytes.
    damaged: Mutex<BTreeSet<u32>>,
    /// Bytes of all snapshots.
    pub(crate) snapshot_bytes: AtomicU64,
    files: Mutex<OpenFiles>,
    pub(crate) lengths: Lengths,
    /// Where the next record goes; every record before it has been written and may be read.
    appended: AtomicU64,
    unsynced: Mutex<Unsynced>,
    /// Signals that more is durable, or that nothing more will be.
    synced: Condvar,
    /// Held for a whole sync, so that two syncs cannot report each other's work.
    sync_turn: Mutex<()>,
}

/// What a reader needs to know of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentInfo {
    /// The generation of its records; `None` if the header cannot be read and no record has shown
    /// it.
    pub(crate) generation: Option<u64>,
    /// The number of its first record, if that is known.
    pub(crate) first_number: Option<u64>,
    /// Bytes of its file.
    pub(crate) bytes: u64,
}

/// What was written and not synced yet.
#[derive(Default)]
struct Unsynced {
    /// Segments written to since their last sync, oldest first.
    files: Vec<(u32, Arc<dyn DiskFile>)>,
    /// A segment was created since the last sync of the folder.
    names_unsynced: bool,
    /// The end of the written records that a sync may cover.
    appended: Point,
    /// Every record before it is durable.
    synced: Point,
    /// The segment that records go to.
    newest: Option<(u32, Arc<dyn DiskFile>)>,
    /// The first failure; ends the instance.
    stopped: Option<DiskError>,
}

impl Unsynced {
    fn check_running(&self) -> Result<(), LogError> {
        match &self.stopped {
            None => Ok(()),
            Some(error) => Err(LogError::Stopped {
                reason: StorageFailure::new(error.clone()),
            }),
        }
    }
}

impl Shared {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        preallocated: Preallocated,
        open_files_max: usize,
    ) -> Self {
        Self {
            disk,
            preallocated,
            segments: RwLock::default(),
            damaged: Mutex::default(),
            snapshot_bytes: AtomicU64::new(0),
            files: Mutex::new(OpenFiles::new(open_files_max)),
            lengths: Lengths::default(),
            appended: AtomicU64::new(0),
            unsynced: Mutex::default(),
            synced: Condvar::new(),
            sync_turn: Mutex::default(),
        }
    }

    fn unsynced(&self) -> MutexGuard<'_, Unsynced> {
        // No code that holds the lock panics between two changes that belong together.
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if an earlier failure has ended the instance.
    pub(crate) fn check_running(&self) -> Result<(), LogError> {
        self.unsynced().check_running()
    }

    /// Ends the instance: nothing more is appended or reported as synced. Returns the error.
    pub(crate) fn stop(&self, error: DiskError) -> LogError {
        let mut unsynced = self.unsynced();
        if unsynced.stopped.is_none() {
            unsynced.stopped = Some(error.clone());
            self.synced.notify_all();
        }
        LogError::Disk(error)
    }

    /// Where the next record goes.
    pub(crate) fn appended(&self) -> Position {
        Position(self.appended.load(Ordering::Acquire))
    }

    /// Whether an epoch has begun.
    pub(crate) fn is_owned(&self) -> bool {
        self.unsynced().newest.is_some()
    }

    /// Every record before it is durable.
    pub(crate) fn synced(&self) -> Point {
        self.unsynced().synced
    }

    /// Waits until the record at `beyond` is durable, at most for `wait`.
    pub(crate) fn wait_synced(&self, beyond: Position, wait: Duration) -> Position {
        let end = Instant::now().checked_add(wait);
        let mut unsynced = self.unsynced();
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            if unsynced.synced.at > beyond || unsynced.stopped.is_some() || is_over {
                return unsynced.synced.at;
            }
            let waited = self.synced.wait_timeout(unsynced, left.unwrap_or(wait));
            unsynced = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Begins after a recovery: every record before `tail` is durable.
    pub(crate) fn start_at(&self, tail: Point) {
        self.unsynced().synced = tail;
        self.publish(tail);
    }

    /// Notes that a segment was named, which may not survive a power cut. Call this after the
    /// change of the folder: a sync that took the note earlier would sync the folder without it.
    pub(crate) fn note_created(&self) {
        self.unsynced().names_unsynced = true;
    }

    /// Notes a write to the segment, before its bytes count as appended.
    pub(crate) fn note_written(&self, segment: u32, file: &Arc<dyn DiskFile>) {
        let mut unsynced = self.unsynced();
        let last = unsynced.files.last();
        // Comparing the number is not enough: a segment that was taken back may be begun again.
        if !last.is_some_and(|(number, last)| *number == segment && Arc::ptr_eq(last, file)) {
            unsynced.files.push((segment, file.clone()));
        }
    }

    /// Notes a file that must survive a power cut, with its name.
    pub(crate) fn note_preallocated(&self, file: Arc<dyn DiskFile>) {
        let mut unsynced = self.unsynced();
        unsynced.names_unsynced = true;
        // Before the segments: the last file on the list is the one being written.
        unsynced.files.insert(0, (0, file));
    }

    /// Makes every record before `tail` readable and part of the next sync.
    pub(crate) fn publish(&self, tail: Point) {
        self.unsynced().appended = tail;
        self.appended.store(tail.at.0, Ordering::Release);
    }

    /// Makes the segment known to readers.
    pub(crate) fn add_segment(&self, segment: u32, info: SegmentInfo, file: Arc<dyn DiskFile>) {
        self.segments_mut().insert(segment, info);
        let closed = self.files().insert(segment, file.clone());
        drop(closed);
        self.set_newest(segment, file);
    }

    /// Sets the segment that records go to from now on.
    pub(crate) fn set_newest(&self, segment: u32, file: Arc<dyn DiskFile>) {
        self.unsynced().newest = Some((segment, file));
    }

    /// Fails if the file that records go to was removed or replaced: its records would be lost when
    /// it is closed. Only a missing file counts as that; any other error is one of the check
    /// itself.
    pub(crate) fn check_newest(&self) -> Result<(), DiskError> {
        let Some((segment, file)) = self.unsynced().newest.clone() else {
            return Ok(());
        };
        let by_name = (self.disk.open(&segment_name(segment), OpenMode::Read))
            .and_then(|found| found.identity());
        let is_it = match by_name {
            Ok(found) => found == file.identity()?,
            Err(error) if error.is_not_found() => false,
            // This error says nothing about the file.
            Err(error) if error.is_out_of_descriptors() => true,
            Err(error) => return Err(error),
        };
        // Unless the log itself has taken it back meanwhile.
        let is_still = |(_, newest): &(u32, Arc<dyn DiskFile>)| Arc::ptr_eq(newest, &file);
        if is_it || !self.unsynced().newest.as_ref().is_some_and(is_still) {
            return Ok(());
        }
        let mut gone = self.not_listed();
        gone.insert(segment);
        let names: Vec<String> = (gone.iter().take(GONE_TOLD))
            .map(|&segment| segment_name(segment))
            .collect();
        let mut name = format!("{} in {}", names.join(", "), self.disk.describe());
        if gone.len() > names.len() {
            name = format!("{} files, among them {name}", gone.len());
        }
        Err(DiskError {
            operation: DiskOperation::Inspect,
            name,
            source: io::Error::new(
                io::ErrorKind::NotFound,
                "removed or replaced while the log was in use: what they held is lost, unless there is a \
                 copy or a backup",
            ),
        })
    }

    /// Segments whose files are not in the folder.
    fn not_listed(&self) -> BTreeSet<u32> {
        let held = self.segments().clone();
        let Ok(names) = self.disk.list() else {
            return BTreeSet::new();
        };
        let names: BTreeSet<String> = names.into_iter().collect();
        let gone = held.into_keys().filter(|&segment| {
            // A segment that was released meanwhile may be gone.
            !names.contains(&segment_name(segment)) && self.segments().contains_key(&segment)
        });
        gone.collect()
    }

    pub(crate) fn set_segments(
        &self,
        segments: BTreeMap<u32, SegmentInfo>,
        damaged: BTreeSet<u32>,
    ) {
        *self.segments_mut() = segments;
        *self.damaged() = damaged;
        self.files().open.clear();
    }

    pub(crate) fn damaged(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the segment has unreadable bytes; false if the log does not hold it any more.
    pub(crate) fn note_damaged(&self, segment: u32) -> bool {
        let segments = self.segments();
        let is_there = segments.contains_key(&segment);
        if is_there {
            // While the segments are locked, so that forgetting this one comes later.
            self.damaged().insert(segment);
        }
        is_there
    }

    pub(crate) fn held(&self) -> BTreeSet<u32> {
        let mut held = self.damaged().clone();
        held.extend(self.segments().keys());
        held
    }

    /// The first record of the last segment that starts at `position` or before, among those whose
    /// first number is known.
    pub(crate) fn segment_at(&self, position: Position) -> Option<StartMark> {
        let segments = self.segments();
        let mut before = segments.range(..=segment_of(position)).rev();
        before.find_map(|(&segment, info)| {
            let number = info.first_number?;
            let at = first_record(segment);
            Some(StartMark(Point { at, number }))
        })
    }

    /// Updates the size of the segment's file.
    pub(crate) fn set_segment_bytes(&self, segment: u32, bytes: u32) {
        if let Some(info) = self.segments_mut().get_mut(&segment) {
            info.bytes = bytes.into();
        }
    }

    /// Bytes of all segment files.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segments().values().map(|info| info.bytes).sum()
    }

    /// Forgets a segment; returns its bytes if it was known. A reader in the middle of it finds
    /// bytes that do not verify, and then that the log does not hold the segment.
    pub(crate) fn forget(&self, segment: u32) -> Option<u64> {
        let known = self.segments_mut().remove(&segment);
        // Closed outside the lock: the system may take long to free the file's blocks.
        let file = self.files().open.remove(&segment);
        drop(file);
        known.map(|info| info.bytes)
    }

    pub(crate) fn segments(&self) -> RwLockReadGuard<'_, BTreeMap<u32, SegmentInfo>> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn segments_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u32, SegmentInfo>> {
        self.segments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> MutexGuard<'_, OpenFiles> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The segment's file, if it is open.
    pub(crate) fn open_file(&self, segment: u32) -> Option<Arc<dyn DiskFile>> {
        self.files().get(segment)
    }

    /// The segment's file, opened if it is not.
    pub(crate) fn file(&self, segment: u32) -> Result<Arc<dyn DiskFile>, DiskError> {
        if let Some(file) = self.open_file(segment) {
            return Ok(file);
        }
        // Opened outside the lock: a slow disk must not stop readers of other segments. Two readers
        // may open the same file; one handle is then dropped.
        let file = self.disk.open(&segment_name(segment), OpenMode::Read)?;
        let closed = self.files().insert(segment, file.clone());
        drop(closed);
        Ok(file)
    }
}

/// The most missing files that an error names.
const GONE_TOLD: usize = 8;

/// Handles of the segments that were read last, so that a read need not open its file.
struct OpenFiles {
    max: usize,
    /// With the time of last use, in uses.
    open: BTreeMap<u32, (u64, Arc<dyn DiskFile>)>,
    uses: u64,
}

impl OpenFiles {
    fn new(max: usize) -> Self {
        Self {
            max,
            open: BTreeMap::new(),
            uses: 0,
        }
    }

    fn get(&mut self, segment: u32) -> Option<Arc<dyn DiskFile>> {
        self.uses += 1;
        let (last_use, file) = self.open.get_mut(&segment)?;
        *last_use = self.uses;
        Some(file.clone())
    }

    /// Returns a handle for the caller to close outside the lock, because closing may take long.
    #[must_use]
    fn insert(&mut self, segment: u32, file: Arc<dyn DiskFile>) -> Option<Arc<dyn DiskFile>> {
        self.uses += 1;
        let replaced = self.open.insert(segment, (self.uses, file));
        if self.open.len() <= self.max {
            return replaced.map(|(_, file)| file);
        }
        // Walks over at most `max` handles, and only when another one was opened. Nothing was
        // replaced, so there is one too many.
        let oldest = self.open.iter().min_by_key(|(_, (last_use, _))| *last_use);
        let oldest = oldest.map(|(&segment, _)| segment)?;
        self.open.remove(&oldest).map(|(_, file)| file)
    }
}

/// The maintenance handle of a [`LocalLog`](crate::LocalLog).
pub(crate) struct LocalMaintenance(pub(crate) Arc<Shared>);

impl LogMaintenance for LocalMaintenance {
    fn step(&self) -> Result<StepOutcome, LogError> {
        self.0.check_running()?;
        self.0.judge_step(self.0.preallocated.step())
    }

    /// How long until the next check. While there is too little room, room may appear at any time,
    /// and growth is refused until a check sees it. Otherwise a check only updates the reported
    /// space.
    fn pause(&self) -> Duration {
        match self.0.preallocated.space() {
            (_, _, SpaceState::Full) => Duration::from_secs(1),
            _ => Duration::from_secs(10),
        }
    }

    fn check_storage(&self) -> Result<(), LogError> {
        self.0.check_running()?;
        self.0.preallocated.tick();
        match self.0.check_newest() {
            Err(error) if error.is_not_found() => Err(self.0.stop(error)),
            _ => Ok(()),
        }
    }
}

impl Shared {
    /// Judges the result of a step: if it is unknown which names are durable, the log ends. Any
    /// other failure concerns only a file that holds no record.
    pub(crate) fn judge_step<T>(&self, outcome: Result<T, StepError>) -> Result<T, LogError> {
        outcome.map_err(|error| match error {
            StepError::Names(error) => self.stop(error),
            StepError::Disk(error) => LogError::Disk(error),
        })
    }
}

/// The progress handle of a [`LocalLog`](crate::LocalLog).
pub(crate) struct ProgressHandle(pub(crate) Arc<Shared>);

impl LogProgress for ProgressHandle {
    fn now(&self) -> Progress {
        Progress {
            written: self.0.appended(),
            durable: self.0.synced().at,
        }
    }

    fn failure(&self) -> Option<AppendError> {
        self.0.check_running().err().map(AppendError::Unknown)
    }

    fn sync(&self) -> Result<Position, LogError> {
        let shared = &*self.0;
        let _turn = shared
            .sync_turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        shared.check_running()?;

        let (target, files, names) = {
            let mut unsynced = shared.unsynced();
            // An append notes its file before it moves the tail, so the list has everything that
            // was appended by now. The list is taken, not copied: an append during this sync puts
            // its segment on the list again.
            let files = std::mem::take(&mut unsynced.files);
            let names = std::mem::take(&mut unsynced.names_unsynced);
            (unsynced.appended, files, names)
        };
        if names {
            shared
                .disk
                .sync_folder()
                .map_err(|error| shared.stop(error))?;
        }
        // Oldest first, so that a power cut in between leaves no hole.
        for (_, file) in &files {
            file.sync().map_err(|error| shared.stop(error))?;
        }

        let mut unsynced = shared.unsynced();
        // Another thread may have failed meanwhile; then nothing may be promised.
        unsynced.check_running()?;
        unsynced.synced = target;
        shared.synced.notify_all();
        Ok(target.at)
    }
}
