//! The state of the machine, and the memory it takes.
//!
//! These types are made for a backlog of ten million messages: a message takes 52 bytes in a paged
//! slab and 5 to 6.5 in the index that finds it by its number. Parts that only few messages have (a
//! lease, a time to live, an origin, failures) are in side tables, so that the others do not pay for them.

mod rows;

use std::{collections::BTreeMap, sync::Arc};

use lockgate_core::{
    Failures, HolderName, Key, LeaseNumber, Location, MachineTime, MessageId, Millis, Position,
    QueueId, QueueName, Sequence, ShardId, Term, WallTime,
};

use super::{
    key_sequences::KeySequences,
    key_states::KeyStates,
    limits::QueueLimits,
    list::{Links, List},
    producers::Producers,
};
use crate::{
    DeadLetterReason, KeyPolicy, KeyProfile, QueueCounts, QueueSettings, QueueTotals,
    dedup::DedupWindow,
    sequences::Sequences,
    slab::{NONE, Slab},
};

pub(super) type Queues = Slab<Queue, 32>;
pub(super) type Contents = Slab<Content, 64>;
pub(super) type Keys = Slab<KeyState, 256>;

/// A number below 2^48 in six bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct U48([u16; 3]);

impl U48 {
    pub(super) const MAX: u64 = (1 << 48) - 1;

    /// Stops at [`U48::MAX`]: decisions refuse larger numbers, and a record from elsewhere must not
    /// cause a panic.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "split into its 16-bit parts"
    )]
    pub(super) fn new(number: u64) -> Self {
        let number = number.min(Self::MAX);
        Self([number as u16, (number >> 16) as u16, (number >> 32) as u16])
    }

    pub(super) fn get(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 16 | u64::from(self.0[2]) << 32
    }
}

/// A `u64` without eight-byte alignment, which would cost a [`Message`] four bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packed64([u32; 2]);

impl Packed64 {
    #[expect(clippy::cast_possible_truncation, reason = "split into its halves")]
    pub(super) fn new(number: u64) -> Self {
        Self([number as u32, (number >> 32) as u32])
    }

    pub(super) fn get(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 32
    }
}

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// In its key's order, not leased.
    Ready,
    /// Leased.
    Leased,
    /// Its attempt failed; it waits in its place for the next one.
    Backoff,
    /// Not due yet, and in no order.
    Delayed,
}

/// Properties of few messages; bits of [`Message::flags`].
pub(super) mod flag {
    /// Its record has not reached its level, so it is not leasable.
    pub(crate) const UNSYNCED: u8 = 1;
    /// It has a [`LeaseState`](super::LeaseState), at [`Message::extra`](super::Message).
    pub(crate) const LEASED_ONCE: u8 = 2;
    /// Unkeyed queue: it is in its group's list of returned messages.
    pub(crate) const RETURNED: u8 = 4;
    /// It came from another queue; it has an [`Origin`](super::OriginEntry).
    pub(crate) const MOVED: u8 = 8;
    /// It has its own time to live.
    pub(crate) const TTL: u8 = 16;
    /// Its time to live ended while it was leased.
    pub(crate) const OVERDUE: u8 = 32;
    /// It failed with a reason; it has a [`FailuresEntry`](super::FailuresEntry).
    pub(crate) const FAILED: u8 = 64;
    /// Others of its record have the same payload, or had; its record has a [`SharedRow`](super::super::shared::SharedRow).
    pub(crate) const SHARED: u8 = 128;
}

/// A message in a queue, without its payload.
#[derive(Clone, Debug)]
pub(super) struct Message {
    position: Packed64,
    sequence: U48,
    part: u16,
    since: U48,
    pub(super) state: State,
    pub(super) flags: u8,
    /// Its key or group.
    pub(super) key: u32,
    /// Bytes that count towards the quota.
    pub(super) size: u32,
    /// With [`flag::LEASED_ONCE`] its lease state, else its timer, else `NONE`.
    pub(super) extra: u32,
    /// Neighbours in one of its key's lists: order, returned or delayed.
    pub(super) order: Links,
    /// Neighbours in one of its queue's lists: by age, or delayed.
    pub(super) age: Links,
}

const _: () = assert!(size_of::<Message>() == 52);

