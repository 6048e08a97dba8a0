//! A small client of `/api/v1`: one connection, one call at a time.

mod credentials;
mod endpoint;
mod message;
mod trust;

pub(crate) use credentials::Credentials;
pub(crate) use endpoint::Endpoint;
pub(crate) use message::{Body, Encoding, Header, Message};
pub(crate) use trust::Trust;

use std::{io, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{CONTENT_TYPE, HOST},
    http::response::Parts,
};
use hyper_util::rt::TokioIo;
use lockgate_server::sign_request;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

use crate::exit::{Exit, Failure};

/// How long to wait for a connection to be accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A client of one server. Connects at the first call and again when the connection was lost.
///
/// Dropping a call's future closes the connection, which tells the server to give back leases that
/// were on their way.
pub(crate) struct Client {
    endpoint: Endpoint,
    timeout: Duration,
    consumer: Option<String>,
    credentials: Option<Credentials>,
    trust: Option<Trust>,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// Why a call has no positive answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing was sent.
    #[error("no server at {endpoint}")]
    Connect {
        endpoint: Endpoint,
        source: io::Error,
    },
    /// Nothing was sent: the server is not who it should be, or speaks no TLS.
    #[error("no TLS with {endpoint}: {what}")]
    NoTls {
        endpoint: Endpoint,
        what: String,
        hint: Option<String>,
    },
    /// The request left, or part of it; whether it was carried out is unknown.
    #[error("the connection to {endpoint} was lost before the answer came")]
    Lost {
        endpoint: Endpoint,
        source: hyper::Error,
    },
    /// The request left and no answer came; whether it was carried out is unknown.
    #[error("no answer from {endpoint} within {}", crate::units::show_duration(*after))]
    Timeout { endpoint: Endpoint, after: Duration },
    /// The server said no.
    #[error("{message} ({code})")]
    Refused {
        status: StatusCode,
        /// For programs, such as `queue_not_found`.
        code: String,
        message: String,
    },
    /// There is no such queue, or not for this caller.
    #[error("there is no queue {name:?} at {endpoint}")]
    NoQueue {
        endpoint: Endpoint,
        name: String,
        /// One that may be meant.
        similar: Option<String>,
    },
    /// Something else answered.
    #[error("{endpoint} does not answer like a Lockgate server: {what}")]
    NoLockgate { endpoint: Endpoint, what: String },
}

impl Client {
    /// A client that waits up to `timeout` for an answer.
    pub(crate) fn new(endpoint: Endpoint, timeout: Duration) -> Self {
        Self {
            endpoint,
            timeout,
            consumer: None,
            credentials: None,
            trust: None,
            connection: None,
        }
    }

    /// The same client, whose leases are held under this name.
    pub(crate) fn with_consumer(mut self, consumer: Option<String>) -> Self {
        self.consumer = consumer;
        self
    }

    /// The same client, whose requests are signed.
    pub(crate) fn with_credentials(mut self, credentials: Option<Credentials>) -> Self {
        self.credentials = credentials;
        self
    }

    /// The same client, which speaks TLS: what an endpoint with `https` needs.
    pub(crate) fn with_trust(mut self, trust: Option<Trust>) -> Self {
        self.trust = trust;
        self
    }

