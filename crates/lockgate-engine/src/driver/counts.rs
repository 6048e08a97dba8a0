//! What a driver counts.

use lockgate_core::Distribution;
use lockgate_machine::{RecordCounts, Span};

/// What a driver counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverCounts {
    pub groups: u64,
    pub records: u64,
    /// Payload bytes appended.
    pub bytes: u64,
    /// Records of the largest group.
    pub group_records_max: u64,
    pub commands: u64,
    pub queries: u64,
    pub rejected: u64,
    /// Receives refused because too many wait.
    pub overloaded: u64,
    /// Commands done at level `memory`.
    pub answered_memory: u64,
    /// Commands done at level `process`.
    pub answered_process: u64,
    /// Commands done at level `disk` or above.
    pub answered_disk: u64,
    /// How much the shard's records are, now.
    pub kept: RecordCounts,
    /// How long messages waited and were held.
    pub spans: SpanCounts,
}

/// How long messages waited for their leases and were held, since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpanCounts {
    /// From the acceptance of a message, or from its due time if that was later, to each of its leases.
    pub ages: Distribution,
    /// From the beginning of a lease to its end by an ack, a nack or a reject. Leases that ran out are not among these.
    pub leases: Distribution,
}

impl Default for SpanCounts {
    fn default() -> Self {
        Self {
            ages: Distribution::LONG,
            leases: Distribution::LONG,
        }
    }
}

impl SpanCounts {
    pub(super) fn record(&mut self, span: Span) {
        match span {
            Span::Age(span) => self.ages.record(span),
            Span::Lease(span) => self.leases.record(span),
        }
    }
}
