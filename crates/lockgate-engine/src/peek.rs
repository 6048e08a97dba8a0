//! Peeks: messages that somebody looks at without taking them.

use lockgate_core::{Location, Sequence};
use lockgate_machine::{MessageStatus, Receive, StoredMessage};

use crate::inbox::GuardedPage;

/// A page of messages, see [`Engine::peek`](crate::Engine::peek).
#[derive(Clone, Debug, PartialEq)]
pub struct Peek {
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

impl GuardedPage {
    /// Ends the page with the message with which its messages have so many bytes.
    pub(crate) fn shorten(&mut self, bytes_max: u64) {
        let mut bytes = 0;
        let fits = self.messages.iter().take_while(|status| {
            let room = bytes < bytes_max;
            bytes += u64::from(status.size);
            room
        });
        let fits = fits.count();
        if fits < self.messages.len() {
            self.messages.truncate(fits);
            self.next = self.messages.last().map(|status| status.sequence);
        }
    }

    /// Where the payloads are.
    pub(crate) fn places(&self) -> impl Iterator<Item = Location> {
        self.messages.iter().map(|status| status.location)
    }
}
