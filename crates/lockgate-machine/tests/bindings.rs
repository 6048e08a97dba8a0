//! What bindings cost in memory: no more than is counted against their bound.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use lockgate_core::{ExchangeId, ExchangeName, Position, QueueId, QueueName, RoutingKey, WallTime};
use lockgate_machine::{
    BindTo, Binding, BindingOptions, Effect, ExchangeKind, Filter, FilterScope, HeaderPair,
    HeadersMatch, Machine, MachineLimits, Pattern, QueueSettings, TopicPattern, Unroutable,
};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

/// Just above the size at which tables grow, so it is near the worst of them.
const BINDINGS: u32 = 60_000;

const AT: WallTime = WallTime(1_760_000_000_000);

/// The bytes that are allocated and those that are counted, for each binding. Each leads to one of so many queues.
fn measure(
    kind: ExchangeKind,
    queues: u32,
    binding: impl Fn(u32) -> (Pattern, Option<&'static str>),
) -> (f64, f64) {
    measure_so_many(BINDINGS, kind, queues, binding)
}

fn measure_so_many(
    bindings: u32,
    kind: ExchangeKind,
    queues: u32,
    binding: impl Fn(u32) -> (Pattern, Option<&'static str>),
) -> (f64, f64) {
    let mut machine = Machine::new(MachineLimits::default());
    for queue in 1..=queues {
        machine.fold(
            &[Effect::QueueCreated {
                queue: QueueId(queue),
                name: QueueName::new(&format!("q{queue}")).unwrap(),
                settings: Box::new(QueueSettings::default()),
                annotations: Default::default(),
                tags: Default::default(),
                at: AT,
            }],
            Position(0),
        );
    }
    let created = Effect::ExchangeCreated {
        exchange: ExchangeId(1),
        name: ExchangeName::new("e").unwrap(),
        kind,
        unroutable: Unroutable::Reject,
        at: AT,
    };
    machine.fold(&[created], Position(100));
    let before = ALLOCATED.current_usage();
    for number in 1..=bindings {
        let (pattern, filter) = binding(number);
        let filter = filter.map(|policy| Filter::new(FilterScope::Headers, policy).unwrap());
        let binding = Binding {
            to: BindTo::Queue(QueueId(number % queues + 1)),
            pattern,
            options: BindingOptions {
                filter,
                ..BindingOptions::default()
            },
        };
        let bound = Effect::Bound {
            exchange: ExchangeId(1),
            number,
            binding: Arc::new(binding),
        };
        machine.fold(&[bound], Position(200));
    }
    let allocated = ALLOCATED.current_usage() - before;
    let (_, live, counted) = machine.exchange_figures();
    assert_eq!((live, machine.effects_ignored()), (u64::from(bindings), 0));
    let each = |bytes: u64| f64::from(u32::try_from(bytes).unwrap()) / f64::from(bindings);
    (each(allocated as u64), each(counted))
}

/// One test, because what is allocated is counted for the whole process.
#[test]
fn bindings_take_no_more_memory_than_is_counted() {
    let key = |text: String| RoutingKey::new(&text).unwrap();
    let topic = |text: String| Pattern::Topic(TopicPattern::new(&text).unwrap());
    let pair = |name: &str, value: String| HeaderPair {
        name: name.into(),
        value: Some(value.into()),
    };
    let headers = |wanted| Pattern::Headers(Arc::new(wanted));
    let policy = r#"{"store": ["a", "b"], "price": [{"numeric": [">=", 100]}], "event": [{"prefix": "order"}]}"#;
    let table = [
        (
            "direct",
            measure(ExchangeKind::Direct, 1, |n| {
                (Pattern::RoutingKey(key(format!("orders.{n}.eu"))), None)
            }),
        ),
        (
            "direct, one key, many queues",
            measure(ExchangeKind::Direct, BINDINGS, |_| {
                (Pattern::RoutingKey(key("orders".into())), None)
            }),
        ),
        (
            "topic",
            measure(ExchangeKind::Topic, 100, |n| {
                (topic(format!("orders.{n}.*.new.#")), None)
            }),
        ),
        (
            "topic of many words",
            measure(ExchangeKind::Topic, 100, |n| {
                (topic(format!("{n}.b.c.d.e.f.g.h.i.j.k.l")), None)
            }),
        ),
        (
            "fanout",
            measure(ExchangeKind::Fanout, BINDINGS, |_| {
                (Pattern::Everything, None)
            }),
        ),
        (
            "all headers",
            measure(ExchangeKind::Headers, 100, |n| {
                let pairs = vec![pair("shop", n.to_string()), pair("kind", "order".into())];
                (headers(HeadersMatch::all(pairs).unwrap()), None)
            }),
        ),
        (
            "any header",
            measure(ExchangeKind::Headers, 100, |n| {
                let pairs = vec![pair("shop", n.to_string()), pair("user", n.to_string())];
                (headers(HeadersMatch::any(pairs).unwrap()), None)
            }),
        ),
        (
            "with a filter",
            measure(ExchangeKind::Direct, 100, |n| {
                (
                    Pattern::RoutingKey(key(format!("orders.{n}"))),
                    Some(policy),
                )
            }),
        ),
    ];
    // Policies of many small values take many times their text.
    let values = |value: &str| format!("[{}{value}]", format!("{value},").repeat(2_000));
    let many: [(&str, String); 4] = [
        (
            "many texts",
            format!(r#"{{"a": [{{"anything-but": {}}}]}}"#, values(r#""x""#)),
        ),
        (
            "many numbers",
            format!(r#"{{"a": [{{"anything-but": {}}}]}}"#, values("1")),
        ),
        (
            "many prefixes",
            format!(
                r#"{{"a": [{{"anything-but": {{"prefix": {}}}}}]}}"#,
                values(r#""x""#)
            ),
        ),
        (
            "many parts",
            format!(r#"{{"a": [{{"wildcard": "{}"}}]}}"#, "*x".repeat(2_000)),
        ),
    ];
    let many = many.map(|(what, policy)| {
        let policy: &'static str = policy.leak();
        let measured = measure_so_many(500, ExchangeKind::Direct, 10, |n| {
            (Pattern::RoutingKey(key(n.to_string())), Some(policy))
        });
        (what, measured)
    });
    let table: Vec<_> = table.into_iter().chain(many).collect();
    for (what, (allocated, counted)) in &table {
        println!("{what}: {allocated:.0} bytes allocated, {counted:.0} counted");
    }
    for (what, (allocated, counted)) in table {
        assert!(
            allocated <= counted,
            "{what}: {allocated:.0} bytes allocated, {counted:.0} counted"
        );
    }
}
