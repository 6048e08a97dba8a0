//! Holds of queues and keys, and what explains them.

use hyper::Method;
use serde_json::{Value, json};

use super::{
    Shop,
    operations::{queue, receive, send},
};

#[tokio::test]
async fn a_hold_says_until_when_and_explains_itself() {
    let shop = Shop::open();
    queue(&shop, "q.fifo", json!({})).await;
    send(&shop, "q.fifo", json!({"body": "1", "key": "k"})).await;
    let hold = async |path: &str, time_ms: u64| {
        let target = format!("/queues/q.fifo{path}/hold");
        shop.post(&target, json!({"time_ms": time_ms})).await
    };
    let held = hold("/keys/k", 5_000).await;
    assert_eq!(held["remaining_ms"], 5_000);
    assert!(held["until"].is_string());
    // A longer one stays.
    assert_eq!(hold("/keys/k", 1_000).await["remaining_ms"], 5_000);
    let explained = shop.get("/queues/q.fifo/keys/k").await;
    assert_eq!(
        (
            &explained["waits_for"],
            &explained["limit"],
            &explained["remaining_ms"]
        ),
        (&json!("limit"), &json!("held"), &json!(5_000))
    );
    assert_eq!(
        explained["explanation"],
        "The key is held by somebody. Its next message may be leased in 5000 ms."
    );
    assert_eq!(shop.get("/queues/q.fifo").await["counts"]["owing_keys"], 1);
    assert_eq!(hold("/keys/k", 0).await, json!({}));
    hold("", 7_000).await;
    let queue = shop.get("/queues/q.fifo").await;
    assert_eq!(
        queue["limited"],
        json!({"limit": "held", "remaining_ms": 7_000})
    );
    assert_eq!(queue["held_until"], "2026-11-21T08:00:07.000Z");
    assert!(receive(&shop, "q.fifo").await.is_empty());
    shop.pass(7_000);
    assert_eq!(receive(&shop, "q.fifo").await.len(), 1);
}

#[tokio::test]
async fn a_hold_is_told_whatever_else_the_key_or_group_waits_for() {
    let shop = Shop::open();
    queue(&shop, "q.fifo", json!({})).await;
    queue(&shop, "q", json!({})).await;
    let hold = json!({"time_ms": 5_000});
    for (queue, field, word, in_flight) in [
        ("q.fifo", "key", "key", "lease"),
        ("q", "group", "group", "in_flight"),
    ] {
        let target = format!("/queues/{queue}/keys/k");
        let not_held = shop.get(&target).await;
        assert_eq!(
            (&not_held["waits_for"], &not_held["held_until"]),
            (&json!("no_message"), &Value::Null)
        );
        let tells = format!(" The {word} is held by somebody for another 5000 ms.");
        let explains = async |waits_for: &str| {
            shop.post(&format!("{target}/hold"), hold.clone()).await;
            let told = shop.get(&target).await;
            assert_eq!(told["waits_for"], waits_for, "{told}");
            let text = told["explanation"].as_str().unwrap();
            assert!(text.ends_with(&tells), "{text}");
            assert!(told["held_until"].is_string(), "{told}");
        };
        explains("no_message").await;
        shop.pass(5_000);
        let mut message = json!({"body": "x"});
        message[field] = "k".into();
        send(&shop, queue, message).await;
        assert_eq!(receive(&shop, queue).await.len(), 1);
        explains(in_flight).await;
    }
}

/// A limit per key counts them as one group, so they are explained and held as one.
#[tokio::test]
async fn messages_without_a_key_are_explained_and_held_as_one_group() {
    let shop = Shop::open();
    queue(&shop, "q", json!({"limit_rate": "1/m per key"})).await;
    queue(&shop, "q.fifo", json!({})).await;
    for message in [
        json!({"body": "1"}),
        json!({"body": "2"}),
        json!({"body": "3", "group": "g"}),
    ] {
        send(&shop, "q", message).await;
    }
    assert_eq!(receive(&shop, "q").await.len(), 2);
    let told = shop.get("/queues/q/no-key").await;
    assert_eq!(
        (&told["key"], &told["limit"], &told["messages"]),
        (&Value::Null, &json!("rate"), &json!(2))
    );
    assert_eq!(
        told["explanation"],
        "The group of messages without a key has reached its limit: limit_rate is 1/m per key. Its next message may \
         be leased in 60 s."
    );
    let hold = json!({"time_ms": 90_000});
    let held = shop.post("/queues/q/no-key/hold", hold.clone()).await;
    assert_eq!(held["remaining_ms"], 90_000);
    assert_eq!(shop.get("/queues/q/no-key").await["limit"], "held");
    assert_eq!(shop.get("/queues/q").await["limited"], Value::Null);
    let none = json!({"time_ms": 0});
    assert_eq!(shop.post("/queues/q/no-key/hold", none).await, json!({}));
    shop.pass(60_000);
    let received = receive(&shop, "q").await;
    let without_key = |message: &&Value| message.get("group").is_none();
    assert_eq!(received.iter().filter(without_key).count(), 1);
    for (method, rest, body) in [
        (Method::GET, "", Value::Null),
        (Method::POST, "/hold", hold),
    ] {
        let target = format!("/queues/q.fifo/no-key{rest}");
        let (status, code, _) = shop.refused(method, &target, body).await;
        assert_eq!((status, &*code), (400, "key_required"));
    }
}

#[tokio::test]
async fn a_deferral_may_hold_the_key_or_the_queue() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    for group in ["a", "a", "b"] {
        send(&shop, "q", json!({"body": "1", "group": group})).await;
    }
    let received = receive(&shop, "q").await;
    let settle = async |at: usize, how: Value| {
        let mut settle = how;
        settle["receipt"] = received[at]["receipt"].clone();
        settle["action"] = settle.get("action").cloned().unwrap_or(json!("defer"));
        let settles = json!({"settles": [settle]});
        shop.post("/queues/q/settle", settles).await["results"][0].clone()
    };
    let done = json!({"outcome": "done"});
    for (refused, of) in [
        (json!({"hold": "key"}), "hold"),
        (json!({"hold": "queue", "delay_ms": 0}), "hold"),
        (
            json!({"action": "nack", "hold": "key", "delay_ms": 5}),
            "hold",
        ),
    ] {
        let result = settle(0, refused).await;
        assert_eq!(result["outcome"], "refused", "{of}");
    }
    assert_eq!(
        settle(0, json!({"hold": "key", "delay_ms": 5_000})).await,
        done
    );
    assert_eq!(settle(1, json!({"delay_ms": 0})).await, done);
    assert_eq!(settle(2, json!({"delay_ms": 0})).await, done);
    let again = receive(&shop, "q").await;
    assert_eq!(again.len(), 1);
    assert_eq!(
        (&again[0]["group"], &again[0]["attempt"]),
        (&json!("b"), &json!(1))
    );
    let settles = json!({"settles": [{
        "receipt": again[0]["receipt"], "action": "defer", "hold": "queue", "delay_ms": 9_000,
    }]});
    shop.post("/queues/q/settle", settles).await;
    shop.pass(8_999);
    assert!(receive(&shop, "q").await.is_empty());
    shop.pass(1);
    assert_eq!(receive(&shop, "q").await.len(), 3);
}
