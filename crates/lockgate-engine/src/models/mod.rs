//! Models of the threads of the engine and of the log. A scheduler chooses at every lock, channel,
//! wait and disk operation which thread runs next, thousands of times in different orders.
//!
//! `./scripts/test --only models` runs them, and `cargo xtask models` runs them any number of
//! times. A failure prints its schedule; [`check`] says how to run it again.
//!
//! A model is small: few requests, and segments of a few kilobytes. Two schedulers share the work,
//! because they find different bugs. One picks any thread at each step. The other lets one thread
//! run until it blocks, and preempts it at only a few points.

mod disk;
mod engine;

mod handover;
mod log;
mod maintenance;

use std::{
    any::Any,
    panic::{self, AssertUnwindSafe},
};

use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler},
};

/// Orders that each scheduler tries of each model, unless the environment sets another number.
const RUNS: usize = 2_000;
const RUNS_VARIABLE: &str = "LOCKGATE_MODEL_RUNS";

/// A schedule printed by a failure, to run again; combine it with a filter for its one test.
const REPLAY_VARIABLE: &str = "LOCKGATE_MODEL_SCHEDULE";

/// The same orders are tried each time, unless SHUTTLE_RANDOM_SEED holds another number.
const SEED: u64 = 0x10c6_a7e5;

/// The numbers of preemptions to try, plus one.
const PCT_DEPTHS: [usize; 2] = [2, 4];

/// A run with so many steps counts as an endless loop.
const STEPS_MAX: usize = 200_000;

/// Folding needs more stack than shuttle's default.
const STACK_BYTES: usize = 256 << 10;

/// Fails if the model fails in some order, and prints that order. With the text in
/// `LOCKGATE_MODEL_SCHEDULE` the same test runs only that order.
fn check(model: impl Fn() + Send + Sync + Copy + 'static) {
    check_one_in(1, model);
}

/// As [`check`], for a slow model: tries one in `part` of the orders.
fn check_one_in(part: usize, model: impl Fn() + Send + Sync + Copy + 'static) {
    let failing = FailurePersistence::Print;
    if let Ok(schedule) = std::env::var(REPLAY_VARIABLE) {
        run(ReplayScheduler::new_from_encoded(&schedule), model, failing);
        return;
    }
    let runs = runs().div_ceil(part);
    run(
        RandomScheduler::new_from_seed(SEED, runs),
        model,
        failing.clone(),
    );
    for depth in PCT_DEPTHS {
        let scheduler = PctScheduler::new_from_seed(SEED, depth, runs / PCT_DEPTHS.len());
        run(scheduler, model, failing.clone());
    }
}

/// Checks a model with a deliberate bug: one of the schedulers must find an order in which it fails
/// with these words.
#[track_caller]
fn finds(model: impl Fn() + Send + Sync + Copy + 'static, words: &str) {
    const RUNS_MAX: usize = 2_000;
    let random = RandomScheduler::new_from_seed(SEED, RUNS_MAX);
    let failed = panic::catch_unwind(AssertUnwindSafe(|| {
        run(random, model, FailurePersistence::None);
        let pct = PctScheduler::new_from_seed(SEED, PCT_DEPTHS[1], RUNS_MAX);
        run(pct, model, FailurePersistence::None);
    }));
    let said = failed.expect_err("the mistake was not found");
    let said = text(&*said);
    assert!(said.contains(words), "it failed for another reason: {said}");
}

fn run(
    scheduler: impl Scheduler + 'static,
    model: impl Fn() + Send + Sync + 'static,
    failing: FailurePersistence,
) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.failure_persistence = failing;
    // Atomics are modelled as sequentially consistent; docs/internals/mechanisms.md says so.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model);
}

fn runs() -> usize {
    std::env::var(RUNS_VARIABLE).map_or(RUNS, |runs| runs.parse().expect(RUNS_VARIABLE))
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or(panic.downcast_ref::<&str>().copied())
        .unwrap_or_default()
}

/// Lets other threads run here.
fn turn() {
    shuttle::thread::sleep(std::time::Duration::ZERO);
}
