//! A slab in an image: page by page, with the same indexes and the same free slots, so that a
//! loaded slab gives the next value the same index.

use super::{NONE, Page, Slab, Slot, Slots};
use crate::columns::{Decoder, Encoder, ImageError, Input, Row, damaged};

impl<T: Clone, const PAGE: u32> Slab<T, PAGE> {
    /// Appends everything besides the pages: the number of values, and which pages have room.
    pub(crate) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.len.to_le_bytes());
        let open = u32::try_from(self.open.len()).expect("fewer than there are pages");
        out.extend_from_slice(&open.to_le_bytes());
        for page in &self.open {
            out.extend_from_slice(&page.to_le_bytes());
        }
    }

    /// A slab whose pages are still to be added.
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

    /// Frees a page that is not needed any more, so that a slab that shares it need not copy it.
    pub(crate) fn forget_page(&mut self, number: u32) {
        self.pages[number as usize].slots = Slots::Owned(Vec::new());
    }

    fn pages(&self) -> u32 {
        u32::try_from(self.pages.len()).expect("pages have u32 numbers")
    }

    /// One more than the highest possible index.
    pub(crate) fn slots(&self) -> usize {
        self.pages.len() * Self::PAGE_SLOTS as usize
    }

    /// Checks that all pages of the outline were added.
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

impl<T: Clone, const PAGE: u32> Slab<T, PAGE> {
    /// Whether these are the indexes of all values, each once.
    pub(crate) fn is_each_once(&self, indexes: impl Iterator<Item = u32>) -> bool {
        let mut seen = vec![false; self.slots()];
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

impl<T: Row, const PAGE: u32> Slab<T, PAGE> {
    /// Appends a page, and returns its first index. `None`: there is no such page.
    pub(crate) fn encode_page(&self, number: u32, out: &mut Vec<u8>) -> Option<u32> {
        let page = self.pages.get(number as usize)?;
        let slots = page.slots.whole();
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
        Encoder::encode(&slots, first, page.used as usize, out);
        Some(first)
    }

    /// Reads the next page, which should be the one of which the first index is `first`.
    pub(crate) fn read_page(
        &mut self,
        first: u32,
        input: &mut Input<'_>,
    ) -> Result<(), ImageError> {
        if !first.is_multiple_of(Self::PAGE_SLOTS) || first > u32::MAX - 2 * Self::PAGE_SLOTS {
            return Err(damaged("a page starts where none can"));
        }
        let (count, freed) = (input.u16()?, input.u16()?);
        if u32::from(count) > Self::PAGE_SLOTS || freed > count || (count > 0 && freed == count) {
            return Err(damaged("a page has slots it cannot have"));
        }
        let mut slots: Vec<Slot<T>> = Vec::new();
        if count > 0 {
            // The first page grows by itself; all others are allocated whole.
            let room = if first == 0 {
                usize::from(count)
            } else {
                Self::PAGE_SLOTS as usize
            };
            slots.reserve_exact(room);
            slots.resize(usize::from(count), Slot::Used(T::blank()));
        }
        let (mut free, mut last) = (NONE, None);
        for _ in 0..freed {
            let slot = input.u16()?;
            let place = slots.get_mut(usize::from(slot));
            let place = place.filter(|place| matches!(place, Slot::Used(_)));
            *place.ok_or(damaged("a free slot is outside its page, or free twice"))? =
                Slot::Free(NONE);
            match last.replace(slot) {
                Some(last) => slots[usize::from(last)] = Slot::Free(u32::from(slot)),
                None => free = u32::from(slot),
            }
        }
        Decoder::decode(&mut slots, first, usize::from(count - freed), input)?;
        if self.pages() * Self::PAGE_SLOTS != first {
            return Err(damaged("a page is missing, or comes twice"));
        }
        self.pages.push(Page {
            slots: Slots::Owned(slots),
            free,
            used: u32::from(count - freed),
        });
        Ok(())
    }
}

fn put_u16(out: &mut Vec<u8>, number: usize) {
    let number = u16::try_from(number).expect("a page has at most 512 slots");
    out.extend_from_slice(&number.to_le_bytes());
}
