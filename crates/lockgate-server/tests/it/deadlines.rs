//! Clients that take their time. Deadlines are short here; what is waited for is the closed
//! connection, however long that takes.

use std::time::Duration;

use lockgate_server::Deadlines;
use tokio::{io::AsyncWriteExt, time::sleep};

use crate::support::{TestServer, in_time, post};

const SHORT: Duration = Duration::from_millis(50);

/// Only the deadline that `change` shortens can end a connection.
async fn start(change: impl FnOnce(&mut Deadlines)) -> TestServer {
    TestServer::start_with(|options| {
        let far = Duration::from_secs(3600);
        options.deadlines = Deadlines {
            header: far,
            idle: far,
            transfer_grace: far,
            transfer_rate_min: u64::MAX, // no time is earned by bytes
            ..Deadlines::default()
        };
        change(&mut options.deadlines);
    })
    .await
}

async fn counted(server: &TestServer, reason: &str) {
    let metrics = server.get("/metrics").await.body;
    let line = format!("lockgate_http_refused_total{{reason=\"{reason}\"}} 1\n");
    assert!(metrics.contains(&line), "no {line:?} in {metrics}");
}

#[tokio::test]
async fn half_a_head_is_closed_at_its_deadline() {
    let server = start(|deadlines| deadlines.header = SHORT).await;
    let mut raw = server.connect().await;
    raw.send("POST / HTTP/1.1\r\nHost: local").await;
    assert_eq!(raw.closed().await, b"");
    counted(&server, "header_deadline").await;
}

#[tokio::test]
async fn a_head_that_drips_is_closed_at_its_deadline() {
    let server = start(|deadlines| deadlines.header = SHORT).await;
    let mut raw = server.connect().await;
    raw.send("POST / HTTP/1.1\r\nX: ").await;
    in_time(async {
        while raw.0.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    counted(&server, "header_deadline").await;
}

#[tokio::test]
async fn half_a_head_after_a_whole_request_is_closed_at_its_deadline() {
    let server = start(|deadlines| deadlines.header = SHORT).await;
    let mut raw = server.connect().await;
    raw.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        .await;
    assert_eq!(raw.answer().await.status, 200);
    assert_eq!(raw.closed().await, b"");
    counted(&server, "header_deadline").await;
}

#[tokio::test]
async fn a_silent_connection_is_closed_at_its_deadline() {
    let server = start(|deadlines| deadlines.idle = SHORT).await;
    assert_eq!(server.connect().await.closed().await, b"");
    let mut used = server.connect().await;
    used.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    assert_eq!(used.answer().await.status, 200);
    assert_eq!(used.closed().await, b"");
}

#[tokio::test]
async fn a_body_that_drips_is_closed_at_its_deadline() {
    for (headers, drop_of_body) in [
        ("Content-Length: 100000\r\n", "x"),
        ("Transfer-Encoding: chunked\r\n", "1\r\nx\r\n"),
    ] {
        let server = start(|deadlines| deadlines.transfer_grace = SHORT).await;
        let mut raw = server.connect().await;
        raw.send(post(headers, drop_of_body)).await;
        in_time(async {
            while raw.0.write_all(drop_of_body.as_bytes()).await.is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        counted(&server, "body_deadline").await;
    }
}

#[tokio::test]
async fn a_body_that_comes_along_is_not_closed() {
    let server = start(|deadlines| {
        deadlines.transfer_rate_min = 1;
    })
    .await;
    let mut raw = server.connect().await;
    raw.send(post("Content-Length: 10001\r\n", &" ".repeat(10_000)))
        .await;
    sleep(SHORT).await;
    raw.send(" ").await;
    assert_eq!(raw.answer().await.status, 404, "read, and no action");
}

#[tokio::test]
async fn a_body_that_falls_silent_is_closed_however_much_came_before() {
    let server = start(|deadlines| {
        deadlines.transfer_grace = SHORT;
        deadlines.transfer_rate_min = 1; // hours for what comes here, if they were added up
    })
    .await;
    let mut raw = server.connect().await;
    raw.send(post("Content-Length: 10001\r\n", &" ".repeat(10_000)))
        .await;
    assert_eq!(raw.closed().await, b"");
    counted(&server, "body_deadline").await;
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answers_is_cut_off() {
    let server = start(|deadlines| deadlines.transfer_grace = SHORT).await;
    let mut raw = server.connect().await;
    // Far more answers than the kernel keeps for a client that does not read.
    let many = "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(1000);
    in_time(async { while raw.0.write_all(many.as_bytes()).await.is_ok() {} }).await;
    counted(&server, "answer_deadline").await;
}
