//! Where in the log messages have their bytes, and moving these forward.

use lockgate_core::{Level, Location, MessageId, Position, QueueId, Sequence};

use super::{Machine, draft::Draft, state::Message};
use crate::{
    Effect, LiveMessage, LiveRange, Rejection, Reply, StoredMessage,
    live::{RECORD_OVERHEAD, live_bytes},
    table::hash_pair,
};

impl Machine {
    /// The ranges of the log in which messages have their bytes, each by its first position, in
    /// order of these. A range that is not named holds nothing that is needed.
    ///
    /// Messages that were purged, or whose queue was deleted, count until
    /// [`housekeep`](Self::housekeep) has freed them.
    pub fn live_ranges(&self) -> impl Iterator<Item = (Position, LiveRange)> {
        self.live.iter()
    }

    /// What lives in the range of that position.
    #[must_use]
    pub fn live_in(&self, position: Position) -> LiveRange {
        self.live.get(position)
    }

    /// All messages that have their bytes in a range that `is_in` names by its first position. Those that
    /// were purged, or whose queue was deleted, are none, whether [`housekeep`](Self::housekeep) has freed
    /// them or not. Walks everything: not for a loop.
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
            (!content.dead && is_in(range)).then(|| LiveMessage {
                queue: content.queue_id,
                sequence: message.sequence(),
                range,
                bytes_min: live_bytes(message.size, key.name.as_ref()) - RECORD_OVERHEAD,
            })
        })
    }

    /// Where the bytes of the queue's message of that number are. `None`: it is gone.
    #[must_use]
    pub fn location(&self, queue: QueueId, sequence: Sequence) -> Option<Location> {
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        Some(self.messages[index].location())
    }

    /// Whether the message with that id, wherever it was moved, has its bytes at `at`: whether a
    /// [`Compact`](crate::EngineCommand::Compact) from there would do anything. Not if another message, say of
    /// another log, has the id's queue and number.
    #[must_use]
    pub fn lives_at(&self, id: MessageId, at: Location) -> bool {
        self.message_with_id(id)
            .is_some_and(|(_, index)| self.messages[index].location() == at)
    }

    pub(super) fn decide_compact(
        &self,
        draft: &mut Draft,
        stored: &StoredMessage,
        from: Location,
    ) -> Result<Reply, Rejection> {
        if self.lives_at(stored.id, from) {
            let (queue, sequence) = self.present_place(stored.id);
            draft.add(
                Effect::Compacted(Box::new(StoredMessage {
                    queue,
                    sequence,
                    ..stored.clone()
                })),
                Level::Process.min(self.limits.log_level),
            );
        }
        Ok(Reply::Done)
    }

    /// Queue and number of the message with that id, which may be gone.
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

    /// The message's bytes stand in the record being folded. `stored` names it by the queue and
    /// number it has now; its id says where it was accepted.
    pub(super) fn fold_compacted(&mut self, stored: &StoredMessage, part: u16) -> Option<()> {
        let queue = self.queue_index(stored.queue)?;
        let index = self.message_of(queue, stored.sequence)?;
        let position = self.folding_at;
        let message = &mut self.messages[index];
        let before = message.location().position;
        message.compact(Location { position, part });
        let bytes = live_bytes(message.size, self.keys[message.key].name.as_ref());
        self.live.remove(before, bytes);
        self.live.add(position, bytes);
        Some(())
    }

    /// The message is gone, its key not yet.
    pub(super) fn count_dead(&mut self, message: &Message) {
        let bytes = live_bytes(message.size, self.keys[message.key].name.as_ref());
        self.live.remove(message.location().position, bytes);
    }
}

/// By what a moved message's origin is found. Ids are not chosen by users, see [`hash_pair`].
pub(super) fn hash_id(id: MessageId) -> u64 {
    hash_pair(id.queue().0, id.sequence().0)
}
