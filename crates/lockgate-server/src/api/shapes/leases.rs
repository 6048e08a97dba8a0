//! Shapes of leases: receiving and settling.

use std::collections::BTreeMap;

use lockgate_core::Millis;
use lockgate_machine::{QueueSettings, Settle, StaleReason};
use serde::{Deserialize, Serialize};

use super::{
    super::problem::Problem, Encoding, Instant, KeyState, LevelWord, NewState, OutgoingMessage,
    Within,
};
use crate::few::Few;

/// The most messages of one receive: their bodies are in memory together.
pub(crate) const RECEIVE_MAX: u64 = 100;

/// The longest a receive may wait.
pub(crate) const WAIT_MS_MAX: Millis = 20_000;

/// The parameters of a receive.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiveMessages {
    /// How many messages at most, 1 to 100: their bodies are in memory together. Default 1.
    #[serde(default)]
    pub(crate) max: Option<Within<1, RECEIVE_MAX>>,
    /// How many messages of one key at most, in a keyed queue, 1 to 100. Default: `max`.
    #[serde(default)]
    pub(crate) key_max: Option<Within<1, RECEIVE_MAX>>,
    /// How long to wait for a first message. 0 to 20 s; default: the queue's setting.
    #[serde(default)]
    pub(crate) wait_ms: Option<Within<0, WAIT_MS_MAX>>,
    /// How long the leases last. 0 to 12 h; default: the queue's setting.
    #[serde(default)]
    pub(crate) lease_ms: Option<Within<0, { QueueSettings::LEASE_MAX }>>,
    /// The holder of the leases, shown where a key waits for a lease. Default: the header
    /// `x-lockgate-consumer`, else the access key and address.
    #[serde(default)]
    pub(crate) holder: Option<String>,
}

/// The messages of a receive.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReceivedMessages {
    /// In order; may be empty.
    pub(crate) messages: Vec<ReceivedMessage>,
    /// How long the server took, the wait for a first message included. What the client waited beyond that,
    /// the request and the answer were on their way; the leases end sooner by as much.
    pub(crate) took_ms: Millis,
}

/// A received message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReceivedMessage {
    /// Its id.
    pub(crate) id: String,
    /// Names the lease when it is settled. Also valid as an SQS receipt handle, and the other way
    /// round.
    pub(crate) receipt: String,
    /// The number of this lease among the message's leases in this queue, from 1.
    pub(crate) attempt: u16,
    /// When the lease ends, by the server's clock.
    pub(crate) lease_ends_at: Instant,
    /// How much longer the lease lasts.
    pub(crate) remaining_ms: Millis,
    /// When it came due, where it was to come later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<Instant>,
    /// The time to live that it was sent with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_to_live_ms: Option<Millis>,
    /// The level that it was sent with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<LevelWord>,
    /// The state of its key, if there is one; with the first message of the key in the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<KeyState>,
    /// The message itself.
    #[serde(flatten)]
    pub(crate) content: Content,
}

/// A message without its lease or state.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Content {
    /// Its number in the queue.
    pub(crate) sequence: u64,
    /// When it was accepted.
    pub(crate) sent_at: Instant,
    /// Its key; keyed queues only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Its group, if it has one; unkeyed queues only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// Its number among the messages of its key, from 1 without a gap, if the queue's
    /// `key_sequences_max` is set. A moved message keeps its first number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key_sequence: Option<u64>,
    /// Its unique id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique_id: Option<String>,
    /// The payload, in the encoding that `body_encoding` names. Absent if the request does not want
    /// bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// The encoding of `body`: `text` if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body_encoding: Option<Encoding>,
    /// Named values besides the body.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, HeaderView>,
    /// Media type of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_type: Option<String>,
    /// Trace context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_context: Option<String>,
    /// How urgent it is, up to 9. Absent if it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    #[cfg_attr(test, schemars(range(max = 9)))]
    pub(crate) priority: u8,
    /// The queue that it was moved from, if it was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<OriginView>,
    /// Its failures that had a reason, oldest first, also of queues that it was in before: the first one
    /// and the latest ones, 10 with reasons of 4096 bytes in all. Absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failures: Vec<FailureView>,
    /// How many failures with a reason are not among `failures`. Absent if it is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) failures_left_out: u64,
}

/// A failed attempt.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FailureView {
    /// Which attempt it was, from 1 in each queue.
    pub(crate) attempt: u32,
    /// When it failed.
    pub(crate) at: Instant,
    /// The reason that was given with `nack`.
    pub(crate) error: String,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

impl Content {
    /// A message whose payload cannot be read.
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
            priority: 0,
            origin: None,
            failures: Vec::new(),
            failures_left_out: 0,
        }
    }
}

/// A named value besides the body.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct HeaderView {
    /// Its type in SQS's terms: `String`, `Number` or `Binary`, possibly followed by a dot and any
    /// text.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The value, in the encoding that `encoding` names.
    pub(crate) value: String,
    /// The encoding of `value`: `text` if it is UTF-8.
    pub(crate) encoding: Encoding,
}

