//! What is to be looked at when, with few places for what is over.

use std::collections::BTreeMap;

use lockgate_core::Millis;

/// Names by the time at which they are due. What has ended before its time stays until it is
/// [compacted](Self::compact) or due.
#[derive(Debug)]
pub(super) struct Timers<T> {
    by_time: BTreeMap<Millis, Vec<T>>,
    /// The first time in the map, [`Millis::MAX`] without one: looked at with each poll.
    first: Millis,
    len: usize,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeMap::new(),
            first: Millis::MAX,
            len: 0,
        }
    }
}

impl<T> Timers<T> {
    pub(super) fn add(&mut self, at: Millis, name: T) {
        self.len += 1;
        self.first = self.first.min(at);
        // Mostly the latest time there is, or a later one.
        match self.by_time.last_entry().filter(|last| *last.key() == at) {
            Some(mut last) => last.get_mut().push(name),
            None => self.by_time.entry(at).or_default().push(name),
        }
    }

    /// The first time, with all that is due then, if it has come.
    pub(super) fn take_first(&mut self, now: Millis) -> Option<(Millis, Vec<T>)> {
        if self.first > now {
            return None;
        }
        let (at, names) = self.by_time.pop_first()?;
        self.len -= names.len();
        self.find_first();
        Some((at, names))
    }

    pub(super) fn next(&self) -> Option<Millis> {
        (!self.by_time.is_empty()).then_some(self.first)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn find_first(&mut self) {
        let first = self.by_time.first_key_value();
        self.first = first.map_or(Millis::MAX, |(&at, _)| at);
    }

    /// Forgets what is over when it is more than what is not, `current` of which there are at most.
    /// Amortised, a name costs O(1).
    pub(super) fn compact(&mut self, current: usize, is_current: impl Fn(Millis, &T) -> bool) {
        if self.len <= 2 * current + 64 {
            return;
        }
        self.by_time.retain(|&at, names| {
            names.retain(|name| is_current(at, name));
            !names.is_empty()
        });
        self.len = self.by_time.values().map(Vec::len).sum();
        self.find_first();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }
}
