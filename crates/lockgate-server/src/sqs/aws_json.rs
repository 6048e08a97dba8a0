//! The AWS JSON 1.0 protocol, which every AWS SDK has spoken to SQS since the end of 2023.

use std::{
    borrow::Cow,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use lockgate_core::Incarnation;
use serde::{Deserialize, Serialize};

use super::{
    KeepGuard, Request, Response,
    actions::{Call, Service},
    error::{Blame, ErrorCode, SqsError},
    shapes::ReceivedMessage,
    text::Object,
};
use crate::http::printable::Printable;

/// What the target of every action starts with.
const TARGET_PREFIX: &str = "AmazonSQS.";
const CONTENT_TYPE_JSON: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");

/// About what a received message takes in an answer beside its body.
const MESSAGE_LEN: usize = 512;

/// Declares the actions once: the enum and their names.
macro_rules! actions {
    ($($action:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Action {
            $($action,)*
        }

        impl Action {
            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($action) => Some(Self::$action),)*
                    _ => None,
                }
            }

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$action => stringify!($action),)*
                }
            }
        }
    };
}

actions! {
    AddPermission,
    CancelMessageMoveTask,
    ChangeMessageVisibility,
    ChangeMessageVisibilityBatch,
    CreateQueue,
    DeleteMessage,
    DeleteMessageBatch,
    DeleteQueue,
    GetQueueAttributes,
    GetQueueUrl,
    ListDeadLetterSourceQueues,
    ListMessageMoveTasks,
    ListQueueTags,
    ListQueues,
    PurgeQueue,
    ReceiveMessage,
    RemovePermission,
    SendMessage,
    SendMessageBatch,
    SetQueueAttributes,
    StartMessageMoveTask,
    TagQueue,
    UntagQueue,
}

/// What an action's answer becomes: a body, and what keeps the leases it hands out.
type Answer = (Vec<u8>, Option<KeepGuard>);

impl Service {
    /// Answers one request. Dropping the future gives up on it: leases it may have taken go back.
    pub(crate) async fn handle(&self, request: Request) -> Response {
        let request_id = self.request_ids.next();
        let outcome = match action(&request) {
            Ok(action) => self.perform(action, &request).await,
            Err(error) => Err(error),
        };
        let mut response = match outcome {
            Ok((body, on_sent)) => Response {
                status: StatusCode::OK,
                headers: HeaderMap::with_capacity(2),
                body: body.into(),
                on_sent,
            },
            Err(error) => {
                tracing::debug!(
                    action = request.target.as_deref(),
                    path = %Printable(&request.path),
                    query_mode = request.query_mode,
                    holder = %Printable(request.holder.as_str()),
                    code = ?error.code,
                    error = %Printable(&error.message),
                    "refused a request"
                );
                error_response(&error)
            }
        };
        response.headers.insert(CONTENT_TYPE, CONTENT_TYPE_JSON);
        if let Ok(id) = HeaderValue::try_from(request_id.to_string()) {
            response.headers.insert("x-amzn-requestid", id);
        }
        response
    }

    async fn perform(&self, action: Action, request: &Request) -> Result<Answer, SqsError> {
        let call = &Call {
            host: &request.host,
            holder: &request.holder,
            trace_id: request.trace_id.as_deref(),
            request: &request.body,
        };
        let body = &request.body;
        match action {
            Action::SendMessage => write(&self.send_message(call, read(body)?).await?),
            Action::SendMessageBatch => write(&self.send_message_batch(call, read(body)?).await?),
            Action::ReceiveMessage => {
                let (output, guard) = self.receive_message(call, read(body)?).await?;
                // Room for the bodies, so that the buffer is not grown and copied on the way.
                let message_len =
                    |message: &ReceivedMessage| message.body.as_bytes().len() + MESSAGE_LEN;
                let capacity = output.messages.iter().map(message_len).sum();
                Ok((write_sized(&output, capacity)?, guard))
            }
            Action::DeleteMessage => write(&self.delete_message(read(body)?).await?),
            Action::DeleteMessageBatch => write(&self.delete_message_batch(read(body)?).await?),
            Action::ChangeMessageVisibility => {
                write(&self.change_message_visibility(read(body)?).await?)
            }
            Action::ChangeMessageVisibilityBatch => {
                write(&self.change_message_visibility_batch(read(body)?).await?)
            }
            Action::CreateQueue => write(&self.create_queue(call, read(body)?).await?),
            Action::DeleteQueue => write(&self.delete_queue(read(body)?).await?),
            Action::PurgeQueue => write(&self.purge_queue(read(body)?).await?),
            Action::GetQueueUrl => write(&self.get_queue_url(call, read(body)?)?),
            Action::ListQueues => write(&self.list_queues(call, read(body)?)?),
            Action::ListDeadLetterSourceQueues => {
                write(&self.list_dead_letter_source_queues(call, read(body)?)?)
            }
            Action::GetQueueAttributes => write(&self.get_queue_attributes(read(body)?).await?),
            Action::SetQueueAttributes => write(&self.set_queue_attributes(read(body)?).await?),
            Action::TagQueue => write(&self.tag_queue(read(body)?).await?),
            Action::UntagQueue => write(&self.untag_queue(read(body)?).await?),
            Action::ListQueueTags => write(&self.list_queue_tags(read(body)?)?),
            Action::AddPermission
            | Action::RemovePermission
            | Action::StartMessageMoveTask
            | Action::ListMessageMoveTasks
            | Action::CancelMessageMoveTask => Err(SqsError::new(
                ErrorCode::UnsupportedOperation,
                format!("{} is not supported.", action.name()),
            )),
        }
    }
}

