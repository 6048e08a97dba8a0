//! Bindings that change over the wire while messages are published.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::{Value, json};

use crate::support::{Raw, TestServer};

const PUBLISHERS: u64 = 3;
const BATCHES: u64 = 20;
const BATCH: u64 = 15;

/// Asks on a connection that is kept.
async fn ask(raw: &mut Raw, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let len = body.len();
    raw.send(format!(
        "POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
    ))
    .await;
    let answer = raw.answer().await;
    assert!(matches!(answer.status, 200 | 201), "{path}: {answer:?}");
    serde_json::from_str(&answer.body).unwrap()
}

/// Binds an exchange with two queues behind it, and removes that binding, until it is told to end.
async fn turn(mut raw: Raw, is_over: Arc<AtomicBool>) -> u64 {
    let both = json!({"to": {"exchange": "both"}});
    let mut turns = 0;
    while turns == 0 || !is_over.load(Ordering::SeqCst) {
        let bound = ask(&mut raw, "/exchanges/events/bind", &both).await;
        assert_eq!(bound["existed"], false);
        let unbound = ask(&mut raw, "/exchanges/events/unbind", &both).await;
        assert_eq!(unbound["existed"], true, "{unbound}");
        turns += 1;
    }
    turns
}

/// Publishes batches. Returns each number with the queues that have it.
async fn publish(mut raw: Raw, publisher: u64) -> Vec<(u64, BTreeSet<String>)> {
    let mut published = Vec::new();
    for batch in 0..BATCHES {
        let first = (publisher * BATCHES + batch) * BATCH;
        let messages: Vec<_> = (first..first + BATCH)
            .map(|number| {
                // A key of its own, so that nothing waits for a lease.
                json!({"message": {"body": number.to_string(), "key": number.to_string()}})
            })
            .collect();
        let messages = json!({ "messages": messages });
        let answer = ask(&mut raw, "/exchanges/events/messages", &messages).await;
        for (number, result) in (first..).zip(answer["results"].as_array().unwrap()) {
            assert_eq!(result["outcome"], "published", "{result}");
            let queues = result["queues"].as_array().unwrap().iter();
            let queues = queues.map(|copy| copy["queue"].as_str().unwrap().to_owned());
            published.push((number, queues.collect()));
        }
    }
    published
}

async fn numbers_in(server: &TestServer, queue: &str) -> BTreeSet<u64> {
    let mut raw = server.connect().await;
    let mut found = BTreeSet::new();
    let receive = json!({"max": 100, "lease_ms": 60_000});
    loop {
        let answer = ask(&mut raw, &format!("/queues/{queue}/receive"), &receive).await;
        let messages = answer["messages"].as_array().unwrap();
        for message in messages {
            let number = message["body"].as_str().unwrap().parse().unwrap();
            assert!(found.insert(number), "{number} is twice in {queue}");
        }
        if messages.is_empty() {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_publish_gets_to_all_queues_behind_a_binding_that_changes_or_to_none() {
    let server = TestServer::start().await;
    let mut raw = server.connect().await;
    for queue in ["always", "first", "second.fifo"] {
        ask(&mut raw, "/queues", &json!({ "name": queue })).await;
    }
    for exchange in ["events", "both"] {
        let make = json!({"name": exchange, "kind": "fanout"});
        ask(&mut raw, "/exchanges", &make).await;
    }
    for (exchange, queue) in [
        ("events", "always"),
        ("both", "first"),
        ("both", "second.fifo"),
    ] {
        let bind = json!({"to": {"queue": queue}});
        ask(&mut raw, &format!("/exchanges/{exchange}/bind"), &bind).await;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let turning = tokio::spawn(turn(server.connect().await, is_over.clone()));
    let mut publishers = Vec::new();
    for publisher in 0..PUBLISHERS {
        publishers.push(tokio::spawn(publish(server.connect().await, publisher)));
    }
    let mut published = Vec::new();
    for publisher in publishers {
        published.extend(publisher.await.unwrap());
    }
    is_over.store(true, Ordering::SeqCst);
    let turns = turning.await.unwrap();

    let (mut first, mut all) = (BTreeSet::new(), BTreeSet::new());
    for (number, queues) in &published {
        let has = |queue: &str| queues.contains(queue);
        assert!(has("always"), "{number}: {queues:?}");
        assert_eq!(has("first"), has("second.fifo"), "{number}: {queues:?}");
        all.insert(*number);
        first.extend(has("first").then_some(*number));
    }
    assert_eq!(numbers_in(&server, "always").await, all);
    assert_eq!(numbers_in(&server, "first").await, first);
    assert_eq!(numbers_in(&server, "second.fifo").await, first);
    println!(
        "{turns} turns, {} of {} to the queues behind",
        first.len(),
        all.len()
    );
    server.stop().await;
}
