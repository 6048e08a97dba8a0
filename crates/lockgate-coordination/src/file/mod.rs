//! Records in a folder of a local disk, which the processes of one machine share.
//!
//! # Layout
//! ```text
//! state-NUMBER            all records, as JSON; the one with the highest number counts
//! new-NUMBER-WRITER-CALL  a state on its way
//! ```
//! A change reads the state with the highest number, writes the next one under a name of its own, syncs it, and links it
//! to the next number. Of two that link the same number one fails, and begins again. So nobody ever holds a lock, and a
//! process that is frozen in the middle of a change stops nobody.
//!
//! # Invariants
//! - The highest number never falls, and states with it are never changed.
//! - [`KEPT`] numbers stay: a number can be linked a second time only if so many have been linked since. Whoever finds
//!   after its link that this is so cannot know whether its change counts, and says so.
//! - Machine time follows the clock since boot, which all processes of a machine share. After a reboot all holders are
//!   dead, so all leases have ended.

mod saved;
mod watcher;

use std::{
    fmt, fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_consumer::records_state::State;
use lockgate_core::{
    Clock, DeleteRecord, ExtendRecord, LeaseRecord, ListRecords, MachineTime, Millis, Now,
    PutRecord, Record, RecordName, RecordPage, RecordWritten, Records, RecordsError, ReleaseRecord,
    WatchRecord,
    coordination::{Fence, FenceError},
};
use lockgate_log::SystemClock;
use tokio::{sync::watch, time::Instant};

use self::{saved::Saved, watcher::Watcher};
use crate::time::millis;

/// How many states stay behind the last one.
const KEPT: u64 = 64;

/// How often a change begins again because others were before it.
const TRIES_MAX: u32 = 1_000;

/// What all records may take: each change writes all of them.
const BYTES_MAX: u64 = 4 << 20;

const STATE: &str = "state-";
const NEW: &str = "new-";

/// [`Records`] in a folder of a local disk: for elections among the processes of one machine. Clones are the same store.
///
/// Every change writes all records and syncs them, and every process that waits looks when one of them has changed. Names,
/// values and 256 bytes for each record take up to 4 MiB together. What was answered survives a power cut; a reboot ends
/// all leases.
///
/// The folder must be on a disk of this machine; all processes that use it must see one boot clock (`CLOCK_BOOTTIME`)
/// and one boot id, as containers of one machine do.
#[derive(Clone)]
pub struct FileRecords(Arc<Inner>, Option<Fence>);

struct Inner {
    folder: PathBuf,
    clock: Arc<dyn Clock>,
    writer: u64,
    calls: AtomicU64,
    /// The last state that was read or written, and its number.
    last: Mutex<(u64, Saved)>,
    /// The highest number that is known to survive a power cut.
    synced: AtomicU64,
    /// One change of this process at a time; others wait without a thread.
    turn: tokio::sync::Mutex<()>,
    changed: watch::Sender<()>,
    _watcher: Watcher,
}

impl fmt::Debug for FileRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileRecords").field(&self.0.folder).finish()
    }
}

/// Why a change is not made.
enum Fault {
    /// It is not there.
    No(String),
    /// It may be there.
    Unknown(String),
}

impl FileRecords {
    /// Opens the records of that folder; makes it if there is none.
    ///
    /// # Errors
    /// If the folder cannot be made, read or watched.
    pub async fn open(folder: impl AsRef<Path>) -> Result<Self, RecordsError> {
        Self::open_with(folder, Arc::new(SystemClock::new())).await
    }

    /// The same by that clock, for tests. Call [`clock_changed`](Self::clock_changed) when somebody has set it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(
        folder: impl AsRef<Path>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, RecordsError> {
        let folder = folder.as_ref().to_owned();
        let changed = watch::Sender::new(());
        let opened = blocking({
            let changed = changed.clone();
            let folder = folder.clone();
            move || {
                make_folder(&folder)?;
                let watcher = Watcher::start(&folder, changed)?;
                latest(&folder)?;
                Ok(watcher)
            }
        });
        let watcher = opened.await?.map_err(|error: io::Error| {
            let why = format!("folder {}: {error}", folder.display());
            RecordsError::Unavailable { why }
        })?;
        let inner = Inner {
            folder,
            clock,
            writer: crate::time::drawn(),
            calls: AtomicU64::new(0),
            last: Mutex::default(),
            synced: AtomicU64::new(0),
            turn: tokio::sync::Mutex::default(),
            changed,
            _watcher: watcher,
        };
        Ok(Self(Arc::new(inner), None))
    }

