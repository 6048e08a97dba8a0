//! The order in which records are sent.
//!
//! A lane has records whose order matters, and one batch of it is on its way at a time. At a sink that knows records of
//! producers each stream has sixteen lanes, over which keys are spread by a hash that never changes, so a record in a
//! spool stays in its lane. Elsewhere each key is a lane of its own, and a batch has one record of it at most, because the
//! sink may accept a message though the one before it in the batch has failed. Records without a key then share a few
//! lanes without an order, in each stream others.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use lockgate_core::{Key, Message, Millis, ProducerMark};
use slab::Slab;

use super::backlog::{Stream, Streams};

/// Which records wait for each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LaneName {
    /// A lane of a producer that the sink knows.
    Numbered,
    /// The records of a key.
    Keyed(Key),
    /// Records without an order.
    Shared,
    /// A message without a key that the sink could not take: others do not wait for its records.
    Solo,
}

#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) name: LaneName,
    /// Places of records, in their order, and when each came into the lane's order.
    queue: VecDeque<(u64, usize)>,
    bytes: u64,
    state: State,
    /// Its place in the list of ready lanes, if it is there.
    turn: Option<u64>,
    /// How many times in a row its first record has failed while others succeeded.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the list of ready lanes if it is not empty.
    Ready,
    /// A batch of it is on its way.
    Busy,
    /// Nothing of it is sent before.
    Delayed(Millis),
}

/// How many lanes records without an order share, in each stream.
const SHARED: u8 = 8;

/// How many lanes both streams have at a sink that knows producers. They are the first ones.
pub(super) const NUMBERED: usize = 2 * ProducerMark::LANES as usize;

