//! A message as its producer gives it.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Key, Level, Millis, UniqueId, WallTime};

/// What a producer hands over. Every field but the body is optional.
///
/// A record on disk has all of these from the first format on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The payload.
    pub body: Bytes,
    /// Named values that travel with the payload, in the order given.
    pub headers: Vec<Header>,
    /// Ordering key: same key, same order, one holder at a time. For keyed queues, which need one; an
    /// unkeyed queue keeps no order and refuses it.
    pub key: Option<Key>,
    /// Group that takes turns with others, without an order or a lock (SQS: a fair queue's
    /// MessageGroupId). For unkeyed queues; a keyed queue refuses it. Once accepted it stands in `key`,
    /// as it does on disk: what it is, is said by the queue.
    pub group: Option<Key>,
    /// Producer-chosen id for deduplication within the queue's window.
    pub unique_id: Option<UniqueId>,
    /// Where the message stands in its producer's own sequence, for a replay after an outage longer
    /// than any window.
    pub producer: Option<ProducerMark>,
    /// Not delivered before this instant. `None`: as soon as accepted, or after the queue's delay.
    pub due: Option<WallTime>,
    /// Dropped as `expired` when it has waited this long. `None`: the queue's retention alone.
    pub time_to_live: Option<Millis>,
    /// 0 to 255, higher first, for queues that serve by priority; kept and handed on by all others.
    pub priority: u8,
    /// Media type of the body.
    pub content_type: Option<Arc<str>>,
    /// W3C trace context, or what the client calls it.
    pub trace_context: Option<Arc<str>>,
    /// A durability above the queue's own. A lower one is refused.
    pub level: Option<Level>,
}

/// A named, typed value beside the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its name.
    pub name: Arc<str>,
    /// What the value is, in the words of the protocol it came by (SQS: `String`, `Number.int`,
    /// `Binary`, ...).
    pub kind: Arc<str>,
    /// The value.
    pub value: Bytes,
}

/// A message's place in its producer's own sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProducerMark {
    /// The producer's name, stable over its restarts.
    pub producer: Arc<str>,
    /// One of the producer's independent sequences.
    pub lane: u32,
    /// The number in that lane, rising.
    pub number: u64,
}

/// A part of a message that is longer than the format allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} has {len} bytes, the limit is {max}")]
pub struct SizeError {
    /// Which part.
    pub what: &'static str,
    /// Its length in bytes.
    pub len: usize,
    /// The limit in bytes.
    pub max: usize,
}

impl Message {
    /// A message with this body and nothing else.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// The same message with an ordering key, for a keyed queue.
    #[must_use]
    pub fn with_key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// The same message with a group, for an unkeyed queue.
    #[must_use]
    pub fn with_group(mut self, group: Key) -> Self {
        self.group = Some(group);
        self
    }

    /// The same message with a unique id.
    #[must_use]
    pub fn with_unique_id(mut self, id: UniqueId) -> Self {
        self.unique_id = Some(id);
        self
    }

    /// The same message, not delivered before `due`.
    #[must_use]
    pub fn with_due(mut self, due: WallTime) -> Self {
        self.due = Some(due);
        self
    }

    /// Bytes that count towards size limits and quotas: the body and the headers' names, kinds and
    /// values (as SQS counts them).
    #[must_use]
    pub fn size(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|header| header.name.len() + header.kind.len() + header.value.len())
            .sum();
        self.body.len() + headers
    }
}
