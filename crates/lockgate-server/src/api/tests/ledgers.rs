//! Ledgers over the API.

use std::sync::Arc;

use bytes::Bytes;
use hyper::Method;
use lockgate_core::{
    HolderName,
    ledger::{Append, EVENT_BYTES_MAX},
};
use serde_json::{Value, json};

use super::{Request, Shop};
use crate::{
    auth::{AccessKey, Grant, Names, Secret, Verb},
    http::progress::Hangup,
};

async fn with_ledger() -> Shop {
    let shop = Shop::open();
    shop.post("/ledgers", json!({"name": "l", "hashed": true}))
        .await;
    shop
}

#[tokio::test]
async fn each_refusal_says_what_the_ledger_is() {
    let shop = with_ledger().await;
    let append = |epoch: u64, head: Option<u64>, events: &[&str]| {
        let events = events.iter().map(|payload| json!({"payload": payload}));
        let events: Vec<_> = events.collect();
        json!({"epoch": epoch, "head": head, "events": events})
    };
    let target = "/ledgers/l/events";
    shop.post(target, append(7, Some(0), &["a", "b", "c"]))
        .await;
    shop.post("/ledgers/l/trim", json!({"first_id": 3})).await;
    let get = |target| (Method::GET, target, Value::Null);
    let post = |target, body| (Method::POST, target, body);
    let cases = [
        (
            post(target, append(7, Some(2), &["d"])),
            (409, "ledger_moved", json!({"head": 3})),
        ),
        (
            post(target, append(6, None, &[])),
            (
                409,
                "ledger_deposed",
                json!({"epoch": 6, "newest_epoch": 7}),
            ),
        ),
        (
            get("/ledgers/l/events?after=1"),
            (
                410,
                "ledger_trimmed",
                json!({"sequence_id": 1, "first_id": 3}),
            ),
        ),
        (
            get("/ledgers/l/events?after=4"),
            (409, "ledger_beyond", json!({"sequence_id": 4, "head": 3})),
        ),
        (
            post("/ledgers/l/trim", json!({"first_id": 5})),
            (409, "ledger_beyond", json!({"sequence_id": 4, "head": 3})),
        ),
        (
            (
                Method::PUT,
                "/ledgers/l/readers/r",
                json!({"sequence_id": 4}),
            ),
            (409, "ledger_beyond", json!({"sequence_id": 4, "head": 3})),
        ),
        (
            (
                Method::PUT,
                "/ledgers/l/readers/r",
                json!({"sequence_id": 3, "from": 2}),
            ),
            (409, "reader_moved", json!({"sequence_id": 0})),
        ),
        (
            (
                Method::PUT,
                "/ledgers/l/readers/r",
                json!({"sequence_id": 3, "from": 0}),
            ),
            (200, "", Value::Null),
        ),
        (
            get("/ledgers/l/unique-ids/u"),
            (404, "event_not_found", Value::Null),
        ),
        (
            get("/ledgers/m/events"),
            (404, "ledger_not_found", Value::Null),
        ),
        (
            post("/ledgers", json!({"name": "l"})),
            (409, "ledger_exists", Value::Null),
        ),
        (
            post("/ledgers/l/seal", json!({"epoch": 6})),
            (
                409,
                "ledger_deposed",
                json!({"epoch": 6, "newest_epoch": 7}),
            ),
        ),
        (
            post("/ledgers/l/seal", json!({"epoch": 8})),
            (200, "", Value::Null),
        ),
        (
            post(target, append(8, None, &["d"])),
            (409, "ledger_sealed", json!({"head": 3})),
        ),
        // It refuses new events only.
        (post(target, append(9, None, &[])), (200, "", Value::Null)),
    ];
    for ((method, target, body), (status, code, ledger)) in cases {
        let answer = shop.ask(method, target, body).await;
        let found = answer.body["code"].as_str().unwrap_or("");
        assert_eq!(
            (answer.status, found, &answer.body["ledger"]),
            (status, code, &ledger),
            "{target}"
        );
    }
}

