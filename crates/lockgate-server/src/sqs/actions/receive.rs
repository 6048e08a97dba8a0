//! Receives messages.

use std::{future, num::NonZeroU64, time::Duration};

use lockgate_core::{Header, Sequence};
use lockgate_engine::{EngineError, QueueEntry, Received, ReceivedBatch};
use lockgate_machine::{DeadLetterReason, Receive, Rejection};

use super::{
    Call, Service,
    attempts::{Attempt, Turn},
    in_range,
};
use crate::{
    answer,
    auth::Verb,
    http::response::KeepGuard,
    queue::{
        extension,
        kind::{Kind, kind_of},
    },
    sqs::{
        error::SqsError,
        message_attributes::{self, Filter},
        names,
        queue_attributes::{Attribute, VISIBILITY_SECONDS_MAX, WAIT_SECONDS_MAX},
        shapes::{
            BodyText, ReceiveMessageInput, ReceiveMessageOutput, ReceivedMessage, SequenceNumber,
            SystemAttributes,
        },
        text::{Md5Hex, Text, UuidText},
    },
    waiting,
};

impl Service {
    /// Takes messages; waits for a first one if the request or the queue says so. The guard gives
    /// the leases back unless it is kept.
    pub(crate) async fn receive_message(
        &self,
        call: &Call<'_>,
        input: ReceiveMessageInput<'_>,
    ) -> Result<(ReceiveMessageOutput, Option<KeepGuard>), SqsError> {
        let queue = self.queue(call, Verb::Receive, input.queue_url.as_ref())?;
        let max = in_range(
            input.max_number_of_messages,
            1,
            extension::batch_max(&queue.tags) as u64,
            "MaxNumberOfMessages",
            format_args!(
                "Must be between 1 and {}, if provided.",
                extension::batch_max(&queue.tags)
            ),
        )?
        .unwrap_or(1);
        let wait = in_range(
            input.wait_time_seconds,
            0,
            WAIT_SECONDS_MAX,
            "WaitTimeSeconds",
            "Must be >= 0 and <= 20, if provided.",
        )?;
        let visibility = in_range(
            input.visibility_timeout,
            0,
            VISIBILITY_SECONDS_MAX,
            "VisibilityTimeout",
            "Must be >= 0 and <= 43200, if provided.",
        )?;
        let attempt = input.receive_request_attempt_id;
        if let Some(id) = &attempt {
            names::receive_attempt_id(id)?;
        }
        // AWS documents that it applies to FIFO queues only, and accepts it on all queues.
        let attempt = attempt
            .filter(|_| kind_of(&queue.settings) == Kind::Fifo)
            .map(|id| Attempt {
                queue: queue.id,
                id: (*id).into(),
            });
        let system = SystemFilter::new(
            input
                .attribute_names
                .into_iter()
                .chain(input.message_system_attribute_names)
                .flatten(),
        )?;
        let user = Filter::new(input.message_attribute_names.unwrap_or_default());
        let wait = wait.map_or(
            Duration::from_millis(queue.settings.receive_wait),
            Duration::from_secs,
        );
        let receive = Receive {
            queue: queue.name.clone(),
            max: u16::try_from(max).unwrap_or(1),
            key_max: None,
            lease: visibility.map(|seconds| seconds * 1000),
            holder: call.holder.clone(),
        };
        let Some(attempt) = attempt else {
            let Some(mut batch) = self.wait_for(call, &queue, receive, wait, None).await? else {
                return Ok((ReceiveMessageOutput { messages: vec![] }, None));
            };
            batch.truncate(fitting(call, &batch));
            let messages = self.messages(&queue, &batch, &system, &user);
            let guard = (!batch.is_empty()).then(|| KeepGuard::new(move || drop(batch.keep())));
            return Ok((ReceiveMessageOutput { messages }, guard));
        };
        let turn = self.attempts.turn(attempt).await;
        let lease = receive.lease.unwrap_or(queue.settings.lease);
        // A repeat in the other protocol may take more bytes than the first answer did.
        let fits = |received: &[Received]| fitting(call, received);
        let repeated = self
            .attempts
            .repeat(&turn, &self.engine, &queue.name, lease, fits)
            .await?;
        if let Some((received, claim)) = repeated {
            let messages = self.messages(&queue, &received, &system, &user);
            let guard = KeepGuard::new(move || claim.keep());
            return Ok((ReceiveMessageOutput { messages }, Some(guard)));
        }
        match self
            .wait_for(call, &queue, receive, wait, Some(&turn))
            .await?
        {
            Some(mut batch) if !batch.is_empty() => {
                batch.truncate(fitting(call, &batch));
                let messages = self.messages(&queue, &batch, &system, &user);
                let claim = self.attempts.remember(&turn, &self.engine, batch);
                let guard = KeepGuard::new(move || claim.keep());
                Ok((ReceiveMessageOutput { messages }, Some(guard)))
            }
            _ => Ok((ReceiveMessageOutput { messages: vec![] }, None)),
        }
    }

