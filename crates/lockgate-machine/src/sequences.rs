//! The index of a queue's messages by their numbers.
//!
//! A queue gives its numbers out one after the other, and looks them up in nearly the same order. A hash
//! table scatters such neighbours: with millions of messages each insert, find and remove waits for memory
//! several times. Here eight consecutive numbers share a *leaf* of 40 bytes, successive leaves are neighbours
//! in a slab, and only the leaves are found through a hash [`Table`]. The table has an eighth of the size,
//! and the same few leaves are looked up repeatedly.
//!
//! Why not another structure:
//! - An array or ring from the oldest number to the newest is even faster, but as long as the range
//!   of the numbers: one parked message and 10^9 newer ones would take gigabytes.
//! - A radix tree pays for such a survivor with a node on each level, and walks all levels for
//!   every other number. The table is one level, whatever the range.
//! - Larger leaves make the table even smaller, but a survivor keeps its whole leaf. With eight slots a
//!   survivor costs at most 52 bytes, and a message in a full leaf 5 to 6.5; with 64 slots it would cost 276.

mod image;

use crate::{
    slab::{Link, Slab},
    table::{Table, hash_pair},
};

/// Numbers in a leaf.
const LEAF_SLOTS: usize = 8;

/// The table is checked for free memory once in so many freed leaves. One check covers 1/256 of it.
const LEAVES_PER_SHRINK: usize = 16;

/// A map from growing numbers to `u32` slab indexes.
///
/// The newest leaf is outside slab and table. So most inserts touch nothing else, and a queue whose
/// messages leave before the next one comes needs no memory at all.
#[derive(Clone, Debug)]
pub(crate) struct Sequences {
    newest: Leaf,
    /// All other leaves that have a number.
    leaves: Slab<Leaf>,
    by_block: Table,
}

/// Eight consecutive numbers, of which the first is a multiple of eight.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// The numbers divided by eight.
    block: u64,
    slots: [Link; LEAF_SLOTS],
}

impl Default for Sequences {
    fn default() -> Self {
        Self {
            newest: Leaf::new(0),
            leaves: Slab::default(),
            by_block: Table::default(),
        }
    }
}

impl Sequences {
    /// Adds a number. It must be above every number that was ever added.
    pub(crate) fn insert(&mut self, number: u64, value: u32) {
        let (block, slot) = split(number);
        debug_assert!(block >= self.newest.block, "numbers grow");
        if block != self.newest.block {
            self.start_leaf(block);
        }
        debug_assert!(self.newest.slots[slot] == Link::NONE, "added once");
        self.newest.slots[slot] = Link::to(value);
    }

    /// The value of a number.
    pub(crate) fn get(&self, number: u64) -> Option<u32> {
        let (block, slot) = split(number);
        let leaf = if block == self.newest.block {
            &self.newest
        } else {
            &self.leaves[self.find_leaf(block)?]
        };
        leaf.slots[slot].get()
    }

    /// Removes a number, and returns its value. Now and then frees a little memory that the table
    /// no longer needs.
    pub(crate) fn remove(&mut self, number: u64) -> Option<u32> {
        let (block, slot) = split(number);
        if block == self.newest.block {
            return self.newest.take(slot);
        }
        let found = self.find_leaf(block)?;
        let leaf = &mut self.leaves[found];
        let value = leaf.take(slot)?;
        if leaf.is_empty() {
            self.free_leaf(found);
        }
        Some(value)
    }