    /// Another client like it, with a connection of its own.
    pub(crate) fn another(&self) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            timeout: self.timeout,
            consumer: self.consumer.clone(),
            credentials: self.credentials.clone(),
            trust: self.trust.clone(),
            connection: None,
        }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// One call. `target` is the path after `/api/v1`, with its query, encoded.
    pub(crate) async fn call<T: DeserializeOwned>(
        &mut self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CallError> {
        self.call_within(method, target, body, Duration::ZERO).await
    }

    /// The same, where the answer may take `longer` than usual, for a long poll.
    pub(crate) async fn call_within<T: DeserializeOwned>(
        &mut self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
        longer: Duration,
    ) -> Result<T, CallError> {
        let body = body
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|error| self.no_lockgate(error))?
            .unwrap_or_default();
        let (head, body) = self.ask(method, target, body.into(), longer).await?;
        if head.status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| self.no_lockgate(error));
        }
        let mut error = self.refusal(&head, &body);
        if let CallError::NoQueue { name, similar, .. } = &mut error {
            *similar = self.similar_queue(name).await;
        }
        Err(error)
    }

    /// A queue whose name is nearly this one; `None` too where the caller may not list queues.
    async fn similar_queue(&mut self, name: &str) -> Option<String> {
        /// Two names that differ by a letter or two are closer than this.
        const SIMILAR: f64 = 0.8;

        #[derive(Deserialize)]
        struct Queues {
            queues: Vec<Queue>,
        }
        #[derive(Deserialize)]
        struct Queue {
            name: String,
        }
        let target = "/queues?limit=1000";
        let asked = self.ask(Method::GET, target, Bytes::new(), Duration::ZERO);
        let (_, body) = asked.await.ok()?;
        let Queues { queues } = serde_json::from_slice(&body).ok()?;
        // That two names end in .fifo makes them no more alike.
        let stem = |name: &str| name.trim_end_matches(".fifo").to_owned();
        let wanted = stem(name);
        let rated = (queues.into_iter())
            .map(|queue| {
                (
                    strsim::jaro_winkler(&stem(&queue.name), &wanted),
                    queue.name,
                )
            })
            .filter(|(similarity, _)| *similarity > SIMILAR);
        let best = rated.max_by(|(one, _), (other, _)| one.total_cmp(other));
        best.map(|(_, name)| name)
    }

    /// Sends a request to that target under `/api/v1`.
    async fn ask(
        &mut self,
        method: Method,
        target: &str,
        body: Bytes,
        longer: Duration,
    ) -> Result<(Parts, Bytes), CallError> {
        let path = self.endpoint.path().trim_end_matches('/');
        let target = format!("{path}/api/v1{target}");
        let mut request = Request::builder().method(&method).uri(&target);
        if let Some(consumer) = &self.consumer {
            request = request.header("x-lockgate-consumer", consumer);
        }
        let mut request = request
            .header(HOST, self.endpoint.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))
            .map_err(|error| self.no_lockgate(error))?;
        self.sign(method.as_str(), &target, &mut request, &body);
        self.exchange(request, longer).await
    }

    /// Sends a request and takes the answer, whole.
    async fn exchange(
        &mut self,
        mut request: Request<Full<Bytes>>,
        longer: Duration,
    ) -> Result<(Parts, Bytes), CallError> {
        let after = self.timeout + longer;
        // A connection that is left half-way through an answer must not be used again, so it is
        // taken out first and put back when the answer is whole.
        let exchange = async {
            // A server may close an idle connection at any time; a request that was not sent on it
            // goes out on a new one.
            let mut idle = self.connection.take().filter(|idle| !idle.is_closed());
            let (connection, response) = loop {
                let (mut connection, reused) = match idle.take() {
                    Some(connection) => (connection, true),
                    None => (self.connect().await?, false),
                };
                match connection.ready().await {
                    Err(_) if reused => continue,
                    result => result.map_err(|source| self.lost(source))?,
                }
                match connection.try_send_request(request).await {
                    Ok(response) => break (connection, response),
                    Err(mut error) => match error.take_message() {
                        Some(unsent) if reused => request = unsent,
                        _ => return Err(self.lost(error.into_error())),
                    },
                }
            };
            let (head, body) = response.into_parts();
            let body = body
                .collect()
                .await
                .map_err(|source| self.lost(source))?
                .to_bytes();
            self.connection = Some(connection);
            Ok((head, body))
        };
        timeout(after, exchange).await.unwrap_or_else(|_| {
            Err(CallError::Timeout {
                endpoint: self.endpoint.clone(),
                after,
            })
        })
    }

    /// Asks for a backup; what comes is the answer's body, piece by piece.
    pub(crate) async fn backup(&self) -> Result<BackupBody<'_>, CallError> {
        let path = format!(
            "{}/api/v1/backup",
            self.endpoint.path().trim_end_matches('/')
        );
        let exchange = async {
            let mut request = Request::get(&path)
                .header(HOST, self.endpoint.authority())
                // What no web page can make a browser send without asking.
                .header(CONTENT_TYPE, "application/json")
                .body(Full::default())
                .expect("path and authority were checked when they were read");
            self.sign("GET", &path, &mut request, b"");
            let mut connection = self.connect().await?;
            let response = connection.send_request(request).await;
            let (head, body) = response.map_err(|source| self.lost(source))?.into_parts();
            let body = BackupBody {
                client: self,
                body,
                _connection: connection,
            };
            if head.status == StatusCode::OK {
                return Ok(body);
            }
            let text = body
                .body
                .collect()
                .await
                .map_err(|source| self.lost(source))?
                .to_bytes();
            Err(self.refusal(&head, &text))
        };
        timeout(self.timeout, exchange)
            .await
            .unwrap_or_else(|_| Err(self.timed_out()))
    }

    /// The error in an answer.
    fn refusal(&self, head: &Parts, body: &[u8]) -> CallError {
        #[derive(Deserialize)]
        struct Problem {
            code: String,
            detail: String,
            queue: Option<String>,
        }
        let status = head.status;
        match serde_json::from_slice(body) {
            Ok(Problem {
                queue: Some(name), ..
            }) => CallError::NoQueue {
                endpoint: self.endpoint.clone(),
                name,
                similar: None,
            },
            Ok(Problem { code, detail, .. }) => CallError::Refused {
                status,
                code,
                message: detail,
            },
            Err(_) => self.no_lockgate(format!("it says {status}")),
        }
    }

    fn timed_out(&self) -> CallError {
        CallError::Timeout {
            endpoint: self.endpoint.clone(),
            after: self.timeout,
        }
    }

    fn sign(&self, method: &str, path: &str, request: &mut Request<Full<Bytes>>, body: &[u8]) {
        if let Some(Credentials { id, secret, region }) = &self.credentials {
            let now = jiff::Timestamp::now().as_second();
            let headers = request.headers_mut();
            let key = (&**id, secret);
            // Checked when the credentials were read; what is not signed is refused by the server.
            let _signed = sign_request(method, path, headers, body, key, region, now);
        }
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, CallError> {
        let connect = |source| CallError::Connect {
            endpoint: self.endpoint.clone(),
            source,
        };
        let address = (self.endpoint.host(), self.endpoint.port());
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(address))
            .await
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
            .map_err(connect)?;
        // Requests are written whole; waiting for more to fill a packet only adds latency.
        stream.set_nodelay(true).map_err(connect)?;
        let Some(Trust { connector, name }) = &self.trust else {
            return self.speak(stream).await;
        };
        let stream = timeout(CONNECT_TIMEOUT, connector.connect(name.clone(), stream))
            .await
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
            .map_err(|error| match trust::explain(&error, &self.endpoint) {
                Some((what, hint)) => CallError::NoTls {
                    endpoint: self.endpoint.clone(),
                    what,
                    hint,
                },
                None => connect(error),
            })?;
        self.speak(stream).await
    }

    /// Begins HTTP on a connection.
    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<SendRequest<Full<Bytes>>, CallError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|source| self.lost(source))?;
        // Ends with the sender, or with the connection; its error reaches the call that is waiting.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn lost(&self, source: hyper::Error) -> CallError {
        if source.is_parse() {
            let https = match self.trust {
                Some(_) => "",
                None => "; does it serve HTTPS? then it is https:// in --endpoint",
            };
            return self.no_lockgate(format!("what it says is not HTTP{https}"));
        }
        CallError::Lost {
            endpoint: self.endpoint.clone(),
            source,
        }
    }

    fn no_lockgate(&self, what: impl ToString) -> CallError {
        CallError::NoLockgate {
            endpoint: self.endpoint.clone(),
            what: what.to_string(),
        }
    }
}

