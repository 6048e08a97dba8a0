//! The file system a log is kept on, as the few operations a log needs.
//!
//! One implementation is the operating system's folder (`lockgate-log`), the other an in-memory one
//! that loses what was not synced and tears what was being written (`lockgate-sim`).

use std::{fmt, io, sync::Arc};

/// One folder of flat files, addressed by name.
///
/// # Contract
/// - What [`DiskFile::write_at`] returned from survives the death of the process; what
///   [`DiskFile::sync`] returned from survives a power cut.
/// - A created, renamed or removed *name* survives a power cut only after [`Disk::sync_folder`].
/// - Every method may block, and may not be called from an async task, but for
///   [`DiskFile::try_read_at`].
pub trait Disk: Send + Sync {
    /// Takes the folder for this process alone, for as long as the returned lock lives. Released by
    /// the operating system when the process dies.
    ///
    /// # Errors
    /// [`LockError::Held`] if somebody else has it.
    fn lock(&self) -> Result<Box<dyn FolderLock>, LockError>;

    /// Opens a file.
    ///
    /// # Errors
    /// If it is missing ([`OpenMode::Existing`]), already there ([`OpenMode::CreateNew`]), or the
    /// file system fails.
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError>;

    /// The names of all files, in no particular order.
    ///
    /// # Errors
    /// If the file system fails.
    fn list(&self) -> Result<Vec<String>, DiskError>;

    /// Renames a file, replacing a file of the new name in one step.
    ///
    /// # Errors
    /// If the file system fails.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;

    /// Removes a file.
    ///
    /// # Errors
    /// If it is missing or the file system fails.
    fn remove(&self, name: &str) -> Result<(), DiskError>;

    /// Makes all names created, renamed and removed so far survive a power cut.
    ///
    /// # Errors
    /// If the file system fails. As with [`DiskFile::sync`], a failure is final.
    fn sync_folder(&self) -> Result<(), DiskError>;

    /// How much room the file system has for this user.
    ///
    /// # Errors
    /// If the file system fails.
    fn space(&self) -> Result<DiskSpace, DiskError>;

    /// The folder as an operator would name it, for messages.
    fn describe(&self) -> String;
}

/// An open file, read and written at offsets. Shared between threads.
pub trait DiskFile: Send + Sync {
    /// Reads into `buffer` from `offset`; returns how much there was, less than the buffer only at
    /// the end of the file.
    ///
    /// # Errors
    /// If the file system fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError>;

    /// Reads into `buffer` from `offset` what can be had without waiting, from memory say; returns how
    /// much that is. It may be less than there is. `None`: none of it, or the file cannot tell, or the
    /// read failed. [`read_at`](Self::read_at) finds out which.
    ///
    /// The only method that never blocks, and that an async task may call.
    fn try_read_at(&self, _buffer: &mut [u8], _offset: u64) -> Option<usize> {
        None
    }

    /// Writes all of `bytes` at `offset`, growing the file if needed.
    ///
    /// # Errors
    /// If the file system fails; a part may then have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError>;

    /// Cuts or grows the file to `len` bytes; a grown part reads as zeros.
    ///
    /// # Errors
    /// If the file system fails.
    fn set_len(&self, len: u64) -> Result<(), DiskError>;

    /// Takes the file system's blocks for the first `len` bytes without writing them, growing the
    /// file to at least that; a part not yet written reads as zeros. Afterwards writing there does
    /// not run out of space.
    ///
    /// # Errors
    /// If there is no room (nothing was taken then, or a part), or the file system fails.
    fn allocate(&self, len: u64) -> Result<(), DiskError>;

    /// The file's length in bytes.
    ///
    /// # Errors
    /// If the file system fails.
    fn len(&self) -> Result<u64, DiskError>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// If the file system fails.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Which file it is, whatever its name is by now.
    ///
    /// # Errors
    /// If the file system fails.
    fn identity(&self) -> Result<FileIdentity, DiskError>;

    /// Makes everything written so far survive a power cut (fdatasync).
    ///
    /// # Errors
    /// A failure is final: the caller must not write or sync this file again, because the operating
    /// system may have dropped the pages and will report success the next time.
    fn sync(&self) -> Result<(), DiskError>;
}

/// What tells a file from every other one that is there at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Which file system.
    pub device: u64,
    /// Which file of it.
    pub inode: u64,
}

/// Room on a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that can still be written by this user.
    pub free: u64,
    /// Bytes the file system has in all.
    pub total: u64,
}

/// Exclusive ownership of a folder; ends when dropped.
pub trait FolderLock: Send + Sync {}

/// How [`Disk::open`] treats a file that is or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// It must be there; reading only.
    Read,
    /// It must be there; reading and writing.
    Existing,
    /// It must not be there; reading and writing.
    CreateNew,
}

/// What was being done when a disk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskOperation {
    /// Opening or creating a file or the folder.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Changing a file's length.
    SetLen,
    /// Taking blocks for a file.
    Allocate,
    /// Syncing a file or the folder.
    Sync,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
    /// Listing the folder, reading a length or the free space.
    Inspect,
}

impl fmt::Display for DiskOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "opening",
            Self::Read => "reading",
            Self::Write => "writing",
            Self::SetLen => "changing the length of",
            Self::Allocate => "allocating",
            Self::Sync => "syncing",
            Self::Rename => "renaming",
            Self::Remove => "removing",
            Self::Inspect => "inspecting",
        })
    }
}

/// A file system operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {name}")]
pub struct DiskError {
    /// What was being done.
    pub operation: DiskOperation,
    /// To which file or folder.
    pub name: String,
    /// What the operating system said.
    #[source]
    pub source: io::Error,
}

impl DiskError {
    /// Whether the disk, or the user's share of it, is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }

    /// Whether the process, or the system, has as many files open as it may. It passes, and says
    /// nothing about the disk.
    #[must_use]
    pub fn is_out_of_descriptors(&self) -> bool {
        // EMFILE and ENFILE, which have these numbers on every Unix and no name in `io::ErrorKind`.
        matches!(self.source.raw_os_error(), Some(23 | 24))
    }

    /// Whether the file was not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Whether the user may not do that.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Why a folder could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process, or another instance in this one, owns the folder.
    #[error(
        "{folder} is in use by another Lockgate{}: stop it or choose another data folder",
        .holder.as_deref().map(|h| format!(" ({h})")).unwrap_or_default()
    )]
    Held {
        /// The folder.
        folder: String,
        /// What is known of the owner, such as its process id.
        holder: Option<String>,
    },
    /// The file system failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
