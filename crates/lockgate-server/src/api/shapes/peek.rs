//! Messages that somebody looks at.

use lockgate_core::Millis;
use serde::{Deserialize, Serialize};

use super::{Content, Instant};

/// Which messages to look at.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListMessages {
    /// Only of this key; of keyed queues.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// Only of this group; of unkeyed queues.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Only those in this state.
    #[serde(default)]
    pub(crate) state: Option<StateWord>,
    /// Whether bodies are wanted. Default yes.
    #[serde(default)]
    pub(crate) bodies: Option<bool>,
    /// How many at most, 1 to 100. Default 10.
    #[serde(default)]
    pub(crate) limit: Option<u16>,
    /// The `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// Which dead letters to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListDeadLetters {
    /// Only those that came from this queue.
    #[serde(default)]
    pub(crate) source: Option<String>,
    /// Whether bodies are wanted. Default yes.
    #[serde(default)]
    pub(crate) bodies: Option<bool>,
    /// How many at most, 1 to 100. Default 10.
    #[serde(default)]
    pub(crate) limit: Option<u16>,
    /// The `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of messages.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PeekedMessages {
    /// The messages.
    pub(crate) messages: Vec<PeekedMessage>,
    /// What to give as `page` for the next page; not there on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// A message that somebody looks at.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PeekedMessage {
    /// Its id.
    pub(crate) id: String,
    /// How it stands.
    pub(crate) state: StateWord,
    /// How many leases it had in this queue.
    pub(crate) attempts: u16,
    /// Bytes of its body and headers.
    pub(crate) bytes: u32,
    /// With `in_flight`: who holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// With `in_flight` and `backoff`: for how much longer, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<Millis>,
    /// With `delayed`: when it is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<Instant>,
    /// Whether its payload is damaged, so that a receive would drop it; not there where it is not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) damaged: bool,
    /// What it is.
    #[serde(flatten)]
    pub(crate) content: Content,
}

/// How a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StateWord {
    /// It waits for a lease, perhaps behind others of its key.
    Ready,
    /// Somebody holds it.
    InFlight,
    /// It failed or was deferred, and waits for its next attempt.
    Backoff,
    /// It is not yet due.
    Delayed,
}
