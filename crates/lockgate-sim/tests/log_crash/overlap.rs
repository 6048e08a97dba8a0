//! Two things that the log does at once, one at every moment of the other, without a thread.

use std::{
    io::ErrorKind,
    sync::{Arc, Mutex},
};

use lockgate_core::{
    AppendError, Disk, DiskError, DiskFile, DiskOperation, Epoch, FileIdentity, FolderLock,
    LockError, Log, LogError, LogSource, OpenMode, Position, RecordGroup,
};
use lockgate_log::LocalLog;
use lockgate_sim::{Fault, FaultyDisk, PowerCut};

use crate::history::{open, options, recover};

/// Something else that happens beside an operation of the disk.
type Beside = Box<dyn FnOnce() + Send>;

/// Where it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// After the disk has done the next operation of this kind, before the log knows.
    After(DiskOperation),
    /// After so many more moments: there is one before each operation on a file or a name, and one
    /// after it.
    In(u64),
}

/// Calls back at one moment.
#[derive(Clone, Default)]
struct Hook(Arc<Mutex<Option<(Moment, Beside)>>>);

impl Hook {
    fn set(&self, moment: Moment, beside: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some((moment, Box::new(beside)));
    }

    /// Whether nothing waits for its moment; nothing does any more then.
    fn is_over(&self) -> bool {
        self.0.lock().unwrap().take().is_none()
    }

    fn around<T>(&self, operation: DiskOperation, run: impl FnOnce() -> T) -> T {
        self.pass(None);
        let done = run();
        self.pass(Some(operation));
        done
    }

    fn pass(&self, after: Option<DiskOperation>) {
        let mut hook = self.0.lock().unwrap();
        let is_now = match hook.as_mut() {
            Some((Moment::After(operation), _)) => Some(*operation) == after,
            Some((Moment::In(0), _)) => true,
            Some((Moment::In(moments), _)) => {
                *moments -= 1;
                false
            }
            None => false,
        };
        let beside = if is_now { hook.take() } else { None };
        drop(hook);
        if let Some((_, beside)) = beside {
            beside();
        }
    }
}

/// Calls back in the middle of an operation.
struct HookedDisk {
    disk: FaultyDisk,
    hook: Hook,
}

struct HookedFile {
    file: Arc<dyn DiskFile>,
    hook: Hook,
}

