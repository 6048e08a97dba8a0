//! Calls of one server.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue},
    http::response::Parts,
};
use lockgate_core::{
    Epoch, HolderName,
    coordination::{Fence, FenceError, FenceMark},
};
use lockgate_sigv4::{SignError, Signer};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    CallError, Credentials, Endpoint, TrustError,
    connection::{Connection, Failed, Idle},
    error::{LedgerFault, RecordFault},
    trust::Trust,
};

/// The longest wait for an answer unless the builder says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest answer that is read, a backup's aside: a server ends an answer with messages at 16 MiB, and
/// has at least one message in it, of which a byte may become six.
const ANSWER_BYTES_MAX: usize = 256 << 20;

const CONSUMER: HeaderName = HeaderName::from_static("x-lockgate-consumer");

const FENCE: HeaderName = HeaderName::from_static("x-lockgate-fence");

/// What is percent-encoded of a fence: what cannot stand in a header, what separates its values, and the percent sign.
const IN_HEADER: &AsciiSet = &CONTROLS.add(b'%').add(b' ').add(b',');

/// A client of one server. Clones are the same client and share its connections; calls may run at the same
/// time in any number.
///
/// A call takes an idle connection, or opens one. Up to 32 idle connections are kept, each for 30 s. A server
/// may close an idle connection at any time; a request that was certainly not sent on it goes out on a new
/// one. A client belongs to the tokio runtime that its calls run in.
///
/// # Cancellation
/// Dropping the future of a call closes its connection, which tells the server to give back leases that
/// were on their way. Whether anything else that it asked for was done is unknown.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
    /// Of whose term all calls are.
    fence: Option<Fence>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    idle: Idle,
}

#[derive(Clone, Debug)]
struct Settings {
    endpoint: Endpoint,
    timeout: Duration,
    consumer: Option<HeaderValue>,
    credentials: Option<Credentials>,
    trust: Option<Trust>,
}

/// What a [`Client`] is made of. Only the endpoint is required.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    endpoint: Endpoint,
    timeout: Duration,
    consumer: Option<HolderName>,
    credentials: Option<Credentials>,
    authorities: Option<PathBuf>,
}

/// Says why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// For `https`: it cannot be known whom to trust.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The consumer's name cannot stand in a header.
    #[error("{name:?} has characters beyond ASCII")]
    Consumer {
        /// The name.
        name: HolderName,
    },
    /// The access key's id or region cannot stand in a header.
    #[error("access key {id:?}")]
    Credentials {
        /// The key's id.
        id: String,
        /// What signing says.
        source: SignError,
    },
}

impl ClientBuilder {
    /// Waits up to so long for each answer, connecting included. A receive's own wait comes on top. Default:
    /// 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Holds leases under this name where a receive names no holder. Default: the server takes the access
    /// key and the address.
    #[must_use]
    pub fn consumer(mut self, name: HolderName) -> Self {
        self.consumer = Some(name);
        self
    }

    /// Signs every request with this access key. Default: none is signed.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = Some(credentials);
        self
    }

    /// For `https`: trusts the authorities in this file (PEM) and no others. Default: those of the system,
    /// which are what SSL_CERT_FILE and SSL_CERT_DIR name, else the folder that the distribution keeps.
    #[must_use]
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
        self.authorities = Some(file.into());
        self
    }

    /// Makes the client. It connects at its first call. For `https`, the files of authorities are read, on
    /// a thread for what blocks.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn build(self) -> Result<Client, BuildError> {
        if !self.endpoint.is_https() {
            return self.build_blocking();
        }
        match tokio::task::spawn_blocking(|| self.build_blocking()).await {
            Ok(built) => built,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is coming to its end, and polls nobody any more.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// As [`build`](Self::build), for where nothing is async yet. Blocks: for `https` it reads files.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn build_blocking(self) -> Result<Client, BuildError> {
        let header = |name: HolderName| {
            HeaderValue::from_str(name.as_str())
                .ok()
                .filter(|_| name.as_str().is_ascii())
                .ok_or(BuildError::Consumer { name })
        };
        let consumer = self.consumer.map(header).transpose()?;
        let trust = match self.endpoint.is_https() {
            true => Some(Trust::new(&self.endpoint, self.authorities.as_deref())?),
            false => None,
        };
        if let Some(key) = &self.credentials {
            let signed = sign(key, &Method::GET, "/", &mut Request::new(()), b"");
            signed.map_err(|source| BuildError::Credentials {
                id: key.id.clone(),
                source,
            })?;
        }
        Ok(Client::of(Settings {
            endpoint: self.endpoint,
            timeout: self.timeout,
            consumer,
            credentials: self.credentials,
            trust,
        }))
    }
}

impl Client {
    /// Begins a client of the server at `endpoint`.
    #[must_use]
    pub fn builder(endpoint: Endpoint) -> ClientBuilder {
        ClientBuilder {
            endpoint,
            timeout: TIMEOUT,
            consumer: None,
            credentials: None,
            authorities: None,
        }
    }

