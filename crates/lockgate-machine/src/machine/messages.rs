//! Moves, drops, cancels and reschedules single messages.

use lockgate_core::{Level, MessageId, Millis, Now, QueueId, QueueName, Sequence, WallTime};

use super::{
    Machine,
    compact::hash_id,
    draft::Draft,
    send::check_range,
    state::{Message, OriginEntry, State, TimeToLive, Timer, U48, flag},
};
use crate::{
    DeadLetterReason, DropReason, Effect, Origin, Payload, QueueTotals, Rejection, Reply,
    effect::KeyText, slab::NONE, table::hash_pair,
};

impl Machine {
    /// The number of the queue's next message.
    pub(super) fn next_sequence(&self, draft: &Draft, queue: u32) -> Result<Sequence, Rejection> {
        let next = self.queues[queue].next_sequence.0 + draft.delta(queue).sequences;
        if next > Sequence::MAX.0 {
            return Err(Rejection::ShardFull {
                what: "sequence numbers in a queue",
                max: Sequence::MAX.0,
            });
        }
        Ok(Sequence(next))
    }

    /// Moves a message to the end of its key's order in another queue, without deduplication or quota,
    /// because it was accepted once and must not be lost. Refused if that queue has no number left.
    pub(super) fn move_away(
        &self,
        draft: &mut Draft,
        (queue, index): (u32, u32),
        to: u32,
        reason: DeadLetterReason,
        now: Now,
        level: Level,
    ) -> Result<(), Rejection> {
        let to_sequence = self.next_sequence(draft, to)?;
        draft.add(
            Effect::Moved {
                from: self.queues[queue].id,
                sequence: self.messages[index].sequence(),
                to: self.queues[to].id,
                to_sequence,
                reason,
                at: now.wall,
            },
            level,
        );
        self.draft_leaving(draft, queue, index);
        let delta = draft.delta_mut(to);
        delta.sequences += 1;
        delta.messages += 1;
        delta.bytes += i64::from(self.messages[index].size);
        Ok(())
    }

    pub(super) fn draft_drop(
        &self,
        draft: &mut Draft,
        (queue, index): (u32, u32),
        reason: DropReason,
        level: Level,
    ) {
        draft.add(
            Effect::Dropped {
                queue: self.queues[queue].id,
                sequence: self.messages[index].sequence(),
                reason,
            },
            level,
        );
        self.draft_leaving(draft, queue, index);
    }

    /// Notes, for later parts of the same command, that the queue has one message less.
    pub(super) fn draft_leaving(&self, draft: &mut Draft, queue: u32, index: u32) {
        let delta = draft.delta_mut(queue);
        delta.messages -= 1;
        delta.bytes -= i64::from(self.messages[index].size);
    }

    pub(super) fn decide_cancel(
        &self,
        draft: &mut Draft,
        queue: &QueueName,
        message: MessageId,
    ) -> Result<Reply, Rejection> {
        let (queue, index) = self.waiting_message(queue, message)?;
        let level = self.queues[queue].settings.level;
        self.draft_drop(draft, (queue, index), DropReason::Cancelled, level);
        Ok(Reply::Done)
    }

    pub(super) fn decide_reschedule(
        &self,
        draft: &mut Draft,
        queue: &QueueName,
        message: MessageId,
        due: WallTime,
        now: Now,
    ) -> Result<Reply, Rejection> {
        check_range("due time", due.0, 0, U48::MAX)?;
        let (queue, index) = self.waiting_message(queue, message)?;
        let queue = &self.queues[queue];
        draft.add(
            Effect::Rescheduled {
                queue: queue.id,
                sequence: self.messages[index].sequence(),
                // It counts as accepted when it is due, and that cannot be in the past.
                due: due.max(now.wall),
            },
            queue.settings.level,
        );
        Ok(Reply::Done)
    }

    /// The message with that id that was sent to the queue and is not leased.
    fn waiting_message(
        &self,
        name: &QueueName,
        message: MessageId,
    ) -> Result<(u32, u32), Rejection> {
        let (queue, index) = self.present_message(name, message)?;
        if self.messages[index].state == State::Leased {
            return Err(Rejection::MessageInFlight {
                queue: name.clone(),
                message,
            });
        }
        Ok((queue, index))
    }