impl Disk for HookedDisk {
    fn lock(&self) -> Result<Box<dyn FolderLock>, LockError> {
        self.disk.lock()
    }
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let open = || self.disk.open(name, mode);
        Ok(Arc::new(HookedFile {
            file: self.hook.around(DiskOperation::Open, open)?,
            hook: self.hook.clone(),
        }))
    }
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.disk.list()
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let rename = || self.disk.rename(from, to);
        self.hook.around(DiskOperation::Rename, rename)
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let remove = || self.disk.remove(name);
        self.hook.around(DiskOperation::Remove, remove)
    }
    fn sync_folder(&self) -> Result<(), DiskError> {
        // `Moment::After` a sync means that of a file.
        self.hook.pass(None);
        let synced = self.disk.sync_folder();
        self.hook.pass(None);
        synced
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
        let allocate = || self.file.allocate(len);
        self.hook.around(DiskOperation::Allocate, allocate)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.file.read_at(buffer, offset)
    }
    fn try_read_at(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        self.file.try_read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        let write = || self.file.write_at(bytes, offset);
        self.hook.around(DiskOperation::Write, write)
    }
    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        let set_len = || self.file.set_len(len);
        self.hook.around(DiskOperation::SetLen, set_len)
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }
    fn identity(&self) -> Result<FileIdentity, DiskError> {
        self.file.identity()
    }
    fn sync(&self) -> Result<(), DiskError> {
        let sync = || self.file.sync();
        self.hook.around(DiskOperation::Sync, sync)
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

/// A log in its first epoch, over a disk that calls back.
struct Hooked {
    disk: FaultyDisk,
    hook: Hook,
    log: LocalLog,
}

impl Hooked {
    fn new() -> Self {
        let (disk, hook) = (FaultyDisk::new(), Hook::default());
        let hooked = HookedDisk {
            disk: disk.clone(),
            hook: hook.clone(),
        };
        let mut log = LocalLog::open(Arc::new(hooked), options(1)).unwrap();
        recover(&mut log).unwrap();
        log.begin_epoch(Epoch(1)).unwrap();
        Self { disk, hook, log }
    }
}

/// What is appended during a sync is not covered by it, also if it changes segments, and is covered
/// by the next one.
#[test]
fn a_sync_promises_nothing_that_came_during_it() {
    for len in [10, 3_000] {
        let Hooked { disk, hook, log } = Hooked::new();
        let progress = log.progress();
        let log = Arc::new(Mutex::new(log));
        let mut expected = Vec::new();
        for _ in 0..8 {
            let before = append(&log, &vec![1; len]);
            let during = Arc::new(Mutex::new(Position(0)));
            let (also_log, also_during) = (log.clone(), during.clone());
            hook.set(Moment::After(DiskOperation::Sync), move || {
                *also_during.lock().unwrap() = append(&also_log, &vec![2; len]);
            });
            let synced = progress.sync().unwrap();
            let during = *during.lock().unwrap();
            assert!(
                before < synced && synced <= during,
                "{before} {synced} {during}"
            );
            expected.push(before);
            assert_eq!(survivors(&disk), expected);
            assert!(progress.sync().unwrap() > during);
            expected.push(during);
            assert_eq!(survivors(&disk), expected);
        }
    }
}

/// A failure beside a sync ends the instance, and the sync too promises nothing any more: what failed may
/// have been told to somebody else, and the system tells it once.
#[test]
fn a_sync_beside_a_failure_promises_nothing() {
    let Hooked { disk, hook, log } = Hooked::new();
    let progress = log.progress();
    let log = Arc::new(Mutex::new(log));
    append(&log, &[1; 10]);
    hook.set(Moment::After(DiskOperation::Sync), move || {
        disk.fail(DiskOperation::Write, 0, Fault::Error(ErrorKind::Other));
        let mut log = log.lock().unwrap();
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|buffer| buffer.extend_from_slice(&[2; 10]));
        let tail = log.tail();
        log.append(Epoch(1), tail, &mut group).unwrap_err();
    });
    let synced = progress.sync();
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
        hook,
        mut log,
    } = Hooked::new();
    let progress = log.progress();
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[1; 10]));
    let mut tail = log.tail();
    log.append(Epoch(1), tail, &mut group).unwrap();
    tail = log.tail();
    hook.set(Moment::After(DiskOperation::Write), move || {
        disk.fail(DiskOperation::Sync, 0, Fault::LostPages);
        progress.sync().unwrap_err();
    });
    let appended = log.append(Epoch(1), tail, &mut group);
    assert!(
        matches!(appended, Err(AppendError::Unknown(_))),
        "{appended:?}"
    );
}

/// What a sync has promised is there after a power cut.
fn check_promise(disk: &FaultyDisk, appended: &[Position], synced: Position, when: &str) {
    let survivors = survivors(disk);
    for at in appended {
        if *at < synced {
            assert!(survivors.contains(at), "{when}: {at} of {synced} is lost");
        }
    }
}

/// A log with preallocated files of both kinds (made ahead, and released by a trim), whose next append of
/// 3,000 bytes or more often changes segments, and the records so far.
fn with_preallocated(is_kept_up: bool) -> (Hooked, Vec<Position>) {
    let mut hooked = Hooked::new();
    let mut appended = Vec::new();
    let mut group = RecordGroup::new(hooked.log.capabilities().gap);
    for _ in 0..7 {
        group.clear(0);
        group.push(|buffer| buffer.resize(buffer.len() + 3_000, 1));
        let tail = hooked.log.tail();
        appended.push(hooked.log.place(&mut { tail }, 3_000));
        hooked.log.append(Epoch(1), tail, &mut group).unwrap();
    }
    hooked.log.progress().sync().unwrap();
    if is_kept_up {
        let log_maintenance = hooked.log.log_maintenance().unwrap();
        log_maintenance.catch_up().unwrap();
    }
    (hooked, appended)
}

