//! A Lockgate log in a PostgreSQL database.
//!
//! [`PostgresLog`] is a [`Log`](lockgate_core::Log) whose records are rows. What its levels mean and how to set
//! it up: `docs/logs.md`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lockgate_core::{Epoch, Log, LogSource, Position, RecordGroup};
//! use lockgate_postgres::{PostgresLog, PostgresLogOptions};
//!
//! # let Ok(url) = std::env::var("LOCKGATE_TEST_POSTGRES") else { return Ok(()) };
//! # let shard = &format!("example-{}", std::process::id());
//! let mut log = PostgresLog::open(&url, shard, PostgresLogOptions::default())?;
//! let report = log.recover(Position(0), Epoch(0), &mut |record, _| println!("{record:?}"))?;
//! let epoch = report.epoch.next();
//! log.begin_epoch(epoch)?;
//!
//! let mut group = RecordGroup::new(log.capabilities().gap);
//! group.push(|buffer| buffer.extend_from_slice(b"a record"));
//! log.append(epoch, log.tail(), &mut group)?;
//! log.progress().sync()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Tables
//! In the schema `lockgate`, made at the first opening and brought to a newer version by later ones; a newer
//! version than this program knows is refused.
//!
//! | table | a row is |
//! |---|---|
//! | `format` | the version of the tables |
//! | `shard` | a shard: its name, claim, epoch, tail, next number, and the position of the last trim |
//! | `durable` | up to where a shard was synced |
//! | `record` | a record, by shard and position: number, epoch, checksum, payload |
//! | `released` | a range whose records are still to be deleted |
//! | `snapshot`, `piece` | a snapshot, complete or not, and its pieces |
//!
//! A position counts bytes: a record's payload and 96 for its row. So a stretch of positions bounds what an
//! answer holds, and a range of 2^26 positions is 64 MiB of the database, more or less.
//!
//! # Appending and fencing
//! An append is one statement. It moves the shard's tail on condition that claim, epoch and tail are what this
//! owner knows, and inserts the records if that hit a row. The lock of the row puts all owners' statements in one
//! order, for as long as the statement runs on the server; an owner that stands still holds nothing.
//!
//! A recovery first raises the claim, so that nothing is appended behind what it reads. Beginning an epoch needs
//! that claim still to be there. Whatever else changes something carries the same condition.
//!
//! What connects again may find another server: after a failover, one that never got the last records. So a claim is
//! drawn at random, that no two servers come to the same one, and reading and deleting need a server whose claim is
//! this owner's and whose tail is not below what it appended.
//!
//! # Syncing
//! Appends commit with `synchronous_commit = off` on a connection of their own, syncs with `on` on another: the
//! next group is appended while the last one is flushed. A sync writes to a table of its own, because the lock of
//! the shard's row would hold appends up for as long as the flush takes; and it looks whether the tail is
//! still where it was, so that nothing is called durable that a restarted server has lost. It returns the setting it
//! was committed with, in case a pooler had another session run it. At level `replicated` it then looks whether as many
//! standbys as the setting names have flushed that far, because not every commit waits that should.
//!
//! # Filling
//! A restore fills a shard under a name that nobody opens, and renames it when it is whole
//! ([`PostgresLog::open_to_fill`]). An advisory lock of its session tells one that is being filled from one that was left.
//!
//! # Looking
//! A [`PostgresView`] reads where everything is in one short transaction, and the rest page by page: a long one would
//! keep every version of the rows that appends and syncs change, which then search through all of them. Records
//! and snapshots never change, so what it needs is only that none is deleted. For that it holds an advisory lock that
//! the owner asks for before it deletes what it gave back. On a standby, where no owner sees a lock, it is
//! one transaction.
//!
//! # Failure
//! These two connections are never made again: what a lost one leaves is unknown, and the instance has ended.
//! Reading and background work connect again. Every wait has a deadline on this side, whatever the server or the
//! network does. Of several hosts in a URL each has its share of that time, for all there is to a connection.
//!
//! # Threads
//! All methods block, and may be called on a thread that runs an async runtime: waiting needs none. One thread
//! moves bytes between a log's connections and the server: the log's own, or a [`ConnectionThread`] that several logs
//! are given.

// Users read these docs.
#![warn(missing_docs)]

mod discard;
mod fill;
mod hosts;
mod log;
mod log_maintenance;
mod options;
mod pipeline;
mod pooler;
mod reader;
mod recover;
mod schema;
mod session;
mod shared;
mod snapshots;
mod sync;
mod thread;
mod tls;
mod view;

/// What a fuzzer gives its bytes to; no interface for anybody else.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::recover::fuzzing::{LAYOUT, checksum_of, rows};
}

pub use discard::Discard;
pub use fill::Filling;
pub use log::PostgresLog;
pub use options::{OpenError, PostgresLogOptions};
pub use thread::ConnectionThread;
pub use view::{PostgresView, Standby};
