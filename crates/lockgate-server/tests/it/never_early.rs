//! Nothing comes early by the clock of a client that measures from before its request to behind its answer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::TestServer;

async fn call(server: &TestServer, target: &str, body: &Value) -> Value {
    let body = body.to_string();
    let len = body.len();
    let answer = server
        .ask(format!(
            "POST /api/v1{target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
        ))
        .await;
    assert!(answer.status < 300, "{answer:?}");
    serde_json::from_str(&answer.body).unwrap()
}

#[tokio::test]
async fn a_delay_is_over_by_the_clients_clock_when_its_message_comes() {
    let server = TestServer::start().await;
    call(&server, "/queues", &json!({"name": "q"})).await;
    // Short delays, so that some are decided when they are nearly over, at many fractions of a millisecond.
    for round in 0..150_u64 {
        let delay = round % 8 + 1;
        std::hint::black_box((0..round * 997).fold(0_u64, |a, b| a ^ b));
        let started = Instant::now();
        let sends = json!({"messages": [{"body": "x", "delay_ms": delay}]});
        call(&server, "/queues/q/messages", &sends).await;
        let receive = json!({"wait_ms": 10_000});
        let received = call(&server, "/queues/q/receive", &receive).await;
        let took = started.elapsed();
        assert!(
            took >= Duration::from_millis(delay),
            "{took:?} after a delay of {delay} ms"
        );
        let receipt = &received["messages"][0]["receipt"];
        let ack = json!({"settles": [{"receipt": receipt, "action": "ack"}]});
        call(&server, "/queues/q/settle", &ack).await;
    }
}
