//! What commands and queries about exchanges reply.

use std::sync::Arc;

use lockgate_core::{ExchangeId, ExchangeName, MessageId, QueueName, WallTime};

use crate::Sent;

use super::{BindTo, BindingOptions, ExchangeKind, ExchangeNotes, Unroutable, pattern::Pattern};

/// The answer to the creation of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedExchange {
    /// Whether the exchange existed before, with the same settings. Then nothing was changed.
    pub existed: bool,
    /// The exchange as it is now.
    pub description: ExchangeDescription,
}

/// An exchange of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeDescription {
    pub id: ExchangeId,
    pub name: ExchangeName,
    pub kind: ExchangeKind,
    pub unroutable: Unroutable,
    /// When it was made.
    pub created: WallTime,
    /// When a command last changed its rule for what it cannot route. The deletion of its alternate does not count.
    pub changed: WallTime,
    /// How many bindings it has.
    pub bindings: u64,
    pub counts: ExchangeCounts,
    pub notes: Arc<ExchangeNotes>,
}

/// What became of the messages that were published to an exchange, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCounts {
    /// Messages that were accepted.
    pub published: u64,
    /// Messages that queues got of them.
    pub copies: u64,
    /// Of the accepted ones, those for which the exchange found no queue: they went to its alternate, or were dropped.
    pub unroutable: u64,
    /// Of these, those that were dropped.
    pub dropped: u64,
    /// Queues that were left out because they were full and their binding says so.
    pub skipped: u64,
    /// Publishes that were refused because there was no queue. Since the last start.
    pub refused: u64,
}

impl ExchangeCounts {
    /// How many of them are stored.
    pub(crate) const STORED: usize = 5;

    /// Those that are stored, in an order that stays.
    pub(crate) fn stored(&self) -> [u64; Self::STORED] {
        [
            self.published,
            self.copies,
            self.unroutable,
            self.dropped,
            self.skipped,
        ]
    }

    pub(crate) fn of_stored(counts: [u64; Self::STORED]) -> Self {
        let [published, copies, unroutable, dropped, skipped] = counts;
        Self {
            published,
            copies,
            unroutable,
            dropped,
            skipped,
            refused: 0,
        }
    }

    /// Adds others, each up to `max`.
    pub(crate) fn add(&mut self, more: &Self, max: u64) {
        let mut counts = self.stored();
        for (count, more) in counts.iter_mut().zip(more.stored()) {
            *count = count.saturating_add(more).min(max);
        }
        *self = Self {
            refused: self.refused.saturating_add(more.refused).min(max),
            ..Self::of_stored(counts)
        };
    }
}

/// What a publish did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The id of what was published, which envelopes name. Each copy has an id of its own beside it.
    pub id: MessageId,
    /// How many messages were published to the exchange before, and this one.
    pub number: u64,
    /// Each queue that has the message now, in the order of its bindings.
    pub copies: Vec<Copied>,
    /// How many queues were left out, because they were full and their binding says so.
    pub skipped: u64,
    /// There was no queue, and the exchange drops such messages.
    pub dropped: bool,
}

/// A queue's copy of a message that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    pub queue: QueueName,
    pub sent: Sent,
}

/// A page of exchanges, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangesPage {
    pub exchanges: Vec<ExchangeDescription>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<ExchangeName>,
}

/// The answer to a bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The number of the binding in its exchange.
    pub binding: u32,
    /// Whether there was a binding of this pattern to this place.
    pub existed: bool,
    /// Whether anything was changed.
    pub changed: bool,
}

/// A binding of an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingDescription {
    /// Its number in the exchange: a later one is higher.
    pub number: u32,
    pub to: BindTo,
    pub pattern: Pattern,
    pub options: BindingOptions,
}

/// A page of bindings, in the order in which they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingsPage {
    /// May be fewer than asked for, or none, although there are more.
    pub bindings: Vec<BindingDescription>,
    /// Behind which one the next page begins; `None`: there is no more.
    pub next: Option<u32>,
}

/// Where a message would go, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteExplanation {
    /// The bindings whose pattern the message matches, in the order in which they are looked at.
    pub bindings: Vec<RouteStep>,
    /// How many further ones there are.
    pub more: u64,
    /// How many queues would get the message.
    pub queues: u64,
    /// Behind the exchange, its alternates that have to look because no queue was found, in order.
    pub alternates: Vec<ExchangeName>,
    /// No queue would get it, and this is what happens then.
    pub unroutable: Option<Unroutable>,
}

/// A binding whose pattern a message matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteStep {
    /// The exchange whose binding it is.
    pub exchange: Option<ExchangeName>,
    pub binding: BindingDescription,
    pub outcome: StepOutcome,
}

/// What becomes of a message at a binding whose pattern it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepOutcome {
    /// It goes on to where the binding leads.
    Routes,
    /// It went there before, by another binding.
    Again,
    /// The filter does not match: a sentence that says where and why.
    Filtered(String),
}
