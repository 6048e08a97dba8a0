//! Models of the threads of the engine and of the log. A scheduler chooses at every lock, channel,
//! wait and operation of the disk which thread goes on, thousands of times in different orders.
//!
//! `./scripts/test --only models` runs them, `cargo xtask models` runs them as often as you like. A
//! failure prints its schedule; [`check`] says how to run it again.
//!
//! A model needs little: few requests, and segments of a few kilobytes. Two schedulers share the
//! work, because they find different mistakes. One picks any thread at each step. The other lets
//! one thread run until it blocks, and takes it off at a few points only.

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

/// Orders that each scheduler tries of each model, unless the environment says how many.
const RUNS: usize = 2_000;
const RUNS_VARIABLE: &str = "LOCKGATE_MODEL_RUNS";

/// A schedule that a failure printed, to be run again; with a filter for its one test.
const REPLAY_VARIABLE: &str = "LOCKGATE_MODEL_SCHEDULE";

/// The orders tried are the same each time, unless SHUTTLE_RANDOM_SEED holds another number.
const SEED: u64 = 0x10c6_a7e5;

/// Threads that are taken off although they could go on, at most this often less one.
const PCT_DEPTHS: [usize; 2] = [2, 4];

/// So many steps are a loop without an end.
const STEPS_MAX: usize = 200_000;

/// The machine's folding wants more than shuttle's default.
const STACK_BYTES: usize = 256 << 10;

/// Finds no order in which the model fails. Prints a failing one; with that text in
/// `LOCKGATE_MODEL_SCHEDULE` the same test runs just that.
fn check(model: impl Fn() + Send + Sync + Copy + 'static) {
    check_one_in(1, model);
}

/// As [`check`], for a model that takes long: one in so many orders.
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

/// A model with a mistake made on purpose: one of the schedulers finds an order in which it fails, and
/// says so with these words.
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
    // That atomics are taken for sequentially consistent is known: docs/internals/mechanisms.md says so.
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

/// Others may go on here.
fn turn() {
    shuttle::thread::sleep(std::time::Duration::ZERO);
}
