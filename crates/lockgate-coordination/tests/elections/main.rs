//! Elections over records in memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod busy;
mod careers;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod frozen;
mod lossy;
mod lost;
mod memory;
mod silent;
mod workers;

use std::time::Duration;

use lockgate_coordination::{AskToResign, Coordinator, Observe};
use lockgate_core::{ElectionName, Epoch, HolderName};

/// Asks the leader after `seen` to resign, once somebody stands to follow it.
async fn switch(coordinator: &impl Coordinator, election: &ElectionName, seen: &mut Option<Epoch>) {
    let leader = loop {
        let observe = Observe {
            election: election.clone(),
            seen: None,
            wait: Duration::ZERO,
        };
        let state = coordinator.observe(observe).await.unwrap();
        let next = state.leader.filter(|leader| Some(leader.epoch) != *seen);
        match next {
            Some(leader) if !state.candidates.is_empty() => break leader,
            _ => tokio::task::yield_now().await,
        }
    };
    *seen = Some(leader.epoch);
    let ask = AskToResign {
        election: election.clone(),
        epoch: leader.epoch,
        by: HolderName::new("operator").unwrap(),
        even_if_alone: false,
    };
    coordinator.ask_to_resign(ask).await.unwrap();
}
