//! Limits: what was charged is kept for ever, and each start is checked against it.

use std::collections::{BTreeMap, BTreeSet};

use lockgate_core::{
    Key, MachineTime, Millis, Sequence,
    limits::{Limit, LimitState, Limiter, Wait},
};
use lockgate_machine::*;

use super::{Message, Model, Queue, State, not_found};

/// The limits of a queue, with all that was ever charged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Charged {
    queue: Limiter,
    key: Limiter,
    of_queue: LimitState,
    of_keys: BTreeMap<Option<Key>, LimitState>,
    /// Whether there ever were limits; before that, nothing is charged.
    ever: bool,
}

impl Queue {
    /// From now on, the limits of its settings.
    pub(super) fn take_limits(&mut self, now: MachineTime) {
        let limits = self.settings.limits();
        let charged = &mut self.charged;
        if !charged.ever {
            charged.ever = !limits.is_none();
            charged.key = Limiter::new(limits.key.unwrap_or_default(), now.0).unwrap();
            charged.queue = Limiter::new(limits.queue.unwrap_or_default(), now.0).unwrap();
            return;
        }
        let keys = limits.key.unwrap_or_default();
        charged.key.change(keys, now.0).unwrap();
        let queue = limits.queue.unwrap_or_default();
        charged.queue.change(queue, now.0).unwrap();
        // What is over is forgotten, so that a gap that is set in the same millisecond does not bring it back.
        let limits = &charged.key;
        charged
            .of_keys
            .retain(|_, state| !LimitState::new(state.debt(), 0).is_idle(limits, now.0));
    }

    /// Holds it, or a key of it; ends a hold with `None`. Returns until when it is held then.
    pub(super) fn hold(
        &mut self,
        what: &HoldTarget,
        until: Option<MachineTime>,
    ) -> Option<MachineTime> {
        if until.is_none() && !self.charged.ever {
            return None;
        }
        self.charged.ever = true;
        let state = match what {
            HoldTarget::Queue => &mut self.charged.of_queue,
            HoldTarget::Key(key) => self.charged.of_keys.entry(key.clone()).or_default(),
        };
        match until {
            Some(until) => state.hold_until(until.0),
            None => state.let_go(),
        }
        until.map(|_| MachineTime(state.debt().held_until()))
    }

    /// How many keys are held or owe something.
    pub(super) fn owing_keys(&self, now: MachineTime) -> u64 {
        let states = self.charged.of_keys.values();
        let owing = states
            .filter(|state| !LimitState::new(state.debt(), 0).is_idle(&self.charged.key, now.0));
        owing.count() as u64
    }

    fn leased(&self, wanted: impl Fn(&Message) -> bool) -> u32 {
        let leased = |message: &&Message| matches!(message.state, State::Leased { .. });
        let leased = self.messages.iter().filter(leased);
        leased.filter(|message| wanted(message)).count() as u32
    }

    fn key_wait(&self, key: Option<&Key>, now: MachineTime) -> Option<(Wait, bool, Limit)> {
        let state = self.charged.of_keys.get(&key.cloned());
        let debt = state.map(LimitState::debt).unwrap_or_default();
        let state = LimitState::new(debt, self.leased(|message| message.key.as_ref() == key));
        let (wait, limit) = self.charged.key.holds(&state, 1, now.0)?;
        Some((wait, true, limit))
    }

    fn queue_wait(&self, now: MachineTime) -> Option<(Wait, bool, Limit)> {
        let debt = self.charged.of_queue.debt();
        let state = LimitState::new(debt, self.leased(|_| true));
        let (wait, limit) = self.charged.queue.holds(&state, 1, now.0)?;
        Some((wait, false, limit))
    }

    pub(super) fn limit_wait(&self, key: &Key, now: MachineTime) -> Option<KeyWait> {
        let waits = [self.key_wait(Some(key), now), self.queue_wait(now)];
        let (wait, of_key, limit) = waits.into_iter().flatten().max()?;
        Some(KeyWait::Limit {
            limit,
            of_key,
            remaining: remaining(wait, now),
        })
    }

    /// How much longer it is held.
    pub(super) fn held(&self, now: MachineTime) -> Option<Millis> {
        held(&self.charged.of_queue, now)
    }

    /// How much longer a key itself is held.
    pub(super) fn own_hold(&self, key: &Key, now: MachineTime) -> Option<Millis> {
        held(self.charged.of_keys.get(&Some(key.clone()))?, now)
    }

