//! What a queue in memory holds, as a pure machine: time is passed in, in milliseconds of a clock that
//! never goes back.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use super::{DeadLetter, KeyPolicy, MemoryCounts, MemoryOptions, Receipt};
use crate::sync::Semaphore;
use lockgate_core::{
    FailedAttempt, Failures, Key, Message, Millis, Sequence, Settlement, WallTime,
};
use slab::Slab;

/// Everything behind the lock.
#[derive(Debug)]
pub(super) struct State {
    options: MemoryOptions,
    /// The time on the wall when the queue's clock began.
    began: WallTime,
    /// The messages of one key, or one message without a key.
    lanes: Slab<Lane>,
    by_key: HashMap<Key, usize>,
    /// Lanes of which a message may be leased, in turn.
    ready: VecDeque<usize>,
    leases: HashMap<u64, Lease>,
    /// When which lease ends.
    ends: BTreeSet<(Millis, u64)>,
    /// When which lane goes on after a failure.
    delayed: BTreeSet<(Millis, usize)>,
    /// The next deadline when [`is_due_sooner`](Self::is_due_sooner) was asked last.
    known_deadline: Millis,
    /// Messages that wait in parked lanes.
    parked_messages: u64,
    dead: VecDeque<DeadLetter>,
    last_sequence: u64,
    last_lease: u64,
    freed: Freed,
    pub(super) counts: MemoryCounts,
    pub(super) closed: bool,
}

#[derive(Debug)]
struct Lane {
    key: Option<Key>,
    /// Not leased, in order.
    waiting: VecDeque<Entry>,
    /// Leased, in order.
    leased: VecDeque<(u64, Entry)>,
    /// Places for messages of the key; who waits for one has a clone.
    places: Option<Arc<Semaphore>>,
    turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing waits, or the key is locked by a lease.
    None,
    Ready,
    /// Its first message failed, and comes again then.
    Delayed(Millis),
    /// Its first message had all its attempts: somebody must decide.
    Parked,
}

#[derive(Debug)]
struct Entry {
    message: Message,
    sequence: Sequence,
    /// By the queue's clock.
    accepted: Millis,
    /// Leases that counted so far.
    attempts: u32,
    failures: Option<Arc<Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    lane: usize,
    ends: Millis,
}

/// A message that a receive leases.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) receipt: Receipt,
    pub(super) message: Message,
    pub(super) sequence: Sequence,
    pub(super) attempt: u32,
    pub(super) accepted: WallTime,
    pub(super) failures: Option<Arc<Failures>>,
}

/// The places that messages have given up.
#[derive(Debug, Default)]
pub(super) struct Freed {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// A lease that is not current any more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the lease is not current any more: it has ended, was settled, or a message before it came back"
)]
pub(super) struct Stale;

impl State {
    pub(super) fn new(options: MemoryOptions, began: WallTime) -> Self {
        Self {
            options,
            began,
            lanes: Slab::new(),
            by_key: HashMap::new(),
            ready: VecDeque::new(),
            leases: HashMap::new(),
            ends: BTreeSet::new(),
            delayed: BTreeSet::new(),
            known_deadline: Millis::MAX,
            parked_messages: 0,
            dead: VecDeque::new(),
            last_sequence: 0,
            last_lease: 0,
            freed: Freed::default(),
            counts: MemoryCounts::default(),
            closed: false,
        }
    }

    /// The places of a key, where they are limited.
    pub(super) fn places_of(&mut self, key: Option<&Key>) -> Option<Arc<Semaphore>> {
        let (max, key) = (self.options.key_messages_max?, key?);
        let lane = self.lane_of(key);
        let places = self.lanes[lane]
            .places
            .get_or_insert_with(|| Arc::new(Semaphore::new(max)));
        Some(places.clone())
    }

    /// Forgets the lane of a key if nothing is in it and nobody waits for a place.
    pub(super) fn tidy(&mut self, key: Option<&Key>) {
        if let Some(&lane) = key.and_then(|key| self.by_key.get(key)) {
            self.drop_lane(lane);
        }
    }

    fn lane_of(&mut self, key: &Key) -> usize {
        if let Some(&lane) = self.by_key.get(key) {
            return lane;
        }
        let lane = self.lanes.insert(Lane::new(Some(key.clone())));
        self.by_key.insert(key.clone(), lane);
        lane
    }

