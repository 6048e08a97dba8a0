//! What a driver counts.

use lockgate_core::{Distribution, Now};
use lockgate_machine::{Effect, RecordCounts, Span};

use super::Driver;

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

impl<T> Driver<T> {
    /// The counts as they are once the effects, which are decided, are folded too.
    pub(super) fn spans_ended_by(&self, effects: &[Effect], now: Now) -> SpanCounts {
        let mut counts = self.counts.spans;
        for effect in effects {
            match self.machine.span_ended_by(effect, now) {
                Some(Span::Age(span)) => counts.ages.record(span),
                Some(Span::Lease(span)) => counts.leases.record(span),
                None => {}
            }
        }
        counts
    }
}
