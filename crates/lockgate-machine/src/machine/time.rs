//! Terms, timers and retention.

use lockgate_core::{
    BootId, Epoch, Level, MachineTime, Now, Position, Sequence, ShardId, Term, WallTime,
};

use super::{
    ClockState, Machine,
    draft::Draft,
    send::check_range,
    state::{State, Timer, flag},
};
use crate::{
    DropReason, Effect, Rejection, Reply,
    slab::NONE,
    table::HashSeed,
    wheel::{Prepared, Wheel},
};

/// The most timers that one [`Effect::Advanced`] fires, and that a [`Machine::tick`] examines: a
/// bound on the time of one fold.
pub(super) const TIMERS_PER_STEP: u32 = 256;

/// The most timers that one [`Machine::tick`] moves: about 100 µs with millions of timers.
pub(super) const MOVES_PER_STEP: u32 = 1_024;

impl Machine {
    /// The effects of passed time up to `now`: log and fold them like the effects of a command,
    /// repeatedly until this returns `None`. `now` may be earlier than the commands' time by as
    /// much as the clock's readings may be late, so that nothing ends too early.
    ///
    /// Each call with its fold is a step of bounded work, however many timers are due: a step may
    /// only bring timers into order, and then its effect is only that time has passed. Commands may
    /// be decided between two steps; for them, the remaining timers have not fired yet.
    #[must_use]
    pub fn tick(&mut self, now: Now) -> Option<Effect> {
        let is_behind = self.tick_limits(now.machine);
        if !self.machine.has_due(now.machine.0) && !self.wall.has_due(now.wall.0) && !is_behind {
            return None;
        }
        let budget = self.prepare_timers(now);
        Some(Effect::Advanced { now, budget })
    }

    /// Brings due timers into order, and returns a budget that fires only those.
    fn prepare_timers(&mut self, now: Now) -> u32 {
        let (mut moves, mut looks, mut budget) = (MOVES_PER_STEP, TIMERS_PER_STEP, 0);
        for is_wall in [false, true] {
            let at = if is_wall { now.wall.0 } else { now.machine.0 };
            let prepared = self
                .wheel(is_wall)
                .prepare(at, TIMERS_PER_STEP as usize, &mut moves);
            let wheel = if is_wall { &self.wall } else { &self.machine };
            let mut dead = 0;
            for payload in wheel.ready(at) {
                if looks == 0 {
                    break;
                }
                looks -= 1;
                match Timer::from_bits(payload) {
                    // They use the rest of the budget, however much of it they need.
                    Timer::Sweep(_) | Timer::Dedup(_) | Timer::Producers(_) | Timer::Ledger(_) => {
                        return TIMERS_PER_STEP;
                    }
                    Timer::Message(message) | Timer::TimeToLive(message)
                        if self.is_purged(message) =>
                    {
                        dead += u32::from(budget == 0);
                    }
                    _ => budget += 1,
                }
            }
            // Timers of purged messages take no budget, and would block the others for ever if they stayed.
            for _ in 0..dead {
                if let Some(fired) = self.wheel(is_wall).pop_due(at) {
                    self.fire(Timer::from_bits(fired.payload), now, 0);
                }
            }
            if prepared == Prepared::OutOfMoves || looks == 0 {
                break;
            }
        }
        budget
    }

    fn is_purged(&self, message: u32) -> bool {
        self.contents[self.keys[self.messages[message].key].content].dead
    }

    fn wheel(&mut self, is_wall: bool) -> &mut Wheel {
        if is_wall {
            &mut self.wall
        } else {
            &mut self.machine
        }
    }

    pub(super) fn fold_advanced(&mut self, now: Now, budget: u32) -> Option<()> {
        self.note_time(now);
        let mut left = budget;
        while left > 0
            && let Some(fired) = self.machine.pop_due(now.machine.0)
        {
            left = left.saturating_sub(self.fire(Timer::from_bits(fired.payload), now, left));
        }
        while left > 0
            && let Some(fired) = self.wall.pop_due(now.wall.0)
        {
            left = left.saturating_sub(self.fire(Timer::from_bits(fired.payload), now, left));
        }
        Some(())
    }

