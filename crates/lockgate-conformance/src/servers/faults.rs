//! Servers that are killed or frozen, and connections that are cut.

use std::{
    future::poll_fn,
    pin::pin,
    task::Poll,
    time::{Duration, Instant},
};

use lockgate_coordination::{
    Campaign, CoordinationError, Coordinator as _, EndReason, Guard, Observe, RecordsCoordinator,
    RecordsTenure, Tenure as _,
};
use lockgate_core::{
    DeleteRecord, ElectionName, HolderName, LeaseRecord, PutRecord, RecordName, RecordVersion,
    Records, RecordsError, WatchRecord,
};
use tokio::task::JoinHandle;

use super::{Proxy, Server, To};
use crate::records::{Register, Troubles};

/// Longer than a case takes.
const LONG: Duration = Duration::from_secs(60);

/// Answers come within it, and who waits for none is not kept for long.
const SHORT: Duration = Duration::from_millis(500);

/// How often the server is killed under its clients.
const KILLS: usize = 3;

/// What the cases have met, for a test of the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Writes that were cut off before they were asked for.
    pub gone: u32,
    /// Writes that were cut off, and are there.
    pub there: u32,
    /// Writes that were answered.
    pub answered: u32,
}

/// Runs every case.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn faults<S: Server>(server: S) -> Faults {
    println!("faults: a_write_that_is_cut_off_is_there_whole_or_not_at_all");
    let faults = a_write_that_is_cut_off_is_there_whole_or_not_at_all(&server).await;
    println!("faults: a_command_that_is_dropped_leaves_nothing_open");
    a_command_that_is_dropped_leaves_nothing_open(&server).await;
    println!("faults: a_frozen_server_is_given_up_and_asked_again");
    a_frozen_server_is_given_up_and_asked_again(&server).await;
    println!("faults: a_successor_is_woken");
    a_successor_is_woken(&server).await;
    println!("faults: a_leader_that_is_cut_off_limits_itself");
    a_leader_that_is_cut_off_limits_itself(&server).await;
    println!("faults: a_leader_stays_over_a_kill_within_its_lease");
    let server = a_leader_stays_over_a_kill_within_its_lease(server).await;
    println!("faults: what_is_watched_is_seen_over_a_kill");
    let server = what_is_watched_is_seen_over_a_kill(server).await;
    println!("faults: operations_are_linearizable_over_kills");
    operations_are_linearizable_over_kills(server).await;
    faults
}

fn name(text: &str) -> RecordName {
    RecordName::new(text).unwrap()
}

fn put(name: &RecordName, value: String, replaces: Option<RecordVersion>) -> PutRecord {
    PutRecord {
        name: name.clone(),
        value: value.into(),
        replaces,
        epoch: None,
    }
}

async fn connect<S: Server>(url: String, timeout: Duration) -> S::Records {
    S::connect(url, timeout).await.unwrap()
}

/// Asks until the store answers.
async fn answered<T, F: Future<Output = Result<T, RecordsError>>>(ask: impl Fn() -> F) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(RecordsError::Unavailable { .. }) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    }
}

