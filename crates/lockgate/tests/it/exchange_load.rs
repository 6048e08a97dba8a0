//! Bindings that change while messages are published: a publish sees all of a change or nothing of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use lockgate::{
    ExchangeName, Lockgate, Message,
    exchange::{
        BindTo, BindingOptions, Exchange, ExchangeKind, Filter, FilterScope, KeyFrom, Pattern,
        Unroutable,
    },
};
use lockgate::{Header, Queue, RoutingKey};

use super::open;

const PUBLISHERS: u64 = 4;
const PUBLISHES: u64 = 150;

/// A binding of the queue that changes: it takes messages of one kind, and keys them by one header. A publish that saw the
/// filter of one and the key of the other would show in the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    No,
    By(u64),
}

const TURNS: [Bound; 4] = [Bound::By(0), Bound::By(1), Bound::No, Bound::By(0)];

fn options(kind: u64) -> BindingOptions {
    let policy = format!(r#"{{"kind": ["{kind}"]}}"#);
    BindingOptions {
        envelope: None,
        overflow: None,
        filter: Some(Filter::new(FilterScope::Headers, &policy).unwrap()),
        key_from: Some(KeyFrom::Header(format!("key-{kind}").into())),
        skip_when_full: false,
    }
}

/// What happened from the first to the second number of a clock that all share.
#[derive(Clone, Copy, Debug)]
struct During<T> {
    from: u64,
    what: T,
    to: u64,
}

async fn during<T>(clock: &AtomicU64, act: impl Future<Output = T>) -> During<T> {
    let from = clock.fetch_add(1, Ordering::SeqCst);
    let what = act.await;
    let to = clock.fetch_add(1, Ordering::SeqCst);
    During { from, what, to }
}

fn message(number: u64) -> Message {
    let header = |name: &str, value: String| Header {
        name: name.into(),
        kind: "String".into(),
        value: value.into(),
    };
    let kind = number % 2;
    let mut message = Message::new(number.to_string());
    message.headers = vec![
        header("kind", kind.to_string()),
        header("key-0", "of kind 0".to_owned()),
        header("key-1", "of kind 1".to_owned()),
    ];
    message
}

/// Changes the binding of the queue in turns, until it is told to end and through all turns at least once.
async fn turn(
    exchange: Exchange,
    queue: Queue,
    clock: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
) -> Vec<During<Bound>> {
    let to = || BindTo::Queue(queue.name().clone());
    let mut changes = Vec::new();
    for turn in 0.. {
        if turn >= TURNS.len() && is_over.load(Ordering::SeqCst) {
            break;
        }
        let bound = TURNS[turn % TURNS.len()];
        let change = async {
            match bound {
                Bound::No => assert!(exchange.unbind(to(), Pattern::Everything).await.unwrap()),
                Bound::By(kind) => {
                    let bind = exchange.bind(to(), Pattern::Everything, options(kind));
                    bind.await.unwrap();
                }
            }
            bound
        };
        changes.push(during(&clock, change).await);
    }
    changes
}

/// Deletes a queue that is bound and makes it again, until it is told to end. Returns how often.
async fn come_and_go(lockgate: Lockgate, exchange: Exchange, is_over: Arc<AtomicBool>) -> u64 {
    let mut times = 0;
    while times == 0 || !is_over.load(Ordering::SeqCst) {
        let queue = lockgate.queue("passing").create().await.unwrap();
        let to = BindTo::Queue(queue.name().clone());
        let bound = exchange.bind(to, Pattern::Everything, BindingOptions::default());
        assert!(!bound.await.unwrap().existed, "the deleted queue's binding");
        queue.delete().await.unwrap();
        times += 1;
    }
    times
}

type Published = During<(u64, Vec<String>)>;

async fn publish(exchange: Exchange, publisher: u64, clock: Arc<AtomicU64>) -> Vec<Published> {
    let mut published = Vec::new();
    for turn in 0..PUBLISHES {
        let number = publisher * PUBLISHES + turn;
        let publish = async {
            let done = exchange
                .publish(RoutingKey::default(), message(number))
                .await;
            let copies = done.unwrap().copies.into_iter();
            let queues = copies.map(|copied| copied.queue.as_str().to_owned());
            (number, queues.collect())
        };
        published.push(during(&clock, publish).await);
    }
    published
}

/// The keys with which a queue has each number.
async fn keys_in(queue: &Queue) -> BTreeMap<u64, Option<String>> {
    let mut found = BTreeMap::new();
    let mut after = None;
    loop {
        let mut peek = queue.peek().max(500);
        if let Some(after) = after {
            peek = peek.after(after);
        }
        let page = peek.await.unwrap();
        for peeked in page.messages {
            let message = peeked.message.unwrap();
            let body = str::from_utf8(&message.body).unwrap();
            let key = message.key.as_ref();
            let key = key.map(|key| key.as_str().to_owned());
            let before = found.insert(body.parse().unwrap(), key);
            assert!(before.is_none(), "{body} is there twice");
        }
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_publish_sees_a_binding_before_or_after_a_change_and_never_half() {
    let (_folder, lockgate) = open().await;
    let steady = lockgate.queue("steady").create().await.unwrap();
    let changing = lockgate.queue("changing").keyed().create().await.unwrap();
    let exchange = lockgate.exchange(ExchangeName::new("events").unwrap());
    let created = exchange.create(ExchangeKind::Fanout, Unroutable::Reject);
    created.await.unwrap();
    let to = BindTo::Queue(steady.name().clone());
    let bind = exchange.bind(to, Pattern::Everything, BindingOptions::default());
    bind.await.unwrap();

    let (clock, is_over) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let turning = tokio::spawn(turn(
        exchange.clone(),
        changing.clone(),
        clock.clone(),
        is_over.clone(),
    ));
    let passing = tokio::spawn(come_and_go(
        lockgate.clone(),
        exchange.clone(),
        is_over.clone(),
    ));
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|publisher| tokio::spawn(publish(exchange.clone(), publisher, clock.clone())))
        .collect();
    let mut published = Vec::new();
    for publisher in publishers {
        published.extend(publisher.await.unwrap());
    }
    is_over.store(true, Ordering::SeqCst);
    let changes = turning.await.unwrap();
    let times = passing.await.unwrap();

    // A state begins and ends somewhere within the changes to it and from it.
    let ends = changes.iter().skip(1).map(|change| change.to);
    let states: Vec<_> = (changes.iter().zip(ends.chain([u64::MAX])))
        .map(|(change, to)| During { to, ..*change })
        .collect();
    let mut with_copies = 0;
    for During { from, what, to } in &published {
        let (number, queues) = what;
        let has = |name: &str| queues.iter().any(|queue| queue == name);
        assert!(has("steady"), "{number}: {queues:?}");
        let takes = |bound: Bound| bound == Bound::By(number % 2);
        let may_be = states
            .iter()
            .filter(|state| state.from < *to && *from < state.to);
        let mut outcomes: Vec<_> = may_be.map(|state| takes(state.what)).collect();
        // Before the first change.
        outcomes.extend((*from < changes[0].to).then_some(false));
        assert!(
            outcomes.contains(&has("changing")),
            "{number} from {from} to {to} went to {queues:?}: {changes:?}"
        );
        with_copies += u64::from(has("changing"));
    }
    let in_steady = keys_in(&steady).await;
    assert_eq!(in_steady.len() as u64, PUBLISHERS * PUBLISHES);
    let in_changing = keys_in(&changing).await;
    let told = published
        .iter()
        .filter(|it| it.what.1.iter().any(|queue| queue == "changing"));
    let told: Vec<u64> = told.map(|it| it.what.0).collect();
    assert_eq!(told.len(), in_changing.len());
    for number in told {
        let key = format!("of kind {}", number % 2);
        assert_eq!(in_changing.get(&number), Some(&Some(key)), "{number}");
    }
    let counts = exchange.describe().await.unwrap().counts;
    assert_eq!(counts.published, PUBLISHERS * PUBLISHES);
    println!(
        "{} changes, {times} deletions, {with_copies} of {} publishes to the queue that changes",
        changes.len(),
        published.len()
    );
    lockgate.shutdown().await;
}
