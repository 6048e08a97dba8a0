//! Looks ids up, adds them and removes spaces.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
};

use lsm_tree::{AbstractTree, AnyTree, Guard, SequenceNumberCounter, compaction::Leveled};

use crate::{
    IndexError, files,
    open::{Lock, Owner},
    rows::{self, SpaceRow},
};

/// Reads what is newest. A number of its own time would have to be kept from being forgotten.
const NEWEST: u64 = u64::MAX;

/// Ids of many spaces, on disk. The [crate's page](crate) shows its use.
///
/// All methods may be called from many threads. Those that write wait for each other, and none of
/// them holds up a look-up.
pub struct UniqueIndex {
    pub(crate) folder: PathBuf,
    pub(crate) tree: AnyTree,
    /// Numbers the tree's writes.
    pub(crate) seqno: SequenceNumberCounter,
    /// The first number that nobody sees yet.
    pub(crate) visible: SequenceNumberCounter,
    pub(crate) owner: Mutex<Option<Owner>>,
    pub(crate) spaces: RwLock<BTreeMap<u64, Known>>,
    /// Held while ids are added, written, merged or removed.
    pub(crate) writer: Mutex<()>,
    /// At how many bytes ids are written though nobody has asked for it.
    pub(crate) unwritten_max: u64,
    /// How large the files are that merging makes.
    pub(crate) run_bytes: u64,
    /// Whether the tree has panicked.
    pub(crate) failed: AtomicBool,
    pub(crate) merges_failed: AtomicU64,
    /// Locked for as long as the index is open.
    pub(crate) _lock: Option<Lock>,
    /// Gone when the index is closed. The last field, because fields are dropped in their order.
    pub(crate) closed: OnceLock<mpsc::Sender<()>>,
}

/// What is known of a space without asking the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) row: SpaceRow,
    /// Up to where it is complete after a crash.
    pub(crate) durable: Option<u64>,
    /// Which ids have gone, if it is being removed.
    pub(crate) removed_below: u128,
}

/// The answer of [`UniqueIndex::look_up`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Up to where the space was complete before its ids were looked up; `None` if the index does not know the space.
    /// An id that was added later may be found too.
    pub up_to: Option<u64>,
    /// For each id that was asked for, in the same order, the number for which it stands.
    pub found: Vec<Option<u64>>,
}

impl UniqueIndex {
    /// What is disconnected when the index is closed. Call it once.
    pub(crate) fn when_closed(&self) -> mpsc::Receiver<()> {
        let (sender, closed) = mpsc::channel();
        let _only = self.closed.set(sender);
        closed
    }

    /// Looks ids up. Blocks on the disk for those that are there, and for about one in a hundred of those that are
    /// not.
    ///
    /// # Errors
    /// [`IndexError::Damaged`] if a block that was read is; the index stays as it is.
    pub fn look_up(&self, space: u64, ids: &[u128]) -> Result<Looked, IndexError> {
        let Some(up_to) = self.up_to(space) else {
            let found = vec![None; ids.len()];
            return Ok(Looked { up_to: None, found });
        };
        let values: Vec<_> = self.guarded(|| {
            let keys = ids.iter().map(|&id| rows::id_key(space, id));
            keys.map(|key| self.tree.get(key, NEWEST)).collect()
        })?;
        let found = values.into_iter().map(|value| match value {
            Some(value) => self.number(&value).map(Some),
            None => Ok(None),
        });
        Ok(Looked {
            up_to: Some(up_to),
            found: found.collect::<Result<_, _>>()?,
        })
    }

