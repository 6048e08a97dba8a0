//! A Lockgate log, records, and ledgers, in a PostgreSQL database.
//!
//! [`PostgresLog`] is a [`Log`](lockgate_core::Log) whose records are rows. `docs/logs.md` says how to
//! set it up, and what its levels mean. [`PostgresRecords`] is a store of
//! [`Records`](lockgate_core::Records), in a schema of its own: `docs/records.md`.
//! [`PostgresLedger`] is a [`Ledger`](lockgate_core::ledger::Ledger): `docs/sequencer.md`. What follows is about the log.
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
//! They are in the schema `lockgate`. The first opening makes them, and later versions bring them up to
//! date. The log refuses tables of a newer version than it knows.
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
//! A position counts bytes: a record's payload, and 96 for its row. So a stretch of positions bounds the
//! size of an answer, and a range of 2^26 positions takes about 64 MiB of the database.
//!
//! # Appending and fencing
//! An append is one statement. It moves the shard's tail if claim, epoch and tail are what this
//! owner knows, and inserts the records if that changed a row. The lock of the row puts all owners'
//! statements in one order, and lasts only as long as the statement runs on the server. An owner
//! that stands still holds nothing.
//!
//! A recovery first raises the claim, so that nobody appends behind what it reads. Beginning an
//! epoch needs that claim still to be there. Every other change carries the same condition.
//!
//! A connection that is made again may reach another server: after a failover, one that never got
//! the last records. So claims are drawn at random, and no two servers come to the same one.
//! Reading and deleting need a server whose claim is this owner's and whose tail is not below what
//! this owner appended.
//!
//! # Syncing
//! Appends commit with `synchronous_commit = off` on a connection of their own, syncs with `on` on
//! another. So the next group is appended while the last one is flushed. A sync writes to a table
//! of its own, because the lock of the shard's row would hold appends up while the flush runs. It
//! also checks that the tail is still where it was, so that it calls nothing durable that a
//! restarted server has lost. It returns the setting it was committed with, in case a pooler had
//! another session run it. At level `replicated` it then checks that as many standbys as the
//! setting names have flushed that far, because some commits do not wait although they should.
//!
//! # Filling
//! A restore fills a shard under a name that nobody opens, and renames it when it is whole
//! ([`PostgresLog::open_to_fill`]). An advisory lock of its session tells a shard that is being
//! filled from one that was left behind.
//!
//! # Looking
//! A [`PostgresView`] reads where everything is in one short transaction, and the rest page by
//! page. A long transaction would keep every version of the rows that appends and syncs change, and
//! they would have to search through all of them. Records and snapshots never change, so the view
//! only needs that none is deleted. For that it holds an advisory lock that the owner asks for
//! before it deletes what it gave back. On a standby no owner sees a lock, so there the view is one
//! transaction.
//!
//! # Failure
//! The connections for appends and syncs are never made again: nobody knows what a lost one leaves,
//! and the instance ends. Reads and background work connect again. Every wait has a deadline on
//! this side, whatever the server or the network does. If a URL names several hosts, each has its
//! share of that time, for everything a connection takes.
//!
//! # Threads
//! All methods block. You may call them on a thread that runs an async runtime, because waiting
//! needs no runtime. One thread moves bytes between a log's connections and the server: the log's
//! own, or a [`ConnectionThread`] that several logs share.

// Users read these docs.
#![warn(missing_docs)]

mod asked;
mod discard;
mod fill;
mod hosts;
mod ledger;
mod log;
mod log_maintenance;
mod options;
mod pipeline;
mod pooler;
mod reader;
mod records;
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
pub use ledger::{PostgresLedger, PostgresLedgerOptions};
pub use log::PostgresLog;
pub use options::{OpenError, PostgresLogOptions};
pub use records::{PostgresRecords, PostgresRecordsOptions};
pub use thread::ConnectionThread;
pub use view::{PostgresView, Standby};
