//! Ends and extends leases.
//!
//! A token settles only its own lease. This is the answer to a token in each state of its message:
//!
//! | the message | keyed queue | unkeyed queue |
//! |---|---|---|
//! | is leased under this token | settled | settled |
//! | is leased again | superseded | superseded |
//! | is back in its place, this was its last lease | ended | ack: settled; else ended |
//! | was moved, and is in another queue or came back under another number | ended | gone |
//! | is gone, even if another one has its number since a crash or a restore | gone | gone |
//!
//! A token of another shard is refused and means nothing here, whatever its numbers.
//!
//! There is one exception: [`SettleAction::ChangeVisibility`], which only the SQS API's
//! ChangeMessageVisibility asks for. In unkeyed queues of Amazon's profile ([`KeyProfile::Sqs`]) it takes
//! effect with any of a message's tokens, as at AWS, where a message may have two holders. If the message
//! is not leased, it is kept back for that time, as after a nack with a delay; its last holder can still
//! acknowledge it. A nack or an extend has no such power, so no other caller can end somebody else's lease.
//!
//! In the strict profile a batch is acknowledged in order: the answer for a message behind one that is still
//! in flight is *out of order*. Any other end of the lease of one message of the batch gives the later ones
//! back without counting their attempts, because they may be processed only after it.

use lockgate_core::{
    LeaseNumber, LeaseToken, Level, MachineTime, Millis, Now, QueueId, REASON_BYTES_MAX, Sequence,
};

use super::{
    Machine,
    draft::Draft,
    send::check_range,
    state::{LeaseState, Queue, State},
};
use crate::{
    DeadLetterReason, DropReason, Effect, Failed, KeyPolicy, KeyProfile, QueueSettings, Rejection,
    Settle, SettleAction, Settled, StaleReason, slab::NONE,
};