    /// Fires a timer that was taken out of its wheel. Returns how much of the budget that used: nothing for
    /// purged messages, because the time when they are freed must not change what else fires; and all of it
    /// for a sweep, which may need many steps, so that the budget need not count them.
    fn fire(&mut self, timer: Timer, now: Now, budget: u32) -> u32 {
        match timer {
            Timer::Message(index) => self.fire_message(index),
            Timer::TimeToLive(index) => self.fire_time_to_live(index),
            Timer::Sweep(queue) => {
                self.queues[queue].sweep_timer = NONE;
                self.sweep(queue, budget);
                budget
            }
            Timer::Dedup(queue) => {
                let state = &mut self.queues[queue];
                state.dedup_timer = NONE;
                let forgotten = state.dedup.expire(now.machine, budget as usize);
                self.unique_ids -= forgotten as u64;
                self.arm_dedup(queue);
                budget
            }
            Timer::Producers(queue) => {
                self.expire_producers(queue, now, budget);
                budget
            }
            Timer::Ledger(ledger) => {
                self.fire_ledger(ledger, now.wall, budget);
                budget
            }
            Timer::Schedule(schedule) => {
                self.fire_schedule(schedule);
                1
            }
            Timer::Hold(queue) => {
                let state = &mut self.queues[queue];
                state.hold_timer = NONE;
                state.held_until = None;
                let content = state.content;
                self.wake(content);
                1
            }
            Timer::RecordLease(record) => {
                self.fire_record_lease(record);
                1
            }
        }
    }

    fn fire_message(&mut self, index: u32) -> u32 {
        self.set_timer(index, NONE);
        let message = &self.messages[index];
        let content = &self.contents[self.keys[message.key].content];
        if content.dead {
            return 0;
        }
        let queue = content.queue;
        match message.state {
            State::Delayed => self.come_due(index),
            State::Backoff => self.return_or_expire(queue, index),
            State::Leased => {
                self.queues[queue].totals.leases_ended += 1;
                let key = message.key;
                if self.parks_now(queue, index) {
                    self.set_parked(key, true);
                }
                self.return_or_expire(queue, index);
            }
            // A ready message has no timer.
            State::Ready => {}
        }
        1
    }

    /// Returns a message that is not leased any more to its place, or drops it if its time to live is over.
    fn return_or_expire(&mut self, queue: u32, index: u32) {
        if self.is_overdue(index, self.clock.now.wall) {
            self.drop_message(queue, index, DropReason::Expired);
        } else {
            self.return_to_order(index);
        }
    }

    fn fire_time_to_live(&mut self, index: u32) -> u32 {
        if let Some(entry) = self.time_to_live(index) {
            self.times_to_live[entry].timer = NONE;
        }
        let message = &mut self.messages[index];
        let content = &self.contents[self.keys[message.key].content];
        if content.dead {
            return 0;
        }
        if message.state == State::Leased {
            message.set(flag::OVERDUE, true);
        } else {
            self.drop_message(content.queue, index, DropReason::Expired);
        }
        1
    }

    /// Drops messages beyond the queue's retention, oldest first. Skips leased messages: they are
    /// checked again when their lease ends.
    fn sweep(&mut self, queue: u32, budget: u32) {
        let content = self.queues[queue].content;
        let mut used = 0;
        loop {
            let index = self.contents[content].unswept;
            if index == NONE || used >= budget {
                break;
            }
            if !self.is_over_retention(queue, index) {
                break;
            }
            let message = &self.messages[index];
            self.contents[content].unswept = message.age.after;
            if message.state != State::Leased {
                self.drop_message(queue, index, DropReason::Expired);
            }
            used += 1;
        }
        self.arm_sweep(content);
    }

