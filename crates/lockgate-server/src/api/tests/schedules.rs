//! Schedules over the API, with a real engine that fires them.

use std::sync::Arc;

use hyper::Method;
use serde_json::{Value, json};

use super::Shop;
use crate::auth::{AccessKey, Grant, Names, Secret, Verb};

const MINUTE: u64 = 60_000;

async fn open() -> Shop {
    let shop = Shop::open();
    for queue in ["a", "b.fifo"] {
        shop.post("/queues", json!({"name": queue})).await;
    }
    shop
}

fn every_minute() -> Value {
    json!({"every_ms": MINUTE, "to": {"queue": "a"}, "message": {"body": "tick"}})
}

async fn put(shop: &Shop, name: &str, schedule: &Value) -> Value {
    let target = format!("/schedules/{name}");
    shop.ok(Method::PUT, &target, schedule.clone()).await
}

async fn refused(shop: &Shop, schedule: Value) -> (u16, String, String) {
    shop.refused(Method::PUT, "/schedules/s", schedule).await
}

/// Receives and acknowledges a message; it waits for one that is about to come.
async fn take(shop: &Shop, queue: &str) -> Value {
    let target = format!("/queues/{queue}/receive");
    let mut received = shop.post(&target, json!({"wait_ms": 20_000})).await;
    let message = received["messages"][0].take();
    let settle = json!({"settles": [{"receipt": message["receipt"], "action": "ack"}]});
    shop.post(&format!("/queues/{queue}/settle"), settle).await;
    message
}

#[tokio::test]
async fn it_fires_at_its_times() {
    let shop = open().await;
    let made = put(&shop, "s", &every_minute()).await;
    assert_eq!(
        (&made["created"], &made["changed"]),
        (&json!(true), &json!(true))
    );
    let times = made["schedule"]["next_times"].as_array().unwrap().clone();
    assert_eq!(times.len(), 5);
    assert_eq!(times[0], "2026-11-21T08:01:00.000Z");
    for time in &times[..3] {
        shop.pass(MINUTE);
        let message = take(&shop, "a").await;
        assert_eq!(message["body"], "tick");
        let headers = &message["headers"];
        assert_eq!(headers["lockgate.schedule"]["value"], "s");
        assert_eq!(headers["lockgate.scheduled-at"]["value"], *time);
    }
    let shown = shop.get("/schedules/s").await;
    assert_eq!(shown["counts"]["fired"], 3);
    assert_eq!(shown["last"]["scheduled_at"], times[2]);
    assert_eq!(shown["next_at"], times[3]);
}

