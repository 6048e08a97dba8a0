//! Identifiers. All are small copyable values with a text form that parses back.

use std::{fmt, ops::Range, str::FromStr};

/// The number of a shard, from 0 (the default) to [`ShardId::MAX`].
///
/// A shard is one machine over one log with one engine. A process may hold many shards, each with a
/// number of its own; shards share nothing. The log records the number with the first term, and it
/// stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(u16);

/// A number that no shard can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no shard number: expected 0 to {}", ShardId::MAX)]
pub struct ShardIdError {
    /// The text or number that was given.
    pub given: String,
}

/// The fencing token of a term of ownership of a shard's log. Each is higher than all before it,
/// and none is used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A random number that each start draws. Because of it, ids of a restored backup never repeat ids
/// of the server that went on without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// One start of one shard. Every message id and lease token contains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Term {
    /// The shard that was started.
    pub shard: ShardId,
    /// The epoch of this start.
    pub epoch: Epoch,
    /// The random number that this start drew.
    pub incarnation: Incarnation,
}

/// A queue's number within its shard. It is never reused, even after the queue is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// A ledger's number within its shard. It is never reused, even after the ledger is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LedgerId(pub u32);

/// An exchange's number within its shard. It is never reused, even after the exchange is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExchangeId(pub u32);

/// A schedule's number within its shard. It is never reused, even after the schedule is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleId(pub u32);

/// A message's number within its queue: strictly increasing in order of acceptance, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

/// The place where a record starts in a log. Only the order means something: a later record has a
/// higher position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// The place of a payload: a record, and an effect within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// Where the record starts.
    pub position: Position,
    /// The index of the effect within the record, from 0.
    pub part: u16,
}

/// A lease's number within its term: strictly increasing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseNumber(pub u64);

/// Names one lease of one message for ever. No later lease has the same token, also after a restart
/// or the restore of a backup. The term says which shard gave the lease; only that shard can settle
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken {
    /// The message's queue.
    pub queue: QueueId,
    /// The message's number in that queue.
    pub sequence: Sequence,
    /// The message's id, which still names the message after it was moved.
    pub message: MessageId,
    /// The term in which the lease was given.
    pub term: Term,
    /// The lease's number within that term.
    pub lease: LeaseNumber,
}

/// A message's name for ever: a UUID (version 8, custom layout) that says which queue of which shard
/// first accepted it, under which sequence number, in which term.
///
/// From the most significant bit, leaving out the six bits of UUID version and variant: shard (10),
/// queue (24), sequence (46), epoch modulo 2^18 (18), incarnation modulo 2^24 (24). A message that
/// was moved to another queue, or restored into another shard, keeps its id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(u128);

impl LeaseToken {
    /// Returns the shard that gave the lease.
    #[must_use]
    pub const fn shard(&self) -> ShardId {
        self.term.shard
    }
}

impl Position {
    /// Returns the range that the position lies in: all positions that agree with it in all but
    /// their lowest `bits` bits, see
    /// [`LogCapabilities::range_bits`](crate::LogCapabilities::range_bits). With 64 bits or more,
    /// and for the last range of all, the end is the highest position, which no record has.
    #[must_use]
    pub fn range(self, bits: u32) -> Range<Self> {
        let within = u64::MAX
            .checked_shr(64_u32.saturating_sub(bits))
            .unwrap_or(0);
        Self(self.0 & !within)..Self((self.0 | within).saturating_add(1))
    }
}

impl ShardId {
    /// The highest shard number, set by the 10 bits a message id has for it: 1023.
    pub const MAX: Self = Self((1 << 10) - 1);

    /// Returns the shard with this number, or `None` above [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MAX.0 {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Returns the shard's number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for ShardId {
    type Error = ShardIdError;

    fn try_from(number: u16) -> Result<Self, ShardIdError> {
        Self::new(number).ok_or_else(|| ShardIdError {
            given: number.to_string(),
        })
    }
}

impl FromStr for ShardId {
    type Err = ShardIdError;

    fn from_str(text: &str) -> Result<Self, ShardIdError> {
        // The parser of numbers would also take a sign.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.and_then(Self::new).ok_or_else(|| ShardIdError {
            given: text.to_owned(),
        })
    }
}

impl QueueId {
    /// The highest queue number, set by the 24 bits a message id has for it: 16.8 million queues ever
    /// made in one shard.
    pub const MAX: Self = Self((1 << 24) - 1);
}

impl Sequence {
    /// The highest sequence number, set by the 46 bits a message id has for it: 7 × 10^13 messages
    /// ever in one queue.
    pub const MAX: Self = Self((1 << 46) - 1);

