//! Hash indexes over slabs, and the hashes for them.
//!
//! A [`Table`] holds `u32` slab indexes. The caller computes their hashes and compares them, so an
//! entry costs 5.3 bytes and its share of free room.

/// The parts of a large table. When it grows, one part at a time is rehashed.
const SHARDS: usize = 256;

/// A table with more entries is split into parts; below, a single part is smaller and fast enough.
const SPLIT_ABOVE: usize = if cfg!(test) { 64 } else { 2048 };

/// Entries in a bucket.
const SLOTS: usize = 12;

/// A hash index of `u32` values.
///
/// A single hash table of ten million entries would stop all callers for the second in which it
/// doubles. This one is split into 256 parts that grow one by one (as extendible hashing does;
/// Fagin et al. 1979, with a fixed directory), so an insert moves at most 1/256 of the entries.
/// Just after all parts have grown, an entry takes 11.9 bytes.
///
/// With a large backlog the cost of a lookup is its waits for memory. So the tags and values of a
/// part's entries are together in buckets of one cache line: nearly every lookup waits once, and
/// [`prefetch`](Self::prefetch) lets many lookups wait at the same time.
///
/// Nothing iterates over a table, so the order of hashes cannot affect the machine's behaviour.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// No part, one, or `SHARDS`.
    shards: Vec<Shard>,
    len: usize,
    /// The part that [`shrink`](Self::shrink) checks next.
    next_to_shrink: usize,
}

/// A part of a table: buckets, whose number is a power of two. An entry is in the bucket that its
/// hash selects or, if that is full, in the first later one with room.
#[derive(Clone, Debug)]
struct Shard {
    buckets: Box<[Bucket]>,
    len: usize,
}

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// A part of each entry's hash; 0: the slot is free.
    tags: [u8; SLOTS],
    /// Entries that found this bucket full and are in a later one: a search ends at a bucket
    /// without any (as in Folly's F14; Bronson and Shi 2019).
    passed: u32,
    values: [u32; SLOTS],
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Table {
    /// A table of these values, about `len` of them, each with its hash and given once.
    ///
    /// Fills a large table part by part, each while it is in the processor's cache. In the order of
    /// the values, each insert would wait for another part.
    pub(crate) fn of(len: usize, values: impl Iterator<Item = (u64, u32)>) -> Self {
        let mut table = Self::default();
        let parts = if len > SPLIT_ABOVE { SHARDS } else { 1 };
        // Hashes are distributed over the parts nearly evenly.
        let room = len / parts + len / parts / 8;
        let mut sorted: Vec<_> = (0..parts).map(|_| Vec::with_capacity(room)).collect();
        for (hash, value) in values {
            sorted[shard_of(hash, parts)].push((hash, value));
        }
        if sorted.iter().all(Vec::is_empty) {
            return table;
        }
        for part in sorted {
            let mut shard = Shard::with_room_for(part.len());
            for &(hash, value) in &part {
                shard.insert(hash, value);
            }
            table.len += part.len();
            table.shards.push(shard);
        }
        table
    }

    /// Adds a value that is not in the table. `rehash` computes the hash of a value in the table.
    pub(crate) fn insert(&mut self, hash: u64, value: u32, rehash: impl Fn(u32) -> u64) {
        if self.shards.is_empty() {
            self.shards.push(Shard::with_room_for(0));
        } else if self.shards.len() == 1 && self.len >= SPLIT_ABOVE {
            self.split(&rehash);
        }
        let shard = self.shard(hash);
        let shard = &mut self.shards[shard];
        if shard.len >= shard.len_max() {
            shard.resize(shard.buckets.len() * 2, &rehash);
        }
        shard.insert(hash, value);
        self.len += 1;
    }

    /// The value with this hash for which `eq` holds.
    pub(crate) fn find(&self, hash: u64, eq: impl FnMut(u32) -> bool) -> Option<u32> {
        let shard = self.shards.get(self.shard(hash))?;
        let (bucket, slot) = shard.find(hash, eq)?;
        Some(shard.buckets[bucket].values[slot])
    }

    /// Removes the value with this hash for which `eq` holds.
    pub(crate) fn remove(&mut self, hash: u64, eq: impl FnMut(u32) -> bool) -> Option<u32> {
        let number = self.shard(hash);
        let shard = self.shards.get_mut(number)?;
        let (bucket, slot) = shard.find(hash, eq)?;
        self.len -= 1;
        Some(shard.remove(hash, bucket, slot))
    }

    /// Reads the first place that a [`find`](Self::find) of this hash needs, and nothing that
    /// depends on it, so a processor can start the next read while this one waits for memory.
    pub(crate) fn prefetch(&self, hash: u64) -> u32 {
        self.shards
            .get(self.shard(hash))
            .map_or(0, |shard| shard.buckets[shard.home(hash)].passed)
    }

    /// How many values there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Frees memory after many removals: checks one part, and halves it if less than an eighth is
    /// used. Call it now and then; 256 calls check the whole table.
    pub(crate) fn shrink(&mut self, rehash: impl Fn(u32) -> u64) {
        if self.len == 0 {
            self.shards = Vec::new();
            return;
        }
        self.next_to_shrink = (self.next_to_shrink + 1) % self.shards.len();
        let shard = &mut self.shards[self.next_to_shrink];
        if shard.buckets.len() > 1 && shard.len < shard.len_max() / 8 {
            shard.resize(shard.buckets.len() / 2, &rehash);
        }
    }

    /// Heap memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let buckets: usize = self.shards.iter().map(|shard| shard.buckets.len()).sum();
        buckets * size_of::<Bucket>() + self.shards.capacity() * size_of::<Shard>()
    }

    /// The part of a hash. Within a part the lowest bits select the bucket and the highest ones are
    /// the tag; this uses bits in between, so that both stay useful.
    fn shard(&self, hash: u64) -> usize {
        shard_of(hash, self.shards.len())
    }

    fn split(&mut self, rehash: impl Fn(u32) -> u64) {
        let room = self.len / SHARDS;
        let whole = std::mem::take(&mut self.shards);
        self.shards = (0..SHARDS).map(|_| Shard::with_room_for(room)).collect();
        for value in whole.iter().flat_map(Shard::values) {
            let hash = rehash(value);
            let shard = self.shard(hash);
            let shard = &mut self.shards[shard];
            if shard.len >= shard.len_max() {
                shard.resize(shard.buckets.len() * 2, &rehash);
            }
            shard.insert(hash, value);
        }
    }
}

