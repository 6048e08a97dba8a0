//! The message that a producer sends.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Key, Level, Millis, Produced, UniqueId, WallTime};

/// A message as its producer sends it. Only the body is required, and it may be empty.
///
/// A record on disk has room for all fields from the first format on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The payload: any bytes. The queue limits its size, together with the headers' (1 MiB by
    /// default).
    pub body: Bytes,
    /// Named values that travel with the body, in the order given.
    pub headers: Vec<Header>,
    /// The ordering key. Messages with the same key keep their order and have one holder at a time.
    /// A keyed queue requires a key; an unkeyed queue keeps no order and refuses it.
    pub key: Option<Key>,
    /// The group, which takes turns with other groups, without an order or a lock (SQS: a fair
    /// queue's MessageGroupId). Only unkeyed queues accept it. Once a message is accepted, its
    /// group stands in `key`, as it does on disk: the queue says which of the two it is.
    pub group: Option<Key>,
    /// The producer's id for this message. Within the queue's window a second send with the same id
    /// adds nothing.
    pub unique_id: Option<UniqueId>,
    /// The due time: the message is not delivered before it. `None`: it is due at once, or after
    /// the queue's delay.
    pub due: Option<WallTime>,
    /// How long the message may wait, in milliseconds; then it is dropped as `expired`. `None`:
    /// only the queue's retention counts.
    pub time_to_live: Option<Millis>,
    /// The media type of the body, for its consumer.
    pub content_type: Option<Arc<str>>,
    /// The W3C trace context, or what the client uses in its place.
    pub trace_context: Option<Arc<str>>,
    /// A level above the queue's own. A lower one is refused. `None`: the queue's level.
    pub level: Option<Level>,
    /// How urgent it is, 0 (as most are) to [`PRIORITY_MAX`]. It does not change the order in which a queue gives
    /// messages; a worker runs the highest first of the messages without a key that it holds.
    pub priority: u8,
    /// Which record of a producer it is. The queue accepts the record once, whenever it comes again. A received message
    /// does not have it.
    pub producer: Option<Box<Produced>>,
}

/// The highest priority: of a message, and of a worker's source.
pub const PRIORITY_MAX: u8 = 9;

/// A named, typed value that travels with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The name of the header.
    pub name: Arc<str>,
    /// The type of the value, in the words of the protocol that brought it (SQS: `String`,
    /// `Number.int`, `Binary`, ...).
    pub kind: Arc<str>,
    /// The value of the header: any bytes.
    pub value: Bytes,
}

/// A part of a message that is longer than the format allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} has {len} bytes, the limit is {max}")]
pub struct SizeError {
    /// The part that is too long.
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

    /// The same message with a priority, 0 to [`PRIORITY_MAX`].
    #[must_use]
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// The same message as a record of a producer.
    #[must_use]
    pub fn with_producer(mut self, produced: Produced) -> Self {
        self.producer = Some(Box::new(produced));
        self
    }

    /// Returns how many bytes count towards size limits and quotas: the body, and the headers'
    /// names, kinds and values, as SQS counts them.
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
