//! Queues that share their nodes with Curator's.

use std::{
    io::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockgate_zookeeper::{
    ZookeeperOptions,
    queue::{CuratorQueue, CuratorQueueError, CuratorQueueOptions, Kind, Place, Taking},
};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{curator::Java, faults, server};

pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

pub(crate) fn options(name: &str, kind: Kind, taking: Taking) -> CuratorQueueOptions {
    CuratorQueueOptions {
        taking: Some(taking),
        session_timeout: Duration::from_secs(4),
        backoff: Duration::from_millis(1),
        dead_letters: Some(format!("/queues/{name}-dead")),
        ..CuratorQueueOptions::new(&format!("/queues/{name}"), kind)
    }
}

pub(crate) fn locks(name: &str) -> Taking {
    Taking::LockSafe(format!("/queues/{name}-locks"))
}

async fn open(options: CuratorQueueOptions) -> Result<CuratorQueue, CuratorQueueError> {
    open_at(&server::shared(), options).await
}

pub(crate) async fn open_at(
    url: &str,
    options: CuratorQueueOptions,
) -> Result<CuratorQueue, CuratorQueueError> {
    let server = ZookeeperOptions::parse(url).unwrap();
    CuratorQueue::open(&server, options).await
}

pub(crate) async fn children(client: &Client, path: &str) -> Vec<String> {
    client.list_children(path).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_opens_a_queue_without_a_choice() {
    let error = open(CuratorQueueOptions::new("/queues/none", Kind::Delay));
    let told = error.await.unwrap_err().to_string();
    assert!(
        told.contains("lock-safe") && told.contains("at most once"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn items_come_when_they_are_due_and_go_when_they_are_done() {
    let queue = open(options("due", Kind::Delay, locks("due")))
        .await
        .unwrap();
    let due = now() + 300;
    queue
        .put(Place::At(due), &["late", "", "both"])
        .await
        .unwrap();
    queue.put(Place::At(1), &["early"]).await.unwrap();
    let first = queue.take().await.unwrap();
    assert_eq!(first.items, [b"early"]);
    let client = faults::client().await;
    assert_eq!(
        children(&client, "/queues/due-locks").await,
        std::slice::from_ref(&first.name)
    );
    first.done().await.unwrap();
    let second = queue.take().await.unwrap();
    assert!(now() >= due);
    assert_eq!(second.items, [&b"late"[..], b"", b"both"]);
    second.done().await.unwrap();
    assert!(children(&client, "/queues/due").await.is_empty());
    assert!(children(&client, "/queues/due-locks").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_fails_too_often_and_one_that_cannot_be_read_are_dead_letters() {
    let queue = open(options("fails", Kind::Priority, locks("fails")))
        .await
        .unwrap();
    let client = faults::client().await;
    let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client
        .create("/queues/fails/queue-000000000damaged", b"?", &mode)
        .await
        .unwrap();
    queue.put(Place::Priority(7), &["x"]).await.unwrap();
    for attempts in 0..3 {
        let taken = queue.take().await.unwrap();
        assert_eq!(taken.attempts, attempts);
        assert!(taken.name.starts_with("queue-100000007"), "{}", taken.name);
        taken.failed().await.unwrap();
    }
    assert!(children(&client, "/queues/fails").await.is_empty());
    assert_eq!(children(&client, "/queues/fails-dead").await.len(), 2);
}

/// Curator deletes a lock whosever it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_lock_another_one_has_finishes_nothing() {
    let queue = open(options("stolen", Kind::Plain, locks("stolen")))
        .await
        .unwrap();
    queue.put(Place::End, &["x"]).await.unwrap();
    let taken = queue.take().await.unwrap();
    let client = faults::client().await;
    let lock = format!("/queues/stolen-locks/{}", taken.name);
    client.delete(&lock, None).await.unwrap();
    let mode = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.create(&lock, b"java", &mode).await.unwrap();
    let error = taken.done().await.unwrap_err();
    assert!(matches!(error, CuratorQueueError::NotHeld), "{error}");
    assert_eq!(children(&client, "/queues/stolen").await.len(), 1);
    assert_eq!(children(&client, "/queues/stolen-locks").await.len(), 1);
}

async fn both_ways(name: &str, taking: Taking) {
    let lock = match &taking {
        Taking::LockSafe(path) => path.clone(),
        Taking::AtMostOnce => "-".to_owned(),
    };
    let queue = open(options(name, Kind::Delay, taking)).await.unwrap();
    let path = format!("/queues/{name}");
    let mut producer = Java::runs("Queue", &[&path, &lock, "producer"]);
    producer.says("started").await;
    let mut stdin = producer.child.stdin.take().unwrap();
    for (delay, text) in [(200, "b"), (1, "a")] {
        let due = now() + delay;
        writeln!(stdin, "{delay} {text}").unwrap();
        producer.says(&format!("put {text}")).await;
        let taken = queue.take().await.unwrap();
        assert!(now() >= due);
        assert_eq!(taken.items, [text.as_bytes()]);
        taken.done().await.unwrap();
    }
    let mut consumer = Java::runs("Queue", &[&path, &lock, "consumer"]);
    consumer.says("started").await;
    queue.put(Place::At(1), &["z"]).await.unwrap();
    queue
        .put(Place::At(now() + 100), &["x", "y"])
        .await
        .unwrap();
    for text in ["z", "x", "y"] {
        consumer.says(&format!("took {text}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_languages_put_and_take_with_locks() {
    both_ways("locked", locks("locked")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_languages_put_and_take_at_most_once() {
    both_ways("once", Taking::AtMostOnce).await;
}

/// What a Java program holds is nobody else's, postpones nothing, and comes again when it was killed.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_java_program_held_comes_again() {
    let queue = open(options("killed", Kind::Delay, locks("killed")))
        .await
        .unwrap();
    queue.put(Place::At(1), &["held"]).await.unwrap();
    let arguments = ["/queues/killed", "/queues/killed-locks", "holder"];
    let mut java = Java::runs("Queue", &arguments);
    // It may take an item before it says that it has started.
    let said = [java.said().await, java.said().await];
    assert!(said.contains(&"took held".to_owned()), "{said:?}");
    for text in ["b", "c"] {
        queue.put(Place::At(now()), &[text]).await.unwrap();
        let taken = queue.take().await.unwrap();
        assert_eq!(taken.items, [text.as_bytes()]);
        taken.done().await.unwrap();
    }
    java.child.kill().unwrap();
    let taken = queue.take().await.unwrap();
    assert_eq!(taken.items, [b"held"]);
    taken.done().await.unwrap();
    assert!(
        children(&faults::client().await, "/queues/killed")
            .await
            .is_empty()
    );
}
