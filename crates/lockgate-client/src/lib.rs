//! A client of a Lockgate server, for tokio: its queues over HTTP or HTTPS.
//!
//! [`Client::queue`] opens a queue. A [`RemoteQueue`] is a [`Sink`](lockgate_core::Sink) and a
//! [`Source`](lockgate_core::Source), as an embedded queue is, so that producers and consumers over these
//! traits work with both. [`Client::exchange_sink`] makes such a sink of an exchange. [`Client::queue_later`] names a queue whose server may be away: a [`LaterQueue`] is a
//! [`Sink`](lockgate_core::Sink) that looks for it at each send. [`Client::ledger`] names a
//! [`Ledger`](lockgate_core::ledger::Ledger) of it, [`Client::schedule`] a [schedule]. [`Client::call`] makes every other call of `/api/v1`.
//!
//! ```
//! # use std::sync::Arc;
//! # use lockgate_engine::{Engine, EngineOptions};
//! # use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
//! # use lockgate_server::{Server, ServerOptions};
//! use std::time::Duration;
//!
//! use lockgate_client::{Client, Method};
//! use lockgate_core::{
//!     HolderName, Key, Message, QueueName, ReceiveRequest, Settlement, Sink, Source,
//! };
//! use serde_json::{Value, json};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let log = LocalLog::open(Arc::new(FolderDisk::open(folder.path())?), LocalLogOptions::default())?;
//! # let (engine, _) = Engine::start(log, Arc::new(SystemClock::new()), EngineOptions::default())?;
//! # let options = ServerOptions { listen: "127.0.0.1:0".parse()?, ..ServerOptions::default() };
//! # let server = Server::bind(options, engine).await?;
//! # let url = format!("http://{}", server.local_addr());
//! # tokio::spawn(server.run(std::future::pending()));
//! // let url = "http://127.0.0.1:9324";
//! let client = Client::builder(url.parse()?).build().await?;
//! let made: Value = client
//!     .call(Method::POST, "/queues", Some(&json!({"name": "orders.fifo"})))
//!     .await?;
//! assert_eq!(made["keyed"], true);
//!
//! let orders = client.queue(&QueueName::new("orders.fifo")?).await?;
//! let message = Message::new("post").with_key(Key::new("user-42")?);
//! for sent in orders.send_batch(vec![message]).await {
//!     println!("{:?}", sent?.id);
//! }
//!
//! let request = ReceiveRequest {
//!     max: 10,
//!     key_max: None,
//!     wait: Duration::from_secs(5),
//!     lease: None,
//!     holder: HolderName::new("worker-1")?,
//! };
//! let received = orders.receive_batch(request).await?;
//! assert_eq!(received[0].message.body, "post");
//! let acks = received.into_iter().map(|leased| (leased.receipt, Settlement::Ack));
//! for settled in orders.settle_batch(acks.collect()).await {
//!     settled?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What failed says what became of it: a [`CallError`] by its [`fate`](CallError::fate), a
//! [`TransportError`](lockgate_core::TransportError) by its field. Nothing is tried again here, but for a
//! request that was certainly not sent on a connection that the server had closed: how often and how long to
//! try is for the caller to say, and a [unique id](lockgate_core::Message::unique_id) makes a repeated send
//! harmless.
//!
//! | | default | bound |
//! |---|---|---|
//! | wait for an answer | 30 s ([`ClientBuilder::timeout`]); a receive's own wait on top | |
//! | wait for a connection | 5 s, and 5 s for a TLS handshake; within the wait for an answer | |
//! | idle connections that are kept | | 32, each for 30 s |
//! | connections at the same time | | as many as there are calls at the same time |
//! | bytes of an answer | | 256 MiB; a backup is not kept in memory |
//!
//! [`Client`] says what a dropped future means, [`RemoteQueue`] what a queue carries and how much at a time.

// Users read these docs.
#![warn(missing_docs)]

pub mod api;
mod client;
mod connection;
mod credentials;
mod endpoint;
mod error;
mod exchange;
mod later;
mod ledger;
mod ledger_page;
mod queue;
mod records;
pub mod schedule;
mod target;
mod trust;

pub use client::{BackupBody, BuildError, Client, ClientBuilder};
pub use credentials::Credentials;
pub use endpoint::{Endpoint, EndpointError};
pub use error::{CallError, LedgerFault, RecordFault};
pub use exchange::RemoteExchange;
pub use hyper::{Method, StatusCode};
pub use later::LaterQueue;
pub use ledger::ServerLedger;
#[doc(hidden)]
pub use ledger_page::fuzz_page;
pub use lockgate_sigv4::Secret;
pub use queue::{Receipt, RemoteQueue};
pub use trust::{TlsCause, TrustError};
