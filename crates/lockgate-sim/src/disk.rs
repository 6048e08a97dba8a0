//! The faulty disk.

mod content;
mod cut;
mod fault;
mod file;
mod stall;
mod state;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use lockgate_core::{
    Disk, DiskError, DiskFile, DiskOperation, DiskSpace, FolderLock, LockError, OpenMode,
};

pub use cut::PowerCut;
pub use fault::{Damage, Fault, Operations, Struck};
pub use stall::Stall;

use fault::At;
use file::FaultyFile;
use stall::Gates;
use state::State;

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
    gates: Gates,
    locked: Arc<AtomicBool>,
    open_files: AtomicUsize,
    open_files_max: AtomicUsize,
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
        self.state().unsynced_numbers().len()
    }

    /// The most files that were open at the same time.
    #[must_use]
    pub fn open_files_max(&self) -> usize {
        self.shared.open_files_max.load(Ordering::Relaxed)
    }

    /// The operations so far.
    #[must_use]
    pub fn operations(&self) -> Operations {
        self.state().faults.operations
    }

    /// Arms a fault at the operation of this kind that comes after `after` others of its kind: 0 is
    /// the next one. A fault strikes once; several can be armed.
    pub fn fail(&self, operation: DiskOperation, after: u64, fault: Fault) {
        self.state()
            .faults
            .arm(At::Kind(operation), after, fault, false);
    }

    /// Arms a fault at the change (see [`Operations::changes`]) that comes after `after` others.
    pub fn fail_change(&self, after: u64, fault: Fault) {
        self.state().faults.arm(At::Change, after, fault, false);
    }

    /// Arms a fault at every operation of this kind but the next `after`, until
    /// [`disarm`](Self::disarm).
    pub fn fail_always(&self, operation: DiskOperation, after: u64, fault: Fault) {
        self.state()
            .faults
            .arm(At::Kind(operation), after, fault, true);
    }

    /// Forgets all faults that have not struck. What those that did have done stays.
    pub fn disarm(&self) {
        self.state().faults.disarm();
    }

    /// The faults that have struck so far, and the operations that met the end of space.
    #[must_use]
    pub fn struck(&self) -> Vec<Struck> {
        self.state().faults.struck.clone()
    }

    /// Holds up every operation of this kind but the next `after`, in the thread that calls it, until
    /// the stall is released. Other operations go on.
    #[must_use]
    pub fn stall(&self, operation: DiskOperation, after: u64) -> Stall {
        Stall::new(self.shared.clone(), At::Kind(operation), after)
    }

    /// Holds up every change (see [`Operations::changes`]) but the next `after`, as a frozen file
    /// system does, until the stall is released. Reads go on.
    #[must_use]
    pub fn freeze(&self, after: u64) -> Stall {
        Stall::new(self.shared.clone(), At::Change, after)
    }

    /// Damages a file for good, in a place within the given bytes that `seed` draws: whoever reads
    /// there finds it, and a crash heals nothing. Whether any byte is another now (zeros may have
    /// been zeros before, and the file may end before the range).
    pub fn damage(&self, name: &str, damage: Damage, within: Range<u64>, seed: u64) -> bool {
        self.state().damage(name, damage, within, seed)
    }

    /// From now on the disk does not read these bytes of a file: each read of one of them fails, also under another name of
    /// the file, until a crash. Whether there is such a file.
    pub fn make_unreadable(&self, name: &str, within: Range<u64>) -> bool {
        self.state().make_unreadable(name, within)
    }

    /// Limits the space: from now on blocks of 512 bytes may be taken up to `free` bytes, then a
    /// write stops where space ends. `None` lifts the limit.
    pub fn set_free_bytes(&self, free: Option<u64>) {
        self.state().set_free_bytes(free);
    }

    /// Has another program take space, at most what is free. Returns how much it got; nothing, if
    /// space has no limit.
    pub fn take_space(&self, bytes: u64) -> u64 {
        self.state().take_space(bytes)
    }

    /// Has the other program give so much of it back.
    pub fn give_space(&self, bytes: u64) {
        self.state().give_space(bytes);
    }

    /// Bytes of the blocks that the folder's files take.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    fn of(state: State) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                gates: Gates::default(),
                locked: Arc::default(),
                open_files: AtomicUsize::new(0),
                open_files_max: AtomicUsize::new(0),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    /// The state, for an operation; comes back when nothing holds it up.
    fn enter(&self, operation: DiskOperation) -> MutexGuard<'_, State> {
        self.gates.pass(operation);
        self.state()
    }

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
        f.debug_struct("FaultyDisk")
            .field("lengths", &state.lengths())
            .field("operations", &state.faults.operations)
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
        let id = self.shared.enter(DiskOperation::Open).open(name, mode)?;
        Ok(Arc::new(FaultyFile::new(
            self.shared.clone(),
            id,
            name.to_owned(),
            mode != OpenMode::Read,
        )))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.shared.enter(DiskOperation::Inspect).list()
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.shared.enter(DiskOperation::Rename).rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.shared.enter(DiskOperation::Remove).remove(name)
    }

    fn sync_folder(&self) -> Result<(), DiskError> {
        self.shared.enter(DiskOperation::Sync).sync_folder()
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        self.shared.enter(DiskOperation::Inspect).space()
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
