//! Holds queues and keys for a while: what a callee asks for that takes no more calls now.
//!
//! A hold is one of the limits that [`limits`](super::limits) keeps: the debt of a queue or a key has its end.

use lockgate_core::{
    Key, Level, MachineTime, Millis, Now, QueueId,
    limits::{Debt, HoldScope, LimitState},
};

use super::{Machine, draft::Draft, limits::QueueLimits, send::check_range};
use crate::{Effect, Hold, HoldTarget, KeyHeld, Rejection, Reply};

impl Machine {
    pub(super) fn decide_hold(
        &self,
        draft: &mut Draft,
        Hold { queue, what, time }: &Hold,
        now: Now,
    ) -> Result<Reply, Rejection> {
        check_range("time of the hold", *time, 0, Hold::TIME_MAX)?;
        let state = &self.queues[self.named_queue(queue)?];
        let debt = match what {
            HoldTarget::Key(None) if state.settings.keyed => {
                let queue = queue.clone();
                return Err(Rejection::NoneWithoutKey { queue });
            }
            HoldTarget::Key(key) => self
                .debtor(state.id, key.as_ref())
                .map(|debtor| self.debtors[debtor].debt),
            HoldTarget::Queue => state.limits.as_ref().map(|limits| limits.debt),
        };
        let held = MachineTime(debt.map_or(0, |debt| debt.held_until()));
        let until = (*time > 0).then(|| now.machine.plus(*time).max(held));
        let effect = Effect::Held {
            queue: state.id,
            what: what.clone(),
            until,
        };
        self.check_room_to_hold(draft, state.id, what, until)?;
        draft.add(effect, state.settings.level);
        Ok(Reply::Held(until.map(|until| until.since(now.machine))))
    }

    /// A key that neither owes something nor is held would be one more.
    fn check_room_to_hold(
        &self,
        draft: &mut Draft,
        queue: QueueId,
        what: &HoldTarget,
        until: Option<MachineTime>,
    ) -> Result<(), Rejection> {
        if let HoldTarget::Key(key) = what
            && until.is_some()
            && self.debtor(queue, key.as_ref()).is_none()
        {
            if draft.keys_held >= self.owing_keys_left() {
                return Err(Rejection::ShardFull {
                    what: "keys that owe something or are held",
                    max: self.limits.owing_keys_max,
                });
            }
            draft.keys_held += 1;
        }
        Ok(())
    }

    /// How much longer the queue is held.
    pub(super) fn queue_held(&self, queue: u32, now: MachineTime) -> Option<Millis> {
        let limits = self.queues[queue].limits.as_deref()?;
        remaining(limits.debt, now)
    }

    /// How much longer the key or group itself is held.
    pub(super) fn own_hold(
        &self,
        queue: u32,
        key: Option<&Key>,
        now: MachineTime,
    ) -> Option<Millis> {
        let debtor = self.debtor(self.queues[queue].id, key)?;
        remaining(self.debtors[debtor].debt, now)
    }

    /// How much longer the key or group, or its queue, is held.
    pub(super) fn key_held(
        &self,
        queue: u32,
        key: Option<&Key>,
        now: MachineTime,
    ) -> Option<KeyHeld> {
        let of_key = self.own_hold(queue, key, now);
        let of_queue = self.queue_held(queue, now);
        let longest = of_key.max(of_queue);
        longest.map(|remaining| KeyHeld {
            of_key: of_key == longest,
            remaining,
        })
    }

    /// Holds what a settled message names.
    pub(super) fn draft_hold(
        &self,
        draft: &mut Draft,
        (queue, index): (u32, u32),
        (scope, delay): (HoldScope, Millis),
        now: Now,
        level: Level,
    ) -> Result<(), Rejection> {
        let key = self.keys[self.messages[index].key].name.clone();
        let what = match scope {
            HoldScope::Key if key.is_some() => HoldTarget::Key(key),
            HoldScope::Key | HoldScope::Queue => HoldTarget::Queue,
        };
        let (queue, until) = (self.queues[queue].id, Some(now.machine.plus(delay)));
        self.check_room_to_hold(draft, queue, &what, until)?;
        draft.add(Effect::Held { queue, what, until }, level);
        Ok(())
    }

    pub(super) fn fold_held(
        &mut self,
        id: QueueId,
        what: &HoldTarget,
        until: Option<MachineTime>,
    ) -> Option<()> {
        let queue = self.queue_index(id)?;
        let change = |state: &mut LimitState| match until {
            Some(until) => state.hold_until(until.0),
            None => state.let_go(),
        };
        let limits = &mut self.queues[queue].limits;
        if until.is_none() && limits.is_none() {
            return Some(());
        }
        let now = self.clock.now.machine;
        let limits = limits.get_or_insert_with(|| QueueLimits::none(now));
        let HoldTarget::Key(key) = what else {
            let mut state = LimitState::new(limits.debt, 0);
            change(&mut state);
            limits.debt = state.debt();
            self.await_queue(queue);
            self.wake(self.queues[queue].content);
            return Some(());
        };
        if until.is_some() || self.debtor(id, key.as_ref()).is_some() {
            let debtor = self.change_debt(queue, id, key.clone(), |_, state| change(state));
            self.look_at_debtor(debtor);
        }
        Some(())
    }
}

/// How much longer a hold lasts, if it has not ended.
fn remaining(debt: Debt, now: MachineTime) -> Option<Millis> {
    Some(MachineTime(debt.held_until()).since(now)).filter(|&remaining| remaining > 0)
}