impl Shard {
    fn with_room_for(len: usize) -> Self {
        let mut buckets = 1;
        while len > len_max(buckets) {
            buckets *= 2;
        }
        Self::with_buckets(buckets)
    }

    fn with_buckets(buckets: usize) -> Self {
        Self {
            buckets: vec![Bucket::default(); buckets].into(),
            len: 0,
        }
    }

    /// The part grows when it has more entries.
    fn len_max(&self) -> usize {
        len_max(self.buckets.len())
    }

    /// There must be room.
    fn insert(&mut self, hash: u64, value: u32) {
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(slot) = bucket.tags.iter().position(|&tag| tag == 0) {
                bucket.tags[slot] = tag(hash);
                bucket.values[slot] = value;
                break;
            }
            bucket.passed += 1;
            at = self.after(at);
        }
        self.len += 1;
    }

    fn find(&self, hash: u64, mut eq: impl FnMut(u32) -> bool) -> Option<(usize, usize)> {
        let tag = tag(hash);
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for slot in bucket.candidates(tag) {
                if bucket.tags[slot] == tag && eq(bucket.values[slot]) {
                    return Some((at, slot));
                }
            }
            if bucket.passed == 0 {
                break;
            }
            at = self.after(at);
        }
        None
    }

    /// Removes an entry with that hash, which was found at that place.
    fn remove(&mut self, hash: u64, found: usize, slot: usize) -> u32 {
        let mut at = self.home(hash);
        while at != found {
            self.buckets[at].passed -= 1;
            at = self.after(at);
        }
        self.len -= 1;
        let bucket = &mut self.buckets[found];
        bucket.tags[slot] = 0;
        bucket.values[slot]
    }

    fn resize(&mut self, buckets: usize, rehash: impl Fn(u32) -> u64) {
        let before = std::mem::replace(self, Self::with_buckets(buckets));
        for value in before.values() {
            self.insert(rehash(value), value);
        }
    }

    fn values(&self) -> impl Iterator<Item = u32> {
        self.buckets.iter().flat_map(|bucket| {
            let slots = bucket.tags.iter().zip(&bucket.values);
            slots.filter(|(tag, _)| **tag != 0).map(|(_, value)| *value)
        })
    }

    /// The bucket that the hash selects.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "only the lowest bits are wanted"
    )]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }
}

