//! States of keys: in transactions, and in workers.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use lockgate::{
    Bytes, KeyProfile, KeyState, KeyStateWrite, RecordVersion, Rejection, Replaces,
    consumer::{
        Backoff, Failure, Job, MemoryOptions, MemoryQueue, Order, StartError, StateError, Worker,
        handler,
    },
};
use tokio::sync::{Notify, mpsc};

use super::*;

fn write(replaces: Option<u64>, value: &str) -> KeyStateWrite {
    KeyStateWrite {
        replaces: Replaces::Version(replaces.map(RecordVersion)),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
    }
}

async fn state(queue: &Queue, key: &str) -> Option<KeyState> {
    queue.key_state(Key::new(key).unwrap()).await.unwrap()
}

async fn text(queue: &Queue, key: &str) -> String {
    let state = state(queue, key).await;
    state.map_or_else(String::new, |state| {
        String::from_utf8(state.value.to_vec()).unwrap()
    })
}

/// No wait after failures.
fn at_once() -> Backoff {
    Backoff { first: 0, max: 0 }
}

#[tokio::test]
async fn a_transaction_writes_it_and_a_restart_keeps_it() {
    let (folder, lockgate) = open().await;
    let queue = lockgate.queue("q").keyed().create().await.unwrap();
    for body in ["1", "2"] {
        queue.send(keyed(body, "a")).await.unwrap();
    }
    let first = take(&queue, 1).await.remove(0);
    assert_eq!(first.state(), None);
    // The lease goes on.
    let half = lockgate.transact().write_state(&first, write(None, "half"));
    let done = half.commit().await.unwrap();
    assert_eq!(done.states, [Some(RecordVersion(1))]);
    let refused = lockgate.transact().ack_with_state(first, write(None, "x"));
    let refused = refused.commit().await.unwrap_err();
    let conflict = lockgate::EngineError::Rejected(Rejection::KeyStateConflict {
        queue: queue.name().clone(),
        key: Key::new("a").unwrap(),
        version: Some(RecordVersion(1)),
    });
    assert_eq!(refused.source.to_string(), conflict.to_string());
    let mut deliveries = refused.deliveries;
    let first = deliveries.remove(0);
    let whole = lockgate
        .transact()
        .ack_with_state(first, write(Some(1), "whole"));
    whole.send(&queue, keyed("3", "b")).commit().await.unwrap();
    lockgate.shutdown().await;

    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let queue = lockgate.queue("q").keyed().create().await.unwrap();
    let second = take(&queue, 1).await.remove(0);
    assert_eq!(second.body(), "2");
    let shown = second.state().unwrap();
    assert_eq!(
        (&shown.value[..], shown.version),
        (&b"whole"[..], RecordVersion(2))
    );
    let page = queue.key_states("", None, 10).await.unwrap();
    let listed = page
        .states
        .iter()
        .map(|(key, state)| (key.as_str(), state.bytes));
    assert_eq!(
        (listed.collect::<Vec<_>>(), page.next),
        (vec![("a", 5)], None)
    );
    let drop = KeyStateWrite {
        replaces: Replaces::Any,
        value: None,
    };
    let key = Key::new("a").unwrap();
    assert_eq!(queue.set_key_state(key, drop).await.unwrap(), None);
    assert_eq!(state(&queue, "a").await, None);
    lockgate.shutdown().await;
}

/// Each message adds to the state of its key; some fail now and then after they have set it, and count once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_keeps_a_sum_for_each_key() {
    for (profile, run_max) in [
        (KeyProfile::Strict, 1),
        (KeyProfile::Strict, 4),
        (KeyProfile::Sqs, 1),
    ] {
        let (_folder, lockgate) = open().await;
        let jobs = lockgate.queue("jobs").keyed().key_profile(profile);
        let jobs = jobs.create().await.unwrap();
        const COUNT: u64 = 120;
        for number in 0..COUNT {
            let key = format!("k{}", number % 3);
            jobs.send(keyed(&number.to_string(), &key)).await.unwrap();
        }
        let (tell, mut told) = mpsc::unbounded_channel();
        let builder = Worker::over(jobs.clone())
            .run_max(run_max)
            .backoff(at_once());
        let worker = builder.key_states().start(move |job: Job| {
            let tell = tell.clone();
            async move {
                let number: u64 = std::str::from_utf8(job.body())?.parse()?;
                let (count, sum): (u64, u64) = job.state()?.unwrap_or_default();
                job.set_state(&(count + 1, sum + number))?;
                if number.is_multiple_of(7) && job.attempt() == 1 {
                    return Err("not yet".into());
                }
                let _ = tell.send(());
                Ok(())
            }
        });
        let worker = worker.unwrap();
        for _ in 0..COUNT {
            told.recv().await.unwrap();
        }
        let ended = worker.drain(LONG).await;
        assert_eq!((ended.left, ended.counts.lost), (0, 0), "{ended:?}");
        for key in 0..3 {
            let sum: u64 = (key..COUNT).step_by(3).sum();
            let expected = format!("[{},{sum}]", COUNT / 3);
            assert_eq!(
                text(&jobs, &format!("k{key}")).await,
                expected,
                "{profile:?}"
            );
        }
        lockgate.shutdown().await;
    }
}

