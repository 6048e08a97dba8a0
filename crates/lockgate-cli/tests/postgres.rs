//! A server whose queues are in a PostgreSQL database: `./scripts/test --only postgres`.

#![expect(clippy::unwrap_used, reason = "in tests a panic is the report")]

#[path = "cli/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::{
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStderr, Stdio},
};

use serde_json::Value;

use crate::support::{Sandbox, json_lines};

fn url() -> String {
    std::env::var("LOCKGATE_TEST_POSTGRES").expect("scripts/services run sets it")
}

/// A server on a shard; killed when dropped.
struct Server {
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
    url: String,
    recovered: Value,
}

impl Server {
    fn start(sandbox: &Sandbox, shard: &str) -> Self {
        let mut process = sandbox
            .command("serve --listen 127.0.0.1:0 --postgres-shard")
            .arg(shard)
            .env("LOCKGATE_POSTGRES", url())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut server = Self {
            process,
            log,
            url: String::new(),
            recovered: Value::Null,
        };
        server.recovered = server.event("recovered");
        let ready = server.event("ready");
        assert_eq!(ready["data"], format!("the shard {shard:?} in PostgreSQL"));
        server.url = ready["url"].as_str().unwrap().to_owned();
        server
    }

    fn event(&mut self, sentence: &str) -> Value {
        loop {
            let line = self.log.next().expect("the server goes on").unwrap();
            let event = json_lines(&line).remove(0);
            if event["message"] == sentence {
                return event;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn shard(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

#[test]
fn a_killed_server_finds_everything_and_a_second_one_takes_over() {
    let sandbox = Sandbox::new();
    let shard = shard("kill");
    let server = Server::start(&sandbox, &shard);
    for number in 0..5 {
        let url = &server.url;
        sandbox
            .run(&format!(
                "send -q orders.fifo --create --key k --endpoint {url} order-{number}"
            ))
            .ok();
    }
    drop(server);

    let mut server = Server::start(&sandbox, &shard);
    assert_eq!(server.recovered["messages"], 5, "{}", server.recovered);
    assert_eq!(server.recovered["after_crash"], true);
    // A backup goes from a database to a folder.
    let url = server.url.clone();
    sandbox.run(&format!("backup kept.backup --endpoint {url}"));
    sandbox.run("restore kept.backup --data restored").ok();
    let text = sandbox.run("check restored").ok();
    assert!(text.contains("5 messages in the queues"), "{text}");

    // Two servers: the later one has it, and the earlier one ends when it is told.
    let second = Server::start(&sandbox, &shard);
    let done = sandbox.run(&format!(
        "send -q orders.fifo --key k --timeout 1s --endpoint {url} late"
    ));
    assert_ne!(done.code, Some(0), "{done:?}");
    assert_eq!(server.process.wait().unwrap().code(), Some(1));
    let url = &second.url;
    let received = sandbox
        .run(&format!(
            "receive -q orders.fifo --max 10 --ack --endpoint {url}"
        ))
        .json();
    let bodies: Vec<_> = received.iter().map(|line| line["body"].clone()).collect();
    assert_eq!(
        bodies,
        ["order-0", "order-1", "order-2", "order-3", "order-4"]
    );
    assert!(!sandbox.path().join("lockgate-data").exists());
}

#[test]
fn what_is_wrong_is_told_without_the_password() {
    let sandbox = Sandbox::new();
    for (url, code, says) in [
        ("postgres://u:hidden@127.0.0.1:1/d", 1, "opening the shard"),
        (
            "postgres://u:hidden@127.0.0.1/d?sslmode=never",
            1,
            "sslmode=never is none of disable",
        ),
        (
            "mysql://u:hidden@127.0.0.1/d",
            2,
            "does not begin with postgres://",
        ),
    ] {
        let output = sandbox
            .command("serve --listen 127.0.0.1:0 --log-format text")
            .env("LOCKGATE_POSTGRES", url)
            .output()
            .unwrap();
        let error = support::Done::from(output).fails_with(code);
        assert!(error.contains(says), "{error}");
        assert!(!error.contains("hidden"), "{error}");
    }
    let output = sandbox
        .command("config show")
        .env("LOCKGATE_POSTGRES", "postgres://u:secret-word@127.0.0.1/d")
        .output()
        .unwrap();
    let shown = support::Done::from(output).ok();
    assert!(
        shown.contains("(hidden)") && !shown.contains("secret-word"),
        "{shown}"
    );
}
