//! A data folder, or a shard in PostgreSQL, looked at without a server: what is in it, and what a start
//! would make of it.
//!
//! Nothing here changes a byte of it; see [`Overlay`].

mod effects;
mod findings;
mod granted;
#[cfg(test)]
mod histories;
mod overlay;
mod unfinished;

use std::{path::Path, sync::Arc};

use lockgate_core::{
    Clock as _, Epoch, Incarnation, LockError, Log, LogError, LogReader, LogSource, Position,
    RecoveryReport, ShardId, SnapshotStore,
};
#[cfg(feature = "postgres")]
use lockgate_engine::Trial;
use lockgate_engine::{Beginning, Driver, EngineOptions, StartError, StartReport};
use lockgate_log::{LocalLog, LocalLogOptions, SystemClock, is_log_file};
use lockgate_machine::Machine;

pub(crate) use effects::{Bodies, EffectJson, effect_json, queues_of};
pub(crate) use findings::{Findings, StandbyFound, Unreadable, Verdict, queues, snapshots};
pub(crate) use granted::Granted;
pub(crate) use overlay::{Change, Overlay};
pub(crate) use unfinished::{Unfinished, UnfinishedError};

use crate::{
    args::Source,
    commands::database,
    exit::{Exit, Failure},
};

/// What is looked at.
pub(crate) enum Place {
    Folder(Arc<Overlay>),
    #[cfg(feature = "postgres")]
    Database(lockgate_postgres::PostgresView),
}

impl Place {
    /// Opens it, with what to call it.
    pub(crate) fn open(source: &Source) -> Result<(Self, String), Failure> {
        match (&source.folder, &source.postgres_shard) {
            (Some(path), _) => {
                let name = path.display().to_string();
                Ok((Self::Folder(open_folder(path)?), name))
            }
            (None, Some(shard)) => {
                let place = open_database(source.postgres.as_deref(), shard)?;
                Ok((place, format!("the shard {shard:?} in PostgreSQL")))
            }
            (None, None) => Err(Failure::usage(
                "a place is needed: a folder or --postgres-shard",
            )),
        }
    }

    /// What can be read of it, as often as it is wanted.
    pub(crate) fn source(&self) -> Box<dyn LogSource> {
        match self {
            Self::Folder(overlay) => Box::new(local_log(overlay)),
            #[cfg(feature = "postgres")]
            Self::Database(view) => Box::new(view.again()),
        }
    }

    /// The snapshots beside it.
    pub(crate) fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        match self {
            Self::Folder(overlay) => local_log(overlay).snapshots(),
            #[cfg(feature = "postgres")]
            Self::Database(view) => view.snapshots(),
        }
    }

    /// The same, recovered from there on.
    pub(crate) fn recovered(
        &self,
        from: Position,
    ) -> Result<(Box<dyn LogSource>, RecoveryReport), LogError> {
        if let Self::Folder(overlay) = self {
            // What a start would cut is not to be read.
            let mut log = local_log(overlay);
            let report = log.recover(from, Epoch(0), &mut |_, _| {})?;
            log.apply_recovery()?;
            return Ok((Box::new(log), report));
        }
        let mut source = self.source();
        let report = source.recover(from, Epoch(0), &mut |_, _| {})?;
        Ok((source, report))
    }

    /// The standby it is read from, if it is one's.
    pub(crate) fn standby(&self) -> Option<StandbyFound> {
        match self {
            Self::Folder(_) => None,
            #[cfg(feature = "postgres")]
            Self::Database(view) => view.standby().map(StandbyFound::of),
        }
    }

    /// Whether a restore into the shard left something beside it, or is under way.
    pub(crate) fn has_unfinished_restore(&self) -> bool {
        match self {
            Self::Folder(_) => false,
            #[cfg(feature = "postgres")]
            Self::Database(view) => view.has_unfinished(),
        }
    }

    /// The files there are, if it is a folder.
    fn overlay(&self) -> Option<&Overlay> {
        match self {
            Self::Folder(overlay) => Some(overlay),
            #[cfg(feature = "postgres")]
            Self::Database(_) => None,
        }
    }
}

#[cfg(feature = "postgres")]
fn open_database(url: Option<&str>, shard: &str) -> Result<Place, Failure> {
    use lockgate_postgres::{PostgresLogOptions, PostgresView};

    let url = database::url(url)?;
    let view = PostgresView::open(&url, shard, PostgresLogOptions::default())
        .map_err(|error| Failure::from_error(database::exit_of(&error), error))?;
    Ok(Place::Database(view))
}

