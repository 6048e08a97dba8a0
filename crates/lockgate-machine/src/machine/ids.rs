//! Unique ids that are remembered for ever: in memory until they are in an index on disk.
//!
//! An id is in memory or in the index, and the index is complete up to the number `up_to` of [`IndexedIds`]. What it
//! says comes with a command, and holds if it was complete up to there when it was asked. docs/internals/unique-ids.md
//! explains all of it.

use std::{cmp::Reverse, collections::BTreeMap};

use lockgate_core::{LedgerId, Level, Now, QueueId, Sequence, ledger::SequenceId};

use super::{Machine, draft::Draft, exchanges::COPIES_MAX, send::Outgoing, state::Queue};
use crate::{
    Command, Effect, FindLookedUp, IdAnswer, IdSpace, IdsToIndex, Payload, Publish, Query,
    Rejection, Reply, SendMessage, Transact,
};

/// For which number an id stands that is not in memory, by what was looked up. The index must have been complete up to
/// `up_to` then, because later ids have been in memory since.
pub(super) fn in_index(
    answers: Option<&BTreeMap<(IdSpace, u128), IdAnswer>>,
    id: (IdSpace, u128),
    up_to: Sequence,
) -> Result<Option<Sequence>, Rejection> {
    if up_to == Sequence(0) {
        return Ok(None);
    }
    match answers.and_then(|answers| answers.get(&id)) {
        Some(answer) if answer.up_to >= up_to => Ok(answer.found),
        _ => Err(Rejection::LookUp { space: id.0 }),
    }
}

impl Machine {
    /// The message that brought an id which is not in memory, by what was looked up.
    pub(super) fn indexed_id(
        &self,
        draft: &Draft,
        queue: &Queue,
        digest: u128,
    ) -> Result<Option<Sequence>, Rejection> {
        let indexed = queue.indexed.unwrap_or_default();
        // A purge ahead of it in one batch has forgotten all ids, also those in memory that nobody has looked up.
        let Some(up_to) = indexed.asked_up_to() else {
            return Ok(None);
        };
        let id = (IdSpace::Queue(queue.id), digest);
        let found = in_index(draft.looked_up.as_deref(), id, up_to)?;
        Ok(found.filter(|&found| found > indexed.forgotten))
    }

    /// The unique ids of a command that have to be looked up in the index before it can be decided, each with its
    /// queue or ledger. None if the command is about no such id, or comes with answers that are new enough.
    #[must_use]
    pub fn ids_to_look_up(&self, command: &Command, now: Now) -> Vec<(IdSpace, u128)> {
        if !self.has_indexed_ids {
            return Vec::new();
        }
        let now = self.monotonic(now);
        let answers = match command {
            Command::LookedUp(looked) => Some(&*looked.answers),
            _ => None,
        };
        let (sends, publishes): (&[SendMessage], &[Publish]) = match command.plain() {
            Command::Publish(publish) => (&[], std::slice::from_ref(publish)),
            Command::Send(send) => (std::slice::from_ref(send), &[]),
            Command::Transact(Transact {
                sends, publishes, ..
            }) => (sends, publishes),
            Command::AppendEvents(append) => return self.event_ids_to_look_up(append, answers),
            _ => return Vec::new(),
        };
        let publishes = publishes.iter();
        let with_ids = publishes.filter(|publish| publish.message.unique_id.is_some());
        // Behind so many the command is refused.
        let copies: Vec<_> = with_ids
            .flat_map(|publish| {
                self.copies_of(publish)
                    .into_iter()
                    .map(move |copy| (publish, copy))
            })
            // And for each one the queue for overflow.
            .take(2 * usize::from(COPIES_MAX))
            .collect();
        let copies = copies
            .iter()
            .map(|(publish, copy)| copy.of(&publish.message, Payload::Own));
        let needed = sends
            .iter()
            .map(Outgoing::from)
            .chain(copies)
            .filter_map(|send| {
                let queue = &self.queues[*self.queue_names.get(send.queue)?];
                let up_to = queue.indexed?.asked_up_to()?;
                let digest = self.unique_digest(
                    &queue.settings,
                    &send,
                    send.key.or(send.group),
                    now.machine,
                );
                let digest = digest.ok()??;
                let id = (IdSpace::Queue(queue.id), digest);
                let known =
                    queue.dedup.get(digest).is_some() || in_index(answers, id, up_to).is_ok();
                (!known).then_some(id)
            });
        needed.collect()
    }

