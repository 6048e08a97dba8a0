//! Queues of Amazon SQS, and of what speaks its API, for producers and consumers over
//! [`Sink`](lockgate_core::Sink) and [`Source`](lockgate_core::Source).
//!
//! You make the [`Client`](aws_sdk_sqs::Client) as you like it, with its region, credentials and TLS, and open a
//! queue with it:
//!
//! ```
//! # use std::sync::Arc;
//! # use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
//! # use lockgate_engine::{Engine, EngineOptions};
//! # use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
//! # use lockgate_server::{Server, ServerOptions};
//! use lockgate_consumer::{Job, Worker};
//! use lockgate_core::{Key, Message, Sink};
//! use lockgate_sqs::SqsQueue;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let log = LocalLog::open(Arc::new(FolderDisk::open(folder.path())?), LocalLogOptions::default())?;
//! # let (engine, _) = Engine::start(log, Arc::new(SystemClock::new()), EngineOptions::default())?;
//! # let options = ServerOptions { listen: "127.0.0.1:0".parse()?, ..ServerOptions::default() };
//! # let server = Server::bind(options, engine).await?;
//! # let endpoint = format!("http://{}", server.local_addr());
//! # tokio::spawn(server.run(std::future::pending()));
//! # let config = aws_sdk_sqs::Config::builder()
//! #     .behavior_version(BehaviorVersion::latest())
//! #     .endpoint_url(endpoint)
//! #     .region(Region::new("us-east-1"))
//! #     .credentials_provider(Credentials::new("any", "any", None, None, "example"))
//! #     .http_client(aws_smithy_http_client::Builder::new().build_http())
//! #     .build();
//! # let client = aws_sdk_sqs::Client::from_conf(config);
//! # let made = client.create_queue().queue_name("mails.fifo");
//! # let made = made.attributes(aws_sdk_sqs::types::QueueAttributeName::FifoQueue, "true");
//! # let url = made.send().await?.queue_url.unwrap_or_default();
//! # let (done, finished) = tokio::sync::mpsc::channel(1);
//! # let mut finished = finished;
//! // let config = aws_config::load_from_env().await;
//! // let client = aws_sdk_sqs::Client::new(&config);
//! // let url = "https://sqs.eu-central-1.amazonaws.com/123456789012/mails.fifo";
//! let mails = SqsQueue::open(client, url).await?;
//! let message = Message::new("welcome").with_key(Key::new("user-42")?);
//! for sent in mails.send_batch(vec![message]).await {
//!     println!("{:?}", sent?.id);
//! }
//!
//! let worker = Worker::over(mails).concurrency(100).start(move |job: Job| {
//! #   let done = done.clone();
//!     async move {
//!         println!("{:?} to {:?}, attempt {}", job.body(), job.key(), job.attempt());
//! #       drop(done.send(()).await);
//!         Ok(())
//!     }
//! })?;
//! # finished.recv().await;
//! let ended = worker.drain(std::time::Duration::from_secs(30)).await;
//! # assert_eq!(ended.counts.acknowledged, 1);
//! # Ok(())
//! # }
//! ```
//!
//! [`SqsQueue`] says what is carried, what is refused and what SQS cannot tell.

// Users read these docs.
#![warn(missing_docs)]

mod fate;
mod queue;
mod words;

pub use queue::{Receipt, SqsOptions, SqsQueue};
pub use words::{BODY_ENCODING, CONTENT_TYPE, TRACE_CONTEXT};
