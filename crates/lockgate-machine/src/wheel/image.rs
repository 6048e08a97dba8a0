//! A timer wheel in an image: its timers where they stand.

use super::{Level, Node, Place, SLOTS, Wheel, pack, unpack};
use crate::{
    columns::{Columns, ImageError, Input, Row, damaged, narrow},
    slab::{NONE, Slab},
};

impl Wheel {
    /// The same timers, to be read while this wheel goes on. Without the map of those behind, which
    /// follows from them.
    pub(crate) fn share(&mut self) -> Self {
        Self {
            nodes: self.nodes.share(),
            levels: self.levels.clone(),
            cursor: self.cursor,
            open: self.open,
            behind: std::collections::BTreeMap::new(),
        }
    }

    /// Appends what stands beside the timers' pages.
    pub(crate) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.cursor.to_le_bytes());
        out.extend_from_slice(&self.open.to_le_bytes());
        out.push(narrow(self.levels.len() as u64));
        for level in &self.levels {
            for first in level.first.iter() {
                out.extend_from_slice(&first.to_le_bytes());
            }
        }
        self.nodes.encode_outline(out);
    }

    /// A wheel of which the timers are still to come.
    pub(crate) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let (cursor, open) = (input.u64()?, input.u32()?);
        let levels = input.u8()?;
        if levels > 8 {
            return Err(damaged("a timer wheel has more than eight levels"));
        }
        let mut wheel = Self {
            cursor,
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
    pub(crate) fn nodes(&mut self) -> &mut Slab<impl Row + use<>> {
        &mut self.nodes
    }

    /// Builds what follows from the timers, and checks that they can be walked.
    pub(crate) fn rebuild(&mut self) -> Result<(), ImageError> {
        self.nodes.check_complete()?;
        let is_timer = |handle: u32| self.nodes.get(handle).is_some();
        let is_end = |handle: u32| handle == NONE || is_timer(handle);
        let firsts = self.levels.iter().flat_map(|level| level.first.iter());
        if !is_end(self.open) || !firsts.copied().all(is_end) {
            return Err(damaged("a timer is missing"));
        }
        for (handle, node) in self.nodes.iter() {
            let in_list = is_timer(node.previous) && is_timer(node.next);
            if node.place == Place::Behind {
                self.behind.insert((node.deadline, node.order, handle), ());
            } else if !in_list {
                return Err(damaged("a timer is missing"));
            }
            let fits = match node.place {
                Place::Slot => node.deadline > self.cursor,
                Place::Open => node.deadline == self.cursor && self.open != NONE,
                Place::Behind => true,
            };
            if !fits || (node.place == Place::Slot && !self.has_slot(node.deadline)) {
                return Err(damaged("a timer is in the wrong place"));
            }
        }
        Ok(())
    }

    /// Whether there is such a timer.
    pub(crate) fn has(&self, handle: u32) -> bool {
        self.nodes.get(handle).is_some()
    }

    /// What all timers were inserted with, in no order.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = u64> {
        self.nodes.iter().map(|(_, node)| unpack(node.payload))
    }

    fn has_slot(&self, deadline: u64) -> bool {
        let (level, slot) = self.slot_of(deadline);
        self.levels
            .get(level)
            .is_some_and(|level| level.first[slot] != NONE)
    }
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
        columns.number(
            u64::MAX,
            |node| node.deadline,
            |node, deadline| node.deadline = deadline,
        )?;
        columns.number(
            u64::MAX,
            |node| node.order,
            |node, order| node.order = order,
        )?;
        columns.neighbour(|node| node.previous, |node, other| node.previous = other)?;
        columns.neighbour(|node| node.next, |node, other| node.next = other)?;
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
