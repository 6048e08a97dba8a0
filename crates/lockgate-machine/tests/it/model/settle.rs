//! Settling one lease, and settling and sending together.

use std::collections::BTreeSet;

use lockgate_core::{
    FailedAttempt, LeaseToken, Level, MessageId, Millis, QueueId, QueueName, Sequence,
    limits::HoldScope,
};
use lockgate_machine::*;

use super::{Message, Model, Queue, Settling, State, TWELVE_HOURS};

impl Model {
    pub(super) fn settle(&mut self, settle: &Settle, decision: &Decision) -> Settling {
        let result = self.settle_uncounted(settle, decision)?;
        if result.is_err() && settle.action != SettleAction::GiveBack {
            self.count_stale(settle.token);
        }
        Ok(result)
    }

    /// Whether the token's message lives on, in whatever queue and under whatever number.
    pub(super) fn lives(&self, token: LeaseToken) -> bool {
        let mut messages = self.queues.values().flat_map(|queue| &queue.messages);
        messages.any(|message| message.id == token.message)
    }

    fn keyed(&self, token: LeaseToken) -> bool {
        let name = self.name_of(token.queue);
        name.is_some_and(|name| self.queues[&name].settings.keyed)
    }

    pub(super) fn count_stale(&mut self, token: LeaseToken) {
        let mut queues = self.queues.values_mut();
        if let Some(queue) = queues.find(|queue| queue.id == token.queue) {
            queue.totals.stale_settles += 1;
        }
    }

