//! `lockgate bench` against a running server: what it counts, and what it leaves.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStderr, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Sandbox, Server, signal};

/// Names of all queues of the server.
fn queues(sandbox: &Sandbox, server: &Server) -> Vec<String> {
    let list = sandbox.run(&format!("queue list --json --endpoint {}", server.url));
    let names = list.json().into_iter();
    names
        .map(|queue| queue["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A bench that measures for so long that only a signal ends it, and the queue it has made.
fn start_long(sandbox: &Sandbox, server: &Server) -> (Child, BufReader<ChildStderr>, String) {
    let arguments = format!("bench --time 1h --callers 2 --endpoint {}", server.url);
    let mut bench = sandbox
        .command(&arguments)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(bench.stderr.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    let mut words = line.split(' ');
    let queue = words.find(|word| word.starts_with("bench-"));
    let queue = queue.unwrap_or_else(|| panic!("{line}")).to_owned();
    (bench, says, queue)
}

#[test]
fn it_counts_sends_receives_and_acks_of_a_queue_of_its_own() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    for keys in [0, 5] {
        let lines = sandbox
            .run(&format!(
                "bench --json --time 1s --callers 3 --batch 7 --size 2KiB --keys {keys} --endpoint {}",
                server.url
            ))
            .json();
        let calls: Vec<_> = lines.iter().map(|line| &line["call"]).collect();
        assert_eq!(calls, ["send", "receive", "ack"]);
        let number = |line: &Value, name: &str| {
            let number = line[name].as_f64();
            number.unwrap_or_else(|| panic!("{name}: {line}"))
        };
        for line in &lines {
            assert!(number(line, "messages") >= number(line, "calls"));
            assert!(number(line, "calls") > 0.0);
            assert!(number(line, "seconds") > 0.0);
            assert!(number(line, "messages_per_second") > 0.0);
            let times = ["p50_ms", "p90_ms", "p99_ms", "max_ms"].map(|name| number(line, name));
            assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
            let params = [("callers", 3), ("batch", 7), ("size", 2048), ("keys", keys)];
            for (name, value) in params {
                assert_eq!(line[name], value);
            }
            assert_eq!(line["endpoint"], server.url);
        }
        let [sent, received, acked] = [0, 1, 2].map(|line| number(&lines[line], "messages"));
        assert_eq!(sent, number(&lines[0], "calls") * 7.0);
        assert!(received <= sent);
        assert_eq!(received, acked);
    }
    assert_eq!(queues(&sandbox, &server), [""; 0]);
}

#[test]
fn a_table_has_a_row_for_each_kind_of_call() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let arguments = format!("bench --time 1s --callers 1 --endpoint {}", server.url);
    let table = sandbox.run(&arguments).ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split('\t').collect()).collect();
    let calls: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(calls, ["CALL", "send", "receive", "ack"]);
    for row in &rows[1..] {
        assert_eq!(row.len(), 7, "{row:?}");
        for cell in &row[1..] {
            assert!(cell.parse::<f64>().is_ok(), "{row:?}");
        }
    }
}

#[test]
fn a_signal_ends_it_and_its_queue_goes_too() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    for (kind, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (bench, _says, queue) = start_long(&sandbox, &server);
        assert_eq!(queues(&sandbox, &server), [queue]);
        signal(&bench, kind);
        let done = bench.wait_with_output().unwrap();
        assert_eq!(done.status.code(), Some(code));
        assert!(done.stdout.is_empty());
        assert_eq!(queues(&sandbox, &server), [""; 0]);
    }
}

/// What cannot be deleted is named, so that somebody can.
#[test]
fn a_server_that_dies_leaves_a_queue_and_its_name() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let (bench, mut says, queue) = start_long(&sandbox, &server);
    server.signal(Signal::KILL);
    server.wait();
    let status = bench.wait_with_output().unwrap().status;
    assert!(matches!(status.code(), Some(1 | 5)), "{status}");
    let mut rest = String::new();
    says.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains(&format!("lockgate queue delete {queue}")),
        "{rest}"
    );
    let server = Server::start(&sandbox);
    assert_eq!(queues(&sandbox, &server), [queue]);
}

/// A second signal does not wait for an answer to the deletion.
#[test]
fn a_second_signal_ends_it_though_the_server_hangs() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let (bench, mut says, queue) = start_long(&sandbox, &server);
    server.signal(Signal::STOP);
    // Of different kinds: two of one kind may arrive as one.
    signal(&bench, Signal::INT);
    signal(&bench, Signal::TERM);
    let status = bench.wait_with_output().unwrap().status;
    assert!(matches!(status.code(), Some(130 | 143)), "{status}");
    let mut rest = String::new();
    says.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains(&format!("lockgate queue delete {queue}")),
        "{rest}"
    );
}
