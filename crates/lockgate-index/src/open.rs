//! Opens, creates and sets aside an index.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use lsm_tree::{
    AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, SequenceNumberCounter,
    config::PinningPolicy,
};

use crate::{
    IndexError, UniqueIndex,
    error::guarded,
    files,
    index::Known,
    rows::{self, FORMAT, FORMAT_KEY, SpaceRow},
};

/// The tree's folder in the index's folder.
pub(crate) const TREE: &str = "ids";
/// Where a tree is built before it becomes the index's.
pub(crate) const LOADING: &str = "loading";
/// A tree that is whole, and becomes the index's as soon as the damaged one is aside.
pub(crate) const SALVAGED: &str = "salvaged";
/// Locked by whoever has the index open.
const LOCK: &str = "lock";
/// Files that are kept open at most.
const OPEN_FILES: usize = 128;

/// Whose ids an index has: any bytes, as long as no two logs have the same.
pub type Owner = [u8; OWNER_BYTES];

const OWNER_BYTES: usize = 16;

/// How an index is opened.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// The memory that the index may use, in bytes: half for blocks that were read, the rest for ids that are not
    /// written yet and while runs are merged. [`MEMORY_MIN`](Self::MEMORY_MIN) or more; 64 MiB by default.
    ///
    /// A look-up of an id that is not there needs no disk if the filters, 10 bits an id, fit into half of it: 256 MiB
    /// for 10^8 ids. Otherwise the system's cache of files helps, or the disk is read.
    pub memory: u64,
}

impl IndexOptions {
    /// The least memory, in bytes.
    pub const MEMORY_MIN: u64 = 8 << 20;
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self { memory: 64 << 20 }
    }
}

/// What was found when an index was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexReport {
    /// Whether there was none, so that a new one was made. For somebody who had one, it is missing.
    pub new: bool,
    /// How many spaces it has.
    pub spaces: usize,
    /// The spaces of which removal had begun: call [`remove_space`](UniqueIndex::remove_space) for them.
    pub removing: Vec<u64>,
}

impl UniqueIndex {
    /// Opens the index in a folder, or makes a new one if there is none. Blocks on the disk.
    ///
    /// # Errors
    /// [`IndexError::Damaged`] if what is there does not fit; nothing was changed then.
    pub fn open(folder: &Path, options: &IndexOptions) -> Result<(Self, IndexReport), IndexError> {
        check_options(options)?;
        let lock = lock(folder)?;
        remove_unfinished(folder)?;
        open_locked(folder, options, lock)
    }

    /// Moves the index in a folder aside, into a folder `damaged-N` beside it, so that a new one can be made.
    /// Returns its new place, or `None` if there was no index.
    ///
    /// # Errors
    /// [`IndexError::InUse`], or the system's error.
    pub fn set_aside(folder: &Path) -> Result<Option<PathBuf>, IndexError> {
        let _lock = lock(folder)?;
        let io = |error| IndexError::io(folder, error);
        let tree = folder.join(TREE);
        if !tree.try_exists().map_err(io)? {
            return Ok(None);
        }
        let place = free_place(folder);
        fs::rename(&tree, &place).map_err(io)?;
        sync_folder(folder).map_err(io)?;
        Ok(Some(place))
    }
}

/// Where a damaged index can be moved.
pub(crate) fn free_place(folder: &Path) -> PathBuf {
    let mut places = (1_u32..).map(|number| folder.join(format!("damaged-{number}")));
    let place = places.find(|place| !place.exists());
    place.expect("a folder has fewer than 2^32 entries")
}

/// Whether there is an index in the folder, or what is left of one.
pub(crate) fn has_index(folder: &Path) -> Result<bool, IndexError> {
    let io = |error| IndexError::io(folder, error);
    Ok(folder.join(TREE).try_exists().map_err(io)?
        || folder.join(SALVAGED).try_exists().map_err(io)?)
}

pub(crate) fn check_options(options: &IndexOptions) -> Result<(), IndexError> {
    if options.memory < IndexOptions::MEMORY_MIN {
        return Err(IndexError::Memory {
            asked: options.memory,
            min: IndexOptions::MEMORY_MIN,
        });
    }
    Ok(())
}

