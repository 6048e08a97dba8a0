//! Sending messages.

use base64::decoded_len_estimate;
use lockgate_core::{Header, Key, Message, Millis, UniqueId};
use lockgate_engine::QueueEntry;
use lockgate_machine::{SendMessage, Sent};
use lockgate_sigv4::hex::hex;
use sha2::{Digest as _, Sha256};

use super::{
    Call, Service, batch,
    refusals::{NEEDS_DEDUPLICATION, not_for_this_kind},
    required,
};
use crate::{
    auth::Verb,
    queue::{
        extension,
        headers::{forbidden_character, forbidden_character_text},
        kind::{FIFO_SUFFIX, Kind, kind_of},
    },
    sqs::{
        error::{ErrorCode, SqsError},
        message_attributes, names,
        queue_attributes::MESSAGE_BYTES_MAX,
        shapes::{
            BatchOutput, SendMessageBatchInput, SendMessageEntry, SendMessageInput,
            SendMessageOutput, SentEntry, SequenceNumber,
        },
        text::{Md5Hex, Text},
    },
};

impl batch::Entry for SendMessageEntry<'_> {
    const NAME: &'static str = "SendMessageBatchRequestEntry";

    fn id(&self) -> Option<&Text<'_>> {
        self.id.as_ref()
    }
}

/// A checked message, and the parts of the answer to its sender.
struct Prepared {
    message: Message,
    attributes_digest: Option<Md5Hex>,
    system_attributes_digest: Option<Md5Hex>,
}

impl Service {
    /// Accepts a message.
    pub(crate) async fn send_message(
        &self,
        call: &Call<'_>,
        input: SendMessageInput<'_>,
    ) -> Result<SendMessageOutput, SqsError> {
        let queue = self.queue(call, Verb::Send, input.queue_url.as_ref())?;
        let entry = SendMessageEntry {
            id: None,
            message_body: input.message_body,
            delay_seconds: input.delay_seconds,
            message_attributes: input.message_attributes,
            message_system_attributes: input.message_system_attributes,
            message_deduplication_id: input.message_deduplication_id,
            message_group_id: input.message_group_id,
        };
        let size = size(&entry);
        let max = u64::from(queue.settings.message_bytes_max);
        if size > max {
            return Err(SqsError::invalid_parameter(format!(
                "One or more parameters are invalid. Reason: Message must be shorter than {max} \
                 bytes."
            )));
        }
        let mut prepared = self.prepare(call, &queue, entry)?;
        let digests = message_attributes::body_digests(&[&prepared.message.body]);
        let command = prepared.command(&queue);
        let sent = self.engine.submit(command).await?;
        Ok(prepared.output(&queue, digests[0], sent))
    }

