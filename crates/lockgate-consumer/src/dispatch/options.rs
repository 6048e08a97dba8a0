//! What a dispatcher may be told.

use std::num::NonZeroU16;

pub use lockgate_core::PRIORITY_MAX;
use lockgate_core::{
    Backoff, Millis, SourceCapabilities,
    limits::{Limits, LimitsError, PERIOD_MAX, Scoped},
};

use super::coalescing::Coalescing;

/// Which messages wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// None: all messages run as soon as there is room.
    ///
    /// A source that locks keys is asked for one message of a key at a time. It may take an acknowledgement
    /// out of order for stale, or take back all of a key with one that fails: those messages would run
    /// twice. A source that locks keys and does not heed
    /// [`key_max`](lockgate_core::ReceiveRequest::key_max) may still do so.
    Unordered,
    /// Those whose keys fall into the same of so many partitions, by hash. Messages without a key
    /// wait for none. This is what a topic with partitions or a static assignment to workers does; a
    /// slow key holds up the others of its partition.
    Partition(NonZeroU16),
    /// Those of one key. Messages without a key wait for none.
    #[default]
    Key,
}

/// Who takes turns when there is more work than room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fairness {
    /// Keys (with [`Order::Partition`]: partitions). Messages without a key take turns as one.
    #[default]
    Keys,
    /// Tenants ([`Arrival::tenant`](super::Arrival::tenant)), and within a tenant its keys.
    Tenants,
}

/// Options of a [`Dispatcher`](super::Dispatcher).
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchOptions {
    /// Which messages wait for each other. Default: those of one key.
    pub order: Order,
    /// Who takes turns. Default: keys.
    pub fairness: Fairness,
    /// How many runs there may be at the same time; 1 or more. Default: 16.
    pub concurrency: usize,
    /// How many consecutive messages of one key a run may have; 1 or more. Default: 1.
    pub run_max: usize,
    /// Whether one run covers all messages of its key that are here; then [`run_max`](Self::run_max) stays 1. Limits
    /// count a run as one start, at the cost of its first message. Default: no.
    pub coalescing: Option<Coalescing>,
    /// How many messages may be held at the same time: those that run, those that wait for room or
    /// for a retry, and those whose settlement is on its way. A [pack](super::Arrival::pack) counts as one. Shared by all
    /// sources; 1 or more. Default: 256.
    pub held_max: usize,
    /// How many bytes of messages may be held before nothing more is received. One receive may
    /// exceed it by its answer. Default: 64 MiB.
    pub held_bytes_max: u64,
    /// How long a run may take, in milliseconds, before it is cancelled. Unless its messages succeed all
    /// the same, the one at which it was counts as failed. Default: no limit.
    pub run_time_max: Option<Millis>,
    /// How many attempts a message gets before it is rejected, the first included. For sources that have
    /// no limit of their own, and for those without locks of keys, where keyed messages are tried again
    /// here, under one lease, so that the source's limit never acts. A source that cannot reject is told of
    /// a failure instead. Default: no limit.
    pub attempts_max: Option<u32>,
    /// How often messages start, and how many go on: [`queue`](Scoped::queue) of all messages of the worker together,
    /// [`key`](Scoped::key) of each key, whichever source it comes from; messages without a key count as one. Default:
    /// no limits.
    pub limits: Scoped<Limits>,
    /// How long a failed message waits. Default: see [`Backoff`].
    pub backoff: Backoff,
    /// In how many milliseconds a waiting message rises by one priority; 1 or more. [`Millis::MAX`]: never.
    /// Default: 1,000.
    pub aging: Millis,
    /// How long work may wait while nothing moves, in milliseconds, before
    /// [`stall`](super::Dispatcher::stall) tells. Default: 60,000.
    pub stall_after: Millis,
}

/// A source of messages, as a [`Dispatcher`](super::Dispatcher) needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    /// What the source can do.
    pub capabilities: SourceCapabilities,
    /// How long its leases last, in milliseconds: asked for with each receive and each extension; 1 to
    /// the source's longest. `None`: the source decides, and leases are not extended.
    pub lease: Option<Millis>,
    /// Its priority, 0 to [`PRIORITY_MAX`]: messages of the source with the highest run first.
    /// Default: 0.
    pub priority: u8,
}

/// An option that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {min} to {max}, not {given}")]
pub struct OptionsError {
    /// Which one.
    pub what: &'static str,
    /// What was given.
    pub given: u64,
    /// The lowest allowed value.
    pub min: u64,
    /// The highest allowed value.
    pub max: u64,
}

impl Default for DispatchOptions {
    fn default() -> Self {
        Self {
            order: Order::default(),
            fairness: Fairness::default(),
            concurrency: 16,
            run_max: 1,
            coalescing: None,
            held_max: 256,
            held_bytes_max: 64 << 20,
            run_time_max: None,
            attempts_max: None,
            limits: Scoped::NONE,
            backoff: Backoff::default(),
            aging: 1_000,
            stall_after: 60_000,
        }
    }
}

impl DispatchOptions {
    /// The most runs, and messages in a run.
    pub const RUNS_MAX: usize = 65_536;
    /// The most messages held.
    pub const HELD_MAX: usize = 16_777_216;

    /// Whether a dispatcher takes these options.
    ///
    /// # Errors
    /// The first one that is out of range.
    pub fn check(&self) -> Result<(), OptionsError> {
        let runs = Self::RUNS_MAX as u64;
        let rows = [
            ("concurrency", self.concurrency as u64, 1, runs),
            ("run_max", self.run_max as u64, 1, runs),
            ("held_max", self.held_max as u64, 1, Self::HELD_MAX as u64),
            ("held_bytes_max", self.held_bytes_max, 1, u64::MAX),
            ("run_time_max", self.run_time_max.unwrap_or(1), 1, u64::MAX),
            (
                "attempts_max",
                self.attempts_max.unwrap_or(1).into(),
                1,
                u64::MAX,
            ),
            ("aging", self.aging, 1, u64::MAX),
            ("stall_after", self.stall_after, 1, u64::MAX),
            ("backoff.first", self.backoff.first, 0, self.backoff.max),
        ];
        let coalescing = self.coalescing.iter().flat_map(|coalescing| {
            let Coalescing {
                quiet,
                wait_max,
                period,
                messages_max,
                bytes_max,
            } = *coalescing;
            [
                (
                    "run_max of a worker that coalesces",
                    self.run_max as u64,
                    1,
                    1,
                ),
                ("quiet", quiet, 0, wait_max),
                ("wait_max", wait_max, 0, PERIOD_MAX),
                ("period", period, 0, PERIOD_MAX),
                ("messages_max", messages_max as u64, 1, runs),
                ("bytes_max", bytes_max, 1, u64::MAX),
            ]
        });
        OptionsError::first(rows.into_iter().chain(coalescing))
    }
}

impl From<LimitsError> for OptionsError {
    fn from(error: LimitsError) -> Self {
        let LimitsError {
            what,
            given,
            min,
            max,
        } = error;
        Self {
            what,
            given,
            min,
            max,
        }
    }
}

/// What is checked, what was given, and the lowest and the highest allowed value.
type CheckedRow = (&'static str, u64, u64, u64);

impl OptionsError {
    /// The first row that is out of range.
    pub(crate) fn first(rows: impl IntoIterator<Item = CheckedRow>) -> Result<(), Self> {
        let mut rows = rows.into_iter();
        match rows.find(|(_, given, min, max)| given < min || given > max) {
            Some((what, given, min, max)) => Err(Self {
                what,
                given,
                min,
                max,
            }),
            None => Ok(()),
        }
    }
}
