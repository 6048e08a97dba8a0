//! What a handler gets.

use std::{
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{Key, Message, MessageName, Millis, Sequence, WallTime};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    dispatch::Cancelled,
    sync::{AtomicUsize, Mutex, MutexGuard, Notify},
    worker::{Held, StateError, WorkerClock},
};

/// A message to handle.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) held: Arc<dyn Held>,
    pub(crate) attempt: u32,
    /// In the place of its own message.
    pub(crate) merged: Option<Arc<Message>>,
    pub(crate) covers: usize,
    pub(crate) run: Context,
    /// Which run of its key's state it belongs to.
    pub(crate) turn: u64,
}

/// Consecutive messages of one key, or one message, to handle together.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) jobs: Vec<Job>,
    pub(crate) run: Context,
}

/// The run that a handler is called in: whether it still counts. Clones are the same run.
#[derive(Clone, Debug)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    cancelled: Mutex<Option<Cancelled>>,
    pub(crate) changed: Notify,
    /// Messages that have succeeded, from the first on.
    pub(crate) done: AtomicUsize,
    /// When it is cancelled.
    pub(crate) deadline: Option<Instant>,
    /// The worker's clock.
    pub(crate) clock: WorkerClock,
}

impl Job {
    /// The message as it was sent. If the worker [coalesces](crate::WorkerBuilder::coalesce), what its run has been
    /// left of those that it covers.
    #[must_use]
    pub fn message(&self) -> &Message {
        match &self.merged {
            Some(merged) => merged,
            None => &self.held.lease().message,
        }
    }

    /// For how many messages it stands: 1, unless the worker [coalesces](crate::WorkerBuilder::coalesce). Then
    /// [`name`](Self::name), [`sequence`](Self::sequence) and [`accepted`](Self::accepted) are those of the last of them, or of
    /// the first with [`Merge::KeepFirst`](crate::coalesce::Merge::KeepFirst).
    #[must_use]
    pub fn covers(&self) -> usize {
        self.covers
    }

    /// The body of the message.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.message().body
    }

    /// The ordering key: with [`Order::Key`](crate::Order::Key), no other message of it from the same
    /// [source](Self::source) runs in this worker meanwhile. Two sources may have the same key: their
    /// messages do not wait for each other.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.message().key.as_ref()
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The message's number in its queue, where it has one.
    #[must_use]
    pub fn sequence(&self) -> Option<Sequence> {
        self.held.lease().sequence
    }

    /// What the source calls the message, where it has a name that lasts: the same each time the message
    /// comes. A [`MemoryQueue`](crate::MemoryQueue) has none.
    #[must_use]
    pub fn name(&self) -> Option<&MessageName> {
        self.held.lease().name.as_ref()
    }

    /// When the queue accepted the message, where that is known.
    #[must_use]
    pub fn accepted(&self) -> Option<WallTime> {
        self.held.lease().accepted
    }

    /// The number of the source, in the order in which the worker was given them, from 0.
    #[must_use]
    pub fn source(&self) -> usize {
        self.held.lease().source
    }

    /// The state of the message's key, read as JSON; `None` if the key has none. It is what the handler of the key's
    /// last message has [set](Self::set_state), or what this run has.
    ///
    /// # Errors
    /// If it is not the JSON that is expected; and if the worker has [no states](crate::WorkerBuilder::key_states) or the
    /// message no key.
    pub fn state<T: DeserializeOwned>(&self) -> Result<Option<T>, StateError> {
        match self.state_bytes()? {
            None => Ok(None),
            Some(value) => Ok(Some(
                serde_json::from_slice(&value).map_err(StateError::Read)?,
            )),
        }
    }

    /// The same as bytes.
    ///
    /// # Errors
    /// If the worker has [no states](crate::WorkerBuilder::key_states) or the message no key.
    pub fn state_bytes(&self) -> Result<Option<Bytes>, StateError> {
        let state = self.held.lease().state.as_ref();
        Ok(state.ok_or(StateError::None)?.read())
    }

    /// Sets the state of the message's key, as JSON of up to 256 KiB. It is written together with the acknowledgement of
    /// the message: both happen, or none. If the handler fails, nothing is written, and the next attempt finds the state
    /// as it was. If the lease is lost or somebody else has written the state meanwhile, the message counts as
    /// [lost](crate::dispatch::DispatchCounts::lost) and comes again. Of several calls the last one counts; in a batch, the last one
    /// of the messages that succeeded.
    ///
    /// # Errors
    /// If it cannot be written as JSON, is too large, or the run has ended; and those of [`state`](Self::state).
    pub fn set_state<T: Serialize + ?Sized>(&self, state: &T) -> Result<(), StateError> {
        let value = serde_json::to_vec(state).map_err(StateError::Write)?;
        self.set_state_bytes(value)
    }

    /// The same as bytes.
    ///
    /// # Errors
    /// As [`set_state`](Self::set_state).
    pub fn set_state_bytes(&self, value: impl Into<Bytes>) -> Result<(), StateError> {
        self.change_state(Some(value.into()))
    }

    /// Drops the state of the message's key, as [`set_state`](Self::set_state) sets it.
    ///
    /// # Errors
    /// As [`set_state`](Self::set_state).
    pub fn drop_state(&self) -> Result<(), StateError> {
        self.change_state(None)
    }

    fn change_state(&self, value: Option<Bytes>) -> Result<(), StateError> {
        let state = self.held.lease().state.as_ref();
        state.ok_or(StateError::None)?.set(self.turn, value)
    }

    /// The run that this job belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.run
    }

    /// Whether the lease lasts and the run is not [cancelled](Context::cancelled). Ask before an effect
    /// that must not happen after somebody else has the message; between the answer and the effect the
    /// lease may still end.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let now = self.run.inner.clock.now();
        self.run.why_cancelled().is_none() && now < self.held.lease().end()
    }
}

