//! Received messages. Dropping them gives their leases back, unless they are kept.

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

/// The messages of a receive, of one or more keys, in order; may be empty.
///
/// Dropping it gives all leases back without counting the attempts, as if the receive had not
/// happened. This serves callers that may be gone before they can pass the messages on.
/// [`keep`](Self::keep) keeps the leases.
pub struct ReceivedBatch {
    received: Vec<Received>,
    leases: Leases,
}

/// Leases that go back when dropped. They are guarded from the moment the answer to a receive
/// exists, so a caller that vanishes at any instant leaves no leases behind.
pub(crate) struct Leases {
    pub(crate) deliveries: Vec<Delivery>,
    inbox: Arc<Inbox>,
    /// Keeps the payloads' ranges until they are read.
    pub(crate) pin: Option<Pin>,
}

impl ReceivedBatch {
    /// Keeps the leases: they last until they are settled or run out.
    #[must_use]
    pub fn keep(mut self) -> Vec<Received> {
        std::mem::take(&mut self.received)
    }

    /// Keeps the first `len` messages in the batch. The leases of the others go back at once,
    /// without counting their attempts; for callers that have no room for all.
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

    /// An empty batch: all leases go back at once.
    pub(crate) fn none(leases: Leases) -> Self {
        Self::new(Vec::new(), leases)
    }

    /// The messages that were read. What `leases` still has could not be read: it goes back at once, and so before
    /// the messages of its keys in front of it.
    pub(crate) fn new(received: Vec<Received>, mut leases: Leases) -> Self {
        leases.give_back();
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
    /// The locations of the payloads.
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

/// The last message first: in the strict profile, the first one would take those behind it along, and each of them
/// would then be stale.
fn give_back(inbox: &Inbox, tokens: impl DoubleEndedIterator<Item = LeaseToken>) {
    inbox.notice(tokens.rev().map(Notice::GiveBack));
}
