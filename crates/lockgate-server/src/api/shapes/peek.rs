//! Shapes of peeking at messages.

use lockgate_core::Millis;
use serde::{Deserialize, Serialize};

use super::{Content, Instant, Within};

/// Selects the messages to peek at.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListMessages {
    /// Only messages of this key; keyed queues only.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// Only messages of this group; unkeyed queues only.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Only messages in this state.
    #[serde(default)]
    pub(crate) state: Option<StateWord>,
    /// Whether to return bodies. Default yes.
    #[serde(default)]
    pub(crate) bodies: Option<bool>,
    /// The most messages of the page, 1 to 100. Default 10.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 100>>,
    /// The `next_page` of the previous page.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// Selects the dead letters to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDeadLetters {
    /// Only messages that came from this queue.
    #[serde(default)]
    pub(crate) source: Option<String>,
    /// Whether to return bodies. Default yes.
    #[serde(default)]
    pub(crate) bodies: Option<bool>,
    /// The most messages of the page, 1 to 100. Default 10.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 100>>,
    /// The `next_page` of the previous page.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of messages.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PeekedMessages {
    /// The messages.
    pub(crate) messages: Vec<PeekedMessage>,
    /// Pass it as `page` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// A message with its state.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PeekedMessage {
    /// Its id.
    pub(crate) id: String,
    /// Its state.
    pub(crate) state: StateWord,
    /// How many leases it had in this queue.
    pub(crate) attempts: u16,
    /// Bytes of its body and headers.
    pub(crate) bytes: u32,
    /// With `in_flight`: the holder of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// With `in_flight` and `backoff`: how much longer that lasts, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<Millis>,
    /// With `delayed`: when it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<Instant>,
    /// Whether its payload is damaged, so that a receive would drop the message; absent if it is
    /// not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) damaged: bool,
    /// The message itself.
    #[serde(flatten)]
    pub(crate) content: Content,
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateWord {
    /// It waits for a lease, possibly behind others of its key.
    Ready,
    /// It is leased.
    InFlight,
    /// It failed or was deferred, and waits for its next attempt.
    Backoff,
    /// It is not due yet.
    Delayed,
}