    /// Accepts several messages, each independently.
    pub(crate) async fn send_message_batch(
        &self,
        call: &Call<'_>,
        input: SendMessageBatchInput<'_>,
    ) -> Result<BatchOutput<SentEntry>, SqsError> {
        let queue = self.queue(call, Verb::Send, input.queue_url.as_ref())?;
        let entries = batch::check(input.entries, extension::batch_max(&queue.tags), |entry| {
            entry
        })?;
        check_fifo_entries(&queue, &entries)?;
        let sizes: Vec<u64> = entries.iter().map(|(_, entry)| size(entry)).collect();
        let total: u64 = sizes.iter().sum();
        if total > MESSAGE_BYTES_MAX {
            return Err(SqsError::new(
                ErrorCode::BatchRequestTooLong,
                format!(
                    "Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. You have \
                     sent {total} bytes."
                ),
            ));
        }
        let max = u64::from(queue.settings.message_bytes_max);
        let mut output = batch::output(entries.len());
        let mut waiting = Vec::with_capacity(entries.len());
        for (number, ((id, entry), size)) in (1..).zip(entries.into_iter().zip(sizes)) {
            let prepared = if entry.message_body.as_deref().is_none_or(str::is_empty) {
                Err(batch::missing::<SendMessageEntry<'_>>(
                    number,
                    "MessageBody",
                ))
            } else if size > max {
                Err(SqsError::invalid_parameter(format!(
                    "One or more parameters cannot be validated. Reason: Message must be shorter \
                     than {max} bytes."
                )))
            } else {
                self.prepare(call, &queue, entry)
            };
            match prepared {
                Ok(prepared) => waiting.push((id, prepared)),
                Err(error) => output.failed.push(batch::failed(id, error)),
            }
        }
        if waiting.is_empty() {
            return Ok(output);
        }
        let bodies: Vec<&[u8]> = waiting
            .iter()
            .map(|(_, prepared)| &prepared.message.body[..])
            .collect();
        let digests = message_attributes::body_digests(&bodies);
        let commands = waiting
            .iter_mut()
            .map(|(_, prepared)| prepared.command(&queue))
            .collect();
        let results = self.engine.submit_all(commands).await?;
        for (((id, prepared), digest), result) in waiting.into_iter().zip(digests).zip(results) {
            match result {
                Ok(sent) => output.successful.push(SentEntry {
                    id,
                    sent: prepared.output(&queue, digest, sent),
                }),
                Err(rejection) => output.failed.push(batch::failed(id, rejection.into())),
            }
        }
        Ok(output)
    }

    /// Checks a message and turns it into the machine's form.
    fn prepare(
        &self,
        call: &Call<'_>,
        queue: &QueueEntry,
        entry: SendMessageEntry<'_>,
    ) -> Result<Prepared, SqsError> {
        let body = entry
            .message_body
            .filter(|body| !body.is_empty())
            .ok_or_else(|| SqsError::missing("MessageBody"))?;
        if let Some(found) = forbidden_character(&body) {
            return Err(SqsError::new(
                ErrorCode::InvalidMessageContents,
                forbidden_character_text(found, "message body"),
            ));
        }
        let delay = self::delay(queue, entry.delay_seconds)?;
        let headers: Vec<Header> = entry
            .message_attributes
            .map(|attributes| message_attributes::to_headers(attributes, call.request))
            .transpose()?
            .unwrap_or_default();
        let trace = entry
            .message_system_attributes
            .map(message_attributes::trace_header)
            .transpose()?
            .flatten();
        let mut group = key(queue, entry.message_group_id)?;
        let key = group.take_if(|_| queue.settings.keyed);
        let unique_id = unique_id(queue, entry.message_deduplication_id, &body)?;
        Ok(Prepared {
            attributes_digest: message_attributes::headers_digest(&headers),
            system_attributes_digest: trace.as_deref().and_then(message_attributes::trace_digest),
            message: Message {
                body: body.into_bytes(call.request),
                headers,
                key,
                group,
                unique_id,
                due: delay.map(|delay| self.engine.due_after(delay)),
                // As on AWS, the request's trace is used if the message has none. The digest for
                // the client does not cover it.
                trace_context: trace
                    .as_deref()
                    .or(call
                        .trace_id
                        .filter(|id| message_attributes::is_trace_id(id)))
                    .map(Into::into),
                ..Message::default()
            },
        })
    }
}

impl Prepared {
    /// The command that sends the message; takes the message out.
    fn command(&mut self, queue: &QueueEntry) -> SendMessage {
        SendMessage {
            queue: queue.name.clone(),
            message: std::mem::take(&mut self.message),
        }
    }

    fn output(&self, queue: &QueueEntry, body_digest: Md5Hex, sent: Sent) -> SendMessageOutput {
        let Sent {
            id,
            sequence,
            duplicate,
        } = sent;
        let fifo = kind_of(&queue.settings) == Kind::Fifo;
        SendMessageOutput {
            message_id: id,
            body_digest,
            attributes_digest: self.attributes_digest,
            system_attributes_digest: self.system_attributes_digest,
            sequence_number: fifo.then_some(SequenceNumber(sequence)),
            duplicate: duplicate.then_some(true),
        }
    }
}

