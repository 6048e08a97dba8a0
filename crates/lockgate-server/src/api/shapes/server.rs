//! The server itself.

use lockgate_core::Millis;
use serde::Serialize;

use super::Instant;

/// Which server this is.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ServerInfo {
    /// Its version.
    pub(crate) version: &'static str,
    /// The number of its shard, which is in every message id it gives.
    pub(crate) shard: u16,
    /// The term it serves in: one more with every start on the same data.
    pub(crate) epoch: u64,
    /// When it started.
    pub(crate) started_at: Instant,
    /// How long ago that was.
    pub(crate) uptime_ms: Millis,
    /// Its clock now.
    pub(crate) now: Instant,
    /// Whether it takes work.
    pub(crate) status: StatusWord,
    /// How many queues there are.
    pub(crate) queues: u64,
    /// Room for its data.
    pub(crate) space: Space,
    /// What it has written since it started.
    pub(crate) log: LogWork,
}

/// What a server has written since it started.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LogWork {
    /// Records: one for each group of commands.
    pub(crate) records: u64,
    /// Their bytes.
    pub(crate) record_bytes: u64,
    /// Syncs.
    pub(crate) syncs: u64,
    /// Records that were durable once, and that the start could not read.
    pub(crate) records_lost: u64,
}

/// Whether a server takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum StatusWord {
    /// It does.
    Serving,
    /// It is coming to an end.
    Stopping,
    /// It does not: storage has failed, or it was told to stop.
    Stopped,
}

/// Room for data.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Space {
    /// Whether there is enough.
    pub(crate) state: SpaceStateWord,
    /// Bytes its data takes.
    pub(crate) used_bytes: u64,
    /// Bytes that are free for it.
    pub(crate) free_bytes: u64,
}

/// Whether there is enough room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum SpaceStateWord {
    /// There is.
    Normal,
    /// It is getting scarce.
    Low,
    /// There is none: sends are refused, everything else goes on.
    Full,
}