    /// How many numbers there are. Walks all leaves.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let older = self.leaves.iter().map(|(_, leaf)| leaf);
        let leaves = older.chain([&self.newest]);
        leaves
            .flat_map(|leaf| leaf.slots)
            .filter(|&slot| slot != Link::NONE)
            .count()
    }

    /// Heap memory held, in bytes. Walks the slab's pages and the table's parts.
    pub(crate) fn bytes(&self) -> usize {
        self.leaves.bytes() + self.by_block.bytes()
    }

    /// Whether the number is the first one of a leaf.
    pub(crate) fn begins_leaf(number: u64) -> bool {
        split(number).1 == 0
    }

    /// Reads the first place that a [`get`](Self::get) of this number needs, see [`Table::prefetch`].
    pub(crate) fn prefetch(&self, number: u64) -> u32 {
        self.by_block.prefetch(hash_block(split(number).0))
    }

    /// Reads the second one.
    pub(crate) fn prefetch_leaf(&self, number: u64) -> u32 {
        let (block, slot) = split(number);
        self.by_block
            .find(hash_block(block), |_| true)
            .and_then(|leaf| self.leaves.get(leaf))
            .and_then(|leaf| leaf.slots[slot].get())
            .unwrap_or_default()
    }

    fn find_leaf(&self, block: u64) -> Option<u32> {
        let leaves = &self.leaves;
        self.by_block
            .find(hash_block(block), |leaf| leaves[leaf].block == block)
    }

    /// Moves the newest leaf into the slab, unless it is empty.
    fn start_leaf(&mut self, block: u64) {
        let filled = std::mem::replace(&mut self.newest, Leaf::new(block));
        if filled.is_empty() {
            return;
        }
        let hash = hash_block(filled.block);
        let index = self.leaves.insert(filled);
        let leaves = &self.leaves;
        self.by_block
            .insert(hash, index, |leaf| hash_block(leaves[leaf].block));
    }

    fn free_leaf(&mut self, index: u32) {
        let leaf = self.leaves.remove(index);
        self.by_block
            .remove(hash_block(leaf.block), |other| other == index);
        if self.by_block.len().is_multiple_of(LEAVES_PER_SHRINK) {
            let leaves = &self.leaves;
            self.by_block.shrink(|leaf| hash_block(leaves[leaf].block));
        }
    }
}

impl Leaf {
    fn new(block: u64) -> Self {
        Self {
            block,
            slots: [Link::NONE; LEAF_SLOTS],
        }
    }

    fn take(&mut self, slot: usize) -> Option<u32> {
        std::mem::replace(&mut self.slots[slot], Link::NONE).get()
    }

    fn is_empty(&self) -> bool {
        self.slots == [Link::NONE; LEAF_SLOTS]
    }
}

/// The number's leaf, and its slot in the leaf.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the remainder is below the number of slots"
)]
fn split(number: u64) -> (u64, usize) {
    let slots = LEAF_SLOTS as u64;
    (number / slots, (number % slots) as usize)
}

