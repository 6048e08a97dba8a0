//! Looks at an index and changes nothing.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt as _, symlink},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    IndexError, IndexOptions, UniqueIndex,
    files::{self, RUNS},
    open::{Owner, SALVAGED, TREE, check_options, lock_to_look, open_at},
};

/// An index that is only read: nothing in its folder changes, also not what a crash has left there. Nobody can open the
/// index meanwhile.
#[derive(Debug)]
pub struct LookedIndex {
    index: UniqueIndex,
    _links: Links,
}

/// A folder of links to the files of a tree. The tree deletes what it does not need when it is opened; here it finds
/// nothing of that kind, and what it may delete is a link.
#[derive(Debug)]
struct Links(PathBuf);

impl LookedIndex {
    /// Opens the index in a folder to look at it; `None` if there is none. Blocks on the disk.
    ///
    /// # Errors
    /// As [`UniqueIndex::open`].
    pub fn open(folder: &Path, options: &IndexOptions) -> Result<Option<Self>, IndexError> {
        check_options(options)?;
        let lock = lock_to_look(folder)?;
        let (tree, salvaged) = (folder.join(TREE), folder.join(SALVAGED));
        // A crash may have left it under that name.
        let tree = match tree.exists() || !salvaged.exists() {
            true => tree,
            false => salvaged,
        };
        files::check(folder, &tree)?;
        let needed = files::needed(folder, &tree)?;
        if needed.is_empty() {
            return Ok(None);
        }
        let links = Links::to(&tree, &needed).map_err(|error| IndexError::io(folder, error))?;
        let (index, report) = open_at(folder, &links.0, options, lock)?;
        // Without its format it has just been begun.
        Ok((!report.new).then_some(Self {
            index,
            _links: links,
        }))
    }

    /// Whose ids these are, as [`UniqueIndex::owner`] says it.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        self.index.owner()
    }

    /// Up to where a space is complete; `None` if the index does not know the space or removes it.
    #[must_use]
    pub fn up_to(&self, space: u64) -> Option<u64> {
        self.index.up_to(space)
    }

    /// The spaces, in order, each with up to where it is complete; without those that are being removed.
    #[must_use]
    pub fn all_up_to(&self) -> Vec<(u64, u64)> {
        self.index.all_up_to()
    }

    /// The spaces, in order, also those that are being removed.
    #[must_use]
    pub fn all_spaces(&self) -> Vec<u64> {
        self.index.all_spaces()
    }

    /// As [`UniqueIndex::count_up_to`].
    ///
    /// # Errors
    /// As there.
    pub fn count_up_to(&self, space: u64, number: u64) -> Result<u64, IndexError> {
        self.index.count_up_to(space, number)
    }

    /// As [`UniqueIndex::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<u64, IndexError> {
        self.index.check()
    }

    /// Bytes of its files.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.index.disk_bytes()
    }
}

impl Links {
    fn to(tree: &Path, files: &[PathBuf]) -> std::io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let tree = fs::canonicalize(tree)?;
        let links = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("lockgate-look-{}-{number}", process::id());
            let folder = std::env::temp_dir().join(name);
            match fs::DirBuilder::new().mode(0o700).create(&folder) {
                // Somebody else's, or left by a process that was killed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => break made.map(|()| Self(folder))?,
            }
        };
        fs::create_dir(links.0.join(RUNS))?;
        for file in files {
            symlink(tree.join(file), links.0.join(file))?;
        }
        Ok(links)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
