//! Producers: for services that receive requests and must hand them to a queue that may be slow or away, without piling
//! up threads, running out of memory, or losing what they answered for.
//!
//! A [`Producer`] stands in front of any [`Sink`](lockgate_core::Sink). It takes messages into a bounded buffer, sends
//! them in batches, tries again what the sink could not take, and keeps them in a spool on disk if it has one.
//!
//! ```
//! use lockgate_core::Message;
//! use lockgate_producer::{AnswerLevel, Producer, ProducerOptions, SpoolOptions, testing::TestSink};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! let sink = TestSink::new();
//! let options = ProducerOptions {
//!     spool: Some(SpoolOptions::new(folder.path().join("spool"))),
//!     ..ProducerOptions::default()
//! };
//! let producer = Producer::open(sink.clone(), options).await?;
//! // Answered when it is on disk: from now on it is delivered, whatever happens to this process.
//! producer.send(Message::new("click")).level(AnswerLevel::Durable).await?;
//! // Answered when the sink has it.
//! producer.send(Message::new("click")).await?;
//! let closed = producer.close(std::time::Duration::from_secs(5)).await;
//! assert_eq!((closed.left, sink.messages().len()), (0, 2));
//! # Ok(())
//! # }
//! ```

// Users read these docs.
#![warn(missing_docs)]

mod buffer;
mod clock;
mod figures;
mod options;
mod pipeline;
mod producer;
mod send;
pub mod sizing;
mod spool;
pub mod testing;

pub use figures::{DropReason, Figures};
pub use options::{
    AnswerLevel, Breaker, Linger, OptionsError, PackOptions, Persist, ProducerOptions, Quota,
    RetryBudget, SpoolOptions, TenantFn, WhenFull, WhenSpoolFull, WhenUnknown,
};
pub use pipeline::{Pipeline, PipelineFigures, PipelineWatch, StageFigures};
pub use producer::{Closed, OpenError, Producer};
pub use send::{Answer, Full, Refusal, Refused, Send, SendError, Ticket};
#[doc(hidden)]
pub use spool::codec::fuzz as fuzz_spool;
pub use spool::{SPOOL_MARK, SpoolError, SpoolReport};
