//! Receiving: what a choice must satisfy.

use std::collections::BTreeSet;

use lockgate_core::{Key, LeaseToken, Level, MachineTime, QueueId, QueueName, Sequence};
use lockgate_machine::*;

use super::{LEASE_BOUND, Message, Model, Queue, State};

impl Model {
    pub(super) fn receive(&mut self, receive: &Receive, decision: &Decision) {
        let now = self.now;
        let queue = match self.found(&receive.queue) {
            Ok(queue) => queue,
            Err(refused) => {
                assert_eq!(decision.outcome.as_ref().unwrap_err(), &refused);
                return;
            }
        };
        let limit = queue.settings.in_flight_max;
        let room = u64::from(limit).saturating_sub(queue.in_flight());
        if room == 0 && !queue.settings.keyed {
            let refused = Rejection::InFlightFull {
                queue: receive.queue.clone(),
                max: limit,
            };
            assert_eq!(decision.outcome.as_ref().unwrap_err(), &refused);
            return;
        }
        let Ok(Reply::Received(deliveries)) = &decision.outcome else {
            panic!("a receive was answered {:?}", decision.outcome);
        };
        let leases = queue.gives_leases();
        let (keyed, level) = (queue.settings.keyed, queue.settings.level);
        let wanted = usize::from(receive.max).min(room as usize);
        let lease = receive.lease.unwrap_or(queue.settings.lease);
        let until = if lease == 0 {
            MachineTime(now.machine.0.saturating_sub(1))
        } else {
            now.machine.plus(lease)
        };

        // Moves of exhausted messages and leases, in the order in which they were decided.
        let mut batch = BTreeSet::new();
        let mut given = deliveries.iter();
        for effect in &decision.effects {
            match effect {
                Effect::Moved { .. } => {
                    let moved = self.take_exhausted(&receive.queue, effect, &batch);
                    batch.remove(&moved);
                }
                Effect::Leased { sequence, .. } => {
                    let delivery = given.next().expect("a lease without a delivery");
                    assert_eq!(delivery.token.sequence, *sequence);
                    assert!(leases, "paused or held, and gave a lease");
                    self.take_lease(receive, delivery, until, &mut batch, decision);
                }
                Effect::LeaseBoundRaised { queue: id, until } => {
                    let queue = self.queues.get_mut(&receive.queue).unwrap();
                    assert_eq!(queue.id, *id);
                    queue.lease_bound = queue.lease_bound.max(*until);
                }
                other => panic!("a receive has effect {other:?}"),
            }
        }
        assert!(given.next().is_none(), "a delivery without a lease");
        assert!(deliveries.len() <= wanted, "more than asked for or allowed");

        // Nothing that could be had was left out.
        let queue = &self.queues[&receive.queue];
        if deliveries.len() < wanted && leases {
            let left = self.startable(queue, &batch);
            assert!(left.is_empty(), "left out {left:?}");
        }
        // A power cut cannot make us forget a lease for longer than the lease bound.
        if keyed && level >= Level::Disk && !deliveries.is_empty() {
            let covered = queue.lease_bound >= until || lease > LEASE_BOUND;
            assert!(covered, "a lease beyond the lease bound");
            if lease > LEASE_BOUND {
                assert!(decision.level >= Level::Disk, "a long lease is not synced");
            }
        }
    }

    /// A message that had all its attempts goes to the dead-letter queue.
    fn take_exhausted(
        &mut self,
        name: &QueueName,
        effect: &Effect,
        batch: &BTreeSet<Sequence>,
    ) -> Sequence {
        let Effect::Moved {
            sequence, reason, ..
        } = effect
        else {
            unreachable!()
        };
        let queue = &self.queues[name];
        let (limit, to) = self.attempt_limit(queue).expect("no attempts are limited");
        assert!(self.candidates(queue, batch).contains(sequence));
        let attempts = queue.message(*sequence).unwrap().attempts;
        assert!(
            attempts >= limit,
            "moved after {attempts} of {limit} attempts"
        );
        assert_eq!(*reason, DeadLetterReason::Attempts { attempts });
        self.move_message(name, *sequence, &to, reason.clone(), Some(effect));
        *sequence
    }

