//! Queues of Amazon SQS, and of what speaks its API, for producers and consumers over
//! [`Sink`](lockgate_core::Sink) and [`Source`](lockgate_core::Source).
//!
//! You make the [`Client`](aws_sdk_sqs::Client) as you like it, with its region, credentials and TLS, and open a
//! queue with it:
//!
//! ```no_run
//! use lockgate_core::{Key, Message, Sink};
//! use lockgate_sqs::SqsQueue;
//!
//! # async fn example(client: aws_sdk_sqs::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders.fifo";
//! let orders = SqsQueue::open(client, url).await?;
//! let message = Message::new("post").with_key(Key::new("user-42")?);
//! for sent in orders.send_batch(vec![message]).await {
//!     println!("{}", sent?.id);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A worker (`lockgate_consumer::Worker::over(orders)`) takes its messages. [`SqsQueue`] says what is carried, what
//! is refused and what SQS cannot tell.

// Users read these docs.
#![warn(missing_docs)]

mod fate;
mod queue;
mod words;

pub use queue::{Receipt, SqsOptions, SqsQueue};
pub use words::{BODY_ENCODING, CONTENT_TYPE, TRACE_CONTEXT};
