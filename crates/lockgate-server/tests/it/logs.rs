//! What clients can write into the log: fields on one line, and nothing of their messages.

use std::{
    env, io,
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;

use crate::support::TestServer;

/// Keeps what is written, one entry an event.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl io::Write for Events {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8(event.to_vec()).unwrap();
        self.0.lock().unwrap().push(text);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Events {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Set in a process that runs nothing but the test below.
const ALONE: &str = "LOCKGATE_TEST_ALONE";

/// Runs in a process of its own: which events are recorded is decided once for all threads, so
/// tests beside it would make it miss some.
#[test]
fn one_event_is_one_line_whatever_clients_send() {
    if env::var_os(ALONE).is_some() {
        return alone();
    }
    let this = "logs::one_event_is_one_line_whatever_clients_send";
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "{said}");
}

#[tokio::main(flavor = "current_thread")]
async fn alone() {
    let events = Events::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(events.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = TestServer::start().await;

    let forged = "\n{\"level\":\"INFO\"}\r\n\u{1b}[31m\u{7}\u{85}\u{2028}";
    server
        .ask(TestServer::sqs_request(
            "CreateQueue",
            &json!({ "QueueName": forged }),
        ))
        .await
        .expect_refusal(400, "");
    server
        .ask(TestServer::sqs_request(
            "SendMessage",
            &json!({ "QueueUrl": server.queue_url(forged), "MessageBody": "secret-body" }),
        ))
        .await
        .expect_refusal(400, "");
    let head = "POST /\u{85}%0a%1b HTTP/1.1\r\nHost: localhost\r\n";
    server.ask(format!("{head}\r\n")).await;
    let target = "X-Amz-Target: AmazonSQS.\u{85}\u{2028}\t[\r\n";
    let authorization = "Authorization: Credential=\u{85}\u{2028}/\r\n";
    server
        .ask(format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\n{target}{authorization}\r\n"
        ))
        .await;
    server
        .ask("GET / HTTP/1.1\r\nHost: \u{85}\u{2028}\r\n\r\n")
        .await;
    server.stop().await;

    let events = events.0.lock().unwrap();
    assert!(events.len() > 10, "{events:?}");
    let requests = events
        .iter()
        .filter(|event| event.contains("lockgate::access"));
    assert_eq!(requests.count(), 5);
    for event in events.iter() {
        let line = event.strip_suffix('\n').unwrap();
        let broken = line
            .chars()
            .find(|&c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}'));
        assert_eq!(broken, None, "in {line:?}");
        assert!(!line.contains("secret-body"), "{line:?}");
    }
}
