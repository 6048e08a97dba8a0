//! Counts the live bytes in each range of the log.
//!
//! A log releases space by *range*: all positions that agree above their lowest
//! [`range_bits`](crate::MachineLimits::range_bits) bits (a segment of the local log). To release
//! ranges, the engine must know at any time, without walking ten million messages, which are empty
//! and which have only a few messages.

use std::collections::BTreeMap;

use lockgate_core::{Key, Position, QueueId, Sequence};

use crate::{
    columns::{ImageError, Input, damaged},
    slab::Slab,
};

/// The bytes of a message's record besides its body, headers and key text: the local log's header
/// of 44 bytes, and the record's fields for a message with small numbers. Fields that few messages
/// have (a unique id, a producer's mark) are not counted.
pub(crate) const RECORD_OVERHEAD: u64 = 80;

/// The live contents of one range of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveRange {
    /// Messages with bytes in the range, including purged ones that are not freed yet.
    pub messages: u64,
    /// The approximate bytes of the log that they take: body, headers and key, and 80 for the rest
    /// of each record. A payload that several messages of a record have counts once.
    pub bytes: u64,
}

/// A live message, and the range of the log with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveMessage {
    pub queue: QueueId,
    /// Its number in that queue.
    pub sequence: Sequence,
    /// The range's first position.
    pub range: Position,
    /// The least that any log needs for it alone: body, headers and key.
    pub bytes_min: u64,
    /// If others of its record have the same payload: where the record starts, and the bytes of all such payloads of it, which
    /// are not in `bytes_min`.
    pub shared: Option<(Position, u64)>,
}

impl LiveRange {
    /// The least that any log needs for them: body, headers and key.
    #[must_use]
    pub fn bytes_min(&self) -> u64 {
        self.bytes - self.messages * RECORD_OVERHEAD
    }

    /// Whether nothing is left. A payload may be, while its last message goes from one queue to another.
    fn is_nothing(&self) -> bool {
        self.messages == 0 && self.bytes == 0
    }
}

/// Counts by range.
///
/// Messages come, and mostly go, in the order of their positions, so the next one is nearly always
/// in the same range as the one before. So the last range of either kind is remembered, and only a
/// change of range needs a lookup.
#[derive(Clone, Debug)]
pub(crate) struct LiveRanges {
    bits: u32,
    /// The index of each range's counts. Only the range that grew last may be empty: a queue whose
    /// consumers keep up must not create and drop a range for each message.
    by_number: BTreeMap<u64, u32>,
    counts: Slab<LiveRange>,
    grown: Recent,
    shrunk: Recent,
}

/// The number of the last range, and the index of its counts.
type Recent = Option<(u64, u32)>;

impl LiveRanges {
    /// # Panics
    /// If `bits` is above 63.
    pub(crate) fn new(bits: u32) -> Self {
        assert!(bits <= 63, "range_bits is {bits}, above 63");
        Self {
            bits,
            by_number: BTreeMap::new(),
            counts: Slab::default(),
            grown: None,
            shrunk: None,
        }
    }

    /// Adds a message with so many bytes at `at`.
    pub(crate) fn add(&mut self, at: Position, bytes: u64) {
        let number = at.0 >> self.bits;
        let counts = match self.grown {
            Some((recent, counts)) if recent == number => counts,
            _ => self.grow(number),
        };
        let counts = &mut self.counts[counts];
        counts.messages += 1;
        counts.bytes += bytes;
    }

    /// Adds bytes of a payload that messages of its record have, which were added before.
    pub(crate) fn add_payload(&mut self, at: Position, bytes: u64) {
        let counts = self.by_number.get(&(at.0 >> self.bits));
        if let Some(&counts) = counts {
            self.counts[counts].bytes += bytes;
        }
    }

    /// Removes a message. What was added with several may be removed with any of them.
    pub(crate) fn remove(&mut self, at: Position, bytes: u64) {
        let number = at.0 >> self.bits;
        let index = match self.shrunk {
            Some((recent, index)) if recent == number => index,
            _ => self.by_number[&number],
        };
        self.shrunk = Some((number, index));
        let counts = &mut self.counts[index];
        counts.messages -= 1;
        counts.bytes -= bytes;
        if counts.is_nothing() && self.grown != self.shrunk {
            self.drop_range(number, index);
        }
    }