impl Machine {
    /// `Ok(Err(_))`: the token is stale.
    pub(super) fn decide_settle(
        &self,
        draft: &mut Draft,
        settle: &Settle,
        now: Now,
    ) -> Result<Result<Settled, StaleReason>, Rejection> {
        self.check_shard(settle.token)?;
        match &settle.action {
            SettleAction::Nack { delay, .. } | SettleAction::Defer { delay } => {
                check_range("delay", *delay, 0, Settle::DELAY_MAX)?;
            }
            SettleAction::Hold { delay, .. } => {
                check_range("delay", *delay, 1, Settle::DELAY_MAX)?;
            }
            SettleAction::Extend { lease } => {
                check_range("lease", *lease, 1, QueueSettings::LEASE_MAX)?;
            }
            _ => {}
        }
        if let SettleAction::Nack { reason, .. } | SettleAction::Reject { reason } = &settle.action
        {
            let bytes = reason.as_ref().map_or(0, |reason| reason.len() as u64);
            check_range("bytes of the reason", bytes, 0, REASON_BYTES_MAX as u64)?;
        }
        let (action, by_any_token) = match &settle.action {
            SettleAction::ChangeVisibility { hidden: 0 } => (
                &SettleAction::Nack {
                    delay: 0,
                    reason: None,
                },
                true,
            ),
            SettleAction::ChangeVisibility { hidden } => {
                (&SettleAction::Extend { lease: *hidden }, true)
            }
            action => (action, false),
        };
        let (queue, index) = match self.current(draft, settle, by_any_token) {
            Ok(found) => found,
            Err(stale) => {
                self.rest_on_removals(draft, settle.token.queue);
                return Ok(Err(stale));
            }
        };
        if let Err(stale) = self.check_batch_order(draft, index, action) {
            return Ok(Err(stale));
        }
        let state = &self.queues[queue];
        let (id, level) = (state.id, state.settings.level);
        let message = &self.messages[index];
        let sequence = message.sequence();
        match action {
            SettleAction::ChangeVisibility { .. } => {}
            SettleAction::Ack => {
                draft.add(
                    Effect::Acked {
                        queue: id,
                        sequence,
                    },
                    level,
                );
                self.draft_leaving(draft, queue, index);
                if draft.in_transaction {
                    draft.fronts.insert(message.key, message.order.after);
                }
            }
            SettleAction::Extend { lease } if message.state != State::Leased => {
                let effect = Effect::Nacked {
                    queue: id,
                    sequence,
                    until: Some(now.machine.plus(*lease)),
                    failed: None,
                };
                draft.add(effect, level.min(Level::Process));
            }
            SettleAction::Extend { lease } => {
                return self.draft_extend(draft, queue, index, *lease, now);
            }
            // A message that is neither leased nor kept back is where a nack would put it, unless
            // an earlier part of this command keeps it back.
            SettleAction::Nack { delay: 0, .. }
                if message.state == State::Ready && !draft.in_transaction => {}
            SettleAction::Nack { delay, reason } => {
                let failed = self.failed(reason.as_ref(), now);
                let until = (*delay > 0).then(|| now.machine.plus(*delay));
                self.draft_return(draft, (queue, index), now, level, |queue, sequence| {
                    Effect::Nacked {
                        queue,
                        sequence,
                        until,
                        failed,
                    }
                });
                self.draft_park(draft, queue, index, level);
                self.give_back_later(draft, queue, index, now);
            }
            SettleAction::Defer { delay } => {
                self.draft_return(draft, (queue, index), now, level, |queue, sequence| {
                    Effect::GivenBack {
                        queue,
                        sequence,
                        started: true,
                    }
                });
                if *delay > 0 && !self.is_overdue(index, now.wall) {
                    let effect = Effect::Nacked {
                        queue: id,
                        sequence,
                        until: Some(now.machine.plus(*delay)),
                        failed: None,
                    };
                    draft.add(effect, level);
                }
                self.give_back_later(draft, queue, index, now);
            }
            SettleAction::Hold { delay, scope } => {
                self.draft_return(draft, (queue, index), now, level, |queue, sequence| {
                    Effect::GivenBack {
                        queue,
                        sequence,
                        started: true,
                    }
                });
                self.draft_hold(draft, (queue, index), (*scope, *delay), now, level)?;
                self.give_back_later(draft, queue, index, now);
            }
            SettleAction::GiveBack => {
                let level = level.min(Level::Process);
                self.draft_return(draft, (queue, index), now, level, |queue, sequence| {
                    Effect::GivenBack {
                        queue,
                        sequence,
                        started: false,
                    }
                });
                self.give_back_later(draft, queue, index, now);
            }
            SettleAction::Reject { reason } => {
                match self.dead_letter_queue(state) {
                    Some(to) => {
                        let reason = DeadLetterReason::Rejected {
                            reason: reason.clone(),
                        };
                        self.move_away(draft, (queue, index), to, reason, now, level)?;
                    }
                    None => {
                        self.draft_drop(draft, (queue, index), DropReason::Rejected, level);
                    }
                }
                self.give_back_later(draft, queue, index, now);
            }
        }
        let settled = match action {
            SettleAction::Extend { .. } | SettleAction::ChangeVisibility { .. } => {
                return Ok(Ok(Settled::Done));
            }
            SettleAction::Reject { .. }
                if state.settings.keyed && self.dead_letter_queue(state).is_some() =>
            {
                StaleReason::Ended
            }
            SettleAction::Ack | SettleAction::Reject { .. } => StaleReason::Gone,
            SettleAction::Nack { .. }
            | SettleAction::Defer { .. }
            | SettleAction::Hold { .. }
            | SettleAction::GiveBack => StaleReason::Ended,
        };
        if draft.in_transaction {
            draft.settled.insert(index, settled);
        }
        Ok(Ok(Settled::Done))
    }

