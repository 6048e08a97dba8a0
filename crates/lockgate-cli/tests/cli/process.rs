//! A server as a process among others: signals, open files, and whoever reads its log.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

use crate::support::{Sandbox, Server};

/// A connection that stays open between requests.
pub(crate) struct Wire(BufReader<TcpStream>);

impl Wire {
    pub(crate) fn to(url: &str) -> Self {
        let socket = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
        Self(BufReader::new(socket))
    }

    /// Status and body of the answer.
    pub(crate) fn ask(&mut self, head: &str, body: &str) -> (u16, String) {
        self.write(head, body);
        self.answer()
    }

    /// Sends a request, and waits for no answer.
    pub(crate) fn write(&mut self, head: &str, body: &str) {
        let len = body.len();
        let request = format!("{head}\r\nHost: localhost\r\nContent-Length: {len}\r\n\r\n{body}");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    pub(crate) fn answer(&mut self) -> (u16, String) {
        let (mut line, mut len, mut status) = (String::new(), 0, 0);
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().unwrap();
            }
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                len = text.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }

    fn get(&mut self, path: &str) -> (u16, String) {
        self.ask(&format!("GET {path} HTTP/1.1"), "")
    }

    pub(crate) fn sqs(&mut self, action: &str, body: &Value) -> (u16, String) {
        let head = format!(
            "POST / HTTP/1.1\r\nX-Amz-Target: AmazonSQS.{action}\r\nContent-Type: application/x-amz-json-1.0"
        );
        self.ask(&head, &body.to_string())
    }

    fn create(&mut self) {
        let (status, answer) = self.sqs("CreateQueue", &serde_json::json!({"QueueName": "q"}));
        assert_eq!(status, 200, "{answer}");
    }

    fn send(&mut self, body: &str) -> (u16, String) {
        let message = serde_json::json!({
            "QueueUrl": "http://localhost/000000000000/q",
            "MessageBody": body,
        });
        self.sqs("SendMessage", &message)
    }

    /// A counter or gauge without labels.
    fn metric(&mut self, name: &str) -> u64 {
        let (_, page) = self.get("/metrics");
        let mut values = page
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        values.next().unwrap().parse().unwrap()
    }
}

#[test]
fn other_signals_end_nothing() {
    let sandbox = Sandbox::new();
    for ignore in ["", "trap '' HUP;"] {
        let plain = sandbox.command("serve --listen 127.0.0.1:0 --data data");
        let shell = sandbox.shell(&plain, &format!("{ignore} exec \"$@\""));
        let mut server = Server::spawn(shell, "data");
        server.signal(Signal::HUP);
        server.event("there are no access keys and no certificate to read again");
        for (signal, name) in [
            (Signal::USR1, "SIGUSR1"),
            (Signal::USR2, "SIGUSR2"),
            (Signal::ALARM, "SIGALRM"),
        ] {
            server.signal(signal);
            let told =
                "ignored; SIGTERM ends the server, SIGHUP has keys and certificate read again";
            assert_eq!(server.event(told)["signal"], name);
        }
        server.signal(Signal::PIPE);
        server.signal(Signal::XFSZ);
        assert_eq!(Wire::to(&server.url).get("/healthz").0, 200);
        server.signal(Signal::QUIT);
        let stopping = server.event("stopping; another signal ends it at once");
        assert_eq!(stopping["signal"], "SIGQUIT");
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// Idle connections once took every descriptor, the next file of the log could not be made, and the
/// engine stopped as after a failure of the disk.
#[test]
fn idle_connections_leave_the_log_its_files() {
    let sandbox = Sandbox::new();
    let arguments = "serve --listen 127.0.0.1:0 --data data --segment-size 4MiB";
    let limited = "ulimit -n 320 && exec \"$@\"";
    let command = sandbox.command(arguments);
    let mut server = Server::spawn(sandbox.shell(&command, limited), "data");
    let mut wire = Wire::to(&server.url);
    wire.create();
    assert_eq!(wire.metric("lockgate_http_connections_max"), 64);
    let idle: Vec<_> = (0..150)
        .map(|_| TcpStream::connect(server.url.trim_start_matches("http://")).unwrap())
        .collect();
    // In the order they came, so this one was looked at last.
    let mut last = Wire(BufReader::new(idle.last().unwrap().try_clone().unwrap()));
    assert_eq!(last.answer().0, 503);
    let body = "x".repeat(500_000);
    for _ in 0..40 {
        let (status, answer) = wire.send(&body);
        assert_eq!(status, 200, "{answer}");
    }
    let open = wire.metric("lockgate_http_connections");
    assert_eq!(open, 48, "three quarters for one address");
    drop((idle, last));
    server.signal(Signal::TERM);
    server.event("stopped");
    assert_eq!(server.wait().code(), Some(0));

    // Nobody is given less than was asked for without a word.
    let command = sandbox.command(&format!(
        "{arguments} --log-format text --connections-max 65"
    ));
    let output = sandbox.shell(&command, limited).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("leaves 64 connections"), "{told}");
}

/// Something else in the system takes what there is: sends are refused, and all goes on by itself.
#[test]
fn a_server_out_of_descriptors_refuses_sends_and_goes_on() {
    let sandbox = Sandbox::new();
    let command = sandbox.command("serve --listen 127.0.0.1:0 --data data --segment-size 4MiB");
    let mut server = Server::spawn(command, "data");
    let mut wire = Wire::to(&server.url);
    wire.create();
    let body = "x".repeat(500_000);
    for _ in 0..20 {
        assert_eq!(wire.send(&body).0, 200);
    }
    let pid = Pid::from_raw(server.id().cast_signed()).unwrap();
    let limit = |current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum }).unwrap()
    };
    // No number is free below those that are taken.
    let before = limit(Some(1));
    let refused = (0..100)
        .map(|_| wire.send(&body))
        .find(|(status, _)| *status != 200);
    let (status, answer) = refused.expect("it cannot make that many segments");
    assert_eq!(status, 503, "{answer}");
    assert!(answer.contains("too many are open"), "{answer}");
    assert_eq!(wire.get("/readyz").0, 200);
    let mut other = Wire::to(&server.url);
    server.event("cannot accept connections for now; tried again all the time");
    limit(before.current);
    server.event("connections are accepted again");
    assert_eq!(other.get("/healthz").0, 200);
    let (status, answer) = other.send(&body);
    assert_eq!(status, 200, "{answer}");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// The pipe is full after 64 KiB, and a write to it then waits for ever: the server hung.
#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    let sandbox = Sandbox::new();
    let command = sandbox.command("serve --listen 127.0.0.1:0 --data data --log-level trace");
    let mut server = Server::spawn(command, "data");
    let mut wire = Wire::to(&server.url);
    wire.create();
    let dropped = "lockgate_stderr_lines_dropped_total";
    let mut log_until_dropped = |dropped_before: u64| {
        while wire.metric(dropped) == dropped_before {
            for _ in 0..200 {
                assert_eq!(wire.get("/healthz").0, 200);
            }
            assert_eq!(wire.send("message").0, 200);
        }
        wire.metric(dropped)
    };
    log_until_dropped(0);
    // Somebody reads again, and is told.
    let told = server.event("lines of this log were dropped: nobody read them in time");
    assert!(told["lines"].as_u64().unwrap() > 0, "{told}");
    // And the end does not wait for a reader either.
    let before = log_until_dropped(0);
    log_until_dropped(before);
    server.signal(Signal::TERM);
    assert_eq!(server.wait_unread().code(), Some(0));
}