impl Bucket {
    /// The slots that may have this tag: all that have it, and rarely another one.
    ///
    /// Compares eight tags at once: a zero byte in the exclusive or marks an equal tag, and the
    /// lowest of these is found exactly ("has zero byte", Mycroft 1987).
    fn candidates(&self, tag: u8) -> impl Iterator<Item = usize> {
        const LOW: u128 = u128::from_ne_bytes([1; 16]);
        let mut bytes = [0; 16];
        bytes[..SLOTS].copy_from_slice(&self.tags);
        // The bytes behind the tags never match, because a tag is not 0.
        let differences = u128::from_le_bytes(bytes) ^ (LOW * u128::from(tag));
        let mut zeros = differences.wrapping_sub(LOW) & !differences & (LOW << 7);
        std::iter::from_fn(move || {
            let slot = zeros.trailing_zeros() as usize / 8;
            zeros &= zeros.wrapping_sub(1);
            (slot < SLOTS).then_some(slot)
        })
    }
}

fn shard_of(hash: u64, shards: usize) -> usize {
    if shards == SHARDS {
        usize::from(hash.to_le_bytes()[5])
    } else {
        0
    }
}

/// Nine tenths of the slots: in a fuller part, most entries would be in a later bucket than their own.
fn len_max(buckets: usize) -> usize {
    buckets * SLOTS * 9 / 10
}

/// The part of a hash that a bucket keeps: never 0.
fn tag(hash: u64) -> u8 {
    hash.to_le_bytes()[7].max(1)
}

/// The secret seed under which a shard hashes texts from users.
///
/// Keys and unique ids come from outside. With a known hash function an attacker could choose a
/// million keys with the same slot and so stop the shard; with a secret seed nobody knows which
/// keys collide. The seed comes from the shard's own [`secret`](crate::Machine::secret), so a shard
/// computes the same hashes on every replay, and two shards compute different ones. A table must be
/// used with the seed that it was filled with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HashSeed {
    k0: u64,
    k1: u64,
}

impl HashSeed {
    /// The seed of the shard with this secret: a hash of the secret. The secret itself signs
    /// receipts, and no function of its plain bytes should be observable, not even through timing.
    pub(crate) fn from_secret(secret: &[u8; 32]) -> Self {
        use sha2::Digest;
        let digest = sha2::Sha256::new()
            .chain_update(b"lockgate hash seed")
            .chain_update(secret)
            .finalize();
        Self {
            k0: word(&digest[..8]),
            k1: word(&digest[8..16]),
        }
    }
}

/// The hash of bytes from users: SipHash-1-3 (Aumasson and Bernstein 2012), which was made against
/// such attacks; with one and three rounds, as in Rust's own maps.
pub(crate) fn hash_bytes(seed: HashSeed, bytes: &[u8]) -> u64 {
    let mut state = SipState::new(seed);
    let mut words = bytes.chunks_exact(8);
    for eight in &mut words {
        state.absorb(word(eight));
    }
    // The last word holds the remaining bytes and, in its highest byte, the length.
    let tail = words.remainder();
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    state.absorb(u64::from_le_bytes(last) | ((bytes.len() as u64) << 56));
    state.finish()
}

/// The hash of a number within another (eight sequence numbers of a queue).
///
/// The machine gives such numbers out itself, one after the other, so nobody can choose them and a
/// mixing function is enough: two rounds of the 64-bit finaliser "Mix13" (Stafford 2011, used by
/// SplitMix64: Steele, Lea and Flood 2014).
pub(crate) fn hash_pair(outer: u32, inner: u64) -> u64 {
    mix(mix(u64::from(outer).wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ inner)
}

/// Spreads bits over the whole word; different words stay different.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Eight bytes as a little-endian number.
fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("called with eight bytes"))
}

struct SipState([u64; 4]);

