//! A hierarchical timer wheel: any number of deadlines, a millisecond apart or a century.
//!
//! Source: G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", 1987, scheme 7. Level
//! 0 has a slot for each of the 256 milliseconds of the cursor's block, level 1 a slot for each of
//! the 256 blocks around it, and so on; eight levels cover every `u64`. When the cursor enters a
//! slot above level 0, the slot's timers are spread over the levels below. So a timer moves at most
//! seven times in its life (at most once if it is less than a minute away), and inserting, removing
//! and firing are O(1) amortised.
//!
//! The paper leaves these points open:
//! - *Order.* Timers fire strictly by (deadline, order). When the cursor reaches a timer's
//!   millisecond, the timer joins the list of open timers if it comes behind the last of them, as
//!   nearly all do, and otherwise an ordered map next to the list.
//! - *Bounded steps.* A slot may hold all timers. [`Wheel::prepare`] moves a bounded number of them
//!   at a time, and the ones that are then ready can be fired without moving others.
//! - *A clock that steps back.* The cursor never goes back. A timer whose deadline the cursor has
//!   passed stays in the ordered map until its time has come; only timers in the map cost O(log n).
//! - *Waking.* Spreading a slot has no visible effect, but it is work that must happen when time
//!   reaches the slot. So [`Wheel::next_deadline`] may return the start of a slot, which is a lower
//!   bound of the true deadline, exact within 256 ms of the cursor.

mod image;

use std::collections::BTreeMap;

use crate::slab::{NONE, Slab};

/// Slots of a level. [`SLOT_BITS`] bits of a deadline select one of them.
const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = u8::BITS;

/// A set of timers.
#[derive(Clone, Debug)]
pub(crate) struct Wheel {
    nodes: Slab<Node>,
    /// Up to the highest level that was ever used.
    levels: Vec<Level>,
    /// Every timer in `levels` is later than this, and every slot that starts at or before this has
    /// been entered.
    cursor: u64,
    /// The first timer of the slot entered last that must still be moved to its place; none of
    /// these timers is before the cursor.
    entering: u32,
    /// The first of the timers that the cursor has reached, sorted by deadline and order; `next`
    /// links the others.
    open: u32,
    open_count: usize,
    /// Timers whose deadline the cursor had reached when they were inserted, or that it reached out
    /// of order, by deadline, order and index.
    behind: BTreeMap<(u64, u64, u32), ()>,
    /// Timers moved and removed, and slots entered: a measure of time spent.
    #[cfg(test)]
    pub(crate) work: u64,
}

/// How far [`Wheel::prepare`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// Enough timers are open, or there are no more.
    Enough,
    /// There may be more to do.
    OutOfMoves,
}

/// A timer that has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub(crate) deadline: u64,
    /// Its order among the timers of that millisecond.
    pub(crate) order: u64,
    /// The payload given to `insert`.
    pub(crate) payload: u64,
}

/// A timer in its slot.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    deadline: u64,
    order: u64,
    /// Neighbours in the circular list of the slot.
    previous: u32,
    next: u32,
    /// 48 bits without eight-byte alignment, which would cost eight more bytes.
    payload: [u16; 3],
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the slot that its deadline and the cursor select, or in the list that starts at `entering`.
    Slot,
    /// In the list that starts at `open`.
    Open,
    Behind,
}

#[derive(Clone, Debug)]
struct Level {
    /// Which slots have timers.
    occupied: [u64; SLOTS / 64],
    /// First timer of each slot's circular list.
    first: Box<[u32; SLOTS]>,
}

impl Wheel {
    /// An empty wheel.
    pub(crate) fn new() -> Self {
        Self {
            nodes: Slab::default(),
            levels: Vec::new(),
            cursor: 0,
            entering: NONE,
            open: NONE,
            open_count: 0,
            behind: BTreeMap::new(),
            #[cfg(test)]
            work: 0,
        }
    }

    /// Adds a timer. Of two timers of the same millisecond the one with the lower `order` fires first. Keeps
    /// the lowest 48 bits of the payload. Returns a handle that is valid until the timer fires or is removed.
    pub(crate) fn insert(&mut self, deadline: u64, order: u64, payload: u64) -> u32 {
        let place = if deadline > self.cursor {
            Place::Slot
        } else {
            Place::Behind
        };
        let handle = self.nodes.insert(Node {
            deadline,
            order,
            previous: NONE,
            next: NONE,
            payload: pack(payload),
            place,
        });
        match place {
            Place::Slot => self.put_in_slot(handle, deadline),
            _ => {
                self.behind.insert((deadline, order, handle), ());
            }
        }
        handle
    }

