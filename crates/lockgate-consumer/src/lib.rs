//! Workers over any [`Source`](lockgate_core::Source): an embedded queue, one of a server, or a
//! [`MemoryQueue`].
//!
//! A [`Worker`] receives messages and calls a [`Handler`] for each. Messages of one key are handled one after
//! the other, in their order, and different keys side by side. A message whose handler fails comes again
//! later, and its key waits for it. Leases are extended while handlers run, and a handler whose lease is lost
//! is cancelled.
//!
//! ```
//! use lockgate_consumer::{Job, MemoryOptions, MemoryQueue, Worker};
//! use lockgate_core::{Key, Message};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let queue = MemoryQueue::new(MemoryOptions::default())?;
//! let worker = Worker::over(queue.clone()).concurrency(100).start(|job: Job| async move {
//!     println!("{:?} for {:?}, attempt {}", job.body(), job.key(), job.attempt());
//!     Ok(())
//! })?;
//! for body in ["post", "delete"] {
//!     queue.push(Message::new(body).with_key(Key::new("user-42")?)).await?;
//! }
//! // A worker over a closed queue ends when the last message is done.
//! queue.close();
//! let ended = worker.ended().await;
//! assert_eq!(ended.counts.acknowledged, 2);
//! # Ok(())
//! # }
//! ```
//!
//! To do once what is triggered many times, use a [coalescer](coalesce).
//!
//! What decides is a pure machine, the [dispatcher](dispatch); use it alone to build a worker on another
//! runtime.

// Users read these docs.
#![warn(missing_docs)]

pub mod coalesce;
pub mod dispatch;
pub mod handler;
mod job;
pub mod memory;
mod memory_records;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod models;
mod sync;
mod worker;

/// What [`MemoryRecords`] does at one instant, for who keeps records elsewhere.
#[doc(hidden)]
pub mod records_state {
    pub use crate::memory_records::state::{SavedLease, SavedRecord, SavedRecords, State};
}

pub use dispatch::{Backoff, Cancelled, Fairness, Order};
pub use handler::{Failure, Handler};
pub use job::{Batch, Context, Job};
pub use lockgate_core::limits;
pub use memory::{MemoryOptions, MemoryQueue};
pub use memory_records::MemoryRecords;
pub use worker::{
    Coalesce, CoalesceError, Ended, StartError, StateError, TokioClock, Worker, WorkerBuilder,
    WorkerState, WorkerWatch,
};
