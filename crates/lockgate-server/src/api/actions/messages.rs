//! Operations that send, cancel and reschedule messages.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use lockgate_core::{Header, Key, Message, MessageId, UniqueId, WallTime};
use lockgate_engine::{Batch, QueueEntry};
use lockgate_machine::{self as machine, Cancel, Rejection, SendMessage, Sent};
use lockgate_sigv4::hex::hex;
use sha2::{Digest as _, Sha256};

use super::{check_len, producers::produced, unanswered};
use crate::{
    answer,
    api::{
        Code, Problem, Request, Service,
        input::entry,
        shapes::{
            Encoding, HeaderValue, OutgoingMessage, Reschedule, Rescheduled, SendMessages,
            SendResult, SendResults, SentMessage, Within,
        },
    },
    auth::Verb,
    few::ENTRIES_MAX,
    queue::{LABEL_BYTES_MAX, headers, is_label},
};

/// Messages of one request.
pub(super) const BATCH_MAX: usize = ENTRIES_MAX;

impl Service {
    pub(in crate::api) async fn send_messages(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: SendMessages<'_>,
    ) -> Result<SendResults, Problem> {
        let queue = self.queue(request, Verb::Send, queue)?;
        check_len("messages", input.messages.len(), BATCH_MAX)?;
        let within = |(at, problem): (usize, Problem)| problem.within(&format!("messages[{at}]"));
        input.messages.check(entry).map_err(within)?;
        let mut results = Vec::with_capacity(input.messages.len());
        let mut commands = Batch::with_capacity(input.messages.len());
        for (at, message) in input.messages.into_entries(entry).enumerate() {
            let message = message.map_err(|problem| within((at, problem)))?;
            match self.message(&queue, message) {
                Ok(message) => {
                    commands.push(SendMessage {
                        queue: queue.name.clone(),
                        message,
                    });
                    results.push(None);
                }
                Err(problem) => results.push(Some(problem.within(&format!("messages[{at}]")))),
            }
        }
        let mut replies = if commands.is_empty() {
            Vec::new()
        } else {
            self.engine.submit_all(commands).await?
        }
        .into_iter();
        let mut result = |(at, refused): (usize, Option<Problem>)| {
            let reply = match refused {
                Some(problem) => Err(problem),
                None => match replies.next() {
                    Some(Ok(sent)) => Ok(sent.into()),
                    Some(Err(Rejection::SentBefore { .. })) => Ok(SentMessage::BEFORE),
                    Some(Err(rejection)) => {
                        Err(Problem::from(rejection).within(&format!("messages[{at}]")))
                    }
                    None => Err(unanswered()),
                },
            };
            match reply {
                Ok(sent) => SendResult::Sent(sent),
                Err(problem) => SendResult::Refused {
                    problem: Box::new(problem),
                },
            }
        };
        Ok(SendResults {
            results: results.into_iter().enumerate().map(&mut result).collect(),
        })
    }

    pub(in crate::api) async fn cancel_message(
        &self,
        request: &Request<'_>,
        queue: &str,
        id: &str,
    ) -> Result<(), Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?.name.clone();
        let message = message_id(id)?;
        let cancel = Cancel { queue, message };
        self.engine.submit(cancel).await?;
        Ok(())
    }

    pub(in crate::api) async fn reschedule_message(
        &self,
        request: &Request<'_>,
        queue: &str,
        id: &str,
        input: Reschedule,
    ) -> Result<Rescheduled, Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?.name.clone();
        let message = message_id(id)?;
        let Some(due) = self.due(input.delay_ms.map(Within::get), input.due_at.map(|at| at.0))?
        else {
            return Err(Problem::invalid(
                "due_at",
                "it or delay_ms is needed: \"due_at\": \"2027-01-01T00:00:00Z\", or \"delay_ms\": 0",
            ));
        };
        let reschedule = machine::Reschedule {
            queue,
            message,
            due,
        };
        self.engine.submit(reschedule).await?;
        Ok(Rescheduled {
            id: message.to_string(),
            due_at: crate::api::shapes::Instant(due),
        })
    }

    /// Checks a message and turns it into the machine's form.
    pub(super) fn message(
        &self,
        queue: &QueueEntry,
        given: OutgoingMessage,
    ) -> Result<Message, Problem> {
        // If the queue's settings change before the message arrives in the machine, the machine
        // refuses it.
        self.message_of(given, queue.settings.dedup_content)
    }

    /// The same for whichever queue; `by_content`: a message without a unique id gets one that is made of its body.
    pub(super) fn message_of(
        &self,
        given: OutgoingMessage,
        by_content: bool,
    ) -> Result<Message, Problem> {
        let body = given.body_encoding.decode("body", given.body)?;
        let unique_id = match given.unique_id {
            Some(id) => {
                Some(UniqueId::new(&id).map_err(|error| Problem::invalid("unique_id", error))?)
            }
            None if by_content => UniqueId::new(&hex(&Sha256::digest(&body))).ok(),
            None => None,
        };
        Ok(Message {
            headers: headers(
                given
                    .headers
                    .all()
                    .map_err(|error| Problem::invalid("headers", error))?,
            )?,
            key: named("key", given.key)?,
            group: named("group", given.group)?,
            unique_id,
            due: self.due(given.delay_ms.map(Within::get), given.due_at.map(|at| at.0))?,
            time_to_live: given.time_to_live_ms.map(Within::get),
            content_type: label("content_type", given.content_type)?,
            trace_context: label("trace_context", given.trace_context)?,
            level: given.level.map(Into::into),
            priority: given.priority.map_or(Ok(0), |priority| {
                u8::try_from(priority.get()).map_err(|error| Problem::invalid("priority", error))
            })?,
            producer: given.producer.map(produced).transpose()?,
            ..Message::new(body)
        })
    }

    fn due(
        &self,
        delay_ms: Option<u64>,
        due_at: Option<WallTime>,
    ) -> Result<Option<WallTime>, Problem> {
        match (delay_ms, due_at) {
            (Some(_), Some(_)) => Err(Problem::invalid(
                "due_at",
                "due_at and delay_ms exclude each other: leave one out",
            )),
            (Some(delay), None) => Ok(Some(self.engine.due_after(delay))),
            (None, due) => Ok(due),
        }
    }
}

