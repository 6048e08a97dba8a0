//! Messages that somebody looks at.

use lockgate_core::Sequence;
use lockgate_machine::{MessageStatus, Receive, StoredMessage};

/// A page of messages, see [`Engine::peek`](crate::Engine::peek).
#[derive(Clone, Debug, PartialEq)]
pub struct Peek {
    /// The messages.
    pub messages: Vec<Peeked>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<Sequence>,
}

impl Peek {
    /// A page ends with the message with which its messages have so many bytes, as a batch of a receive
    /// does: their payloads are in memory together.
    pub const BYTES_MAX: u64 = Receive::BYTES_MAX;
}

/// A message that somebody looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Peeked {
    /// How it stands.
    pub status: MessageStatus,
    /// The message itself; `None` if its payload is damaged, which a receive would find and drop.
    pub stored: Option<StoredMessage>,
}
