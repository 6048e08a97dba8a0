//! `lockgate backup`.

use std::{
    fs::{self, File},
    io::{self, BufReader, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use lockgate_engine::{BackupReport, verify_backup};
use serde_json::json;
use tempfile::NamedTempFile;

use super::{Watch, client, instant, runtime};
use crate::{
    args::Backup,
    client::Client,
    exit::{Exit, Failure, output_error},
    output::{complain, count, note, tell},
    units::show_bytes,
};

/// The name of a backup that is not whole: random characters are in between.
const PART_PREFIX: &str = ".lockgate-";
const PART_SUFFIX: &str = ".backup-part";

pub(crate) fn run(args: &Backup) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    // Before anything is made that a signal would leave.
    let mut watch = Watch::new()?;
    if args.file == Path::new("-") {
        if args.json {
            return Err(Failure::usage(
                "--json needs a file: the backup itself goes to standard output",
            )
            .hint("name a file in place of -, or leave out --json"));
        }
        return watch.over(move || {
            let mut output = io::stdout();
            fetch(&client, |piece| {
                output.write_all(piece).map_err(output_error)
            })?;
            output.flush().map_err(output_error)
        });
    }
    to_file(&mut watch, client, &args.file, args.json)
}

/// Takes a backup, piece by piece.
fn fetch(
    client: &Client,
    mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let mut body = client.backup().await?;
        while let Some(piece) = body.next().await? {
            take(&piece)?;
        }
        Ok(())
    })
}

fn to_file(watch: &mut Watch, client: Client, path: &Path, json: bool) -> Result<(), Failure> {
    let failed = |error| failed(path, error);
    let taken = || {
        Failure::new(Exit::Conflict, format!("{} exists already", path.display()))
            .hint("name another file, or remove this one first")
    };
    if path.symlink_metadata().is_ok() {
        return Err(taken());
    }
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let what = format!("{} is no folder that is there", folder.display());
        return Err(Failure::new(Exit::NotFound, what)
            .context(format!("writing {}", path.display()))
            .hint("make the folder first, or write the backup into another"));
    }
    remove_leftovers(folder).map_err(failed)?;
    let part = begin(folder).map_err(failed)?;
    // Removed when dropped, also after a signal: what is not whole never has the name.
    let (file, part) = part.into_parts();
    // This one keeps the lock until it has its name.
    let written = file.try_clone().map_err(failed)?;
    let paths = (part.to_path_buf(), path.to_owned());
    let report = watch.over(move || write(&client, written, &paths.0, &paths.1))?;
    part.persist_noclobber(path).map_err(|error| {
        if error.error.kind() == io::ErrorKind::AlreadyExists {
            taken()
        } else {
            failed(error.error)
        }
    })?;
    drop(file);
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(failed)?;
    if report.unreadable > 0 {
        complain(
            "warning",
            &format!(
                "the backup lacks {}, whose payloads are damaged",
                count(report.unreadable, "message")
            ),
        );
    }
    if report.unreadable_events > 0 {
        complain(
            "warning",
            &format!(
                "the backup lacks {} of ledgers, which are damaged",
                count(report.unreadable_events, "event")
            ),
        );
    }
    let done = json!({
        "file": path,
        "created_at": instant(report.created),
        "messages": report.messages,
        "records": report.records,
        "states": report.states,
        "events": report.events,
        "bytes": report.bytes,
        "unreadable": report.unreadable,
        "unreadable_events": report.unreadable_events,
    });
    let words = format!(
        "{}: {}, {}, {}, {}, {}",
        path.display(),
        count(report.messages, "message"),
        count(report.records, "record"),
        count(report.states, "key state"),
        count(report.events, "event"),
        show_bytes(report.bytes)
    );
    tell(json, &done, &words)
}

/// Makes the file that the backup is written into, locked for as long as this process lives: so it is
/// known from what a killed one left.
fn begin(folder: &Path) -> io::Result<NamedTempFile> {
    loop {
        let part = tempfile::Builder::new()
            .prefix(PART_PREFIX)
            .suffix(PART_SUFFIX)
            .tempfile_in(folder)?;
        // Where there are no locks nothing is removed either.
        let _best_effort = part.as_file().try_lock();
        // Unless it was taken for a leftover before it was locked.
        if part.as_file().metadata()?.nlink() > 0 {
            return Ok(part);
        }
    }
}

/// Removes what backups that were killed left in the folder: nobody has it locked.
fn remove_leftovers(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_part = name
            .to_str()
            .and_then(|name| name.strip_prefix(PART_PREFIX)?.strip_suffix(PART_SUFFIX))
            .is_some_and(|random| random.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        if !is_part || !entry.file_type()?.is_file() {
            continue;
        }
        let path = entry.path();
        // Somebody else's, or gone just now: no harm is done by what stays.
        let Ok(file) = File::open(&path) else {
            continue;
        };
        if file.try_lock().is_ok() && fs::remove_file(&path).is_ok() {
            note(&format!(
                "removed {}, which a backup that was killed had left",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Writes the backup that is to be at `path` into its file, and reads it back from `part`.
fn write(
    client: &Client,
    mut file: File,
    part: &Path,
    path: &Path,
) -> Result<BackupReport, Failure> {
    let failed = |error| failed(path, error);
    fetch(client, |piece| file.write_all(piece).map_err(failed))?;
    file.sync_all().map_err(failed)?;
    let read = File::open(part).map_err(failed)?;
    verify_backup(&mut BufReader::new(read))
        .map_err(|error| Failure::from_error(Exit::Failed, error).context("reading it back"))
}

fn failed(path: &Path, error: io::Error) -> Failure {
    Failure::from_error(Exit::Failed, error).context(format!("writing {}", path.display()))
}
