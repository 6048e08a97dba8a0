//! Seeded random numbers: SplitMix64 (Steele, Lea, Flood 2014), enough to vary a workload.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher as _, Hasher as _},
};

#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own, so that a task's choices do not depend on how tasks interleave.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.next())
    }

    /// 0 to `bound` - 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `times`, on average.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A seed nobody chose.
pub fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
