//! A full disk: sends are refused with the reason, everything that makes room goes on, and sends
//! are taken again without anybody's help.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use crate::{
    client::Client,
    episode::Stage,
    volume::Volume,
    workload::{Progress, Size, answered, create_queue},
};

/// As much as fits.
pub(super) const SIZE: Size = Size {
    pending_max: 1_000_000,
    body_scale: 40,
};
pub(super) const VOLUME_BYTES: u64 = 320 << 20;
/// Marks for so small a disk.
pub(super) const MARKS: [&str; 4] = ["--free-low", "64MiB", "--free-min", "32MiB"];
/// Refusals that show that it is no accident.
const REFUSALS: u64 = 50;
const PURGED: u64 = 50;
/// Within this a full disk shows; the server looks twice a second.
const SHOWN_MAX: Duration = Duration::from_secs(20);
const PAGE_MAX: Duration = Duration::from_secs(5);
const FILL_MAX: Duration = Duration::from_secs(120);
const ROOM_MAX: Duration = Duration::from_secs(120);

pub(super) async fn round(stage: &mut Stage, _volume: &mut Volume, round: u64) -> Result<()> {
    let mut client = Client::new(stage.server.address());
    // One of its own: a queue may be purged only once a minute.
    let purged = format!("purged{round}");
    let purged = create_queue(&mut client, &purged, &json!({})).await?;
    let mut filled = false;
    for number in 0..PURGED {
        let message = json!({ "QueueUrl": purged, "MessageBody": format!("purge {number}") });
        answered(&mut client, "SendMessage", &message).await?;
    }

    stage.workload.consume(false);
    let before = stage.workload.so_far();
    let full = within(FILL_MAX, stage, |now| {
        now.refused >= before.refused + REFUSALS
    })
    .await?;
    stage.figures.injected += 1;
    if full {
        filled = true;
        stage.figures.effective += 1;
    } else {
        stage.broken(format!("no send was refused after {FILL_MAX:?}"));
    }
    let reasons = stage.workload.reasons();
    if filled && !reasons.keys().any(|reason| reason.contains("full")) {
        stage.broken(format!("no refusal names the full disk: {reasons:?}"));
    }

    if filled {
        shows_full(stage, &mut client).await;
    }

    // Everything that makes room goes on.
    let purge = json!({ "QueueUrl": purged });
    if let Err(error) = client.call("PurgeQueue", &purge).await {
        stage.broken(format!("PurgeQueue on a full disk: {error}"));
    }
    if round % 2 == 1 {
        stage.kill()?;
        stage
            .server
            .start_again()
            .context("starting on a full disk")?;
    }
    let before = stage.workload.so_far();
    stage.workload.consume(true);
    // Producers go on trying: what makes room is acks alone.
    if !within(ROOM_MAX, stage, |now| now.acked >= before.acked + 500).await? {
        bail!("no acks on a full disk: {:?}", stage.workload.reasons());
    }
    let before = stage.workload.so_far();
    if !within(ROOM_MAX, stage, |now| now.accepted >= before.accepted + 200).await? {
        bail!(
            "sends are still refused {ROOM_MAX:?} after consumers went on: {:?}",
            stage.workload.reasons()
        );
    }
    let reasons = stage.workload.reasons();
    let withheld = |reason: &str| {
        (reason.starts_with("settle:") || reason.starts_with("receive:")) && reason.contains("full")
    };
    for reason in reasons.keys().filter(|reason| withheld(reason)) {
        stage.broken(format!("refused on a full disk: {reason}"));
    }
    Ok(())
}

/// An operator must see it: on both pages, and in the log.
async fn shows_full(stage: &mut Stage, client: &mut Client) {
    let metric = "\nlockgate_log_space_state{state=\"full\"} 1\n";
    let page = |answer: Option<(u16, String)>| answer.unwrap_or_default();
    let deadline = Instant::now() + SHOWN_MAX;
    loop {
        let ready = page(client.page("/readyz", PAGE_MAX).await);
        let metrics = page(client.page("/metrics", PAGE_MAX).await);
        let log = stage.server.log_since(0);
        let is_logged = log.iter().any(|line| line.contains("the disk is full"));
        let is_ready = ready.0 == 200 && ready.1.contains("\"space\":\"full\"");
        if is_ready && metrics.1.contains(metric) && is_logged {
            return;
        }
        if Instant::now() >= deadline {
            stage.broken(format!(
                "a full disk does not show: /readyz {ready:?}, in /metrics {}, in the log {is_logged}",
                metrics.1.contains(metric)
            ));
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the workload gets there in time.
async fn within(
    time: Duration,
    stage: &mut Stage,
    reached: impl Fn(&Progress) -> bool,
) -> Result<bool> {
    match tokio::time::timeout(time, stage.workload.reach(reached)).await {
        Ok(result) => result.map(|()| true),
        Err(_) => Ok(false),
    }
}
