//! A frozen file system: writes hang, and so does the end of the process, until it thaws.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::{client::Client, episode::Stage, history::EventKind, volume::Volume};

/// How long a server may take to end gracefully, as its command line says it.
pub(super) const SHUTDOWN_TIMEOUT: &str = "3s";
const SHUTDOWN_MAX: Duration = Duration::from_secs(3 + 7);
/// From here on `/readyz` must fail; the server says 30 s, and looks now and then.
const STALLED_AFTER: Duration = Duration::from_secs(32);
/// From here on new sends must be refused.
const SHED_AFTER: Duration = Duration::from_secs(4);
const PROBE_EVERY: Duration = Duration::from_millis(500);
const PAGE_MAX: Duration = Duration::from_secs(3);
/// What a server that can finish nothing may take on top of what it had.
const MEMORY_MAX: u64 = 256 << 20;
const END_AFTER_THAW_MAX: Duration = Duration::from_secs(30);

pub(super) async fn round(stage: &mut Stage, volume: &mut Volume, round: u64) -> Result<()> {
    stage.workload.progress(200).await?;
    let terminate = round % 2 == 1;
    let length = match round {
        0 => Duration::from_secs(34),
        _ if terminate => Duration::from_millis(2000 + stage.random.below(2000)),
        _ => Duration::from_millis(1000 + stage.random.below(36_000)),
    };
    let before = stage.server.memory_max();
    let (refused, unknown) = (stage.workload.so_far().refused, stage.unknown());
    volume.freeze()?;
    let from = stage.history.now();
    let unready = frozen(stage, length, round).await;
    if terminate {
        ends_or_says_why(stage)?;
    }
    stage.history.happened(EventKind::Freeze, from);
    let frozen = stage.history.now() - from;
    volume.thaw()?;

    let shed = stage.workload.so_far().refused > refused;
    stage.figures.injected += 1;
    stage.figures.effective += u64::from(shed || unready || stage.unknown() > unknown);
    if frozen > SHED_AFTER && !terminate && !shed && !unready {
        stage.broken(format!(
            "frozen for {frozen:?}, and neither was a send refused nor did /readyz fail"
        ));
    }
    if frozen > STALLED_AFTER && !terminate && !unready {
        stage.broken(format!("/readyz did not fail in a freeze of {frozen:?}"));
    }
    let after = stage.server.memory_max();
    if after > before + MEMORY_MAX {
        stage.broken(format!(
            "memory grew from {before} to {after} bytes in a freeze of {frozen:?}"
        ));
    }
    if terminate {
        let Some(status) = stage.server.wait(END_AFTER_THAW_MAX)? else {
            bail!("the server still lived {END_AFTER_THAW_MAX:?} after SIGTERM and a thaw");
        };
        if status.code().is_none() {
            stage.broken(format!(
                "SIGTERM in a freeze ended the server with {status}"
            ));
        }
        stage.server.start_again()?;
    }
    stage.workload.progress(200).await?;
    stage.workload.probe_unique_ids(&mut stage.random).await
}

/// Goes on asking; returns whether `/readyz` failed with a reason.
async fn frozen(stage: &mut Stage, length: Duration, round: u64) -> bool {
    let began = Instant::now();
    let mut unready = false;
    let mut client = Client::new(stage.server.address());
    for probe in 0.. {
        let id = format!("freeze{round}-{probe}");
        stage.workload.send_once(stage.server.address(), id);
        match client.page("/readyz", PAGE_MAX).await {
            Some((200, _)) => {}
            Some((503, body)) if body.contains("reason") => unready = true,
            answer => stage.broken(format!("/readyz said {answer:?} in a freeze")),
        }
        match client.page("/healthz", PAGE_MAX).await {
            Some((200, _)) => {}
            answer => stage.broken(format!("/healthz said {answer:?} in a freeze")),
        }
        if began.elapsed() >= length {
            break;
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
    unready
}

/// SIGTERM: a process with a thread that hangs in the kernel cannot end, but it can say so.
fn ends_or_says_why(stage: &mut Stage) -> Result<()> {
    let lines = stage.server.log_lines();
    stage.server.terminate()?;
    if stage.server.wait(SHUTDOWN_MAX)?.is_some() {
        return Ok(());
    }
    let log = stage.server.log_since(lines);
    let says = ["not synced by the deadline", "the engine has stopped"];
    if !log
        .iter()
        .any(|line| says.iter().any(|said| line.contains(said)))
    {
        stage.broken(format!(
            "SIGTERM in a freeze: neither an end nor a reason after {SHUTDOWN_MAX:?}: {log:?}"
        ));
    }
    Ok(())
}