/// Users do not choose blocks, see [`hash_pair`].
fn hash_block(block: u64) -> u64 {
    hash_pair(0, block)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        /// Adds a number so far above the last one.
        Add(u64),
        /// Removes a number, by its index among the present ones.
        Remove(prop::sample::Index),
        /// Removes all numbers except every n-th.
        Thin(usize),
        /// Looks up a number that may be present or not.
        Ask(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            20 => Just(Step::Add(1)),
            2 => (1..40_u64).prop_map(Step::Add),
            1 => (1..1_u64 << 40).prop_map(Step::Add),
            10 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => (2..20_usize).prop_map(Step::Thin),
            5 => (0..600_u64).prop_map(Step::Ask),
        ]
    }

    proptest! {
        #[test]
        fn does_what_a_map_does(steps in prop::collection::vec(step(), 0..600)) {
            let mut sequences = Sequences::default();
            let mut map = BTreeMap::new();
            let mut last = 0;
            for (value, step) in (0_u32..).zip(steps) {
                match step {
                    Step::Add(above) => {
                        last += above;
                        sequences.insert(last, value);
                        map.insert(last, value);
                    }
                    Step::Remove(which) if !map.is_empty() => {
                        let number = *which.get(&map.keys().copied().collect::<Vec<_>>());
                        prop_assert_eq!(sequences.remove(number), map.remove(&number));
                        prop_assert_eq!(sequences.remove(number), None);
                    }
                    Step::Remove(_) => {}
                    Step::Thin(every) => {
                        let kept = map.iter().step_by(every).map(|(&n, &v)| (n, v)).collect();
                        for (number, value) in std::mem::replace(&mut map, kept) {
                            if !map.contains_key(&number) {
                                prop_assert_eq!(sequences.remove(number), Some(value));
                            }
                        }
                    }
                    Step::Ask(number) => {
                        prop_assert_eq!(sequences.get(number), map.get(&number).copied());
                    }
                }
                prop_assert_eq!(sequences.len(), map.len());
            }
            for (&number, &value) in &map {
                prop_assert_eq!(sequences.get(number), Some(value));
                prop_assert_eq!(sequences.get(number + (1 << 41)), None);
            }
            // A leaf exists exactly as long as it has a number.
            let mut blocks: Vec<u64> = map.keys().map(|number| number / 8).collect();
            blocks.dedup();
            blocks.retain(|&block| block != sequences.newest.block);
            prop_assert_eq!(sequences.leaves.len(), blocks.len());
            prop_assert_eq!(sequences.by_block.len(), blocks.len());
        }
    }

    #[test]
    fn a_number_costs_little_alone_and_among_others() {
        const MANY: u64 = 200_000;
        let mut sequences = Sequences::default();
        let mut worst = 0.0_f64;
        for number in 0..MANY {
            sequences.insert(number, 7);
            if number >= 50_000 && number % 64 == 0 {
                worst = worst.max(sequences.bytes() as f64 / sequences.len() as f64);
            }
        }
        assert!(worst < 6.6, "{worst} bytes in full leaves");
        // However few numbers stay, each costs at most its leaf.
        let mut alone = Sequences::default();
        for number in 0..MANY {
            alone.insert(number * 10_000, 7);
        }
        let each = alone.bytes() as f64 / alone.len() as f64;
        assert!(each < 52.0, "{each} bytes alone in a leaf");
    }

    #[test]
    fn memory_comes_back_while_a_backlog_drains() {
        const MANY: u64 = 1_000_000;
        let mut sequences = Sequences::default();
        for number in 0..MANY {
            sequences.insert(number, 7);
        }
        let (full, full_table) = (sequences.bytes(), sequences.by_block.bytes());
        for number in 0..MANY {
            assert_eq!(sequences.remove(number), Some(7));
            if number == MANY / 2 {
                assert!(sequences.bytes() < full * 2 / 3);
            }
            if number == MANY - 1_000 {
                let table = sequences.by_block.bytes();
                assert!(table < full_table / 4, "{table} of {full_table} bytes");
            }
        }
        // Only a free page for leaves, and nothing of the table.
        assert_eq!(sequences.by_block.bytes(), 0);
        assert!(sequences.bytes() < 4096, "{} are left", sequences.bytes());
    }

    #[test]
    fn an_old_survivor_does_not_hold_what_is_newer() {
        let mut sequences = Sequences::default();
        sequences.insert(1, 1);
        let mut most = 0;
        // The numbers in between came and went; only the distances matter.
        for number in (100..1 << 40).step_by(1 << 22) {
            for near in 0..20 {
                sequences.insert(number + near, 2);
            }
            for near in 0..20 {
                assert_eq!(sequences.remove(number + near), Some(2));
            }
            most = most.max(sequences.bytes());
        }
        assert_eq!(sequences.get(1), Some(1));
        assert!(most < 4096, "{most} bytes");
    }

    #[test]
    fn a_queue_that_keeps_up_allocates_nothing() {
        let mut sequences = Sequences::default();
        for number in 1..1_000 {
            sequences.insert(number, 3);
            assert_eq!(sequences.remove(number), Some(3));
            assert_eq!(sequences.bytes(), 0);
        }
    }
}
