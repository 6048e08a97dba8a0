//! What a start found.

use std::time::Duration;

use lockgate_core::{DamagedRange, Position, Term};

use crate::{MissingPart, WithoutQueue};

/// What recovery found and did, for the operator.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StartReport {
    /// The term that was begun.
    pub term: Term,
    /// The position of the snapshot that was loaded; the records are those behind it. `None`: there
    /// is none, and the records are all there ever were.
    pub snapshot: Option<Position>,
    /// Bytes of that snapshot.
    pub snapshot_bytes: u64,
    /// Newer snapshots that could not be loaded, and why. What they held was recovered from an older
    /// one and the log.
    pub snapshots_unreadable: Vec<(Position, String)>,
    pub records: u64,
    /// Bytes of those records in the log.
    pub bytes: u64,
    /// Stretches of the log that were durable once and cannot be read any more; set aside.
    pub damaged: Vec<DamagedRange>,
    /// Parts of the log that are not there and were needed, and with which the start was not refused: because
    /// the loss was [accepted](crate::EngineOptions::accept_loss), or because the part
    /// [may have been given back](MissingPart::may_be_given_back). Their messages were dropped as
    /// damaged.
    pub missing: Vec<MissingPart>,
    /// Parts of the log that are too short for the messages that have their bytes in them. Each message whose
    /// bytes are not there is dropped as damaged when it is to be delivered.
    pub cut_short: Vec<MissingPart>,
    /// Messages that are in the log and that are lost all the same: the creation of their queue stood in what is
    /// damaged or missing, so nothing can be done with them. No queue counts them.
    pub without_queue: WithoutQueue,
    /// Records whose checksum is good and whose content makes no sense; skipped.
    pub undecodable: u64,
    /// Bytes of a torn tail that were cut: nobody was ever told that they are durable.
    pub tail_bytes_cut: u64,
    /// How long it took until the engine could serve.
    pub duration: Duration,
    /// Queues there are.
    pub queues: u64,
    /// Messages there are, in any state.
    pub messages: u64,
    /// At most so many messages that were answered at level `memory` are lost to crashes, over the
    /// life of the queues there are.
    pub possibly_lost: u64,
    /// Whether the last term did not end in good order: the last record there is does not end one.
    pub crashed: bool,
}

impl StartReport {
    /// Whether everything that was ever promised is still there.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty()
            && self.missing.is_empty()
            && self.cut_short.is_empty()
            && self.without_queue.messages == 0
            && self.undecodable == 0
            && self.snapshots_unreadable.is_empty()
    }
}
