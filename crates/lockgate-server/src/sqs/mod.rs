//! The Amazon SQS protocol: what an action asks, what it answers, how errors look.
//!
//! The seam to the `http` module is [`Service::handle`]: a [`Request`] that is whole and within its
//! limits comes in, a [`Response`] goes out. Nothing here sees a socket.

mod error;
mod message_attributes;
mod names;
mod queue_attributes;
mod receipt;
mod shapes;
mod text;

use std::fmt;

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderValue},
};
use lockgate_core::HolderName;
use lockgate_engine::Engine;
use serde_json::json;

use crate::http::drain::Drain;

/// A request to the SQS endpoint. Its body is whole and within the server's limit.
#[derive(Debug)]
pub(crate) struct Request {
    /// The header `X-Amz-Target`, as sent: `AmazonSQS.SendMessage`.
    pub(crate) target: Option<String>,
    /// The header `Content-Type`, as sent.
    pub(crate) content_type: Option<String>,
    /// The path, not decoded: `/` or `/000000000000/orders.fifo`.
    pub(crate) path: String,
    /// Whether the client sent `x-amzn-query-mode: true`.
    pub(crate) query_mode: bool,
    /// The body.
    pub(crate) body: Bytes,
    /// Who will hold the leases it takes.
    pub(crate) holder: HolderName,
    /// Host and port that queue URLs of the answer name: the advertised host, else what the client
    /// sent as `Host`.
    pub(crate) host: String,
}

/// The answer to a [`Request`].
#[derive(Debug)]
pub(crate) struct Response {
    /// The status.
    pub(crate) status: StatusCode,
    /// Headers; `Content-Length` and `Date` are added when it is sent.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Bytes,
    /// Keeps the leases the answer hands out, once its first byte is on its way.
    pub(crate) on_sent: Option<KeepGuard>,
}

/// Decides what becomes of the leases in an answer: [`KeepGuard::keep`] when its first byte has been
/// written to the socket; dropped before that, the leases go back and the attempt does not count.
pub(crate) struct KeepGuard(Box<dyn FnOnce() + Send>);

impl KeepGuard {
    /// `keep` must own what gives the leases back when it is dropped without being called.
    pub(crate) fn new(keep: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(keep))
    }

    /// The client has the answer, or part of it.
    pub(crate) fn keep(self) {
        (self.0)();
    }
}

impl fmt::Debug for KeepGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepGuard")
    }
}

/// What the protocol needs to know of its server.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The account that queue URLs and ARNs name: 12 digits.
    pub(crate) account: String,
    /// The region that ARNs name.
    pub(crate) region: String,
}

/// All actions, over one engine.
#[derive(Debug)]
pub(crate) struct Service {
    engine: Engine,
    config: Config,
    drain: Drain,
}

impl Service {
    /// `drain`: when it has begun, waiting receives end empty at once and new ones do not wait.
    pub(crate) fn new(engine: Engine, config: Config, drain: Drain) -> Self {
        Self {
            engine,
            config,
            drain,
        }
    }

    /// Answers one request. Dropping the future gives up on it: leases it may have taken go back.
    pub(crate) async fn handle(&self, request: Request) -> Response {
        tracing::trace!(engine = ?self.engine, account = %self.config.account, region = %self.config.region, draining = self.drain.has_begun());
        refusal(
            StatusCode::BAD_REQUEST,
            "UnsupportedOperation",
            &format!(
                "{} is not supported.",
                request.target.as_deref().unwrap_or("The request")
            ),
        )
    }
}

/// An error in the form SQS clients read, for requests that are refused before they reach an action.
pub(crate) fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    let blame = if status.is_server_error() {
        "Receiver"
    } else {
        "Sender"
    };
    let mut headers = HeaderMap::with_capacity(2);
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/x-amz-json-1.0"),
    );
    if let Ok(value) = HeaderValue::try_from(format!("AWS.SimpleQueueService.{code};{blame}")) {
        headers.insert("x-amzn-query-error", value);
    }
    let body = json!({
        "__type": format!("com.amazonaws.sqs#{code}"),
        "message": message,
    });
    Response {
        status,
        headers,
        body: body.to_string().into(),
        on_sent: None,
    }
}
