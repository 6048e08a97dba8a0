//! The coalescer of one process.

use std::{
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    thread,
    time::Duration,
};

use lockgate_consumer::coalesce::{
    CoalesceOptions, Coalescer, Covered, Entered, Merge, Refused, Rejection, Run, Stale, Token,
    Triggered, Verdict,
};
use lockgate_core::ManualClock;

type Strings = Coalescer<&'static str, String, u32>;
type StringRun = Run<&'static str, String, u32>;
type Ends = fn(StringRun);

fn coalescer(change: impl FnOnce(&mut CoalesceOptions<String>)) -> Strings {
    let mut options = CoalesceOptions {
        merge: Merge::with(|a, b| format!("{a}+{b}")),
        ..CoalesceOptions::default()
    };
    change(&mut options);
    Coalescer::new(options).unwrap()
}

fn trigger(of: &Strings, payload: &str) -> Triggered<&'static str, String, u32> {
    of.trigger("key", payload.to_owned()).unwrap()
}

#[track_caller]
fn run(of: &Strings, payload: &str) -> Run<&'static str, String, u32> {
    of.try_enter("key", payload.to_owned()).unwrap()
}

async fn runs(waiting: Triggered<&'static str, String, u32>) -> Run<&'static str, String, u32> {
    match waiting.entered().await.unwrap() {
        Entered::Run(run) => run,
        Entered::Covered(covered) => panic!("{covered:?}"),
    }
}

async fn covered(waiting: Triggered<&'static str, String, u32>) -> (Token, u32, bool) {
    match waiting.entered().await.unwrap() {
        Entered::Run(run) => panic!("{run:?}"),
        Entered::Covered(Covered {
            by,
            result,
            may_be_older,
            ..
        }) => (by, result, may_be_older),
    }
}

fn is_empty(coalescer: &Strings) {
    assert_eq!((coalescer.keys(), coalescer.held()), (0, (0, 0)));
}

#[tokio::test]
async fn one_runs_one_waits_and_the_rest_are_covered() {
    let coalescer = coalescer(|_| ());
    let first = run(&coalescer, "a");
    assert_eq!(first.payload().unwrap(), "a");
    let waiting = ["b", "c", "d"].map(|payload| trigger(&coalescer, payload));
    let verdicts = waiting.each_ref().map(Triggered::verdict);
    assert_eq!(
        verdicts,
        [Verdict::Pending, Verdict::Covered, Verdict::Covered]
    );
    first.succeed(1).unwrap();
    let [b, c, d] = waiting;
    let second = runs(b).await;
    assert_eq!(
        (
            second.payload().unwrap().as_str(),
            second.batch().triggers()
        ),
        ("b+c+d", 3)
    );
    // It came after the second run had started, so that does not cover it.
    let late = trigger(&coalescer, "e");
    assert_eq!(late.verdict(), Verdict::Pending);
    let token = second.token();
    second.succeed(2).unwrap();
    for waiting in [c, d] {
        assert_eq!(covered(waiting).await, (token, 2, false));
    }
    let third = runs(late).await;
    assert!(third.token() > token);
    third.succeed(3).unwrap();
    is_empty(&coalescer);
    let counts = coalescer.counts();
    let verdicts = (counts.run, counts.pending, counts.covered, counts.rejected);
    assert_eq!(verdicts, (1, 2, 2, 0));
    assert_eq!((counts.started, counts.succeeded, counts.failed), (3, 3, 0));
}

/// However a run ends without success, the next caller runs, and has what the failed run had.
#[tokio::test]
async fn what_waits_goes_on_after_a_failure() {
    let ways: [(&str, Ends); 3] = [
        ("fails", |run| run.fail().unwrap()),
        ("is dropped", drop),
        ("panics", |run| {
            let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
                let _run = run;
                panic!("a planted panic");
            }));
            assert!(panicked.is_err());
        }),
    ];
    for (how, end) in ways {
        let coalescer = coalescer(|_| ());
        let first = run(&coalescer, "a");
        let (b, c) = (trigger(&coalescer, "b"), trigger(&coalescer, "c"));
        end(first);
        let second = runs(b).await;
        assert_eq!(
            (second.payload().unwrap().as_str(), second.failures()),
            ("a+b+c", 1),
            "{how}"
        );
        end(second);
        let third = runs(c).await;
        assert_eq!(
            (third.payload().unwrap().as_str(), third.failures()),
            ("a+b+c", 2),
            "{how}"
        );
        end(third);
        is_empty(&coalescer);
        assert_eq!(
            run(&coalescer, "d").payload().unwrap(),
            "d",
            "nobody wants the rest"
        );
    }
}

