//! The counters of a queue.

use crate::columns::{ImageError, Input, damaged};

/// Declares all counters: the structs and the table.
///
/// A row has the name and the number of the counter in images (never that of another one, even of a removed
/// one), or `None` for a counter that begins at the last start. Its sentence is its documentation everywhere.
macro_rules! counters {
    (
        totals: $( $(#[doc = $about:literal])+ $name:ident = $number:expr; )+
        dropped: $( $(#[doc = $why:literal])+ $reason:ident = $reason_number:expr; )+
        dropped_with_queue: $(#[doc = $deleted:literal])+ $queue_deleted:ident = $deleted_number:expr;
    ) => {
        /// What came and went. Conservation: `accepted + moved_in = acknowledged + moved_out + dropped(by reason) +
        /// pending`.
        ///
        /// [`COUNTERS`] has a row for each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QueueTotals {
            $( $(#[doc = $about])+ pub $name: u64, )+
            pub dropped: DroppedCounts,
        }

        /// Messages dropped, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DroppedCounts {
            $( $(#[doc = $why])+ pub $reason: u64, )+
            $(#[doc = $deleted])+
            pub $queue_deleted: u64,
        }

        impl DroppedCounts {
            /// Dropped for any reason.
            #[must_use]
            pub fn total(&self) -> u64 {
                [self.$queue_deleted, $(self.$reason),+].iter().sum()
            }
        }

        /// Every counter of a queue; those of dropped messages come last.
        pub static COUNTERS: &[Counter] = &[
            $(Counter {
                name: stringify!($name),
                about: concat!($($about),+),
                number: $number,
                kind: CounterKind::Total,
                get: |totals| totals.$name,
                get_mut: |totals| &mut totals.$name,
            },)+
            $(Counter {
                name: stringify!($reason),
                about: concat!($($why),+),
                number: $reason_number,
                kind: CounterKind::Dropped,
                get: |totals| totals.dropped.$reason,
                get_mut: |totals| &mut totals.dropped.$reason,
            },)+
            Counter {
                name: stringify!($queue_deleted),
                about: concat!($($deleted),+),
                number: $deleted_number,
                kind: CounterKind::DroppedWithQueue,
                get: |totals| totals.dropped.$queue_deleted,
                get_mut: |totals| &mut totals.dropped.$queue_deleted,
            },
        ];
    };
}

counters! {
    totals:
    /// Sends accepted, duplicates not counted.
    accepted = Some(1);
    /// Sends recognised as duplicates, since the last start.
    duplicates = None;
    /// Sends recognised as records of a producer that were accepted before, since the last start.
    sent_before = None;
    /// Sends of an earlier incarnation of a producer, since the last start.
    fenced = None;
    /// Messages that came from another queue.
    moved_in = Some(2);
    /// Messages that went to another queue.
    moved_out = Some(3);
    /// Messages acknowledged.
    acknowledged = Some(4);
    /// Leases given.
    leased = Some(12);
    /// Leases that ended before their holder settled them.
    leases_ended = Some(13);
    /// Settles of leases that were not current any more, since the last start.
    stale_settles = None;
    /// Messages of level `memory` that crashes have taken at most; `accepted` does not count them.
    possibly_lost = Some(14);

    dropped:
    /// Removed by a purge.
    purged = Some(5);
    /// Older than the queue's retention or their own time to live.
    expired = Some(7);
    /// Unreadable because of damage on the disk.
    damaged = Some(8);
    /// Rejected by a consumer in a queue without a dead-letter queue.
    rejected = Some(9);
    /// Cancelled by id.
    cancelled = Some(10);
    /// Dropped with their key.
    key_dropped = Some(11);

    dropped_with_queue:
    /// Deleted with their queue. Only the totals of the shard have this; those of the queue are gone with it.
    queue_deleted = Some(6);
}

/// The highest total: a shard does not reach it in a hundred years. Sums of many totals do not overflow.
pub(crate) const TOTAL_MAX: u64 = 1 << 53;

/// The place of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// A total of the queue.
    Total,
    /// A part of the dropped messages; its name is the reason.
    Dropped,
    /// The same, but not shown for a queue.
    DroppedWithQueue,
}

/// A counter of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// Its name everywhere; the name of its metric has a prefix and a suffix.
    pub name: &'static str,
    about: &'static str,
    /// Its number in images; `None`: it begins at the last start.
    number: Option<u8>,
    pub kind: CounterKind,
    get: fn(&QueueTotals) -> u64,
    get_mut: fn(&mut QueueTotals) -> &mut u64,
}

impl Counter {
    /// One sentence about it.
    #[must_use]
    pub fn about(&self) -> &'static str {
        self.about.trim()
    }

    #[must_use]
    pub fn get(&self, totals: &QueueTotals) -> u64 {
        (self.get)(totals)
    }

    /// Whether it counts from the last start.
    #[must_use]
    pub fn is_since_start(&self) -> bool {
        self.number.is_none()
    }
}

impl QueueTotals {
    /// Adds another queue's totals, up to [`TOTAL_MAX`].
    pub(crate) fn add(&mut self, other: &Self) {
        for counter in COUNTERS {
            let sum = counter.get(self) + counter.get(other);
            *(counter.get_mut)(self) = sum.min(TOTAL_MAX);
        }
    }

    /// Appends the counters that follow from the log: the number and the value of each that is not 0.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for (number, counter) in numbered() {
            let total = counter.get(self);
            if total > 0 {
                out.push(number);
                out.extend_from_slice(&total.to_le_bytes());
            }
        }
    }

    /// Reads the output of [`QueueTotals::encode`], up to the end. Ignores counters of later versions.
    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let mut totals = Self::default();
        let mut read = Vec::new();
        while !input.is_empty() {
            let (number, total) = (input.u8()?, input.u64()?);
            if read.contains(&number) || total > TOTAL_MAX {
                return Err(damaged("a counter comes twice or is above the highest"));
            }
            read.push(number);
            if let Some((_, counter)) = numbered().find(|(known, _)| *known == number) {
                *(counter.get_mut)(&mut totals) = total;
            }
        }
        Ok(totals)
    }

    /// Without the counters that begin at the last start.
    pub(crate) fn kept(mut self) -> Self {
        for counter in COUNTERS.iter().filter(|counter| counter.is_since_start()) {
            *(counter.get_mut)(&mut self) = 0;
        }
        self
    }
}

/// The counters that images have.
fn numbered() -> impl Iterator<Item = (u8, &'static Counter)> {
    COUNTERS
        .iter()
        .filter_map(|counter| Some((counter.number?, counter)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_counter_has_a_name_and_a_number_of_its_own() {
        let names: BTreeSet<_> = COUNTERS.iter().map(|counter| counter.name).collect();
        assert_eq!(names.len(), COUNTERS.len());
        let numbers: BTreeSet<_> = numbered().map(|(number, _)| number).collect();
        assert_eq!(numbers.len(), numbered().count());
        assert!(!numbers.contains(&0));
        for counter in COUNTERS {
            assert!(counter.about().ends_with('.'), "{}", counter.name);
        }
    }

    #[test]
    fn images_keep_every_counter_but_those_since_the_start() {
        let mut totals = QueueTotals::default();
        for (at, counter) in (1..).zip(COUNTERS) {
            *(counter.get_mut)(&mut totals) = at;
        }
        let mut bytes = Vec::new();
        totals.encode(&mut bytes);
        assert_eq!(bytes.len(), numbered().count() * 9);
        let decode = |bytes: &[u8]| QueueTotals::decode(&mut Input::new(bytes));
        assert_eq!(decode(&bytes), Ok(totals.kept()));
        assert_ne!(totals, totals.kept());
        // A counter that this version does not know.
        bytes.extend_from_slice(&[255, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode(&bytes), Ok(totals.kept()));
        for wrong in [
            &bytes[..bytes.len() - 1],
            &[1, 0, 0, 0, 0, 0, 0, 0, 1],
            &[1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        ] {
            decode(wrong).unwrap_err();
        }
    }
}
