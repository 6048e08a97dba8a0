//! `dispatch.*`: what a worker's decisions cost.
//!
//! The dispatcher gets messages of many keys, runs handlers that do nothing, and settles. The floor is a bare
//! hash map of deques that gets the same messages and gives each back once: the least that order by key
//! takes. Beside it, the worker over a queue in memory, and how near it comes to the best possible time
//! when its handlers take time.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lockgate_consumer::{
    Ended, Job, MemoryOptions, MemoryQueue, Worker,
    dispatch::{Action, Arrival, DispatchOptions, Dispatcher, Rest, RunEnd, SourceOptions},
};
use lockgate_core::{Key, Message, SourceCapabilities};
use serde_json::json;

use crate::{
    Course, Courses, Setup,
    load::{as_f64, keys},
    queue::params,
    report::{Params, Report, Round, histogram},
};

const KEYS: u32 = 100_000;
/// Messages of one receive.
const BATCH: usize = 1_000;
const FLOOR: &str = "a hash map of deques";

/// Keys of the messages of which handlers take time, each with its number of messages; an eighth of them with
/// `--quick`.
const SHAPES: [(u32, u32); 4] = [(1, 400), (5, 2_000), (20, 8_000), (1_000, 10_000)];
const CONCURRENCY: usize = 100;
/// The longest time of a handler, in microseconds.
const WORK_US: u64 = 5_000;

struct Pure {
    keys: Arc<[Key]>,
    params: Params,
}

struct Shell {
    keys: Arc<[Key]>,
    params: Params,
}

struct Shape {
    keys: Arc<[Key]>,
    messages: u32,
    params: Params,
}

pub(crate) fn open_pure(setup: &Setup) -> anyhow::Result<Courses> {
    let (keys, params) = many(setup);
    Ok(vec![Box::new(Pure { keys, params })])
}

pub(crate) fn open_shell(setup: &Setup) -> anyhow::Result<Courses> {
    let (keys, params) = many(setup);
    Ok(vec![Box::new(Shell { keys, params })])
}

/// So many keys that they do not fit into a cache.
fn many(setup: &Setup) -> (Arc<[Key]>, Params) {
    let params = Params {
        keys: KEYS,
        level: "memory",
        ..params(setup, 1_000, 1)
    };
    (keys("key", KEYS), params)
}

pub(crate) fn open_shapes(setup: &Setup) -> anyhow::Result<Courses> {
    let courses = SHAPES.map(|(count, messages)| {
        let messages = if setup.args.quick {
            messages / 8
        } else {
            messages
        };
        let mut params = Params {
            keys: count,
            level: "memory",
            ..params(setup, 1, 1)
        };
        params.more.insert("messages", json!(messages));
        params.more.insert("work", json!("0 to 5 ms"));
        let keys = keys("key", count);
        Box::new(Shape {
            keys,
            messages,
            params,
        }) as Box<dyn Course>
    });
    Ok(courses.into())
}

/// The next keys in turn, from the key of that message on.
fn next_keys(keys: &[Key], message: u64, count: usize) -> impl Iterator<Item = &Key> + Clone {
    let at = usize::try_from(message % keys.len() as u64).unwrap_or_default();
    keys[at..].iter().chain(keys).take(count)
}

/// Messages a second through a hash map of deques: in and out, those of a key in order.
fn through_deques(keys: &[Key], time: Duration) -> f64 {
    let mut deques: HashMap<Key, VecDeque<u64>> = HashMap::new();
    let (began, mut messages) = (Instant::now(), 0);
    while began.elapsed() < time {
        let batch = next_keys(keys, messages, BATCH);
        for (key, number) in batch.clone().zip(messages..) {
            deques.entry(key.clone()).or_default().push_back(number);
        }
        for key in batch {
            if let Some(deque) = deques.get_mut(key) {
                messages += u64::from(deque.pop_front().is_some());
                if deque.is_empty() {
                    deques.remove(key);
                }
            }
        }
    }
    rate(messages, began)
}

fn rate(messages: u64, began: Instant) -> f64 {
    as_f64(messages) / began.elapsed().as_secs_f64()
}

/// The same through the dispatcher, each message received, run and acknowledged. As a worker does, it
/// carries out what there is to do, and tells of it then.
fn through_dispatcher(keys: &[Key], time: Duration) -> anyhow::Result<f64> {
    let mut can = SourceCapabilities::plain();
    (can.receive_max, can.settle_max) = (BATCH, BATCH);
    can.lease_max = Duration::from_secs(43_200);
    can.wait_max = Duration::from_secs(20);
    let options = DispatchOptions {
        concurrency: BATCH,
        held_max: 2 * BATCH,
        ..DispatchOptions::default()
    };
    let mut dispatcher = Dispatcher::new(options, vec![SourceOptions::new(can)], 0)?;
    let (began, mut next, mut messages) = (Instant::now(), 0, 0);
    let (mut receives, mut runs, mut settles) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let elapsed = began.elapsed();
        // A short round on a busy machine ends with its first messages all the same.
        if elapsed > time && messages > 0 {
            let counts = dispatcher.counts();
            let left = counts.acknowledged + dispatcher.held() as u64;
            anyhow::ensure!(
                counts.acknowledged == messages && counts.arrived == left,
                "messages were not acknowledged: {counts:?}"
            );
            return Ok(rate(messages, began));
        }
        let now = u64::try_from(elapsed.as_millis())?;
        while let Some(action) = dispatcher.poll(now) {
            match action {
                Action::Receive { max, .. } => receives.push(max),
                Action::Start(started) => runs.push(started.run),
                Action::Settle { items, .. } => settles.push(items),
                Action::Extend { items, lease, .. } => {
                    let results = items.into_iter().map(|(id, _)| (id, Ok(lease)));
                    dispatcher.extended(results, now);
                }
                Action::Cancel { .. } => {}
            }
        }
        for run in runs.drain(..) {
            let rest = Rest::Cancelled;
            dispatcher.finished(run, RunEnd { done: 1, rest }, now, 0);
        }
        for items in settles.drain(..) {
            messages += items.len() as u64;
            let results = items.into_iter().map(|(id, ..)| (id, Ok(())));
            dispatcher.settled(0, results, now, 0);
        }
        for max in receives.drain(..) {
            let arrivals = next_keys(keys, next, max).map(|key| Arrival {
                message: (),
                key: Some(key.clone()),
                tenant: None,
                priority: 0,
                bytes: 100,
                cost: 1,
                attempt: 1,
                age: None,
                lease: 30_000,
                alone: false,
                pack: None,
                at_once: None,
            });
            dispatcher.received(0, max, arrivals, now);
            next += max as u64;
        }
    }
}

