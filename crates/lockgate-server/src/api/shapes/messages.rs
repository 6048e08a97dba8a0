//! Messages on their way in.

use lockgate_core::{Level, Millis};
use serde::{Deserialize, Serialize};

use super::{super::problem::Problem, Instant};
use crate::few::{Few, FewByName};

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
    /// The payload, as `body_encoding` says.
    pub(crate) body: String,
    /// How `body` is to be read. Default `text`.
    #[serde(default)]
    pub(crate) body_encoding: Encoding,
    /// Ordering key: a keyed queue needs one, an unkeyed one keeps no order and refuses it.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// Group that takes turns with others, without an order (SQS: a fair queue's MessageGroupId). For
    /// unkeyed queues only.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Id for deduplication. A second message with it, within the queue's window, is not added.
    #[serde(default)]
    pub(crate) unique_id: Option<String>,
    /// Not delivered before so much time has passed. Any length; default: as the queue says.
    #[serde(default)]
    pub(crate) delay_ms: Option<Millis>,
    /// Not delivered before this instant; instead of `delay_ms`.
    #[serde(default)]
    pub(crate) due_at: Option<Instant>,
    /// Dropped when it has waited so long. Default: the queue's retention alone.
    #[serde(default)]
    pub(crate) time_to_live_ms: Option<Millis>,
    /// Named values beside the body, up to 10 (SQS: message attributes).
    #[serde(default)]
    pub(crate) headers: FewByName<HeaderValue, 10>,
    /// Media type of the body.
    #[serde(default)]
    pub(crate) content_type: Option<String>,
    /// Trace context that travels with the message.
    #[serde(default)]
    pub(crate) trace_context: Option<String>,
    /// A durability above the queue's own.
    #[serde(default)]
    pub(crate) level: Option<LevelWord>,
}

/// A value beside a body.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct HeaderValue {
    /// What it is, as SQS has it: `String`, `Number` or `Binary`, and after a dot what you like.
    /// Default `String`.
    #[serde(rename = "type", default = "string")]
    pub(crate) kind: String,
    /// The value, as `encoding` says.
    pub(crate) value: String,
    /// How `value` is to be read. Default `text`.
    #[serde(default)]
    pub(crate) encoding: Encoding,
}

fn string() -> String {
    "String".to_owned()
}

/// How bytes stand in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encoding {
    /// As the text whose UTF-8 they are.
    #[default]
    Text,
    /// In base64, with padding.
    Base64,
}

/// What became of messages.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SendResults {
    /// One for each message, in order.
    pub(crate) results: Vec<SendResult>,
}

/// What became of a message.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum SendResult {
    /// It was accepted, now or before.
    Sent(SentMessage),
    /// It was not.
    Refused {
        /// Why.
        problem: Box<Problem>,
    },
}

/// A message that was accepted.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SentMessage {
    /// Its id.
    pub(crate) id: String,
    /// Its number in the queue.
    pub(crate) sequence: u64,
    /// Whether its unique id was known, so that nothing was added; id and number are the first
    /// message's.
    pub(crate) duplicate: bool,
}

/// When a message is to be delivered.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Reschedule {
    /// Not before this instant.
    #[serde(default)]
    pub(crate) due_at: Option<Instant>,
    /// Not before so much time has passed; instead of `due_at`. 0: at once.
    #[serde(default)]
    pub(crate) delay_ms: Option<Millis>,
}

/// When a message will be delivered.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Rescheduled {
    /// Its id.
    pub(crate) id: String,
    /// Not before this instant.
    pub(crate) due_at: Instant,
}

/// What an answered send survives; each survives everything the ones before it do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LevelWord {
    /// Nothing is promised.
    Memory,
    /// A crash of the server.
    Process,
    /// A power cut.
    Disk,
    /// The loss of a machine; refused where the log cannot do it.
    Replicated,
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
