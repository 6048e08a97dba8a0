//! Moves messages by command, for example dead letters back to the queues they came from.
//!
//! Each step is one record and moves a bounded number of messages, in the order in which a receive would
//! return them. So a task that empties a long queue neither stops other commands nor changes a key's order. A
//! step ends at the first message that has nowhere to go; that message stays where it is.

use std::collections::BTreeSet;

use lockgate_core::{Now, QueueId, QueueName, Sequence};

use super::{
    Machine,
    draft::Draft,
    send::check_range,
    state::{Place, Queue, flag},
};
use crate::{
    DeadLetterReason, Move, MoveCursor, MoveTo, Moved, Rejection, Reply, SettingsError, Stuck,
    StuckReason, slab::NONE,
};

/// The destination of the messages.
#[derive(Clone, Copy)]
enum Target<'a> {
    Queue(u32),
    /// `among`: only these queues.
    Origins {
        among: Option<&'a BTreeSet<QueueName>>,
    },
}

impl Machine {
    pub(super) fn decide_move(
        &self,
        draft: &mut Draft,
        command: &Move,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let Move {
            from,
            to,
            max,
            cursor,
        } = command;
        let index = self.named_queue(from)?;
        check_range("max", u64::from(*max), 1, u64::from(Move::MESSAGES_MAX))?;
        let queue = &self.queues[index];
        let mut only = None;
        let target = match to {
            MoveTo::Of { source, to } => {
                only = Some(self.queues[self.named_queue(source)?].id);
                let to = to.as_ref().unwrap_or(source);
                Target::Queue(self.move_target(index, to)?)
            }
            MoveTo::Queue(name) => Target::Queue(self.move_target(index, name)?),
            MoveTo::Origins => Target::Origins { among: None },
            MoveTo::OriginsAmong(names) => Target::Origins { among: Some(names) },
        };
        let mut moved = 0;
        let mut passed = 0;
        let mut stuck = None;
        // The last message that stays where it is.
        let begin = cursor.and_then(|cursor| self.message_of(index, cursor.after));
        let mut at = begin.map_or(Sequence(0), |begin| self.messages[begin].sequence());
        let below = cursor.map_or(queue.next_sequence, |cursor| cursor.below);
        let mut next = None;
        for message in self.movable(queue, begin) {
            if moved == u64::from(*max) || passed == Move::PASSED_MAX {
                next = Some(MoveCursor { after: at, below });
                break;
            }
            let sequence = self.messages[message].sequence();
            if sequence >= below || only.is_some() && self.source(message) != only {
                passed += 1;
                at = sequence;
                continue;
            }
            match self.destination(index, message, target) {
                Ok(to) => {
                    let level = queue.settings.level.max(self.queues[to].settings.level);
                    let reason = DeadLetterReason::Redriven {
                        source: self.source_after(message, self.queues[to].id),
                    };
                    self.move_away(draft, (index, message), to, reason, now, level)?;
                    moved += 1;
                }
                Err(reason) => {
                    let id = self.origin(message).map(|origin| origin.id);
                    stuck = Some(Stuck {
                        message: id.unwrap_or_else(|| queue.id_of(sequence)),
                        reason,
                    });
                    break;
                }
            }
        }
        let ready = self.contents[queue.content].counts.ready;
        Ok(Reply::Moved(Moved {
            moved,
            left: ready.saturating_sub(moved),
            stuck,
            next,
        }))
    }

    /// The destination queue, if it can hold the messages of `from`.
    fn move_target(&self, from: u32, name: &QueueName) -> Result<u32, Rejection> {
        let to = self.named_queue(name)?;
        let from = &self.queues[from];
        let refused = |source| Rejection::Settings {
            queue: from.name.clone(),
            source,
        };
        if self.queues[to].id == from.id {
            return Err(refused(SettingsError::OwnDeadLetter));
        }
        if self.queues[to].settings.keyed != from.settings.keyed {
            let queue = name.clone();
            return Err(refused(SettingsError::DeadLetterKind { queue }));
        }
        Ok(to)
    }

