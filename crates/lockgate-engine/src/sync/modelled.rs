//! Time for the models. Neither shuttle nor loom lets a timed wait end by time, so here a separate
//! thread ends it: the scheduler chooses when that thread runs, before or after the event that the
//! wait is for. Only that moves the clock, so a schedule gives the same result each time.

use std::{
    cell::Cell,
    ops::Add,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use shuttle::sync::{LockResult, MutexGuard};

std::thread_local! {
    /// The time of all threads of a model: they run one at a time on one system thread.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(NOW.get())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    pub(crate) fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }

    pub(crate) fn checked_add(&self, span: Duration) -> Option<Self> {
        self.0.checked_add(span).map(Self)
    }

    /// Sets the clock to this instant.
    fn come(self) {
        NOW.set(NOW.get().max(self.0));
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0 + span)
    }
}

/// Ends a wait by time, unless it is dropped before.
struct Timer(Arc<AtomicBool>);

impl Timer {
    /// Calls `wake` when the time has come, repeatedly until the wait is over: the first call may
    /// come before the wait begins.
    fn start(timeout: Duration, wake: impl Fn() + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let timer = Self(over.clone());
        let end = Instant::now() + timeout;
        shuttle::thread::spawn(move || {
            while !over.load(Relaxed) {
                end.come();
                wake();
                shuttle::thread::yield_now();
            }
        });
        timer
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[derive(Default)]
pub(crate) struct Condvar(Arc<shuttle::sync::Condvar>);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    /// When the time ends, all waiting threads are woken; they must expect spurious wake-ups. A
    /// thread that waited until then first lets others run, as they would have in that time.
    /// Otherwise the scheduler that lets one thread run until it blocks might run only maintenance,
    /// which checks its log every ten seconds.
    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, shuttle::sync::WaitTimeoutResult)> {
        let condvar = self.0.clone();
        let end = Instant::now() + timeout;
        let timer = Timer::start(timeout, move || condvar.notify_all());
        let woken = self.0.wait_timeout(guard, timeout);
        drop(timer);
        if Instant::now() >= end {
            shuttle::thread::yield_now();
        }
        woken
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub(crate) mod thread {
    pub(crate) use shuttle::thread::{Builder, JoinHandle, scope};
}