pub(crate) fn open_locked(
    folder: &Path,
    options: &IndexOptions,
    lock: Lock,
) -> Result<(UniqueIndex, IndexReport), IndexError> {
    let (index, report) = open_at(folder, &folder.join(TREE), options, Some(lock))?;
    if report.new {
        index.write_format()?;
    }
    Ok((index, report))
}

/// Opens the index of `folder` whose tree is at `tree`. Writes nothing but what the tree does when it is opened: it
/// deletes files that it does not need.
pub(crate) fn open_at(
    folder: &Path,
    tree: &Path,
    options: &IndexOptions,
    lock: Option<Lock>,
) -> Result<(UniqueIndex, IndexReport), IndexError> {
    files::check(folder, tree)?;
    let (tree, seqno, visible) = open_tree(folder, tree, options)?;
    let format = guarded(folder, || tree.get(FORMAT_KEY, visible.get()))?;
    let mut owner: Option<Owner> = None;
    match format.as_deref() {
        Some([FORMAT, whose @ ..]) if matches!(whose.len(), 0 | OWNER_BYTES) => {
            owner = whose.try_into().ok();
        }
        Some(&[found, ..]) if found != FORMAT => {
            return Err(IndexError::Format {
                folder: folder.to_owned(),
                found,
                known: FORMAT,
            });
        }
        Some(_) => return Err(IndexError::damaged(folder, "its format has another length")),
        None => {}
    }
    let spaces = read_spaces(folder, &tree, visible.get())?;
    let report = IndexReport {
        new: format.is_none(),
        spaces: spaces.len(),
        removing: spaces
            .iter()
            .filter(|(_, known)| known.row.removing)
            .map(|(&space, _)| space)
            .collect(),
    };
    let index = UniqueIndex {
        folder: folder.to_owned(),
        tree,
        seqno,
        visible,
        owner: Mutex::new(owner),
        spaces: RwLock::new(spaces),
        writer: Mutex::new(()),
        unwritten_max: options.memory / 8,
        run_bytes: (options.memory / 16).max(1 << 20),
        failed: AtomicBool::new(false),
        merges_failed: AtomicU64::new(0),
        _lock: lock,
        closed: OnceLock::new(),
    };
    if report.new && index.tree.approximate_len() > 0 {
        return Err(IndexError::damaged(folder, "it has ids but no format"));
    }
    Ok((index, report))
}

/// Opens the tree in a folder, and the counters of its writes: the next one, and the first that is not visible yet.
pub(crate) fn open_tree(
    folder: &Path,
    tree: &Path,
    options: &IndexOptions,
) -> Result<(AnyTree, SequenceNumberCounter, SequenceNumberCounter), IndexError> {
    let (seqno, visible) = (
        SequenceNumberCounter::default(),
        SequenceNumberCounter::default(),
    );
    // Filters and indexes of runs are read by block, so that the cache bounds what they take.
    let config = Config::new(tree, seqno.clone(), visible.clone())
        .use_cache(Arc::new(Cache::with_capacity_bytes(options.memory / 2)))
        .use_descriptor_table(Some(Arc::new(DescriptorTable::new(OPEN_FILES))))
        .filter_block_partitioning_policy(PinningPolicy::all(true))
        .index_block_partitioning_policy(PinningPolicy::all(true));
    let tree = guarded(folder, || config.open())?;
    let next = tree.get_highest_seqno().map_or(1, |highest| highest + 1);
    seqno.fetch_max(next);
    visible.fetch_max(next);
    Ok((tree, seqno, visible))
}

fn read_spaces(
    folder: &Path,
    tree: &AnyTree,
    seqno: u64,
) -> Result<BTreeMap<u64, Known>, IndexError> {
    let rows: Vec<_> = guarded(folder, || {
        let rows = tree.range(rows::all_spaces(), seqno, None);
        rows.map(Guard::into_inner).collect()
    })?;
    let rows = rows.iter().map(|(key, value)| {
        let row = SpaceRow::decode(value)?;
        let known = Known {
            row,
            durable: Some(row.up_to),
            removed_below: 0,
        };
        Some((rows::space_of(key)?, known))
    });
    rows.collect::<Option<_>>()
        .ok_or_else(|| IndexError::damaged(folder, "a space's row has another shape"))
}

