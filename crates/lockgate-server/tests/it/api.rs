//! The admin API over the wire.

use serde_json::{Value, json};

use crate::support::{Answer, TestServer};

async fn ask(server: &TestServer, method: &str, target: &str, headers: &str, body: &str) -> Answer {
    let len = body.len();
    server
        .ask(format!(
            "{method} /api/v1{target} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: \
             {len}\r\n\r\n{body}"
        ))
        .await
}

const JSON: &str = "Content-Type: application/json\r\n";

#[track_caller]
fn problem(answer: &Answer, status: u16, code: &str) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json")
    );
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(body["code"], code, "{body}");
    assert_eq!(body["status"], status);
    body
}

#[tokio::test]
async fn both_apis_are_doors_to_the_same_queues() {
    let server = TestServer::start().await;
    let made = ask(&server, "POST", "/queues", JSON, r#"{"name":"mail"}"#).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.header("x-content-type-options"), Some("nosniff"));
    let url = server.queue_url("mail");
    let send = json!({"QueueUrl": url, "MessageBody": "hello"});
    server.sqs("SendMessage", &send).await;
    let received = ask(&server, "POST", "/queues/mail/receive", JSON, "{}").await;
    let received: Value = serde_json::from_str(&received.body).unwrap();
    assert_eq!(received["messages"][0]["body"], "hello");
    // A receipt of one is a receipt handle of the other.
    let delete = json!({"QueueUrl": url, "ReceiptHandle": received["messages"][0]["receipt"]});
    server.sqs("DeleteMessage", &delete).await;
    let queue = server.get("/api/v1/queues/mail").await;
    let queue: Value = serde_json::from_str(&queue.body).unwrap();
    assert_eq!(queue["totals"]["acknowledged"], 1);
    assert_eq!(queue["counts"]["in_flight"], 0);
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing_and_read_nothing() {
    let server = TestServer::start().await;
    ask(&server, "POST", "/queues", JSON, r#"{"name":"mail"}"#).await;
    // What a form, or a script that may not ask first, can make a browser send.
    for content_type in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: multipart/form-data; boundary=x\r\n",
    ] {
        let answer = ask(&server, "POST", "/queues/mail/purge", content_type, "").await;
        problem(&answer, 415, "unsupported_media_type");
    }
    let foreign = format!("{JSON}Origin: http://evil.example\r\n");
    let answer = ask(&server, "POST", "/queues/mail/purge", &foreign, "").await;
    problem(&answer, 403, "not_served");
    let image = "Sec-Fetch-Site: cross-site\r\n";
    let answer = ask(&server, "GET", "/queues", image, "").await;
    problem(&answer, 403, "not_served");
    // The question a browser asks before anything else is not answered.
    let answer = ask(&server, "OPTIONS", "/queues/mail/purge", "", "").await;
    problem(&answer, 405, "method_not_allowed");
    assert!(answer.header("access-control-allow-origin").is_none());
    assert_eq!(answer.header("allow"), Some("POST"));
    // A name that points here is not ours.
    let answer = server
        .ask("GET /api/v1/queues HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        .await;
    problem(&answer, 403, "not_served");
}

#[tokio::test]
async fn refusals_before_an_operation_are_problems_too() {
    let server = TestServer::start_with(|options| options.limits.body_bytes_max = 1000).await;
    let answer = ask(&server, "GET", "/nothing", "", "").await;
    problem(&answer, 404, "not_found");
    let answer = ask(&server, "POST", "/queues", JSON, &" ".repeat(1001)).await;
    problem(&answer, 413, "body_too_large");
    let answer = ask(&server, "POST", "/queues", JSON, "{").await;
    problem(&answer, 400, "malformed_request");
    let encoded = format!("{JSON}Content-Encoding: gzip\r\n");
    let answer = ask(&server, "POST", "/queues", &encoded, "{}").await;
    problem(&answer, 415, "unsupported_media_type");
}

#[tokio::test]
async fn the_description_is_served() {
    let server = TestServer::start().await;
    let answer = server.get("/api/v1/openapi.json").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let document: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    // What it names is there: nothing answers that there is no such address.
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let method = method.to_ascii_uppercase();
            let target = path
                .strip_prefix("/api/v1")
                .unwrap()
                .replace(['{', '}'], "");
            let answer = ask(&server, &method, &target, JSON, "{}").await;
            let code = serde_json::from_str(&answer.body).map(|body: Value| body["code"].clone());
            let missing = code.is_ok_and(|code| code == "not_found");
            assert!(!missing && answer.status != 405, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_long_poll_ends_with_a_message_or_with_the_server() {
    let server = TestServer::start().await;
    ask(&server, "POST", "/queues", JSON, r#"{"name":"mail"}"#).await;
    let wait = async |body: &str| {
        let mut raw = server.connect().await;
        raw.send(format!(
            "POST /api/v1/queues/mail/receive HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: \
             {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        while server.engine.metrics().waiters == 0 {
            tokio::task::yield_now().await;
        }
        raw
    };
    let mut waiting = wait(r#"{"wait_ms":20000,"max":1}"#).await;
    let message = r#"{"messages":[{"body":"now"}]}"#;
    ask(&server, "POST", "/queues/mail/messages", JSON, message).await;
    assert!(waiting.answer().await.body.contains("\"now\""));
    let mut waiting = wait(r#"{"wait_ms":20000}"#).await;
    let ended = server.call_shutdown();
    let answer = waiting.answer().await.body;
    assert!(answer.starts_with(r#"{"messages":[],"#), "{answer}");
    assert!(ended.await.unwrap().engine_stopped);
}
