//! Elections over records in memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod careers;
mod lossy;
mod memory;
