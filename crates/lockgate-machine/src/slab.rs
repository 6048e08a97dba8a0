//! A paged slab: values at stable small indexes, in pages that are never copied.
//!
//! A `Vec` of ten million entries grows by copying all of them while callers wait, and for that
//! moment it holds both copies. Here, growing allocates one page. A page whose last value was
//! removed is freed, so a drained backlog frees its memory.
//!
//! A snapshot shares pages with the machine: [`Slab::share`] returns a second slab with the same pages, and a
//! slab that changes a page first copies the changed part, see [`Slots`]. While nothing is shared, a change
//! costs one check of a tag next to the page's address; no counter is touched.

mod image;
mod slots;

use std::{
    mem,
    num::NonZeroU32,
    ops::{Index, IndexMut},
};

use slots::Slots;

/// No index: the end of a list through a slab.
pub(crate) const NONE: u32 = u32::MAX;

/// The most bytes of a page, which growing allocates at once.
const PAGE_BYTES_MAX: usize = 32 << 10;

/// How many changes it takes until another page is mended; mending may take as long as all of them.
const CHANGES_PER_MEND: u32 = 32;

/// Slots of the first page at the start. Only this page grows by copying, so that a machine with
/// three messages is small.
const FIRST_PAGE_SLOTS: u32 = if cfg!(test) { 2 } else { 8 };

/// Values of one type at `u32` indexes that stay the same until the value is removed.
///
/// `PAGE` is the number of slots of a page: a power of two, at most 512, and less for values that would make
/// a page larger than 32 KiB. An image's pages have as many rows, so this is part of its format.
///
/// Insert, remove and access are O(1). A slot has the size of its value if the value's type has a spare bit
/// pattern (a `bool`, an enum, a [`Link`]), else eight bytes more: assert that it has one.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T, const PAGE: u32 = 512> {
    pages: Vec<Page<T>>,
    /// Every page with a free slot, once. The last one is filled next.
    open: Vec<u32>,
    /// The memory of the page that was emptied last, so that a value that comes and goes at a
    /// page's edge does not allocate each time.
    spare: Vec<Slot<T>>,
    /// Pages that were patched while shared; some may not be shared any more.
    patched: Vec<usize>,
    /// Changes since one of them was last checked.
    changes: u32,
    len: u32,
}

/// An index into a slab, or none, in four bytes. Unlike a bare `u32` it leaves one bit pattern
/// free, with which [`Slab`] marks a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link(NonZeroU32);

/// A group of slots that is allocated, shared and freed together.
#[derive(Clone, Debug)]
pub(crate) struct Page<T> {
    /// The slots used so far; empty if the page was freed.
    slots: Slots<T>,
    /// The first of the page's list of freed slots.
    free: u32,
    used: u32,
}

/// A place for a value.
#[derive(Clone, Debug)]
pub(crate) enum Slot<T> {
    Used(T),
    /// The next free slot of the page.
    Free(u32),
}

impl<T, const PAGE: u32> Default for Slab<T, PAGE> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            open: Vec::new(),
            spare: Vec::new(),
            patched: Vec::new(),
            changes: 0,
            len: 0,
        }
    }
}

impl<T: Clone, const PAGE: u32> Slab<T, PAGE> {
    /// Slots in a page. Small under test, so that every test crosses pages.
    const PAGE_SLOTS: u32 = {
        assert!(PAGE.is_power_of_two() && PAGE >= 32 && PAGE <= 512);
        assert!(PAGE as usize * size_of::<Slot<T>>() <= PAGE_BYTES_MAX);
        if cfg!(test) { 32 } else { PAGE }
    };

