//! The keyed dispatcher, as a pure machine.
//!
//! A [`Dispatcher`] decides what to receive, what to run, what to settle and which leases to extend.
//! It does no I/O and reads no clock: a shell around it carries out its [`Action`]s, tells it what came
//! of them, and passes time in, in milliseconds of a clock that never goes back.
//!
//! | input | when |
//! |---|---|
//! | [`received`](Dispatcher::received), [`receive_failed`](Dispatcher::receive_failed) | an [`Action::Receive`] has its answer |
//! | [`finished`](Dispatcher::finished) | a run has ended, in whichever way |
//! | [`settled`](Dispatcher::settled) | an [`Action::Settle`] has its answer |
//! | [`extended`](Dispatcher::extended) | an [`Action::Extend`] has its answer |
//! | [`claiming`](Dispatcher::claiming), [`claimed`](Dispatcher::claimed) | the messages of a run are, and were, acknowledged before it begins |
//! | [`closed`](Dispatcher::closed) | a source gives no more messages |
//! | [`pause`](Dispatcher::pause), [`resume`](Dispatcher::resume), [`drain`](Dispatcher::drain) | an operator wants so |
//!
//! ```
//! use lockgate_consumer::dispatch::{
//!     Action, Arrival, DispatchOptions, Dispatcher, Rest, RunEnd, SourceOptions,
//! };
//! use lockgate_core::{Key, SourceCapabilities};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = SourceOptions::new(SourceCapabilities::plain());
//! let mut dispatcher = Dispatcher::new(DispatchOptions::default(), vec![source], 0)?;
//! let arrival = |message: &'static str| -> Result<_, Box<dyn std::error::Error>> {
//!     Ok(Arrival {
//!         message,
//!         key: Some(Key::new("user-42")?),
//!         tenant: None,
//!         priority: 0,
//!         bytes: 4,
//!         cost: 1,
//!         attempt: 1,
//!         age: None,
//!         lease: 30_000,
//!         alone: false,
//!         pack: None,
//!         at_once: None,
//!     })
//! };
//! dispatcher.received(0, 10, [arrival("post")?, arrival("delete")?], 0);
//!
//! // Both have one key: the second waits for the first.
//! let Some(Action::Start(first)) = dispatcher.poll(0) else { panic!("nothing to run") };
//! assert_eq!(first.messages[0].0, "post");
//! assert!(!matches!(dispatcher.poll(0), Some(Action::Start(_))));
//! let end = RunEnd { done: 1, rest: Rest::Cancelled };
//! assert!(dispatcher.finished(first.run, end, 5, 0));
//! # Ok(())
//! # }
//! ```
//!
//! After each input, and when [`next_deadline`](Dispatcher::next_deadline) has come, the shell calls
//! [`poll`](Dispatcher::poll) until it returns `None`.
//!
//! # Lanes
//!
//! Messages that wait for each other form a *lane*: by default those of one key. A lane is idle, ready,
//! running, or delayed until a retry:
//!
//! ```text
//!            arrival                  its turn
//!   (none) ──────────► ready ───────────────────► running
//!      ▲                 ▲ ▲      more waits         │ │
//!      │                 │ └─────────────────────────┘ │ failed, and the source does not wait
//!      │ nothing left    └───────── delayed ◄──────────┘
//! ```
//!
//! Messages of a [pack](Arrival::pack) are settled together when each of them has ended, in one call.
//!
//! With [`DispatchOptions::coalescing`] a run covers all that is here of its key, and a lane may wait for more of it.
//!
//! # Invariants
//!
//! - A lane has at most one run, and messages of a lane start in the order in which they arrived.
//! - A message whose lease is lost is not started, and its run is cancelled.
//! - A message is settled at most once at a time, and those of a lane are settled in order.
//! - While a message of a pack waits or runs, none of the pack is settled.
//! - Every message that arrives leaves by exactly one of [`DispatchCounts`]' ways: arrived =
//!   acknowledged + failed + deferred + rejected + given back + lost + unconfirmed + held.
//! - What a run covers is acknowledged if it succeeds, together, and otherwise none of it.
//! - An idle lane takes no memory.

mod coalescing;
mod lane;
mod lanes;
mod leases;
mod limits;
mod list;
mod options;
mod packs;
mod receives;
mod settles;
#[cfg(test)]
mod tests;
mod timers;
mod turns;