/// The origin of a moved message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct OriginView {
    /// The queue that it left last; absent if that queue was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Its number in that queue.
    pub(crate) sequence: u64,
    /// Why it was moved.
    pub(crate) reason: OriginReasonWord,
    /// With `rejected`: the consumer's reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// With `attempts`: how many leases it had in that queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempts: Option<u16>,
    /// When it was moved.
    pub(crate) moved_at: Instant,
}

/// Why a message was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum OriginReasonWord {
    /// It reached its queue's limit of attempts.
    Attempts,
    /// A consumer rejected it.
    Rejected,
    /// An operator moved it.
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
    /// What to do with the lease.
    pub(crate) action: SettleActionWord,
    /// With `nack` and `defer`: not leased again before so much time has passed, up to 366 days. Default 0.
    #[serde(default)]
    pub(crate) delay_ms: Option<Within<0, { Settle::DELAY_MAX }>>,
    /// With `defer` and a `delay_ms`: what is held for so long too, such as what the answer 429 of a partner asks for.
    #[serde(default)]
    pub(crate) hold: Option<HoldScopeWord>,
    /// With `extend`, required: how long the lease lasts from now on. It ends at most 12 h after it
    /// was given.
    #[serde(default)]
    pub(crate) lease_ms: Option<Within<1, { QueueSettings::LEASE_MAX }>>,
    /// With `nack` and `reject`: the reason, up to 1024 bytes.
    #[serde(default)]
    pub(crate) reason: Option<String>,
    /// Keyed queues: what becomes of the state of the message's key. With `extend` the holder writes it and goes on.
    /// Each key at most once in a transaction.
    #[serde(default)]
    pub(crate) state: Option<NewState>,
}

/// How a lease is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum SettleActionWord {
    /// The message is done and leaves the queue.
    Ack,
    /// The message failed: it returns to its place in the queue, and the attempt counts.
    Nack,
    /// The message returns later, and this attempt does not count.
    Defer,
    /// The holder needs more time.
    Extend,
    /// The message can never succeed: it moves to the dead-letter queue now, or is dropped if there
    /// is none.
    Reject,
    /// Nobody has tried the message: it returns to its place, and this attempt does not count.
    GiveBack,
}

/// What a deferral holds besides its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldScopeWord {
    /// Its key, or its group; its queue if it has neither.
    Key,
    /// Its queue.
    Queue,
}

/// The results of settling leases.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SettleResults {
    /// One result for each lease, in order.
    pub(crate) results: Vec<SettleResult>,
}

/// The result of settling a lease.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum SettleResult {
    /// The lease was settled.
    Done {
        /// With `extend`: how much longer the lease lasts.
        #[serde(skip_serializing_if = "Option::is_none")]
        remaining_ms: Option<Millis>,
        /// With `reject`: present and true if the message was dropped, because there is no dead-letter queue.
        #[serde(skip_serializing_if = "super::queues::is_false")]
        dropped: bool,
        /// With `state`: its new version; absent if it was dropped.
        #[serde(skip_serializing_if = "Option::is_none")]
        state_version: Option<u64>,
    },
    /// The lease is not current any more; nothing changed.
    Stale {
        /// The reason.
        reason: StaleWord,
    },
    /// The request was refused; nothing changed.
    Refused {
        /// The reason.
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
    /// The lease has ended: the message is not leased, or (keyed queues) it was moved since.
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

/// Settles, sends and publishes that happen together, up to 1000 in all.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct Transaction<'a> {
    /// Leases to settle, in any queues.
    #[serde(default)]
    pub(crate) settles: Few<'a, SettleInput>,
    /// Messages to send, to any queues.
    #[serde(default)]
    pub(crate) sends: Few<'a, TransactionSend>,
    /// Messages to publish, to any exchanges. Keys, unique ids and envelopes of their copies have up to 8 MiB together.
    #[serde(default)]
    pub(crate) publishes: Few<'a, TransactionPublish>,
}

/// A message of a transaction.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct TransactionSend {
    /// The queue to send it to.
    pub(crate) queue: String,
    /// The message.
    pub(crate) message: OutgoingMessage,
}

/// A message that a transaction publishes.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct TransactionPublish {
    /// The exchange to publish it to.
    pub(crate) exchange: String,
    /// By what exchanges of kinds direct and topic route it: up to 255 bytes. Default: the empty text.
    #[serde(default)]
    pub(crate) routing_key: String,
    /// The message, as of a publish.
    pub(crate) message: OutgoingMessage,
}

/// The result of a transaction: all of it happened.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Transacted {
    /// The messages sent, in order.
    pub(crate) sent: Vec<super::SentMessage>,
    /// The new version of the state of each settle that had one, in order; `null` of one that was dropped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) state_versions: Vec<Option<u64>>,
    /// The messages published, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) published: Vec<super::PublishedMessage>,
}
