//! The bindings of one exchange, by what their patterns match.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use hashbrown::Equivalent;
use lockgate_core::{Header, RoutingKey};

use super::{
    ExchangeKind, Published, Steps, TooManySteps,
    pattern::{HeaderPair, HeadersMatch, Pattern},
    spread::Spread,
    topics::Topics,
};
use crate::table::{HashSeed, hash_bytes, mix};

/// The rows of bindings that one entry of an index leads to. Most have one.
#[derive(Clone, Debug, Default)]
pub(crate) enum Rows {
    #[default]
    None,
    One(u32),
    Many(BTreeSet<u32>),
}

impl Rows {
    pub(super) fn insert(&mut self, row: u32) {
        match self {
            Self::None => *self = Self::One(row),
            Self::One(other) => *self = Self::Many(BTreeSet::from([*other, row])),
            Self::Many(rows) => {
                rows.insert(row);
            }
        }
    }

    pub(super) fn remove(&mut self, row: u32) {
        match self {
            Self::One(other) if *other == row => *self = Self::None,
            Self::None | Self::One(_) => {}
            Self::Many(rows) => {
                rows.remove(&row);
                if rows.is_empty() {
                    *self = Self::None;
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(rows) => rows.len(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(row) => (Some(*row), None),
            Self::Many(rows) => (None, Some(rows)),
        };
        one.into_iter().chain(many.into_iter().flatten().copied())
    }
}

/// Hashes for texts from users, under the shard's seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded(pub(super) HashSeed);

pub(crate) struct SeededHasher {
    seed: HashSeed,
    state: u64,
}

impl BuildHasher for Seeded {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher {
            seed: self.0,
            state: 0,
        }
    }
}

impl Hasher for SeededHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.state = mix(self.state ^ hash_bytes(self.seed, bytes));
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

/// Finds the bindings of an exchange whose pattern matches a message. Bindings are named by their rows.
#[derive(Debug)]
pub(crate) enum Index {
    Direct(Spread<RoutingKey, Rows>),
    Topic(Topics),
    Fanout(BTreeSet<u32>),
    Headers(HeadersIndex),
}

impl Index {
    pub(crate) fn new(kind: ExchangeKind, seed: HashSeed) -> Self {
        match kind {
            ExchangeKind::Direct => Self::Direct(Spread::new(Seeded(seed))),
            ExchangeKind::Topic => Self::Topic(Topics::new(seed)),
            ExchangeKind::Fanout => Self::Fanout(BTreeSet::new()),
            ExchangeKind::Headers => Self::Headers(HeadersIndex {
                by_pair: Spread::new(Seeded(seed)),
                all: BTreeMap::new(),
            }),
        }
    }

    /// Adds a binding. One with a pattern of another kind is never found.
    pub(crate) fn insert(&mut self, pattern: &Pattern, row: u32) {
        match (self, pattern) {
            (Self::Direct(by_key), Pattern::RoutingKey(key)) => {
                by_key.or_default(key.clone()).insert(row);
            }
            (Self::Topic(topics), Pattern::Topic(pattern)) => topics.insert(pattern, row),
            (Self::Fanout(all), Pattern::Everything) => {
                all.insert(row);
            }
            (Self::Headers(index), Pattern::Headers(wanted)) => index.insert(wanted, row),
            _ => {}
        }
    }

    /// Removes a binding that was added with that pattern.
    pub(crate) fn remove(&mut self, pattern: &Pattern, row: u32) {
        match (self, pattern) {
            (Self::Direct(by_key), Pattern::RoutingKey(key)) => {
                if let Some(rows) = by_key.get_mut(key) {
                    rows.remove(row);
                    if rows.len() == 0 {
                        by_key.remove(key);
                    }
                }
            }
            (Self::Topic(topics), Pattern::Topic(pattern)) => topics.remove(pattern, row),
            (Self::Fanout(all), Pattern::Everything) => {
                all.remove(&row);
            }
            (Self::Headers(index), Pattern::Headers(wanted)) => index.remove(wanted, row),
            _ => {}
        }
    }

    /// Adds the bindings whose pattern matches the message, each once, in no order.
    pub(crate) fn find(
        &self,
        message: &Published<'_>,
        steps: &mut Steps,
        found: &mut Vec<u32>,
    ) -> Result<(), TooManySteps> {
        match self {
            Self::Direct(by_key) => {
                let rows = by_key.get(message.routing_key);
                steps.spend(1 + rows.map_or(0, Rows::len))?;
                found.extend(rows.into_iter().flat_map(Rows::iter));
                Ok(())
            }
            Self::Topic(topics) => topics.find(message.routing_key.words(), steps, found),
            Self::Fanout(all) => {
                steps.spend(1 + all.len())?;
                found.extend(all);
                Ok(())
            }
            Self::Headers(index) => index.find(message.headers, steps, found),
        }
    }
}

#[cfg(test)]
impl Index {
    /// How much it keeps.
    pub(super) fn entries(&self) -> usize {
        match self {
            Self::Direct(by_key) => by_key.len(),
            Self::Topic(topics) => topics.entries(),
            Self::Fanout(all) => all.len(),
            Self::Headers(index) => index.by_pair.len() + index.all.len(),
        }
    }
}

/// A match of any header is found by each of its headers. A match of all is found by one of them, and then checked: the one
/// that leads to the fewest others, so that a header which many have in common costs nothing.
#[derive(Debug)]
pub(crate) struct HeadersIndex {
    by_pair: Spread<HeaderPair, Rows>,
    /// The matches of all, each with the place of the header it is found by.
    all: BTreeMap<u32, (Arc<HeadersMatch>, usize)>,
}

/// A header of a message. Its hash is that of a [`HeaderPair`].
struct PairRef<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl Hash for PairRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.value.hash(state);
    }
}