use std::{collections::VecDeque, hash::RandomState, sync::Arc};

use hashbrown::HashTable;
use lockgate_core::{
    Key, Millis, Settlement,
    limits::{HoldScope, Limit},
};
use slab::Slab;
use smallvec::SmallVec;

pub use lockgate_core::Backoff;

pub use self::{
    coalescing::Coalescing,
    options::{DispatchOptions, Fairness, OptionsError, Order, PRIORITY_MAX, SourceOptions},
};
use self::{
    lane::{Item, Lane, Run},
    limits::WorkerLimits,
    packs::Pack,
    timers::Timers,
    turns::Turns,
};

/// Decides what a worker does next.
///
/// `M` is what the shell keeps for a message: its content and its receipt. It is cloned for each action,
/// so make it cheap to clone.
#[derive(Debug)]
pub struct Dispatcher<M> {
    options: DispatchOptions,
    sources: Vec<SourceState>,
    /// The sources' priorities, for the turns.
    priorities: Vec<u8>,
    items: Slab<Item<M>>,
    packs: Slab<Pack>,
    held_bytes: u64,
    lanes: Slab<Lane>,
    /// Lanes that have a name, by the hash of source and name.
    by_name: HashTable<u32>,
    hasher: RandomState,
    turns: Turns,
    runs: Slab<Run>,
    /// If there are any.
    limits: Option<Box<WorkerLimits>>,
    /// When to look at which leases.
    looks: Timers<ItemId>,
    /// When which lanes are ready again.
    delayed: Timers<u32>,
    /// When which runs have taken too long.
    overdue: Timers<RunId>,
    cancels: VecDeque<(RunId, Cancelled)>,
    mode: Mode,
    /// Runs were cancelled at the deadline of a drain.
    drain_over: bool,
    counts: DispatchCounts,
    next_number: u64,
    /// When something last started, ended, or had nothing to wait for.
    moved: Millis,
    /// The latest time that was passed in.
    now: Millis,
}

/// What the dispatcher does with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Working,
    Paused,
    /// Until when runs may go on.
    Draining(Millis),
}

#[derive(Debug)]
struct SourceState {
    options: SourceOptions,
    /// Messages, of which those of a pack count as one.
    held: usize,
    /// Receives on their way, and the messages they may bring.
    receives: usize,
    expected: usize,
    /// The last receive brought all that it might.
    is_deep: bool,
    /// It gives no more messages.
    is_closed: bool,
    receive_at: Millis,
    /// Receives since the last message that brought nothing before their time or failed.
    vain: u32,
    /// Lanes with something to settle, and no call for it.
    calls: VecDeque<u32>,
    /// Lanes of which the last call settled not all, by the time at which they are tried again.
    resting: Timers<u32>,
    settle_calls: usize,
    /// Leases to extend.
    extends: VecDeque<ItemId>,
}

/// A message that a receive brought.
#[derive(Clone, Debug)]
pub struct Arrival<M> {
    /// What the shell keeps for it.
    pub message: M,
    /// Its ordering key.
    pub key: Option<Key>,
    /// Whose share it takes, with [`Fairness::Tenants`].
    pub tenant: Option<Key>,
    /// Its priority, 0 to [`PRIORITY_MAX`]; a higher one counts as the highest. Only for messages that
    /// wait for no others: within a lane the order counts.
    pub priority: u8,
    /// Its size.
    pub bytes: u64,
    /// What it costs under [`DispatchOptions::limits`], 1 to [`UNITS_MAX`](lockgate_core::limits::UNITS_MAX). A message
    /// that costs more than they ever admit is rejected.
    pub cost: u32,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// How long ago its source accepted it, in milliseconds. `None`: it does not tell, so nothing is known from before
    /// the arrival.
    pub age: Option<Millis>,
    /// How much longer its lease lasts, in milliseconds.
    pub lease: Millis,
    /// It has a run for itself, also where a run may have more messages.
    pub alone: bool,
    /// If it came in a pack, a number that is the same for all messages of the pack. They have one lease, and follow
    /// each other in the answer; those of another pack next to them have another number.
    pub pack: Option<u64>,
    /// It does not run, and is settled so at once.
    pub at_once: Option<Settlement>,
}