    /// The unique id of a query that has to be looked up before it can be answered.
    #[must_use]
    pub fn id_to_look_up(&self, query: &Query) -> Option<(IdSpace, u128)> {
        match query {
            Query::FindEvent(find) => self.event_id_to_look_up(find, None),
            Query::FindLookedUp(FindLookedUp { find, answers }) => {
                self.event_id_to_look_up(find, Some(answers))
            }
            _ => None,
        }
    }

    /// For each queue with more than `more_than` durable ids in memory that are remembered for ever, or half of what
    /// its `dedup_bytes_max` allows, its first ids; of all queues together at most `most`, of those with the most ids
    /// in memory first. The same of ledgers, at most `most` of all together; of each that has any, where they take half
    /// of `ledger_bytes_max`. Takes time in the number of queues, ledgers and ids.
    #[must_use]
    pub fn ids_to_index(&self, more_than: usize, most: usize) -> Vec<IdsToIndex> {
        let mut moves = self.event_ids_to_index(more_than, most);
        if self.ids_for_ever > 0 {
            moves.extend(self.message_ids_to_index(more_than, most));
        }
        moves
    }

    fn message_ids_to_index(
        &self,
        more_than: usize,
        most: usize,
    ) -> impl Iterator<Item = IdsToIndex> {
        let queues = self.queues.iter().map(|(_, queue)| queue);
        let queues = queues.filter(|queue| queue.settings.remembers_for_ever());
        let mut queues: Vec<_> = queues.collect();
        queues.sort_by_key(|queue| Reverse(queue.dedup.len()));
        let mut left = most;
        queues.into_iter().filter_map(move |queue| {
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
                    space: IdSpace::Queue(queue.id),
                    ids,
                    up_to,
                }
            })
        })
    }

    /// The queues and ledgers that may have unique ids in the index, each with the number up to which it must be
    /// complete, and the number of the next message or event.
    pub fn id_spaces(&self) -> impl Iterator<Item = (IdSpace, Sequence, Sequence)> {
        let queues = self.queues.iter().map(|(_, queue)| queue);
        let queues = queues.filter(|queue| queue.settings.remembers_for_ever());
        let queues = queues.map(|queue| {
            let indexed = queue.indexed.unwrap_or_default();
            let space = IdSpace::Queue(queue.id);
            (space, indexed.up_to, queue.next_sequence)
        });
        queues.chain(self.ledger_spaces())
    }

    /// Whether some unique ids are in the index alone, so that commands may have to look them up.
    #[must_use]
    pub fn has_indexed_ids(&self) -> bool {
        self.has_indexed_ids
    }

    /// Whether the machine cannot be without an index of unique ids.
    #[must_use]
    pub fn needs_index(&self) -> bool {
        self.id_spaces()
            .any(|(space, up_to, _)| up_to.0 > 0 || matches!(space, IdSpace::Queue(_)))
    }

    /// Whether the index may have a space of that number: that of a ledger, of a queue which remembers ids for ever, or
    /// of one that has been deleted. Numbers of queues and ledgers are given once.
    #[must_use]
    pub fn may_have_space(&self, space: u64) -> bool {
        let Ok(number) = u32::try_from(space) else {
            let of = |number| IdSpace::Ledger(LedgerId(number)).number();
            return (of(1)..=of(self.ledgers.made)).contains(&space);
        };
        let queue = self.queue_index(QueueId(number));
        (1..self.next_queue).contains(&number)
            && queue.is_none_or(|index| self.queues[index].settings.remembers_for_ever())
    }

    pub(super) fn decide_ids_indexed(
        &self,
        draft: &mut Draft,
        space: IdSpace,
        up_to: Sequence,
    ) -> Result<Reply, Rejection> {
        let queue = match space {
            IdSpace::Queue(queue) => queue,
            IdSpace::Ledger(ledger) => {
                self.decide_event_ids_indexed(draft, ledger, SequenceId(up_to.0));
                return Ok(Reply::Done);
            }
        };
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
        // Behind the last message only if the records of messages were lost: their numbers come again.
        let up_to = up_to.min(Sequence(queue.next_sequence.0.saturating_sub(1)));
        let indexed = queue.indexed.get_or_insert_default();
        indexed.up_to = indexed.up_to.max(up_to);
        self.has_indexed_ids = true;
        let forgotten = queue.dedup.forget_up_to(up_to) as u64;
        self.unique_ids -= forgotten;
        self.ids_for_ever = self.ids_for_ever.saturating_sub(forgotten);
        Some(())
    }
}
