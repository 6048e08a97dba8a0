//! The counters of an engine.

use std::time::Duration;

use lockgate_machine::RecordCounts;

use crate::{MaintenanceCounts, SpanCounts, pending::LogSpans};

/// An engine's counters since its start, and its gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineMetrics {
    pub groups: u64,
    pub records: u64,
    /// Payload bytes appended, without the log's own headers.
    pub bytes: u64,
    /// Records of the largest group.
    pub group_records_max: u64,
    pub syncs: u64,
    /// Time spent in syncs.
    pub sync_time: Duration,
    /// The longest sync.
    pub sync_time_max: Duration,
    /// How long a caller has waited for a sync while none ended, now.
    pub sync_age: Duration,
    /// How long the log took for its writes and syncs.
    pub log_spans: LogSpans,
    /// How long messages waited for their leases and were held.
    pub spans: SpanCounts,
    /// Records that were durable once and that the start could not read or decode.
    pub records_lost: u64,
    /// Decided commands, including the engine's own.
    pub commands: u64,
    pub queries: u64,
    /// Commands answered successfully, by the level that the answer waited for.
    pub answered: AnsweredCounts,
    /// Commands rejected by the machine, or because the log is full.
    pub rejected: u64,
    /// Requests refused because of load.
    pub overloaded: u64,
    /// Requests whose outcome is unknown.
    pub unknown: u64,
    /// Payloads that could not be read.
    pub damaged: u64,
    /// Leases given back because their caller was gone.
    pub given_back: u64,
    /// Requests waiting to be decided, now.
    pub inbox: u64,
    /// Payload bytes waiting to be decided, now.
    pub inbox_bytes: u64,
    /// How long the oldest request in the inbox has waited, now.
    pub inbox_age: Duration,
    /// Answers waiting for a sync, now.
    pub held: u64,
    /// Receives waiting for a message, and watches for a change, now.
    pub waiters: u64,
    /// How much the records are that the shard keeps, now.
    pub kept: RecordCounts,
    /// Snapshots, compaction and space of the log.
    pub maintenance: MaintenanceCounts,
    /// The index of unique ids; `None` if the engine has no place for one.
    pub index: Option<IndexMetrics>,
}

/// Figures of the index of unique ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexMetrics {
    /// Whether the last change of it succeeded. If not, ids stay in memory, and it is tried again.
    pub works: bool,
    /// About how many ids it has, of all queues.
    pub entries: u64,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// How often merging its runs has failed.
    pub merges_failed: u64,
}

/// Successful answers, by the durability level that they waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnsweredCounts {
    /// After the decision.
    pub memory: u64,
    /// After the write.
    pub process: u64,
    /// After the sync.
    pub disk: u64,
}