    /// Refuses a token of another shard: its queue and number mean another message here.
    pub(super) fn check_shard(&self, token: LeaseToken) -> Result<(), Rejection> {
        let (given, own) = (token.shard(), self.term().shard);
        if given == own {
            Ok(())
        } else {
            Err(Rejection::OtherShard { given, own })
        }
    }

    /// A caller may take "gone" for success, as SQS does, so the record that removed the message
    /// must have reached its level.
    pub(super) fn rest_on_removals(&self, draft: &mut Draft, queue: QueueId) {
        if let Some(queue) = self.queue_index(queue) {
            let queue = &self.queues[queue];
            let level = queue.settings.level;
            draft.level = draft.level.max(level.min(Level::Process));
            if level >= Level::Disk {
                let removed_at = self.contents[queue.content].removed_at;
                draft.rest_on(self.unless_durable(removed_at.max(queue.changed_at)));
            }
        }
    }

    /// The queue and message of the token's lease, if the token may settle it in that way.
    pub(super) fn current(
        &self,
        draft: &Draft,
        settle: &Settle,
        by_any_token: bool,
    ) -> Result<(u32, u32), StaleReason> {
        let token = settle.token;
        let queue = self.queue_index(token.queue).ok_or(StaleReason::Gone)?;
        // After a crash or a restore, another message may have the number of the token's message.
        let is_its = |&index: &u32| self.is_message(queue, index, token.message);
        let Some(index) = self.message_of(queue, token.sequence).filter(is_its) else {
            // A caller may take "gone" for success, but a moved message will be delivered again.
            let lives = |(_, index)| draft.settled.get(&index) != Some(&StaleReason::Gone);
            let ended = self.queues[queue].settings.keyed
                && self.message_with_id(token.message).is_some_and(lives);
            return Err(if ended {
                StaleReason::Ended
            } else {
                StaleReason::Gone
            });
        };
        if let Some(stale) = draft.settled.get(&index) {
            return Err(*stale);
        }
        let message = &self.messages[index];
        // A message without a lease has a lease state only while it waits for its deferral to end.
        let leased_before = |lease_state: &&LeaseState| lease_state.lease() != LeaseNumber(0);
        let Some(lease_state) = self.leased_once(index).filter(leased_before) else {
            return Err(StaleReason::Ended);
        };
        let settings = &self.queues[queue].settings;
        let by_any_token =
            by_any_token && !settings.keyed && settings.key_profile == KeyProfile::Sqs;
        let is_last =
            self.term_of(lease_state.term) == token.term && lease_state.lease() == token.lease;
        if !is_last && !by_any_token {
            return Err(StaleReason::Superseded);
        }
        let may_still_ack =
            !settings.keyed && settle.action == SettleAction::Ack && lease_state.current;
        match message.state {
            State::Leased => Ok((queue, index)),
            State::Ready | State::Backoff if may_still_ack || by_any_token => Ok((queue, index)),
            _ => Err(StaleReason::Ended),
        }
    }

    /// Strict profile: only the first message of its key may be acknowledged.
    fn check_batch_order(
        &self,
        draft: &Draft,
        index: u32,
        action: &SettleAction,
    ) -> Result<(), StaleReason> {
        let key = self.messages[index].key;
        if !self.keys[key].strict || *action != SettleAction::Ack {
            return Ok(());
        }
        let front = draft
            .fronts
            .get(&key)
            .copied()
            .unwrap_or(self.keys[key].order.first);
        if front == index {
            Ok(())
        } else {
            Err(StaleReason::OutOfOrder)
        }
    }

