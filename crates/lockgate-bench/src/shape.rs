//! `shape.*`: loads that slow down queues that must search for the next message.
//!
//! Each course has two queues in one engine, one with the load and one without. In every round both
//! get the same messages and are drained; the floor is the rate of the queue without the load.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use lockgate_core::{Key, QueueName};
use lockgate_engine::Engine;
use lockgate_machine::{ChangeQueue, Command, Receive};
use serde_json::json;

use crate::{
    Course, Courses, Level, Setup,
    load::{
        Load, Receiver, Sender, Stop, drive, keys, make_queue, purge, queue_settings, receive,
        start_engine, submit, whole,
    },
    queue::params,
    report::{Params, Report, Round},
};

/// Messages of the one key: as many as slowed a well-known broker down to 3 messages a second.
const HOT_MESSAGES: u64 = 216_000;

/// Keys in flight in front of the free one.
const LOCKED_KEYS: u32 = 10_000;

/// Keys under a limit, with a message each.
const LIMITED_KEYS: u32 = 1_000_000;

/// A limit that holds nobody up: what it costs is kept apart from what it makes wait.
const LIMIT: &str = "10/s per key";

/// Keys of the other messages.
const OTHER_KEYS: u32 = 100;

/// Bodies are small: the bench measures choosing, not copying.
const SIZE: usize = 100;

/// The longest lease: no held message comes back while the bench runs.
const LONG_LEASE_MS: u64 = 12 * 3600 * 1000;

const FLOOR: &str = "the same messages in a queue without the burden";

struct ShapeCourse {
    figure: &'static str,
    engine: Engine,
    burdened: QueueName,
    free: QueueName,
    /// The keys of the measured messages.
    keys: Arc<[Key]>,
    /// The key whose backlog is drained along with the rest, and filled again afterwards.
    hot: Option<Key>,
    params: Params,
    /// Messages of a round; from the second round on, as many as fit into its time, if it is not fixed.
    messages: u64,
    is_fixed: bool,
    /// Sending counts too.
    counts_sends: bool,
    rounds: u32,
}

pub(crate) fn open_hot_key(setup: &Setup) -> anyhow::Result<Courses> {
    let hot = one_key("hot");
    let mut course = ShapeCourse::new(setup, "shape.hot_key", OTHER_KEYS, 10, 4)?;
    course.hot = Some(hot[0].clone());
    course.params.more.insert("backlog", json!(HOT_MESSAGES));
    setup
        .runtime
        .block_on(course.fill(setup, &course.burdened, &hot, HOT_MESSAGES))?;
    Ok(vec![Box::new(course)])
}

pub(crate) fn open_slow_holder(setup: &Setup) -> anyhow::Result<Courses> {
    let slow = one_key("slow");
    let mut course = ShapeCourse::new(setup, "shape.slow_holder", OTHER_KEYS, 10, 4)?;
    course.params.more.insert("backlog", json!(HOT_MESSAGES));
    setup.runtime.block_on(async {
        course
            .fill(setup, &course.burdened, &slow, HOT_MESSAGES)
            .await?;
        course.hold(1).await
    })?;
    Ok(vec![Box::new(course)])
}

pub(crate) fn open_locked_keys(setup: &Setup) -> anyhow::Result<Courses> {
    let locked = keys("locked", LOCKED_KEYS);
    let mut course = ShapeCourse::new(setup, "shape.locked_keys", 1, 1, 1)?;
    course.params.more.insert("locked", json!(LOCKED_KEYS));
    setup.runtime.block_on(async {
        let count = u64::from(LOCKED_KEYS);
        course.fill(setup, &course.burdened, &locked, count).await?;
        course.hold(count).await?;
        // Each key has a second message, which waits behind the one in flight.
        course.fill(setup, &course.burdened, &locked, count).await
    })?;
    Ok(vec![Box::new(course)])
}

pub(crate) fn open_limited_keys(setup: &Setup) -> anyhow::Result<Courses> {
    let keys = u32::try_from(setup.scaled(LIMITED_KEYS))?.max(1_000);
    let mut course = ShapeCourse::new(setup, "shape.limited_keys", keys, 10, 4)?;
    course.params.more.insert("limit", json!(LIMIT));
    (course.messages, course.is_fixed) = (keys.into(), true);
    course.counts_sends = true;
    let mut settings = queue_settings(true, setup.args.level.unwrap_or(Level::Process));
    settings.limit_rate = LIMIT.parse()?;
    let change = Command::ChangeQueue(ChangeQueue {
        queue: course.burdened.clone(),
        settings: Some(Box::new(settings)),
        annotations: None,
        tags: None,
    });
    setup.runtime.block_on(submit(&course.engine, change))?;
    Ok(vec![Box::new(course)])
}

