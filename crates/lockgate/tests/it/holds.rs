//! Holds of queues and keys, by those who use them and by workers.

use lockgate::{
    KeyWait,
    consumer::{Coalesce, Failure, Job, Worker, coalesce::Merge},
    limits::{HoldScope, Limit},
};
use tokio::sync::mpsc;

use super::*;

async fn wait_of(queue: &Queue, of: &str) -> KeyWait {
    let status = queue.explain(Key::new(of).unwrap()).await.unwrap();
    status.waits_for
}

#[tokio::test]
async fn a_queue_or_a_key_is_held_by_its_users_and_by_consumers() {
    let (_folder, lockgate) = open().await;
    let calls = lockgate.queue("calls").keyed().create().await.unwrap();
    for (body, key) in [("1", "a"), ("2", "a"), ("3", "b")] {
        calls.send(keyed(body, key)).await.unwrap();
    }
    let a = || Key::new("a").unwrap();
    let held = calls.hold_key(a(), LONG).await.unwrap();
    assert_eq!(held, Some(LONG));
    // A longer one stays.
    assert!(calls.hold_key(a(), Duration::from_millis(1)).await.unwrap() > Some(LONG / 2));
    let is_held = |wait: KeyWait, key| {
        matches!(
            wait,
            KeyWait::Limit { limit: Limit::Held, of_key, .. } if of_key == key
        )
    };
    assert!(is_held(wait_of(&calls, "a").await, true));
    let mut given = take(&calls, 10).await;
    assert_eq!(bodies(&given), ["3"]);
    assert_eq!(calls.hold_key(a(), Duration::ZERO).await.unwrap(), None);
    given.remove(0).hold(LONG, HoldScope::Key).await.unwrap();
    assert!(is_held(wait_of(&calls, "b").await, true));
    let mut given = take(&calls, 1).await;
    assert_eq!(bodies(&given), ["1"]);
    given.remove(0).hold(LONG, HoldScope::Queue).await.unwrap();
    assert!(is_held(wait_of(&calls, "a").await, false));
    assert!(take(&calls, 10).await.is_empty());
    calls.hold(Duration::ZERO).await.unwrap();
    assert_eq!(bodies(&take(&calls, 10).await), ["1", "2"]);
    let too_long = calls.hold(Duration::from_secs(367 * 86_400)).await;
    assert!(too_long.is_err());
    lockgate.shutdown().await;
}

/// For whoever receives from it, also without the worker.
#[tokio::test]
async fn what_a_worker_is_told_holds_the_queue_for_all() {
    let (_folder, lockgate) = open().await;
    for (name, failure) in [
        ("queue", Failure::hold as fn(Duration) -> Failure),
        ("group", Failure::hold_key),
    ] {
        let calls = lockgate.queue(name).create().await.unwrap();
        for (body, group) in [("1", "a"), ("2", "a"), ("3", "b")] {
            let mut message = Message::new(body);
            message.group = Some(Key::new(group).unwrap());
            calls.send(message).await.unwrap();
        }
        let (tell, mut told) = mpsc::unbounded_channel();
        let worker = Worker::over(calls.clone()).concurrency(1).held_max(1);
        let worker = worker.start(move |job: Job| {
            let (is_first, tell) = (&job.body()[..] == b"1", tell.clone());
            async move {
                let _ = tell.send(());
                match is_first {
                    true => Err(failure(LONG)),
                    false => std::future::pending().await,
                }
            }
        });
        told.recv().await.unwrap();
        if name == "group" {
            // The next one that runs is of the other group.
            told.recv().await.unwrap();
        }
        let ended = worker.unwrap().drain(Duration::ZERO).await;
        assert_eq!(ended.left, 0);
        let left = bodies(&take(&calls, 10).await).join(" ");
        assert_eq!(left, if name == "group" { "3" } else { "" });
    }
    lockgate.shutdown().await;
}

/// What waits of a group runs as one.
#[tokio::test]
async fn messages_of_a_group_are_coalesced_over_a_queue_without_keys() {
    let (_folder, lockgate) = open().await;
    let refreshes = lockgate.queue("refreshes").create().await.unwrap();
    let message = |body, group| {
        let mut message = Message::new(body);
        message.group = Some(Key::new(group).unwrap());
        message
    };
    let sent = [("1", "a"), ("2", "b"), ("3", "a"), ("4", "a")];
    let sent = sent.map(|(body, group)| message(body, group));
    refreshes.send_all(sent).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let coalesce = Coalesce::new(Merge::KeepLast).by(|message| message.group.clone());
    let worker = Worker::over(refreshes)
        .coalesce(coalesce)
        .start(move |job: Job| {
            let body = String::from_utf8(job.body().to_vec()).unwrap();
            let _ = tell.send((body, job.covers()));
            async { Ok(()) }
        });
    let mut runs = [told.recv().await.unwrap(), told.recv().await.unwrap()];
    runs.sort();
    assert_eq!(runs, [("2".to_owned(), 1), ("4".to_owned(), 3)]);
    let ended = worker.unwrap().drain(LONG).await;
    assert_eq!((ended.counts.acknowledged, ended.counts.covered), (4, 2));
    lockgate.shutdown().await;
}
