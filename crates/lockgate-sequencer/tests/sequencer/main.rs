//! Ledgers in memory, followers and sequencers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crashes;
mod follower;
mod machine;
mod memory;
mod publish;
mod sequencer;
