//! A hash map that does not stop everybody to grow.
//!
//! A hash map grows by moving all its entries at once, while the whole shard waits: 40 ms at 100,000 bindings on a busy
//! computer, 180 ms at 400,000. This one begins as one map, and becomes many before that is long; each of them grows by itself.

use std::{
    hash::{BuildHasher as _, Hash},
    mem,
};

use hashbrown::{Equivalent, HashMap};

use super::index::Seeded;

/// With so many entries, one map becomes many.
const ENTRIES_OF_ONE: usize = if cfg!(test) { 8 } else { 4_096 };

/// How many maps there are then. At a million entries each has 16,000.
const MAPS: usize = 64;

#[derive(Debug)]
pub(crate) struct Spread<K, V> {
    hasher: Seeded,
    /// One map, or [`MAPS`] of them.
    maps: Vec<HashMap<K, V, Seeded>>,
}

impl<K: Hash + Eq, V> Spread<K, V> {
    pub(crate) fn new(hasher: Seeded) -> Self {
        Self {
            hasher,
            maps: vec![HashMap::with_hasher(hasher)],
        }
    }

    /// Which of the maps has the key.
    fn map_of<Q: Hash + ?Sized>(&self, key: &Q) -> usize {
        match self.maps.len() {
            1 => 0,
            // A map takes the lowest bits of the hash for the place of an entry, and the highest seven to tell entries apart.
            maps => (self.hasher.hash_one(key) >> 40) as usize % maps,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.maps.iter().all(HashMap::is_empty)
    }

    pub(crate) fn get<Q: Hash + Equivalent<K> + ?Sized>(&self, key: &Q) -> Option<&V> {
        self.maps[self.map_of(key)].get(key)
    }

    pub(crate) fn get_mut<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) -> Option<&mut V> {
        let map = self.map_of(key);
        self.maps[map].get_mut(key)
    }

    /// The value of the key; a new one if it has none.
    pub(crate) fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        if self.maps.len() == 1 && self.maps[0].len() >= ENTRIES_OF_ONE {
            self.divide();
        }
        let map = self.map_of(&key);
        self.maps[map].entry(key).or_default()
    }

    pub(crate) fn remove<Q: Hash + Equivalent<K> + ?Sized>(&mut self, key: &Q) {
        let map = self.map_of(key);
        self.maps[map].remove(key);
    }

    fn divide(&mut self) {
        let maps = (0..MAPS).map(|_| HashMap::with_hasher(self.hasher));
        let before = mem::replace(&mut self.maps, maps.collect());
        for (key, value) in before.into_iter().flatten() {
            let map = self.map_of(&key);
            self.maps[map].insert(key, value);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.maps.iter().map(HashMap::len).sum()
    }
}