    fn take_lease(
        &mut self,
        receive: &Receive,
        delivery: &Delivery,
        until: MachineTime,
        batch: &mut BTreeSet<Sequence>,
        decision: &Decision,
    ) {
        let (now, term, durable) = (self.now, self.term, self.durable);
        let sequence = delivery.token.sequence;
        let queue = &self.queues[&receive.queue];
        let candidates = self.startable(queue, batch);
        assert!(
            candidates.contains(&sequence),
            "{sequence} was not to be had"
        );
        let message = queue.message(sequence).unwrap();
        if let Some((limit, _)) = self.attempt_limit(queue) {
            assert!(message.attempts < limit, "leased instead of moved");
        }
        if queue.settings.keyed {
            // As many of one key as fit, before another key.
            let last = batch.last().map(|_| self.last_leased_key(queue, batch));
            if let Some(last) = last.flatten()
                && Some(&last) != message.key.as_ref()
            {
                let more = |other: &Sequence| {
                    let other = queue.message(*other).unwrap();
                    other.key.as_ref() == Some(&last)
                };
                assert!(!candidates.iter().any(more), "key {last} had more");
            }
            // What was in front of it is gone only if the record that says so stays.
            let settled = message
                .key
                .as_ref()
                .and_then(|key| queue.settled_at.get(key));
            if let Some(&settled) = settled
                && queue.settings.level >= Level::Disk
                && durable.is_some_and(|durable| settled >= durable)
            {
                let waits = match settled == self.at {
                    true => decision.level >= Level::Disk,
                    false => decision.rests_on >= Some(settled),
                };
                assert!(waits, "does not wait for what was in front to be gone");
            }
        }
        let first_leased = if message.attempts == 0 {
            now.wall
        } else {
            message.first_leased
        };
        let expected = Delivery {
            token: LeaseToken {
                queue: queue.id,
                sequence,
                message: message.id,
                term,
                lease: delivery.token.lease,
            },
            id: message.id,
            location: message.location,
            attempt: message.attempts + 1,
            first_leased,
            deadline: until,
            origin: message.origin.clone().map(|origin| Origin {
                name: self.name_of(origin.queue),
                source: whose(&origin).and_then(|source| self.name_of(source)),
                ..origin
            }),
            failures: message.kept_failures(),
            // Once for each key.
            state: message
                .key
                .as_ref()
                .filter(|_| queue.settings.keyed)
                .filter(|key| self.last_leased_key(queue, batch).as_ref() != Some(key))
                .and_then(|key| queue.states.get(key))
                .map(|state| Box::new(state.clone())),
        };
        assert_eq!(*delivery, expected);
        for queue in self.queues.values() {
            for message in &queue.messages {
                let taken = message.last_lease.map(|(token, _)| token);
                assert_ne!(taken, Some(delivery.token), "a token was given twice");
            }
        }
        let queue = self.queues.get_mut(&receive.queue).unwrap();
        queue.totals.leased += 1;
        queue.charge(sequence, now.machine);
        let key = queue.message(sequence).unwrap().key.clone();
        let of_key =
            |other: &Message| other.key == key && matches!(other.state, State::Leased { .. });
        if let Some(key) = &key
            && !queue.messages.iter().any(of_key)
        {
            let profile = queue.settings.key_profile;
            queue.leased_under.insert(key.clone(), profile);
        }
        let message = queue.message_mut(sequence).unwrap();
        message.attempts += 1;
        message.first_leased = first_leased;
        message.last_lease = Some((delivery.token, false));
        message.returned = true;
        message.state = State::Leased {
            given: now.machine,
            until,
            holder: receive.holder.clone(),
        };
        batch.insert(sequence);
    }

    /// Everything a receive may take next, having taken `batch` already.
    pub(super) fn candidates(&self, queue: &Queue, batch: &BTreeSet<Sequence>) -> Vec<Sequence> {
        let is_free = |message: &Message| message.state == State::Ready && self.is_durable(message);
        let mut order: Vec<&Message> = queue
            .messages
            .iter()
            .filter(|message| message.arrival.is_some())
            .collect();
        order.sort_by_key(|message| message.arrival);
        order
            .iter()
            .filter(|message| is_free(message))
            .filter(|message| {
                let same_key = |other: &&&Message| other.key == message.key;
                let mut ahead = order
                    .iter()
                    .take_while(|other| other.sequence != message.sequence)
                    .filter(same_key);
                let in_batch = |other: &&Message| batch.contains(&other.sequence);
                let Some(key) = message.key.as_ref().filter(|_| queue.settings.keyed) else {
                    // A group: what was never leased goes in order of arrival; what came back takes
                    // turns with it.
                    return message.returned
                        || ahead.all(|other| other.returned || in_batch(other));
                };
                if queue.parked.contains(key) {
                    return false;
                }
                let strict_and_held = queue.is_strict(key)
                    && order.iter().filter(same_key).any(|other| {
                        matches!(other.state, State::Leased { .. }) && !in_batch(other)
                    });
                !strict_and_held && ahead.all(in_batch)
            })
            .map(|message| message.sequence)
            .collect()
    }

