//! The thread that writes, syncs and reads a spool. A log may block, so no task does.

use std::{sync::Arc, time::Duration};

use super::{Store, WriteError};
use crate::buffer::{Lack, Loaded, Used, Work};

/// What the thread works for. Every method is quick.
pub(crate) trait Employer: Send + Sync {
    /// Waits until there is work, at most that long. `None`: there is none yet. An error: it is over.
    fn next_work(&self, most: Duration) -> Result<Option<Work>, Over>;

    fn wrote(&self, count: usize, used: Used);
    fn full(&self, used: Used, lack: Lack);
    fn synced(&self, before: u64);
    fn loaded(&self, loaded: Vec<Loaded>, next: u64, unreadable: Vec<u64>);
    fn not_loaded(&self, why: &str);
    fn used(&self, used: Used);
    fn failed(&self, why: &str);
    /// Everything below is over.
    fn floor(&self) -> u64;
}

/// The thread is not needed any more.
#[derive(Debug)]
pub(crate) struct Over;

/// How long the thread waits before it looks whether it is still employed.
const LOOK: Duration = Duration::from_millis(250);

/// Works until the employer says that it is over.
pub(crate) fn run<E: Employer>(mut store: Store, employer: &Arc<E>) {
    loop {
        match employer.next_work(LOOK) {
            Err(Over) => return,
            Ok(None) => {}
            Ok(Some(work)) => {
                if let Err(why) = step(&mut store, employer, work) {
                    employer.failed(&why);
                    return;
                }
            }
        }
    }
}

fn step<E: Employer>(store: &mut Store, employer: &Arc<E>, work: Work) -> Result<(), String> {
    if !work.write.is_empty() {
        match store.write(&work.write) {
            Ok(()) => employer.wrote(work.write.len(), store.used()),
            Err(WriteError::Full(lack)) => employer.full(store.used(), lack),
            Err(WriteError::Failed(why)) => return Err(why),
        }
    }
    let floor = employer.floor();
    if work.sync || store.wants_sync(floor) {
        employer.synced(store.sync()?);
    }
    if store.release(floor)? {
        employer.used(store.used());
    }
    if let Some(load) = work.load {
        match store.load(load) {
            Ok((loaded, next, unreadable)) => employer.loaded(loaded, next, unreadable),
            Err(why) => employer.not_loaded(&why),
        }
    }
    Ok(())
}
