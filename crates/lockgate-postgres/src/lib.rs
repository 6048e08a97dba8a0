//! A Lockgate log in a PostgreSQL database.
//!
//! [`PostgresLog`] is a [`Log`](lockgate_core::Log) whose records are rows.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lockgate_core::{Log, Position, RecordGroup};
//! use lockgate_postgres::{PostgresLog, PostgresLogOptions};
//!
//! # let Ok(url) = std::env::var("LOCKGATE_TEST_POSTGRES") else { return Ok(()) };
//! # let shard = &format!("example-{}", std::process::id());
//! let mut log = PostgresLog::open(&url, shard, PostgresLogOptions::default())?;
//! let report = log.recover(Position(0), &mut |record| println!("{:?}", record.payload))?;
//! let epoch = report.epoch.next();
//! log.begin_epoch(epoch)?;
//!
//! let mut group = RecordGroup::new(log.capabilities().gap);
//! group.push(|buffer| buffer.extend_from_slice(b"a record"));
//! log.append(epoch, log.tail(), &mut group)?;
//! log.syncer().sync()?;
//! # Ok(())
//! # }
//! ```

mod log;
mod options;
mod reader;
mod recover;
mod schema;
mod session;
mod shared;
mod snapshots;
mod sync;
mod upkeep;

pub use log::PostgresLog;
pub use options::{OpenError, PostgresLogOptions};
