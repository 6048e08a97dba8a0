//! Keys: in order, one holder at a time, and nobody else's business.

use lockgate::{EngineError, ErrorKind, Key, KeyWait, Message, Rejection};

use crate::{LONG, bodies, keyed, open, take};

#[tokio::test]
async fn a_slow_consumer_of_one_key_does_not_hold_the_others() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate
        .queue("q")
        .keyed()
        .lease(LONG)
        .create()
        .await
        .unwrap();
    for round in 0..50 {
        for key in ["slow", "a", "b"] {
            queue
                .send(keyed(&format!("{key}-{round}"), key))
                .await
                .unwrap();
        }
    }
    let slow = queue
        .receive()
        .holder("slow-worker")
        .await
        .unwrap()
        .remove(0);
    assert_eq!(bodies(std::slice::from_ref(&slow)), ["slow-0"]);

    let mut seen = Vec::new();
    loop {
        let deliveries = queue.receive().max(10).holder("worker").await.unwrap();
        if deliveries.is_empty() {
            break;
        }
        for delivery in deliveries {
            seen.push(String::from_utf8(delivery.body().to_vec()).unwrap());
            delivery.ack().await.unwrap();
        }
    }
    for key in ["a", "b"] {
        let of_key: Vec<_> = seen.iter().filter(|body| body.starts_with(key)).collect();
        let expected: Vec<_> = (0..50).map(|round| format!("{key}-{round}")).collect();
        assert!(of_key.into_iter().eq(&expected), "in order, all of them");
    }
    assert_eq!(seen.len(), 100, "nothing of the slow key");

    let status = queue.explain(Key::new("slow").unwrap()).await.unwrap();
    assert_eq!(status.messages, 50);
    match status.waits_for {
        KeyWait::Lease { holder, .. } => assert_eq!(holder.as_str(), "slow-worker"),
        other => panic!("{other:?}"),
    }
    slow.ack().await.unwrap();
    assert_eq!(bodies(&take(&queue, 2).await), ["slow-1", "slow-2"]);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_batch_of_a_key_is_settled_in_order() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate
        .queue("q")
        .keyed()
        .lease(LONG)
        .create()
        .await
        .unwrap();
    for body in ["1", "2", "3"] {
        queue.send(keyed(body, "k")).await.unwrap();
    }
    let mut batch = take(&queue, 2).await;
    assert_eq!(bodies(&batch), ["1", "2"]);
    assert!(take(&queue, 10).await.is_empty(), "the key is held");
    let second = batch.pop().unwrap();
    let refused = second.ack().await.unwrap_err();
    assert_eq!(refused.kind(), None, "{refused}");
    let second = refused.into_delivery();
    batch.remove(0).ack().await.unwrap();
    second.ack().await.unwrap();
    assert_eq!(bodies(&take(&queue, 10).await), ["3"]);
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_parked_key_waits_for_its_operator() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").keyed().create().await.unwrap();
    let key = Key::new("k").unwrap();
    queue.send(keyed("a", "k")).await.unwrap();
    queue.park_key(key.clone()).await.unwrap();
    assert!(take(&queue, 1).await.is_empty());
    queue
        .send(keyed("b", "k"))
        .await
        .expect("it still takes sends");
    queue.resume_key(key.clone()).await.unwrap();
    assert_eq!(bodies(&take(&queue, 1).await), ["a"]);
    assert_eq!(
        queue.drop_key(key).await.unwrap(),
        1,
        "what waits, not what is held"
    );
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_keyed_queue_wants_keys() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").keyed().create().await.unwrap();
    let refused = queue.send(Message::new("a")).await.unwrap_err();
    assert!(refused.to_string().contains("needs a key"), "{refused}");
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_key_is_dropped_whole_however_many_messages_it_has() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").keyed().create().await.unwrap();
    // What goes in one step.
    let many = 10_000;
    for extra in [0, 1] {
        let messages = (0..many + extra).map(|_| keyed("", "a"));
        queue.send_all(messages).await.unwrap();
        let key = Key::new("a").unwrap();
        assert_eq!(queue.drop_key(key).await.unwrap(), many + extra);
        assert_eq!(queue.describe().await.unwrap().counts.ready, 0);
    }
    lockgate.shutdown().await;
}

/// Who gives a key wants an order: a queue that keeps none takes a group, which comes out as one.
#[tokio::test]
async fn a_key_is_refused_where_no_order_is_kept_and_a_group_where_it_is() {
    let (_folder, lockgate) = open().await;
    let plain = lockgate.queue("plain").create().await.unwrap();
    let ordered = lockgate.queue("ordered").keyed().create().await.unwrap();
    let grouped = |body: &str| Message::new(body.to_owned()).with_group(Key::new("g").unwrap());

    let refused = plain.send(keyed("x", "k")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Input);
    let not_taken = EngineError::Rejected(Rejection::KeyNotTaken {
        queue: plain.name().clone(),
    });
    assert_eq!(refused.to_string(), not_taken.to_string());
    assert!(refused.to_string().contains("takes a group"), "{refused}");
    let refused = ordered.send(grouped("x")).await.unwrap_err();
    assert!(
        refused.to_string().contains("takes a key, not a group"),
        "{refused}"
    );
    let refused = lockgate
        .transact()
        .send(&plain, keyed("x", "k"))
        .commit()
        .await
        .unwrap_err();
    assert!(refused.source.to_string().contains("takes a group"));

    let sent = grouped("1");
    plain.send(sent.clone()).await.unwrap();
    ordered.send(keyed("2", "k")).await.unwrap();
    let of_plain = take(&plain, 1).await.remove(0);
    assert_eq!(of_plain.message(), &sent);
    assert_eq!(
        (of_plain.key(), of_plain.group()),
        (None, sent.group.as_ref())
    );
    let of_ordered = take(&ordered, 1).await.remove(0);
    assert_eq!(of_ordered.key().map(Key::as_str), Some("k"));
    assert_eq!(of_ordered.group(), None);
}
