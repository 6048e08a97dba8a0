//! What is there again when the folder is opened again.

use lockgate::{Key, Level, Lockgate, Message};

use crate::{LONG, bodies, keyed, open, take, unique};

#[tokio::test]
async fn every_level_survives_a_shutdown() {
    let (folder, lockgate) = open().await;
    for level in [Level::Memory, Level::Process, Level::Disk] {
        let queue = lockgate
            .queue(level.name())
            .level(level)
            .create()
            .await
            .unwrap();
        queue.send(Message::new(level.name())).await.unwrap();
    }
    lockgate.shutdown().await;

    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let report = lockgate.start_report();
    assert_eq!((report.queues, report.messages), (3, 3));
    assert!(report.is_clean() && !report.crashed);
    assert_eq!(report.possibly_lost, 0);
    for queue in lockgate.queues() {
        let deliveries = take(&queue, 10).await;
        assert_eq!(bodies(&deliveries), [queue.name().as_str()]);
    }
    lockgate.shutdown().await;
}

#[tokio::test]
async fn what_was_dropped_without_a_shutdown_is_there_too() {
    let (folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    drop((queue, lockgate));
    // The folder is given free in the background.
    let lockgate = loop {
        match Lockgate::open(folder.path()).await {
            Ok(lockgate) => break lockgate,
            Err(_in_use) => tokio::task::yield_now().await,
        }
    };
    let queue = lockgate.queue("q").open().unwrap();
    assert_eq!(bodies(&take(&queue, 1).await), ["a"]);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn an_acknowledged_message_is_gone_and_a_leased_one_is_not_given_twice() {
    let (folder, lockgate) = open().await;
    let queue = lockgate.queue("q").lease(LONG).create().await.unwrap();
    for body in ["done", "held", "waiting"] {
        queue.send(Message::new(body)).await.unwrap();
    }
    let mut deliveries = take(&queue, 2).await;
    deliveries.remove(0).ack().await.unwrap();
    lockgate.shutdown().await;

    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let queue = lockgate.queue("q").open().unwrap();
    assert_eq!(bodies(&take(&queue, 10).await), ["waiting"]);
    assert_eq!(queue.describe().await.unwrap().counts.in_flight, 2);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_unique_id_is_remembered() {
    let (folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    let first = queue.send(unique("a", "order-1")).await.unwrap();
    lockgate.shutdown().await;

    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let queue = lockgate.queue("q").open().unwrap();
    let again = queue.send(unique("a", "order-1")).await.unwrap();
    assert!(!first.duplicate && again.duplicate);
    assert_eq!(again.id, first.id);
    assert_eq!(take(&queue, 10).await.len(), 1);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_large_batch_comes_back_byte_for_byte() {
    let (folder, lockgate) = open().await;
    let queue = lockgate.queue("q").keyed().create().await.unwrap();
    let text = |number: usize| number.to_string().repeat(number % 50 * 20 + 1);
    let messages = (0..500).map(|number| keyed(&text(number), &format!("key-{}", number % 7)));
    for sent in queue.send_all(messages).await.unwrap() {
        sent.unwrap();
    }
    lockgate.shutdown().await;
    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let queue = lockgate.queue("q").open().unwrap();
    let mut got: Vec<_> = take(&queue, 1_000).await;
    got.sort_by_key(lockgate::Delivery::sequence);
    assert_eq!(got.len(), 500);
    for (number, delivery) in got.iter().enumerate() {
        assert_eq!(delivery.body(), text(number).as_bytes());
    }
    lockgate.shutdown().await;
}

/// The log that was backed up has come further than the restored one. Answers used to wait until the new
/// one came to the positions of the old one.
#[tokio::test]
async fn a_restored_folder_answers_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    for life in 0..6 {
        let lockgate = Lockgate::open(&old).await.unwrap();
        if life == 5 {
            let queue = lockgate.queue("q").keyed().create().await.unwrap();
            let plain = lockgate.queue("plain").create().await.unwrap();
            for text in ["one", "two"] {
                let message = unique(text, text).with_key(Key::new("k").unwrap());
                queue.send(message).await.unwrap();
            }
            plain.send(Message::new("three")).await.unwrap();
            let taken = queue.receive().await.unwrap();
            taken.into_iter().next().unwrap().ack().await.unwrap();
            let backup = std::fs::File::create(folder.path().join("backup")).unwrap();
            lockgate.backup(backup).await.unwrap();
        }
        lockgate.shutdown().await;
    }
    let backup = std::fs::File::open(folder.path().join("backup")).unwrap();
    Lockgate::builder(&new).restore(backup).await.unwrap();

    let lockgate = Lockgate::open(&new).await.unwrap();
    let queue = lockgate.queue("q").keyed().create().await.unwrap();
    assert_eq!(queue.describe().await.unwrap().counts.ready, 1);
    let again = unique("one", "one").with_key(Key::new("k").unwrap());
    assert!(queue.send(again).await.unwrap().duplicate);
    assert_eq!(bodies(&take(&queue, 10).await), ["two"]);
    let plain = lockgate.queue("plain").create().await.unwrap();
    plain.send(Message::new("four")).await.unwrap();
    assert_eq!(bodies(&take(&plain, 10).await), ["three", "four"]);
    lockgate.shutdown().await;
}
