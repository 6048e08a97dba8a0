//! States of keys: with leases, settles and transactions, and by their own address.

use hyper::Method;
use serde_json::{Value, json};

use super::{
    Shop,
    operations::{queue, receive, send},
};

const STATE: &str = "/queues/q.fifo/keys/a/state";

async fn open() -> Shop {
    let shop = Shop::open();
    queue(&shop, "q.fifo", json!({})).await;
    queue(&shop, "q", json!({})).await;
    shop
}

/// Sends a message with that key, and receives it.
async fn one(shop: &Shop, key: &str) -> Value {
    send(shop, "q.fifo", json!({"body": "x", "key": key})).await;
    receive(shop, "q.fifo").await.remove(0)
}

/// The result of one settle.
async fn settle(shop: &Shop, settle: Value) -> Value {
    let body = json!({"settles": [settle]});
    let answer = shop.post("/queues/q.fifo/settle", body).await;
    answer["results"][0].clone()
}

#[tokio::test]
async fn it_is_written_with_a_settle_and_comes_with_the_next_lease() {
    let shop = open().await;
    let first = one(&shop, "a").await;
    assert_eq!(first["state"], Value::Null);
    let ack = json!({"receipt": first["receipt"], "action": "ack", "state": {"value": "one"}});
    let done = settle(&shop, ack.clone()).await;
    assert_eq!(done, json!({"outcome": "done", "state_version": 1}));
    // A retry of a lost answer learns that it happened.
    let again = settle(&shop, ack).await;
    assert_eq!(again, json!({"outcome": "stale", "reason": "gone"}));

    let second = one(&shop, "a").await;
    let state = json!({
        "value": "one", "value_encoding": "text", "version": 1,
        "written_at": "2026-11-21T08:00:00.000Z",
    });
    assert_eq!(second["state"], state);
    assert_eq!(shop.get(STATE).await, state);
    let key = shop.get("/queues/q.fifo/keys/a").await;
    let status = json!({"version": 1, "bytes": 3, "written_at": "2026-11-21T08:00:00.000Z"});
    assert_eq!(key["state"], status);
    let counts = shop.get("/queues/q.fifo").await["counts"].clone();
    assert_eq!(
        (&counts["states"], &counts["state_bytes"]),
        (&json!(1), &json!(260))
    );

    // The holder goes on, and writes bytes that are no text.
    let half = json!({
        "receipt": second["receipt"], "action": "extend", "lease_ms": 60_000,
        "state": {"value": "/w==", "value_encoding": "base64", "replaces": 1},
    });
    let done = settle(&shop, half).await;
    assert_eq!(
        done,
        json!({"outcome": "done", "remaining_ms": 60_000, "state_version": 2})
    );
    let state = shop.get(STATE).await;
    assert_eq!(
        (&state["value"], &state["value_encoding"]),
        (&json!("/w=="), &json!("base64"))
    );
    let drop = json!({
        "receipt": second["receipt"], "action": "nack", "state": {"drop": true, "replaces": 2},
    });
    assert_eq!(settle(&shop, drop).await, json!({"outcome": "done"}));
    let third = &receive(&shop, "q.fifo").await[0];
    assert_eq!(
        (&third["attempt"], &third["state"]),
        (&json!(2), &Value::Null)
    );
}

#[tokio::test]
async fn a_transaction_writes_states_with_its_settles() {
    let shop = open().await;
    let (a, b) = (one(&shop, "a").await, one(&shop, "b").await);
    shop.ok(Method::PUT, STATE, json!({"value": "one"})).await;
    let body = |replaces: Value| {
        json!({
            "settles": [
                {"receipt": a["receipt"], "action": "ack", "state": {"value": "two", "replaces": replaces}},
                {"receipt": b["receipt"], "action": "ack", "state": {"drop": true}},
            ],
            "sends": [{"queue": "q", "message": {"body": "y"}}],
        })
    };
    let refused = shop
        .ask(Method::POST, "/transactions", body(Value::Null))
        .await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert_eq!(refused.body["code"], "state_conflict");
    assert_eq!(refused.body["version"], 1);
    let counts = shop.get("/queues/q.fifo").await["counts"].clone();
    assert_eq!(counts["in_flight"], 2, "nothing was settled");
    let done = shop.post("/transactions", body(json!(1))).await;
    assert_eq!(done["state_versions"], json!([2, null]));
    assert_eq!(done["sent"].as_array().unwrap().len(), 1);
    let again = shop
        .refused(Method::POST, "/transactions", body(json!(2)))
        .await;
    assert_eq!(
        again,
        (409, "lease_stale".to_owned(), "settles[0]".to_owned())
    );
}