impl Batch {
    /// The jobs, in the order of the key.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// The jobs, in the order of the key.
    #[must_use]
    pub fn into_jobs(self) -> Vec<Job> {
        self.jobs
    }

    /// The run that the jobs belong to.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.run
    }
}

impl Context {
    pub(crate) fn new(clock: WorkerClock, run_time_max: Option<Millis>) -> Self {
        let longest = run_time_max.map(Duration::from_millis);
        Self {
            inner: Arc::new(Inner {
                cancelled: Mutex::new(None),
                changed: Notify::new(),
                done: AtomicUsize::new(0),
                deadline: longest.and_then(|longest| Instant::now().checked_add(longest)),
                clock,
            }),
        }
    }

    /// When the run is cancelled because it takes too long
    /// ([`run_time_max`](crate::WorkerBuilder::run_time_max)).
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.inner.deadline
    }

    /// Why the run was told to end, if it was.
    #[must_use]
    pub fn why_cancelled(&self) -> Option<Cancelled> {
        *self.cancelled_by()
    }

    /// Waits until the run is told to end. An async handler is dropped at that moment unless the worker
    /// gives it [time](crate::WorkerBuilder::cancel_grace); a blocking one must ask.
    ///
    /// # Cancellation
    /// Dropping it changes nothing.
    pub async fn cancelled(&self) -> Cancelled {
        loop {
            let changed = self.inner.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(why) = self.why_cancelled() {
                return why;
            }
            changed.await;
        }
    }

    /// Says that the batch's first `done` messages have succeeded: if the handler is cancelled or
    /// panics later, they are not handled again.
    pub fn succeeded(&self, done: usize) {
        self.inner.done.fetch_max(done, Ordering::Relaxed);
    }

    pub(crate) fn done(&self) -> usize {
        self.inner.done.load(Ordering::Relaxed)
    }

    pub(crate) fn cancel(&self, why: Cancelled) {
        // The first reason counts.
        self.cancelled_by().get_or_insert(why);
        self.inner.changed.notify_waiters();
    }

    fn cancelled_by(&self) -> MutexGuard<'_, Option<Cancelled>> {
        let cancelled = self.inner.cancelled.lock();
        cancelled.unwrap_or_else(PoisonError::into_inner)
    }
}