    fn settle_uncounted(&mut self, settle: &Settle, decision: &Decision) -> Settling {
        let (now, at) = (self.now, self.at);
        let (token, action) = (settle.token, &settle.action);
        let changes_visibility = matches!(action, SettleAction::ChangeVisibility { .. });
        let action = match action {
            SettleAction::ChangeVisibility { hidden: 0 } => &SettleAction::Nack {
                delay: 0,
                reason: None,
            },
            SettleAction::ChangeVisibility { hidden } => &SettleAction::Extend { lease: *hidden },
            other => other,
        };
        let Some(name) = self.name_of(token.queue) else {
            return Ok(Err(StaleReason::Gone));
        };
        let queue = self.queues.get_mut(&name).unwrap();
        let (keyed, level) = (queue.settings.keyed, queue.settings.level);
        let is_its = |message: &&Message| message.id == token.message;
        let Some(message) = queue.message(token.sequence).filter(is_its) else {
            // That it is gone may be taken for success, so it must stay gone.
            let gone_at = queue.gone_at.get(&token.sequence);
            let known = self.durable.is_none_or(|durable| gone_at < Some(&durable));
            let waits = decision.rests_on.as_ref() >= gone_at;
            assert!(
                known || waits || level < Level::Disk || decision.outcome.is_err(),
                "says gone before that is certain"
            );
            return Ok(Err(if keyed && self.lives(token) {
                StaleReason::Ended
            } else {
                StaleReason::Gone
            }));
        };
        // A token settles its own lease and nothing else, but for ChangeMessageVisibility in
        // Amazon's unkeyed queues.
        let by_any_token =
            changes_visibility && !keyed && queue.settings.key_profile == KeyProfile::Sqs;
        let given_back = match message.last_lease {
            None => return Ok(Err(StaleReason::Ended)),
            Some((last, _)) if last != token && !by_any_token => {
                return Ok(Err(StaleReason::Superseded));
            }
            Some((_, given_back)) => given_back,
        };
        let late_ack = !keyed && *action == SettleAction::Ack && !given_back;
        match &message.state {
            State::Leased { .. } => {}
            State::Ready | State::Backoff { .. } if late_ack => {}
            State::Ready | State::Backoff { .. } if by_any_token => {
                self.hide(&name, token.sequence, action);
                return Ok(Ok(Settled::Done));
            }
            _ => return Ok(Err(StaleReason::Ended)),
        }
        let (key, attempts) = (message.key.clone(), message.attempts);
        let strict = key.as_ref().is_some_and(|key| queue.is_strict(key));
        let refused = decision.outcome.is_err();
        let ahead_or_behind = |wanted_behind: bool| -> Vec<Sequence> {
            let mut order: Vec<_> = queue
                .messages
                .iter()
                .filter(|other| other.key == key && other.arrival.is_some())
                .collect();
            order.sort_by_key(|other| other.arrival);
            let place = order
                .iter()
                .position(|other| other.sequence == token.sequence)
                .unwrap();
            let part = if wanted_behind {
                &order[place + 1..]
            } else {
                &order[..place]
            };
            part.iter().map(|other| other.sequence).collect()
        };
        let ahead = ahead_or_behind(false);
        // The rest of the batch: leased messages behind, up to the first that is not.
        let is_leased = |sequence: &Sequence| {
            matches!(
                queue.message(*sequence).unwrap().state,
                State::Leased { .. }
            )
        };
        let behind: Vec<Sequence> = ahead_or_behind(true)
            .into_iter()
            .take_while(is_leased)
            .filter(|_| strict)
            .collect();
        if strict && *action == SettleAction::Ack && !ahead.is_empty() {
            return Ok(Err(StaleReason::OutOfOrder));
        }
        if let Some(key) = &key
            && !matches!(
                action,
                SettleAction::Extend { .. }
                    | SettleAction::GiveBack
                    | SettleAction::Defer { delay: 0 }
                    | SettleAction::Hold { .. }
            )
        {
            queue.settled_at.insert(key.clone(), at);
        }
        match action {
            SettleAction::Ack => {
                queue.remove(token.sequence);
                queue.totals.acknowledged += 1;
                assert!(refused || decision.level >= level);
            }
            SettleAction::Extend { lease } => {
                return self.extend(&name, token.sequence, *lease, strict, decision);
            }
            SettleAction::Nack { delay, reason } => {
                let parks = keyed
                    && queue.policy() == KeyPolicy::Park
                    && attempts >= queue.settings.attempts_max;
                if let Some(error) = reason {
                    let message = queue.message_mut(token.sequence).unwrap();
                    message.failures.push(FailedAttempt {
                        attempt: u32::from(attempts),
                        at: now.wall,
                        error: error.clone(),
                    });
                }
                queue.put_back(token.sequence, now, (*delay > 0).then_some(*delay));
                if parks {
                    queue.parked.extend(key);
                }
                assert!(refused || decision.level >= level);
            }
            SettleAction::GiveBack => queue.give_back(token.sequence, now, false),
            SettleAction::ChangeVisibility { .. } => unreachable!("read as a nack or an extend"),
            SettleAction::Defer { delay } => {
                queue.give_back(token.sequence, now, true);
                if let Some(message) = queue.message_mut(token.sequence)
                    && *delay > 0
                {
                    let until = now.machine.plus(*delay);
                    message.state = State::Backoff { until };
                }
                assert!(refused || decision.level >= level);
            }
            SettleAction::Hold { delay, scope } => {
                queue.give_back(token.sequence, now, true);
                let held = match (scope, key) {
                    (HoldScope::Key, Some(key)) => HoldTarget::Key(Some(key)),
                    _ => HoldTarget::Queue,
                };
                queue.hold(&held, Some(now.machine.plus(*delay)));
                assert!(refused || decision.level >= level);
            }
            SettleAction::Reject { reason } => {
                let to = queue.settings.dead_letter.clone();
                let keyed = queue.settings.keyed;
                match to.filter(|to| self.is_dead_letter_queue(to, keyed)) {
                    Some(to) => {
                        let reason = DeadLetterReason::Rejected {
                            reason: reason.clone(),
                        };
                        self.move_message(&name, token.sequence, &to, reason, None);
                    }
                    None => {
                        let queue = self.queues.get_mut(&name).unwrap();
                        queue.remove(token.sequence);
                        queue.totals.dropped.rejected += 1;
                    }
                }
                assert!(refused || decision.level >= level);
            }
        }
        if *action != SettleAction::Ack {
            let queue = self.queues.get_mut(&name).unwrap();
            for later in behind {
                let id = queue.message(later).unwrap().id;
                queue.give_back(later, now, false);
                let message = (token.queue, later, id);
                self.settled.insert(message, StaleReason::OutOfOrder);
            }
        }
        Ok(Ok(Settled::Done))
    }

    /// Amazon's unkeyed queues: what nobody holds is kept back, or no longer.
    fn hide(&mut self, name: &QueueName, sequence: Sequence, action: &SettleAction) {
        let now = self.now;
        let queue = self.queues.get_mut(name).unwrap();
        match action {
            SettleAction::Extend { lease: time } | SettleAction::Nack { delay: time, .. }
                if *time > 0 =>
            {
                let until = now.machine.plus(*time);
                let message = queue.message_mut(sequence).unwrap();
                message.state = State::Backoff { until };
                message.returned = true;
            }
            _ => queue.put_back(sequence, now, None),
        }
    }