/// The published design declines the newest trigger, whose caller acknowledges it: if the one that waits then dies, it
/// is lost.
#[tokio::test]
async fn a_declined_trigger_is_not_lost_when_the_waiting_one_dies() {
    let coalescer = coalescer(|options| options.merge = Merge::KeepLast);
    let first = run(&coalescer, "1");
    let waits = trigger(&coalescer, "2");
    let declined = trigger(&coalescer, "3");
    drop(waits);
    first.succeed(1).unwrap();
    let run = runs(declined).await;
    assert_eq!(run.payload().unwrap(), "3");
}

/// A caller that is given up while it waits, or after its turn has come, blocks nobody.
#[tokio::test]
async fn a_caller_that_is_given_up_blocks_nobody() {
    let coalescer = coalescer(|_| ());
    let first = run(&coalescer, "a");
    {
        let mut asked = pin!(coalescer.enter("key", "b".to_owned()));
        let is_ready =
            std::future::poll_fn(|context| Poll::Ready(asked.as_mut().poll(context).is_ready()));
        assert!(!is_ready.await);
    }
    assert_eq!(coalescer.held().0, 1);
    let (c, d) = (trigger(&coalescer, "c"), trigger(&coalescer, "d"));
    first.succeed(1).unwrap();
    // It is c's turn, and c has not looked yet.
    drop(c);
    assert_eq!(runs(d).await.payload().unwrap(), "c+d");
    is_empty(&coalescer);
}

/// The published design takes the head out whoever asks: one that was evicted, and finishes later, frees the next.
#[tokio::test]
async fn a_zombie_frees_nobody() {
    let coalescer = coalescer(|_| ());
    let zombie = run(&coalescer, "a");
    let token = zombie.token();
    let (b, c) = (trigger(&coalescer, "b"), trigger(&coalescer, "c"));
    coalescer.expire(&"key", token).unwrap();
    let second = runs(b).await;
    assert_eq!(second.payload().unwrap(), "a+b+c");
    assert!(!zombie.is_current() && second.is_current());
    assert_eq!(zombie.heartbeat(), Err(Stale { token }));
    assert_eq!(zombie.succeed(9), Err(Stale { token }));
    assert_eq!(coalescer.running(&"key"), Some(second.token()));
    assert_eq!(coalescer.counts().stale, 2);
    let by = second.token();
    second.succeed(2).unwrap();
    assert_eq!(covered(c).await, (by, 2, false));
    is_empty(&coalescer);
}

/// The published design looks whether the head is too old, and then evicts whoever is the head by then.
#[tokio::test]
async fn a_late_eviction_evicts_nobody_else() {
    let coalescer = coalescer(|_| ());
    let first = run(&coalescer, "a");
    let seen = coalescer.running(&"key").unwrap();
    let b = trigger(&coalescer, "b");
    first.succeed(1).unwrap();
    let second = runs(b).await;
    assert_eq!(coalescer.expire(&"key", seen), Err(Stale { token: seen }));
    assert!(second.is_current());
    assert_eq!(
        (coalescer.counts().expired, coalescer.counts().stale),
        (0, 1)
    );
}

/// The published design knows its callers by their threads: one that enters again passes for the head.
#[test]
fn a_thread_is_not_an_identity() {
    let coalescer = coalescer(|_| ());
    let first = run(&coalescer, "a");
    let again = coalescer.try_enter("key", "b".to_owned()).unwrap_err();
    assert_eq!(
        (again.reason, again.payload.as_str()),
        (Rejection::Busy, "b")
    );
    // A run may end in another thread than it began in.
    thread::spawn(move || first.succeed(1))
        .join()
        .unwrap()
        .unwrap();
    is_empty(&coalescer);
}