    /// The message with that id and its queue, if it is in the named one.
    pub(super) fn present_message(
        &self,
        name: &QueueName,
        message: MessageId,
    ) -> Result<(u32, u32), Rejection> {
        let queue = self.named_queue(name)?;
        self.message_with_id(message)
            .filter(|&(present, _)| present == queue)
            .ok_or_else(|| Rejection::MessageNotFound {
                queue: name.clone(),
                message,
            })
    }

    /// The message with that id, and its queue.
    pub(super) fn message_with_id(&self, id: MessageId) -> Option<(u32, u32)> {
        let (queue, sequence) = self.present_place(id);
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        self.is_message(queue, index, id).then_some((queue, index))
    }

    /// Whether the message has that id.
    pub(super) fn is_message(&self, queue: u32, index: u32, id: MessageId) -> bool {
        // A moved message has a number of its present queue, and the id from the queue that accepted it.
        match self.origin(index) {
            Some(origin) => origin.id == id,
            None => self.queues[queue].id_of(self.messages[index].sequence()) == id,
        }
    }

    pub(super) fn decide_damaged(
        &self,
        draft: &mut Draft,
        queue: QueueId,
        sequence: Sequence,
    ) -> Result<Reply, Rejection> {
        let found = self
            .queue_index(queue)
            .and_then(|queue| Some((queue, self.message_of(queue, sequence)?)));
        let messages = match found {
            Some((queue, index)) => {
                let level = self.queues[queue].settings.level;
                self.draft_drop(draft, (queue, index), DropReason::Damaged, level);
                1
            }
            None => 0,
        };
        Ok(Reply::Dropped(messages))
    }

    pub(super) fn fold_moved(
        &mut self,
        from: QueueId,
        sequence: Sequence,
        to: QueueId,
        to_sequence: Sequence,
        reason: &DeadLetterReason,
        at: WallTime,
    ) -> Option<()> {
        let from_index = self.queue_index(from)?;
        let index = self.message_of(from_index, sequence)?;
        // Not found after records were lost: then the message stays where it is.
        let to_index = self
            .queue_index(to)
            .filter(|&to| to_sequence >= self.queues[to].next_sequence)?;
        let id = self.origin(index).map_or_else(
            || self.queues[from_index].id_of(sequence),
            |origin| origin.id,
        );
        let message = &self.messages[index];
        let (location, size) = (message.location(), message.size);
        let is_shared = message.has(flag::SHARED);
        let name = self.keys[message.key].name.clone();
        if is_shared {
            // The payload stays where it is.
            self.shared.add(location.position, 0);
        }
        self.queues[from_index].totals.moved_out += 1;
        let failures = self.take_failures(index);
        self.remove(index);
        // Other messages of the key may be exhausted too: a receive that stopped because of that tries again.
        self.wake(self.queues[from_index].content);

        let target = &mut self.queues[to_index];
        target.next_sequence = to_sequence.next();
        target.totals.moved_in += 1;
        let (content, level) = (target.content, target.settings.level);
        let key = self.key_or_new(content, name.as_ref().map(KeyText::from));
        let mut entry = Message::new(to_sequence, location, at, key, size);
        entry.set(flag::MOVED, true);
        entry.set(flag::UNSYNCED, self.waits_for_sync(level));
        entry.set(flag::SHARED, is_shared);
        let entry = self.admit(entry, Payload::Own, None);
        if is_shared {
            self.shared.remove(location.position);
        }
        if let Some(failures) = failures {
            self.keep_failures(entry, failures);
        }
        let origin = self.origins.insert(OriginEntry {
            message: entry,
            id,
            queue: from,
            sequence,
            reason: reason.clone(),
            at,
        });
        let origins = &self.origins;
        self.by_moved_message
            .insert(hash_pair(entry, 0), origin, |origin| {
                hash_pair(origins[origin].message, 0)
            });
        self.by_moved_id
            .insert(hash_id(id), origin, |origin| hash_id(origins[origin].id));
        Some(())
    }

    pub(super) fn fold_dropped(
        &mut self,
        queue: QueueId,
        sequence: Sequence,
        reason: DropReason,
    ) -> Option<()> {
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        self.drop_message(queue, index, reason);
        Some(())
    }

    /// Removes a message and counts the reason.
    pub(super) fn drop_message(&mut self, queue: u32, index: u32, reason: DropReason) {
        count_dropped(&mut self.queues[queue].totals, reason, 1);
        self.remove(index);
    }