/// The action a request names.
fn action(request: &Request) -> Result<Action, SqsError> {
    let Some(target) = &request.target else {
        let query = request
            .content_type
            .as_deref()
            .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
        return Err(SqsError::new(
            ErrorCode::UnknownOperation,
            if query {
                "The Query protocol is not supported: use the AWS JSON protocol."
            } else {
                "The request names no action: set X-Amz-Target to AmazonSQS.<Action>."
            },
        ));
    };
    target
        .strip_prefix(TARGET_PREFIX)
        .and_then(Action::from_name)
        .ok_or_else(|| {
            SqsError::new(
                ErrorCode::UnknownOperation,
                format!("The action {target:.100} is not valid for this endpoint."),
            )
        })
}

/// Reads an action's input. An empty body is an empty object.
fn read<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, SqsError> {
    let body: &[u8] = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice::<Object<T>>(body)
        .map(|object| object.0)
        .map_err(|error| SqsError::serialization(error.to_string()))
}

/// Writes an action's output. Actions that answer with nothing have an empty object.
fn write(output: &impl Serialize) -> Result<Answer, SqsError> {
    Ok((write_sized(output, 256)?, None))
}

fn write_sized(output: &impl Serialize, capacity: usize) -> Result<Vec<u8>, SqsError> {
    let mut body = Vec::with_capacity(capacity);
    serde_json::to_writer(&mut body, output)
        .map_err(|error| SqsError::new(ErrorCode::InternalFailure, error.to_string()))?;
    Ok(body)
}

/// The body of an error.
#[derive(Serialize)]
struct ErrorBody<'a> {
    #[serde(rename = "__type")]
    kind: Cow<'a, str>,
    message: &'a str,
}

fn error_response(error: &SqsError) -> Response {
    let row = error.code.row();
    let kind = format!("{}#{}", row.namespace.as_str(), row.name);
    let mut response = respond(row.status(), &kind, row.legacy, row.blame, &error.message);
    if error.code == ErrorCode::ServiceUnavailable {
        // Seconds for whoever knows HTTP, milliseconds for AWS SDKs.
        let headers = &mut response.headers;
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        headers.insert("x-amz-retry-after", HeaderValue::from_static("1000"));
    }
    response
}

/// An error in the form SQS clients read, for requests that are refused before they reach an action.
pub(crate) fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    let blame = if status.is_server_error() {
        Blame::Receiver
    } else {
        Blame::Sender
    };
    let kind = format!("com.amazon.coral.service#{code}");
    let mut response = respond(status, &kind, code, blame, message);
    response.headers.insert(CONTENT_TYPE, CONTENT_TYPE_JSON);
    response
}

fn respond(status: StatusCode, kind: &str, legacy: &str, blame: Blame, message: &str) -> Response {
    let mut headers = HeaderMap::with_capacity(5);
    // SDKs show the legacy code as the error's code and take it from here; without it, error
    // handling written for SQS breaks.
    if let Ok(value) = HeaderValue::try_from(format!("{legacy};{}", blame.as_str())) {
        headers.insert("x-amzn-query-error", value);
    }
    let body = ErrorBody {
        kind: kind.into(),
        message,
    };
    Response {
        status,
        headers,
        body: serde_json::to_vec(&body).unwrap_or_default().into(),
        on_sent: None,
    }
}

/// Gives every request a name: UUIDs of the term's random number and a counter, so that they repeat
/// neither within a start nor over starts.
#[derive(Debug)]
pub(crate) struct RequestIds {
    start: Incarnation,
    count: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new(start: Incarnation) -> Self {
        Self {
            start,
            count: AtomicU64::new(0),
        }
    }

    fn next(&self) -> RequestId {
        RequestId {
            start: self.start,
            number: self.count.fetch_add(1, Ordering::Relaxed),
        }
    }
}

struct RequestId {
    start: Incarnation,
    number: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = (self.start.0, self.number);
        write!(
            f,
            "{:08x}-{:04x}-8{:03x}-8{:03x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            (low >> 48) & 0xfff,
            low & 0xffff_ffff_ffff
        )
    }
}