    /// Adds a message behind the others of its key.
    pub(super) fn push(&mut self, message: Message, now: Millis) -> Sequence {
        self.last_sequence += 1;
        let sequence = Sequence(self.last_sequence);
        let lane = match &message.key {
            Some(key) => self.lane_of(&key.clone()),
            None => self.lanes.insert(Lane::new(None)),
        };
        let entry = Entry {
            message,
            sequence,
            accepted: now,
            attempts: 0,
            failures: None,
        };
        self.parked_messages += u64::from(self.lanes[lane].turn == Turn::Parked);
        self.lanes[lane].waiting.push_back(entry);
        self.counts.pushed += 1;
        self.counts.waiting += 1;
        self.make_ready(lane);
        sequence
    }

    /// Leases messages: one of each ready key in turn, then further ones of the same keys.
    pub(super) fn receive(
        &mut self,
        max: usize,
        key_max: usize,
        lease: Millis,
        now: Millis,
    ) -> Vec<Given> {
        self.pass_time(now);
        let mut given = Vec::new();
        let mut round = Vec::new();
        while given.len() < max
            && let Some(lane) = self.ready.pop_front()
        {
            self.lanes[lane].turn = Turn::None;
            given.push(self.lease(lane, lease, now));
            round.push(lane);
        }
        for _ in 1..key_max {
            round.retain(|&lane| {
                let more = given.len() < max && !self.lanes[lane].waiting.is_empty();
                if more {
                    given.push(self.lease(lane, lease, now));
                }
                more
            });
            if round.is_empty() {
                break;
            }
        }
        given
    }

    fn lease(&mut self, at: usize, lease: Millis, now: Millis) -> Given {
        self.last_lease += 1;
        let number = self.last_lease;
        let ends = now.saturating_add(lease);
        let lane = &mut self.lanes[at];
        let mut entry = lane.waiting.pop_front().expect("its callers have looked");
        entry.attempts = entry.attempts.saturating_add(1);
        let given = Given {
            receipt: Receipt(number),
            message: entry.message.clone(),
            sequence: entry.sequence,
            attempt: entry.attempts,
            accepted: self.began.plus(entry.accepted),
            failures: entry.failures.clone(),
        };
        lane.leased.push_back((number, entry));
        self.leases.insert(number, Lease { lane: at, ends });
        self.ends.insert((ends, number));
        self.counts.waiting -= 1;
        self.counts.leased += 1;
        given
    }

    /// Ends leases and waits whose time has come.
    pub(super) fn pass_time(&mut self, now: Millis) {
        while let Some(&(at, number)) = self.ends.first().filter(|(at, _)| *at <= now) {
            debug_assert!(
                self.leases
                    .get(&number)
                    .is_some_and(|lease| lease.ends == at)
            );
            self.failed(number, 0, None, "the lease of its last attempt ended", now);
        }
        while let Some(&(at, lane)) = self.delayed.first().filter(|(at, _)| *at <= now) {
            self.delayed.remove(&(at, lane));
            self.lanes[lane].turn = Turn::None;
            self.make_ready(lane);
        }
    }

    /// The places that were given up since this was asked last.
    pub(super) fn take_freed(&mut self) -> Freed {
        std::mem::take(&mut self.freed)
    }

