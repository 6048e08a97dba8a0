//! What is to be looked at when, with few places for what is over.

use std::collections::BTreeMap;

use lockgate_core::Millis;

/// Names by the time at which they are due. What has ended before its time stays until it is
/// [compacted](Self::compact) or due.
#[derive(Debug)]
pub(super) struct Timers<T> {
    by_time: BTreeMap<Millis, Vec<T>>,
    len: usize,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self {
            by_time: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<T> Timers<T> {
    pub(super) fn add(&mut self, at: Millis, name: T) {
        self.by_time.entry(at).or_default().push(name);
        self.len += 1;
    }

    /// The first time, with all that is due then, if it has come.
    pub(super) fn take_first(&mut self, now: Millis) -> Option<(Millis, Vec<T>)> {
        let entry = self.by_time.first_entry()?;
        if *entry.key() > now {
            return None;
        }
        let (at, names) = entry.remove_entry();
        self.len -= names.len();
        Some((at, names))
    }

    pub(super) fn next(&self) -> Option<Millis> {
        self.by_time.first_key_value().map(|(&at, _)| at)
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
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.len
    }
}