#[tokio::test]
async fn the_same_again_changes_nothing_and_what_is_shown_can_be_put() {
    let shop = open().await;
    let cron = json!({
        "cron": " 30 4 1 * * ",
        "zone": "Europe/Berlin",
        "to": {"queue": "b.fifo"},
        "message": {
            "body": "AAH/", "body_encoding": "base64", "key": "k", "content_type": "text/x", "priority": 3,
            "time_to_live_ms": 5000, "headers": {"h": {"value": "1", "type": "Number"}},
        },
        "catch_up": "all", "overlap": "replace", "late_max_ms": 5000,
    });
    let made = put(&shop, "s", &cron).await["schedule"].take();
    assert_eq!(made["next_at"], "2026-12-01T03:30:00.000Z");
    let again = put(&shop, "s", &cron).await;
    assert_eq!(
        (&again["created"], &again["changed"]),
        (&json!(false), &json!(false))
    );
    // Its parts as they are shown.
    let mut shown = json!({});
    for part in [
        "cron",
        "zone",
        "to",
        "message",
        "catch_up",
        "overlap",
        "late_max_ms",
    ] {
        shown[part] = made[part].clone();
    }
    let again = put(&shop, "s", &shown).await;
    assert_eq!(again["changed"], false, "{shown}");
    assert_eq!(again["schedule"], made);
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let shop = open().await;
    let with = |change: Value| {
        let mut schedule = every_minute();
        for (name, value) in change.as_object().unwrap() {
            schedule[name] = value.clone();
        }
        schedule
    };
    for (change, code, field) in [
        (json!({"cron": "* * * * *"}), "invalid_value", "cron"),
        (json!({"every_ms": null}), "invalid_value", "cron"),
        (json!({"every_ms": 99}), "invalid_value", "every_ms"),
        (
            json!({"every_ms": null, "cron": "x"}),
            "invalid_value",
            "cron",
        ),
        (
            json!({"every_ms": null, "cron": "* * * * *", "zone": "localtime"}),
            "invalid_value",
            "zone",
        ),
        (
            json!({"every_ms": null, "cron": "* * * * * * 1971"}),
            "invalid_value",
            "",
        ),
        (
            json!({"every_ms": null, "at": "2027-01-01T00:00:60Z"}),
            "invalid_value",
            "at",
        ),
        (json!({"to": null}), "invalid_value", "to"),
        (json!({"to": {}}), "invalid_value", "to"),
        (
            json!({"to": {"queue": "a", "exchange": "b"}}),
            "invalid_value",
            "to",
        ),
        (json!({"zone": "UTC"}), "invalid_value", "zone"),
        (
            json!({"every_ms": null, "at": "2027-01-01T00:00:00Z", "from": "2027-01-01T00:00:00Z"}),
            "invalid_value",
            "from",
        ),
        (json!({"routing_key": "x"}), "invalid_value", "routing_key"),
        (
            json!({"to": {"queue": "none"}}),
            "queue_not_found",
            "to.queue",
        ),
        (
            json!({"to": {"exchange": "none"}}),
            "exchange_not_found",
            "",
        ),
        (
            json!({"message": {"body": "x", "unique_id": "u"}}),
            "invalid_value",
            "message.unique_id",
        ),
        (
            json!({"message": {"body": "x", "delay_ms": 1}}),
            "invalid_value",
            "message.delay_ms",
        ),
        (
            json!({"message": {"body": "x", "key": "k"}}),
            "key_not_taken",
            "message.key",
        ),
        (
            json!({"to": {"queue": "b.fifo"}}),
            "key_required",
            "message.key",
        ),
        (json!({"late_max_ms": 999}), "invalid_value", "late_max_ms"),
        (json!({"generation": 5}), "schedule_changed", ""),
        (json!({"typo": 5}), "invalid_value", "typo"),
    ] {
        let (_, got, at) = refused(&shop, with(change.clone())).await;
        assert_eq!((&*got, &*at), (code, field), "{change}");
    }
    assert_eq!(shop.get("/schedules").await["schedules"], json!([]));
    let target = "/schedules/s/move";
    put(&shop, "s", &every_minute()).await;
    let guarded = json!({"generation": 1});
    let (_, code, field) = shop.refused(Method::DELETE, "/schedules/s", guarded).await;
    assert_eq!((&*code, &*field), ("invalid_value", "generation"));
    let both = json!({"at": "2027-01-01T00:00:00Z", "after_ms": 1});
    for (body, wrong) in [(json!({}), "at"), (both, "after_ms")] {
        let (_, code, field) = shop.refused(Method::POST, target, body).await;
        assert_eq!((&*code, &*field), ("invalid_value", wrong));
    }
}

#[tokio::test]
async fn what_cannot_fire_says_why_and_fires_when_it_can() {
    let shop = open().await;
    shop.post(
        "/queues",
        json!({"name": "small", "settings": {"quota_messages": 1}}),
    )
    .await;
    let mut schedule = every_minute();
    schedule["to"] = json!({"queue": "small"});
    put(&shop, "s", &schedule).await;
    shop.pass(MINUTE);
    while shop.get("/schedules/s").await["counts"]["fired"] != 1 {
        tokio::task::yield_now().await;
    }
    shop.pass(MINUTE);
    loop {
        let shown = shop.get("/schedules/s").await;
        if let Some(problem) = shown["problem"].as_str() {
            assert!(problem.contains("small"), "{problem}");
            break;
        }
        tokio::task::yield_now().await;
    }
    take(&shop, "small").await;
    // It is tried again after a second.
    shop.pass(1_000);
    let message = take(&shop, "small").await;
    let time = &message["headers"]["lockgate.scheduled-at"]["value"];
    assert_eq!(time, "2026-11-21T08:02:00.000Z");
    assert_eq!(shop.get("/schedules/s").await["problem"], Value::Null);
}

