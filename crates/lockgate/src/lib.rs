//! Durable keyed queues inside a service.
//!
//! [`Lockgate::open`] makes a folder into a set of queues. Messages survive a crash of the process
//! and of the computer. Messages of one key stay in order, with one holder at a time, and every
//! other key flows. Timers, expiry and long polls run in the library; there is no server to start.
//!
//! What is promised:
//!
//! - A send that was answered is there after a power cut (level `disk`, the default) or after a
//!   kill of the process (`process`). At `memory` it may be lost. See [`Level`].
//! - Delivery is *at least once*: a message comes again if its lease ends before somebody settles
//!   it. Sends with a unique id are accepted once within the queue's window.
//! - In a keyed queue the messages of one key are delivered in order. While somebody holds one,
//!   nobody else gets another.
//! - A folder belongs to one process at a time. To share queues between processes, run the server.
//!
//! ```
//! use std::time::Duration;
//!
//! use lockgate::{Key, Lockgate, Message};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let lockgate = Lockgate::open(path).await?;
//! let orders = lockgate.queue("orders").keyed().create().await?;
//!
//! let user = Key::new("user-42")?;
//! orders.send(Message::new("post").with_key(user.clone())).await?;
//! orders.send(Message::new("delete").with_key(user)).await?;
//!
//! // Both have one key: they come in order, to one holder.
//! let deliveries = orders
//!     .receive()
//!     .max(10)
//!     .wait(Duration::from_secs(5))
//!     .holder("worker-1")
//!     .await?;
//! let bodies: Vec<_> = deliveries.iter().map(|delivery| &delivery.body()[..]).collect();
//! assert_eq!(bodies, [b"post".as_slice(), b"delete"]);
//! for delivery in deliveries {
//!     delivery.ack().await?;
//! }
//! lockgate.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! A [worker](consumer) handles messages as they come, many keys side by side, with retries and leases that
//! are extended:
//!
//! ```
//! use std::time::Duration;
//!
//! use lockgate::{Key, Lockgate, Message, consumer::{Job, Worker}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! # let (done, finished) = tokio::sync::oneshot::channel::<()>();
//! # let done = std::sync::Arc::new(std::sync::Mutex::new(Some(done)));
//! # let finished = async { drop(finished.await) };
//! let lockgate = Lockgate::open(path).await?;
//! let mails = lockgate.queue("mails").keyed().create().await?;
//! mails.send(Message::new("welcome").with_key(Key::new("user-42")?)).await?;
//!
//! let worker = Worker::over(mails).concurrency(100).start(move |job: Job| {
//! #   let done = done.clone();
//!     async move {
//!         println!("{:?} for {:?}", job.body(), job.key());
//! #       drop(done.lock().unwrap().take());
//!         Ok(())
//!     }
//! })?;
//! // Mostly until a signal comes.
//! worker.run_until(finished, Duration::from_secs(30)).await;
//! lockgate.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! An [exchange] gives a copy of a message to each queue that is bound to match it. A [schedule] sends messages at times.
//!
//! A [`producer`] stands in front of a queue that may be slow or away: it buffers, batches, tries again, and keeps
//! what it answered for on disk.
//!
//! [Coordination](coordination) elects one of many processes, which works under a fence until it hands over.
//!
//! A [sequencer] gives messages one total order in a [ledger], and followers apply each event once.
//!
//! With the feature `zookeeper`, ZooKeeper elects: `lockgate::zookeeper`, also between processes in Rust and in Java.
//!
//! With the feature `postgres`, a PostgreSQL database can keep the queues instead of a folder:
//! `Lockgate::postgres(url, shard)`. With `postgres`, `mysql` and `redis`, [`records`] has stores of records in such databases,
//! for elections.
//!
//! With the features `sql-sqlite` and `sql-postgres`, `lockgate::sql` has an inbox, so that a message has one effect
//! in your database though it may come twice, an outbox, so that a message is sent if your transaction commits, and a guard, so
//! that no leader that was deposed writes to your tables.
//!
//! With the feature `client`, `lockgate::client` has the queues of a server. They are a [`Sink`] and a
//! [`Source`], as a [`Queue`] is: what is written over these traits takes both. With the feature `sqs`, `lockgate::sqs`
//! has those of Amazon SQS.

