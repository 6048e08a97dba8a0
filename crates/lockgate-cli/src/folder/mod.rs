//! A data folder looked at without a server: what is in it, and what a start would make of it.
//!
//! Nothing here changes a byte of the folder; see [`Overlay`].

mod effects;
mod findings;
mod granted;
mod overlay;

use std::{path::Path, sync::Arc};

use lockgate_core::{Clock as _, Incarnation, LockError};
use lockgate_engine::{Beginning, Driver, EngineOptions, StartError, StartReport};
use lockgate_log::{LocalLog, LocalLogOptions, SystemClock};

pub(crate) use effects::{Bodies, EffectJson, effect_json, queues_of};
pub(crate) use findings::{Findings, Verdict, queues, snapshots};
pub(crate) use granted::Granted;
pub(crate) use overlay::{Change, Overlay};

use crate::exit::{Exit, Failure};

/// Opens a data folder for looking.
///
/// # Errors
/// If there is none, a server is running on it, or it holds nothing of Lockgate's.
pub(crate) fn open(path: &Path) -> Result<Arc<Overlay>, Failure> {
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
    let is_ours = |(name, _): &(String, u64)| {
        [".log", ".snapshot", ".start", ".synced"]
            .iter()
            .any(|ending| name.ends_with(ending))
    };
    if !overlay.was_used() && !overlay.sizes().iter().any(is_ours) {
        let what = format!("{} holds no data of Lockgate's", path.display());
        return Err(Failure::new(Exit::NotFound, what));
    }
    Ok(Arc::new(overlay))
}

/// Starts on the folder as a server would, up to where it would serve; what it changes stays in
/// memory.
pub(crate) fn start(overlay: Arc<Overlay>) -> Result<(Driver<u64>, StartReport), StartError> {
    let options = LocalLogOptions::default();
    let log = LocalLog::open(overlay, options).expect("nobody else has an overlay's lock");
    let clock = SystemClock::new();
    let beginning = Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        // Nothing of this term is ever seen by anybody.
        incarnation: Incarnation(0),
        secret: [0; 32],
    };
    Driver::recover(Box::new(log), &EngineOptions::default(), beginning)
}

/// The log alone, for its snapshots.
pub(crate) fn log(overlay: Arc<Overlay>) -> LocalLog {
    LocalLog::open(overlay, LocalLogOptions::default()).expect("nobody else has an overlay's lock")
}
