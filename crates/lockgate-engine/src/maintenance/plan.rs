//! What is to be done next to keep a log small: pure, from what is known of log and machine.
//!
//! # Bounds
//! - *Recovery* reads a snapshot and at most what was appended since: the larger of
//!   [`snapshot_bytes_min`](crate::EngineOptions::snapshot_bytes_min) and [`IMAGES_PER_SNAPSHOT`]
//!   times the snapshot's size.
//! - *Snapshots* write at most three sixteenths of what is appended. One that is due is paid by eight
//!   times its size, appended since the one before it. An early one is paid by sixteen times its size
//!   of empty ranges behind the trim, thus appended since the two before it. So each byte pays at most
//!   an eighth to the snapshot behind it and a sixteenth to the next one. And when the state has become
//!   small, one is paid by the large one it replaces: a sixteenth of that once more.
//! - *While a backlog shrinks*, what it shrinks by pays beside that: [`DRAINED_PERCENT`] percent of it, for
//!   compaction and for early snapshots that bring back as much as they write. So the space of a drained log
//!   comes back also where a large state is left, such as the ids of the last minutes.
//! - *Compaction* writes at most [`COMPACTED_PERCENT`] percent of what is accepted. A start
//!   brings [`COMPACTED_PERCENT`] percent of what is held, less what was appended since the snapshot it
//!   began with: starts without a snapshot between them bring that much together, not each.
//! - *Together*, in steady use, 1.16 times 1 3/16: below 1.38 times what is accepted. Not counted: the
//!   log's own headers and zeros, a backlog that fills and empties over and over, and a full disk,
//!   where room is worth more than writes.
//! - *Space*: while there is credit, at most [`SLACK_PERCENT`] percent more than what lives and two
//!   ranges, beside what was appended since the older snapshot. Where nothing is appended any more and
//!   that is worth a snapshot, the plan has a record appended to take it behind.
//!
//! Ranges with the lowest live share go first, which costs least for what it brings: the greedy
//! cleaner of M. Rosenblum and J. Ousterhout, "The Design and Implementation of a Log-Structured File
//! System", 1992.

use std::collections::BTreeMap;

use lockgate_core::{LogRange, MachineTime, Millis, Position, SpaceState};
use lockgate_machine::LiveRange;

/// A snapshot is taken when so many times its size was appended.
pub(super) const IMAGES_PER_SNAPSHOT: u64 = 8;
/// An early snapshot must bring back so many times its size. Twice the above, because what is empty
/// waits for two snapshots and may be the reason for both.
const IMAGES_PER_EARLY_SNAPSHOT: u64 = 2 * IMAGES_PER_SNAPSHOT;
/// And such a part of the log, or this one if what a backlog shrank by pays for it.
const PART_EARLY: u64 = 8;
const PART_DRAINED: u64 = 16;
/// A snapshot smaller than this is not worth another one that takes its place.
const REPLACED_BYTES_MIN: u64 = 1 << 20;
/// On a full disk there are not more snapshots than one for so many bytes.
const READY_BYTES_MIN: u64 = 1 << 20;
/// How many bytes may be compacted for 100 that are accepted.
pub(super) const COMPACTED_PERCENT: u64 = 16;
/// How many bytes may be compacted, or written to early snapshots, for 100 by which the live ones have become
/// fewer.
const DRAINED_PERCENT: u64 = 80;
/// How much more than what lives the log may take, in percent, before something is compacted.
const SLACK_PERCENT: u64 = 15;
/// A range with more live bytes than this, in percent, is left alone: it gives back too little.
const LIVE_PERCENT_MAX: u64 = 60;
/// How long to wait after a snapshot failed, doubled by each further failure up to the second.
const RETRY_MS: (Millis, Millis) = (1_000, 60_000);

