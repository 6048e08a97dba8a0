//! Random bits of the shells.

use std::hash::{BuildHasher as _, RandomState};

/// 64 random bits: each hasher is seeded at random.
pub(crate) fn drawn() -> u64 {
    RandomState::new().hash_one(())
}
