//! An index that is made when the first ids come.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use crate::{IndexError, IndexOptions, Salvaged, UniqueIndex, open::has_index};

/// The place of an index: a folder that need not be there before there are ids. Until then nothing is made, opened or
/// kept in memory.
#[derive(Debug)]
pub struct FolderIndex {
    folder: PathBuf,
    options: IndexOptions,
    /// Held while the index is opened or moved, which takes as long as the disk takes.
    opening: Mutex<()>,
    /// Held for moments only, so that [`get`](FolderIndex::get) waits for no disk.
    open: Mutex<Option<Opened>>,
}

#[derive(Debug)]
struct Opened {
    index: Arc<UniqueIndex>,
    /// Disconnected when nobody uses the index any more, and it is closed.
    closed: mpsc::Receiver<()>,
}

impl FolderIndex {
    /// A place for an index. Does not look whether there is one.
    #[must_use]
    pub fn new(folder: PathBuf, options: IndexOptions) -> Self {
        Self {
            folder,
            options,
            opening: Mutex::default(),
            open: Mutex::default(),
        }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The index, if it is open. Waits for nobody who opens it.
    #[must_use]
    pub fn get(&self) -> Option<Arc<UniqueIndex>> {
        let open = lock(&self.open);
        open.as_ref().map(|opened| opened.index.clone())
    }

    /// Opens the index if there is one. Blocks on the disk.
    ///
    /// # Errors
    /// As [`UniqueIndex::open`].
    pub fn open(&self) -> Result<Option<Arc<UniqueIndex>>, IndexError> {
        let opening = lock(&self.opening);
        if self.get().is_none() && !has_index(&self.folder)? {
            return Ok(None);
        }
        self.opened(&opening).map(Some)
    }

    /// Opens the index, or makes it. Blocks on the disk.
    ///
    /// # Errors
    /// As [`UniqueIndex::open`].
    pub fn open_or_make(&self) -> Result<Arc<UniqueIndex>, IndexError> {
        self.opened(&lock(&self.opening))
    }

    fn opened(&self, _opening: &MutexGuard<'_, ()>) -> Result<Arc<UniqueIndex>, IndexError> {
        if let Some(index) = self.get() {
            return Ok(index);
        }
        let (index, _) = UniqueIndex::open(&self.folder, &self.options)?;
        let closed = index.when_closed();
        let index = Arc::new(index);
        *lock(&self.open) = Some(Opened {
            index: index.clone(),
            closed,
        });
        Ok(index)
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
        let _opening = lock(&self.opening);
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
        if let Some(closed) = self.let_go() {
            // Nobody sends: it ends when the sender is gone.
            let _gone = closed.recv();
        }
    }

    /// As [`close`](Self::close), but waits no longer than that, because whoever uses the index may wait for a disk that
    /// does not answer. False: it is in use still. It is closed as soon as it is not; until then, opening it gives
    /// [`IndexError::InUse`].
    #[must_use]
    pub fn close_within(&self, wait: Duration) -> bool {
        let closed = self.let_go();
        closed.is_none_or(|closed| {
            matches!(
                closed.recv_timeout(wait),
                Err(RecvTimeoutError::Disconnected)
            )
        })
    }

    fn let_go(&self) -> Option<mpsc::Receiver<()>> {
        let opened = lock(&self.open).take()?;
        drop(opened.index);
        Some(opened.closed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two are equal if they are of one folder.
impl PartialEq for FolderIndex {
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl Eq for FolderIndex {}
