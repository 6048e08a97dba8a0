//! Which records of a spool are over.

use std::collections::BTreeMap;

/// A set of numbers that is mostly one piece: all below a floor, and some stretches above it.
///
/// A number is of a message, or of a record that is none. Stretches without a message need not be remembered: a recovery
/// sees by itself that they have none. The others are at most as many as there are messages that are not over, and one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    floor: u64,
    /// By the first number, the one behind the last, and whether there is a message between; no two of them touch, and
    /// none the floor.
    above: BTreeMap<u64, (u64, bool)>,
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

    /// The stretches above the floor that have messages.
    pub(crate) fn above(&self) -> impl Iterator<Item = (u64, u64)> {
        let stretches = self.above.iter();
        stretches.filter_map(|(from, (to, messages))| messages.then_some((*from, *to)))
    }

    /// How many stretches are above the floor.
    pub(crate) fn stretches(&self) -> usize {
        self.above.len()
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        let before = self.above.range(..=number).next_back();
        number < self.floor || before.is_some_and(|(_, (to, _))| number < *to)
    }

    /// Whether there is a message of the set in `from..to`.
    pub(crate) fn has_message(&self, from: u64, to: u64) -> bool {
        let before = self.above.range(..to).rev();
        let mut before = before.take_while(|(_, (end, _))| *end > from);
        from < self.floor || before.any(|(_, (_, messages))| *messages)
    }

    /// Adds the number of a message. It must not be in the set already.
    pub(crate) fn insert(&mut self, number: u64) {
        self.insert_all(number, number + 1, true);
    }

    /// Adds the number of a record that is no message. It must not be in the set already.
    pub(crate) fn insert_blank(&mut self, number: u64) {
        self.insert_all(number, number + 1, false);
    }

    /// Adds the numbers of `from..to`. They must not be in the set already.
    pub(crate) fn insert_all(&mut self, from: u64, to: u64, messages: bool) {
        if from >= to {
            return;
        }
        let (mut from, mut to, mut messages) = (from, to, messages);
        if let Some((end, has)) = self.above.remove(&to) {
            to = end;
            messages |= has;
        }
        if from <= self.floor {
            self.floor = self.floor.max(to);
            return;
        }
        if let Some((&start, &(end, has))) = self.above.range(..from).next_back()
            && end == from
        {
            from = start;
            messages |= has;
        }
        self.above.insert(from, (to, messages));
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
                    match number % 3 {
                        0 => done.insert_blank(number),
                        _ => done.insert(number),
                    }
                }
                let first_missing = (0..).find(|it| !model.contains(it)).unwrap();
                prop_assert_eq!(done.floor(), first_missing);
                let mut below = done.floor();
                for (from, to) in done.above() {
                    prop_assert!(below < from && from < to, "{:?}", done);
                    prop_assert!((from..to).any(|it| it % 3 != 0), "{:?}", done);
                    prop_assert!(done.has_message(from, to));
                    below = to;
                }
            }
            for number in 0..80 {
                prop_assert_eq!(done.contains(number), model.contains(&number));
            }
        }
    }
}
