//! Commands for exchanges, and what they leave.

use lockgate_core::{ExchangeName, Header, RoutingKey};

use super::*;
use crate::model::exchanges::{BODIES, FILTERS, Step as RouteStepKind};

/// What is asked of an exchange. Numbers choose among what there is.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Create {
        exchange: usize,
        kind: usize,
        unroutable: Rule,
    },
    Update {
        exchange: usize,
        unroutable: Rule,
    },
    Delete {
        exchange: usize,
        force: bool,
    },
    Bind {
        exchange: usize,
        /// One of the queues, or of the exchanges behind them.
        to: usize,
        pattern: usize,
        options: Options,
    },
    /// Changes a binding that is there.
    Rebind {
        which: usize,
        options: Options,
    },
    /// Removes a binding that is there.
    Unbind(usize),
    /// Removes one that is mostly not.
    UnbindNone {
        exchange: usize,
        to: usize,
        pattern: usize,
    },
    Publish(Box<Told>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    Reject,
    Drop,
    Alternate(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) filter: Option<usize>,
    /// The routing key, the header `user`, or one without a name.
    pub(crate) key_from: Option<usize>,
    pub(crate) skip_when_full: bool,
}

/// What is published.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) exchange: usize,
    pub(crate) facts: Facts,
    /// Key, unique id, times and level. Its queue and size say nothing.
    pub(crate) send: Send,
}

/// What a message is routed by.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) routing: usize,
    pub(crate) kind: Option<usize>,
    pub(crate) size: Option<i64>,
    pub(crate) tags: bool,
    pub(crate) users: Vec<usize>,
    pub(crate) body: usize,
}

/// More than there may be.
pub(crate) const EXCHANGES: [&str; 5] = ["e0", "e1", "e2", "e3", "e4"];
pub(crate) const ROUTINGS: [&str; 7] = ["", "a", "a.b", "b", "a.b.c", "key-1", "a..b"];
const TOPICS: [&str; 12] = [
    "#", "a.*", "*.b", "a.#", "#.b", "a.b", "*", "a.#.b", "#.*.#", "*.*.*", "", "a.#.#.c",
];
const USERS: [&[u8]; 5] = [b"key-0", b"key-2", b"", b"\xff", b"new\nline"];
const KINDS: [&str; 3] = ["red", "blue", "redder"];

fn exchange_name(number: usize) -> ExchangeName {
    ExchangeName::new(EXCHANGES[number % EXCHANGES.len()]).unwrap()
}

fn place(number: usize) -> BindTo {
    match number % (QUEUES.len() + EXCHANGES.len()) {
        queue if queue < QUEUES.len() => BindTo::Queue(queue_name(queue)),
        exchange => BindTo::Exchange(exchange_name(exchange - QUEUES.len())),
    }
}

fn rule(rule: Rule) -> Unroutable {
    match rule {
        Rule::Reject => Unroutable::Reject,
        Rule::Drop => Unroutable::Drop,
        Rule::Alternate(number) => Unroutable::Alternate(exchange_name(number)),
    }
}

fn pattern(kind: ExchangeKind, number: usize) -> Pattern {
    let pair = |name: &str, value: Option<&str>| HeaderPair {
        name: name.into(),
        value: value.map(Into::into),
    };
    let red = pair("kind", Some("red"));
    match kind {
        ExchangeKind::Direct => {
            let key = RoutingKey::new(ROUTINGS[number % ROUTINGS.len()]);
            Pattern::RoutingKey(key.unwrap())
        }
        ExchangeKind::Topic => {
            Pattern::Topic(TopicPattern::new(TOPICS[number % TOPICS.len()]).unwrap())
        }
        ExchangeKind::Fanout => Pattern::Everything,
        _ => {
            let wanted = match number % 6 {
                0 => HeadersMatch::all(vec![red]),
                1 => HeadersMatch::all(vec![red, pair("size", None)]),
                2 => HeadersMatch::any(vec![red, pair("size", Some("7"))]),
                3 => HeadersMatch::any(vec![pair("tags", None), pair("user", Some("key-2"))]),
                4 => HeadersMatch::all(vec![
                    pair("user", Some("key-0")),
                    pair("user", Some("key-2")),
                ]),
                _ => HeadersMatch::all(vec![pair("kind", Some("blue")), pair("user", None)]),
            };
            Pattern::Headers(wanted.unwrap().into())
        }
    }
}

