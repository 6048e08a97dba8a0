//! A folder as a [`Disk`] that is never changed: writes stay in memory.
//!
//! So the real code of a start can run over a data folder and show what it would do, instead of a
//! second implementation that guesses.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockgate_core::{
    Disk, DiskError, DiskFile, DiskOperation, DiskSpace, FileIdentity, FolderLock, LockError,
    OpenMode,
};
use lockgate_log::{FolderDisk, LocalLogOptions, LogFile};
use serde::Serialize;

use crate::RestoreName;

/// The bytes of a block, the unit of changes.
const BLOCK: usize = 4096;

/// A folder, with the changes since it was opened in memory.
///
/// As long as it lives, the folder is locked for readers: no server can start on it.
pub struct Overlay {
    /// Only read.
    base: FolderDisk,
    /// Files by their present names.
    files: Mutex<BTreeMap<String, Arc<Content>>>,
    changes: Mutex<Vec<Change>>,
    was_used: bool,
    _lock: Box<dyn FolderLock>,
}

/// A change that a start would make to an existing file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Change {
    /// Cut to `len` bytes.
    Cut { name: String, len: u64 },
    /// Renamed.
    Renamed { from: String, to: String },
    /// Removed.
    Removed { name: String },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut { name, len } => write!(
                f,
                "cut {name} to {len} bytes, behind the last record it keeps"
            ),
            Self::Renamed { from, to } => write!(f, "rename {from} to {to}"),
            Self::Removed { name } => write!(f, "remove {name}"),
        }
    }
}

/// The contents of a file: the folder's bytes, overlaid by later writes.
struct Content {
    /// Its name in the folder; `None` for a file that was created in memory.
    base: Option<String>,
    len_before: u64,
    state: Mutex<State>,
}

struct State {
    /// How many of the folder's bytes still count; zeros follow.
    base_len: u64,
    len: u64,
    blocks: BTreeMap<u64, Box<[u8; BLOCK]>>,
}

/// An open file. Each opens the folder's file itself, so that files that nobody reads take no descriptors.
struct Handle {
    content: Arc<Content>,
    base: Option<Base>,
}

/// The folder's file.
struct Base {
    file: Arc<dyn DiskFile>,
    /// For messages.
    path: String,
}

impl Overlay {
    /// Opens the folder, which must exist.
    ///
    /// # Errors
    /// [`LockError::Held`] if a server owns it; another error if it cannot be read.
    pub fn open(path: &Path) -> Result<Self, LockError> {
        let base = FolderDisk::open_existing(path)?;
        let lock = base.share()?;
        let was_used = base.was_owned()?;
        let mut files = BTreeMap::new();
        for name in base.list()? {
            // Follows symbolic links, and includes entries that are no files, because a server
            // would meet them too.
            let metadata = fs::metadata(path.join(&name)).ok();
            let len = metadata
                .filter(fs::Metadata::is_file)
                .map_or(0, |it| it.len());
            files.insert(name.clone(), Arc::new(Content::new(Some(name), len)));
        }
        Ok(Self {
            base,
            files: Mutex::new(files),
            changes: Mutex::default(),
            was_used,
            _lock: lock,
        })
    }

    /// Whether the folder has a lock file, so that a server used it once.
    pub fn was_used(&self) -> bool {
        self.was_used
    }

    /// The segment size of the last server, judging by its preallocated files. Call this before a
    /// trial start.
    pub fn segment_bytes(&self) -> Option<u32> {
        let sizes = self.sizes().into_iter();
        let ready = sizes.filter(|(name, _)| LogFile::of(name) == Some(LogFile::Preallocated));
        let largest = ready
            .filter_map(|(_, bytes)| u32::try_from(bytes).ok())
            .max();
        largest.filter(|bytes| LocalLogOptions::SEGMENT_BYTES.contains(bytes))
    }

    /// The target of the restore that left this folder, if one did.
    pub fn unfinished_restore_of(&self) -> Option<String> {
        // Also if it was opened under a name such as `.`.
        let path = fs::canonicalize(self.base.path()).ok()?;
        let target = path.with_file_name(RestoreName::target_of(path.file_name()?)?);
        Some(target.display().to_string())
    }

    /// Every file except the lock, by name, with its present length.
    pub fn sizes(&self) -> Vec<(String, u64)> {
        let files = lock(&self.files);
        files
            .iter()
            .map(|(name, content)| (name.clone(), lock(&content.state).len))
            .collect()
    }

