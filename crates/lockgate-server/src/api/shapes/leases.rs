//! Leases: receiving and settling.

use std::collections::BTreeMap;

use lockgate_core::Millis;
use lockgate_machine::StaleReason;
use serde::{Deserialize, Serialize};

use super::{super::problem::Problem, Encoding, Instant, OutgoingMessage};
use crate::few::Few;

/// The longest a receive may wait.
pub(crate) const WAIT_MS_MAX: Millis = 20_000;

/// What to receive.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiveMessages {
    /// How many messages at most, 1 to 100. Default 1.
    #[serde(default)]
    pub(crate) max: Option<u16>,
    /// How long to wait for a first message. 0 to 20 s; default: as the queue says.
    #[serde(default)]
    pub(crate) wait_ms: Option<Millis>,
    /// How long the leases last. 0 to 12 h; default: as the queue says.
    #[serde(default)]
    pub(crate) lease_ms: Option<Millis>,
    /// Who will hold the leases, for those who want to know why a key does not move. Default: the
    /// header `x-lockgate-consumer`, else the access key and address.
    #[serde(default)]
    pub(crate) holder: Option<String>,
}

/// Messages received.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReceivedMessages {
    /// In order; may be none.
    pub(crate) messages: Vec<ReceivedMessage>,
}

/// A message received.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReceivedMessage {
    /// Its id.
    pub(crate) id: String,
    /// What settles it. The same as an SQS receipt handle; either API takes it.
    pub(crate) receipt: String,
    /// Which lease of the message in this queue it is, from 1.
    pub(crate) attempt: u16,
    /// When the lease ends, by the server's clock.
    pub(crate) lease_ends_at: Instant,
    /// What it is.
    #[serde(flatten)]
    pub(crate) content: Content,
}

/// What a message is, whoever has it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Content {
    /// Its number in the queue.
    pub(crate) sequence: u64,
    /// When it was accepted.
    pub(crate) sent_at: Instant,
    /// Its key, in a keyed queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Its group, in an unkeyed queue, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Its number among the messages of its key, from 1 without a gap, where the queue's
    /// `key_sequences_max` says so. A message that was moved keeps the one it got first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_sequence: Option<u64>,
    /// Its unique id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique_id: Option<String>,
    /// The payload, as `body_encoding` says. Not there where it was not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// How `body` is to be read: `text` if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_encoding: Option<Encoding>,
    /// Named values beside the body.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, HeaderView>,
    /// Media type of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    /// Trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_context: Option<String>,
    /// Where it comes from, if it was moved here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<OriginView>,
}

impl Content {
    /// Of a message whose payload cannot be read.
    pub(crate) fn unknown(sequence: u64, sent_at: Instant) -> Self {
        Self {
            sequence,
            sent_at,
            key: None,
            group: None,
            key_sequence: None,
            unique_id: None,
            body: None,
            body_encoding: None,
            headers: BTreeMap::new(),
            content_type: None,
            trace_context: None,
            origin: None,
        }
    }
}

/// A value beside a body.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct HeaderView {
    /// What it is, as SQS has it: `String`, `Number` or `Binary`, and perhaps more after a dot.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The value, as `encoding` says.
    pub(crate) value: String,
    /// How `value` is to be read: `text` if it is UTF-8.
    pub(crate) encoding: Encoding,
}

/// Where a moved message comes from.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OriginView {
    /// The queue it left last; not there if that was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Its number there.
    pub(crate) sequence: u64,
    /// Why it was moved.
    pub(crate) reason: OriginReasonWord,
    /// With `rejected`: in the consumer's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// With `attempts`: how many leases it had there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempts: Option<u16>,
    /// When.
    pub(crate) moved_at: Instant,
}

/// Why a message was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum OriginReasonWord {
    /// It had as many leases as its queue allows.
    Attempts,
    /// A consumer rejected it.
    Rejected,
    /// Somebody moved it (back).
    Redriven,
}

/// Leases to settle.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct SettleMessages<'a> {
    /// 1 to 1000 leases.
    pub(crate) settles: Few<'a, SettleInput>,
}

/// A lease to settle.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleInput {
    /// The message's receipt.
    pub(crate) receipt: String,
    /// How.
    pub(crate) action: SettleActionWord,
    /// With `nack` and `defer`: not leased again before so much time has passed. Default 0.
    #[serde(default)]
    pub(crate) delay_ms: Option<Millis>,
    /// With `extend`, which needs it: how long the lease lasts from now on. Up to 12 h after it was
    /// given.
    #[serde(default)]
    pub(crate) lease_ms: Option<Millis>,
    /// With `reject`: why, up to 1024 bytes.
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// How a lease is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum SettleActionWord {
    /// The message is done and leaves the queue.
    Ack,
    /// The message failed: it returns to its place, and the attempt counts.
    Nack,
    /// The message is to come later, and this attempt does not count.
    Defer,
    /// The holder needs more time.
    Extend,
    /// The message can never succeed: to the dead-letter queue now; dropped where there is none.
    Reject,
}

/// What became of leases.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SettleResults {
    /// One for each, in order.
    pub(crate) results: Vec<SettleResult>,
}

/// What became of a lease.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum SettleResult {
    /// It was settled.
    Done,
    /// It was not current any more: nothing changed.
    Stale {
        /// What became of it.
        reason: StaleWord,
    },
    /// It could not be settled so: nothing changed.
    Refused {
        /// Why.
        problem: Box<Problem>,
    },
}

/// Why a lease is not current.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StaleWord {
    /// The message is gone: settled, dropped or purged.
    Gone,
    /// The lease has ended: nobody has the message, or (keyed queues) it was moved since.
    Ended,
    /// The message was leased again.
    Superseded,
    /// An earlier message of the batch must be settled first (`key_profile` `strict`).
    OutOfOrder,
}

impl From<StaleReason> for StaleWord {
    fn from(reason: StaleReason) -> Self {
        match reason {
            StaleReason::Ended => Self::Ended,
            StaleReason::Superseded => Self::Superseded,
            StaleReason::OutOfOrder => Self::OutOfOrder,
            _ => Self::Gone,
        }
    }
}

/// What is to happen together. Up to 1000 of both.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct Transaction<'a> {
    /// Leases to settle, of any queues.
    #[serde(default)]
    pub(crate) settles: Few<'a, SettleInput>,
    /// Messages to send, to any queues.
    #[serde(default)]
    pub(crate) sends: Few<'a, TransactionSend>,
}

/// A message of a transaction.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct TransactionSend {
    /// Where to.
    pub(crate) queue: String,
    /// What.
    pub(crate) message: OutgoingMessage,
}

/// All of it happened.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Transacted {
    /// The messages sent, in order.
    pub(crate) sent: Vec<super::SentMessage>,
}
