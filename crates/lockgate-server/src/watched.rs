//! Watches files that settings name, such as certificates and access keys. The server reads them
//! again when they change.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::OFlags;
use tokio::{task::spawn_blocking, time::sleep};

/// The largest file that [`FileBytes::read`] reads.
const BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What kinds of file may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKinds {
    /// Everything that can be read, also a pipe such as the shell's `<(command)`. Opening a named
    /// pipe waits for its writer, so use this only when a program starts.
    Any,
    /// Regular files, and links to them. Reading never waits for another process, so a server can
    /// use this while it serves.
    Regular,
}

/// The contents of a file, and its permissions.
pub struct FileBytes {
    pub bytes: Vec<u8>,
    /// Its type and permissions, as in `st_mode`.
    pub mode: u32,
}

impl FileBytes {
    /// Reads a file that a setting names. Blocks the thread while the disk reads.
    ///
    /// # Errors
    /// If the file cannot be opened or read, is not of an allowed kind (`kinds`), or has more than
    /// 16 MiB.
    pub fn read(path: &Path, kinds: FileKinds) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        options.read(true);
        if kinds == FileKinds::Regular {
            // Without this flag, opening a named pipe waits until another process writes to it.
            options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        }
        let file = options.open(path)?;
        let about = file.metadata()?;
        if kinds == FileKinds::Regular && !about.is_file() {
            let what = "not a regular file, and nothing else is read while the server runs";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > BYTES_MAX {
            let what = "larger than the 16 MiB that are read";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        let mode = about.mode();
        Ok(Self { bytes, mode })
    }

    /// Whether nobody but its owner may read or change it.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.mode & 0o077 == 0
    }
}

/// How often the files are checked. A check costs a system call for each file.
const EVERY: Duration = Duration::from_secs(5);

/// Files that may change, and the stamp of each at its last check.
///
/// The files are polled. Notifications would miss some changes: a rotation may replace a file, edit
/// it, or change a link anywhere on its path, and some file systems send no notifications.
#[derive(Clone, Debug)]
pub struct WatchedFiles(Vec<(PathBuf, Option<Stamp>)>);

/// What a changed file differs in. Every write moves the inode's change time, even where the
/// modification time is set back. The mode is part of it, so that a change of permissions counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    mode: u32,
    changed: (i64, i64),
}

impl Stamp {
    /// `None` if the file cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self {
            file: (file.dev(), file.ino()),
            size: file.size(),
            mode: file.mode(),
            changed: (file.ctime(), file.ctime_nsec()),
        })
    }
}

impl WatchedFiles {
    /// Records the present state of the files. Call this before you read them, so that a change in
    /// between is seen. A missing file has changed once it exists.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut files = Self(Vec::new());
        files.also(paths);
        files
    }

    /// Adds files in their present state, such as those that one of the first names.
    pub fn also(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.0.extend(paths.into_iter().map(|path| {
            let stamp = Stamp::of(&path);
            (path, stamp)
        }));
    }

    /// Waits until one of the files has changed since its last check; checks every five seconds.
    /// Needs a tokio runtime.
    ///
    /// # Cancellation
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) {
        loop {
            sleep(EVERY).await;
            let mut files = self.clone();
            // A network file system may not answer, so the check runs on another thread.
            let looked = spawn_blocking(move || (files.look(), files)).await;
            let Ok((has_changed, files)) = looked else {
                continue; // the runtime ends
            };
            *self = files;
            if has_changed {
                return;
            }
        }
    }

    /// Whether one of the files has changed since the last check.
    pub(crate) fn look(&mut self) -> bool {
        let mut changed = false;
        for (path, seen) in &mut self.0 {
            let now = Stamp::of(path);
            changed |= now != *seen;
            *seen = now;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn what_may_be_read_is_neither_a_pipe_nor_too_large() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), mode).unwrap();
        symlink(at("pipe"), at("link to a pipe")).unwrap();
        let wrong = |name| {
            FileBytes::read(&at(name), FileKinds::Regular)
                .err()
                .unwrap()
        };
        for name in ["pipe", "link to a pipe", "."] {
            let error = wrong(name).to_string();
            assert!(error.contains("not a regular file"), "{name}: {error}");
        }
        let file = fs::File::create(at("file")).unwrap();
        file.set_len(BYTES_MAX).unwrap();
        symlink(at("file"), at("link")).unwrap();
        let read = FileBytes::read(&at("link"), FileKinds::Regular).unwrap();
        assert_eq!(read.bytes.len() as u64, BYTES_MAX);
        file.set_len(BYTES_MAX + 1).unwrap();
        assert_eq!(wrong("link").kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn every_way_to_change_a_file_is_seen_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let (link, first, second) = (at("link"), at("first"), at("second"));
        let mut files = WatchedFiles::new([at("other"), link.clone()]);
        assert!(!files.look(), "there is none");
        fs::write(&first, "1").unwrap();
        fs::write(&second, "2").unwrap();
        let changes: [(&str, &dyn Fn()); 6] = [
            ("it comes", &|| symlink(&first, &link).unwrap()),
            ("it is edited", &|| fs::write(&first, "longer").unwrap()),
            ("others may read it", &|| {
                fs::set_permissions(&first, fs::Permissions::from_mode(0o644)).unwrap();
                fs::set_permissions(&first, fs::Permissions::from_mode(0o600)).unwrap();
                fs::set_permissions(&first, fs::Permissions::from_mode(0o640)).unwrap();
            }),
            ("it is replaced", &|| fs::rename(&second, &first).unwrap()),
            ("the link swings", &|| {
                fs::write(&second, "2").unwrap();
                symlink(&second, at("fresh")).unwrap();
                fs::rename(at("fresh"), &link).unwrap();
            }),
            ("it goes", &|| fs::remove_file(&second).unwrap()),
        ];
        for (what, change) in changes {
            change();
            assert!(files.look(), "{what}");
            assert!(!files.look(), "{what}, and nothing since");
        }
    }
}