fn options(options: &Options) -> BindingOptions {
    let filter = options.filter.map(|number| {
        let known = &FILTERS[number % FILTERS.len()];
        Filter::new(known.scope, known.policy).unwrap()
    });
    BindingOptions {
        envelope: None,
        overflow: None,
        filter,
        key_from: options.key_from.map(|number| match number {
            0 => KeyFrom::RoutingKey,
            1 => KeyFrom::Header("".into()),
            _ => KeyFrom::Header("user".into()),
        }),
        skip_when_full: options.skip_when_full,
    }
}

fn headers(facts: &Facts) -> Vec<Header> {
    let header = |name: &str, kind: &str, value: &[u8]| Header {
        name: name.into(),
        kind: kind.into(),
        value: Bytes::copy_from_slice(value),
    };
    let kind = facts.kind.map(|number| KINDS[number % KINDS.len()]);
    let kind = kind.map(|kind| header("kind", "String", kind.as_bytes()));
    let size = facts.size.map(|size| size.to_string());
    let size = size.map(|size| header("size", "Number.int", size.as_bytes()));
    let tags = br#"["blue","rose","and"]"#;
    let tags = facts.tags.then(|| header("tags", "String.Array", tags));
    let users = facts.users.iter();
    let users = users.map(|number| header("user", "String", USERS[number % USERS.len()]));
    kind.into_iter()
        .chain(size)
        .chain(tags)
        .chain(users)
        .collect()
}

impl World {
    /// Asks it of the machine and of the model.
    pub(super) fn ask(&mut self, asked: &Asked) {
        let Some(command) = self.asked(asked) else {
            return;
        };
        let records = self.records.len();
        let outcome = self.run(&command);
        let (Command::Publish(publish), Ok(Reply::Published(done))) = (&command, outcome) else {
            return;
        };
        let new = done.copies.iter().filter(|copied| !copied.sent.duplicate);
        for copied in new {
            self.check_copy(publish, copied, records);
            self.sent.push((copied.queue.clone(), copied.sent.id));
        }
    }

    fn asked(&self, asked: &Asked) -> Option<Command> {
        let bound = |which: usize| {
            let kept = self.model.exchanges.kept.iter();
            let all: Vec<_> = kept
                .flat_map(|(name, exchange)| exchange.bindings.iter().map(move |it| (name, it)))
                .collect();
            all.get(which % all.len().max(1)).copied()
        };
        // Mostly one of the exchange's own kind.
        let pattern = |exchange: &ExchangeName, number: usize| {
            let kept = self.model.exchanges.kept.get(exchange);
            let kind = kept.map_or(ExchangeKind::Topic, |kept| kept.kind);
            match number {
                99 => pattern(ExchangeKind::ALL[(kind as usize) % 4], 0),
                number => self::pattern(kind, number),
            }
        };
        Some(match asked {
            Asked::Create {
                exchange,
                kind,
                unroutable,
            } => CreateExchange {
                notes: Default::default(),
                name: exchange_name(*exchange),
                kind: ExchangeKind::ALL[kind % 4],
                unroutable: rule(*unroutable),
            }
            .into(),
            Asked::Update {
                exchange,
                unroutable,
            } => UpdateExchange {
                exchange: exchange_name(*exchange),
                unroutable: Some(rule(*unroutable)),
                notes: None,
            }
            .into(),
            Asked::Delete { exchange, force } => DeleteExchange {
                exchange: exchange_name(*exchange),
                force: *force,
            }
            .into(),
            Asked::Bind {
                exchange,
                to,
                pattern: number,
                options: chosen,
            } => {
                let exchange = exchange_name(*exchange);
                Bind {
                    keep: false,
                    pattern: pattern(&exchange, *number),
                    exchange,
                    to: place(*to),
                    options: options(chosen),
                }
                .into()
            }
            Asked::Rebind {
                which,
                options: chosen,
            } => {
                let (exchange, binding) = bound(*which)?;
                Bind {
                    keep: false,
                    exchange: exchange.clone(),
                    to: binding.to.clone(),
                    pattern: binding.pattern.clone(),
                    options: options(chosen),
                }
                .into()
            }
            Asked::Unbind(which) => {
                let (exchange, binding) = bound(*which)?;
                Unbind {
                    exchange: exchange.clone(),
                    to: binding.to.clone(),
                    pattern: binding.pattern.clone(),
                }
                .into()
            }
            Asked::UnbindNone {
                exchange,
                to,
                pattern: number,
            } => {
                let exchange = exchange_name(*exchange);
                Unbind {
                    pattern: pattern(&exchange, *number),
                    exchange,
                    to: place(*to),
                }
                .into()
            }
            Asked::Publish(told) => self.publication(told).into(),
        })
    }

