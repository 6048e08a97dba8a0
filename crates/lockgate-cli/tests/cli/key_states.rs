//! A kill between a settle with a state and its answer.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    messages::{Town, bodies},
    process::Wire,
    support::Server,
};

const POST: &str = "POST /api/v1/transactions HTTP/1.1\r\nContent-Type: application/json";

/// Transactions that settle a message, write the state of its key and send another message, many on their way: after a
/// kill each has happened whole or not at all, and those that were answered have happened.
#[test]
fn a_kill_leaves_the_settle_and_the_state_or_neither() {
    const KEYS: usize = 40;
    for answered in [0, 1, 17] {
        let mut town = Town::new();
        town.run("queue create in.fifo").ok();
        town.run("queue create out").ok();
        let line = |key: usize| json!({"body": "x", "key": format!("k{key}")}).to_string() + "\n";
        let lines: String = (0..KEYS).map(line).collect();
        town.send_lines("in.fifo", &lines).ok();
        let received = town
            .run("receive in.fifo --max 100 --wait 5s --lease 1h")
            .json();
        assert_eq!(received.len(), KEYS);
        let transactions: Vec<String> = received.iter().map(transaction).collect();

        let mut wire = Wire::to(&town.server.url);
        for body in &transactions {
            wire.write(POST, body);
        }
        for _ in 0..answered {
            let (status, answer) = wire.answer();
            assert_eq!(status, 200, "{answer}");
        }
        town.server.signal(rustix::process::Signal::KILL);
        let address = town.server.url.trim_start_matches("http://").to_owned();
        town.server = Server::restart(town.server, &town.sandbox, &address);

        let mut wire = Wire::to(&town.server.url);
        let mut done = BTreeSet::new();
        for message in &received {
            let key = message["key"].as_str().unwrap();
            let target = format!("GET /api/v1/queues/in.fifo/keys/{key}");
            let (status, state) = wire.ask(&format!("{target}/state HTTP/1.1"), "");
            let (_, explained) = wire.ask(&format!("{target} HTTP/1.1"), "");
            let explained: Value = serde_json::from_str(&explained).unwrap();
            match status {
                200 => {
                    assert_eq!(explained["messages"], 0, "{key}: {state}");
                    done.insert(key.to_owned());
                }
                _ => assert_eq!(explained["messages"], 1, "{key}: {state}"),
            }
        }
        assert!(done.len() >= answered, "{done:?}");
        // A retry of what is done does nothing again, and does the rest.
        for body in &transactions {
            wire.write(POST, body);
        }
        for message in &received {
            let (status, answer) = wire.answer();
            let was_done = done.contains(message["key"].as_str().unwrap());
            assert_eq!(status == 409, was_done, "{answer}");
        }
        let sent = town.drain("out");
        let sent = bodies(&sent);
        assert_eq!(sent.len(), KEYS);
        assert_eq!(sent.into_iter().collect::<BTreeSet<_>>().len(), KEYS);
    }
}

#[test]
fn a_drop_says_whether_there_was_a_state() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    for how in ["--any", "--replaces 1"] {
        let error = town
            .run(&format!("key state drop q.fifo a {how}"))
            .fails_with(3);
        assert!(
            error.contains("key a of queue q.fifo has no state"),
            "{error}"
        );
    }
    for _ in 0..2 {
        town.run("key state set q.fifo a x --any").ok();
        town.run("key state drop q.fifo a --replaces 9")
            .fails_with(4);
        let done = town.run("key state drop q.fifo a --any");
        assert!(
            done.stderr.contains("dropped the state of a of q.fifo"),
            "{done:?}"
        );
        town.run("key state get q.fifo a").fails_with(3);
    }
}

fn transaction(message: &Value) -> String {
    let settle = json!({
        "receipt": message["receipt"], "action": "ack", "state": {"value": "done"},
    });
    let send = json!({"queue": "out", "message": {"body": message["key"]}});
    json!({"settles": [settle], "sends": [send]}).to_string()
}
