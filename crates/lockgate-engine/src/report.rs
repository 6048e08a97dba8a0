//! The report of a start.

use std::time::Duration;

use lockgate_core::{DamagedRange, Position, Term};

use crate::{MissingPart, WithoutQueue};

/// What recovery found and did, for the operator.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StartReport {
    /// The term that was begun.
    pub term: Term,
    /// The position of the loaded snapshot; the records counted here are behind it. `None`: there
    /// is no snapshot, and they are all records of the log.
    pub snapshot: Option<Position>,
    /// Bytes of that snapshot.
    pub snapshot_bytes: u64,
    /// Newer snapshots that could not be loaded, with the reasons. Their contents were recovered
    /// from an older one and the log.
    pub snapshots_unreadable: Vec<(Position, String)>,
    pub records: u64,
    /// Bytes of those records in the log.
    pub bytes: u64,
    /// Parts of the log that were durable once and cannot be read any more. Their segments are set aside.
    pub damaged: Vec<DamagedRange>,
    /// Parts of the log that are missing and were needed, although the start was not refused: the
    /// loss was [accepted](crate::EngineOptions::accept_loss), or the part [may have been
    /// released](MissingPart::may_be_given_back). Their messages were dropped as damaged.
    pub missing: Vec<MissingPart>,
    /// Parts of the log that are too short for the messages that have their bytes in them. A
    /// message whose bytes are missing is dropped as damaged when it comes up for delivery.
    pub cut_short: Vec<MissingPart>,
    /// Messages and events that are in the log but lost, because their queue or ledger was created in a part
    /// that is damaged or missing. They cannot be used, and no queue or ledger counts them.
    pub without_queue: WithoutQueue,
    /// Records with a good checksum that cannot be decoded. They were skipped.
    pub undecodable: u64,
    /// Bytes of a torn tail that were cut. No caller was told that they are durable.
    pub tail_bytes_cut: u64,
    /// How long the start took until the engine could serve.
    pub duration: Duration,
    /// How many queues there are.
    pub queues: u64,
    /// How many messages there are, in any state.
    pub messages: u64,
    /// The most messages answered at level `memory` that crashes can have taken, over the life of
    /// the existing queues.
    pub possibly_lost: u64,
    /// Whether the previous term did not end in order: its last record is no end of a term.
    pub crashed: bool,
}

impl StartReport {
    /// Whether everything that was ever promised is still there.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty()
            && self.missing.is_empty()
            && self.cut_short.is_empty()
            && self.without_queue.is_empty()
            && self.undecodable == 0
            && self.snapshots_unreadable.is_empty()
    }
}
