//! Concurrent callers, and an engine for them.

use std::{
    collections::BTreeMap,
    future::Future,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::anyhow;
use hdrhistogram::Histogram;
use lockgate_core::{HolderName, Key, Message, QueueName};
use lockgate_engine::{
    Engine, EngineError, EngineMetrics, EngineOptions, MaintenanceThreads, StartReport,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SharedReserve, SystemClock};
use lockgate_machine::{
    Command, CreateQueue, Purge, QueueSettings, Receive, Rejection, Reply, SendMessage, Settle,
    SettleAction, Settled,
};
use tokio::task::JoinSet;

use crate::{
    Level,
    payload::Payloads,
    report::{histogram, merge},
};

/// How long a receive waits while other callers hold the rest. Short: it ends when they settle.
const RECEIVE_WAIT: Duration = Duration::from_millis(20);

/// How much longer than its time a caller may wait for a first message, which always comes.
const STALL_MAX: Duration = Duration::from_secs(60);

/// The prefix of the names of an engine's threads.
pub(crate) const ENGINE_THREADS: &str = "bench-engine";

/// A caller that makes one call after the other.
pub(crate) trait Caller: Send + 'static {
    fn call(&mut self) -> impl Future<Output = anyhow::Result<Moved>> + Send;
}

/// What a call moved.
#[derive(Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) messages: u64,
    /// How many of them count towards the limit.
    pub(crate) counted: u64,
}

impl Moved {
    pub(crate) fn all(messages: usize) -> Self {
        Self {
            messages: messages as u64,
            counted: messages as u64,
        }
    }
}

/// When callers stop: at a time, or after so many messages.
#[derive(Clone, Copy)]
pub(crate) struct Stop {
    pub(crate) after: Duration,
    pub(crate) messages: u64,
}

impl Stop {
    pub(crate) fn after(after: Duration) -> Self {
        Self {
            after,
            messages: u64::MAX,
        }
    }
}

/// The results of all callers together.
pub(crate) struct Load<C> {
    pub(crate) callers: Vec<C>,
    pub(crate) messages: u64,
    pub(crate) counted: u64,
    /// From the start to the last answer of a call that moved something.
    pub(crate) elapsed: Duration,
    /// The time of each call that moved something, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
}

impl<C> Load<C> {
    /// The results alone, for owners that keep the callers elsewhere.
    pub(crate) fn without_callers(self) -> Load<()> {
        Load {
            callers: Vec::new(),
            messages: self.messages,
            counted: self.counted,
            elapsed: self.elapsed,
            latency: self.latency,
        }
    }