/// FNV-1a, 64 bits (Fowler, Noll and Vo): it must stay as it is, because spools keep the lanes.
pub(crate) fn key_hash(key: &Key) -> u64 {
    let bytes = key.as_str().bytes();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[derive(Debug)]
pub(super) struct Lanes {
    is_marked: bool,
    all: Slab<Lane>,
    keyed: HashMap<Key, usize>,
    shared: Streams<[usize; SHARED as usize]>,
    ready: BTreeMap<u64, usize>,
    next_turn: u64,
    delayed: BTreeSet<(Millis, usize)>,
    /// Those with failures.
    failing: BTreeSet<usize>,
    /// Records and bytes of the ready lanes.
    pub(super) ready_count: usize,
    pub(super) ready_bytes: u64,
    turn: u8,
}

impl Lanes {
    pub(super) fn new(is_marked: bool) -> Self {
        let mut all = Slab::new();
        let mut shared = Streams::<[usize; SHARED as usize]>::default();
        if is_marked {
            for _ in 0..NUMBERED {
                all.insert(Lane::new(LaneName::Numbered));
            }
        } else {
            for stream in Stream::ALL {
                for place in &mut shared[stream] {
                    *place = all.insert(Lane::new(LaneName::Shared));
                }
            }
        }
        Self {
            is_marked,
            all,
            keyed: HashMap::new(),
            shared,
            ready: BTreeMap::new(),
            next_turn: 0,
            delayed: BTreeSet::new(),
            failing: BTreeSet::new(),
            ready_count: 0,
            ready_bytes: 0,
            turn: 0,
        }
    }

    /// The number of the lane that a message belongs to at a sink that knows producers.
    pub(super) fn number(&mut self, message: &Message) -> u8 {
        let Some(key) = message.key.as_ref().or(message.group.as_ref()) else {
            self.turn = (self.turn + 1) % ProducerMark::LANES;
            return self.turn;
        };
        u8::try_from(spread(key_hash(key)) % u64::from(ProducerMark::LANES)).unwrap_or_default()
    }

    /// The lane of a message, which has that number at a sink that knows producers.
    pub(super) fn lane(&mut self, message: &Message, number: u8, stream: Stream) -> usize {
        if self.is_marked {
            let first = match stream {
                Stream::Backlog => ProducerMark::LANES,
                Stream::Live => 0,
            };
            return usize::from(first + number % ProducerMark::LANES);
        }
        match &message.key {
            Some(key) => match self.keyed.get(key) {
                Some(lane) => *lane,
                None => {
                    let lane = self.all.insert(Lane::new(LaneName::Keyed(key.clone())));
                    self.keyed.insert(key.clone(), lane);
                    lane
                }
            },
            None => {
                self.turn = (self.turn + 1) % SHARED;
                self.shared[stream][usize::from(self.turn)]
            }
        }
    }

    /// A new lane, which is busy.
    pub(super) fn solo(&mut self) -> usize {
        let mut lane = Lane::new(LaneName::Solo);
        lane.state = State::Busy;
        self.all.insert(lane)
    }

    pub(super) fn is_shared(&self, lane: usize) -> bool {
        matches!(self.all[lane].name, LaneName::Shared)
    }

    /// Whether a batch may have several records of the lane.
    pub(super) fn takes_many(&self, lane: usize) -> bool {
        matches!(self.all[lane].name, LaneName::Numbered | LaneName::Shared)
    }

    pub(super) fn push_back(&mut self, lane: usize, seq: u64, place: usize, size: u64) {
        let was_empty = self.add(lane, size);
        self.all[lane].queue.push_back((seq, place));
        if was_empty && self.all[lane].state == State::Ready {
            self.list(lane);
        }
    }

    /// Puts a lane at the end of the list of ready lanes.
    fn list(&mut self, lane: usize) {
        self.all[lane].turn = Some(self.next_turn);
        self.ready.insert(self.next_turn, lane);
        self.next_turn += 1;
    }

    /// Puts a record back that was taken. The lane is busy until it is [released](Self::release).
    pub(super) fn push_front(&mut self, lane: usize, seq: u64, place: usize, size: u64) {
        self.add(lane, size);
        self.all[lane].queue.push_front((seq, place));
    }

    fn add(&mut self, lane: usize, size: u64) -> bool {
        let it = &mut self.all[lane];
        it.bytes += size;
        if it.state == State::Ready {
            self.ready_count += 1;
            self.ready_bytes += size;
        }
        it.queue.is_empty()
    }

    /// The place of the lane's first record.
    pub(super) fn front(&self, lane: usize) -> Option<usize> {
        self.all[lane].queue.front().map(|(_, place)| *place)
    }

    pub(super) fn failures(&self, lane: usize) -> u32 {
        self.all[lane].failures
    }

    pub(super) fn set_failures(&mut self, lane: usize, failures: u32) {
        self.all[lane].failures = failures;
        match failures {
            0 => self.failing.remove(&lane),
            _ => self.failing.insert(lane),
        };
    }

    /// Whether the first record of the lane has failed while others succeeded.
    pub(super) fn is_failing(&self, lane: usize) -> bool {
        self.failing.contains(&lane)
    }

    /// Of each lane that fails, the place of the first record that waits, and how many wait.
    pub(super) fn failing(&self) -> impl Iterator<Item = (usize, usize)> {
        let queues = self.failing.iter().map(|&lane| &self.all[lane].queue);
        queues.filter_map(|queue| Some((queue.front()?.1, queue.len())))
    }

    /// The places of the lane's records, in their order.
    pub(super) fn places(&self, lane: usize) -> impl Iterator<Item = usize> {
        self.all[lane].queue.iter().map(|(_, place)| *place)
    }

    /// The next ready lane becomes busy.
    pub(super) fn take_ready(&mut self) -> Option<usize> {
        let (_, lane) = self.ready.pop_first()?;
        let it = &mut self.all[lane];
        (it.turn, it.state) = (None, State::Busy);
        self.ready_count -= it.queue.len();
        self.ready_bytes -= it.bytes;
        Some(lane)
    }

    /// Takes the first record of a busy lane.
    pub(super) fn pop_front(&mut self, lane: usize, size: u64) -> Option<usize> {
        let it = &mut self.all[lane];
        let (_, place) = it.queue.pop_front()?;
        it.bytes -= size;
        Some(place)
    }

    /// Takes a record out of the middle of a lane.
    pub(super) fn remove(&mut self, lane: usize, seq: u64, size: u64) {
        let it = &mut self.all[lane];
        let Ok(at) = it.queue.binary_search_by_key(&seq, |(seq, _)| *seq) else {
            return;
        };
        it.queue.remove(at);
        it.bytes -= size;
        let state = it.state;
        if state == State::Ready {
            self.ready_count -= 1;
            self.ready_bytes -= size;
        }
        if self.all[lane].queue.is_empty() {
            match state {
                State::Busy => return,
                State::Ready => {
                    if let Some(turn) = self.all[lane].turn.take() {
                        self.ready.remove(&turn);
                    }
                }
                State::Delayed(until) => {
                    self.delayed.remove(&(until, lane));
                    self.all[lane].state = State::Ready;
                }
            }
            self.forget_empty(lane);
        }
    }

    /// A busy lane may be sent again, at once or after a while.
    pub(super) fn release(&mut self, lane: usize, until: Option<Millis>) {
        self.all[lane].state = State::Ready;
        if self.all[lane].queue.is_empty() {
            self.forget_empty(lane);
            return;
        }
        match until {
            None => self.make_ready(lane),
            Some(until) => {
                self.all[lane].state = State::Delayed(until);
                self.delayed.insert((until, lane));
            }
        }
    }

    fn make_ready(&mut self, lane: usize) {
        let it = &mut self.all[lane];
        it.state = State::Ready;
        self.ready_count += it.queue.len();
        self.ready_bytes += it.bytes;
        self.list(lane);
    }

    fn forget_empty(&mut self, lane: usize) {
        self.set_failures(lane, 0);
        match &self.all[lane].name {
            LaneName::Keyed(key) => {
                self.keyed.remove(key);
                self.all.remove(lane);
            }
            LaneName::Solo => {
                self.all.remove(lane);
            }
            LaneName::Numbered | LaneName::Shared => {}
        }
    }

    /// Makes the lanes ready whose wait is over.
    pub(super) fn wake(&mut self, now: Millis) {
        while let Some(&(until, lane)) = self.delayed.first() {
            if until > now {
                return;
            }
            self.delayed.pop_first();
            self.make_ready(lane);
        }
    }

    /// When the next wait is over.
    pub(super) fn next_wake(&self) -> Option<Millis> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// How many lanes wait because the sink could not take their records.
    pub(super) fn delayed(&self) -> usize {
        self.delayed.len()
    }
}

impl Lane {
    fn new(name: LaneName) -> Self {
        Self {
            name,
            queue: VecDeque::new(),
            bytes: 0,
            state: State::Ready,
            turn: None,
            failures: 0,
        }
    }
}

/// Makes each bit depend on all bits: the last characters of a key hardly reach the upper ones of its hash, and keys that
/// are numbered would share a few lanes. The finalizer of MurmurHash3.
fn spread(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a sink is away nothing is taken from the list of ready lanes, and policies and deadlines drop what comes.
    #[test]
    fn lanes_whose_records_are_dropped_leave_nothing_behind() {
        for is_marked in [false, true] {
            let mut lanes = Lanes::new(is_marked);
            for number in 0..100 {
                let key = Key::new(&format!("k{number}"));
                let message = Message::new("").with_key(key.unwrap_or_else(|_| unreachable!()));
                let of = lanes.number(&message);
                let lane = lanes.lane(&message, of, Stream::Live);
                lanes.push_back(lane, number, 0, 1);
                assert_eq!(lanes.ready.len(), 1);
                lanes.remove(lane, number, 1);
                assert!(lanes.ready.is_empty());
            }
            assert!(lanes.all.len() <= NUMBERED);
            assert_eq!(lanes.take_ready(), None);
        }
    }

    #[test]
    fn numbered_keys_spread_over_the_lanes() {
        let names: [fn(u32) -> String; 3] = [
            |n| format!("user-{n:04}"),
            |n| format!("order-{n}"),
            |n| format!("{n:05}"),
        ];
        for name in names {
            let mut lanes = [0_u32; ProducerMark::LANES as usize];
            for n in 0..1_600 {
                let key = lockgate_core::Key::new(&name(n)).unwrap();
                let lane = spread(key_hash(&key)) % u64::from(ProducerMark::LANES);
                lanes[usize::try_from(lane).unwrap()] += 1;
            }
            // A hundred each, if it were by lot.
            assert!(
                lanes.iter().all(|count| (60..=140).contains(count)),
                "{lanes:?}"
            );
        }
    }
}
