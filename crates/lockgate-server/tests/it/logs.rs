//! What clients can write into the log: fields on one line, and nothing of their messages.

use std::{
    env, io,
    process::Command,
    sync::{Arc, Mutex},
};

use serde_json::json;
use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};

use crate::support::TestServer;

/// Keeps what is written, one entry an event.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

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

impl Events {
    /// Keeps what this process logs from now on, from `level` up.
    pub(crate) fn record(level: LevelFilter) -> Self {
        let events = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(events.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        events
    }

    /// All so far that have this in them.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let events = self.0.lock().unwrap();
        let found = events.iter().filter(|event| event.contains(text));
        found.cloned().collect()
    }
}

/// Set in a process that runs nothing but one test.
const ALONE: &str = "LOCKGATE_TEST_ALONE";

/// Runs the test of this name in a process of its own, and says in there that it is so: which events are
/// recorded is decided once for all threads, so tests beside it would make it miss some.
pub(crate) fn is_alone(this: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", this, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complained}");
    assert!(said.contains("1 passed"), "{said}");
    false
}

#[test]
fn one_event_is_one_line_whatever_clients_send() {
    if is_alone("logs::one_event_is_one_line_whatever_clients_send") {
        hostile_requests();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn hostile_requests() {
    let events = Events::record(LevelFilter::TRACE);
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
