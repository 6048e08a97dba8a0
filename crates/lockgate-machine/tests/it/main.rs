//! The machine as its users see it, against a model and at scale.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, and its numbers are small"
)]

mod histories;
mod model;
mod scale;
#[path = "../../examples/support/mod.rs"]
mod support;
mod world;
