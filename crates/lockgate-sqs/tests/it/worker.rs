//! A worker over a queue of SQS.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lockgate_consumer::{Failure, Job, Worker};
use lockgate_core::{
    Key, Leased, Message, ReceiveRequest, Settlement, Sink as _, Source, SourceCapabilities,
    TransportError,
};
use lockgate_log::SystemClock;
use lockgate_sqs::{Receipt, SqsQueue};
use tokio::sync::{Notify, Semaphore};

use crate::support::{TestServer, client_of, create, request};

const WITHIN: Duration = Duration::from_secs(60);

/// A queue that says how many leases were extended.
struct Counted {
    queue: SqsQueue,
    extended: Arc<Semaphore>,
}

impl Source for Counted {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        self.queue.receive_batch(request).await
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        self.queue.settle_batch(settles).await
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        let results = self.queue.extend_batch(receipts, lease).await;
        self.extended
            .add_permits(results.iter().filter(|result| result.is_ok()).count());
        results
    }
}

fn of(key: &str, body: String) -> Message {
    Message::new(body).with_key(Key::new(key).unwrap())
}

async fn is_empty(queue: &SqsQueue) -> bool {
    queue.receive_batch(request(10)).await.unwrap().is_empty()
}

/// What a worker has handled, key by key, and when it was so many.
#[derive(Default)]
struct Handled {
    bodies: Mutex<BTreeMap<String, Vec<String>>>,
    count: AtomicUsize,
    all: Notify,
}

impl Handled {
    fn note(&self, job: &Job, all: usize) {
        let body = String::from_utf8(job.body().to_vec()).unwrap();
        let key = job.key().unwrap().to_string();
        let mut bodies = self.bodies.lock().unwrap();
        bodies.entry(key).or_default().push(body);
        if self.count.fetch_add(1, SeqCst) + 1 == all {
            self.all.notify_one();
        }
    }
}

#[tokio::test]
async fn failed_messages_come_again_in_the_order_of_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _clock) = TestServer::manual(folder.path()).await;
    let queue = create(&server.client(), "q.fifo", &[]).await;
    for key in ["a", "b", "c"] {
        let messages = (1..=6).map(|number| of(key, number.to_string()));
        let sent = queue.send_batch(messages.collect()).await;
        assert!(sent.iter().all(Result::is_ok));
    }
    let handled = Arc::new(Handled::default());
    let of_worker = handled.clone();
    let handler = move |job: Job| {
        let handled = of_worker.clone();
        async move {
            handled.note(&job, 3 * 7);
            match (&job.body()[..], job.attempt()) {
                (b"2", 1) => Err(Failure::retry("not yet", Some(Duration::ZERO))),
                _ => Ok(()),
            }
        }
    };
    let worker = Worker::over(queue.clone()).concurrency(8).start(handler);
    let ended = worker.unwrap().run_until(handled.all.notified(), WITHIN);
    let ended = ended.await;
    assert_eq!(ended.counts.acknowledged, 18);
    for (key, bodies) in &*handled.bodies.lock().unwrap() {
        assert_eq!(*bodies, ["1", "2", "2", "3", "4", "5", "6"], "{key}");
    }
    assert!(is_empty(&queue).await);
    server.stop().await;
}

#[tokio::test]
async fn a_lease_is_extended_while_its_handler_runs() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock::new());
    let server = TestServer::start(folder.path(), "127.0.0.1:0", clock).await;
    for name in ["q", "q.fifo"] {
        let queue = create(&server.client(), name, &[]).await;
        let mut message = of("k", "a".to_owned());
        if name == "q" {
            message.key = None;
        }
        queue.send_batch(vec![message]).await.remove(0).unwrap();
        let extended = Arc::new(Semaphore::new(0));
        let done = Arc::new(Notify::new());
        let of_handler = (extended.clone(), done.clone());
        let handler = move |job: Job| {
            let (extended, done) = of_handler.clone();
            async move {
                // Two extensions are longer than the first lease.
                extended.acquire_many(2).await.unwrap().forget();
                assert!(job.is_current());
                done.notify_one();
                Ok(())
            }
        };
        let source = Counted {
            queue: queue.clone(),
            extended,
        };
        let worker = Worker::over(source).lease(Duration::from_secs(3));
        let worker = worker.start(handler).unwrap();
        let ended = worker.run_until(done.notified(), WITHIN).await;
        assert_eq!(ended.counts.acknowledged, 1, "{name}");
        assert!(is_empty(&queue).await);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_worker_goes_on_when_the_server_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (server, clock) = TestServer::manual(folder.path()).await;
    let address = server.address;
    let queue = create(&server.client(), "q.fifo", &[]).await;
    let messages = (1..=10).map(|number| of("k", number.to_string()));
    queue.send_batch(messages.collect()).await;

    let handled = Arc::new(Handled::default());
    let (third, back) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let of_worker = (handled.clone(), third.clone(), back.clone());
    let handler = move |job: Job| {
        let (handled, third, back) = of_worker.clone();
        async move {
            if &job.body()[..] == b"3" {
                // Its acknowledgement meets a server that is back, or its lease is lost.
                third.notify_one();
                drop(back.acquire().await.unwrap());
            }
            handled.note(&job, usize::MAX);
            Ok(())
        }
    };
    let worker = Worker::over(queue.clone()).start(handler).unwrap();
    third.notified().await;
    server.stop().await;
    let listen = address.to_string();
    let server = TestServer::start(folder.path(), &listen, Arc::new(clock)).await;
    back.add_permits(1);
    let mut counts = worker.state().await.unwrap().counts;
    while counts.acknowledged < 10 {
        tokio::task::yield_now().await;
        counts = worker.state().await.unwrap().counts;
    }
    worker.drain(WITHIN).await;
    let mut bodies = handled.bodies.lock().unwrap().remove("k").unwrap();
    bodies.dedup();
    let expected: Vec<String> = (1..=10).map(|number| number.to_string()).collect();
    assert_eq!(bodies, expected);
    let queue = SqsQueue::open(client_of(address), queue.url()).await;
    assert!(is_empty(&queue.unwrap()).await);
    server.stop().await;
}