    /// `None`: the server began to shut down before a message came.
    async fn wait_for(
        &self,
        call: &Call<'_>,
        queue: &QueueEntry,
        receive: Receive,
        wait: Duration,
        turn: Option<&Turn<'_>>,
    ) -> Result<Option<ReceivedBatch>, SqsError> {
        let result = if wait.is_zero() || self.drain.has_begun() {
            self.engine.receive(receive, Duration::ZERO).await
        } else {
            let at_once = turn.map(|turn| (turn, receive.clone()));
            let contested = async {
                match at_once {
                    Some((turn, receive)) => {
                        turn.is_contested().await;
                        receive
                    }
                    None => future::pending().await,
                }
            };
            tokio::select! {
                biased;
                result = waiting::receive(&self.engine, receive, wait, call.hangup) => result,
                () = self.drain.begun() => return Ok(None),
                // The client has repeated its request and does not wait for this answer any more.
                // Messages that are there are still taken: the repeat returns them.
                receive = contested => self.engine.receive(receive, Duration::ZERO).await,
            }
        };
        match result {
            Ok(batch) => Ok(Some(batch)),
            // AWS reports it to consumers of standard queues, and has no such error for FIFO
            // queues.
            Err(EngineError::Rejected(Rejection::InFlightFull { .. }))
                if kind_of(&queue.settings) == Kind::Fifo =>
            {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn messages(
        &self,
        queue: &QueueEntry,
        batch: &[Received],
        system: &SystemFilter,
        user: &Filter<'_>,
    ) -> Vec<ReceivedMessage> {
        let bodies: Vec<BodyText> = batch
            .iter()
            .map(|received| BodyText::new(received.stored.message.body.clone()))
            .collect();
        let texts: Vec<&[u8]> = bodies.iter().map(BodyText::as_bytes).collect();
        let digests = message_attributes::body_digests(&texts);
        batch
            .iter()
            .zip(bodies.into_iter().zip(digests))
            .map(|(received, body)| self.message(queue, received, body, system, user))
            .collect()
    }

    fn message(
        &self,
        queue: &QueueEntry,
        received: &Received,
        (body, body_digest): (BodyText, Md5Hex),
        system: &SystemFilter,
        user: &Filter<'_>,
    ) -> ReceivedMessage {
        let Received { delivery, stored } = received;
        let headers: Vec<Header> = stored
            .message
            .headers
            .iter()
            .filter(|header| user.passes(&header.name))
            .cloned()
            .collect();
        ReceivedMessage {
            message_id: delivery.id,
            receipt_handle: self.receipts.seal(delivery.token),
            body_digest,
            body,
            attributes: self.system_attributes(queue, received, system),
            attributes_digest: message_attributes::headers_digest(&headers),
            message_attributes: headers,
        }
    }

    fn system_attributes(
        &self,
        queue: &QueueEntry,
        received: &Received,
        filter: &SystemFilter,
    ) -> SystemAttributes {
        let Received { delivery, stored } = received;
        let message = &stored.message;
        let fifo = kind_of(&queue.settings) == Kind::Fifo;
        let key_sequence = stored.key_sequence.map(NonZeroU64::get);
        let wants = |attribute| filter.wants(attribute);
        let text = |text: &str| text.to_owned();
        let dead_letter_of = delivery.origin.as_ref().and_then(|o| o.source.as_ref());
        SystemAttributes {
            // Without authentication the account is the only sender.
            sender_id: wants(SystemAttribute::SenderId).then(|| self.config.account.clone()),
            sent_timestamp: wants(SystemAttribute::SentTimestamp).then_some(stored.accepted),
            approximate_receive_count: wants(SystemAttribute::ApproximateReceiveCount)
                .then(|| receive_count(received)),
            approximate_first_receive_timestamp: wants(
                SystemAttribute::ApproximateFirstReceiveTimestamp,
            )
            .then_some(delivery.first_leased),
            sequence_number: (fifo && wants(SystemAttribute::SequenceNumber))
                .then_some(SequenceNumber(delivery.token.sequence)),
            message_deduplication_id: message
                .unique_id
                .as_ref()
                .filter(|_| wants(SystemAttribute::MessageDeduplicationId))
                .map(|id| match dead_letter_of {
                    // Two dead letters may have had the same id, so AWS gives each its own group id
                    // there.
                    Some(_) => text(UuidText::new(delivery.id.to_bits()).as_str()),
                    None => text(id.as_str()),
                }),
            message_group_id: message
                .key
                .as_ref()
                .filter(|_| wants(SystemAttribute::MessageGroupId))
                .map(|key| text(key.as_str())),
            trace_header: message
                .trace_context
                .as_ref()
                .filter(|_| wants(SystemAttribute::AWSTraceHeader))
                .map(|trace| text(trace)),
            dead_letter_queue_source_arn: dead_letter_of
                .filter(|_| wants(SystemAttribute::DeadLetterQueueSourceArn))
                .map(|name| names::queue_arn(&self.config, name)),
            // A queue skips a number only if the message that had it may be lost.
            previous_sequence_number: filter
                .previous
                .then(|| Sequence(delivery.token.sequence.0.saturating_sub(1)))
                .map(SequenceNumber),
            key_sequence: key_sequence.filter(|_| filter.key),
            previous_key_sequence: key_sequence
                .filter(|_| filter.previous_of_key)
                .map(|number| number - 1),
        }
    }
}

/// How many of the messages fit into the answer.
fn fitting(call: &Call<'_>, received: &[Received]) -> usize {
    let stored = received.iter().map(|received| Some(&received.stored));
    answer::fitting(stored.map(|stored| (stored, None)), call.text_len, true)
}

/// How often the message was received. AWS continues the count in the dead-letter queue, where our
/// attempts start again.
fn receive_count(received: &Received) -> u32 {
    let before = match &received.delivery.origin {
        Some(origin) => match origin.reason {
            DeadLetterReason::Attempts { attempts } => attempts,
            _ => 0,
        },
        None => 0,
    };
    u32::from(before) + u32::from(received.delivery.attempt)
}

/// Declares the system attributes once: the enum and their names.
macro_rules! system_attributes {
    ($($attribute:ident),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum SystemAttribute {
            $($attribute,)*
        }

        impl SystemAttribute {
            fn from_name(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($attribute) => Some(Self::$attribute),)*
                    _ => None,
                }
            }
        }
    };
}

system_attributes! {
    SenderId,
    SentTimestamp,
    ApproximateReceiveCount,
    ApproximateFirstReceiveTimestamp,
    SequenceNumber,
    MessageDeduplicationId,
    MessageGroupId,
    AWSTraceHeader,
    DeadLetterQueueSourceArn,
}

// Lockgate's own attributes; `All` does not include them.

/// The number in the queue before this message's.
const PREVIOUS_SEQUENCE_NUMBER: &str = "lockgate.PrevSequenceNumber";
/// The message's number in its group.
const KEY_SEQUENCE: &str = "lockgate.KeySequence";
/// The number in the group before this message's.
const PREVIOUS_KEY_SEQUENCE: &str = "lockgate.PrevKeySequence";

/// Which system attributes a receive wants.
#[derive(Debug, Default)]
struct SystemFilter {
    /// One bit per attribute.
    wanted: u16,
    /// Whether the previous number in the queue is wanted.
    previous: bool,
    /// Whether the number in the group is wanted.
    key: bool,
    /// Whether the previous number in the group is wanted.
    previous_of_key: bool,
}

impl SystemFilter {
    fn new<'a>(names: impl IntoIterator<Item = Text<'a>>) -> Result<Self, SqsError> {
        let mut filter = Self::default();
        for name in names {
            // Celery's transport writes it in capitals.
            if name.eq_ignore_ascii_case("All") {
                filter.wanted = u16::MAX;
            } else if let Some(known) = SystemAttribute::from_name(&name) {
                filter.wanted |= 1 << known as u16;
            } else if let Some(ours) = filter.ours(&name) {
                *ours = true;
            } else if Attribute::from_name(&name).is_none() {
                // AWS's model allows queue attributes in the older of the two lists too; they
                // select nothing here.
                return Err(SqsError::unknown_attribute(&name));
            }
        }
        Ok(filter)
    }

    /// The flag of one of Lockgate's own attributes.
    fn ours(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            PREVIOUS_SEQUENCE_NUMBER => Some(&mut self.previous),
            KEY_SEQUENCE => Some(&mut self.key),
            PREVIOUS_KEY_SEQUENCE => Some(&mut self.previous_of_key),
            _ => None,
        }
    }

    fn wants(&self, attribute: SystemAttribute) -> bool {
        self.wanted & (1 << attribute as u16) != 0
    }
}
