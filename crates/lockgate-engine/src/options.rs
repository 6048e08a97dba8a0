//! What an engine's owner may set.

use std::time::Duration;

use lockgate_core::ShardId;

use crate::MaintenanceThreads;

/// Limits of one engine. Memory used by requests that wait is at most the sum of
/// [`inbox_bytes_max`](Self::inbox_bytes_max) (twice: once for sends, once for the rest),
/// [`group_bytes_max`](Self::group_bytes_max), [`answers_bytes_max`](Self::answers_bytes_max) and the
/// answers of one group more, and about 300 bytes for each of [`waiters_max`](Self::waiters_max).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The number of the shard; default 0. The first start on a new log writes it down, and a start
    /// under another number is refused as [`StartError::OtherShard`](crate::StartError::OtherShard). Give each
    /// shard whose ids, tokens or receipts meet those of others a number of its own.
    pub shard: ShardId,
    /// How many requests may wait to be decided; 1 or more, default 16,384. Sends have this much room
    /// and everything else has as much again, so that sends never keep a settle from getting in.
    pub inbox_requests_max: u32,
    /// How many payload bytes may wait to be decided; default 64 MiB. One request larger than this
    /// is let in alone.
    pub inbox_bytes_max: u32,
    /// Sends are refused as [`Overloaded`](crate::EngineError::Overloaded) when the oldest request
    /// has waited longer than this; default 1 s. Settling and extending are never refused for load.
    pub shed_after: Duration,
    /// While so many answers wait for a sync, nothing more is decided: requests wait in the inbox, and
    /// sends are refused after [`shed_after`](Self::shed_after). 1 or more, default 65,536.
    pub answers_max: usize,
    /// The same for the memory of these answers, in bytes; default 64 MiB.
    pub answers_bytes_max: usize,
    /// How many requests are decided and appended together at most; default 4,096.
    pub group_requests_max: usize,
    /// How many payload bytes are appended together at most; default 4 MiB. One request larger than
    /// this is a group of its own.
    pub group_bytes_max: usize,
    /// When records that nobody waits for are synced (level `process`), unless they are of a queue with
    /// a window of its own ([`QueueSettings::sync_window`](lockgate_machine::QueueSettings::sync_window)).
    pub sync_window: SyncWindow,
    /// How many receives may wait for a message; default 20,000. Beyond it a receive that finds
    /// nothing is refused as [`Overloaded`](crate::EngineError::Overloaded).
    pub waiters_max: usize,
    /// A snapshot of the state is taken when so many bytes were appended since the last one, or eight
    /// times a snapshot's size if that is more: the most that a start has to read again. Default
    /// 64 MiB.
    pub snapshot_bytes_min: u64,
    /// Starts although parts of the log are not there that are needed, which else is refused as
    /// [`StartError::Missing`](crate::StartError::Missing). Their messages are dropped as damaged, durably and for
    /// good, before the engine serves: that part of the log is of no use any more, and later starts need
    /// not be told again. What else is lost with it is in [`StartReport`](crate::StartReport). Meant for one start by somebody who knows what is lost. Default `false`.
    pub accept_loss: bool,
    /// Whose threads do the engine's maintenance. Default `None`: one thread of its own. For many engines in one
    /// process that are mostly idle give all of them clones of one [`MaintenanceThreads`].
    pub maintenance: Option<MaintenanceThreads>,
    /// Name of the engine's threads, for debuggers. Default `lockgate`.
    pub thread_name: String,
}

/// What a power cut may take of records that were answered at level `process`: whatever comes
/// first of the two starts a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncWindow {
    /// The oldest unsynced record is never older than this when a sync starts. Default 100 ms.
    pub after: Duration,
    /// Never more records than this are unsynced when a sync starts. Default: no limit.
    pub records: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            shard: ShardId::default(),
            inbox_requests_max: 16_384,
            inbox_bytes_max: 64 << 20,
            shed_after: Duration::from_secs(1),
            answers_max: 65_536,
            answers_bytes_max: 64 << 20,
            group_requests_max: 4_096,
            group_bytes_max: 4 << 20,
            sync_window: SyncWindow::default(),
            waiters_max: 20_000,
            snapshot_bytes_min: 64 << 20,
            accept_loss: false,
            maintenance: None,
            thread_name: "lockgate".to_owned(),
        }
    }
}

impl Default for SyncWindow {
    fn default() -> Self {
        Self {
            after: Duration::from_millis(100),
            records: u64::MAX,
        }
    }
}