/// A batch writes one state with the messages that succeeded.
#[tokio::test]
async fn a_batch_writes_the_state_of_its_prefix() {
    let (_folder, lockgate) = open().await;
    let jobs = lockgate
        .queue("jobs")
        .keyed()
        .key_profile(KeyProfile::Strict);
    let jobs = jobs.create().await.unwrap();
    for number in 1..=5 {
        jobs.send(keyed(&number.to_string(), "k")).await.unwrap();
    }
    let done = Arc::new(Notify::new());
    let (finished, runs) = (done.clone(), Arc::new(AtomicU32::new(0)));
    let builder = Worker::over(jobs.clone()).run_max(5).backoff(at_once());
    let handle = handler::batches(move |batch: lockgate::consumer::Batch| {
        let (done, run) = (finished.clone(), runs.fetch_add(1, Ordering::SeqCst));
        async move {
            for (at, job) in batch.jobs().iter().enumerate() {
                let mut seen: Vec<String> = job.state()?.unwrap_or_default();
                seen.push(String::from_utf8(job.body().to_vec())?);
                job.set_state(&seen)?;
                if run == 0 && at == 2 {
                    batch.context().succeeded(2);
                    return Err(Failure::from("the third fails"));
                }
            }
            done.notify_one();
            Ok(())
        }
    });
    let worker = builder.key_states().start(handle).unwrap();
    done.notified().await;
    let ended = worker.drain(LONG).await;
    assert_eq!(ended.counts.acknowledged, 5, "{ended:?}");
    assert_eq!(text(&jobs, "k").await, r#"["1","2","3","4","5"]"#);
    assert_eq!(state(&jobs, "k").await.unwrap().version, RecordVersion(2));
    lockgate.shutdown().await;
}

/// An operator writes the state while a handler runs: what the handler sets is not written, and the message comes again
/// with what the operator wrote.
#[tokio::test]
async fn a_write_of_another_version_counts_as_lost() {
    let (_folder, lockgate) = open().await;
    let jobs = lockgate.queue("jobs").keyed().create().await.unwrap();
    jobs.send(keyed("x", "k")).await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::<Option<String>>::new()));
    let done = Arc::new(Notify::new());
    let (all, finished, queue) = (seen.clone(), done.clone(), jobs.clone());
    let worker = Worker::over(jobs.clone())
        .key_states()
        .start(move |job: Job| {
            let (seen, done, queue) = (all.clone(), finished.clone(), queue.clone());
            async move {
                let state: Option<String> = job.state()?;
                job.set_state("the handler's")?;
                let is_first = state.is_none();
                seen.lock().unwrap().push(state);
                if is_first {
                    let key = job.key().unwrap().clone();
                    let write = write(None, "\"the operator's\"");
                    queue.set_key_state(key, write).await?;
                } else {
                    done.notify_one();
                }
                Ok(())
            }
        });
    let worker = worker.unwrap();
    done.notified().await;
    let ended = worker.drain(LONG).await;
    assert_eq!(
        (ended.counts.acknowledged, ended.counts.lost),
        (1, 1),
        "{ended:?}"
    );
    let expected = [None, Some("the operator's".to_owned())];
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(text(&jobs, "k").await, "\"the handler's\"");
    lockgate.shutdown().await;
}

#[tokio::test]
async fn what_is_no_such_state_is_a_failure_that_says_so() {
    let (_folder, lockgate) = open().await;
    let jobs = lockgate.queue("jobs").keyed().create().await.unwrap();
    let write = write(None, "{");
    jobs.set_key_state(Key::new("k").unwrap(), write)
        .await
        .unwrap();
    jobs.send(keyed("x", "k")).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = Worker::over(jobs.clone())
        .key_states()
        .start(move |job: Job| {
            let tell = tell.clone();
            async move {
                let read = job.state::<u32>();
                let large = job.set_state_bytes(vec![b'x'; lockgate::RECORD_BYTES_MAX + 1]);
                let _ = tell.send((read.unwrap_err(), large.unwrap_err()));
                // Bytes are there all the same.
                assert_eq!(job.state_bytes()?.unwrap(), "{");
                job.drop_state()?;
                assert_eq!(job.state_bytes()?, None);
                Ok(())
            }
        });
    let (read, large) = told.recv().await.unwrap();
    assert!(matches!(read, StateError::Read(_)), "{read}");
    assert!(matches!(large, StateError::TooLarge { .. }), "{large}");
    worker.unwrap().drain(LONG).await;
    assert_eq!(state(&jobs, "k").await, None);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_worker_without_states_says_why() {
    let (_folder, lockgate) = open().await;
    let keyed = lockgate.queue("keyed").keyed().create().await.unwrap();
    let plain = lockgate.queue("plain").create().await.unwrap();
    let memory = MemoryQueue::new(MemoryOptions::default()).unwrap();
    let cases = [
        (Worker::over(plain), "source 0 keeps no states"),
        (
            Worker::over(keyed.clone()).and(memory),
            "source 1 keeps no states",
        ),
        (Worker::over(keyed.clone()).at_most_once(), "at_most_once"),
        (Worker::over(keyed.clone()).order(Order::Unordered), "order"),
        (Worker::over(keyed.clone()).run_max(1_001), "run_max"),
    ];
    for (builder, says) in cases {
        let refused = builder.key_states().start(|_: Job| async { Ok(()) });
        let error = refused.unwrap_err();
        assert!(matches!(error, StartError::KeyStates { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    // Who has not asked for states has none.
    keyed.send(super::keyed("x", "k")).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = Worker::over(keyed).start(move |job: Job| {
        let _ = tell.send(job.set_state(&1).unwrap_err());
        async { Ok(()) }
    });
    let error = told.recv().await.unwrap();
    assert!(matches!(error, StateError::None), "{error}");
    worker.unwrap().drain(LONG).await;
    lockgate.shutdown().await;
}
