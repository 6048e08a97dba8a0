//! `dispatch.single` to `dispatch.dynamic`: four designs of a consumer that keeps the order of each key, side by side.
//!
//! - *single thread*: one handler after the other.
//! - *queue per key*: each key has a queue and a task of its own, for ever.
//! - *static hash*: a key belongs to one of so many tasks, by its hash.
//! - *dynamic routing*: Lockgate's worker. A key belongs to a task only while a message of it runs.
//!
//! A few keys have most of the messages (as Zipf's law has it), and the handler of one key is slow. A consumer
//! first works off a backlog: how long does that take, as a multiple of the best possible time? Then messages
//! arrive at a steady rate: how long does a message of another key than the slow one take, from the moment at
//! which it should arrive (so that a consumer that is behind does not hide its waits) to the end of its
//! handler?

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use lockgate_consumer::{Job, MemoryOptions, MemoryQueue, Worker};
use lockgate_core::{Key, Message};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    Course, Courses, Setup,
    dispatch::all_handled,
    load::keys,
    queue::params,
    report::{Params, Report, Round, histogram},
};

const KEYS: u32 = 1_000;
const MESSAGES: u32 = 2_400;
/// Handlers at the same time, where the design has a bound.
const TASKS: u8 = 32;
/// The longest handler of most keys.
const WORK_MS: u64 = 3;
/// The handler of the slow key, which has about one of 75 messages.
const SLOW: Duration = Duration::from_millis(50);
const SLOW_KEY: usize = 9;
const FLOOR: &str = "the best possible time";
/// Messages a second; each design but the single thread can do more.
const RATE: u32 = 1_200;

#[derive(Clone, Copy, PartialEq)]
enum Design {
    SingleThread,
    QueuePerKey,
    StaticHash,
    DynamicRouting,
}

impl Design {
    const ALL: [Self; 4] = [
        Self::SingleThread,
        Self::QueuePerKey,
        Self::StaticHash,
        Self::DynamicRouting,
    ];

    fn figure(self) -> &'static str {
        match self {
            Self::SingleThread => "dispatch.single",
            Self::QueuePerKey => "dispatch.per_key",
            Self::StaticHash => "dispatch.hash",
            Self::DynamicRouting => "dispatch.dynamic",
        }
    }
}

/// A message: the place of its key, how long its handler takes, and when it should arrive.
#[derive(Clone, Copy)]
struct Task {
    key: usize,
    work: Duration,
    arrives: Instant,
}

struct Designs {
    design: Design,
    keys: Arc<[Key]>,
    messages: u32,
    params: Params,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let keys = keys("key", KEYS);
    let messages = if setup.args.quick {
        MESSAGES / 8
    } else {
        MESSAGES
    };
    let courses = Design::ALL.map(|design| {
        let mut params = Params {
            keys: KEYS,
            level: "memory",
            ..params(setup, 1, 1)
        };
        params.more.insert("messages", json!(messages));
        let keys = keys.clone();
        Box::new(Designs {
            design,
            keys,
            messages,
            params,
        }) as Box<dyn Course>
    });
    Ok(courses.into())
}

/// The messages, the same in every run; the one at `n` arrives `n / rate` seconds from now on.
fn tasks(count: u32, rate: Option<u32>) -> Vec<Task> {
    let weights: Vec<f64> = (1..=KEYS).map(|rank| 1.0 / f64::from(rank)).collect();
    let all: f64 = weights.iter().sum();
    let began = Instant::now();
    let mut state = 1_u64;
    let mut draw = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let task = |number: u32| {
        let mut point = all * draw() as f64 / (1_u64 << 31) as f64;
        let key = weights.iter().position(|weight| {
            point -= weight;
            point < 0.0
        });
        let key = key.unwrap_or_default();
        let work = match key {
            SLOW_KEY => SLOW,
            _ => Duration::from_millis(1 + draw() % WORK_MS),
        };
        let after = rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs(1) * number / rate
        });
        Task {
            key,
            work,
            arrives: began + after,
        }
    };
    (0..count).map(task).collect()
}

/// Where handlers put down what they took.
#[derive(Clone)]
struct Took(Arc<Mutex<Totals>>);

struct Totals {
    /// Time of handlers by key.
    by_key: Vec<Duration>,
    /// Nanoseconds from arrival to end of messages of other keys than the slow one.
    others: Histogram<u64>,
}

