//! When to receive, and how much.

use lockgate_core::{Backoff, KeyOrder, Millis};

use super::{
    Action, Arrival, Dispatcher, Mode, OptionsError, Order, PRIORITY_MAX, SourceOptions,
    SourceState, list::place, packs::Pack,
};

/// Receives of one source at the same time, if it has more than one of them brings and two answers cannot
/// swap messages of a key.
pub(super) const RECEIVES_MAX: usize = 4;

/// The waits of receives that bring nothing, where the source does not wait itself, and of those that
/// fail.
const VAIN: Backoff = Backoff {
    first: 100,
    max: 5_000,
};

impl SourceOptions {
    /// A source without priority, whose leases last 30 s if it lets them be chosen.
    #[must_use]
    pub fn new(capabilities: lockgate_core::SourceCapabilities) -> Self {
        let longest = u64::try_from(capabilities.lease_max.as_millis()).unwrap_or(Millis::MAX);
        Self {
            lease: (longest > 0).then(|| longest.min(30_000)),
            capabilities,
            priority: 0,
        }
    }

    pub(super) fn check_all(sources: &[Self], held_max: usize) -> Result<(), OptionsError> {
        let count = sources.len() as u64;
        let counts = [
            ("the number of sources", count, 1, 4_096),
            (
                "held_max (each source holds one at least)",
                held_max as u64,
                count,
                u64::MAX,
            ),
        ];
        let rows = sources.iter().flat_map(|source| {
            let longest = source.capabilities.lease_max.as_millis();
            let longest = u64::try_from(longest).unwrap_or(Millis::MAX);
            [
                (
                    "priority",
                    u64::from(source.priority),
                    0,
                    u64::from(PRIORITY_MAX),
                ),
                (
                    "lease",
                    source.lease.unwrap_or(longest),
                    longest.min(1),
                    longest,
                ),
                (
                    "receive_max",
                    source.capabilities.receive_max as u64,
                    1,
                    u64::MAX,
                ),
                (
                    "settle_max",
                    source.capabilities.settle_max as u64,
                    1,
                    u64::MAX,
                ),
            ]
        });
        OptionsError::first(counts.into_iter().chain(rows))
    }
}

impl SourceState {
    pub(super) fn new(options: SourceOptions) -> Self {
        Self {
            options,
            held: 0,
            receives: 0,
            expected: 0,
            is_deep: false,
            is_closed: false,
            receive_at: 0,
            vain: 0,
            calls: Default::default(),
            resting: Default::default(),
            settle_calls: 0,
            extends: Default::default(),
        }
    }
}

impl<M: Clone> Dispatcher<M> {
    /// A receive, if there is reason for one.
    ///
    /// Each source has an equal share of what may be held, so that the backlog of one, whatever its
    /// priority, leaves room for the others.
    pub(super) fn receive(&mut self, number: usize, now: Millis) -> Option<Action<M>> {
        let share = self.share();
        let is_hungry = self.turns.ready() == 0 && self.runs.len() < self.options.concurrency;
        let source = &mut self.sources[number];
        let can = &source.options.capabilities;
        let room = share.saturating_sub(source.held + source.expected);
        // Small receives cost as much as large ones, so a part of the share gathers first, unless there
        // is nothing to do.
        let worthwhile = if is_hungry {
            1
        } else {
            can.receive_max.min(share.div_ceil(4))
        };
        // A source that keeps no order may give two receives messages of one key, and either may be answered
        // first.
        let may_swap = can.key_order == KeyOrder::None && self.options.order != Order::Unordered;
        let others = if source.is_deep && !may_swap {
            RECEIVES_MAX
        } else {
            1
        };
        let is_time = now >= source.receive_at && source.receives < others && !source.is_closed;
        if !is_time || room < worthwhile || self.held_bytes >= self.options.held_bytes_max {
            return None;
        }
        let max = room.min(can.receive_max);
        source.receives += 1;
        source.expected += max;
        // Of a deep key so few that the share has room for as many keys as can run, twice.
        let mut key_max = share.div_ceil(2 * self.options.concurrency);
        key_max = key_max.max(self.options.run_max).min(max);
        if can.key_order == KeyOrder::Locked && self.options.order == Order::Unordered {
            // Those of a key would be settled in any order, and the source may want its own.
            key_max = 1;
        }
        Some(Action::Receive {
            source: number,
            max,
            lease: source.options.lease,
            key_max,
        })
    }

    /// How many messages of one source may be held. A pack is one: what is asked for are packs.
    pub(super) fn share(&self) -> usize {
        self.options.held_max / self.sources.len()
    }

    /// Takes what a receive of `max` messages brought, in the order of the answer.
    ///
    /// # Panics
    /// If there is no such source.
    pub fn received(
        &mut self,
        source: usize,
        max: usize,
        arrivals: impl IntoIterator<Item = Arrival<M>>,
        now: Millis,
    ) {
        self.now = self.now.max(now);
        let before = self.counts.arrived;
        let mut current = 0;
        let mut pack: Option<(u64, u32)> = None;
        for arrival in arrivals {
            let is_joined =
                arrival.pack.is_some() && arrival.pack == pack.map(|(number, _)| number);
            if !is_joined {
                current += u64::from(arrival.lease > 0);
                let new = |number| (number, place(self.packs.insert(Pack::default())));
                pack = arrival.pack.map(new);
            }
            self.arrive(source, arrival, pack.map(|(_, pack)| pack), now);
        }
        let arrived = self.counts.arrived - before;
        let state = &mut self.sources[source];
        state.answered(max);
        state.is_deep = current >= max as u64;
        if current > 0 {
            state.vain = 0;
            state.receive_at = now;
        } else if arrived > 0 || state.options.capabilities.wait_max.is_zero() {
            state.vain = state.vain.saturating_add(1);
            state.receive_at = now + VAIN.after(state.vain, u64::MAX);
        }
        if self.mode != Mode::Working {
            self.give_back_waiting();
        }
    }

    /// A receive of `max` messages failed, or brought nothing well before its wait was over. The next one
    /// waits a while, longer each time until one brings a message; `random` is any number, each equally
    /// likely.
    ///
    /// # Panics
    /// If there is no such source.
    pub fn receive_failed(&mut self, source: usize, max: usize, now: Millis, random: u64) {
        self.now = self.now.max(now);
        let state = &mut self.sources[source];
        state.answered(max);
        state.is_deep = false;
        state.vain = state.vain.saturating_add(1);
        state.receive_at = now + VAIN.after(state.vain, random);
    }

    /// The source gives no more messages: nothing is received of it any more. What is here runs, and what a
    /// handler did not try goes back.
    ///
    /// # Panics
    /// If there is no such source.
    pub fn closed(&mut self, source: usize) {
        self.sources[source].is_closed = true;
    }
}

impl SourceState {
    fn answered(&mut self, max: usize) {
        self.receives = self.receives.saturating_sub(1);
        self.expected = self.expected.saturating_sub(max);
    }
}
