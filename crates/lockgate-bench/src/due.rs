//! `due.stall`: how long other commands wait when very many messages come due at once.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use lockgate_core::{Message, QueueName, WallTime};
use lockgate_engine::Engine;
use lockgate_machine::{Command, DescribeQueue, Query, QueryReply, SendMessage};
use serde_json::json;

use crate::{
    Course, Courses, Level, Setup,
    load::{as_f64, make_queue, purge, refused, start_engine, submit_all},
    queue::params,
    report::{Params, Report},
};

/// Messages that come due at scale 1.
const MESSAGES: u32 = 10_000_000;

const BATCH: usize = 1_000;

/// Longer than filling takes: all messages wait when the first comes due.
const DELAY_MS: u64 = 3_600_000;

/// All come due within so many milliseconds.
const SPREAD_MS: u64 = 1_000;

struct DueCourse {
    engine: Engine,
    delayed: QueueName,
    beside: QueueName,
    params: Params,
    messages: u64,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let engine = start_engine(&setup.folder("due"))?;
    let (delayed, beside) = setup.runtime.block_on(async {
        let delayed = make_queue(&engine, "delayed", false, Level::Process).await?;
        let beside = make_queue(&engine, "beside", false, Level::Process).await?;
        anyhow::Ok((delayed, beside))
    })?;
    let messages = setup.scaled(MESSAGES);
    let mut params = Params {
        level: lockgate_core::Level::Process.name(),
        size: 1,
        keys: 0,
        ..params(setup, 1, 1)
    };
    params.more.insert("due", json!(messages));
    Ok(vec![Box::new(DueCourse {
        engine,
        delayed,
        beside,
        params,
        messages,
    })])
}

impl DueCourse {
    /// Sends the messages, which come due within a second from `first_due` on.
    async fn fill(&self, first_due: WallTime) -> anyhow::Result<()> {
        for first in (0..self.messages).step_by(BATCH) {
            let batch = first..self.messages.min(first + BATCH as u64);
            let sends = batch.map(|number| {
                let due = first_due.plus(number % SPREAD_MS);
                let message = Message::new("x").with_due(due);
                let queue = self.delayed.clone();
                Command::Send(Box::new(SendMessage { queue, message }))
            });
            submit_all(&self.engine, sends.collect()).await?;
        }
        Ok(())
    }

    async fn delayed(&self) -> anyhow::Result<u64> {
        let queue = self.delayed.clone();
        match self
            .engine
            .query(Query::DescribeQueue(DescribeQueue { queue }))
            .await
        {
            Ok(QueryReply::Queue(queue)) => Ok(queue.counts.delayed),
            Ok(_) => Err(anyhow!("a queue was asked for")),
            Err(error) => Err(refused(error)),
        }
    }

    /// The longest of successive sends, until no message is delayed any more or until `until`.
    async fn longest_send(&self, until: Option<Instant>) -> anyhow::Result<Duration> {
        let mut longest = Duration::ZERO;
        loop {
            let message = Message::new("x");
            let queue = self.beside.clone();
            let send = Command::Send(Box::new(SendMessage { queue, message }));
            let started = Instant::now();
            submit_all(&self.engine, vec![send]).await?;
            longest = longest.max(started.elapsed());
            let is_over = match until {
                Some(until) => Instant::now() >= until,
                None => self.delayed().await? == 0,
            };
            if is_over {
                return Ok(longest);
            }
        }
    }
}

impl Course for DueCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let (alone, beside) = setup.runtime.block_on(async {
            let alone = self.longest_send(Some(Instant::now() + time / 4)).await?;
            // All messages come due at an instant that leaves time to send them.
            let started = Instant::now();
            self.fill(self.engine.now().wall.plus(DELAY_MS)).await?;
            purge(&self.engine, &self.delayed).await?;
            let margin = u64::try_from(started.elapsed().as_millis()).unwrap_or(DELAY_MS) * 3 / 2;
            self.fill(self.engine.now().wall.plus(margin + SPREAD_MS))
                .await?;
            let beside = self.longest_send(None).await?;
            purge(&self.engine, &self.delayed).await?;
            purge(&self.engine, &self.beside).await?;
            anyhow::Ok((alone, beside))
        })?;
        let millis = |longest: Duration| {
            as_f64(u64::try_from(longest.as_micros()).unwrap_or(u64::MAX)) / 1e3
        };
        report.quantity("due.stall", &self.params, millis(beside), "ms", None);
        report.quantity("due.alone", &self.params, millis(alone), "ms", None);
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}
