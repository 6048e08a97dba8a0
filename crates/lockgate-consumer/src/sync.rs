//! Locks, semaphores and time: the system's and tokio's, or those of a model checker.
//!
//! What threads hand each other through a [`MemoryQueue`](crate::MemoryQueue), a
//! [`Coalescer`](crate::coalesce::Coalescer) or the [`Context`](crate::Context) of a run goes through this module. With the feature `shuttle`, a scheduler chooses at each such point which
//! thread runs next, for the models in `models`. Without it, these are plain re-exports.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicUsize};
#[cfg(not(feature = "shuttle"))]
pub(crate) use tokio::{
    sync::{AcquireError, Notify, Semaphore, TryAcquireError, oneshot},
    time::sleep_until,
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic::AtomicUsize};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle_tokio::sync::{AcquireError, Notify, Semaphore, TryAcquireError, oneshot};

/// In a model time stands still: what waits for it is woken by something else, or never.
#[cfg(feature = "shuttle")]
pub(crate) async fn sleep_until(_: tokio::time::Instant) {
    std::future::pending::<()>().await;
}