    /// When [`pass_time`](Self::pass_time) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        let ends = self.ends.first().map(|(at, _)| *at);
        let delayed = self.delayed.first().map(|(at, _)| *at);
        ends.into_iter().chain(delayed).min()
    }

    /// Whether the next deadline comes sooner than when this was asked last.
    pub(super) fn is_due_sooner(&mut self) -> bool {
        let next = self.next_deadline().unwrap_or(Millis::MAX);
        next < std::mem::replace(&mut self.known_deadline, next)
    }

    /// Nobody gets a place of a key any more.
    pub(super) fn close_places(&self) {
        for places in self
            .lanes
            .iter()
            .filter_map(|(_, lane)| lane.places.as_ref())
        {
            places.close();
        }
    }

    /// Whether a receive would find something.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether nothing can come any more: it is closed, and holds nothing that somebody could still get.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.counts.leased == 0 && self.counts.waiting == self.parked_messages
    }

    /// The same, by a walk over all lanes.
    #[cfg(test)]
    pub(super) fn is_over_by_lanes(&self) -> bool {
        let mut lanes = self.lanes.iter().map(|(_, lane)| lane);
        let is_out = |lane: &Lane| {
            let gives = lane.turn != Turn::Parked && !lane.waiting.is_empty();
            gives || !lane.leased.is_empty()
        };
        self.closed && !lanes.any(is_out)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.by_key.is_empty() && self.ready.is_empty()
    }

    pub(super) fn extend(
        &mut self,
        receipt: &Receipt,
        lease: Millis,
        now: Millis,
    ) -> Result<(), Stale> {
        let current = self.leases.get_mut(&receipt.0).ok_or(Stale)?;
        self.ends.remove(&(current.ends, receipt.0));
        current.ends = now.saturating_add(lease);
        self.ends.insert((current.ends, receipt.0));
        Ok(())
    }

    pub(super) fn settle(
        &mut self,
        receipt: &Receipt,
        settlement: Settlement,
        now: Millis,
    ) -> Result<(), Stale> {
        let number = receipt.0;
        let at = self.leases.get(&number).ok_or(Stale)?.lane;
        let millis =
            |delay: std::time::Duration| Millis::try_from(delay.as_millis()).unwrap_or(Millis::MAX);
        match settlement {
            Settlement::Ack | Settlement::Reject { .. } => {
                // Messages of a key are done in their order: what stands before this one is still out.
                if self.lanes[at]
                    .leased
                    .front()
                    .is_none_or(|(first, _)| *first != number)
                {
                    return Err(Stale);
                }
                let (at, entry) = self.end(number);
                match settlement {
                    Settlement::Reject { reason } => self.reject(entry, reason),
                    _ => {
                        self.counts.acknowledged += 1;
                        self.leaves(&entry.message);
                    }
                }
                self.make_ready(at);
                self.drop_lane(at);
            }
            Settlement::Nack { delay, reason } => {
                self.failed(
                    number,
                    millis(delay),
                    reason,
                    "its last attempt failed",
                    now,
                );
            }
            Settlement::Defer { delay } => self.comes_back(number, false, millis(delay), now),
            // Refused before; it would be no more than a deferral.
            Settlement::Hold { delay, .. } => self.comes_back(number, false, millis(delay), now),
            Settlement::GiveBack => self.comes_back(number, false, 0, now),
        }
        Ok(())
    }

    /// An attempt failed: the message comes again, or its key stops, as the policy says. `otherwise` is the
    /// reason of the dead letter where nobody said why.
    fn failed(
        &mut self,
        number: u64,
        delay: Millis,
        reason: Option<Arc<str>>,
        otherwise: &str,
        now: Millis,
    ) {
        let at = self.leases[&number].lane;
        self.comes_back(number, true, delay, now);
        let at_wall = self.began.plus(now);
        let lane = &mut self.lanes[at];
        let mut attempts = 0;
        if let Some(entry) = lane.waiting.front_mut() {
            attempts = entry.attempts;
            if let Some(error) = &reason {
                let failures = entry.failures.get_or_insert_default();
                Arc::make_mut(failures).add(FailedAttempt {
                    attempt: attempts,
                    at: at_wall,
                    error: error.clone(),
                });
            }
        }
        let Some((_, policy)) = self.options.attempts.filter(|(max, _)| attempts >= *max) else {
            return;
        };
        match (policy, lane.key.is_some()) {
            (KeyPolicy::Park, true) => {
                self.unready(at);
                let lane = &mut self.lanes[at];
                if lane.turn != Turn::Parked {
                    lane.turn = Turn::Parked;
                    self.parked_messages += lane.waiting.len() as u64;
                }
            }
            (KeyPolicy::Park, false) | (KeyPolicy::Skip, _) => {
                self.unready(at);
                self.lanes[at].turn = Turn::None;
                let entry = self.lanes[at].waiting.pop_front().expect("it came back");
                self.counts.waiting -= 1;
                self.reject(entry, Some(reason.unwrap_or_else(|| otherwise.into())));
                self.make_ready(at);
                self.drop_lane(at);
            }
        }
    }

    /// A leased message returns to its place, and all that are leased behind it in its key: their attempts
    /// do not count.
    fn comes_back(&mut self, number: u64, counts: bool, delay: Millis, now: Millis) {
        let at = self.leases[&number].lane;
        while let Some(&(last, _)) = self.lanes[at].leased.back() {
            let (_, mut entry) = self.end(last);
            if last != number || !counts {
                entry.attempts -= 1;
            }
            self.parked_messages += u64::from(self.lanes[at].turn == Turn::Parked);
            self.lanes[at].waiting.push_front(entry);
            self.counts.waiting += 1;
            if last == number {
                break;
            }
        }
        if self.lanes[at].turn != Turn::Parked {
            self.unready(at);
            self.lanes[at].turn = Turn::None;
        }
        if delay > 0 && self.lanes[at].turn == Turn::None {
            let until = now.saturating_add(delay);
            self.lanes[at].turn = Turn::Delayed(until);
            self.delayed.insert((until, at));
        }
        self.make_ready(at);
    }

    /// Takes a lease away, and its message out of its lane.
    fn end(&mut self, number: u64) -> (usize, Entry) {
        let lease = self
            .leases
            .remove(&number)
            .expect("its callers have looked");
        self.ends.remove(&(lease.ends, number));
        let leased = &mut self.lanes[lease.lane].leased;
        let place = leased.iter().position(|(other, _)| *other == number);
        let (_, entry) = place
            .and_then(|place| leased.remove(place))
            .expect("its lane has it");
        self.counts.leased -= 1;
        (lease.lane, entry)
    }

    /// Lets a lane take its turn if something of it can be leased.
    fn make_ready(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        if lane.turn == Turn::None && lane.leased.is_empty() && !lane.waiting.is_empty() {
            lane.turn = Turn::Ready;
            self.ready.push_back(at);
        }
    }

    /// Takes a lane out of the lists in which it waits.
    fn unready(&mut self, at: usize) {
        match self.lanes[at].turn {
            Turn::Delayed(until) => drop(self.delayed.remove(&(until, at))),
            // It has just become so: a key of which something is leased is not ready.
            Turn::Ready => drop(self.ready.pop_back_if(|ready| *ready == at)),
            Turn::None | Turn::Parked => {}
        }
    }

    /// Lets a parked key go on: its messages get all their attempts again. False: it is not parked.
    pub(super) fn resume(&mut self, key: &Key) -> bool {
        let Some(&at) = self.by_key.get(key) else {
            return false;
        };
        let lane = &mut self.lanes[at];
        if lane.turn != Turn::Parked {
            return false;
        }
        lane.turn = Turn::None;
        self.parked_messages -= lane.waiting.len() as u64;
        for entry in &mut lane.waiting {
            entry.attempts = 0;
        }
        self.make_ready(at);
        true
    }

    /// Keys that are parked.
    pub(super) fn parked(&self) -> Vec<Key> {
        let lanes = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.turn == Turn::Parked);
        lanes.filter_map(|(_, lane)| lane.key.clone()).collect()
    }

    /// Puts a message to the dead letters.
    fn reject(&mut self, entry: Entry, reason: Option<Arc<str>>) {
        self.leaves(&entry.message);
        self.counts.rejected += 1;
        self.dead.push_back(DeadLetter {
            message: entry.message,
            sequence: entry.sequence,
            attempts: entry.attempts,
            reason,
            failures: entry.failures.map(Arc::unwrap_or_clone).unwrap_or_default(),
        });
        if self.dead.len() > self.options.dead_letters_max {
            self.dead.pop_front();
            self.counts.dead_letters_dropped += 1;
        }
    }

    pub(super) fn take_dead_letters(&mut self) -> Vec<DeadLetter> {
        self.dead.drain(..).collect()
    }

    fn drop_lane(&mut self, at: usize) {
        let lane = &self.lanes[at];
        let awaited = lane
            .places
            .as_ref()
            .is_some_and(|places| Arc::strong_count(places) > 1);
        if lane.waiting.is_empty() && lane.leased.is_empty() && !awaited {
            let lane = self.lanes.remove(at);
            if let Some(key) = lane.key {
                self.by_key.remove(&key);
            }
        }
    }

    /// Gives up the places of a message. Comes before its lane is dropped, so that who waits for a place of
    /// the key gets it.
    fn leaves(&mut self, message: &Message) {
        self.freed.messages += 1;
        self.freed.bytes += message.size();
        let lane = message.key.as_ref().and_then(|key| self.by_key.get(key));
        if let Some(places) = lane.and_then(|&at| self.lanes[at].places.as_ref()) {
            places.add_permits(1);
        }
    }
}

impl Lane {
    fn new(key: Option<Key>) -> Self {
        Self {
            key,
            waiting: VecDeque::new(),
            leased: VecDeque::new(),
            places: None,
            turn: Turn::None,
        }
    }
}