    /// Looks at the clock anew: it has been set.
    pub fn clock_changed(&self) {
        self.0.changed.send_replace(());
    }

    /// Does something at one instant. What it does is written if `changes` says so of the result.
    async fn at_once<T: Send + 'static>(
        &self,
        mut act: impl FnMut(&mut State) -> Result<T, RecordsError> + Send + 'static,
        changes: bool,
    ) -> Result<T, RecordsError> {
        let inner = self.0.clone();
        let _turn = inner.turn.lock().await;
        let done = blocking({
            let inner = inner.clone();
            move || inner.at_once(&mut act, changes)
        });
        match done.await? {
            Ok(result) => result,
            Err(Fault::No(why)) => Err(RecordsError::Unavailable { why }),
            Err(Fault::Unknown(why)) if changes => Err(RecordsError::Unknown { why }),
            Err(Fault::Unknown(why)) => Err(RecordsError::Unavailable { why }),
        }
    }
}

/// Makes the folder and those above it, so that they survive a power cut.
fn make_folder(folder: &Path) -> io::Result<()> {
    let above = folder.ancestors().filter(|it| !it.as_os_str().is_empty());
    let missing = above.take_while(|it| !it.exists()).count();
    fs::create_dir_all(folder)?;
    let folder = folder.canonicalize()?;
    let mut parents = folder.ancestors().skip(1).take(missing);
    parents.try_for_each(|parent| fs::File::open(parent)?.sync_all())
}

/// Runs it on a thread that may wait for the disk.
async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RecordsError> {
    let done = tokio::task::spawn_blocking(act).await;
    done.map_err(|error| RecordsError::Unknown {
        why: error.to_string(),
    })
}

/// The highest number of a state in the folder; 0: there is none.
fn latest(folder: &Path) -> io::Result<u64> {
    let mut highest = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| number_of(name, STATE));
        highest = highest.max(number.unwrap_or(0));
    }
    Ok(highest)
}

/// The number in the name of a file of that kind.
fn number_of(name: &str, kind: &str) -> Option<u64> {
    let rest = name.strip_prefix(kind)?;
    rest.split('-').next()?.parse().ok()
}

