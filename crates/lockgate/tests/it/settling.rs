//! Ack, nack, reject, extend, transactions, dead letters.

use std::{
    future::{IntoFuture as _, poll_fn},
    task::Poll,
    time::Duration,
};

use lockgate::{
    DeadLetterReason, Delivery, EngineError, Error, ErrorKind, KeyProfile, Lockgate, Message,
    Rejection, SettleError, Settlement, StaleReason, StuckReason, TestDelivery,
};

use crate::{LONG, bodies, keyed, open, take};

#[tokio::test]
async fn a_nacked_message_comes_again_and_counts() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    let delivery = take(&queue, 1).await.remove(0);
    assert_eq!(delivery.attempt(), 1);
    delivery.nack(Duration::ZERO).await.unwrap();
    let delivery = take(&queue, 1).await.remove(0);
    assert_eq!(delivery.attempt(), 2);
    delivery.nack(LONG).await.unwrap();
    assert!(take(&queue, 1).await.is_empty());
    lockgate.shutdown().await;
}

#[tokio::test]
async fn given_back_does_not_count() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    take(&queue, 1).await.remove(0).give_back().await.unwrap();
    assert_eq!(take(&queue, 1).await[0].attempt(), 1);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn after_too_many_attempts_a_message_is_a_dead_letter_with_its_reason() {
    let (_folder, lockgate) = open().await;
    let dead = lockgate.queue("dead").keyed().create().await.unwrap();
    let queue = lockgate
        .queue("q")
        .keyed()
        .dead_letter("dead")
        .attempts_max(2)
        .create()
        .await
        .unwrap();
    queue.send(keyed("bad", "k")).await.unwrap();
    queue.send(keyed("good", "k")).await.unwrap();
    for _ in 0..2 {
        let delivery = take(&queue, 1).await.remove(0);
        assert_eq!(delivery.body(), "bad");
        delivery.nack(Duration::ZERO).await.unwrap();
    }
    assert_eq!(bodies(&take(&queue, 1).await), ["good"], "the key goes on");
    let letter = take(&dead, 1).await.remove(0);
    assert_eq!(letter.body(), "bad");
    assert_eq!(letter.key().unwrap().as_str(), "k");
    let origin = letter.origin().unwrap();
    assert_eq!(origin.name.as_ref(), Some(queue.name()));
    assert_eq!(origin.reason, DeadLetterReason::Attempts { attempts: 2 });
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_rejected_message_is_a_dead_letter_at_once() {
    let (_folder, lockgate) = open().await;
    let dead = lockgate.queue("dead").create().await.unwrap();
    let queue = lockgate
        .queue("q")
        .dead_letter("dead")
        .create()
        .await
        .unwrap();
    queue.send(Message::new("a")).await.unwrap();
    let delivery = take(&queue, 1).await.remove(0);
    delivery.reject("no such user").await.unwrap();
    let letter = take(&dead, 1).await.remove(0);
    match &letter.origin().unwrap().reason {
        DeadLetterReason::Rejected { reason } => {
            assert_eq!(reason.as_deref(), Some("no such user"));
        }
        other => panic!("{other:?}"),
    }
    lockgate.shutdown().await;
}

/// As the body and the headers: wherever the message goes, and after a restart.
#[tokio::test]
async fn a_message_keeps_its_priority_until_it_is_gone() {
    let (folder, lockgate) = open().await;
    let dead = lockgate.queue("dead").create().await.unwrap();
    let queue = lockgate.queue("q").dead_letter("dead");
    let queue = queue.create().await.unwrap();
    queue
        .send(Message::new("a").with_priority(9))
        .await
        .unwrap();
    let delivery = take(&queue, 1).await.remove(0);
    assert_eq!(delivery.message().priority, 9);
    delivery.reject("no").await.unwrap();
    let letter = take(&dead, 1).await.remove(0);
    assert_eq!(letter.message().priority, 9);
    letter.give_back().await.unwrap();
    assert_eq!(dead.redrive().await.unwrap().moved, 1);
    lockgate.shutdown().await;

    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let queue = lockgate.queue("q").dead_letter("dead");
    let queue = queue.create().await.unwrap();
    assert_eq!(take(&queue, 1).await[0].message().priority, 9);
    let refused = queue.send(Message::new("b").with_priority(10)).await;
    let expected = Rejection::OutOfRange {
        what: "priority",
        value: 10,
        min: 0,
        max: 9,
    };
    match refused.unwrap_err() {
        Error::Engine(EngineError::Rejected(rejection)) => assert_eq!(rejection, expected),
        other => panic!("{other:?}"),
    }
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_lease_can_be_extended_while_it_is_current() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    let mut delivery = take(&queue, 1).await.remove(0);
    assert!(delivery.is_current());
    delivery.extend(LONG).await.unwrap();
    assert!(delivery.remaining() > LONG / 2);
    queue.purge().await.unwrap();
    let stale = delivery.extend(LONG).await.unwrap_err();
    assert!(stale.to_string().contains("not current"), "{stale}");
    match delivery.ack().await.unwrap_err() {
        SettleError::Stale { reason, .. } => assert_eq!(reason, StaleReason::Gone),
        other => panic!("{other}"),
    }
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_transaction_happens_whole_or_not_at_all() {
    let (_folder, lockgate) = open().await;
    let orders = lockgate.queue("orders").lease(LONG).create().await.unwrap();
    let mails = lockgate
        .queue("mails")
        .message_bytes_max(10)
        .create()
        .await
        .unwrap();
    orders.send(Message::new("order")).await.unwrap();
    let order = take(&orders, 1).await.remove(0);

    let failed = lockgate
        .transact()
        .ack(order)
        .send(&mails, Message::new("fine"))
        .send(&mails, Message::new("much too long for a mail"))
        .commit()
        .await
        .unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Input, "{failed:?}");
    assert!(take(&mails, 10).await.is_empty(), "nothing was sent");
    let order = { failed.deliveries }.remove(0);

    let sent = lockgate
        .transact()
        .ack(order)
        .send(&mails, Message::new("one"))
        .send(&mails, Message::new("two"))
        .commit()
        .await
        .unwrap();
    assert_eq!(sent.sent.len(), 2);
    assert_eq!(bodies(&take(&mails, 10).await), ["one", "two"]);
    assert_eq!(orders.describe().await.unwrap().counts.in_flight, 0);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_waiting_message_can_be_cancelled() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").delay(LONG).create().await.unwrap();
    let sent = queue.send(Message::new("a")).await.unwrap();
    queue.cancel(sent.id).await.unwrap();
    queue.cancel(sent.id).await.unwrap_err();
    assert_eq!(queue.describe().await.unwrap().counts.delayed, 0);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_paused_queue_gives_nothing() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.pause().await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    assert!(take(&queue, 1).await.is_empty());
    let waiting = queue.receive().wait(LONG);
    let waiting = tokio::spawn(async move { waiting.await });
    while lockgate.metrics().waiters == 0 {
        tokio::task::yield_now().await;
    }
    queue.resume().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
    queue.delete().await.unwrap();
    assert!(lockgate.queues().is_empty());
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_strict_batch_is_extended_together_and_all_of_it_knows() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate
        .queue("q")
        .keyed()
        .key_profile(KeyProfile::Strict)
        .lease(Duration::from_secs(60))
        .create()
        .await
        .unwrap();
    for (key, body) in [("a", "1"), ("a", "2"), ("b", "3")] {
        queue.send(keyed(body, key)).await.unwrap();
    }
    let mut deliveries = take(&queue, 3).await;
    assert_eq!(deliveries.len(), 3);
    let is_long = |delivery: &Delivery| delivery.remaining() > LONG / 2;
    let place = deliveries
        .iter()
        .position(|delivery| delivery.body() == "2");
    deliveries[place.unwrap()].extend(LONG).await.unwrap();
    for delivery in &deliveries {
        let is_of_a = delivery.key().is_some_and(|key| key.as_str() == "a");
        assert_eq!(is_long(delivery), is_of_a, "{delivery:?}");
    }
    lockgate.shutdown().await;
}

#[tokio::test]
async fn many_are_settled_each_on_its_own() {
    let (_folder, lockgate) = open().await;
    let first = lockgate.queue("first").create().await.unwrap();
    let second = lockgate.queue("second").create().await.unwrap();
    for body in ["done", "later", "purged"] {
        let queue = if body == "purged" { &second } else { &first };
        queue.send(Message::new(body)).await.unwrap();
    }
    let mut deliveries = take(&first, 2).await;
    deliveries.extend(take(&second, 1).await);
    second.purge().await.unwrap();
    let settlings = [
        Settlement::Ack,
        Settlement::Nack {
            delay: Duration::ZERO,
            reason: None,
        },
        Settlement::Ack,
    ];
    let settles = deliveries.into_iter().zip(settlings);
    let results = lockgate.settle_all(settles).await.unwrap();
    match &results[..] {
        [Ok(()), Ok(()), Err(SettleError::Stale { reason, delivery })] => {
            assert_eq!(
                (*reason, &delivery.body()[..]),
                (StaleReason::Gone, &b"purged"[..])
            );
        }
        other => panic!("{other:?}"),
    }
    let again = take(&first, 2).await;
    assert_eq!(bodies(&again), ["later"]);
    assert_eq!(again[0].attempt(), 2);
    assert!(lockgate.settle_all([]).await.unwrap().is_empty());
    lockgate.shutdown().await;
    let settles = again
        .into_iter()
        .map(|delivery| (delivery, Settlement::Ack));
    let failed = lockgate.settle_all(settles).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Closed);
    assert_eq!(bodies(&failed.deliveries), ["later"], "they come back");
}

