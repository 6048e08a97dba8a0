//! How far apart equal keys come, and what that lets a coalescer save. Pure: keys are numbers from 0 on, in the
//! order of their first request.
//!
//! The *distance* of a repeat is the number of requests from the one before of the same key to it: equal keys at
//! positions 3 and 10 have distance 7. A key belongs to a class by the least distance of its repeats.
//!
//! The prediction counts by positions. It assumes that consumers are busy and all work is equal, so a run lasts
//! while the next `C` requests come, with `C` consumers. A *chain* is an unbroken series of repeats of one key, each
//! at distance `C` or less. Its first request runs at once. Behind it, each stretch of `C` requests has at least
//! one of the key, and one run, at its end, covers all of those. A chain of `m` requests whose distances sum up to
//! `S` therefore costs `1 + ceil(S / C)` runs and saves `m - 1 - ceil(S / C)`. It is a prediction and no count
//! because a chain that begins during the last run of the one before is taken for one that begins behind it.

use std::num::NonZeroU64;

/// A bucket for each power of two that a distance can have.
const BUCKETS: usize = u64::BITS as usize;

/// What was seen of one key.
#[derive(Clone, Copy, Debug)]
struct Key {
    requests: u64,
    /// The position of its last request.
    last: u64,
    /// Where the chain of that request began.
    chain: u64,
    /// The least distance of its repeats; 0 before the first of them.
    nearest: u64,
}

/// Counts requests, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Repetition {
    consumers: NonZeroU64,
    requests: u64,
    keys: Vec<Key>,
    repeats: [u64; BUCKETS],
    /// Repeats in chains, less the runs that chains which have ended need for them.
    saved: u64,
}

/// Keys, and their requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) keys: u64,
    pub(super) requests: u64,
}

/// Distances from one power of two to below the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    pub(super) from: u64,
    pub(super) to: u64,
    /// Keys whose least distance is in it.
    pub(super) keys: u64,
    /// Repeats whose distance is in it.
    pub(super) repeats: u64,
}

/// What all requests together come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) all: Counted,
    /// Keys that came once.
    pub(super) none: Counted,
    /// Keys whose repeats are all further apart than there are consumers.
    pub(super) sparse: Counted,
    /// The other keys.
    pub(super) high: Counted,
    /// From distance 1 to the largest there is; empty if no key repeats.
    pub(super) distances: Vec<Bucket>,
    /// Requests that cost no run of their own, by the prediction.
    pub(super) saved: u64,
}

impl Repetition {
    pub(super) fn new(consumers: NonZeroU64) -> Self {
        Self {
            consumers,
            requests: 0,
            keys: Vec::new(),
            repeats: [0; BUCKETS],
            saved: 0,
        }
    }

    /// Counts the next request. A key is one that was given before, or the next number.
    pub(super) fn request(&mut self, key: u32) {
        let position = self.requests;
        self.requests += 1;
        let Some(seen) = self.keys.get_mut(key as usize) else {
            debug_assert_eq!(key as usize, self.keys.len());
            self.keys.push(Key {
                requests: 1,
                last: position,
                chain: position,
                nearest: 0,
            });
            return;
        };
        let distance = position - seen.last;
        self.repeats[bucket(distance)] += 1;
        if seen.nearest == 0 || distance < seen.nearest {
            seen.nearest = distance;
        }
        if distance <= self.consumers.get() {
            self.saved += 1;
        } else {
            self.saved -= seen.later_runs(self.consumers);
            seen.chain = position;
        }
        seen.requests += 1;
        seen.last = position;
    }

    /// How many there were.
    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn summary(&self) -> Summary {
        let mut keys = [0; BUCKETS];
        let (mut none, mut sparse, mut high) = Default::default();
        let mut saved = self.saved;
        for key in &self.keys {
            let class: &mut Counted = match key.nearest {
                0 => &mut none,
                near if near > self.consumers.get() => &mut sparse,
                _ => &mut high,
            };
            class.keys += 1;
            class.requests += key.requests;
            if key.nearest > 0 {
                keys[bucket(key.nearest)] += 1;
            }
            saved -= key.later_runs(self.consumers);
        }
        let used = self.repeats.iter().rposition(|&repeats| repeats > 0);
        let distances = (0..used.map_or(0, |last| last + 1)).map(|power| Bucket {
            from: 1 << power,
            to: u64::MAX >> (BUCKETS - 1 - power),
            keys: keys[power],
            repeats: self.repeats[power],
        });
        Summary {
            all: Counted {
                keys: self.keys.len() as u64,
                requests: self.requests,
            },
            none,
            sparse,
            high,
            distances: distances.collect(),
            saved,
        }
    }
}

impl Key {
    /// The runs of its last chain, apart from that of the chain's first request.
    fn later_runs(&self, consumers: NonZeroU64) -> u64 {
        (self.last - self.chain).div_ceil(consumers.get())
    }
}

