//! Refusals: errors that the server answers before an action runs.

use hyper::{
    StatusCode,
    header::{ALLOW, CONNECTION, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};
use lockgate_core::{NameError, with_sources};
use lockgate_engine::BackupError;

use super::{
    body::Full, counters::Refused, framing::Violation, printable::Printable, response::Response,
};
use crate::{
    api::{Code, Problem},
    auth::AuthError,
    sqs,
};

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// The end of the request is ambiguous.
    #[error("The request is framed wrongly: {}.", explain(*.0))]
    Framing(Violation),
    #[error("The request has no Host header.")]
    HostMissing,
    #[error("The request has more than one Host header.")]
    HostRepeated,
    #[error(
        "The host '{}' is not served: the server answers only to local names, so that web pages \
         cannot reach it. If this is its name, start it with --allowed-host NAME.",
        Printable(.host)
    )]
    Host { host: String },
    #[error(
        "Requests from pages of '{}' are not served: only pages of this machine may send them. If \
         you trust the page's host, start the server with --allowed-host NAME.",
        Printable(.origin)
    )]
    Origin { origin: String },
    #[error("{error}")]
    Authentication { error: AuthError },
    #[error("Requests that pages of other sites make are not served.")]
    CrossSite,
    #[error(
        "There is nothing at '{}'. The Amazon SQS API is at /, besides there are /healthz, /readyz, \
         /metrics, the admin API under /api/v1 and the console at /console.",
        Printable(.path)
    )]
    Path { path: String },
    #[error("The method {method} is not allowed here, only {allowed}.")]
    Method {
        method: String,
        allowed: &'static str,
    },
    #[error(
        "The body of a request without X-Amz-Target must be a form: Content-Type is '{}', not \
         application/x-www-form-urlencoded.",
        Printable(.kind)
    )]
    ContentType { kind: String },
    #[error(
        "A backup needs the header 'Content-Type: application/json' where requests are not signed: \
         no web page can make a browser send it without asking. The command `lockgate backup` does."
    )]
    BackupByLink,
    #[error("Request bodies with Content-Encoding '{}' are not served.", Printable(.encoding))]
    ContentEncoding { encoding: String },
    #[error("The request body is larger than {max} bytes.")]
    BodyTooLarge { max: usize },
    #[error("The request body ended early or is malformed.")]
    BodyBroken,
    #[error("{}", explain_full(*.0))]
    BodiesFull(Full),
    #[error("The server has as many answers in memory that nobody takes as it may. Try again.")]
    AnswersFull,
    #[error("A backup is being taken already. Try again when it is done.")]
    BackupRunning,
    #[error("There is no backup: {}.", with_sources(.0))]
    Backup(BackupError),
    #[error(
        "A backup holds everything: the access key needs a grant of all verbs on the queues '*', and of read on the records '*', the ledgers '*' and the exchanges '*'."
    )]
    BackupDenied,
    #[error("The header x-lockgate-consumer is refused: {0}.")]
    Consumer(NameError),
    #[error(
        "The header x-lockgate-fence is taken by /api/v1 only: the SQS API compares no epochs."
    )]
    Fence,
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Framing(_)
            | Self::HostMissing
            | Self::HostRepeated
            | Self::BodyBroken
            | Self::Consumer(_)
            | Self::Fence => StatusCode::BAD_REQUEST,
            Self::Host { .. }
            | Self::Origin { .. }
            | Self::CrossSite
            | Self::BackupDenied
            | Self::BackupByLink
            | Self::Authentication { .. } => StatusCode::FORBIDDEN,
            Self::Path { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::ContentEncoding { .. } | Self::ContentType { .. } => {
                StatusCode::UNSUPPORTED_MEDIA_TYPE
            }
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodiesFull(_) | Self::AnswersFull | Self::BackupRunning | Self::Backup(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// The error code that SQS clients see.
    fn code(&self) -> &'static str {
        match self {
            Self::Host { .. }
            | Self::Origin { .. }
            | Self::CrossSite
            | Self::BackupDenied
            | Self::BackupByLink
            | Self::Authentication { .. } => "AccessDenied",
            Self::Path { .. } => "InvalidAddress",
            Self::Method { .. } => "UnsupportedOperation",
            Self::BodyTooLarge { .. } => "RequestEntityTooLarge",
            Self::BodiesFull(_) | Self::AnswersFull | Self::BackupRunning | Self::Backup(_) => {
                "ServiceUnavailable"
            }
            Self::ContentEncoding { .. } | Self::ContentType { .. } => "UnsupportedMediaType",
            Self::Consumer(_) | Self::Fence => "InvalidParameterValue",
            Self::Framing(_) | Self::HostMissing | Self::HostRepeated | Self::BodyBroken => {
                "MalformedHttpRequest"
            }
        }
    }

    pub(crate) fn counted(&self) -> Refused {
        match self {
            Self::Framing(_) => Refused::Framing,
            Self::HostMissing | Self::HostRepeated | Self::Host { .. } => Refused::Host,
            Self::Origin { .. } | Self::CrossSite | Self::BackupByLink => Refused::Origin,
            Self::Path { .. } => Refused::Path,
            Self::Method { .. } => Refused::Method,
            Self::ContentEncoding { .. } => Refused::ContentEncoding,
            Self::ContentType { .. } => Refused::ContentType,
            Self::Authentication { .. } => Refused::Authentication,
            Self::BodyTooLarge { .. } => Refused::BodyTooLarge,
            Self::BodyBroken => Refused::BodyBroken,
            Self::BodiesFull(Full::All) => Refused::BodiesFull,
            Self::BodiesFull(Full::Address) => Refused::BodiesOfAddress,
            Self::BodiesFull(Full::Unknown) => Refused::BodiesOfUnknown,
            Self::AnswersFull => Refused::AnswersFull,
            Self::BackupRunning | Self::Backup(_) | Self::BackupDenied => Refused::Backup,
            Self::Consumer(_) | Self::Fence => Refused::Malformed,
        }
    }

    /// The answer. Ends the connection if the rest of the request is not worth reading or cannot be
    /// trusted. `id` is the request's id, which SDKs show with the error. `query` is the format of
    /// the answer for clients of the Query protocol.
    pub(crate) fn response(
        &self,
        id: Option<HeaderValue>,
        query: Option<sqs::QueryFormat>,
    ) -> Response {
        let text = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or("");
        let mut response = match self {
            Self::Authentication { error } => sqs::unauthenticated(error.clone(), query, text),
            _ => sqs::refusal(self.status(), self.code(), &self.to_string(), query, text),
        };
        if let Some(id) = id {
            response.headers.insert("x-amzn-requestid", id);
        }
        self.complete(&mut response);
        response
    }

    /// The answer in the form of the admin API.
    pub(crate) fn problem(&self) -> Response {
        let code = match self {
            Self::Authentication { .. } => Code::Unauthenticated,
            Self::BackupDenied | Self::BackupByLink => Code::AccessDenied,
            Self::Host { .. } | Self::Origin { .. } | Self::CrossSite => Code::NotServed,
            Self::Path { .. } => Code::NotFound,
            Self::Method { .. } => Code::MethodNotAllowed,
            Self::BodyTooLarge { .. } => Code::BodyTooLarge,
            Self::ContentEncoding { .. } | Self::ContentType { .. } => Code::UnsupportedMediaType,
            Self::BodiesFull(_) | Self::AnswersFull | Self::BackupRunning | Self::Backup(_) => {
                Code::Unavailable
            }
            Self::Consumer(_)
            | Self::Fence
            | Self::Framing(_)
            | Self::HostMissing
            | Self::HostRepeated
            | Self::BodyBroken => Code::MalformedRequest,
        };
        let mut response = Problem::new(code, self.to_string()).response();
        if let Self::Authentication { .. } = self {
            let scheme = HeaderValue::from_static("AWS4-HMAC-SHA256");
            response.headers.insert(WWW_AUTHENTICATE, scheme);
        }
        self.complete(&mut response);
        response
    }

    fn complete(&self, response: &mut Response) {
        let headers = &mut response.headers;
        match self {
            Self::Method { allowed, .. } => {
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            Self::BodiesFull(_) | Self::AnswersFull => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
                headers.insert("x-amz-retry-after", HeaderValue::from_static("1000"));
            }
            _ => {}
        }
        let keeps_alive = matches!(
            self,
            Self::Path { .. }
                | Self::Method { .. }
                | Self::AnswersFull
                | Self::ContentType { .. }
                | Self::Consumer(_)
                | Self::Fence
        );
        if !keeps_alive {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

fn explain_full(full: Full) -> &'static str {
    match full {
        Full::All => "The server has as many large requests in memory as it may. Try again.",
        Full::Address => {
            "The server has as many large requests of your address in memory as it may. Try again."
        }
        Full::Unknown => {
            "The server has as many large requests in memory as it may of which it cannot tell yet \
             who sends them. Try again, or send X-Amz-Content-SHA256, signed: it tells before the \
             body comes."
        }
    }
}

fn explain(violation: Violation) -> &'static str {
    match violation {
        Violation::BareLineFeed => "a line ends without a carriage return",
        Violation::BothLengths => "it has both Content-Length and Transfer-Encoding",
        Violation::Length => "Content-Length must be given once, in digits",
        Violation::TransferEncoding => "Transfer-Encoding must be given once, as chunked",
        Violation::Chunk => "a chunk is malformed",
    }
}