// Users read these docs.
#![warn(missing_docs)]

mod browse;
mod delivery;
mod error;
pub mod exchange;
mod exchange_sink;
pub mod ledger;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
mod queue;
pub mod records;
mod redrive;
pub mod schedule;
mod settling;
mod storage;
mod testing;
mod transaction;
mod transport;

pub use browse::{KeysBuilder, PeekBuilder, PeekedMessage, PeekedPage};
pub use bytes::Bytes;
pub use delivery::{Delivery, ExtendError, ReceiveBuilder, SettleError};
pub use error::{Error, ErrorKind};
pub use exchange::{
    BindTo, BindingOptions, BindingsPage, Bound, CreatedExchange, Exchange, ExchangeDescription,
    ExchangeKind, ExchangesPage, ListExchanges, Pattern, Publication, RouteExplanation, Unroutable,
};
pub use exchange_sink::ExchangeSink;
pub use ledger::{
    Append, AppendAckError, Appended, EmbeddedLedger, LedgerDescription, LedgerError,
    LedgerOptions, LedgersPage, ListLedgers,
};
pub use lockgate_core::{
    Accepted, AppendError, BootId, Clock, DamagedRange, DiskError, DiskOperation, ElectionName,
    Epoch, ExchangeName, FailedAttempt, Failures, Fate, Header, HolderName, Incarnation, InputId,
    Key, KeyOrder, KeyState, KeyStateWrite, LeaseToken, Leased, LedgerName, Level, LogError,
    LogSpace, ManualClock, MarkError, Message, MessageId, MessageName, Millis, NameError,
    PRIORITY_MAX, Position, Produced, ProducerIncarnation, ProducerMark, ProducerName,
    ProducerRefused, QueueId, QueueName, REASON_BYTES_MAX, RECORD_BYTES_MAX, ReadError, ReaderName,
    ReceiveRequest, RecordVersion, Replaces, RouteBy, RouteByError, RoutingKey, Sequence,
    Settlement, ShardId, ShardIdError, Sink, SinkCapabilities, Source, SourceCapabilities,
    SpaceState, Storage, Term, TransportError, UniqueId, Unsupported, WallTime,
    coordination::{Fence, FenceError, FenceMark},
    pack,
};
pub use lockgate_engine::{
    AnsweredCounts, BackupError, BackupReport, Engine, EngineError, EngineMetrics, EngineOptions,
    IndexPace, MaintenanceCounts, MaintenanceThreads, MissingPart, RestoreError, RestoreReport,
    SnapshotError, StartError, StartReport, Status, StopReason, UnknownCause, WithoutQueue,
};
pub use lockgate_log::{LocalLogOptions, OpenError as LogOpenError, SharedReserve};
pub use lockgate_machine::{
    COUNTERS, Counter, CounterKind, DeadLetterReason, DecodeError, DedupScope, DroppedCounts,
    KeyHeld, KeyPage, KeyPolicy, KeyProfile, KeyStatePage, KeyStateStatus, KeyStatus, KeyWait,
    MessageStatus, MessageWait, MoveCursor, Moved, Origin, ProducerPage, ProducerStatus,
    QueueCounts, QueueDescription, QueueLimited, QueueSettings, QueueTotals, Rejection, SETTINGS,
    Sent, Setting, SettingKind, SettingValue, SettingsError, StaleReason, Stuck, StuckReason,
    SyncWindow,
};
#[cfg(feature = "postgres")]
pub use lockgate_postgres::{OpenError as PostgresOpenError, PostgresLogOptions};
pub use open::{Builder, Folder, Lockgate, OpenError, Place};
#[cfg(feature = "postgres")]
pub use postgres::PostgresShard;
pub use queue::{Queue, QueueBuilder};
pub use redrive::RedriveBuilder;
pub use schedule::{
    ListSchedules, Schedule, ScheduleDescription, ScheduleName, SchedulePut, ScheduleSpec,
    ScheduleTo, SchedulesPage,
};
pub use settling::SettleAllError;
pub use testing::{TestDelivery, TestWatch};
pub use transaction::{Committed, Transaction, TransactionError};