impl SipState {
    fn new(seed: HashSeed) -> Self {
        // "somepseudorandomlygeneratedbytes", the constants of the paper.
        Self([
            seed.k0 ^ 0x736f_6d65_7073_6575,
            seed.k1 ^ 0x646f_7261_6e64_6f6d,
            seed.k0 ^ 0x6c79_6765_6e65_7261,
            seed.k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    fn finish(mut self) -> u64 {
        self.0[2] ^= 0xff;
        for _ in 0..3 {
            self.round();
        }
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }

    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, hash::Hasher};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_made_at_once_is_like_one_that_grew() {
        for len in [0, 1, 64, 65, 5_000] {
            let hash = |value: u32| mix(u64::from(value / 3).wrapping_add(7));
            let mut table = Table::of(len as usize, (0..len).map(|value| (hash(value), value)));
            assert_eq!(table.len(), len as usize);
            assert_eq!(table.bytes() == 0, len == 0);
            // It can still grow and shrink.
            for value in len..2 * len + 1 {
                table.insert(hash(value), value, hash);
            }
            for value in 0..2 * len + 1 {
                let is_it = |other| other == value;
                assert_eq!(table.find(hash(value), is_it), Some(value));
                assert_eq!(table.remove(hash(value), is_it), Some(value));
            }
            assert!(table.is_empty());
        }
    }

    #[test]
    fn sip_hash_agrees_with_the_standard_library() {
        let bytes: Vec<u8> = (0..=255).collect();
        for len in 0..=bytes.len() {
            let mut other = std::hash::DefaultHasher::new();
            other.write(&bytes[..len]);
            assert_eq!(
                hash_bytes(HashSeed::default(), &bytes[..len]),
                other.finish()
            );
        }
    }

    #[test]
    fn sip_hash_uses_both_halves_of_the_seed() {
        let with = |k0, k1| hash_bytes(HashSeed { k0, k1 }, b"key");
        assert_ne!(with(0, 0), with(1, 0));
        assert_ne!(with(0, 0), with(0, 1));
        // Key 00 01 .. 0f and no input, from the function's published vectors for 1-3 rounds.
        let seed = HashSeed {
            k0: 0x0706_0504_0302_0100,
            k1: 0x0f0e_0d0c_0b0a_0908,
        };
        assert_eq!(hash_bytes(seed, b""), 0xabac_0158_050f_c4dc);
    }

    #[test]
    fn neighbouring_numbers_spread_over_parts_slots_and_tags() {
        let mut parts = [0; SHARDS];
        let mut tags = [0; 128];
        let mut low = [0; 1024];
        for queue in 0..16 {
            for sequence in 0..4096 {
                let hash = hash_pair(queue, sequence);
                parts[usize::from(hash.to_le_bytes()[5])] += 1;
                tags[(hash >> 57) as usize] += 1;
                low[(hash & 1023) as usize] += 1;
            }
        }
        let near = |counts: &[i32], mean: i32| {
            // Six standard deviations of a uniform distribution.
            let bound = 6.0 * f64::from(mean).sqrt();
            assert!(counts.iter().all(|&n| f64::from((n - mean).abs()) < bound));
        };
        near(&parts, 256);
        near(&tags, 512);
        near(&low, 64);
    }

    #[test]
    fn memory_stays_below_twelve_bytes_an_entry_at_the_worst_moment() {
        let mut table = Table::default();
        assert_eq!(table.bytes(), 0);
        let hash = |value: u32| hash_pair(1, u64::from(value));
        let mut worst = 0.0_f64;
        for value in 0..400_000 {
            table.insert(hash(value), value, hash);
            if value > 50_000 && value % 256 == 0 {
                worst = worst.max(table.bytes() as f64 / table.len() as f64);
            }
        }
        assert!(worst < 12.0, "{worst}");
        for value in 0..400_000 {
            assert_eq!(
                table.remove(hash(value), |other| other == value),
                Some(value)
            );
            table.shrink(hash);
        }
        table.shrink(hash);
        assert_eq!(table.bytes(), 0);
    }

    #[test]
    fn no_insert_moves_more_than_a_small_part() {
        let mut table = Table::default();
        let moved = Cell::new(0_usize);
        let hash = |value: u32| {
            moved.set(moved.get() + 1);
            hash_pair(7, u64::from(value))
        };
        for value in 0..300_000 {
            moved.set(0);
            table.insert(hash_pair(7, u64::from(value)), value, hash);
            let bound = (2 * SPLIT_ABOVE).max(table.len() / SHARDS * 2);
            assert!(moved.get() <= bound, "{} of {}", moved.get(), table.len());
        }
    }

    proptest! {
        #[test]
        fn finds_what_was_inserted_and_nothing_else(
            steps in prop::collection::vec((any::<bool>(), 0..200_u32), 0..600),
            weak in any::<bool>(),
        ) {
            // With a hash of three values, every lookup meets collisions.
            let hash = |value: u32| if weak { u64::from(value % 3) } else { hash_pair(0, value.into()) };
            let mut table = Table::default();
            let mut set = std::collections::BTreeSet::new();
            for (add, value) in steps {
                if add && set.insert(value) {
                    table.insert(hash(value), value, hash);
                } else if !add {
                    let removed = table.remove(hash(value), |other| other == value);
                    prop_assert_eq!(removed.is_some(), set.remove(&value));
                    table.shrink(hash);
                }
                prop_assert_eq!(table.len(), set.len());
            }
            for value in 0..200 {
                let found = table.find(hash(value), |other| other == value);
                prop_assert_eq!(found.is_some(), set.contains(&value));
            }
        }
    }
}
