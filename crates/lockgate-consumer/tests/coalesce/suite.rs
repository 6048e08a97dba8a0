//! What must hold in one process and across many: one suite of cases, run over both.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lockgate_consumer::{
    MemoryRecords,
    coalesce::{
        CoalesceOptions, Coalescer, Entered, Merge, Rejection, Run, SharedCoalescer, SharedEntered,
        SharedError, SharedOptions, SharedRun,
    },
};
use lockgate_core::{Clock as _, Key, ManualClock};

const LEASE: Duration = Duration::from_secs(10);

/// How a caller went on.
enum Goes<R> {
    Runs(R),
    Covered,
    Rejected(Rejection),
}

/// Some processes that share keys.
trait Processes {
    type Run;

    /// Enters in one of them.
    async fn enter(&self, process: usize, key: &str, payload: &str) -> Goes<Self::Run>;
    fn payloads(&self, run: &Self::Run) -> Vec<String>;
    fn token(&self, run: &Self::Run) -> u64;
    fn failures(&self, run: &Self::Run) -> u32;
    /// Whether it counted as a success.
    async fn succeed(&self, run: Self::Run) -> bool;
    async fn fail(&self, run: Self::Run) -> bool;
    async fn heartbeat(&self, run: &Self::Run) -> bool;
    async fn expire(&self, key: &str, token: u64) -> bool;
    /// Time passes for all.
    fn pass(&self, span: Duration, key: &str);
    /// Nothing is kept of keys that are idle.
    async fn is_empty(&self) -> bool;
}

struct Local(Coalescer<Key, Bytes>, ManualClock);

struct Shared {
    processes: Vec<SharedCoalescer<MemoryRecords>>,
    records: MemoryRecords,
    clock: ManualClock,
}

fn key(key: &str) -> Key {
    Key::new(key).unwrap()
}

fn strings(payloads: &[Bytes]) -> Vec<String> {
    let text = |payload: &Bytes| String::from_utf8(payload.to_vec()).unwrap();
    payloads.iter().map(text).collect()
}

fn bytes(payload: &str) -> Bytes {
    Bytes::copy_from_slice(payload.as_bytes())
}

impl Local {
    fn new(merge: Merge<Bytes>) -> Self {
        let clock = ManualClock::default();
        let options = CoalesceOptions {
            merge,
            lease: Some(LEASE),
            clock: Some(Arc::new(clock.clone())),
            ..CoalesceOptions::default()
        };
        Self(Coalescer::new(options).unwrap(), clock)
    }
}

impl Shared {
    fn new(merge: Merge<Bytes>) -> Self {
        let clock = ManualClock::default();
        let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
        let process = || {
            let options = SharedOptions {
                merge: merge.clone(),
                lease: LEASE,
                ..SharedOptions::default()
            };
            SharedCoalescer::new(records.clone(), options).unwrap()
        };
        Self {
            processes: std::iter::repeat_with(process).take(3).collect(),
            records: records.clone(),
            clock,
        }
    }
}

impl Processes for Local {
    type Run = Run<Key, Bytes, ()>;

    async fn enter(&self, _: usize, of: &str, payload: &str) -> Goes<Self::Run> {
        match self.0.enter(key(of), bytes(payload)).await {
            Ok(Entered::Run(run)) => Goes::Runs(run),
            Ok(Entered::Covered(_)) => Goes::Covered,
            Err(refused) => Goes::Rejected(refused.reason),
        }
    }

    fn payloads(&self, run: &Self::Run) -> Vec<String> {
        strings(run.batch().payloads())
    }

    fn token(&self, run: &Self::Run) -> u64 {
        run.token().0
    }

    fn failures(&self, run: &Self::Run) -> u32 {
        run.failures()
    }

    async fn succeed(&self, run: Self::Run) -> bool {
        run.succeed(()).is_ok()
    }

    async fn fail(&self, run: Self::Run) -> bool {
        run.fail().is_ok()
    }

    async fn heartbeat(&self, run: &Self::Run) -> bool {
        run.heartbeat().is_ok()
    }

    async fn expire(&self, of: &str, token: u64) -> bool {
        self.0
            .expire(&key(of), lockgate_consumer::coalesce::Token(token))
            .is_ok()
    }

    fn pass(&self, span: Duration, of: &str) {
        self.1.advance(span.as_millis().try_into().unwrap());
        self.0.expire_due(&key(of));
    }

    async fn is_empty(&self) -> bool {
        self.0.keys() == 0
    }
}

impl Processes for Shared {
    type Run = SharedRun<MemoryRecords>;

    async fn enter(&self, process: usize, of: &str, payload: &str) -> Goes<Self::Run> {
        match self.processes[process]
            .enter(&key(of), bytes(payload))
            .await
        {
            Ok(SharedEntered::Run(run)) => Goes::Runs(run),
            Ok(SharedEntered::Covered(_)) => Goes::Covered,
            Err(SharedError::Rejected(why)) => Goes::Rejected(why),
            Err(other) => panic!("{other}"),
        }
    }

