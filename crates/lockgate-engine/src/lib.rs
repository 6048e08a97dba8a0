//! Drives one Lockgate machine over one log for many callers.
//!
//! An [`Engine`] owns a shard. It recovers the machine from the log and takes commands from any
//! number of async callers. It decides all commands that have arrived as one group, writes the
//! group with one append, and syncs while the next group gathers. It answers each caller when the
//! caller's level is reached. It also runs timers, long polls and maintenance. It needs no server.
//!
//! Other crates speak a protocol (`lockgate-server`), hide leases and settings behind a simpler API
//! (`lockgate`), and write to a disk ([`Log`](lockgate_core::Log)).
//!
//! ```
//! use std::{collections::BTreeMap, sync::Arc, time::Duration};
//!
//! use lockgate_core::{HolderName, Message, QueueName};
//! use lockgate_engine::{Engine, EngineOptions};
//! use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
//! use lockgate_machine::{
//!     Command, CreateQueue, QueueSettings, Receive, SendMessage, Settle, SettleAction,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path();
//! let disk = Arc::new(FolderDisk::open(path)?);
//! let log = LocalLog::open(disk, LocalLogOptions::default())?;
//! let clock = Arc::new(SystemClock::new());
//! let (engine, report) = Engine::start(log, clock, EngineOptions::default())?;
//! assert!(report.is_clean());
//!
//! let queue = QueueName::new("orders")?;
//! let create = CreateQueue {
//!     name: queue.clone(),
//!     settings: QueueSettings::default(),
//!     annotations: BTreeMap::new(),
//!     tags: BTreeMap::new(),
//! };
//! engine.submit(Command::CreateQueue(Box::new(create))).await?;
//! let send = SendMessage { queue: queue.clone(), message: Message::new("hello") };
//! // Answered when the message survives a power cut.
//! engine.submit(Command::Send(Box::new(send))).await?;
//!
//! let receive = Receive { queue, max: 10, key_max: None, lease: None, holder: HolderName::new("worker")? };
//! let batch = engine.receive(receive, Duration::from_secs(5)).await?;
//! for received in batch.keep() {
//!     assert_eq!(received.stored.message.body, "hello");
//!     let settle = Settle { token: received.delivery.token, action: SettleAction::Ack };
//!     engine.submit(Command::Settle(settle)).await?;
//! }
//! engine.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod backup;
mod directory;
mod driver;
mod engine;
mod error;
mod exposition;
mod inbox;
mod leases;
mod ledger;
mod maintenance;
mod metrics;
mod missing;
#[cfg(test)]
#[cfg(feature = "shuttle")]
mod models;
mod options;
mod peek;
mod pending;
mod readers;
mod reading;
mod recover;
mod report;
mod request;
mod runtime;
mod schedules;
mod sync;
mod unique_ids;
mod waiters;

pub use backup::{
    BackupError, BackupReport, RestoreError, RestoreReport, restore, restore_with_index,
    verify_backup,
};
pub use directory::{Directory, QueueEntry};
pub use driver::{Driver, DriverCounts, Output, OutputKind, SpanCounts, Ticket};
pub use engine::{Engine, Status};
pub use error::{EngineError, SnapshotError, StartError, StopReason, UnknownCause};
pub use leases::{Received, ReceivedBatch};
pub use ledger::{EngineLedger, ledger_error};
pub use lockgate_index::{FolderIndex, IndexError, IndexOptions};
pub use maintenance::{
    MaintenanceCounts, MaintenanceTask, TaskRest, TaskStep, threads::MaintenanceThreads,
};
pub use metrics::{AnsweredCounts, EngineMetrics, IndexMetrics};
pub use missing::{MissingPart, WithoutQueue};
pub use options::{EngineOptions, IndexPace};
pub use peek::{Peek, Peeked};
pub use pending::LogSpans;
pub use recover::{Beginning, Trial, try_start};
pub use report::StartReport;
pub use request::{Answer, Batch, LookUp, Request, Work};
pub use schedules::next_times;
pub use unique_ids::{IndexLook, look_at_index};