/// Refuses a whole batch, as AWS does, for an entry for a FIFO queue without group or deduplication
/// id.
fn check_fifo_entries(
    queue: &QueueEntry,
    entries: &[(String, SendMessageEntry<'_>)],
) -> Result<(), SqsError> {
    if kind_of(&queue.settings) == Kind::Standard {
        return Ok(());
    }
    for (_, entry) in entries {
        if entry.message_group_id.is_none() {
            return Err(SqsError::invalid_parameter(
                "The request must contain the parameter MessageGroupId.",
            ));
        }
        if entry.message_deduplication_id.is_none() && needs_unique_id(queue) {
            return Err(SqsError::invalid_parameter(NEEDS_DEDUPLICATION));
        }
    }
    Ok(())
}

/// The bytes that count towards the limits: the body, and the names, types and values of user
/// attributes.
fn size(entry: &SendMessageEntry<'_>) -> u64 {
    let len = |text: &Option<Text<'_>>| text.as_ref().map_or(0, |text| text.len());
    let binary_len = |text: &Option<Text<'_>>| {
        text.as_ref().map_or(0, |text| {
            let padding = text.bytes().rev().take_while(|&byte| byte == b'=').count();
            decoded_len_estimate(text.len()).saturating_sub(padding)
        })
    };
    let attributes: usize = entry
        .message_attributes
        .iter()
        .flatten()
        .map(|(name, value)| {
            name.len()
                + len(&value.0.data_type)
                + len(&value.0.string_value)
                + binary_len(&value.0.binary_value)
        })
        .sum();
    (len(&entry.message_body) + attributes) as u64
}

/// The message's own delay, if it has one.
fn delay(queue: &QueueEntry, seconds: Option<i64>) -> Result<Option<Millis>, SqsError> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    if kind_of(&queue.settings) == Kind::Fifo && !extension::fifo_delay(&queue.tags) {
        // The queue's own delay applies. Many clients send a zero by default.
        return match seconds {
            0 => Ok(None),
            _ => Err(not_for_this_kind(seconds, "DelaySeconds")),
        };
    }
    let max = extension::delay_seconds_max(&queue.tags);
    match u64::try_from(seconds) {
        // An explicit zero overrides the queue's delay.
        Ok(0) if queue.settings.delay == 0 => Ok(None),
        Ok(seconds) if seconds <= max => Ok(Some(seconds * 1000)),
        _ => Err(SqsError::invalid_value(
            seconds,
            "DelaySeconds",
            format_args!("DelaySeconds must be >= 0 and <= {max}."),
        )),
    }
}

fn key(queue: &QueueEntry, group: Option<Text<'_>>) -> Result<Option<Key>, SqsError> {
    match group {
        Some(group) => names::group_id(&group).map(Some),
        None if kind_of(&queue.settings) == Kind::Fifo => required(None, "MessageGroupId"),
        None => Ok(None),
    }
}

/// Whether every message needs a unique id: AWS's rule for FIFO queues by their name. A keyed queue
/// that was created through the library may have any name; its messages need only a key, whatever
/// API sends them.
fn needs_unique_id(queue: &QueueEntry) -> bool {
    queue.settings.keyed
        && !queue.settings.dedup_content
        && queue.name.as_str().ends_with(FIFO_SUFFIX)
}

/// The unique id of a message: its own, else the digest of its body if the queue's settings ask for
/// it. If the settings change before the message arrives in the machine, the machine refuses the
/// message.
fn unique_id(
    queue: &QueueEntry,
    given: Option<Text<'_>>,
    body: &str,
) -> Result<Option<UniqueId>, SqsError> {
    let fifo = kind_of(&queue.settings) == Kind::Fifo;
    match given {
        Some(id) if fifo => names::deduplication_id(&id).map(Some),
        Some(id) => Err(SqsError::invalid_value(
            id,
            "MessageDeduplicationId",
            "The request includes a parameter that is not valid for this queue type.",
        )),
        None if fifo && queue.settings.dedup_content => {
            let digest = hex(&Sha256::digest(body.as_bytes()));
            names::deduplication_id(&digest).map(Some)
        }
        None if needs_unique_id(queue) => Err(SqsError::invalid_parameter(NEEDS_DEDUPLICATION)),
        None => Ok(None),
    }
}
