//! What holds of elections while the wall clock of the store's server is moved.

use std::time::Duration;

use lockgate_coordination::RecordsCoordinator;
use lockgate_core::{
    ElectionName, HolderName,
    coordination::{
        Campaign, CoordinationError, Coordinator, ElectionState, EndReason, FenceError, Guard,
        Observe, Tenure as _,
    },
};

use tokio::task::JoinHandle;

use super::{Server, put};

/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(30);

async fn process<S: Server>(url: &str) -> RecordsCoordinator<S::Records> {
    RecordsCoordinator::new(S::connect(url.to_owned(), TIMEOUT).await.unwrap())
}

fn campaign(name: &str, lease: Duration) -> Campaign {
    let election = ElectionName::new("clocks").unwrap();
    let mut campaign = Campaign::new(election, HolderName::new(name).unwrap());
    campaign.lease = lease;
    campaign.margin = lease / 10;
    campaign.notice = lease / 5;
    campaign
}

/// Stands in a task of its own. The task ends when it leads.
fn stands<C: Coordinator + Clone>(
    coordinator: &C,
    campaign: Campaign,
) -> JoinHandle<Result<C::Tenure, CoordinationError>> {
    let coordinator = coordinator.clone();
    tokio::spawn(async move { coordinator.campaign(campaign).await })
}

/// A leader's clock is its own, and a server's clock ends leases: one that is set forward ends them early, so that two may lead,
/// and the fence of the first is refused; one that is set back ends them late, and a leader that renews is seen by the new
/// time. Epochs rise all the same. `move_clock` sets the server's clock to the real time and so many seconds.
///
/// # Panics
/// If that does not hold.
pub async fn clocks<S: Server>(url: &str, move_clock: impl Fn(i64)) {
    const HOUR: i64 = 3_600;
    let (first, second) = (process::<S>(url).await, process::<S>(url).await);
    let store = S::connect(url.to_owned(), TIMEOUT).await.unwrap();
    let look = async || -> ElectionState {
        let observe = Observe {
            election: ElectionName::new("clocks").unwrap(),
            seen: None,
            wait: Duration::ZERO,
        };
        first.observe(observe).await.unwrap()
    };
    let mut guard = Guard::default();

    // Forward, by more than the lease: whoever comes by next ends it.
    let (long, short) = (Duration::from_secs(600), Duration::from_secs(3));
    let leads = first.campaign(campaign("first", long)).await.unwrap();
    guard.admit(leads.fence()).unwrap();
    let standing = stands(&second, campaign("second", short));
    while look().await.candidates.is_empty() {}
    move_clock(HOUR);
    lockgate_core::Records::put(&store, put("other", "x"))
        .await
        .unwrap();
    let next = standing.await.unwrap().unwrap();
    assert!(next.term().epoch > leads.term().epoch);
    guard.admit(next.fence()).unwrap();
    // By its own clock it would lead for minutes yet. What it writes to knows better, and it is told.
    assert!(matches!(
        guard.admit(leads.fence()),
        Err(FenceError::Deposed { .. })
    ));
    leads.lost().await;
    drop(leads);

    // Back, by more than the lease: the leader's next renewal makes its lease end by the new time.
    move_clock(-HOUR);
    while look().await.leader.unwrap().remaining > short {}
    let standing = stands(&first, campaign("first", short));
    while look().await.candidates.is_empty() {}
    assert!(!standing.is_finished());
    let epoch = next.term().epoch;
    guard.admit(next.fence()).unwrap();
    next.resign(EndReason::EndOfTerm, None).await.unwrap();
    let last = standing.await.unwrap().unwrap();
    assert!(last.term().epoch > epoch, "an hour earlier than the last");
    guard.admit(last.fence()).unwrap();

    // A crash is waited out by the clock as it is now.
    let epoch = last.term().epoch;
    drop(last);
    let after = second.campaign(campaign("second", short)).await.unwrap();
    assert!(after.term().epoch > epoch);
    after.resign(EndReason::EndOfTerm, None).await.unwrap();
}
