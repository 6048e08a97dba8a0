//! Waiting receives, and clients that are gone before their answer.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::{Raw, TestServer, in_time};

/// Starts a waiting receive and returns once it waits.
async fn poll(server: &TestServer) -> Raw {
    let waiting = server.engine.metrics().waiters;
    let mut raw = server.connect().await;
    let body = json!({ "QueueUrl": server.queue_url("q"), "WaitTimeSeconds": 20 });
    raw.send(TestServer::sqs_request("ReceiveMessage", &body))
        .await;
    in_time(async {
        while server.engine.metrics().waiters == waiting {
            tokio::task::yield_now().await;
        }
    })
    .await;
    raw
}

/// Returns once so many clients were found to be gone.
async fn abandoned(server: &TestServer, count: u64) {
    let line = format!("lockgate_http_requests_abandoned_total {count}\n");
    in_time(async { while !server.get("/metrics").await.body.contains(&line) {} }).await;
}

async fn receive_at_once(server: &TestServer) -> Value {
    let body = json!({
        "QueueUrl": server.queue_url("q"),
        "WaitTimeSeconds": 20,
        "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
    });
    server.sqs("ReceiveMessage", &body).await
}

async fn send(server: &TestServer) {
    let body = json!({ "QueueUrl": server.queue_url("q"), "MessageBody": "hello" });
    server.sqs("SendMessage", &body).await;
}

async fn start() -> TestServer {
    let server = TestServer::start().await;
    server
        .sqs("CreateQueue", &json!({ "QueueName": "q" }))
        .await;
    server
}

#[tokio::test]
async fn a_waiting_receive_is_woken_by_a_send() {
    let server = start().await;
    let mut raw = poll(&server).await;
    send(&server).await;
    let answer: Value = serde_json::from_str(&raw.answer().await.body).unwrap();
    assert_eq!(answer["Messages"][0]["Body"], "hello");
    assert_eq!(server.engine.metrics().given_back, 0);
}

#[tokio::test]
async fn a_client_that_is_gone_gets_no_lease_and_its_attempt_does_not_count() {
    let server = start().await;
    for known_to_be_gone in [true, false] {
        for round in 1..=20 {
            let mut gone = Vec::new();
            for _ in 0..3 {
                gone.push(poll(&server).await);
            }
            drop(gone);
            if known_to_be_gone {
                abandoned(&server, round * 3).await;
            }
            send(&server).await;
            let answer = receive_at_once(&server).await;
            let message = &answer["Messages"][0];
            assert_eq!(message["Attributes"]["ApproximateReceiveCount"], "1");
            let body = json!({
                "QueueUrl": server.queue_url("q"),
                "ReceiptHandle": message["ReceiptHandle"],
            });
            server.sqs("DeleteMessage", &body).await;
        }
    }
    abandoned(&server, 120).await;
}

/// The requests that it sent ahead are more than the server reads before they have their turn, so they
/// stand before the client's end.
#[tokio::test]
async fn a_client_that_sent_requests_ahead_and_is_gone_keeps_no_lease() {
    let server = start().await;
    let mut gone = poll(&server).await;
    let ahead = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    gone.send(ahead.repeat((32 << 10) / ahead.len())).await;
    drop(gone);
    send(&server).await;
    abandoned(&server, 1).await;
    let answer = receive_at_once(&server).await;
    let message = &answer["Messages"][0];
    assert_eq!(message["Attributes"]["ApproximateReceiveCount"], "1");
}

/// Who sends all its requests and ends its side gets all answers.
#[tokio::test]
async fn a_client_that_sent_requests_ahead_and_ends_its_side_gets_every_answer() {
    let server = start().await;
    let mut raw = poll(&server).await;
    let ahead = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let count = (32 << 10) / ahead.len();
    raw.send(ahead.repeat(count)).await;
    raw.0.shutdown().await.unwrap();
    send(&server).await;
    let answer: Value = serde_json::from_str(&raw.answer().await.body).unwrap();
    assert_eq!(answer["Messages"][0]["Body"], "hello");
    for _ in 0..count {
        assert_eq!(raw.answer().await.status, 200);
    }
    assert_eq!(raw.closed().await, b"");
}