    /// The ranges that are not empty, in order of their first positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Position, LiveRange)> {
        self.by_number
            .iter()
            .map(|(&number, &index)| (Position(number << self.bits), self.counts[index]))
            .filter(|(_, counts)| counts.messages > 0)
    }

    /// What lives in the range of `at`.
    pub(crate) fn get(&self, at: Position) -> LiveRange {
        self.by_number
            .get(&(at.0 >> self.bits))
            .map_or(LiveRange::default(), |&index| self.counts[index])
    }

    /// Appends the counts to an image.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bits.to_le_bytes());
        let ranges = u32::try_from(self.iter().count()).expect("fewer than messages");
        out.extend_from_slice(&ranges.to_le_bytes());
        for (at, counts) in self.iter() {
            for number in [at.0, counts.messages, counts.bytes] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    /// Reads the counts of an image. They use the ranges of the log that the image was made with.
    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let bits = input.u32()?;
        if bits > 63 {
            return Err(damaged("a range of the log has too many positions"));
        }
        let mut ranges = Self::new(bits);
        for _ in 0..input.count(24)? {
            let (at, messages, bytes) = (input.u64()?, input.u64()?, input.u64()?);
            let counts = ranges.counts.insert(LiveRange { messages, bytes });
            if ranges.by_number.insert(at >> bits, counts).is_some() {
                return Err(damaged("a range of the log is counted twice"));
            }
        }
        Ok(ranges)
    }

    /// How many low bits of a position are its place within a range.
    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    /// The approximate heap memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.counts.bytes() + self.by_number.len() * size_of::<(u64, u32)>() * 3 / 2
    }

    /// Makes `number` the range that grows.
    fn grow(&mut self, number: u64) -> u32 {
        if let Some((before, index)) = self.grown.take()
            && self.counts[index].is_nothing()
        {
            self.drop_range(before, index);
        }
        let counts = &mut self.counts;
        let index = *self
            .by_number
            .entry(number)
            .or_insert_with(|| counts.insert(LiveRange::default()));
        self.grown = Some((number, index));
        index
    }

    fn drop_range(&mut self, number: u64, index: u32) {
        self.by_number.remove(&number);
        self.counts.remove(index);
        self.shrunk = self.shrunk.filter(|&(recent, _)| recent != number);
    }
}

/// The approximate bytes of a message in the log.
pub(crate) fn live_bytes(size: u32, key: Option<&Key>) -> u64 {
    let key = key.map_or(0, |key| key.as_str().len() as u64);
    u64::from(size) + key + RECORD_OVERHEAD
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Message, MessageId, Term, WallTime};
    use proptest::prelude::*;

    use super::*;
    use crate::{Effect, Payload, StoredMessage, encode_record};

    proptest! {
        #[test]
        fn counts_as_a_recount_does(
            bits in 0..64_u32,
            // Often the same ranges, sometimes any.
            steps in prop::collection::vec(
                (any::<bool>(), prop_oneof![0..400_u64, any::<u64>()], 0..1000_u64),
                0..300,
            ),
        ) {
            let mut ranges = LiveRanges::new(bits);
            let mut all: Vec<(u64, u64)> = Vec::new();
            for (add, at, bytes) in steps {
                if add || all.is_empty() {
                    all.push((at, bytes));
                    ranges.add(Position(at), bytes);
                } else {
                    let which = usize::try_from(at % all.len() as u64).unwrap();
                    let (at, bytes) = all.swap_remove(which);
                    ranges.remove(Position(at), bytes);
                }
                let mut recount: BTreeMap<u64, LiveRange> = BTreeMap::new();
                for &(at, bytes) in &all {
                    let counts = recount.entry(at >> bits << bits).or_default();
                    counts.messages += 1;
                    counts.bytes += bytes;
                }
                let counted: Vec<_> = ranges.iter().map(|(at, counts)| (at.0, counts)).collect();
                prop_assert_eq!(&counted, &recount.clone().into_iter().collect::<Vec<_>>());
                let there = recount.get(&(at >> bits << bits)).copied().unwrap_or_default();
                prop_assert_eq!(ranges.get(Position(at)), there);
                // One range may be kept empty: the one that grew last.
                prop_assert!(ranges.counts.len() <= recount.len() + 1);
                prop_assert_eq!(ranges.counts.len(), ranges.by_number.len());
            }
        }
    }

    #[test]
    fn a_queue_that_keeps_up_makes_no_range_per_message() {
        let mut ranges = LiveRanges::new(32);
        ranges.add(Position(5), 1);
        let before = ranges.grown;
        for at in 6..100 {
            ranges.remove(Position(at - 1), 1);
            assert_eq!(ranges.iter().count(), 0);
            ranges.add(Position(at), 1);
            assert_eq!(ranges.grown, before);
        }
    }

    #[test]
    #[should_panic(expected = "range_bits is 64, above 63")]
    fn a_range_is_never_everything() {
        LiveRanges::new(64);
    }

    #[test]
    fn the_overhead_is_what_a_record_takes() {
        /// The local log's header, see docs/internals/format.md.
        const LOG_HEADER: u64 = 44;
        for (key, body) in [(None, 0), (Some("user-123456"), 1024), (Some("k"), 100_000)] {
            let key = key.map(|key| Key::new(key).unwrap());
            let mut message = Message::new(vec![0; body]);
            message.key = key.clone();
            let (queue, sequence) = (QueueId(3), Sequence(1_000_000));
            let effect = Effect::Accepted(Box::new(StoredMessage {
                queue,
                sequence,
                id: MessageId::new(queue, sequence, Term::default()),
                accepted: WallTime(1_700_000_000_000),
                unique_until: None,
                key_sequence: None,
                marked_at: None,
                payload: Payload::Own,
                message,
            }));
            let mut record = Vec::new();
            encode_record(&[effect], &mut record);
            let counted = live_bytes(u32::try_from(body).unwrap(), key.as_ref());
            let taken = record.len() as u64 + LOG_HEADER;
            assert!(counted.abs_diff(taken) <= 8, "{counted} for {taken} bytes");
        }
    }
}