async fn a_write_that_is_cut_off_is_there_whole_or_not_at_all<S: Server>(server: &S) -> Faults {
    let proxy = Proxy::start(&server.url());
    let of = &name("cut");
    let beside = connect::<S>(server.url(), LONG).await;
    let mut last = beside.put(put(of, "0".to_owned(), None)).await.unwrap();
    let mut faults = Faults::default();
    let cuts = (0..2_000).step_by(100).map(|bytes| (To::Server, bytes));
    for (to, bytes) in cuts.chain((0..60).step_by(6).map(|bytes| (To::Client, bytes))) {
        proxy.heal();
        let store = connect::<S>(proxy.url.clone(), LONG).await;
        // What is asked for the first time may take more than one request.
        let first = put(of, format!("before {to:?} {bytes}"), Some(last.version));
        last = store.put(first).await.unwrap();
        proxy.cut_after(to, bytes);
        let value = format!("{to:?} {bytes} {}", "x".repeat(600));
        let written = store.put(put(of, value.clone(), Some(last.version))).await;
        let now = beside.get(of.clone()).await.unwrap().unwrap();
        let is_there = now.version != last.version;
        if is_there {
            assert_eq!(
                (now.version.0, now.value),
                (last.version.0 + 1, value.into())
            );
        }
        match written {
            Ok(written) => {
                assert!(is_there);
                assert_eq!(written.version, now.version);
                faults.answered += 1;
            }
            Err(RecordsError::Unknown { .. }) if is_there => faults.there += 1,
            Err(RecordsError::Unknown { .. }) => faults.gone += 1,
            Err(RecordsError::Unavailable { .. }) => {
                assert!(!is_there, "it said that it did not happen");
            }
            Err(other) => panic!("{other}"),
        }
        proxy.heal();
        // The same handle goes on, and what was found stays so.
        let read = answered(|| store.get(of.clone())).await.unwrap();
        assert_eq!((read.version, read.revision), (now.version, now.revision));
        last.version = now.version;
    }
    assert!(
        faults.gone > 0 && faults.there > 0 && faults.answered > 0,
        "the cuts are everywhere: {faults:?}"
    );
    faults
}

