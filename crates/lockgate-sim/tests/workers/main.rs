//! Workers over a whole shard, in virtual time: the pure dispatcher of one to three workers, the engine's
//! driver, the machine and the log over a disk in memory, and a network between them. One seed is one
//! history.
//!
//! What goes wrong: requests and answers are lost or late; the shard is killed or loses its power, and
//! starts again; a worker vanishes, and another begins; a worker is stopped for longer than its leases, and
//! goes on; workers pause, resume and drain; the wall clock steps in both directions; handlers succeed in
//! whole and in part, fail, defer, reject, take longer than a lease, hang, and end although they were told
//! to be dropped.
//!
//! What must hold, at every moment:
//!
//! - *one at a time*: no two handlers may believe that they are current for one key. Where a queue follows
//!   Amazon's rules for batches, messages in front of a held one may come back to another worker: then these
//!   are in front;
//! - *order*: no handler begins before everything in front of it in its key is done or given up;
//! - *only what was handled is acknowledged*, and nothing is settled twice at a time;
//! - *conservation*: arrived = acknowledged + failed + deferred + rejected + given back + lost + held;
//! - *bounds*: no worker runs or holds more than it may, and no handler begins when its lease has ended;
//! - a run ends once, and a late or doubled end changes nothing.
//!
//! In the end nothing goes wrong any more, and then, in bounded time:
//!
//! - *liveness*: the queues run empty and the workers hold nothing;
//! - *no loss*: every message whose send was answered was handled and acknowledged, was rejected, or is a
//!   dead letter;
//! - idle keys take no memory.
//!
//! The harness itself is tested by [mistakes made on purpose](planted::Bug).
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod checks;
mod hands;
mod plan;
mod planted;
mod world;

use std::{
    collections::BTreeMap,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use planted::Bug;
use world::World;

pub(crate) type Violation = String;
type Tally = BTreeMap<&'static str, u64>;

/// Histories of a plain run. In the environment, `LOCKGATE_SEEDS` says another number, `LOCKGATE_MINUTES` how
/// long instead, `LOCKGATE_FIRST_SEED` where to begin, and `LOCKGATE_SEED` that this one history is to be run
/// and told.
const SEEDS: u64 = 300;
const SEEDS_TO_CATCH_A_BUG: u64 = 2_000;

#[test]
fn every_seed_keeps_what_workers_promise() {
    if let Some(seed) = environment("LOCKGATE_SEED") {
        let (tally, outcome) = one(seed, None);
        outcome.unwrap_or_else(|violation| panic!("{violation}"));
        println!("{tally:#?}");
        return;
    }
    let first = environment("LOCKGATE_FIRST_SEED").unwrap_or(0);
    let until = match environment("LOCKGATE_MINUTES") {
        Some(minutes) => Until::Over(Instant::now() + Duration::from_secs(60 * minutes)),
        None => Until::Seed(first + environment("LOCKGATE_SEEDS").unwrap_or(SEEDS)),
    };
    let began = Instant::now();
    let (tally, failed) = run_seeds(first, until, None);
    println!("{tally:#?}\n{:.1} s", began.elapsed().as_secs_f64());
    if let Some((seed, violation)) = failed {
        panic!(
            "seed {seed}: {violation}\n\
             again: LOCKGATE_SEED={seed} cargo test -p lockgate-sim --test workers \
             every_seed -- --nocapture"
        );
    }
}

#[test]
fn one_seed_is_one_history() {
    for seed in 0..10 {
        let histories = [(); 2].map(|()| {
            let mut world = World::new(seed, None);
            world.run().expect("no violation");
            world.history
        });
        assert!(histories[0] == histories[1], "seed {seed}");
    }
}

#[test]
fn planted_mistakes_are_caught() {
    let mut missed = Vec::new();
    for bug in [
        Bug::LateAnswersTrusted,
        Bug::ExtensionsAssumed,
        Bug::OrderTurned,
        Bug::SettlesForgotten,
        Bug::AcknowledgedFirst,
        Bug::CancelsIgnored,
    ] {
        let (_, caught) = run_seeds(0, Until::Seed(SEEDS_TO_CATCH_A_BUG), Some(bug));
        let Some((seed, violation)) = caught else {
            missed.push(bug);
            continue;
        };
        let told = violation.lines().next().unwrap();
        println!("{bug:?}: seed {seed}: {told}");
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

fn one(seed: u64, bug: Option<Bug>) -> (Tally, Result<(), Violation>) {
    let mut world = World::new(seed, bug);
    let outcome = world.run();
    // All of it for the one who asked for this seed.
    let is_asked = std::env::var_os("LOCKGATE_SEED").is_some();
    let count = if is_asked { usize::MAX } else { 40 };
    let from = world.history.len().saturating_sub(count);
    let outcome = outcome
        .map_err(|violation| format!("{violation}\n  {}", world.history[from..].join("\n  ")));
    world.tally.insert("histories", 1);
    (world.tally, outcome)
}

fn environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

#[derive(Clone, Copy)]
enum Until {
    Seed(u64),
    Over(Instant),
}

/// Runs histories on all cores, until one fails: the lowest seed that did.
fn run_seeds(first: u64, until: Until, bug: Option<Bug>) -> (Tally, Option<(u64, Violation)>) {
    let next = AtomicU64::new(first);
    let over = AtomicBool::new(false);
    let total = Mutex::new((Tally::new(), None::<(u64, Violation)>));
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_over = match until {
                Until::Seed(end) => seed >= end,
                Until::Over(at) => Instant::now() >= at,
            };
            if is_over {
                return;
            }
            let caught = std::panic::catch_unwind(|| one(seed, bug));
            let (tally, outcome) = caught.unwrap_or_else(|_| {
                let told = "a panic, see above".to_owned();
                (Tally::new(), Err(told))
            });
            let mut total = total.lock().unwrap();
            for (what, count) in tally {
                *total.0.entry(what).or_default() += count;
            }
            if let Err(violation) = outcome {
                over.store(true, Ordering::Relaxed);
                if total.1.as_ref().is_none_or(|(other, _)| seed < *other) {
                    total.1 = Some((seed, violation));
                }
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    total.into_inner().unwrap()
}