    /// Messages a second.
    pub(crate) fn rate(&self) -> f64 {
        as_f64(self.messages) / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs all callers concurrently, each with one call at a time, until they must stop.
pub(crate) async fn drive<C: Caller>(callers: Vec<C>, stop: Stop) -> anyhow::Result<Load<C>> {
    let started = Instant::now();
    let counted = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for caller in callers {
        tasks.spawn(work(caller, stop, started, Arc::clone(&counted)));
    }
    let mut load = Load {
        callers: Vec::with_capacity(tasks.len()),
        messages: 0,
        counted: 0,
        elapsed: Duration::ZERO,
        latency: histogram(),
    };
    while let Some(done) = tasks.join_next().await {
        let part = done??;
        load.callers.extend(part.callers);
        load.messages += part.messages;
        load.elapsed = load.elapsed.max(part.elapsed);
        merge(&mut load.latency, &part.latency);
    }
    load.counted = counted.load(Ordering::Relaxed);
    Ok(load)
}

async fn work<C: Caller>(
    mut caller: C,
    stop: Stop,
    started: Instant,
    counted: Arc<AtomicU64>,
) -> anyhow::Result<Load<C>> {
    let mut latency = histogram();
    let mut messages = 0;
    let mut elapsed = Duration::ZERO;
    // On a busy machine a short time can be over before a caller had its turn; each must move something.
    let goes_on = |messages| messages == 0 || started.elapsed() < stop.after;
    while goes_on(messages) && counted.load(Ordering::Relaxed) < stop.messages {
        let began = Instant::now();
        if began - started > stop.after + STALL_MAX {
            return Err(anyhow!("a caller of the bench had nothing to do"));
        }
        let moved = caller.call().await?;
        if moved.messages == 0 {
            continue;
        }
        record(&mut latency, began.elapsed());
        elapsed = started.elapsed();
        messages += moved.messages;
        counted.fetch_add(moved.counted, Ordering::Relaxed);
    }
    Ok(Load {
        callers: vec![caller],
        messages,
        counted: 0,
        elapsed,
        latency,
    })
}

/// Starts an engine over a log in a fresh folder.
pub(crate) fn start_engine(folder: &Path) -> anyhow::Result<Engine> {
    open_engine(folder).map(|(engine, _)| engine)
}

/// The same for one of several engines that share these threads and the bound of their reserves.
pub(crate) fn start_one_of(
    folder: &Path,
    maintenance: &MaintenanceThreads,
    reserve: &SharedReserve,
) -> anyhow::Result<Engine> {
    let options = EngineOptions {
        maintenance: Some(maintenance.clone()),
        ..EngineOptions::default()
    };
    let log = LocalLogOptions {
        shared_reserve: Some(reserve.clone()),
        ..LocalLogOptions::default()
    };
    open_with(folder, options, log).map(|(engine, _)| engine)
}

/// Starts an engine over the log in a folder, and returns its report.
pub(crate) fn open_engine(folder: &Path) -> anyhow::Result<(Engine, StartReport)> {
    open_with(folder, EngineOptions::default(), LocalLogOptions::default())
}

fn open_with(
    folder: &Path,
    options: EngineOptions,
    log: LocalLogOptions,
) -> anyhow::Result<(Engine, StartReport)> {
    let failed =
        |error: anyhow::Error| error.context(format!("starting an engine in {}", folder.display()));
    let disk = FolderDisk::open(folder).map_err(|error| failed(error.into()))?;
    let log = LocalLog::open(Arc::new(disk), log).map_err(|error| failed(error.into()))?;
    let clock = Arc::new(SystemClock::new());
    let options = EngineOptions {
        thread_name: ENGINE_THREADS.to_owned(),
        ..options
    };
    Engine::start(log, clock, options).map_err(|error| failed(error.into()))
}

/// Creates a queue for a course.
pub(crate) fn queue_settings(keyed: bool, level: Level) -> QueueSettings {
    QueueSettings {
        keyed,
        level: level.into(),
        // Some courses lease all messages.
        in_flight_max: u32::MAX,
        ..QueueSettings::default()
    }
}

pub(crate) async fn make_queue(
    engine: &Engine,
    name: &str,
    keyed: bool,
    level: Level,
) -> anyhow::Result<QueueName> {
    let name = QueueName::new(name)?;
    let settings = queue_settings(keyed, level);
    submit(
        engine,
        Command::CreateQueue(Box::new(CreateQueue {
            name: name.clone(),
            settings,
            annotations: BTreeMap::new(),
            tags: BTreeMap::new(),
        })),
    )
    .await?;
    Ok(name)
}

/// `count` keys whose names have the length of a user id.
pub(crate) fn keys(prefix: &str, count: u32) -> Arc<[Key]> {
    (0..count)
        .map(|number| {
            Key::new(&format!("{prefix}-{number:07}")).expect("letters, digits and dashes")
        })
        .collect()
}

/// Sends messages in batches to the keys in turn.
pub(crate) struct Sender {
    engine: Engine,
    queue: QueueName,
    keys: Arc<[Key]>,
    next: usize,
    /// Keys come in random order, as from many users, instead of in turn.
    scattered: bool,
    batch: u16,
    payloads: Payloads,
}

impl Sender {
    /// Several senders, each of which begins with another key.
    pub(crate) fn several(
        count: u16,
        engine: &Engine,
        queue: &QueueName,
        keys: &Arc<[Key]>,
        batch: u16,
        payloads: &Payloads,
    ) -> Vec<Self> {
        (0..count)
            .map(|caller| Self {
                engine: engine.clone(),
                queue: queue.clone(),
                keys: Arc::clone(keys),
                next: usize::from(caller) * keys.len() / usize::from(count.max(1)),
                scattered: false,
                batch,
                payloads: payloads.for_caller(u64::from(caller)),
            })
            .collect()
    }

    /// A sender of one message, the arrival `number`.
    pub(crate) fn for_arrival(&self, number: u32) -> Self {
        let step = usize::try_from(number).unwrap_or(0);
        Self {
            engine: self.engine.clone(),
            queue: self.queue.clone(),
            keys: Arc::clone(&self.keys),
            next: self.next.wrapping_add(step) % self.keys.len().max(1),
            scattered: self.scattered,
            batch: 1,
            payloads: self.payloads.for_caller(u64::from(number)),
        }
    }

    /// The same sender with keys in random order.
    pub(crate) fn scattered(self) -> Self {
        Self {
            scattered: true,
            ..self
        }
    }

    /// Sends so many messages in large batches; not measured.
    pub(crate) async fn fill(&mut self, mut messages: u64) -> anyhow::Result<()> {
        let batch = self.batch;
        while messages > 0 {
            self.batch = u16::try_from(messages.min(1000)).unwrap_or(1000);
            self.call().await?;
            messages -= u64::from(self.batch);
        }
        self.batch = batch;
        Ok(())
    }

    fn command(&mut self) -> Command {
        let mut message = Message::new(self.payloads.next());
        if !self.keys.is_empty() {
            let key = if self.scattered {
                // A linear congruential generator (Knuth's MMIX); its upper bits are the most random.
                self.next = self
                    .next
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (self.next >> 32) % self.keys.len()
            } else {
                self.next = (self.next + 1) % self.keys.len();
                self.next
            };
            message.key = Some(self.keys[key].clone());
        }
        Command::Send(Box::new(SendMessage {
            queue: self.queue.clone(),
            message,
        }))
    }
}

impl Caller for Sender {
    async fn call(&mut self) -> anyhow::Result<Moved> {
        if self.batch == 1 {
            let command = self.command();
            submit(&self.engine, command).await?;
        } else {
            let commands = (0..self.batch).map(|_| self.command()).collect();
            submit_all(&self.engine, commands).await?;
        }
        Ok(Moved::all(self.batch.into()))
    }
}

/// Receives messages and acknowledges them, a batch at a time.
pub(crate) struct Receiver {
    engine: Engine,
    receive: Receive,
    /// Messages of this key do not count towards the limit.
    beside: Option<Key>,
}

impl Receiver {
    pub(crate) fn several(
        count: u16,
        engine: &Engine,
        queue: &QueueName,
        batch: u16,
        beside: Option<&Key>,
    ) -> Vec<Self> {
        (0..count)
            .map(|caller| Self {
                engine: engine.clone(),
                receive: receive(queue, batch, &format!("bench-{caller}")),
                beside: beside.cloned(),
            })
            .collect()
    }
}

/// A receive with the benches' parameters.
pub(crate) fn receive(queue: &QueueName, max: u16, holder: &str) -> Receive {
    Receive {
        queue: queue.clone(),
        max,
        key_max: None,
        lease: None,
        holder: HolderName::new(holder).expect("letters, digits and dashes"),
    }
}

impl Caller for Receiver {
    async fn call(&mut self) -> anyhow::Result<Moved> {
        let received = self
            .engine
            .receive(self.receive.clone(), RECEIVE_WAIT)
            .await
            .map_err(refused)?
            .keep();
        let counted = received
            .iter()
            .filter(|one| self.beside.is_none() || one.stored.message.key != self.beside)
            .count();
        let mut acks: Vec<_> = received
            .iter()
            .map(|one| {
                Command::Settle(Settle {
                    token: one.delivery.token,
                    action: SettleAction::Ack,
                })
            })
            .collect();
        match acks.len() {
            0 => {}
            1 => {
                submit(&self.engine, acks.remove(0)).await?;
            }
            _ => submit_all(&self.engine, acks).await?,
        }
        Ok(Moved {
            messages: received.len() as u64,
            counted: counted as u64,
        })
    }
}

pub(crate) async fn submit(engine: &Engine, command: Command) -> anyhow::Result<Reply> {
    engine.submit(command).await.map_err(refused)
}

pub(crate) async fn submit_all(engine: &Engine, commands: Vec<Command>) -> anyhow::Result<()> {
    let results: Result<Vec<Reply>, Rejection> = engine
        .submit_all(commands.into())
        .await
        .map_err(refused)?
        .into_iter()
        .collect();
    let replies = results?;
    let stale = |reply: &&Reply| matches!(reply, Reply::Settled(Settled::Stale(_)));
    match replies.iter().find(stale) {
        Some(stale) => Err(anyhow!("a settle of the bench was stale: {stale:?}")),
        None => Ok(()),
    }
}

/// Removes what a round left, so that the next one begins in the same state.
pub(crate) async fn purge(engine: &Engine, queue: &QueueName) -> anyhow::Result<()> {
    let command = Command::Purge(Purge {
        queue: queue.clone(),
    });
    submit(engine, command).await.map(drop)
}

pub(crate) fn refused(error: EngineError) -> anyhow::Error {
    anyhow::Error::new(error).context("the engine refused a call of the bench")
}

/// How many syncs and payload bytes lie between two readings.
pub(crate) fn between(before: &EngineMetrics, after: &EngineMetrics) -> (u64, u64) {
    (after.syncs - before.syncs, after.bytes - before.bytes)
}

/// Adds one measured time to a histogram of nanoseconds.
pub(crate) fn record(latency: &mut Histogram<u64>, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    latency
        .record(nanos)
        .expect("the histogram grows to hold any value");
}

/// Exact up to 2^53, which no count here reaches.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a bench are below 2^53"
)]
pub(crate) fn as_f64(count: u64) -> f64 {
    count as f64
}

/// The nearest count; 0 for negative values and NaN.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from floating point saturates, which is what is wanted"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}