    /// The number after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl MessageId {
    /// The id of the message that `queue` accepted as number `sequence` in `term`.
    ///
    /// # Panics
    /// If `queue` or `sequence` is above its `MAX`; the machine refuses to hand out such numbers.
    #[must_use]
    pub fn new(queue: QueueId, sequence: Sequence, term: Term) -> Self {
        assert!(
            queue <= QueueId::MAX && sequence <= Sequence::MAX,
            "id out of range"
        );
        let epoch = u128::from(term.epoch.0) & 0x3_ffff;
        let incarnation = u128::from(term.incarnation.0) & 0xff_ffff;
        let packed = (u128::from(term.shard.0) << 112)
            | (u128::from(queue.0) << 88)
            | (u128::from(sequence.0) << 42)
            | (epoch << 24)
            | incarnation;
        Self(with_uuid_bits(packed))
    }

    /// Returns the shard that first accepted the message.
    #[must_use]
    pub fn shard(self) -> ShardId {
        ShardId((without_uuid_bits(self.0) >> 112) as u16 & ShardId::MAX.0)
    }

    /// Returns the queue that first accepted the message.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "masked to 24 bits")]
    pub fn queue(self) -> QueueId {
        QueueId((without_uuid_bits(self.0) >> 88) as u32 & QueueId::MAX.0)
    }

    /// Returns the message's number in the queue that first accepted it.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "masked to 46 bits")]
    pub fn sequence(self) -> Sequence {
        Sequence((without_uuid_bits(self.0) >> 42) as u64 & Sequence::MAX.0)
    }

    /// Returns a term whose ids end like this one and name the same shard. It is not the term
    /// itself: the id holds only a part of its epoch and incarnation.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "masked to 18 and 24 bits")]
    pub fn term(self) -> Term {
        let packed = without_uuid_bits(self.0);
        Term {
            shard: self.shard(),
            epoch: Epoch((packed >> 24) as u64 & 0x3_ffff),
            incarnation: Incarnation(packed as u64 & 0xff_ffff),
        }
    }

    /// Returns the 128 bits, as they are written to disk.
    #[must_use]
    pub const fn to_bits(self) -> u128 {
        self.0
    }

    /// Makes an id of 128 bits without checking them. Use it for values that [`to_bits`] returned.
    ///
    /// [`to_bits`]: MessageId::to_bits
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }
}

/// Spreads 122 bits around the version (4 bits at 76) and variant (2 bits at 62) of a UUID.
const fn with_uuid_bits(packed: u128) -> u128 {
    let low = packed & ((1 << 62) - 1);
    let middle = (packed >> 62) & ((1 << 12) - 1);
    let high = packed >> 74;
    (high << 80) | (8 << 76) | (middle << 64) | (0b10 << 62) | low
}

/// The inverse of [`with_uuid_bits`].
const fn without_uuid_bits(uuid: u128) -> u128 {
    let low = uuid & ((1 << 62) - 1);
    let middle = (uuid >> 64) & ((1 << 12) - 1);
    let high = uuid >> 80;
    (high << 74) | (middle << 62) | low
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            b >> 96,
            (b >> 80) & 0xffff,
            (b >> 64) & 0xffff,
            (b >> 48) & 0xffff,
            b & 0xffff_ffff_ffff
        )
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

/// A text that is no message id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no message id: expected 32 hexadecimal digits as 8-4-4-4-12")]
pub struct ParseMessageIdError {
    /// The text that was given.
    pub text: String,
}

impl FromStr for MessageId {
    type Err = ParseMessageIdError;

    fn from_str(text: &str) -> Result<Self, ParseMessageIdError> {
        let error = || ParseMessageIdError {
            text: text.to_owned(),
        };
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return Err(error());
        }
        let mut bits = 0u128;
        for (at, &byte) in bytes.iter().enumerate() {
            match (at, byte) {
                (8 | 13 | 18 | 23, b'-') => {}
                (8 | 13 | 18 | 23, _) => return Err(error()),
                _ => {
                    let digit = (byte as char).to_digit(16).ok_or_else(error)?;
                    bits = (bits << 4) | u128::from(digit);
                }
            }
        }
        // Only version 8 and the RFC variant can be ours.
        if (bits >> 76) & 0xf != 8 || (bits >> 62) & 0b11 != 0b10 {
            return Err(error());
        }
        Ok(Self(bits))
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_agrees_in_all_but_the_lowest_bits() {
        let range = |at: u64, bits| {
            let range = Position(at).range(bits);
            (range.start.0, range.end.0)
        };
        for at in [0x3_0000_0000, 0x3_0000_0001, 0x3_ffff_ffff] {
            assert_eq!(range(at, 32), (0x3_0000_0000, 0x4_0000_0000));
        }
        assert_eq!(range(7, 0), (7, 8));
        assert_eq!(range(u64::MAX, 32), (u64::MAX << 32, u64::MAX));
        for bits in [64, 65, u32::MAX] {
            assert_eq!(range(7, bits), (0, u64::MAX));
        }
    }

