//! The folder of a log, as the few file operations that a log needs.
//!
//! There are two implementations: the operating system's folder (`lockgate-log`), and one in memory
//! that loses what was not synced and tears what was being written (`lockgate-sim`).

use std::{fmt, io, sync::Arc};

/// One folder of files without subfolders, addressed by name.
///
/// # Contract
/// - When [`DiskFile::write_at`] has returned, the bytes survive the death of the process. When
///   [`DiskFile::sync`] has returned, they survive a power cut.
/// - A created, renamed or removed *name* survives a power cut only after [`Disk::sync_folder`].
/// - Every method may block, so an async task must not call it. [`DiskFile::try_read_at`] is the
///   exception.
pub trait Disk: Send + Sync {
    /// Takes the folder for this process alone, until the returned lock is dropped. The operating
    /// system releases it when the process dies.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process, or another instance in this one, has it.
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

    /// Makes all names that were created, renamed and removed so far survive a power cut.
    ///
    /// # Errors
    /// If the file system fails. As with [`DiskFile::sync`], a failure is final.
    fn sync_folder(&self) -> Result<(), DiskError>;

    /// Returns how much room the file system has for this user.
    ///
    /// # Errors
    /// If the file system fails.
    fn space(&self) -> Result<DiskSpace, DiskError>;

    /// Returns the folder's name as an operator would write it, for messages.
    fn describe(&self) -> String;
}

/// An open file, read and written at offsets. Shared between threads.
pub trait DiskFile: Send + Sync {
    /// Reads into `buffer` from `offset`. Returns how many bytes it read: fewer than the buffer
    /// holds only at the end of the file.
    ///
    /// # Errors
    /// If the file system fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError>;

    /// Reads into `buffer` from `offset` what needs no waiting, such as bytes in the system's
    /// cache. Returns how many bytes it read, which may be fewer than the file has. Returns `None`
    /// if it got nothing, if the file cannot tell, or if the read failed;
    /// [`read_at`](Self::read_at) finds out which.
    ///
    /// This is the only method that never blocks, so an async task may call it.
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

    /// Takes the file system's blocks for the first `len` bytes without writing them, and grows the
    /// file to at least `len` bytes. A part that was not written yet reads as zeros. Writes there
    /// do not run out of space afterwards.
    ///
    /// # Errors
    /// If there is no room (then no blocks were taken, or some), or if the file system fails.
    fn allocate(&self, len: u64) -> Result<(), DiskError>;

    /// Returns the file's length in bytes.
    ///
    /// # Errors
    /// If the file system fails.
    fn len(&self) -> Result<u64, DiskError>;

    /// Tells whether the file has no bytes.
    ///
    /// # Errors
    /// If the file system fails.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }

    /// Returns which file this is, whatever its name is by now.
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

/// Tells a file from every other file that exists at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// The number of the file system.
    pub device: u64,
    /// The number of the file in that file system.
    pub inode: u64,
}

/// The room on a file system, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that can still be written by this user.
    pub free: u64,
    /// Bytes the file system has in all.
    pub total: u64,
}

/// Exclusive ownership of a folder. Dropping it ends the ownership.
pub trait FolderLock: Send + Sync {}

/// Says what [`Disk::open`] does if the file exists or is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist. It is opened for reading only.
    Read,
    /// The file must exist. It is opened for reading and writing.
    Existing,
    /// The file must not exist yet. It is created for reading and writing.
    CreateNew,
}

/// Says what Lockgate was doing when a disk failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskOperation {
    /// Opening or creating a file or the folder.
    Open,
    /// Reading bytes of a file.
    Read,
    /// Writing bytes to a file.
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
    /// What Lockgate was doing.
    pub operation: DiskOperation,
    /// The file or folder that it did it to.
    pub name: String,
    /// What the operating system said.
    #[source]
    pub source: io::Error,
}

impl Clone for DiskError {
    fn clone(&self) -> Self {
        let source = match self.source.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(self.source.kind(), self.source.to_string()),
        };
        Self {
            operation: self.operation,
            name: self.name.clone(),
            source,
        }
    }
}

impl DiskError {
    /// Tells whether the disk, or the user's share of it, is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }

    /// Tells whether the process or the system has as many files open as it may. This passes, and
    /// says nothing about the disk.
    #[must_use]
    pub fn is_out_of_descriptors(&self) -> bool {
        // EMFILE and ENFILE, which have these numbers on every Unix and no name in `io::ErrorKind`.
        matches!(self.source.raw_os_error(), Some(23 | 24))
    }

    /// Tells whether the file was missing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Tells whether the user lacks the permission.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.source.kind() == io::ErrorKind::PermissionDenied
    }
}

/// Says why [`Disk::lock`] could not take a folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process, or another instance in this one, owns the folder.
    #[error(
        "{folder} is in use by another Lockgate{}: stop it or choose another data folder",
        .holder.as_deref().map(|h| format!(" ({h})")).unwrap_or_default()
    )]
    Held {
        /// The folder that was to be locked.
        folder: String,
        /// What is known of the owner, such as its process id.
        holder: Option<String>,
    },
    /// The file system failed while locking.
    #[error(transparent)]
    Disk(#[from] DiskError),
}
