//! A handler behind the listener, in the place of queues.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{HeaderMap, Method, StatusCode, header::HOST};
use lockgate_core::{Header, Message};
use lockgate_server::{
    AccessKey, Authentication, Grant, Handler, HandlerAnswer, HandlerRequest, Limits, Names,
    Secret, Server, ServerOptions, Verb, check_message,
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::oneshot};

use crate::support::{Answer, Raw, in_time, sign};

/// Answers with what it was sent, and with whoever signed it. A body `wait` is never answered.
#[derive(Debug, Default)]
struct Echo {
    answered: AtomicUsize,
}

impl Handler for Echo {
    fn takes(&self, method: &Method, path: &str) -> Result<(), Box<HandlerAnswer>> {
        match (method, path) {
            (&Method::POST, "/") => Ok(()),
            _ => Err(Box::new(answer(StatusCode::IM_A_TEAPOT, "not taken"))),
        }
    }

    fn answer(
        &self,
        request: HandlerRequest,
    ) -> Pin<Box<dyn Future<Output = HandlerAnswer> + Send + '_>> {
        Box::pin(async move {
            if request.body == "wait" {
                std::future::pending::<()>().await;
            }
            self.answered.fetch_add(1, Ordering::Relaxed);
            let sender = request
                .sender
                .map_or("nobody".to_owned(), |it| it.id.clone());
            let body = String::from_utf8_lossy(&request.body);
            answer(StatusCode::ACCEPTED, &format!("{sender}: {body}"))
        })
    }

    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async {
            match self.answered.load(Ordering::Relaxed) {
                0 => Ok(()),
                _ => Err("it has had enough".to_owned()),
            }
        })
    }

    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        let answered = self.answered.load(Ordering::Relaxed);
        Box::pin(async move { format!("echo_answered {answered}\n") })
    }
}

fn answer(status: StatusCode, body: &str) -> HandlerAnswer {
    HandlerAnswer {
        status,
        headers: HeaderMap::new(),
        body: body.to_owned().into(),
    }
}

struct Running {
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    run: tokio::task::JoinHandle<lockgate_server::RunReport>,
}

async fn start(change: impl FnOnce(&mut ServerOptions)) -> Running {
    let mut options = ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ServerOptions::default()
    };
    change(&mut options);
    let handler = Arc::new(Echo::default());
    let server = Server::bind_handler(options, handler).await.unwrap();
    let (stop, stopped) = oneshot::channel();
    Running {
        address: server.local_addr(),
        stop,
        run: tokio::spawn(server.run(async {
            let _ = stopped.await;
        })),
    }
}

impl Running {
    async fn connect(&self) -> Raw {
        Raw(TcpStream::connect(self.address).await.unwrap())
    }

    async fn ask(&self, line: &str, headers: &str, body: &str) -> Answer {
        let mut raw = self.connect().await;
        let len = body.len();
        raw.send(format!(
            "{line} HTTP/1.1\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
        ))
        .await;
        raw.answer().await
    }
}

const LOCAL: &str = "Host: localhost\r\n";

#[tokio::test]
async fn a_handler_answers_what_it_takes_and_the_server_the_rest() {
    let server = start(|options| {
        options.limits = Limits {
            body_bytes_max: 10,
            ..Limits::default()
        };
    })
    .await;
    for (line, headers, body, status, about) in [
        ("GET /readyz", LOCAL, "", 200, "true"),
        ("POST /", LOCAL, "hello", 202, "nobody: hello"),
        ("POST /x", LOCAL, "hello", 418, "not taken"),
        ("PUT /", LOCAL, "", 418, "not taken"),
        ("POST /", LOCAL, "hello hello", 413, "body_too_large"),
        ("POST /", "Host: evil.example\r\n", "x", 403, "not_served"),
        (
            "GET /healthz",
            "Host: evil.example\r\n",
            "",
            403,
            "not_served",
        ),
        ("GET /healthz", LOCAL, "", 200, "ok"),
        ("POST /healthz", LOCAL, "", 405, "method_not_allowed"),
        ("GET /readyz", LOCAL, "", 503, "it has had enough"),
        ("GET /metrics", LOCAL, "", 200, "echo_answered 1\n"),
        ("GET /metrics", LOCAL, "", 200, "lockgate_http_connections "),
        // There are no queues.
        ("GET /api/v1/queues", LOCAL, "", 418, "not taken"),
    ] {
        let answer = server.ask(line, headers, body).await;
        assert_eq!(answer.status, status, "{line}: {answer:?}");
        assert!(answer.body.contains(about), "{line}: {answer:?}");
        assert!(answer.header("date").is_some(), "{answer:?}");
    }
    let _ = server.stop.send(());
    let report = in_time(server.run).await.unwrap();
    assert!(report.engine_stopped && report.requests == 13, "{report:?}");
}