    /// Adds a value and returns its index.
    ///
    /// # Panics
    /// Beyond 2^32 - 512 values, which the machine's limits exclude.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let number = match self.open.last() {
            Some(&number) => number,
            None => self.add_page(),
        };
        let page = &mut self.pages[number as usize];
        let slot = page.free;
        let slot = if slot == NONE {
            let slots = page.slots.own();
            let slot = slots.len();
            if slot == slots.capacity() {
                Self::grow(slots, &mut self.spare, number == 0);
            }
            slots.push(Slot::Used(value));
            u32::try_from(slot).expect("a page has PAGE_SLOTS slots")
        } else {
            let place = self.slot_mut(number as usize, slot as usize);
            let place = place.expect("free slots are slots");
            match mem::replace(place, Slot::Used(value)) {
                Slot::Free(next) => self.pages[number as usize].free = next,
                Slot::Used(_) => unreachable!("a used slot stood in the list of free ones"),
            }
            slot
        };
        let page = &mut self.pages[number as usize];
        page.used += 1;
        if page.used == Self::PAGE_SLOTS {
            self.open.pop();
        }
        self.len += 1;
        number * Self::PAGE_SLOTS + slot
    }

    /// Removes a value; its index may be used again.
    ///
    /// # Panics
    /// If there is no value at the index.
    pub(crate) fn remove(&mut self, index: u32) -> T {
        let (number, slot) = Self::split(index);
        let freed = Slot::Free(self.pages[number].free);
        let place = self.slot_mut(number, slot);
        let value = match place.map(|place| mem::replace(place, freed)) {
            Some(Slot::Used(value)) => value,
            Some(Slot::Free(_)) | None => panic!("no value at index {index} of the slab"),
        };
        let page = &mut self.pages[number];
        page.free = index % Self::PAGE_SLOTS;
        if page.used == Self::PAGE_SLOTS {
            self.open.push(index / Self::PAGE_SLOTS);
        }
        page.used -= 1;
        self.len -= 1;
        if page.used == 0 {
            page.free = NONE;
            if let Slots::Owned(mut slots) = mem::replace(&mut page.slots, Slots::Owned(Vec::new()))
                && slots.capacity() > self.spare.capacity()
            {
                slots.clear();
                self.spare = slots;
            }
            if self.len == 0 && self.pages.len() > 16 {
                self.pages = Vec::new();
                self.open = Vec::new();
                self.patched = Vec::new();
            }
        }
        value
    }

    /// The value at the index, if there is one.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (page, slot) = Self::split(index);
        match self.pages.get(page)?.slots.get(slot)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// The value at the index, if there is one.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (page, slot) = Self::split(index);
        match self.slot_mut(page, slot)? {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// A slot, to change it. Now and then mends a patched page on the way.
    fn slot_mut(&mut self, page: usize, slot: usize) -> Option<&mut Slot<T>> {
        if !self.patched.is_empty() {
            self.mend_now_and_then();
        }
        let slots = &mut self.pages.get_mut(page)?.slots;
        if slots.is_shared() && slots.patch() {
            self.patched.push(page);
        }
        slots.get_mut(slot)
    }

    /// Every so many changes, mends one of the patched pages that are not shared any more. So all
    /// pages are soon whole again, and no call waits for many of them.
    #[cold]
    #[inline(never)]
    fn mend_now_and_then(&mut self) {
        self.changes += 1;
        if self.changes < CHANGES_PER_MEND {
            return;
        }
        self.changes = 0;
        if let Some(&page) = self.patched.last()
            && let Some(page) = self.pages.get_mut(page)
            && page.slots.mend()
        {
            self.patched.pop();
        }
    }

    /// An index above every used one.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.pages.len())
            .map_or(u32::MAX, |pages| pages.saturating_mul(Self::PAGE_SLOTS))
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values with their indexes, in order of the indexes. Walks all pages.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.pages)
            .flat_map(|(number, page)| Self::values(number, page))
    }

    /// The values of a page with their indexes.
    fn values(number: u32, page: &Page<T>) -> impl Iterator<Item = (u32, &T)> {
        let mut next = number * Self::PAGE_SLOTS;
        page.slots.stretches().flat_map(move |stretch| {
            let first = next;
            next += u32::try_from(stretch.len()).expect("a page has PAGE_SLOTS slots");
            (first..)
                .zip(stretch)
                .filter_map(|(index, slot)| match slot {
                    Slot::Used(value) => Some((index, value)),
                    Slot::Free(_) => None,
                })
        })
    }

    /// All values with their indexes, to change them. Walks all pages, and copies shared ones.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.pages).flat_map(|(number, page)| {
            (number * Self::PAGE_SLOTS..)
                .zip(page.slots.own())
                .filter_map(|(index, slot)| match slot {
                    Slot::Used(value) => Some((index, value)),
                    Slot::Free(_) => None,
                })
        })
    }

    /// Heap memory in bytes, without what the values own. Walks the list of pages.
    pub(crate) fn bytes(&self) -> usize {
        let slots: usize = self.pages.iter().map(|page| page.slots.bytes()).sum();
        slots
            + self.spare.capacity() * size_of::<Slot<T>>()
            + self.pages.capacity() * size_of::<Page<T>>()
            + self.open.capacity() * size_of::<u32>()
            + self.patched.capacity() * size_of::<usize>()
    }

    /// A second slab with the same values. The slab that changes a page copies it first. Takes time
    /// in the number of pages, not of values.
    pub(crate) fn share(&mut self) -> Self {
        self.patched = Vec::new();
        for page in &mut self.pages {
            page.slots.share();
        }
        Self {
            pages: self.pages.clone(),
            open: self.open.clone(),
            spare: Vec::new(),
            patched: Vec::new(),
            changes: 0,
            len: self.len,
        }
    }

    /// A second slab with a copy of each value at the same index, for values that own slabs themselves.
    pub(crate) fn copy_with(&mut self, mut copy: impl FnMut(&mut T) -> T) -> Self {
        let mut copies = Self {
            open: self.open.clone(),
            len: self.len,
            ..Self::default()
        };
        for page in &mut self.pages {
            let slots = page.slots.own().iter_mut().map(|slot| match slot {
                Slot::Used(value) => Slot::Used(copy(value)),
                Slot::Free(next) => Slot::Free(*next),
            });
            copies.pages.push(Page {
                slots: Slots::Owned(slots.collect()),
                ..*page
            });
        }
        copies
    }

    fn add_page(&mut self) -> u32 {
        let number = u32::try_from(self.pages.len())
            .ok()
            .filter(|&number| number < u32::MAX / Self::PAGE_SLOTS)
            .expect("the machine's limits keep a slab below 2^32 values");
        self.pages.push(Page {
            slots: Slots::Owned(Vec::new()),
            free: NONE,
            used: 0,
        });
        self.open.push(number);
        number
    }

    fn split(index: u32) -> (usize, usize) {
        (
            (index / Self::PAGE_SLOTS) as usize,
            (index % Self::PAGE_SLOTS) as usize,
        )
    }

    /// Makes room in a page without any: a whole page, except for the first page of a slab.
    fn grow(slots: &mut Vec<Slot<T>>, spare: &mut Vec<Slot<T>>, first_page: bool) {
        if slots.is_empty() && spare.capacity() > 0 {
            *slots = mem::take(spare);
        }
        let page = Self::PAGE_SLOTS as usize;
        let wanted = if first_page {
            (slots.len() * 2).max(FIRST_PAGE_SLOTS as usize).min(page)
        } else {
            page
        };
        if slots.capacity() < wanted {
            slots.reserve_exact(wanted - slots.len());
        }
    }
}

