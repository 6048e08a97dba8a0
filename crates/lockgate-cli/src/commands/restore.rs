//! `lockgate restore`.

use std::{
    fs::{self, File, Permissions},
    io::{self, BufReader, Read},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    thread,
};

use lockgate_engine::{RestoreError, RestoreReport, restore};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use tokio::sync::oneshot;

use super::block_on;
use crate::{
    args::Restore,
    exit::{Exit, Failure},
    output::{count, note},
};

pub(crate) fn run(args: &Restore) -> Result<(), Failure> {
    let path = &args.data;
    let failed = |error: io::Error| {
        let what = format!("making {}", path.display());
        Failure::from_error(Exit::Failed, error).context(what)
    };
    if !is_free(path).map_err(failed)? {
        let what = format!("{} is not empty", path.display());
        return Err(Failure::new(Exit::Conflict, what)
            .hint("a backup is restored into a new folder; choose another or move that away"));
    }
    let input: Box<dyn Read + Send> = if args.file == Path::new("-") {
        Box::new(io::stdin())
    } else {
        let file = File::open(&args.file).map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::Failed,
            };
            let what = format!("opening {}", args.file.display());
            Failure::from_error(exit, error).context(what)
        })?;
        Box::new(file)
    };
    let parent = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed)?;
    // Removed when dropped, also by a signal: what is not whole never has the name. For this user
    // only, as a data folder is.
    let folder = tempfile::Builder::new()
        .prefix(".lockgate-restore-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)
        .map_err(failed)?;
    let report = block_on_restore(input, folder.path())?;
    fs::rename(folder.path(), path).map_err(failed)?;
    let _there_no_more = folder.keep();
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(failed)?;
    note(&format!(
        "{}: {} in {}",
        path.display(),
        count(report.messages, "message"),
        count(report.queues, "queue")
    ));
    if report.dropped > 0 {
        note(&format!(
            "{} came without a payload, which was damaged when the backup was taken, and were dropped",
            count(report.dropped, "message")
        ));
    }
    Ok(())
}

/// Whether the folder is missing or empty.
fn is_free(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Restores on a thread of its own, so that a signal is heard while standard input is not.
fn block_on_restore(input: Box<dyn Read + Send>, folder: &Path) -> Result<RestoreReport, Failure> {
    let (sender, receiver) = oneshot::channel();
    let folder = folder.to_owned();
    let mut report = None;
    block_on(async {
        thread::spawn(move || {
            // Nobody hears it if a signal came.
            let _ = sender.send(restore_into(input, &folder));
        });
        let outcome = receiver
            .await
            .map_err(|_panicked| Failure::failed("the restore panicked"))?;
        report = Some(outcome?);
        Ok(())
    })?;
    report.ok_or_else(|| Failure::failed("the restore did not end"))
}

fn restore_into(input: Box<dyn Read + Send>, folder: &Path) -> Result<RestoreReport, Failure> {
    let disk =
        FolderDisk::open(folder).map_err(|error| Failure::from_error(Exit::Failed, error))?;
    let log = LocalLog::open(Arc::new(disk), LocalLogOptions::default())
        .map_err(|error| Failure::from_error(Exit::Failed, error))?;
    let mut input = BufReader::with_capacity(1 << 20, input);
    restore(&mut input, Box::new(log)).map_err(|error| {
        let exit = match &error {
            RestoreError::NoBackup
            | RestoreError::NewerFormat { .. }
            | RestoreError::Damaged { .. }
            | RestoreError::Image(_) => Exit::Refused,
            _ => Exit::Failed,
        };
        Failure::from_error(exit, error)
    })
}