#[tokio::test]
async fn a_handler_that_does_not_answer_is_cut_at_the_end() {
    let server = start(|options| options.deadlines.shutdown = Duration::from_millis(50)).await;
    let mut raw = server.connect().await;
    raw.send(format!(
        "POST / HTTP/1.1\r\nContent-Length: 4\r\n{LOCAL}\r\nwait"
    ))
    .await;
    // It is there, since a later request is.
    server.ask("GET /healthz", LOCAL, "").await;
    let _ = server.stop.send(());
    assert!(raw.try_answer().await.is_none());
    in_time(server.run).await.unwrap();
}

#[tokio::test]
async fn a_handler_learns_who_has_signed() {
    let key = AccessKey {
        id: "KEY".to_owned(),
        secret: Secret::new("a secret of some length"),
        grants: vec![Grant {
            on: Names::Queues("clicks".to_owned()),
            verbs: vec![Verb::Send],
        }],
    };
    let server =
        start(|options| options.authentication = Authentication::AccessKeys(vec![key])).await;
    assert_eq!(server.ask("POST /", LOCAL, "x").await.status, 401);
    assert_eq!(server.ask("GET /healthz", LOCAL, "").await.status, 200);
    let now = jiff::Timestamp::now().as_second();
    for (secret, status) in [("a secret of some length", 202), ("another secret", 401)] {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "localhost".parse().unwrap());
        sign("POST /", &mut headers, "x", ("KEY", secret), now);
        let headers: String = (headers.iter())
            .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()))
            .collect();
        let answer = server.ask("POST /", &headers, "x").await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.body == "KEY: x", status == 202, "{answer:?}");
    }
}

#[test]
fn a_message_is_checked_as_the_api_checks_it() {
    let header = |name: &str, value: &str| Header {
        name: name.into(),
        kind: "String".into(),
        value: value.to_owned().into(),
    };
    let with = |headers: Vec<Header>| Message {
        headers,
        ..Message::new("x")
    };
    assert_eq!(check_message(&with(vec![header("a", "b")])), Ok(()));
    let many = (0..11)
        .map(|number| header(&format!("h{number}"), "v"))
        .collect();
    let long = Message {
        content_type: Some("x".repeat(1025).into()),
        ..Message::new("x")
    };
    for (message, about) in [
        (with(vec![header("a", "")]), "header \"a\""),
        (with(vec![header("AWS.a", "v")]), "must not begin"),
        (with(many), "10 headers at most"),
        (long, "content type"),
    ] {
        let error = check_message(&message).unwrap_err();
        assert!(error.contains(about), "{error}");
    }
}

/// It may be gone, and must not hold its connection for as long as the handler takes.
#[tokio::test]
async fn a_client_that_has_ended_its_side_is_not_waited_for_for_ever() {
    let server = start(|options| {
        options.deadlines.transfer_grace = Duration::from_millis(10);
    })
    .await;
    let mut raw = server.connect().await;
    let head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nwait";
    raw.send(head).await;
    raw.0.shutdown().await.unwrap();
    let answer = raw.answer().await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("client_ended"), "{}", answer.body);
    // One that is answered in time is answered as always.
    let mut raw = server.connect().await;
    raw.send(head.replace("wait", "here")).await;
    raw.0.shutdown().await.unwrap();
    assert_eq!(raw.answer().await.status, 202);
}