impl Equivalent<HeaderPair> for PairRef<'_> {
    fn equivalent(&self, pair: &HeaderPair) -> bool {
        self.name == &*pair.name && self.value == pair.value.as_deref()
    }
}

impl HeadersIndex {
    fn insert(&mut self, wanted: &Arc<HeadersMatch>, row: u32) {
        if wanted.is_any() {
            for pair in wanted.pairs() {
                self.by_pair.or_default(pair.clone()).insert(row);
            }
            return;
        }
        let of = |pair: &HeaderPair| self.by_pair.get(pair).map_or(0, Rows::len);
        let pairs = wanted.pairs().iter().enumerate();
        let Some((at, pair)) = pairs.min_by_key(|(_, pair)| of(pair)) else {
            return;
        };
        self.by_pair.or_default(pair.clone()).insert(row);
        self.all.insert(row, (wanted.clone(), at));
    }

    fn remove(&mut self, wanted: &HeadersMatch, row: u32) {
        let found_by = match wanted.is_any() {
            true => wanted.pairs(),
            false => {
                let at = self.all.remove(&row).map(|(_, at)| at);
                at.map_or(&[][..], |at| &wanted.pairs()[at..=at])
            }
        };
        for pair in found_by {
            if let Some(rows) = self.by_pair.get_mut(pair) {
                rows.remove(row);
                if rows.len() == 0 {
                    self.by_pair.remove(pair);
                }
            }
        }
    }

    fn find(
        &self,
        headers: &[Header],
        steps: &mut Steps,
        found: &mut Vec<u32>,
    ) -> Result<(), TooManySteps> {
        if self.by_pair.is_empty() {
            return Ok(());
        }
        let begin = found.len();
        for header in headers {
            let name = &*header.name;
            // A value that is no text, or longer than any that is wanted, is that of no binding.
            let value = Some(&header.value)
                .filter(|value| value.len() <= HeadersMatch::VALUE_BYTES_MAX)
                .and_then(|value| str::from_utf8(value).ok());
            for value in [None, value]
                .into_iter()
                .take(1 + usize::from(value.is_some()))
            {
                let rows = self.by_pair.get(&PairRef { name, value });
                let rows = rows.map(|rows| (rows.len(), rows.iter()));
                let Some((len, rows)) = rows else {
                    steps.spend(1)?;
                    continue;
                };
                steps.spend(1 + len)?;
                for row in rows {
                    if let Some((wanted, _)) = self.all.get(&row) {
                        steps.spend(wanted.pairs().len() * headers.len())?;
                        if !wanted.matches(headers) {
                            continue;
                        }
                    }
                    found.push(row);
                }
            }
        }
        // A match of any is found by each header that it has, and one of all by each repetition of its header.
        found[begin..].sort_unstable();
        let mut kept = begin;
        for at in begin..found.len() {
            if kept == begin || found[kept - 1] != found[at] {
                found[kept] = found[at];
                kept += 1;
            }
        }
        found.truncate(kept);
        Ok(())
    }
}
