//! The simulated disk; other threads may run before each operation.

use std::{
    io::ErrorKind,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use lockgate_core::{
    Disk, DiskError, DiskFile, DiskOperation, DiskSpace, FileIdentity, FolderLock, LockError,
    OpenMode,
};
use lockgate_log::LogFile;
use lockgate_sim::{FaultyDisk, PowerCut};
use shuttle::rand::{Rng as _, RngCore as _, thread_rng};

use super::turn;

#[derive(Clone)]
pub(super) struct TurnDisk {
    disk: FaultyDisk,
    planted: Option<LateRenames>,
    fail_zeros: Arc<AtomicBool>,
}

/// A deliberate bug: a preallocated file becomes a segment only when its header is written, which is after
/// the log has noted a new name to sync. To the log this looks like noting the name before the rename.
#[derive(Clone, Default)]
struct LateRenames(Arc<Mutex<Option<(String, String)>>>);

impl TurnDisk {
    pub(super) fn new(disk: &FaultyDisk) -> Arc<Self> {
        Arc::new(Self {
            disk: disk.clone(),
            planted: None,
            fail_zeros: Arc::default(),
        })
    }

    pub(super) fn with_late_renames(disk: &FaultyDisk) -> Arc<Self> {
        Arc::new(Self {
            planted: Some(LateRenames::default()),
            ..(*Self::new(disk)).clone()
        })
    }

    /// Makes maintenance's next write of zeros to a preallocated file fail.
    pub(super) fn that_fails_zeros(disk: &FaultyDisk) -> Arc<Self> {
        let this = Self::new(disk);
        this.fail_zeros.store(true, Relaxed);
        this
    }
}

impl LateRenames {
    /// The name that the file still has.
    fn old(&self, name: &str) -> Option<String> {
        let pending = self.0.lock().unwrap();
        let (old, _) = pending.as_ref().filter(|(_, new)| new == name)?;
        Some(old.clone())
    }

    fn make(&self, disk: &FaultyDisk) -> Result<(), DiskError> {
        let pending = self.0.lock().unwrap().take();
        pending.map_or(Ok(()), |(old, new)| disk.rename(&old, &new))
    }
}

impl Disk for TurnDisk {
    fn lock(&self) -> Result<Box<dyn FolderLock>, LockError> {
        self.disk.lock()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        turn();
        let late = self
            .planted
            .clone()
            .filter(|late| mode == OpenMode::Existing && late.old(name).is_some());
        let old = late.as_ref().and_then(|late| late.old(name));
        let file = self.disk.open(old.as_deref().unwrap_or(name), mode)?;
        Ok(Arc::new(TurnFile {
            file,
            late: late.map(|late| (late, self.disk.clone())),
            fail_zeros: self.fail_zeros.clone(),
        }))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        turn();
        self.disk.list()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        turn();
        match &self.planted {
            Some(late) if is_preallocated(from) && !is_preallocated(to) => {
                *late.0.lock().unwrap() = Some((from.to_owned(), to.to_owned()));
                Ok(())
            }
            _ => self.disk.rename(from, to),
        }
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        turn();
        self.disk.remove(name)
    }

    fn sync_folder(&self) -> Result<(), DiskError> {
        turn();
        self.disk.sync_folder()
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        turn();
        self.disk.space()
    }

    fn describe(&self) -> String {
        self.disk.describe()
    }
}

/// The effect of a power cut: mostly all unsynced data is lost, sometimes part of it.
pub(super) fn power_cut() -> PowerCut {
    let mut random = thread_rng();
    match random.gen_range(0..4) {
        0 => PowerCut::KeepNames,
        1 => PowerCut::Seeded(random.next_u64()),
        _ => PowerCut::LoseAllUnsynced,
    }
}

/// Whether this is the name of a preallocated file.
pub(super) fn is_preallocated(name: &str) -> bool {
    LogFile::of(name) == Some(LogFile::Preallocated)
}

struct TurnFile {
    file: Arc<dyn DiskFile>,
    late: Option<(LateRenames, FaultyDisk)>,
    fail_zeros: Arc<AtomicBool>,
}

impl DiskFile for TurnFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        turn();
        self.file.read_at(buffer, offset)
    }

    fn try_read_at(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        turn();
        self.file.try_read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        turn();
        if let Some((late, disk)) = &self.late {
            late.make(disk)?;
        }
        // The log itself writes fewer zeros at a time in the models' small segments.
        if bytes.len() > 4 << 10
            && bytes.iter().all(|&byte| byte == 0)
            && self.fail_zeros.swap(false, Relaxed)
        {
            return Err(DiskError {
                operation: DiskOperation::Write,
                name: "a preallocated file".to_owned(),
                source: ErrorKind::Other.into(),
            });
        }
        self.file.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        turn();
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> Result<(), DiskError> {
        turn();
        self.file.allocate(len)
    }

    fn len(&self) -> Result<u64, DiskError> {
        turn();
        self.file.len()
    }

    fn identity(&self) -> Result<FileIdentity, DiskError> {
        turn();
        self.file.identity()
    }

    fn sync(&self) -> Result<(), DiskError> {
        turn();
        self.file.sync()
    }
}
