//! How much room the disk has, as an operator sees it.

use std::sync::Arc;

use lockgate_core::Disk as _;
use lockgate_log::LocalLogOptions;
use lockgate_sim::FaultyDisk;
use serde_json::{Value, json};
use tracing_subscriber::filter::LevelFilter;

use crate::{
    logs::{Events, is_alone},
    support::{TestServer, in_time, start_engine_over},
};

const SEGMENT: u64 = 4 << 20;
const LOW: u64 = 16 * SEGMENT;

#[test]
fn every_mark_shows_on_the_pages_and_in_the_log() {
    if is_alone("space::every_mark_shows_on_the_pages_and_in_the_log") {
        fill_and_drain();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn fill_and_drain() {
    let events = Events::record(LevelFilter::INFO);
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(64 * SEGMENT));
    let server = start(&disk).await;
    server
        .sqs("CreateQueue", &json!({ "QueueName": "q" }))
        .await;
    let url = server.queue_url("q");
    assert_eq!(shown(&server).await, (json!("normal"), Value::Null));

    // Another program takes it.
    disk.take_space(disk.space().unwrap().free - LOW + SEGMENT);
    let detail = shows(&server, "low").await;
    assert!(detail.contains("bytes are free on the disk"), "{detail}");
    is_logged(&events, "WARN", "room on the disk is low").await;

    disk.take_space(disk.space().unwrap().free);
    let send = json!({ "QueueUrl": url, "MessageBody": "x".repeat(200_000) });
    let mut sent = 0;
    loop {
        let answer = server
            .ask(TestServer::sqs_request("SendMessage", &send))
            .await;
        if answer.status == 503 {
            assert!(answer.body.contains("full"), "{answer:?}");
            break;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        sent += 1;
    }
    let detail = shows(&server, "full").await;
    assert!(detail.contains("sends are refused"), "{detail}");
    is_logged(&events, "ERROR", "the disk is full").await;

    // Everything that makes room goes on.
    let receive = json!({ "QueueUrl": url, "MaxNumberOfMessages": 1 });
    for _ in 0..sent {
        let got = server.sqs("ReceiveMessage", &receive).await;
        let handle = &got["Messages"][0]["ReceiptHandle"];
        let delete = json!({ "QueueUrl": url, "ReceiptHandle": handle });
        server.sqs("DeleteMessage", &delete).await;
    }
    disk.set_free_bytes(Some(64 * SEGMENT));
    shows(&server, "normal").await;
    is_logged(&events, "INFO", "there is enough room on the disk again").await;
    server.sqs("SendMessage", &send).await;
    server.stop().await;
}

/// Nobody has been refused yet, and the first look at the page tells.
#[tokio::test]
async fn a_start_on_a_full_disk_shows_at_once() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(SEGMENT));
    let server = start(&disk).await;
    assert_eq!(shown(&server).await.0, "full");
    server.engine.shutdown().await;
    let page = server.get("/readyz").await;
    assert_eq!(page.status, 503);
    let page: Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!(
        (&page["reason"], &page["space"]),
        (&json!("stopped"), &json!("full"))
    );
}

async fn start(disk: &FaultyDisk) -> TestServer {
    let options = LocalLogOptions {
        segment_bytes: 4 << 20,
        record_bytes_max: 1 << 20,
        low_bytes: Some(LOW),
        free_bytes_min: SEGMENT,
        ..LocalLogOptions::default()
    };
    let disk = Arc::new(disk.clone());
    let engine = tokio::task::spawn_blocking(move || start_engine_over(disk, options));
    TestServer::start_over(engine.await.unwrap(), |_| ()).await
}

/// What `/readyz` says of the room, which `/metrics` must say too.
async fn shown(server: &TestServer) -> (Value, Value) {
    let page = server.get("/readyz").await;
    assert_eq!(page.status, 200, "{page:?}");
    let page: Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!(page["ready"], true);
    (page["space"].clone(), page["detail"].clone())
}

/// Waits until both pages say so; returns the words.
async fn shows(server: &TestServer, state: &str) -> String {
    in_time(async {
        let detail = loop {
            let (space, detail) = shown(server).await;
            if space == state {
                break detail;
            }
        };
        let metrics = server.get("/metrics").await.body;
        for known in ["normal", "low", "full"] {
            let is = u8::from(known == state);
            let line = format!("\nlockgate_log_space_state{{state=\"{known}\"}} {is}\n");
            assert!(metrics.contains(&line), "{line}{metrics}");
        }
        detail.as_str().unwrap_or_default().to_owned()
    })
    .await
}

/// Waits until the log says so, which it does once.
async fn is_logged(events: &Events, level: &str, sentence: &str) {
    in_time(async {
        while events.with(sentence).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let [event] = &events.with(sentence)[..] else {
        panic!("{:?}", events.with(sentence));
    };
    assert!(
        event.contains(level) && event.contains("free_bytes="),
        "{event}"
    );
}