    fn last_leased_key(&self, queue: &Queue, batch: &BTreeSet<Sequence>) -> Option<Key> {
        batch
            .iter()
            .filter_map(|sequence| queue.message(*sequence))
            .max_by_key(|message| message.last_lease.map(|(token, _)| token.lease))
            .and_then(|message| message.key.clone())
    }

    /// Messages go to another queue by command: what a receive could have, in its order.
    pub(super) fn redrive(
        &mut self,
        command: &Move,
        decision: &Decision,
    ) -> Result<Reply, Rejection> {
        let Move {
            from,
            to,
            max,
            cursor,
        } = command;
        let max = *max;
        let queue = self.found(from)?;
        let keyed = queue.settings.keyed;
        let refused = |source| Rejection::Settings {
            queue: from.clone(),
            source,
        };
        let named = match to {
            MoveTo::Queue(to) => Some(to),
            MoveTo::Of { source, to, .. } => {
                self.found(source)?;
                Some(to.as_ref().unwrap_or(source))
            }
            _ => None,
        };
        if let Some(to) = named {
            self.found(to)?;
            if to == from {
                return Err(refused(SettingsError::OwnDeadLetter));
            }
            if !self.is_dead_letter_queue(to, keyed) {
                let queue = to.clone();
                return Err(refused(SettingsError::DeadLetterKind { queue }));
            }
        }
        let level = queue.settings.level;
        let mut moved = 0;
        for effect in &decision.effects {
            let Effect::Moved { sequence, .. } = effect else {
                assert!(matches!(effect, Effect::SequencesReserved { .. }));
                continue;
            };
            let queue = &self.queues[from];
            assert!(queue.held_until.is_none(), "moved what may be held");
            let passed = self.passed_by(command);
            assert!(self.candidates(queue, &passed).contains(sequence));
            assert!(
                cursor.is_none_or(|cursor| *sequence < cursor.below),
                "moved what came after the first step"
            );
            let home = match to {
                MoveTo::Queue(to) => to.clone(),
                MoveTo::Of { source, to, .. } => {
                    assert!(self.is_of(from, *sequence, source), "moved another queue's");
                    to.as_ref().unwrap_or(source).clone()
                }
                _ => self.came_from(from, *sequence).expect("a way back"),
            };
            assert!(may_go(to, &home), "moved to {home}, which is not allowed");
            let reached = level.max(self.queues[&home].settings.level);
            assert!(decision.level >= reached.min(Level::Disk));
            let source = self.whose_then(from, *sequence, &home);
            self.move_message(
                from,
                *sequence,
                &home,
                DeadLetterReason::Redriven { source },
                Some(effect),
            );
            moved += 1;
        }
        assert!(moved <= u64::from(max));
        // It ended for a reason.
        let queue = &self.queues[from];
        let left = self.candidates(queue, &self.passed_by(command));
        let Ok(Reply::Moved(Moved { stuck, next, .. })) = &decision.outcome else {
            panic!("a move was answered {:?}", decision.outcome)
        };
        if let Some(next) = next {
            // No history has as many others that a step would end at them.
            assert_eq!(moved, u64::from(max));
            match cursor {
                Some(cursor) => assert_eq!(next.below, cursor.below),
                None => assert!(queue.messages.iter().all(|m| m.sequence < next.below)),
            }
        }
        if let Some(stuck) = stuck {
            let stays = queue
                .messages
                .iter()
                .find(|m| m.id == stuck.message)
                .unwrap();
            assert!(left.contains(&stays.sequence));
            assert!(!matches!(to, MoveTo::Queue(_) | MoveTo::Of { .. }));
            match self.came_from(from, stays.sequence) {
                Some(home) => {
                    assert!(!may_go(to, &home), "{home} is allowed");
                    assert_eq!(stuck.reason, StuckReason::OriginNotAllowed);
                }
                None => assert_ne!(stuck.reason, StuckReason::OriginNotAllowed),
            }
        } else if next.is_none() && queue.held_until.is_none() {
            let mut left = left.into_iter();
            let should_go = left.find(|&sequence| match to {
                // Those in front of it were looked at by the step before, as far as this one knows.
                _ if cursor.is_some() => false,
                MoveTo::Of { source, .. } => self.is_of(from, sequence, source),
                _ => true,
            });
            assert!(should_go.is_none(), "left {should_go:?} where it was");
        }
        let ready = |message: &&Message| message.state == State::Ready;
        let left = queue.messages.iter().filter(ready).count() as u64;
        Ok(Reply::Moved(Moved {
            moved,
            left,
            stuck: *stuck,
            next: *next,
        }))
    }

