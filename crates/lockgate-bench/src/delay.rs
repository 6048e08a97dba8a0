//! `delay.*`: delayed messages over a year's horizon, and very many that come due in one second.
//!
//! - With 1,000 to 10,000,000 pending: how fast they are accepted beside sends without a delay, how long a start takes, and how late
//!   others that come due are received, after a restart in each round.
//! - How long a send waits while 1,000,000 come due in the same second, and when the last of them can be received, with nothing
//!   else to do and beside senders at full rate.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{anyhow, ensure};
use lockgate_core::{HolderName, Message, QueueName, WallTime};
use lockgate_engine::Engine;
use lockgate_machine::{
    Command, DescribeQueue, Query, QueryReply, Receive, SendMessage, Settle, SettleAction,
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    Course, Courses, Level, Setup,
    load::{as_f64, make_queue, open_engine, purge, refused, start_engine, submit_all},
    queue::params,
    report::{Params, Report, Round, histogram},
};

/// Messages that wait, up to ten million times the scale.
const PENDING: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Messages that come due in a round, one a millisecond.
const DUE: u64 = 1_000;

/// Messages that come due in one second at scale 1.
const FLOOD: u32 = 1_000_000;

const BATCH: usize = 1_000;
const SENDERS: usize = 16;

const HOUR_MS: u64 = 3_600_000;
const YEAR_MS: u64 = 365 * 24 * HOUR_MS;

/// From the send of the messages that come due to the first of them.
const LEAD_MS: u64 = 300;

const FLOOR: &str = "as many sends without a delay";

struct LateCourse {
    folder: PathBuf,
    engine: Option<Engine>,
    params: Params,
    pending: u64,
    is_filled: bool,
}

struct FloodCourse {
    engine: Engine,
    delayed: QueueName,
    beside: QueueName,
    params: Params,
    messages: u64,
}

fn params_of(setup: &Setup, name: &'static str, messages: u64) -> Params {
    let mut params = Params {
        level: lockgate_core::Level::Process.name(),
        size: 8,
        keys: 0,
        ..params(setup, 1, 1)
    };
    params.more.insert(name, json!(messages));
    params
}

pub(crate) fn open_late(setup: &Setup) -> anyhow::Result<Courses> {
    let max = setup.scaled(10_000_000);
    let mut courses: Courses = Vec::new();
    for pending in PENDING
        .into_iter()
        .filter(|pending| *pending <= max.max(1_000))
    {
        let folder = setup.folder(&format!("delay-{pending}"));
        let engine = start_engine(&folder)?;
        setup.runtime.block_on(async {
            for queue in ["delayed", "soon", "more", "now"] {
                make_queue(&engine, queue, false, Level::Process).await?;
            }
            anyhow::Ok(())
        })?;
        courses.push(Box::new(LateCourse {
            folder,
            engine: Some(engine),
            params: params_of(setup, "pending", pending),
            pending,
            is_filled: false,
        }));
    }
    Ok(courses)
}

pub(crate) fn open_flood(setup: &Setup) -> anyhow::Result<Courses> {
    let engine = start_engine(&setup.folder("flood"))?;
    let (delayed, beside) = setup.runtime.block_on(async {
        let delayed = make_queue(&engine, "delayed", false, Level::Process).await?;
        let beside = make_queue(&engine, "beside", false, Level::Process).await?;
        anyhow::Ok((delayed, beside))
    })?;
    let messages = setup.scaled(FLOOD);
    Ok(vec![Box::new(FloodCourse {
        engine,
        delayed,
        beside,
        params: params_of(setup, "due", messages),
        messages,
    })])
}

fn send(queue: &QueueName, due: Option<WallTime>) -> Command {
    let body = due.unwrap_or_default().0.to_le_bytes();
    let mut message = Message::new(body.to_vec());
    message.due = due;
    let queue = queue.clone();
    Command::Send(Box::new(SendMessage { queue, message }))
}

/// Sends messages in batches, and returns how long that took.
async fn fill(
    engine: &Engine,
    queue: &QueueName,
    messages: u64,
    due: impl Fn(u64) -> Option<WallTime>,
) -> anyhow::Result<Duration> {
    let started = Instant::now();
    for first in (0..messages).step_by(BATCH) {
        let batch = first..messages.min(first + BATCH as u64);
        let sends = batch.map(|number| send(queue, due(number)));
        submit_all(engine, sends.collect()).await?;
    }
    Ok(started.elapsed())
}

/// Receives messages until there were so many, and returns how late each was, in milliseconds.
async fn lateness(engine: &Engine, queue: &QueueName, count: u64) -> anyhow::Result<Vec<u64>> {
    let mut late = Vec::new();
    let receive = Receive {
        queue: queue.clone(),
        max: 100,
        key_max: None,
        lease: None,
        holder: HolderName::new("bench")?,
    };
    while (late.len() as u64) < count {
        let received = engine
            .receive(receive.clone(), Duration::from_secs(20))
            .await;
        let received = received.map_err(refused)?.keep();
        ensure!(!received.is_empty(), "messages that are due do not come");
        let now = engine.now().wall;
        let mut acks = Vec::with_capacity(received.len());
        for one in &received {
            let body: [u8; 8] = one.stored.message.body[..].try_into()?;
            let due = WallTime(u64::from_le_bytes(body));
            ensure!(due <= now, "a message came before it was due");
            late.push(now.since(due));
            acks.push(Command::Settle(Settle {
                token: one.delivery.token,
                action: SettleAction::Ack,
            }));
        }
        submit_all(engine, acks).await?;
    }
    late.sort_unstable();
    Ok(late)
}