/// The bucket of a distance, which is at least 1.
fn bucket(distance: u64) -> usize {
    distance.ilog2() as usize
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// Counts letters, each of which is a key.
    fn count(consumers: u64, letters: &str) -> Summary {
        let mut numbers = BTreeMap::new();
        let keys = letters.chars().map(|letter| {
            let next = numbers.len();
            u32::try_from(*numbers.entry(letter).or_insert(next)).unwrap()
        });
        count_keys(consumers, keys)
    }

    fn count_keys(consumers: u64, keys: impl IntoIterator<Item = u32>) -> Summary {
        let mut repetition = Repetition::new(NonZeroU64::new(consumers).unwrap());
        for key in keys {
            repetition.request(key);
        }
        repetition.summary()
    }

    #[test]
    fn equal_keys_at_positions_3_and_10_have_distance_7() {
        let summary = count(7, "..a......a".replace('.', "x").as_str());
        let of_a = summary.distances.last().unwrap();
        assert_eq!((of_a.from, of_a.to, of_a.keys, of_a.repeats), (4, 7, 1, 1));
    }

    #[test]
    fn a_key_has_the_class_of_its_least_distance() {
        let counted = |keys, requests| Counted { keys, requests };
        for (consumers, letters, none, sparse, high) in [
            (2, "", counted(0, 0), counted(0, 0), counted(0, 0)),
            (2, "abc", counted(3, 3), counted(0, 0), counted(0, 0)),
            // As far apart as there are consumers is near, one further is not.
            (2, "abaxxb", counted(0, 0), counted(1, 2), counted(2, 4)),
            (3, "abcda", counted(3, 3), counted(1, 2), counted(0, 0)),
            (4, "abcda", counted(3, 3), counted(0, 0), counted(1, 2)),
            // One near repeat is enough.
            (2, "abcdaba", counted(2, 2), counted(1, 2), counted(1, 3)),
        ] {
            let summary = count(consumers, letters);
            assert_eq!(
                (summary.none, summary.sparse, summary.high),
                (none, sparse, high),
                "{consumers} consumers, {letters}"
            );
        }
    }

    #[test]
    fn a_chain_costs_a_run_and_one_more_for_each_stretch() {
        for (consumers, letters, saved) in [
            (1, "aaaaaa", 0),
            (4, "a", 0),
            // One runs, one waits, and the waiting one covers the rest that comes before the first has ended.
            (4, "aa", 0),
            (4, "aaa", 1),
            (4, "aaaaa", 3),
            (4, "aaaaaa", 3),
            (4, "aaaaaaaaa", 6),
            (4, "abababab", 2),
            // Chains that end are counted as those that go on.
            (3, "aaaa....aaaa", 4),
            (3, "aaaa....aaaa....", 4),
        ] {
            let mut other = 'A'..;
            let letters: String = letters
                .chars()
                .map(|c| if c == '.' { other.next().unwrap() } else { c })
                .collect();
            assert_eq!(
                count(consumers, &letters).saved,
                saved,
                "{consumers} {letters}"
            );
        }
    }

    /// The same by the words of the definition, comparing each request with all others.
    fn naive(consumers: u64, keys: &[u32]) -> Summary {
        let mut summary = count_keys(consumers, []);
        let mut buckets = BTreeMap::<u64, (u64, u64)>::new();
        for key in BTreeSet::from_iter(keys) {
            let at: Vec<u64> = (0..)
                .zip(keys)
                .filter(|(_, k)| *k == key)
                .map(|(at, _)| at)
                .collect();
            let distances: Vec<u64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let class = match distances.iter().min() {
                None => &mut summary.none,
                Some(&least) => {
                    buckets.entry(power(least)).or_default().0 += 1;
                    if least > consumers {
                        &mut summary.sparse
                    } else {
                        &mut summary.high
                    }
                }
            };
            for counted in [class, &mut summary.all] {
                counted.keys += 1;
                counted.requests += at.len() as u64;
            }
            for distance in &distances {
                buckets.entry(power(*distance)).or_default().1 += 1;
            }
            // Which stretch of which chain each request is in.
            let mut begins = at[0];
            let mut runs = BTreeSet::from([(begins, 0)]);
            for pair in at.windows(2) {
                if pair[1] - pair[0] > consumers {
                    begins = pair[1];
                }
                let stretch = (1_u64..).find(|n| begins + (n - 1) * consumers >= pair[1]);
                runs.insert((begins, stretch.unwrap() - 1));
            }
            summary.saved += at.len() as u64 - runs.len() as u64;
        }
        let last = buckets.keys().last().copied();
        let mut from = 1;
        while last.is_some_and(|last| from <= last) {
            let (keys, repeats) = buckets.get(&from).copied().unwrap_or_default();
            let to = 2 * from - 1;
            summary.distances.push(Bucket {
                from,
                to,
                keys,
                repeats,
            });
            from *= 2;
        }
        summary
    }

    fn power(distance: u64) -> u64 {
        let mut power = 1;
        while 2 * power <= distance {
            power *= 2;
        }
        power
    }

    proptest! {
        #[test]
        fn it_agrees_with_comparing_every_request_with_every_other(
            consumers in 1_u64..12,
            drawn in prop::collection::vec(0_u32..12, 0..120),
        ) {
            let mut numbers = BTreeMap::new();
            let keys: Vec<u32> = drawn.iter().map(|key| {
                let next = u32::try_from(numbers.len()).unwrap();
                *numbers.entry(key).or_insert(next)
            }).collect();
            prop_assert_eq!(count_keys(consumers, keys.iter().copied()), naive(consumers, &keys));
        }
    }
}
