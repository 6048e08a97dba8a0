//! The time of one process.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    process,
    sync::Arc,
    time::Duration,
};

use lockgate_consumer::TokioClock;
use lockgate_core::{Clock, Millis, WallTime};
use tokio::{sync::Notify, time::Instant};

/// How long is slept without a look at the clock: timers of the runtime stand still while the computer is suspended, and the
/// clock does not.
pub(crate) const SLICE: Duration = Duration::from_millis(500);

/// A clock, and how to wait for a time of it.
#[derive(Clone)]
pub struct Time {
    clock: Arc<dyn Clock>,
    /// Told when somebody has set the clock.
    changed: Arc<Notify>,
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Time").field(&self.now()).finish()
    }
}

impl Time {
    /// By the clock of the process.
    #[must_use]
    pub fn start() -> Self {
        Self::by(Arc::new(TokioClock::start()))
    }

    /// By that clock.
    #[must_use]
    pub fn by(clock: Arc<dyn Clock>) -> Self {
        let changed = Arc::default();
        Self { clock, changed }
    }

    /// The time of that clock.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.clock.since_boot()
    }

    /// The time of day.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        self.clock.wall()
    }

    /// Looks at the clock anew: it has been set.
    pub fn clock_changed(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until that time, or later: by up to [`SLICE`] after a suspend of the computer.
    pub async fn sleep_until(&self, until: Millis) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let now = self.now();
            if now >= until {
                return;
            }
            // A reading drops the fraction, so it may still be a little early then: it looks again.
            let left = Duration::from_millis(until - now).min(SLICE);
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

/// 64 random bits: each hasher is seeded at random.
pub(crate) fn drawn() -> u64 {
    RandomState::new().hash_one((process::id(), Instant::now()))
}

/// A random share of it, at least a half.
#[must_use]
pub fn jittered(span: Duration) -> Duration {
    let share = drawn() % 1_001;
    span / 2 + span.mul_f64(share as f64 / 2_000.0)
}

/// Whole milliseconds, rounded up.
#[must_use]
pub fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX)
}

#[cfg(test)]
mod tests {
    use lockgate_core::ManualClock;

    use super::*;

    /// While a computer is suspended its clock goes on, and the timers of the runtime do not.
    #[tokio::test]
    async fn whoever_sleeps_wakes_soon_after_a_suspend() {
        let clock = ManualClock::default();
        let time = Time::by(Arc::new(clock.clone()));
        let until = time.now() + 3_600_000;
        let sleeps = tokio::spawn({
            let time = time.clone();
            async move { time.sleep_until(until).await }
        });
        tokio::task::yield_now().await;
        assert!(!sleeps.is_finished());
        clock.advance(3_600_000);
        // It would wait for an hour otherwise.
        let woken = tokio::time::timeout(Duration::from_secs(60), sleeps);
        woken.await.unwrap().unwrap();
    }
}
