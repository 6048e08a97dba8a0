//! The local log on the faulty disk: crashes at every point, failing operations, damaged bytes.
//!
//! - `crashes`: scripted and seeded histories, the power cut at every change of the disk, each with
//!   many choices of what survives.
//! - `faults`: every operation fails once, in every way it can; space ends after every number of
//!   bytes.
//! - `damage`: every byte flipped, every sector zeroed, files cut, swapped, removed and made of
//!   noise; the loss is compared with what the format says it must be.
//!
//! What must hold stands in `history::check_survivors`. Each of these mistakes was made by hand, and
//! the tests named caught it:
//!
//! (list follows)
#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod crashes;
mod damage;
mod faults;
mod history;
mod overlap;