    fn of(settings: Settings) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                idle: Idle::default(),
            }),
            fence: None,
        }
    }

    /// The same client for the leader of a term: each call that changes something, but a receive, is refused with
    /// [`CallError::Fenced`] once the server has seen a later term of that election, or when the term is over by its own clock. It
    /// shares the connections of this one.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        Self {
            inner: self.inner.clone(),
            fence: Some(fence.clone()),
        }
    }

    /// Makes another client like it, with connections of its own.
    #[must_use]
    pub fn another(&self) -> Self {
        Self {
            fence: self.fence.clone(),
            ..Self::of(self.inner.settings.clone())
        }
    }

    /// Returns where the server is.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.settings.endpoint
    }

    /// Returns how long a call waits for an answer.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.inner.settings.timeout
    }

    /// Makes one call. `target` is the path after `/api/v1`, with its query, percent-encoded. Operations and
    /// bodies are described at `/api/v1/openapi.json`.
    ///
    /// # Errors
    /// [`CallError`]; what became of the call is its [`fate`](CallError::fate).
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CallError> {
        self.call_within(method, target, body, Duration::ZERO).await
    }

    /// The same, where the answer may take `longer` than usual, for a long poll.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn call_within<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
        longer: Duration,
    ) -> Result<T, CallError> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(cannot_be_made)?.unwrap_or_default();
        let request = self.request(method, target, body.into())?;
        let (head, body) = self.exchange(request, longer).await?;
        if !head.status.is_success() {
            return Err(self.refusal(&head, &body));
        }
        serde_json::from_slice(&body).map_err(|error| self.no_lockgate(error))
    }

    /// Asks for a backup of everything the server holds. What comes is the answer's body, piece by piece,
    /// over a connection of its own.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub async fn backup(&self) -> Result<BackupBody, CallError> {
        let request = self.request(Method::GET, "/backup", Bytes::new())?;
        let exchange = async {
            let mut connection = self.connect().await?;
            let answer = connection.send(request).await;
            let (head, body) = answer.map_err(|failed| self.failed(failed))?.into_parts();
            if head.status == StatusCode::OK {
                return Ok(BackupBody {
                    client: self.clone(),
                    body,
                    _connection: connection,
                });
            }
            Err(self.refusal(&head, &self.whole(body).await?))
        };
        let answer = timeout(self.timeout(), exchange).await;
        answer.unwrap_or_else(|_| Err(self.timed_out(self.timeout())))
    }

    /// A request to that target under `/api/v1`.
    fn request(
        &self,
        method: Method,
        target: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, CallError> {
        let settings = &self.inner.settings;
        let path = settings.endpoint.path().trim_end_matches('/');
        let target = format!("{path}/api/v1{target}");
        let mut request = Request::builder()
            .method(&method)
            .uri(&target)
            .header(HOST, settings.endpoint.authority())
            // A server takes no request of a browser's for one of these.
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))
            .map_err(cannot_be_made)?;
        if let Some(fence) = self.fence.as_ref().filter(|_| method != Method::GET) {
            fence.check()?;
            let mark = fence.mark().to_string();
            let mark = utf8_percent_encode(&mark, IN_HEADER).to_string();
            let mark = HeaderValue::try_from(mark).map_err(cannot_be_made)?;
            request.headers_mut().insert(FENCE, mark);
        }
        if let Some(consumer) = &settings.consumer {
            request.headers_mut().insert(CONSUMER, consumer.clone());
        }
        if let Some(key) = &settings.credentials {
            sign(key, &method, &target, &mut request, &body).map_err(cannot_be_made)?;
        }
        Ok(request)
    }

    /// What an error says of this client's fence, if it is about that.
    pub(crate) fn deposed(&self, code: &str, newest: Option<u64>) -> Option<FenceError> {
        let FenceMark { election, epoch } = self.fence.as_ref()?.mark();
        let newest = Epoch(newest.filter(|_| code == "deposed")?);
        Some(FenceError::Deposed {
            election,
            epoch,
            newest,
        })
    }

    /// Sends a request and takes the answer, whole.
    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
        longer: Duration,
    ) -> Result<(Parts, Bytes), CallError> {
        let after = self.timeout().saturating_add(longer);
        // An instant that cannot be told is far enough away for a timer to be none.
        let now = Instant::now();
        let until = now.checked_add(after).unwrap_or(now + FAR);
        // What was not sent on an idle connection, because the server had closed it, goes out on a new one.
        let mut idle = self.inner.idle.take();
        if idle.is_some() {
            // The runtime looks at its sockets, then the connection at its own: that it was closed is noticed
            // before the request is written, also where nothing has run since.
            yield_now().await;
            yield_now().await;
        }
        loop {
            let reused = idle.is_some();
            let mut connection = match idle.take() {
                Some(connection) => connection,
                None => match timeout_at(until, self.connect()).await {
                    Ok(connection) => connection?,
                    Err(elapsed) => return Err(self.not_connected(elapsed.into())),
                },
            };
            // A connection that is left half-way through an answer is not used again.
            let answer = async {
                let answer = connection.send(request).await;
                match answer {
                    Ok(answer) => {
                        let (head, body) = answer.into_parts();
                        Ok(Ok((head, self.whole(body).await?)))
                    }
                    Err(failed) => Ok(Err(failed)),
                }
            };
            match timeout_at(until, answer).await {
                Err(_) => return Err(self.timed_out(after)),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(Ok(answer))) => {
                    self.inner.idle.put(connection);
                    return Ok(answer);
                }
                Ok(Ok(Err(Failed::Unsent(unsent, _)))) if reused => request = *unsent,
                Ok(Ok(Err(failed))) => return Err(self.failed(failed)),
            }
        }
    }

    async fn connect(&self) -> Result<Connection, CallError> {
        let settings = &self.inner.settings;
        Connection::open(&settings.endpoint, settings.trust.as_ref()).await
    }

    /// The body of an answer, whole.
    async fn whole(&self, body: Incoming) -> Result<Bytes, CallError> {
        let collected = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        match collected {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) => Err(match error.downcast::<hyper::Error>() {
                Ok(error) => self.lost(*error),
                Err(error) if error.is::<LengthLimitError>() => self.no_lockgate(format_args!(
                    "its answer has more than {ANSWER_BYTES_MAX} bytes"
                )),
                Err(error) => self.no_lockgate(error),
            }),
        }
    }

    /// The error in an answer.
    fn refusal(&self, head: &Parts, body: &[u8]) -> CallError {
        #[derive(Deserialize)]
        struct Problem {
            code: String,
            detail: String,
            field: Option<String>,
            version: Option<u64>,
            queue: Option<String>,
            record: Option<Box<RecordFault>>,
            ledger: Option<Box<LedgerFault>>,
            newest_epoch: Option<u64>,
        }
        let status = head.status;
        let problem = serde_json::from_slice::<Problem>(body);
        if let Ok(problem) = &problem
            && let Some(deposed) = self.deposed(&problem.code, problem.newest_epoch)
        {
            return deposed.into();
        }
        match problem {
            Ok(Problem {
                queue: Some(name), ..
            }) => CallError::NoQueue {
                endpoint: self.endpoint().clone(),
                name,
            },
            Ok(Problem {
                code,
                detail,
                record: Some(fault),
                ..
            }) => CallError::Record {
                status,
                code,
                message: detail,
                fault,
            },
            Ok(Problem {
                code,
                detail,
                ledger: Some(fault),
                ..
            }) => CallError::Ledger {
                status,
                code,
                message: detail,
                fault,
            },
            Ok(Problem {
                code,
                detail,
                field,
                version,
                ..
            }) => CallError::Refused {
                status,
                code,
                message: detail,
                field,
                version,
            },
            Err(_) => self.no_lockgate(format_args!("it says {status}")),
        }
    }

    fn failed(&self, failed: Failed) -> CallError {
        match failed {
            Failed::Lost(error) => self.lost(error),
            Failed::Unsent(_, error) => self.not_connected(io::Error::other(error)),
        }
    }

    fn not_connected(&self, source: io::Error) -> CallError {
        CallError::Connect {
            endpoint: self.endpoint().clone(),
            source,
        }
    }

    fn timed_out(&self, after: Duration) -> CallError {
        CallError::Timeout {
            endpoint: self.endpoint().clone(),
            after,
        }
    }

    fn lost(&self, source: hyper::Error) -> CallError {
        if source.is_parse() {
            let https = match self.inner.settings.trust {
                Some(_) => "",
                None => "; does it serve HTTPS? then its URL begins with https://",
            };
            return self.no_lockgate(format_args!("what it says is not HTTP{https}"));
        }
        CallError::Lost {
            endpoint: self.endpoint().clone(),
            source,
        }
    }

    pub(crate) fn no_lockgate(&self, what: impl fmt::Display) -> CallError {
        CallError::NoLockgate {
            endpoint: self.endpoint().clone(),
            what: what.to_string(),
        }
    }
}

/// A time that nobody waits for.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

fn cannot_be_made(error: impl fmt::Display) -> CallError {
    CallError::Request {
        what: error.to_string(),
    }
}

fn sign<B>(
    key: &Credentials,
    method: &Method,
    target: &str,
    request: &mut Request<B>,
    body: &[u8],
) -> Result<(), SignError> {
    let signer = Signer {
        key_id: &key.id,
        secret: &key.secret,
        region: &key.region,
        service: "sqs",
    };
    let now = jiff::Timestamp::now().as_second();
    signer.sign(method.as_str(), target, request.headers_mut(), body, now)
}

/// A backup on its way from a server. Dropping it ends the backup.
#[derive(Debug)]
pub struct BackupBody {
    client: Client,
    body: Incoming,
    _connection: Connection,
}

impl BackupBody {
    /// Waits for the next piece, up to the client's timeout; `None` at the end of a whole answer. Safe to
    /// cancel: no piece is lost.
    ///
    /// # Errors
    /// [`CallError::Lost`] and [`CallError::Timeout`]: the backup is not whole.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        let after = self.client.timeout();
        loop {
            let frame = timeout(after, self.body.frame()).await;
            match frame.map_err(|_| self.client.timed_out(after))? {
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
