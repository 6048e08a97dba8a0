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

    /// Waits until that time, or later.
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
            let wake = Instant::now().checked_add(Duration::from_millis(until - now));
            tokio::select! {
                () = changed => {}
                () = async {
                    match wake {
                        Some(instant) => tokio::time::sleep_until(instant).await,
                        None => std::future::pending().await,
                    }
                } => {}
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