    pub(super) fn fold_rescheduled(
        &mut self,
        queue: QueueId,
        sequence: Sequence,
        due: WallTime,
    ) -> Option<()> {
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        self.reschedule(index, due);
        Some(())
    }

    /// The origin of a moved message.
    pub(super) fn origin(&self, index: u32) -> Option<&OriginEntry> {
        if !self.messages[index].has(flag::MOVED) {
            return None;
        }
        self.by_moved_message
            .find(hash_pair(index, 0), |origin| {
                self.origins[origin].message == index
            })
            .map(|origin| &self.origins[origin])
    }

    pub(super) fn origin_view(&self, origin: &OriginEntry) -> Origin {
        let name = |queue| Some(self.queues[self.queue_index(queue)?].name.clone());
        Origin {
            queue: origin.queue,
            name: name(origin.queue),
            sequence: origin.sequence,
            reason: origin.reason.clone(),
            source: origin.reason.source(origin.queue).and_then(name),
            at: origin.at,
        }
    }

    pub(super) fn drop_origin(&mut self, index: u32) {
        let origins = &self.origins;
        let origin = self.by_moved_message.remove(hash_pair(index, 0), |origin| {
            origins[origin].message == index
        });
        if let Some(index) = origin {
            let origin = self.origins.remove(index);
            self.by_moved_id
                .remove(hash_id(origin.id), |other| other == index);
        }
    }

    /// Sets the message's time to live to `span` from `since` on.
    pub(super) fn start_time_to_live(&mut self, index: u32, since: WallTime, span: Millis) {
        let queue = self.contents[self.keys[self.messages[index].key].content].queue;
        let order = self.timer_order(queue, self.messages[index].sequence());
        let timer = self.wall.insert(
            since.plus(span).0,
            order,
            Timer::TimeToLive(index).to_bits(),
        );
        let entry = self.times_to_live.insert(TimeToLive {
            message: index,
            span,
            timer,
        });
        let times_to_live = &self.times_to_live;
        self.by_ttl_message
            .insert(hash_pair(index, 0), entry, |entry| {
                hash_pair(times_to_live[entry].message, 0)
            });
        self.messages[index].set(flag::TTL, true);
    }

    /// Restarts the time to live of a message, if it has one, at another instant.
    pub(super) fn restart_time_to_live(&mut self, index: u32, since: WallTime) {
        if self.messages[index].has(flag::TTL)
            && let Some(TimeToLive { span, .. }) = self.drop_time_to_live(index)
        {
            self.messages[index].set(flag::OVERDUE, false);
            self.start_time_to_live(index, since, span);
        }
    }

    /// The message's own time to live, if it has one.
    pub(super) fn time_to_live(&self, index: u32) -> Option<u32> {
        self.by_ttl_message.find(hash_pair(index, 0), |entry| {
            self.times_to_live[entry].message == index
        })
    }

    pub(super) fn drop_time_to_live(&mut self, index: u32) -> Option<TimeToLive> {
        let times_to_live = &self.times_to_live;
        let entry = self.by_ttl_message.remove(hash_pair(index, 0), |entry| {
            times_to_live[entry].message == index
        })?;
        let ttl = self.times_to_live.remove(entry);
        if ttl.timer != NONE {
            self.wall.remove(ttl.timer);
        }
        Some(ttl)
    }

    /// Whether a message that is not leased has reached the end of its retention or its own time to live.
    pub(super) fn is_overdue(&self, index: u32, wall: WallTime) -> bool {
        let message = &self.messages[index];
        let queue = self.contents[self.keys[message.key].content].queue;
        message.has(flag::OVERDUE)
            || message.since().plus(self.queues[queue].settings.retention) <= wall
    }
}

/// Adds to the counter of the reason.
pub(super) fn count_dropped(totals: &mut QueueTotals, reason: DropReason, messages: u64) {
    let dropped = &mut totals.dropped;
    *match reason {
        DropReason::Purged => &mut dropped.purged,
        DropReason::QueueDeleted => &mut dropped.queue_deleted,
        DropReason::Expired => &mut dropped.expired,
        DropReason::Damaged => &mut dropped.damaged,
        DropReason::Rejected => &mut dropped.rejected,
        DropReason::Cancelled => &mut dropped.cancelled,
        DropReason::KeyDropped => &mut dropped.key_dropped,
    } += messages;
}