#[tokio::test]
async fn a_lease_is_kept_once_its_answer_is_on_its_way() {
    let server = start().await;
    let raw = poll(&server).await;
    send(&server).await;
    raw.0.readable().await.unwrap(); // the first byte is there, and nobody will read it
    drop(raw);
    let metrics = server.get("/metrics").await.body;
    let in_flight = "lockgate_queue_in_flight_messages{queue=\"q\"} 1\n";
    assert!(metrics.contains(in_flight), "{metrics}");
    assert_eq!(server.engine.metrics().given_back, 0);
}

/// As `nc -N` does: it has asked, and listens.
#[tokio::test]
async fn a_client_that_ends_its_side_gets_its_answer() {
    let server = start().await;
    let mut raw = poll(&server).await;
    raw.0.shutdown().await.unwrap();
    let answer = raw.answer().await;
    assert_eq!(
        (answer.status, &*answer.body),
        (200, "{}"),
        "its wait is over"
    );
    assert_eq!(raw.closed().await, b"");

    let mut raw = server.connect().await;
    let message = json!({ "QueueUrl": server.queue_url("q"), "MessageBody": "hello" });
    raw.send(TestServer::sqs_request("SendMessage", &message))
        .await;
    raw.0.shutdown().await.unwrap();
    assert_eq!(raw.answer().await.status, 200);

    let mut raw = server.connect().await;
    let asked = json!({ "QueueUrl": server.queue_url("q"), "WaitTimeSeconds": 20 });
    raw.send(TestServer::sqs_request("ReceiveMessage", &asked))
        .await;
    raw.0.shutdown().await.unwrap();
    let answer: Value = serde_json::from_str(&raw.answer().await.body).unwrap();
    assert_eq!(answer["Messages"][0]["Body"], "hello", "it is there");
    assert_eq!(raw.closed().await, b"");
    drop(raw);
    let report = server.stop().await;
    assert_eq!(report.cut, 0);
}

#[tokio::test]
async fn a_lease_of_a_client_that_has_only_ended_its_side_is_kept() {
    let server = start().await;
    send(&server).await;
    let mut raw = server.connect().await;
    let asked = json!({ "QueueUrl": server.queue_url("q") });
    raw.send(TestServer::sqs_request("ReceiveMessage", &asked))
        .await;
    raw.0.shutdown().await.unwrap();
    let answer: Value = serde_json::from_str(&raw.answer().await.body).unwrap();
    assert_eq!(raw.closed().await, b"");
    drop(raw);
    let engine = server.engine.clone();
    let handle = &answer["Messages"][0]["ReceiptHandle"];
    let settle = json!({ "QueueUrl": server.queue_url("q"), "ReceiptHandle": handle });
    // Whatever the server waits for to know, it knows when it has ended.
    server.sqs("DeleteMessage", &settle).await;
    server.stop().await;
    assert_eq!(engine.metrics().given_back, 0);
}

/// It asks and is gone in the same instant, as one that is killed. That the message is there at once
/// makes no difference.
#[tokio::test]
async fn a_client_that_is_gone_before_its_request_is_read_takes_no_message_along() {
    let server = start().await;
    send(&server).await;
    let asked = json!({ "QueueUrl": server.queue_url("q"), "WaitTimeSeconds": 20 });
    let request = TestServer::sqs_request("ReceiveMessage", &asked);
    for round in 1..=20 {
        // Without a turn for the server, which has this thread too.
        let mut gone = std::net::TcpStream::connect(server.address).unwrap();
        std::io::Write::write_all(&mut gone, request.as_bytes()).unwrap();
        drop(gone);
        abandoned(&server, round).await;
    }
    assert_eq!(server.engine.metrics().given_back, 20);
    let answer = receive_at_once(&server).await;
    let message = &answer["Messages"][0];
    assert_eq!(message["Attributes"]["ApproximateReceiveCount"], "1");
}

#[tokio::test]
async fn waiting_receives_end_empty_when_the_server_shuts_down() {
    let server = start().await;
    let mut polls = [poll(&server).await, poll(&server).await];
    let run = server.call_shutdown();
    for raw in &mut polls {
        let answer = raw.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        let messages = body["Messages"].as_array().map_or(0, Vec::len);
        assert_eq!(messages, 0, "{answer:?}");
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(raw.closed().await, b"");
    }
    let report = in_time(run).await.unwrap();
    assert_eq!(report.cut, 0);
    assert!(report.engine_stopped);
}
