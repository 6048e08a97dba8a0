//! A slab in an image: page by page, with the same indexes and the same free slots, so that a slab
//! that was loaded gives the next value the same index.

use super::{NONE, Page, Slab, Slot, Slots};
use crate::columns::{Decoder, Encoder, ImageError, Input, Row, damaged};

impl<T: Clone> Slab<T> {
    /// Appends what stands beside the pages: how many values and which pages have room.
    pub(crate) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.len.to_le_bytes());
        let open = u32::try_from(self.open.len()).expect("fewer than there are pages");
        out.extend_from_slice(&open.to_le_bytes());
        for page in &self.open {
            out.extend_from_slice(&page.to_le_bytes());
        }
    }

    /// A slab of which the pages are still to come.
    pub(crate) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let len = input.u32()?;
        let mut open = Vec::new();
        for _ in 0..input.count(4)? {
            open.push(input.u32()?);
        }
        Ok(Self {
            len,
            open,
            ..Self::default()
        })
    }

    /// Lets go of a page's memory, which nobody asks for any more: whoever shares the page need not
    /// copy it.
    pub(crate) fn forget_page(&mut self, number: u32) {
        self.pages[number as usize].slots = Slots::Owned(Vec::new());
    }

    /// How many pages there are.
    pub(crate) fn pages(&self) -> u32 {
        u32::try_from(self.pages.len()).expect("pages have u32 numbers")
    }

    /// Whether all pages came, as the outline said.
    pub(crate) fn check_complete(&self) -> Result<(), ImageError> {
        let used: u64 = self.pages.iter().map(|page| u64::from(page.used)).sum();
        if used != u64::from(self.len) {
            return Err(damaged("pages are missing"));
        }
        let mut room = vec![false; self.pages.len()];
        for &number in &self.open {
            let listed = room
                .get_mut(number as usize)
                .ok_or(damaged("a page with room is missing"))?;
            if std::mem::replace(listed, true) {
                return Err(damaged("a page with room is listed twice"));
            }
        }
        let has_room = |page: &Page<T>| page.used < Self::PAGE_SLOTS;
        if !self.pages.iter().map(has_room).eq(room) {
            return Err(damaged("the list of pages with room is wrong"));
        }
        Ok(())
    }
}

impl<T: Clone> Slab<T> {
    /// Whether these are the indexes of all values, each once.
    pub(crate) fn is_each_once(&self, indexes: impl Iterator<Item = u32>) -> bool {
        let mut seen = vec![false; self.pages.len() * Self::PAGE_SLOTS as usize];
        let mut count = 0;
        for index in indexes {
            let seen = match self.get(index) {
                Some(_) => &mut seen[index as usize],
                None => return false,
            };
            if std::mem::replace(seen, true) {
                return false;
            }
            count += 1;
        }
        count == self.len()
    }
}

impl<T: Row> Slab<T> {
    /// Appends a page.
    pub(crate) fn encode_page(&self, number: u32, out: &mut Vec<u8>) {
        let page = &self.pages[number as usize];
        let slots = page.slots.get();
        put_u16(out, slots.len());
        put_u16(out, slots.len() - page.used as usize);
        let mut free = page.free;
        while free != NONE {
            put_u16(out, free as usize);
            free = match slots[free as usize] {
                Slot::Free(next) => next,
                Slot::Used(_) => unreachable!("a used slot stood in the list of free ones"),
            };
        }
        let first = number * Self::PAGE_SLOTS;
        let rows = (first..)
            .zip(slots)
            .filter_map(|(index, slot)| match slot {
                Slot::Used(row) => Some((index, row)),
                Slot::Free(_) => None,
            })
            .collect();
        Encoder::encode(rows, out);
    }

    /// Reads the next page.
    pub(crate) fn decode_page(&mut self, input: &mut Input<'_>) -> Result<(), ImageError> {
        let number = self.pages();
        if number >= u32::MAX / Self::PAGE_SLOTS {
            return Err(damaged("there are more pages than there can be"));
        }
        let (count, freed) = (input.u16()?, input.u16()?);
        if u32::from(count) > Self::PAGE_SLOTS || freed > count || (count > 0 && freed == count) {
            return Err(damaged("a page has slots it cannot have"));
        }
        let mut slots: Vec<Slot<T>> = Vec::new();
        if count > 0 {
            // The first page grows by itself; all others have their room from the start.
            let room = if number == 0 {
                usize::from(count)
            } else {
                Self::PAGE_SLOTS as usize
            };
            slots.reserve_exact(room);
        }
        let mut chain = Vec::with_capacity(usize::from(freed));
        for _ in 0..freed {
            chain.push(u32::from(input.u16()?));
        }
        let mut is_free = vec![false; usize::from(count)];
        for &slot in &chain {
            let is_free = is_free
                .get_mut(slot as usize)
                .ok_or(damaged("a free slot is outside its page"))?;
            if std::mem::replace(is_free, true) {
                return Err(damaged("a slot is free twice"));
            }
        }
        let first = number * Self::PAGE_SLOTS;
        let used = (first..)
            .zip(&is_free)
            .filter(|(_, is_free)| !**is_free)
            .map(|(index, _)| index);
        let mut rows = Decoder::<T>::decode(used, input)?.into_iter();
        input.expect_end()?;
        slots.extend(is_free.iter().map_while(|&is_free| {
            if is_free {
                Some(Slot::Free(NONE))
            } else {
                rows.next().map(|(_, row)| Slot::Used(row))
            }
        }));
        for (&slot, &next) in chain.iter().zip(chain.iter().skip(1).chain([&NONE])) {
            slots[slot as usize] = Slot::Free(next);
        }
        self.pages.push(Page {
            slots: Slots::Owned(slots),
            free: chain.first().copied().unwrap_or(NONE),
            used: u32::from(count - freed),
        });
        Ok(())
    }
}

fn put_u16(out: &mut Vec<u8>, number: usize) {
    let number = u16::try_from(number).expect("a page has at most 512 slots");
    out.extend_from_slice(&number.to_le_bytes());
}
