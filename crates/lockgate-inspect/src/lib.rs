//! Reads a data folder, or a shard in PostgreSQL, without a server: shows its contents and what a
//! start would do with it.
//!
//! [`Findings::of`] checks it, and [`records`] reads it record by record. Nothing here changes it:
//! what a start would write stays in memory (see [`Overlay`]).
//!
//! ```
//! use lockgate_inspect::{Findings, OpenError, Place, Verdict};
//!
//! # let temp = tempfile::tempdir()?;
//! # let folder = temp.path().join("data");
//! assert!(matches!(Place::folder(&folder), Err(OpenError::NoFolder(_))));
//! # let log = lockgate_log::LocalLog::open(
//! #     std::sync::Arc::new(lockgate_log::FolderDisk::open(&folder)?),
//! #     Default::default(),
//! # )?;
//! # drop(log);
//! let place = Place::folder(&folder)?;
//! let findings = Findings::of(&place, "the folder".to_owned())?;
//! assert_eq!(findings.verdict, Verdict::Clean);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod effects;
mod findings;
mod granted;
#[cfg(test)]
mod histories;
mod overlay;
mod records;
mod restore_name;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use lockgate_core::{
    Clock as _, Epoch, Incarnation, LockError, Log, LogError, LogReader, LogSource, Position,
    RecoveryReport, ShardId, SnapshotStore,
};
#[cfg(feature = "postgres")]
use lockgate_engine::Trial;
use lockgate_engine::{Beginning, Driver, EngineOptions, StartError, StartReport};
use lockgate_log::{LocalLog, LocalLogOptions, SystemClock, is_log_file};
use lockgate_machine::Machine;

pub use effects::{Bodies, EffectJson, setting_json};
pub use findings::{
    Files, Findings, IndexFound, MissingFound, MissingOf, QueueFound, Records, SnapshotFound,
    StandbyFound, Start, Stretch, Unreadable, Values, Verdict, WithoutQueueFound, queues,
    snapshots,
};
pub use granted::Granted;
pub use overlay::{Change, Overlay};
pub use records::{DamagedStretch, Line, RecordJson, RecordsError, Wanted, records};
pub use restore_name::RestoreName;

/// A folder or shard to inspect.
pub enum Place {
    /// And its path.
    Folder(Arc<Overlay>, PathBuf),
    #[cfg(feature = "postgres")]
    Database(lockgate_postgres::PostgresView),
}

/// Why a folder cannot be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("{folder} is in use by a running server{}", .holder.as_ref().map_or_else(String::new, |holder| format!(", {holder}")))]
    InUse {
        folder: String,
        holder: Option<String>,
    },
    #[error("there is no folder {}", .0.display())]
    NoFolder(PathBuf),
    #[error("{} holds no data of Lockgate's", .0.display())]
    NoData(PathBuf),
    /// It cannot be read.
    #[error(transparent)]
    Lock(LockError),
}

impl Place {
    /// Opens a data folder for reading. No server can start on it as long as the value lives.
    ///
    /// # Errors
    /// If the folder does not exist, a server is running on it, or it holds no files of Lockgate.
    pub fn folder(path: &Path) -> Result<Self, OpenError> {
        let overlay = Overlay::open(path).map_err(|error| match error {
            LockError::Held { folder, holder } => OpenError::InUse { folder, holder },
            LockError::Disk(error) if error.is_not_found() => OpenError::NoFolder(path.to_owned()),
            error => OpenError::Lock(error),
        })?;
        let mut names = overlay.sizes().into_iter().map(|(name, _)| name);
        if !overlay.was_used() && !names.any(|name| is_log_file(&name)) {
            return Err(OpenError::NoData(path.to_owned()));
        }
        Ok(Self::Folder(Arc::new(overlay), path.to_owned()))
    }

    /// A new source for its log, as often as needed.
    pub fn source(&self) -> Box<dyn LogSource> {
        match self {
            Self::Folder(overlay, _) => Box::new(local_log(overlay)),
            #[cfg(feature = "postgres")]
            Self::Database(view) => Box::new(view.again()),
        }
    }