impl Message {
    pub(super) fn new(
        sequence: Sequence,
        location: Location,
        since: WallTime,
        key: u32,
        size: u32,
    ) -> Self {
        Self {
            position: Packed64::new(location.position.0),
            sequence: U48::new(sequence.0),
            part: location.part,
            since: U48::new(since.0),
            state: State::Ready,
            flags: 0,
            key,
            size,
            extra: NONE,
            order: Links::NONE,
            age: Links::NONE,
        }
    }

    pub(super) fn sequence(&self) -> Sequence {
        Sequence(self.sequence.get())
    }

    pub(super) fn location(&self) -> Location {
        Location {
            position: Position(self.position.get()),
            part: self.part,
        }
    }

    /// The first word of a message.
    pub(super) fn first_word(&self) -> u32 {
        self.position.0[0]
    }

    pub(super) fn compact(&mut self, to: Location) {
        self.position = Packed64::new(to.position.0);
        self.part = to.part;
    }

    /// When it counts as accepted: its acceptance or, if later, its due time. Age and retention
    /// count from here, so that a message due in a year does not expire while it waits.
    pub(super) fn since(&self) -> WallTime {
        WallTime(self.since.get())
    }

    pub(super) fn set_since(&mut self, since: WallTime) {
        self.since = U48::new(since.0);
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// Whether a receive may lease it, apart from its key and queue.
    pub(super) fn is_leasable(&self) -> bool {
        self.state == State::Ready && !self.has(flag::UNSYNCED)
    }
}

/// The leases of a message that was leased at least once. Its timer knows when the lease or the backoff ends.
#[derive(Clone, Debug)]
pub(super) struct LeaseState {
    lease: U48,
    first_leased: U48,
    /// Leases it had in this queue.
    pub(super) attempts: u16,
    /// Whether the last lease may still acknowledge: false once it was given back.
    pub(super) current: bool,
    /// The time from the start of the lease to its end. Leases last at most 12 h, so it fits.
    pub(super) held_ms: u32,
    /// The holder of the current lease, else `NONE`.
    pub(super) holder: u32,
    /// The end of the lease, of the backoff or of the delay; else `NONE`.
    pub(super) timer: u32,
    /// The index of the term of the last lease, counted from 1.
    pub(super) term: u32,
}

const _: () = assert!(size_of::<Option<LeaseState>>() == 32);

impl LeaseState {
    pub(super) fn new(first_leased: WallTime) -> Self {
        Self {
            lease: U48::default(),
            first_leased: U48::new(first_leased.0),
            attempts: 0,
            current: false,
            held_ms: 0,
            holder: NONE,
            timer: NONE,
            term: 0,
        }
    }

    pub(super) fn lease(&self) -> LeaseNumber {
        LeaseNumber(self.lease.get())
    }

    pub(super) fn set_lease(&mut self, lease: LeaseNumber, term: u32) {
        self.lease = U48::new(lease.0);
        self.term = term;
        self.current = true;
    }

    pub(super) fn first_leased(&self) -> WallTime {
        WallTime(self.first_leased.get())
    }

    pub(super) fn set_first_leased(&mut self, first_leased: WallTime) {
        self.first_leased = U48::new(first_leased.0);
    }

    pub(super) fn set_held(&mut self, given: MachineTime, deadline: MachineTime) {
        self.held_ms = u32::try_from(deadline.since(given)).unwrap_or(u32::MAX);
    }
}

/// A message that is not leasable before the record at `position` is durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaiting {
    pub(super) position: Position,
    pub(super) index: u32,
    pub(super) queue: QueueId,
    pub(super) sequence: Sequence,
}

/// The origin of a moved message.
#[derive(Clone, Debug)]
pub(super) struct OriginEntry {
    /// The index of the message.
    pub(super) message: u32,
    pub(super) id: MessageId,
    pub(super) queue: QueueId,
    pub(super) sequence: Sequence,
    pub(super) reason: DeadLetterReason,
    pub(super) at: WallTime,
}

/// The failures of a message.
#[derive(Clone, Debug)]
pub(super) struct FailuresEntry {
    /// The index of the message.
    pub(super) message: u32,
    /// Shared with whoever looks at the message, and with a frozen machine.
    pub(super) failures: Arc<Failures>,
}

/// A message's own time to live.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeToLive {
    /// The index of the message.
    pub(super) message: u32,
    pub(super) span: Millis,
    pub(super) timer: u32,
}

/// A name of lease holders. Names are interned, because few clients hold many leases.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) name: HolderName,
    pub(super) leases: u32,
}

