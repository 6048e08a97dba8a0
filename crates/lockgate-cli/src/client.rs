//! The client as commands use it: what an error means for the exit code, and what to do about it.

use std::{error::Error, fmt, io, time::Duration};

use hyper::{Method, StatusCode};
pub(crate) use lockgate_client::{
    BackupBody, Credentials, Endpoint,
    api::{Body, Encoding, Header, Message},
};
use lockgate_client::{BuildError, TlsCause, TrustError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    commands::{Retry, environment},
    exit::{Exit, Failure},
};

/// A client of one server.
#[derive(Clone)]
pub(crate) struct Client(lockgate_client::Client);

/// Why a call has no positive answer.
#[derive(Debug)]
pub(crate) struct CallError {
    source: lockgate_client::CallError,
    /// Where a queue is missing: one that may be meant.
    similar: Option<String>,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

impl Client {
    pub(crate) fn new(client: lockgate_client::Client) -> Self {
        Self(client)
    }

    /// The client itself, for what is more than a call.
    pub(crate) fn inner(&self) -> &lockgate_client::Client {
        &self.0
    }

    /// Another client like it, with connections of its own.
    pub(crate) fn another(&self) -> Self {
        Self(self.0.another())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.0.endpoint()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.0.timeout()
    }

    /// One call. `target` is the path after `/api/v1`, with its query, encoded. A read is [repeated](Self::repeat).
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CallError> {
        match method {
            Method::GET => self.repeat(method, target, body).await,
            _ => self.call_within(method, target, body, Duration::ZERO).await,
        }
    }

