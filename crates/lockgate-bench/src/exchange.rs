//! `exchange.*`: what it costs to publish.
//!
//! - A publish to 1, 10 and 100 queues beside as many sends, each awaited before the next; and the bytes that both write.
//! - How long it takes to find the bindings of a message among 10, 1,000 and 100,000, and the longest bind on the way there.
//! - 10,000 queues behind one fanout: how long a publish occupies the shard, and how long a send to another queue takes beside.

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use lockgate_core::{
    ExchangeId, ExchangeName, Header, Message, Position, QueueId, QueueName, RoutingKey, WallTime,
};
use lockgate_engine::Engine;
use lockgate_machine::{
    Bind, BindTo, Binding, BindingOptions, Command, CreateExchange, Effect, ExchangeKind,
    HeaderPair, HeadersMatch, Machine, MachineLimits, Pattern, Publish, Published, QueueSettings,
    SendMessage, TopicPattern, Unroutable,
};
use serde_json::json;

use crate::{
    Course, Courses, Level, Setup,
    load::{as_f64, make_queue, purge, start_engine, submit, submit_all},
    payload::Payloads,
    queue::params,
    report::{Params, Report, Round, histogram},
};

/// Queues that a publish goes to.
const QUEUES: [usize; 3] = [1, 10, 100];
const BINDINGS: [u32; 3] = [10, 1_000, 100_000];
const MANY: usize = 10_000;
const MANY_QUICK: usize = 300;

/// How often figure and floor alternate in a round.
const SLICES: u32 = 4;

const SENDS: &str = "as many sends of the same message, in one request";

fn exchange() -> anyhow::Result<ExchangeName> {
    Ok(ExchangeName::new("bench")?)
}

/// Queues behind an exchange of kind fanout.
async fn make(engine: &Engine, queues: usize, level: Level) -> anyhow::Result<Vec<QueueName>> {
    let create = CreateExchange {
        notes: Default::default(),
        name: exchange()?,
        kind: ExchangeKind::Fanout,
        unroutable: Unroutable::Reject,
    };
    submit(engine, create.into()).await?;
    let mut names = Vec::with_capacity(queues);
    for number in 0..queues {
        names.push(make_queue(engine, &format!("bench-{number}"), false, level).await?);
    }
    let mut binds: Vec<Command> = Vec::with_capacity(queues);
    for queue in &names {
        let bind = Bind {
            keep: false,
            exchange: exchange()?,
            to: BindTo::Queue(queue.clone()),
            pattern: Pattern::Everything,
            options: BindingOptions::default(),
        };
        binds.push(bind.into());
    }
    submit_all(engine, binds).await?;
    Ok(names)
}

fn publish(body: Bytes) -> anyhow::Result<Command> {
    let publish = Publish {
        subject: None,
        exchange: exchange()?,
        routing_key: RoutingKey::default(),
        message: Message::new(body),
    };
    Ok(publish.into())
}

struct PublishCourse {
    engine: Engine,
    queues: Vec<QueueName>,
    payloads: Payloads,
    params: Params,
}

pub(crate) fn open_publish(setup: &Setup) -> anyhow::Result<Courses> {
    QUEUES
        .into_iter()
        .map(|queues| -> anyhow::Result<Box<dyn Course>> {
            let engine = start_engine(&setup.folder(&format!("exchange-{queues}")))?;
            let make = make(&engine, queues, setup.level());
            let names = setup.runtime.block_on(make)?;
            let mut params = Params {
                keys: 0,
                ..params(setup, 1, 1)
            };
            params.more.insert("queues", json!(queues));
            Ok(Box::new(PublishCourse {
                engine,
                queues: names,
                payloads: setup.payloads.for_caller(1),
                params,
            }))
        })
        .collect()
}

/// What was sent, in which time, with how many bytes for the log.
#[derive(Clone, Copy, Default)]
struct Done {
    calls: u64,
    elapsed: Duration,
    bytes: u64,
}

impl Done {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.elapsed += other.elapsed;
        self.bytes += other.bytes;
    }

    /// Messages that queues got in a second.
    fn rate(&self, queues: usize) -> f64 {
        as_f64(self.calls * queues as u64) / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn bytes_a_call(&self) -> f64 {
        as_f64(self.bytes) / as_f64(self.calls.max(1))
    }
}

impl PublishCourse {
    /// Calls for that long, one after the other.
    async fn call(
        &mut self,
        time: Duration,
        latency: &mut hdrhistogram::Histogram<u64>,
        commands: impl Fn(&Self, Bytes) -> anyhow::Result<Vec<Command>>,
    ) -> anyhow::Result<Done> {
        let before = self.engine.metrics().bytes;
        let (began, mut calls) = (Instant::now(), 0);
        while calls == 0 || began.elapsed() < time {
            let body = self.payloads.next();
            let commands = commands(self, body)?;
            let started = Instant::now();
            submit_all(&self.engine, commands).await?;
            latency.saturating_record(u64::try_from(started.elapsed().as_nanos())?);
            calls += 1;
        }
        Ok(Done {
            calls,
            elapsed: began.elapsed(),
            bytes: self.engine.metrics().bytes - before,
        })
    }