/// A sync at every moment of an append, names and blocks included: neither it nor the one behind the
/// append promises what is not durable.
#[test]
fn a_sync_at_any_moment_of_an_append_promises_what_is_durable() {
    for is_kept_up in [false, true] {
        let mut moments = 0;
        loop {
            let (hooked, mut appended) = with_preallocated(is_kept_up);
            let Hooked { disk, hook, log } = hooked;
            let progress = Arc::new(log.progress());
            let during = Arc::new(Mutex::new(Position(0)));
            let (also_syncer, also_during) = (progress.clone(), during.clone());
            hook.set(Moment::In(moments), move || {
                *also_during.lock().unwrap() = also_syncer.sync().unwrap();
            });
            let log = Mutex::new(log);
            for _ in 0..4 {
                appended.push(append(&log, &[2; 3_000]));
            }
            if !hook.is_over() {
                break;
            }
            let when = format!("kept up: {is_kept_up}, moment {moments}");
            check_promise(&disk, &appended, *during.lock().unwrap(), &when);
            let synced = progress.sync().unwrap();
            assert!(appended.iter().all(|at| *at < synced), "{when}");
            check_promise(&disk, &appended, synced, &when);
            moments += 1;
        }
        // Two segments are begun: each has a name, a header and at least two records.
        assert!(moments > 12, "{moments}");
    }
}

/// The same the other way round: appends at every moment of a sync.
#[test]
fn appends_at_any_moment_of_a_sync_are_left_to_the_next() {
    for is_kept_up in [false, true] {
        let mut moments = 0;
        loop {
            let (hooked, mut appended) = with_preallocated(is_kept_up);
            let Hooked { disk, hook, log } = hooked;
            let progress = log.progress();
            let log = Arc::new(Mutex::new(log));
            for _ in 0..4 {
                appended.push(append(&log, &[2; 3_000]));
            }
            let during = Arc::new(Mutex::new(Vec::new()));
            let (also_log, also_during) = (log.clone(), during.clone());
            hook.set(Moment::In(moments), move || {
                let appended = (0..4).map(|_| append(&also_log, &[3; 3_000]));
                *also_during.lock().unwrap() = appended.collect();
            });
            let synced = progress.sync().unwrap();
            if !hook.is_over() {
                break;
            }
            let when = format!("kept up: {is_kept_up}, moment {moments}");
            assert!(appended.iter().all(|at| *at < synced), "{when}");
            appended.append(&mut during.lock().unwrap());
            check_promise(&disk, &appended, synced, &when);
            let synced = progress.sync().unwrap();
            assert!(appended.iter().all(|at| *at < synced), "{when}");
            check_promise(&disk, &appended, synced, &when);
            moments += 1;
        }
        assert!(moments >= 4, "{moments}");
    }
}

/// Syncs, and appends, at every moment of the maintenance that makes preallocated files of released segments.
#[test]
fn maintenance_at_any_moment_takes_no_promise_back() {
    for appends in [false, true] {
        let mut moments = 0;
        loop {
            let (hooked, mut appended) = with_preallocated(true);
            let Hooked { disk, hook, log } = hooked;
            let (progress, log_maintenance) = (log.progress(), log.log_maintenance().unwrap());
            let log = Arc::new(Mutex::new(log));
            {
                let mut log = log.lock().unwrap();
                let tail = log.tail();
                log.trim(tail).unwrap();
                for range in log.ranges() {
                    if range.first < *appended.last().unwrap() {
                        let _ = log.release(range.first);
                    }
                }
            }
            let kept = appended.split_off(appended.len() - 1);
            let during = Arc::new(Mutex::new((Vec::new(), Position(0))));
            let (also_log, also_during) = (log.clone(), during.clone());
            hook.set(Moment::In(moments), move || {
                let mut during = also_during.lock().unwrap();
                if appends {
                    during.0 = (0..4).map(|_| append(&also_log, &[3; 3_000])).collect();
                }
                during.1 = progress.sync().unwrap();
            });
            log_maintenance.catch_up().unwrap();
            if !hook.is_over() {
                break;
            }
            let when = format!("with appends: {appends}, moment {moments}");
            let (mut also, synced) = during.lock().unwrap().clone();
            also.extend(kept);
            check_promise(&disk, &also, synced, &when);
            moments += 1;
        }
        assert!(moments > 4, "{moments}");
    }
}
