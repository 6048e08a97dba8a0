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
pub(crate) struct Time {
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
    pub(crate) fn start() -> Self {
        Self::by(Arc::new(TokioClock::start()))
    }

    pub(crate) fn by(clock: Arc<dyn Clock>) -> Self {
        let changed = Arc::default();
        Self { clock, changed }
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.since_boot()
    }

    pub(crate) fn wall(&self) -> WallTime {
        self.clock.wall()
    }

    pub(crate) fn clock_changed(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until that time, or later.
    pub(crate) async fn sleep_until(&self, until: Millis) {
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
pub(crate) fn jittered(span: Duration) -> Duration {
    let share = drawn() % 1_001;
    span / 2 + span.mul_f64(share as f64 / 2_000.0)
}

/// Whole milliseconds, rounded up.
pub(crate) fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX)
}