/// The published design removes an idle entry that somebody may still have in hand: two entries for one key.
#[test]
fn two_never_run_while_entries_come_and_go() {
    const THREADS: usize = 4;
    let coalescer = coalescer(|_| ());
    let (running, start) = (AtomicUsize::new(0), Barrier::new(THREADS));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for _ in 0..2_000 {
                    let entered = coalescer.enter_blocking("key", String::new()).unwrap();
                    if let Entered::Run(run) = entered {
                        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                        running.fetch_sub(1, Ordering::SeqCst);
                        run.succeed(1).unwrap();
                    }
                }
            });
        }
    });
    is_empty(&coalescer);
    let counts = coalescer.counts();
    assert_eq!(counts.run + counts.pending + counts.covered, 8_000);
    assert_eq!(counts.started, counts.succeeded);
}

/// In the published design each waiting caller holds a thread, which looks again and again. Here a thousand wait, and
/// the only thread serves another key.
#[tokio::test]
async fn waiting_holds_no_thread() {
    let coalescer = coalescer(|options| options.merge = Merge::KeepFirst);
    let first = run(&coalescer, "a");
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let coalescer = coalescer.clone();
        waiting.spawn(async move { coalescer.enter("key", String::new()).await.unwrap() });
    }
    while coalescer.held().0 < 1_001 {
        tokio::task::yield_now().await;
    }
    let other = coalescer.enter("other", String::new()).await.unwrap();
    let Entered::Run(other) = other else {
        panic!("{other:?}")
    };
    other.succeed(0).unwrap();
    first.succeed(1).unwrap();
    let mut runs = 0;
    while let Some(entered) = waiting.join_next().await {
        if let Entered::Run(run) = entered.unwrap() {
            runs += 1;
            run.succeed(2).unwrap();
        }
    }
    assert_eq!(runs, 1);
}

#[tokio::test]
async fn a_joined_result_says_that_it_may_be_older() {
    let coalescer = coalescer(|_| ());
    let first = run(&coalescer, "a");
    let token = first.token();
    let join = |payload: &str| {
        let (coalescer, payload) = (coalescer.clone(), payload.to_owned());
        Box::pin(async move { coalescer.join("key", payload).await })
    };
    let (joined, ()) = tokio::join!(join("b"), async { first.succeed(7).unwrap() });
    let Ok(Entered::Covered(joined)) = joined else {
        panic!("{joined:?}")
    };
    assert_eq!(
        (joined.by, joined.result, joined.may_be_older),
        (token, 7, true)
    );
    // The flight fails: those who joined it are told no result, one runs, and that covers the other.
    let flight = run(&coalescer, "c");
    let (d, e, ()) = tokio::join!(
        async {
            match join("d").await {
                Ok(Entered::Run(run)) => {
                    assert_eq!(run.payload().unwrap(), "c+d+e");
                    run.succeed(8).unwrap();
                }
                other => panic!("{other:?}"),
            }
        },
        join("e"),
        async { flight.fail().unwrap() }
    );
    let ((), Ok(Entered::Covered(e))) = (d, e) else {
        panic!()
    };
    assert_eq!((e.result, e.may_be_older), (8, false));
    is_empty(&coalescer);
}

#[tokio::test]
async fn leases_end_by_the_clock_unless_the_run_is_alive() {
    let clock = ManualClock::default();
    let coalescer = coalescer(|options| {
        options.lease = Some(Duration::from_secs(10));
        options.clock = Some(Arc::new(clock.clone()));
    });
    let first = run(&coalescer, "a");
    let b = trigger(&coalescer, "b");
    clock.advance(9_999);
    // A step of the wall clock ends no lease.
    clock.set_wall(lockgate_core::WallTime(u64::MAX));
    first.heartbeat().unwrap();
    clock.advance(9_999);
    assert!(first.is_current());
    coalescer.expire_due(&"key");
    assert_eq!(coalescer.running(&"key"), Some(first.token()));
    clock.advance(1);
    assert!(!first.is_current());
    assert_eq!(coalescer.running(&"key"), None);
    // Whoever looks first ends it, here the run itself.
    let token = first.token();
    assert_eq!(first.heartbeat(), Err(Stale { token }));
    let second = runs(b).await;
    assert_eq!(
        (
            second.payload().unwrap().as_str(),
            coalescer.counts().expired
        ),
        ("a+b", 1)
    );
    // Nobody waits: the next one does not get what the dead run had.
    clock.advance(10_000);
    assert_eq!(run(&coalescer, "c").payload().unwrap(), "c");
    drop((first, second));
    is_empty(&coalescer);
}