#[tokio::test]
async fn it_is_paused_moved_run_and_deleted() {
    let shop = open().await;
    put(&shop, "s", &every_minute()).await;
    let paused = shop.post("/schedules/s/pause", json!({})).await;
    assert_eq!(
        (&paused["paused"], &paused["next_times"]),
        (&json!(true), &json!([]))
    );
    shop.pass(150_000);
    let resumed = shop.post("/schedules/s/resume", json!({})).await;
    assert_eq!(resumed["next_at"], "2026-11-21T08:03:00.000Z");
    let moved = shop
        .post("/schedules/s/move", json!({"after_ms": 5_000}))
        .await;
    assert_eq!(moved["next_at"], "2026-11-21T08:02:35.000Z");
    assert_eq!(moved["planned_at"], "2026-11-21T08:03:00.000Z");
    assert_eq!(moved["next_times"][1], "2026-11-21T08:04:00.000Z");
    shop.pass(5_000);
    take(&shop, "a").await;
    let run = shop.post("/schedules/s/run", json!({})).await;
    assert_eq!(take(&shop, "a").await["id"], run["message_id"]);
    let target = "/schedules/s?generation=1";
    let (status, code, _) = shop.refused(Method::DELETE, target, Value::Null).await;
    assert_eq!((status, &*code), (409, "schedule_changed"));
    shop.ok(Method::DELETE, "/schedules/s", Value::Null).await;
    let (status, code, _) = shop.refused(Method::GET, "/schedules/s", Value::Null).await;
    assert_eq!((status, &*code), (404, "schedule_not_found"));
}

#[tokio::test]
async fn rights_are_those_on_where_the_messages_go() {
    let mut shop = open().await;
    put(&shop, "s", &every_minute()).await;
    let other = json!({"every_ms": MINUTE, "to": {"queue": "b.fifo"}, "message": {"body": "x", "key": "k"}});
    put(&shop, "other", &other).await;
    let cases = [
        (Verb::Read, Method::GET, "/schedules/s", Value::Null),
        (Verb::Send, Method::POST, "/schedules/s/run", json!({})),
        (Verb::Manage, Method::POST, "/schedules/s/pause", json!({})),
        (Verb::Manage, Method::POST, "/schedules/s/resume", json!({})),
        (
            Verb::Manage,
            Method::POST,
            "/schedules/s/move",
            json!({"after_ms": 0}),
        ),
    ];
    for verb in [Verb::Send, Verb::Read, Verb::Manage] {
        shop.identity = Some(Arc::new(AccessKey {
            id: "K".into(),
            secret: Secret::new("secret of K"),
            grants: vec![Grant {
                on: Names::Queues("a".into()),
                verbs: vec![verb],
            }],
        }));
        for (needed, method, target, body) in &cases {
            let answer = shop.ask(method.clone(), target, body.clone()).await;
            let code = answer.body["code"].as_str().unwrap_or("");
            let expected = match (verb == *needed, verb) {
                (true, _) => "",
                (false, Verb::Read) => "access_denied",
                (false, _) => "schedule_not_found",
            };
            assert_eq!(code, expected, "{target} with {verb:?}");
            let hidden = target
                .replace("/s", "/other")
                .replace("/otherchedules", "/schedules");
            let answer = shop.ask(method.clone(), &hidden, body.clone()).await;
            assert_eq!(answer.body["code"], "schedule_not_found", "{hidden}");
        }
        let listed = shop.get("/schedules").await["schedules"]
            .as_array()
            .unwrap()
            .len();
        assert_eq!(listed, usize::from(verb == Verb::Read));
        let answer = shop
            .ask(Method::PUT, "/schedules/new", every_minute())
            .await;
        assert!(
            answer.status >= 403,
            "{verb:?} alone makes no schedule: {answer:?}"
        );
    }
    // Who may send to a queue cannot take over the schedule of another one.
    shop.identity = Some(Arc::new(AccessKey {
        id: "K".into(),
        secret: Secret::new("secret of K"),
        grants: vec![Grant {
            on: Names::Queues("a".into()),
            verbs: vec![Verb::Send, Verb::Manage],
        }],
    }));
    let answer = shop
        .ask(Method::PUT, "/schedules/other", every_minute())
        .await;
    assert_eq!(answer.body["code"], "access_denied", "{answer:?}");
    put(&shop, "new", &every_minute()).await;
}