    /// A call that has the same effect twice. If its answer is lost, it is tried again while the timeout lasts: a
    /// server that is restarted loses answers. One that was not there to begin with is not waited for.
    pub(crate) async fn repeat<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, CallError> {
        let mut retry = Retry::new(self.timeout());
        let mut lost = false;
        loop {
            let call = self.call_within(method.clone(), target, body, Duration::ZERO);
            match call.await {
                Err(error) => {
                    lost |= error.is_lost();
                    if !(lost && error.may_pass() && retry.again().await) {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// The same, where the answer may take `longer` than usual, for a long poll.
    pub(crate) async fn call_within<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
        longer: Duration,
    ) -> Result<T, CallError> {
        let answer = self.0.call_within(method, target, body, longer).await;
        let source = match answer {
            Ok(answer) => return Ok(answer),
            Err(source) => source,
        };
        let similar = match &source {
            lockgate_client::CallError::NoQueue { name, .. } => self.similar_queue(name).await,
            _ => None,
        };
        Err(CallError { source, similar })
    }

    /// A queue whose name is nearly this one; `None` too where the caller may not list queues.
    async fn similar_queue(&self, name: &str) -> Option<String> {
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
        let asked = self.0.call(Method::GET, target, None::<&()>).await;
        let Queues { queues } = asked.ok()?;
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

    /// Asks for a backup; what comes is the answer's body, piece by piece.
    pub(crate) async fn backup(&self) -> Result<BackupBody, CallError> {
        Ok(self.0.backup().await?)
    }
}

impl CallError {
    /// Whether the connection broke before the answer came.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.source, lockgate_client::CallError::Lost { .. })
    }

    /// Whether the request certainly had no effect.
    pub(crate) fn nothing_done(&self) -> bool {
        self.source.nothing_done()
    }

    /// Whether the same request may fare better in a moment.
    pub(crate) fn may_pass(&self) -> bool {
        self.source.may_pass()
    }

    /// Whether the server has answered, and said no.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.source, lockgate_client::CallError::Refused { .. })
    }

    /// What the server refuses, in the words of its answer: status, code, field and detail.
    pub(crate) fn refusal(&self) -> Option<(StatusCode, &str, Option<&str>, &str)> {
        match &self.source {
            lockgate_client::CallError::Refused {
                status,
                code,
                field,
                message,
                ..
            } => Some((*status, code, field.as_deref(), message)),
            _ => None,
        }
    }

    /// Whether the server says that the queue does not exist.
    pub(crate) fn is_queue_missing(&self) -> bool {
        matches!(self.source, lockgate_client::CallError::NoQueue { .. })
    }

    /// The same, where none is called nearly so.
    pub(crate) fn is_name_unknown(&self) -> bool {
        self.is_queue_missing() && self.similar.is_none()
    }

    /// Whether the server says that there is a queue of that name, with other settings.
    pub(crate) fn is_queue_there(&self) -> bool {
        self.has_code("queue_exists")
    }

    /// Whether the server says that a receipt is none of its own.
    pub(crate) fn is_receipt_wrong(&self) -> bool {
        self.has_code("invalid_receipt")
    }

    /// Whether the server refuses with this code.
    pub(crate) fn has_code(&self, expected: &str) -> bool {
        use lockgate_client::CallError as Source;
        match &self.source {
            Source::Refused { code, .. }
            | Source::Record { code, .. }
            | Source::Ledger { code, .. } => code == expected,
            _ => false,
        }
    }

    /// What version the record or the state has, `None` for one that is not there, if the server refuses because it is
    /// another than the request names.
    pub(crate) fn conflict(&self) -> Option<Option<u64>> {
        use lockgate_client::CallError as Source;
        match &self.source {
            Source::Record { code, fault, .. } if code == "record_conflict" => Some(fault.version),
            Source::Refused { code, version, .. } if code == "state_conflict" => Some(*version),
            _ => None,
        }
    }

    /// The failure of a command that writes or removes one record or state.
    pub(crate) fn into_write_failure(self) -> Failure {
        match self.conflict() {
            Some(Some(version)) => {
                Failure::from(self).hint(format!("to replace that one: --replaces {version}"))
            }
            Some(None) => Failure::from_error(Exit::NotFound, self),
            None => self.into(),
        }
    }

    fn exit(&self) -> Exit {
        use lockgate_client::CallError as Source;
        match &self.source {
            Source::Connect { .. } => Exit::Unreachable,
            Source::Timeout { .. } => Exit::Timeout,
            Source::NoQueue { .. } => Exit::NotFound,
            Source::Fenced(_) => Exit::Conflict,
            Source::Refused { status, code, .. }
            | Source::Record { status, code, .. }
            | Source::Ledger { status, code, .. } => exit_of(*status, code),
            _ => Exit::Failed,
        }
    }

    fn hint(&self) -> Option<String> {
        use lockgate_client::CallError as Source;
        match &self.source {
            Source::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                Some("start one with `lockgate serve`, or name another with --endpoint".to_owned())
            }
            Source::NoTls { endpoint, cause } => hint_for_tls(endpoint, cause),
            Source::Refused { status, .. } if *status == StatusCode::UNAUTHORIZED => unsigned(),
            Source::Refused { code, .. } => hint_for_code(code).map(str::to_owned),
            Source::NoQueue { name, .. } => Some(match &self.similar {
                Some(similar) => format!("did you mean {similar}?"),
                None => format!(
                    "see what queues there are with `lockgate queue list`, or make it with `lockgate queue create {name}`"
                ),
            }),
            _ => None,
        }
    }
}

/// What is missing of the access key. `None` if it is all there.
fn unsigned() -> Option<String> {
    let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    match names.map(|name| environment(name).is_some()) {
        [true, true] => None,
        [false, false] => Some(format!(
            "give the command an access key of the server: set {} and {}",
            names[0], names[1]
        )),
        [true, false] => Some(format!(
            "the request was not signed: {} is not set",
            names[1]
        )),
        [false, true] => Some(format!(
            "the request was not signed: {} is not set",
            names[0]
        )),
    }
}

/// What to do about an error of the server.
pub(crate) fn hint_for_code(code: &str) -> Option<&'static str> {
    match code {
        "disk_full" => Some(
            "make room on the server's disk, or lower --free-min of `lockgate serve`; receiving and purging go on",
        ),
        _ => None,
    }
}

fn hint_for_tls(endpoint: &Endpoint, cause: &TlsCause) -> Option<String> {
    Some(match cause {
        TlsCause::NotSpoken | TlsCause::Closed => {
            let plain = endpoint.to_string().replacen("https", "http", 1);
            format!("if it serves plain HTTP: --endpoint {plain}")
        }
        TlsCause::Untrusted => "name a file with the authority's certificate: --ca FILE".to_owned(),
        TlsCause::OtherName { names, .. } if names.is_empty() => {
            "use the name in --endpoint that the certificate is for".to_owned()
        }
        TlsCause::OtherName { .. } => {
            "use a name in --endpoint that the certificate is for".to_owned()
        }
        TlsCause::Expired => "renew it; if it is new, set this machine's clock".to_owned(),
        TlsCause::NotYetValid => "is this machine's clock right?".to_owned(),
        TlsCause::Authority => {
            "give the server one that the authority has signed, or make it with \
                                -addext basicConstraints=critical,CA:FALSE"
                .to_owned()
        }
        _ => return None,
    })
}

impl From<lockgate_client::CallError> for CallError {
    fn from(source: lockgate_client::CallError) -> Self {
        Self {
            source,
            similar: None,
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let (exit, hint) = (error.exit(), error.hint());
        let failure = Self::from_error(exit, error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

impl From<lockgate_client::CallError> for Failure {
    fn from(error: lockgate_client::CallError) -> Self {
        CallError::from(error).into()
    }
}

/// What is wrong with the settings of a client.
pub(crate) fn not_built(error: BuildError) -> Failure {
    match error {
        BuildError::Trust(error @ (TrustError::Read { .. } | TrustError::File { .. })) => {
            Failure::usage(format!("--ca {error}"))
        }
        BuildError::Trust(error @ TrustError::System { .. }) => Failure::usage(error)
            .hint("name a file of them with --ca FILE, or install the package ca-certificates"),
        BuildError::Trust(error @ TrustError::Setup(_)) => Failure::from_error(Exit::Failed, error),
        error => Failure::from_error(Exit::Usage, error),
    }
}

/// The exit code for an error of the server.
pub(crate) fn exit_of(status: StatusCode, code: &str) -> Exit {
    match code {
        "key_not_found" | "message_not_found" | "producer_not_found" | "record_not_found"
        | "state_not_found" | "ledger_not_found" | "event_not_found" | "exchange_not_found"
        | "schedule_not_found" => Exit::NotFound,
        _ if status == StatusCode::FORBIDDEN || status == StatusCode::UNAUTHORIZED => Exit::Denied,
        // As where several leases are settled: none of them was this one.
        "invalid_receipt" => Exit::Conflict,
        _ if status == StatusCode::CONFLICT => Exit::Conflict,
        _ => Exit::Failed,
    }
}
