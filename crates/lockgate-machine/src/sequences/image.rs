//! The index of a queue's messages in an image: its leaves. Loading builds the table again.

use super::{LEAF_SLOTS, Leaf, Sequences, hash_block, split};
use crate::{
    columns::{Columns, ImageError, Input, Row, damaged},
    slab::{Link, Slab},
    table::Table,
};

impl Sequences {
    /// A copy of the same numbers that shares their pages, to be read while this index changes. It
    /// has no table.
    pub(crate) fn share(&mut self) -> Self {
        Self {
            newest: self.newest.clone(),
            leaves: self.leaves.share(),
            by_block: Table::default(),
        }
    }

    /// Appends everything besides the leaves' pages.
    pub(crate) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.newest.block.to_le_bytes());
        for link in self.newest.slots {
            out.extend_from_slice(&link.to_bits().to_le_bytes());
        }
        self.leaves.encode_outline(out);
    }

    /// The index without its older leaves, which are added later.
    pub(crate) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let mut newest = Leaf::new(input.u64()?);
        if newest.block > u64::MAX / LEAF_SLOTS as u64 {
            return Err(damaged("a message's number is above the highest"));
        }
        for link in &mut newest.slots {
            *link = Link::from_bits(input.u32()?);
        }
        Ok(Self {
            newest,
            leaves: Slab::decode_outline(input)?,
            by_block: Table::default(),
        })
    }

    /// The pages with the leaves.
    pub(crate) fn leaves(&mut self) -> &mut Slab<Leaf> {
        &mut self.leaves
    }

    /// Builds the table over the leaves.
    pub(crate) fn rebuild(&mut self) -> Result<(), ImageError> {
        self.leaves.check_complete()?;
        let is_older = |(_, leaf): (u32, &Leaf)| leaf.block < self.newest.block;
        if !self.leaves.iter().all(is_older) {
            return Err(damaged("the index by number is not in order"));
        }
        self.build_table();
        Ok(())
    }

    /// Builds the table of the leaves, without which only the newest leaf is found.
    pub(crate) fn build_table(&mut self) {
        let leaves = self.leaves.iter();
        let blocks = leaves.map(|(index, leaf)| (hash_block(leaf.block), index));
        self.by_block = Table::of(self.leaves.len(), blocks);
    }

    /// Whether a number may be added.
    pub(crate) fn takes(&self, number: u64) -> bool {
        split(number).0 >= self.newest.block
    }

    /// All numbers with their values, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        let older = self.leaves.iter().map(|(_, leaf)| leaf);
        older.chain([&self.newest]).flat_map(|leaf| {
            let first = leaf.block * LEAF_SLOTS as u64;
            (first..)
                .zip(leaf.slots)
                .filter_map(|(number, link)| Some((number, link.get()?)))
        })
    }
}

impl Row for Leaf {
    fn blank() -> Self {
        Self::new(0)
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.number(
            u64::MAX / LEAF_SLOTS as u64,
            |leaf| leaf.block,
            |leaf, block| leaf.block = block,
        )?;
        for slot in 0..LEAF_SLOTS {
            columns.index(
                |leaf| leaf.slots[slot].to_bits(),
                |leaf, bits| leaf.slots[slot] = Link::from_bits(bits),
            )?;
        }
        Ok(())
    }
}