#[tokio::test]
async fn what_is_wrong_in_a_request_for_a_ledger_is_named() {
    let shop = with_ledger().await;
    let target = "/ledgers/l/events";
    let event = |event: Value| json!({"events": [{"payload": "x"}, event]});
    let large = "x".repeat(EVENT_BYTES_MAX + 1);
    let many = vec![json!({"payload": ""}); Append::EVENTS_MAX + 1];
    for (method, target, body, field) in [
        (Method::POST, "/ledgers", json!({"name": "a b"}), "ledger"),
        (Method::GET, "/ledgers/%20/events", Value::Null, "ledger"),
        (
            Method::POST,
            target,
            event(json!({"payload": "!", "payload_encoding": "base64"})),
            "events[1].payload",
        ),
        (
            Method::POST,
            target,
            event(json!({"payload": "x", "unique_id": ""})),
            "events[1].unique_id",
        ),
        (
            Method::POST,
            target,
            event(json!({"payload": "x", "input": "\u{7}"})),
            "events[1].input",
        ),
        (Method::POST, target, event(json!({})), "events[1].payload"),
        (Method::POST, target, event(json!({"payload": large})), ""),
        (Method::POST, target, json!({"events": many}), "events"),
        (Method::POST, target, json!({"events": "x"}), "events"),
        (
            Method::POST,
            target,
            json!({"settled": ["a", ""]}),
            "settled[1]",
        ),
        (
            Method::GET,
            "/ledgers/l/events?limit=10001",
            Value::Null,
            "limit",
        ),
        (
            Method::GET,
            "/ledgers/l/events?wait_ms=20001",
            Value::Null,
            "wait_ms",
        ),
        (
            Method::PUT,
            "/ledgers/l/readers/%0a",
            json!({"sequence_id": 0}),
            "reader",
        ),
    ] {
        let (status, code, found) = shop.refused(method, target, body).await;
        assert_eq!(
            (status, &*code, &*found),
            (400, "invalid_value", field),
            "{target}"
        );
    }
    let head = shop.get("/ledgers/l").await;
    assert_eq!(head["head"]["sequence_id"], 0, "nothing was appended");
}

#[tokio::test]
async fn a_read_waits_for_an_event_or_for_its_time() {
    let shop = with_ledger().await;
    let waits = shop.get("/ledgers/l/events?wait_ms=20000");
    let later = async {
        // The read has been taken when the event comes: the engine takes requests in order.
        shop.get("/ledgers/l").await;
        let event = json!({"events": [{"payload": "x"}]});
        shop.post("/ledgers/l/events", event).await;
    };
    let (read, ()) = tokio::join!(waits, later);
    assert_eq!(read["events"][0]["payload"], "x");
    let waits = shop.get("/ledgers/l/events?after=1&wait_ms=20000");
    let later = async {
        shop.get("/ledgers/l").await;
        shop.pass(20_000);
    };
    let (read, ()) = tokio::join!(waits, later);
    assert_eq!(read["events"], json!([]));
    assert_eq!(read["head"]["sequence_id"], 1);
}

/// The messages are settled with their events, or neither is there.
#[tokio::test]
async fn an_append_settles_the_messages_that_it_came_with() {
    let shop = with_ledger().await;
    shop.post("/queues", json!({"name": "q"})).await;
    let messages = json!({"messages": [{"body": "a"}, {"body": "b"}]});
    shop.post("/queues/q/messages", messages).await;
    let received = shop.post("/queues/q/receive", json!({"max": 2})).await;
    let settle =
        |at: usize| json!({"receipt": received["messages"][at]["receipt"], "action": "ack"});
    let append = |settles: &[Value]| json!({"events": [{"payload": "a"}], "settles": settles});
    let target = "/ledgers/l/events";
    shop.post(target, append(&[settle(0)])).await;
    let counts = async || {
        let queue = shop.get("/queues/q").await;
        let ledger = shop.get("/ledgers/l").await;
        (
            queue["counts"]["in_flight"].clone(),
            ledger["head"]["sequence_id"].clone(),
        )
    };
    assert_eq!(counts().await, (json!(1), json!(1)));
    let stale = append(&[settle(1), settle(0)]);
    let (status, code, field) = shop.refused(Method::POST, target, stale).await;
    assert_eq!(
        (status, &*code, &*field),
        (409, "lease_stale", "settles[1]")
    );
    let mut with_state = settle(1);
    with_state["state"] = json!({"value": "x"});
    let (_, code, field) = shop
        .refused(Method::POST, target, append(&[with_state]))
        .await;
    assert_eq!((&*code, &*field), ("invalid_value", "settles[0].state"));
    assert_eq!(counts().await, (json!(1), json!(1)));
}

