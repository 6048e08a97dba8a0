//! Queues that share their nodes with Curator's.

use std::{
    collections::BTreeSet,
    io::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockgate_zookeeper::{
    ZookeeperOptions,
    queue::{CuratorQueue, CuratorQueueError, CuratorQueueOptions, Kind, Place, Taking},
};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::{
    curator::{Java, NEWEST, OLD},
    faults, server,
};

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

async fn both_ways(name: &str, curator: &str, taking: Taking) {
    let lock = match &taking {
        Taking::LockSafe(path) => path.clone(),
        Taking::AtMostOnce => "-".to_owned(),
    };
    let url = server::shared();
    let path = format!("/queues/{name}");
    let java = |kind: &str, role: &str| {
        let arguments = [&path, &lock, kind, role].map(|argument: &str| argument.to_owned());
        Java::runs_with(
            curator,
            &url,
            "Queue",
            &arguments.each_ref().map(String::as_str),
        )
    };
    let queue = open(options(name, Kind::Delay, taking)).await.unwrap();
    let mut producer = java("delay", "producer");
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
    let mut consumer = java("delay", "consumer");
    consumer.says("started").await;
    queue.put(Place::At(1), &["z"]).await.unwrap();
    let due = now() + 100;
    queue.put(Place::At(due), &["x", "y"]).await.unwrap();
    for text in ["z", "x", "y"] {
        consumer.says(&format!("took {text}")).await;
    }
    assert!(now() >= due);
}

#[tokio::test(flavor = "multi_thread")]
async fn both_languages_put_and_take_with_locks() {
    both_ways("locked", NEWEST, locks("locked")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_languages_put_and_take_at_most_once() {
    both_ways("once", NEWEST, Taking::AtMostOnce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_put_and_take_with_locks() {
    both_ways("locked-old", OLD, locks("locked-old")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_put_and_take_at_most_once() {
    both_ways("once-old", OLD, Taking::AtMostOnce).await;
}

/// Java puts and Rust takes in the order of the kind, then the other way round. Then Java fails, and puts again.
async fn in_order(
    java_kind: &str,
    kind: Kind,
    place: impl Fn(i32) -> Place<'static>,
    order: [i32; 3],
) {
    let name = format!("order-{java_kind}");
    let (path, lock) = (format!("/queues/{name}"), format!("/queues/{name}-locks"));
    let queue = open(options(&name, kind, locks(&name))).await.unwrap();
    let mut producer = Java::runs("Queue", &[&path, &lock, java_kind, "producer"]);
    producer.says("started").await;
    let mut stdin = producer.child.stdin.take().unwrap();
    for number in [3, -7, 2] {
        writeln!(stdin, "{number} {number}").unwrap();
        producer.says(&format!("put {number}")).await;
    }
    for number in order {
        let taken = queue.take().await.unwrap();
        assert_eq!(taken.items, [number.to_string().as_bytes()]);
        if kind == Kind::Id {
            assert!(
                taken.name.starts_with(&format!("queue-|id_{number}|")),
                "{}",
                taken.name
            );
        }
        taken.done().await.unwrap();
    }
    for number in [3, -7, 2] {
        queue
            .put(place(number), &[number.to_string()])
            .await
            .unwrap();
    }
    let mut consumer = Java::runs("Queue", &[&path, &lock, java_kind, "failing"]);
    let mut taken = Vec::new();
    while taken.len() < 6 {
        let said = consumer.said().await;
        taken.extend(
            said.strip_prefix("took ")
                .map(|text| text.parse::<i32>().unwrap()),
        );
    }
    // What Curator puts again comes ahead of all priorities.
    let mut seen = BTreeSet::new();
    let first = taken.iter().filter(|number| seen.insert(**number));
    assert!(first.eq(&order));
    taken.sort_unstable();
    assert_eq!(taken, [-7, -7, 2, 2, 3, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_queues_of_both_have_one_order() {
    in_order("plain", Kind::Plain, |_| Place::End, [3, -7, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn priority_queues_of_both_have_one_order() {
    in_order("priority", Kind::Priority, Place::Priority, [-7, 2, 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn id_queues_of_both_have_one_order() {
    let id = |number| {
        Place::Id(match number {
            3 => "id/3",
            2 => "id/2",
            _ => "id/-7",
        })
    };
    in_order("id", Kind::Id, id, [3, -7, 2]).await;
}

/// What a Java program holds is nobody else's, postpones nothing, and comes again when it was killed.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_java_program_held_comes_again() {
    let queue = open(options("killed", Kind::Delay, locks("killed")))
        .await
        .unwrap();
    queue.put(Place::At(1), &["held"]).await.unwrap();
    let arguments = ["/queues/killed", "/queues/killed-locks", "delay", "holder"];
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
