//! Shapes of requests that send messages, and their answers.

use lockgate_core::{Level, PRIORITY_MAX};
use lockgate_machine::QueueSettings;
use serde::{Deserialize, Serialize};

use super::{super::problem::Problem, Instant, ProducerMark, Within};
use crate::{
    few::{Few, FewByName},
    queue::HEADERS_MAX,
};

/// Messages to send.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'a"))]
pub(crate) struct SendMessages<'a> {
    /// 1 to 1000 messages.
    pub(crate) messages: Few<'a, OutgoingMessage>,
}

/// A message to send.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct OutgoingMessage {
    /// The payload, in the encoding that `body_encoding` names.
    pub(crate) body: String,
    /// The encoding of `body`. Default `text`.
    #[serde(default)]
    pub(crate) body_encoding: Encoding,
    /// Ordering key. A keyed queue requires one; an unkeyed queue keeps no order and refuses it.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// Group that takes turns with other groups, without an order (SQS: a fair queue's
    /// MessageGroupId). For unkeyed queues only.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Id for deduplication. A second message with the same id within the queue's window is not
    /// added.
    #[serde(default)]
    pub(crate) unique_id: Option<String>,
    /// Not delivered before so much time has passed. 0 to 3,000,000 days;
    /// default: as the queue says.
    #[serde(default)]
    pub(crate) delay_ms: Option<Within<0, { QueueSettings::DELAY_MAX }>>,
    /// The message is not delivered before this instant; instead of `delay_ms`.
    #[serde(default)]
    pub(crate) due_at: Option<Instant>,
    /// Dropped when it has waited so long, 1 ms to 3,000,000 days. Default: the queue's retention alone.
    #[serde(default)]
    pub(crate) time_to_live_ms: Option<Within<1, { QueueSettings::DELAY_MAX }>>,
    /// Named values besides the body, up to 10 (SQS: message attributes).
    #[serde(default)]
    pub(crate) headers: FewByName<HeaderValue, HEADERS_MAX>,
    /// Media type of the body.
    #[serde(default)]
    pub(crate) content_type: Option<String>,
    /// Trace context that travels with the message.
    #[serde(default)]
    pub(crate) trace_context: Option<String>,
    /// A durability level above the queue's own.
    #[serde(default)]
    pub(crate) level: Option<LevelWord>,
    /// How urgent it is, 0 to 9; default 0. It does not change the order in which the queue gives messages:
    /// a worker runs the highest first of the messages without a key that it holds.
    #[serde(default)]
    pub(crate) priority: Option<Within<0, { PRIORITY_MAX as u64 }>>,
    /// Which record of a producer it is, so that it is accepted once.
    #[serde(default)]
    pub(crate) producer: Option<ProducerMark>,
}

/// A named value besides the body.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderValue {
    /// Its type in SQS's terms: `String`, `Number` or `Binary`, optionally followed by a dot and
    /// any text. Default `String`.
    #[serde(rename = "type", default = "string")]
    pub(crate) kind: String,
    /// The value, in the encoding that `encoding` names.
    pub(crate) value: String,
    /// The encoding of `value`. Default `text`.
    #[serde(default)]
    pub(crate) encoding: Encoding,
}

fn string() -> String {
    "String".to_owned()
}

/// The encoding of bytes in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encoding {
    /// UTF-8 text.
    #[default]
    Text,
    /// Base64 with padding.
    Base64,
}

/// The results of a send.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SendResults {
    /// One result for each message, in order.
    pub(crate) results: Vec<SendResult>,
}

/// The result for a message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum SendResult {
    /// The message was accepted, now or before.
    Sent(SentMessage),
    /// The message was not accepted.
    Refused {
        /// The reason.
        problem: Box<Problem>,
    },
}

/// A message that was accepted.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SentMessage {
    /// Its id. Absent for a record of a producer that was known: the queue keeps the numbers of records, and not which
    /// messages they became.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// Its number in the queue; absent as the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence: Option<u64>,
    /// Whether it was known, so that nothing was added: by its unique id, when `id` and `sequence` are those of the first
    /// message, or as a record of its producer.
    pub(crate) duplicate: bool,
}

/// A new delivery time of a message.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Reschedule {
    /// The message is not delivered before this instant.
    #[serde(default)]
    pub(crate) due_at: Option<Instant>,
    /// The message is not delivered before this time has passed; instead of `due_at`. 0: at once.
    #[serde(default)]
    pub(crate) delay_ms: Option<Within<0, { QueueSettings::DELAY_MAX }>>,
}

/// The delivery time of a message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Rescheduled {
    /// Its id.
    pub(crate) id: String,
    /// The message is not delivered before this instant.
    pub(crate) due_at: Instant,
}

/// What an acknowledged send survives; each level includes the levels before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LevelWord {
    /// No promise.
    Memory,
    /// A crash of the server.
    Process,
    /// A power cut.
    Disk,
    /// The loss of a machine; refused if the log cannot replicate.
    Replicated,
}

impl From<Level> for LevelWord {
    fn from(level: Level) -> Self {
        match level {
            Level::Memory => Self::Memory,
            Level::Process => Self::Process,
            Level::Disk => Self::Disk,
            Level::Replicated => Self::Replicated,
        }
    }
}

impl From<LevelWord> for Level {
    fn from(word: LevelWord) -> Self {
        match word {
            LevelWord::Memory => Self::Memory,
            LevelWord::Process => Self::Process,
            LevelWord::Disk => Self::Disk,
            LevelWord::Replicated => Self::Replicated,
        }
    }
}