    /// Removes a timer.
    ///
    /// # Panics
    /// If there is no timer with this handle.
    pub(crate) fn remove(&mut self, handle: u32) -> Fired {
        self.note_work();
        let Node {
            deadline,
            order,
            place,
            ..
        } = self.nodes[handle];
        match place {
            Place::Behind => {
                self.behind.remove(&(deadline, order, handle));
            }
            Place::Open => {
                self.open = self.unlink(handle, self.open);
                self.open_count -= 1;
            }
            Place::Slot if handle == self.entering => {
                self.entering = self.unlink(handle, handle);
            }
            Place::Slot => {
                // An entering timer that is not the first of them is the first of no list.
                let (level, slot) = self.slot_of(deadline.max(self.cursor + 1));
                let first = self.levels.get(level).map(|level| level.first[slot]);
                let after = self.unlink(handle, handle);
                if first == Some(handle) {
                    self.levels[level].set_first(slot, after);
                }
            }
        }
        self.nodes.remove(handle).fired()
    }

    /// When the timer is due.
    ///
    /// # Panics
    /// If there is no timer with this handle.
    pub(crate) fn deadline(&self, handle: u32) -> u64 {
        self.nodes[handle].deadline
    }

    /// Reads the timer, so that it is in the processor's cache.
    pub(crate) fn prefetch(&self, handle: u32) -> u32 {
        self.nodes.get(handle).map_or(0, |node| node.next)
    }

