//! A power cut: the file system is shut down under the server, without a flush of its journal.
//!
//! Mostly the next server runs in the same boot, as if the disk alone had lost its power: then it
//! may have forgotten leases, and gives them out again. The last cut of an episode, and now and then
//! another, is one of the whole machine: the next server sees another boot, and waits with keys
//! whose leases it may have forgotten.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{episode::Stage, history::EventKind, volume::Volume};

/// A lease of the workload, how far the lease bound is raised beyond it, and some more time.
const KEYS_WAIT_MAX: Duration = Duration::from_secs(80);

pub(super) async fn round(stage: &mut Stage, volume: &mut Volume, round: u64) -> Result<()> {
    let random = &mut stage.random;
    let (messages, pause) = (random.below(300), random.below(200_000));
    // Between the cut and the end of the server it must not promise anything either.
    let dying = Duration::from_micros(random.below(30_000));
    let whole_machine = round + 1 == stage.rounds || stage.rounds > 10 && random.once_in(16);
    stage.workload.progress(messages).await?;
    tokio::time::sleep(Duration::from_micros(pause)).await;

    let (from, unknown) = (stage.history.now(), stage.unknown());
    volume.cut()?;
    std::thread::sleep(dying);
    stage.server.kill()?;
    if whole_machine {
        stage.history.happened(EventKind::PowerCut, from);
        stage.new_boot()?;
    } else {
        stage.history.happened(EventKind::LoseUnsynced, from);
    }
    volume.remount()?;
    stage.server.start_again()?;
    stage.injected(unknown);
    stage.workload.probe_unique_ids(&mut stage.random).await
}

/// After a cut of the whole machine messages with keys are handed out again, in time.
pub(super) async fn keys_go_on(stage: &mut Stage) -> Result<()> {
    let target = stage.workload.so_far().acked_keyed + 50;
    let on = stage
        .workload
        .reach(|progress| progress.acked_keyed >= target);
    match tokio::time::timeout(KEYS_WAIT_MAX, on).await {
        Ok(result) => result.context("waiting for keys after a power cut"),
        Err(_) => bail!("keys were not served {KEYS_WAIT_MAX:?} after a power cut"),
    }
}