    /// Adds ids, each with the number for which it stands, and says that the space is complete up to and including
    /// `up_to`. All of this is in the index or nothing. `false`: the space is complete up to there already, so nothing
    /// was added; this happens when a log is folded again. The first call for a space makes it.
    ///
    /// If an id is there already, the number that is added last counts.
    ///
    /// Ids are in memory until they are [synced](Self::sync), or until they take an eighth of the memory that the
    /// index may use; the ids of one call come on top, so add no more than some 10,000 at a time.
    ///
    /// # Errors
    /// [`IndexError::Removing`]. After another error the ids are added and looked up, but could not be written: `sync`
    /// tries again.
    pub fn add(&self, space: u64, ids: &[(u128, u64)], up_to: u64) -> Result<bool, IndexError> {
        let writer = self.writer();
        let known = self.spaces().get(&space).copied();
        match known {
            Some(known) if known.row.removing => return Err(IndexError::Removing { space }),
            Some(known) if known.row.up_to >= up_to => return Ok(false),
            _ => {}
        }
        let row = SpaceRow {
            up_to,
            removing: false,
        };
        let unwritten = self.change(|seqno| {
            for &(id, number) in ids {
                let key = rows::id_key(space, id);
                let _ = self.tree.insert(key, number.to_le_bytes(), seqno);
            }
            let key = rows::space_key(space);
            self.tree.insert(key, row.encode(), seqno).1
        })?;
        let durable = known.and_then(|known| known.durable);
        let known = Known {
            row,
            durable,
            removed_below: 0,
        };
        self.spaces_mut().insert(space, known);
        self.write_if_much(unwritten, &writer)?;
        Ok(true)
    }

    /// Makes durable what was added and removed, and merges runs if there are many: mostly milliseconds, seconds from
    /// time to time.
    ///
    /// # Errors
    /// What was durable stays so, and [`durable_up_to`](Self::durable_up_to) says what has become durable: all that was
    /// added, if only a merge has failed. Nothing that was added is forgotten; the next call tries again.
    pub fn sync(&self) -> Result<(), IndexError> {
        self.write(&self.writer())
    }

    /// Up to where a space is complete; `None` if the index does not know the space or removes it.
    #[must_use]
    pub fn up_to(&self, space: u64) -> Option<u64> {
        let spaces = self.spaces();
        let known = spaces.get(&space).filter(|known| !known.row.removing)?;
        Some(known.row.up_to)
    }

    /// Up to where a space will be complete after a crash; `None` if it will not be there.
    #[must_use]
    pub fn durable_up_to(&self, space: u64) -> Option<u64> {
        let spaces = self.spaces();
        let known = spaces.get(&space).filter(|known| !known.row.removing)?;
        known.durable
    }

    /// The spaces, in order, each with up to where it is complete; without those that are being removed.
    #[must_use]
    pub fn all_up_to(&self) -> Vec<(u64, u64)> {
        let spaces = self.spaces();
        let kept = spaces.iter().filter(|(_, known)| !known.row.removing);
        kept.map(|(&space, known)| (space, known.row.up_to))
            .collect()
    }

    /// The spaces, in order, also those that are being removed.
    #[must_use]
    pub fn all_spaces(&self) -> Vec<u64> {
        self.spaces().keys().copied().collect()
    }

