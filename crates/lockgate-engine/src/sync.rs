//! Locks, channels, threads and time: the system's and tokio's, or those of a model checker.
//!
//! Everything that one thread of the engine passes to another, or to a caller, goes through this
//! module. With the feature `shuttle`, a scheduler chooses at each such point which thread runs
//! next, so the models in `models` see orders that no test on real threads would. Without the
//! feature, these are plain re-exports.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard, RwLock,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Instant,
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use tokio::sync::{Semaphore, TryAcquireError, oneshot, watch};

#[cfg(feature = "shuttle")]
mod modelled;
#[cfg(feature = "shuttle")]
pub(crate) use modelled::{Condvar, Instant, thread};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, Ordering},
    mpsc,
};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle_tokio::sync::{Semaphore, TryAcquireError, oneshot, watch};