impl Encoding {
    /// Decodes a text into its bytes.
    pub(in crate::api) fn decode(self, field: &str, text: String) -> Result<Bytes, Problem> {
        match self {
            Self::Text => Ok(text.into()),
            Self::Base64 => match STANDARD.decode(text) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => Err(Problem::invalid(field, format_args!("no base64: {error}"))),
            },
        }
    }

    /// As [`encode`](Self::encode), but a text that would be more than twice as long in JSON becomes base64 too.
    pub(in crate::api) fn encode_short(bytes: &[u8]) -> (String, Self) {
        match answer::json_len(bytes) > 2 * bytes.len() + 64 {
            true => (STANDARD.encode(bytes), Self::Base64),
            false => Self::encode(bytes),
        }
    }

    /// Encodes bytes as a text, and returns the encoding.
    pub(in crate::api) fn encode(bytes: &[u8]) -> (String, Self) {
        match std::str::from_utf8(bytes) {
            Ok(text) => (text.to_owned(), Self::Text),
            Err(_) => (STANDARD.encode(bytes), Self::Base64),
        }
    }
}

/// Headers of a message, in order of their names. SQS clients must be able to receive them.
pub(super) fn headers(given: BTreeMap<String, HeaderValue>) -> Result<Vec<Header>, Problem> {
    given
        .into_iter()
        .map(|(name, header)| {
            let field = format!("headers.{name}");
            let value = header
                .encoding
                .decode(&format!("{field}.value"), header.value)?;
            headers::check(&name, &header.kind, value)
                .map_err(|error| Problem::invalid(&field, error.message))
        })
        .collect()
}

/// An optional key or group.
pub(super) fn named(field: &str, text: Option<String>) -> Result<Option<Key>, Problem> {
    text.map(|text| Key::new(&text).map_err(|error| Problem::invalid(field, error)))
        .transpose()
}

fn label(field: &str, text: Option<String>) -> Result<Option<std::sync::Arc<str>>, Problem> {
    match text {
        Some(text) if !is_label(&text) => Err(Problem::invalid(
            field,
            format_args!(
                "there must be 1 to {LABEL_BYTES_MAX} bytes without control characters, not {} bytes like {text:?}",
                text.len()
            ),
        )),
        text => Ok(text.map(Into::into)),
    }
}

pub(super) fn message_id(text: &str) -> Result<MessageId, Problem> {
    text.parse().map_err(|error| {
        Problem::new(
            Code::MessageNotFound,
            format!("{error}, of a UUID of version 8"),
        )
        .at("id")
    })
}

impl SentMessage {
    /// A record of a producer that was accepted before.
    const BEFORE: Self = Self {
        id: None,
        sequence: None,
        duplicate: true,
    };
}

impl From<Sent> for SentMessage {
    fn from(sent: Sent) -> Self {
        Self {
            id: Some(sent.id.to_string()),
            sequence: Some(sent.sequence.0),
            duplicate: sent.duplicate,
        }
    }
}
