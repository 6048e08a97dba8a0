//! The folder of a restore that is not finished, and those that killed ones left.

use std::{
    ffi::OsStr,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use lockgate_core::{Disk as _, LockError, with_sources};
use lockgate_inspect::RestoreName;
use lockgate_log::{FolderDisk, is_log_file};

use crate::output::note;

/// So often the folder is emptied before it is left.
const REMOVALS_MAX: usize = 1_000;

/// A folder beside the one that it will become, removed when dropped: what is not whole never has the
/// name. What a killed process leaves of it is known by its name.
pub(crate) struct Unfinished {
    path: PathBuf,
    is_finished: bool,
}

/// Why an [`Unfinished`] is not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnfinishedError {
    /// Another process makes the same folder.
    #[error("another restore into {} is under way{}", .target.display(), by(.holder.as_deref()))]
    UnderWay {
        /// The folder that both are to make.
        target: PathBuf,
        /// Who it is.
        holder: Option<String>,
    },
    #[error("making {}", .0.display())]
    Make(PathBuf, #[source] io::Error),
}

fn by(holder: Option<&str>) -> String {
    holder.map_or_else(String::new, |holder| format!(", {holder}"))
}

impl Unfinished {
    /// Makes one that is to become the folder `name` in `parent`, once what killed restores into that
    /// folder left is removed.
    ///
    /// # Errors
    /// If a restore into the same folder is under way, or it cannot be made.
    pub(crate) fn make(parent: &Path, name: &OsStr) -> Result<Self, UnfinishedError> {
        let target = parent.join(name);
        let failed = |error| UnfinishedError::Make(target.clone(), error);
        for entry in fs::read_dir(parent).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && RestoreName::target_of(&entry.file_name()) == Some(name) {
                remove_leftover(&entry.path(), &target)?;
            }
        }
        let prefix = RestoreName::prefix(name);
        // For this user only, as a data folder is.
        let made = tempfile::Builder::new()
            .prefix(&prefix)
            .rand_bytes(RestoreName::RANDOM_LEN)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent);
        Ok(Self {
            path: made.map_err(failed)?.keep(),
            is_finished: false,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder its name, which nothing but an empty folder may have.
    pub(crate) fn finish(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // Whoever writes into it may still do so after a signal. Once it is empty and gone, nothing
        // can be made in it any more.
        for _ in 0..REMOVALS_MAX {
            match fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return tell_left(&self.path, &error.to_string());
                }
                _ => return,
            }
        }
    }
}

/// Removes a folder that a restore into `target` made, unless that is under way. If it cannot be, it
/// harms nobody, and stays.
fn remove_leftover(path: &Path, target: &Path) -> Result<(), UnfinishedError> {
    match remove_unused(path) {
        Ok(()) => note(&format!(
            "removed {}, which a restore that was killed had left",
            path.display()
        )),
        Err(Kept::InUse(holder)) => {
            return Err(UnfinishedError::UnderWay {
                target: target.to_owned(),
                holder,
            });
        }
        Err(Kept::Other(why)) => tell_left(path, &why),
    }
    Ok(())
}

fn tell_left(path: &Path, why: &str) {
    note(&format!(
        "what a restore left in {} stays there: {why}; nothing needs it, remove it",
        path.display()
    ));
}

/// Why a leftover was not removed.
enum Kept {
    InUse(Option<String>),
    Other(String),
}

fn remove_unused(path: &Path) -> Result<(), Kept> {
    // Its name says what it is; but nothing is ever removed that a log does not make.
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_a_logs = name.to_str().is_some_and(is_log_file);
        if !is_a_logs || !entry.file_type()?.is_file() {
            let what = format!("{} is none of its files", Path::new(&name).display());
            return Err(Kept::Other(what));
        }
    }
    let disk = FolderDisk::open_existing(path).map_err(LockError::Disk)?;
    // Held until the folder is gone.
    let _lock = disk.lock()?;
    Ok(fs::remove_dir_all(path)?)
}

impl From<LockError> for Kept {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Held { holder, .. } => Self::InUse(holder),
            error => Self::Other(with_sources(&error)),
        }
    }
}

impl From<io::Error> for Kept {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}
