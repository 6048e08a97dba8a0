//! Unique ids that are remembered for ever: in memory until they are in an index on disk.
//!
//! An id is in memory or in the index, and the index is complete up to the number `up_to` of [`IndexedIds`]. What it
//! says comes with a command, and holds if it was complete up to there when it was asked. docs/internals/unique-ids.md
//! explains all of it.

use std::cmp::Reverse;

use lockgate_core::{Level, Now, QueueId, Sequence};

use super::{
    Machine,
    draft::Draft,
    state::{IndexedIds, Queue},
};
use crate::{Command, Effect, IdAnswer, IdsToIndex, Rejection, Reply, SendMessage, Transact};

impl Machine {
    /// The message that brought an id which is not in memory, by what was looked up.
    pub(super) fn indexed_id(
        &self,
        draft: &Draft,
        queue: &Queue,
        digest: u128,
    ) -> Result<Option<Sequence>, Rejection> {
        let IndexedIds { up_to, forgotten } = queue.indexed.unwrap_or_default();
        if up_to == Sequence(0) {
            return Ok(None);
        }
        let answers = draft.looked_up.as_deref();
        match answers.and_then(|answers| answers.get(&(queue.id, digest))) {
            Some(answer) if answer.up_to >= up_to => {
                Ok(answer.found.filter(|&found| found > forgotten))
            }
            _ => Err(Rejection::LookUp {
                queue: queue.name.clone(),
            }),
        }
    }

    /// The unique ids of a command that have to be looked up in the index before it can be decided, each with its
    /// queue. None if the command is about no such id, or comes with answers that are new enough.
    #[must_use]
    pub fn ids_to_look_up(&self, command: &Command, now: Now) -> Vec<(QueueId, u128)> {
        if !self.has_indexed_ids {
            return Vec::new();
        }
        let now = self.monotonic(now);
        let answers = match command {
            Command::LookedUp(looked) => Some(&*looked.answers),
            _ => None,
        };
        let sends: &[SendMessage] = match command.plain() {
            Command::Send(send) => std::slice::from_ref(send),
            Command::Transact(Transact { sends, .. }) => sends,
            _ => &[],
        };
        let needed = sends.iter().filter_map(|send| {
            let queue = &self.queues[*self.queue_names.get(&send.queue)?];
            let up_to = queue.indexed.map(|ids| ids.up_to)?;
            let key = send.message.key.as_ref().or(send.message.group.as_ref());
            let digest = self.unique_digest(&queue.settings, send, key, now.machine);
            let digest = digest.ok()??;
            let is_answered = |answer: &IdAnswer| answer.up_to >= up_to;
            let answered = answers.and_then(|answers| answers.get(&(queue.id, digest)));
            let known = up_to == Sequence(0)
                || answered.is_some_and(is_answered)
                || queue.dedup.get(digest).is_some();
            (!known).then_some((queue.id, digest))
        });
        needed.collect()
    }

    /// For each queue with more than `more_than` durable ids in memory that are remembered for ever, or half of what
    /// its `dedup_bytes_max` allows, its first ids; of all queues together at most `most`, of those with the most ids
    /// in memory first. Takes time in the number of queues and ids.
    #[must_use]
    pub fn ids_to_index(&self, more_than: usize, most: usize) -> Vec<IdsToIndex> {
        if self.ids_for_ever == 0 {
            return Vec::new();
        }
        let queues = self.queues.iter().map(|(_, queue)| queue);
        let queues = queues.filter(|queue| queue.settings.remembers_for_ever());
        let mut queues: Vec<_> = queues.collect();
        queues.sort_by_key(|queue| Reverse(queue.dedup.len()));
        let mut left = most;
        let ids = queues.into_iter().filter_map(|queue| {
            // A queue that may remember few in memory does not wait until it is full.
            let half = usize::try_from(queue.settings.dedup_bytes_max / 128).unwrap_or(usize::MAX);
            let more_than = more_than.min(half);
            if left == 0 || queue.dedup.len() <= more_than {
                return None;
            }
            let durable = queue
                .dedup
                .forever()
                .take_while(|(_, _, position)| self.unless_durable(*position).is_none());
            let ids: Vec<_> = durable
                .take(left)
                .map(|(id, number, _)| (id, number.0))
                .collect();
            let up_to = Sequence(ids.last()?.1);
            // The last queue of a round may move fewer.
            let is_enough = ids.len() > more_than || ids.len() == left;
            is_enough.then(|| {
                left -= ids.len();
                IdsToIndex {
                    queue: queue.id,
                    ids,
                    up_to,
                }
            })
        });
        ids.collect()
    }

    /// The queues of which the index must have the unique ids, each with the number up to which it must be complete,
    /// and the number of its next message.
    pub fn indexed_queues(&self) -> impl Iterator<Item = (QueueId, Sequence, Sequence)> {
        let queues = self.queues.iter().map(|(_, queue)| queue);
        let queues = queues.filter(|queue| queue.settings.remembers_for_ever());
        queues.map(|queue| {
            let indexed = queue.indexed.unwrap_or_default();
            (queue.id, indexed.up_to, queue.next_sequence)
        })
    }

    /// Whether the index may have a space of that number: that of a queue which remembers ids for ever, or has been
    /// deleted. Numbers of queues are given once.
    #[must_use]
    pub fn may_have_space(&self, space: u64) -> bool {
        let Ok(number) = u32::try_from(space) else {
            // That of no queue.
            return true;
        };
        let queue = self.queue_index(QueueId(number));
        (1..self.next_queue).contains(&number)
            && queue.is_none_or(|index| self.queues[index].settings.remembers_for_ever())
    }

    pub(super) fn decide_ids_indexed(
        &self,
        draft: &mut Draft,
        queue: QueueId,
        up_to: Sequence,
    ) -> Result<Reply, Rejection> {
        let queue = self.queue_index(queue).map(|index| &self.queues[index]);
        if let Some(queue) = queue
            && queue.settings.remembers_for_ever()
            && up_to > queue.indexed.unwrap_or_default().up_to
            && up_to < queue.next_sequence
        {
            let indexed = Effect::IdsIndexed {
                queue: queue.id,
                up_to,
            };
            draft.add(indexed, Level::Memory);
        }
        Ok(Reply::Done)
    }

    pub(super) fn fold_ids_indexed(&mut self, queue: QueueId, up_to: Sequence) -> Option<()> {
        let index = self.queue_index(queue)?;
        let queue = &mut self.queues[index];
        let indexed = queue.indexed.get_or_insert_default();
        indexed.up_to = indexed.up_to.max(up_to);
        self.has_indexed_ids = true;
        let forgotten = queue.dedup.forget_up_to(up_to) as u64;
        self.unique_ids -= forgotten;
        self.ids_for_ever = self.ids_for_ever.saturating_sub(forgotten);
        Some(())
    }
}
