//! Received messages. Until somebody takes them over, dropping them gives their leases back.

use std::{fmt, ops::Deref, sync::Arc};

use lockgate_core::{LeaseToken, Location};
use lockgate_machine::{Delivery, StoredMessage};

use crate::{
    inbox::{Inbox, Notice},
    maintenance::Pin,
};

/// A leased message with its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    pub delivery: Delivery,
    pub stored: StoredMessage,
}

/// What a receive got: messages of one or more keys, in order; may be none.
///
/// Dropping it gives all leases back without the attempts counting, as if the receive had never
/// been: for callers that may be gone before they can hand the messages on. [`keep`](Self::keep)
/// takes them over.
pub struct ReceivedBatch {
    received: Vec<Received>,
    leases: Leases,
}

/// Leases that go back when dropped. Travels with the answer to a receive from the moment the answer
/// exists, so that there is no instant at which a caller can vanish and leave leases behind.
pub(crate) struct Leases {
    pub(crate) deliveries: Vec<Delivery>,
    inbox: Arc<Inbox>,
    /// Keeps the payloads where the deliveries say, until they are read.
    pub(crate) pin: Option<Pin>,
}

impl ReceivedBatch {
    /// Takes the leases over: they last until they are settled or run out.
    #[must_use]
    pub fn keep(mut self) -> Vec<Received> {
        std::mem::take(&mut self.received)
    }

    /// Keeps the first `len` messages. The leases of the others go back at once, without their
    /// attempts counting: for callers that have no room for all.
    pub fn truncate(&mut self, len: usize) {
        let rest = self.received.split_off(len.min(self.received.len()));
        if !rest.is_empty() {
            let tokens = rest.iter().map(|received| received.delivery.token);
            give_back(&self.leases.inbox, tokens);
        }
    }

    /// Gives all leases back at once.
    pub(crate) fn give_back(mut self) -> Self {
        self.truncate(0);
        self
    }

    /// Nothing: all leases go back at once.
    pub(crate) fn none(mut leases: Leases) -> Self {
        leases.give_back();
        Self::new(Vec::new(), leases)
    }

    /// Joins payloads to `leases`: those that `stored` has no message for go back at once.
    pub(crate) fn new(received: Vec<Received>, leases: Leases) -> Self {
        Self { received, leases }
    }
}

impl Deref for ReceivedBatch {
    type Target = [Received];

    fn deref(&self) -> &[Received] {
        &self.received
    }
}

impl Drop for ReceivedBatch {
    fn drop(&mut self) {
        let tokens = self.received.iter().map(|received| received.delivery.token);
        give_back(&self.leases.inbox, tokens);
    }
}

impl fmt::Debug for ReceivedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.received).finish()
    }
}

impl Leases {
    pub(crate) fn new(deliveries: Vec<Delivery>, inbox: Arc<Inbox>, pin: Option<Pin>) -> Self {
        Self {
            deliveries,
            inbox,
            pin,
        }
    }
}

impl Leases {
    /// Where the payloads are.
    pub(crate) fn places(&self) -> impl Iterator<Item = Location> {
        self.deliveries.iter().map(|delivery| delivery.location)
    }

    fn give_back(&mut self) {
        self.pin = None;
        let deliveries = self.deliveries.drain(..);
        give_back(&self.inbox, deliveries.map(|delivery| delivery.token));
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.deliveries).finish()
    }
}

/// Last message first, so that each is the last of its key's batch when it goes back.
fn give_back(inbox: &Inbox, tokens: impl DoubleEndedIterator<Item = LeaseToken>) {
    inbox.notice(tokens.rev().map(Notice::GiveBack));
}
