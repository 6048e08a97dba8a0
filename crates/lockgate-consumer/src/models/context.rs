//! What a worker's task, its handlers and their clones of a [`Context`] tell each other.

use shuttle::{future::block_on, thread};

use super::{check, finds};
use crate::{dispatch::Cancelled, job::Context, worker::WorkerClock};

fn context() -> Context {
    Context::new(WorkerClock::start(), None)
}

/// Whoever waits hears of it, whenever that begins, and all hear of the same reason: the first one.
#[test]
fn a_cancel_is_heard_by_all_who_wait() {
    check(|| {
        let context = context();
        let waits = [(); 2].map(|()| {
            let context = context.clone();
            thread::spawn(move || block_on(context.cancelled()))
        });
        let cancels = [Cancelled::LeaseLost, Cancelled::Dropped].map(|why| {
            let context = context.clone();
            thread::spawn(move || context.cancel(why))
        });
        for cancel in cancels {
            cancel.join().unwrap();
        }
        let why = context.why_cancelled().unwrap();
        for wait in waits {
            assert_eq!(wait.join().unwrap(), why);
        }
    });
}

/// The worker reads how far a batch has come when its handler may still say more.
#[test]
fn what_has_succeeded_is_never_less() {
    check(|| {
        let context = context();
        let says = [1, 3, 2].map(|done| {
            let context = context.clone();
            thread::spawn(move || context.succeeded(done))
        });
        let (before, after) = (context.done(), context.done());
        assert!(before <= after, "{before}, then {after}");
        for say in says {
            say.join().unwrap();
        }
        assert_eq!(context.done(), 3);
    });
}

/// Who looks before it listens may miss what is said in between.
#[test]
fn a_look_before_listening_is_found() {
    finds(
        || {
            let context = context();
            let waits = {
                let context = context.clone();
                thread::spawn(move || {
                    if context.why_cancelled().is_none() {
                        block_on(context.inner.changed.notified());
                    }
                })
            };
            context.cancel(Cancelled::LeaseLost);
            waits.join().unwrap();
        },
        "deadlock",
    );
}