    fn publication(&self, told: &Told) -> Publish {
        let SendMessage { queue: _, message } = self.send(&Send {
            // An unkeyed one, so that the message has a group: a publish takes it for a key.
            queue: if told.send.queue == 1 { 4 } else { 2 },
            // Too short to be a record of a producer.
            size: 0,
            ..told.send
        });
        Publish {
            subject: None,
            exchange: exchange_name(told.exchange),
            routing_key: RoutingKey::new(ROUTINGS[told.facts.routing % ROUTINGS.len()]).unwrap(),
            message: Message {
                body: BODIES[told.facts.body % BODIES.len()].into(),
                headers: headers(&told.facts),
                content_type: Some("text/plain".into()),
                priority: 3,
                ..message
            },
        }
    }

    /// What a queue can read of its copy is what was published.
    fn check_copy(&self, publish: &Publish, copied: &Copied, records: usize) {
        let id = copied.sent.id;
        let Some(at) = self.machine.location(id.queue(), id.sequence()) else {
            return; // It lived so short that it is gone.
        };
        let (position, record) = &self.records[records];
        assert_eq!(at.position, *position, "copies in several records");
        let stored = read_message(record, at.part)
            .expect("a copy can be read")
            .message;
        let told = &publish.message;
        assert_eq!(
            (&stored.body, &stored.headers, &stored.unique_id),
            (&told.body, &told.headers, &told.unique_id)
        );
        assert_eq!(
            (&stored.content_type, stored.priority, stored.time_to_live),
            (&told.content_type, told.priority, told.time_to_live)
        );
        let queue = &self.model.queues[&copied.queue];
        let message = queue.message(copied.sent.sequence).unwrap();
        assert_eq!(stored.key, message.key, "the key of a copy");
    }

