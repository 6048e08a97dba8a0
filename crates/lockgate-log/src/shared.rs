//! What the appender, the syncer and the readers of one log share.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use lockgate_core::{
    Disk, DiskError, DiskFile, LogError, LogReader, LogRecord, LogSync, OpenMode, Position,
    ReadError, Scanned, with_sources,
};

use crate::{
    format::{
        PAYLOAD_BYTES_LIMIT, Point, RECORD_HEADER_LEN, RecordHeader, SEGMENT_HEADER_LEN,
        first_record, offset_of, segment_of, verifies,
    },
    names::{StartMark, segment_name},
    scan::SegmentScan,
};

/// Bytes of a reader's first read: a header and most payloads, so that one call is enough.
const FIRST_READ_BYTES: usize = 4096;

pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    /// Every segment whose records may be read, by number.
    segments: RwLock<BTreeMap<u32, SegmentInfo>>,
    files: Mutex<OpenFiles>,
    /// Where the next record goes; everything before it has been written and may be read.
    appended: AtomicU64,
    progress: Mutex<Progress>,
    /// Held for a whole sync, so that two syncs cannot report each other's work.
    sync_turn: Mutex<()>,
}

/// What a reader must know of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentInfo {
    pub(crate) generation: u64,
    /// The number of its first record.
    pub(crate) first_number: u64,
}

/// What has been written and not yet synced.
#[derive(Default)]
struct Progress {
    /// Segments written to since their last sync, oldest first.
    unsynced: Vec<(u32, Arc<dyn DiskFile>)>,
    /// A segment was created since the last sync of the folder.
    names_unsynced: bool,
    /// The next record, as far as it may be synced: everything before it has been written.
    appended: Point,
    /// Every record before it is durable.
    synced: Point,
    /// The first failure; ends the instance.
    stopped: Option<String>,
}