/// Where a key that is not parked waits for a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Place {
    /// In no list: its first message is not leasable.
    Out,
    /// Ready.
    Ready,
    /// It would be ready, but a limit holds it.
    Limited,
}

/// A key of a keyed queue, or a group of an unkeyed one. Messages without a group are one group.
///
/// It exists while it has a message or is parked.
#[derive(Clone, Debug)]
pub(super) struct KeyState {
    /// `None`: the group of messages without one.
    pub(super) name: Option<Key>,
    pub(super) content: u32,
    /// Half of the hash of content and name. So moving or removing keys in their table need not
    /// read their texts, each of which would be a wait for memory.
    pub(super) hash: u32,
    /// The order. Keyed: ready, leased and backing-off messages; unkeyed: ready ones that were never leased.
    pub(super) order: List,
    /// Unkeyed: ready messages that were leased before, in order of their return.
    pub(super) returned: List,
    /// Messages that are not due yet.
    pub(super) delayed: List,
    /// Neighbours among its content's ready keys, or among its parked ones.
    pub(super) links: Links,
    /// Messages except delayed ones.
    pub(super) messages: u32,
    pub(super) delayed_count: u32,
    pub(super) leased: u32,
    /// Whether the leased messages are a batch of the strict profile. A key keeps the rules of its
    /// leases while any of its messages is leased, even if the queue's profile changes.
    pub(super) strict: bool,
    settled_at: Packed64,
    pub(super) parked: bool,
    /// Which of its content's lists it is in, unless it is parked.
    pub(super) place: Place,
    /// Unkeyed: which list is next if both have messages.
    pub(super) returned_next: bool,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Option<KeyState>>() == 80);

impl KeyState {
    pub(super) fn new(name: Option<Key>, content: u32, hash: u32) -> Self {
        Self {
            name,
            content,
            hash,
            order: List::default(),
            returned: List::default(),
            delayed: List::default(),
            links: Links::NONE,
            messages: 0,
            delayed_count: 0,
            leased: 0,
            strict: false,
            settled_at: Packed64::default(),
            parked: false,
            place: Place::Out,
            returned_next: false,
        }
    }

    /// Whether it is the content's key with that text, or its group without one.
    pub(super) fn is_of(&self, content: u32, text: Option<&str>) -> bool {
        self.content == content && self.name.as_ref().map(Key::as_str) == text
    }

    /// The record that last settled or dropped one of its messages: the next delivery depends on it.
    pub(super) fn settled_at(&self) -> Position {
        Position(self.settled_at.get())
    }

    pub(super) fn set_settled_at(&mut self, at: Position) {
        self.settled_at = Packed64::new(at.0);
    }
}

/// The contents of a queue. A purge gives the queue a new content and leaves the old one to be
/// freed in steps.
#[derive(Clone, Debug)]
pub(super) struct Content {
    /// Its queue's index; if the content is dead, the queue may be gone.
    pub(super) queue: u32,
    pub(super) queue_id: QueueId,
    pub(super) keyed: bool,
    pub(super) profile: KeyProfile,
    /// Whether it was purged: nothing in it counts any more.
    pub(super) dead: bool,
    /// Its messages by their numbers. Each content has its own index, so that a purge need not empty one.
    pub(super) by_sequence: Sequences,
    /// Keys that a receive may lease from, in turn.
    pub(super) ready_keys: List,
    pub(super) parked_keys: List,
    /// Keys that would be ready but for a limit of theirs. Volatile, as the order of ready keys.
    pub(super) limited_keys: List,
    /// All messages except delayed ones, in the order in which they became deliverable.
    pub(super) by_age: List,
    pub(super) delayed: List,
    /// The first message of `by_age` that the retention sweep has not passed.
    pub(super) unswept: u32,
    /// The record that last removed a message.
    pub(super) removed_at: Position,
    /// Messages under a lease.
    pub(super) leased: u32,
    /// A query fills in `oldest` and `unique_ids`.
    pub(super) counts: QueueCounts,
}

impl Content {
    pub(super) fn new(queue: u32, queue_id: QueueId, settings: &QueueSettings) -> Self {
        Self {
            queue,
            queue_id,
            keyed: settings.keyed,
            profile: settings.key_profile,
            dead: false,
            by_sequence: Sequences::default(),
            ready_keys: List::default(),
            parked_keys: List::default(),
            limited_keys: List::default(),
            by_age: List::default(),
            delayed: List::default(),
            unswept: NONE,
            removed_at: Position(0),
            leased: 0,
            counts: QueueCounts::default(),
        }
    }

