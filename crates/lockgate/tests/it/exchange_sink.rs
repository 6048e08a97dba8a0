//! An embedded exchange as a sink, by itself and behind a producer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockgate::{
    Accepted, ExchangeName, ExchangeSink, Fate, Header, Key, Lockgate, ManualClock, Message,
    MessageId, Queue, RouteBy, RoutingKey, Sink, SinkCapabilities, TransportError, UniqueId,
    exchange::{BindTo, BindingOptions, Exchange, ExchangeKind, Pattern, TopicPattern, Unroutable},
    producer::{OpenError, OptionsError, PackOptions, Producer, ProducerOptions, SpoolOptions},
};
use lockgate_conformance::transport::{self, Fixture, Through};
use tempfile::TempDir;

use super::{bodies, open, take};

struct Embedded {
    _folder: TempDir,
    lockgate: Lockgate,
    clock: ManualClock,
    made: usize,
}

impl Fixture for Embedded {
    type Queue = Through<ExchangeSink, Queue>;

    async fn queue(&mut self, keyed: bool) -> Through<ExchangeSink, Queue> {
        self.made += 1;
        let name = format!("of-{}", self.made);
        let mut queue = self.lockgate.queue(&name);
        if keyed {
            queue = queue.keyed();
        }
        let queue = queue.create().await.unwrap();
        let exchange = fanout(&self.lockgate, &name, &[&queue]).await;
        let sink = exchange.sink(RouteBy::Fixed(RoutingKey::default()));
        Through { sink, queue }
    }

    async fn delete(&mut self, through: &Through<ExchangeSink, Queue>) -> bool {
        through.sink.exchange().delete(false).await.unwrap();
        through.queue.delete().await.unwrap();
        true
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.lockgate.clock_changed();
        true
    }
}

async fn fanout(lockgate: &Lockgate, name: &str, queues: &[&Queue]) -> Exchange {
    let exchange = lockgate.exchange(ExchangeName::new(name).unwrap());
    let made = exchange.create(ExchangeKind::Fanout, Unroutable::Reject);
    made.await.unwrap();
    for queue in queues {
        let to = BindTo::Queue(queue.name().clone());
        let bound = exchange.bind(to, Pattern::Everything, BindingOptions::default());
        bound.await.unwrap();
    }
    exchange
}

#[tokio::test]
async fn an_embedded_exchange_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let lockgate = Lockgate::builder(folder.path())
        .clock(Arc::new(clock.clone()))
        .open()
        .await
        .unwrap();
    let mut embedded = Embedded {
        _folder: folder,
        lockgate,
        clock,
        made: 0,
    };
    let not_run = transport::run(&mut embedded).await;
    // It takes no records of producers.
    assert_eq!(
        not_run,
        [
            "a_record_of_a_producer_is_accepted_once",
            "two_copies_of_a_spool_lose_nothing_and_double_nothing"
        ]
    );
    embedded.lockgate.shutdown().await;
}

fn routed(body: &str, routing_key: &str) -> Message {
    let mut message = Message::new(body.to_owned());
    message.headers.push(Header {
        name: "to".into(),
        kind: "String".into(),
        value: routing_key.to_owned().into(),
    });
    message
}

#[tokio::test]
async fn a_header_says_where_a_message_goes() {
    let (_folder, lockgate) = open().await;
    let [eu, all] = ["eu", "all"].map(|name| lockgate.queue(name));
    let (eu, all) = (eu.create().await.unwrap(), all.create().await.unwrap());
    let exchange = lockgate.exchange(ExchangeName::new("events").unwrap());
    let made = exchange.create(ExchangeKind::Topic, Unroutable::Reject);
    made.await.unwrap();
    for (queue, topic) in [(&eu, "*.eu"), (&all, "orders.*")] {
        let to = BindTo::Queue(queue.name().clone());
        let pattern = Pattern::Topic(TopicPattern::new(topic).unwrap());
        let bound = exchange.bind(to, pattern, BindingOptions::default());
        bound.await.unwrap();
    }
    let sink = exchange.sink(RouteBy::header("to"));
    let messages = vec![
        routed("both", "orders.eu"),
        Message::new("no header"),
        routed("none", "users.us"),
        routed("one", "orders.us"),
    ];
    for message in &messages {
        let carried = sink.can_carry(message).map_err(|error| error.fate);
        let expected = match message.headers.is_empty() {
            true => Err(Fate::Refused),
            false => Ok(()),
        };
        assert_eq!(carried, expected);
    }
    let results = sink.send_batch(messages.clone()).await;
    let fates: Vec<_> = results
        .iter()
        .map(|it| it.as_ref().map_err(|it| it.fate))
        .collect();
    assert!(matches!(
        fates[..],
        [Ok(_), Err(Fate::Refused), Err(Fate::Refused), Ok(_)]
    ));
    // In order it ends at the first that is refused, and here that is no fault of the sink.
    let results = sink.send_in_order(messages[..2].to_vec()).await;
    assert!(matches!(results[..], [Ok(_), Err(_)]));
    let two = vec![routed("1", "orders.us"), routed("2", "orders.us")];
    let results = sink.send_in_order(two).await;
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(bodies(&take(&eu, 9).await), ["both", "both"]);
    let all = take(&all, 9).await;
    assert_eq!(bodies(&all), ["both", "one", "both", "1", "2"]);
    lockgate.shutdown().await;
}

