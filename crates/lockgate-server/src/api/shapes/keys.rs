//! Keys, and why they do not move.

use lockgate_core::Millis;
use serde::{Deserialize, Serialize};

use super::Instant;

/// Which keys to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListKeys {
    /// Only parked ones. Default no.
    #[serde(default)]
    pub(crate) parked: bool,
    /// How many at most, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<u16>,
    /// The `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of keys.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Keys {
    /// In no order.
    pub(crate) keys: Vec<KeyExplanation>,
    /// What to give as `page` for the next page; not there on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// Why a key does, or does not, move.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KeyExplanation {
    /// Its queue.
    pub(crate) queue: String,
    /// The key.
    pub(crate) key: String,
    /// Messages in its order: waiting or in flight.
    pub(crate) messages: u64,
    /// Messages not yet due, which do not hold it up.
    pub(crate) delayed: u64,
    /// What its next message waits for.
    pub(crate) waits_for: WaitWord,
    /// The same in words, and what can be done about it.
    pub(crate) explanation: String,
    /// The number in the queue of the message that holds it up, or with `due` of the one that comes
    /// first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence: Option<u64>,
    /// With `lease`: who holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// With `lease`: which attempt it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u16>,
    /// How much longer it lasts, at most; not there where that depends on somebody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<Millis>,
    /// When it is over, by the server's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Instant>,
}

/// What a key's next message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitWord {
    /// Nothing: the next receive may have it.
    Nothing,
    /// The key has no message.
    NoMessage,
    /// None of the key's messages is due yet.
    Due,
    /// The queue has as many messages in flight as it may.
    InFlightFull,
    /// A message in front is in flight.
    Lease,
    /// A failed message in front waits for its next attempt.
    Backoff,
    /// The key is parked.
    Parked,
    /// The queue is paused.
    Paused,
    /// The message has not reached its durability level yet.
    Durability,
    /// Leases that a power cut made the server forget may still be held.
    LeaseBound,
}

/// How many messages were dropped.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct MessagesDropped {
    /// So many.
    pub(crate) messages: u64,
}
