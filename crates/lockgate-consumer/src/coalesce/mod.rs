//! Coalescing: of the triggers of one key, one runs, one waits, and the rest are covered.

mod machine;
#[cfg(test)]
mod tests;

pub use machine::{Batch, KeyState, Merge, MergeFn, Rejection, Stale, Token, Verdict};