/// Times within a year, in no order.
fn spread(engine: &Engine) -> impl Fn(u64) -> Option<WallTime> {
    let first = engine.now().wall.plus(HOUR_MS);
    move |number| {
        let place = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % YEAR_MS;
        Some(first.plus(place))
    }
}

/// The value that so many of a thousand do not exceed, of sorted ones.
fn quantile(sorted: &[u64], of_thousand: usize) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(last * of_thousand / 1_000).copied().unwrap_or(0)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl LateCourse {
    fn engine(&self) -> anyhow::Result<&Engine> {
        self.engine
            .as_ref()
            .ok_or_else(|| anyhow!("the engine did not start"))
    }

    async fn fill(&self) -> anyhow::Result<()> {
        let engine = self.engine()?;
        fill(
            engine,
            &QueueName::new("delayed")?,
            self.pending,
            spread(engine),
        )
        .await?;
        Ok(())
    }

    /// Adds messages to those that wait, and as many without a delay elsewhere.
    async fn insert(&self, report: &mut Report) -> anyhow::Result<()> {
        let engine = self.engine()?;
        let (more, now) = (QueueName::new("more")?, QueueName::new("now")?);
        let count = self.pending.clamp(10_000, 100_000);
        let took = fill(engine, &more, count, spread(engine)).await?;
        let floor_took = fill(engine, &now, count, |_| None).await?;
        purge(engine, &more).await?;
        purge(engine, &now).await?;
        let rate = |took: Duration| as_f64(count) / took.as_secs_f64();
        let round = Round {
            rate: Some(rate(took)),
            floor: Some(rate(floor_took)),
            syncs_per_message: None,
        };
        report.add(
            "delay.insert",
            &self.params,
            Some(FLOOR),
            round,
            &histogram(),
        );
        Ok(())
    }
}

impl Course for LateCourse {
    fn round(&mut self, setup: &Setup, _time: Duration, report: &mut Report) -> anyhow::Result<()> {
        if !self.is_filled {
            setup.runtime.block_on(self.fill())?;
            self.is_filled = true;
        }
        setup.runtime.block_on(self.insert(report))?;
        if let Some(engine) = self.engine.take() {
            setup.runtime.block_on(engine.shutdown());
        }
        let started = Instant::now();
        let (engine, _) = open_engine(&self.folder)?;
        let took = started.elapsed();
        self.engine = Some(engine);
        let engine = self.engine()?;
        let soon = QueueName::new("soon")?;
        let late = setup.runtime.block_on(async {
            let first = engine.now().wall.plus(LEAD_MS);
            fill(engine, &soon, DUE, |number| Some(first.plus(number))).await?;
            lateness(engine, &soon, DUE).await
        })?;
        let at = |of_thousand| as_f64(quantile(&late, of_thousand));
        report.quantity("delay.start", &self.params, millis(took), "ms", None);
        report.quantity("delay.late_p50", &self.params, at(500), "ms", None);
        report.quantity("delay.late_p99", &self.params, at(990), "ms", None);
        report.quantity("delay.late_max", &self.params, at(1_000), "ms", None);
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        if let Some(engine) = self.engine {
            setup.runtime.block_on(engine.shutdown());
        }
    }
}

impl FloodCourse {
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

    /// Lets all come due within a second, and sends meanwhile, one after the other: how long each send took in microseconds, and
    /// how long after the last due time the last message could be received.
    async fn flood(&self, senders: usize) -> anyhow::Result<(Vec<u64>, Duration)> {
        let started = Instant::now();
        let far = self.engine.now().wall.plus(YEAR_MS);
        fill(&self.engine, &self.delayed, self.messages, |_| Some(far)).await?;
        purge(&self.engine, &self.delayed).await?;
        let margin = u64::try_from(started.elapsed().as_millis())? * 3 / 2 + 1_000;
        let first = self.engine.now().wall.plus(margin);
        fill(&self.engine, &self.delayed, self.messages, |number| {
            Some(first.plus(number % 1_000))
        })
        .await?;
        let mut busy = JoinSet::new();
        for _ in 0..senders {
            let (engine, queue) = (self.engine.clone(), self.beside.clone());
            busy.spawn(async move {
                loop {
                    let sends = (0..10).map(|_| send(&queue, None));
                    if submit_all(&engine, sends.collect()).await.is_err() {
                        return;
                    }
                }
            });
        }
        let last = first.plus(999);
        let mut sends = Vec::new();
        let out = loop {
            let began = Instant::now();
            submit_all(&self.engine, vec![send(&self.beside, None)]).await?;
            sends.push(u64::try_from(began.elapsed().as_micros())?);
            let now = self.engine.now().wall;
            if now > last && self.delayed().await? == 0 {
                break Duration::from_millis(now.since(last));
            }
        };
        busy.shutdown().await;
        purge(&self.engine, &self.delayed).await?;
        purge(&self.engine, &self.beside).await?;
        sends.sort_unstable();
        Ok((sends, out))
    }
}

impl Course for FloodCourse {
    fn round(&mut self, setup: &Setup, _time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let ((sends, out), (_, loaded)) = setup
            .runtime
            .block_on(async { anyhow::Ok((self.flood(0).await?, self.flood(SENDERS).await?)) })?;
        let at = |of_thousand| as_f64(quantile(&sends, of_thousand)) / 1e3;
        report.quantity("delay.flood_send_p99", &self.params, at(990), "ms", None);
        report.quantity("delay.flood_send_max", &self.params, at(1_000), "ms", None);
        report.quantity("delay.flood_out", &self.params, millis(out), "ms", None);
        report.quantity(
            "delay.flood_out_busy",
            &self.params,
            millis(loaded),
            "ms",
            None,
        );
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}