impl Took {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Totals {
            by_key: vec![Duration::ZERO; KEYS as usize],
            others: histogram(),
        })))
    }

    async fn handle(&self, task: Task) {
        let began = Instant::now();
        tokio::time::sleep(task.work).await;
        let took = began.elapsed();
        let since = u64::try_from(task.arrives.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.with(|totals| {
            totals.by_key[task.key] += took;
            if task.key != SLOW_KEY {
                (totals.others.record(since)).expect("a histogram that grows takes every number");
            }
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut Totals) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Waits until a task arrives.
async fn arrival(task: Task) {
    tokio::time::sleep_until(task.arrives.into()).await;
}

/// Runs the tasks, and returns how long that took.
async fn run(
    design: Design,
    keys: &[Key],
    tasks: &[Task],
    took: &Took,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    match design {
        Design::SingleThread => through_queues(tasks, took, |_| 0).await,
        Design::QueuePerKey => through_queues(tasks, took, |task| task.key).await,
        Design::StaticHash => {
            let hasher = RandomState::new();
            let place = |task: &Task| hasher.hash_one(&keys[task.key]) % u64::from(TASKS);
            through_queues(tasks, took, |task| {
                usize::try_from(place(task)).unwrap_or_default()
            })
            .await;
        }
        Design::DynamicRouting => {
            let queue =
                MemoryQueue::new(MemoryOptions::default()).context("making a queue in memory")?;
            let (all, took): (Arc<[Task]>, _) = (tasks.into(), took.clone());
            let builder = Worker::over(queue.clone()).concurrency(usize::from(TASKS));
            let worker = builder.start(move |job: Job| {
                let (all, took) = (all.clone(), took.clone());
                async move {
                    let number: usize = std::str::from_utf8(job.body())?.parse()?;
                    took.handle(all[number]).await;
                    Ok(())
                }
            })?;
            for (number, task) in tasks.iter().enumerate() {
                arrival(*task).await;
                let message = Message::new(number.to_string()).with_key(keys[task.key].clone());
                queue.push(message).await?;
            }
            queue.close();
            all_handled(tasks.len() as u64, &worker.ended().await)?;
        }
    }
    Ok(began.elapsed())
}

/// A queue and a task for each place that `place` knows.
async fn through_queues(tasks: &[Task], took: &Took, place: impl Fn(&Task) -> usize) {
    let mut queues: HashMap<usize, mpsc::UnboundedSender<Task>> = HashMap::new();
    let mut running = JoinSet::new();
    for task in tasks {
        arrival(*task).await;
        let queue = queues.entry(place(task)).or_insert_with(|| {
            let (queue, mut waiting) = mpsc::unbounded_channel();
            let took = took.clone();
            running.spawn(async move {
                while let Some(task) = waiting.recv().await {
                    took.handle(task).await;
                }
            });
            queue
        });
        // Its task ends when the queues do.
        let _ = queue.send(*task);
    }
    drop(queues);
    running.join_all().await;
}

impl Course for Designs {
    /// The floor is the best possible rate: that of the key that takes longest, or of all together on as many
    /// handlers as there may be.
    fn round(&mut self, setup: &Setup, _: Duration, report: &mut Report) -> anyhow::Result<()> {
        let run = |rate| {
            let took = Took::new();
            let tasks = tasks(self.messages, rate);
            let work = run(self.design, &self.keys, &tasks, &took);
            anyhow::Ok((setup.runtime.block_on(work)?, took))
        };
        let (elapsed, took) = run(None)?;
        let best = took.with(|totals| {
            let longest = totals.by_key.iter().max().copied().unwrap_or_default();
            longest.max(totals.by_key.iter().sum::<Duration>() / u32::from(TASKS))
        });
        let rate = |time: Duration| f64::from(self.messages) / time.as_secs_f64();
        let round = Round {
            rate: Some(rate(elapsed)),
            floor: Some(rate(best)),
            syncs_per_message: None,
        };
        let (_, took) = run(Some(RATE))?;
        took.with(|totals| {
            let figure = self.design.figure();
            report.add(figure, &self.params, Some(FLOOR), round, &totals.others);
        });
        Ok(())
    }

    fn close(self: Box<Self>, _: &Setup) {}
}
