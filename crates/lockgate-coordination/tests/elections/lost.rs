//! Careers of which the lease is lost: no renewal is answered, or somebody has taken it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use lockgate_conformance::records::Lossy;
use lockgate_consumer::{Job, MemoryOptions, MemoryQueue, MemoryRecords, Worker};
use lockgate_coordination::{
    Campaign, EndReason, Ended, Fence, HandOver, InFlight, LeaderCareer, Next, RecordsCoordinator,
    Singleton, Term, Unit, WorkerCareer,
};
use lockgate_core::{
    Clock as _, ElectionName, HolderName, ManualClock, Message, RecordName, Records as _,
    ReleaseRecord,
};
use tokio::sync::Notify;

const SECOND: Duration = Duration::from_secs(1);

/// When a leader that cannot renew is called, and when its term is over: by the defaults of a campaign.
const CALLED: u64 = 7_000;
const OVER: u64 = 9_000;
const LEASE: u64 = 10_000;

type Store = Lossy<MemoryRecords>;

fn campaign() -> Campaign {
    Campaign::new(
        ElectionName::new("numbers").unwrap(),
        HolderName::new("a").unwrap(),
    )
}

fn term() -> RecordName {
    RecordName::new("election/term/numbers").unwrap()
}

/// A store by that clock, which answers standing, claiming and opening, and no change behind them but that the line is left.
fn silent(clock: &ManualClock) -> Store {
    let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
    Lossy::new(records, |number| (number > 2).then_some(false))
}

/// When it is dropped, by the clock.
struct Dropped {
    clock: ManualClock,
    at: Arc<Mutex<Option<u64>>>,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.at.lock().unwrap() = Some(self.clock.since_boot());
    }
}

/// Waits in a unit, and ends it as its policy says or not at all.
struct Waits {
    policy: InFlight,
    goes_on: bool,
    is_stuck: bool,
    clock: ManualClock,
    called: Arc<Notify>,
    done: Arc<Notify>,
    /// What a hand-over was told, and when.
    told: Option<(EndReason, Unit, Duration, u64)>,
    unit_ended: Arc<Mutex<Option<u64>>>,
    hand_over_ended: Arc<Mutex<Option<u64>>>,
}

impl Waits {
    fn new(clock: &ManualClock, policy: InFlight) -> Self {
        Self {
            policy,
            goes_on: false,
            is_stuck: false,
            clock: clock.clone(),
            called: Arc::default(),
            done: Arc::default(),
            told: None,
            unit_ended: Arc::default(),
            hand_over_ended: Arc::default(),
        }
    }

    fn dropped(&self, at: &Arc<Mutex<Option<u64>>>) -> Dropped {
        let (clock, at) = (self.clock.clone(), at.clone());
        Dropped { clock, at }
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
        let _dropped = self.dropped(&self.unit_ended);
        match self.policy {
            InFlight::Checkpoint(_) if self.goes_on => {
                while !fence.is_ending() {
                    tokio::task::yield_now().await;
                }
            }
            _ if self.goes_on => self.called.notified().await,
            _ => std::future::pending().await,
        }
        Ok(Next::Again)
    }

    async fn hand_over(&mut self, hand_over: HandOver<'_>) -> Result<Option<Bytes>, String> {
        let HandOver {
            reason,
            unit,
            within,
            ..
        } = hand_over;
        self.told = Some((reason, unit, within, self.clock.since_boot()));
        self.done.notify_one();
        let _dropped = self.dropped(&self.hand_over_ended);
        if self.is_stuck {
            std::future::pending::<()>().await;
        }
        Ok(None)
    }
}

/// Lets time pass until the run has ended. Meanwhile the lease is there until it ends by itself.
async fn led(store: &Store, clock: &ManualClock, mut career: Waits) -> Waits {
    let coordinator = RecordsCoordinator::new(store.clone()).clock(Arc::new(clock.clone()));
    let (called, done) = (career.called.clone(), career.done.clone());
    let began = clock.since_boot();
    let passes = async {
        loop {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            let passed = clock.since_boot() - began;
            if let Some(term) = store.store().get(term()).await.unwrap() {
                assert_eq!(term.lease.is_some(), passed < LEASE, "after {passed} ms");
            }
            clock.advance(100);
            store.store().clock_changed();
            coordinator.clock_changed();
            if passed == CALLED {
                called.notify_one();
            }
        }
    };
    let singleton = Singleton::new(coordinator.clone(), campaign());
    tokio::select! {
        ended = singleton.run_until(&mut career, done.notified()) => {
            assert_eq!(ended, Ok(Ended::Stopped));
        }
        () = passes => {}
    }
    for at in [&career.unit_ended, &career.hand_over_ended] {
        let mut at = at.lock().unwrap();
        *at = at.map(|at| at - began);
    }
    if let Some((.., at)) = &mut career.told {
        *at -= began;
    }
    career
}

