//! Time for a producer's machine.

use std::time::Duration;

use lockgate_core::{Clock as _, Millis, WallTime};
use lockgate_log::SystemClock;
use tokio::time::Instant;

/// A span in whole milliseconds, rounded up.
pub(crate) fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(Millis::MAX)
}

/// Time since a producer began, by clocks that no step of the wall clock moves, and that go on while the computer is
/// suspended.
#[derive(Debug)]
pub(crate) struct ProducerClock {
    /// By tokio's clock, which tests can stop and move.
    started: Instant,
    system: SystemClock,
    since_boot: Millis,
}

impl ProducerClock {
    pub(crate) fn start() -> Self {
        let system = SystemClock::new();
        Self {
            started: Instant::now(),
            since_boot: system.since_boot(),
            system,
        }
    }

    pub(crate) fn now(&self) -> Millis {
        let suspended_too = self.system.since_boot().saturating_sub(self.since_boot);
        let ran = Millis::try_from(self.started.elapsed().as_millis()).unwrap_or(Millis::MAX);
        ran.max(suspended_too)
    }

    pub(crate) fn wall(&self) -> WallTime {
        self.system.wall()
    }

    /// The instant at which the clock shows that time, unless the computer is suspended before; a day from now at the
    /// latest.
    pub(crate) fn at(&self, now: Millis, time: Millis) -> Instant {
        const DAY: Millis = 86_400_000;
        Instant::now() + Duration::from_millis(time.saturating_sub(now).min(DAY))
    }
}
