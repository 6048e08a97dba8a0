//! The clock of a worker.

use std::time::{Duration, SystemTime};

use lockgate_core::{BootId, Clock, Millis, WallTime};
use tokio::time::Instant;

/// Time since a worker began, by clocks that no step of the wall clock moves, and that never go back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerClock {
    /// By tokio's clock, which tests can stop and move.
    started: Instant,
    since_boot: Duration,
}

impl WorkerClock {
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            since_boot: since_boot(),
        }
    }

    /// How long ago the worker began. Time in which the computer was suspended counts where the system tells
    /// (Linux), because leases end meanwhile.
    pub(crate) fn elapsed(&self) -> Duration {
        let suspended_too = since_boot().saturating_sub(self.since_boot);
        self.started.elapsed().max(suspended_too)
    }

    /// The same in whole milliseconds.
    pub(crate) fn now(&self) -> Millis {
        Millis::try_from(self.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }
}

/// The clock of one process: tokio's, which tests can stop and move, or that since boot where it is ahead, because the
/// computer was suspended. No step of the wall clock moves it.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock(WorkerClock);

impl TokioClock {
    /// A clock that begins now.
    #[must_use]
    pub fn start() -> Self {
        Self(WorkerClock::start())
    }
}

impl Clock for TokioClock {
    fn wall(&self) -> WallTime {
        SystemTime::now().into()
    }

    fn since_boot(&self) -> Millis {
        self.0.now()
    }

    /// Nobody else reads this clock, so nobody compares it.
    fn boot_id(&self) -> BootId {
        BootId([0; 16])
    }
}

/// tokio's clock stands still while the computer is suspended; this one goes on.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    Duration::ZERO
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn time_in_suspension_counts() {
        const HOUR: Duration = Duration::from_secs(3_600);
        let mut clock = WorkerClock::start();
        assert!(clock.elapsed() < HOUR);
        // As if the computer had slept for an hour since.
        let before = clock.since_boot.checked_sub(HOUR);
        clock.since_boot = before.unwrap_or_default();
        let slept = since_boot().min(HOUR);
        assert!(clock.elapsed() >= slept, "{:?}", clock.elapsed());
    }
}
