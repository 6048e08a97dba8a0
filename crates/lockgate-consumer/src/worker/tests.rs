//! Workers over queues in memory, and over a source with faults.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use lockgate_core::{Fate, Leased, ReceiveRequest, Settlement, SourceCapabilities};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::*;
use crate::{
    Batch, Failure, Job, MemoryOptions, MemoryQueue,
    dispatch::{Cancelled, KeyWait},
    handler,
    memory::{KeyPolicy, Receipt},
};

mod coalesce;
mod faults;
mod limits;
mod packs;

const SOON: Duration = Duration::from_secs(20);

fn queue(change: impl FnOnce(&mut MemoryOptions)) -> MemoryQueue {
    let mut options = MemoryOptions::default();
    change(&mut options);
    MemoryQueue::new(options).unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

async fn push(queue: &MemoryQueue, of: &str, body: &str) {
    let message = Message::new(body.to_owned()).with_key(key(of));
    queue.push(message).await.unwrap();
}

fn text(job: &Job) -> String {
    String::from_utf8(job.body().to_vec()).unwrap()
}

/// No wait after failures.
fn at_once() -> Backoff {
    Backoff { first: 0, max: 0 }
}

/// Ends when the queue has nothing any more.
async fn to_the_end(queue: &MemoryQueue, worker: Worker) -> Ended {
    queue.close();
    tokio::time::timeout(SOON, worker.ended()).await.unwrap()
}

#[tokio::test]
async fn messages_of_a_key_run_in_order_and_keys_side_by_side() {
    let queue = queue(|_| {});
    for number in 0..1_000 {
        push(&queue, &format!("k{}", number % 10), &number.to_string()).await;
    }
    let (seen, going) = (
        Arc::new(Mutex::new(BTreeMap::<_, Vec<u32>>::new())),
        Arc::new(AtomicUsize::new(0)),
    );
    // Ten runs meet: if fewer keys ran side by side, they would wait for ever.
    let meeting = Arc::new(tokio::sync::Barrier::new(10));
    let (shared, meets) = (seen.clone(), meeting.clone());
    let worker = Worker::over(queue.clone()).start(move |job: Job| {
        let (seen, going, meeting) = (shared.clone(), going.clone(), meets.clone());
        async move {
            assert!(
                going.fetch_add(1, Ordering::SeqCst) < 10,
                "one run for each key"
            );
            let number: u32 = text(&job).parse()?;
            if number < 10 {
                meeting.wait().await;
            }
            let key = job.key().unwrap().clone();
            seen.lock().unwrap().entry(key).or_default().push(number);
            going.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!(
        (ended.counts.acknowledged, ended.panics, ended.left),
        (1_000, 0, 0)
    );
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 10);
    for (number, key) in seen.values().zip(0..) {
        assert_eq!(
            number[..],
            (0..100).map(|n| n * 10 + key).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn a_failure_a_panic_and_a_rejection_have_their_reasons() {
    let queue = queue(|options| options.attempts = Some((3, KeyPolicy::Skip)));
    for body in ["fails", "panics", "bad", "good"] {
        push(&queue, body, body).await;
    }
    let tries = Arc::new(Mutex::new(BTreeMap::<String, Vec<u32>>::new()));
    let all = tries.clone();
    let worker = Worker::over(queue.clone())
        .backoff(at_once())
        .start(move |job: Job| {
            let body = text(&job);
            all.lock()
                .unwrap()
                .entry(body.clone())
                .or_default()
                .push(job.attempt());
            async move {
                match &*body {
                    "fails" => Err("it does not work".into()),
                    "panics" => panic!("oh no"),
                    "bad" => Err(Failure::reject("it is bad")),
                    _ => Ok(()),
                }
            }
        });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!(
        (
            ended.counts.acknowledged,
            ended.counts.rejected,
            ended.panics
        ),
        (1, 1, 3)
    );
    let expected = [("bad", 1), ("fails", 3), ("good", 1), ("panics", 3)];
    let tries = tries.lock().unwrap();
    for ((body, attempts), (wanted, count)) in tries.iter().zip(expected) {
        assert_eq!(
            (&**body, attempts),
            (wanted, &(1..=count).collect::<Vec<_>>())
        );
    }
    let dead = queue.take_dead_letters();
    let bad = dead.iter().find(|dead| dead.message.body == "bad").unwrap();
    assert_eq!(bad.reason.as_deref(), Some("it is bad"));
    assert_eq!(dead.len(), 3);
}

#[tokio::test]
async fn a_handler_that_hangs_is_dropped_and_counts_as_failed() {
    let queue = queue(|options| options.attempts = Some((1, KeyPolicy::Skip)));
    push(&queue, "k", "hangs").await;
    push(&queue, "k", "good").await;
    let builder = Worker::over(queue.clone()).run_time_max(Duration::from_millis(50));
    let worker = builder.start(|job: Job| async move {
        if job.body() == "hangs" {
            std::future::pending::<()>().await;
        }
        Ok(())
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!((ended.counts.acknowledged, ended.counts.failed), (1, 1));
    assert_eq!(queue.take_dead_letters()[0].message.body, "hangs");
}

/// Its leases can be lost, and its settlements get no answer. It tells when leases were extended, and how many.
#[derive(Clone)]
struct Faulty {
    queue: MemoryQueue,
    loses: Arc<AtomicBool>,
    settles: Arc<Mutex<Vec<Settlement>>>,
    lost_answers: Arc<AtomicUsize>,
    /// Calls that do not get to the queue, and are answered as if the leases were over.
    refused: Arc<AtomicUsize>,
    extended: Option<mpsc::UnboundedSender<usize>>,
}

impl Faulty {
    fn over(queue: &MemoryQueue) -> Self {
        Self {
            queue: queue.clone(),
            loses: Arc::default(),
            settles: Arc::default(),
            lost_answers: Arc::default(),
            refused: Arc::default(),
            extended: None,
        }
    }
}

impl Source for Faulty {
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
        let how = settles.iter().map(|(_, how)| how.clone());
        self.settles.lock().unwrap().extend(how);
        let count = settles.len();
        let is_next = |left: &AtomicUsize| {
            let less = |left: usize| left.checked_sub(1);
            left.try_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok()
        };
        let all = |fate| vec![Err(TransportError::new(fate, "lost")); count];
        if is_next(&self.refused) {
            return all(Fate::Stale);
        }
        let answers = self.queue.settle_batch(settles).await;
        match is_next(&self.lost_answers) {
            true => all(Fate::Unknown),
            false => answers,
        }
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        if self.loses.load(Ordering::SeqCst) {
            return receipts
                .iter()
                .map(|_| Err(TransportError::new(Fate::Stale, "gone")))
                .collect();
        }
        let count = receipts.len();
        let answers = self.queue.extend_batch(receipts, lease).await;
        if let Some(extended) = &self.extended {
            let _ = extended.send(count);
        }
        answers
    }
}

#[tokio::test]
async fn leases_are_extended_and_a_lost_one_cancels_its_handler() {
    let queue = queue(|_| {});
    push(&queue, "k", "m").await;
    let source = Faulty::over(&queue);
    let loses = source.loses.clone();
    let (tell, mut told) = mpsc::unbounded_channel();
    let lease = Duration::from_millis(300);
    let worker = Worker::over(source)
        .lease(lease)
        .cancel_grace(SOON)
        .start(move |job: Job| {
            let (tell, loses) = (tell.clone(), loses.clone());
            async move {
                let context = job.context().clone();
                // Longer than the lease.
                tokio::select! {
                    _ = context.cancelled() => panic!("it is extended"),
                    () = tokio::time::sleep(3 * lease) => {}
                }
                tell.send((job.is_current(), None)).unwrap();
                loses.store(true, Ordering::SeqCst);
                let why = context.cancelled().await;
                tell.send((job.is_current(), Some(why))).unwrap();
                Ok(())
            }
        });
    let worker = worker.unwrap();
    assert_eq!(told.recv().await.unwrap(), (true, None));
    assert_eq!(
        told.recv().await.unwrap(),
        (false, Some(Cancelled::LeaseLost))
    );
    let state = worker.state().await.unwrap();
    assert_eq!(state.counts.acknowledged, 0, "its end does not count");
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_changes_nothing() {
    let queue = queue(|_| {});
    for number in 0..20 {
        push(&queue, "k", &number.to_string()).await;
    }
    let source = Faulty::over(&queue);
    source.lost_answers.store(5, Ordering::SeqCst);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    let worker = Worker::over(source).start(move |job: Job| {
        all.lock().unwrap().push(text(&job));
        async { Ok(()) }
    });
    to_the_end(&queue, worker.unwrap()).await;
    let expected: Vec<_> = (0..20).map(|number: u32| number.to_string()).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_drain_gives_back_what_waits_and_cancels_what_takes_too_long() {
    let queue = queue(|_| {});
    for body in ["1", "2", "3"] {
        push(&queue, "k", body).await;
    }
    let begun = Arc::new(Notify::new());
    let tell = begun.clone();
    let worker = Worker::over(queue.clone()).start(move |_: Job| {
        tell.notify_one();
        std::future::pending::<Result<(), Failure>>()
    });
    begun.notified().await;
    let ended = worker.unwrap().drain(Duration::ZERO).await;
    assert_eq!(
        (ended.counts.arrived, ended.counts.given_back, ended.left),
        (3, 2, 0),
        "the first has begun, and comes again all the same"
    );
    let counts = queue.counts();
    assert_eq!((counts.waiting, counts.leased), (3, 0));
    // Nothing counts as an attempt.
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = Worker::over(queue.clone()).start(move |job: Job| {
        tell.send((text(&job), job.attempt())).unwrap();
        async { Ok(()) }
    });
    for body in ["1", "2", "3"] {
        assert_eq!(told.recv().await.unwrap(), (body.to_owned(), 1));
    }
    to_the_end(&queue, worker.unwrap()).await;
}

#[tokio::test]
async fn a_paused_worker_starts_nothing_until_it_is_resumed() {
    let queue = queue(|_| {});
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = Worker::over(queue.clone()).start(move |job: Job| {
        tell.send(text(&job)).unwrap();
        async { Ok(()) }
    });
    let worker = worker.unwrap();
    push(&queue, "k", "1").await;
    assert_eq!(told.recv().await.unwrap(), "1");
    worker.pause();
    worker.state().await.unwrap();
    push(&queue, "k", "2").await;
    assert_eq!(worker.state().await.unwrap().running, 0);
    assert!(told.try_recv().is_err());
    worker.resume();
    assert_eq!(told.recv().await.unwrap(), "2");
}

#[tokio::test]
async fn a_batch_succeeds_in_part() {
    let queue = queue(|options| options.attempts = Some((1, KeyPolicy::Skip)));
    for body in ["1", "2", "3", "4"] {
        push(&queue, "k", body).await;
    }
    let runs = Arc::new(Mutex::new(Vec::new()));
    let all = runs.clone();
    let handler = handler::batches(move |batch: Batch| {
        let bodies: Vec<_> = batch.jobs().iter().map(text).collect();
        all.lock().unwrap().push(bodies);
        async move {
            for (done, job) in batch.jobs().iter().enumerate() {
                if job.body() == "3" {
                    batch.context().succeeded(done);
                    return Err("three is bad".into());
                }
            }
            Ok(())
        }
    });
    let worker = Worker::over(queue.clone())
        .run_max(4)
        .backoff(at_once())
        .start(handler);
    to_the_end(&queue, worker.unwrap()).await;
    let expected = [vec!["1", "2", "3", "4"], vec!["4"]];
    assert_eq!(*runs.lock().unwrap(), expected);
    assert_eq!(queue.take_dead_letters()[0].message.body, "3");
}

#[tokio::test]
async fn a_blocking_handler_is_never_beside_the_next_of_its_key() {
    let queue = queue(|_| {});
    for body in ["1", "2"] {
        push(&queue, "k", body).await;
    }
    let going = Arc::new(AtomicUsize::new(0));
    let handler = handler::blocking(move |job: Job| {
        assert_eq!(going.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
        // It goes on although its run was cancelled.
        while job.context().why_cancelled().is_none() && job.attempt() == 1 {
            std::thread::yield_now();
        }
        going.fetch_sub(1, Ordering::SeqCst);
        match job.attempt() {
            1 => Err(Failure::retry("too slow", Some(Duration::ZERO))),
            _ => Ok(()),
        }
    });
    let builder = Worker::over(queue.clone()).run_time_max(Duration::from_millis(20));
    let ended = to_the_end(&queue, builder.start(handler).unwrap()).await;
    assert_eq!((ended.counts.acknowledged, ended.panics), (2, 0));
}

#[tokio::test]
async fn what_is_no_json_is_rejected_with_its_place() {
    let queue = queue(|_| {});
    push(&queue, "a", "{\"amount\": 5}").await;
    push(&queue, "b", "{\"amount\": \"five\"}").await;
    #[derive(serde::Deserialize)]
    struct Order {
        amount: u64,
    }
    let handler = handler::json(|order: Order, _| async move {
        assert_eq!(order.amount, 5);
        Ok(())
    });
    let worker = Worker::over(queue.clone()).start(handler);
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!((ended.counts.acknowledged, ended.counts.rejected), (1, 1));
    let reason = queue.take_dead_letters().remove(0).reason.unwrap();
    assert!(
        reason.contains("expected u64 at line 1 column 17"),
        "{reason}"
    );
}

/// A tower service that lets one call through at a time.
#[derive(Clone)]
struct OneAtATime(Arc<Semaphore>);

impl tower_service::Service<Job> for OneAtATime {
    type Response = ();
    type Error = std::io::Error;
    type Future = std::future::Ready<Result<(), std::io::Error>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), std::io::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Job) -> Self::Future {
        self.0.add_permits(1);
        std::future::ready(Ok(()))
    }
}

#[tokio::test]
async fn a_tower_service_is_a_handler() {
    let queue = queue(|_| {});
    for number in 0..10 {
        push(&queue, "k", &number.to_string()).await;
    }
    let calls = Arc::new(Semaphore::new(0));
    let handler = handler::service(OneAtATime(calls.clone()));
    let worker = Worker::over(queue.clone()).start(handler);
    to_the_end(&queue, worker.unwrap()).await;
    assert_eq!(calls.available_permits(), 10);
}

#[tokio::test]
async fn at_most_once_acknowledges_before_the_handler_begins() {
    let queue = queue(|_| {});
    for body in ["1", "2", "3"] {
        push(&queue, "k", body).await;
    }
    let source = Faulty::over(&queue);
    let (settles, lost) = (source.settles.clone(), source.lost_answers.clone());
    lost.store(1, Ordering::SeqCst);
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = Worker::over(source).at_most_once().start(move |job: Job| {
        let settles = settles.lock().unwrap();
        let acks = settles.iter().filter(|how| **how == Settlement::Ack);
        tell.send((text(&job), acks.count())).unwrap();
        async { Err("it fails".into()) }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    // Nobody knows whether the first was acknowledged, so it is not handled; the others wait for it no longer
    // than the queue says.
    assert_eq!(told.recv().await.unwrap(), ("2".to_owned(), 2));
    assert_eq!(told.recv().await.unwrap(), ("3".to_owned(), 3));
    assert!(told.recv().await.is_none());
    let counts = ended.counts;
    assert_eq!(
        (counts.acknowledged, counts.unconfirmed, counts.lost),
        (2, 1, 0)
    );
}

#[tokio::test]
async fn a_key_says_why_it_waits() {
    let queue = queue(|_| {});
    push(&queue, "k", "1").await;
    push(&queue, "k", "2").await;
    let begun = Arc::new(Notify::new());
    let tell = begun.clone();
    let worker = Worker::over(queue.clone()).start(move |_: Job| {
        tell.notify_one();
        std::future::pending::<Result<(), Failure>>()
    });
    let worker = worker.unwrap();
    begun.notified().await;
    let state = worker.explain(0, &key("k")).await.unwrap();
    assert!(matches!(state.wait, KeyWait::Running(_)), "{state:?}");
    assert_eq!(state.messages, 2);
    assert!(worker.explain(0, &key("other")).await.is_none());
    assert!(worker.explain(7, &key("k")).await.is_none());
}

#[tokio::test]
async fn options_out_of_range_are_named() {
    let queue = queue(|_| {});
    let start = |builder: WorkerBuilder| {
        let started = builder.start(|_: Job| async { Ok(()) });
        let error = started.map(drop).unwrap_err();
        lockgate_core::with_sources(&error)
    };
    let none = start(Worker::over(queue.clone()).concurrency(0));
    assert!(
        none.contains("concurrency must be 1 to 65536, not 0"),
        "{none}"
    );
    let long = start(Worker::over(queue.clone()).lease(Duration::from_secs(90_000)));
    assert!(
        long.contains("at most 43200s, and 90000s is asked for"),
        "{long}"
    );
    let few = start(Worker::over(queue.clone()).and(queue.clone()).held_max(1));
    assert!(few.contains("held_max"), "{few}");
}

/// Its first answer is taken late: another task has the thread for longer than the lease.
#[derive(Clone)]
struct Late {
    queue: MemoryQueue,
    is_late: Arc<AtomicBool>,
}

impl Source for Late {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        let answer = self.queue.receive_batch(request).await;
        if self.is_late.swap(false, Ordering::SeqCst) {
            tokio::spawn(async { std::thread::sleep(Duration::from_millis(400)) });
        }
        answer
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
        self.queue.extend_batch(receipts, lease).await
    }
}

/// A lease counts from its answer, not from when the worker got round to it: then it has ended, and somebody
/// else may have the message.
#[tokio::test]
async fn a_message_whose_lease_ended_before_it_was_taken_does_not_run() {
    let queue = queue(|_| {});
    push(&queue, "k", "1").await;
    let source = Late {
        queue: queue.clone(),
        is_late: Arc::new(AtomicBool::new(true)),
    };
    let (tell, mut told) = mpsc::unbounded_channel();
    let lease = Duration::from_millis(300);
    let worker = Worker::over(source).lease(lease).start(move |job: Job| {
        tell.send(job.attempt()).unwrap();
        async { Ok(()) }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert!(told.recv().await.unwrap() >= 2);
    assert!(ended.counts.lost >= 1, "{ended:?}");
}

/// It may have waited for a thread for so long that its lease is somebody else's.
#[test]
fn a_blocking_handler_does_not_begin_when_its_run_is_cancelled() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let queue = queue(|_| {});
        for body in ["1", "2"] {
            push(&queue, body, body).await;
        }
        let (begun, mut began) = mpsc::unbounded_channel();
        let handler = handler::blocking(move |job: Job| {
            begun.send(job.context().why_cancelled()).unwrap();
            while job.context().why_cancelled().is_none() {
                std::thread::yield_now();
            }
            // Both are cancelled in one turn of the worker's task, which may be at the second by now.
            std::thread::sleep(Duration::from_millis(200));
            Ok(())
        });
        let worker = Worker::over(queue.clone()).start(handler).unwrap();
        assert_eq!(began.recv().await.unwrap(), None);
        // Both run as far as the worker knows; one waits for the only thread.
        while worker.state().await.unwrap().running < 2 {
            tokio::task::yield_now().await;
        }
        let ended = worker.drain(Duration::ZERO).await;
        assert_eq!((ended.counts.acknowledged, ended.counts.given_back), (1, 1));
        assert!(began.recv().await.is_none());
    });
}

#[tokio::test]
async fn a_cancelled_run_starts_no_further_message() {
    let queue = queue(|_| {});
    push(&queue, "k", "1").await;
    push(&queue, "k", "2").await;
    let (begun, mut began) = mpsc::unbounded_channel();
    let builder = Worker::over(queue.clone()).run_max(2);
    let worker = builder.cancel_grace(Duration::MAX).start(move |job: Job| {
        begun.send(text(&job)).unwrap();
        async move {
            job.context().cancelled().await;
            Ok(())
        }
    });
    assert_eq!(began.recv().await.unwrap(), "1");
    let ended = worker.unwrap().drain(Duration::ZERO).await;
    assert_eq!((ended.counts.acknowledged, ended.counts.given_back), (1, 1));
    assert!(began.recv().await.is_none());
}

#[tokio::test]
async fn a_function_that_panics_stops_no_worker() {
    let queue = queue(|_| {});
    push(&queue, "k", "bad").await;
    push(&queue, "l", "good").await;
    let builder = Worker::over(queue.clone()).fair_by(|message| {
        assert_ne!(message.body, "bad");
        None
    });
    let worker = builder.start(|_: Job| async { Ok(()) });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!(ended.counts.acknowledged, 2);
}

/// Tells when it is asked, and for how many messages, and answers at once, with nothing, so many times.
struct Hasty {
    queue: MemoryQueue,
    answers: AtomicUsize,
    asked: mpsc::UnboundedSender<(usize, tokio::time::Instant)>,
}

impl Source for Hasty {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        let _ = self.asked.send((request.max, tokio::time::Instant::now()));
        let left = (self.answers).try_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        if left.is_err() {
            std::future::pending::<()>().await;
        }
        Ok(Vec::new())
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
        self.queue.extend_batch(receipts, lease).await
    }
}

/// A server that is drained may answer so. The waits are at least so long, and may be longer.
#[tokio::test]
async fn a_source_that_does_not_wait_is_asked_less_and_less_often() {
    let (asked, mut times) = mpsc::unbounded_channel();
    let source = Hasty {
        queue: queue(|_| {}),
        answers: AtomicUsize::new(3),
        asked,
    };
    let worker = Worker::over(source).start(|_: Job| async { Ok(()) });
    let (_, mut before) = times.recv().await.unwrap();
    for least in [50, 100, 200] {
        let (_, at) = times.recv().await.unwrap();
        assert!(at - before >= Duration::from_millis(least), "{least}");
        before = at;
    }
    drop(worker);
}

/// It is a default that depends on what runs, and what is asked for is not.
#[tokio::test]
async fn as_many_are_held_as_the_user_says() {
    for (held_max, wanted) in [(Some(256), 256), (None, 400)] {
        let (asked, mut times) = mpsc::unbounded_channel();
        let source = Hasty {
            queue: queue(|_| {}),
            answers: AtomicUsize::new(0),
            asked,
        };
        assert!(source.source_capabilities().receive_max >= 400);
        let mut builder = Worker::over(source).concurrency(100);
        if let Some(messages) = held_max {
            builder = builder.held_max(messages);
        }
        let worker = builder.start(|_: Job| async { Ok(()) });
        assert_eq!(times.recv().await.unwrap().0, wanted);
        drop(worker);
    }
}

/// Nobody can stop it, but it can find out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_handler_learns_that_its_worker_was_dropped() {
    let queue = queue(|_| {});
    push(&queue, "k", "1").await;
    let gives_up = Arc::new(AtomicBool::new(false));
    let (tell, mut told) = mpsc::unbounded_channel();
    let over = gives_up.clone();
    let handler = handler::blocking(move |job: Job| {
        tell.send(None).unwrap();
        let context = job.context();
        while context.why_cancelled().is_none() && !over.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        tell.send(context.why_cancelled()).unwrap();
        Ok(())
    });
    let worker = Worker::over(queue).start(handler).unwrap();
    assert_eq!(told.recv().await, Some(None));
    drop(worker);
    let why = tokio::time::timeout(SOON, told.recv()).await;
    gives_up.store(true, Ordering::SeqCst);
    assert_eq!(why, Ok(Some(Some(Cancelled::Dropped))));
}

/// The queue takes acknowledgements of a key in their order only.
#[tokio::test]
async fn without_order_no_message_of_a_key_runs_twice() {
    let queue = queue(|_| {});
    for number in 0..20 {
        push(&queue, "k", &number.to_string()).await;
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let builder = Worker::over(queue.clone()).order(Order::Unordered);
    let worker = builder.start(move |job: Job| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            // Later ones end first.
            let number: usize = text(&job).parse()?;
            for _ in 0..100 * (20 - number) {
                tokio::task::yield_now().await;
            }
            Ok(())
        }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    let counts = (ended.counts.acknowledged, ended.counts.lost);
    assert_eq!((runs.load(Ordering::SeqCst), counts), (20, (20, 0)));
}