    /// Everything that queries tell of exchanges is the model's.
    pub(super) fn compare_exchanges(&self) {
        let told: Vec<_> = [(1, "a.b"), (0, ""), (2, "a.b.c")]
            .map(|(number, routing)| Publish {
                subject: None,
                exchange: exchange_name(0),
                routing_key: RoutingKey::new(routing).unwrap(),
                message: Message {
                    body: BODIES[number].into(),
                    headers: headers(&Facts {
                        routing: 0,
                        kind: Some(number).filter(|number| *number > 0),
                        size: Some(number as i64 * 7),
                        tags: number == 1,
                        users: vec![number],
                        body: 0,
                    }),
                    ..Message::default()
                },
            })
            .into();
        let mut described = Vec::new();
        for name in EXCHANGES.map(|name| ExchangeName::new(name).unwrap()) {
            let query = Query::DescribeExchange(DescribeExchange {
                exchange: name.clone(),
            });
            let shown = match self.machine.query(&query, self.now) {
                Ok(QueryReply::Exchange(description)) => Some(description),
                Ok(other) => panic!("a query for an exchange was answered {other:?}"),
                Err(_) => None,
            };
            let expected = self.model.exchanges.describe(&name);
            assert_eq!(expected, shown.map(|it| *it), "expected on the left");
            let Some(expected) = expected else { continue };
            described.push(expected);
            self.compare_bindings(&name);
            for publish in &told {
                self.compare_way(&Publish {
                    subject: None,
                    exchange: name.clone(),
                    ..publish.clone()
                });
            }
        }
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let query = Query::ListExchanges(ListExchanges {
                prefix: "e".into(),
                after: after.take(),
                limit: 2,
            });
            match self.machine.query(&query, self.now) {
                Ok(QueryReply::Exchanges(page)) => {
                    shown.extend(page.exchanges);
                    after = page.next;
                }
                other => panic!("a query for exchanges was answered {other:?}"),
            }
            if after.is_none() {
                break;
            }
        }
        assert_eq!(described, shown);
        let bindings: u64 = described.iter().map(|it| it.bindings).sum();
        let (exchanges, live, _) = self.machine.exchange_figures();
        assert_eq!((described.len() as u64, bindings), (exchanges, live));
    }

    fn compare_bindings(&self, name: &ExchangeName) {
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let query = Query::ListBindings(ListBindings {
                exchange: name.clone(),
                after: after.take(),
                limit: 2,
            });
            match self.machine.query(&query, self.now) {
                Ok(QueryReply::Bindings(page)) => {
                    shown.extend(page.bindings);
                    after = page.next;
                }
                other => panic!("a query for bindings was answered {other:?}"),
            }
            if after.is_none() {
                break;
            }
        }
        assert_eq!(self.model.exchanges.kept[name].bindings, shown, "of {name}");
    }

    fn compare_way(&self, publish: &Publish) {
        let way = self.model.exchanges.way(publish);
        let query = Query::from(ExplainRoute {
            exchange: publish.exchange.clone(),
            routing_key: publish.routing_key.clone(),
            headers: publish.message.headers.clone(),
            body: Some(publish.message.body.clone()),
            limit: 100,
        });
        let explained = match self.machine.query(&query, self.now) {
            Ok(QueryReply::Route(explained)) => explained,
            other => panic!("a query for a route was answered {other:?}"),
        };
        let steps = explained.bindings.iter().map(|step| {
            let kind = match &step.outcome {
                StepOutcome::Routes => RouteStepKind::Routes,
                StepOutcome::Again => RouteStepKind::Again,
                StepOutcome::Filtered(why) => {
                    assert!(!why.is_empty());
                    RouteStepKind::Filtered
                }
                other => panic!("{other:?}"),
            };
            (step.exchange.clone().unwrap(), step.binding.number, kind)
        });
        assert_eq!(way.steps, steps.collect::<Vec<_>>(), "for {publish:?}");
        let none = way.queues() == 0;
        assert_eq!(
            (
                way.queues() as u64,
                &way.alternates,
                none.then_some(&way.last)
            ),
            (
                explained.queues,
                &explained.alternates,
                explained.unroutable.as_ref()
            )
        );
    }
}

/// Commands for all exchanges of a machine that was recovered from part of its records: changes of each binding, and
/// publishes.
pub(super) fn commands(machine: &Machine) -> Vec<Command> {
    let mut commands = Vec::new();
    for exchange in machine.state_view().exchanges.values() {
        let name = || exchange.name.clone();
        for (number, routing) in ROUTINGS.iter().enumerate() {
            let facts = Facts {
                routing: number,
                kind: Some(number),
                size: Some(3),
                tags: true,
                users: vec![number % 2],
                body: number,
            };
            let publish = Publish {
                subject: None,
                exchange: name(),
                routing_key: RoutingKey::new(routing).unwrap(),
                message: Message {
                    body: BODIES[number % BODIES.len()].into(),
                    headers: headers(&facts),
                    ..Message::default()
                },
            };
            commands.push(publish.into());
        }
        for number in 0..QUEUES.len() {
            let bind = Bind {
                keep: false,
                exchange: name(),
                to: BindTo::Queue(queue_name(number)),
                pattern: pattern(exchange.kind, number),
                options: BindingOptions {
                    envelope: None,
                    overflow: None,
                    skip_when_full: true,
                    ..BindingOptions::default()
                },
            };
            commands.push(bind.into());
        }
    }
    commands
}
