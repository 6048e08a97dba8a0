//! Careers of singletons, over records in memory.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use lockgate_consumer::MemoryRecords;
use lockgate_coordination::{
    Campaign, CoordinationError, Coordinator, ElectionState, EndReason, Ended, Fence, Guard,
    HandOver, InFlight, LeaderCareer, Next, Observe, RecordsCoordinator, Singleton, Tenure, Term,
    Unit,
};
use lockgate_core::{Backoff, ElectionName, HolderName};
use tokio::sync::{Notify, oneshot};

use crate::switch;

type InMemory = RecordsCoordinator<MemoryRecords>;

fn campaign(candidate: &str) -> Campaign {
    Campaign::new(
        ElectionName::new("numbers").unwrap(),
        HolderName::new(candidate).unwrap(),
    )
}

async fn look(coordinator: &InMemory) -> ElectionState {
    let observe = Observe {
        election: campaign("a").election,
        seen: None,
        wait: Duration::ZERO,
    };
    coordinator.observe(observe).await.unwrap()
}

/// What a sink has taken: numbers, each once and in order, whoever leads.
#[derive(Default)]
struct Numbers {
    guard: Guard,
    numbers: Vec<u64>,
    leaders: Vec<HolderName>,
}

/// Writes numbers, from its predecessor's last one on.
struct Writes {
    sink: Arc<Mutex<Numbers>>,
    next: u64,
    max: u64,
    is_warm: bool,
    ends: Vec<EndReason>,
}

impl Writes {
    fn new(sink: &Arc<Mutex<Numbers>>, max: u64) -> Self {
        Self {
            sink: sink.clone(),
            next: 0,
            max,
            is_warm: false,
            ends: Vec::new(),
        }
    }
}

impl LeaderCareer for Writes {
    type Error = String;

    async fn warm_up(&mut self, _: &ElectionState) -> Result<(), String> {
        self.is_warm = true;
        Ok(())
    }

    async fn inaugurate(&mut self, term: &Term, fence: &Fence) -> Result<(), String> {
        assert!(self.is_warm, "whoever leads is warm");
        self.is_warm = false;
        let left = term.last_checkpoint.as_ref();
        self.next = left.map_or(0, |left| {
            u64::from_be_bytes(left.value.as_ref().try_into().unwrap())
        });
        let mut sink = self.sink.lock().unwrap();
        sink.guard.admit(fence).unwrap();
        sink.leaders.push(term.leader.clone());
        Ok(())
    }

    async fn execute(&mut self, fence: &Fence) -> Result<Next, String> {
        let mut sink = self.sink.lock().unwrap();
        sink.guard.admit(fence).unwrap();
        sink.numbers.push(self.next);
        self.next += 1;
        Ok(match self.next == self.max {
            true => Next::Done,
            false => Next::Again,
        })
    }

    async fn hand_over(&mut self, hand_over: HandOver<'_>) -> Result<Option<Bytes>, String> {
        hand_over.fence.check().unwrap();
        self.ends.push(hand_over.reason);
        Ok(Some(self.next.to_be_bytes().to_vec().into()))
    }
}

/// Leaders are asked to go again and again: each goes on where the one before has stopped, and all take their turn.
#[tokio::test]
async fn careers_are_handed_over_without_a_gap() {
    const SWITCHES: usize = 50;
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let sink = Arc::new(Mutex::new(Numbers::default()));
    let mut stops = Vec::new();
    let mut tasks = tokio::task::JoinSet::new();
    for candidate in ["a", "b", "c"] {
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        let singleton = Singleton::new(coordinator.clone(), campaign(candidate));
        let mut career = Writes::new(&sink, u64::MAX);
        tasks.spawn(async move {
            let ended = singleton.run_until(&mut career, async {
                let _ = stopped.await;
            });
            (ended.await, career.ends)
        });
    }
    let mut seen = None;
    for _ in 0..SWITCHES {
        switch(&coordinator, &campaign("a").election, &mut seen).await;
    }
    for stop in stops {
        let _ = stop.send(());
    }
    let mut handed = 0;
    while let Some(ended) = tasks.join_next().await {
        let (ended, ends) = ended.unwrap();
        assert_eq!(ended, Ok(Ended::Stopped));
        assert!(ends.iter().all(|reason| *reason == EndReason::Asked));
        handed += ends.len();
    }
    let sink = sink.lock().unwrap();
    assert!(handed >= SWITCHES, "{handed}");
    assert_eq!(handed, sink.leaders.len());
    let dense = (0..).zip(&sink.numbers).all(|(at, number)| at == *number);
    assert!(dense, "a number is missing, or is there twice");
    let turns = sink.leaders.windows(3).take(SWITCHES - 3);
    let mut turns = turns.map(|turn| (&turn[0], &turn[1], &turn[2]));
    assert!(turns.all(|(a, b, c)| a != b && b != c && a != c));
}

