//! Shapes of keys, and why a key waits.

use lockgate_core::Millis;
use serde::{Deserialize, Serialize};

use super::{Instant, Within};

/// Selects the keys to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListKeys {
    /// Only parked keys. Default no.
    #[serde(default)]
    pub(crate) parked: bool,
    /// The most entries of the page, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// The `next_page` of the previous page.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of keys.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Keys {
    /// In no order.
    pub(crate) keys: Vec<KeyExplanation>,
    /// Pass it as `page` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// Why the next message of a key waits, or that it does not.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KeyExplanation {
    /// Its queue.
    pub(crate) queue: String,
    /// The key.
    pub(crate) key: String,
    /// Messages of the key that wait or are in flight.
    pub(crate) messages: u64,
    /// Messages that are not due yet; they do not block the key.
    pub(crate) delayed: u64,
    /// What the key's next message waits for.
    pub(crate) waits_for: WaitWord,
    /// The same in words, with what can be done about it.
    pub(crate) explanation: String,
    /// The number in the queue of the message that blocks the key; with `due`, of the first message
    /// that becomes due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence: Option<u64>,
    /// With `lease`: the holder of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// With `lease`: the number of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u16>,
    /// How much longer the wait lasts, at most; absent if it depends on a client or an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<Millis>,
    /// When the wait ends, by the server's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Instant>,
}

/// What a key's next message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitWord {
    /// Nothing: the next receive may return it.
    Nothing,
    /// The key has no message.
    NoMessage,
    /// None of the key's messages is due yet.
    Due,
    /// The queue has reached its limit of messages in flight.
    InFlightFull,
    /// An earlier message is in flight.
    Lease,
    /// An earlier message failed and waits for its next attempt.
    Backoff,
    /// The key is parked.
    Parked,
    /// The queue is paused.
    Paused,
    /// The message has not reached its durability level yet.
    Durability,
    /// Leases that the server forgot in a power cut may still be held.
    LeaseBound,
}

/// The result of dropping messages.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct MessagesDropped {
    /// How many messages were dropped.
    pub(crate) messages: u64,
}
