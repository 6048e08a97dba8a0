//! Changes under a fence.

use lockgate_core::{RecordName, RecordsError, coordination::Fence};

/// What a server's program is given of a fence with a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// The record that has the highest epoch that was seen of the election.
    pub guard: RecordName,
    /// The epoch, in decimal digits: not all servers have numbers that large.
    pub term: String,
}

/// What goes with a change of that record, if it is under a fence.
///
/// # Errors
/// [`Fenced`](RecordsError::Fenced) if the term is over by the leader's own clock, and `Invalid` for a change of the guard
/// itself.
pub fn guarded(
    fence: Option<&Fence>,
    changed: &RecordName,
) -> Result<Option<Guarded>, RecordsError> {
    let Some(fence) = fence else {
        return Ok(None);
    };
    fence.check()?;
    Ok(Some(Guarded {
        guard: fence.mark().guard_for(changed)?,
        term: fence.epoch().0.to_string(),
    }))
}
