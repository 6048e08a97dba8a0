//! The orderly end of a run.

use lockgate_engine::Status;

use crate::support::{TestServer, post};

#[tokio::test]
async fn a_server_without_work_ends_at_once_and_stops_its_engine() {
    let server = TestServer::start().await;
    let engine = server.engine.clone();
    let mut idle = server.connect().await;
    idle.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    assert_eq!(idle.answer().await.status, 200);
    let address = server.address;
    let report = server.stop().await;
    assert_eq!(idle.closed().await, b"");
    assert_eq!((report.connections, report.requests, report.cut), (1, 1, 0));
    assert!(report.engine_stopped);
    assert!(matches!(engine.status(), Status::Stopped { .. }));
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_request_that_has_begun_is_answered_and_its_connection_closed() {
    let server = TestServer::start().await;
    let mut raw = server.connect().await;
    raw.send(post("Content-Length: 4\r\nExpect: 100-continue\r\n", ""))
        .await;
    assert_eq!(
        raw.answer().await.status,
        100,
        "the request is in the server's hands"
    );
    let run = server.call_shutdown();
    raw.send("null").await;
    let answer = raw.answer().await;
    assert_eq!(answer.status, 404, "{answer:?}");
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(raw.closed().await, b"");
    assert_eq!(run.await.unwrap().cut, 0);
}

#[tokio::test]
async fn what_does_not_end_is_cut() {
    let server = TestServer::start_with(|options| {
        options.deadlines.shutdown = std::time::Duration::from_millis(50);
    })
    .await;
    let mut raw = server.connect().await;
    raw.send(post("Content-Length: 4\r\nExpect: 100-continue\r\n", ""))
        .await;
    assert_eq!(raw.answer().await.status, 100);
    let report = server.stop().await;
    assert_eq!(report.cut, 1);
    assert_eq!(raw.closed().await, b"");
}

#[tokio::test]
async fn two_servers_in_one_process_do_not_know_each_other() {
    let one = TestServer::start().await;
    let other = TestServer::start().await;
    one.get("/healthz").await;
    let requests = "lockgate_http_requests_total{action=\"healthz\",status=\"200\"} 1\n";
    assert!(one.get("/metrics").await.body.contains(requests));
    assert!(!other.get("/metrics").await.body.contains(requests));
    one.stop().await;
    assert_eq!(other.get("/readyz").await.status, 200);
}
