//! A page's memory: owned, or shared with a snapshot and copied on write in blocks.
//!
//! A change of a shared page copies the changed block, not the page. Right after a freeze, every message of a
//! batch may change a different page: a batch of 1,600 in random order would copy 150 MB of whole pages while
//! its callers wait, and a sixteenth of that in blocks. Pages of a block's size would copy as little, but
//! each would need a counter, and the freeze would take longer in proportion.

use std::{array, borrow::Cow, mem, sync::Arc};

use super::Slot;

/// Slots that are copied together. Small under test, as pages are.
const BLOCK_SLOTS: usize = if cfg!(test) { 2 } else { 32 };

/// Blocks of the largest page.
const BLOCKS: usize = 16;

/// A page's memory.
#[derive(Clone, Debug)]
pub(super) enum Slots<T> {
    Owned(Vec<Slot<T>>),
    /// Possibly shared with another slab, so never changed.
    Shared(Arc<Vec<Slot<T>>>),
    /// Possibly shared with another slab, except for some blocks.
    Patched(Box<Patched<T>>),
}

/// A shared page with copies of the blocks that were changed since.
#[derive(Clone, Debug)]
pub(super) struct Patched<T> {
    /// Not changed while another slab shares it.
    base: Arc<Vec<Slot<T>>>,
    /// Blocks that replace the base's.
    blocks: [Option<Box<[Slot<T>]>>; BLOCKS],
}

impl<T: Clone> Slots<T> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Owned(slots) => slots.len(),
            Self::Shared(slots) => slots.len(),
            Self::Patched(patched) => patched.base.len(),
        }
    }

    #[inline]
    pub(super) fn get(&self, slot: usize) -> Option<&Slot<T>> {
        match self {
            Self::Owned(slots) => slots.get(slot),
            Self::Shared(slots) => slots.get(slot),
            Self::Patched(patched) => patched.get(slot),
        }
    }

    /// All slots in order, in as few slices as possible: walking over a slice costs half of walking
    /// over single slots.
    pub(super) fn stretches(&self) -> impl Iterator<Item = &[Slot<T>]> {
        (0..).map_while(|number| match self {
            Self::Owned(slots) => (number == 0).then_some(slots.as_slice()),
            Self::Shared(slots) => (number == 0).then_some(slots.as_slice()),
            Self::Patched(patched) => patched.block(number),
        })
    }

    /// All slots in one piece. Copies a patched page.
    pub(super) fn whole(&self) -> Cow<'_, [Slot<T>]> {
        match self {
            Self::Owned(slots) => Cow::Borrowed(slots),
            Self::Shared(slots) => Cow::Borrowed(slots),
            Self::Patched(_) => self.stretches().flatten().cloned().collect(),
        }
    }

    /// Whether [`get_mut`](Self::get_mut) must be preceded by [`patch`](Self::patch).
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Prepares a shared page for changes of single slots, and returns whether it must be
    /// [mended](Self::mend) later: false if it is not shared any more.
    #[cold]
    #[inline(never)]
    pub(super) fn patch(&mut self) -> bool {
        let Self::Shared(base) = mem::replace(self, Self::Owned(Vec::new())) else {
            unreachable!("asked for shared pages only");
        };
        match Arc::try_unwrap(base) {
            Ok(slots) => {
                *self = Self::Owned(slots);
                false
            }
            Err(base) => {
                let blocks = array::from_fn(|_| None);
                *self = Self::Patched(Box::new(Patched { base, blocks }));
                true
            }
        }
    }

    /// A slot, to change it. If the page is patched, copies the slot's block first.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Slot<T>> {
        match self {
            Self::Owned(slots) => slots.get_mut(slot),
            Self::Patched(patched) => patched.get_mut(slot),
            Self::Shared(_) => unreachable!("a shared page is patched before it changes"),
        }
    }

    /// All slots in one piece, to change them. Copies the page if it may be shared.
    pub(super) fn own(&mut self) -> &mut Vec<Slot<T>> {
        if !matches!(self, Self::Owned(_)) {
            self.take_back();
        }
        match self {
            Self::Owned(slots) => slots,
            Self::Shared(_) | Self::Patched(_) => unreachable!("it was taken back"),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_back(&mut self) {
        let (base, blocks) = match mem::replace(self, Self::Owned(Vec::new())) {
            Self::Owned(slots) => (Arc::new(slots), None),
            Self::Shared(base) => (base, None),
            Self::Patched(patched) => (patched.base, Some(patched.blocks)),
        };
        let mut slots = Arc::try_unwrap(base).unwrap_or_else(|base| {
            // With the same capacity, so that a page that is being filled need not grow again.
            let mut copy = Vec::with_capacity(base.capacity());
            copy.extend_from_slice(&base);
            copy
        });
        for (old, new) in slots
            .chunks_mut(BLOCK_SLOTS)
            .zip(blocks.into_iter().flatten())
        {
            for (old, new) in old.iter_mut().zip(new.into_iter().flatten()) {
                *old = new;
            }
        }
        *self = Self::Owned(slots);
    }

    /// Puts a patched page together if its base is not shared any more. Returns whether no work is
    /// left for it.
    pub(super) fn mend(&mut self) -> bool {
        if let Self::Patched(patched) = self {
            if Arc::strong_count(&patched.base) > 1 {
                return false;
            }
            self.take_back();
        }
        true
    }

    /// Makes the page shareable.
    pub(super) fn share(&mut self) {
        if self.len() > 0 && !self.is_shared() {
            *self = Self::Shared(Arc::new(mem::take(self.own())));
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        let shared = |slots: &Vec<Slot<T>>| {
            // Plus two counters.
            slots.capacity() * size_of::<Slot<T>>() + size_of::<Vec<T>>() + 16
        };
        match self {
            Self::Owned(slots) => slots.capacity() * size_of::<Slot<T>>(),
            Self::Shared(slots) => shared(slots),
            Self::Patched(patched) => {
                let blocks = patched.blocks.iter().flatten();
                let copied: usize = blocks.map(|block| block.len()).sum();
                shared(&patched.base) + size_of::<Patched<T>>() + copied * size_of::<Slot<T>>()
            }
        }
    }
}

impl<T: Clone> Patched<T> {
    #[cold]
    #[inline(never)]
    fn get(&self, slot: usize) -> Option<&Slot<T>> {
        match self.blocks.get(slot / BLOCK_SLOTS)? {
            Some(block) => block.get(slot % BLOCK_SLOTS),
            None => self.base.get(slot),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_mut(&mut self, slot: usize) -> Option<&mut Slot<T>> {
        let number = slot / BLOCK_SLOTS;
        let base = &self.base;
        self.blocks
            .get_mut(number)?
            .get_or_insert_with(|| {
                let blocks = &mut base.chunks(BLOCK_SLOTS);
                blocks.nth(number).unwrap_or_default().into()
            })
            .get_mut(slot % BLOCK_SLOTS)
    }

    /// A block, changed or not.
    fn block(&self, number: usize) -> Option<&[Slot<T>]> {
        match self.blocks.get(number)? {
            Some(block) => Some(block),
            None => self.base.chunks(BLOCK_SLOTS).nth(number),
        }
    }
}
