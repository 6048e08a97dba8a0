//! What can go wrong with an index.

use std::{
    any::Any,
    io::{self, ErrorKind},
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
};

/// Why an index could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The operating system refused something. What was synced is not affected; the call may be made again.
    #[error("the index of unique ids in {}: {source}", folder.display())]
    Io {
        /// The index's folder.
        folder: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Bytes of the index are not those that were written, or files are missing. Nothing was changed. The way on is
    /// [`set_aside`](crate::UniqueIndex::set_aside), and then to build it again from its pieces or from the log.
    #[error("the index of unique ids in {} is damaged: {what}", folder.display())]
    Damaged {
        /// The index's folder.
        folder: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The index has another format, so another version of Lockgate has written it.
    #[error("the index of unique ids in {} has format {found}; this version reads format {known}", folder.display())]
    Format {
        /// The index's folder.
        folder: PathBuf,
        /// The format that it has.
        found: u8,
        /// The format that this version reads and writes.
        known: u8,
    },
    /// Somebody else has the index open.
    #[error("the index of unique ids in {} is open already, in this process or another", folder.display())]
    InUse {
        /// The index's folder.
        folder: PathBuf,
    },
    /// [`load`](crate::UniqueIndex::load) was called for a folder that has an index.
    #[error("there is an index of unique ids in {} already", folder.display())]
    Exists {
        /// The index's folder.
        folder: PathBuf,
    },
    /// The memory that the index may use is below [`MEMORY_MIN`](crate::IndexOptions::MEMORY_MIN).
    #[error("an index of unique ids needs {min} bytes of memory or more, not {asked}")]
    Memory {
        /// What was asked for, in bytes.
        asked: u64,
        /// The least, in bytes.
        min: u64,
    },
    /// The space is being removed, and takes no ids any more.
    #[error("space {space} of the index is being removed")]
    Removing {
        /// The space.
        space: u64,
    },
    /// A piece that is loaded does not follow the one before it, or its bytes are not those that were written.
    #[error("piece {number} of an index of unique ids: {what}")]
    Piece {
        /// Which one, counted from 0.
        number: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl IndexError {
    pub(crate) fn io(folder: &Path, source: io::Error) -> Self {
        Self::Io {
            folder: folder.to_owned(),
            source,
        }
    }

    pub(crate) fn damaged(folder: &Path, what: impl Into<String>) -> Self {
        Self::Damaged {
            folder: folder.to_owned(),
            what: what.into(),
        }
    }

    fn of_tree(folder: &Path, error: lsm_tree::Error) -> Self {
        match error {
            lsm_tree::Error::Io(error) if !is_damage(&error) => Self::io(folder, error),
            lsm_tree::Error::Io(error) => Self::damaged(folder, error.to_string()),
            other => Self::damaged(folder, format!("{other:?}")),
        }
    }
}

/// Whether an error of reading says that files are not what was written, not that the system failed.
fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::InvalidData
            | ErrorKind::NotFound
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
    )
}

/// Calls the tree. It checks what it reads by checksums, but takes some of what they cover for granted: a panic
/// there means bytes that nobody has written.
pub(crate) fn guarded<T>(
    folder: &Path,
    call: impl FnOnce() -> lsm_tree::Result<T>,
) -> Result<T, IndexError> {
    match panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| IndexError::of_tree(folder, error)),
        Err(panic) => Err(IndexError::damaged(folder, message(&*panic))),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("reading it failed").to_owned()
}