    fn draft_extend(
        &self,
        draft: &mut Draft,
        queue: u32,
        index: u32,
        lease: Millis,
        now: Now,
    ) -> Result<Result<Settled, StaleReason>, Rejection> {
        let given = self.given(index).unwrap_or(now.machine);
        let deadline = now.machine.plus(lease);
        let latest = given.plus(QueueSettings::LEASE_MAX);
        check_range("lease", lease, 1, latest.since(now.machine))?;
        let state = &self.queues[queue];
        let strict = self.keys[self.messages[index].key].strict;
        let level = state.settings.level.min(Level::Process);
        // The messages of a batch were leased together, so they have one limit.
        let batch: Vec<u32> = if strict {
            let key = self.messages[index].key;
            self.leased_from(self.keys[key].order.first)
                .filter(|other| !draft.settled.contains_key(other))
                .collect()
        } else {
            vec![index]
        };
        if !batch.contains(&index) {
            // The lease before it has ended, and its own ends with the next tick.
            return Ok(Err(StaleReason::Ended));
        }
        for index in batch {
            let effect = Effect::Extended {
                queue: state.id,
                sequence: self.messages[index].sequence(),
                deadline,
            };
            draft.add(effect, level);
        }
        self.cover_leases(draft, state, now, deadline);
        Ok(Ok(Settled::Extended {
            deadline,
            whole_key: strict,
        }))
    }

    /// Returns the message to its place by `effect`, or drops it if its time to live is over.
    fn draft_return(
        &self,
        draft: &mut Draft,
        (queue, index): (u32, u32),
        now: Now,
        level: Level,
        effect: impl FnOnce(QueueId, Sequence) -> Effect,
    ) {
        if self.is_overdue(index, now.wall) {
            self.draft_drop(draft, (queue, index), DropReason::Expired, level);
        } else {
            let id = self.queues[queue].id;
            draft.add(effect(id, self.messages[index].sequence()), level);
        }
    }

    /// Parks the key if this was the message's last attempt and the policy says so.
    fn draft_park(&self, draft: &mut Draft, queue: u32, index: u32, level: Level) {
        let key = &self.keys[self.messages[index].key];
        if self.parks_now(queue, index)
            && let Some(name) = &key.name
        {
            draft.add(
                Effect::KeyParked {
                    queue: self.queues[queue].id,
                    key: name.clone(),
                },
                level,
            );
        }
    }

    /// Whether the end of the message's lease now, without an ack, parks its key.
    pub(super) fn parks_now(&self, queue: u32, index: u32) -> bool {
        let state = &self.queues[queue];
        let attempts = self
            .leased_once(index)
            .map_or(0, |lease_state| lease_state.attempts);
        state.settings.keyed
            && state.policy() == KeyPolicy::Park
            && attempts >= state.settings.attempts_max
    }

    /// Strict profile: gives back the messages that were leased behind this one.
    fn give_back_later(&self, draft: &mut Draft, queue: u32, index: u32, now: Now) {
        if !self.keys[self.messages[index].key].strict {
            return;
        }
        let level = self.queues[queue].settings.level.min(Level::Process);
        for later in self.leased_from(self.messages[index].order.after) {
            if draft.settled.contains_key(&later) {
                continue;
            }
            self.draft_return(draft, (queue, later), now, level, |queue, sequence| {
                Effect::GivenBack {
                    queue,
                    sequence,
                    started: false,
                }
            });
            if draft.in_transaction {
                draft.settled.insert(later, StaleReason::OutOfOrder);
            }
        }
    }

    /// When the message's lease was given.
    pub(super) fn given(&self, index: u32) -> Option<MachineTime> {
        let held = u64::from(self.leased_once(index)?.held_ms);
        let deadline = self.deadline(index)?;
        Some(MachineTime(deadline.saturating_sub(held)))
    }

    /// The leased messages of a key from `front` on, up to the first that is not leased.
    fn leased_from(&self, front: u32) -> impl Iterator<Item = u32> {
        let mut index = front;
        std::iter::from_fn(move || {
            let this = index;
            if this == NONE || self.messages[this].state != State::Leased {
                return None;
            }
            index = self.messages[this].order.after;
            Some(this)
        })
    }