/// Names a held message, and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemId {
    place: u32,
    number: u64,
}

/// Names a run, and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId {
    place: u32,
    number: u64,
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<M> {
    /// Receive up to `max` messages, and tell by [`Dispatcher::received`] or
    /// [`Dispatcher::receive_failed`].
    Receive {
        /// The number of the source.
        source: usize,
        /// At most so many messages.
        max: usize,
        /// How long the leases should last, in milliseconds; `None`: the source cannot choose.
        lease: Option<Millis>,
        /// At most so many messages of one key, where the source can tell.
        key_max: usize,
    },
    /// Handle these messages of one lane, in order, and tell by [`Dispatcher::finished`].
    Start(Started<M>),
    /// End a run as soon as possible, and tell by [`Dispatcher::finished`] when it has ended.
    Cancel {
        /// Which one.
        run: RunId,
        /// Why.
        why: Cancelled,
    },
    /// Settle, in this order, and tell by [`Dispatcher::settled`].
    Settle {
        /// The number of the source.
        source: usize,
        /// What, and how. Messages of a pack follow each other: they are settled as one, and have one answer.
        items: Vec<(ItemId, M, Settlement)>,
    },
    /// Extend leases to `lease` milliseconds from now, and tell by [`Dispatcher::extended`].
    Extend {
        /// The number of the source.
        source: usize,
        /// Which; of a pack one message.
        items: Vec<(ItemId, M)>,
        /// How long they should last from now on.
        lease: Millis,
    },
}

/// A run that begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Started<M> {
    /// Its name.
    pub run: RunId,
    /// The number of the source.
    pub source: usize,
    /// The messages with the number of their attempt.
    pub messages: SmallVec<[(M, u32); 1]>,
}

/// Why a run is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The lease of one of its messages has ended or is not current any more: somebody else may have it.
    LeaseLost,
    /// It has taken longer than [`DispatchOptions::run_time_max`].
    TooLong,
    /// The dispatcher is being drained, and the deadline has come.
    Draining,
    /// The worker was dropped. A dispatcher does not say so.
    Dropped,
}

/// How a run ended: the first `done` of its messages succeeded, and `rest` says what became of the one
/// behind them. It does not count if all have succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunEnd {
    /// So many of the messages succeeded, from the first on.
    pub done: usize,
    /// What became of the next.
    pub rest: Rest,
}

/// What became of the first message of a run that did not succeed. Those behind it were not tried.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rest {
    /// It failed, and is tried again after a while.
    Failed {
        /// Why.
        error: Arc<str>,
        /// After how many milliseconds; `None`: as [`Backoff`] says.
        retry_in: Option<Millis>,
    },
    /// It comes again later, and the attempt does not count.
    Deferred {
        /// After how many milliseconds.
        delay: Millis,
    },
    /// The same, and more than the message waits: a source that [can](lockgate_core::SourceCapabilities::hold) holds
    /// what `scope` names.
    Held {
        /// After how many milliseconds.
        delay: Millis,
        /// With [`Queue`](HoldScope::Queue), nothing of the worker starts before.
        scope: HoldScope,
    },
    /// It can never succeed.
    Rejected {
        /// Why.
        reason: Arc<str>,
    },
    /// It was not tried to its end: it comes again, and the attempt does not count. If nobody has
    /// cancelled the run, it comes again after a [`Backoff`], or goes back at once if its source is
    /// [closed](Dispatcher::closed).
    Cancelled,
    /// The same, and its handler did not begin: a source that limits starts counts none.
    NotBegun,
}

/// What became of the messages that have arrived, since the dispatcher was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatchCounts {
    /// Messages that arrived.
    pub arrived: u64,
    /// Runs that began.
    pub started: u64,
    /// Messages that were acknowledged, or done in a pack of which others come again.
    pub acknowledged: u64,
    /// Messages that were returned to the source as failed.
    pub failed: u64,
    /// Messages that were returned to the source to come later.
    pub deferred: u64,
    /// Messages that were rejected.
    pub rejected: u64,
    /// Messages that were returned to the source without an attempt.
    pub given_back: u64,
    /// Messages whose lease was lost before they were settled, or of which the source refused the
    /// settlement: they come again when their lease ends, if it has not.
    pub lost: u64,
    /// Messages whose settlement was asked for, and may have been done: an answer did not come, and later the
    /// source knew the lease no more or the lease was over. Mostly it was done; if not, they come again.
    pub unconfirmed: u64,
    /// Messages that were acknowledged with a run that [covered](DispatchOptions::coalescing) them beside its first.
    pub covered: u64,
    /// Failed attempts of which the message was tried again without being returned.
    pub retried: u64,
    /// Ends of runs that were not current any more: they changed nothing.
    pub stale_ends: u64,
}

