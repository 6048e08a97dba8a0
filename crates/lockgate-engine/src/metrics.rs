//! The counters of an engine.

use std::time::Duration;

use crate::MaintenanceCounts;

/// A snapshot of an engine's counters since its start, and of its gauges now.
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
    /// How long somebody has waited for a sync without one coming to its end, now.
    pub sync_age: Duration,
    /// Records that were durable once and that the start found unreadable or without sense.
    pub records_lost: u64,
    /// Commands decided, those of the engine itself included.
    pub commands: u64,
    pub queries: u64,
    /// Commands answered positively, by the level the answer waited for.
    pub answered: AnsweredCounts,
    /// Commands rejected by the machine, or for a full log.
    pub rejected: u64,
    /// Requests refused for load.
    pub overloaded: u64,
    /// Requests whose outcome is unknown.
    pub unknown: u64,
    /// Payloads that could not be read any more.
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
    /// Receives waiting for a message, now.
    pub waiters: u64,
    /// Snapshots, compaction and room of the log.
    pub maintenance: MaintenanceCounts,
}

/// Answers, by the durability level they waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnsweredCounts {
    /// After the decision.
    pub memory: u64,
    /// After the write.
    pub process: u64,
    /// After the sync.
    pub disk: u64,
}
