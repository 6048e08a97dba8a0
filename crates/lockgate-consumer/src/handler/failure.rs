//! Why a handler did not succeed, and what is to happen.

use std::{borrow::Cow, error::Error, sync::Arc, time::Duration};

use lockgate_core::{Millis, limits::HoldScope, with_sources};

use crate::dispatch::{Rest, RunEnd};

/// A message was not handled. Every error converts into one by `?`: then the message is tried again, as the
/// worker's [`Backoff`](crate::Backoff) and its queue's limit of attempts say.
///
/// ```
/// use std::time::Duration;
///
/// use lockgate_consumer::{Failure, Job};
///
/// async fn handle(job: Job) -> Result<(), Failure> {
///     let amount: u64 = std::str::from_utf8(job.body())?.parse()?; // tried again
///     if amount == 0 {
///         return Err(Failure::reject("there is nothing to pay")); // to the dead letters
///     }
///     if amount > 1_000 {
///         return Err(Failure::defer(Duration::from_secs(3_600))); // later; costs no attempt
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Failure(pub(super) Rest);

impl Failure {
    /// The message is tried again after `delay`, or after the worker's backoff if that is `None`.
    ///
    /// Where the source waits, that is at the latest after the longest delay that it knows
    /// ([`nack_delay_max`](lockgate_core::SourceCapabilities::nack_delay_max)). A message with a key of a source that does
    /// not lock keys waits in the worker, which extends its lease: the key waits as long as `delay` says.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>, delay: Option<Duration>) -> Self {
        let error = with_sources(&*error.into()).into();
        let retry_in = delay.map(millis);
        Self(Rest::Failed { error, retry_in })
    }

    /// The message can never be handled: it becomes a dead letter with this reason, or is dropped if its
    /// queue has no dead-letter queue.
    pub fn reject<'a>(reason: impl Into<Cow<'a, str>>) -> Self {
        let reason: Arc<str> = reason.into().into();
        Self(Rest::Rejected { reason })
    }

    /// Not now: the message comes again after `delay`, and the attempt does not count where the source can defer. The
    /// delay has the bounds of [`retry`](Self::retry).
    #[must_use]
    pub fn defer(delay: Duration) -> Self {
        Self(Rest::Deferred {
            delay: millis(delay),
        })
    }

    /// Whoever the worker calls takes nothing for so long, as the answer 429 says by its `Retry-After`: the message is
    /// [deferred](Self::defer), and nothing of the worker starts before. An earlier end than one that holds already
    /// changes nothing.
    ///
    /// Where the source [can](lockgate_core::SourceCapabilities::hold), the queue of the message is held for all who
    /// receive from it, in whatever process, as long as its [longest delay](lockgate_core::SourceCapabilities::nack_delay_max).
    #[must_use]
    pub fn hold(delay: Duration) -> Self {
        Self(Rest::Held {
            delay: millis(delay),
            scope: HoldScope::Queue,
        })
    }

    /// The same of the message's key, or its group: what else there is of it waits too. A message without one holds
    /// its queue. Where the source cannot hold, this is no more than [`defer`](Self::defer), for which what is behind
    /// a message with a key waits anyway.
    #[must_use]
    pub fn hold_key(delay: Duration) -> Self {
        Self(Rest::Held {
            delay: millis(delay),
            scope: HoldScope::Key,
        })
    }

    /// The message was not tried because the run was cancelled: it comes again at once, and the attempt does
    /// not count. If nobody has cancelled the run, it is [deferred](Self::defer) by the worker's
    /// [`Backoff`](crate::Backoff), or goes back at once if its source is closed.
    #[must_use]
    pub fn cancelled() -> Self {
        Self(Rest::Cancelled)
    }

    /// The end of a run whose first `done` messages succeeded before this.
    pub(super) fn end(self, done: usize) -> RunEnd {
        RunEnd { done, rest: self.0 }
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::retry(error, None)
    }
}

fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX)
}
