//! A sync that fails: the image under the file system has no room, so that what the system has
//! accepted cannot be written.
//!
//! The kernel tells once and then takes the pages for clean. So the server must stop at the first
//! failure, and whoever waited hears nothing or that the outcome is unknown.

use std::{thread, time::Duration};

use anyhow::Result;

use crate::{episode::Stage, history::EventKind, volume::Volume};

/// Room for the image: a fresh file system, and what the workload writes in an episode.
pub(super) const MEMORY_BYTES: u64 = 768 << 20;
/// Under load the next sync is never far; the file system may take its time with the error.
const STOP_MAX: Duration = Duration::from_secs(60);
/// For the last lines of a log on their way.
const LOG_WAIT: Duration = Duration::from_millis(300);

pub(super) async fn round(stage: &mut Stage, volume: &mut Volume) -> Result<()> {
    stage.workload.progress(100).await?;
    let (from, unknown) = (stage.history.now(), stage.unknown());
    let lines = stage.server.log_lines();
    volume.starve()?;
    stage.figures.injected += 1;
    match stage.server.wait(STOP_MAX)? {
        None => stage.broken(format!(
            "a server whose disk takes no more bytes still lived after {STOP_MAX:?}"
        )),
        Some(status) => {
            stage.figures.effective += u64::from(stage.unknown() > unknown);
            if status.success() || status.code().is_none() {
                stage.broken(format!("a failed sync ended the server with {status}"));
            }
            thread::sleep(LOG_WAIT);
            let log = stage.server.log_since(lines);
            if !log
                .iter()
                .any(|line| line.contains("the engine has stopped"))
            {
                stage.broken("a failed sync ended the server without a reason in its log");
            }
        }
    }
    stage.server.kill()?;
    // What was not synced is gone, in the same boot.
    stage.history.happened(EventKind::LoseUnsynced, from);
    volume.feed()?;
    stage.server.start_again()?;
    stage.workload.progress(100).await?;
    stage.workload.probe_unique_ids(&mut stage.random).await
}