/// A backup on its way from a server.
pub(crate) struct BackupBody<'c> {
    client: &'c Client,
    body: Incoming,
    _connection: SendRequest<Full<Bytes>>,
}

impl BackupBody<'_> {
    /// The next piece; `None` at the end of a whole answer.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = timeout(self.client.timeout, self.body.frame()).await;
            match frame.map_err(|_| self.client.timed_out())? {
                None => return Ok(None),
                Some(Err(source)) => return Err(self.client.lost(source)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

impl CallError {
    /// Whether the request certainly had no effect.
    pub(crate) fn nothing_done(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::NoTls { .. } | Self::NoQueue { .. } => true,
            // A server whose storage fails under the request cannot know itself.
            Self::Refused { status, .. } => *status != StatusCode::INTERNAL_SERVER_ERROR,
            Self::Lost { .. } | Self::Timeout { .. } | Self::NoLockgate { .. } => false,
        }
    }

    /// Whether the same request may fare better in a moment.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } | Self::Timeout { .. } => true,
            Self::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::NoLockgate { .. } | Self::NoTls { .. } | Self::NoQueue { .. } => false,
        }
    }

    /// Whether the server says that the queue does not exist.
    pub(crate) fn is_queue_missing(&self) -> bool {
        matches!(self, Self::NoQueue { .. })
    }

    /// Whether the server says that there is a queue of that name, with other settings.
    pub(crate) fn is_queue_there(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "queue_exists")
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Connect { .. } => Exit::Unreachable,
            Self::Timeout { .. } => Exit::Timeout,
            Self::NoQueue { .. } => Exit::NotFound,
            Self::NoTls { .. } | Self::Lost { .. } | Self::NoLockgate { .. } => Exit::Failed,
            Self::Refused { status, code, .. } => exit_of(*status, code),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let exit = error.exit();
        let hint = match &error {
            CallError::Connect { source, .. }
                if source.kind() == io::ErrorKind::ConnectionRefused =>
            {
                Some("start one with `lockgate serve`, or name another with --endpoint".to_owned())
            }
            CallError::NoTls { hint, .. } => hint.clone(),
            CallError::NoQueue {
                similar: Some(similar),
                ..
            } => Some(format!("did you mean {similar}?")),
            CallError::NoQueue { name, .. } => Some(format!(
                "see what queues there are with `lockgate queue list`, or make it with `lockgate queue create {name}`"
            )),
            _ => None,
        };
        let failure = Self::from_error(exit, error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The exit code for an error of the server.
pub(crate) fn exit_of(status: StatusCode, code: &str) -> Exit {
    match code {
        "key_not_found" | "message_not_found" => Exit::NotFound,
        _ if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED => Exit::Denied,
        _ if status == StatusCode::CONFLICT => Exit::Conflict,
        _ => Exit::Failed,
    }
}
