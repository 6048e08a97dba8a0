//! Messages that somebody looks at.

use lockgate_core::Sequence;
use lockgate_machine::{MessageStatus, StoredMessage};

/// A page of messages, see [`Engine::peek`](crate::Engine::peek).
#[derive(Clone, Debug, PartialEq)]
pub struct Peek {
    /// The messages.
    pub messages: Vec<Peeked>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<Sequence>,
}

/// A message that somebody looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct Peeked {
    /// How it stands.
    pub status: MessageStatus,
    /// The message itself; `None` if its payload is damaged, which a receive would find and drop.
    pub stored: Option<StoredMessage>,
}
