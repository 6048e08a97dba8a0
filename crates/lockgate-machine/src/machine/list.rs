//! Doubly linked lists through slabs: no allocation per element, and removal from anywhere in O(1).

use crate::slab::{NONE, Slab};

/// A list's first and last element, or [`NONE`] twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    pub(super) first: u32,
    pub(super) last: u32,
}

/// An element's neighbours in one list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) before: u32,
    pub(super) after: u32,
}

/// The field of type `T` with an element's neighbours in the lists of one kind.
pub(super) type LinksOf<T> = fn(&mut T) -> &mut Links;

impl Links {
    pub(super) const NONE: Self = Self {
        before: NONE,
        after: NONE,
    };
}

impl Default for List {
    fn default() -> Self {
        Self {
            first: NONE,
            last: NONE,
        }
    }
}

impl List {
    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Appends the element. It must be in no list of this kind.
    pub(super) fn push_back<T: Clone, const PAGE: u32>(
        &mut self,
        slab: &mut Slab<T, PAGE>,
        element: u32,
        links: LinksOf<T>,
    ) {
        *links(&mut slab[element]) = Links {
            before: self.last,
            after: NONE,
        };
        if self.last == NONE {
            self.first = element;
        } else {
            links(&mut slab[self.last]).after = element;
        }
        self.last = element;
    }

    /// Removes the element. It must be in this list.
    pub(super) fn remove<T: Clone, const PAGE: u32>(
        &mut self,
        slab: &mut Slab<T, PAGE>,
        element: u32,
        links: LinksOf<T>,
    ) {
        let Links { before, after } = std::mem::replace(links(&mut slab[element]), Links::NONE);
        if before == NONE {
            self.first = after;
        } else {
            links(&mut slab[before]).after = after;
        }
        if after == NONE {
            self.last = before;
        } else {
            links(&mut slab[after]).before = before;
        }
    }
}
