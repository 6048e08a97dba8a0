//! Workers over embedded queues.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use lockgate::{
    DeadLetterReason, KeyPolicy, KeyProfile,
    consumer::{Backoff, Failure, Job, Order, Worker, WorkerBuilder},
};
use tokio::sync::mpsc;

use super::*;

type Seen = Arc<Mutex<BTreeMap<String, Vec<u32>>>>;

fn note(seen: &Seen, job: &Job) -> u32 {
    let number: u32 = std::str::from_utf8(job.body()).unwrap().parse().unwrap();
    let key = job.key().unwrap().as_str().to_owned();
    let mut seen = seen.lock().unwrap();
    seen.entry(key).or_default().push(number);
    number
}

/// Whatever the profile, with a poisoned message in one key and two workers: every other message is handled
/// once and in order, and the poisoned one is a dead letter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_share_keys_and_a_poisoned_message_stops_nobody() {
    for profile in [KeyProfile::Sqs, KeyProfile::Strict] {
        let (_folder, lockgate) = open().await;
        let dead = lockgate.queue("dead").keyed().create().await.unwrap();
        let jobs = lockgate.queue("jobs").keyed().key_profile(profile);
        let jobs = jobs
            .dead_letter("dead")
            .attempts_max(2)
            .create()
            .await
            .unwrap();
        const COUNT: u32 = 400;
        for number in 0..COUNT {
            let key = format!("k{}", number % 8);
            jobs.send(keyed(&number.to_string(), &key)).await.unwrap();
        }
        let seen = Seen::default();
        let (tell, mut told) = mpsc::unbounded_channel();
        let start = |run_max| {
            let (seen, tell) = (seen.clone(), tell.clone());
            let backoff = Backoff { first: 1, max: 1 };
            let builder = Worker::over(jobs.clone()).run_max(run_max).backoff(backoff);
            let worker = builder.start(move |job: Job| {
                let number = note(&seen, &job);
                let tell = tell.clone();
                async move {
                    if number == 42 {
                        return Err("it is poisoned".into());
                    }
                    let _ = tell.send(number);
                    Ok(())
                }
            });
            worker.unwrap()
        };
        let workers = [start(1), start(4)];
        for _ in 0..COUNT - 1 {
            told.recv().await.unwrap();
        }
        for worker in workers {
            let ended = worker.drain(LONG).await;
            assert_eq!((ended.left, ended.counts.lost), (0, 0), "{ended:?}");
        }
        for (key, numbers) in &*seen.lock().unwrap() {
            let first: u32 = key[1..].parse().unwrap();
            let mut expected: Vec<u32> = (first..COUNT).step_by(8).collect();
            if key == "k2" {
                // Its second attempt.
                expected.insert(6, 42);
            }
            assert_eq!(numbers, &expected, "{key}, {profile:?}");
        }
        let letters = take(&dead, 10).await;
        assert_eq!(bodies(&letters), ["42"]);
        let reason = &letters[0].origin().unwrap().reason;
        assert!(
            matches!(reason, DeadLetterReason::Attempts { attempts: 2 }),
            "{reason:?}"
        );
        assert!(take(&jobs, 1).await.is_empty());
        lockgate.shutdown().await;
    }
}

/// A worker's failures park 9,999 keys of 10,000; the last one flows as if they were not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parked_keys_cost_the_others_nothing() {
    let (_folder, lockgate) = open().await;
    let jobs = lockgate
        .queue("jobs")
        .keyed()
        .level(lockgate::Level::Memory);
    let jobs = jobs
        .key_policy(KeyPolicy::Park)
        .attempts_max(1)
        .create()
        .await
        .unwrap();
    for key in 0..10_000 {
        jobs.send(keyed("0", &key.to_string())).await.unwrap();
    }
    let failures = Arc::new(AtomicUsize::new(0));
    let (tell, mut told) = mpsc::unbounded_channel();
    let failed = failures.clone();
    let worker = Worker::over(jobs.clone())
        .concurrency(64)
        .start(move |job: Job| {
            let (tell, failed) = (tell.clone(), failed.clone());
            async move {
                if job.key().unwrap().as_str() != "7777" {
                    failed.fetch_add(1, Ordering::SeqCst);
                    let _ = tell.send(None);
                    return Err(Failure::retry("no", Some(Duration::ZERO)));
                }
                let _ = tell.send(Some(job.body().clone()));
                Ok(())
            }
        });
    for _ in 0..10_000 {
        told.recv().await.unwrap();
    }
    for number in 1..=100 {
        jobs.send(keyed(&number.to_string(), "7777")).await.unwrap();
        assert_eq!(told.recv().await.unwrap().unwrap(), number.to_string());
    }
    assert_eq!(failures.load(Ordering::SeqCst), 9_999);
    worker.unwrap().drain(LONG).await;
    let parked = jobs.keys().parked().max(1_000).await.unwrap();
    assert_eq!(parked.keys.len(), 1_000);
    lockgate.shutdown().await;
}