/// A lock on an index's folder.
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that is just being started has a copy of the file until it runs its program, which would keep the
        // lock.
        let _ = self.0.unlock();
    }
}

/// Locks an index that is only looked at: nothing is made.
pub(crate) fn lock_to_look(folder: &Path) -> Result<Option<Lock>, IndexError> {
    match File::open(folder.join(LOCK)) {
        Ok(file) => try_lock(folder, file).map(Some),
        // Whoever has an index open has made the file.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(IndexError::io(folder, error)),
    }
}

pub(crate) fn lock(folder: &Path) -> Result<Lock, IndexError> {
    let io = |error| IndexError::io(folder, error);
    fs::create_dir_all(folder).map_err(io)?;
    // Its own name must last as its files do.
    if let Some(parent) = folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        sync_folder(parent).map_err(io)?;
    }
    let mut options = File::options();
    let options = options.create(true).write(true).truncate(false);
    let lock = options.open(folder.join(LOCK)).map_err(io)?;
    try_lock(folder, lock)
}

fn try_lock(folder: &Path, file: File) -> Result<Lock, IndexError> {
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(IndexError::InUse {
            folder: folder.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(IndexError::io(folder, error)),
    }
}

/// Removes what a load that did not finish has left, and ends what a salvage has left: only a whole tree has that name.
pub(crate) fn remove_unfinished(folder: &Path) -> Result<(), IndexError> {
    let io = |error| IndexError::io(folder, error);
    let (tree, salvaged) = (folder.join(TREE), folder.join(SALVAGED));
    if salvaged.try_exists().map_err(io)? {
        match tree.try_exists().map_err(io)? {
            // The damaged one is not aside: it is salvaged again.
            true => fs::remove_dir_all(&salvaged).map_err(io)?,
            false => fs::rename(&salvaged, &tree).map_err(io)?,
        }
        sync_folder(folder).map_err(io)?;
    }
    match fs::remove_dir_all(folder.join(LOADING)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io(error)),
        _ => Ok(()),
    }
}

pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

impl UniqueIndex {
    /// Whose ids these are, as [`set_owner`](Self::set_owner) has said.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whose ids these are, and makes that durable: so the index of another log is recognised, though it has as many ids. An
    /// index that is [made of pieces](Self::load) has no owner yet.
    ///
    /// # Errors
    /// The index may have the owner or not.
    pub fn set_owner(&self, owner: Owner) -> Result<(), IndexError> {
        let writer = self.writer();
        let mut value = vec![FORMAT];
        value.extend_from_slice(&owner);
        self.change(|seqno| self.tree.insert(FORMAT_KEY, value, seqno).1)?;
        self.write(&writer)?;
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(owner);
        Ok(())
    }

    /// Writes the format, so that an index without ids is one too.
    fn write_format(&self) -> Result<(), IndexError> {
        self.change(|seqno| self.tree.insert(FORMAT_KEY, [FORMAT], seqno).1)?;
        self.sync()?;
        sync_folder(&self.folder).map_err(|error| IndexError::io(&self.folder, error))
    }

    /// Calls the tree, unless it has failed: after a panic, what is in memory may be half changed.
    pub(crate) fn guarded<T>(
        &self,
        call: impl FnOnce() -> lsm_tree::Result<T>,
    ) -> Result<T, IndexError> {
        if self.failed.load(Ordering::Acquire) {
            let what = "an earlier call failed; open it again";
            return Err(IndexError::damaged(&self.folder, what));
        }
        let mut returned = false;
        let result = guarded(&self.folder, || {
            let result = call();
            returned = true;
            result
        });
        if !returned {
            self.failed.store(true, Ordering::Release);
        }
        result
    }
}
