//! Timers run in the library; nobody need ask for them.

use std::time::Duration;

use lockgate::Message;

use crate::{LONG, open, take};

#[tokio::test]
async fn a_lease_that_ends_brings_the_message_to_who_waits() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    let short = Duration::from_millis(20);
    let first = queue.receive().lease(short).await.unwrap().remove(0);
    let again = queue.receive().wait(LONG).await.unwrap().remove(0);
    assert_eq!((again.id(), again.attempt()), (first.id(), 2));
    assert!(!first.is_current());
    first.ack().await.expect_err("somebody else has it");
    again.ack().await.unwrap();
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_delayed_message_comes_by_itself() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate
        .queue("q")
        .delay(Duration::from_millis(20))
        .create()
        .await
        .unwrap();
    queue.send(Message::new("a")).await.unwrap();
    assert_eq!(queue.receive().wait(LONG).await.unwrap().len(), 1);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_wait_ends_empty() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    let wait = Duration::from_millis(20);
    assert!(queue.receive().wait(wait).await.unwrap().is_empty());
    lockgate.shutdown().await;
}

#[tokio::test]
async fn what_is_kept_too_long_is_dropped() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    let mut message = Message::new("a");
    message.time_to_live = Some(1);
    queue.send(message).await.unwrap();
    loop {
        let description = queue.describe().await.unwrap();
        if description.totals.dropped.expired == 1 {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(take(&queue, 1).await.is_empty());
    lockgate.shutdown().await;
}