#[tokio::test]
async fn an_operator_names_the_version_or_takes_any() {
    let shop = open().await;
    let held = one(&shop, "a").await;
    let put = |body: Value| shop.ask(Method::PUT, STATE, body);
    assert_eq!(
        put(json!({"value": "one"})).await.body,
        json!({"version": 1})
    );
    assert_eq!(
        put(json!({"value": "x"})).await.body["code"],
        "state_conflict"
    );
    assert_eq!(put(json!({"value": "x", "replaces": 2})).await.status, 409);
    assert_eq!(
        put(json!({"value": "two", "replaces": 1})).await.body,
        json!({"version": 2})
    );
    assert_eq!(
        put(json!({"value": "three", "any": true})).await.body,
        json!({"version": 3})
    );

    // Who has read an earlier version learns of it, and still has the lease.
    let ack = json!({
        "receipt": held["receipt"], "action": "ack", "state": {"value": "mine", "replaces": 1},
    });
    let refused = settle(&shop, ack).await;
    assert_eq!(refused["problem"]["code"], "state_conflict");
    assert_eq!(refused["problem"]["version"], 3);
    assert_eq!(refused["problem"]["field"], "settles[0]");

    let drop = |how: &str| {
        let target = format!("{STATE}{how}");
        async { shop.ask(Method::DELETE, &{ target }, Value::Null).await }
    };
    assert_eq!(drop("").await.body["field"], "replaces");
    assert_eq!(drop("?replaces=2").await.body["code"], "state_conflict");
    assert_eq!(drop("?replaces=3").await.status, 200);
    assert_eq!(drop("?replaces=3").await.body["code"], "state_conflict");
    assert_eq!(drop("?any=true").await.status, 200);
    let gone = shop.refused(Method::GET, STATE, Value::Null).await;
    assert_eq!((gone.0, &*gone.1), (404, "state_not_found"));
}

#[tokio::test]
async fn they_are_listed_in_the_order_of_keys_without_their_values() {
    let shop = open().await;
    const LIST: &str = "/queues/q.fifo/key-states";
    assert_eq!(shop.get(LIST).await, json!({"states": []}));
    for key in ["b", "a%2F2", "a", "a%2F1"] {
        let target = format!("/queues/q.fifo/keys/{key}/state");
        shop.ok(Method::PUT, &target, json!({"value": key})).await;
    }
    let one = |key: &str, bytes: usize| {
        let written_at = "2026-11-21T08:00:00.000Z";
        json!({"key": key, "version": 1, "bytes": bytes, "written_at": written_at})
    };
    let all = json!({"states": [one("a", 1), one("a/1", 5), one("a/2", 5), one("b", 1)]});
    assert_eq!(shop.get(LIST).await, all);
    let first = shop.get(&format!("{LIST}?prefix=a/&limit=1")).await;
    assert_eq!(first["states"], json!([one("a/1", 5)]));
    let page = first["next_page"].as_str().unwrap();
    let second = shop
        .get(&format!("{LIST}?prefix=a/&limit=1&page={page}"))
        .await;
    assert_eq!(second, json!({"states": [one("a/2", 5)]}));

    for (target, refused) in [
        ("/queues/q/key-states", (409, "queue_not_keyed")),
        ("/queues/none/key-states", (404, "queue_not_found")),
        ("/queues/q.fifo/key-states?page=%00", (400, "invalid_page")),
        (
            "/queues/q.fifo/key-states?limit=1001",
            (400, "invalid_value"),
        ),
        (
            "/queues/q.fifo/key-states?prefix=%zz",
            (400, "malformed_request"),
        ),
    ] {
        let (status, code, _) = shop.refused(Method::GET, target, Value::Null).await;
        assert_eq!((status, &*code), refused, "{target}");
    }
}

#[tokio::test]
async fn a_state_that_cannot_be_is_refused_and_nothing_happens() {
    let shop = open().await;
    let held = one(&shop, "a").await;
    let ack = |state: Value| json!({"receipt": held["receipt"], "action": "ack", "state": state});
    for (state, field) in [
        (json!({}), "settles[0].state.value"),
        (
            json!({"value": "x", "drop": true}),
            "settles[0].state.value",
        ),
        (
            json!({"value": "?", "value_encoding": "base64"}),
            "settles[0].state.value",
        ),
        (json!({"value": "x".repeat((256 << 10) + 1)}), "settles[0]"),
    ] {
        let refused = settle(&shop, ack(state.clone())).await;
        assert_eq!(refused["outcome"], "refused", "{state}");
        assert_eq!(refused["problem"]["field"], field, "{refused}");
    }
    let both = json!({"value": "x", "replaces": 1, "any": true});
    let refused = shop.refused(Method::PUT, STATE, both).await;
    assert_eq!(refused, (400, "invalid_value".to_owned(), "any".to_owned()));
    let counts = shop.get("/queues/q.fifo").await["counts"].clone();
    assert_eq!(
        (&counts["in_flight"], &counts["states"]),
        (&json!(1), &json!(0))
    );

    send(&shop, "q", json!({"body": "x", "group": "a"})).await;
    let held = receive(&shop, "q").await.remove(0);
    let body = json!({"settles": [
        {"receipt": held["receipt"], "action": "ack", "state": {"value": "x"}},
    ]});
    let refused = shop.post("/queues/q/settle", body).await;
    assert_eq!(refused["results"][0]["problem"]["code"], "queue_not_keyed");
    let unkeyed = "/queues/q/keys/a/state";
    for method in [Method::GET, Method::PUT] {
        let body = match method {
            Method::GET => Value::Null,
            _ => json!({"value": "x"}),
        };
        let refused = shop.refused(method, unkeyed, body).await;
        assert_eq!((refused.0, &*refused.1), (409, "queue_not_keyed"));
    }
}
