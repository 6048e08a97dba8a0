//! Why a follower stops for good.

use lockgate_core::ledger::{Chain, ChainBreak, Event, LedgerHead, SequenceId};

/// Why a follower has halted: what it was told contradicts what it has. Nothing behind that was given to its handler. A person
/// finds out which of the two is right; a follower that starts anew from a good position goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Evidence {
    /// An event does not follow the one before it.
    #[error("an event does not follow event {}: {why}", last.sequence_id)]
    Follows {
        /// The last event that the follower has.
        last: Chain,
        /// What came behind it.
        event: Box<Event>,
        /// What does not hold.
        #[source]
        why: ChainBreak,
    },
    /// Two events have one place: the ledger has forked, or the position is one of another ledger.
    #[error("there are two events {}: one of epoch {}, and one of epoch {}", second.sequence_id, first.epoch.0, second.epoch.0)]
    TwoEvents {
        /// What came first.
        first: Chain,
        /// What came later, and is another one.
        second: Box<Event>,
    },
    /// A head contradicts the events.
    #[error("the ledger's head contradicts event {}: {why}", last.sequence_id)]
    Head {
        /// The event that the follower has.
        last: Chain,
        /// What it was told.
        head: LedgerHead,
        /// What does not hold.
        #[source]
        why: ChainBreak,
    },
    /// The ledger ends before what the follower has: it was restored from an old copy, or is another one.
    #[error("the ledger ends at event {head}, and the follower has event {}", last.sequence_id)]
    Ends {
        /// The last event that the follower has.
        last: Chain,
        /// Where the ledger ends.
        head: SequenceId,
    },
    /// An event came by the feed that the ledger does not have: the ledger was restored from an old copy, or somebody else has
    /// written into the feed.
    #[error("event {event} came by the feed, and the ledger ends at event {head}")]
    NotThere {
        /// The event.
        event: SequenceId,
        /// Where the ledger ends.
        head: SequenceId,
    },
    /// The next event is gone: the follower was away for longer than the ledger keeps events, and needs a snapshot.
    #[error("the ledger keeps events from {first} on, and the follower has those up to {}", last.sequence_id)]
    Trimmed {
        /// The last event that the follower has.
        last: Chain,
        /// The first one that is kept.
        first: SequenceId,
    },
}
