//! What must hold for callers of one key in one process, and across many over any store of records.

#![expect(clippy::unwrap_used, reason = "a case that does not hold panics")]

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lockgate_consumer::coalesce::{
    CoalesceCounts, CoalesceOptions, Coalescer, Entered, Merge, Rejection, Run, SharedCoalescer,
    SharedEntered, SharedError, SharedOptions, SharedRun, Token,
};
use lockgate_core::{Key, ListRecords, ManualClock, Records};

const LEASE: Duration = Duration::from_secs(10);

/// Runs every case over the coalescer of one process.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn in_one_process() {
    run(|_| Local::new()).await;
}

/// Runs every case over processes that share one store; each has its own way to it. `pass` lets time pass for the store.
///
/// # Panics
/// At the first case that does not hold; its name is printed before.
pub async fn across_processes<R: Records + Clone + 'static>(
    processes: [R; 3],
    pass: impl Fn(Duration),
) {
    run(|case| Shared::new(&processes, &pass, case)).await;
}

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
    fn counts(&self) -> Vec<CoalesceCounts>;

    /// How many triggers have a verdict.
    fn entered(&self) -> u64 {
        let counts = self.counts().into_iter();
        counts
            .map(|of| of.run + of.pending + of.covered + of.rejected)
            .sum()
    }

    /// Waits until that many have one.
    async fn have_entered(&self, triggers: u64) {
        while self.entered() < triggers {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

struct Local(Coalescer<Key, Bytes>, ManualClock);

struct Shared<'a, R> {
    processes: [SharedCoalescer<R>; 3],
    records: R,
    prefix: String,
    pass: &'a dyn Fn(Duration),
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
    fn new() -> Self {
        let clock = ManualClock::default();
        let options = CoalesceOptions {
            merge: append(),
            lease: Some(LEASE),
            clock: Some(Arc::new(clock.clone())),
            ..CoalesceOptions::default()
        };
        Self(Coalescer::new(options).unwrap(), clock)
    }
}

impl<'a, R: Records + Clone + 'static> Shared<'a, R> {
    /// Each case has keys of its own.
    fn new(processes: &[R; 3], pass: &'a dyn Fn(Duration), case: &str) -> Self {
        let prefix = format!("{case}/");
        let process = |records: &R| {
            let options = SharedOptions {
                merge: append(),
                lease: LEASE,
                prefix: prefix.clone(),
                ..SharedOptions::default()
            };
            SharedCoalescer::new(records.clone(), options).unwrap()
        };
        Self {
            processes: processes.each_ref().map(process),
            records: processes[0].clone(),
            prefix,
            pass,
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
        self.0.expire(&key(of), Token(token)).is_ok()
    }

    fn pass(&self, span: Duration, of: &str) {
        self.1.advance(span.as_millis().try_into().unwrap());
        self.0.expire_due(&key(of));
    }

    async fn is_empty(&self) -> bool {
        self.0.keys() == 0
    }

    fn counts(&self) -> Vec<CoalesceCounts> {
        vec![self.0.counts()]
    }
}

impl<R: Records + Clone + 'static> Processes for Shared<'_, R> {
    type Run = SharedRun<R>;

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
        let token = Token(token);
        is_done(self.processes[0].expire(&key(of), token).await)
    }

    fn pass(&self, span: Duration, _: &str) {
        (self.pass)(span);
    }

    async fn is_empty(&self) -> bool {
        let list = ListRecords {
            prefix: self.prefix.clone(),
            after: None,
            limit: 10,
        };
        let page = self.records.list(list).await.unwrap();
        page.records.is_empty()
    }

    fn counts(&self) -> Vec<CoalesceCounts> {
        self.processes.iter().map(SharedCoalescer::counts).collect()
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

fn append() -> Merge<Bytes> {
    Merge::Append { max: 3 }
}

async fn one_runs_and_its_successor_covers_the_rest<P: Processes>(p: P) {
    let first = runs(&p, 0, "a").await;
    assert_eq!(p.payloads(&first), ["a"]);
    let token = p.token(&first);
    let (ran, b, c) = tokio::join!(
        async {
            p.have_entered(3).await;
            assert!(p.succeed(first).await);
        },
        p.enter(1, "k", "b"),
        async {
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
            p.have_entered(5).await;
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
            p.have_entered(2).await;
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
        p.have_entered(2).await;
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
            p.have_entered(2).await;
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
        p.have_entered(4).await;
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
        () = p.have_entered(2) => {}
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
            let before = p.entered();
            tokio::select! {
                _ = p.enter(1, "k", payload) => panic!("it waits"),
                () = p.have_entered(before + 1) => {}
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

/// An expired run is told, also when nobody has run after it, and what it had is left to the next.
async fn an_expired_run_does_not_succeed<P: Processes>(p: P) {
    let run = runs(&p, 0, "a").await;
    assert!(p.expire("k", p.token(&run)).await);
    assert!(!p.succeed(run).await);
    let next = runs(&p, 1, "b").await;
    assert!(p.payloads(&next).ends_with(&["b".to_owned()]));
    assert!(p.succeed(next).await);
    assert!(p.is_empty().await);
}

/// Of many that wait for one run, one runs next, and it covers all others; each is counted once.
async fn many_wait_for_one_run<P: Processes>(p: P) {
    let first = runs(&p, 0, "a").await;
    let next = async |process| match p.enter(process, "k", "").await {
        Goes::Runs(run) => {
            assert!(p.succeed(run).await);
            1
        }
        Goes::Covered => 0,
        Goes::Rejected(why) => panic!("{why}"),
    };
    let (b, c, d, ()) = tokio::join!(next(0), next(1), next(2), async {
        p.have_entered(4).await;
        assert!(p.succeed(first).await);
    });
    assert_eq!(b + c + d, 1);
    let sum = |of: fn(&CoalesceCounts) -> u64| p.counts().iter().map(of).sum::<u64>();
    assert_eq!(sum(|of| of.run), 1);
    assert_eq!(sum(|of| of.pending), 1);
    assert_eq!(sum(|of| of.covered), 2);
    assert_eq!(sum(|of| of.succeeded), 2);
}

macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        async fn run<P: Processes>(new: impl Fn(&str) -> P) {
            $(
                println!("case {}", stringify!($case));
                $case(new(stringify!($case))).await;
            )+
        }
    };
}

cases!(
    one_runs_and_its_successor_covers_the_rest,
    many_wait_for_one_run,
    a_failed_run_leaves_its_work_to_the_next,
    a_lonely_failure_leaves_nothing,
    a_frozen_holder_is_replaced_and_told,
    an_expiry_takes_the_run_that_it_names,
    an_expired_run_does_not_succeed,
    what_has_no_room_is_rejected,
    a_caller_that_is_given_up_blocks_nobody,
    what_callers_leave_closes_no_key,
);
