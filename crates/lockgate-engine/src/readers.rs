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

/// The most threads. Reads of a remote log share a connection that can have so many in flight, and
/// so many also keep a disk busy.
const THREADS_MAX: usize = 16;

/// The most reads that wait for a thread. Further ones fail with
/// [`Overloaded`](EngineError::Overloaded).
const WAITING_MAX: usize = 20_000;

/// Runs jobs that may block on its own threads, which are started when they are first needed and
/// end with the engine.
pub(crate) struct Readers {
    /// The threads' name.
    name: String,
    state: Mutex<State>,
    work: Condvar,
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Threads without a job end.
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

    /// Runs `job` on one of the threads. If the caller gives up meanwhile, the result is dropped,
    /// or the job itself if it has not begun.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] if too many jobs wait, or no thread can be started; the job is
    /// then dropped.
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
        // Only a panic leaves it without an answer.
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
        // Some idle threads may already have been woken for earlier jobs.
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
                // The existing threads will run it.
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
                // A panic is a bug of ours. Its caller gets an error, and the others are served.
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

    /// Tells the threads to end after the waiting jobs. Does not wait for them: storage may hang.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.ending = true;
        drop(state);
        self.work.notify_all();
    }

    /// Jobs run outside the lock, so a poisoned lock can still be used.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