    /// Its snapshots.
    pub fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        match self {
            Self::Folder(overlay, _) => local_log(overlay).snapshots(),
            #[cfg(feature = "postgres")]
            Self::Database(view) => view.snapshots(),
        }
    }

    /// Its log's source, recovered from `from` on.
    pub fn recovered(
        &self,
        from: Position,
    ) -> Result<(Box<dyn LogSource>, RecoveryReport), LogError> {
        match self {
            Self::Folder(overlay, _) => {
                // Records that a start would cut must not be read.
                let mut log = local_log(overlay);
                let report = log.recover(from, Epoch(0), &mut |_, _| {})?;
                log.apply_recovery()?;
                Ok((Box::new(log), report))
            }
            #[cfg(feature = "postgres")]
            Self::Database(_) => {
                let mut source = self.source();
                let report = source.recover(from, Epoch(0), &mut |_, _| {})?;
                Ok((source, report))
            }
        }
    }

    /// The standby that it is read from, if it is one.
    pub fn standby(&self) -> Option<StandbyFound> {
        match self {
            Self::Folder(..) => None,
            #[cfg(feature = "postgres")]
            Self::Database(view) => view.standby().map(StandbyFound::of),
        }
    }

    /// Whether an unfinished restore has left data next to the shard, or is running.
    pub fn has_unfinished_restore(&self) -> bool {
        match self {
            Self::Folder(..) => false,
            #[cfg(feature = "postgres")]
            Self::Database(view) => view.has_unfinished(),
        }
    }

    /// Where its index of unique ids is, if it may have one.
    fn index(&self) -> Option<PathBuf> {
        match self {
            Self::Folder(_, path) => Some(path.join("index")),
            #[cfg(feature = "postgres")]
            Self::Database(_) => None,
        }
    }

    /// The overlay over the files, for a folder.
    fn overlay(&self) -> Option<&Overlay> {
        match self {
            Self::Folder(overlay, _) => Some(overlay),
            #[cfg(feature = "postgres")]
            Self::Database(_) => None,
        }
    }
}

fn local_log(overlay: &Arc<Overlay>) -> LocalLog {
    let usual = LocalLogOptions::default();
    // The trial start would remove preallocated files of another size.
    let segment_bytes = overlay.segment_bytes().unwrap_or(usual.segment_bytes);
    let options = LocalLogOptions {
        segment_bytes,
        record_bytes_max: usual.record_bytes_max.min(segment_bytes as usize / 2),
        ..usual
    };
    LocalLog::open(overlay.clone(), options).expect("nobody else has an overlay's lock")
}

/// A trial start.
pub struct Tried {
    pub report: StartReport,
    on: On,
}

enum On {
    /// With its changes in memory.
    Folder(Box<Driver<u64>>),
    #[cfg(feature = "postgres")]
    Database(Box<Trial>, Arc<dyn LogReader>),
}

impl Tried {
    pub fn machine(&self) -> &Machine {
        match &self.on {
            On::Folder(driver) => driver.machine(),
            #[cfg(feature = "postgres")]
            On::Database(trial, _) => &trial.machine,
        }
    }

    /// Frees purged messages, so that counts include live messages only.
    pub fn housekeep(&mut self) {
        match &mut self.on {
            On::Folder(driver) => while driver.housekeep(usize::MAX).is_unfinished() {},
            #[cfg(feature = "postgres")]
            On::Database(trial, _) => while trial.machine.housekeep(usize::MAX).is_unfinished() {},
        }
    }

    pub fn reader(&self) -> Arc<dyn LogReader> {
        match &self.on {
            On::Folder(driver) => driver.reader(),
            #[cfg(feature = "postgres")]
            On::Database(_, reader) => reader.clone(),
        }
    }

    pub fn tail(&self) -> Position {
        match &self.on {
            On::Folder(driver) => driver.tail(),
            #[cfg(feature = "postgres")]
            On::Database(trial, _) => trial.tail,
        }
    }
}

/// Starts as a server would, up to the point where it would serve; its changes stay in memory.
/// `accept_loss`: whether to accept the loss of missing parts.
pub fn start(place: &Place, accept_loss: bool) -> Result<Tried, StartError> {
    match start_as(place, accept_loss, ShardId::default()) {
        // With the number of the shard itself.
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
        // Nobody ever sees anything of this term.
        incarnation: Incarnation(0),
        secret: [0; 32],
    };
    let options = EngineOptions {
        shard,
        accept_loss,
        checks_index: false,
        ..EngineOptions::default()
    };
    match place {
        Place::Folder(overlay, _) => {
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
