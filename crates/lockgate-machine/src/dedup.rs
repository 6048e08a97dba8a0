//! Remembers unique ids.

mod image;

use std::collections::BTreeMap;

use lockgate_core::{MachineTime, Position, Sequence};
use sha2::{Digest, Sha256};

use crate::{
    QueueSettings,
    slab::{Link, Slab},
    table::{HashSeed, Table, hash_bytes},
};

/// The unique ids that one queue accepted within its window, each with the answer that its duplicates get.
///
/// An id takes 48 bytes and its share of a [`Table`]: less than 64 in all, however long its text.
/// Ids are forgotten in the order in which they expire. With a constant window that is their order
/// of arrival: a *run*. Each time the window is made shorter, a new run begins, because from then
/// on an id may expire before earlier ones. Forgetting merges the runs.
///
/// Ids that are remembered for ever are a run of their own, and leave it in the order of their numbers when they are
/// in the index.
#[derive(Clone, Debug, Default)]
pub(crate) struct DedupWindow {
    seed: HashSeed,
    ids: Slab<Remembered>,
    index: Table,
    /// The runs, by the expiry of their first id and by their number. None is empty.
    runs: BTreeMap<(MachineTime, u64), Run>,
    /// The key in `runs` of the run for new ids.
    newest: Option<(MachineTime, u64)>,
    runs_begun: u64,
}

/// What is remembered of the send that first used an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DedupHit {
    /// The message's number.
    pub(crate) sequence: Sequence,
    /// The record that accepted it; an answer to a duplicate must wait for this record.
    pub(crate) position: Position,
    /// When it is forgotten.
    pub(crate) expires: MachineTime,
}

/// A unique id, and the answer to its duplicates.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    /// In halves, because a `u128` would be aligned to 16 bytes.
    digest: [u64; 2],
    sequence: Sequence,
    position: Position,
    expires: MachineTime,
    next: Link,
}

/// The number of an id that was remembered a second time: nothing looks this entry up any more.
/// Messages count from 1.
const SUPERSEDED: Sequence = Sequence(0);

/// Ids in order of expiry, linked through the slab.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u32,
    last: u32,
}

/// The digest that stands for a unique id: the first 128 bits of the SHA-256 of its scope and its
/// text. `scope_key` is the message's key if ids are unique within a key
/// ([`DedupScope::Key`](crate::DedupScope::Key)), else `None`.
///
/// Finding two ids with one digest takes about 2^64 attempts, so a digest identifies its id.
pub(crate) fn digest(scope_key: Option<&str>, id: &str) -> u128 {
    let mut hash = Sha256::new();
    // The length makes the end of the key unambiguous. A key is never empty, so zero means no key.
    let key = scope_key.unwrap_or_default().as_bytes();
    hash.update((key.len() as u64).to_le_bytes());
    hash.update(key);
    hash.update(id);
    first_half(hash)
}

/// The first 128 bits of a SHA-256.
pub(crate) fn first_half(hash: Sha256) -> u128 {
    let digest = hash.finalize();
    u128::from_le_bytes(
        digest[..16]
            .try_into()
            .expect("a SHA-256 digest has 32 bytes"),
    )
}

impl DedupWindow {
    /// An empty window that hashes under the shard's seed.
    pub(crate) fn new(seed: HashSeed) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Forgets in which records the ids came.
    pub(crate) fn forget_positions(&mut self) {
        for (_, id) in self.ids.iter_mut() {
            id.position = Position(0);
        }
    }

    /// The answer to a duplicate, if the id is remembered. An expired id is remembered until
    /// [`expire`](Self::expire) forgets it.
    pub(crate) fn get(&self, digest: u128) -> Option<DedupHit> {
        let halves = split(digest);
        let found = self
            .index
            .find(self.hash(halves), |index| self.ids[index].digest == halves)?;
        let id = &self.ids[found];
        Some(DedupHit {
            sequence: id.sequence,
            position: id.position,
            expires: id.expires,
        })
    }

