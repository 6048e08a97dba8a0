//! `lockgate restore`.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::Path,
    sync::Arc,
};

#[cfg(feature = "postgres")]
use lockgate_core::with_sources;
use lockgate_core::{ShardId, Storage};
use lockgate_engine::{FolderIndex, IndexOptions, RestoreError, RestoreReport, restore_with_index};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use serde_json::json;

use super::{
    Watch, database, instant,
    unfinished::{Unfinished, UnfinishedError},
};
use crate::{
    args::Restore,
    exit::{Exit, Failure},
    output::{complain, count, tell},
};

pub(crate) fn run(args: &Restore) -> Result<(), Failure> {
    match (&args.data, &args.postgres_shard) {
        (Some(path), _) => into_folder(args, path),
        (None, Some(shard)) => into_database(args, shard),
        (None, None) => Err(Failure::usage(
            "a place is needed: --data or --postgres-shard",
        )),
    }
}

fn into_folder(args: &Restore, path: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let what = format!("making {}", path.display());
        Failure::from_error(Exit::Failed, error).context(what)
    };
    if !is_free(path).map_err(failed)? {
        let what = format!("{} is not empty", path.display());
        return Err(Failure::new(Exit::Conflict, what)
            .hint("a backup is restored into a new folder; choose another or move that away"));
    }
    // Where a link leads is what gets the name. A slash at the end would hide that it is one.
    let linked = path.components().as_path();
    let followed;
    let path = if linked.is_symlink() {
        followed = fs::canonicalize(linked).map_err(|error| {
            let what = format!("following the link {}", linked.display());
            Failure::from_error(Exit::Failed, error).context(what)
        })?;
        followed.as_path()
    } else {
        path
    };
    let Some(name) = path.file_name() else {
        let what = format!("{} is no name of a new folder", path.display());
        return Err(Failure::usage(what));
    };
    let input = open(&args.file)?;
    let parent = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(failed)?;
    let shard = args.shard;
    let mut watch = Watch::new()?;
    let folder = Unfinished::make(parent, name).map_err(|error| {
        let exit = match error {
            UnfinishedError::UnderWay { .. } => Exit::Conflict,
            UnfinishedError::Make(..) => Exit::Failed,
        };
        Failure::from_error(exit, error)
    })?;
    let disk = FolderDisk::open(folder.path())
        .map_err(|error| Failure::from_error(Exit::Failed, error))?;
    let log = LocalLog::open(Arc::new(disk), LocalLogOptions::default())
        .map_err(|error| Failure::from_error(Exit::Failed, error))?;
    let index = FolderIndex::new(folder.path().join("index"), IndexOptions::default());
    let report = watch.over(move || restore_into(input, log.into(), Some(&index), shard))?;
    folder.finish(path).map_err(failed)?;
    File::open(parent)
        .and_then(|parent| parent.sync_all())
        .map_err(failed)?;
    told(args, &path.display().to_string(), &report)
}

#[cfg(feature = "postgres")]
fn into_database(args: &Restore, shard: &str) -> Result<(), Failure> {
    use lockgate_postgres::{OpenError, PostgresLog, PostgresLogOptions};

    let url = database::url(args.postgres.as_deref())?;
    let input = open(&args.file)?;
    let place = format!("the shard {shard:?} in PostgreSQL");
    let number = args.shard;
    let mut watch = Watch::new()?;
    let refused = |error: OpenError| {
        let is_taken = matches!(error, OpenError::NotNew { .. });
        let failure = Failure::from_error(database::exit_of(&error), error);
        if is_taken {
            failure.hint("a backup is restored into a new shard; choose another name")
        } else {
            failure.context(format!("making {place}"))
        }
    };
    let (log, filling) =
        PostgresLog::open_to_fill(&url, shard, &PostgresLogOptions::default()).map_err(refused)?;
    let restored = watch.over(move || restore_into(input, log.into(), None, number));
    match restored.and_then(|report| filling.finish().map(|()| report).map_err(refused)) {
        Ok(report) => told(args, &place, &report),
        Err(failure) => {
            // Also after a signal.
            if let Err(error) = filling.discard() {
                let error = with_sources(&error);
                complain(
                    "warning",
                    &format!(
                        "this restore left an unfinished {place}: {error}. The next restore into it removes it"
                    ),
                );
            }
            Err(failure)
        }
    }
}

#[cfg(not(feature = "postgres"))]
fn into_database(_args: &Restore, _shard: &str) -> Result<(), Failure> {
    Err(database::missing())
}

/// The backup.
fn open(file: &Path) -> Result<Box<dyn Read + Send>, Failure> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let opened = File::open(file).map_err(|error| {
        let exit = match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            _ => Exit::Failed,
        };
        let what = format!("opening {}", file.display());
        Failure::from_error(exit, error).context(what)
    })?;
    Ok(Box::new(opened))
}

fn told(args: &Restore, place: &str, report: &RestoreReport) -> Result<(), Failure> {
    if report.dropped > 0 {
        complain(
            "warning",
            &format!(
                "the backup has no payloads of {}, because they were damaged when it was taken; the restore \
                 dropped these",
                count(report.dropped, "message")
            ),
        );
    }
    if report.lost_appends > 0 {
        complain(
            "warning",
            &format!(
                "the backup has no events of {} to ledgers, because they were damaged when it was taken; a read of them fails",
                count(report.lost_appends, "append")
            ),
        );
    }
    let (name, value) = match (&args.data, &args.postgres_shard) {
        (_, Some(shard)) => ("postgres_shard", json!(shard)),
        (path, None) => ("data", json!(path)),
    };
    let done = json!({
        name: value,
        "shard": report.shard.get(),
        "created_at": instant(report.created),
        "queues": report.queues,
        "messages": report.messages,
        "records": report.records,
        "states": report.states,
        "events": report.events,
        "dropped": report.dropped,
        "lost_appends": report.lost_appends,
    });
    let words = format!(
        "{place}: {} in {}, shard {}; {}, {} and {}",
        count(report.messages, "message"),
        count(report.queues, "queue"),
        report.shard,
        count(report.records, "record"),
        count(report.states, "key state"),
        count(report.events, "event"),
    );
    tell(args.json, &done, &words)
}

/// Whether the folder is missing or empty.
fn is_free(path: &Path) -> io::Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

fn restore_into(
    input: Box<dyn Read + Send>,
    storage: Storage,
    index: Option<&FolderIndex>,
    shard: Option<ShardId>,
) -> Result<RestoreReport, Failure> {
    let mut input = BufReader::with_capacity(1 << 20, input);
    restore_with_index(&mut input, storage, index, shard).map_err(|error| {
        let exit = match &error {
            RestoreError::NoBackup
            | RestoreError::NewerFormat { .. }
            | RestoreError::Damaged { .. }
            | RestoreError::Ids(_)
            | RestoreError::MissingIds { .. }
            | RestoreError::Image(_) => Exit::Refused,
            _ => Exit::Failed,
        };
        Failure::from_error(exit, error)
    })
}
