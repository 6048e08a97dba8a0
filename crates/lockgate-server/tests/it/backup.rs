//! The stream of a backup: whole, held up, broken off, refused.

use std::sync::Arc;

use lockgate_engine::restore;
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use lockgate_server::{AccessKey, Authentication, Grant, Names, Secret, Verb};
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::support::{Raw, TestServer, in_time, sign};

const GET: &str = "GET /api/v1/backup HTTP/1.0\r\nHost: localhost\r\n\
     Content-Type: application/json\r\n\r\n";

/// Sends so many messages of 250 KiB.
async fn fill(server: &TestServer, messages: usize) {
    server
        .sqs("CreateQueue", &json!({ "QueueName": "q" }))
        .await;
    let send = json!({
        "QueueUrl": server.queue_url("q"),
        "MessageBody": "x".repeat(250 << 10),
    });
    for _ in 0..messages {
        server.sqs("SendMessage", &send).await;
    }
}

/// Restores what came behind the answer's head.
fn restored(answer: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(1_000)]).into_owned();
    assert!(text.starts_with("HTTP/1.0 200"), "{text}");
    let body = text.find("\r\n\r\n").unwrap() + 4;
    let folder = tempfile::tempdir().unwrap();
    let disk = FolderDisk::open(folder.path()).unwrap();
    let log = LocalLog::open(Arc::new(disk), LocalLogOptions::default()).unwrap();
    let report = restore(&mut &answer[body..], log, None).unwrap();
    report.messages
}

async fn ask(server: &TestServer) -> Raw {
    let mut raw = server.connect().await;
    raw.send(GET).await;
    raw
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_comes_over_http_and_can_be_restored() {
    let server = TestServer::start().await;
    fill(&server, 3).await;
    let answer = ask(&server).await.closed().await;
    assert_eq!(restored(&answer), 3);
    assert!(server.stop().await.engine_stopped);
}

/// A client that does not read holds its backup up, not the queues; one that goes away ends it.
#[tokio::test(flavor = "multi_thread")]
async fn one_at_a_time_and_who_goes_away_ends_it() {
    let server = TestServer::start().await;
    // More than kernels keep for a connection.
    fill(&server, 100).await;
    let mut slow = ask(&server).await;
    let begun = in_time(slow.0.read_u8()).await.unwrap();
    assert_eq!(begun, b'H');
    let second = server.ask(GET).await;
    second.expect_refusal(503, "being taken already");
    // The queues go on.
    fill(&server, 1).await;
    drop(slow);
    loop {
        let answer = ask(&server).await.closed().await;
        if answer.starts_with(b"HTTP/1.0 200") {
            assert_eq!(restored(&answer), 101);
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(server.stop().await.engine_stopped);
}

#[tokio::test]
async fn others_and_other_methods_are_refused() {
    let server = TestServer::start().await;
    let evil = GET.replace("localhost", "evil.example");
    server.ask(evil).await.expect_refusal(403, "evil.example");
    for method in ["HEAD", "POST", "DELETE"] {
        let mut raw = server.connect().await;
        raw.send(GET.replace("GET", method)).await;
        let answer = raw.closed().await;
        assert!(answer.starts_with(b"HTTP/1.0 405"), "{method}");
    }
    server.engine.shutdown().await;
    server.ask(GET).await.expect_refusal(503, "has stopped");
}

/// It holds everything, so who may not do everything may not have it.
#[tokio::test]
async fn where_keys_are_needed_it_takes_one_for_everything() {
    let grant = |queues: &str, verbs: &[Verb]| Grant {
        on: Names::Queues(queues.to_owned()),
        verbs: verbs.to_vec(),
    };
    let read = |on: Names| Grant {
        on,
        verbs: vec![Verb::Read],
    };
    let records = || read(Names::Records("*".to_owned()));
    let ledgers = || read(Names::Ledgers("*".to_owned()));
    let exchanges = || read(Names::Exchanges("*".to_owned()));
    let key = |id: &str, grants: Vec<Grant>| AccessKey {
        id: id.to_owned(),
        secret: Secret::new("secret-of-the-test"),
        grants,
    };
    let server = TestServer::start_with(|options| {
        options.authentication = Authentication::AccessKeys(vec![
            key(
                "ALL",
                vec![grant("*", &Verb::ALL), records(), ledgers(), exchanges()],
            ),
            key(
                "QUEUES",
                vec![grant("*", &Verb::ALL), ledgers(), exchanges()],
            ),
            key(
                "NOLEDGERS",
                vec![grant("*", &Verb::ALL), records(), exchanges()],
            ),
            key(
                "NOEXCHANGES",
                vec![grant("*", &Verb::ALL), records(), ledgers()],
            ),
            key(
                "SOME",
                vec![
                    grant("*", &Verb::ALL[1..]),
                    grant("q*", &Verb::ALL),
                    records(),
                    ledgers(),
                    exchanges(),
                ],
            ),
        ]);
    })
    .await;
    let unsigned = server.ask(GET).await;
    assert_eq!(unsigned.status, 401, "{unsigned:?}");
    for (id, status) in [
        ("SOME", 403),
        ("QUEUES", 403),
        ("NOLEDGERS", 403),
        ("NOEXCHANGES", 403),
        ("ALL", 200),
    ] {
        let mut headers = hyper::HeaderMap::new();
        headers.insert("host", "localhost".parse().unwrap());
        let now = jiff::Timestamp::now().as_second();
        let key = (id, "secret-of-the-test");
        sign("GET /api/v1/backup", &mut headers, "", key, now);
        let mut request = "GET /api/v1/backup HTTP/1.0\r\n".to_owned();
        for (name, value) in &headers {
            request += &format!("{name}: {}\r\n", value.to_str().unwrap());
        }
        let mut raw = server.connect().await;
        raw.send(request + "\r\n").await;
        let answer = raw.closed().await;
        let begin = format!("HTTP/1.0 {status}");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.starts_with(&begin), "{id}: {text}");
    }
}