    proptest::proptest! {
        /// Every part comes back, moves no other part, and stands where the layout says.
        #[test]
        fn message_ids_have_their_layout(
            shard in 0..=ShardId::MAX.0,
            queue in 0..=QueueId::MAX.0,
            sequence in 0..=Sequence::MAX.0,
            epoch: u64,
            incarnation: u64,
        ) {
            check_layout(shard, queue, sequence, epoch, incarnation);
        }
    }

    fn check_layout(shard: u16, queue: u32, sequence: u64, epoch: u64, incarnation: u64) {
        let term = Term {
            shard: ShardId(shard),
            epoch: Epoch(epoch),
            incarnation: Incarnation(incarnation),
        };
        let id = MessageId::new(QueueId(queue), Sequence(sequence), term);
        assert_eq!(id.shard(), ShardId(shard));
        assert_eq!(id.queue(), QueueId(queue));
        assert_eq!(id.sequence(), Sequence(sequence));
        let part = id.term();
        assert_eq!(part.epoch.0, epoch % (1 << 18));
        assert_eq!(part.incarnation.0, incarnation % (1 << 24));
        let again = MessageId::new(id.queue(), id.sequence(), part);
        assert_eq!(again, id, "made again of its parts");

        // The bits one after the other, without those of the UUID: as written in the docs.
        let bits = format!("{:0128b}", id.to_bits());
        assert_eq!(
            (&bits[48..52], &bits[64..66]),
            ("1000", "10"),
            "a UUID of version 8"
        );
        let own = [&bits[..48], &bits[52..64], &bits[66..]].concat();
        let (epoch, incarnation) = (epoch % (1 << 18), incarnation % (1 << 24));
        assert_eq!(
            own,
            format!("{shard:010b}{queue:024b}{sequence:046b}{epoch:018b}{incarnation:024b}")
        );
        assert_eq!(id.to_string().parse::<MessageId>().unwrap(), id);
    }

    #[test]
    fn message_ids_keep_their_parts_at_both_ends_of_the_range() {
        for shard in [0, 1, ShardId::MAX.0] {
            for queue in [0, 1, QueueId::MAX.0] {
                for sequence in [0, 1, Sequence::MAX.0] {
                    for term in [0, 1, u64::MAX] {
                        check_layout(shard, queue, sequence, term, !term);
                        check_layout(shard, queue, sequence, term, term);
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "id out of range")]
    fn a_queue_above_the_highest_has_no_id() {
        let _ = MessageId::new(QueueId(QueueId::MAX.0 + 1), Sequence(1), Term::default());
    }

    #[test]
    #[should_panic(expected = "id out of range")]
    fn a_sequence_above_the_highest_has_no_id() {
        let _ = MessageId::new(QueueId(1), Sequence::MAX.next(), Term::default());
    }

    #[test]
    fn shard_numbers_go_from_0_to_1023() {
        for number in [0, 7, 1023] {
            let shard = ShardId::new(number).unwrap();
            assert_eq!(shard.get(), number);
            assert_eq!(shard.to_string().parse(), Ok(shard));
        }
        assert_eq!(ShardId::new(1024), None);
        assert_eq!(ShardId::new(u16::MAX), None);
        for text in ["", "1024", "65536", "-1", "+1", " 1", "one"] {
            let error = text.parse::<ShardId>().unwrap_err();
            let told = format!("{text:?} is no shard number: expected 0 to 1023");
            assert_eq!(error.to_string(), told);
        }
    }

    #[test]
    fn message_ids_of_another_term_or_shard_differ() {
        let id = |shard, epoch, incarnation| {
            let term = Term {
                shard: ShardId(shard),
                epoch: Epoch(epoch),
                incarnation: Incarnation(incarnation),
            };
            MessageId::new(QueueId(1), Sequence(1), term)
        };
        assert_ne!(id(0, 1, 5), id(0, 2, 5));
        assert_ne!(id(0, 1, 5), id(0, 1, 6));
        assert_ne!(id(0, 1, 5), id(1, 1, 5));
    }

    #[test]
    fn texts_that_are_no_message_id_are_refused() {
        let good = MessageId::new(QueueId(1), Sequence(1), Term::default()).to_string();
        for bad in [
            "",
            "x",
            &good[1..],
            &good.replace('-', "0"),
            &format!("{good}0"),
        ] {
            assert!(bad.parse::<MessageId>().is_err(), "{bad:?}");
        }
        let other_version = good.replacen("-8", "-4", 1);
        assert!(
            other_version.parse::<MessageId>().is_err(),
            "{other_version}"
        );
    }
}
