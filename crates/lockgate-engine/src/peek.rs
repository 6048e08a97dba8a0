//! Peeks: reading messages without leasing them.

use lockgate_core::{Location, Sequence};
use lockgate_machine::{MessageStatus, Receive, StoredMessage};

use crate::inbox::GuardedPage;

/// A page of messages, see [`Engine::peek`](crate::Engine::peek).
#[derive(Clone, Debug, PartialEq)]
pub struct Peek {
    pub messages: Vec<Peeked>,
    /// The last message of the page, behind which the next page begins; `None` on the last page.
    pub next: Option<Sequence>,
}

impl Peek {
    /// A page ends with the message that takes its messages to so many bytes, as a receive's batch
    /// does: their payloads are in memory together.
    pub const BYTES_MAX: u64 = Receive::BYTES_MAX;
}

/// A message of a peek.
#[derive(Clone, Debug, PartialEq)]
pub struct Peeked {
    /// Its state.
    pub status: MessageStatus,
    /// The message; `None` if its payload is damaged, in which case a receive would drop it.
    pub stored: Option<StoredMessage>,
}

impl GuardedPage {
    /// Ends the page with the message that takes its messages to so many bytes.
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

    /// The locations of the payloads.
    pub(crate) fn places(&self) -> impl Iterator<Item = Location> {
        self.messages.iter().map(|status| status.location)
    }
}
