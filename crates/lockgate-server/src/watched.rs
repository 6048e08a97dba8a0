//! Files that are read again when they change: certificates, access keys.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::sleep;

/// How often the files are looked at. A look costs a system call for each.
const EVERY: Duration = Duration::from_secs(5);

/// Files that may change, and what they were when they were looked at last.
///
/// Looked at and not notified of: a rotation may replace a file, edit it, or swing a link anywhere
/// on its path, also on a file system that tells nobody.
#[derive(Clone, Debug)]
pub struct WatchedFiles(Vec<(PathBuf, Option<Stamp>)>);

/// What tells a file from what it was. The time of the change of the inode moves with every write,
/// also where the time of modification is set back; the mode, for those who had to fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    mode: u32,
    changed: (i64, i64),
}

impl Stamp {
    /// `None`: it cannot be looked at.
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
    /// The files as they are now. To be called before they are read, so that what changes in between
    /// is seen. A file that is not there changes when it comes.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut files = Self(Vec::new());
        files.also(paths);
        files
    }

    /// Further files as they are now, such as those that one of the first names.
    pub fn also(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.0.extend(paths.into_iter().map(|path| {
            let stamp = Stamp::of(&path);
            (path, stamp)
        }));
    }

    /// Waits until one of them has changed since it was seen last; looks every five seconds. Must be
    /// within a tokio runtime.
    ///
    /// # Cancellation
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) {
        loop {
            sleep(EVERY).await;
            if self.look() {
                return;
            }
        }
    }

    /// Whether one of them has changed since the last look.
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