/// What the plan knows of itself.
#[derive(Debug)]
pub(crate) struct Plan {
    snapshot_bytes_min: u64,
    range_bits: u32,
    /// Positions of complete snapshots, newest first, and their bytes: the first two are kept. Of those
    /// that an earlier life took the bytes are not known, and 0.
    snapshots: Vec<(Position, u64)>,
    /// How many bytes the newest one of this life had been estimated at.
    estimated: u64,
    /// Bytes appended since the newest one, or since the beginning.
    since_snapshot: u64,
    /// Bytes that may be compacted, for what was accepted. A little can be saved up. Negative: more
    /// was compacted than had been estimated, and nothing is until it is earned back.
    credit: i64,
    /// The same, for what the backlog shrank by.
    drained: u64,
    /// Live bytes below which shrinking brings credit: the fewest there were, but never less than nine
    /// tenths of what there is, so that going up and down a little brings nothing.
    low_water: u64,
    /// Ranges without a live message, and how far the log was when that was seen.
    dead: BTreeMap<Position, Position>,
    /// A maintenance task is being done.
    busy: bool,
    failures: u32,
    retry_at: MachineTime,
    /// The newest snapshot when something was appended only so that there can be another one.
    advanced_behind: Position,
    /// Ranges that were compacted from and are not empty: something in them cannot be read. Not
    /// tried again in this life.
    unreadable_ranges: BTreeMap<Position, u64>,
    /// Snapshots found that could not be loaded. They stay until there is a newer one.
    unreadable: Vec<Position>,
    /// For a log that gives back only its beginning: how far that is dead and durably so, and how
    /// far it is dead, with how far the log was when that was seen.
    settled: Position,
    settling: Option<(Position, Position)>,
}

/// What there is to decide upon.
pub(crate) struct View<'a> {
    pub(crate) now: MachineTime,
    /// Behind the last record appended.
    pub(crate) tail: Position,
    /// Everything before it is durable.
    pub(crate) durable: Position,
    pub(crate) image_bytes: u64,
    /// All ranges the log holds, in order.
    pub(crate) ranges: &'a [LogRange],
    /// Live messages by the first position of their range.
    pub(crate) live: &'a BTreeMap<Position, LiveRange>,
    pub(crate) is_pinned: &'a dyn Fn(Position) -> bool,
    pub(crate) space: SpaceState,
    /// Bytes that can be appended without taking more of the disk.
    pub(crate) ready_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Nothing,
    Snapshot,
    /// Append something, so that there can be a snapshot behind the newest one.
    Advance,
    /// Move what lives in the range forward.
    Compact(LogRange),
}

impl Plan {
    /// At the start of a term. `snapshots`: newest first, from the one that was loaded on;
    /// `unreadable`: newer ones that could not be; `since_snapshot`: bytes recovered behind the one
    /// that was.
    pub(crate) fn new(
        snapshot_bytes_min: u64,
        range_bits: u32,
        snapshots: Vec<Position>,
        unreadable: Vec<Position>,
        since_snapshot: u64,
        held_bytes: u64,
    ) -> Self {
        Self {
            snapshot_bytes_min,
            range_bits,
            snapshots: snapshots.into_iter().map(|at| (at, 0)).collect(),
            estimated: 0,
            since_snapshot,
            // What was not spent before the start is forgotten; some is given, so that a log of old
            // messages can be made smaller although nothing new comes. What lies behind the snapshot
            // may have been written for just that by starts before this one.
            credit: signed((held_bytes / 100 * COMPACTED_PERCENT).saturating_sub(since_snapshot)),
            drained: 0,
            low_water: 0,
            dead: BTreeMap::new(),
            busy: false,
            failures: 0,
            retry_at: MachineTime(0),
            advanced_behind: Position(0),
            unreadable_ranges: BTreeMap::new(),
            unreadable,
            settled: Position(0),
            settling: None,
        }
    }

    /// A group was appended, with so many bytes of compacted messages in it.
    pub(crate) fn appended(&mut self, bytes: u64, compacted: u64) {
        self.since_snapshot += bytes;
        let from_drained = compacted
            .saturating_sub(self.credit.try_into().unwrap_or(0))
            .min(self.drained);
        self.drained -= from_drained;
        self.credit = self.credit.saturating_sub(signed(compacted - from_drained));
        let earned = bytes.saturating_sub(compacted) * COMPACTED_PERCENT / 100;
        self.credit = self.credit.saturating_add(signed(earned));
    }

