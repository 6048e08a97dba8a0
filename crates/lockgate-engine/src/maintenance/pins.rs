//! The ranges of the log that are about to be read.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
};

use lockgate_core::Position;
use smallvec::SmallVec;

use crate::sync::{Mutex, MutexGuard};

/// Counts readers by range. Only the owner of the driver pins ranges, between the decision that
/// gives out a position and its next check of what to release. So a range that is not pinned when
/// it is released will never be pinned.
#[derive(Debug)]
pub(crate) struct Pins {
    range_bits: u32,
    readers: Mutex<BTreeMap<u64, u32>>,
}

/// Keeps its ranges from being released while it lives.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Arc<Pins>,
    ranges: SmallVec<[u64; 2]>,
}

impl Pins {
    pub(crate) fn new(range_bits: u32) -> Arc<Self> {
        Arc::new(Self {
            range_bits,
            readers: Mutex::default(),
        })
    }

    /// Pins the ranges of the positions.
    pub(crate) fn hold(self: &Arc<Self>, positions: impl Iterator<Item = Position>) -> Pin {
        let mut ranges: SmallVec<[u64; 2]> = SmallVec::new();
        for position in positions {
            let range = self.range(position);
            // Positions are mostly in order. A range that is counted twice is also uncounted twice.
            if ranges.last() != Some(&range) {
                ranges.push(range);
            }
        }
        let mut readers = self.readers();
        for &range in &ranges {
            *readers.entry(range).or_insert(0) += 1;
        }
        drop(readers);
        Pin {
            pins: self.clone(),
            ranges,
        }
    }

    /// Whether the range of this position has a reader.
    pub(crate) fn is_pinned(&self, position: Position) -> bool {
        self.readers().contains_key(&self.range(position))
    }

    /// The first position of the lowest range with a reader.
    pub(crate) fn first(&self) -> Option<Position> {
        let lowest = self.readers().keys().next().copied();
        lowest.map(|range| Position(range.checked_shl(self.range_bits).unwrap_or(0)))
    }

    fn range(&self, position: Position) -> u64 {
        position.0.checked_shr(self.range_bits).unwrap_or(0)
    }

    fn readers(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut readers = self.pins.readers();
        for range in &self.ranges {
            if let Some(count) = readers.get_mut(range) {
                *count -= 1;
                if *count == 0 {
                    readers.remove(range);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_pinned_until_its_last_reader_is_gone() {
        let pins = Pins::new(4);
        let at = |position| Position(position);
        let first = pins.hold([at(0x10), at(0x1f), at(0x20)].into_iter());
        let second = pins.hold([at(0x15)].into_iter());
        assert!(pins.is_pinned(at(0x1a)) && pins.is_pinned(at(0x2f)));
        assert!(!pins.is_pinned(at(0x0f)) && !pins.is_pinned(at(0x30)));
        assert_eq!(pins.first(), Some(at(0x10)));
        drop(first);
        assert!(pins.is_pinned(at(0x10)) && !pins.is_pinned(at(0x20)));
        drop(second);
        assert!(!pins.is_pinned(at(0x10)));
        assert_eq!(pins.first(), None);
    }
}