#[cfg(not(feature = "postgres"))]
fn open_database(_url: Option<&str>, _shard: &str) -> Result<Place, Failure> {
    Err(database::missing())
}

/// Opens a data folder for looking.
///
/// # Errors
/// If there is none, a server is running on it, or it holds nothing of Lockgate's.
fn open_folder(path: &Path) -> Result<Arc<Overlay>, Failure> {
    let overlay = Overlay::open(path).map_err(|error| match error {
        LockError::Held { folder, holder } => {
            let by = holder.map_or_else(String::new, |holder| format!(", {holder}"));
            let what = format!("{folder} is in use by a running server{by}");
            Failure::new(Exit::Conflict, what)
                .hint("stop it first; `lockgate backup` works while it runs")
        }
        LockError::Disk(error) if error.is_not_found() => Failure::new(
            Exit::NotFound,
            format!("there is no folder {}", path.display()),
        ),
        error => Failure::from_error(Exit::Failed, error),
    })?;
    let mut names = overlay.sizes().into_iter().map(|(name, _)| name);
    if !overlay.was_used() && !names.any(|name| is_log_file(&name)) {
        let what = format!("{} holds no data of Lockgate's", path.display());
        return Err(Failure::new(Exit::NotFound, what));
    }
    Ok(Arc::new(overlay))
}

fn local_log(overlay: &Arc<Overlay>) -> LocalLog {
    let usual = LocalLogOptions::default();
    // Files of another size would be removed.
    let segment_bytes = overlay.segment_bytes().unwrap_or(usual.segment_bytes);
    let options = LocalLogOptions {
        segment_bytes,
        record_bytes_max: usual.record_bytes_max.min(segment_bytes as usize / 2),
        ..usual
    };
    LocalLog::open(overlay.clone(), options).expect("nobody else has an overlay's lock")
}

/// A start that was tried.
pub(crate) struct Tried {
    pub(crate) report: StartReport,
    on: On,
}

enum On {
    /// With what it changed in memory.
    Folder(Box<Driver<u64>>),
    #[cfg(feature = "postgres")]
    Database(Box<Trial>, Arc<dyn LogReader>),
}

impl Tried {
    pub(crate) fn machine(&self) -> &Machine {
        match &self.on {
            On::Folder(driver) => driver.machine(),
            #[cfg(feature = "postgres")]
            On::Database(trial, _) => &trial.machine,
        }
    }

    /// Frees what purges left, so that only what counts is counted.
    pub(crate) fn housekeep(&mut self) {
        match &mut self.on {
            On::Folder(driver) => while driver.housekeep(usize::MAX) {},
            #[cfg(feature = "postgres")]
            On::Database(trial, _) => while trial.machine.housekeep(usize::MAX) {},
        }
    }

    pub(crate) fn reader(&self) -> Arc<dyn LogReader> {
        match &self.on {
            On::Folder(driver) => driver.reader(),
            #[cfg(feature = "postgres")]
            On::Database(_, reader) => reader.clone(),
        }
    }

    pub(crate) fn tail(&self) -> Position {
        match &self.on {
            On::Folder(driver) => driver.tail(),
            #[cfg(feature = "postgres")]
            On::Database(trial, _) => trial.tail,
        }
    }
}

/// Starts there as a server would, up to where it would serve; what it changes stays in memory. The loss of
/// what is missing is accepted or not.
pub(crate) fn start(place: &Place, accept_loss: bool) -> Result<Tried, StartError> {
    match start_as(place, accept_loss, ShardId::default()) {
        // As the shard that it is.
        Err(StartError::OtherShard { held, .. }) => start_as(place, accept_loss, held),
        started => started,
    }
}

fn start_as(place: &Place, accept_loss: bool, shard: ShardId) -> Result<Tried, StartError> {
    let clock = SystemClock::new();
    let beginning = Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        // Nothing of this term is ever seen by anybody.
        incarnation: Incarnation(0),
        secret: [0; 32],
    };
    let options = EngineOptions {
        shard,
        accept_loss,
        ..EngineOptions::default()
    };
    match place {
        Place::Folder(overlay) => {
            let log = local_log(overlay);
            let (driver, report) = Driver::recover(log, &options, || beginning)?;
            let on = On::Folder(Box::new(driver));
            Ok(Tried { report, on })
        }
        #[cfg(feature = "postgres")]
        Place::Database(view) => {
            let mut source = view.again();
            let trial =
                lockgate_engine::try_start(&mut source, &*view.snapshots(), &options, &beginning)?;
            let report = trial.report.clone();
            let on = On::Database(Box::new(trial), source.reader());
            Ok(Tried { report, on })
        }
    }
}