    /// What may be moved of a queue, in the order in which it would be leased, behind the message `after` if that
    /// may still be moved itself. Of a locked or parked key nothing may: it would pass what is in flight in front
    /// of it. A limit holds no moves.
    fn movable<'a>(
        &'a self,
        queue: &'a Queue,
        after: Option<u32>,
    ) -> impl Iterator<Item = u32> + 'a {
        let content = &self.contents[queue.content];
        let after = after.filter(|&message| {
            let message = &self.messages[message];
            message.is_leasable() && self.keys[message.key].place != Place::Out
        });
        let first = after.map_or(NONE, |message| self.messages[message].key);
        let (ready, limited) = (content.ready_keys.first, content.limited_keys.first);
        let lists = match self.keys.get(first).map(|key| key.place) {
            // Until the lease bound has passed, it is unknown which messages are still held.
            _ if queue.held_until.is_some() => [NONE, NONE],
            None => [ready, limited],
            Some(Place::Limited) => [NONE, first],
            Some(_) => [first, limited],
        };
        // In a keyed queue a message in front of it may be in flight by now: then its key is looked at from its
        // front on.
        let after = after.filter(|_| !content.keyed || content.counts.in_flight == 0);
        let behind = move |key: u32| {
            let message = &self.messages[after.filter(|_| key == first)?];
            Some((message.order.after, message.has(flag::RETURNED)))
        };
        let keys = lists.into_iter();
        let keys = keys.flat_map(|first| chain(first, |key| self.keys[key].links.after));
        keys.flat_map(move |key| {
            let state = &self.keys[key];
            let fronts = match behind(key) {
                Some((rest, true)) => [rest, state.order.first],
                Some((rest, false)) => [NONE, rest],
                None => [state.returned.first, state.order.first],
            };
            fronts.into_iter().flat_map(|front| {
                chain(front, |message| self.messages[message].order.after)
                    .take_while(|&message| self.messages[message].is_leasable())
            })
        })
    }

    fn destination(&self, from: u32, message: u32, target: Target<'_>) -> Result<u32, StuckReason> {
        let among = match target {
            Target::Queue(to) => return Ok(to),
            Target::Origins { among } => among,
        };
        let source = self.source(message).ok_or(StuckReason::NoOrigin)?;
        let to = self
            .queue_index(source)
            .filter(|&to| to != from)
            .filter(|&to| self.queues[to].settings.keyed == self.queues[from].settings.keyed)
            .ok_or(StuckReason::OriginGone)?;
        if among.is_some_and(|names| !names.contains(&self.queues[to].name)) {
            return Err(StuckReason::OriginNotAllowed);
        }
        Ok(to)
    }

    /// The queue whose dead letter the message is.
    fn source(&self, message: u32) -> Option<QueueId> {
        let origin = self.origin(message)?;
        origin.reason.source(origin.queue)
    }

    /// The queue whose dead letter the message is after an operator has moved it to the queue `to`.
    ///
    /// A move to another queue than its source changes nothing. After a move to its source, it is
    /// no dead letter, unless that source is a dead-letter queue itself. Then it is the dead letter
    /// of the queue that accepted it, which its id names. So messages can go back through a chain
    /// of any length in steps, without storing their whole way.
    fn source_after(&self, message: u32, to: QueueId) -> Option<QueueId> {
        let origin = self.origin(message)?;
        let source = origin.reason.source(origin.queue)?;
        if source != to {
            return Some(source);
        }
        Some(origin.id.queue()).filter(|&first| first != to)
    }
}

/// The elements of a list from `first` on.
fn chain(first: u32, after: impl Fn(u32) -> u32) -> impl Iterator<Item = u32> {
    let some = |index: u32| (index != NONE).then_some(index);
    std::iter::successors(some(first), move |&index| some(after(index)))
}