    /// How much longer a key or it is held, whichever lasts longer.
    pub(super) fn key_held(&self, key: &Key, now: MachineTime) -> Option<KeyHeld> {
        let of_key = self.own_hold(key, now).unwrap_or(0);
        let of_queue = self.held(now).unwrap_or(0);
        let remaining = of_key.max(of_queue);
        (remaining > 0).then_some(KeyHeld {
            of_key: of_key >= of_queue,
            remaining,
        })
    }

    pub(super) fn limited(&self, now: MachineTime) -> Option<QueueLimited> {
        let (wait, _, limit) = self.queue_wait(now)?;
        let remaining = remaining(wait, now);
        Some(QueueLimited { limit, remaining })
    }

    /// How long its limits still hold something.
    pub(super) fn limited_for(&self, now: MachineTime) -> Vec<Millis> {
        let keys: BTreeSet<_> = self.messages.iter().map(|m| m.key.as_ref()).collect();
        let waits = keys.into_iter().filter_map(|key| self.key_wait(key, now));
        let waits = waits.chain(self.queue_wait(now));
        waits
            .filter_map(|(wait, ..)| remaining(wait, now))
            .collect()
    }

    pub(super) fn charge(&mut self, sequence: Sequence, now: MachineTime) {
        let key = self.message(sequence).unwrap().key.clone();
        let charged = &mut self.charged;
        if charged.ever {
            charged.queue.charge(&mut charged.of_queue, 1, now.0);
        }
        let limits = charged.key.limits();
        if limits.rate.is_some() || limits.gap.is_some() {
            let state = charged.of_keys.entry(key).or_default();
            charged.key.charge(state, 1, now.0);
        }
    }

    /// What was leased then has reached nobody.
    pub(super) fn refund(&mut self, sequence: Sequence, given: MachineTime, now: MachineTime) {
        let key = self.message(sequence).unwrap().key.clone();
        let charged = &mut self.charged;
        let of_queue = &mut charged.of_queue;
        of_queue.refund(&charged.queue, 1, given.0, now.0);
        let state = charged.of_keys.entry(key).or_default();
        state.refund(&charged.key, 1, given.0, now.0);
    }
}

fn held(state: &LimitState, now: MachineTime) -> Option<Millis> {
    let until = state.debt().held_until();
    until.checked_sub(now.0).filter(|&remaining| remaining > 0)
}

fn remaining(wait: Wait, now: MachineTime) -> Option<Millis> {
    match wait {
        Wait::Until(at) => Some(at - now.0),
        _ => None,
    }
}

impl Model {
    pub(super) fn hold(&mut self, Hold { queue, what, time }: &Hold) -> Result<Reply, Rejection> {
        let now = self.now.machine;
        let found = self.queues.get_mut(queue).ok_or_else(|| not_found(queue))?;
        if found.settings.keyed && *what == HoldTarget::Key(None) {
            let queue = queue.clone();
            return Err(Rejection::NoneWithoutKey { queue });
        }
        let until = found.hold(what, (*time > 0).then(|| now.plus(*time)));
        Ok(Reply::Held(until.map(|until| until.since(now))))
    }

    /// Those of the messages that no limit of their keys holds.
    pub(super) fn unlimited(&self, queue: &Queue, mut messages: Vec<Sequence>) -> Vec<Sequence> {
        let now = self.now.machine;
        messages.retain(|sequence| {
            let key = queue.message(*sequence).unwrap().key.as_ref();
            queue.key_wait(key, now).is_none()
        });
        messages
    }

    /// Everything a receive may lease next.
    pub(super) fn startable(&self, queue: &Queue, batch: &BTreeSet<Sequence>) -> Vec<Sequence> {
        match queue.queue_wait(self.now.machine) {
            Some(_) => Vec::new(),
            None => self.unlimited(queue, self.candidates(queue, batch)),
        }
    }

    /// Keys that only a limit of each key holds.
    pub(super) fn limited_keys(&self, queue: &Queue) -> u64 {
        let free = self.candidates(queue, &BTreeSet::new());
        let now = self.now.machine;
        let keys = free
            .iter()
            .map(|sequence| queue.message(*sequence).unwrap().key.as_ref());
        let keys: BTreeSet<_> = keys
            .filter(|key| queue.key_wait(*key, now).is_some())
            .collect();
        keys.len() as u64
    }
}