    pub(super) fn messages(&self) -> u64 {
        self.counts.ready + self.counts.in_flight + self.counts.delayed
    }

    /// Whether batches of one key are settled in order.
    pub(super) fn is_strict(&self) -> bool {
        self.keyed && self.profile == KeyProfile::Strict
    }
}

#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) id: QueueId,
    pub(super) name: QueueName,
    pub(super) settings: Arc<QueueSettings>,
    pub(super) annotations: Arc<BTreeMap<String, String>>,
    pub(super) tags: Arc<BTreeMap<String, String>>,
    pub(super) created: WallTime,
    pub(super) changed: WallTime,
    /// The record that last changed the queue itself.
    pub(super) changed_at: Position,
    pub(super) paused: bool,
    /// No leases before this: leases that a power cut took may still be held.
    pub(super) held_until: Option<MachineTime>,
    pub(super) hold_timer: u32,
    pub(super) content: u32,
    pub(super) next_sequence: Sequence,
    /// The shard and the last bits of message ids (see [`id_tail`]), from which number on; one
    /// entry per term.
    pub(super) id_tails: Vec<(Sequence, u64)>,
    pub(super) reserve: Reserve,
    /// No lease ends after this without raising it; see docs/internals/mechanisms.md.
    pub(super) lease_bound: MachineTime,
    pub(super) lease_bound_at: Position,
    pub(super) dedup: DedupWindow,
    /// For a queue that remembers unique ids for ever. `None`: none is in the index yet.
    pub(super) indexed: Option<IndexedIds>,
    pub(super) dedup_timer: u32,
    /// When `dedup_timer` fires.
    pub(super) dedup_at: MachineTime,
    pub(super) key_sequences: KeySequences,
    /// `None`: no key ever had one.
    pub(super) states: Option<Box<KeyStates>>,
    /// `None`: it never had one.
    pub(super) producers: Option<Box<Producers>>,
    /// `None`: it never had any.
    pub(super) limits: Option<Box<QueueLimits>>,
    pub(super) sweep_timer: u32,
    /// `duplicates` and `stale_settles` are volatile; all others follow from the log.
    pub(super) totals: QueueTotals,
    /// Whether it is in the machine's list of woken queues.
    pub(super) woken: bool,
}

/// Which of a queue's unique ids are in the index on disk, and not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IndexedIds {
    /// Those of messages up to this number.
    pub(super) up_to: Sequence,
    /// Of these, those up to this number do not count, because the queue was purged.
    pub(super) forgotten: Sequence,
}

impl IndexedIds {
    /// Up to which number the index must be asked for an id that is not in memory; `None`: whatever it has does not count.
    pub(super) fn asked_up_to(self) -> Option<Sequence> {
        (self.up_to > self.forgotten).then_some(self.up_to)
    }
}

/// Sequence numbers that may be given out at level `memory` before their records are written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reserve {
    /// Lower numbers may have been given out.
    pub(super) below: Sequence,
    /// The record with this reserve.
    pub(super) at: Position,
    /// Lower numbers are covered by an earlier record, the one at `at_before`.
    pub(super) below_before: Sequence,
    pub(super) at_before: Position,
}

impl Queue {
    /// The id of the message that this queue accepted under that number.
    pub(super) fn id_of(&self, sequence: Sequence) -> MessageId {
        let runs = self
            .id_tails
            .partition_point(|&(first, _)| first <= sequence);
        let tail = runs.checked_sub(1).map_or(0, |run| self.id_tails[run].1);
        MessageId::new(self.id, sequence.min(Sequence::MAX), term_of_tail(tail))
    }

    /// Records the tail of the id of message `sequence`, unless it equals the one before.
    pub(super) fn note_id(&mut self, sequence: Sequence, id: MessageId) {
        let tail = id_tail(id);
        if self.id_tails.last().is_none_or(|&(_, last)| last != tail) {
            self.id_tails.push((sequence, tail));
        }
    }

    /// The effect of a failing message on its key. Without a setting it depends on the dead-letter queue.
    pub(super) fn policy(&self) -> KeyPolicy {
        let settings = &self.settings;
        settings
            .key_policy
            .unwrap_or(if settings.dead_letter.is_some() {
                KeyPolicy::Skip
            } else {
                KeyPolicy::Block
            })
    }
}

