//! Moving messages by command: how dead letters go back to where they came from.
//!
//! Each step is one record and moves a bounded number, in the order in which a receive would hand
//! them out, so that a task that empties a long queue neither stops others nor turns a key's order
//! round. It ends at the first message that has nowhere to go: that one stays where it is.

use std::collections::BTreeSet;

use lockgate_core::{Now, QueueId, QueueName};

use super::{Machine, draft::Draft, send::check_range, state::Queue};
use crate::{
    DeadLetterReason, Move, MoveTo, Moved, Rejection, Reply, SettingsError, Stuck, StuckReason,
    slab::NONE,
};

/// Where the messages go.
#[derive(Clone, Copy)]
enum Target<'a> {
    Queue(u32),
    /// `among`: only to these.
    Origins {
        among: Option<&'a BTreeSet<QueueName>>,
    },
}

impl Machine {
    pub(super) fn decide_move(
        &self,
        draft: &mut Draft,
        from: &QueueName,
        to: &MoveTo,
        max: u16,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let index = self.named_queue(from)?;
        check_range("max", u64::from(max), 1, u64::from(Move::MESSAGES_MAX))?;
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
        for message in self.movable(queue) {
            if moved == u64::from(max) {
                break;
            }
            if only.is_some() && self.source(message) != only {
                passed += 1;
                if passed == MoveTo::PASSED_MAX {
                    break;
                }
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
                    let sequence = self.messages[message].sequence();
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
        }))
    }

    /// The queue that was named, if the messages of `from` can live there.
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

    /// What may be moved of a queue, in the order in which it would be leased. Of a locked or parked
    /// key nothing may: it would pass what is in flight in front of it.
    fn movable<'a>(&'a self, queue: &'a Queue) -> impl Iterator<Item = u32> + 'a {
        let first = if queue.held_until.is_none() {
            self.contents[queue.content].ready_keys.first
        } else {
            // Until the lease bound has passed nobody knows what is still held.
            NONE
        };
        chain(first, |key| self.keys[key].links.after).flat_map(|key| {
            let state = &self.keys[key];
            [state.returned.first, state.order.first]
                .into_iter()
                .flat_map(|front| {
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

    /// Whose dead letter the message is.
    fn source(&self, message: u32) -> Option<QueueId> {
        let origin = self.origin(message)?;
        origin.reason.source(origin.queue)
    }

    /// Whose dead letter the message is once an operator has moved it to the queue `to`.
    ///
    /// A move elsewhere changes nothing. One that takes it home does: it is nobody's then, unless that
    /// home is a dead-letter queue itself. Then it is the dead letter of the queue it was sent to,
    /// which its id names, so that a chain of any length is gone back in steps, and no message
    /// carries its whole way along.
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