/// Whatever its policy, a unit has ended when the term is over, and the hand-over has what is left of that. No lease is given back.
#[tokio::test]
async fn a_unit_and_its_hand_over_end_with_a_term_whose_lease_is_lost() {
    let (all, none) = (2 * SECOND, Duration::ZERO);
    for (policy, goes_on, unit, at, within) in [
        (InFlight::Abort, false, Unit::Dropped, CALLED, all),
        (InFlight::Finish(all), false, Unit::Dropped, OVER, none),
        (InFlight::Checkpoint(all), false, Unit::Dropped, OVER, none),
        (InFlight::Checkpoint(all), true, Unit::Ended, CALLED, all),
    ] {
        let clock = ManualClock::default();
        let store = silent(&clock);
        let mut career = Waits::new(&clock, policy);
        career.goes_on = goes_on;
        let career = led(&store, &clock, career).await;
        assert_eq!(
            career.told,
            Some((EndReason::LeaseLost, unit, within, at)),
            "{policy:?}"
        );
        assert_eq!(*career.unit_ended.lock().unwrap(), Some(at), "{policy:?}");
    }
    // A unit that goes on to its end leaves less.
    let clock = ManualClock::default();
    let mut career = Waits::new(&clock, InFlight::Finish(all));
    career.goes_on = true;
    let career = led(&silent(&clock), &clock, career).await;
    let (reason, unit, within, at) = career.told.unwrap();
    assert_eq!((reason, unit), (EndReason::LeaseLost, Unit::Ended));
    assert!((CALLED..OVER).contains(&at) && within == Duration::from_millis(OVER - at));
}

/// A hand-over that does not end is dropped when the term is over, and not later.
#[tokio::test]
async fn a_hand_over_that_is_stuck_ends_with_the_term() {
    let clock = ManualClock::default();
    let mut career = Waits::new(&clock, InFlight::Abort);
    career.is_stuck = true;
    let career = led(&silent(&clock), &clock, career).await;
    assert_eq!(*career.hand_over_ended.lock().unwrap(), Some(OVER));
}

/// Whose lease is another's, or nobody's, may do nothing more.
#[tokio::test]
async fn a_leader_whose_lease_was_taken_has_no_time_to_hand_over() {
    let clock = ManualClock::default();
    let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
    let coordinator = RecordsCoordinator::new(records.clone()).clock(Arc::new(clock.clone()));
    let mut career = Waits::new(&clock, InFlight::Finish(SECOND));
    career.is_stuck = true;
    let singleton = Singleton::new(coordinator, campaign());
    let done = career.done.clone();
    let takes = async {
        let lease = loop {
            tokio::task::yield_now().await;
            let read = records.get(term()).await.unwrap();
            if let Some(record) = read.filter(|record| !record.value.is_empty()) {
                break record.lease.unwrap();
            }
        };
        let (name, epoch) = (term(), lease.epoch);
        let taken = records.release(ReleaseRecord { name, epoch });
        taken.await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = singleton.run_until(&mut career, done.notified()) => {
            assert_eq!(ended, Ok(Ended::Stopped));
        }
        () = takes => {}
    }
    let (reason, unit, within, _) = career.told.unwrap();
    let expected = (EndReason::LeaseLost, Unit::Dropped, Duration::ZERO);
    assert_eq!((reason, unit, within), expected);
}

/// A worker is dropped when its leader is called, with what it has in its hands.
#[tokio::test]
async fn a_worker_ends_when_the_lease_is_lost() {
    let clock = ManualClock::default();
    let store = silent(&clock);
    let queue = MemoryQueue::new(MemoryOptions::default()).unwrap();
    queue.push(Message::new("post")).await.unwrap();
    let coordinator = RecordsCoordinator::new(store.clone()).clock(Arc::new(clock.clone()));
    let (ended_at, ended) = (
        Arc::<Mutex<Option<u64>>>::default(),
        Arc::new(Notify::new()),
    );
    let mut career = WorkerCareer::new(|_| {
        let (clock, at, ended) = (clock.clone(), ended_at.clone(), ended.clone());
        Worker::over(queue.clone()).start(move |_: Job| {
            let dropped = Dropped {
                clock: clock.clone(),
                at: at.clone(),
            };
            let ended = Ending(ended.clone());
            async move {
                let (_dropped, _ended) = (dropped, ended);
                std::future::pending::<()>().await;
                Ok(())
            }
        })
    });
    let began = clock.since_boot();
    let passes = async {
        loop {
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            clock.advance(100);
            store.store().clock_changed();
            coordinator.clock_changed();
        }
    };
    let singleton = Singleton::new(coordinator.clone(), campaign());
    let stop = ended.clone();
    tokio::select! {
        ended = singleton.run_until(&mut career, stop.notified()) => {
            assert_eq!(ended, Ok(Ended::Stopped));
        }
        () = passes => {}
    }
    let at = ended_at.lock().unwrap().unwrap() - began;
    assert!((CALLED..OVER).contains(&at), "after {at} ms");
}

/// Tells that it was dropped.
struct Ending(Arc<Notify>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
