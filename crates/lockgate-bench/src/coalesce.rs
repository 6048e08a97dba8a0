//! `coalesce.*`: what the coalescer costs, and what it saves.
//!
//! `coalesce.pass` enters and leaves keys for which nothing else runs. The floor is a plain map in shards, each with a
//! mutex, into which the same keys are put and from which they are taken: the least that knowing who runs takes.
//!
//! The others have 500 triggers a second whose keys are drawn from a normal distribution, and 50 ms of work for each run.
//! Runs of one key come one after the other. With coalescing a trigger is over when a run that started after it has
//! succeeded; without, when its own run has.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use lockgate_consumer::coalesce::{CoalesceOptions, Coalescer, Entered};
use lockgate_core::Key;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    Course, Courses, Setup,
    load::{as_f64, keys},
    queue::params,
    report::{Params, Report, Round, histogram},
};

const KEYS: u32 = 100_000;
const SHARDS: usize = 64;
const FLOOR: &str = "a map in shards with a mutex each";
/// Passes between two looks at the clock.
const PASSES: usize = 1_000;

/// Triggers a second, and how long a run takes.
const RATE: u32 = 500;
const WORK: Duration = Duration::from_millis(50);
/// Standard deviations of the keys, in keys; the one in the middle with `--quick`.
const SPREADS: [u32; 3] = [5, 10, 30];

struct Pass {
    keys: Arc<[Key]>,
    params: Params,
}

struct Load {
    spread: u32,
    params: Params,
}

pub(crate) fn open_pass(setup: &Setup) -> anyhow::Result<Courses> {
    let params = Params {
        keys: KEYS,
        level: "memory",
        ..params(setup, 1, 1)
    };
    let keys = keys("key", KEYS);
    Ok(vec![Box::new(Pass { keys, params })])
}

pub(crate) fn open_load(setup: &Setup) -> anyhow::Result<Courses> {
    let spreads = if setup.args.quick {
        &SPREADS[1..2]
    } else {
        &SPREADS[..]
    };
    let courses = spreads.iter().map(|&spread| {
        let mut params = Params {
            keys: 6 * spread,
            level: "memory",
            ..params(setup, 1, 1)
        };
        params.more.insert("spread", json!(spread));
        Box::new(Load { spread, params }) as Box<dyn Course>
    });
    Ok(courses.collect())
}

/// Does something with each key in turn for that long. Returns how many a second.
fn rate(keys: &[Key], time: Duration, mut pass: impl FnMut(&Key)) -> f64 {
    let (began, mut passes) = (Instant::now(), 0);
    let mut keys = keys.iter().cycle();
    while began.elapsed() < time {
        keys.by_ref().take(PASSES).for_each(&mut pass);
        passes += PASSES as u64;
    }
    as_f64(passes) / began.elapsed().as_secs_f64()
}

fn through_map(keys: &[Key], time: Duration) -> f64 {
    let hasher = RandomState::new();
    let shards: Vec<Mutex<HashMap<Key, ()>>> = std::iter::repeat_with(Mutex::default)
        .take(SHARDS)
        .collect();
    rate(keys, time, |key| {
        let hash = hasher.hash_one(key);
        let shard = || {
            let shard = shards[(hash >> 32) as usize % SHARDS].lock();
            shard.unwrap_or_else(PoisonError::into_inner)
        };
        shard().insert(key.clone(), ());
        shard().remove(key);
    })
}

fn through_coalescer(keys: &[Key], time: Duration) -> anyhow::Result<f64> {
    let coalescer: Coalescer<Key> = Coalescer::new(CoalesceOptions::default())?;
    let rate = rate(keys, time, |key| {
        if let Ok(run) = coalescer.try_enter(key.clone(), ()) {
            // One that did not succeed is missing below.
            let _ = run.succeed(());
        }
    });
    let counts = coalescer.counts();
    anyhow::ensure!(
        counts.succeeded == counts.run && counts.rejected == 0,
        "not each key was entered and left: {counts:?}"
    );
    Ok(rate)
}

impl Course for Pass {
    fn round(&mut self, _: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let half = time / 2;
        let floor = through_map(&self.keys, half);
        let round = Round {
            rate: Some(through_coalescer(&self.keys, half)?),
            floor: Some(floor),
            syncs_per_message: None,
        };
        report.add(
            "coalesce.pass",
            &self.params,
            Some(FLOOR),
            round,
            &histogram(),
        );
        Ok(())
    }

