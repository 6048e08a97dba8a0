//! What operations do, and what they refuse.

use std::sync::Arc;

use hyper::Method;
use lockgate_core::ShardId;
use serde_json::{Value, json};

use super::Shop;
use crate::{
    auth::{AccessKey, Grant, Names, Secret, Verb},
    receipt::Receipts,
};

pub(super) async fn queue(shop: &Shop, name: &str, settings: Value) {
    let body = json!({"name": name, "settings": settings});
    shop.post("/queues", body).await;
}

pub(super) async fn send(shop: &Shop, queue: &str, message: Value) -> Value {
    let body = json!({"messages": [message]});
    let sent = shop.post(&format!("/queues/{queue}/messages"), body).await;
    assert_eq!(sent["results"][0]["outcome"], "sent", "{sent}");
    sent["results"][0].clone()
}

pub(super) async fn receive(shop: &Shop, queue: &str) -> Vec<Value> {
    let target = format!("/queues/{queue}/receive");
    let received = shop.post(&target, json!({"max": 10})).await;
    received["messages"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_value_that_is_not_allowed_is_named() {
    let shop = Shop::open();
    queue(&shop, "orders.fifo", json!({})).await;
    queue(&shop, "mail", json!({})).await;
    let settings = |settings: Value| json!({"name": "new", "settings": settings});
    let messages = |message: Value| json!({"messages": [{"body": "x"}, message]});
    for (target, body, field) in [
        ("/queues", json!({}), "name"),
        ("/queues", json!({"name": "a b"}), "name"),
        ("/queues", json!({"name": "a.b"}), "name"),
        (
            "/queues",
            settings(json!({"lease_ms": "1s"})),
            "settings.lease_ms",
        ),
        ("/queues", settings(json!({"lease": 1})), "settings.lease"),
        (
            "/queues",
            settings(json!({"lease_ms": -1})),
            "settings.lease_ms",
        ),
        (
            "/queues",
            settings(json!({"retention_ms": 1})),
            "settings.retention_ms",
        ),
        (
            "/queues",
            settings(json!({"sync_window_ms": 3_600_001})),
            "settings.sync_window_ms",
        ),
        (
            "/queues",
            settings(json!({"sync_records": 0})),
            "settings.sync_records",
        ),
        (
            "/queues",
            settings(json!({"key_sequences_max": 100_000_001})),
            "settings.key_sequences_max",
        ),
        (
            "/queues",
            settings(json!({"receive_wait_ms": 20_001})),
            "settings.receive_wait_ms",
        ),
        (
            "/queues",
            settings(json!({"level": "paper"})),
            "settings.level",
        ),
        (
            "/queues",
            settings(json!({"dedup_window": 1})),
            "settings.dedup_window",
        ),
        (
            "/queues",
            settings(json!({"key_policy": "skip"})),
            "settings.key_policy",
        ),
        (
            "/queues",
            settings(json!({"key_policy": "park"})),
            "settings.key_policy",
        ),
        (
            "/queues",
            settings(json!({"dead_letter": "none"})),
            "settings.dead_letter",
        ),
        (
            "/queues",
            settings(json!({"dead_letter": "orders.fifo"})),
            "settings.dead_letter",
        ),
        ("/queues/mail/messages", json!({"messages": []}), "messages"),
        (
            "/queues/mail/messages",
            messages(json!({"key": "x"})),
            "messages[1].body",
        ),
        ("/queues/mail/receive", json!({"max": 101}), "max"),
        (
            "/queues/mail/receive",
            json!({"wait_ms": 20_001}),
            "wait_ms",
        ),
        ("/queues/mail/receive", json!({"holder": ""}), "holder"),
        ("/queues/mail/settle", json!({"settles": []}), "settles"),
        (
            "/queues/mail/settle",
            json!({"settles": [{"receipt": "x", "action": "burn"}]}),
            "settles[0].action",
        ),
        ("/queues/mail/pause", json!({"paused": true}), "paused"),
        ("/transactions", json!({}), "settles, sends and publishes"),
    ] {
        let (status, code, found) = shop.refused(Method::POST, target, body.clone()).await;
        assert_eq!((status, &*code), (400, "invalid_value"), "{target} {body}");
        assert_eq!(found, field, "{target} {body}");
    }
    // One wrong message does not refuse the others.
    for (message, field) in [
        (json!({"body": "x", "key": ""}), "messages[1].key"),
        (
            json!({"body": "x", "unique_id": "a\nb"}),
            "messages[1].unique_id",
        ),
        (
            json!({"body": "!", "body_encoding": "base64"}),
            "messages[1].body",
        ),
        (
            json!({"body": "x", "delay_ms": 1, "due_at": "2026-11-21T09:00:00Z"}),
            "messages[1].due_at",
        ),
        (
            json!({"body": "x", "headers": {"n": {"type": "Number", "value": "x"}}}),
            "messages[1].headers.n",
        ),
        (json!({"body": "x", "level": "memory"}), "messages[1].level"),
    ] {
        let sent = shop
            .post("/queues/mail/messages", messages(message.clone()))
            .await;
        assert_eq!(sent["results"][0]["outcome"], "sent", "{message}");
        assert_eq!(sent["results"][1]["problem"]["field"], field, "{sent}");
    }
    for (target, field) in [
        ("/queues?limit=0", "limit"),
        ("/queues?limit=x", "limit"),
        ("/queues?lmit=1", "lmit"),
        ("/queues/mail?x=1", "x"),
    ] {
        let (status, code, found) = shop.refused(Method::GET, target, Value::Null).await;
        assert_eq!((status, &*code, &*found), (400, "invalid_value", field));
    }
    let page = shop
        .refused(Method::GET, "/queues?page=%25", Value::Null)
        .await;
    assert_eq!(page.1, "invalid_page");
}

#[tokio::test]
async fn a_change_changes_what_it_names_and_null_is_the_default() {
    let shop = Shop::open();
    queue(&shop, "dead", json!({})).await;
    let given = json!({
        "lease_ms": 1000,
        "delay_ms": 2000,
        "dead_letter": "dead",
        "quota_messages": 10,
        "key_sequences_max": 7,
        "sync_window_ms": 50,
        "sync_records": 1000,
    });
    queue(&shop, "mail", given).await;
    let change = json!({"settings": {"lease_ms": null, "level": "process", "dead_letter": null,
                                     "sync_window_ms": null},
                        "tags": {"a": "1"}});
    let changed = shop.ok(Method::PATCH, "/queues/mail", change).await;
    let settings = &changed["settings"];
    assert_eq!(settings["lease_ms"], 30_000);
    assert_eq!(settings["delay_ms"], 2000);
    assert_eq!(settings["level"], "process");
    assert_eq!(settings["dead_letter"], Value::Null);
    assert_eq!(settings["quota_messages"], 10);
    assert_eq!(settings["key_sequences_max"], 7);
    assert_eq!(settings["sync_window_ms"], Value::Null);
    assert_eq!(settings["sync_records"], 1000);
    assert_eq!(changed["tags"], json!({"a": "1"}));
    assert_eq!(shop.get("/queues/mail").await, changed);
    let change = json!({"settings": {"quota_messages": null}, "tags": {"a": null}});
    let changed = shop.ok(Method::PATCH, "/queues/mail", change).await;
    assert_eq!(changed["settings"]["quota_messages"], Value::Null);
    assert_eq!(changed["tags"], json!({}));
}

#[tokio::test]
async fn pages_of_queues_join_to_the_whole_list() {
    let mut shop = Shop::open();
    for name in ["a", "b", "c", "d", "e"] {
        queue(&shop, name, json!({})).await;
    }
    // A caller that may see only some queues still gets full pages.
    for (verbs, pattern, expected) in [(None, "", "ab|cd|e|"), (Some(Verb::Read), "[ace]", "ac|e|")]
    {
        shop.identity = verbs.map(|verb| {
            let grant = |queues: &str| Grant {
                on: Names::Queues(queues.into()),
                verbs: vec![verb],
            };
            Arc::new(AccessKey {
                id: "K".into(),
                secret: Secret::new("secret of K"),
                grants: pattern
                    .trim_matches(['[', ']'])
                    .split("")
                    .map(grant)
                    .collect(),
            })
        });
        let mut seen = String::new();
        let mut page = String::new();
        loop {
            let list = shop.get(&format!("/queues?limit=2{page}")).await;
            for queue in list["queues"].as_array().unwrap() {
                seen.push_str(queue["name"].as_str().unwrap());
            }
            seen.push('|');
            match list["next_page"].as_str() {
                Some(next) => page = format!("&page={next}"),
                None => break,
            }
        }
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn sources_of_dead_letters_come_in_pages_that_are_filled_up() {
    let mut shop = Shop::open();
    queue(&shop, "dead", json!({})).await;
    queue(&shop, "none", json!({})).await;
    for name in ["d", "b", "e", "a", "c"] {
        let dead_letter = json!({"dead_letter": "dead"});
        queue(&shop, name, dead_letter).await;
    }
    let target = "/queues/dead/dead-letter-sources";
    let all = json!({"queues": ["a", "b", "c", "d", "e"]});
    assert_eq!(shop.get(target).await, all);
    assert_eq!(shop.get(&format!("{target}?limit=5")).await, all);
    let nothing = shop.get("/queues/none/dead-letter-sources").await;
    assert_eq!(nothing, json!({"queues": []}));
    for (parameter, code, field) in [
        ("limit=0", "invalid_value", "limit"),
        ("limit=1001", "invalid_value", "limit"),
        ("page=*", "invalid_page", "page"),
        ("page=", "invalid_page", "page"),
    ] {
        let target = format!("{target}?{parameter}");
        let refused = shop.refused(Method::GET, &target, Value::Null).await;
        assert_eq!((&*refused.1, &*refused.2), (code, field), "{parameter}");
    }
    // The caller may not know of b and d.
    shop.identity = Some(Arc::new(AccessKey {
        id: "K".into(),
        secret: Secret::new("secret of K"),
        grants: ["dead", "a", "c", "e"]
            .map(|queues| Grant {
                on: Names::Queues(queues.into()),
                verbs: vec![Verb::Read],
            })
            .into(),
    }));
    let first = shop.get(&format!("{target}?limit=2")).await;
    assert_eq!(first["queues"], json!(["a", "c"]));
    let next = first["next_page"].as_str().unwrap();
    let last = shop.get(&format!("{target}?limit=2&page={next}")).await;
    assert_eq!(last, json!({"queues": ["e"]}));
}

#[tokio::test]
async fn a_message_comes_out_as_it_went_in() {
    let shop = Shop::open();
    queue(&shop, "orders.fifo", json!({})).await;
    let message = json!({
        "body": "/wA=", "body_encoding": "base64", "key": "k ä", "unique_id": "u",
        "headers": {
            "n": {"type": "Number.int", "value": "7", "encoding": "text"},
            "b": {"type": "Binary", "value": "/w==", "encoding": "base64"},
        },
        "content_type": "image/png", "trace_context": "00-1",
        "time_to_live_ms": 60_000, "level": "disk", "priority": 9,
    });
    let sent = send(&shop, "orders.fifo", message.clone()).await;
    let again = send(&shop, "orders.fifo", message.clone()).await;
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["id"], sent["id"]);
    let id = sent["id"].as_str().unwrap();
    let shown = shop
        .get(&format!("/queues/orders.fifo/messages/{id}"))
        .await;
    assert_eq!(shown["priority"], 9);
    let received = receive(&shop, "orders.fifo").await;
    assert_eq!(received.len(), 1);
    for (name, value) in message.as_object().unwrap() {
        assert_eq!(&received[0][name], value, "{name}");
    }
    assert_eq!(received[0]["id"], sent["id"]);
    assert_eq!(received[0]["attempt"], 1);
    assert_eq!(received[0]["lease_ends_at"], "2026-11-21T08:00:30.000Z");
    assert_eq!(received[0]["remaining_ms"], 30_000);
    let due_at = "2026-11-21T08:00:10.000Z";
    let late = json!({"body": "late", "key": "other", "due_at": due_at});
    send(&shop, "orders.fifo", late).await;
    shop.pass(10_000);
    let late = receive(&shop, "orders.fifo").await.remove(0);
    assert_eq!(late["due_at"], due_at);
    assert_eq!(late.get("priority"), None, "it has none");
    let limits = shop.get("/server").await["limits"].clone();
    assert_eq!(
        (&limits["body_bytes_max"], &limits["level_max"]),
        (&json!(4 << 20), &json!("disk"))
    );
}

/// A client that gives a key wants an order: a queue without one refuses the key everywhere, and
/// returns a group as `group`.
#[tokio::test]
async fn a_key_is_refused_where_no_order_is_kept_and_a_group_where_it_is() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    queue(&shop, "q.fifo", json!({})).await;
    for (name, given, code) in [
        ("q", "key", "key_not_taken"),
        ("q.fifo", "group", "group_not_taken"),
    ] {
        let message = json!({"body": "x", given: "k"});
        let target = format!("/queues/{name}/messages");
        let body = json!({"messages": [message]});
        let answer = shop.ok(Method::POST, &target, body).await;
        let problem = &answer["results"][0]["problem"];
        assert_eq!(problem["code"], code, "{answer}");
        assert_eq!(problem["field"], format!("messages[0].{given}"));
        let body = json!({"sends": [{"queue": name, "message": message}]});
        let refused = shop.refused(Method::POST, "/transactions", body).await;
        assert_eq!(
            refused,
            (400, code.to_owned(), format!("sends[0].message.{given}"))
        );
        let target = format!("{target}?{given}=k");
        let (_, found, field) = shop.refused(Method::GET, &target, json!(null)).await;
        assert_eq!((&*found, &*field), (code, given));
    }
    send(&shop, "q", json!({"body": "x", "group": "g"})).await;
    send(&shop, "q.fifo", json!({"body": "x", "key": "k"})).await;
    for (name, given, value, other) in [("q", "group", "g", "key"), ("q.fifo", "key", "k", "group")]
    {
        let peeked = shop
            .get(&format!("/queues/{name}/messages?{given}={value}"))
            .await;
        let received = receive(&shop, name).await;
        for shown in [&peeked["messages"][0], &received[0]] {
            assert_eq!(shown[given], value);
            assert_eq!(shown[other], Value::Null);
        }
    }
}

#[tokio::test]
async fn a_key_waits_for_time_or_for_room_in_its_queue() {
    let shop = Shop::open();
    queue(&shop, "q.fifo", json!({"in_flight_max": 1})).await;
    let later = json!({"body": "later", "key": "later", "delay_ms": 90_000});
    send(&shop, "q.fifo", later).await;
    let due = shop.get("/queues/q.fifo/keys/later").await;
    assert_eq!(due["waits_for"], "due");
    assert_eq!(due["sequence"], 1);
    assert_eq!(due["remaining_ms"], 90_000);
    assert_eq!(due["until"], "2026-11-21T08:01:30.000Z");

    for key in ["a", "b"] {
        send(&shop, "q.fifo", json!({"body": key, "key": key})).await;
    }
    assert_eq!(receive(&shop, "q.fifo").await.len(), 1);
    let full = shop.get("/queues/q.fifo/keys/b").await;
    assert_eq!(full["waits_for"], "in_flight_full");
    let words = full["explanation"].as_str().unwrap();
    assert!(words.contains("in flight as it may, 1"), "{words}");
}

#[tokio::test]
async fn why_a_key_does_not_move_is_said_and_it_can_be_made_to() {
    let shop = Shop::open();
    queue(&shop, "q.fifo", json!({})).await;
    let target = "/queues/q.fifo/keys/a%2Fb";
    let nothing = shop.get(target).await;
    assert_eq!(nothing["waits_for"], "no_message");
    send(&shop, "q.fifo", json!({"body": "1", "key": "a/b"})).await;
    send(&shop, "q.fifo", json!({"body": "2", "key": "a/b"})).await;
    assert_eq!(shop.get(target).await["waits_for"], "nothing");
    let input = json!({"max": 1, "holder": "eve", "lease_ms": 60_000});
    let received = shop.post("/queues/q.fifo/receive", input).await;
    shop.pass(10_000);
    let explained = shop.get(target).await;
    assert_eq!(explained["waits_for"], "lease");
    assert_eq!(explained["holder"], "eve");
    assert_eq!(explained["sequence"], 1);
    assert_eq!(explained["attempt"], 1);
    assert_eq!(explained["remaining_ms"], 50_000);
    assert_eq!(explained["until"], "2026-11-21T08:01:00.000Z");
    let words = explained["explanation"].as_str().unwrap();
    assert!(
        words.contains("eve holds message 1") && words.contains("50 s"),
        "{words}"
    );

    let receipt = &received["messages"][0]["receipt"];
    let nack = json!({"settles": [{"receipt": receipt, "action": "nack", "delay_ms": 5000}]});
    shop.post("/queues/q.fifo/settle", nack).await;
    let explained = shop.get(target).await;
    assert_eq!(explained["waits_for"], "backoff");
    assert_eq!(explained["remaining_ms"], 5000);

    shop.post("/queues/q.fifo/pause", Value::Null).await;
    assert_eq!(shop.get(target).await["waits_for"], "paused");
    shop.post("/queues/q.fifo/resume", Value::Null).await;

    for _ in 0..2 {
        let parked = shop.post(&format!("{target}/park"), Value::Null).await;
        assert_eq!(parked["waits_for"], "parked");
    }
    shop.pass(5000);
    assert!(receive(&shop, "q.fifo").await.is_empty());
    let resumed = shop.post(&format!("{target}/resume"), Value::Null).await;
    assert_eq!(resumed["waits_for"], "nothing");
    let dropped = shop.post(&format!("{target}/drop"), Value::Null).await;
    assert_eq!(dropped["messages"], 2);
    let again = shop
        .refused(Method::POST, &format!("{target}/drop"), Value::Null)
        .await;
    assert_eq!((again.0, &*again.1), (404, "key_not_found"));
}

#[tokio::test]
async fn a_lease_is_settled_once_and_the_caller_is_told() {
    let shop = Shop::open();
    queue(&shop, "q.fifo", json!({})).await;
    queue(&shop, "other", json!({})).await;
    send(&shop, "q.fifo", json!({"body": "1", "key": "k"})).await;
    let received = receive(&shop, "q.fifo").await;
    let receipt = received[0]["receipt"].clone();
    let settle = |action: Value| {
        let mut settle = action;
        settle["receipt"] = receipt.clone();
        json!({"settles": [settle]})
    };
    let result = async |queue: &str, body: Value| {
        let target = format!("/queues/{queue}/settle");
        shop.post(&target, body).await["results"][0].clone()
    };
    let elsewhere = result("other", settle(json!({"action": "ack"}))).await;
    assert_eq!(elsewhere["problem"]["code"], "invalid_receipt");
    let of_shard = |number| ShardId::new(number).unwrap();
    let own = Receipts::new(of_shard(0), &shop.engine.secret());
    let mut token = own.open(receipt.as_str().unwrap()).unwrap();
    token.term.shard = of_shard(1);
    let foreign = Receipts::new(of_shard(1), &shop.engine.secret()).seal(token);
    let foreign = json!({"settles": [{"receipt": foreign, "action": "ack"}]});
    let problem = &result("q.fifo", foreign).await["problem"];
    assert_eq!(problem["code"], "invalid_receipt");
    assert_eq!(
        problem["detail"],
        "settles[0].receipt: it is of shard 1, and this is shard 0: take it to shard 1"
    );
    for (given, field) in [
        (json!({"action": "extend"}), "settles[0].lease_ms"),
        (
            json!({"action": "ack", "delay_ms": 1}),
            "settles[0].delay_ms",
        ),
        (json!({"action": "ack", "reason": "x"}), "settles[0].reason"),
        (
            json!({"action": "nack", "lease_ms": 1}),
            "settles[0].lease_ms",
        ),
    ] {
        let refused = result("q.fifo", settle(given)).await;
        assert_eq!(refused["problem"]["field"], field, "{refused}");
    }
    let extend = settle(json!({"action": "extend", "lease_ms": 60_000}));
    let extended = result("q.fifo", extend).await;
    assert_eq!(extended, json!({"outcome": "done", "remaining_ms": 60_000}));
    shop.pass(60_000);
    let late = result("q.fifo", settle(json!({"action": "ack"}))).await;
    assert_eq!(late, json!({"outcome": "stale", "reason": "ended"}));
    let received = receive(&shop, "q.fifo").await;
    assert_eq!(received[0]["attempt"], 2);
    let older = result("q.fifo", settle(json!({"action": "ack"}))).await;
    assert_eq!(older["reason"], "superseded");
    let defer = json!({"settles": [
        {"receipt": received[0]["receipt"], "action": "defer", "delay_ms": 5000},
    ]});
    assert_eq!(result("q.fifo", defer).await["outcome"], "done");
    assert!(receive(&shop, "q.fifo").await.is_empty());
    shop.pass(5000);
    let received = receive(&shop, "q.fifo").await;
    assert_eq!(
        received[0]["attempt"], 2,
        "a deferred attempt does not count"
    );
    let untried = json!({"settles": [{"receipt": received[0]["receipt"], "action": "give_back"}]});
    assert_eq!(result("q.fifo", untried).await, json!({"outcome": "done"}));
    let received = receive(&shop, "q.fifo").await;
    assert_eq!(received[0]["attempt"], 2, "nor does one that nobody tried");
    let newer = json!({"settles": [{"receipt": received[0]["receipt"], "action": "ack"}]});
    assert_eq!(result("q.fifo", newer.clone()).await["outcome"], "done");
    assert_eq!(result("q.fifo", newer).await["reason"], "gone");
}

#[tokio::test]
async fn a_transaction_happens_whole_or_not_at_all() {
    let shop = Shop::open();
    queue(&shop, "in", json!({})).await;
    queue(&shop, "out.fifo", json!({})).await;
    send(&shop, "in", json!({"body": "1"})).await;
    let received = receive(&shop, "in").await;
    let ack = json!({"receipt": received[0]["receipt"], "action": "ack"});
    let to = |message: Value| json!({"queue": "out.fifo", "message": message});
    let good = to(json!({"body": "2", "key": "k"}));
    for (settles, sends, status, code, field) in [
        (
            json!([ack]),
            json!([to(json!({"body": "no key"}))]),
            400,
            "key_required",
            "sends[0].message.key",
        ),
        (
            json!([ack]),
            json!([good, {"queue": "none", "message": {"body": "x"}}]),
            404,
            "queue_not_found",
            "sends[1].queue",
        ),
        (
            json!([ack, ack]),
            json!([good]),
            409,
            "lease_stale",
            "settles[1]",
        ),
        (
            json!([{"receipt": "x", "action": "ack"}]),
            json!([good]),
            400,
            "invalid_receipt",
            "settles[0].receipt",
        ),
    ] {
        let body = json!({"settles": settles, "sends": sends});
        let refused = shop.refused(Method::POST, "/transactions", body).await;
        assert_eq!(refused, (status, code.to_owned(), field.to_owned()));
        let counts = &shop.get("/queues/in").await["counts"];
        assert_eq!(counts["in_flight"], 1, "nothing was settled");
        assert_eq!(shop.get("/queues/out.fifo").await["counts"]["ready"], 0);
    }
    let body = json!({"settles": [ack], "sends": [good]});
    let done = shop.post("/transactions", body).await;
    assert_eq!(done["sent"][0]["sequence"], 1);
    assert_eq!(shop.get("/queues/in").await["counts"]["in_flight"], 0);
    assert_eq!(shop.get("/queues/out.fifo").await["counts"]["ready"], 1);
}

#[tokio::test]
async fn looking_at_messages_changes_nothing_and_pages_join() {
    let shop = Shop::open();
    queue(&shop, "dead.fifo", json!({})).await;
    let dead_letter = json!({"dead_letter": "dead.fifo"});
    queue(&shop, "q.fifo", dead_letter).await;
    for (body, key) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "c")] {
        send(&shop, "q.fifo", json!({"body": body, "key": key})).await;
    }
    let later = json!({"body": "5", "key": "a", "delay_ms": 60_000});
    let later = send(&shop, "q.fifo", later).await;
    let input = json!({"max": 1, "holder": "eve"});
    let received = shop.post("/queues/q.fifo/receive", input).await;
    let before = shop.get("/queues/q.fifo").await;
    let bodies = async |parameters: &str| {
        let mut seen = String::new();
        let mut page = String::new();
        loop {
            let target = format!("/queues/q.fifo/messages?limit=2{parameters}{page}");
            let found = shop.get(&target).await;
            for message in found["messages"].as_array().unwrap() {
                seen.push_str(message["body"].as_str().unwrap_or("-"));
            }
            match found["next_page"].as_str() {
                Some(next) => page = format!("&page={next}"),
                None => return seen,
            }
        }
    };
    for (parameters, expected) in [
        ("", "12345"),
        ("&key=a", "135"),
        ("&state=ready", "234"),
        ("&state=in_flight", "1"),
        ("&state=delayed", "5"),
        ("&state=backoff", ""),
        ("&bodies=false", "-----"),
    ] {
        assert_eq!(bodies(parameters).await, expected, "{parameters}");
    }
    let target = |message: &Value| {
        format!(
            "/queues/q.fifo/messages/{}",
            message["id"].as_str().unwrap()
        )
    };
    let held = shop.get(&target(&received["messages"][0])).await;
    assert_eq!(
        (&held["state"], &held["holder"]),
        (&json!("in_flight"), &json!("eve"))
    );
    assert_eq!(
        (&held["attempts"], &held["remaining_ms"]),
        (&json!(1), &json!(30_000))
    );
    let later = shop.get(&target(&later)).await;
    assert_eq!(later["due_at"], "2026-11-21T08:01:00.000Z");
    assert_eq!(shop.get("/queues/q.fifo").await, before, "nothing changed");

    let receipt = &received["messages"][0]["receipt"];
    let reject = json!({"settles": [{"receipt": receipt, "action": "reject", "reason": "bad"}]});
    shop.post("/queues/q.fifo/settle", reject).await;
    let sent = send(&shop, "dead.fifo", json!({"body": "sent", "key": "k"})).await;
    for (parameters, expected) in [("", 1), ("?source=q.fifo", 1), ("?source=other", 0)] {
        let target = format!("/queues/dead.fifo/dead-letters{parameters}");
        let found = shop.get(&target).await;
        let found = found["messages"].as_array().unwrap();
        assert_eq!(found.len(), expected, "{parameters}");
        if expected == 1 {
            assert_eq!(found[0]["id"], held["id"]);
            assert_eq!(found[0]["origin"]["queue"], "q.fifo");
            assert_eq!(found[0]["origin"]["detail"], "bad");
        }
    }
    let elsewhere = shop.refused(Method::GET, &target(&sent), Value::Null).await;
    assert_eq!(elsewhere.1, "message_not_found");
    let moved = format!(
        "/queues/dead.fifo/messages/{}",
        held["id"].as_str().unwrap()
    );
    assert_eq!(shop.get(&moved).await["origin"]["reason"], "rejected");
    shop.ok(Method::DELETE, &moved, Value::Null).await;
    let gone = shop.refused(Method::GET, &moved, Value::Null).await;
    assert_eq!(gone.1, "message_not_found");
}

