//! Inboxes and outboxes in SQLite, and processes that are killed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kills;
mod sqlite;
mod suite;