    /// The queue's dead-letter queue; `None` if it was deleted since it was set, or created again
    /// with the other kind. Messages then stay and are delivered again.
    pub(super) fn dead_letter_queue(&self, queue: &Queue) -> Option<u32> {
        let dead_letter = queue.settings.dead_letter.as_ref()?;
        self.queue_names
            .get(dead_letter)
            .copied()
            .filter(|&to| self.queues[to].settings.keyed == queue.settings.keyed)
    }

    pub(super) fn term_of(&self, number: u32) -> lockgate_core::Term {
        let index = (number as usize).checked_sub(1);
        index
            .and_then(|index| self.terms.get(index))
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn fold_acked(&mut self, queue: QueueId, sequence: Sequence) -> Option<()> {
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        self.queues[queue].totals.acknowledged += 1;
        self.remove(index);
        Some(())
    }

    pub(super) fn fold_nacked(
        &mut self,
        queue: QueueId,
        sequence: Sequence,
        until: Option<MachineTime>,
        failed: Option<&Failed>,
    ) -> Option<()> {
        let queue = self.queue_index(queue)?;
        let index = self.message_of(queue, sequence)?;
        if let Some(failed) = failed {
            self.note_failure(index, failed);
        }
        if self.messages[index].state != State::Leased {
            // A message that was given back is deferred, or hidden in an unkeyed queue with Amazon's profile.
            self.make_ready(index);
            if until.is_none() {
                return Some(());
            }
            self.lease_state(index, self.clock.now.wall);
            self.take(index);
        }
        let key = self.messages[index].key;
        self.keys[key].set_settled_at(self.folding_at);
        match until {
            Some(until) => self.back_off(index, until),
            None => self.return_to_order(index),
        }
        Some(())
    }

    pub(super) fn fold_given_back(
        &mut self,
        queue: QueueId,
        sequence: Sequence,
        started: bool,
    ) -> Option<()> {
        let index = self.leased_message(queue, sequence)?;
        if !started && let Some(given) = self.given(index) {
            let key = self.messages[index].key;
            self.refund_limits(self.contents[self.keys[key].content].queue, key, given);
        }
        self.return_to_order(index);
        let lease_state = self.messages[index].extra;
        let lease_state = &mut self.lease_states[lease_state];
        lease_state.attempts = lease_state.attempts.saturating_sub(1);
        lease_state.current = false;
        if lease_state.attempts == 0 {
            self.drop_lease_state(index);
        }
        Some(())
    }

    pub(super) fn fold_extended(
        &mut self,
        queue: QueueId,
        sequence: Sequence,
        deadline: MachineTime,
    ) -> Option<()> {
        let index = self.leased_message(queue, sequence)?;
        let given = self.given(index)?;
        let timer = self.set_timer(index, NONE);
        let fired = self.machine.remove(timer);
        let lease_state = self.messages[index].extra;
        let lease_state = &mut self.lease_states[lease_state];
        lease_state.set_held(given, deadline);
        lease_state.timer = self.machine.insert(deadline.0, fired.order, fired.payload);
        Some(())
    }

    /// The message, if it is leased.
    fn leased_message(&self, queue: QueueId, sequence: Sequence) -> Option<u32> {
        let queue = self.queue_index(queue)?;
        self.message_of(queue, sequence)
            .filter(|&index| self.messages[index].state == State::Leased)
    }

    /// Whether the token's lease is the current one of its message. A holder asks this before it
    /// does something that cannot be undone.
    #[must_use]
    pub fn is_current(&self, token: LeaseToken) -> bool {
        let own = (token.shard() == self.term().shard).then_some(token.queue);
        own.and_then(|queue| self.queue_index(queue))
            .and_then(|queue| self.message_of(queue, token.sequence))
            .is_some_and(|index| {
                self.messages[index].state == State::Leased
                    && self.leased_once(index).is_some_and(|lease_state| {
                        lease_state.lease() == token.lease
                            && self.term_of(lease_state.term) == token.term
                    })
            })
    }
}
