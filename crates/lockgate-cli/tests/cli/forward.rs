//! `lockgate forward`: real processes that are away, killed and full.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc,
    thread,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    messages::{Town, bodies},
    process::Wire,
    support::{Done, Sandbox, Server, json_lines, signal},
};

/// Enough for any test, and the disk of whoever tests is none of their business.
pub(crate) const SPOOL: &str = "--spool spool --spool-free-min 1B";

/// A running `lockgate forward`; killed when dropped.
pub(crate) struct Forwarder {
    process: Child,
    log: BufReader<ChildStderr>,
    url: String,
}

impl Forwarder {
    /// Starts one that listens.
    fn start(sandbox: &Sandbox, arguments: &str) -> Self {
        let mut forwarder = Self::spawn(sandbox, &format!("forward {arguments} --to clicks"));
        forwarder.listens();
        forwarder
    }

    /// Waits until it listens.
    #[track_caller]
    pub(crate) fn listens(&mut self) {
        let ready = self.event("ready");
        self.url = ready["url"].as_str().unwrap().to_owned();
    }

    pub(crate) fn listening(sandbox: &Sandbox, arguments: &str) -> Self {
        Self::start(sandbox, &format!("--from http://127.0.0.1:0 {arguments}"))
    }

    pub(crate) fn spawn(sandbox: &Sandbox, arguments: &str) -> Self {
        Self::run(sandbox.command(arguments))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        Self {
            process,
            log,
            url: String::new(),
        }
    }

    /// Reads the log up to the event with this sentence.
    #[track_caller]
    pub(crate) fn event(&mut self, sentence: &str) -> Value {
        let mut line = String::new();
        let mut passed = String::new();
        while self.log.read_line(&mut line).unwrap() > 0 {
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["message"] == sentence {
                return event;
            }
            passed.push_str(&line);
            line.clear();
        }
        panic!("it ended without saying {sentence:?}: {passed}");
    }

