//! Health, and paths and methods that lead nowhere.

use std::{fs, sync::Arc};

use lockgate_core::{Message, QueueName, UniqueId, WallTime};
use lockgate_engine::{Engine, EngineOptions, FolderIndex, IndexOptions, Status};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{CreateQueue, QueueSettings, SendMessage};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::support::{TestServer, in_time, post};

#[tokio::test]
async fn health_pages_tell_what_they_promise() {
    let server = TestServer::start().await;
    let health = server.get("/healthz").await;
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    assert_eq!(health.header("cache-control"), Some("no-store"));
    let ready = server.get("/readyz").await;
    assert_eq!(
        (ready.status, ready.body.as_str()),
        (200, "{\"ready\":true,\"space\":\"normal\"}\n")
    );
}

#[tokio::test]
async fn readiness_ends_with_the_engine_and_health_does_not() {
    let server = TestServer::start().await;
    server.engine.shutdown().await;
    assert!(matches!(server.engine.status(), Status::Stopped { .. }));
    let ready = server.get("/readyz").await;
    assert_eq!(ready.status, 503);
    let body: serde_json::Value = serde_json::from_str(&ready.body).unwrap();
    assert_eq!(body["ready"], false);
    assert_eq!(body["reason"], "stopped");
    assert_eq!(server.get("/healthz").await.status, 200);
    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.body.contains("\nlockgate_ready 0\n"), "{metrics:?}");
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let server = TestServer::start().await;
    let mut raw = server.connect().await;
    raw.send("HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await;
    let answer = String::from_utf8(raw.closed().await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-length: 3\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn what_is_not_there_is_said_so() {
    let server = TestServer::start().await;
    for path in [
        "/favicon.ico",
        "/consoles",
        "/healthz/",
        "/a/b/c",
        "/%00",
        "//",
    ] {
        server
            .get(path)
            .await
            .expect_refusal(404, "The Amazon SQS API is at /");
    }
    for path in ["/", "/000000000000/orders"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 404, "{answer:?}");
        assert_eq!(answer.body, "<UnknownOperationException/>\n");
    }
    // In the protocol in which it was asked.
    let form = "Action=ListQueues";
    let headers = format!(
        "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n",
        form.len()
    );
    let target = format!("{headers}X-Amz-Target: AmazonSQS.ListQueues\r\n");
    let json = headers.replace("x-www-form-urlencoded", "x-amz-json-1.0");
    for (headers, kind) in [
        (headers, "text/xml"),
        (target, "text/xml"),
        (json, "application/x-amz-json-1.0"),
    ] {
        let posted = post(&headers, form).replacen("POST /", "POST /queues/orders", 1);
        let answer = server.ask(posted).await;
        answer.expect_refusal(404, "The Amazon SQS API is at /");
        assert_eq!(answer.header("content-type"), Some(kind));
    }
    for (request, allowed) in [
        ("DELETE /", "GET, POST"),
        ("PUT /000000000000/orders", "GET, POST"),
        ("OPTIONS /", "GET, POST"),
        ("POST /healthz", "GET, HEAD"),
        ("DELETE /metrics", "GET, HEAD"),
    ] {
        let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let answer = server.ask(request).await;
        answer.expect_refusal(405, "not allowed here");
        assert_eq!(answer.header("allow"), Some(allowed));
    }
    for request in ["OPTIONS *", "CONNECT localhost:80", "BREW /coffee"] {
        let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        server.ask(request).await.expect_refusal(404, "nothing at");
    }
}

/// A disk that finishes nothing: the server lives, and nobody should be sent to it.
#[tokio::test]
async fn a_stalled_server_is_healthy_and_not_ready() {
    let server = TestServer::start_with(|options| {
        // So short a time passes whatever the disk does.
        options.deadlines.stall = std::time::Duration::ZERO;
    })
    .await;
    let ready = server.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("\"reason\":\"stalled\""), "{ready:?}");
    assert_eq!(server.get("/healthz").await.status, 200);
}

/// Clients correct their clocks by it. The HTTP library's own stands still for as long as a clock was set
/// back by.
#[tokio::test]
async fn the_date_is_the_wall_clocks_also_when_that_is_set_back() {
    let clock = ManualClock::new(WallTime(784_111_777_000));
    let log = LocalLog::open(Arc::new(FaultyDisk::new()), LocalLogOptions::default()).unwrap();
    let start = Engine::start(log, Arc::new(clock.clone()), EngineOptions::default());
    let server = TestServer::start_over(start.unwrap().0, |_| ()).await;
    for (wall, date) in [
        (784_111_777_000, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
    ] {
        clock.set_wall(WallTime(wall));
        assert_eq!(server.get("/healthz").await.header("date"), Some(date));
        assert_eq!(server.get("/nothing").await.header("date"), Some(date));
    }
    server.stop().await;
}

/// Sends go on while the index of unique ids cannot be written, but somebody should look.
#[tokio::test]
async fn readiness_says_whether_the_index_of_unique_ids_works() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("index");
    fs::write(&place, "in its way").unwrap();
    let log = LocalLog::open(Arc::new(FaultyDisk::new()), LocalLogOptions::default()).unwrap();
    let index = Arc::new(FolderIndex::new(place.clone(), IndexOptions::default()));
    let options = EngineOptions {
        index: Some(index.clone()),
        checks_index: false,
        ..EngineOptions::default()
    };
    let clock = Arc::new(ManualClock::default());
    let (engine, _) = Engine::start(log, clock, options).unwrap();
    let server = TestServer::start_over(engine, |_| ()).await;
    let settings = QueueSettings {
        dedup_window: QueueSettings::FOREVER,
        // Few stay in memory.
        dedup_bytes_max: 1_280,
        ..QueueSettings::default()
    };
    let name = QueueName::new("q").unwrap();
    let create = CreateQueue {
        name: name.clone(),
        settings,
        annotations: Default::default(),
        tags: Default::default(),
    };
    server.engine.submit(create).await.unwrap();
    for number in 0..18 {
        let unique_id = UniqueId::new(&number.to_string()).unwrap();
        let message = Message::new("x").with_unique_id(unique_id);
        let send = SendMessage {
            queue: name.clone(),
            message,
        };
        server.engine.submit(send).await.unwrap();
    }
    let until = async |state: &str| {
        let wanted = format!("\"unique_ids\":\"{state}\"");
        in_time(async { while !server.get("/readyz").await.body.contains(&wanted) {} }).await;
    };
    until("failing").await;
    assert_eq!(server.get("/readyz").await.status, 200);
    fs::remove_file(&place).unwrap();
    until("normal").await;
    in_time(async {
        // The ids that could not move before have moved.
        while index.get().is_none_or(|index| index.entries() == 0) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let metrics = server.get("/metrics").await.body;
    assert!(
        !metrics.contains("\nlockgate_index_disk_bytes 0\n"),
        "{metrics}"
    );
    assert!(metrics.contains("\nlockgate_index_merges_failed_total 0\n"));
    server.stop().await;
}
