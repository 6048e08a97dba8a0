//! A small client of the SQS JSON protocol and the admin API: one connection, one call at a time.

mod api;
mod credentials;
mod endpoint;
mod trust;

pub(crate) use api::*;
pub(crate) use credentials::Credentials;
pub(crate) use endpoint::Endpoint;
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
use serde::{Serialize, de::DeserializeOwned};
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
    #[error("{}", refusal(code, message))]
    Refused {
        status: StatusCode,
        /// As SQS clients know it, such as `AWS.SimpleQueueService.NonExistentQueue`.
        code: String,
        message: String,
    },
    /// Something else than an SQS server answered.
    #[error("{endpoint} does not answer like an SQS server: {what}")]
    NotSqs { endpoint: Endpoint, what: String },
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

    /// One call.
    pub(crate) async fn call<C: Call>(&mut self, call: &C) -> Result<C::Answer, CallError> {
        self.call_within(call, Duration::ZERO).await
    }

    /// One call whose answer may take `longer` than usual, for a long poll.
    pub(crate) async fn call_within<C: Call>(
        &mut self,
        call: &C,
        longer: Duration,
    ) -> Result<C::Answer, CallError> {
        let body = serde_json::to_vec(call).map_err(|error| self.not_sqs(error))?;
        let (status, code, body) = self.post(C::TARGET, body.into(), longer).await?;
        if status.is_success() {
            return decode(&body).map_err(|error| self.not_sqs(error));
        }
        Err(refused(status, code, &body).unwrap_or_else(|| {
            self.not_sqs(format!("it says {status} without an error of the protocol"))
        }))
    }

    /// Sends a request of the protocol, and takes status, error code and body of the answer.
    async fn post(
        &mut self,
        target: &'static str,
        body: Bytes,
        longer: Duration,
    ) -> Result<(StatusCode, Option<String>, Bytes), CallError> {
        let request = self.request(target, body);
        let (head, body) = self.exchange(request, longer).await?;
        let code = head
            .headers
            .get("x-amzn-query-error")
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split(';').next())
            .map(str::to_owned);
        Ok((head.status, code, body))
    }

    /// One call of the admin API. `target` is the path after `/api/v1`, with its query, encoded.
    pub(crate) async fn admin<T: DeserializeOwned>(
        &mut self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CallError> {
        self.admin_within(method, target, body, Duration::ZERO)
            .await
    }

    /// The same, where the answer may take `longer` than usual, for a long poll.
    pub(crate) async fn admin_within<T: DeserializeOwned>(
        &mut self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
        longer: Duration,
    ) -> Result<T, CallError> {
        let body = body
            .map(serde_json::to_vec)
            .transpose()
            .map_err(|error| self.not_sqs(error))?
            .unwrap_or_default();
        let path = self.endpoint.path().trim_end_matches('/');
        let target = format!("{path}/api/v1{target}");
        let mut request = Request::builder().method(&method).uri(&target);
        if let Some(consumer) = &self.consumer {
            request = request.header("x-lockgate-consumer", consumer);
        }
        let mut request = request
            .header(HOST, self.endpoint.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone().into()))
            .map_err(|error| self.not_sqs(error))?;
        self.sign(method.as_str(), &target, &mut request, &body);
        let (head, body) = self.exchange(request, longer).await?;
        if head.status.is_success() {
            return decode(&body).map_err(|error| self.not_sqs(error));
        }
        Err(problem(head.status, &body)
            .or_else(|| refused(head.status, None, &body))
            .unwrap_or_else(|| self.not_sqs(format!("it says {}", head.status))))
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
            Err(refused(head.status, None, &text)
                .unwrap_or_else(|| self.not_sqs(format!("it says {}", head.status))))
        };
        timeout(self.timeout, exchange)
            .await
            .unwrap_or_else(|_| Err(self.timed_out()))
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

    fn request(&self, target: &'static str, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::post(self.endpoint.path());
        if let Some(consumer) = &self.consumer {
            request = request.header("x-lockgate-consumer", consumer);
        }
        let mut request = request
            .header(HOST, self.endpoint.authority())
            .header(CONTENT_TYPE, "application/x-amz-json-1.0")
            .header("x-amz-target", target)
            .header("x-amzn-query-mode", "true")
            .body(Full::new(body.clone()))
            .expect("path, authority and consumer were checked when they were read");
        self.sign("POST", self.endpoint.path(), &mut request, &body);
        request
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
            return self.not_sqs(format!("what it says is not HTTP{https}"));
        }
        CallError::Lost {
            endpoint: self.endpoint.clone(),
            source,
        }
    }

    fn not_sqs(&self, what: impl ToString) -> CallError {
        CallError::NotSqs {
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
            Self::Connect { .. } | Self::NoTls { .. } => true,
            // A server whose storage fails under the request cannot know itself.
            Self::Refused { status, .. } => *status != StatusCode::INTERNAL_SERVER_ERROR,
            Self::Lost { .. } | Self::Timeout { .. } | Self::NotSqs { .. } => false,
        }
    }

    /// Whether the same request may fare better in a moment.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } | Self::Timeout { .. } => true,
            Self::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            Self::NotSqs { .. } | Self::NoTls { .. } => false,
        }
    }

    /// Whether the server says that the queue does not exist.
    pub(crate) fn is_queue_missing(&self) -> bool {
        const CODES: [&str; 3] = ["NonExistentQueue", "QueueDoesNotExist", "queue_not_found"];
        matches!(self, Self::Refused { code, .. } if CODES.contains(&short(code)))
    }

    /// Whether the server says that there is a queue of that name, with other settings.
    pub(crate) fn is_queue_there(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if code == "queue_exists")
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Connect { .. } => Exit::Unreachable,
            Self::Timeout { .. } => Exit::Timeout,
            Self::NoTls { .. } | Self::Lost { .. } | Self::NotSqs { .. } => Exit::Failed,
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
            error if error.is_queue_missing() => Some(
                "`lockgate queue list` shows what queues there are, `lockgate queue create` makes one"
                    .to_owned(),
            ),
            _ => None,
        };
        let failure = Self::from_error(exit, error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The exit code for an error of the protocol.
pub(crate) fn exit_of(status: StatusCode, code: &str) -> Exit {
    match short(code) {
        "NonExistentQueue" | "QueueDoesNotExist" | "ResourceNotFoundException" => Exit::NotFound,
        "QueueAlreadyExists"
        | "QueueNameExists"
        | "QueueDeletedRecently"
        | "PurgeQueueInProgress"
        | "MessageNotInflight"
        | "ReceiptHandleIsInvalid" => Exit::Conflict,
        "AccessDenied"
        | "AccessDeniedException"
        | "InvalidSecurity"
        | "SignatureDoesNotMatch"
        | "InvalidClientTokenId"
        | "MissingAuthenticationToken" => Exit::Denied,
        // Of the admin API.
        "queue_not_found" | "key_not_found" | "message_not_found" => Exit::NotFound,
        _ if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED => Exit::Denied,
        _ if status == StatusCode::CONFLICT => Exit::Conflict,
        _ => Exit::Failed,
    }
}

/// `AWS.SimpleQueueService.NonExistentQueue` without the words all codes have in front.
fn short(code: &str) -> &str {
    code.rsplit(['.', '#']).next().unwrap_or(code)
}

fn refusal(code: &str, message: &str) -> String {
    match message {
        "" => short(code).to_owned(),
        message => format!("{message} ({})", short(code)),
    }
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    // Actions without an answer send an empty body, or an empty object.
    serde_json::from_slice(if body.is_empty() { b"{}" } else { body })
}

/// The error in an answer, if it is one of the protocol's.
fn refused(status: StatusCode, code: Option<String>, body: &[u8]) -> Option<CallError> {
    #[derive(serde::Deserialize)]
    struct Body {
        #[serde(rename = "__type")]
        kind: Option<String>,
        #[serde(alias = "Message")]
        message: Option<String>,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    Some(CallError::Refused {
        status,
        code: code.or(body.kind)?,
        message: body.message.unwrap_or_default(),
    })
}

/// The error in an answer of the admin API, if it is one.
fn problem(status: StatusCode, body: &[u8]) -> Option<CallError> {
    #[derive(serde::Deserialize)]
    struct Problem {
        code: String,
        detail: String,
    }
    let Problem { code, detail } = serde_json::from_slice(body).ok()?;
    Some(CallError::Refused {
        status,
        code,
        message: detail,
    })
}

/// One action of the protocol: its name, what it asks and what it answers.
pub(crate) trait Call: Serialize {
    const TARGET: &'static str;
    type Answer: DeserializeOwned;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_protocol_become_exit_codes() {
        let exit = |code: &str| exit_of(StatusCode::BAD_REQUEST, code);
        assert_eq!(
            exit("AWS.SimpleQueueService.NonExistentQueue"),
            Exit::NotFound
        );
        assert_eq!(exit("QueueAlreadyExists"), Exit::Conflict);
        assert_eq!(exit("InvalidParameterValue"), Exit::Failed);
        assert_eq!(exit_of(StatusCode::FORBIDDEN, "X"), Exit::Denied);
    }

    #[test]
    fn an_error_without_the_header_is_read_from_the_body() {
        let body = br#"{"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"gone"}"#;
        let error = refused(StatusCode::BAD_REQUEST, None, body).unwrap();
        assert!(error.is_queue_missing());
        assert_eq!(error.to_string(), "gone (QueueDoesNotExist)");
        assert!(refused(StatusCode::BAD_GATEWAY, None, b"<html>").is_none());
    }
}
