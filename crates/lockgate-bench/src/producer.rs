//! `producer.*`: a producer beside callers that send each message by itself.
//!
//! All rates are of messages that the queue has confirmed, over the same queue, which answers when they are synced. The
//! producer has its default options and no spool: its messages are accepted as fast as its buffer takes them, and the
//! clock stops when the last one is confirmed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytes::Bytes;
use lockgate::Lockgate;
use lockgate_client::{Client, RemoteQueue};
use lockgate_core::{Key, Message, Sink};
use lockgate_engine::Engine;
use lockgate_producer::{AnswerLevel, PackOptions, Producer, ProducerOptions, testing::TestSink};
use lockgate_server::Server;
use tokio::task::JoinSet;

use crate::{
    Course, Courses, Setup,
    http::{Running, make_queue, options},
    load::{as_f64, keys, purge, start_engine},
    memory::{allocated, allocations},
    payload::Payloads,
    queue::params,
    report::{Params, Report, Round, histogram},
};

const NAIVE: &str = "each message by itself, by so many callers that wait for its confirmation";
const CEILING: &str = "batches of 1,000 handed to the queue by one caller";
const UNPACKED: &str = "the same producer without packs";
const NOTHING: &str = "a push of the same message to a vector behind a mutex";

/// Callers that send each message by itself.
const CALLERS: [u16; 2] = [1, 64];

/// Messages whose acceptance is timed.
const ACCEPTED: u32 = 20_000;

/// Records whose memory is counted.
const HELD: u32 = 60_000;

struct Load {
    payloads: Payloads,
    keys: Arc<[Key]>,
}

impl Load {
    fn new(setup: &Setup) -> Self {
        Self {
            payloads: setup.payloads.clone(),
            keys: keys("user", setup.keys()),
        }
    }

    fn for_caller(&self, caller: u16) -> Self {
        Self {
            payloads: self.payloads.for_caller(caller.into()),
            keys: self.keys.clone(),
        }
    }

    fn message(&mut self, number: u64) -> Message {
        let message = Message::new(self.payloads.next());
        match self.keys.len() {
            0 => message,
            keys => {
                let at = usize::try_from(number).unwrap_or_default() % keys;
                message.with_key(self.keys[at].clone())
            }
        }
    }
}

/// Sends messages each by itself, with so many callers. Returns how many a second.
async fn naive<S: Sink + Clone + 'static>(
    sink: &S,
    load: &Load,
    callers: u16,
    time: Duration,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (sink, mut load) = (sink.clone(), load.for_caller(caller));
        tasks.spawn(async move {
            let mut sent = 0;
            while began.elapsed() < time {
                let message = load.message(u64::from(caller) + sent * 64);
                let mut results = sink.send_batch(vec![message]).await;
                results.pop().context("an answer")??;
                sent += 1;
            }
            anyhow::Ok(sent)
        });
    }
    let mut sent = 0;
    while let Some(done) = tasks.join_next().await {
        sent += done??;
    }
    Ok(as_f64(sent) / began.elapsed().as_secs_f64())
}

/// Sends through a producer, from one caller. Returns how many a second.
async fn buffered<S: Sink + Clone + 'static>(
    sink: &S,
    load: &Load,
    time: Duration,
    pack: Option<PackOptions>,
) -> anyhow::Result<f64> {
    let options = ProducerOptions {
        pack,
        ..ProducerOptions::default()
    };
    let producer = Producer::open(sink.clone(), options).await?;
    let mut load = load.for_caller(1);
    let (began, mut sent) = (Instant::now(), 0);
    while began.elapsed() < time {
        let send = producer.send(load.message(sent));
        send.level(AnswerLevel::Accepted).await?;
        sent += 1;
    }
    producer.flush().await;
    let rate = as_f64(sent) / began.elapsed().as_secs_f64();
    let figures = producer.figures();
    anyhow::ensure!(
        figures.delivered == sent && figures.dropped_all() == 0,
        "not all were delivered: {figures:?}"
    );
    Ok(rate)
}

fn rates(rate: f64, floor: f64) -> Round {
    Round {
        rate: Some(rate),
        floor: Some(floor),
        syncs_per_message: None,
    }
}

struct Http {
    queue: lockgate_core::QueueName,
    remote: RemoteQueue,
    load: Load,
    params: [Params; 2],
    engine: Engine,
    server: Running,
}

pub(crate) fn open_http(setup: &Setup) -> anyhow::Result<Courses> {
    let course = setup.runtime.block_on(async {
        let engine = start_engine(&setup.folder("producer-http"))?;
        let server = Running::start(Server::bind(options(), engine.clone()).await)?;
        let (queue, _) = make_queue(setup, &engine, server.address(), setup.level()).await?;
        let url = format!("http://{}", server.address());
        let client = Client::builder(url.parse()?).build().await?;
        let remote = client.queue(&queue).await?;
        anyhow::Ok(Http {
            queue,
            remote,
            load: Load::new(setup),
            params: CALLERS.map(|callers| params(setup, 1, callers)),
            engine,
            server,
        })
    });
    Ok(vec![Box::new(course?)])
}