/// What a worker that is dropped had in its hands comes again.
#[tokio::test]
async fn a_worker_that_is_dropped_loses_nothing() {
    let (_folder, lockgate) = open().await;
    let jobs = lockgate.queue("jobs").keyed().create().await.unwrap();
    for number in 0..10 {
        jobs.send(keyed(&number.to_string(), "k")).await.unwrap();
    }
    let (tell, mut told) = mpsc::unbounded_channel();
    let lease = Duration::from_millis(200);
    let first = Worker::over(jobs.clone())
        .lease(lease)
        .start(move |job: Job| {
            let _ = tell.send(job.body().clone());
            std::future::pending::<Result<(), Failure>>()
        });
    assert_eq!(told.recv().await.unwrap(), "0");
    drop(first.unwrap());
    let seen = Seen::default();
    let (all, (tell, mut told)) = (seen.clone(), mpsc::unbounded_channel());
    let second = Worker::over(jobs.clone()).start(move |job: Job| {
        note(&all, &job);
        let _ = tell.send(());
        async { Ok(()) }
    });
    for _ in 0..10 {
        told.recv().await.unwrap();
    }
    second.unwrap().drain(LONG).await;
    assert_eq!(seen.lock().unwrap()["k"], (0..10).collect::<Vec<_>>());
    lockgate.shutdown().await;
}

/// The example proves what it promises. `cargo test` builds it.
#[test]
fn the_orders_of_the_example_are_proven() {
    let test = std::env::current_exe().unwrap();
    let example = test.ancestors().nth(2).unwrap().join("examples/orders");
    let done = std::process::Command::new(&example).output();
    let done = done.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    assert!(done.status.success(), "{done:?}");
}

/// What a worker's handler returned each time, for whoever looks at the dead letter.
#[tokio::test]
async fn the_error_of_every_attempt_is_in_the_dead_letter() {
    let (folder, lockgate) = open().await;
    for keyed in [true, false] {
        let [dead, jobs] = ["dead", "jobs"].map(|what| format!("{what}-{keyed}"));
        let of_kind = |name: &str| {
            let queue = lockgate.queue(name);
            if keyed { queue.keyed() } else { queue }
        };
        let jobs = of_kind(&jobs).dead_letter(&dead).attempts_max(3);
        let dead = of_kind(&dead).create().await.unwrap();
        let jobs = jobs.create().await.unwrap();
        let message = Message::new("order");
        let message = match keyed {
            true => message.with_key(Key::new("k").unwrap()),
            false => message,
        };
        jobs.send(message).await.unwrap();
        let builder = Worker::over(jobs).backoff(Backoff { first: 1, max: 1 });
        let worker = builder.start(|job: Job| async move {
            Err(format!("no stock, looked {} times", job.attempt()).into())
        });
        let letter = dead.receive().wait(LONG).await.unwrap().remove(0);
        let failures = letter.failures().unwrap();
        let kept = failures.kept().iter();
        let kept: Vec<_> = kept
            .map(|one| (one.attempt, one.error.to_string()))
            .collect();
        let looked = |times| (times, format!("no stock, looked {times} times"));
        assert_eq!(kept, [looked(1), looked(2), looked(3)]);
        assert_eq!(failures.left_out(), 0);
        letter.give_back().await.unwrap();
        worker.unwrap().drain(LONG).await;
    }
    lockgate.shutdown().await;

    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let dead = lockgate.queue("dead-true").keyed().create().await.unwrap();
    let page = dead.peek().await.unwrap();
    let failures = page.messages[0].status.failures.as_deref().unwrap();
    assert_eq!(failures.kept().len(), 3);
    lockgate.shutdown().await;
}