/// Loses every other answer: the messages are there, and nobody says so.
#[derive(Clone)]
struct Forgetful {
    sink: ExchangeSink,
    asked: Arc<AtomicUsize>,
}

impl Sink for Forgetful {
    type Id = MessageId;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.sink.sink_capabilities()
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let results = self.sink.send_batch(messages).await;
        match self.asked.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => {
                let lost = TransportError::new(Fate::Unknown, "the answer was lost");
                vec![Err(lost); results.len()]
            }
            _ => results,
        }
    }
}

/// Each record gets to each queue once and in its key's order, although every batch is sent twice, and a restart sends what the
/// spool has left.
#[tokio::test]
async fn records_of_a_producer_get_to_each_queue_once_and_in_order() {
    let (folder, lockgate) = open().await;
    let keyed = lockgate.queue("keyed").keyed().create().await.unwrap();
    let other = lockgate.queue("other").keyed().create().await.unwrap();
    let exchange = fanout(&lockgate, "events", &[&keyed, &other]).await;
    let asked = Arc::new(AtomicUsize::new(0));
    for run in 0..2 {
        let sink = Forgetful {
            sink: exchange.sink(RouteBy::Fixed(RoutingKey::default())),
            asked: asked.clone(),
        };
        let options = ProducerOptions {
            spool: Some(SpoolOptions::new(folder.path().join("spool"))),
            batch_count: 3,
            ..ProducerOptions::default()
        };
        let producer = Producer::open(sink, options).await.unwrap();
        let sends = (0..20).map(|number| {
            let key = Key::new(&format!("k{}", number % 2)).unwrap();
            let number = 20 * run + number;
            producer.try_send(Message::new(number.to_string()).with_key(key))
        });
        let tickets: Vec<_> = sends.collect::<Result<_, _>>().unwrap();
        for ticket in tickets {
            ticket.await.unwrap();
        }
        let closed = producer.close(Duration::from_secs(30)).await;
        assert_eq!(closed.left, 0);
    }
    assert!(asked.load(Ordering::Relaxed) > 10);
    for queue in [&keyed, &other] {
        let deliveries = take(queue, 100).await;
        for key in ["k0", "k1"] {
            let of_key = deliveries.iter();
            let of_key = of_key.filter(|it| it.key().unwrap().as_str() == key);
            let numbers: Vec<usize> = of_key
                .map(|it| str::from_utf8(it.body()).unwrap().parse().unwrap())
                .collect();
            let first = usize::from(key == "k1");
            assert_eq!(numbers, Vec::from_iter((first..40).step_by(2)), "{key}");
        }
    }
    lockgate.shutdown().await;
}

#[tokio::test]
async fn packs_are_refused_because_an_exchange_looks_at_each_message() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    let exchange = fanout(&lockgate, "events", &[&queue]).await;
    let sink = exchange.sink(RouteBy::Fixed(RoutingKey::default()));
    let options = ProducerOptions {
        pack: Some(PackOptions::default()),
        ..ProducerOptions::default()
    };
    let opened = Producer::open(sink.clone(), options).await;
    assert!(matches!(
        opened.map(drop),
        Err(OpenError::Options(OptionsError::Routes))
    ));
    let pack = lockgate::pack::pack(&[Message::new("1"), Message::new("2")], false);
    let sent = sink.send_batch(vec![pack]).await.remove(0);
    assert_eq!(sent.unwrap_err().fate, Fate::Unsupported);
    lockgate.shutdown().await;
}

/// A message is a duplicate if all queues knew it.
#[tokio::test]
async fn a_duplicate_is_known_by_all_queues() {
    let (_folder, lockgate) = open().await;
    let knows = lockgate.queue("knows").create().await.unwrap();
    let forgets = lockgate.queue("forgets").dedup_window(Duration::ZERO);
    let forgets = forgets.create().await.unwrap();
    for (name, queues, known) in [
        ("one", &[&knows][..], true),
        ("two", &[&knows, &forgets], false),
    ] {
        let exchange = fanout(&lockgate, name, queues).await;
        let sink = exchange.sink(RouteBy::Fixed(RoutingKey::default()));
        let message = Message::new("x").with_unique_id(UniqueId::new(name).unwrap());
        let first = sink.send_batch(vec![message.clone()]).await.remove(0);
        let first = first.unwrap();
        assert!(!first.duplicate);
        let again = sink.send_batch(vec![message]).await.remove(0).unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, known));
    }
    lockgate.shutdown().await;
}
