//! Elections over ZooKeeper, beside candidates of Curator: `./scripts/test --only zookeeper`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conforms;
mod curator;
mod faults;
mod processes;
mod proxy;
mod queue_chaos;
mod queue_faults;
mod queues;
mod server;

use std::time::Duration;

use lockgate_coordination::{Campaign, Coordinator, ElectionState, Observe};
use lockgate_core::{ElectionName, HolderName};

fn election(text: &str) -> ElectionName {
    ElectionName::new(text).unwrap()
}

fn name(text: &str) -> HolderName {
    HolderName::new(text).unwrap()
}

/// One whose lease ends soon.
fn short(election: &ElectionName, candidate: &str) -> Campaign {
    Campaign {
        lease: Duration::from_secs(2),
        margin: Duration::from_millis(400),
        notice: Duration::ZERO,
        ..Campaign::new(election.clone(), name(candidate))
    }
}

/// One whose lease does not end by itself.
fn long(election: &ElectionName, candidate: &str) -> Campaign {
    Campaign {
        lease: Duration::from_secs(60),
        margin: Duration::from_secs(6),
        notice: Duration::ZERO,
        ..Campaign::new(election.clone(), name(candidate))
    }
}

async fn look(coordinator: &impl Coordinator, election: &ElectionName) -> ElectionState {
    let observe = Observe {
        election: election.clone(),
        seen: None,
        wait: Duration::ZERO,
    };
    coordinator.observe(observe).await.unwrap()
}

/// Waits until the election is as the test wants it.
async fn until(
    coordinator: &impl Coordinator,
    election: &ElectionName,
    is_so: impl Fn(&ElectionState) -> bool,
) -> ElectionState {
    loop {
        let state = look(coordinator, election).await;
        if is_so(&state) {
            return state;
        }
        tokio::task::yield_now().await;
    }
}
