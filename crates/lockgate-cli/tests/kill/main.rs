//! A real server process under load, killed with SIGKILL at random moments and started again on the
//! same folder.
//!
//! Producers, consumers and probes record what they saw; [`checker`] judges the histories alone.
//! What must hold: no acknowledged send is lost, no acknowledged ack undone, every key stays in order
//! with one holder at a time, and unique ids are remembered. Outcomes nobody was told stay open.
//!
//! `LOCKGATE_KILLS` says how often to kill (default 4; `cargo xtask kill --times 50` is the long form)
//! and `LOCKGATE_SEED` repeats a run as far as the scheduler lets it.

use std::{env, fs, time::Duration};

use anyhow::{Context as _, Result, anyhow};

mod checker;
mod client;
mod history;
mod random;
mod server;
mod workload;

use history::History;
use random::Random;
use server::Server;
use workload::Workload;

/// No single answer may take so long; a run that shows none for this time has hung.
const STALL_MAX: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_promised_is_broken_by_kills() -> Result<()> {
    let kills = from_environment("LOCKGATE_KILLS")?.unwrap_or(4);
    let seed = from_environment("LOCKGATE_SEED")?.unwrap_or_else(random::fresh_seed);
    println!("LOCKGATE_KILLS={kills} LOCKGATE_SEED={seed}");

    let folder = tempfile::tempdir()?;
    let history = History::default();
    let mut server = Server::start(folder.path())?;
    let result = tokio::select! {
        result = run(kills, Random::new(seed), &mut server, &history) => result,
        () = stalled(&history) => Err(anyhow!("no answer came for {STALL_MAX:?}")),
    };
    let report = history.with(|records| checker::check(records));
    println!("{kills} kills: {report}");
    // A run that did not come to its end left messages behind, but what else it broke may say why.
    for problem in report.problems.iter().take(50) {
        println!("  {problem}");
    }
    let result = match report.problems.len() {
        0 => result,
        broken => result.and(Err(anyhow!("{broken} promises broken"))),
    };
    if result.is_err() {
        let folder = folder.keep();
        history.with(|records| fs::write(folder.join("history.txt"), format!("{records:#?}")))?;
        println!("data, server log and history are in {}", folder.display());
        println!(
            "the end of the server's log:\n{}",
            server::log_tail(&folder)
        );
    }
    result
}

/// Loads the server, kills and restarts it, and ends with an empty queue.
async fn run(kills: u64, mut random: Random, server: &mut Server, history: &History) -> Result<()> {
    let mut workload = Workload::start(server.address(), history, &mut random).await?;
    for kill in 0..kills {
        // Some work must have been answered since the last start, or a kill proves little; the
        // moment itself is chance.
        workload.progress(random.below(400)).await?;
        tokio::time::sleep(Duration::from_micros(random.below(200_000))).await;
        if random.once_in(4) {
            server.kill_and_kill_the_next(Duration::from_micros(random.below(20_000)))?;
        }
        server
            .restart_after_kill()
            .with_context(|| format!("start after kill {kill}"))?;
        workload.probe_unique_ids(&mut random).await?;
    }
    workload.drain().await?;
    // What was acknowledged last must be gone for good too.
    server
        .restart_after_kill()
        .context("start after the last kill")?;
    workload.expect_empty().await
}

/// Returns when the history has not grown for [`STALL_MAX`].
async fn stalled(history: &History) {
    let mut seen = 0;
    loop {
        tokio::time::sleep(STALL_MAX).await;
        let length = history.with(|records| records.answered());
        if length == seen {
            return;
        }
        seen = length;
    }
}

fn from_environment(name: &str) -> Result<Option<u64>> {
    match env::var(name) {
        Ok(text) => {
            Ok(Some(text.parse().with_context(|| {
                format!("{name}={text} is not a number")
            })?))
        }
        Err(_) => Ok(None),
    }
}