    /// A time at which there will be something to do: never later than the earliest deadline, and
    /// never earlier than the time last given to [`pop_due`](Self::pop_due) unless something is due
    /// now. Checks each level.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        // Ready timers are no later than entering ones, and those no later than timers in slots.
        if let Some((deadline, _, _)) = self.first_ready() {
            Some(deadline)
        } else if self.entering != NONE {
            Some(self.cursor)
        } else {
            self.first_slot().map(|(_, _, start)| start)
        }
    }

    /// Whether [`pop_due`](Self::pop_due) has work: a timer to fire or a slot to enter.
    pub(crate) fn has_due(&self, now: u64) -> bool {
        self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Moves timers that are due by `now` to where they can be fired, until `enough` are open or
    /// there are no more. Each timer uses one of `moves`, and so does each slot. The moves have no
    /// visible effect.
    pub(crate) fn prepare(&mut self, now: u64, enough: usize, moves: &mut u32) -> Prepared {
        while *moves > 0 {
            if self.entering != NONE {
                self.place_one();
            } else if self.open_count >= enough || !self.turn(now) {
                return Prepared::Enough;
            }
            *moves -= 1;
        }
        Prepared::OutOfMoves
    }

    /// The payloads of the timers that are due by `now` and can be fired without moving others, in
    /// the order in which they fire, beginning with the earliest of all.
    pub(crate) fn ready(&self, now: u64) -> impl Iterator<Item = u64> {
        let is_entering = self.entering != NONE;
        let mut behind = self.behind.keys().copied().peekable();
        let mut open = (!is_entering).then_some(self.open);
        std::iter::from_fn(move || {
            let first_open = open.and_then(|handle| self.key(handle));
            let from_behind = match (behind.peek(), first_open) {
                _ if is_entering => return None,
                (None, None) => return None,
                (Some(behind), Some(open)) => *behind < open,
                (behind, _) => behind.is_some(),
            };
            let (deadline, _, handle) = if from_behind {
                behind.next()?
            } else {
                let first = first_open?;
                let next = self.nodes[first.2].next;
                open = (next != self.open).then_some(next);
                first
            };
            (deadline <= now).then(|| unpack(self.nodes[handle].payload))
        })
    }

    /// Removes and returns the earliest timer if its deadline is not after `now`; moves timers as needed.
    /// Call it until it returns `None`; then [`has_due`](Self::has_due) is false until `now` is later.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<Fired> {
        loop {
            while self.entering != NONE {
                self.place_one();
            }
            if let Some((deadline, _, handle)) = self.first_ready() {
                return (deadline <= now).then(|| self.remove(handle));
            }
            if !self.turn(now) {
                return None;
            }
        }
    }

    /// The earliest of the timers that are open or behind: its deadline, order and handle.
    fn first_ready(&self) -> Option<(u64, u64, u32)> {
        let behind = self.behind.first_key_value().map(|(&key, ())| key);
        behind.into_iter().chain(self.key(self.open)).min()
    }

    fn key(&self, handle: u32) -> Option<(u64, u64, u32)> {
        let node = self.nodes.get(handle)?;
        Some((node.deadline, node.order, handle))
    }

    #[cfg_attr(
        not(test),
        expect(clippy::unused_self, reason = "counts in tests only")
    )]
    fn note_work(&mut self) {
        #[cfg(test)]
        {
            self.work += 1;
        }
    }

    /// How many timers there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no timer.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Heap memory held, in bytes; the map of timers behind the cursor as an estimate.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.bytes()
            + self.levels.capacity() * size_of::<Level>()
            + self.levels.len() * size_of::<[u32; SLOTS]>()
            + self.behind.len() * 2 * size_of::<(u64, u64, u32)>()
    }

    /// Enters the next slot if it starts by `now`; otherwise moves the cursor to `now`. Returns
    /// whether there was such a slot. No timer may be entering.
    fn turn(&mut self, now: u64) -> bool {
        self.note_work();
        let Some((level, slot, start)) = self.first_slot().filter(|&(_, _, start)| start <= now)
        else {
            self.cursor = self.cursor.max(now);
            return false;
        };
        self.entering = self.levels[level].first[slot];
        self.levels[level].set_first(slot, NONE);
        self.cursor = start;
        true
    }

    /// Moves the first of the entering timers to its place.
    fn place_one(&mut self) {
        self.note_work();
        let handle = self.entering;
        self.entering = self.unlink(handle, handle);
        let Node {
            deadline, order, ..
        } = self.nodes[handle];
        if deadline > self.cursor {
            self.nodes[handle].place = Place::Slot;
            self.put_in_slot(handle, deadline);
            return;
        }
        let last = self.nodes.get(self.open).map(|first| first.previous);
        let is_last = last
            .and_then(|last| self.key(last))
            .is_none_or(|last| last <= (deadline, order, handle));
        if is_last {
            self.nodes[handle].place = Place::Open;
            self.open = self.append(handle, self.open);
            self.open_count += 1;
        } else {
            self.nodes[handle].place = Place::Behind;
            self.behind.insert((deadline, order, handle), ());
        }
    }

    /// Appends a timer later than the cursor to its slot.
    fn put_in_slot(&mut self, handle: u32, deadline: u64) {
        let (level, slot) = self.slot_of(deadline);
        while self.levels.len() <= level {
            self.levels.push(Level::new());
        }
        let first = self.append(handle, self.levels[level].first[slot]);
        self.levels[level].set_first(slot, first);
    }

    /// Appends a timer to the circular list that starts at `first`, and returns the list's first.
    fn append(&mut self, handle: u32, first: u32) -> u32 {
        if first == NONE {
            self.link(handle, handle);
            return handle;
        }
        let last = self.nodes[first].previous;
        self.link(last, handle);
        self.link(handle, first);
        first
    }

    fn link(&mut self, left: u32, right: u32) {
        self.nodes[left].next = right;
        self.nodes[right].previous = left;
    }

    /// Removes a timer from its circular list and returns the list's new first timer.
    fn unlink(&mut self, handle: u32, first: u32) -> u32 {
        let Node { previous, next, .. } = self.nodes[handle];
        if next == handle {
            return NONE;
        }
        self.link(previous, next);
        if first == handle { next } else { first }
    }

    /// The slot for a deadline later than the cursor: its level is that of the highest digit in which the two
    /// differ, and its number is the deadline's digit there. It stays the same until the cursor enters it.
    fn slot_of(&self, deadline: u64) -> (usize, usize) {
        let level = (deadline ^ self.cursor).ilog2() / SLOT_BITS;
        (level as usize, digit(deadline, level))
    }

    /// The earliest slot with timers: its level, its number, and its start. Lower levels are
    /// earlier, because they belong to the cursor's own block of the level above.
    fn first_slot(&self) -> Option<(usize, usize, u64)> {
        (0..).zip(&self.levels).find_map(|(number, level)| {
            let slot = level.first_occupied()?;
            let shift = number * SLOT_BITS;
            let above = self.cursor.checked_shr(shift + SLOT_BITS).unwrap_or(0);
            let block = above.checked_shl(shift + SLOT_BITS).unwrap_or(0);
            Some((number as usize, slot, block | ((slot as u64) << shift)))
        })
    }
}

