//! What handles messages: async functions, blocking functions, tower services; one message or a batch.

mod failure;
mod forms;

use std::future::Future;

pub use self::{
    failure::Failure,
    forms::{Batches, Blocking, TowerService, batches, blocking, json, parsed, service},
};
use crate::{
    Batch, Job,
    dispatch::{Rest, RunEnd},
};

/// Handles messages. An async function of a [`Job`] is one; see [`blocking`], [`batches`], [`json`],
/// [`parsed`] and [`service`] for others.
///
/// A handler that panics has failed, with the panic's text.
pub trait Handler: Send + Sync + 'static {
    /// Handles the messages of one run, in order, and tells how many succeeded and what became of the
    /// next.
    fn handle(&self, batch: Batch) -> impl Future<Output = RunEnd> + Send;

    /// Whether a run ends when its future is dropped. If not, a cancelled run counts as going on until its
    /// future is done: no other message of its key starts.
    fn ends_when_dropped(&self) -> bool {
        true
    }
}

impl<F, Handling> Handler for F
where
    F: Fn(Job) -> Handling + Send + Sync + 'static,
    Handling: Future<Output = Result<(), Failure>> + Send,
{
    async fn handle(&self, batch: Batch) -> RunEnd {
        let context = batch.context().clone();
        let mut done = 0;
        for job in batch.into_jobs() {
            if context.why_cancelled().is_some() {
                return not_begun(done);
            }
            if let Err(failure) = self(job).await {
                return failure.end(done);
            }
            done += 1;
            context.succeeded(done);
        }
        all(done)
    }
}

/// The run was cancelled behind its first `done` messages.
fn not_begun(done: usize) -> RunEnd {
    let rest = Rest::NotBegun;
    RunEnd { done, rest }
}

/// All have succeeded.
fn all(done: usize) -> RunEnd {
    RunEnd {
        done,
        rest: Rest::Cancelled,
    }
}