impl Inner {
    fn state_path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{STATE}{number:020}"))
    }

    fn fault(&self, what: &str, error: &io::Error) -> Fault {
        Fault::No(format!("{what} in {}: {error}", self.folder.display()))
    }

    fn at_once<T>(
        &self,
        act: &mut dyn FnMut(&mut State) -> Result<T, RecordsError>,
        changes: bool,
    ) -> Result<Result<T, RecordsError>, Fault> {
        for _ in 0..TRIES_MAX {
            let (number, mut saved) = self.read()?;
            let boot = self.clock.boot_id();
            if !saved.boot.has_clock_of(boot) {
                // Nobody who had a lease lives.
                saved.offset = saved.state.end_of_all().0;
                saved.boot = boot;
            }
            let since_boot = self.clock.since_boot();
            saved.state.advance(Now {
                wall: self.clock.wall(),
                machine: MachineTime(saved.offset.saturating_add(since_boot)),
            });
            // Leases that have ended are written too, so that all readers see one revision of it.
            let has_ended = !saved.state.take_changed().is_empty();
            let result = act(&mut saved.state);
            let has_changed = changes && result.is_ok();
            saved.state.take_changed();
            if !has_ended && !has_changed {
                self.sync(number)?;
                return Ok(result);
            }
            if self.write(number + 1, saved)? {
                return Ok(result);
            }
        }
        Err(Fault::No(format!(
            "other processes were before this one {TRIES_MAX} times"
        )))
    }

    /// The last state.
    fn read(&self) -> Result<(u64, Saved), Fault> {
        loop {
            let number = latest(&self.folder).map_err(|error| self.fault("names", &error))?;
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if number == last.0 {
                return Ok(last.clone());
            }
            if number < last.0 {
                let why = format!(
                    "{} has lost state {}: somebody has changed the folder",
                    self.folder.display(),
                    last.0
                );
                return Err(Fault::No(why));
            }
            let bytes = match fs::read(self.state_path(number)) {
                Ok(bytes) => bytes,
                // Many others have been written meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(self.fault("a state", &error)),
            };
            let saved = Saved::decode(&bytes).map_err(|why| {
                let path = self.state_path(number);
                Fault::No(format!("{} cannot be read: {why}", path.display()))
            })?;
            *last = (number, saved);
            return Ok(last.clone());
        }
    }

    /// Makes it the state with that number. False: another one is.
    fn write(&self, number: u64, saved: Saved) -> Result<bool, Fault> {
        let (writer, call) = (self.writer, self.calls.fetch_add(1, Ordering::Relaxed));
        let new = (self.folder).join(format!("{NEW}{number:020}-{writer:016x}-{call}"));
        let written = fs::File::create_new(&new).and_then(|mut file| {
            file.write_all(&saved.encode())?;
            file.sync_all()
        });
        let linked = written.and_then(|()| fs::hard_link(&new, self.state_path(number)));
        // One that is left is removed with the old states.
        let _ = fs::remove_file(&new);
        match linked {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound
                ) && self.folder.is_dir() =>
            {
                return Ok(false);
            }
            Err(error) => return Err(self.fault("a new state", &error)),
        }
        let highest = latest(&self.folder).map_err(|error| Fault::Unknown(error.to_string()))?;
        if highest >= number + KEPT {
            let why = "so many others have been written since that it is not known".to_owned();
            return Err(Fault::Unknown(why));
        }
        self.sync(number).map_err(|fault| match fault {
            Fault::No(why) | Fault::Unknown(why) => Fault::Unknown(why),
        })?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 < number {
            *last = (number, saved);
        }
        drop(last);
        self.tidy(number);
        Ok(true)
    }

    /// Lets the names up to that number survive a power cut. What is shown must.
    fn sync(&self, number: u64) -> Result<(), Fault> {
        if self.synced.load(Ordering::Acquire) < number {
            let synced = fs::File::open(&self.folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| self.fault("names", &error))?;
            self.synced.fetch_max(number, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Removes what is old. If that fails, the next one does it.
    fn tidy(&self, number: u64) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let of = |kind| name.to_str().and_then(|name| number_of(name, kind));
            let old = of(STATE).or_else(|| of(NEW));
            if old.is_some_and(|old| old.saturating_add(KEPT) <= number) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl FileRecords {
    /// Makes a change of that record, under the fence if there is one.
    async fn change<T: Send + 'static>(
        &self,
        name: RecordName,
        mut change: impl FnMut(&mut State) -> Result<T, RecordsError> + Send + 'static,
    ) -> Result<T, RecordsError> {
        let fence = self.1.clone();
        let act =
            move |state: &mut State| state.under(fence.as_ref(), &name, BYTES_MAX, &mut change);
        self.at_once(act, true).await
    }
}

impl Records for FileRecords {
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self(self.0.clone(), Some(fence.clone())))
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.at_once(move |state| Ok(state.get(&name)), false).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        self.at_once(move |state| state.list(&list), false).await
    }

    async fn watch(&self, watch: WatchRecord) -> Result<Option<Record>, RecordsError> {
        let WatchRecord { name, seen, wait } = watch;
        let wait = millis(wait);
        let begun = self.0.clock.since_boot();
        let mut changes = self.0.changed.subscribe();
        loop {
            // From here on no change is missed.
            changes.borrow_and_update();
            let left = wait.saturating_sub(self.0.clock.since_boot().saturating_sub(begun));
            let of = name.clone();
            let look = move |state: &mut State| {
                if left == 0 || state.revision_of(&of) != seen {
                    return Ok(Err(state.get(&of)));
                }
                let end = state.end_of(&of);
                let end = end.map_or(Millis::MAX, |end| end.since(state.machine_time()));
                Ok(Ok(left.min(end)))
            };
            let sleep = match self.at_once(look, false).await? {
                Err(record) => return Ok(record),
                // A wait longer than tokio can express has no end. A reading drops the fraction.
                Ok(sleep) => Instant::now().checked_add(Duration::from_millis(sleep)),
            };
            tokio::select! {
                // The sender lives as long as this.
                _ = changes.changed() => {}
                () = async {
                    match sleep {
                        Some(instant) => tokio::time::sleep_until(instant).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        self.change(put.name.clone(), move |state| {
            state.put(put.clone(), BYTES_MAX)
        })
        .await
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        self.change(delete.name.clone(), move |state| state.delete(&delete))
            .await
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let dropped = self.0.clock.dropped();
        self.change(lease.name.clone(), move |state| {
            state.lease(lease.clone(), dropped, BYTES_MAX)
        })
        .await
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        let dropped = self.0.clock.dropped();
        self.change(extend.name.clone(), move |state| {
            state.extend(extend.clone(), dropped)
        })
        .await
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        self.change(release.name.clone(), move |state| state.release(&release))
            .await
    }
}

/// What a fuzzer gives its bytes to: what is read is the same after it was written.
pub(crate) fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let written = Saved::decode(bytes)?.encode();
    let again = Saved::decode(&written).map(|saved| saved.encode());
    assert_eq!(again, Ok(written), "encoded again");
    Ok(())
}