/// Why a key does not run, or that it does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyState {
    /// What it waits for.
    pub wait: KeyWait,
    /// How many messages of it are here and not settled, those that run included.
    pub messages: usize,
    /// Settlements that the source has not confirmed.
    pub unsettled: usize,
    /// What the last attempt failed with.
    pub error: Option<Arc<str>>,
}

/// What a key waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyWait {
    /// It runs since then.
    Running(Millis),
    /// It waits for room since then: all runs are taken, or others have their turn first.
    Room(Millis),
    /// It waits for a retry until then.
    Retry(Millis),
    /// It waits for a limit of the worker.
    Limit {
        /// Which one.
        limit: Limit,
        /// Whether it is one of the key, or of the worker as a whole.
        of_key: bool,
        /// Until when; `None`: until something that it counts ends.
        until: Option<Millis>,
    },
    /// It waits for more messages to be [covered](DispatchOptions::coalescing) by the same run, until then.
    Coalescing(Millis),
    /// Nothing of it waits here: only settlements are on their way.
    Settling,
    /// The dispatcher is paused or drained.
    Stopped,
}

/// Work waits and nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Since when.
    pub since: Millis,
    /// Lanes that are ready.
    pub ready: usize,
    /// Runs that go on; as many as there may be if they are what it waits for.
    pub runs: usize,
    /// Since when the oldest of them goes on.
    pub oldest_run: Option<Millis>,
}

impl<M: Clone> Dispatcher<M> {
    /// A dispatcher for these sources, which are named by their place.
    ///
    /// # Errors
    /// If an option or a limit is out of range, or there are no sources, more than 4,096, or more than messages
    /// may be held.
    pub fn new(
        mut options: DispatchOptions,
        sources: Vec<SourceOptions>,
        now: Millis,
    ) -> Result<Self, OptionsError> {
        options.check()?;
        if let Some(coalescing) = options.coalescing {
            options.run_max = coalescing.messages_max;
            if coalescing.period > 0 {
                let gap = &mut options.limits.key.get_or_insert_default().gap;
                *gap = (*gap).max(Some(coalescing.period));
            }
        }
        let limits = WorkerLimits::new(&options.limits, now)?;
        SourceOptions::check_all(&sources, options.held_max)?;
        Ok(Self {
            priorities: sources.iter().map(|source| source.priority).collect(),
            turns: Turns::new(sources.len(), options.run_max, options.aging),
            sources: sources.into_iter().map(SourceState::new).collect(),
            options,
            items: Slab::new(),
            packs: Slab::new(),
            held_bytes: 0,
            lanes: Slab::new(),
            by_name: HashTable::new(),
            hasher: RandomState::new(),
            runs: Slab::new(),
            limits,
            looks: Timers::default(),
            delayed: Timers::default(),
            overdue: Timers::default(),
            cancels: VecDeque::new(),
            mode: Mode::Working,
            drain_over: false,
            counts: DispatchCounts::default(),
            next_number: 0,
            moved: now,
            now,
        })
    }

    /// What to do next; `None`: nothing until the next input or [deadline](Self::next_deadline).
    pub fn poll(&mut self, now: Millis) -> Option<Action<M>> {
        self.pass_time(now);
        if let Some((run, why)) = self.cancels.pop_front() {
            return Some(Action::Cancel { run, why });
        }
        for source in 0..self.sources.len() {
            let action = self
                .extension(source)
                .or_else(|| self.settlement(source, now));
            if action.is_some() {
                return action;
            }
        }
        if self.mode != Mode::Working {
            return None;
        }
        if let Some(started) = self.start(now) {
            return Some(Action::Start(started));
        }
        if self.limits.is_some() || self.options.coalescing.is_some() {
            // What limits hold for long, or for ever, goes back, and what waits for more of its key.
            let settlement =
                (0..self.sources.len()).find_map(|source| self.settlement(source, now));
            if settlement.is_some() {
                return settlement;
            }
        }
        (0..self.sources.len()).find_map(|source| self.receive(source, now))
    }

