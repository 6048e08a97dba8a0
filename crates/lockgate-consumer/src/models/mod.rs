//! Models of what threads hand each other through a queue in memory. A scheduler chooses at every lock,
//! semaphore and notification which thread runs next, thousands of times in different orders.
//!
//! `./scripts/test --only models` runs them, `cargo xtask models` any number of times, as those of
//! `lockgate-engine`. With the schedule that a failure prints in `LOCKGATE_MODEL_SCHEDULE`, its test runs that
//! one order again.

mod coalesce;
mod context;
mod memory;

use std::panic::{self, AssertUnwindSafe};

use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler},
};

/// Orders that each scheduler tries of each model, unless the environment sets another number.
const RUNS: usize = 2_000;

/// The same orders are tried each time, unless SHUTTLE_RANDOM_SEED holds another number.
const SEED: u64 = 0x10c6_a7e5;

/// Fails if the model fails in some order, and prints that order.
fn check(model: impl Fn() + Send + Sync + Copy + 'static) {
    let failing = FailurePersistence::Print;
    if let Ok(schedule) = std::env::var("LOCKGATE_MODEL_SCHEDULE") {
        run(ReplayScheduler::new_from_encoded(&schedule), model, failing);
        return;
    }
    const RUNS_VARIABLE: &str = "LOCKGATE_MODEL_RUNS";
    let runs = std::env::var(RUNS_VARIABLE);
    let runs = runs.map_or(RUNS, |runs| runs.parse().expect(RUNS_VARIABLE));
    let random = RandomScheduler::new_from_seed(SEED, runs);
    run(random, model, failing.clone());
    run(PctScheduler::new_from_seed(SEED, 3, runs), model, failing);
}

/// Checks a model with a deliberate mistake: some order must fail with these words.
#[track_caller]
fn finds(model: impl Fn() + Send + Sync + Copy + 'static, words: &str) {
    let failed = panic::catch_unwind(AssertUnwindSafe(|| {
        let random = RandomScheduler::new_from_seed(SEED, RUNS);
        run(random, model, FailurePersistence::None);
        let pct = PctScheduler::new_from_seed(SEED, 3, RUNS);
        run(pct, model, FailurePersistence::None);
    }));
    let said = failed.expect_err("the mistake was not found");
    let owned = said.downcast_ref::<String>().map(String::as_str);
    let said = owned.or(said.downcast_ref::<&str>().copied());
    let said = said.unwrap_or_default();
    assert!(said.contains(words), "it failed for another reason: {said}");
}

fn run(
    scheduler: impl Scheduler + 'static,
    model: impl Fn() + Send + Sync + 'static,
    failing: FailurePersistence,
) {
    let mut config = Config::new();
    config.failure_persistence = failing;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(model);
}
