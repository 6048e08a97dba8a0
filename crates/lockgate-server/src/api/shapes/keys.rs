//! Shapes of keys, and why a key waits.

use lockgate_core::{Millis, limits::Limit};
use lockgate_machine as machine;
use serde::{Deserialize, Serialize};

use super::{Encoding, Instant, Within};

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
    /// The key, or the group of an unkeyed queue; absent for the messages without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// Messages of the key that wait or are in flight.
    pub(crate) messages: u64,
    /// Messages that are not due yet; they do not block the key.
    pub(crate) delayed: u64,
    /// What the key's next message waits for.
    pub(crate) waits_for: WaitWord,
    /// The same in words, with what can be done about it.
    pub(crate) explanation: String,
    /// Until when somebody holds the key or its queue, if somebody does, whatever else its next message waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held_until: Option<Instant>,
    /// The state of the key, without its value, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<KeyStateStatus>,
    /// The number in the queue of the message that blocks the key; with `due`, of the first message
    /// that becomes due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence: Option<u64>,
    /// With `lease`: the holder of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// With `limit`: which one. Of several, the one that lets go last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<LimitWord>,
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
    /// All messages of the group that are due are in flight or wait for their next attempt; they block no other.
    InFlight,
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
    /// A limit of the key or of the queue as a whole.
    Limit,
    /// The limits of the queue have changed, and the server looks at each key again.
    LimitsChange,
}

/// A limit on how often messages are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitWord {
    /// Somebody said until when.
    Held,
    /// The setting `limit_concurrency`.
    Concurrency,
    /// The setting `limit_gap`.
    Gap,
    /// The setting `limit_rate`.
    Rate,
    /// As many keys of the shard owe something under a rate or a gap as may: one that owes nothing waits until others
    /// have paid.
    OwingKeys,
}

impl From<Limit> for LimitWord {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Held => Self::Held,
            Limit::Concurrency => Self::Concurrency,
            Limit::Gap => Self::Gap,
            // No setting of a queue is a window.
            Limit::Rate | Limit::Window => Self::Rate,
            Limit::OwingKeys => Self::OwingKeys,
        }
    }
}

/// For how long to hold a queue or a key.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Hold {
    /// From now on, up to 366 days. 0: a hold ends now.
    pub(crate) time_ms: Within<0, { machine::Hold::TIME_MAX }>,
}

/// For how long a queue or a key is held.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Held {
    /// How much longer, which is longer than asked for if it was held for longer already; absent: not any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<Millis>,
    /// Until when, by the server's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Instant>,
}

/// The result of dropping messages.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct MessagesDropped {
    /// How many messages were dropped.
    pub(crate) messages: u64,
}

/// The state of a key, without its value.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KeyStateStatus {
    /// The number of the value: the next one with each write. No version of a key comes twice.
    pub(crate) version: u64,
    /// Bytes of the value.
    pub(crate) bytes: u64,
    /// When the value was written.
    pub(crate) written_at: Instant,
}

/// Selects the states of keys to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListKeyStates {
    /// Only keys that start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// The most entries of the page, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, 1000>>,
    /// The `next_page` of the previous page.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A page of the states of keys.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KeyStates {
    /// In the order of the keys.
    pub(crate) states: Vec<StateOfKey>,
    /// Pass it as `page` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// A key and its state, without the value.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StateOfKey {
    /// The key.
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) state: KeyStateStatus,
}

/// The state of a key.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KeyState {
    /// The value, in the encoding that `value_encoding` names.
    pub(crate) value: String,
    /// The encoding of `value`: `text` if it is UTF-8.
    pub(crate) value_encoding: Encoding,
    /// The number of the value: the next one with each write. No version of a key comes twice.
    pub(crate) version: u64,
    /// When the value was written.
    pub(crate) written_at: Instant,
}

/// What becomes of the state of a message's key.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct NewState {
    /// The new value, in the encoding that `value_encoding` names; up to 256 KiB. Required unless `drop` is true.
    #[serde(default)]
    pub(crate) value: Option<String>,
    /// The encoding of `value`. Default `text`.
    #[serde(default)]
    pub(crate) value_encoding: Encoding,
    /// Whether the key has no state any more. Default: no.
    #[serde(default)]
    pub(crate) drop: bool,
    /// The version that it replaces: that of the lease, or of the last write since. Default: there must be none.
    #[serde(default)]
    pub(crate) replaces: Option<u64>,
}

/// A value to write as the state of a key.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct PutKeyState {
    /// The value, in the encoding that `value_encoding` names; up to 256 KiB.
    pub(crate) value: String,
    /// The encoding of `value`. Default `text`.
    #[serde(default)]
    pub(crate) value_encoding: Encoding,
    /// The version that it replaces. Default: the key must have no state, unless `any` is true.
    #[serde(default)]
    pub(crate) replaces: Option<u64>,
    /// Whether it replaces whatever is there. Default: no.
    #[serde(default)]
    pub(crate) any: bool,
}

/// What a write of the state of a key did.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct KeyStateWritten {
    /// The new version.
    pub(crate) version: u64,
}

/// Which state of a key to drop: one of the two is required.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DropKeyState {
    /// The version that it must have.
    #[serde(default)]
    pub(crate) replaces: Option<u64>,
    /// Whether to drop whatever is there, if anything is. Default: no.
    #[serde(default)]
    pub(crate) any: bool,
}
