//! A producer whose sink is a queue of SQS, and a server that goes away and comes back.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockgate_consumer::{Job, Worker};
use lockgate_core::{Backoff, Key, Message, Source as _};
use lockgate_log::SystemClock;
use lockgate_producer::{
    AnswerLevel, Breaker, PackOptions, Producer, ProducerOptions, SpoolOptions,
};
use lockgate_sqs::SqsQueue;

use crate::support::{TestServer, create, request};

const MESSAGES: usize = 400;
const KEYS: usize = 5;

fn options(folder: &std::path::Path, pack: Option<PackOptions>) -> ProducerOptions {
    ProducerOptions {
        level: AnswerLevel::Durable,
        pack,
        backoff: Backoff { first: 5, max: 50 },
        breaker: Breaker {
            failures: 3,
            open: Backoff { first: 5, max: 50 },
        },
        spool: Some(SpoolOptions {
            free_bytes_min: 1,
            ..SpoolOptions::new(folder.join("spool"))
        }),
        ..ProducerOptions::default()
    }
}

/// Sends all, takes the server away and brings it back meanwhile. Returns what a worker then got, by key, and how many
/// messages of SQS it took.
async fn sent_and_received(
    name: &str,
    pack: Option<PackOptions>,
) -> (BTreeMap<String, Vec<usize>>, u64) {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock::new());
    let server = TestServer::start(folder.path(), "127.0.0.1:0", clock.clone()).await;
    let address = server.address;
    let queue = create(&server.client(), name, &[]).await;
    let is_fifo = name.ends_with(".fifo");
    let producer = Producer::open(queue.clone(), options(folder.path(), pack)).await;
    let producer = producer.unwrap();
    let mut server = Some(server);
    for number in 0..MESSAGES {
        let mut message = Message::new(number.to_string());
        if is_fifo {
            message.key = Some(Key::new(&format!("k{}", number % KEYS)).unwrap());
        }
        producer.send(message).await.unwrap();
        if number == MESSAGES / 3
            && let Some(server) = server.take()
        {
            server.stop().await;
        }
    }
    assert!(producer.figures().pending > 0);
    let server = TestServer::start(folder.path(), &address.to_string(), clock).await;
    producer.flush().await;
    let figures = producer.figures();
    assert_eq!(figures.delivered, MESSAGES as u64, "{figures:?}");
    assert_eq!(producer.close(Duration::from_secs(10)).await.left, 0);
    let received = received(&queue).await;
    server.stop().await;
    (received, figures.packs)
}

async fn received(queue: &SqsQueue) -> BTreeMap<String, Vec<usize>> {
    let got = Arc::new(Mutex::new(BTreeMap::<String, Vec<usize>>::new()));
    let (seen, all) = (got.clone(), Arc::new(tokio::sync::Semaphore::new(0)));
    let count = all.clone();
    let worker = Worker::over(queue.clone()).start(move |job: Job| {
        let key = job.key().map_or_else(String::new, ToString::to_string);
        let body = std::str::from_utf8(job.body()).unwrap().parse().unwrap();
        seen.lock().unwrap().entry(key).or_default().push(body);
        count.add_permits(1);
        async { Ok(()) }
    });
    let worker = worker.unwrap();
    let enough = all.acquire_many(u32::try_from(MESSAGES).unwrap());
    let enough = tokio::time::timeout(Duration::from_secs(60), enough).await;
    drop(enough.expect("everything is received").unwrap());
    worker.drain(Duration::from_secs(10)).await;
    assert!(queue.receive_batch(request(10)).await.unwrap().is_empty());
    std::mem::take(&mut got.lock().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fifo_queue_gets_everything_once_and_in_order() {
    for pack in [None, Some(PackOptions::default())] {
        let (received, packs) = sent_and_received("orders.fifo", pack).await;
        assert_eq!(packs > 0, pack.is_some());
        assert_eq!(received.len(), KEYS);
        for (of_key, key) in received.values().zip(0..) {
            let expected: Vec<_> = (0..MESSAGES).filter(|it| it % KEYS == key).collect();
            assert_eq!(*of_key, expected);
        }
    }
}

/// It knows no ids, so what it did not answer may come twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standard_queue_gets_everything() {
    for pack in [None, Some(PackOptions::default())] {
        let (received, packs) = sent_and_received("clicks", pack).await;
        assert_eq!(packs > 0, pack.is_some());
        let mut all = received[""].clone();
        all.sort_unstable();
        all.dedup();
        assert!(all.into_iter().eq(0..MESSAGES));
    }
}