    /// Removes a space: at most `ids_max` of its ids in this call, one at least. `true`: nothing of it is left. From the
    /// first call on, nothing of the space is found, also after a crash; [`open`](Self::open) reports it then. The first
    /// call syncs, and removes whole files at once.
    ///
    /// # Errors
    /// What is left is removed by the next call.
    pub fn remove_space(&self, space: u64, ids_max: usize) -> Result<bool, IndexError> {
        let (writer, ids_max) = (self.writer(), ids_max.max(1));
        let Some(known) = self.spaces().get(&space).copied() else {
            return Ok(true);
        };
        if !known.row.removing {
            let row = SpaceRow {
                removing: true,
                ..known.row
            };
            self.change(|seqno| {
                let key = rows::space_key(space);
                self.tree.insert(key, row.encode(), seqno).1
            })?;
            self.spaces_mut().insert(space, Known { row, ..known });
            self.write(&writer)?;
            let all = rows::id_key(space, 0)..=rows::id_key(space, u128::MAX);
            self.guarded(|| self.tree.drop_range(all))?;
        }
        // From where the last call has stopped: what is removed lies in the way until runs are merged.
        let rest = rows::id_key(space, known.removed_below)..=rows::id_key(space, u128::MAX);
        let keys: Vec<_> = self.guarded(|| {
            let ids = self.tree.range(rest, self.visible.get(), None);
            ids.take(ids_max).map(Guard::key).collect()
        })?;
        let last = keys.last().and_then(|key| rows::id_of(key));
        let done = keys.len() < ids_max;
        let unwritten = self.change(|seqno| {
            let row = done.then(|| rows::space_key(space).into());
            let removed = keys.into_iter().chain(row);
            let sizes = removed.map(|key| self.tree.remove(key, seqno).1);
            sizes.last().unwrap_or_default()
        })?;
        if done {
            self.spaces_mut().remove(&space);
        } else if let (Some(known), Some((_, last))) = (self.spaces_mut().get_mut(&space), last) {
            known.removed_below = last;
        }
        self.write_if_much(unwritten, &writer)?;
        Ok(done)
    }

    /// Forgets what stands for numbers above `up_to`, and says that the space is complete up to there: for a space
    /// that is ahead of its log, of which the end is lost. Reads the whole space. Nothing happens to one that is not
    /// complete that far.
    ///
    /// # Errors
    /// [`IndexError::Removing`]. After another error, or a crash, the space is complete as far as it was, and some of
    /// the ids are gone: cut it again.
    pub fn cut_space(&self, space: u64, up_to: u64) -> Result<(), IndexError> {
        const AT_ONCE: usize = 10_000;
        let writer = self.writer();
        match self.spaces().get(&space) {
            Some(known) if known.row.removing => return Err(IndexError::Removing { space }),
            Some(known) if known.row.up_to > up_to => {}
            _ => return Ok(()),
        }
        let mut from = 0;
        loop {
            let mut behind = Vec::new();
            let mut next = None;
            for row in self.ids_of(space, from) {
                let (id, number) = row?;
                if number > up_to {
                    if behind.len() == AT_ONCE {
                        next = Some(id);
                        break;
                    }
                    behind.push(rows::id_key(space, id));
                }
            }
            let is_last = next.is_none();
            let row = SpaceRow {
                up_to,
                removing: false,
            };
            let unwritten = self.change(|seqno| {
                let removed = behind.iter().map(|key| self.tree.remove(*key, seqno).1);
                let removed = removed.last().unwrap_or_default();
                match is_last {
                    true => {
                        self.tree
                            .insert(rows::space_key(space), row.encode(), seqno)
                            .1
                    }
                    false => removed,
                }
            })?;
            match next {
                Some(next) => from = next,
                None => {
                    if let Some(known) = self.spaces_mut().get_mut(&space) {
                        known.row = row;
                    }
                    return self.write(&writer);
                }
            }
            self.write_if_much(unwritten, &writer)?;
        }
    }

    /// How many ids of a space stand for numbers up to and including that one. Reads the whole space.
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub fn count_up_to(&self, space: u64, number: u64) -> Result<u64, IndexError> {
        let mut count = 0;
        for row in self.ids_of(space, 0) {
            count += u64::from(row?.1 <= number);
        }
        Ok(count)
    }

    /// The ids of a space from one on, in order, each with the number for which it stands.
    fn ids_of(
        &self,
        space: u64,
        from: u128,
    ) -> impl Iterator<Item = Result<(u128, u64), IndexError>> {
        let all = rows::id_key(space, from)..=rows::id_key(space, u128::MAX);
        let mut ids = self.tree.range(all, NEWEST, None);
        std::iter::from_fn(move || {
            let row = self.guarded(|| ids.next().map(Guard::into_inner).transpose());
            let row = row.transpose()?;
            Some(row.and_then(|(key, value)| Ok((self.id(&key)?.1, self.number(&value)?))))
        })
    }

