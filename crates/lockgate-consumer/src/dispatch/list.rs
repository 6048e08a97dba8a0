//! Queues of slab entries that are linked through the entries: no allocation of their own.

use slab::Slab;

/// An entry that can stand in one [`List`] at a time.
pub(super) trait Linked {
    fn link(&self) -> Link;
    fn link_mut(&mut self) -> &mut Link;
}

/// The entry behind this one, if there is one.
pub(super) type Link = Option<u32>;

/// First in, first out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    ends: Option<(u32, u32)>,
    len: usize,
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<u32> {
        self.ends.map(|(first, _)| first)
    }

    /// The entries, in order.
    pub(super) fn iter<T: Linked>(self, slab: &Slab<T>) -> impl Iterator<Item = u32> {
        let mut next = self.first();
        let mut left = self.len;
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let entry = next?;
            next = slab[entry as usize].link();
            Some(entry)
        })
    }

    pub(super) fn push_back<T: Linked>(&mut self, slab: &mut Slab<T>, entry: u32) {
        *slab[entry as usize].link_mut() = None;
        self.ends = match self.ends {
            None => Some((entry, entry)),
            Some((first, last)) => {
                *slab[last as usize].link_mut() = Some(entry);
                Some((first, entry))
            }
        };
        self.len += 1;
    }

    pub(super) fn push_front<T: Linked>(&mut self, slab: &mut Slab<T>, entry: u32) {
        *slab[entry as usize].link_mut() = self.first();
        let last = self.ends.map_or(entry, |(_, last)| last);
        self.ends = Some((entry, last));
        self.len += 1;
    }

    pub(super) fn pop_front<T: Linked>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        let (first, last) = self.ends?;
        self.ends = slab[first as usize]
            .link_mut()
            .take()
            .map(|next| (next, last));
        self.len -= 1;
        Some(first)
    }
}

/// The place of an entry in a slab as the links have it. Slabs here stay far below 2^32 entries: what
/// is held is bounded by [`DispatchOptions::HELD_MAX`](super::DispatchOptions::HELD_MAX) and an answer.
pub(super) fn place(key: usize) -> u32 {
    u32::try_from(key).expect("a slab of a dispatcher has less than 2^32 entries")
}
