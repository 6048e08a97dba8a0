//! From a request to an action and back, in any protocol.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::{HeaderMap, StatusCode, header::HeaderValue};
use lockgate_core::Incarnation;
use serde::{Deserialize, Serialize};

use super::{
    Request,
    actions::{Call, Service},
    aws_json::{self, AwsJson},
    error::SqsError,
    query::{self, Query},
    shapes::ReceivedMessage,
    text::UuidText,
};
use crate::{
    answer::TextLen,
    few::Raw,
    http::{
        printable::Printable,
        response::{KeepGuard, Response},
    },
};

/// The approximate length of a received message in an answer, besides its body.
const MESSAGE_LEN: usize = 512;

/// The approximate length of a batch entry in an answer.
const SENT_LEN: usize = 256;

/// Whether an action changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Reads,
    /// Taking a lease counts as a change.
    Changes,
}

/// Declares the actions once: the enum, their names, and what they do.
macro_rules! actions {
    ($($action:ident = $effect:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Action {
            $($action,)*
        }

        impl Action {
            /// Every action.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$action,)*];

            pub(crate) fn from_name(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($action) => Some(Self::$action),)*
                    _ => None,
                }
            }

            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$action => stringify!($action),)*
                }
            }

            pub(crate) const fn effect(self) -> Effect {
                match self {
                    $(Self::$action => Effect::$effect,)*
                }
            }
        }
    };
}

actions! {
    AddPermission = Changes,
    CancelMessageMoveTask = Changes,
    ChangeMessageVisibility = Changes,
    ChangeMessageVisibilityBatch = Changes,
    CreateQueue = Changes,
    DeleteMessage = Changes,
    DeleteMessageBatch = Changes,
    DeleteQueue = Changes,
    GetQueueAttributes = Reads,
    GetQueueUrl = Reads,
    ListDeadLetterSourceQueues = Reads,
    ListMessageMoveTasks = Reads,
    ListQueueTags = Reads,
    ListQueues = Reads,
    PurgeQueue = Changes,
    ReceiveMessage = Changes,
    RemovePermission = Changes,
    SendMessage = Changes,
    SendMessageBatch = Changes,
    SetQueueAttributes = Changes,
    StartMessageMoveTask = Changes,
    TagQueue = Changes,
    UntagQueue = Changes,
}

/// How a protocol reads requests and writes answers.
pub(super) trait Protocol {
    fn action(&self) -> Result<Action, SqsError>;

    fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, SqsError>;

    /// Writes the answer of an action that succeeded. `capacity`: the approximate length of the
    /// output.
    fn write(&self, output: &impl Serialize, capacity: usize) -> Result<Vec<u8>, SqsError>;

    /// Computes the length of a text in an answer.
    fn text_len(&self) -> TextLen;

    /// Writes the answer of an action that was refused: status, headers and body.
    fn error(&self, error: &SqsError) -> Response;

    /// The content type of every body.
    fn content_type(&self) -> HeaderValue;
}

/// Parses an entry of a batch that waited as text, in either protocol.
pub(super) fn read_entry<'a, T: Deserialize<'a>>(raw: Raw<'a>) -> Result<T, SqsError> {
    match raw {
        Raw::Json(text) => aws_json::read(text.as_bytes()),
        Raw::Form(form) => query::read_entry(&form),
    }
}

/// An action's answer: a body, and the guard that keeps the leases in it.
type Answer = (Vec<u8>, Option<KeepGuard>);

impl Service {
    /// Answers one request. Dropping the future abandons it and gives back the leases it may have
    /// taken.
    pub(crate) async fn handle(&self, request: Request) -> Response {
        let id = self.request_id();
        let mut response = if Query::is_meant(&request) {
            self.answer(&Query::new(&request, &id), &request).await
        } else {
            self.answer(&AwsJson::new(&request), &request).await
        };
        if let Ok(id) = HeaderValue::try_from(id) {
            response.headers.insert("x-amzn-requestid", id);
        }
        response
    }

    /// A unique id for a request.
    pub(crate) fn request_id(&self) -> String {
        self.request_ids.next().as_str().to_owned()
    }

    async fn answer(&self, protocol: &impl Protocol, request: &Request) -> Response {
        let action = protocol.action();
        let asked = action.as_ref().ok().map(|action| action.name());
        let outcome = match action {
            Ok(action) if request.by_link && action.effect() == Effect::Changes => {
                Err(SqsError::by_link(action.name()))
            }
            Ok(action) => self.perform(action, protocol, request).await,
            Err(error) => Err(error),
        };
        let mut response = match outcome {
            Ok((body, on_sent)) => Response {
                status: StatusCode::OK,
                headers: HeaderMap::with_capacity(2),
                body: body.into(),
                action: None,
                on_sent,
            },
            Err(error) => {
                tracing::debug!(
                    action = asked,
                    target = request.target.as_deref(),
                    path = %Printable(&request.path),
                    query_mode = request.query_mode,
                    holder = %Printable(request.holder.as_str()),
                    code = ?error.code,
                    error = %Printable(&error.message),
                    "refused a request"
                );
                protocol.error(&error)
            }
        };
        response.action = asked;
        let headers = &mut response.headers;
        headers.insert(hyper::header::CONTENT_TYPE, protocol.content_type());
        response
    }

