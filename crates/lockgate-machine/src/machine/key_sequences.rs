//! Counts the messages of each key that a queue has accepted.
//!
//! A message's *key sequence* is its number among those of its key: 1, 2, 3, with no gap. A consumer that
//! receives all messages of a key sees from it when one is missing. The count must outlive the messages, and
//! the number of keys is unlimited, so the queue's settings say how many keys are counted. Beyond that, the
//! key whose last message is the oldest is forgotten first, and begins at 1 again.
//!
//! A key takes 32 bytes and its share of a [`Table`]: less than 64 in all, however long it is. As
//! with unique ids, a digest identifies it.

use std::num::NonZeroU64;

use sha2::{Digest, Sha256};

use super::list::{Links, List};
use crate::{
    columns::{Columns, ImageError, Input, Row, column, damaged},
    dedup::{first_half, hash_halves, split},
    slab::{NONE, Slab},
    table::{HashSeed, Table},
};

/// The counts of one queue.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySequences {
    seed: HashSeed,
    counts: Slab<Count>,
    by_key: Table,
    /// The keys in the order of their last messages.
    order: List,
}

/// The count of one key.
#[derive(Clone, Debug)]
pub(super) struct Count {
    /// The key's digest, in halves, because a `u128` would be aligned to 16 bytes.
    key: [u64; 2],
    /// Its last message's number.
    last: NonZeroU64,
    /// Neighbours in the order of last messages.
    links: Links,
}

const _: () = assert!(size_of::<Option<Count>>() == 32);

/// The digest that stands for a key: the first 128 bits of its SHA-256. Finding two keys with one
/// digest takes about 2^64 attempts.
pub(super) fn digest(key: &str) -> u128 {
    first_half(Sha256::new_with_prefix(key))
}

impl KeySequences {
    /// No counts, for a table with the shard's seed.
    pub(super) fn new(seed: HashSeed) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// The number of the key's last message; 0 if the key is not counted.
    pub(super) fn last(&self, key: u128) -> u64 {
        self.find(split(key))
            .map_or(0, |index| self.counts[index].last.get())
    }

    /// Sets the number of the key's last message. Forgets at most two of more than `max` keys, so
    /// that a lower limit takes effect in small steps.
    pub(super) fn set(&mut self, key: u128, number: NonZeroU64, max: u32) {
        let key = split(key);
        let index = match self.find(key) {
            Some(index) => {
                self.order.remove(&mut self.counts, index, Count::links);
                self.counts[index].last = number;
                index
            }
            None => self.add(key, number),
        };
        self.order.push_back(&mut self.counts, index, Count::links);
        for _ in 0..2 {
            if self.counts.len() > max as usize {
                self.forget_oldest();
            }
        }
    }

    /// How many keys are remembered.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Digests and last numbers in the order of the last messages.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, u64)> {
        let at = |index| (index != NONE).then_some(index);
        std::iter::successors(at(self.order.first), move |&index| {
            at(self.counts[index].links.after)
        })
        .map(|index| {
            let count = &self.counts[index];
            let [low, high] = count.key.map(u128::from);
            (high << 64 | low, count.last.get())
        })
    }

    /// Heap memory held, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.counts.bytes() + self.by_key.bytes()
    }

    fn find(&self, key: [u64; 2]) -> Option<u32> {
        self.by_key.find(hash_halves(self.seed, key), |index| {
            self.counts[index].key == key
        })
    }

    fn add(&mut self, key: [u64; 2], last: NonZeroU64) -> u32 {
        let index = self.counts.insert(Count {
            key,
            last,
            links: Links::NONE,
        });
        let (seed, counts) = (self.seed, &self.counts);
        self.by_key.insert(hash_halves(seed, key), index, |index| {
            hash_halves(seed, counts[index].key)
        });
        index
    }

    fn forget_oldest(&mut self) {
        let oldest = self.order.first;
        self.order.remove(&mut self.counts, oldest, Count::links);
        let count = self.counts.remove(oldest);
        let (seed, counts) = (self.seed, &self.counts);
        self.by_key
            .remove(hash_halves(seed, count.key), |index| index == oldest);
        self.by_key
            .shrink(|index| hash_halves(seed, counts[index].key));
    }
}

/// Parts of an image.
impl KeySequences {
    /// A copy of the same counts that shares their pages, to be read while these change. It has no table.
    pub(super) fn share(&mut self) -> Self {
        Self {
            seed: self.seed,
            counts: self.counts.share(),
            by_key: Table::default(),
            order: self.order,
        }
    }

    /// The pages with the counts.
    pub(super) fn pages(&mut self) -> &mut Slab<Count> {
        &mut self.counts
    }

