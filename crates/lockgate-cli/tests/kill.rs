//! A real server process under load, killed with SIGKILL at random moments and started again on the
//! same folder. The workload and the checker are those of all faults: see `lockgate-torture`.
//!
//! `LOCKGATE_KILLS` says how often to kill (default 4; `cargo xtask kill --times 50` is the long form)
//! and `LOCKGATE_SEED` repeats a run as far as the scheduler lets it.

use std::env;

use anyhow::{Context as _, Result, ensure};
use lockgate_torture::{Episode, Fault};

#[test]
fn nothing_promised_is_broken_by_kills() -> Result<()> {
    let mut episode = Episode::new(Fault::Kill, env!("CARGO_BIN_EXE_lockgate").into());
    episode.rounds = from_environment("LOCKGATE_KILLS")?.unwrap_or(episode.rounds);
    episode.seed = from_environment("LOCKGATE_SEED")?.unwrap_or(episode.seed);
    println!(
        "LOCKGATE_KILLS={} LOCKGATE_SEED={}",
        episode.rounds, episode.seed
    );
    let figures = episode.run()?;
    ensure!(figures.good(), "{figures:#?}");
    Ok(())
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
