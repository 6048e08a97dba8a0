//! Threads that read for callers who must not wait for storage themselves.

use std::{
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, PoisonError},
};

use crate::{
    EngineError, UnknownCause,
    sync::{Condvar, Mutex, MutexGuard, oneshot, thread},
};

/// Threads at most. Reads of a remote log share a connection, on which that many can be under way; a disk is
/// busy with that many, too.
const THREADS_MAX: usize = 16;

/// Reads at most that wait for a thread. Beyond it they are refused as
/// [`Overloaded`](EngineError::Overloaded).
const WAITING_MAX: usize = 20_000;

/// Does what may block on threads of its own, which are started when they are first needed and end with
/// the engine.
pub(crate) struct Readers {
    /// What the threads are called.
    name: String,
    state: Mutex<State>,
    work: Condvar,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    /// Of them, those that wait for something to do.
    idle: usize,
    /// A thread with nothing to do ends.
    ending: bool,
}

impl Readers {
    pub(crate) fn new(name: String) -> Arc<Self> {
        Arc::new(Self {
            name,
            state: Mutex::default(),
            work: Condvar::new(),
        })
    }

    /// Does `job` on one of the threads. A caller that gives up meanwhile drops what it brings, or, as long
    /// as it was not begun, the job.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] if too many wait, or no thread can be started; the job is dropped then.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (sender, done) = oneshot::channel();
        self.give(Box::new(move || {
            if !sender.is_closed() {
                drop(sender.send(job()));
            }
        }))?;
        // Only a panic leaves it unanswered.
        done.await.map_err(|_gone| EngineError::UnknownOutcome {
            cause: UnknownCause::NoAnswer,
        })
    }

    fn give(self: &Arc<Self>, job: Job) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.waiting.len() >= WAITING_MAX {
            drop(state);
            return Err(EngineError::Overloaded);
        }
        state.waiting.push_back(job);
        // Some may have been told of what came before this.
        if state.waiting.len() <= state.idle {
            self.work.notify_one();
        } else if state.threads < THREADS_MAX {
            let readers = self.clone();
            let started = thread::Builder::new()
                .name(self.name.clone())
                .spawn(move || readers.serve());
            match started {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    tracing::warn!(%error, "no thread can be started to read");
                    let job = state.waiting.pop_back();
                    drop(state);
                    drop(job);
                    return Err(EngineError::Overloaded);
                }
                // The others come to it.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                drop(state);
                // A panic is a bug of ours. Its caller is told; the others are served.
                let _told = panic::catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
            } else if state.ending {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    /// Lets the threads end when they have done what waits. Waits for none: storage may be stuck.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ending = true;
        drop(state);
        self.work.notify_all();
    }

    /// Jobs run outside the lock, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