#[tokio::test]
async fn a_key_may_do_what_its_grants_on_ledgers_say() {
    let mut shop = Shop::open();
    for name in ["mine.a", "mine.b", "other"] {
        shop.post("/ledgers", json!({"name": name})).await;
    }
    let cases = [
        (Verb::Read, Method::GET, "", Value::Null),
        (Verb::Read, Method::GET, "/events", Value::Null),
        (Verb::Read, Method::GET, "/unique-ids/u", Value::Null),
        (Verb::Read, Method::GET, "/readers", Value::Null),
        (Verb::Send, Method::POST, "/events", json!({})),
        (
            Verb::Receive,
            Method::PUT,
            "/readers/r",
            json!({"sequence_id": 0}),
        ),
        (Verb::Receive, Method::DELETE, "/readers/r", Value::Null),
        (Verb::Manage, Method::POST, "/seal", json!({})),
        (Verb::Purge, Method::POST, "/trim", json!({"first_id": 1})),
        (Verb::Purge, Method::DELETE, "", Value::Null),
    ];
    for verb in Verb::ALL {
        let grant = |on| Grant {
            on,
            verbs: vec![verb],
        };
        shop.identity = Some(Arc::new(AccessKey {
            id: "K".into(),
            secret: Secret::new("secret of K"),
            // Grants on queues and records are none on ledgers.
            grants: vec![
                grant(Names::Queues("*".into())),
                grant(Names::Records("*".into())),
                grant(Names::Ledgers("mine.*".into())),
            ],
        }));
        for (needed, method, rest, body) in &cases {
            let denied = async |ledger: &str| {
                let target = format!("/ledgers/{ledger}{rest}");
                let answer = shop.ask(method.clone(), &target, body.clone()).await;
                answer.body["code"] == "access_denied"
            };
            assert_eq!(denied("mine.a").await, *needed != verb, "{method} {rest}");
            assert!(denied("other").await, "{method} {rest}");
        }
        let create = json!({"name": "mine.c"});
        let answer = shop.ask(Method::POST, "/ledgers", create).await;
        assert_eq!(answer.status == 403, verb != Verb::Manage);
        let list = shop.get("/ledgers").await;
        let names = list["ledgers"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
        let expected: &[&str] = match verb {
            Verb::Read => &["mine.a", "mine.b"],
            _ => &[],
        };
        assert_eq!(names, expected);
    }
}

/// A page to a client that follows has about 256 KiB, and what did not fit comes with the next one.
#[tokio::test]
async fn pages_for_those_who_follow_are_bounded_in_bytes() {
    let shop = with_ledger().await;
    for payload in [
        "x".repeat(100 << 10),
        "x".repeat(EVENT_BYTES_MAX),
        String::new(),
    ] {
        let events = vec![json!({"payload": payload}); 7];
        shop.post("/ledgers/l/events", json!({"epoch": 1, "events": events}))
            .await;
    }
    shop.post("/ledgers/l/seal", json!({"epoch": 1})).await;
    let request = Request {
        method: &Method::GET,
        path: "/api/v1/ledgers/l/follow",
        query: None,
        content_type: None,
        body: Bytes::new(),
        fence: None,
        holder: HolderName::new("tester").unwrap(),
        identity: None,
        hangup: Hangup::default(),
    };
    let mut follow = shop.service.follow(&request).await.unwrap();
    let mut seen = 0;
    while let Some(lines) = follow.next().await {
        let lines: Vec<_> = lines.split_inclusive(|&byte| byte == b'\n').collect();
        // It ends with the line that takes it to that many bytes.
        let but_last: usize = lines[..lines.len() - 1].iter().map(|line| line.len()).sum();
        assert!(but_last < 257 << 10, "{but_last} bytes");
        for line in lines {
            let line: Value = serde_json::from_slice(line).unwrap();
            if line.get("head").is_none() {
                seen += 1;
                assert_eq!(line["sequence_id"], seen);
            }
        }
    }
    assert_eq!(seen, 21);
}
