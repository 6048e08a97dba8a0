//! Shapes of the server itself.

use lockgate_core::Millis;
use serde::Serialize;

use super::{Instant, LevelWord};

/// The server and its state.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ServerInfo {
    /// Its version.
    pub(crate) version: &'static str,
    /// The number of its shard, which is part of every message id that it gives.
    pub(crate) shard: u16,
    /// The number of its term; it grows with every start on the same data.
    pub(crate) epoch: u64,
    /// When it started.
    pub(crate) started_at: Instant,
    /// How long it has been running.
    pub(crate) uptime_ms: Millis,
    /// Its clock now.
    pub(crate) now: Instant,
    /// Whether it accepts work.
    pub(crate) status: StatusWord,
    /// How many queues there are.
    pub(crate) queues: u64,
    /// What one request may ask for.
    pub(crate) limits: Limits,
    /// Space for its data.
    pub(crate) space: Space,
    /// What it has written since its start.
    pub(crate) log: LogWork,
}

/// What one request may ask for.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Limits {
    /// Bytes of its body.
    pub(crate) body_bytes_max: u64,
    /// Messages of a send, and leases of a settle.
    pub(crate) entries_max: u64,
    /// Messages of a receive.
    pub(crate) receive_max: u64,
    /// The longest wait of a receive.
    pub(crate) wait_ms_max: Millis,
    /// The longest lease.
    pub(crate) lease_ms_max: Millis,
    /// The highest level that a message may ask for.
    pub(crate) level_max: LevelWord,
}

/// What a server has written since its start.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LogWork {
    /// Records: one for each group of commands.
    pub(crate) records: u64,
    /// Their bytes.
    pub(crate) record_bytes: u64,
    /// Syncs.
    pub(crate) syncs: u64,
    /// Records that were durable once and could not be read at the start.
    pub(crate) records_lost: u64,
}

/// Whether a server accepts work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StatusWord {
    /// It accepts work.
    Serving,
    /// It is shutting down.
    Stopping,
    /// It accepts no work: storage has failed, or the server was told to stop.
    Stopped,
}

/// Space for data.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Space {
    /// Whether there is enough space.
    pub(crate) state: SpaceStateWord,
    /// Bytes its data takes.
    pub(crate) used_bytes: u64,
    /// Bytes that are free for its data.
    pub(crate) free_bytes: u64,
}

/// Whether there is enough space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum SpaceStateWord {
    /// There is enough.
    Normal,
    /// Space is getting scarce.
    Low,
    /// There is none: sends are refused, and everything else works.
    Full,
}