/// Without anybody who looks, a waiting caller's own timer ends the lease: of a task, and of a thread.
#[tokio::test]
async fn a_waiting_caller_ends_a_dead_lease() {
    let coalescer = coalescer(|options| options.lease = Some(Duration::from_millis(20)));
    let dead = run(&coalescer, "a");
    let second = runs(trigger(&coalescer, "b")).await;
    assert_eq!(second.payload().unwrap(), "a+b");
    let other = coalescer.clone();
    let third = thread::spawn(move || other.enter_blocking("key", "c".to_owned()));
    let third = third.join().unwrap().unwrap();
    assert!(matches!(third, Entered::Run(_)));
    drop((dead, second));
}

#[tokio::test]
async fn what_has_no_room_is_rejected_with_its_payload() {
    let coalescer = coalescer(|options| {
        options.merge = Merge::Append { max: 2 };
        options.callers_max = 4;
        options.bytes_max = 10;
        options.measure = Arc::new(String::len);
    });
    #[track_caller]
    fn refused(coalescer: &Strings, payload: &str) -> Rejection {
        let Err(Refused {
            reason,
            payload: back,
        }) = coalescer.trigger("key", payload.to_owned())
        else {
            panic!("accepted");
        };
        assert_eq!(back, payload);
        reason
    }
    let first = run(&coalescer, "1234");
    let second = trigger(&coalescer, "12");
    assert_eq!(refused(&coalescer, "12345"), Rejection::Bytes { max: 10 });
    let third = trigger(&coalescer, "1234");
    assert_eq!(coalescer.held(), (3, 10));
    assert_eq!(refused(&coalescer, ""), Rejection::Pending { max: 2 });
    let other = coalescer.try_enter("other", String::new()).unwrap();
    assert_eq!(refused(&coalescer, ""), Rejection::Callers { max: 4 });
    assert_eq!(coalescer.counts().rejected, 3);
    drop((third, second, other));
    assert_eq!(coalescer.held(), (1, 4), "nobody waits, so nothing is kept");
    drop(first);
    is_empty(&coalescer);
}

/// A merge function that panics takes nothing with it.
#[tokio::test]
async fn a_merge_that_panics_changes_nothing() {
    let coalescer = coalescer(|options| {
        options.merge = Merge::with(|a: String, b| {
            assert_ne!(b, "bad", "a planted panic");
            format!("{a}+{b}")
        });
    });
    let first = run(&coalescer, "a");
    let b = trigger(&coalescer, "b");
    let bad = panic::catch_unwind(AssertUnwindSafe(|| trigger(&coalescer, "bad")));
    assert!(bad.is_err());
    assert_eq!(coalescer.held().0, 2);
    let _c = trigger(&coalescer, "c");
    first.succeed(1).unwrap();
    assert_eq!(runs(b).await.payload().unwrap(), "b+c");
}

/// After a failed run there is nobody to whom a panic could be told, so what it was for goes on.
#[tokio::test]
async fn a_merge_that_panics_after_a_failure_loses_nothing() {
    let coalescer = coalescer(|options| {
        options.merge = Merge::with(|a: String, b| {
            assert_ne!(a, "bad", "a planted panic");
            format!("{a}+{b}")
        });
    });
    let first = run(&coalescer, "bad");
    let (b, c) = (trigger(&coalescer, "b"), trigger(&coalescer, "c"));
    first.fail().unwrap();
    let second = runs(b).await;
    assert_eq!(second.batch().payloads(), ["bad", "b+c"]);
    assert_eq!(second.batch().triggers(), 3);
    let token = second.token();
    second.succeed(1).unwrap();
    assert_eq!(covered(c).await, (token, 1, false));
    is_empty(&coalescer);
}