    fn sends(&self, body: &Bytes) -> Vec<Command> {
        let queues = self.queues.iter();
        let send = |queue: &QueueName| {
            Command::Send(Box::new(SendMessage {
                queue: queue.clone(),
                message: Message::new(body.clone()),
            }))
        };
        queues.map(send).collect()
    }
}

impl Course for PublishCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let slice = time / (2 * SLICES);
        let (mut published, mut sent) = (Done::default(), Done::default());
        let (mut latency, mut ignored) = (histogram(), histogram());
        for _ in 0..SLICES {
            let publishes = self.call(slice, &mut latency, |_, body| Ok(vec![publish(body)?]));
            published.add(setup.runtime.block_on(publishes)?);
            let sends = self.call(slice, &mut ignored, |course, body| Ok(course.sends(&body)));
            sent.add(setup.runtime.block_on(sends)?);
        }
        for queue in &self.queues {
            setup.runtime.block_on(purge(&self.engine, queue))?;
        }
        let round = Round {
            rate: Some(published.rate(self.queues.len())),
            floor: Some(sent.rate(self.queues.len())),
            syncs_per_message: None,
        };
        report.add(
            "exchange.publish",
            &self.params,
            Some(SENDS),
            round,
            &latency,
        );
        for (figure, done) in [
            ("exchange.written", published),
            ("exchange.written.sends", sent),
        ] {
            let unit = "bytes of records for a message to all queues";
            report.quantity(figure, &self.params, done.bytes_a_call(), unit, None);
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}

/// A machine without an engine, with bindings of one kind. One matches.
struct RouteCourse {
    machine: Machine,
    figure: &'static str,
    /// The longest that a bind took, in milliseconds.
    longest_bind: f64,
    params: Params,
}

fn pattern(kind: ExchangeKind, number: u32) -> anyhow::Result<Pattern> {
    let text = |name: &str, value: &str| HeaderPair {
        name: name.into(),
        value: Some(value.into()),
    };
    Ok(match kind {
        ExchangeKind::Topic => {
            Pattern::Topic(TopicPattern::new(&format!("orders.shop-{number}.*.#"))?)
        }
        ExchangeKind::Headers => {
            let number = number.to_string();
            let pairs = vec![text("kind", "order"), text("shop", &number)];
            Pattern::Headers(Arc::new(HeadersMatch::all(pairs)?))
        }
        _ => Pattern::RoutingKey(RoutingKey::new(&format!("orders.shop-{number}.new.eu"))?),
    })
}

pub(crate) fn open_route(setup: &Setup) -> anyhow::Result<Courses> {
    let kinds = [
        (ExchangeKind::Direct, "exchange.route.direct"),
        (ExchangeKind::Topic, "exchange.route.topic"),
        (ExchangeKind::Headers, "exchange.route.headers"),
    ];
    let mut courses: Courses = Vec::new();
    for (kind, figure) in kinds {
        for bindings in BINDINGS {
            // The longest takes seconds without optimisation.
            if setup.args.quick && bindings > 1_000 {
                continue;
            }
            let mut params = Params {
                level: "memory",
                size: 0,
                keys: 0,
                ..params(setup, 1, 1)
            };
            params.more.insert("bindings", json!(bindings));
            let (machine, longest_bind) = bound(kind, bindings)?;
            courses.push(Box::new(RouteCourse {
                machine,
                figure,
                longest_bind,
                params,
            }));
        }
    }
    Ok(courses)
}

/// A machine with so many bindings to one queue, and the longest that folding one took.
fn bound(kind: ExchangeKind, bindings: u32) -> anyhow::Result<(Machine, f64)> {
    let mut machine = Machine::new(MachineLimits::default());
    let (exchange_id, queue, at) = (ExchangeId(1), QueueId(1), WallTime(1));
    let make = [
        Effect::QueueCreated {
            queue,
            name: QueueName::new("bench")?,
            settings: Box::new(QueueSettings::default()),
            annotations: Default::default(),
            tags: Default::default(),
            at,
        },
        Effect::ExchangeCreated {
            exchange: exchange_id,
            name: exchange()?,
            kind,
            unroutable: Unroutable::Drop,
            at,
        },
    ];
    machine.fold(&make, Position(0));
    let mut longest = Duration::ZERO;
    for number in 1..=bindings {
        let binding = Binding {
            to: BindTo::Queue(queue),
            pattern: pattern(kind, number)?,
            options: BindingOptions::default(),
        };
        let bound = Effect::Bound {
            exchange: exchange_id,
            number,
            binding: Arc::new(binding),
        };
        let began = Instant::now();
        machine.fold(&[bound], Position(u64::from(number) * 100));
        longest = longest.max(began.elapsed());
    }
    anyhow::ensure!(machine.effects_ignored() == 0, "a binding was not taken");
    Ok((machine, longest.as_secs_f64() * 1e3))
}