    async fn perform(
        &self,
        action: Action,
        protocol: &impl Protocol,
        request: &Request,
    ) -> Result<Answer, SqsError> {
        let call = &Call {
            host: &request.host,
            holder: &request.holder,
            trace_id: request.trace_id.as_deref(),
            request: &request.body,
            hangup: &request.hangup,
            identity: request.identity.as_deref(),
            text_len: protocol.text_len(),
        };
        match action {
            Action::SendMessage => {
                write(protocol, &self.send_message(call, protocol.read()?).await?)
            }
            Action::SendMessageBatch => {
                let output = self.send_message_batch(call, protocol.read()?).await?;
                let entries = output.successful.len() + output.failed.len();
                Ok((protocol.write(&output, 64 + entries * SENT_LEN)?, None))
            }
            Action::ReceiveMessage => {
                let (output, guard) = self.receive_message(call, protocol.read()?).await?;
                // Room for the bodies, so that the buffer does not grow.
                let message_len =
                    |message: &ReceivedMessage| message.body.as_bytes().len() + MESSAGE_LEN;
                let capacity = output.messages.iter().map(message_len).sum();
                Ok((protocol.write(&output, capacity)?, guard))
            }
            Action::DeleteMessage => write(
                protocol,
                &self.delete_message(call, protocol.read()?).await?,
            ),
            Action::DeleteMessageBatch => write(
                protocol,
                &self.delete_message_batch(call, protocol.read()?).await?,
            ),
            Action::ChangeMessageVisibility => write(
                protocol,
                &self
                    .change_message_visibility(call, protocol.read()?)
                    .await?,
            ),
            Action::ChangeMessageVisibilityBatch => write(
                protocol,
                &self
                    .change_message_visibility_batch(call, protocol.read()?)
                    .await?,
            ),
            Action::CreateQueue => {
                write(protocol, &self.create_queue(call, protocol.read()?).await?)
            }
            Action::DeleteQueue => {
                write(protocol, &self.delete_queue(call, protocol.read()?).await?)
            }
            Action::PurgeQueue => write(protocol, &self.purge_queue(call, protocol.read()?).await?),
            Action::GetQueueUrl => write(protocol, &self.get_queue_url(call, protocol.read()?)?),
            Action::ListQueues => write(protocol, &self.list_queues(call, protocol.read()?)?),
            Action::ListDeadLetterSourceQueues => write(
                protocol,
                &self.list_dead_letter_source_queues(call, protocol.read()?)?,
            ),
            Action::GetQueueAttributes => write(
                protocol,
                &self.get_queue_attributes(call, protocol.read()?).await?,
            ),
            Action::SetQueueAttributes => write(
                protocol,
                &self.set_queue_attributes(call, protocol.read()?).await?,
            ),
            Action::TagQueue => write(protocol, &self.tag_queue(call, protocol.read()?).await?),
            Action::UntagQueue => write(protocol, &self.untag_queue(call, protocol.read()?).await?),
            Action::ListQueueTags => {
                write(protocol, &self.list_queue_tags(call, protocol.read()?)?)
            }
            Action::AddPermission => write(
                protocol,
                &self.add_permission(call, protocol.read()?).await?,
            ),
            Action::RemovePermission => write(
                protocol,
                &self.remove_permission(call, protocol.read()?).await?,
            ),
            Action::StartMessageMoveTask => write(
                protocol,
                &self.start_message_move_task(call, protocol.read()?).await?,
            ),
            Action::CancelMessageMoveTask => write(
                protocol,
                &self
                    .cancel_message_move_task(call, protocol.read()?)
                    .await?,
            ),
            Action::ListMessageMoveTasks => write(
                protocol,
                &self.list_message_move_tasks(call, protocol.read()?)?,
            ),
        }
    }
}

/// Writes the answer of an action that takes no leases.
fn write(protocol: &impl Protocol, output: &impl Serialize) -> Result<Answer, SqsError> {
    Ok((protocol.write(output, 256)?, None))
}

/// Gives every request an id: a UUID of the term's random number and a counter, so that ids are
/// unique within a start and over starts.
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

    fn next(&self) -> UuidText {
        let low = u128::from(self.count.fetch_add(1, Ordering::Relaxed));
        let high = u128::from(self.start.0);
        // UUID version 8, which allows any content.
        UuidText::new(
            ((high >> 16) << 80)
                | ((0x8000 | (high & 0xfff)) << 64)
                | ((0x8000 | ((low >> 48) & 0xfff)) << 48)
                | (low & 0xffff_ffff_ffff),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_are_of_the_start_and_count() {
        let ids = RequestIds::new(Incarnation(0x0123_4567_89ab_cdef));
        assert_eq!(ids.next().as_str(), "01234567-89ab-8def-8000-000000000000");
        assert_eq!(ids.next().as_str(), "01234567-89ab-8def-8000-000000000001");
    }
}