    /// When to call [`poll`](Self::poll) again if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        let of_maps = [self.looks.next(), self.delayed.next(), self.overdue.next()];
        let drain = match self.mode {
            Mode::Draining(until) if !self.runs.is_empty() && !self.drain_over => Some(until),
            _ => None,
        };
        let of_sources = self.sources.iter().flat_map(|source| {
            let receive = (self.mode == Mode::Working).then_some(source.receive_at);
            [source.resting.next(), receive]
        });
        let limits = self.limits.as_ref().filter(|_| self.mode == Mode::Working);
        let held = limits.and_then(|limits| limits.held_until());
        // What is not in the future waits for an input, not for time.
        let deadlines = of_maps.into_iter().chain([drain, held]).chain(of_sources);
        deadlines.flatten().filter(|&at| at > self.now).min()
    }

    /// What became of what has arrived.
    #[must_use]
    pub fn counts(&self) -> DispatchCounts {
        self.counts
    }

    /// Messages that are held: waiting, running, or on their way to be settled.
    #[must_use]
    pub fn held(&self) -> usize {
        self.items.len()
    }

    /// How many bytes are left of [`DispatchOptions::held_bytes_max`].
    #[must_use]
    pub fn bytes_left(&self) -> u64 {
        self.options.held_bytes_max.saturating_sub(self.held_bytes)
    }

    /// Runs that go on.
    #[must_use]
    pub fn running(&self) -> usize {
        self.runs.len()
    }

    /// Whether this run is not told to end: nobody else has its messages as far as is known here.
    #[must_use]
    pub fn is_current(&self, run: RunId) -> bool {
        let found = self.runs.get(run.place as usize);
        found.is_some_and(|found| found.number == run.number && found.cancelled.is_none())
    }

    /// Starts nothing and receives nothing until [`resume`](Self::resume). What waits goes back to the
    /// sources; what runs goes on.
    pub fn pause(&mut self) {
        if self.mode == Mode::Working {
            self.mode = Mode::Paused;
            self.give_back_waiting();
        }
    }

    /// Ends a pause. A dispatcher that is being drained stays so.
    pub fn resume(&mut self, now: Millis) {
        if self.mode == Mode::Paused {
            self.mode = Mode::Working;
            self.moved = now;
        }
    }

    /// Ends the work for good: as [`pause`](Self::pause), and what still runs at `deadline` is
    /// cancelled. See [`is_drained`](Self::is_drained).
    pub fn drain(&mut self, deadline: Millis) {
        self.mode = Mode::Draining(deadline);
        self.drain_over = false;
        self.give_back_waiting();
    }

    /// Whether a dispatcher that is being drained holds nothing any more, and no receive is on its way.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let is_received = self.sources.iter().all(|source| source.receives == 0);
        matches!(self.mode, Mode::Draining(_)) && self.items.is_empty() && is_received
    }

    /// When a [stall](Self::stall) would begin if nothing moves until then.
    #[must_use]
    pub fn stalls_at(&self) -> Millis {
        self.moved.saturating_add(self.options.stall_after)
    }

    /// Whether work waits while nothing has moved for [`DispatchOptions::stall_after`]: messages that are
    /// ready, or those that a source cannot bring because its share of what may be held is taken. While a
    /// [limit](DispatchOptions::limits) of the worker as a whole says until when nothing starts, nothing stalls.
    #[must_use]
    pub fn stall(&self, now: Millis) -> Option<Stall> {
        let ready = self.turns.ready();
        let limits = self.limits.as_ref();
        let is_held = limits.is_some_and(|limits| limits.held_until().is_some());
        let is_full = |source: &SourceState| source.held >= self.share();
        let is_stalled = (ready > 0 || self.sources.iter().any(is_full))
            && self.mode == Mode::Working
            && !is_held
            && now.saturating_sub(self.moved) >= self.options.stall_after;
        is_stalled.then(|| Stall {
            since: self.moved,
            ready,
            runs: self.runs.len(),
            oldest_run: self.runs.iter().map(|(_, run)| run.started).min(),
        })
    }
}
