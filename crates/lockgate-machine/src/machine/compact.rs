//! Finds the places of messages' bytes in the log, and folds compaction.

use lockgate_core::{Level, Location, MessageId, Position, QueueId, Sequence};

use super::{Machine, draft::Draft, state::flag};
use crate::{
    Copies, LiveMessage, LiveRange, Payload, Reply, StoredMessage,
    live::{RECORD_OVERHEAD, live_bytes},
    table::hash_pair,
};

impl Machine {
    /// The ranges of the log with live messages, with the first position of each, in order. A range
    /// that is not listed holds nothing that is needed.
    ///
    /// Messages that were purged, or whose queue was deleted, count until
    /// [`housekeep`](Self::housekeep) has freed them.
    pub fn live_ranges(&self) -> impl Iterator<Item = (Position, LiveRange)> {
        self.live.iter()
    }

    /// The live contents of the range of that position.
    #[must_use]
    pub fn live_in(&self, position: Position) -> LiveRange {
        self.live.get(position)
    }

    /// All messages in the ranges whose first position satisfies `is_in`. Messages that were
    /// purged, or whose queue was deleted, are left out, whether [`housekeep`](Self::housekeep) has
    /// freed them or not. Walks all messages: not for a loop.
    pub fn messages_in(
        &self,
        is_in: impl Fn(Position) -> bool,
    ) -> impl Iterator<Item = LiveMessage> {
        let bits = self.limits.range_bits;
        self.messages.iter().filter_map(move |(_, message)| {
            let position = message.location().position;
            let range = position.range(bits).start;
            let key = &self.keys[message.key];
            let content = &self.contents[key.content];
            (!content.dead && is_in(range)).then(|| {
                let is_shared = message.has(flag::SHARED);
                let size = if is_shared { 0 } else { message.size };
                LiveMessage {
                    queue: content.queue_id,
                    sequence: message.sequence(),
                    range,
                    bytes_min: live_bytes(size, key.name.as_ref()) - RECORD_OVERHEAD,
                    shared: is_shared.then(|| (position, self.shared.bytes_at(position))),
                }
            })
        })
    }

    /// Where the bytes of a message of the queue are. `None`: the message is gone.
    #[must_use]
    pub fn location(&self, queue: QueueId, sequence: Sequence) -> Option<Location> {
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        Some(self.messages[index].location())
    }

    /// Whether the message with that id, in whichever queue it is now, has its bytes at `at`, so
    /// that a [`Compact`](crate::EngineCommand::Compact) from there has an effect. False if a
    /// different message, for example from another log, has the queue and number of the id.
    #[must_use]
    pub fn lives_at(&self, id: MessageId, at: Location) -> bool {
        self.message_with_id(id)
            .is_some_and(|(_, index)| self.messages[index].location() == at)
    }

    pub(super) fn decide_compact(
        &self,
        draft: &mut Draft,
        copies: &Copies,
        position: Position,
    ) -> Reply {
        let moved = copies.compacted(draft.effects.len(), |part, stored| {
            let at = Location { position, part };
            self.lives_at(stored.id, at)
                .then(|| self.present_place(stored.id))
        });
        for effect in moved {
            draft.add(effect, Level::Process.min(self.limits.log_level));
        }
        Reply::Done
    }

    /// The present queue and number of the message with that id. It may be gone.
    pub(super) fn present_place(&self, id: MessageId) -> (QueueId, Sequence) {
        let moved = self.by_moved_id.find(hash_id(id), |origin| {
            self.origins
                .get(origin)
                .is_some_and(|origin| origin.id == id)
        });
        let Some(origin) = moved else {
            return (id.queue(), id.sequence());
        };
        let message = &self.messages[self.origins[origin].message];
        let content = &self.contents[self.keys[message.key].content];
        (content.queue_id, message.sequence())
    }

    /// The message's bytes are in the record being folded. `stored` names it by its present queue
    /// and number; its id says which queue accepted it.
    pub(super) fn fold_compacted(&mut self, stored: &StoredMessage, part: u16) -> Option<()> {
        let queue = self.queue_index(stored.queue)?;
        let index = self.message_of(queue, stored.sequence)?;
        let position = self.folding_at;
        let mut message = self.messages[index].clone();
        self.count_dead(&message);
        message.compact(Location { position, part });
        message.set(flag::SHARED, stored.payload != Payload::Own);
        self.count_alive(&message, stored.payload);
        self.messages[index] = message;
        Some(())
    }
}

/// The hash by which a moved message's origin is found. Users do not choose ids, see [`hash_pair`].
pub(super) fn hash_id(id: MessageId) -> u64 {
    hash_pair(id.queue().0, id.sequence().0)
}