    /// About how many ids it has, of all spaces: those that were removed or came again count until runs are merged.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.tree.approximate_len() as u64
    }

    /// Bytes of its files, without those that are about to be deleted.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.tree.disk_space()
    }

    /// How often merging runs has failed since it was opened. What was synced is durable all the same.
    #[must_use]
    pub fn merges_failed(&self) -> u64 {
        self.merges_failed.load(Ordering::Relaxed)
    }

    /// Reads every id and checks it. Returns how many there are.
    ///
    /// # Errors
    /// [`IndexError::Damaged`], for the first that is damaged.
    pub fn check(&self) -> Result<u64, IndexError> {
        let mut count = 0;
        let mut ids = self.tree.range(rows::all_ids(), NEWEST, None);
        while let Some((key, value)) =
            self.guarded(|| ids.next().map(Guard::into_inner).transpose())?
        {
            self.number(&value)?;
            self.id(&key)?;
            count += 1;
        }
        Ok(count)
    }

    /// Writes what is in memory as a run, and merges runs until none is due.
    pub(crate) fn write(&self, _writer: &MutexGuard<'_, ()>) -> Result<(), IndexError> {
        let flushed = self.guarded(|| {
            self.tree.rotate_memtable();
            // Nobody reads an older state by its number: a view holds the runs that it reads.
            self.tree
                .flush(&self.tree.get_flush_lock(), self.visible.get())
        });
        if let Err(error) = flushed {
            files::remove_empty_runs(&self.folder);
            return Err(error);
        }
        for known in self.spaces_mut().values_mut() {
            known.durable = Some(known.row.up_to);
        }
        let merged = self.merge();
        if merged.is_err() {
            self.merges_failed.fetch_add(1, Ordering::Relaxed);
        }
        merged
    }

    fn merge(&self) -> Result<(), IndexError> {
        let leveled = Leveled::default().with_table_target_size(self.run_bytes);
        let leveled = Arc::new(leveled);
        loop {
            let before = self.levels();
            self.guarded(|| self.tree.compact(leveled.clone(), self.visible.get()))?;
            if self.levels() == before {
                return Ok(());
            }
        }
    }

    /// What a merge changes, always: it moves files from one level to the next, or makes new ones of them.
    fn levels(&self) -> impl PartialEq + use<> {
        let levels: Vec<_> = (0..7)
            .map(|level| self.tree.level_table_count(level))
            .collect();
        (levels, self.tree.disk_space())
    }

    /// Changes rows together. Returns how many bytes are not written yet, as `write` says.
    pub(crate) fn change(&self, write: impl FnOnce(u64) -> u64) -> Result<u64, IndexError> {
        self.guarded(|| {
            let seqno = self.seqno.next();
            let unwritten = write(seqno);
            self.visible.fetch_max(seqno + 1);
            Ok(unwritten)
        })
    }

    fn write_if_much(&self, unwritten: u64, writer: &MutexGuard<'_, ()>) -> Result<(), IndexError> {
        if unwritten >= self.unwritten_max {
            self.write(writer)?;
        }
        Ok(())
    }

    pub(crate) fn number(&self, value: &[u8]) -> Result<u64, IndexError> {
        rows::number(value)
            .ok_or_else(|| IndexError::damaged(&self.folder, "an id stands for no number"))
    }

    fn id(&self, key: &[u8]) -> Result<(u64, u128), IndexError> {
        rows::id_of(key)
            .ok_or_else(|| IndexError::damaged(&self.folder, "an id has another length"))
    }

    pub(crate) fn writer(&self) -> MutexGuard<'_, ()> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn spaces(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Known>> {
        self.spaces.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn spaces_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Known>> {
        self.spaces.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for UniqueIndex {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("UniqueIndex")
            .field("folder", &self.folder)
            .field("spaces", &self.spaces().len())
            .finish_non_exhaustive()
    }
}