/// Producers: a buffer, batches, a spool on disk and retries in front of queues of any kind. The crate
/// `lockgate-producer`.
#[cfg(feature = "producer")]
pub mod producer {
    pub use lockgate_producer::*;
}

/// Elections, fences, careers and singletons, over an embedded Lockgate, a server, or records in memory. The crate
/// `lockgate-coordination`.
#[cfg(feature = "coordination")]
pub mod coordination {
    pub use lockgate_coordination::*;
}

/// One total order of events: a sequencer with a hot standby, followers that repair gaps, and the words of ledgers. The crate
/// `lockgate-sequencer`.
#[cfg(feature = "sequencer")]
pub mod sequencer {
    #[cfg(feature = "mysql")]
    pub use lockgate_mysql::{MysqlLedger, MysqlLedgerOptions};
    #[cfg(feature = "postgres")]
    pub use lockgate_postgres::{PostgresLedger, PostgresLedgerOptions};
    pub use lockgate_sequencer::*;
}

/// Workers: handlers of messages over queues of any kind. The crate `lockgate-consumer`.
#[cfg(feature = "consumer")]
pub mod consumer {
    pub use lockgate_consumer::*;
}

/// A server's queues, over HTTP: the crate `lockgate-client`.
#[cfg(feature = "client")]
pub mod client {
    pub use lockgate_client::*;
}

/// Queues of Amazon SQS, and of what speaks its API: the crate `lockgate-sqs`.
#[cfg(feature = "sqs")]
pub mod sqs {
    pub use lockgate_sqs::*;
}

/// Elections over ZooKeeper, together with candidates of Curator: the crate `lockgate-zookeeper`.
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use lockgate_zookeeper::*;
}

/// One effect for each message, in the transaction of the effect: the crate `lockgate-sql`.
#[cfg(any(
    feature = "sql-sqlite",
    feature = "sql-postgres",
    feature = "sql-mysql"
))]
pub mod sql {
    pub use lockgate_sql::*;
}

/// Limits on how often messages are leased.
pub mod limits {
    pub use lockgate_core::limits::{
        Gap, HoldScope, Limit, LimitTextError, LimitsError, Rate, Scoped,
    };
}

/// The crates below: for who writes a [`Log`](lockgate_core::Log), or asks the [`Engine`] itself.
pub mod parts {
    pub use lockgate_core as core;
    pub use lockgate_engine as engine;
    pub use lockgate_log as log;
    pub use lockgate_machine as machine;
}

// The Rust example of README.md is compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "producer"))]
#[doc = include_str!("../../../docs/producer.md")]
struct ProducerDocument;

#[cfg(all(doctest, feature = "consumer"))]
#[doc = include_str!("../../../docs/worker.md")]
struct WorkerDocument;

#[cfg(all(doctest, feature = "consumer"))]
#[doc = include_str!("../../../docs/coalescer.md")]
struct CoalescerDocument;

#[cfg(all(doctest, feature = "coordination"))]
#[doc = include_str!("../../../docs/coordination.md")]
struct CoordinationDocument;

#[cfg(all(doctest, feature = "sequencer"))]
#[doc = include_str!("../../../docs/sequencer.md")]
struct SequencerDocument;

#[cfg(all(doctest, feature = "consumer"))]
#[doc = include_str!("../../../docs/key-state.md")]
struct KeyStateDocument;
