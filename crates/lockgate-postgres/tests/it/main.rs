//! The log in a PostgreSQL database, over servers that `scripts/services` starts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod cuts;
mod database;
mod engine;
mod failures;
mod holders;
mod ledger;
mod pooler;
mod records;
mod refused;
mod replication;
mod server;
mod shards;
mod support;
mod takeover;
mod tls;
