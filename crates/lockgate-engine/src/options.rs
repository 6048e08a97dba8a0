//! The options of an engine.

use std::{sync::Arc, time::Duration};

use lockgate_core::ShardId;
use lockgate_index::FolderIndex;
use lockgate_machine::SyncWindow;

use crate::MaintenanceThreads;

/// The options of one engine.
///
/// Requests that wait use at most this much memory: twice
/// [`inbox_bytes_max`](Self::inbox_bytes_max) (once for sends, once for the rest), plus
/// [`group_bytes_max`](Self::group_bytes_max), [`answers_bytes_max`](Self::answers_bytes_max), the
/// answers of one more group, and about 300 bytes for each of [`waiters_max`](Self::waiters_max).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The number of the shard; default 0. The first start on a new log stores it, and a start
    /// under another number fails with [`StartError::OtherShard`](crate::StartError::OtherShard).
    /// Give shards different numbers if their ids, tokens or receipts can meet.
    pub shard: ShardId,
    /// How many requests may wait to be decided; 1 or more, default 16,384. Sends have this much
    /// room and all other requests have as much again, so sends never keep a settle out.
    pub inbox_requests_max: u32,
    /// How many payload bytes may wait to be decided; default 64 MiB. A single larger request gets in alone.
    pub inbox_bytes_max: u32,
    /// How long the oldest request may wait before the engine refuses sends as
    /// [`Overloaded`](crate::EngineError::Overloaded); default 1 s. It never refuses settles and
    /// extensions for load.
    pub shed_after: Duration,
    /// How many answers may wait for a sync; 1 or more, default 65,536. Beyond that the engine
    /// decides nothing: requests wait in the inbox, and sends are refused after
    /// [`shed_after`](Self::shed_after).
    pub answers_max: usize,
    /// How many bytes of memory these answers may take; default 64 MiB.
    pub answers_bytes_max: usize,
    /// How many requests the engine decides and appends together at most; default 4,096.
    pub group_requests_max: usize,
    /// How many payload bytes the engine appends together at most; default 4 MiB. A single request
    /// larger than this is a group of its own.
    pub group_bytes_max: usize,
    /// When the engine syncs records that no answer waits for (level `process`). A queue may have
    /// its own window
    /// ([`QueueSettings::sync_window`](lockgate_machine::QueueSettings::sync_window)).
    pub sync_window: SyncWindow,
    /// How many receives may wait for a message; default 20,000. Beyond that a receive that finds
    /// nothing is refused as [`Overloaded`](crate::EngineError::Overloaded).
    pub waiters_max: usize,
    /// How many bytes may be appended since the last snapshot before the engine takes another one; default 64
    /// MiB, or eight times a snapshot's size if that is more. It bounds how much a start must read again.
    pub snapshot_bytes_min: u64,
    /// Whether to start although needed parts of the log are missing; default `false`, which
    /// refuses such a start with [`StartError::Missing`](crate::StartError::Missing). If `true`,
    /// the engine drops the messages in them as damaged, durably and for good, before it serves.
    /// The missing parts are then useless, and later starts do not need this option.
    /// [`StartReport`](crate::StartReport) says what else is lost. Use the option for one start,
    /// and only if you know what you lose.
    pub accept_loss: bool,
    /// Whether a start looks whether the index of unique ids has what it must have. Default: true. False is for a look at
    /// a log that nobody serves from then on.
    pub checks_index: bool,
    /// Where the index of unique ids is, for ledgers and for queues that remember them for ever. Default: `None`: such
    /// queues are refused, and ids of ledgers stay in memory. It is made when there are ids for it, belongs to the log,
    /// and must be copied and put back together with it.
    pub index: Option<Arc<FolderIndex>>,
    /// When unique ids leave memory for that index.
    pub index_pace: IndexPace,
    /// The threads that do the engine's maintenance. Default: `None`, one thread of its own. In a process
    /// with many engines that are mostly idle, give all of them clones of one [`MaintenanceThreads`].
    pub maintenance: Option<MaintenanceThreads>,
    /// The name of the engine's threads, for debuggers. Default: `lockgate`.
    pub thread_name: String,
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
            sync_window: SyncWindow {
                after: Some(100),
                records: None,
            },
            waiters_max: 20_000,
            snapshot_bytes_min: 64 << 20,
            accept_loss: false,
            checks_index: true,
            index: None,
            index_pace: IndexPace::default(),
            maintenance: None,
            thread_name: "lockgate".to_owned(),
        }
    }
}

/// When unique ids leave memory for the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexPace {
    /// How many ids of a queue or ledger stay in memory; default 4,096. Where half of the memory for them is taken,
    /// none do.
    pub more_than: usize,
    /// How much time lies between moves, if one is not enough; default 1 s.
    pub every: Duration,
}

impl Default for IndexPace {
    fn default() -> Self {
        Self {
            more_than: 4_096,
            every: Duration::from_secs(1),
        }
    }
}
