//! The coalescer, by what its users see.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod local;
mod lossy;
mod machine;
mod suite;