/// Polls each command once, drops it, and goes on.
async fn a_command_that_is_dropped_leaves_nothing_open<S: Server>(server: &S) {
    let store = connect::<S>(server.url(), LONG).await;
    for number in 0..20 {
        let of = &name(&format!("dropped/{number}"));
        let lease = LeaseRecord {
            name: of.clone(),
            holder: HolderName::new("me").unwrap(),
            lease: 60_000,
            delete_at_end: false,
        };
        {
            let mut dropped = pin!(store.lease(lease));
            poll_fn(|context| {
                let _ = dropped.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
        }
        {
            let mut dropped = pin!(store.put(put(of, "x".to_owned(), None)));
            poll_fn(|context| {
                let _ = dropped.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
        }
        // What was dropped has happened or not, and nobody waits for it.
        let read = store.get(of.clone()).await.unwrap();
        if let Some(read) = read
            && read.lease.is_none()
        {
            let gone = DeleteRecord {
                name: of.clone(),
                replaces: read.version,
                epoch: None,
            };
            match store.delete(gone).await {
                Ok(()) | Err(RecordsError::Held { .. } | RecordsError::Conflict { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
    while S::open_work(server.url()).await > 0 {
        tokio::task::yield_now().await;
    }
}

async fn a_frozen_server_is_given_up_and_asked_again<S: Server>(server: &S) {
    let of = &name("frozen");
    let store = connect::<S>(server.url(), SHORT).await;
    let first = store.put(put(of, "one".to_owned(), None)).await.unwrap();
    server.signal("-STOP");
    // A process that is sent the signal may go on for a moment.
    let mut last = first.version;
    let asked = loop {
        let next = put(of, "two".to_owned(), Some(last));
        match store.put(next).await {
            Ok(written) => last = written.version,
            refused => break refused,
        }
    };
    assert!(
        matches!(asked, Err(RecordsError::Unknown { .. })),
        "{asked:?}"
    );
    let read = store.get(of.clone()).await;
    assert!(
        matches!(read, Err(RecordsError::Unavailable { .. })),
        "{read:?}"
    );
    // If it is greeted, nothing of this was asked for over a connection, so it did not happen.
    let other = store
        .put(put(&name("frozen/other"), "x".to_owned(), None))
        .await;
    let is_expected = match S::GREETS {
        true => matches!(other, Err(RecordsError::Unavailable { .. })),
        false => matches!(other, Err(RecordsError::Unknown { .. })),
    };
    assert!(is_expected, "{other:?}");
    server.signal("-CONT");
    // What was under way when it was frozen may happen now, or never.
    let now = answered(|| store.get(of.clone())).await.unwrap();
    assert!(now.value == "one" || now.value == "two");
    let other = answered(|| store.get(name("frozen/other"))).await;
    assert!(other.is_none() || !S::GREETS);
}

/// Planned hand-overs from one process to another, and how long each took: nothing is asserted of that.
async fn a_successor_is_woken<S: Server>(server: &S) {
    const HAND_OVERS: usize = 11;
    let mut processes = Vec::new();
    for number in 0..2 {
        let process = RecordsCoordinator::new(connect::<S>(server.url(), LONG).await);
        let name = HolderName::new(&format!("host-{number}")).unwrap();
        processes.push((
            process,
            Campaign::new(ElectionName::new("woken").unwrap(), name),
        ));
    }
    let (first, campaign) = &processes[0];
    let mut tenure = first.campaign(campaign.clone()).await.unwrap();
    let mut gaps = Vec::new();
    for number in 1..=HAND_OVERS {
        let (next, campaign) = processes[number % 2].clone();
        let stands = tokio::spawn(async move {
            let tenure = next.campaign(campaign).await.unwrap();
            (tenure, Instant::now())
        });
        let observe = Observe {
            election: ElectionName::new("woken").unwrap(),
            seen: None,
            wait: Duration::ZERO,
        };
        while first
            .observe(observe.clone())
            .await
            .unwrap()
            .candidates
            .is_empty()
        {
            tokio::task::yield_now().await;
        }
        let epoch = tenure.term().epoch;
        let asked = Instant::now();
        tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
        let (elected, at) = stands.await.unwrap();
        assert!(elected.term().epoch > epoch);
        tenure = elected;
        gaps.push(at - asked);
    }
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    gaps.sort();
    println!(
        "hand-overs took {:?} to {:?}, half of them {:?} at most",
        gaps[0],
        gaps[HAND_OVERS - 1],
        gaps[HAND_OVERS / 2]
    );
}

fn campaign(election: &str, candidate: &str, lease: Duration) -> Campaign {
    let candidate = HolderName::new(candidate).unwrap();
    Campaign {
        lease,
        margin: lease / 10,
        notice: Duration::ZERO,
        ..Campaign::new(ElectionName::new(election).unwrap(), candidate)
    }
}

type Process<S> = RecordsCoordinator<<S as Server>::Records>;
type Led<S> = RecordsTenure<<S as Server>::Records>;

/// Somebody who leads, and somebody who waits, each with a lease of so long.
async fn two<S: Server>(
    first: &Process<S>,
    second: &Process<S>,
    election: &str,
    lease: Duration,
) -> (Led<S>, JoinHandle<Result<Led<S>, CoordinationError>>) {
    let tenure = first.campaign(campaign(election, "a", lease)).await;
    let successor = tokio::spawn({
        let (second, campaign) = (second.clone(), campaign(election, "b", lease));
        async move { second.campaign(campaign).await }
    });
    let observe = Observe {
        election: ElectionName::new(election).unwrap(),
        seen: None,
        wait: Duration::ZERO,
    };
    let look = || second.observe(observe.clone());
    while look().await.unwrap().candidates.is_empty() {
        tokio::task::yield_now().await;
    }
    (tenure.unwrap(), successor)
}

/// A leader that is cut off is over by its own clock before its successor leads; what it says later is refused, and it can stand
/// again.
async fn a_leader_that_is_cut_off_limits_itself<S: Server>(server: &S) {
    const LEASE: Duration = Duration::from_secs(2);
    let proxy = Proxy::start(&server.url());
    let first = RecordsCoordinator::new(connect::<S>(proxy.url.clone(), SHORT).await);
    let second = RecordsCoordinator::new(connect::<S>(server.url(), LONG).await);
    let (tenure, successor) = two::<S>(&first, &second, "cut", LEASE).await;
    let mut guard = Guard::default();
    guard.admit(tenure.fence()).unwrap();
    proxy.cut();
    let next = successor.await.unwrap().unwrap();
    // Nobody has told it.
    assert!(tenure.fence().check().is_err(), "two lead");
    tenure.over().await;
    guard.admit(next.fence()).unwrap();
    assert!(guard.admit(tenure.fence()).is_err());
    proxy.heal();
    let saved = tenure.save("late".into()).await;
    assert!(
        matches!(saved, Err(CoordinationError::Over { .. })),
        "{saved:?}"
    );
    let resigned = tenure.resign(EndReason::LeaseLost, Some("late".into()));
    let resigned = resigned.await;
    assert!(
        matches!(
            resigned,
            Err(CoordinationError::Over { .. } | CoordinationError::Unknown { .. })
        ),
        "{resigned:?}"
    );
    let (again, resigned) = tokio::join!(
        first.campaign(campaign("cut", "a", LEASE)),
        next.resign(EndReason::EndOfTerm, None)
    );
    resigned.unwrap();
    let again = again.unwrap();
    assert_eq!(again.term().last_checkpoint, None);
    again.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// A server that is back before the lease ends costs nobody anything: the leader renews, and whoever waits keeps its place.
async fn a_leader_stays_over_a_kill_within_its_lease<S: Server>(server: S) -> S {
    const LEASE: Duration = Duration::from_secs(12);
    let first = RecordsCoordinator::new(connect::<S>(server.url(), SHORT).await);
    let second = RecordsCoordinator::new(connect::<S>(server.url(), SHORT).await);
    let (tenure, successor) = two::<S>(&first, &second, "killed", LEASE).await;
    let server = crash(server).await;
    // Until it has renewed its lease.
    let mut remaining = tenure.remaining();
    while tenure.remaining() <= remaining {
        remaining = tenure.remaining();
        tenure.fence().check().unwrap();
        tokio::task::yield_now().await;
    }
    assert!(!successor.is_finished());
    let epoch = tenure.term().epoch;
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let next = successor.await.unwrap().unwrap();
    assert!(next.term().epoch > epoch);
    assert_eq!(next.term().predecessor.as_ref().unwrap().epoch, epoch);
    next.resign(EndReason::EndOfTerm, None).await.unwrap();
    server
}

/// Meanwhile others go on.
async fn crash<S: Server>(mut server: S) -> S {
    let crashed = tokio::task::spawn_blocking(move || {
        server.crash();
        server
    });
    crashed.await.unwrap()
}

async fn what_is_watched_is_seen_over_a_kill<S: Server>(server: S) -> S {
    let of = &name("watched");
    let store = connect::<S>(server.url(), LONG).await;
    let first = store.put(put(of, "one".to_owned(), None)).await.unwrap();
    let watch = WatchRecord {
        name: of.clone(),
        seen: Some(first.revision),
        wait: LONG,
    };
    let watching = tokio::spawn({
        let store = store.clone();
        async move { answered(|| store.watch(watch.clone())).await }
    });
    let server = crash(server).await;
    let beside = connect::<S>(server.url(), LONG).await;
    let second = put(of, "two".to_owned(), Some(first.version));
    let second = beside.put(second).await.unwrap();
    let seen = watching.await.unwrap().unwrap();
    assert_eq!(
        (seen.version, seen.revision),
        (second.version, second.revision)
    );
    server
}

async fn operations_are_linearizable_over_kills<S: Server>(mut server: S) {
    let store = connect::<S>(server.url(), LONG).await;
    let register = Register::new(&store, name("register"), 120).await;
    register.goes_on(true);
    let kills = async {
        for kill in 1..=KILLS {
            register.reached(kill * 80).await;
            server = crash(server).await;
        }
        register.goes_on(false);
        server
    };
    let ((), _server) = tokio::join!(register.run(), kills);
    let troubles = register.check();
    assert_ne!(troubles, Troubles::default(), "the server was killed");
}