#[tokio::test]
async fn what_is_done_ends_the_career_and_is_left_to_others() {
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let sink = Arc::new(Mutex::new(Numbers::default()));
    let mut career = Writes::new(&sink, 3);
    let singleton = Singleton::new(coordinator.clone(), campaign("a"));
    assert_eq!(singleton.run(&mut career).await, Ok(Ended::Done));
    assert_eq!(career.ends, [EndReason::EndOfTerm]);
    let state = look(&coordinator).await;
    assert_eq!((state.leader, state.candidates), (None, Vec::new()));
    let left = state.last_checkpoint.unwrap();
    assert_eq!(left.value, 3_u64.to_be_bytes().to_vec());
}

/// A career in which each unit waits to be let go.
struct Waits {
    policy: InFlight,
    /// Told when a unit has begun.
    begun: Arc<Notify>,
    go: Arc<Notify>,
    units: Vec<(EndReason, Unit)>,
    is_stuck: bool,
}

impl Waits {
    fn new(policy: InFlight) -> Self {
        Self {
            policy,
            begun: Arc::default(),
            go: Arc::default(),
            units: Vec::new(),
            is_stuck: false,
        }
    }
}

impl LeaderCareer for Waits {
    type Error = String;

    fn in_flight(&self) -> InFlight {
        self.policy
    }

    async fn inaugurate(&mut self, _: &Term, _: &Fence) -> Result<(), String> {
        Ok(())
    }

