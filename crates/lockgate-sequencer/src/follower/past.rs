//! What a follower remembers of events that it has given out.

use std::collections::VecDeque;

use lockgate_core::{
    Epoch, WallTime,
    ledger::{Chain, Event, SequenceId},
};

/// So many events are compared when they come again: 72 KB for each follower.
const EVENTS: usize = 1_000;

/// The last events, without a gap, the newest behind.
#[derive(Clone, Debug)]
pub(super) struct Past(VecDeque<Chain>);

impl Past {
    /// Of a follower that starts there, and knows of the event what its position says.
    pub(super) fn new(start: Chain) -> Self {
        Self(VecDeque::from([start]))
    }

    pub(super) fn push(&mut self, event: Chain) {
        if self.0.len() == EVENTS {
            self.0.pop_front();
        }
        self.0.push_back(event);
    }

    /// What is known of the event of that place.
    pub(super) fn at(&self, sequence_id: SequenceId) -> Option<&Chain> {
        let first = self.0.front()?.sequence_id.0;
        let at = usize::try_from(sequence_id.0.checked_sub(first)?).ok()?;
        self.0.get(at)
    }
}

/// Whether they cannot be one event. What is not known of either says nothing: a position may have no epoch and no time.
pub(super) fn differs(known: &Chain, event: &Event) -> bool {
    let hashes = known.hash.zip(event.hash);
    let is_hash_other = hashes.is_some_and(|(known, found)| known != found);
    let is_epoch_other = known.epoch != Epoch(0) && known.epoch != event.epoch;
    let is_time_other = known.time != WallTime(0) && known.time != event.time;
    is_hash_other || is_epoch_other || is_time_other
}

/// What is remembered of an event.
pub(super) fn chain_of(event: &Event) -> Chain {
    Chain {
        sequence_id: event.sequence_id,
        hash: event.hash,
        epoch: event.epoch,
        time: event.time,
    }
}
