//! The index of a queue's messages by their numbers.
//!
//! A queue gives its numbers out one after the other, and asks for them again in nearly the same
//! order. A hash table scatters such neighbours: beside millions of messages each insert, find and
//! remove waits several times for memory. Here eight consecutive numbers share a *leaf* of 40 bytes,
//! leaves made one after the other stand side by side in a slab, and only the leaves are found
//! through a hash [`Table`], which is an eighth as large and asked again and again for the same few.
//!
//! Why not another structure:
//! - An array or ring from the oldest number to the newest is faster still, but it is as long as the
//!   span of the numbers: one parked message beside 10^9 newer ones would hold gigabytes.
//! - A radix tree pays for such a survivor with a node on each level, and walks all levels for every
//!   other number. The table is one level, whatever the span.
//! - Larger leaves make the table smaller yet, but a survivor keeps its whole leaf. With eight slots
//!   it costs 52 bytes at most where a message in a full leaf costs 5 to 6.5; with 64 it would be 276.

mod image;

use crate::{
    slab::{Link, Slab},
    table::{Table, hash_pair},
};

/// Numbers in a leaf.
const LEAF_SLOTS: usize = 8;

/// How often the table is looked at for memory to give back, in leaves freed. One look is at 1/256
/// of it.
const LEAVES_PER_SHRINK: usize = 16;

/// A map from growing numbers to `u32` slab indexes.
///
/// The newest leaf stands outside slab and table. So most inserts touch nothing else, and a queue
/// of which each message goes before the next one comes needs no memory at all.
#[derive(Clone, Debug)]
pub(crate) struct Sequences {
    newest: Leaf,
    /// All other leaves that have a number.
    leaves: Slab<Leaf>,
    by_block: Table,
}

/// Eight consecutive numbers, the first one a multiple of eight.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    /// The numbers by eight.
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

    /// What the number was added with.
    pub(crate) fn get(&self, number: u64) -> Option<u32> {
        let (block, slot) = split(number);
        let leaf = if block == self.newest.block {
            &self.newest
        } else {
            &self.leaves[self.find_leaf(block)?]
        };
        leaf.slots[slot].get()
    }

    /// Takes a number out, and returns what it was added with. Now and then gives a little memory
    /// back that the table no longer needs.
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

    /// Reads where a [`get`](Self::get) of this number will begin, see [`Table::prefetch`].
    pub(crate) fn prefetch(&self, number: u64) -> u32 {
        self.by_block.prefetch(hash_block(split(number).0))
    }

    /// Reads where it will go on from there.
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

    /// The newest leaf goes where all others are, unless nothing is left of it.
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

/// The number's leaf, and its slot in there.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the remainder is below the number of slots"
)]
fn split(number: u64) -> (u64, usize) {
    let slots = LEAF_SLOTS as u64;
    (number / slots, (number % slots) as usize)
}

/// Blocks are not chosen by users, see [`hash_pair`].
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
        /// Adds the number so far above the last one.
        Add(u64),
        /// Removes the so-many-th of those there are.
        Remove(prop::sample::Index),
        /// Removes all but every so-many-th.
        Thin(usize),
        /// Asks for a number that may be there or not.
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
            // A leaf exists for as long as it has a number, and no longer.
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
        // However few stay, each costs its leaf at most.
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
        // A free page for leaves, and nothing of the table.
        assert_eq!(sequences.by_block.bytes(), 0);
        assert!(sequences.bytes() < 4096, "{} are left", sequences.bytes());
    }

    #[test]
    fn an_old_survivor_does_not_hold_what_is_newer() {
        let mut sequences = Sequences::default();
        sequences.insert(1, 1);
        let mut most = 0;
        // The numbers in between came and went: what counts is how far away they are.
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