#[tokio::test]
async fn keys_are_listed_with_why_they_do_not_move() {
    let shop = Shop::open();
    queue(&shop, "q.fifo", json!({})).await;
    queue(&shop, "mail", json!({})).await;
    for key in ["a", "b", "c"] {
        send(&shop, "q.fifo", json!({"body": "1", "key": key})).await;
    }
    shop.post("/queues/q.fifo/keys/b/park", Value::Null).await;
    let parked = shop.get("/queues/q.fifo/keys?parked=true").await;
    assert_eq!(parked["keys"][0]["key"], "b");
    assert_eq!(parked["keys"][0]["waits_for"], "parked");
    assert_eq!(parked["keys"].as_array().unwrap().len(), 1);
    let mut seen = Vec::new();
    let mut page = String::new();
    loop {
        let found = shop
            .get(&format!("/queues/q.fifo/keys?limit=2{page}"))
            .await;
        let keys = found["keys"].as_array().unwrap();
        seen.extend(
            keys.iter()
                .map(|key| key["key"].as_str().unwrap().to_owned()),
        );
        match found["next_page"].as_str() {
            Some(next) => page = format!("&page={next}"),
            None => break,
        }
    }
    seen.sort();
    assert_eq!(seen, ["a", "b", "c"]);
    let refused = shop
        .refused(Method::GET, "/queues/mail/keys", Value::Null)
        .await;
    assert_eq!(refused.1, "queue_not_keyed");
}