    /// Messages that a move leaves where they are and looks behind: another queue's, those that came after
    /// its first step, and those that the step before looked at.
    fn passed_by(&self, command: &Move) -> BTreeSet<Sequence> {
        let Move {
            from, to, cursor, ..
        } = command;
        let queue = &self.queues[from];
        let looked_at = cursor.and_then(|cursor| queue.message(cursor.after));
        let is_passed = |message: &&Message| {
            let of_another = match to {
                MoveTo::Of { source, .. } => !self.is_of(from, message.sequence, source),
                _ => false,
            };
            let came_later = cursor.is_some_and(|cursor| message.sequence >= cursor.below);
            let is_behind = looked_at
                .is_none_or(|last| last.key != message.key || last.arrival < message.arrival);
            message.state == State::Ready && (of_another || came_later || !is_behind)
        };
        let passed = queue.messages.iter().filter(is_passed);
        passed.map(|message| message.sequence).collect()
    }

    /// The queue that a message was dead-lettered from, if it can go back there.
    fn came_from(&self, queue: &QueueName, sequence: Sequence) -> Option<QueueName> {
        let queue = &self.queues[queue];
        let source = whose(queue.message(sequence)?.origin.as_ref()?)?;
        let (name, _) = self.queues.iter().find(|(_, other)| {
            other.id == source
                && other.id != queue.id
                && other.settings.keyed == queue.settings.keyed
        })?;
        Some(name.clone())
    }

    /// Whether a message is a dead letter of the queue `source`.
    fn is_of(&self, queue: &QueueName, sequence: Sequence, source: &QueueName) -> bool {
        let message = self.queues[queue].message(sequence);
        let origin = message.and_then(|message| message.origin.as_ref());
        origin.and_then(whose) == Some(self.queues[source].id)
    }

    /// Whose dead letter a message is once it was moved by an operator.
    fn whose_then(&self, from: &QueueName, sequence: Sequence, to: &QueueName) -> Option<QueueId> {
        let message = self.queues[from].message(sequence)?;
        let source = whose(message.origin.as_ref()?)?;
        let (to, first) = (self.queues[to].id, message.id.queue());
        match source {
            // It is home, or on its way there.
            home if home == to => (first != to).then_some(first),
            elsewhere => Some(elsewhere),
        }
    }

    /// Whether the queue exists and is of that kind.
    pub(super) fn is_dead_letter_queue(&self, name: &QueueName, keyed: bool) -> bool {
        self.queues
            .get(name)
            .is_some_and(|queue| queue.settings.keyed == keyed)
    }

    pub(super) fn attempt_limit(&self, queue: &Queue) -> Option<(u16, QueueName)> {
        let dead_letter = queue.settings.dead_letter.as_ref()?;
        let exists = self.is_dead_letter_queue(dead_letter, queue.settings.keyed);
        (queue.policy() == KeyPolicy::Skip && exists)
            .then(|| (queue.settings.attempts_max, dead_letter.clone()))
    }
}

/// Whose dead letter a message is.
fn whose(origin: &Origin) -> Option<QueueId> {
    match origin.reason {
        DeadLetterReason::Redriven { source } => source,
        _ => Some(origin.queue),
    }
}

/// Whether a move may put a message in that queue.
fn may_go(to: &MoveTo, queue: &QueueName) -> bool {
    match to {
        MoveTo::Queue(name) => name == queue,
        MoveTo::OriginsAmong(names) => names.contains(queue),
        _ => true,
    }
}
