//! The locks and atomics of the log: the system's, or those of a model checker.
//!
//! Everything in this crate that one thread changes and another one reads goes through this module.
//! With the feature `shuttle`, a scheduler chooses at each such place which thread continues; the
//! models are in lockgate-engine. Counters for reports only are left out.

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64},
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64},
};
