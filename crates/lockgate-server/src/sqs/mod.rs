//! The Amazon SQS protocol: requests, actions, answers and errors.
//!
//! The seam to the `http` module is [`Service::handle`]: it takes a whole [`Request`] within the
//! limits and returns a [`Response`]. Nothing here sees a socket.
//!
//! Inside there is a second seam. The actions (in `actions`) are functions from typed inputs to
//! typed outputs (in `shapes`) over the engine; they know queues and AWS's rules and no wire
//! format. A protocol (`aws_json`, `query`) reads inputs and writes outputs and errors. `dispatch`
//! joins the two.

mod actions;
mod aws_json;
mod digests;
mod dispatch;
mod error;
pub(crate) mod fuzzing;
mod message_attributes;
mod names;
mod policy;
mod query;
mod queue_attributes;
mod redrive;
mod shapes;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use lockgate_core::HolderName;

use crate::{
    auth::{AccessKey, AuthError},
    http::{progress::Hangup, response::Response},
};

use dispatch::{Action, Effect};

pub(crate) use actions::Service;
pub(crate) use error::{ErrorCode, SqsError};
pub(crate) use message_attributes::{ATTRIBUTES_MAX, is_trace_id};
pub(crate) use names::{
    ELASTICMQ_PREFIX, deduplication_id, entry_id, group_id, queue_arn, queue_in_arn,
};
pub(crate) use policy::readable as readable_json;
#[cfg(test)]
pub(crate) use query::parameters;
pub(crate) use query::{
    Format as QueryFormat, escape_xml, form_parameters, speaks as speaks_query,
};
pub(crate) use text::UuidText;

/// The answer to a request whose authentication failed, in the request's protocol: AWS JSON, or the
/// Query protocol in one of its formats.
pub(crate) fn unauthenticated(error: AuthError, query: Option<QueryFormat>, id: &str) -> Response {
    let error = error::SqsError::from(error);
    match query {
        None => aws_json::error_response(&error),
        Some(format) => query::error_response(&error, format, id),
    }
}

/// Whether there is an action with that name.
pub(crate) fn is_action(name: &str) -> bool {
    Action::from_name(name).is_some()
}

/// Whether the action with that name changes nothing.
pub(crate) fn only_reads(action: &str) -> bool {
    Action::from_name(action).is_none_or(|action| action.effect() == Effect::Reads)
}

/// The answer to a request that is refused before it reaches an action, in the request's protocol.
pub(crate) fn refusal(
    status: StatusCode,
    code: &str,
    message: &str,
    query: Option<QueryFormat>,
    id: &str,
) -> Response {
    let blame = if status.is_server_error() {
        error::Blame::Receiver
    } else {
        error::Blame::Sender
    };
    let code = (status, code, blame);
    match query {
        None => aws_json::refusal(code, message),
        Some(format) => query::refusal(code, message, format, id),
    }
}

/// A request to the SQS endpoint. Its body is complete and within the server's limit.
#[derive(Debug)]
pub(crate) struct Request {
    /// The header `X-Amz-Target`, as sent: `AmazonSQS.SendMessage`.
    pub(crate) target: Option<String>,
    /// The header `Content-Type`, as sent.
    pub(crate) content_type: Option<String>,
    /// The header `Accept`, as sent.
    pub(crate) accept: Option<String>,
    /// The path, not decoded: `/` or `/000000000000/orders.fifo`.
    pub(crate) path: String,
    /// The part of the URL behind `?`, not decoded.
    pub(crate) query: Option<String>,
    /// The header `X-Amzn-Trace-Id`, as sent.
    pub(crate) trace_id: Option<String>,
    /// Whether the client sent `x-amzn-query-mode: true`.
    pub(crate) query_mode: bool,
    pub(crate) body: Bytes,
    /// Whether a web page may have made a browser send the request, and it has no authentication:
    /// such a request may change nothing.
    pub(crate) by_link: bool,
    /// Signals that the client has ended its side: then the request stops waiting for messages.
    pub(crate) hangup: Hangup,
    /// The holder of the leases that the request takes.
    pub(crate) holder: HolderName,
    /// The caller; `None` without authentication.
    pub(crate) identity: Option<Arc<AccessKey>>,
    /// The host and port in queue URLs of the answer: the advertised host, else the client's
    /// `Host`.
    pub(crate) host: String,
}

/// What the protocol needs to know of its server.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The account in queue URLs and ARNs: 12 digits.
    pub(crate) account: String,
    /// The region in ARNs.
    pub(crate) region: String,
    /// Whether queue URLs begin with `https`.
    pub(crate) https: bool,
}