/// The highest [`id_tail`].
pub(super) const ID_TAIL_MAX: u64 = (1 << 52) - 1;

/// The part of a message id that depends on its term: its lowest 42 bits, and its shard above them.
///
/// The shard is stored with each run, because messages keep their ids when a backup is restored
/// under another number.
fn id_tail(id: MessageId) -> u64 {
    let term = id.term();
    u64::from(term.shard.get()) << 42 | term.epoch.0 << 24 | term.incarnation.0
}

/// A term whose message ids have that tail, which is at most [`ID_TAIL_MAX`]. Not the original
/// term, because the id contains only a part of it.
fn term_of_tail(tail: u64) -> Term {
    let shard = u16::try_from(tail >> 42).ok().and_then(ShardId::new);
    Term {
        shard: shard.unwrap_or_default(),
        epoch: lockgate_core::Epoch(tail >> 24 & 0x3_ffff),
        incarnation: lockgate_core::Incarnation(tail & 0xff_ffff),
    }
}

/// The purpose of a timer, with the index of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The end of a message's lease or backoff (machine time), or of its delay (wall time).
    Message(u32),
    /// The end of a message's time to live (wall time).
    TimeToLive(u32),
    /// The queue's oldest message may have reached the end of its retention (wall time).
    Sweep(u32),
    /// A queue's oldest unique id may be forgotten (machine time).
    Dedup(u32),
    /// A queue that was held back after a power cut gives leases again (machine time).
    Hold(u32),
    /// The end of a record's lease (machine time).
    RecordLease(u32),
    /// A queue's oldest producer, or opening of one, may be forgotten (machine time).
    Producers(u32),
    /// Old events of a ledger may be let go of, or the rest of a deleted one freed (wall time).
    Ledger(u32),
    /// The next time of a schedule (wall time).
    Schedule(u32),
}

impl Timer {
    pub(super) fn to_bits(self) -> u64 {
        let (kind, index) = match self {
            Self::Message(index) => (0, index),
            Self::TimeToLive(index) => (1, index),
            Self::Sweep(index) => (2, index),
            Self::Dedup(index) => (3, index),
            Self::Hold(index) => (4, index),
            Self::RecordLease(index) => (5, index),
            Self::Producers(index) => (6, index),
            Self::Ledger(index) => (7, index),
            Self::Schedule(index) => (8, index),
        };
        kind << 32 | u64::from(index)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower half is the index"
    )]
    pub(super) fn from_bits(bits: u64) -> Self {
        let index = bits as u32;
        match bits >> 32 {
            0 => Self::Message(index),
            1 => Self::TimeToLive(index),
            2 => Self::Sweep(index),
            3 => Self::Dedup(index),
            5 => Self::RecordLease(index),
            6 => Self::Producers(index),
            7 => Self::Ledger(index),
            8 => Self::Schedule(index),
            _ => Self::Hold(index),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Epoch, Incarnation};

    use super::*;

    #[test]
    fn packed_numbers_come_back() {
        for number in [0, 1, 0xffff, 0x1_0000, 0x1234_5678_9abc, U48::MAX] {
            assert_eq!(U48::new(number).get(), number);
        }
        assert_eq!(U48::new(u64::MAX).get(), U48::MAX);
        for number in [0, 1, u64::from(u32::MAX), u64::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(Packed64::new(number).get(), number);
        }
    }

    #[test]
    fn ids_are_recomputed_from_their_tails() {
        let term = Term {
            shard: ShardId::MAX,
            epoch: Epoch(0x1234_5678),
            incarnation: Incarnation(0xdead_beef_1234_5678),
        };
        let id = MessageId::new(QueueId(9), Sequence(77), term);
        let again = MessageId::new(QueueId(9), Sequence(77), term_of_tail(id_tail(id)));
        assert_eq!(again, id);
        assert!(id_tail(id) <= ID_TAIL_MAX);
    }

    #[test]
    fn timers_come_back_from_their_bits() {
        for timer in [
            Timer::Message(7),
            Timer::TimeToLive(0),
            Timer::Sweep(u32::MAX),
            Timer::Dedup(1),
            Timer::Hold(2),
            Timer::RecordLease(3),
            Timer::Producers(4),
        ] {
            assert_eq!(Timer::from_bits(timer.to_bits()), timer);
        }
    }
}
