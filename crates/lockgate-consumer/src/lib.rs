//! Workers over any [`Source`](lockgate_core::Source).
//!
//! So far this crate has the keyed dispatcher as a pure machine, [`dispatch::Dispatcher`]: it decides what to
//! receive, run, settle and extend, and does no I/O. The shell that carries its actions out, and handlers,
//! are to come.
//!
//! ```
//! use lockgate_consumer::dispatch::{
//!     Action, Arrival, DispatchOptions, Dispatcher, Rest, RunEnd, SourceOptions,
//! };
//! use lockgate_core::{Key, SourceCapabilities};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = SourceOptions::new(SourceCapabilities::plain());
//! let mut dispatcher = Dispatcher::new(DispatchOptions::default(), vec![source], 0)?;
//! let arrival = |message: &'static str| -> Result<_, Box<dyn std::error::Error>> {
//!     Ok(Arrival {
//!         message,
//!         key: Some(Key::new("user-42")?),
//!         tenant: None,
//!         priority: 0,
//!         bytes: 4,
//!         attempt: 1,
//!         lease: 30_000,
//!     })
//! };
//! dispatcher.received(0, 10, [arrival("post")?, arrival("delete")?], 0);
//!
//! // Both have one key: the second waits for the first.
//! let Some(Action::Start(first)) = dispatcher.poll(0) else { panic!("nothing to run") };
//! assert_eq!(first.messages[0].0, "post");
//! assert!(!matches!(dispatcher.poll(0), Some(Action::Start(_))));
//! let end = RunEnd { done: 1, rest: Rest::Cancelled };
//! assert!(dispatcher.finished(first.run, end, 5, 0));
//! # Ok(())
//! # }
//! ```

// Users read these docs.
#![warn(missing_docs)]

pub mod dispatch;
pub mod handler;
mod job;
pub mod memory;
mod worker;

pub use dispatch::{Backoff, Cancelled, Fairness, Order};
pub use handler::{Failure, Handler};
pub use job::{Batch, Context, Job};
pub use memory::{MemoryOptions, MemoryQueue};
pub use worker::{Ended, StartError, Worker, WorkerBuilder, WorkerState};