    fn close(self: Box<Self>, _: &Setup) {}
}

/// The keys of the triggers, the same in every run: a normal distribution, by Box and Muller.
fn drawn(count: u32, spread: u32) -> impl Iterator<Item = i64> {
    let mut state = 1_u64;
    let mut draw = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (as_f64(state >> 33) + 1.0) / f64::from(1_u32 << 31)
    };
    (0..count).map(move |_| {
        let (length, angle) = (draw(), draw());
        let normal = (-2.0 * length.ln()).sqrt() * (angle * std::f64::consts::TAU).cos();
        #[expect(clippy::cast_possible_truncation, reason = "a few hundred")]
        let key = (normal * f64::from(spread)).round() as i64;
        key
    })
}

/// What the triggers took, and how many runs there were.
#[derive(Clone)]
struct Took(Arc<Mutex<(Histogram<u64>, u64)>>);

impl Took {
    fn new() -> Self {
        Self(Arc::new(Mutex::new((histogram(), 0))))
    }

    fn with<T>(&self, act: impl FnOnce(&mut (Histogram<u64>, u64)) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn run(&self) {
        self.with(|(_, runs)| *runs += 1);
        tokio::time::sleep(WORK).await;
    }

    fn is_over(&self, arrived: Instant) -> anyhow::Result<()> {
        let took = u64::try_from(arrived.elapsed().as_nanos())?;
        self.with(|(times, _)| times.record(took))
            .context("recording a time")
    }
}

/// Gives a trigger at a time to `trigger`, at the rate, and waits until all are over.
async fn offer<F>(
    count: u32,
    spread: u32,
    trigger: impl Fn(i64, Instant) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let (began, mut triggers) = (Instant::now(), JoinSet::new());
    for (number, key) in (0..).zip(drawn(count, spread)) {
        let arrives = began + Duration::from_secs(1) * number / RATE;
        tokio::time::sleep_until(arrives.into()).await;
        triggers.spawn(trigger(key, arrives));
    }
    while let Some(over) = triggers.join_next().await {
        over??;
    }
    Ok(())
}

async fn coalesced(count: u32, spread: u32, took: &Took) -> anyhow::Result<()> {
    let coalescer: Coalescer<i64> = Coalescer::new(CoalesceOptions::default())?;
    offer(count, spread, |key, arrives| {
        let (coalescer, took) = (coalescer.clone(), took.clone());
        async move {
            if let Entered::Run(run) = coalescer.enter(key, ()).await? {
                took.run().await;
                run.succeed(())?;
            }
            took.is_over(arrives)
        }
    })
    .await
}

async fn each(count: u32, spread: u32, took: &Took) -> anyhow::Result<()> {
    let locks: Mutex<HashMap<i64, Arc<tokio::sync::Mutex<()>>>> = Mutex::default();
    offer(count, spread, |key, arrives| {
        let lock = {
            let mut locks = locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.entry(key).or_default().clone()
        };
        let took = took.clone();
        async move {
            let turn = lock.lock().await;
            took.run().await;
            drop(turn);
            took.is_over(arrives)
        }
    })
    .await
}

impl Course for Load {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        // At least half a second, in which there are enough triggers to be coalesced.
        let seconds = (time.as_secs_f64() / 2.0).max(0.5);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds"
        )]
        let count = (seconds * f64::from(RATE)) as u32;
        for coalesces in [true, false] {
            let took = Took::new();
            setup.runtime.block_on(async {
                match coalesces {
                    true => coalesced(count, self.spread, &took).await,
                    false => each(count, self.spread, &took).await,
                }
            })?;
            let (times, runs) = took.with(|totals| totals.clone());
            let round = Round {
                rate: None,
                floor: None,
                syncs_per_message: None,
            };
            let figure = if coalesces {
                "coalesce.covered"
            } else {
                "coalesce.each"
            };
            report.add(figure, &self.params, None, round, &times);
            if coalesces {
                let share = 100.0 * as_f64(runs) / f64::from(count);
                report.quantity("coalesce.runs", &self.params, share, "% of triggers", None);
            }
        }
        Ok(())
    }

    fn close(self: Box<Self>, _: &Setup) {}
}
