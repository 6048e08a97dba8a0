//! Callers of one key of a [`Coalescer`] at the same time: they enter, give up, fail, are expired. A model in which
//! somebody waits and is never woken ends in a deadlock, which the scheduler reports.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use shuttle::{future::block_on, thread};

use super::{check, finds};
use crate::coalesce::{CoalesceOptions, Coalescer, Entered, Merge, Run};

type Coalesces = Coalescer<u8, u32>;

fn coalescer() -> Coalesces {
    let options = CoalesceOptions {
        merge: Merge::with(|a, b| a | b),
        ..CoalesceOptions::default()
    };
    Coalescer::new(options).unwrap()
}

/// Who runs, and what successful runs had. Both are known without the scheduler.
#[derive(Clone, Default)]
struct Seen {
    running: Arc<AtomicUsize>,
    done: Arc<AtomicUsize>,
}

impl Seen {
    /// Only one runs at a time.
    fn runs(&self, run: &Run<u8, u32, ()>) {
        assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0, "two run");
        thread::yield_now();
        let has = run.payload().copied().unwrap_or_default();
        self.done.fetch_or(has as usize, Ordering::SeqCst);
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Enters until it is covered, with a first run that fails.
    fn go(&self, coalescer: &Coalesces, caller: u32, mut fails: bool) {
        loop {
            match block_on(coalescer.enter(0, 1 << caller)).unwrap() {
                Entered::Run(run) if fails => {
                    fails = false;
                    drop(run);
                }
                Entered::Run(run) => {
                    self.runs(&run);
                    run.succeed(()).unwrap();
                    break;
                }
                Entered::Covered(_) => break,
            }
        }
        let done = self.done.load(Ordering::SeqCst);
        assert_ne!(
            done & (1 << caller),
            0,
            "no run has what is said to be covered"
        );
    }
}

fn is_empty(coalescer: &Coalesces) {
    assert_eq!((coalescer.keys(), coalescer.held()), (0, (0, 0)));
}

/// One runs at a time, each is covered or runs, and nothing is left.
#[test]
fn callers_run_one_after_the_other_and_each_is_covered() {
    check(|| {
        let (coalescer, seen) = (coalescer(), Seen::default());
        let callers = [0, 1, 2].map(|caller| {
            let (coalescer, seen) = (coalescer.clone(), seen.clone());
            thread::spawn(move || seen.go(&coalescer, caller, caller == 1))
        });
        for caller in callers {
            caller.join().unwrap();
        }
        is_empty(&coalescer);
    });
}

/// One that gives up while its turn comes hands it on.
#[test]
fn a_caller_that_gives_up_blocks_nobody() {
    check(|| {
        let (coalescer, seen) = (coalescer(), Seen::default());
        let first = coalescer.try_enter(0, 0).unwrap();
        let callers = [0, 1].map(|caller| {
            let (coalescer, seen) = (coalescer.clone(), seen.clone());
            thread::spawn(move || {
                if caller == 1 {
                    return seen.go(&coalescer, caller, false);
                }
                let mut enters = pin!(coalescer.enter(0, 1));
                block_on(std::future::poll_fn(|context| {
                    Poll::Ready(enters.as_mut().poll(context).is_ready())
                }));
            })
        });
        first.succeed(()).unwrap();
        for caller in callers {
            caller.join().unwrap();
        }
        is_empty(&coalescer);
    });
}

/// A run ends once: by its own hand, or by an expiry at the same time.
#[test]
fn a_run_ends_once() {
    check(|| {
        let coalescer = coalescer();
        let run = coalescer.try_enter(0, 0).unwrap();
        let (token, other) = (run.token(), coalescer.clone());
        let expires = thread::spawn(move || other.expire(&0, token).is_ok());
        let other = coalescer.clone();
        let enters = thread::spawn(move || match block_on(other.enter(0, 1)).unwrap() {
            Entered::Run(run) => {
                assert!(run.token() > token);
                run.succeed(()).unwrap();
            }
            Entered::Covered(covered) => panic!("the first run came before it: {covered:?}"),
        });
        let succeeds = run.succeed(()).is_ok();
        assert_ne!(expires.join().unwrap(), succeeds);
        enters.join().unwrap();
        is_empty(&coalescer);
    });
}

/// The models find a guard that is kept, so that whoever waits is never told.
#[test]
fn a_run_that_never_ends_is_found() {
    finds(
        || {
            let coalescer = coalescer();
            let run = coalescer.try_enter(0, 0).unwrap();
            let other = coalescer.clone();
            let enters = thread::spawn(move || drop(block_on(other.enter(0, 1))));
            std::mem::forget(run);
            enters.join().unwrap();
        },
        "deadlock",
    );
}
