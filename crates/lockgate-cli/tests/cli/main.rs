//! The real binary, run as a user runs it.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says where it stopped"
)]

mod admin;
mod analyze;
mod backup;
mod bench;
mod beyond;
mod coalescer;
mod config;
mod exchange;
mod exec;
mod failures;
mod folder;
mod forward;
mod forward_faults;
mod help;
mod key_states;
mod lead;
mod leaders;
mod ledger;
mod limits;
mod lost;
mod messages;
mod missing;
mod never_early;
mod process;
mod producers;
mod queue_file;
mod record;
mod schedule;
mod sequence;
mod sequencer;
mod serve;
mod shards;
mod silent;
mod size;
mod support;
mod tls;
mod worker;
mod worker_faults;