impl<T: Clone, const PAGE: u32> Index<u32> for Slab<T, PAGE> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.get(index).expect("an index stays valid until removed")
    }
}

impl<T: Clone, const PAGE: u32> IndexMut<u32> for Slab<T, PAGE> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index)
            .expect("an index stays valid until removed")
    }
}

impl Link {
    pub(crate) const NONE: Self = Self(NonZeroU32::MAX);

    /// A link to the value at `index`.
    pub(crate) fn to(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    /// A link from an index or [`NONE`].
    pub(crate) fn from_bits(index: u32) -> Self {
        match index {
            NONE => Self::NONE,
            index => Self::to(index),
        }
    }

    /// The index, or [`NONE`].
    pub(crate) fn to_bits(self) -> u32 {
        self.get().unwrap_or(NONE)
    }

    /// The index, if there is one.
    pub(crate) fn get(self) -> Option<u32> {
        (self != Self::NONE).then(|| self.0.get() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ptr};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_costs_nothing_where_the_type_has_a_spare_pattern() {
        assert_eq!(size_of::<Slot<(u64, Link)>>(), 16);
        assert_eq!(size_of::<Slot<(u64, u32, bool)>>(), 16);
        assert_eq!(
            size_of::<Slot<u64>>(),
            16,
            "and eight bytes where it has none"
        );
    }

    #[test]
    fn links_tell_every_index_from_none() {
        assert_eq!(Link::NONE.get(), None);
        for index in [0, 1, u32::MAX - 2] {
            assert_eq!(Link::to(index).get(), Some(index));
        }
    }

    #[test]
    fn memory_grows_by_a_page_and_comes_back() {
        let mut slab = <Slab<_>>::default();
        let page = <Slab<u64>>::PAGE_SLOTS as usize * size_of::<Slot<u64>>();
        let mut before = 0;
        for value in 0..1000_u64 {
            slab.insert(value);
            let bytes = slab.bytes();
            // The list of pages may double too, with 40 bytes a page.
            assert!(bytes - before <= page + 64 * 128, "{before} to {bytes}");
            before = bytes;
        }
        for index in 0..1000 {
            slab.remove(index);
        }
        assert!(slab.is_empty());
        assert_eq!(slab.bytes(), page, "one spare page is kept");
        assert_eq!(slab.insert(1), 0);
    }

    #[test]
    fn an_empty_slab_owns_nothing_and_a_small_one_little() {
        let mut slab = <Slab<_>>::default();
        assert_eq!(slab.bytes(), 0);
        slab.insert(1_u64);
        assert!(slab.pages[0].slots.own().capacity() == FIRST_PAGE_SLOTS as usize);
    }

    proptest! {
        #[test]
        fn does_what_a_map_does(steps in prop::collection::vec((0..3_u8, any::<u16>()), 0..400)) {
            let mut slab = <Slab<_>>::default();
            let mut map = BTreeMap::new();
            for (what, number) in steps {
                if what < 2 {
                    let index = slab.insert(number);
                    prop_assert!(map.insert(index, number).is_none(), "index given twice");
                } else if let Some(&index) = map.keys().nth(number as usize % map.len().max(1)) {
                    prop_assert_eq!(Some(slab.remove(index)), map.remove(&index));
                    prop_assert!(slab.get(index).is_none());
                }
                prop_assert_eq!(slab.len(), map.len());
            }
            let all: Vec<_> = slab.iter().map(|(index, &value)| (index, value)).collect();
            prop_assert_eq!(all, map.into_iter().collect::<Vec<_>>());
            prop_assert!(slab.get(NONE).is_none());
        }
    }

    /// The address of each value.
    fn addresses<T: Clone>(slab: &Slab<T>) -> Vec<*const T> {
        slab.iter().map(|(_, value)| ptr::from_ref(value)).collect()
    }

    fn moved<T: PartialEq>(before: &[T], after: &[T]) -> Vec<usize> {
        let pairs = before.iter().zip(after).enumerate();
        pairs
            .filter(|(_, (a, b))| a != b)
            .map(|(at, _)| at)
            .collect()
    }

    #[test]
    fn the_first_change_of_a_shared_block_copies_that_block_only() {
        let mut slab = <Slab<_>>::default();
        for value in 0..100_u64 {
            slab.insert(value);
        }
        let before = addresses(&slab);
        let shared = slab.share();
        assert_eq!(addresses(&shared), before);
        slab[0] = 1000;
        slab[41] = 1000;
        let after = addresses(&slab);
        assert_eq!(moved(&before, &after), [0, 1, 40, 41]);
        slab[1] = 1000;
        slab[40] = 1000;
        assert_eq!(addresses(&slab), after, "nothing is copied twice");
        assert_eq!(addresses(&shared), before);
        slab.insert(1000);
        let longer = addresses(&slab);
        assert_eq!(
            moved(&after, &longer),
            [96, 97, 98, 99],
            "a page that grows is copied whole"
        );
    }

    #[test]
    fn pages_are_whole_again_soon_after_nobody_shares_them() {
        let mut slab = <Slab<_>>::default();
        for value in 0..100_u64 {
            slab.insert(value);
        }
        let (before, bytes) = (addresses(&slab), slab.bytes());
        let shared = slab.share();
        for index in [0, 40, 70] {
            slab[index] += 1000;
        }
        assert_eq!(slab.patched, [0, 1, 2]);
        drop(shared);
        for _ in 0..3 * CHANGES_PER_MEND {
            slab[99] += 1;
        }
        assert_eq!(addresses(&slab), before, "what nobody shares is taken over");
        assert_eq!(
            slab.iter().map(|(_, value)| value).sum::<u64>(),
            4950 + 3000 + 96
        );
        slab.patched.shrink_to_fit();
        assert_eq!(slab.bytes(), bytes);
    }

    #[test]
    fn a_page_stays_patched_for_as_long_as_somebody_shares_it_and_no_longer() {
        let mut slab = <Slab<_>>::default();
        for value in 0..100_u64 {
            slab.insert(value);
        }
        let shared = slab.share();
        let change = |slab: &mut Slab<u64>| {
            for _ in 0..4 * CHANGES_PER_MEND {
                slab[1] += 1;
            }
        };
        change(&mut slab);
        assert!(
            matches!(slab.pages[0].slots, Slots::Patched(_)),
            "no more than a block was copied"
        );
        assert_eq!(slab.patched, [0], "and it is not forgotten");
        drop(shared);
        change(&mut slab);
        assert!(matches!(slab.pages[0].slots, Slots::Owned(_)));
        assert!(slab.patched.is_empty());
    }

    proptest! {
        #[test]
        fn who_shares_a_slab_has_it_as_it_was(
            steps in prop::collection::vec((0..8_u8, any::<u16>()), 0..400),
        ) {
            let mut slab = <Slab<_>>::default();
            let mut map = BTreeMap::new();
            let mut shared: Vec<(Slab<u16>, BTreeMap<u32, u16>)> = Vec::new();
            for (what, number) in steps {
                let at = map.keys().nth(number as usize % map.len().max(1)).copied();
                match (what, at) {
                    (0..4, _) => {
                        map.insert(slab.insert(number), number);
                    }
                    (4, Some(index)) => prop_assert_eq!(Some(slab.remove(index)), map.remove(&index)),
                    (5, Some(index)) => {
                        slab[index] = number;
                        map.insert(index, number);
                    }
                    (6, _) if shared.len() < 3 => shared.push((slab.share(), map.clone())),
                    _ => {
                        shared.pop();
                    }
                }
            }
            shared.push((slab, map));
            for (slab, map) in shared {
                let all: BTreeMap<_, _> = slab.iter().map(|(index, &value)| (index, value)).collect();
                prop_assert_eq!(slab.len(), map.len());
                prop_assert_eq!(all, map);
            }
        }
    }
}