impl Shared {
    pub(crate) fn new(disk: Arc<dyn Disk>, open_files_max: usize) -> Self {
        Self {
            disk,
            segments: RwLock::default(),
            files: Mutex::new(OpenFiles::new(open_files_max)),
            appended: AtomicU64::new(0),
            progress: Mutex::default(),
            sync_turn: Mutex::default(),
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing panics between two changes that belong together.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if an earlier failure has ended the instance.
    pub(crate) fn check_running(&self) -> Result<(), LogError> {
        match &self.progress().stopped {
            None => Ok(()),
            Some(reason) => Err(LogError::Stopped {
                reason: reason.clone(),
            }),
        }
    }

    /// Ends the instance: nothing is appended or reported synced any more. Returns the error.
    pub(crate) fn stop(&self, error: DiskError) -> LogError {
        let mut progress = self.progress();
        if progress.stopped.is_none() {
            progress.stopped = Some(with_sources(&error));
        }
        LogError::Disk(error)
    }

    /// Where the next record goes.
    pub(crate) fn appended(&self) -> Position {
        Position(self.appended.load(Ordering::Acquire))
    }

    /// Every record before it is durable.
    pub(crate) fn synced(&self) -> Point {
        self.progress().synced
    }

    /// Starts a life after recovery: all before `tail` is durable.
    pub(crate) fn start_at(&self, tail: Point) {
        self.progress().synced = tail;
        self.publish(tail);
    }

    /// Notes that the segment exists but its name may not survive a power cut.
    pub(crate) fn note_created(&self) {
        self.progress().names_unsynced = true;
    }

    /// Notes that the segment was written to, before its bytes count as appended.
    pub(crate) fn note_written(&self, segment: u32, file: &Arc<dyn DiskFile>) {
        let mut progress = self.progress();
        if progress.unsynced.last().map(|(number, _)| *number) != Some(segment) {
            progress.unsynced.push((segment, file.clone()));
        }
    }

    /// Makes everything before `tail` readable and part of the next sync.
    pub(crate) fn publish(&self, tail: Point) {
        self.progress().appended = tail;
        self.appended.store(tail.at.0, Ordering::Release);
    }

    /// Makes the segment known to readers.
    pub(crate) fn add_segment(&self, segment: u32, info: SegmentInfo, file: Arc<dyn DiskFile>) {
        self.segments_mut().insert(segment, info);
        self.files().insert(segment, file);
    }

    pub(crate) fn set_segments(&self, segments: BTreeMap<u32, SegmentInfo>) {
        *self.segments_mut() = segments;
    }

    /// The last segment that starts at `position` or before it.
    pub(crate) fn segment_at(&self, position: Position) -> Option<StartMark> {
        let segments = self.segments();
        let (&segment, info) = segments.range(..=segment_of(position)).next_back()?;
        Some(StartMark {
            segment,
            number: info.first_number,
        })
    }

    /// The segments before this one.
    pub(crate) fn segments_before(&self, segment: u32) -> Vec<u32> {
        let segments = self.segments();
        segments
            .range(..segment)
            .map(|(&number, _)| number)
            .collect()
    }

    /// Forgets a segment; readers in the middle of one finish.
    pub(crate) fn forget(&self, segment: u32) {
        self.segments_mut().remove(&segment);
        self.files().open.remove(&segment);
    }

    fn segments(&self) -> RwLockReadGuard<'_, BTreeMap<u32, SegmentInfo>> {
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

    /// The segment's file, opened if it is not.
    fn file(&self, segment: u32) -> Result<Arc<dyn DiskFile>, DiskError> {
        if let Some(file) = self.files().get(segment) {
            return Ok(file);
        }
        // Opened outside the lock: a slow disk must not stop readers of other segments. Two readers
        // may open the same file; one handle is dropped again.
        let file = self.disk.open(&segment_name(segment), OpenMode::Read)?;
        self.files().insert(segment, file.clone());
        Ok(file)
    }
}

/// Handles of the segments read last, so that a read costs no open.
struct OpenFiles {
    max: usize,
    /// With the time of last use, counted in uses.
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

    fn insert(&mut self, segment: u32, file: Arc<dyn DiskFile>) {
        self.uses += 1;
        self.open.insert(segment, (self.uses, file));
        if self.open.len() > self.max {
            // A walk over at most `max` handles, only when another had to be opened anyway.
            let oldest = self.open.iter().min_by_key(|(_, (last_use, _))| *last_use);
            if let Some((&oldest, _)) = oldest {
                self.open.remove(&oldest);
            }
        }
    }
}

/// The sync handle of a [`LocalLog`](crate::LocalLog).
pub(crate) struct Syncer(pub(crate) Arc<Shared>);

impl LogSync for Syncer {
    fn sync(&self) -> Result<Position, LogError> {
        let shared = &*self.0;
        let _turn = shared
            .sync_turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        shared.check_running()?;

        let (target, files, names) = {
            let mut progress = shared.progress();
            // Whatever was appended by now is on the list, because an append notes its file before
            // it moves the tail. Taken, not copied: an append during this sync puts its segment on
            // the list again.
            let files = std::mem::take(&mut progress.unsynced);
            let names = std::mem::take(&mut progress.names_unsynced);
            (progress.appended, files, names)
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

        let mut progress = shared.progress();
        // Something else may have failed meanwhile, and then nobody may be promised anything.
        if let Some(reason) = &progress.stopped {
            return Err(LogError::Stopped {
                reason: reason.clone(),
            });
        }
        progress.synced = target;
        Ok(target.at)
    }
}

/// The read handle of a [`LocalLog`](crate::LocalLog).
pub(crate) struct Reader(pub(crate) Arc<Shared>);

impl LogReader for Reader {
    fn read(&self, at: Position) -> Result<Bytes, ReadError> {
        let shared = &*self.0;
        let (segment, offset) = (segment_of(at), offset_of(at));
        let info = {
            let segments = shared
                .segments
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            segments.get(&segment).copied()
        };
        let Some(info) = info else {
            return Err(ReadError::Missing { at });
        };
        if at >= shared.appended() || offset < SEGMENT_HEADER_LEN {
            return Err(ReadError::Missing { at });
        }
        let file = match shared.file(segment) {
            Ok(file) => file,
            // Trimmed since we looked.
            Err(error) if error.is_not_found() => return Err(ReadError::Missing { at }),
            Err(error) => return Err(LogError::Disk(error).into()),
        };
        read_record(&*file, at, info.generation)
    }

    fn scan(
        &self,
        from: Position,
        to: Position,
        visit: &mut dyn FnMut(Scanned) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let to = to.min(self.0.appended());
        let segments: Vec<(u32, u64)> = self
            .0
            .segments()
            .range(segment_of(from)..=segment_of(to))
            .map(|(&segment, info)| (segment, info.generation))
            .collect();
        for (segment, generation) in segments {
            let file = match self.0.file(segment) {
                Ok(file) => file,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(LogError::Disk(error).into()),
            };
            let mut scan =
                SegmentScan::new(&*file, segment, Some(generation)).map_err(LogError::Disk)?;
            let mut expected = from.max(first_record(segment));
            let end = to.min(Position(first_record(segment + 1).0));
            while expected < end {
                let found = scan
                    .next(offset_of(expected).into(), 0)
                    .map_err(LogError::Disk)?
                    .filter(|record| record.at < end)
                    .map(|record| {
                        let payload = Bytes::copy_from_slice(record.payload);
                        (record.at, record.header.record_len(), payload)
                    });
                let Some((position, len, payload)) = found else {
                    break;
                };
                if position > expected {
                    let gap = Scanned::Damaged {
                        from: expected,
                        to: position,
                    };
                    if visit(gap).is_break() {
                        return Ok(());
                    }
                }
                if visit(Scanned::Record(LogRecord { position, payload })).is_break() {
                    return Ok(());
                }
                expected = Position(position.0 + len as u64);
            }
        }
        Ok(())
    }
}

thread_local! {
    /// Where first reads go. Kept per thread, because clearing a buffer for every read costs more than
    /// copying the few bytes of a small record out of it, and a record then keeps no more memory than
    /// it needs.
    static FIRST_READ: RefCell<Box<[u8]>> = RefCell::new(vec![0; FIRST_READ_BYTES].into());
}

fn read_record(file: &dyn DiskFile, at: Position, generation: u64) -> Result<Bytes, ReadError> {
    let damaged = |what| ReadError::Damaged { at, what };
    let offset = u64::from(offset_of(at));
    let (mut record, wanted) = FIRST_READ.with_borrow_mut(|first| {
        let count = file.read_at(first, offset).map_err(LogError::Disk)?;
        let first = &first[..count];
        let Some(header) = RecordHeader::peek(first) else {
            return Err(damaged("the file ends before it"));
        };
        if header.generation != generation {
            return Err(damaged("its generation is not the segment's"));
        }
        if header.len as usize > PAYLOAD_BYTES_LIMIT {
            return Err(damaged("its length is out of range"));
        }
        let wanted = header.record_len();
        let mut record = Vec::with_capacity(wanted);
        record.extend_from_slice(&first[..count.min(wanted)]);
        Ok((record, wanted))
    })?;
    let count = record.len();
    if count < wanted {
        record.resize(wanted, 0);
        let rest_at = offset + count as u64;
        let rest = &mut record[count..];
        if file.read_at(rest, rest_at).map_err(LogError::Disk)? < rest.len() {
            return Err(damaged("the file ends within it"));
        }
    }
    if !verifies(at, &record) {
        return Err(damaged("its checksum does not fit"));
    }
    Ok(Bytes::from(record).slice(RECORD_HEADER_LEN..))
}