    /// Remembers an id until `expires`. If it is remembered already, which happens only after
    /// records were lost, the later send counts.
    pub(crate) fn reserve(
        &mut self,
        digest: u128,
        sequence: Sequence,
        position: Position,
        expires: MachineTime,
    ) {
        let halves = split(digest);
        let (hash, seed) = (self.hash(halves), self.seed);
        // The earlier entry stays in its run, but nothing refers to it any more.
        let ids = &self.ids;
        let superseded = self.index.remove(hash, |index| ids[index].digest == halves);
        if let Some(superseded) = superseded {
            self.ids[superseded].sequence = SUPERSEDED;
        }
        let index = self.ids.insert(Remembered {
            digest: halves,
            sequence,
            position,
            expires,
            next: Link::NONE,
        });
        let ids = &self.ids;
        self.index
            .insert(hash, index, |index| hash_halves(seed, ids[index].digest));
        self.append(index, expires);
    }

    /// Forgets at most `budget` expired ids. Returns their number; less than `budget` means that
    /// none is left.
    pub(crate) fn expire(&mut self, now: MachineTime, budget: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < budget {
            let Some((&key, _)) = self.runs.first_key_value().filter(|(key, _)| key.0 <= now)
            else {
                break;
            };
            self.forget_first(key);
            forgotten += 1;
        }
        forgotten
    }

    /// Forgets the first id of a run.
    fn forget_first(&mut self, key: (MachineTime, u64)) {
        let Some(run) = self.runs.remove(&key) else {
            return;
        };
        let id = self.ids.remove(run.first);
        let hash = hash_halves(self.seed, id.digest);
        self.index.remove(hash, |index| index == run.first);
        let rest = id.next.get().map(|first| {
            let rest = (self.ids[first].expires, key.1);
            self.runs.insert(rest, Run { first, ..run });
            rest
        });
        if self.newest == Some(key) {
            self.newest = rest;
        }
        let (ids, seed) = (&self.ids, self.seed);
        self.index
            .shrink(|index| hash_halves(seed, ids[index].digest));
    }

    /// The ids that are remembered for ever, oldest first: each with its digest and its record. An id that was
    /// remembered again is left out in its first place.
    pub(crate) fn forever(&self) -> impl Iterator<Item = (u128, Sequence, Position)> {
        self.ids_of(self.forever_run().map(|(_, run)| run))
    }

    /// The same of the ids that expire first, one after the other.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = (u128, Sequence, Position)> {
        self.ids_of(self.runs.values().next().copied())
    }

    fn ids_of(&self, run: Option<Run>) -> impl Iterator<Item = (u128, Sequence, Position)> {
        let first = run.map(|run| run.first);
        let ids = std::iter::successors(first, |&index| self.ids[index].next.get());
        let ids = ids.map(|index| &self.ids[index]);
        ids.filter(|id| id.sequence != SUPERSEDED)
            .map(|id| (join(id.digest), id.sequence, id.position))
    }

    /// Forgets the ids that are remembered for ever, up to that number. Returns how many.
    pub(crate) fn forget_up_to(&mut self, up_to: Sequence) -> usize {
        let mut forgotten = 0;
        while let Some((key, run)) = self.forever_run() {
            if self.ids[run.first].sequence > up_to {
                break;
            }
            self.forget_first(key);
            forgotten += 1;
        }
        forgotten
    }

    fn forever_run(&self) -> Option<((MachineTime, u64), Run)> {
        let (&key, &run) = self.runs.last_key_value()?;
        is_forever(key.0).then_some((key, run))
    }

    /// When the next id expires.
    pub(crate) fn next_expiry(&self) -> Option<MachineTime> {
        let first = self.runs.first_key_value().map(|(key, _)| key.0);
        first.filter(|&expires| !is_forever(expires))
    }

    /// The digests that are remembered, each with its number, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, Sequence)> {
        let ids = self.ids.iter().map(|(_, id)| id);
        let current = ids.filter(|id| id.sequence != SUPERSEDED);
        current.map(|id| {
            let [low, high] = id.digest.map(u128::from);
            (high << 64 | low, id.sequence)
        })
    }

    /// How many ids are remembered.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether no id is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Heap memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.ids.bytes() + self.index.bytes()
    }

    /// Appends an id to the newest run, or to a new run if it expires before that run's last id.
    fn append(&mut self, index: u32, expires: MachineTime) {
        if let Some(run) = self.newest.and_then(|key| self.runs.get_mut(&key)) {
            let last = &mut self.ids[run.last];
            if last.expires <= expires && is_forever(last.expires) == is_forever(expires) {
                last.next = Link::to(index);
                run.last = index;
                return;
            }
        }
        let key = (expires, self.runs_begun);
        self.runs_begun += 1;
        let run = Run {
            first: index,
            last: index,
        };
        self.runs.insert(key, run);
        self.newest = Some(key);
    }

    fn hash(&self, halves: [u64; 2]) -> u64 {
        hash_halves(self.seed, halves)
    }
}

