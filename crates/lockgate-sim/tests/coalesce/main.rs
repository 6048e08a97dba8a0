//! Everything that a coalescer can do, in one process and over records, for a few callers of one key.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod local;
mod shared;