impl Node {
    fn fired(self) -> Fired {
        Fired {
            deadline: self.deadline,
            order: self.order,
            payload: unpack(self.payload),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "split into its 16-bit parts"
)]
fn pack(payload: u64) -> [u16; 3] {
    debug_assert!(payload < 1 << 48, "a payload has 48 bits");
    [
        payload as u16,
        (payload >> 16) as u16,
        (payload >> 32) as u16,
    ]
}

fn unpack([low, middle, high]: [u16; 3]) -> u64 {
    u64::from(low) | u64::from(middle) << 16 | u64::from(high) << 32
}

impl Level {
    fn new() -> Self {
        Self {
            occupied: [0; SLOTS / 64],
            first: Box::new([NONE; SLOTS]),
        }
    }

    fn set_first(&mut self, slot: usize, first: u32) {
        self.first[slot] = first;
        let bit = 1 << (slot % 64);
        if first == NONE {
            self.occupied[slot / 64] &= !bit;
        } else {
            self.occupied[slot / 64] |= bit;
        }
    }

    fn first_occupied(&self) -> Option<usize> {
        let word = self.occupied.iter().position(|&word| word != 0)?;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }
}

/// A deadline's digit of a level; a digit is a byte.
fn digit(deadline: u64, level: u32) -> usize {
    usize::from(deadline.to_le_bytes()[level as usize])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(wheel: &mut Wheel, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| wheel.pop_due(now))
            .map(|fired| fired.payload)
            .collect()
    }

    #[test]
    fn a_timer_takes_32_bytes() {
        assert_eq!(size_of::<Node>(), 32);
        let mut slab = Slab::<Node>::default();
        let mut wheel = Wheel::new();
        assert_eq!(wheel.bytes(), 0);
        for order in 0..4096 {
            wheel.insert(1000, order, 0);
            slab.insert(wheel.nodes[0].clone());
        }
        assert!(slab.bytes() < 4096 * 37, "no byte for the slot's state");
    }

    #[test]
    fn every_distance_fires_exactly_at_its_time() {
        let start = 1_700_000_000_123;
        for bit in 0..64 {
            for offset in [0, 1, 255] {
                let mut wheel = Wheel::new();
                assert!(drain(&mut wheel, start).is_empty());
                let deadline = start.saturating_add((1 << bit) + offset);
                wheel.insert(deadline, 0, 7);
                // Advancing only to the times that the wheel returns must find the work, in few steps.
                let mut steps = 0;
                let mut now = start;
                while let Some(next) = wheel.next_deadline() {
                    assert!(now < next && next <= deadline, "{now} {next} {deadline}");
                    now = next;
                    assert!(wheel.has_due(now));
                    let fired = wheel.pop_due(now);
                    assert_eq!(fired.is_some(), now == deadline);
                    steps += 1;
                }
                assert!(now == deadline && steps <= 8, "{steps} steps");
            }
        }
    }

    #[test]
    fn the_last_millisecond_of_time_is_a_deadline_like_any_other() {
        let mut wheel = Wheel::new();
        wheel.insert(u64::MAX, 1, 1);
        wheel.insert(u64::MAX - 1, 2, 2);
        assert!(drain(&mut wheel, u64::MAX - 2).is_empty());
        assert_eq!(drain(&mut wheel, u64::MAX), [2, 1]);
        wheel.insert(u64::MAX, 1, 1);
        assert_eq!(drain(&mut wheel, u64::MAX), [1]);
    }

    #[test]
    fn a_timer_set_after_the_clock_stepped_back_waits_for_its_time() {
        let mut wheel = Wheel::new();
        assert!(drain(&mut wheel, 10_000).is_empty());
        wheel.insert(9_000, 0, 1);
        wheel.insert(8_500, 0, 2);
        wheel.insert(10_001, 0, 3);
        assert!(!wheel.has_due(8_000) && drain(&mut wheel, 8_000).is_empty());
        assert_eq!(wheel.next_deadline(), Some(8_500));
        assert_eq!(drain(&mut wheel, 8_999), [2]);
        assert_eq!(drain(&mut wheel, 10_000), [1]);
        assert_eq!(drain(&mut wheel, 10_001), [3]);
    }