    fn is_over_retention(&self, queue: u32, index: u32) -> bool {
        let retention = self.queues[queue].settings.retention;
        self.messages[index].since().plus(retention) <= self.clock.now.wall
    }

    /// Ensures that there is a timer for the first message that the sweep has not passed. An
    /// earlier timer stays: it finds nothing and sets itself again, at most once per retention.
    pub(super) fn arm_sweep(&mut self, content: u32) {
        let state = &self.contents[content];
        let queue = &mut self.queues[state.queue];
        if queue.sweep_timer != NONE || state.unswept == NONE {
            return;
        }
        let since = self.messages[state.unswept].since();
        let deadline = since.plus(queue.settings.retention);
        queue.sweep_timer = self.wall.insert(
            deadline.0,
            u64::from(queue.id.0),
            Timer::Sweep(state.queue).to_bits(),
        );
    }

    /// Sweeps all messages again, after the settings changed.
    pub(super) fn rearm_sweep(&mut self, queue: u32) {
        let state = &mut self.queues[queue];
        let timer = std::mem::replace(&mut state.sweep_timer, NONE);
        if timer != NONE {
            self.wall.remove(timer);
        }
        let content = state.content;
        self.contents[content].unswept = self.contents[content].by_age.first;
        self.arm_sweep(content);
    }

    /// Ensures that there is a timer for the unique id that expires first.
    pub(super) fn arm_dedup(&mut self, queue: u32) {
        let state = &mut self.queues[queue];
        let Some(expiry) = state.dedup.next_expiry() else {
            return;
        };
        if state.dedup_timer != NONE {
            if state.dedup_at <= expiry {
                return;
            }
            // The window was made shorter, so that a later id expires earlier.
            self.machine.remove(state.dedup_timer);
        }
        state.dedup_at = expiry;
        state.dedup_timer = self.machine.insert(
            expiry.0,
            // Different from the timer that ends holding back, which may be in the same millisecond.
            u64::from(state.id.0) << 1 | 1,
            Timer::Dedup(queue).to_bits(),
        );
    }

    pub(super) fn decide_start_term(
        &self,
        draft: &mut Draft,
        term: Term,
        boot_id: BootId,
        clock_offset: i64,
        secret: &[u8; 32],
        now: Now,
    ) -> Result<Reply, Rejection> {
        if let Some(own) = self.shard()
            && own != term.shard
        {
            return Err(Rejection::OtherShard {
                given: term.shard,
                own,
            });
        }
        let lowest = if self.terms.is_empty() {
            0
        } else {
            self.term().epoch.0.saturating_add(1)
        };
        check_range("epoch", term.epoch.0, lowest, u64::MAX)?;
        draft.add(
            Effect::TermStarted {
                term,
                boot_id,
                clock_offset,
                // Each record has it, so a lost one does not make the shard another.
                secret: self.secret.unwrap_or(*secret),
                now,
            },
            self.limits.log_level.min(Level::Disk),
        );
        Ok(Reply::Done)
    }

    /// Forgets in which records things happened, for a restore: the state moves to another log, in
    /// which these positions name other records or none, and all of it is durable there. Where the
    /// messages are stays.
    pub fn forget_positions(&mut self) {
        for (_, key) in self.keys.iter_mut() {
            key.set_settled_at(Position(0));
        }
        for (_, content) in self.contents.iter_mut() {
            content.removed_at = Position(0);
        }
        for (_, queue) in self.queues.iter_mut() {
            queue.changed_at = Position(0);
            queue.lease_bound_at = Position(0);
            queue.reserve.at = Position(0);
            queue.reserve.at_before = Position(0);
            queue.dedup.forget_positions();
            if let Some(producers) = queue.producers.as_deref_mut() {
                producers.forget_positions();
            }
        }
        self.ledgers.forget_positions();
        self.exchanges.forget_positions();
        self.schedules.forget_positions();
        self.forget_shared();
    }