    fn payloads(&self, run: &Self::Run) -> Vec<String> {
        strings(run.batch().payloads())
    }

    fn token(&self, run: &Self::Run) -> u64 {
        run.token().0
    }

    fn failures(&self, run: &Self::Run) -> u32 {
        run.failures()
    }

    async fn succeed(&self, run: Self::Run) -> bool {
        is_done(run.succeed().await)
    }

    async fn fail(&self, run: Self::Run) -> bool {
        is_done(run.fail().await)
    }

    async fn heartbeat(&self, run: &Self::Run) -> bool {
        is_done(run.heartbeat().await)
    }

    async fn expire(&self, of: &str, token: u64) -> bool {
        let token = lockgate_consumer::coalesce::Token(token);
        is_done(self.processes[0].expire(&key(of), token).await)
    }

    fn pass(&self, span: Duration, _: &str) {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.records.clock_changed();
    }

    async fn is_empty(&self) -> bool {
        let list = lockgate_core::ListRecords {
            prefix: String::new(),
            after: None,
            limit: 10,
        };
        let page = lockgate_core::Records::list(&self.records, list)
            .await
            .unwrap();
        page.records.is_empty()
    }
}

fn is_done(done: Result<(), SharedError>) -> bool {
    match done {
        Ok(()) => true,
        Err(SharedError::Stale(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

async fn runs<P: Processes>(p: &P, process: usize, payload: &str) -> P::Run {
    match p.enter(process, "k", payload).await {
        Goes::Runs(run) => run,
        Goes::Covered => panic!("covered"),
        Goes::Rejected(why) => panic!("{why}"),
    }
}

/// Lets everything go on until it waits for something else than its turn.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn append() -> Merge<Bytes> {
    Merge::Append { max: 3 }
}

async fn one_runs_and_its_successor_covers_the_rest<P: Processes>(p: P) {
    let first = runs(&p, 0, "a").await;
    assert_eq!(p.payloads(&first), ["a"]);
    let token = p.token(&first);
    let (ran, b, c) = tokio::join!(
        async {
            settle().await;
            assert!(p.succeed(first).await);
        },
        p.enter(1, "k", "b"),
        async {
            tokio::task::yield_now().await;
            let Goes::Runs(other) = p.enter(2, "other", "x").await else {
                panic!("another key")
            };
            assert!(p.succeed(other).await);
        }
    );
    let ((), (), Goes::Runs(second)) = (ran, c, b) else {
        panic!("b runs")
    };
    assert!(p.token(&second) > token);
    let (ended, rest) = tokio::join!(
        async {
            settle().await;
            assert!(p.succeed(second).await);
            // One of the two that wait runs.
        },
        async {
            let go = async |process: usize, payload: &'static str| match p
                .enter(process, "k", payload)
                .await
            {
                Goes::Runs(run) => {
                    let mut has = p.payloads(&run);
                    has.sort();
                    assert_eq!(has, ["c", "d"]);
                    assert!(p.succeed(run).await);
                    "ran"
                }
                Goes::Covered => "covered",
                Goes::Rejected(why) => panic!("{why}"),
            };
            tokio::join!(go(0, "c"), go(1, "d"))
        }
    );
    let ((), (c, d)) = (ended, rest);
    assert!(
        matches!((c, d), ("ran", "covered") | ("covered", "ran")),
        "{c} {d}"
    );
    assert!(p.is_empty().await);
}

async fn a_failed_run_leaves_its_work_to_the_next<P: Processes>(p: P) {
    let first = runs(&p, 0, "a").await;
    let (failed, second) = tokio::join!(
        async {
            settle().await;
            p.fail(first).await
        },
        runs(&p, 1, "b")
    );
    assert!(failed);
    assert_eq!(
        (p.payloads(&second), p.failures(&second)),
        (vec!["a".into(), "b".into()], 1)
    );
    assert!(p.fail(second).await);
    // In one process it is known that nobody waits; among many it is not, and the work stays.
    let third = runs(&p, 2, "c").await;
    assert!(p.payloads(&third).ends_with(&["c".to_owned()]));
    assert!(p.succeed(third).await);
    assert!(p.is_empty().await);
}

/// A caller that fails alone leaves nothing.
async fn a_lonely_failure_leaves_nothing<P: Processes>(p: P) {
    let run = runs(&p, 0, "a").await;
    assert!(p.fail(run).await);
    assert!(p.is_empty().await);
    let run = runs(&p, 0, "b").await;
    assert_eq!(p.payloads(&run), ["b"]);
    assert!(p.succeed(run).await);
}

/// A holder that is frozen, or whose process is dead, is replaced when its lease ends; when it wakes up it is told, and
/// changes nothing.
async fn a_frozen_holder_is_replaced_and_told<P: Processes>(p: P) {
    let frozen = runs(&p, 0, "a").await;
    let (second, ()) = tokio::join!(runs(&p, 1, "b"), async {
        settle().await;
        p.pass(LEASE, "k");
    });
    assert_eq!(p.payloads(&second), ["a", "b"]);
    assert!(p.token(&second) > p.token(&frozen));
    assert!(!p.heartbeat(&frozen).await);
    assert!(!p.succeed(frozen).await);
    p.pass(LEASE / 2, "k");
    assert!(p.heartbeat(&second).await);
    p.pass(LEASE / 2, "k");
    assert!(p.succeed(second).await);
    assert!(p.is_empty().await);
}

async fn an_expiry_takes_the_run_that_it_names<P: Processes>(p: P) {
    let first = runs(&p, 0, "a").await;
    let token = p.token(&first);
    assert!(!p.expire("k", token + 1).await);
    let (expired, second) = tokio::join!(
        async {
            settle().await;
            p.expire("k", token).await
        },
        runs(&p, 1, "b")
    );
    assert!(expired && !p.expire("k", token).await);
    assert!(!p.fail(first).await);
    assert!(p.succeed(second).await);
    assert!(p.is_empty().await);
}

async fn what_has_no_room_is_rejected<P: Processes>(p: P) {
    let first = runs(&p, 0, "a").await;
    let rejected = async |payload: &'static str| match p.enter(1, "k", payload).await {
        Goes::Rejected(why) => Some(why),
        Goes::Runs(run) => {
            assert!(p.succeed(run).await);
            None
        }
        Goes::Covered => None,
    };
    let (b, c, d, full) = tokio::join!(rejected("b"), rejected("c"), rejected("d"), async {
        settle().await;
        let full = rejected("e").await;
        assert!(p.succeed(first).await);
        full
    });
    assert_eq!((b, c, d), (None, None, None));
    assert_eq!(full, Some(Rejection::Pending { max: 3 }));
    assert!(p.is_empty().await);
}

/// A caller that is given up while it waits blocks nobody.
async fn a_caller_that_is_given_up_blocks_nobody<P: Processes>(p: P) {
    let first = runs(&p, 0, "a").await;
    tokio::select! {
        _ = p.enter(1, "k", "b") => panic!("it waits"),
        () = settle() => {}
    }
    assert!(p.succeed(first).await);
    let next = runs(&p, 2, "c").await;
    assert!(p.payloads(&next).contains(&"c".to_owned()));
    assert!(p.succeed(next).await);
    assert!(p.is_empty().await);
}

/// Triggers whose callers have gone stay where processes share them, and fill the room there is.
async fn what_callers_leave_closes_no_key<P: Processes>(p: P) {
    let large = |of: &str| of.repeat(120 << 10);
    for left in [
        ["b", "c", "d"].map(str::to_owned),
        ["b", "c", ""].map(large),
    ] {
        let first = runs(&p, 0, "a").await;
        for payload in &left {
            tokio::select! {
                _ = p.enter(1, "k", payload) => panic!("it waits"),
                () = settle() => {}
            }
        }
        assert!(p.succeed(first).await);
        let last = large("e");
        let next = runs(&p, 2, &last).await;
        assert!(p.payloads(&next).contains(&last));
        assert!(p.fail(next).await);
        let next = runs(&p, 2, "f").await;
        assert!(p.payloads(&next).contains(&"f".to_owned()));
        assert!(p.succeed(next).await);
        assert!(p.is_empty().await);
    }
}

macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        mod in_one_process {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Local::new(super::append())).await;
            })+
        }

        mod across_processes {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Shared::new(super::append())).await;
            })+
        }
    };
}

cases!(
    one_runs_and_its_successor_covers_the_rest,
    a_failed_run_leaves_its_work_to_the_next,
    a_lonely_failure_leaves_nothing,
    a_frozen_holder_is_replaced_and_told,
    an_expiry_takes_the_run_that_it_names,
    what_has_no_room_is_rejected,
    a_caller_that_is_given_up_blocks_nobody,
    what_callers_leave_closes_no_key,
);

/// A step of the wall clock, in either direction, ends no lease and keeps none.
#[tokio::test]
async fn steps_of_the_wall_clock_change_nothing() {
    let p = Shared::new(append());
    let run = runs(&p, 0, "a").await;
    for step in [0, u64::from(u32::MAX) * 1_000] {
        p.clock.set_wall(lockgate_core::WallTime(step));
        p.records.clock_changed();
        assert!(p.heartbeat(&run).await);
    }
    assert!(p.clock.wall().0 > 0);
    assert!(p.succeed(run).await);
    assert!(p.is_empty().await);
}
