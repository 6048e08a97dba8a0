//! What a power cut leaves.

use super::state::State;
use crate::SeededRandom;

/// What a power cut leaves of the operations that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PowerCut {
    /// Nothing: only synced bytes and synced names survive.
    LoseAllUnsynced,
    /// Everything, as if the cache had been written out just in time.
    KeepAll,
    /// The first so many, in the order they were made; if the next one is a write, half its
    /// 512-byte sectors survive too.
    KeepPrefix(usize),
    /// Those whose bits are set, in the order they were made, from the lowest bit on; none behind
    /// the 64th.
    KeepSubset(u64),
    /// All changes of names and none of bytes and lengths: a folder that was written out before its
    /// files.
    KeepNames,
    /// All changes of bytes and lengths and none of names.
    KeepBytes,
    /// A subset drawn from this seed, in any order the hardware may have chosen; a write may be
    /// torn into any of its 512-byte sectors, or leave nothing but the file's new length.
    Seeded(u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    Torn,
    Lost,
}

/// Decides what happens to each unsynced operation when the power goes.
pub(super) struct Fates {
    cut: PowerCut,
    /// The numbers of all unsynced operations, in order.
    numbers: Vec<u64>,
    random: SeededRandom,
    keep_percent: u64,
}

impl Fates {
    pub(super) fn new(state: &State, cut: PowerCut) -> Self {
        let seed = if let PowerCut::Seeded(seed) = cut {
            seed
        } else {
            0
        };
        let mut random = SeededRandom::new(seed);
        // Some cuts take little, some nearly all.
        let keep_percent = [10, 50, 90][random.index(3)];
        Self {
            cut,
            numbers: state.unsynced_numbers(),
            random,
            keep_percent,
        }
    }

    pub(super) fn of_name(&mut self, number: u64) -> Fate {
        match self.cut {
            PowerCut::KeepNames => Fate::Kept,
            PowerCut::KeepBytes => Fate::Lost,
            _ => self.of(number),
        }
    }

    pub(super) fn of_bytes(&mut self, number: u64) -> Fate {
        match self.cut {
            PowerCut::KeepNames => Fate::Lost,
            PowerCut::KeepBytes => Fate::Kept,
            _ => self.of(number),
        }
    }

    fn of(&mut self, number: u64) -> Fate {
        let index = self.numbers.partition_point(|other| *other < number);
        let kept = |kept| if kept { Fate::Kept } else { Fate::Lost };
        match self.cut {
            PowerCut::KeepAll => Fate::Kept,
            PowerCut::KeepPrefix(count) if index == count => Fate::Torn,
            PowerCut::KeepPrefix(count) => kept(index < count),
            PowerCut::KeepSubset(bits) => kept(index < 64 && bits >> index & 1 == 1),
            PowerCut::Seeded(_) => {
                if self.random.chance(self.keep_percent) {
                    Fate::Kept
                } else if self.random.chance(50) {
                    Fate::Torn
                } else {
                    Fate::Lost
                }
            }
            PowerCut::LoseAllUnsynced | PowerCut::KeepNames | PowerCut::KeepBytes => Fate::Lost,
        }
    }

    /// Which sectors of a torn operation over so many survive: a first half, or with a seed a
    /// beginning, any of them, or none although the file's length does.
    pub(super) fn survivors(&mut self, sectors: usize) -> Survivors {
        if !matches!(self.cut, PowerCut::Seeded(_)) {
            return Survivors::Sectors((0..sectors).map(|at| at < sectors.div_ceil(2)).collect());
        }
        match self.random.below(10) {
            0 => Survivors::LengthOnly,
            1..6 => {
                let beginning = self.random.index(sectors.max(1));
                Survivors::Sectors((0..sectors).map(|at| at < beginning).collect())
            }
            _ => Survivors::Sectors((0..sectors).map(|_| self.random.chance(50)).collect()),
        }
    }
}

/// What is left of a torn operation.
pub(super) enum Survivors {
    /// Sector by sector.
    Sectors(Vec<bool>),
    /// The length of the file, and zeros where there were no bytes before.
    LengthOnly,
}
