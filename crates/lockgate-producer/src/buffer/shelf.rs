//! How much of something is held, and what would be dropped of it first.

use std::collections::BTreeMap;

/// Records in memory, all or those of one tenant.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    count: usize,
    bytes: u64,
    /// The records that wait, those first that are dropped first. Kept only where some may be dropped.
    order: Option<BTreeMap<(u8, u64), usize>>,
    by_priority: bool,
}

impl Shelf {
    pub(super) fn new(is_ordered: bool, by_priority: bool) -> Self {
        Self {
            count: 0,
            bytes: 0,
            order: is_ordered.then(BTreeMap::new),
            by_priority,
        }
    }

    pub(super) fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    pub(super) fn by_priority(&self) -> bool {
        self.by_priority
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether one more fits. One that is larger than all that may be held fits alone.
    pub(super) fn has_room(&self, (count, bytes): (usize, u64), size: u64) -> bool {
        self.count < count && (self.count == 0 || self.bytes.saturating_add(size) <= bytes)
    }

    /// How many records and bytes have room.
    pub(super) fn room(&self, (count, bytes): (usize, u64)) -> (usize, u64) {
        (
            count.saturating_sub(self.count),
            bytes.saturating_sub(self.bytes),
        )
    }

    pub(super) fn add(&mut self, size: u64) {
        self.count += 1;
        self.bytes += size;
    }

    pub(super) fn remove(&mut self, size: u64) {
        self.count -= 1;
        self.bytes -= size;
    }

    pub(super) fn order(&mut self, priority: u8, seq: u64, place: usize) {
        let at = self.at(priority, seq);
        if let Some(order) = &mut self.order {
            order.insert(at, place);
        }
    }

    pub(super) fn unorder(&mut self, priority: u8, seq: u64) {
        let at = self.at(priority, seq);
        if let Some(order) = &mut self.order {
            order.remove(&at);
        }
    }

    fn at(&self, priority: u8, seq: u64) -> (u8, u64) {
        (if self.by_priority { priority } else { 0 }, seq)
    }

    /// What is dropped first: its priority and place.
    pub(super) fn first(&self) -> Option<(u8, usize)> {
        let (&(priority, _), &place) = self.order.as_ref()?.first_key_value()?;
        Some((priority, place))
    }
}