    /// The changes to existing files so far.
    pub fn changes(&self) -> Vec<Change> {
        let mut changes = lock(&self.changes).clone();
        for (name, content) in lock(&self.files).iter() {
            let len = lock(&content.state).len;
            if len < content.len_before {
                let name = name.clone();
                changes.push(Change::Cut { name, len });
            }
        }
        changes
    }

    fn note(&self, content: &Content, change: Change) {
        if content.base.is_some() {
            lock(&self.changes).push(change);
        }
    }

    fn missing(&self, operation: DiskOperation, name: &str) -> DiskError {
        self.error(operation, name, io::ErrorKind::NotFound)
    }

    fn error(&self, operation: DiskOperation, name: &str, kind: io::ErrorKind) -> DiskError {
        DiskError {
            operation,
            name: self.base.path().join(name).display().to_string(),
            source: kind.into(),
        }
    }
}

/// The overlay itself holds the lock.
struct Held;

impl FolderLock for Held {}

impl Disk for Overlay {
    fn lock(&self) -> Result<Box<dyn FolderLock>, LockError> {
        Ok(Box::new(Held))
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        let mut files = lock(&self.files);
        let content = match (files.get(name), mode) {
            (Some(_), OpenMode::CreateNew) => {
                let exists = io::ErrorKind::AlreadyExists;
                return Err(self.error(DiskOperation::Open, name, exists));
            }
            (Some(content), _) => content.clone(),
            (None, OpenMode::CreateNew) => {
                let content = Arc::new(Content::new(None, 0));
                files.insert(name.to_owned(), content.clone());
                content
            }
            (None, _) => return Err(self.missing(DiskOperation::Open, name)),
        };
        drop(files);
        let open = |name: &String| {
            Ok::<_, DiskError>(Base {
                file: self.base.open(name, OpenMode::Read)?,
                path: self.base.path().join(name).display().to_string(),
            })
        };
        let base = content.base.as_ref().map(open).transpose()?;
        Ok(Arc::new(Handle { content, base }))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(lock(&self.files).keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut files = lock(&self.files);
        let content = files
            .remove(from)
            .ok_or_else(|| self.missing(DiskOperation::Rename, from))?;
        files.insert(to.to_owned(), content.clone());
        drop(files);
        let (from, to) = (from.to_owned(), to.to_owned());
        self.note(&content, Change::Renamed { from, to });
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let content = lock(&self.files)
            .remove(name)
            .ok_or_else(|| self.missing(DiskOperation::Remove, name))?;
        let name = name.to_owned();
        self.note(&content, Change::Removed { name });
        Ok(())
    }

    fn sync_folder(&self) -> Result<(), DiskError> {
        Ok(())
    }

    fn space(&self) -> Result<DiskSpace, DiskError> {
        self.base.space()
    }

    fn describe(&self) -> String {
        self.base.describe()
    }
}

impl Content {
    fn new(base: Option<String>, len: u64) -> Self {
        Self {
            base,
            len_before: len,
            state: Mutex::new(State {
                base_len: len,
                len,
                blocks: BTreeMap::new(),
            }),
        }
    }
}

impl DiskFile for Handle {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        lock(&self.content.state).read(self.base.as_ref(), buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        lock(&self.content.state).write(self.base.as_ref(), bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        lock(&self.content.state).set_len(len);
        Ok(())
    }

    fn allocate(&self, len: u64) -> Result<(), DiskError> {
        let mut state = lock(&self.content.state);
        state.len = state.len.max(len);
        Ok(())
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(lock(&self.content.state).len)
    }

    fn identity(&self) -> Result<FileIdentity, DiskError> {
        Ok(FileIdentity {
            device: 0,
            inode: Arc::as_ptr(&self.content).addr() as u64,
        })
    }

    fn sync(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

impl Base {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DiskError> {
        if self.file.read_at(buffer, offset)? == buffer.len() {
            return Ok(());
        }
        // The file has become shorter, which only interference from outside can cause.
        Err(DiskError {
            operation: DiskOperation::Read,
            name: self.path.clone(),
            source: io::ErrorKind::UnexpectedEof.into(),
        })
    }
}

impl State {
    fn read(
        &self,
        file: Option<&Base>,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, DiskError> {
        let there = self.len.saturating_sub(offset);
        let count = buffer
            .len()
            .min(usize::try_from(there).unwrap_or(usize::MAX));
        let buffer = &mut buffer[..count];
        let from_base = self.base_len.saturating_sub(offset);
        let from_base = count.min(usize::try_from(from_base).unwrap_or(usize::MAX));
        let (base, zeros) = buffer.split_at_mut(from_base);
        zeros.fill(0);
        if let Some(file) = file {
            file.read_exact_at(base, offset)?;
        }
        let end = offset + count as u64;
        for (&number, block) in self
            .blocks
            .range(offset / BLOCK as u64..end.div_ceil(BLOCK as u64))
        {
            let at = number * BLOCK as u64;
            let (from, to) = (at.max(offset), (at + BLOCK as u64).min(end));
            buffer[index(from - offset)..index(to - offset)]
                .copy_from_slice(&block[index(from - at)..index(to - at)]);
        }
        Ok(count)
    }

    /// Keeps only blocks that differ, because recovery writes a whole tail over itself.
    fn write(&mut self, file: Option<&Base>, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.len = self.len.max(offset + bytes.len() as u64);
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let number = at / BLOCK as u64;
            let within = index(at % BLOCK as u64);
            let count = rest.len().min(BLOCK - within);
            let mut block = Box::new([0; BLOCK]);
            self.read(file, &mut block[..], number * BLOCK as u64)?;
            if block[within..within + count] != rest[..count] {
                block[within..within + count].copy_from_slice(&rest[..count]);
                self.blocks.insert(number, block);
            }
            rest = &rest[count..];
            at += count as u64;
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) {
        self.len = len;
        self.base_len = self.base_len.min(len);
        drop(self.blocks.split_off(&len.div_ceil(BLOCK as u64)));
        if let Some(last) = self.blocks.get_mut(&(len / BLOCK as u64)) {
            last[index(len % BLOCK as u64)..].fill(0);
        }
    }
}

/// An offset within data in memory.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("it is within a buffer")
}

/// No code that holds the lock panics between two changes that belong together.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_the_folder_stays() {
        let temp = tempfile::tempdir().unwrap();
        let before: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        fs::write(temp.path().join("a"), &before).unwrap();
        fs::write(temp.path().join("b"), "b").unwrap();
        let overlay = Overlay::open(temp.path()).unwrap();
        let file = overlay.open("a", OpenMode::Existing).unwrap();
        let mut expected = before.clone();
        for (offset, bytes) in [
            (4_090, &b"across a block"[..]),
            (9_999, b"end"),
            (20_000, b"far"),
        ] {
            file.write_at(bytes, offset).unwrap();
            let end = index(offset) + bytes.len();
            expected.resize(expected.len().max(end), 0);
            expected[index(offset)..end].copy_from_slice(bytes);
        }
        let read = |file: &dyn DiskFile| {
            let mut bytes = vec![7; 40_000];
            let count = file.read_at(&mut bytes, 0).unwrap();
            bytes.truncate(count);
            bytes
        };
        assert!(read(&*file) == expected);
        file.set_len(5_000).unwrap();
        file.set_len(9_000).unwrap();
        expected.truncate(5_000);
        expected.resize(9_000, 0);
        assert!(read(&*file) == expected);
        overlay.rename("a", "c").unwrap();
        overlay.remove("b").unwrap();
        let new = overlay.open("new", OpenMode::CreateNew).unwrap();
        new.allocate(1 << 40).unwrap();
        new.write_at(&[0; 1 << 20], 1 << 39).unwrap();
        assert_eq!(new.len().unwrap(), 1 << 40);
        assert_eq!(overlay.list().unwrap(), ["c", "new"]);
        assert_eq!(
            overlay.changes(),
            [
                Change::Renamed {
                    from: "a".to_owned(),
                    to: "c".to_owned()
                },
                Change::Removed {
                    name: "b".to_owned()
                },
                Change::Cut {
                    name: "c".to_owned(),
                    len: 9_000
                },
            ]
        );
        assert!(fs::read(temp.path().join("a")).unwrap() == before);
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_same_bytes_take_no_memory() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("a"), vec![5; 100_000]).unwrap();
        let overlay = Overlay::open(temp.path()).unwrap();
        let file = overlay.open("a", OpenMode::Existing).unwrap();
        file.write_at(&[5; 100_000], 0).unwrap();
        let kept = lock(&lock(&overlay.files)["a"].state).blocks.len();
        assert_eq!(kept, 0);
    }
}
