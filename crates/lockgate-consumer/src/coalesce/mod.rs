//! Coalescing: of the triggers of one key, one runs, one waits, and the rest are covered.

mod local;
mod machine;
mod options;
mod shard;
mod shared;

pub use local::{Coalescer, Entered, Refused, Run, Triggered, Waiting};
pub use machine::{Batch, KeyState, Merge, MergeFn, Rejection, Stale, Token, Verdict};
pub use options::{CoalesceCounts, CoalesceOptions, Covered, MeasureFn};
pub use shared::{SharedCoalescer, SharedEntered, SharedError, SharedOptions, SharedRun, protocol};