    /// Status and answer of a POST.
    pub(crate) fn post(&self, headers: &str, body: &str) -> (u16, Value) {
        let (status, answer) = Wire::to(&self.url).ask(&head(headers), body);
        (status, serde_json::from_str(&answer).unwrap())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        Wire::to(&self.url).ask(&format!("GET {path} HTTP/1.1"), "")
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How many messages it has that are neither delivered nor dropped.
    pub(crate) fn pending(&self) -> u64 {
        self.figure("producer_pending")
    }

    /// A whole number that /metrics has.
    #[track_caller]
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let (_, metrics) = self.get("/metrics");
        let name = format!("lockgate_{name}{{");
        let line = metrics.lines().find(|line| line.starts_with(&name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in {metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(crate) fn terminate(self) -> Done {
        signal(&self.process, Signal::TERM);
        self.end()
    }

    /// Waits for its end.
    fn end(mut self) -> Done {
        let (mut stderr, mut stdout) = (String::new(), String::new());
        self.log.read_to_string(&mut stderr).unwrap();
        let mut out = self.process.stdout.take().unwrap();
        out.read_to_string(&mut stdout).unwrap();
        Done {
            code: self.process.wait().unwrap().code(),
            stdout,
            stderr,
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn head(headers: &str) -> String {
    let headers = match headers {
        "" => String::new(),
        headers => format!("\r\n{headers}"),
    };
    format!("POST / HTTP/1.1{headers}")
}

pub(crate) fn address(url: &str) -> String {
    url.trim_start_matches("http://").to_owned()
}

/// A town with the queue `clicks` whose server is away.
pub(crate) struct Away {
    pub(crate) sandbox: Sandbox,
    address: String,
    ended: Server,
}

impl Away {
    pub(crate) fn new() -> Self {
        let town = Town::new();
        town.run("queue create clicks").ok();
        town.server.signal(Signal::KILL);
        Self {
            address: address(&town.server.url),
            sandbox: town.sandbox,
            ended: town.server,
        }
    }

    pub(crate) fn back(self) -> Town {
        let server = Server::restart(self.ended, &self.sandbox, &self.address);
        Town {
            sandbox: self.sandbox,
            server,
        }
    }
}

fn figures(done: Done) -> Value {
    done.json().remove(0)
}

fn forward_lines(town: &Town, arguments: &str, lines: &str) -> Done {
    let arguments = format!("forward --from stdin {arguments}");
    town.sandbox.run_with_input(&arguments, lines)
}

#[test]
fn lines_reach_the_queue_in_their_order() {
    let town = Town::new();
    town.run("queue create orders.fifo").ok();
    let lines: Vec<String> = (0..500)
        .map(|number| json!({"body": number, "key": format!("k{}", number % 7)}).to_string())
        .collect();
    let arguments = "--to orders.fifo --json";
    let figures = figures(forward_lines(&town, arguments, &lines.join("\n")));
    assert_eq!(figures["delivered"], 500, "{figures}");
    assert_eq!(
        (&figures["dropped"], &figures["left"]),
        (&json!(0), &json!(0))
    );
    let received = town.drain("orders.fifo");
    assert_eq!(received.len(), 500);
    for key in (0..7).map(|key| format!("k{key}")) {
        let of_key = received.iter().filter(|it| it["key"] == *key);
        let numbers: Vec<u32> = of_key
            .map(|it| it["body"].as_str().unwrap().parse().unwrap())
            .collect();
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

#[test]
fn a_wrong_line_ends_the_input_where_it_stands() {
    let town = Town::new();
    town.run("queue create clicks").ok();
    for (third, what) in [
        ("nonsense", "standard input:3"),
        (r#"{"body":1,"key":"k"}"#, "keeps no order of keys"),
        (
            r#"{"body":1,"delay_ms":1,"due_at":"x"}"#,
            "exclude each other",
        ),
    ] {
        let lines =
            format!("{{\"body\":\"a\"}}\n{{\"body\":\"b\"}}\n{third}\n{{\"body\":\"c\"}}\n");
        let stderr = forward_lines(&town, "--to clicks", &lines).fails_with(1);
        assert!(stderr.contains(what), "{stderr}");
        assert!(
            stderr.contains("2 messages were taken, nothing after them"),
            "{stderr}"
        );
        let mut received = town.drain("clicks");
        received.sort_by_key(|it| it["body"].to_string());
        assert_eq!(bodies(&received), ["a", "b"]);
    }
}

#[test]
fn raw_lines_are_bodies() {
    let town = Town::new();
    town.run("queue create logs").ok();
    forward_lines(&town, "--to logs --raw --group g", "{x\n\ny").ok();
    let mut received = town.drain("logs");
    received.sort_by_key(|it| it["body"].to_string());
    assert_eq!(bodies(&received), ["", "y", "{x"]);
    assert_eq!(received[0]["group"], "g");
}

#[test]
fn flags_that_say_nothing_are_wrong_usage() {
    let sandbox = Sandbox::new();
    for (arguments, what) in [
        (
            "--from stdin --to q --allow-remote",
            "--allow-remote is for messages that come over HTTP, or for --metrics",
        ),
        (
            "--from stdin --to q --tls-cert x",
            "--tls-cert is for messages that come over HTTP",
        ),
        (
            "--from q --to p --body-max 1MiB",
            "--body-max is for messages that come over HTTP",
        ),
        (
            "--from q --to p --region here --metrics 127.0.0.1:0",
            "--region is for messages that come over HTTP",
        ),
        ("--from stdin --to q --retry-delay 1s", "--exec"),
        (
            "--from http://127.0.0.1:0 --to q --metrics 127.0.0.1:0",
            "an address of --from has /metrics",
        ),
        ("--from stdin --to q --metrics 0.0.0.0:0", "--allow-remote"),
        (
            "--from stdin --to q --metrics localhost",
            "\"localhost\" is no address and port",
        ),
        (
            "--from stdin --to q --send-timeout 0s",
            "an answer needs some time",
        ),
        (
            "--from stdin --to q --exec cat",
            "--exec is for messages from a queue",
        ),
        ("--from q --to p --raw", "--raw is for messages from stdin"),
        ("--from q --to q", "round for ever"),
        ("--from http://127.0.0.1 --to q", "no address and port"),
        ("--from stdin --to q --level durable", "--spool DIR"),
        ("--from stdin --to q --when-full spool", "--spool DIR"),
        ("--from http://0.0.0.0:0 --to q", "--allow-remote"),
        ("--from https://127.0.0.1:0 --to q", "--tls-cert"),
        ("--from stdin --to q --persist each", "--spool"),
        ("--from q --to p --exec-timeout 1s", "--exec"),
        (
            "--from q --to p --exec cat --exec-timeout 0s",
            "needs some time",
        ),
    ] {
        let stderr = sandbox.run(&format!("forward {arguments}")).fails_with(2);
        assert!(stderr.contains(what), "{arguments}: {stderr}");
    }
}

#[test]
fn it_starts_and_answers_while_the_queue_server_is_away() {
    let away = Away::new();
    let mut forwarder = Forwarder::listening(&away.sandbox, &format!("{SPOOL} --drain 0s"));
    let (status, answer) = forwarder.post("", "first");
    assert_eq!((status, &answer["outcome"]), (202, &json!("durable")));
    forwarder.event("the queue cannot be reached; messages wait");
    assert_eq!(forwarder.get("/healthz").0, 200);
    assert_eq!(forwarder.get("/readyz").0, 200);
    let (_, metrics) = forwarder.get("/metrics");
    for expected in ["lockgate_producer_pending{", "lockgate_http_connections "] {
        assert!(metrics.contains(expected), "{metrics}");
    }
    // What is left stays in the spool, and the next run sends it.
    let done = forwarder.terminate();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.stderr.contains("messages stay in the spool"),
        "{done:?}"
    );
    let mut forwarder = Forwarder::listening(&away.sandbox, SPOOL);
    assert_eq!(forwarder.post("", "second").0, 202);
    forwarder.event("the queue cannot be reached; messages wait");
    let town = away.back();
    forwarder.event("the queue can be reached again");
    let done = forwarder.terminate();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(ended(&done)["delivered"], 2, "{done:?}");
    let mut received = town.drain("clicks");
    received.sort_by_key(|it| it["body"].to_string());
    assert_eq!(bodies(&received), ["first", "second"]);
}

/// The last event of a log, with the figures.
pub(crate) fn ended(done: &Done) -> Value {
    let mut events = json_lines(&done.stderr);
    events.retain(|event| event["message"] == "ended");
    events.pop().unwrap()
}

#[test]
fn a_queue_that_is_made_later_gets_what_waits_for_it() {
    let town = Town::new();
    let mut forwarder = Forwarder::listening(&town.sandbox, "");
    let url = forwarder.url.clone();
    let sent = thread::spawn(move || Wire::to(&url).ask(&head(""), "late"));
    forwarder.event("the queue cannot be reached; messages wait");
    town.run("queue create clicks").ok();
    let (status, answer) = sent.join().unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &answer["outcome"]), (200, &json!("delivered")));
    assert_eq!(bodies(&town.drain("clicks")), ["late"]);
}

/// Each sender has one message on its way; what was answered is in the queue, and once.
#[test]
fn what_was_answered_before_a_kill_is_in_the_queue_once() {
    const SENDERS: usize = 4;
    let town = Town::new();
    town.run("queue create clicks").ok();
    let mut answered = Vec::new();
    // Killed after so many answers; the last one ends by itself.
    for kill_after in [Some(7), Some(40), Some(90), None] {
        let forwarder = Forwarder::listening(&town.sandbox, SPOOL);
        let (told, heard) = mpsc::channel();
        let round = answered.len();
        let senders: Vec<_> = (0..SENDERS)
            .map(|sender| {
                let (url, told) = (forwarder.url.clone(), told.clone());
                thread::spawn(move || {
                    for number in 0..50 {
                        let body = format!("{round}-{sender}-{number}");
                        match raw(&url, "POST / HTTP/1.1\r\nHost: localhost", &body) {
                            // Delivered by then, or durable.
                            Some((200 | 202, _)) => told.send(body).unwrap(),
                            Some((status, answer)) => panic!("{status}: {answer}"),
                            None => return,
                        }
                    }
                })
            })
            .collect();
        drop(told);
        match kill_after {
            Some(count) => {
                answered.extend(heard.iter().take(count));
                forwarder.kill();
                answered.extend(heard);
            }
            None => {
                answered.extend(heard);
                let done = forwarder.terminate();
                assert_eq!(ended(&done)["left"], 0, "{done:?}");
            }
        }
        for sender in senders {
            sender.join().unwrap();
        }
    }
    let received = town.drain("clicks");
    let mut there = bodies(&received);
    there.sort_unstable();
    assert!(there.windows(2).all(|pair| pair[0] != pair[1]), "twice");
    let lost: Vec<_> = (answered.iter())
        .filter(|body| there.binary_search(&body.as_str()).is_err())
        .collect();
    assert!(lost.is_empty(), "{lost:?} of {}", answered.len());
}

/// Sends a request on a connection of its own, whatever it is; `None` if nobody answers.
fn raw(url: &str, head: &str, body: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(address(url)).ok()?;
    let len = body.len();
    let request = format!("{head}\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}");
    socket.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    Some((answer.get(9..12)?.parse().ok()?, answer))
}

#[test]
fn each_request_is_answered_for_what_it_is() {
    let town = Town::new();
    town.run("queue create clicks").ok();
    let forwarder = Forwarder::listening(&town.sandbox, "--body-max 2MiB");
    let large = "x".repeat((1 << 20) + 1);
    let larger = "x".repeat((2 << 20) + 1);
    let long = format!("lockgate-key: {}", "k".repeat(10_000));
    let lines = "content-type: application/x-ndjson";
    for (head, body, status, code) in [
        ("POST / HTTP/1.1", "x", 200, ""),
        ("POST / HTTP/1.1", "", 200, ""),
        ("POST /x HTTP/1.1", "x", 404, "not_found"),
        ("GET / HTTP/1.1", "", 405, "method_not_allowed"),
        ("DELETE / HTTP/1.1", "", 405, "method_not_allowed"),
        ("POST /healthz HTTP/1.1", "", 405, "method_not_allowed"),
        (
            "POST / HTTP/1.1\r\nlockgate-key: k",
            "x",
            400,
            "invalid_message",
        ),
        (
            &format!("POST / HTTP/1.1\r\n{long}"),
            "x",
            400,
            "invalid_message",
        ),
        (
            "POST / HTTP/1.1\r\nlockgate-id:",
            "x",
            400,
            "invalid_message",
        ),
        (
            "POST / HTTP/1.1\r\nlockgate-id: a\r\nlockgate-id: b",
            "x",
            400,
            "invalid_message",
        ),
        (
            "POST / HTTP/1.1\r\nContent-Encoding: gzip",
            "x",
            415,
            "unsupported_media_type",
        ),
        ("POST / HTTP/1.1", &large, 413, "message_too_large"),
        ("POST / HTTP/1.1", &larger, 413, "body_too_large"),
        (
            &format!("POST / HTTP/1.1\r\n{lines}"),
            "",
            400,
            "invalid_message",
        ),
        (
            &format!("POST / HTTP/1.1\r\n{lines}"),
            "{\"body\":1}\n{}",
            400,
            "invalid_message",
        ),
        (
            &format!("POST / HTTP/1.1\r\n{lines}"),
            &"{\"body\":1}\n".repeat(1001),
            413,
            "too_many_lines",
        ),
    ] {
        let (got, answer) =
            raw(&forwarder.url, &format!("{head}\r\nHost: localhost"), body).unwrap();
        assert_eq!(got, status, "{head}: {answer}");
        assert!(answer.contains(code), "{head}: {answer}");
    }
    assert_eq!(town.drain("clicks").len(), 2);
}

#[test]
fn a_request_is_a_message_with_what_its_headers_say() {
    let town = Town::new();
    town.run("queue create clicks").ok();
    let forwarder = Forwarder::listening(&town.sandbox, "");
    let headers =
        "lockgate-group: g\r\nlockgate-id: u1\r\ncontent-type: text/plain\r\ntraceparent: 00-1";
    let (status, first) = forwarder.post(headers, "x");
    assert_eq!((status, &first["duplicate"]), (200, &json!(false)));
    let (status, again) = forwarder.post(headers, "x");
    assert_eq!((status, &again["duplicate"]), (200, &json!(true)));
    let received = town.drain("clicks");
    assert_eq!(received.len(), 1);
    let message = &received[0];
    let told = [
        "id",
        "group",
        "unique_id",
        "content_type",
        "trace_context",
        "body",
    ];
    let told: Vec<_> = told.map(|name| message[name].clone()).to_vec();
    assert_eq!(
        json!(told),
        json!([first["id"], "g", "u1", "text/plain", "00-1", "x"])
    );
}

#[test]
fn a_request_of_lines_has_a_result_for_each() {
    let town = Town::new();
    town.run("queue create clicks").ok();
    let forwarder = Forwarder::listening(&town.sandbox, "");
    let kind = "content-type: application/x-ndjson";
    let (status, answer) = forwarder.post(kind, "{\"body\":\"a\"}\n\n{\"body\":{\"b\":1}}\n");
    assert_eq!(status, 200, "{answer}");
    let outcomes = |answer: &Value| -> Vec<Value> {
        let results = answer["results"].as_array().unwrap();
        results.iter().map(|it| it["outcome"].clone()).collect()
    };
    assert_eq!(outcomes(&answer), ["delivered", "delivered"]);
    // Up to the first that is not taken.
    let large = "x".repeat((1 << 20) + 1);
    let lines = format!("{{\"body\":\"c\"}}\n{{\"body\":\"{large}\"}}\n{{\"body\":\"d\"}}");
    let (status, answer) = forwarder.post(kind, &lines);
    assert_eq!(status, 413);
    assert_eq!(outcomes(&answer), ["delivered", "refused", "refused"]);
    assert_eq!(answer["results"][2]["problem"]["code"], "not_taken");
    let mut received = town.drain("clicks");
    received.sort_by_key(|it| it["body"].to_string());
    assert_eq!(bodies(&received), ["a", "c", "{\"b\":1}"]);
}

#[test]
fn a_full_buffer_and_a_full_spool_are_told() {
    let away = Away::new();
    let body = "x".repeat(100_000);
    for (arguments, code) in [
        (
            "--level accepted --buffer-count 2".to_owned(),
            "buffer_full",
        ),
        (format!("{SPOOL} --spool-max 1MiB"), "spool_full"),
    ] {
        let forwarder = Forwarder::listening(&away.sandbox, &format!("{arguments} --drain 0s"));
        let head = "POST / HTTP/1.1\r\nHost: localhost";
        let refused = (0..100).find_map(|_| {
            let (status, answer) = raw(&forwarder.url, head, &body).unwrap();
            (status != 202).then_some((status, answer))
        });
        let (status, answer) = refused.expect("it takes all");
        assert_eq!(status, 503, "{answer}");
        assert!(answer.contains(code), "{answer}");
        assert!(
            answer.to_lowercase().contains("\r\nretry-after: 1\r\n"),
            "{answer}"
        );
        let done = forwarder.terminate();
        match code {
            // What was in memory only is dropped.
            "buffer_full" => assert!(done.fails_with(1).contains("2 messages dropped")),
            _ => assert_eq!(done.code, Some(0)),
        }
    }
    let town = away.back();
    let forwarder = Forwarder::listening(&town.sandbox, SPOOL);
    assert_eq!(forwarder.terminate().code, Some(0));
    assert!(!town.drain("clicks").is_empty());
}

#[test]
fn web_pages_and_other_names_are_refused() {
    let sandbox = Sandbox::new();
    let forwarder = Forwarder::listening(
        &sandbox,
        "--level accepted --endpoint http://127.0.0.1:1 --allowed-host collector.internal",
    );
    for (headers, status) in [
        ("Host: localhost", 202),
        ("Host: collector.internal", 202),
        ("Host: evil.example", 403),
        ("Host: localhost\r\nOrigin: http://localhost:3000", 202),
        ("Host: localhost\r\nOrigin: https://evil.example", 403),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site", 403),
    ] {
        let (got, answer) = raw(
            &forwarder.url,
            &format!("POST / HTTP/1.1\r\n{headers}"),
            "x",
        )
        .unwrap();
        assert_eq!(got, status, "{headers}: {answer}");
    }
}

#[test]
fn without_a_signature_nothing_is_taken_where_there_are_access_keys() {
    use std::os::unix::fs::PermissionsExt as _;

    let sandbox = Sandbox::new();
    let keys = "[[key]]\nid = \"A\"\nsecret = \"a secret of some length\"\ngrants = []\n";
    let file = sandbox.write("keys.toml", keys);
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let arguments =
        "--level accepted --endpoint http://127.0.0.1:1 --auth sigv4 --access-keys keys.toml";
    let forwarder = Forwarder::listening(&sandbox, arguments);
    assert_eq!(forwarder.post("", "x").0, 401);
    assert_eq!(forwarder.get("/healthz").0, 200);
}

#[test]
fn messages_of_a_queue_are_moved_whole_and_in_their_order() {
    let town = Town::new();
    town.run("queue create in.fifo").ok();
    town.run("queue create out.fifo").ok();
    let lines: Vec<String> = (0..60)
        .map(|number| {
            json!({"body": number, "key": format!("k{}", number % 3), "headers": {"h": "v"},
                "unique_id": number.to_string(), "content_type": "a/b"})
            .to_string()
        })
        .collect();
    town.send_lines("in.fifo", &lines.join("\n")).ok();
    let arguments = "forward --from in.fifo --to out.fifo --until-empty --json";
    let figures = figures(town.run(arguments));
    assert_eq!(figures["delivered"], 60, "{figures}");
    assert_eq!(town.counts("in.fifo")["ready"], 0);
    let received = town.drain("out.fifo");
    assert_eq!(received.len(), 60);
    for key in ["k0", "k1", "k2"] {
        let numbers: Vec<u32> = (received.iter().filter(|it| it["key"] == key))
            .map(|it| it["body"].as_str().unwrap().parse().unwrap())
            .collect();
        assert!(
            numbers.is_sorted() && numbers.len() == 20,
            "{key}: {numbers:?}"
        );
    }
    let message = &received[0];
    assert_eq!(message["unique_id"], message["body"]);
    assert_eq!(message["headers"]["h"]["value"], "v");
    assert_eq!(message["content_type"], "a/b");
}

#[test]
fn a_command_makes_new_bodies_and_its_failures_come_again() {
    let town = Town::new();
    town.run("queue create in").ok();
    town.run("queue create clicks").ok();
    town.send_lines(
        "in",
        "{\"body\":\"a\",\"group\":\"g\"}\n{\"body\":\"bad\"}\n{\"body\":\"c\"}",
    )
    .ok();
    let script = town.sandbox.write(
        "work.sh",
        "body=$(cat)\n[ \"$body\" != bad ] || exit 1\necho \"$LOCKGATE_QUEUE $LOCKGATE_GROUP $body\"\n",
    );
    let mut command = town
        .sandbox
        .command("forward --from in --to clicks --until-empty --json --retry-delay 1h");
    command
        .arg("--exec")
        .arg(format!("sh {}", script.display()));
    let done: Done = command.output().unwrap().into();
    assert!(done.stderr.contains("it exited with 1"), "{done:?}");
    assert_eq!(figures(done)["delivered"], 2);
    let mut received = town.drain("clicks");
    received.sort_by_key(|it| it["body"].to_string());
    assert_eq!(bodies(&received), ["in  c\n", "in g a\n"]);
    assert_eq!(received[1]["group"], "g");
    // It waits for its next attempt.
    assert_eq!(town.counts("in")["in_flight"], 1);
}

#[test]
fn a_command_that_cannot_be_started_ends_the_run_and_costs_no_message() {
    let town = Town::new();
    town.run("queue create in").ok();
    town.run("queue create clicks").ok();
    town.run("send in a").ok();
    let stderr = town
        .run("forward --from in --to clicks --exec ./nowhere")
        .fails_with(1);
    assert!(stderr.contains("there is no such command"), "{stderr}");
    assert_eq!(bodies(&town.drain("in")), ["a"]);
}

/// Who has a pipeline that runs learns from it what it takes, and which stage is the narrow one.
#[test]
fn a_running_pipeline_serves_figures_of_which_a_model_is_made() {
    let town = Town::new();
    town.run("queue create in").ok();
    town.run("queue create clicks").ok();
    let lines: Vec<String> = (0..300)
        .map(|number| format!("{{\"body\":{number}}}"))
        .collect();
    town.send_lines("in", &lines.join("\n")).ok();
    let arguments =
        "forward --from in --to clicks --exec cat --concurrency 2 --metrics 127.0.0.1:0";
    let mut forwarder = Forwarder::spawn(&town.sandbox, arguments);
    let url = forwarder.event("figures")["url"]
        .as_str()
        .unwrap()
        .to_owned();
    forwarder.url = url.strip_suffix("/metrics").unwrap().to_owned();
    assert_eq!(forwarder.get("/healthz").0, 200);
    assert_eq!(forwarder.get("/readyz").0, 200);
    assert_eq!(forwarder.get("/").0, 404);
    let said = town.run(&format!("size --from {url} --over 1s --json"));
    let model = said.json().remove(0)["model"].clone();
    let stages = model["stages"].as_array().unwrap();
    let names: Vec<_> = stages.iter().map(|stage| &stage["name"]).collect();
    assert_eq!(names, ["work", "sink"], "{model}");
    assert_eq!(
        (&stages[0]["workers"], &stages[1]["workers"]),
        (&json!(2), &json!(4)),
        "{model}"
    );
    while forwarder.figure("pipeline_ended_total") < 300 {
        std::thread::yield_now();
    }
    assert_eq!(forwarder.figure("pipeline_workers"), 2);
    assert_eq!(forwarder.figure("pipeline_busy"), 0);
    assert_eq!(forwarder.figure("producer_delivered_total"), 300);
    assert_eq!(forwarder.terminate().code, Some(0));
}

/// The queue that messages come from has them until they are where they go.
#[test]
fn messages_whose_way_is_cut_are_still_where_they_came_from() {
    let town = Town::new();
    town.run("queue create in").ok();
    town.run("send in a").ok();
    let arguments = "forward --from in --to nowhere --drain 100ms";
    let mut forwarder = Forwarder::spawn(&town.sandbox, arguments);
    forwarder.event("the queue cannot be reached; messages wait");
    assert_eq!(forwarder.terminate().code, Some(0));
    assert_eq!(bodies(&town.drain("in")), ["a"]);
}

/// Small messages share one of the queue, and who works on them gets each by itself.
#[test]
fn packed_messages_are_taken_apart_by_whoever_works_on_them() {
    let town = Town::new();
    for queue in ["small", "again"] {
        town.run(&format!("queue create {queue}")).ok();
    }
    let lines: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    for exec in ["", " --exec cat"] {
        let arguments = "--to small --raw --pack --json";
        let figures = figures(forward_lines(&town, arguments, &lines.join("\n")));
        assert_eq!(figures["delivered"], 300, "{figures}");
        assert!(figures["packs"].as_u64() > Some(0), "{figures}");
        let queue = &town.run("queue show small --json").json()[0];
        let there = queue["counts"]["ready"].as_u64().unwrap_or_default();
        assert!((1..300).contains(&there), "{queue}");
        let arguments = format!("forward --from small --until-empty --to again{exec}");
        town.run(&arguments).ok();
        let mut received: Vec<u32> = (town.drain("again").iter())
            .map(|it| it["body"].as_str().unwrap().parse().unwrap())
            .collect();
        received.sort_unstable();
        assert!(received.into_iter().eq(0..300), "{exec}");
    }
}

/// Whoever moves a queue learns of it, and nothing is lost.
#[test]
fn a_message_that_can_never_be_taken_goes_to_the_dead_letters_or_ends_the_run() {
    let town = Town::new();
    for queue in [
        "small --message-bytes-max 10B",
        "dead",
        "has-dead --dead-letter dead",
        "in",
        "out",
    ] {
        town.run(&format!("queue create {queue}")).ok();
    }
    let long = "longer than ten bytes";
    for (from, told, kept) in [
        ("has-dead", "1 message rejected", "dead"),
        (
            "in",
            "in has no dead-letter queue, so it is still there",
            "in",
        ),
    ] {
        town.send_lines(from, &json!({"body": long}).to_string())
            .ok();
        let stderr = town
            .run(&format!("forward --from {from} --to small --until-empty"))
            .fails_with(1);
        for told in [told, "a message is rejected", "10"] {
            assert!(stderr.contains(told), "{told}: {stderr}");
        }
        let counts = town.counts(kept);
        let there = ["ready", "in_flight", "delayed"].map(|it| counts[it].as_u64().unwrap());
        assert_eq!(there.iter().sum::<u64>(), 1, "{kept}: {counts}");
        assert_eq!(
            bodies(&json_lines(&town.run(&format!("peek {kept} --json")).ok())),
            [long]
        );
    }
    town.run("send out a").ok();
    let mut command = town
        .sandbox
        .command("forward --from out --to dead --until-empty");
    command.arg("--exec").arg("head -c 1048577 /dev/zero");
    let done: Done = command.output().unwrap().into();
    assert!(done.fails_with(1).contains("1048576 bytes"));
    assert_eq!(town.counts("out")["in_flight"], 1);
}

#[test]
fn a_command_that_does_not_end_is_killed_and_its_message_comes_again() {
    let town = Town::new();
    town.run("queue create in").ok();
    town.run("queue create clicks").ok();
    town.run("send in a").ok();
    let mut command = town.sandbox.command(
        "forward --from in --to clicks --until-empty --retry-delay 1h --exec-timeout 50ms",
    );
    // Whoever reads its output would wait for the child too.
    command.arg("--exec").arg("sleep 1000 & sleep 1000");
    let done: Done = command.output().unwrap().into();
    assert!(
        done.stderr.contains("has not ended within 50ms"),
        "{done:?}"
    );
    assert_eq!(done.code, Some(0));
    assert_eq!(town.counts("in")["in_flight"], 1);
}

/// Whether anybody reads the figures changes nothing of that.
#[test]
fn dropped_messages_are_exit_code_1_though_nobody_reads_the_figures() {
    let away = Away::new();
    let arguments = "forward --from stdin --raw --to clicks --level accepted --drain 0s --json";
    let mut command = away.sandbox.command(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    drop(process.stdout.take());
    process.stdin.take().unwrap().write_all(b"a\n").unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(1));
}

/// A collector whose spool has failed can only be started again, and whoever watches it learns that.
#[test]
fn a_collector_whose_spool_has_failed_is_not_ready() {
    let away = Away::new();
    let arguments = format!("{SPOOL} --spool-max 128KiB --drain 0s");
    let mut forwarder = Forwarder::listening(&away.sandbox, &arguments);
    assert_eq!(forwarder.get("/readyz").0, 200);
    std::fs::remove_dir_all(away.sandbox.path().join("spool")).unwrap();
    let body = "x".repeat(30_000);
    while forwarder.post("", &body).0 == 202 {}
    forwarder.event("the spool has failed");
    let (status, why) = forwarder.get("/readyz");
    assert_eq!(status, 503);
    assert!(why.contains("the spool has failed"), "{why}");
}

/// Whoever confuses the two folders loses nothing.
#[test]
fn a_spool_and_the_data_of_a_server_are_not_opened_as_each_other() {
    let town = Town::new();
    town.run("queue create clicks").ok();
    town.run("send clicks a").ok();
    let Town { sandbox, server } = town;
    server.signal(Signal::TERM);
    server.wait();
    let done = sandbox.run("forward --from stdin --to clicks --spool data --spool-free-min 1B");
    assert!(done.fails_with(1).contains("no spool"));
    let forwarder = Forwarder::listening(&sandbox, SPOOL);
    assert_eq!(forwarder.post("", "b").0, 202);
    forwarder.kill();
    let done = sandbox.run("serve --listen 127.0.0.1:0 --data spool");
    assert!(done.fails_with(4).contains("is the spool of a producer"));

    let server = Server::start(&sandbox);
    let endpoint = format!("--endpoint {}", server.url);
    let forwarder = Forwarder::listening(&sandbox, &format!("{SPOOL} {endpoint}"));
    assert_eq!(ended(&forwarder.terminate())["recovered"], 1);
    let receive = format!("receive clicks --max 10 --wait 1s --ack {endpoint}");
    assert_eq!(bodies(&sandbox.run(&receive).json()), ["a", "b"]);
}

/// Its sender was answered before the queue was asked.
#[test]
fn a_message_that_its_queue_refuses_is_told_in_the_log() {
    let town = Town::new();
    town.run("queue create clicks --message-bytes-max 10B").ok();
    let mut forwarder = Forwarder::listening(&town.sandbox, "--level accepted");
    assert_eq!(forwarder.post("", "longer than ten bytes").0, 202);
    let told = forwarder.event("the sink refuses records, which are dropped");
    assert!(told["error"].as_str().unwrap().contains("10"), "{told}");
    assert_eq!(forwarder.terminate().code, Some(1));
}
