//! Drives one Lockgate machine over one log for many callers.
//!
//! An [`Engine`] owns a shard: it recovers the machine from the log, takes commands from any number
//! of async callers, decides whatever has arrived as one group, writes the group with one append,
//! syncs while the next group gathers, and answers each caller when its durability level is reached.
//! Timers, long polls and housekeeping run in it, with no server.
//!
//! What it does not do: speak a protocol (`lockgate-server`), hide leases and settings behind a
//! friendly API (`lockgate`), or know how bytes get to a disk ([`Log`](lockgate_core::Log)).

mod batch;
mod desk;
mod directory;
mod driver;
mod engine;
mod error;
mod inbox;
mod metrics;
mod options;
mod recover;
mod report;
mod request;
mod shell;
mod waiters;

pub use batch::{Batch, Received};
pub use directory::{Directory, QueueEntry};
pub use driver::{Driver, DriverCounts, Output, Ticket, What};
pub use engine::{Engine, Status};
pub use error::{EngineError, StartError, StopReason};
pub use metrics::{AnsweredCounts, EngineMetrics};
pub use options::{EngineOptions, SyncWindow};
pub use recover::Beginning;
pub use report::StartReport;
pub use request::{Outcome, Request, Work};
