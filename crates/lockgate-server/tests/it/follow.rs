//! `GET /api/v1/ledgers/{ledger}/follow` over the wire.

use lockgate_core::{
    Epoch, LedgerName,
    ledger::{Append, Ledger as _, LedgerOptions, NewEvent, SequenceId},
};
use lockgate_engine::EngineLedger;
use lockgate_machine::CreateLedger;
use lockgate_server::{AccessKey, Authentication, Grant, Names, Secret, Verb};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpStream,
};

use crate::support::{TestServer, in_time, sign};

async fn ledger(server: &TestServer) -> EngineLedger {
    let name = LedgerName::new("l").unwrap();
    let create = CreateLedger {
        name: name.clone(),
        options: LedgerOptions::default(),
    };
    server.engine.submit(create).await.unwrap();
    server.engine.ledger(name)
}

async fn append(ledger: &EngineLedger, payloads: impl IntoIterator<Item = Vec<u8>>) {
    let events = payloads.into_iter().map(|payload| NewEvent {
        payload: payload.into(),
        ..NewEvent::default()
    });
    let append = Append {
        epoch: Epoch(1),
        head: None,
        events: events.collect(),
        settled: Vec::new(),
    };
    ledger.append(append).await.unwrap();
}

/// A stream of lines, without the frames of HTTP.
struct Lines {
    socket: BufReader<TcpStream>,
    /// Bytes of a line whose end has not come.
    line: Vec<u8>,
    lines: std::collections::VecDeque<Value>,
}

async fn follow(server: &TestServer, query: &str) -> Lines {
    follow_with(server, query, "Host: localhost\r\n").await
}

async fn follow_with(server: &TestServer, query: &str, headers: &str) -> Lines {
    let mut raw = server.connect().await;
    raw.send(format!(
        "GET /api/v1/ledgers/l/follow{query} HTTP/1.1\r\n{headers}\r\n"
    ))
    .await;
    let mut socket = BufReader::new(raw.0);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        in_time(socket.read_line(&mut head)).await.unwrap();
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/x-ndjson"), "{head}");
    Lines {
        socket,
        line: Vec::new(),
        lines: std::collections::VecDeque::new(),
    }
}

impl Lines {
    /// The next line; `None` at the end of the answer.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            let mut size = String::new();
            in_time(self.socket.read_line(&mut size)).await.unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            in_time(self.socket.read_exact(&mut chunk)).await.unwrap();
            if size == 0 {
                assert!(self.line.is_empty());
                return None;
            }
            self.line.extend_from_slice(&chunk[..size]);
            while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                self.lines.push_back(serde_json::from_slice(&line).unwrap());
            }
        }
    }
}

#[tokio::test]
async fn events_come_as_they_are_appended_until_the_seal() {
    let server = TestServer::start().await;
    let ledger = ledger(&server).await;
    append(&ledger, [b"a".to_vec(), b"b".to_vec()]).await;
    let mut lines = follow(&server, "?after=1&heartbeat_ms=100").await;
    assert_eq!(lines.next().await.unwrap()["sequence_id"], 2);
    let heartbeat = lines.next().await.unwrap();
    assert_eq!(heartbeat["head"]["sequence_id"], 2, "{heartbeat}");
    append(&ledger, [vec![0xff]]).await;
    let event = loop {
        let line = lines.next().await.unwrap();
        if line.get("head").is_none() {
            break line;
        }
    };
    assert_eq!(
        (&event["sequence_id"], &event["previous_id"]),
        (&3.into(), &2.into())
    );
    assert_eq!(event["payload_encoding"], "base64");
    ledger.seal(Epoch(1)).await.unwrap();
    let last = loop {
        let line = lines.next().await.unwrap();
        if line["head"]["sealed"] == true {
            break line;
        }
    };
    assert_eq!(last["head"]["sequence_id"], 3);
    assert_eq!(lines.next().await, None);
    server.stop().await;
}

