//! A server of its own for each test, and a client that sends exactly the bytes it is told to.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use lockgate_core::Disk;
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use lockgate_server::{AccessKeys, RunReport, Secret, Server, ServerOptions};
use lockgate_sigv4::Signer;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

/// Nothing in these tests takes this long; a test that waits for it has failed.
const FAR: Duration = Duration::from_secs(60);

/// A running server.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) access_keys: Option<AccessKeys>,
    shutdown: oneshot::Sender<()>,
    run: JoinHandle<RunReport>,
    _folder: Option<TempDir>,
}

impl TestServer {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let engine = tokio::task::spawn_blocking(move || start_engine(&path))
            .await
            .unwrap();
        Self {
            _folder: Some(folder),
            ..Self::start_over(engine, change).await
        }
    }

    /// A server over an engine that somebody else has started.
    pub(crate) async fn start_over(
        engine: Engine,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        let mut options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..ServerOptions::default()
        };
        change(&mut options);
        let server = Server::bind(options, engine.clone()).await.unwrap();
        let address = server.local_addr();
        let access_keys = server.access_keys();
        let (shutdown, called) = oneshot::channel();
        let run = tokio::spawn(server.run(async {
            let _ = called.await;
        }));
        Self {
            address,
            engine,
            access_keys,
            shutdown,
            run,
            _folder: None,
        }
    }

    pub(crate) async fn connect(&self) -> Raw {
        Raw(TcpStream::connect(self.address).await.unwrap())
    }

    /// Sends `request` on a connection of its own and returns the first answer.
    pub(crate) async fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut raw = self.connect().await;
        raw.send(request).await;
        raw.answer().await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await
    }

    /// The bytes of an SQS call.
    pub(crate) fn sqs_request(action: &str, body: &Value) -> String {
        let body = body.to_string();
        let headers = format!(
            "X-Amz-Target: AmazonSQS.{action}\r\nContent-Type: application/x-amz-json-1.0\r\n\
             Content-Length: {}\r\n",
            body.len()
        );
        post(&headers, &body)
    }

    /// Makes an SQS call that must succeed.
    pub(crate) async fn sqs(&self, action: &str, body: &Value) -> Value {
        let answer = self.ask(Self::sqs_request(action, body)).await;
        assert_eq!(answer.status, 200, "{action}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap()
    }

    pub(crate) fn queue_url(&self, name: &str) -> String {
        format!("http://{}/000000000000/{name}", self.address)
    }

    /// Calls for the end of the run, without waiting for it.
    pub(crate) fn call_shutdown(self) -> JoinHandle<RunReport> {
        let _ = self.shutdown.send(());
        // The folder goes when the run has ended.
        tokio::spawn(async move {
            let report = self.run.await.unwrap();
            drop(self._folder);
            report
        })
    }

    pub(crate) async fn stop(self) -> RunReport {
        in_time(self.call_shutdown()).await.unwrap()
    }
}

/// An engine over the log in the folder `path`. Blocks.
pub(crate) fn start_engine(path: &std::path::Path) -> Engine {
    let disk = FolderDisk::open(path).unwrap();
    // How full the disk of whoever tests is, is none of a test's business.
    let options = LocalLogOptions {
        low_bytes: Some(1),
        free_bytes_min: 1,
        ..LocalLogOptions::default()
    };
    start_engine_over(Arc::new(disk), options)
}

/// An engine over the log on that disk. Blocks.
pub(crate) fn start_engine_over(disk: Arc<dyn Disk>, options: LocalLogOptions) -> Engine {
    let log = LocalLog::open(disk, options).unwrap();
    let clock = Arc::new(SystemClock::new());
    let (engine, _report) = Engine::start(log, clock, EngineOptions::default()).unwrap();
    engine
}

/// Signs a request to `line` (method and address) with an access key: its id and its secret.
pub(crate) fn sign(
    line: &str,
    headers: &mut hyper::HeaderMap,
    body: &str,
    (key_id, secret): (&str, &str),
    now: i64,
) {
    let signer = Signer {
        key_id,
        secret: &Secret::new(secret),
        region: "us-east-1",
        service: "sqs",
    };
    let (method, target) = line.split_once(' ').unwrap();
    signer
        .sign(method, target, headers, body.as_bytes(), now)
        .unwrap();
}

/// A connection without a client library's good manners.
pub(crate) struct Raw(pub(crate) TcpStream);

/// An HTTP answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Status line and headers, as sent.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Raw {
    /// Sends all of `bytes`; that the server has hung up is no error yet.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = in_time(self.0.write_all(bytes.as_ref())).await;
    }

    /// Reads one answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("closed without an answer")
    }

    /// Reads one answer; `None` if the connection ends instead.
    pub(crate) async fn try_answer(&mut self) -> Option<Answer> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(in_time(self.0.read_u8()).await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let len = header(&head, "content-length").map_or(0, |len| len.parse().unwrap());
        let mut body = vec![0; len];
        in_time(self.0.read_exact(&mut body)).await.ok()?;
        Some(Answer {
            status,
            head,
            body: String::from_utf8(body).unwrap(),
        })
    }

    /// Waits until the server has closed the connection; returns what came before.
    pub(crate) async fn closed(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset is as good an end as any.
        let _ = in_time(self.0.read_to_end(&mut rest)).await;
        rest
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Expects an error that SQS clients read, with this status and a text about `about`: in XML if it
    /// is said to be, as for requests of the Query protocol, and else as AWS JSON has it.
    #[track_caller]
    pub(crate) fn expect_refusal(&self, status: u16, about: &str) {
        assert_eq!(self.status, status, "{self:?}");
        if self.header("content-type") == Some("text/xml") {
            let body = self.body.replace("&quot;", "\"");
            assert!(body.contains("<ErrorResponse "), "{body}");
            assert!(body.contains(about), "{body:?} is not about {about:?}");
            return;
        }
        let body: Value = serde_json::from_str(&self.body).unwrap();
        if self.header("content-type") == Some("application/problem+json") {
            let detail = body["detail"].as_str().unwrap();
            assert!(detail.contains(about), "{detail:?} is not about {about:?}");
            return;
        }
        let message = body["message"].as_str().unwrap();
        assert!(
            message.contains(about),
            "{message:?} is not about {about:?}"
        );
        let kind = body["__type"].as_str().unwrap();
        assert!(kind.starts_with("com.amazon"), "{kind}");
        let legacy = self.header("x-amzn-query-error").unwrap();
        assert!(legacy.contains(';'), "{legacy}");
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}

/// Fails the test instead of hanging it.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    timeout(FAR, future).await.expect("nothing happened")
}

/// A POST to the SQS endpoint with these headers (each ending in CRLF) and this body.
pub(crate) fn post(headers: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n{body}")
}