impl Course for RouteCourse {
    fn round(&mut self, _setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let (name, began, mut routes) = (exchange()?, Instant::now(), 0_u64);
        let header = |name: &str, value: String| Header {
            name: name.into(),
            kind: "String".into(),
            value: value.into(),
        };
        let bindings = self.machine.exchange_figures().1;
        // Those that are looked for are spread, as are those of many users.
        let mut messages = Vec::new();
        for turn in 0..1_000_u64 {
            let number = turn * 7_919 % bindings + 1;
            let routing_key = RoutingKey::new(&format!("orders.shop-{number}.new.eu"))?;
            let headers = vec![
                header("kind", "order".to_owned()),
                header("shop", number.to_string()),
            ];
            messages.push((routing_key, headers));
        }
        while began.elapsed() < time {
            for (routing_key, headers) in &messages {
                let message = Published::new(routing_key, headers, None);
                let route = black_box(self.machine.route(&name, &message))?;
                anyhow::ensure!(route.targets.len() == 1, "{route:?}");
            }
            routes += messages.len() as u64;
        }
        let nanos = began.elapsed().as_secs_f64() * 1e9 / as_f64(routes.max(1));
        report.quantity(self.figure, &self.params, nanos, "ns for a message", None);
        let longest = "exchange.route.bind";
        report.quantity(
            longest,
            &self.params,
            self.longest_bind,
            "ms, the longest bind",
            None,
        );
        Ok(())
    }

    fn close(self: Box<Self>, _setup: &Setup) {}
}

/// One fanout with many queues, and a queue beside.
struct FanoutCourse {
    engine: Engine,
    queues: Vec<QueueName>,
    beside: QueueName,
    params: Params,
}

pub(crate) fn open_fanout(setup: &Setup) -> anyhow::Result<Courses> {
    let queues = if setup.args.quick { MANY_QUICK } else { MANY };
    let engine = start_engine(&setup.folder("exchange-many"))?;
    let (names, beside) = setup.runtime.block_on(async {
        let beside = make_queue(&engine, "beside", false, Level::Process).await?;
        anyhow::Ok((make(&engine, queues, Level::Process).await?, beside))
    })?;
    let mut params = Params {
        level: lockgate_core::Level::Process.name(),
        size: 1,
        keys: 0,
        ..params(setup, 1, 1)
    };
    params.more.insert("queues", json!(queues));
    Ok(vec![Box::new(FanoutCourse {
        engine,
        queues: names,
        beside,
        params,
    })])
}

impl FanoutCourse {
    /// The longest and the mean of successive sends to the queue beside.
    async fn sends(&self, is_over: impl Fn() -> bool) -> anyhow::Result<(Duration, Duration)> {
        let (mut longest, mut total, mut sends) = (Duration::ZERO, Duration::ZERO, 0);
        while sends == 0 || !is_over() {
            let queue = self.beside.clone();
            let message = Message::new("x");
            let send = Command::Send(Box::new(SendMessage { queue, message }));
            let began = Instant::now();
            submit_all(&self.engine, vec![send]).await?;
            longest = longest.max(began.elapsed());
            total += began.elapsed();
            sends += 1;
        }
        Ok((longest, total / sends))
    }
}

impl Course for FanoutCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        let (alone, beside, publish_time) = setup.runtime.block_on(async {
            let until = Instant::now() + time / 4;
            let alone = self.sends(|| Instant::now() >= until).await?;
            let engine = self.engine.clone();
            let publishing = tokio::spawn(async move {
                let (began, mut publishes) = (Instant::now(), 0_u32);
                while publishes == 0 || began.elapsed() < time / 2 {
                    submit(&engine, publish(Bytes::from_static(b"x"))?).await?;
                    publishes += 1;
                }
                anyhow::Ok(began.elapsed() / publishes)
            });
            let beside = self.sends(|| publishing.is_finished()).await?;
            anyhow::Ok((alone, beside, publishing.await??))
        })?;
        for (figure, span) in [
            ("exchange.fanout.publish", publish_time),
            ("exchange.fanout.send", beside.1),
            ("exchange.fanout.send.longest", beside.0),
            ("exchange.fanout.alone", alone.1),
            ("exchange.fanout.alone.longest", alone.0),
        ] {
            report.quantity(figure, &self.params, millis(span), "ms", None);
        }
        for queue in self.queues.iter().chain([&self.beside]) {
            setup.runtime.block_on(purge(&self.engine, queue))?;
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}