/// What can be said before the answer is begun has a status.
#[tokio::test]
async fn a_ledger_that_cannot_be_followed_is_refused() {
    let server = TestServer::start().await;
    let ledger = ledger(&server).await;
    append(&ledger, [b"a".to_vec()]).await;
    ledger.trim(SequenceId(2)).await.unwrap();
    for (target, status, code) in [
        ("l/follow", 410, "ledger_trimmed"),
        ("l/follow?after=2", 409, "ledger_beyond"),
        ("m/follow", 404, "ledger_not_found"),
        ("l/follow?heartbeat_ms=1", 400, "invalid_value"),
        ("%20/follow", 400, "invalid_value"),
    ] {
        let answer = server.get(&format!("/api/v1/ledgers/{target}")).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.body.contains(code), "{answer:?}");
    }
    let post =
        "POST /api/v1/ledgers/l/follow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(server.ask(post).await.status, 405);
    server.stop().await;
}

/// A client that does not read holds up neither appends nor others that follow; and then it gets everything.
#[tokio::test]
async fn a_client_that_does_not_read_holds_nothing_up() {
    const EVENTS: u64 = 96;
    let server = TestServer::start().await;
    let ledger = ledger(&server).await;
    let mut slow = follow(&server, "").await;
    let mut fast = follow(&server, "").await;
    for at in 0..EVENTS / 8 {
        let at = u8::try_from(at).unwrap();
        append(&ledger, vec![vec![b'a' + at; 128 << 10]; 8]).await;
    }
    for lines in [&mut fast, &mut slow] {
        let mut expected = 1;
        while expected <= EVENTS {
            let line = lines.next().await.unwrap();
            if line.get("head").is_none() {
                assert_eq!(line["sequence_id"], expected);
                expected += 1;
            }
        }
    }
    server.stop().await;
}

/// Nothing waits any more for a client that is gone, and a server that stops ends the stream.
#[tokio::test]
async fn a_stream_ends_with_its_client_and_with_its_server() {
    let server = TestServer::start().await;
    ledger(&server).await;
    let gone = follow(&server, "?heartbeat_ms=20000").await;
    drop(gone);
    in_time(async {
        // The one that asks is left.
        let alone = "lockgate_http_connections 1\n";
        while !server.get("/metrics").await.body.contains(alone) {}
    })
    .await;
    let mut ends = follow(&server, "?heartbeat_ms=20000").await;
    let stopped = server.call_shutdown();
    loop {
        match ends.next().await {
            None => break,
            Some(line) => assert!(line.get("head").is_some(), "{line}"),
        }
    }
    in_time(stopped).await.unwrap();
}

/// A grant that is taken away, or another secret, ends the stream at its next line, and events that come later stay
/// unseen.
#[tokio::test]
async fn a_stream_ends_when_its_key_may_not_read_any_more() {
    let key = |secret: &str, on: &str| AccessKey {
        id: "AUDIT".to_owned(),
        secret: Secret::new(secret),
        grants: vec![Grant {
            on: Names::Ledgers(on.to_owned()),
            verbs: vec![Verb::Read],
        }],
    };
    let before = || key("secret-of-the-test", "l");
    let other = AccessKey {
        id: "OTHER".to_owned(),
        ..before()
    };
    let server = TestServer::start_with(|options| {
        options.authentication = Authentication::AccessKeys(vec![before()]);
    })
    .await;
    let ledger = ledger(&server).await;
    let keys = server.access_keys.clone().unwrap();
    for after in [
        vec![key("secret-of-the-test", "m")],
        vec![key("another-secret", "l")],
        vec![other],
    ] {
        keys.replace(&[before()]).unwrap();
        let mut headers = hyper::HeaderMap::new();
        headers.insert("host", "localhost".parse().unwrap());
        let now = jiff::Timestamp::now().as_second();
        let credentials = ("AUDIT", "secret-of-the-test");
        let head = ledger.head().await.unwrap().sequence_id;
        let query = format!("?after={head}&heartbeat_ms=100");
        let line = format!("GET /api/v1/ledgers/l/follow{query}");
        sign(&line, &mut headers, "", credentials, now);
        let headers = headers.iter();
        let headers =
            headers.map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
        let headers: String = headers.collect();
        let mut lines = follow_with(&server, &query, &headers).await;
        assert!(lines.next().await.is_some());
        keys.replace(&after).unwrap();
        append(&ledger, [b"secret".to_vec()]).await;
        let last = loop {
            let line = lines.next().await.unwrap();
            assert_ne!(line["payload"], "secret");
            if line.get("problem").is_some() {
                break line;
            }
        };
        assert_eq!(last["problem"]["code"], "access_denied", "{last}");
        assert_eq!(lines.next().await, None);
    }
    server.stop().await;
}