    #[test]
    fn a_million_timers_of_one_millisecond_fire_in_order() {
        // Quadratic work would take hours here, with or without another slot to pass first.
        for deadline in [5, 256, 1 << 40, (1 << 40) + 3] {
            let mut wheel = Wheel::new();
            let count = 1_000_000;
            for number in 0..count {
                wheel.insert(deadline, (number * 7919) % count, number);
            }
            let mut expected = 0;
            while let Some(fired) = wheel.pop_due(deadline) {
                assert_eq!(fired.order, expected);
                expected += 1;
            }
            assert_eq!(expected, count);
            assert!(wheel.is_empty());
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { after: i64, order: u64 },
        Remove { which: usize },
        Move { by: i64 },
        Fire { at_most: usize },
        Prepare { enough: usize, moves: u32 },
    }

    fn distance() -> impl Strategy<Value = i64> {
        prop_oneof![
            4 => -3..20_i64,
            2 => -2_000..2_000_i64,
            2 => 0..200_000_i64,
            1 => (0..50_u32).prop_map(|bit| 1 << bit),
        ]
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => (distance(), 0..5_u64).prop_map(|(after, order)| Step::Insert { after, order }),
            2 => any::<usize>().prop_map(|which| Step::Remove { which }),
            2 => distance().prop_map(|by| Step::Move { by }),
            1 => (-5_000..0_i64).prop_map(|by| Step::Move { by }),
            2 => (0..6_usize).prop_map(|at_most| Step::Fire { at_most }),
            3 => (0..4_usize, 0..9_u32)
                .prop_map(|(enough, moves)| Step::Prepare { enough, moves }),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn does_what_a_sorted_map_does(start in prop_oneof![Just(0), any::<u32>().prop_map(u64::from)], steps in steps()) {
            let mut wheel = Wheel::new();
            // Each timer by deadline and order; the handle makes it unique.
            let mut sorted = BTreeMap::new();
            let mut now = start;
            for (number, step) in (0..).zip(steps) {
                match step {
                    Step::Insert { after, order } => {
                        let deadline = now.saturating_add_signed(after);
                        let order = order << 32 | number;
                        let handle = wheel.insert(deadline, order, number);
                        sorted.insert((deadline, order), (handle, number));
                    }
                    Step::Remove { which } if !sorted.is_empty() => {
                        let (&(deadline, order), &(handle, payload)) =
                            sorted.iter().nth(which % sorted.len()).unwrap();
                        let expected = Fired { deadline, order, payload };
                        prop_assert_eq!(wheel.remove(handle), expected);
                        sorted.remove(&(deadline, order));
                    }
                    Step::Remove { .. } => {}
                    Step::Move { by } => now = now.saturating_add_signed(by),
                    Step::Prepare { enough, mut moves } => {
                        let (allowed, before) = (u64::from(moves), wheel.work);
                        let is_ready = wheel.prepare(now, enough, &mut moves) == Prepared::Enough;
                        // The last of them may be the look that finds no slot.
                        prop_assert!(wheel.work - before <= allowed + u64::from(is_ready));
                        let due = sorted.iter().take_while(|&(&(deadline, _), _)| deadline <= now);
                        let due: Vec<u64> = due.map(|(_, &(_, payload))| payload).collect();
                        let ready: Vec<u64> = wheel.ready(now).collect();
                        prop_assert!(due.starts_with(&ready), "{:?} of {:?}", ready, due);
                        prop_assert!(!is_ready || ready.len() >= enough.min(due.len()));
                        let before = wheel.work;
                        if let Some(first) = ready.first() {
                            let key = *sorted.first_key_value().unwrap().0;
                            prop_assert_eq!(wheel.pop_due(now).unwrap().payload, *first);
                            prop_assert_eq!(wheel.work - before, 1, "what is ready needs no move");
                            sorted.remove(&key);
                        }
                    }
                    Step::Fire { at_most } => {
                        for _ in 0..at_most {
                            let first = sorted.first_key_value().map(|(&key, &value)| (key, value));
                            let due = first.filter(|&((deadline, _), _)| deadline <= now);
                            prop_assert!(due.is_none() || wheel.has_due(now));
                            let expected = due.map(|((deadline, order), (_, payload))| {
                                sorted.remove(&(deadline, order));
                                Fired { deadline, order, payload }
                            });
                            prop_assert_eq!(wheel.pop_due(now), expected);
                            if expected.is_none() {
                                prop_assert!(!wheel.has_due(now), "work left that is not due");
                            }
                        }
                    }
                }
                prop_assert_eq!(wheel.len(), sorted.len());
                let bound = wheel.next_deadline();
                prop_assert_eq!(bound.is_some(), !sorted.is_empty());
                if let Some((&(deadline, _), _)) = sorted.first_key_value() {
                    prop_assert!(bound.unwrap() <= deadline, "later than the true one");
                }
            }
        }
    }
}