fn one_key(name: &str) -> Arc<[Key]> {
    keys(name, 1)
}

impl ShapeCourse {
    fn new(
        setup: &Setup,
        figure: &'static str,
        key_count: u32,
        batch: u16,
        callers: u16,
    ) -> anyhow::Result<Self> {
        let engine = start_engine(&setup.folder(figure))?;
        // The bench measures choosing the next message, which a slow disk would hide.
        let level = setup.args.level.unwrap_or(Level::Process);
        let (burdened, free) = setup.runtime.block_on(async {
            let burdened = make_queue(&engine, "burdened", true, level).await?;
            let free = make_queue(&engine, "free", true, level).await?;
            anyhow::Ok((burdened, free))
        })?;
        let params = Params {
            size: SIZE,
            keys: key_count,
            level: lockgate_core::Level::from(level).name(),
            ..params(setup, batch, callers)
        };
        Ok(Self {
            figure,
            engine,
            burdened,
            free,
            keys: keys("other", key_count),
            hot: None,
            params,
            messages: 1000,
            is_fixed: false,
            counts_sends: false,
            rounds: 0,
        })
    }

    async fn fill(
        &self,
        setup: &Setup,
        queue: &QueueName,
        keys: &Arc<[Key]>,
        messages: u64,
    ) -> anyhow::Result<()> {
        let payloads = setup.payloads.with_size(SIZE);
        let mut senders = Sender::several(1, &self.engine, queue, keys, 1, &payloads);
        match senders.first_mut() {
            Some(sender) => sender.fill(messages).await,
            None => Ok(()),
        }
    }

    /// Leases messages of the loaded queue and keeps them.
    async fn hold(&self, mut messages: u64) -> anyhow::Result<()> {
        while messages > 0 {
            let max = u16::try_from(messages.min(1000)).unwrap_or(1000);
            let receive = Receive {
                lease: Some(LONG_LEASE_MS),
                ..receive(&self.burdened, max, "slow-consumer")
            };
            let held = self
                .engine
                .receive(receive, Duration::from_secs(5))
                .await
                .context("holding keys")?
                .keep();
            if held.is_empty() {
                return Err(anyhow!(
                    "{messages} messages could not be received to hold their keys"
                ));
            }
            messages -= held.len() as u64;
        }
        Ok(())
    }

    /// Receives and acknowledges until the round's messages are done.
    async fn drain(&self, queue: &QueueName, time: Duration) -> anyhow::Result<Load<Receiver>> {
        let Params { batch, callers, .. } = self.params;
        let receivers = Receiver::several(callers, &self.engine, queue, batch, self.hot.as_ref());
        let stop = Stop {
            after: time,
            messages: self.messages,
        };
        drive(receivers, stop).await
    }

    async fn refill_hot(&self, setup: &Setup, drained: &Load<Receiver>) -> anyhow::Result<()> {
        match &self.hot {
            Some(hot) => {
                let keys = [hot.clone()].into();
                let taken = drained.messages - drained.counted;
                self.fill(setup, &self.burdened, &keys, taken).await
            }
            None => Ok(()),
        }
    }
}

impl Course for ShapeCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let (burdened, free) = setup.runtime.block_on(async {
            let mut filled = [Duration::ZERO; 2];
            for (queue, took) in [&self.burdened, &self.free].into_iter().zip(&mut filled) {
                let begun = Instant::now();
                self.fill(setup, queue, &self.keys, self.messages).await?;
                *took = begun.elapsed();
            }
            // The first queue meets colder caches, so they take turns.
            let limit = time.max(Duration::from_secs(1)) * 5;
            let (mut burdened, mut free) = if self.rounds.is_multiple_of(2) {
                let burdened = self.drain(&self.burdened, limit).await?;
                (burdened, self.drain(&self.free, limit).await?)
            } else {
                let free = self.drain(&self.free, limit).await?;
                (self.drain(&self.burdened, limit).await?, free)
            };
            if self.counts_sends {
                burdened.elapsed += filled[0];
                free.elapsed += filled[1];
            }
            self.refill_hot(setup, &burdened).await?;
            purge(&self.engine, &self.free).await?;
            anyhow::Ok((burdened, free))
        })?;
        if self.rounds == 0 && !self.is_fixed {
            // The warm-up round finds how many messages fit into half of a round's time.
            self.messages = whole(free.rate() * time.as_secs_f64() / 2.0).clamp(100, 200_000);
        }
        self.rounds += 1;
        let round = Round {
            rate: Some(burdened.rate()),
            floor: Some(free.rate()),
            syncs_per_message: None,
        };
        report.add(
            self.figure,
            &self.params,
            Some(FLOOR),
            round,
            &burdened.latency,
        );
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}
