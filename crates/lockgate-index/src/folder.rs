//! An index that is made when the first ids come.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{IndexError, IndexOptions, Salvaged, UniqueIndex, open::has_index};

/// The place of an index: a folder that need not be there before there are ids. Until then nothing is made, opened or
/// kept in memory.
#[derive(Debug)]
pub struct FolderIndex {
    folder: PathBuf,
    options: IndexOptions,
    open: Mutex<Option<Arc<UniqueIndex>>>,
}

impl FolderIndex {
    /// A place for an index. Does not look whether there is one.
    #[must_use]
    pub fn new(folder: PathBuf, options: IndexOptions) -> Self {
        let open = Mutex::default();
        Self {
            folder,
            options,
            open,
        }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The index, if it is open.
    #[must_use]
    pub fn get(&self) -> Option<Arc<UniqueIndex>> {
        self.lock().clone()
    }

    /// Opens the index if there is one. Blocks on the disk.
    ///
    /// # Errors
    /// As [`UniqueIndex::open`].
    pub fn open(&self) -> Result<Option<Arc<UniqueIndex>>, IndexError> {
        let mut open = self.lock();
        if open.is_none() && has_index(&self.folder)? {
            let (index, _) = UniqueIndex::open(&self.folder, &self.options)?;
            *open = Some(Arc::new(index));
        }
        Ok(open.clone())
    }

    /// Opens the index, or makes it. Blocks on the disk.
    ///
    /// # Errors
    /// As [`UniqueIndex::open`].
    pub fn open_or_make(&self) -> Result<Arc<UniqueIndex>, IndexError> {
        let mut open = self.lock();
        if let Some(index) = &*open {
            return Ok(index.clone());
        }
        let (index, _) = UniqueIndex::open(&self.folder, &self.options)?;
        Ok(open.insert(Arc::new(index)).clone())
    }

    /// Makes the index from pieces, as [`UniqueIndex::load`] does, and closes it.
    ///
    /// # Errors
    /// As there.
    pub fn load(
        &self,
        pieces: impl IntoIterator<Item = Result<Vec<u8>, IndexError>>,
    ) -> Result<(), IndexError> {
        UniqueIndex::load(&self.folder, &self.options, pieces).map(drop)
    }

    /// Moves the index aside, as [`UniqueIndex::set_aside`] does.
    ///
    /// # Errors
    /// As there; [`IndexError::InUse`] if it is open here.
    pub fn set_aside(&self) -> Result<Option<PathBuf>, IndexError> {
        UniqueIndex::set_aside(&self.folder)
    }

    /// Makes a new index of what can be read, as [`UniqueIndex::salvage`] does.
    ///
    /// # Errors
    /// As there; [`IndexError::InUse`] if it is open here.
    pub fn salvage(&self) -> Result<Salvaged, IndexError> {
        UniqueIndex::salvage(&self.folder, &self.options)
    }

    /// Closes the index. Waits until nobody uses any more what [`get`](Self::get) gave. It can be opened again.
    pub fn close(&self) {
        let Some(index) = self.lock().take() else {
            return;
        };
        let used = Arc::downgrade(&index);
        drop(index);
        while used.strong_count() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<UniqueIndex>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Two are equal if they are of one folder.
impl PartialEq for FolderIndex {
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl Eq for FolderIndex {}
