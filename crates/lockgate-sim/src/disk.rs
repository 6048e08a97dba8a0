//! The faulty disk.

mod file;
mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use lockgate_core::{
    Disk, DiskError, DiskFile, DiskOperation, DiskSpace, FolderLock, LockError, OpenMode,
};

use file::FaultyFile;
use state::State;

/// What a power cut leaves of the operations that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// Nothing: only synced bytes and synced names survive.
    LoseAllUnsynced,
    /// Everything, as if the cache had been written out just in time.
    KeepAll,
    /// The first so many, in the order they were made; if the next one is a write, half its
    /// 512-byte sectors survive too.
    KeepPrefix(usize),
    /// A subset drawn from this seed, in any order the hardware may have chosen; a write may be
    /// torn into any of its 512-byte sectors.
    Seeded(u64),
}

/// What happens at a fault point instead of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails and changes nothing.
    Error(io::ErrorKind),
    /// A write fails half way: the first half of its bytes is there.
    Torn(io::ErrorKind),
    /// A file's sync fails, and what it should have made durable never will be: later syncs succeed,
    /// reads still show the bytes, and a power cut takes them. That is what ext4 and XFS do. A sync of
    /// the folder fails without that: a failed journal lets nothing succeed any more.
    LostPages,
    /// The machine stops: the operation takes effect in the cache (a sync does not), its caller sees
    /// an error, and every later operation fails. [`FaultyDisk::crash`] tells what is left.
    PowerOff,
}

/// How many operations of each kind there were; the fault points count in the same way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Files opened or created.
    pub opens: u64,
    /// Writes.
    pub writes: u64,
    /// Changes of a file's length.
    pub set_lens: u64,
    /// Syncs of a file or the folder.
    pub syncs: u64,
    /// Renames.
    pub renames: u64,
    /// Removals.
    pub removes: u64,
    /// Reads.
    pub reads: u64,
}

impl Operations {
    /// All operations that change something or make it durable: everything but reads and opens.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.writes + self.set_lens + self.syncs + self.renames + self.removes
    }
}

/// A folder in memory that loses what was not synced. Clones are the same folder.
///
/// Writes, changes of length, and created, renamed or removed names are *unsynced* until
/// [`DiskFile::sync`] or [`Disk::sync_folder`] returns. [`crash`](Self::crash) gives the folder as a
/// power cut at this moment may leave it and [`kill`](Self::kill) as the death of the process does;
/// both are folders of their own, and this one goes on, so that one history can be cut at one point
/// in many ways.
#[derive(Clone)]
pub struct FaultyDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    locked: Arc<AtomicBool>,
}

impl FaultyDisk {
    /// An empty folder with unlimited space and no faults.
    #[must_use]
    pub fn new() -> Self {
        Self::of(State::default())
    }

    /// A folder that holds these files, all synced.
    #[must_use]
    pub fn from_image(image: BTreeMap<String, Vec<u8>>) -> Self {
        Self::of(State::from_image(image))
    }

    /// The folder's files, as a reader sees them now.
    #[must_use]
    pub fn image(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().image()
    }

    /// A file's bytes, as a reader sees them now; `None` without such a file.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        self.state().contents(name)
    }

    /// The folder after a power cut at this moment: without faults, unlocked, everything in it
    /// durable.
    #[must_use]
    pub fn crash(&self, cut: PowerCut) -> Self {
        Self::of(self.state().crash(cut))
    }

    /// The folder after the death of its process at this moment: all that was written is there, and
    /// what was not synced still is not. Without faults, unlocked.
    #[must_use]
    pub fn kill(&self) -> Self {
        Self::of(self.state().kill())
    }

    /// Number of operations that a power cut could still take.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.state().unsynced()
    }

    /// The operations so far.
    #[must_use]
    pub fn operations(&self) -> Operations {
        self.state().operations
    }

    /// Arms a fault at the operation of this kind that comes after `after` others of its kind: 0 is
    /// the next one. A fault strikes once; several can be armed.
    pub fn fail(&self, operation: DiskOperation, after: u64, fault: Fault) {
        self.state().arm(Some(operation), after, fault);
    }

    /// Arms a fault at the change (see [`Operations::changes`]) that comes after `after` others.
    pub fn fail_change(&self, after: u64, fault: Fault) {
        self.state().arm(None, after, fault);
    }

    /// Limits the space: from now on blocks of 512 bytes may be taken up to `free` bytes, then a
    /// write stops where space ends. `None` lifts the limit.
    pub fn set_free_bytes(&self, free: Option<u64>) {
        self.state().set_free_bytes(free);
    }

    fn of(state: State) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                locked: Arc::default(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked while holding it has failed already; others may still look.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for FaultyDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for FaultyDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        let lengths: BTreeMap<_, _> = state
            .image()
            .into_iter()
            .map(|(name, bytes)| (name, bytes.len()))
            .collect();
        f.debug_struct("FaultyDisk")
            .field("lengths", &lengths)
            .field("operations", &state.operations)
            .finish()
    }
}

impl Disk for FaultyDisk {
    fn lock(&self) -> Result<Box<dyn FolderLock>, LockError> {
        if self.shared.locked.swap(true, Ordering::AcqRel) {
            return Err(LockError::Held {
                folder: self.describe(),
                holder: Some("another instance in this test".to_owned()),
            });
        }
        Ok(Box::new(HeldLock(self.shared.locked.clone())))
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let id = self.state().open(name, mode)?;
        Ok(Arc::new(FaultyFile::new(
            self.shared.clone(),
            id,
            name.to_owned(),
            mode != OpenMode::Read,
        )))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.state().list()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.state().rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.state().remove(name)
    }

    fn sync_folder(&self) -> Result<(), DiskError> {
        self.state().sync_folder()
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        let free = self.state().free_bytes();
        Ok(DiskSpace { free, total: free })
    }

    fn describe(&self) -> String {
        "the faulty disk".to_owned()
    }
}

struct HeldLock(Arc<AtomicBool>);

impl FolderLock for HeldLock {}

impl Drop for HeldLock {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