#[tokio::test]
async fn a_waiting_message_can_be_cancelled_and_moved_in_time() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    let later = send(&shop, "q", json!({"body": "later", "delay_ms": 1_000_000})).await;
    let target = format!("/queues/q/messages/{}", later["id"].as_str().unwrap());
    let reschedule = format!("{target}/reschedule");
    let refused = shop.refused(Method::POST, &reschedule, json!({})).await;
    assert_eq!(refused.2, "due_at");
    let now = shop.post(&reschedule, json!({"delay_ms": 0})).await;
    assert_eq!(now["due_at"], "2026-11-21T08:00:00.000Z");
    assert_eq!(receive(&shop, "q").await.len(), 1);
    let (status, code, _) = shop.refused(Method::DELETE, &target, Value::Null).await;
    assert_eq!((status, &*code), (409, "message_in_flight"));
    shop.pass(30_000);
    shop.ok(Method::DELETE, &target, Value::Null).await;
    let gone = shop.refused(Method::DELETE, &target, Value::Null).await;
    assert_eq!((gone.0, &*gone.1), (404, "message_not_found"));
    let odd = shop
        .refused(Method::DELETE, "/queues/q/messages/x", Value::Null)
        .await;
    assert_eq!(odd.1, "message_not_found");
}

#[tokio::test]
async fn a_key_may_do_what_it_was_granted_and_sees_nothing_else() {
    let mut shop = Shop::open();
    queue(&shop, "orders.fifo", json!({})).await;
    queue(&shop, "secret.fifo", json!({})).await;
    send(&shop, "orders.fifo", json!({"body": "1", "key": "k"})).await;
    let message = json!({"messages": [{"body": "x", "key": "k"}]});
    let receipt = receive(&shop, "orders.fifo").await[0]["receipt"].clone();
    let settle = json!({"settles": [{"receipt": receipt, "action": "extend", "lease_ms": 9}]});
    let transaction = json!({"settles": settle["settles"], "sends": []});
    let id = "00000001-0000-8000-8000-000000000001";
    let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
    let null = Value::Null;
    let cases = [
        (Verb::Read, &get, "", null.clone()),
        (Verb::Read, &get, "/keys/k", null.clone()),
        (Verb::Read, &get, "/keys", null.clone()),
        (Verb::Read, &get, "/dead-letter-sources", null.clone()),
        (Verb::Receive, &get, "/messages", null.clone()),
        (
            Verb::Receive,
            &get,
            &format!("/messages/{id}"),
            null.clone(),
        ),
        (Verb::Receive, &get, "/dead-letters", null.clone()),
        (Verb::Receive, &get, "/keys/k/state", null.clone()),
        (Verb::Receive, &get, "/key-states", null.clone()),
        (
            Verb::Manage,
            &Method::PUT,
            "/keys/k/state",
            json!({"value": "", "any": true}),
        ),
        (
            Verb::Manage,
            &delete,
            "/keys/k/state?any=true",
            null.clone(),
        ),
        (Verb::Manage, &Method::PATCH, "", json!({})),
        (Verb::Manage, &post, "/pause", null.clone()),
        (Verb::Manage, &post, "/resume", null.clone()),
        (Verb::Manage, &post, "/hold", json!({"time_ms": 0})),
        (Verb::Manage, &post, "/keys/k/hold", json!({"time_ms": 0})),
        (Verb::Manage, &post, "/no-key/hold", json!({"time_ms": 0})),
        (Verb::Read, &get, "/no-key", null.clone()),
        (Verb::Manage, &post, "/keys/k/park", null.clone()),
        (Verb::Manage, &post, "/keys/k/resume", null.clone()),
        (Verb::Send, &post, "/producers/p/open", null.clone()),
        (Verb::Read, &get, "/producers", null.clone()),
        (Verb::Manage, &delete, "/producers/p", null.clone()),
        (Verb::Send, &post, "/messages", message),
        (Verb::Receive, &post, "/receive", json!({})),
        (Verb::Receive, &post, "/settle", settle),
        (
            Verb::Receive,
            &delete,
            &format!("/messages/{id}"),
            null.clone(),
        ),
        (
            Verb::Receive,
            &post,
            &format!("/messages/{id}/reschedule"),
            json!({"delay_ms": 1}),
        ),
        (Verb::Purge, &post, "/keys/k/drop", null.clone()),
        (Verb::Purge, &post, "/purge", null.clone()),
        (Verb::Purge, &delete, "", null.clone()),
    ];
    for verb in Verb::ALL {
        shop.identity = Some(Arc::new(AccessKey {
            id: "K".into(),
            secret: Secret::new("secret of K"),
            grants: vec![Grant {
                on: Names::Queues("orders*".into()),
                verbs: vec![verb, Verb::Read],
            }],
        }));
        for (needed, method, rest, body) in &cases {
            let hidden = format!("/queues/secret.fifo{rest}");
            let (status, code, _) = shop.refused((*method).clone(), &hidden, body.clone()).await;
            assert_eq!(
                (status, &*code),
                (404, "queue_not_found"),
                "{method} {rest}"
            );
            let target = format!("/queues/orders.fifo{rest}");
            // Only callers without the right try the requests that would remove the queue for the
            // next cases.
            if verb == Verb::Purge && *needed == Verb::Purge {
                continue;
            }
            let answer = shop.ask((*method).clone(), &target, body.clone()).await;
            let denied = answer.body["code"] == "access_denied";
            let granted = *needed == verb || *needed == Verb::Read;
            assert_eq!(denied, !granted, "{verb:?}: {method} {rest}: {answer:?}");
        }
        let answer = shop
            .ask(Method::POST, "/transactions", transaction.clone())
            .await;
        let denied = answer.body["code"] == "access_denied";
        assert_eq!(denied, verb != Verb::Receive, "{answer:?}");
        let create = json!({"name": "orders-2"});
        let answer = shop.ask(Method::POST, "/queues", create).await;
        assert_eq!(answer.status == 201, verb == Verb::Manage, "{answer:?}");
    }
}

#[tokio::test]
async fn a_receive_that_reaches_nobody_gives_its_messages_back() {
    let shop = Shop::open();
    queue(&shop, "q", json!({})).await;
    send(&shop, "q", json!({"body": "1"})).await;
    let unseen = shop.raw(&Method::POST, "/queues/q/receive", "").await;
    drop(unseen.guard);
    let received = receive(&shop, "q").await;
    assert_eq!(received[0]["attempt"], 1, "the first does not count");
}
