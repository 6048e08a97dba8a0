//! What a coalescer may be told, and what it tells of itself.

use std::{fmt, sync::Arc, time::Duration};

use lockgate_core::Clock;

use super::{Merge, Token};
use crate::dispatch::OptionsError;

/// Measures a payload, in bytes.
pub type MeasureFn<P> = dyn Fn(&P) -> usize + Send + Sync;

/// Options of a [`Coalescer`](super::Coalescer).
#[derive(Clone)]
pub struct CoalesceOptions<P> {
    /// What triggers that wait leave to the run that covers them. Default: the payload of the last one.
    pub merge: Merge<P>,
    /// How many callers may run or wait at the same time, of all keys together; 1 to 16,777,216. The next one is
    /// [rejected](super::Rejection::Callers). Default: 65,536.
    pub callers_max: usize,
    /// How many bytes the payloads of all keys may have together, by [`measure`](Self::measure); 1 or more. A trigger
    /// whose payload has no room is [rejected](super::Rejection::Bytes). Default: 64 MiB.
    pub bytes_max: usize,
    /// The bytes of a payload. What [`Merge::With`] makes is measured, but not rejected. Default: the size of its type,
    /// without what it points to.
    pub measure: Arc<MeasureFn<P>>,
    /// After how long without a [heartbeat](super::Run::heartbeat) a run is over though its guard lives; 1 ms to 12 h.
    /// Default: never, because a guard that is dropped ends its run.
    pub lease: Option<Duration>,
    /// By which leases end. Default: tokio's clock, and time in which the computer was suspended counts.
    pub clock: Option<Arc<dyn Clock>>,
}

/// How many triggers and runs there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoalesceCounts {
    /// Triggers that ran at once.
    pub run: u64,
    /// Triggers that were the first to wait.
    pub pending: u64,
    /// Triggers that the run of a waiting one covers.
    pub covered: u64,
    /// Triggers that joined the run of another ([`join`](super::Coalescer::join)).
    pub joined: u64,
    /// Triggers that were not accepted.
    pub rejected: u64,
    /// Runs that started: at once, or after a wait.
    pub started: u64,
    /// Runs that succeeded.
    pub succeeded: u64,
    /// Runs that failed: their guard said so, or was dropped.
    pub failed: u64,
    /// Runs that were expired.
    pub expired: u64,
    /// Calls with the token of a run that was not the present one.
    pub stale: u64,
}

/// What a trigger that did not run was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Covered<R> {
    /// The run that succeeded.
    pub by: Token,
    /// Its result.
    pub result: R,
    /// Whether the run had started before the trigger came, so that it may not have seen what the trigger is about. Only
    /// [`join`](super::Coalescer::join) gives such results.
    pub may_be_older: bool,
}

impl<P> Default for CoalesceOptions<P> {
    fn default() -> Self {
        Self {
            merge: Merge::default(),
            callers_max: 65_536,
            bytes_max: 64 << 20,
            measure: Arc::new(|_| size_of::<P>()),
            lease: None,
            clock: None,
        }
    }
}

impl<P> fmt::Debug for CoalesceOptions<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoalesceOptions")
            .field("merge", &self.merge)
            .field("callers_max", &self.callers_max)
            .field("bytes_max", &self.bytes_max)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl<P> CoalesceOptions<P> {
    /// The longest lease: 12 hours.
    pub const LEASE_MAX: Duration = Duration::from_secs(12 * 3_600);

    pub(super) fn check(&self) -> Result<(), OptionsError> {
        let append_max = match self.merge {
            Merge::Append { max } => max as u64,
            _ => 1,
        };
        let lease = self.lease.unwrap_or(Self::LEASE_MAX);
        OptionsError::first([
            ("merge.max", append_max, 1, u64::MAX),
            ("callers_max", self.callers_max as u64, 1, 1 << 24),
            ("bytes_max", self.bytes_max as u64, 1, u64::MAX),
            ("lease", millis(lease), 1, millis(Self::LEASE_MAX)),
        ])
    }
}

impl CoalesceCounts {
    pub(super) fn add(&mut self, other: &Self) {
        let Self {
            run,
            pending,
            covered,
            joined,
            rejected,
            started,
            succeeded,
            failed,
            expired,
            stale,
        } = other;
        self.run += run;
        self.pending += pending;
        self.covered += covered;
        self.joined += joined;
        self.rejected += rejected;
        self.started += started;
        self.succeeded += succeeded;
        self.failed += failed;
        self.expired += expired;
        self.stale += stale;
    }
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
