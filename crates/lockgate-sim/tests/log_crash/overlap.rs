//! Appends while a sync is under way, at the worst moment, without a thread.

use std::{
    io::ErrorKind,
    sync::{Arc, Mutex},
};

use lockgate_core::{
    AppendError, Disk, DiskError, DiskFile, DiskOperation, Epoch, FolderLock, LockError, Log,
    LogError, OpenMode, Position, RecordGroup,
};
use lockgate_log::LocalLog;
use lockgate_sim::{Fault, FaultyDisk, PowerCut};

use crate::history::{open, options, recover};

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Calls back in the middle of the next sync of a file, or of the next write: after the disk has done it,
/// before the log knows.
struct HookedDisk {
    disk: FaultyDisk,
    hook: Hook,
    on_write: Hook,
}

struct HookedFile {
    file: Arc<dyn DiskFile>,
    hook: Hook,
    on_write: Hook,
}

fn call(hook: &Hook) {
    let hook = hook.lock().unwrap().take();
    if let Some(hook) = hook {
        hook();
    }
}

impl Disk for HookedDisk {
    fn lock(&self) -> Result<Box<dyn FolderLock>, LockError> {
        self.disk.lock()
    }
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(Arc::new(HookedFile {
            file: self.disk.open(name, mode)?,
            hook: self.hook.clone(),
            on_write: self.on_write.clone(),
        }))
    }
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.disk.remove(name)
    }
    fn sync_folder(&self) -> Result<(), DiskError> {
        self.disk.sync_folder()
    }
    fn space(&self) -> Result<lockgate_core::DiskSpace, DiskError> {
        self.disk.space()
    }
    fn describe(&self) -> String {
        self.disk.describe()
    }
}

impl DiskFile for HookedFile {
    fn allocate(&self, len: u64) -> Result<(), DiskError> {
        self.file.allocate(len)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.file.write_at(bytes, offset)?;
        call(&self.on_write);
        Ok(())
    }
    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.file.set_len(len)
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }
    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync()?;
        call(&self.hook);
        Ok(())
    }
}

fn append(log: &Mutex<LocalLog>, payload: &[u8]) -> Position {
    let mut log = log.lock().unwrap();
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(payload));
    let tail = log.tail();
    let at = log.place(&mut { tail }, payload.len());
    log.append(Epoch(1), tail, &mut group).unwrap();
    at
}

fn survivors(disk: &FaultyDisk) -> Vec<Position> {
    let after = disk.crash(PowerCut::LoseAllUnsynced);
    let (_, records) = recover(&mut open(&after)).unwrap();
    records.iter().map(|record| record.position).collect()
}

/// A log in its first epoch, over a disk that calls back in the next sync, or in the next write.
struct Hooked {
    disk: FaultyDisk,
    on_sync: Hook,
    on_write: Hook,
    log: LocalLog,
}

impl Hooked {
    fn new() -> Self {
        let (disk, on_sync, on_write) = (FaultyDisk::new(), Hook::default(), Hook::default());
        let hooked = HookedDisk {
            disk: disk.clone(),
            hook: on_sync.clone(),
            on_write: on_write.clone(),
        };
        let mut log = LocalLog::open(Arc::new(hooked), options(1)).unwrap();
        recover(&mut log).unwrap();
        log.begin_epoch(Epoch(1)).unwrap();
        Self {
            disk,
            on_sync,
            on_write,
            log,
        }
    }
}

/// What is appended during a sync is not covered by it, also if it changes segments, and is covered
/// by the next one.
#[test]
fn a_sync_promises_nothing_that_came_during_it() {
    for len in [10, 3_000] {
        let Hooked {
            disk, on_sync, log, ..
        } = Hooked::new();
        let syncer = log.syncer();
        let log = Arc::new(Mutex::new(log));
        let mut expected = Vec::new();
        for _ in 0..8 {
            let before = append(&log, &vec![1; len]);
            let during = Arc::new(Mutex::new(Position(0)));
            let (also_log, also_during) = (log.clone(), during.clone());
            *on_sync.lock().unwrap() = Some(Box::new(move || {
                *also_during.lock().unwrap() = append(&also_log, &vec![2; len]);
            }));
            let synced = syncer.sync().unwrap();
            let during = *during.lock().unwrap();
            assert!(
                before < synced && synced <= during,
                "{before} {synced} {during}"
            );
            expected.push(before);
            assert_eq!(survivors(&disk), expected);
            assert!(syncer.sync().unwrap() > during);
            expected.push(during);
            assert_eq!(survivors(&disk), expected);
        }
    }
}

/// A failure beside a sync ends the instance, and the sync too promises nothing any more: what failed may
/// have been told to somebody else, and the system tells it once.
#[test]
fn a_sync_beside_a_failure_promises_nothing() {
    let Hooked {
        disk, on_sync, log, ..
    } = Hooked::new();
    let syncer = log.syncer();
    let log = Arc::new(Mutex::new(log));
    append(&log, &[1; 10]);
    *on_sync.lock().unwrap() = Some(Box::new(move || {
        disk.fail(DiskOperation::Write, 0, Fault::Error(ErrorKind::Other));
        let mut log = log.lock().unwrap();
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|buffer| buffer.extend_from_slice(&[2; 10]));
        let tail = log.tail();
        log.append(Epoch(1), tail, &mut group).unwrap_err();
    }));
    let synced = syncer.sync();
    assert!(
        matches!(synced, Err(LogError::Stopped { .. })),
        "{synced:?}"
    );
}

/// And the other way round: what was written while a sync failed may be gone already.
#[test]
fn an_append_beside_a_failed_sync_is_not_told_as_done() {
    let Hooked {
        disk,
        on_write,
        mut log,
        ..
    } = Hooked::new();
    let syncer = log.syncer();
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[1; 10]));
    let mut tail = log.tail();
    log.append(Epoch(1), tail, &mut group).unwrap();
    tail = log.tail();
    *on_write.lock().unwrap() = Some(Box::new(move || {
        disk.fail(DiskOperation::Sync, 0, Fault::LostPages);
        syncer.sync().unwrap_err();
    }));
    let appended = log.append(Epoch(1), tail, &mut group);
    assert!(
        matches!(appended, Err(AppendError::Unknown(_))),
        "{appended:?}"
    );
}