    fn extend(
        &mut self,
        name: &QueueName,
        sequence: Sequence,
        lease: Millis,
        strict: bool,
        decision: &Decision,
    ) -> Settling {
        let now = self.now.machine;
        let queue = self.queues.get_mut(name).unwrap();
        let key = queue.message(sequence).unwrap().key.clone();
        let State::Leased { given, .. } = queue.message(sequence).unwrap().state else {
            unreachable!("checked by the caller")
        };
        let longest = given.plus(TWELVE_HOURS).since(now);
        if lease == 0 || lease > longest {
            return Err(Rejection::OutOfRange {
                what: "lease",
                value: lease,
                min: 1,
                max: longest,
            });
        }
        let deadline = now.plus(lease);
        for message in &mut queue.messages {
            if (message.sequence == sequence || strict && message.key == key)
                && let State::Leased { until, .. } = &mut message.state
            {
                *until = deadline;
            }
        }
        for effect in &decision.effects {
            if let Effect::LeaseBoundRaised { until, .. } = effect {
                queue.lease_bound = queue.lease_bound.max(*until);
            }
        }
        if queue.settings.keyed && queue.settings.level >= Level::Disk {
            let covered = queue.lease_bound >= deadline || decision.level >= Level::Disk;
            assert!(
                covered || decision.outcome.is_err(),
                "extended beyond the lease bound"
            );
        }
        Ok(Ok(Settled::Extended {
            deadline,
            whole_key: strict,
        }))
    }

    pub(super) fn transact(
        &mut self,
        transact: &Transact,
        decision: &Decision,
    ) -> Result<Reply, Rejection> {
        let Transact {
            settles,
            states,
            sends,
            // Histories have none.
            publishes: _,
        } = transact;
        let parts = settles.len() + states.len() + sends.len();
        if parts == 0 {
            return Err(Rejection::OutOfRange {
                what: "number of settles, states, sends and publishes",
                value: 0,
                min: 1,
                max: 1000,
            });
        }
        let holders = states.iter().map(|state| self.holder(state.token));
        let holders = holders.collect::<Result<Vec<_>, _>>()?;
        let before = self.places();
        for (index, settle) in settles.iter().enumerate() {
            let token = settle.token;
            let message = (token.queue, token.sequence, token.message);
            let outcome = match self.settled.get(&message) {
                Some(stale) => Err(*stale),
                // The transaction itself has moved it there.
                None if self.places().contains(&message)
                    && !before.contains(&message)
                    && !self.keyed(token) =>
                {
                    Err(StaleReason::Gone)
                }
                None => self.settle_uncounted(settle, decision)?,
            };
            if let Err(reason) = outcome {
                self.count_stale(settle.token);
                return Err(Rejection::TransactionStale { index, reason });
            }
            let second = match settle.action {
                SettleAction::Extend { .. } | SettleAction::ChangeVisibility { hidden: 1.. } => {
                    continue;
                }
                // Of an unkeyed queue it is gone also where it was moved.
                SettleAction::Reject { .. }
                    if self.keyed(settle.token) && self.lives(settle.token) =>
                {
                    StaleReason::Ended
                }
                SettleAction::Ack | SettleAction::Reject { .. } => StaleReason::Gone,
                SettleAction::Nack { .. }
                | SettleAction::ChangeVisibility { hidden: 0 }
                | SettleAction::Defer { .. }
                | SettleAction::Hold { .. }
                | SettleAction::GiveBack => StaleReason::Ended,
            };
            self.settled.insert(message, second);
        }
        let states = self.write_states(states, holders)?;
        let mut sent = Vec::new();
        for (index, send) in sends.iter().enumerate() {
            let answer = self.send(send, decision);
            sent.push(answer.map_err(|source| Rejection::TransactionRefused {
                index,
                source: Box::new(source),
            })?);
        }
        Ok(Reply::Transacted(Transacted {
            sent,
            states,
            published: Vec::new(),
        }))
    }

    /// Where every message is.
    fn places(&self) -> BTreeSet<(QueueId, Sequence, MessageId)> {
        let of_queue = |queue: &Queue| {
            let id = queue.id;
            let place = move |message: &Message| (id, message.sequence, message.id);
            queue.messages.iter().map(place).collect::<Vec<_>>()
        };
        self.queues.values().flat_map(of_queue).collect()
    }
}
