//! What a publish, a route and a bind cost the machine.
//!
//! ```text
//! cargo run --release -p lockgate-machine --example exchanges
//! ```
//!
//! A publish is `tick`, `decide`, `fold` and `reached`, without log and codec; so are the sends beside it. Other commands of
//! the shard wait for as long as a publish takes. The longest bind is what a table costs that grows.

use std::{
    collections::BTreeMap,
    hint::black_box,
    time::{Duration, Instant},
};

use lockgate_core::{
    ExchangeName, Header, MachineTime, Message, Now, Position, QueueName, RoutingKey, WallTime,
};
use lockgate_machine::{
    AnyCommand, Bind, BindTo, BindingOptions, Command, CreateExchange, CreateQueue, ExchangeKind,
    HeaderPair, HeadersMatch, Machine, MachineLimits, Pattern, Publish, Published, QueueSettings,
    SendMessage, TopicPattern, Unroutable,
};

mod support;

/// A machine with an exchange, and its log's tail.
struct Shard {
    machine: Machine,
    tail: u64,
}

impl Shard {
    fn new(kind: ExchangeKind) -> Self {
        let mut shard = Self {
            machine: Machine::new(MachineLimits::default()),
            tail: 0,
        };
        shard.give(&support::start_term());
        shard.make_queue(support::queue());
        shard.run(CreateExchange {
            notes: Default::default(),
            name: exchange(),
            kind,
            unroutable: Unroutable::Reject,
        });
        shard
    }

    fn make_queue(&mut self, name: QueueName) {
        self.run(Command::CreateQueue(Box::new(CreateQueue {
            name,
            settings: QueueSettings::default(),
            annotations: BTreeMap::new(),
            tags: BTreeMap::new(),
        })));
    }

    fn bind(&mut self, queue: QueueName, pattern: Pattern) {
        self.run(Bind {
            keep: false,
            exchange: exchange(),
            to: BindTo::Queue(queue),
            pattern,
            options: BindingOptions::default(),
        });
    }

    fn run(&mut self, command: impl Into<Command>) {
        self.give(&command.into());
    }

    fn give<'a>(&mut self, command: impl Into<AnyCommand<'a>>) {
        let now = Now {
            wall: WallTime(1_760_000_000_000),
            machine: MachineTime(1),
        };
        while let Some(effect) = self.machine.tick(now) {
            self.machine.fold(&[effect], Position(self.tail));
            self.tail += 100;
        }
        let decision = self.machine.decide(command, now);
        decision.outcome.expect("nothing is refused");
        self.machine.fold(&decision.effects, Position(self.tail));
        self.tail += 1 + 100 * decision.effects.len() as u64;
        self.machine.reached(Position(self.tail));
    }
}

fn exchange() -> ExchangeName {
    ExchangeName::new("bench").expect("a valid name")
}

fn pattern(kind: ExchangeKind, number: u32) -> Pattern {
    let pair = |name: &str, value: &str| HeaderPair {
        name: name.into(),
        value: Some(value.into()),
    };
    match kind {
        ExchangeKind::Topic => {
            let topic = TopicPattern::new(&format!("orders.shop-{number}.*.#"));
            Pattern::Topic(topic.expect("a valid pattern"))
        }
        ExchangeKind::Headers => {
            let pairs = vec![pair("kind", "order"), pair("shop", &number.to_string())];
            Pattern::Headers(HeadersMatch::all(pairs).expect("a valid match").into())
        }
        ExchangeKind::Fanout => Pattern::Everything,
        _ => Pattern::RoutingKey(routing_key(number)),
    }
}

fn routing_key(number: u32) -> RoutingKey {
    RoutingKey::new(&format!("orders.shop-{number}.new.eu")).expect("a valid key")
}

fn main() {
    println!(
        "{:<22}{:>14}{:>16}{:>10}",
        "queues", "publish", "as many sends", "ratio"
    );
    for queues in [1, 10, 100, 1_000, 10_000] {
        publish(queues);
    }
    println!(
        "\n{:<12}{:>10}{:>14}{:>16}",
        "kind", "bindings", "route", "longest bind"
    );
    for kind in [
        ExchangeKind::Direct,
        ExchangeKind::Topic,
        ExchangeKind::Headers,
    ] {
        for bindings in [10, 1_000, 100_000, 400_000] {
            route(kind, bindings);
        }
    }
}

/// The medians of publishes to so many queues, and of as many sends.
fn publish(queues: u32) {
    let mut shard = Shard::new(ExchangeKind::Fanout);
    let names: Vec<QueueName> = (0..queues)
        .map(|number| QueueName::new(&format!("q{number}")).expect("a valid name"))
        .collect();
    for name in &names {
        shard.make_queue(name.clone());
        shard.bind(name.clone(), Pattern::Everything);
    }
    let (mut publishes, mut sends) = (Vec::new(), Vec::new());
    for _ in 0..(100_000 / queues).clamp(21, 2_001) {
        let message = || Message::new("x".repeat(100));
        let command = Command::from(Publish {
            subject: None,
            exchange: exchange(),
            routing_key: RoutingKey::default(),
            message: message(),
        });
        let began = clock();
        shard.give(&command);
        publishes.push(began.elapsed());
        let commands: Vec<_> = (names.iter())
            .map(|name| {
                Command::Send(Box::new(SendMessage {
                    queue: name.clone(),
                    message: message(),
                }))
            })
            .collect();
        let began = clock();
        for command in &commands {
            shard.give(command);
        }
        sends.push(began.elapsed());
    }
    let (publishes, sends) = (median(publishes), median(sends));
    let ratio = publishes.as_secs_f64() / sends.as_secs_f64().max(1e-9);
    println!("{queues:<22}{publishes:>14.1?}{sends:>16.1?}{ratio:>10.2}");
}

/// How long it takes to find one binding among so many, and the longest that making one took.
fn route(kind: ExchangeKind, bindings: u32) {
    let mut shard = Shard::new(kind);
    let mut longest = Duration::ZERO;
    for number in 0..bindings {
        let pattern = pattern(kind, number);
        let began = clock();
        shard.bind(support::queue(), pattern);
        longest = longest.max(began.elapsed());
    }
    let header = |name: &str, value: String| Header {
        name: name.into(),
        kind: "String".into(),
        value: value.into(),
    };
    // Those that are looked for are spread, as are those of many users.
    let messages: Vec<_> = (0..1_000_u32)
        .map(|turn| {
            let number = turn.wrapping_mul(7_919) % bindings;
            let headers = vec![
                header("kind", "order".to_owned()),
                header("shop", number.to_string()),
            ];
            (routing_key(number), headers)
        })
        .collect();
    let rounds = (0..41).map(|_| {
        let began = clock();
        for (routing_key, headers) in &messages {
            let message = Published::new(routing_key, headers, None);
            let route = black_box(shard.machine.route(&exchange(), &message));
            assert_eq!(route.expect("there is one").targets.len(), 1);
        }
        began.elapsed() / 1_000
    });
    let route = median(rounds.collect());
    println!(
        "{:<12}{bindings:>10}{route:>14.1?}{longest:>16.1?}",
        kind.name()
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "the machine is pure, its stopwatch is not"
)]
fn clock() -> Instant {
    Instant::now()
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}
