//! A timer wheel in an image: its timers in their places.

use std::collections::HashSet;

use super::{Level, Node, Place, SLOT_BITS, SLOTS, Wheel, pack, unpack};
use crate::{
    columns::{Columns, ImageError, Input, Row, column, damaged, narrow},
    slab::{NONE, Slab},
    table::hash_pair,
};

impl Wheel {
    /// A copy of the same timers that shares their pages, to be read while this wheel changes.
    /// Without the map of timers behind the cursor, which follows from them.
    pub(crate) fn share(&mut self) -> Self {
        Self {
            nodes: self.nodes.share(),
            levels: self.levels.clone(),
            cursor: self.cursor,
            entering: self.entering,
            open: self.open,
            open_count: self.open_count,
            behind: std::collections::BTreeMap::new(),
            #[cfg(test)]
            work: 0,
        }
    }

    /// Appends everything besides the timers' pages.
    pub(crate) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.cursor.to_le_bytes());
        out.extend_from_slice(&self.open.to_le_bytes());
        out.extend_from_slice(&self.entering.to_le_bytes());
        out.push(narrow(self.levels.len() as u64));
        for level in &self.levels {
            for first in level.first.iter() {
                out.extend_from_slice(&first.to_le_bytes());
            }
        }
        self.nodes.encode_outline(out);
    }

    /// A wheel whose timers are still to be added.
    pub(crate) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let (cursor, open, entering) = (input.u64()?, input.u32()?, input.u32()?);
        let levels = input.u8()?;
        if levels > 8 {
            return Err(damaged("a timer wheel has more than eight levels"));
        }
        let mut wheel = Self {
            cursor,
            entering,
            open,
            ..Self::new()
        };
        for _ in 0..levels {
            let mut level = Level::new();
            for slot in 0..SLOTS {
                let first = input.u32()?;
                if first != NONE {
                    level.set_first(slot, first);
                }
            }
            wheel.levels.push(level);
        }
        wheel.nodes = Slab::decode_outline(input)?;
        Ok(wheel)
    }

    /// The pages with the timers.
    pub(crate) fn nodes(&mut self) -> &mut Slab<Node> {
        &mut self.nodes
    }

    /// Builds what follows from the timers, and checks that they can be walked: that the `next` and
    /// `previous` links match (the sums of each list's hashes from both ends are equal), and that
    /// each slot with timers names one of them.
    pub(crate) fn rebuild(&mut self) -> Result<(), ImageError> {
        self.nodes.check_complete()?;
        let entering = self.walk_entering()?;
        let mut sum = 0_u64;
        for (handle, node) in self.nodes.iter() {
            if entering.contains(&handle) {
                continue;
            }
            let fits = match node.place {
                Place::Slot => node.deadline > self.cursor && self.has_slot(node.deadline),
                Place::Open => {
                    self.open_count += 1;
                    node.deadline <= self.cursor && self.open != NONE
                }
                Place::Behind => {
                    self.behind.insert((node.deadline, node.order, handle), ());
                    continue;
                }
            };
            if !fits {
                return Err(damaged("a timer is in the wrong place"));
            }
            let list = self.list_of(node);
            sum = sum
                .wrapping_add(hash_step(list, handle, node.next))
                .wrapping_sub(hash_step(list, node.previous, handle));
        }
        if sum != 0 {
            return Err(damaged("the order of timers does not fit them"));
        }
        let is_entering = |first: &u32| entering.contains(first);
        let slots = self.levels.iter().flat_map(|level| level.first.iter());
        if slots.chain([&self.open]).any(is_entering) {
            return Err(damaged("a timer is in two places"));
        }
        let named = |first: u32| {
            (first != NONE).then(|| self.nodes.get(first).map(|node| self.list_of(node)))
        };
        let open = named(self.open).is_none_or(|list| list == Some(OPEN));
        let slots = (0_u32..).zip(&self.levels).all(|(level, slots)| {
            (0..).zip(slots.first.iter()).all(|(slot, &first)| {
                named(first).is_none_or(|list| list == Some(level << SLOT_BITS | slot))
            })
        });
        if open && slots {
            Ok(())
        } else {
            Err(damaged("a timer is missing"))
        }
    }

    /// The entering timers. Few images have any, so looking them up is cheap enough.
    fn walk_entering(&self) -> Result<HashSet<u32>, ImageError> {
        let mut entering = HashSet::new();
        let mut handle = self.entering;
        while handle != NONE && entering.insert(handle) {
            let fits = |node: &&Node| node.place == Place::Slot && node.deadline >= self.cursor;
            let Some(node) = self.nodes.get(handle).filter(fits) else {
                return Err(damaged("a timer is in the wrong place"));
            };
            if self.nodes.get(node.next).map(|next| next.previous) != Some(handle) {
                return Err(damaged("the order of timers does not fit them"));
            }
            handle = node.next;
        }
        if handle == self.entering {
            Ok(entering)
        } else {
            Err(damaged("the order of timers does not fit them"))
        }
    }

    /// The payload of the timer, if there is one.
    pub(crate) fn payload(&self, handle: u32) -> Option<u64> {
        self.nodes.get(handle).map(|node| unpack(node.payload))
    }

    /// The number of the timer's list.
    fn list_of(&self, node: &Node) -> u32 {
        match node.place {
            Place::Slot if node.deadline > self.cursor => {
                let (level, slot) = self.slot_of(node.deadline);
                narrow((level << SLOT_BITS | slot) as u64)
            }
            Place::Open => OPEN,
            Place::Slot | Place::Behind => NONE,
        }
    }

    fn has_slot(&self, deadline: u64) -> bool {
        let (level, slot) = self.slot_of(deadline);
        self.levels
            .get(level)
            .is_some_and(|level| level.first[slot] != NONE)
    }
}

/// The list that starts at `open`.
const OPEN: u32 = NONE - 1;

fn hash_step(list: u32, from: u32, to: u32) -> u64 {
    hash_pair(list, u64::from(from) << 32 | u64::from(to))
}

impl Row for Node {
    fn blank() -> Self {
        Self {
            deadline: 0,
            order: 0,
            previous: NONE,
            next: NONE,
            payload: [0; 3],
            place: Place::Slot,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, u64 deadline)?;
        column!(columns, u64 order)?;
        column!(columns, neighbour previous)?;
        column!(columns, neighbour next)?;
        columns.number(
            (1 << 48) - 1,
            |node| unpack(node.payload),
            |node, payload| node.payload = pack(payload),
        )?;
        columns.number(
            2,
            |node| match node.place {
                Place::Slot => 0,
                Place::Open => 1,
                Place::Behind => 2,
            },
            |node, place| {
                node.place = match place {
                    0 => Place::Slot,
                    1 => Place::Open,
                    _ => Place::Behind,
                };
            },
        )
    }
}