/// The first step has moved 1,000, and the second one finds the engine stopped. The engine may be done before this
/// test stops it: then once more.
#[tokio::test]
async fn a_redrive_that_fails_later_says_how_many_it_has_moved() {
    let error = loop {
        let (_folder, lockgate) = open().await;
        let dead = lockgate.queue("dead").create().await.unwrap();
        let other = lockgate.queue("other").create().await.unwrap();
        dead.send_all((0..1_001).map(|_| Message::new("a")))
            .await
            .unwrap();
        let mut redrive = dead.redrive().to(&other).into_future();
        let done = poll_fn(|context| Poll::Ready(redrive.as_mut().poll(context))).await;
        if done.is_ready() {
            continue;
        }
        while other.describe().await.unwrap().counts.ready == 0 {}
        lockgate.shutdown().await;
        if let Err(error) = redrive.await {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(
        matches!(error, Error::Redrive { moved: 1_000, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_redrive_ends_at_what_cannot_go_back() {
    let (_folder, lockgate) = open().await;
    let dead = lockgate.queue("dead").create().await.unwrap();
    let queue = lockgate
        .queue("q")
        .dead_letter("dead")
        .create()
        .await
        .unwrap();
    for body in ["a", "b", "c"] {
        queue.send(Message::new(body)).await.unwrap();
    }
    for delivery in take(&queue, 3).await {
        delivery.reject("bad").await.unwrap();
    }
    assert_eq!(dead.redrive().max(1).await.unwrap().moved, 1);
    let own = dead.send(Message::new("nobody's")).await.unwrap();
    let rest = dead.redrive().await.unwrap();
    assert_eq!((rest.moved, rest.left), (2, 1));
    let stuck = rest.stuck.unwrap();
    assert_eq!(
        (stuck.message, stuck.reason),
        (own.id, StuckReason::NoOrigin)
    );
    assert_eq!(dead.redrive().to(&queue).await.unwrap().moved, 1);
    assert_eq!(bodies(&take(&queue, 9).await), ["a", "b", "c", "nobody's"]);
    let found = queue.peek_message(own.id).await.unwrap();
    assert_eq!(found.message.unwrap().body, "nobody's");
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_delivery_of_a_test_tells_what_was_done_with_it() {
    let (mut delivery, watch) = TestDelivery::new(keyed("a", "k")).attempt(2).make();
    assert_eq!(delivery.key().unwrap().as_str(), "k");
    delivery.extend(LONG).await.unwrap();
    assert_eq!((delivery.remaining(), watch.extended()), (LONG, vec![LONG]));
    watch.set_remaining(Duration::ZERO);
    assert!(!delivery.is_current());
    watch.set_stale(StaleReason::Ended);
    let error = delivery.ack().await.unwrap_err();
    assert_eq!(watch.settled(), None);
    assert!(matches!(error, SettleError::Stale { .. }));
}
