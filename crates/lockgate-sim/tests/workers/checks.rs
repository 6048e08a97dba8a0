//! What must hold.

use std::collections::{BTreeMap, BTreeSet};

use lockgate_consumer::dispatch::{ItemId, KeyState, KeyWait, Order, RunId};
use lockgate_core::{MessageId, Settlement};
use lockgate_machine::{Command, Settle};

use crate::{
    Violation,
    hands::{Held, Kind},
    world::{World, key_of, may_come_back_in_front},
};

/// A worker, its run, and the numbers of its messages.
type Holding = (u64, RunId, Vec<usize>);

impl World {
    /// After every event.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        self.check_holders()?;
        for (worker, hands) in &self.workers {
            let counts = hands.dispatcher.counts();
            let left = counts.acknowledged
                + counts.failed
                + counts.deferred
                + counts.rejected
                + counts.given_back
                + counts.lost
                + counts.unconfirmed
                + hands.dispatcher.held() as u64;
            if counts.arrived != left {
                return Err(format!("worker {worker} does not count right: {counts:?}"));
            }
            let claims = (hands.calls.values())
                .filter(|call| matches!(call.kind, Kind::Claim { .. }))
                .count();
            if hands.dispatcher.running() != hands.runs.len() + claims {
                return Err(format!("worker {worker} has runs that nobody handles"));
            }
            if hands.runs.len() > self.plan.options.concurrency {
                return Err(format!("worker {worker} runs too many"));
            }
            if hands.dispatcher.held() > self.plan.options.held_max {
                return Err(format!("worker {worker} holds too many"));
            }
        }
        Ok(())
    }

    /// No two workers believe that they may act on a key. One that is stopped acts on nothing.
    fn check_holders(&self) -> Result<(), Violation> {
        if self.plan.options.order == Order::Unordered {
            return Ok(());
        }
        let mut holders: BTreeMap<(usize, u64), Vec<Holding>> = BTreeMap::new();
        for (&worker, hands) in &self.workers {
            if hands.frozen_until > self.now {
                continue;
            }
            for (&id, run) in &hands.runs {
                if !hands.believes_in(id, run, self.now, self.bug) {
                    continue;
                }
                let numbers: Vec<usize> = run.messages.iter().map(|held| held.0.message).collect();
                let keys: BTreeSet<_> = (numbers.iter())
                    .filter_map(|&number| self.messages[number].key)
                    .collect();
                for key in keys {
                    let place = holders.entry((run.queue, key)).or_default();
                    place.push((worker, id, numbers.clone()));
                }
            }
        }
        for ((queue, key), runs) in holders {
            let [first, others @ ..] = &runs[..] else {
                continue;
            };
            let settings = &self.plan.queues[queue].settings;
            for other in others {
                let is_told = may_come_back_in_front(settings)
                    && other.0 != first.0
                    && (self.is_in_front(&first.2, &other.2)
                        || self.is_in_front(&other.2, &first.2));
                // What was acknowledged first locks its key no more, but its own worker knows of it.
                let is_unlocked = self.plan.at_most_once && other.0 != first.0;
                if !is_told && !is_unlocked {
                    return Err(format!("two believe to have key {key}: {runs:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether all of these stand before all of the others.
    fn is_in_front(&self, these: &[usize], others: &[usize]) -> bool {
        let order = |&number: &usize| self.messages[number].place.map(|(_, order)| order);
        these.iter().map(order).max() < others.iter().map(order).min()
    }

    /// Everything in front of a message in its key is done, or given up, before its handler begins.
    pub(crate) fn check_start(
        &mut self,
        worker: u64,
        queue: usize,
        messages: &[Held],
    ) -> Result<(), Violation> {
        let options = &self.plan.options;
        if messages.is_empty() || messages.len() > options.run_max {
            return Err(format!("a run of {messages:?}"));
        }
        for held in messages {
            if held.0.ends.get() <= self.now {
                return Err(format!("{held:?} starts when its lease has ended"));
            }
        }
        let is_keyed = self.plan.queues[queue].keyed;
        if options.order == Order::Unordered && is_keyed {
            // A message that comes back takes those behind it with it, and they go on here.
            return Ok(());
        }
        let by_one = &self.workers[&worker].runs;
        for run in by_one.values() {
            let is_held = |one: &&Held| {
                run.messages.iter().any(|other| {
                    // A power cut may take leases of queues without keys (decision 0003).
                    let is_known = is_keyed || other.0.token.term == one.0.token.term;
                    other.0.message == one.0.message && other.0.ends.get() > self.now && is_known
                })
            };
            if let Some(twice) = messages.iter().find(is_held) {
                return Err(format!("{twice:?} runs here already"));
            }
        }
        if !is_keyed {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        for held in messages {
            let number = held.0.message;
            let known = &self.messages[number];
            let order = |known: &crate::world::Known| known.place.map(|(_, order)| order);
            for (other, before) in self.messages.iter().enumerate() {
                let is_in_front = before.queue == queue
                    && before.key == known.key
                    && before.place.is_some()
                    && order(before) < order(known);
                if is_in_front
                    && !before.is_over()
                    && !seen.contains(&other)
                    && self.is_there(queue, before.place.map(|(id, _)| id))
                {
                    return Err(format!(
                        "worker {worker} runs {number} before {other}, which is there"
                    ));
                }
            }
            seen.insert(number);
        }
        Ok(())
    }

    /// Whether anything went wrong at all.
    fn is_lossy(&self) -> bool {
        self.plan.faults > 0
    }

    /// Whether a queue has this message. Nobody can say while the shard is away.
    fn is_there(&self, queue: usize, id: Option<MessageId>) -> bool {
        let Some(shard) = self.shard() else {
            return false;
        };
        let view = shard.driver.machine().state_view();
        let queue = &view.queues[&self.plan.queues[queue].name];
        queue.messages.values().any(|there| Some(there.id) == id)
    }

    /// Nothing is settled twice at a time, and only what was handled is acknowledged.
    pub(crate) fn check_settlement(
        &mut self,
        worker: u64,
        id: ItemId,
        held: &Held,
        settlement: &Settlement,
    ) -> Result<(), Violation> {
        let number = held.0.message;
        let calls = self.workers[&worker].calls.values();
        let mut settles = calls.filter_map(|call| match &call.kind {
            Kind::Settle { settles, .. } => Some(settles),
            _ => None,
        });
        if settles.any(|settles| settles.iter().any(|(other, _)| *other == id)) {
            return Err(format!("{number} is settled twice at a time"));
        }
        self.note(format!("worker {worker} settles {number}: {settlement:?}"));
        let known = &mut self.messages[number];
        match settlement {
            Settlement::Ack if known.effects + known.stale_effects == 0 => {
                return Err(format!("{number} is acknowledged, and nobody handled it"));
            }
            Settlement::Ack | Settlement::Reject { .. } => known.is_decided = true,
            _ => {}
        }
        Ok(())
    }

    /// The plant of [`Bug::AcknowledgedFirst`](crate::planted::Bug): behind the dispatcher's back.
    pub(crate) fn acknowledge_first(&mut self, settles: Vec<Settle>) {
        if self.shard().is_some() && !settles.is_empty() {
            self.submit_quietly(settles.into_iter().map(Command::Settle).collect());
        }
    }

    /// Everything has come to its end.
    pub(crate) fn check_at_rest(&mut self) -> Result<(), Violation> {
        let shard = self.shard().ok_or("the shard is away")?;
        let view = shard.driver.machine().state_view();
        let there: BTreeSet<MessageId> = (view.queues.values())
            .flat_map(|queue| queue.messages.values())
            .map(|message| message.id)
            .collect();
        for (number, known) in self.messages.iter().enumerate() {
            let id = known.place.map(|(id, _)| id);
            let is_there = id.is_some_and(|id| there.contains(&id));
            // Where messages are acknowledged first, a claim whose answer is lost has taken its message.
            let may_be_lost = self.plan.at_most_once && self.is_lossy();
            if known.is_accepted && !is_there && !known.is_decided && !may_be_lost {
                return Err(format!("{number} is lost: {known:?}"));
            }
        }
        for (worker, hands) in &self.workers {
            for queue in 0..self.plan.queues.len() {
                for key in 0..self.plan.keys {
                    // An empty lane is dropped at its turn, and while the worker is held none has a turn.
                    let state = hands.dispatcher.explain(queue, &key_of(key));
                    let is_kept = |state: &KeyState| {
                        state.messages > 0
                            || !matches!(state.wait, KeyWait::Limit { of_key: false, .. })
                    };
                    if let Some(state) = state.filter(is_kept) {
                        return Err(format!(
                            "worker {worker} keeps key {key} of {queue}: {state:?}"
                        ));
                    }
                }
            }
            if !hands.runs.is_empty() {
                return Err(format!("worker {worker} still runs something"));
            }
        }
        Ok(())
    }
}
