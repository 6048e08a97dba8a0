//! Elections over records in memory.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod careers;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod frozen;
mod lossy;
mod memory;
mod workers;