impl Course for Pure {
    fn round(&mut self, _: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let half = time / 2;
        let floor = through_deques(&self.keys, half);
        let round = Round {
            rate: Some(through_dispatcher(&self.keys, half)?),
            floor: Some(floor),
            syncs_per_message: None,
        };
        report.add(
            "dispatch.pure",
            &self.params,
            Some(FLOOR),
            round,
            &histogram(),
        );
        Ok(())
    }

    fn close(self: Box<Self>, _: &Setup) {}
}

/// A rate means nothing if messages failed, or came twice.
pub(crate) fn all_handled(sent: u64, ended: &Ended) -> anyhow::Result<()> {
    let counts = &ended.counts;
    let each_once = [counts.arrived, counts.started, counts.acknowledged] == [sent; 3];
    anyhow::ensure!(
        each_once && ended.left == 0,
        "{sent} messages were sent, and not each was handled once: {ended:?}"
    );
    Ok(())
}

fn queue() -> anyhow::Result<MemoryQueue> {
    let options = MemoryOptions::default();
    MemoryQueue::new(options).context("making a queue in memory")
}

impl Course for Shell {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let half = time / 2;
        let floor = through_deques(&self.keys, half);
        let keys = self.keys.clone();
        let rate = setup.runtime.block_on(async move {
            let queue = queue()?;
            let builder = Worker::over(queue.clone()).concurrency(BATCH);
            let worker = builder.start(|_: Job| async { Ok(()) })?;
            let began = Instant::now();
            let mut sent = 0;
            for key in keys.iter().cycle() {
                if began.elapsed() > half {
                    break;
                }
                queue.push(Message::new("x").with_key(key.clone())).await?;
                sent += 1;
            }
            queue.close();
            all_handled(sent, &worker.ended().await)?;
            anyhow::Ok(rate(sent, began))
        })?;
        let round = Round {
            rate: Some(rate),
            floor: Some(floor),
            syncs_per_message: None,
        };
        report.add(
            "dispatch.shell",
            &self.params,
            Some(FLOOR),
            round,
            &histogram(),
        );
        Ok(())
    }

    fn close(self: Box<Self>, _: &Setup) {}
}

impl Course for Shape {
    /// The ratio of the time it takes to the best possible one: the longest of what one key takes, and
    /// what all take together on as many handlers as there may be.
    fn round(&mut self, setup: &Setup, _: Duration, report: &mut Report) -> anyhow::Result<()> {
        let per_key: Arc<[AtomicU64]> = self.keys.iter().map(|_| AtomicU64::new(0)).collect();
        let places: HashMap<Key, usize> = (self.keys.iter().cloned()).zip(0..).collect();
        let (times, all) = (per_key.clone(), Arc::new(Mutex::new(0_u64)));
        let elapsed = setup.runtime.block_on(async {
            let queue = queue()?;
            for (key, number) in self.keys.iter().cycle().zip(0..self.messages) {
                let message = Message::new(number.to_string()).with_key(key.clone());
                queue.push(message).await?;
            }
            let builder = Worker::over(queue.clone()).concurrency(CONCURRENCY);
            let began = Instant::now();
            let worker = builder.start(move |job: Job| {
                let (times, all) = (times.clone(), all.clone());
                let place = job.key().and_then(|key| places.get(key)).copied();
                async move {
                    let began = Instant::now();
                    // Spread evenly, and the same in every run.
                    let draw = {
                        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                        *all += 1;
                        all.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
                    };
                    tokio::time::sleep(Duration::from_micros((draw * WORK_US) >> 32)).await;
                    let took = u64::try_from(began.elapsed().as_nanos())?;
                    if let Some(time) = place.and_then(|place| times.get(place)) {
                        time.fetch_add(took, Ordering::Relaxed);
                    }
                    Ok(())
                }
            })?;
            queue.close();
            let ended = worker.ended().await;
            let elapsed = began.elapsed();
            all_handled(self.messages.into(), &ended)?;
            anyhow::Ok(elapsed)
        })?;
        let times = per_key.iter().map(|time| time.load(Ordering::Relaxed));
        let longest = times.clone().max().unwrap_or_default();
        let shared = times.sum::<u64>() / CONCURRENCY as u64;
        let best = Duration::from_nanos(longest.max(shared));
        let ratio = elapsed.as_secs_f64() / best.as_secs_f64();
        let at_most = if self.keys.len() == 1 { 1.05 } else { 1.1 };
        report.quantity("dispatch.shape", &self.params, ratio, "x", Some(at_most));
        Ok(())
    }

    fn close(self: Box<Self>, _: &Setup) {}
}