    /// Whether something is to be done that waits for a sync, a reader or a time.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.dead.is_empty() || self.settling.is_some() || self.failures > 0
    }

    /// Bytes appended since the newest snapshot.
    pub(crate) fn since_snapshot(&self) -> u64 {
        self.since_snapshot
    }

    /// No recovery starts before it: the position of the older of the two newest snapshots.
    pub(crate) fn trim(&self) -> Position {
        self.snapshots.get(1).map_or(Position(0), |&(at, _)| at)
    }

    /// The position of the newest snapshot.
    fn newest(&self) -> Position {
        self.snapshots.first().map_or(Position(0), |&(at, _)| at)
    }

    /// The same for a log that loses all that is before it: what starts at `needed` lives or is read,
    /// and what is before that must be gone durably.
    pub(crate) fn trim_until(
        &mut self,
        needed: Position,
        tail: Position,
        durable: Position,
    ) -> Position {
        if let Some((settled, _)) = self.settling.take_if(|(_, seen)| *seen <= durable) {
            self.settled = settled;
        }
        if needed > self.settled {
            self.settling.get_or_insert((needed, tail));
        }
        self.trim().min(self.settled)
    }

    /// Ranges that may be given back now. Sees to it that each waits until what emptied it is
    /// durable.
    pub(crate) fn releases(&mut self, view: &View<'_>) -> Vec<Position> {
        let trim = self.trim();
        let mut ready = Vec::new();
        let mut dead = BTreeMap::new();
        for range in view.ranges {
            if self.behind(range.first) > trim.0 || view.live.contains_key(&range.first) {
                continue;
            }
            let seen = self.dead.get(&range.first).copied().unwrap_or(view.tail);
            if seen <= view.durable && !(view.is_pinned)(range.first) {
                ready.push(range.first);
            } else {
                dead.insert(range.first, seen);
            }
        }
        self.dead = dead;
        ready
    }

    /// What to begin now. [`finished`](Self::finished) says when it is done.
    pub(crate) fn choose(&mut self, view: &View<'_>) -> Choice {
        if self.busy {
            return Choice::Nothing;
        }
        let choice = self.best(view);
        self.busy = choice != Choice::Nothing;
        choice
    }

    fn best(&mut self, view: &View<'_>) -> Choice {
        self.note_live(view);
        if view.now >= self.retry_at {
            if self.is_snapshot_due(view) {
                return Choice::Snapshot;
            }
            if !self.has_nothing_new(view) && self.is_worth_an_early_one(view) {
                if self.is_paid_by_drained(view) {
                    self.drained -= view.image_bytes;
                }
                return Choice::Snapshot;
            }
            if self.wants_advance(view) {
                return Choice::Advance;
            }
        }
        match self.costly(view) {
            Some(range) => Choice::Compact(range),
            None => Choice::Nothing,
        }
    }

    /// Counts by how much the backlog has shrunk.
    fn note_live(&mut self, view: &View<'_>) {
        let alive: u64 = view.live.values().map(|live| live.bytes).sum();
        if alive < self.low_water {
            self.drained += (self.low_water - alive) / 100 * DRAINED_PERCENT;
        }
        self.low_water = self.low_water.min(alive).max(alive - alive / 10);
        let held: u64 = view.ranges.iter().map(|range| range.bytes).sum();
        // Saved up without end, it would break the bound later.
        self.drained = self.drained.min(held);
    }

    fn is_snapshot_due(&self, view: &View<'_>) -> bool {
        if self.has_nothing_new(view) {
            return false;
        }
        let wanted = self
            .snapshot_bytes_min
            .max(IMAGES_PER_SNAPSHOT.saturating_mul(view.image_bytes));
        // On a full disk room is worth more than writes, and what is left is to be enough until this one has
        // brought some back.
        let wanted = match view.space {
            SpaceState::Full => (wanted / 8).min(view.ready_bytes.max(READY_BYTES_MIN)),
            _ => wanted,
        };
        self.since_snapshot >= wanted
    }

    /// Whether what the backlog shrank by pays for a snapshot.
    fn is_paid_by_drained(&self, view: &View<'_>) -> bool {
        self.drained > 0 && self.drained >= view.image_bytes
    }

    /// A snapshot now would be the newest one once more.
    fn has_nothing_new(&self, view: &View<'_>) -> bool {
        view.tail <= self.newest() || self.since_snapshot == 0
    }

    /// Nobody appends any more, and what one more snapshot would bring back waits for that: the log of a
    /// queue that was drained for the night, or of one that was purged before there was a second.
    fn wants_advance(&self, view: &View<'_>) -> bool {
        let newest = self.newest();
        // Once: where that does not help, the next time would not either.
        self.has_nothing_new(view)
            && self.advanced_behind != newest
            && !self.snapshots.is_empty()
            && self.is_worth_an_early_one(view)
    }

    /// Whether a snapshot brings back more than it costs.
    fn is_worth_an_early_one(&self, view: &View<'_>) -> bool {
        // What is empty already and only waits for the trim, which follows one snapshot behind.
        let trim = self.trim();
        let waits = |range: &&LogRange| {
            let behind = self.behind(range.first);
            behind > trim.0 && behind <= view.tail.0 && !view.live.contains_key(&range.first)
        };
        let gain: u64 = view
            .ranges
            .iter()
            .filter(waits)
            .map(|range| range.bytes)
            .sum();
        let held: u64 = view.ranges.iter().map(|range| range.bytes).sum();
        let (worth, part) = if self.is_paid_by_drained(view) {
            (self.expected_bytes(view), PART_DRAINED)
        } else {
            let worth = IMAGES_PER_EARLY_SNAPSHOT.saturating_mul(view.image_bytes);
            (worth, PART_EARLY)
        };
        (gain > 0 && gain >= worth.max(held / part)) || self.is_replaced_by_a_small_one(view)
    }

    /// How large a snapshot would be, as far as the last one tells: the estimate does not know how long texts are.
    fn expected_bytes(&self, view: &View<'_>) -> u64 {
        let Some(&(_, newest @ 1..)) = self.snapshots.first() else {
            return view.image_bytes;
        };
        let was = u128::from(self.estimated.max(1));
        let expected = u128::from(view.image_bytes) * u128::from(newest) / was;
        u64::try_from(expected).unwrap_or(u64::MAX)
    }

    /// Large snapshots of what has become small: the older one goes now, the newer one next.
    fn is_replaced_by_a_small_one(&self, view: &View<'_>) -> bool {
        let &[_, (_, older)] = &self.snapshots[..] else {
            return false;
        };
        // As far as the last one was larger so is this one: else there would be a snapshot for every few bytes.
        let expected = self.expected_bytes(view).max(view.image_bytes);
        let times = if self.is_paid_by_drained(view) {
            // It takes as much itself.
            2
        } else {
            IMAGES_PER_EARLY_SNAPSHOT
        };
        let worth = u128::from(expected) * u128::from(times);
        older >= REPLACED_BYTES_MIN && u128::from(older) >= worth
    }

    /// The range whose live messages are worth moving.
    fn costly(&mut self, view: &View<'_>) -> Option<LogRange> {
        let held: u64 = view.ranges.iter().map(|range| range.bytes).sum();
        let alive: u64 = view.live.values().map(|live| live.bytes).sum();
        let largest = view.ranges.iter().map(|range| range.bytes).max()?;
        // Saved up without end, it would break the bound later.
        self.credit = self.credit.min(signed(largest.max(held / 10)));
        if held <= alive + alive / 100 * SLACK_PERCENT + 2 * largest {
            return None;
        }
        // What it empties comes back with the next snapshot.
        let newest = self.newest();
        let live_in = |range: &LogRange| view.live.get(&range.first).copied().unwrap_or_default();
        let share =
            |range: &LogRange| live_in(range).bytes.saturating_mul(1_000) / range.bytes.max(1);
        view.ranges
            .iter()
            .filter(|range| self.behind(range.first) <= newest.0)
            .filter(|range| {
                let live = live_in(range);
                let tried = self.unreadable_ranges.get(&range.first);
                live.messages > 0 && tried.is_none_or(|&left| live.messages < left)
            })
            .filter(|range| share(range) <= LIVE_PERCENT_MAX * 10)
            .min_by_key(|range| share(range))
            .filter(|range| {
                // Two snapshots bring back what is left when nothing is to be moved any more.
                let drained = (self.drained).saturating_sub(2 * view.image_bytes);
                let allowed = self.credit.saturating_add(signed(drained));
                signed(live_in(range).bytes) <= allowed
            })
            .copied()
    }

    /// The snapshot that was begun at `position` is complete, of so many bytes where so many had been
    /// estimated. What is not needed beside it: older ones, to be removed.
    pub(crate) fn snapshot_finished(
        &mut self,
        position: Position,
        bytes: u64,
        estimated: u64,
        appended_since: u64,
    ) -> Vec<Position> {
        self.busy = false;
        self.failures = 0;
        self.since_snapshot = appended_since;
        self.snapshots.insert(0, (position, bytes));
        self.estimated = estimated;
        let older = self.snapshots.split_off(self.snapshots.len().min(2));
        let mut unneeded: Vec<_> = older.into_iter().map(|(at, _)| at).collect();
        // Once it is newer than they are, the next start would take them for the older one.
        unneeded.append(&mut self.unreadable);
        unneeded
    }

    /// The snapshot was given up. Whether that is the first one since one succeeded.
    pub(crate) fn snapshot_failed(&mut self, now: MachineTime) -> bool {
        self.busy = false;
        let wait = RETRY_MS.0.checked_shl(self.failures).unwrap_or(RETRY_MS.1);
        self.failures = (self.failures + 1).min(16);
        self.retry_at = now.plus(wait.min(RETRY_MS.1));
        self.failures == 1
    }

    /// Something was appended behind the newest snapshot, or could not be.
    pub(crate) fn advanced(&mut self) {
        self.busy = false;
        self.advanced_behind = self.newest();
    }

    /// Whatever lives in the range could be moved was; so many messages are still there.
    pub(crate) fn compacted(&mut self, range: Position, left: u64) {
        self.busy = false;
        if left > 0 {
            self.unreadable_ranges.insert(range, left);
        }
    }

    /// The first position behind the range that starts there.
    pub(super) fn behind(&self, first: Position) -> u64 {
        first.range(self.range_bits).end.0
    }
}