/// The hash of a digest in a table with this seed.
pub(crate) fn hash_halves(seed: HashSeed, [low, high]: [u64; 2]) -> u64 {
    // Digests are evenly distributed but not secret: a sender could choose ids with colliding digests.
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&high.to_le_bytes());
    hash_bytes(seed, &bytes)
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a number")]
pub(crate) fn split(digest: u128) -> [u64; 2] {
    [digest as u64, (digest >> 64) as u64]
}

fn join([low, high]: [u64; 2]) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

/// Whether an id with that expiry is remembered for ever. Machine time never gets there.
fn is_forever(expires: MachineTime) -> bool {
    expires.0 >= QueueSettings::FOREVER
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hit(number: u64, expires: u64) -> DedupHit {
        DedupHit {
            sequence: Sequence(number),
            position: Position(number * 100),
            expires: MachineTime(expires),
        }
    }

    fn reserve(window: &mut DedupWindow, digest: u128, number: u64, expires: u64) {
        let DedupHit {
            sequence, position, ..
        } = hit(number, expires);
        window.reserve(digest, sequence, position, MachineTime(expires));
    }

    #[test]
    fn digests_tell_scope_and_id_apart() {
        let all = [
            digest(None, "ab"),
            digest(Some("a"), "b"),
            digest(Some("ab"), "b"),
            digest(Some("a"), "bb"),
            digest(Some("b"), "a"),
        ];
        for (number, one) in all.iter().enumerate() {
            assert!(!all[..number].contains(one));
        }
        // SHA-256 of eight zero bytes and "ab", from another implementation.
        assert_eq!(all[0].to_le_bytes()[..4], [0xb4, 0x92, 0x09, 0x50]);
    }

    #[test]
    fn a_remembered_id_takes_less_than_sixty_four_bytes_at_the_worst_moment() {
        assert_eq!(size_of::<Remembered>(), 48);
        let mut window = DedupWindow::new(HashSeed::from_secret(&[7; 32]));
        assert_eq!(window.bytes(), 0);
        let mut worst = 0.0_f64;
        for number in 0..200_000_u64 {
            reserve(&mut window, u128::from(number) << 60, number, number);
            if number > 50_000 && number % 128 == 0 {
                worst = worst.max(window.bytes() as f64 / window.len() as f64);
            }
        }
        assert!(worst < 64.0, "{worst}");
        assert_eq!(window.expire(MachineTime(u64::MAX), usize::MAX), 200_000);
        assert!(window.bytes() < 64 * 1024, "{} bytes kept", window.bytes());
    }

    #[test]
    fn a_second_reservation_counts_and_outlives_the_first() {
        let mut window = DedupWindow::default();
        reserve(&mut window, 1, 1, 10);
        reserve(&mut window, 1, 2, 20);
        assert_eq!(window.expire(MachineTime(10), 9), 1);
        assert_eq!(window.get(1), Some(hit(2, 20)));
        assert_eq!(window.expire(MachineTime(20), 9), 1);
        assert_eq!((window.get(1), window.len()), (None, 0));
    }

    #[test]
    fn ids_for_ever_leave_in_the_order_of_their_numbers_and_others_in_that_of_time() {
        const FOREVER: u64 = QueueSettings::FOREVER;
        let mut window = DedupWindow::new(HashSeed::from_secret(&[7; 32]));
        reserve(&mut window, 1, 1, 50);
        for number in 2..=5 {
            reserve(&mut window, number.into(), number, FOREVER + 10 * number);
        }
        // One that was remembered before, after records were lost.
        reserve(&mut window, 3, 6, FOREVER + 60);
        assert_eq!(window.next_expiry(), Some(MachineTime(50)));
        let ids: Vec<_> = window.forever().map(|(digest, ..)| digest).collect();
        assert_eq!(ids, [2, 4, 5, 3]);
        assert_eq!(window.forget_up_to(Sequence(4)), 3);
        assert_eq!((window.get(2), window.get(4)), (None, None));
        assert_eq!(window.get(3), Some(hit(6, FOREVER + 60)));
        assert_eq!(window.expire(MachineTime(FOREVER - 1), 9), 1);
        assert_eq!((window.len(), window.next_expiry()), (2, None));
        assert_eq!(window.forget_up_to(Sequence(9)), 2);
        assert!(window.is_empty());
        reserve(&mut window, 9, 9, FOREVER);
        assert_eq!(window.forever().count(), 1);
    }

    #[test]
    fn a_superseded_id_stays_so_in_an_image() {
        let mut window = DedupWindow::default();
        reserve(&mut window, 1, 1, 10);
        reserve(&mut window, 1, 2, 20);
        let (mut outline, mut page) = (Vec::new(), Vec::new());
        window.encode_outline(&mut outline);
        let first = window.ids().encode_page(0, &mut page).unwrap();
        let input = &mut crate::columns::Input::new(&outline);
        let mut loaded = DedupWindow::decode_outline(input).unwrap();
        let input = &mut crate::columns::Input::new(&page);
        loaded.ids().read_page(first, input).unwrap();
        loaded.rebuild(HashSeed::default()).unwrap();
        assert_eq!((loaded.get(1), loaded.len()), (Some(hit(2, 20)), 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn remembers_exactly_until_expiry_whatever_happens_to_the_window(
            steps in prop::collection::vec((0..4_u8, 0..40_u64, 0..8_usize), 0..200),
        ) {
            let mut window = DedupWindow::new(HashSeed::from_secret(&[1; 32]));
            let mut model = BTreeMap::new();
            let (mut now, mut span) = (0, 20);
            for (number, (what, value, budget)) in (0..).zip(steps) {
                match what {
                    0 => span = value,
                    1 => now += value,
                    2 => {
                        let digest = u128::from(value) << 64;
                        let known = model.get(&digest).map(|&(number, expires)| hit(number, expires));
                        prop_assert_eq!(window.get(digest), known);
                        if known.is_none() {
                            reserve(&mut window, digest, number, now + span);
                            model.insert(digest, (number, now + span));
                        }
                    }
                    _ => {
                        let due = model.values().filter(|&&(_, expires)| expires <= now).count();
                        prop_assert_eq!(window.expire(MachineTime(now), budget), due.min(budget));
                        // Forgets the rest, so that the model need not know which ids went first.
                        window.expire(MachineTime(now), usize::MAX);
                        model.retain(|_, &mut (_, expires)| expires > now);
                    }
                }
                prop_assert_eq!(window.len(), model.len());
                let next = model.values().map(|&(_, expires)| MachineTime(expires)).min();
                prop_assert_eq!(window.next_expiry(), next);
            }
        }
    }
}