    /// Begins a term under another shard number, for a restore: it changes nothing else, and gives
    /// nothing out. `None` before the first term, which sets the number.
    #[must_use]
    pub fn renumbered(&self, shard: ShardId, epoch: Epoch) -> Option<Effect> {
        Some(Effect::TermStarted {
            term: Term {
                shard,
                epoch,
                ..*self.terms.last()?
            },
            boot_id: self.clock.boot_id,
            clock_offset: self.clock.clock_offset,
            secret: self.secret?,
            now: self.clock.now,
        })
    }

    pub(super) fn fold_term_started(
        &mut self,
        term: Term,
        boot_id: BootId,
        clock_offset: i64,
        secret: &[u8; 32],
        now: Now,
    ) -> Option<()> {
        let power_cut = !self.terms.is_empty() && !boot_id.has_storage_of(self.clock.boot_id);
        self.terms.push(term);
        self.next_lease = 1;
        self.note_time(now);
        self.clock = ClockState {
            boot_id,
            clock_offset,
            now: self.clock.now,
        };
        if self.secret.is_none() {
            self.secret = Some(*secret);
            // Tables must be used with the seed they were filled with. They are empty here, unless
            // the record of the first term was lost.
            let tables = [
                self.queues.is_empty(),
                self.keys.is_empty(),
                self.holders.is_empty(),
                self.debtors.is_empty(),
                self.ledgers.by_id.is_empty(),
            ];
            if tables == [true; 5] {
                self.seed = HashSeed::from_secret(secret);
            }
        }
        let queues: Vec<u32> = self.queues.iter().map(|(queue, _)| queue).collect();
        for queue in queues {
            self.skip_reserved(queue);
            if power_cut {
                self.hold(queue);
            }
        }
        Some(())
    }

    /// Reserved numbers may have been given out, so they are never given out again.
    fn skip_reserved(&mut self, queue: u32) {
        let state = &mut self.queues[queue];
        if state.reserve.below > state.next_sequence {
            let lost = state.reserve.below.0 - state.next_sequence.0;
            state.totals.possibly_lost += lost;
            state.next_sequence = state.reserve.below;
        }
        state.reserve.below = Sequence(0);
        state.reserve.below_before = Sequence(0);
    }

    /// Gives no leases before the lease bound has passed: messages may still be held under leases
    /// that a power cut took.
    fn hold(&mut self, queue: u32) {
        let state = &mut self.queues[queue];
        let until = state.lease_bound;
        if !state.settings.keyed || until <= self.clock.now.machine {
            return;
        }
        state.held_until = Some(until);
        if state.hold_timer != NONE {
            self.machine.remove(state.hold_timer);
        }
        state.hold_timer = self.machine.insert(
            until.0,
            u64::from(state.id.0) << 1,
            Timer::Hold(queue).to_bits(),
        );
    }

    pub(super) fn fold_term_ended(&mut self, now: Now) -> Option<()> {
        self.note_time(now);
        let queues: Vec<u32> = self.queues.iter().map(|(queue, _)| queue).collect();
        for queue in queues {
            let state = &mut self.queues[queue];
            state.reserve.below = Sequence(0);
            state.reserve.below_before = Sequence(0);
        }
        Some(())
    }

    /// Sets the time to `now`; machine time never goes back.
    pub(super) fn note_time(&mut self, now: Now) {
        self.clock.now = self.monotonic(now);
    }

    /// The time until `instant`; zero if it has passed.
    pub(super) fn remaining(instant: MachineTime, now: Now) -> u64 {
        instant.since(now.machine)
    }

    /// When the oldest deliverable message of a queue was accepted or became due.
    pub(super) fn oldest(&self, content: u32) -> Option<WallTime> {
        let first = self.contents[content].by_age.first;
        (first != NONE).then(|| self.messages[first].since())
    }
}