/// A number of bytes that is added to and taken from.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BITS: u32 = 10;

    fn range(number: u64) -> LogRange {
        LogRange {
            first: Position(number << BITS),
            bytes: 1 << BITS,
        }
    }

    fn live(entries: &[(u64, u64)]) -> BTreeMap<Position, LiveRange> {
        entries
            .iter()
            .map(|&(number, bytes)| {
                let messages = bytes.div_ceil(100);
                (range(number).first, LiveRange { messages, bytes })
            })
            .collect()
    }

    struct World {
        ranges: Vec<LogRange>,
        live: BTreeMap<Position, LiveRange>,
        tail: Position,
        durable: Position,
        pinned: Vec<Position>,
        image_bytes: u64,
        space: SpaceState,
        ready_bytes: u64,
    }

    impl World {
        fn new(ranges: u64, entries: &[(u64, u64)]) -> Self {
            Self {
                ranges: (0..ranges).map(range).collect(),
                live: live(entries),
                tail: Position(ranges << BITS),
                durable: Position(ranges << BITS),
                pinned: vec![],
                image_bytes: 10,
                space: SpaceState::Normal,
                ready_bytes: u64::MAX,
            }
        }

        fn with<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
            let is_pinned = |at: Position| self.pinned.contains(&at);
            look(&View {
                now: MachineTime(0),
                tail: self.tail,
                durable: self.durable,
                image_bytes: self.image_bytes,
                ranges: &self.ranges,
                live: &self.live,
                is_pinned: &is_pinned,
                space: self.space,
                ready_bytes: self.ready_bytes,
            })
        }
    }

    fn plan(snapshots: &[u64], since: u64, held: u64) -> Plan {
        let snapshots = snapshots.iter().map(|&at| Position(at)).collect();
        Plan::new(4_096, BITS, snapshots, vec![], since, held)
    }

    #[test]
    fn a_range_is_released_when_it_is_empty_before_the_trim_durable_and_unread() {
        let mut world = World::new(8, &[(1, 100)]);
        let mut plan = plan(&[7 << BITS, 4 << BITS], 0, 0);
        world.durable = Position(0);
        assert_eq!(world.with(|view| plan.releases(view)), []);
        // What was seen empty at that tail is durable now; range 2 is read from.
        world.durable = world.tail;
        world.tail = Position(9 << BITS);
        world.pinned = vec![range(2).first];
        let first = |number| range(number).first;
        assert_eq!(world.with(|view| plan.releases(view)), [first(0), first(3)]);
        world
            .ranges
            .retain(|range| ![first(0), first(3)].contains(&range.first));
        world.pinned.clear();
        assert_eq!(world.with(|view| plan.releases(view)), [first(2)]);
        // Range 1 lives, and the others are not before the older snapshot.
    }

    #[test]
    fn a_range_that_was_seen_empty_later_waits_longer() {
        let mut world = World::new(8, &[(0, 1)]);
        let mut plan = plan(&[7 << BITS, 4 << BITS], 0, 0);
        world.durable = Position(5 << BITS);
        assert_eq!(world.with(|view| plan.releases(view)), []);
        world.live.clear();
        world.tail = Position(20 << BITS);
        world.durable = Position(8 << BITS);
        let ready = world.with(|view| plan.releases(view));
        assert_eq!(ready, [1, 2, 3].map(|number| range(number).first));
    }

    #[test]
    fn snapshots_follow_what_was_appended_and_what_they_bring() {
        let mut world = World::new(8, &[(7, 900)]);
        world.ranges = (7..8).map(range).collect();
        let choose = |world: &World, plan: &mut Plan| world.with(|view| plan.choose(view));
        assert_eq!(
            choose(&world, &mut plan(&[7 << BITS], 4_095, 0)),
            Choice::Nothing
        );
        assert_eq!(
            choose(&world, &mut plan(&[7 << BITS], 4_096, 0)),
            Choice::Snapshot
        );
        world.image_bytes = 1_000;
        assert_eq!(
            choose(&world, &mut plan(&[7 << BITS], 7_999, 0)),
            Choice::Nothing
        );
        assert_eq!(
            choose(&world, &mut plan(&[7 << BITS], 8_000, 0)),
            Choice::Snapshot
        );
        world.space = SpaceState::Full;
        assert_eq!(
            choose(&world, &mut plan(&[7 << BITS], 1_000, 0)),
            Choice::Snapshot
        );
        // Nothing new to write down.
        assert_eq!(
            choose(&world, &mut plan(&[8 << BITS], 9_999, 0)),
            Choice::Nothing
        );
        // Dead ranges behind the trim: with the next snapshot, and the one after it, they come back.
        let mut drained = World::new(8, &[(0, 900), (1, 900), (2, 900), (3, 900)]);
        drained.image_bytes = 100;
        let mut small = plan(&[7 << BITS, 5 << BITS], 10, 0);
        assert_eq!(choose(&drained, &mut small), Choice::Snapshot);
        assert_eq!(
            choose(&drained, &mut small),
            Choice::Nothing,
            "one at a time"
        );
        // Three ranges, so a snapshot may take a sixteenth of them and no more.
        for (image_bytes, choice) in [(192, Choice::Snapshot), (193, Choice::Nothing)] {
            drained.image_bytes = image_bytes;
            let mut plan = plan(&[7 << BITS, 5 << BITS], 10, 0);
            assert_eq!(choose(&drained, &mut plan), choice, "{image_bytes} bytes");
        }
        drained.image_bytes = 100;
        // Not where they are less than an eighth of the log.
        drained.ranges.extend((8..60).map(range));
        drained.live.extend((8..60).map(|number| {
            let (messages, bytes) = (9, 900);
            (range(number).first, LiveRange { messages, bytes })
        }));
        drained.tail = Position(60 << BITS);
        let mut little = plan(&[7 << BITS, 5 << BITS], 10, 0);
        assert_eq!(choose(&drained, &mut little), Choice::Nothing);
    }

    #[test]
    fn something_is_appended_once_where_a_snapshot_would_be_worth_it_and_nobody_else_appends() {
        let mut world = World::new(8, &[]);
        world.tail = Position(8 << BITS);
        let choose = |world: &World, plan: &mut Plan| world.with(|view| plan.choose(view));
        // What is empty before the newest waits for the older one to follow.
        let mut idle = plan(&[8 << BITS, 4 << BITS], 0, 0);
        assert_eq!(choose(&world, &mut idle), Choice::Advance);
        assert_eq!(choose(&world, &mut idle), Choice::Nothing, "one at a time");
        idle.advanced();
        // It could not be: the disk is full.
        assert_eq!(choose(&world, &mut idle), Choice::Nothing, "once");
        world.tail = Position((8 << BITS) + 1);
        idle.appended(1, 0);
        assert_eq!(choose(&world, &mut idle), Choice::Snapshot);
        world.tail = Position(8 << BITS);
        // A start appended something, and nothing has come since.
        let mut started = plan(&[7 << BITS, 4 << BITS], 0, 0);
        assert_eq!(choose(&world, &mut started), Choice::Advance);
        // Nothing goes by one snapshot alone.
        let mut only = plan(&[8 << BITS], 0, 0);
        assert_eq!(choose(&world, &mut only), Choice::Advance);
        // Not for what is not worth it, and not where there is no snapshot that it would confirm.
        let mut none = plan(&[], 0, 0);
        assert_eq!(choose(&world, &mut none), Choice::Nothing);
        world.image_bytes = 1 << BITS;
        let mut large = plan(&[8 << BITS, 4 << BITS], 0, 0);
        assert_eq!(choose(&world, &mut large), Choice::Nothing);
    }

    #[test]
    fn a_backlog_that_shrinks_brings_credit_once() {
        let mut world = World::new(4, &[(0, 1_000), (1, 1_000), (2, 1_000), (3, 1_000)]);
        let mut plan = plan(&[], 0, 0);
        world.with(|view| plan.note_live(view));
        assert_eq!((plan.drained, plan.low_water), (0, 3_600));
        world.live = live(&[(0, 1_000), (1, 1_000)]);
        world.with(|view| plan.note_live(view));
        assert_eq!((plan.drained, plan.low_water), (1_280, 2_000));
        // Up and down by little: nothing.
        for bytes in [200, 100, 200, 50] {
            world.live = live(&[(0, 1_000), (1, 1_000), (2, bytes)]);
            world.with(|view| plan.note_live(view));
            assert_eq!(plan.drained, 1_280);
        }
        // No more than there is to move.
        world.ranges.truncate(1);
        world.with(|view| plan.note_live(view));
        assert_eq!(plan.drained, 1_024);
    }

    #[test]
    fn a_backlog_that_shrinks_pays_for_snapshots_that_bring_back_as_much() {
        let mut world = World::new(8, &[(0, 1_000), (1, 1_000), (2, 1_000), (3, 1_000)]);
        // All that is left behind the trim is empty, and the image is as large as one range.
        world.image_bytes = 1_024;
        let mut plan = plan(&[7 << BITS, 5 << BITS], 10, 0);
        let choose = |world: &World, plan: &mut Plan| world.with(|view| plan.choose(view));
        assert_eq!(choose(&world, &mut plan), Choice::Nothing, "nothing went");
        world.live.clear();
        assert_eq!(choose(&world, &mut plan), Choice::Snapshot);
        let before = plan.drained;
        assert_eq!(before, 2_880 - 1_024, "it is paid");
        plan.snapshot_finished(Position(8 << BITS), 1_024, 1_024, 10);
        assert_eq!(choose(&world, &mut plan), Choice::Advance);
        plan.advanced();
        world.tail = Position((8 << BITS) + 10);
        assert_eq!(choose(&world, &mut plan), Choice::Snapshot);
        assert_eq!(plan.drained, before - 1_024);
        // What is left does not pay for one more.
        plan.snapshot_finished(world.tail, 1_024, 1_024, 10);
        world.tail = Position((9 << BITS) + 10);
        world.ranges.push(range(8));
        world.ranges.push(range(9));
        assert_eq!(choose(&world, &mut plan), Choice::Nothing);
    }

    #[test]
    fn on_a_full_disk_a_snapshot_comes_before_the_reserve_ends() {
        let mut world = World::new(8, &[(7, 900)]);
        world.ranges = (7..8).map(range).collect();
        world.space = SpaceState::Full;
        world.image_bytes = 1 << 30;
        let due = |since, ready_bytes| {
            let mut world = World {
                ready_bytes,
                ranges: world.ranges.clone(),
                live: world.live.clone(),
                pinned: vec![],
                ..world
            };
            world.tail = Position(8 << BITS);
            let mut plan = plan(&[7 << BITS], since, 0);
            world.with(|view| plan.choose(view)) == Choice::Snapshot
        };
        assert!(!due(4 << 20, 5 << 20) && due(5 << 20, 5 << 20));
        assert!(!due(READY_BYTES_MIN - 1, 0) && due(READY_BYTES_MIN, 0));
    }

    #[test]
    fn a_failed_snapshot_is_tried_again_later_and_later() {
        let mut plan = plan(&[], 9_999, 0);
        let mut waits = vec![];
        for _ in 0..9 {
            plan.snapshot_failed(MachineTime(0));
            waits.push(plan.retry_at.0);
        }
        assert_eq!(
            waits,
            [1, 2, 4, 8, 16, 32, 60, 60, 60].map(|seconds| seconds * 1_000)
        );
    }

    #[test]
    fn the_emptiest_range_is_compacted_if_there_is_credit() {
        let world = World::new(10, &[(0, 500), (1, 300), (2, 950), (9, 900)]);
        let snapshots = [10 << BITS, 9 << BITS];
        let choose = |plan: &mut Plan| world.with(|view| plan.choose(view));
        assert_eq!(
            choose(&mut plan(&snapshots, 0, 0)),
            Choice::Nothing,
            "no credit"
        );
        assert_eq!(
            choose(&mut plan(&snapshots, 0, 10_000)),
            Choice::Compact(range(1))
        );
        // What an earlier start may have moved already is taken off what this one may move.
        assert_eq!(
            choose(&mut plan(&snapshots, 1_301, 10_000)),
            Choice::Nothing
        );
        assert_eq!(
            choose(&mut plan(&snapshots, 1_300, 10_000)),
            Choice::Compact(range(1))
        );
        let mut tried = plan(&snapshots, 0, 10_000);
        tried.compacted(range(1).first, 3);
        assert_eq!(choose(&mut tried), Choice::Compact(range(0)));
        let dense = World::new(3, &[(0, 700), (1, 700), (2, 700)]);
        let mut rich = plan(&[3 << BITS, 3 << BITS], 0, 1 << 30);
        assert_eq!(dense.with(|view| rich.choose(view)), Choice::Nothing);
        assert_eq!(rich.credit, 1 << BITS, "no more is saved up than one range");
    }

    #[test]
    fn a_log_that_gives_back_only_its_beginning_waits_for_what_is_needed_there() {
        let first = |number| range(number).first;
        let mut plan = plan(&[7 << BITS, 4 << BITS], 0, 0);
        let (early, late) = (first(8), first(9));
        assert_eq!(plan.trim_until(first(2), early, Position(0)), Position(0));
        assert_eq!(
            plan.trim_until(first(3), late, early),
            first(2),
            "3 was seen at a later tail"
        );
        assert_eq!(
            plan.trim_until(first(3), late, early),
            first(2),
            "which is not durable"
        );
        assert_eq!(plan.trim_until(first(6), late, late), first(3));
        assert_eq!(
            plan.trim_until(first(6), late, late),
            first(4),
            "the older snapshot"
        );
    }

    #[test]
    fn what_could_not_be_loaded_goes_when_there_is_a_newer_snapshot() {
        let at = |number: u64| Position(number << BITS);
        let mut plan = Plan::new(4_096, BITS, vec![at(3), at(2)], vec![at(5), at(4)], 0, 0);
        assert_eq!(plan.trim(), at(2));
        assert_eq!(
            plan.snapshot_finished(at(6), 9, 9, 0),
            [at(2), at(5), at(4)]
        );
        assert_eq!(plan.trim(), at(3), "not what could not be loaded");
        assert_eq!(plan.snapshot_finished(at(7), 9, 9, 0), [at(3)]);
    }

    #[test]
    fn large_snapshots_of_what_has_become_small_are_replaced_one_after_the_other() {
        let mut world = World::new(8, &[(7, 900)]);
        world.ranges = (7..8).map(range).collect();
        let at = |number: u64| Position((7 << BITS) + number);
        let large = 16 * REPLACED_BYTES_MIN;
        let mut plan = plan(&[], 0, 0);
        for number in 1..=2 {
            plan.snapshot_finished(at(number), large, large, 0);
        }
        let mut next = |image_bytes, appended, plan: &mut Plan| {
            world.image_bytes = image_bytes;
            plan.appended(appended, 0);
            world.with(|view| plan.choose(view))
        };
        let sixteenth = REPLACED_BYTES_MIN;
        assert_eq!(next(sixteenth + 1, 1, &mut plan), Choice::Nothing);
        assert_eq!(next(sixteenth, 1, &mut plan), Choice::Snapshot);
        assert_eq!(
            plan.snapshot_finished(at(3), sixteenth, sixteenth, 0),
            [at(1)]
        );
        assert_eq!(
            next(sixteenth, 0, &mut plan),
            Choice::Advance,
            "nothing new"
        );
        plan.advanced();
        assert_eq!(next(sixteenth, 1, &mut plan), Choice::Snapshot);
        assert_eq!(
            plan.snapshot_finished(at(4), sixteenth, sixteenth, 0),
            [at(2)]
        );
        assert_eq!(
            next(sixteenth, 1, &mut plan),
            Choice::Nothing,
            "both are small"
        );
        // Very small ones are left alone.
        let mut small = Plan::new(4_096, BITS, vec![], vec![], 0, 0);
        for number in 1..=2 {
            small.snapshot_finished(at(number), REPLACED_BYTES_MIN - 1, 1, 0);
        }
        assert_eq!(next(0, 1, &mut small), Choice::Nothing);
        // Long texts: a snapshot is twenty times what is estimated, and no larger than it will be.
        let mut texts = Plan::new(4_096, BITS, vec![], vec![], 0, 0);
        for number in 1..=2 {
            texts.snapshot_finished(at(number), large, large / 20, 0);
        }
        assert_eq!(next(large / 20, 1, &mut texts), Choice::Nothing);
        assert_eq!(next(large / 20 / 16, 1, &mut texts), Choice::Snapshot);
    }

    proptest! {
        /// Whatever is appended, and however wrong the estimates are by which it is compacted, no
        /// more is moved than the bound says, but for the last range.
        #[test]
        fn compaction_stays_within_its_budget(
            steps in proptest::collection::vec((0u64..10_000, 1u64..3_000), 1..200),
        ) {
            let mut plan = plan(&[], 0, 0);
            let (mut accepted, mut compacted) = (0, 0);
            for (bytes, estimate) in steps {
                let may = signed(estimate) <= plan.credit;
                let moved = if may { 2 * estimate } else { 0 };
                prop_assert!(!may || compacted + estimate <= accepted * COMPACTED_PERCENT / 100);
                compacted += moved;
                accepted += bytes;
                plan.appended(bytes + moved, moved);
            }
        }
    }
}