/// Such a queue takes acknowledgements of a key in their order only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_order_no_message_of_a_strict_queue_runs_twice() {
    const COUNT: u32 = 20;
    let (_folder, lockgate) = open().await;
    let jobs = lockgate.queue("jobs").keyed();
    let jobs = jobs.key_profile(KeyProfile::Strict).create().await.unwrap();
    for number in 0..COUNT {
        jobs.send(keyed(&number.to_string(), "k")).await.unwrap();
    }
    let seen = Seen::default();
    let (tell, mut told) = mpsc::unbounded_channel();
    let noted = seen.clone();
    let builder = Worker::over(jobs.clone()).order(Order::Unordered);
    let worker = builder.start(move |job: Job| {
        let (number, tell) = (note(&noted, &job), tell.clone());
        async move {
            // Later ones end first.
            for _ in 0..100 * (COUNT - number) {
                tokio::task::yield_now().await;
            }
            let _ = tell.send(());
            Ok(())
        }
    });
    for _ in 0..COUNT {
        told.recv().await.unwrap();
    }
    let ended = worker.unwrap().drain(LONG).await;
    let counts = (ended.counts.acknowledged, ended.counts.lost);
    assert_eq!((counts, ended.left), ((COUNT.into(), 0), 0), "{ended:?}");
    assert_eq!(seen.lock().unwrap()["k"].len(), COUNT as usize);
    lockgate.shutdown().await;
}

fn urgent(body: &'static str, priority: u8) -> Message {
    Message::new(body).with_priority(priority)
}

/// Handles what the queue holds, one after the other, until `count` bodies are there.
async fn order_of(builder: WorkerBuilder, count: usize) -> Vec<String> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = builder.concurrency(1).start(move |job: Job| {
        let body = String::from_utf8(job.body().to_vec()).unwrap();
        let _ = tell.send(body);
        async { Ok(()) }
    });
    let mut bodies = Vec::new();
    while bodies.len() < count {
        bodies.push(told.recv().await.unwrap());
    }
    worker.unwrap().drain(LONG).await;
    bodies
}

#[tokio::test]
async fn a_worker_runs_by_the_priorities_of_messages_or_of_its_own_function() {
    let (_folder, lockgate) = open().await;
    let jobs = lockgate.queue("jobs").create().await.unwrap();
    let sent = [("a", 0), ("b", 4), ("c", 9), ("d", 4)];
    let send = || jobs.send_all(sent.map(|(body, priority)| urgent(body, priority)));
    send().await.unwrap();
    // The queue itself keeps the order of acceptance.
    let held = take(&jobs, 10).await;
    assert_eq!(bodies(&held), ["a", "b", "c", "d"]);
    for delivery in held {
        delivery.give_back().await.unwrap();
    }
    // Hours: nothing rises while the test runs.
    let builder = || Worker::over(jobs.clone()).aging(24 * LONG);
    assert_eq!(order_of(builder(), 4).await, ["c", "b", "d", "a"]);
    send().await.unwrap();
    let opposite = builder().priority_by(|message| 9 - message.priority);
    assert_eq!(order_of(opposite, 4).await, ["a", "b", "d", "c"]);

    // Within a key the order counts.
    let keys = lockgate.queue("keys").keyed().create().await.unwrap();
    let of_key = |(body, priority)| keyed(body, "k").with_priority(priority);
    keys.send_all(sent.map(of_key)).await.unwrap();
    let builder = Worker::over(keys);
    assert_eq!(order_of(builder, 4).await, ["a", "b", "c", "d"]);
    lockgate.shutdown().await;
}

/// As long as it waits, each urgent message that is handled brings another one.
#[tokio::test]
async fn urgent_messages_come_first_and_starve_nobody() {
    let (_folder, lockgate) = open().await;
    let jobs = lockgate.queue("jobs").level(lockgate::Level::Memory);
    let jobs = jobs.create().await.unwrap();
    let mut messages = vec![urgent("low", 0)];
    messages.extend((0..8).map(|_| urgent("high", 9)));
    jobs.send_all(messages).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let more = jobs.clone();
    let builder = Worker::over(jobs).concurrency(1);
    let builder = builder.aging(Duration::from_millis(1));
    let worker = builder.start(move |job: Job| {
        let (tell, more) = (tell.clone(), more.clone());
        async move {
            let low = job.body() == "low";
            if !low {
                more.send(urgent("high", 9)).await?;
            }
            let _ = tell.send(low);
            Ok(())
        }
    });
    let mut before = 0;
    while !told.recv().await.unwrap() {
        before += 1;
        assert!(before < 100_000, "it starves");
    }
    assert!(before > 0, "the urgent ones come first");
    worker.unwrap().drain(LONG).await;
    lockgate.shutdown().await;
}
