//! The driver and the engine around it, over a disk in memory and a clock set by hand.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod copies;
mod delays;
mod driver;
mod engine;
mod killed;
mod ledger_ids;
mod ledgers;
mod maintenance;
mod never_early;
mod overload;
mod reading;
mod recovery;
mod schedules;
mod shard_number;
mod shards;
mod space;
mod support;
mod unique_ids;
mod waiters;
mod watches;