    async fn execute(&mut self, fence: &Fence) -> Result<Next, String> {
        self.begun.notify_one();
        self.go.notified().await;
        if let InFlight::Checkpoint(_) = self.policy {
            while !fence.is_ending() {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(
            fence.is_ending(),
            matches!(self.policy, InFlight::Checkpoint(_))
        );
        Ok(Next::Again)
    }

    async fn hand_over(&mut self, hand_over: HandOver<'_>) -> Result<Option<Bytes>, String> {
        self.units.push((hand_over.reason, hand_over.unit));
        if self.is_stuck {
            std::future::pending::<()>().await;
        }
        Ok(None)
    }
}

/// Runs a career until its unit is under way, tells it to stop, and then lets the unit go on, if at all.
async fn stopped(policy: InFlight, goes_on: bool) -> (Vec<(EndReason, Unit)>, ElectionState) {
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let mut career = Waits::new(policy);
    let (begun, go) = (career.begun.clone(), career.go.clone());
    let singleton = Singleton::new(coordinator.clone(), campaign("a"));
    let ended = singleton.run_until(&mut career, async move {
        begun.notified().await;
        if goes_on {
            go.notify_one();
        }
    });
    assert_eq!(ended.await, Ok(Ended::Stopped));
    (career.units, look(&coordinator).await)
}

#[tokio::test]
async fn the_unit_in_flight_ends_as_its_career_says() {
    let (second, soon) = (Duration::from_secs(1), Duration::from_millis(1));
    for (policy, goes_on, unit) in [
        (InFlight::Abort, false, Unit::Dropped),
        (InFlight::Finish(second), true, Unit::Ended),
        (InFlight::Finish(soon), false, Unit::Dropped),
        (InFlight::Checkpoint(second), true, Unit::Ended),
        (InFlight::Checkpoint(soon), false, Unit::Dropped),
    ] {
        let (units, state) = stopped(policy, goes_on).await;
        assert_eq!(units, [(EndReason::Asked, unit)], "{policy:?}");
        // The lease is given back behind it.
        assert_eq!(state.leader, None, "{policy:?}");
        let last = state.history.first().unwrap().ended.unwrap();
        assert_eq!(last.reason, EndReason::Asked);
    }
}

/// A process that ends when its singleton has would leave its place in the line to its lease.
#[tokio::test]
async fn a_candidate_that_is_stopped_leaves_no_place() {
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let leads = coordinator.campaign(campaign("a")).await.unwrap();
    let singleton = Singleton::new(coordinator.clone(), campaign("b"));
    let stands = async {
        while look(&coordinator).await.candidates.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let mut career = Waits::new(InFlight::Abort);
    let ended = singleton.run_until(&mut career, stands).await;
    assert_eq!(ended, Ok(Ended::Stopped));
    assert_eq!(look(&coordinator).await.candidates, []);
    leads.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// Something of a hand-over that does not end may still write: its successor waits until the lease ends.
#[tokio::test]
async fn a_hand_over_that_is_stuck_keeps_its_lease() {
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let mut career = Waits::new(InFlight::Abort);
    career.is_stuck = true;
    let begun = career.begun.clone();
    let singleton = Singleton::new(coordinator.clone(), campaign("a"));
    let singleton = singleton.hand_over_within(Duration::from_millis(1));
    let ended = singleton.run_until(&mut career, async move { begun.notified().await });
    assert_eq!(ended.await, Ok(Ended::Stopped));
    let state = look(&coordinator).await;
    assert!(state.leader.is_some());
}

#[tokio::test]
async fn a_notice_that_is_too_short_for_a_unit_is_refused() {
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let mut career = Waits::new(InFlight::Finish(Duration::from_secs(3)));
    let singleton = Singleton::new(coordinator, campaign("a"));
    let refused = singleton.run(&mut career).await;
    assert!(
        matches!(refused, Err(CoordinationError::Invalid { .. })),
        "{refused:?}"
    );
}

/// Fails at each call with that number, and then is done.
struct Fails {
    calls: Vec<&'static str>,
}

impl Fails {
    fn call(&mut self, what: &'static str, fails: usize) -> Result<(), String> {
        self.calls.push(what);
        let times = self.calls.iter().filter(|call| **call == what).count();
        match times == fails {
            true => Err("a planted failure".to_owned()),
            false => Ok(()),
        }
    }
}

impl LeaderCareer for Fails {
    type Error = String;

    async fn warm_up(&mut self, _: &ElectionState) -> Result<(), String> {
        self.call("warm up", 1)
    }

    async fn inaugurate(&mut self, _: &Term, _: &Fence) -> Result<(), String> {
        self.call("inaugurate", 1)
    }

    async fn execute(&mut self, _: &Fence) -> Result<Next, String> {
        self.call("execute", 1)?;
        Ok(Next::Done)
    }

    async fn hand_over(&mut self, hand_over: HandOver<'_>) -> Result<Option<Bytes>, String> {
        let call = match hand_over.reason {
            EndReason::Error => "hand over the error",
            _ => "hand over",
        };
        self.call(call, 1)?;
        Ok(None)
    }
}

/// Each failure ends the term, and others may lead meanwhile.
#[tokio::test]
async fn a_career_that_fails_is_tried_again() {
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let mut career = Fails { calls: Vec::new() };
    let singleton = Singleton::new(coordinator.clone(), campaign("a"));
    let singleton = singleton.backoff(Backoff { first: 1, max: 1 });
    assert_eq!(singleton.run(&mut career).await, Ok(Ended::Done));
    let term = ["warm up", "inaugurate", "hand over the error"];
    let mut calls = vec!["warm up"];
    calls.extend(term);
    calls.extend(["warm up", "inaugurate", "execute", "hand over the error"]);
    calls.extend(["warm up", "inaugurate", "execute", "hand over"]);
    assert_eq!(career.calls, calls);
    let state = look(&coordinator).await;
    let reasons = state.history.iter().map(|term| term.ended.unwrap().reason);
    let (error, done) = (EndReason::Error, EndReason::EndOfTerm);
    assert_eq!(Vec::from_iter(reasons), [done, error, error]);
}