    /// Appends everything besides the pages.
    pub(super) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.order.first.to_le_bytes());
        out.extend_from_slice(&self.order.last.to_le_bytes());
        self.counts.encode_outline(out);
    }

    /// Counts whose pages are still to be added.
    pub(super) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        Ok(Self {
            order: List {
                first: input.u32()?,
                last: input.u32()?,
            },
            counts: Slab::decode_outline(input)?,
            ..Self::default()
        })
    }

    /// Builds the table with the shard's seed, and checks that the order can be walked.
    pub(super) fn rebuild(&mut self, seed: HashSeed) -> Result<(), ImageError> {
        self.counts.check_complete()?;
        self.seed = seed;
        let fits = |(index, count): (u32, &Count)| {
            let Links { before, after } = count.links;
            let is_before = |other: &Count| other.links.after == index;
            let is_after = |other: &Count| other.links.before == index;
            let first = before == NONE && self.order.first == index;
            let last = after == NONE && self.order.last == index;
            (first || self.counts.get(before).is_some_and(is_before))
                && (last || self.counts.get(after).is_some_and(is_after))
        };
        // Every count's neighbours agree, so the counts form one list, and possibly closed rings besides it.
        let fits = self.counts.iter().all(fits)
            && (self.order.first == NONE) == self.counts.is_empty()
            && self.iter().take(self.counts.len() + 1).count() == self.counts.len();
        if !fits {
            return Err(damaged("the order of the key sequences cannot be walked"));
        }
        let keys = self.counts.iter();
        let keys = keys.map(|(index, count)| (hash_halves(seed, count.key), index));
        self.by_key = Table::of(self.counts.len(), keys);
        Ok(())
    }
}

impl Count {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Row for Count {
    fn blank() -> Self {
        Self {
            key: [0; 2],
            last: NonZeroU64::MIN,
            links: Links::NONE,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        for half in 0..2 {
            columns.number(
                u64::MAX,
                |count| count.key[half],
                |count, bits| count.key[half] = bits,
            )?;
        }
        columns.number(
            u64::MAX,
            |count| count.last.get() - 1,
            |count, before| count.last = NonZeroU64::MIN.saturating_add(before),
        )?;
        column!(columns, neighbour links.before)?;
        column!(columns, neighbour links.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).unwrap()
    }

    #[test]
    fn a_digest_is_the_first_half_of_the_sha_256() {
        // From another implementation.
        let digest = digest("user-42").to_le_bytes();
        assert_eq!(digest[..4], [0x6d, 0x89, 0x4a, 0xa3]);
    }

    #[test]
    fn a_key_takes_less_than_sixty_four_bytes_at_the_worst_moment() {
        let mut sequences = KeySequences::new(HashSeed::from_secret(&[7; 32]));
        assert_eq!(sequences.bytes(), 0);
        let mut worst = 0.0_f64;
        for key in 0..200_000_u64 {
            sequences.set(u128::from(key) << 60, number(1), u32::MAX);
            if key > 50_000 && key % 128 == 0 {
                worst = worst.max(sequences.bytes() as f64 / sequences.len() as f64);
            }
        }
        assert!(worst < 64.0, "{worst}");
        let full = sequences.bytes();
        for _ in 0..100_000 {
            sequences.set(0, number(2), 1);
        }
        assert_eq!(sequences.iter().collect::<Vec<_>>(), [(0, 2)]);
        assert!(sequences.bytes() < full / 20, "{} kept", sequences.bytes());
    }

    #[test]
    fn an_order_that_cannot_be_walked_is_refused() {
        let sequences = || {
            let mut sequences = KeySequences::default();
            for key in 0..40 {
                sequences.set(key, number(1), 100);
            }
            sequences
        };
        let rebuilds = |change: fn(&mut KeySequences)| {
            let mut sequences = sequences();
            change(&mut sequences);
            sequences.rebuild(HashSeed::default()).is_ok()
        };
        assert!(rebuilds(|_| {}));
        assert!(!rebuilds(|sequences| sequences.order = List::default()));
        assert!(!rebuilds(|sequences| sequences.order.first = 1));
        assert!(!rebuilds(|sequences| sequences.order.last = 99));
        assert!(!rebuilds(|sequences| sequences.counts[7].links.after = 9));
        // Two counts in a closed ring, all others in order.
        assert!(!rebuilds(|sequences| {
            let counts = &mut sequences.counts;
            (counts[6].links.after, counts[9].links.before) = (9, 6);
            (counts[7].links, counts[8].links) = (
                Links {
                    before: 8,
                    after: 8,
                },
                Links {
                    before: 7,
                    after: 7,
                },
            );
        }));
    }
}
