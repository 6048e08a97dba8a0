//! Which records of a spool are over.

use std::collections::BTreeMap;

/// A set of numbers that is mostly one piece: all below a floor, and some stretches above it.
///
/// Its size is that of the stretches, of which there are at most as many as records are in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    floor: u64,
    /// First number and the one behind the last; no two of them touch, and none the floor.
    above: BTreeMap<u64, u64>,
}

impl Done {
    /// All numbers below `floor`.
    pub(crate) fn below(floor: u64) -> Self {
        Self {
            floor,
            above: BTreeMap::new(),
        }
    }

    /// All numbers below it are in the set, and it is not.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// The stretches above the floor.
    pub(crate) fn above(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.above.iter().map(|(from, to)| (*from, *to))
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        let before = self.above.range(..=number).next_back();
        number < self.floor || before.is_some_and(|(_, to)| number < *to)
    }

    /// Adds the numbers of `from..to`. They must not be in the set already.
    pub(crate) fn insert(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (mut from, mut to) = (from, to);
        if let Some(end) = self.above.remove(&to) {
            to = end;
        }
        if from <= self.floor {
            self.floor = self.floor.max(to);
            return;
        }
        if let Some((&start, &end)) = self.above.range(..from).next_back()
            && end == from
        {
            from = start;
        }
        self.above.insert(from, to);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(numbers in proptest::collection::vec(0_u64..64, 0..64), floor in 0_u64..8) {
            let mut done = Done::below(floor);
            let mut model: BTreeSet<u64> = (0..floor).collect();
            for number in numbers {
                prop_assert_eq!(done.contains(number), model.contains(&number));
                if model.insert(number) {
                    done.insert(number, number + 1);
                }
                let first_missing = (0..).find(|it| !model.contains(it)).unwrap();
                prop_assert_eq!(done.floor(), first_missing);
                let mut below = done.floor();
                for (from, to) in done.above() {
                    prop_assert!(below < from && from < to, "{:?}", done);
                    below = to;
                }
            }
            for number in 0..80 {
                prop_assert_eq!(done.contains(number), model.contains(&number));
            }
        }
    }
}
