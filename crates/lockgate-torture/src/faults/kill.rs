//! SIGKILL.

use std::time::Duration;

use anyhow::Result;

use crate::episode::Stage;

pub(super) async fn round(stage: &mut Stage) -> Result<()> {
    // Some work must have been answered since the last start, or a kill proves little; the moment
    // itself is chance.
    let random = &mut stage.random;
    let (messages, pause) = (random.below(400), random.below(200_000));
    stage.workload.progress(messages).await?;
    tokio::time::sleep(Duration::from_micros(pause)).await;
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
