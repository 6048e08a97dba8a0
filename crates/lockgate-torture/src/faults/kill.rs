//! SIGKILL.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::episode::Stage;

/// A snapshot comes within this under the usual load; if not, the moment is chance again.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(2);

pub(super) async fn round(stage: &mut Stage) -> Result<()> {
    // Some work must have been answered since the last start, or a kill proves little; the moment
    // itself is chance.
    let random = &mut stage.random;
    let (messages, pause) = (random.below(400), random.below(200_000));
    stage.workload.progress(messages).await?;
    tokio::time::sleep(Duration::from_micros(pause)).await;
    // Snapshots are short and rare: without looking for one, hardly any would be hit.
    if stage.random.once_in(3) {
        let until = Instant::now() + SNAPSHOT_WITHIN;
        while !stage.server.has_half_a_snapshot() && Instant::now() < until {
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    }
    let unknown = stage.unknown();
    if stage.random.once_in(4) {
        let after = Duration::from_micros(stage.random.below(20_000));
        stage.server.kill_and_kill_the_next(after)?;
        stage.figures.kills += 1;
    }
    stage.kill()?;
    stage.server.start_again()?;
    stage.injected(unknown);
    stage.workload.probe_unique_ids(&mut stage.random).await
}
