//! Makes a new index of what can be read of a damaged one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lsm_tree::{AbstractTree as _, AnyTree, Guard};

use crate::{
    IndexError, IndexOptions, UniqueIndex,
    error::guarded,
    open::{
        LOADING, SALVAGED, TREE, check_options, free_place, lock, open_at, remove_unfinished,
        sync_folder,
    },
    pieces::{Ids, build},
    rows,
};

/// What has become of a damaged index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Salvaged {
    /// Where the damaged one is now.
    pub aside: PathBuf,
    /// How many ids the new one has.
    pub ids: u64,
    /// How many ids could not be read, at most: ids that were removed or came again, and rows of spaces, count too.
    pub lost: u64,
}

impl UniqueIndex {
    /// Makes a new index of what can be read of the one in the folder, and [sets the damaged one aside](Self::set_aside). Each
    /// space says that it is complete as far as it was, although ids of it are lost.
    ///
    /// What is lost is the damaged blocks and, of all spaces, what lies between the same ids. Nothing has changed before all is
    /// read and written.
    ///
    /// # Errors
    /// [`IndexError::Damaged`] if it cannot be opened at all; [`IndexError::InUse`], or the system's error.
    pub fn salvage(folder: &Path, options: &IndexOptions) -> Result<Salvaged, IndexError> {
        check_options(options)?;
        let _lock = lock(folder)?;
        remove_unfinished(folder)?;
        let (tree, loading) = (folder.join(TREE), folder.join(LOADING));
        let (damaged, _) = open_at(folder, &tree, options, None)?;
        let entries = damaged.entries();
        let mut view = damaged.view()?;
        view.skip = Some(Skip {
            tree: damaged.tree.clone(),
            read: None,
        });
        let built = build(folder, options, damaged.owner(), view.by_ref());
        if built.is_err() {
            // The next open removes it, if this does not.
            let _ = remove_unfinished(folder);
        }
        built?;
        let ids = view.count;
        drop((view, damaged));
        let io = |error| IndexError::io(folder, error);
        let (aside, salvaged) = (free_place(folder), folder.join(SALVAGED));
        for (from, to) in [(&loading, &salvaged), (&tree, &aside), (&salvaged, &tree)] {
            fs::rename(from, to).map_err(io)?;
            sync_folder(folder).map_err(io)?;
        }
        Ok(Salvaged {
            aside,
            ids,
            lost: entries.saturating_sub(ids),
        })
    }
}

/// Goes on behind what cannot be read.
pub(crate) struct Skip {
    tree: AnyTree,
    /// The space and id that was read last.
    pub(crate) read: Option<(u64, u128)>,
}

impl Skip {
    /// All ids from the first one on that can be read again. `None`: there is none. Doubles the distance until something can be
    /// read, and then halves it: a look-up for each bit of an id, at most, twice.
    pub(crate) fn behind_damage(
        &mut self,
        index: &Path,
        spaces: &[(u64, u64)],
    ) -> Result<Option<Ids>, IndexError> {
        let (mut space, mut last) = match self.read {
            Some((space, last)) => (space, last),
            None => match spaces.first() {
                Some(&(space, _)) => (space, 0),
                None => return Ok(None),
            },
        };
        let (mut unreadable, mut distance) = (last, 1_u128);
        let mut readable = loop {
            let id = last.saturating_add(distance);
            if self.is_readable(index, space, id)? {
                break id;
            }
            if id < u128::MAX {
                (unreadable, distance) = (id, distance.saturating_mul(2));
                continue;
            }
            // Nothing of the space that is behind can be read.
            let next = spaces.iter().find(|(next, _)| *next > space);
            let Some(&(next, _)) = next else {
                return Ok(None);
            };
            (space, last, unreadable, distance) = (next, 0, 0, 1);
            if self.is_readable(index, space, 0)? {
                break 0;
            }
        };
        while readable - unreadable > 1 {
            let middle = unreadable + (readable - unreadable) / 2;
            match self.is_readable(index, space, middle)? {
                true => readable = middle,
                false => unreadable = middle,
            }
        }
        // So that the next damage is looked for behind this one.
        self.read = Some((space, readable));
        Ok(Some(self.from(space, readable)))
    }

    fn is_readable(&self, index: &Path, space: u64, id: u128) -> Result<bool, IndexError> {
        let read = guarded(index, || {
            let mut ids = self.from(space, id);
            ids.next().map(Guard::into_inner).transpose()
        });
        match read {
            Ok(None) => Ok(true),
            // A row of another shape is passed over too.
            Ok(Some((key, value))) => {
                Ok(rows::id_of(&key).is_some() && rows::number(&value).is_some())
            }
            Err(IndexError::Damaged { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn from(&self, space: u64, id: u128) -> Ids {
        let first = rows::id_key(space, id);
        (self.tree).range(first.as_slice()..rows::all_ids().end, u64::MAX, None)
    }
}