impl Course for Http {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        setup.runtime.block_on(async {
            let part = time / 4;
            let [one, many] = &self.params;
            let alone = naive(&self.remote, &self.load, one.callers, part).await?;
            let together = naive(&self.remote, &self.load, many.callers, part).await?;
            let rate = buffered(&self.remote, &self.load, part, None).await?;
            let pack = Some(PackOptions::default());
            let packed = buffered(&self.remote, &self.load, part, pack).await?;
            purge(&self.engine, &self.queue).await?;
            let round = rates(packed, rate);
            report.add("producer.packed", one, Some(UNPACKED), round, &histogram());
            for (params, floor) in [(one, alone), (many, together)] {
                let round = rates(rate, floor);
                report.add("producer.http", params, Some(NAIVE), round, &histogram());
            }
            Ok(())
        })
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        drop(course.remote);
        setup.runtime.block_on(course.server.stop());
    }
}

struct Embedded {
    lockgate: Lockgate,
    queue: lockgate::Queue,
    load: Load,
    params: Params,
}

pub(crate) fn open_embedded(setup: &Setup) -> anyhow::Result<Courses> {
    let course = setup.runtime.block_on(async {
        let lockgate = Lockgate::open(setup.folder("producer-embedded")).await?;
        let builder = lockgate.queue("bench");
        let builder = if setup.keys() > 0 {
            builder.keyed()
        } else {
            builder
        };
        let queue = builder.level(setup.level().into()).create().await?;
        anyhow::Ok(Embedded {
            lockgate,
            queue,
            load: Load::new(setup),
            params: params(setup, 1_000, 1),
        })
    });
    Ok(vec![Box::new(course?)])
}

impl Course for Embedded {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        setup.runtime.block_on(async {
            let half = time / 2;
            let (began, mut sent) = (Instant::now(), 0);
            let mut load = self.load.for_caller(1);
            while began.elapsed() < half {
                let batch = (0..1_000).map(|number| load.message(sent + number));
                for result in self.queue.send_batch(batch.collect()).await {
                    result?;
                    sent += 1;
                }
            }
            let floor = as_f64(sent) / began.elapsed().as_secs_f64();
            let rate = buffered(&self.queue, &self.load, half, None).await?;
            self.queue.purge().await?;
            let round = rates(rate, floor);
            report.add(
                "producer.embedded",
                &self.params,
                Some(CEILING),
                round,
                &histogram(),
            );
            Ok(())
        })
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        drop(course.queue);
        setup.runtime.block_on(course.lockgate.shutdown());
    }
}

struct Accept {
    load: Load,
    params: Params,
}

pub(crate) fn open_accept(setup: &Setup) -> anyhow::Result<Courses> {
    Ok(vec![Box::new(Accept {
        load: Load::new(setup),
        params: params(setup, 1, 1),
    })])
}

impl Course for Accept {
    /// A sink that does not answer, so that what is timed is the acceptance alone.
    fn round(&mut self, setup: &Setup, _: Duration, report: &mut Report) -> anyhow::Result<()> {
        setup.runtime.block_on(async {
            let sink = TestSink::new();
            sink.stop();
            let options = ProducerOptions {
                level: AnswerLevel::Accepted,
                ..ProducerOptions::default()
            };
            let producer = Producer::open(sink, options).await?;
            let mut load = self.load.for_caller(1);
            let messages: Vec<_> = (0..ACCEPTED)
                .map(|number| load.message(number.into()))
                .collect();
            let vector = std::sync::Mutex::new(Vec::new());
            let copies = messages.clone();
            let began = Instant::now();
            for message in copies {
                let mut vector = vector
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                vector.push(message);
            }
            let floor = f64::from(ACCEPTED) / began.elapsed().as_secs_f64();
            let before = allocations();
            let began = Instant::now();
            for message in messages {
                drop(producer.try_send(message)?);
            }
            let took = began.elapsed();
            let rate = f64::from(ACCEPTED) / took.as_secs_f64();
            let made = before.zip(allocations()).map(|(before, now)| now - before);
            let round = rates(rate, floor);
            report.add(
                "producer.accept",
                &self.params,
                Some(NOTHING),
                round,
                &histogram(),
            );
            let nanos = took.as_secs_f64() * 1e9 / f64::from(ACCEPTED);
            let unit = "ns/record";
            report.quantity("producer.accept.time", &self.params, nanos, unit, None);
            if let Some(made) = made {
                let each = as_f64(made as u64) / f64::from(ACCEPTED);
                let (name, unit) = ("producer.accept.allocations", "allocations/record");
                report.quantity(name, &self.params, each, unit, None);
            }
            drop(producer);
            self.memory(report).await
        })
    }

    fn close(self: Box<Self>, _: &Setup) {}
}

impl Accept {
    /// What the producer keeps for a record beside the bytes of its message.
    async fn memory(&self, report: &mut Report) -> anyhow::Result<()> {
        let sink = TestSink::new();
        sink.stop();
        let producer = Producer::open(sink, ProducerOptions::default()).await?;
        let body = Bytes::from_static(b"a body that all share");
        let before = allocated();
        for _ in 0..HELD {
            drop(producer.try_send(Message::new(body.clone()))?);
        }
        let figures = producer.figures();
        let bytes = match (before, allocated()) {
            (Some(before), Some(now)) => now.saturating_sub(before) as u64,
            // What the producer counts for its bounds.
            _ => figures.memory_bytes - figures.memory_count * body.len() as u64,
        };
        let value = as_f64(bytes) / f64::from(HELD);
        report.quantity("producer.memory", &self.params, value, "bytes/record", None);
        Ok(())
    }
}
