//! From arrival over runs to an outcome.

use std::{
    hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use lockgate_core::{
    Key, KeyOrder, Millis, Settlement, cut_reason,
    limits::{HoldScope, Holds, Wait},
};
use smallvec::SmallVec;

use super::{
    Arrival, Cancelled, Dispatcher, Fairness, ItemId, KeyState, KeyWait, Mode, Order, Rest, RunEnd,
    RunId, Started,
    lane::{Item, Lane, LaneName, LaneState, Run, Stage},
    limits::{HOLD_HERE_MAX, WorkerLimits, until_of},
    list::{List, place},
    turns::FlowOf,
};

impl<M: Clone> Dispatcher<M> {
    pub(super) fn arrive(
        &mut self,
        source: usize,
        arrival: Arrival<M>,
        pack: Option<u32>,
        now: Millis,
    ) {
        let key = arrival.key;
        let tenant = match self.options.fairness {
            Fairness::Tenants => arrival.tenant,
            Fairness::Keys => key
                .clone()
                .filter(|_| self.options.order == Order::Unordered),
        };
        let limits = self.limits.as_ref();
        let charge = limits.map(|limits| limits.charge_of(key.as_ref(), arrival.cost));
        let name = key.and_then(|key| self.name_of(key));
        let source = place(source);
        let lane = match name {
            None => self.make_lane(source, None, 0, tenant, arrival.priority),
            Some(name) => {
                let hash = self.hash(source, &name);
                let found = self.find_lane(hash, source, &name);
                found.unwrap_or_else(|| {
                    let lane = self.make_lane(source, Some(name), hash, tenant, 0);
                    let lanes = &self.lanes;
                    let hash_of = |&lane: &u32| lanes[lane as usize].hash;
                    self.by_name.insert_unique(hash, lane, hash_of);
                    lane
                })
            }
        };
        let number = self.number();
        let item = place(self.items.insert(Item {
            message: arrival.message,
            number,
            source,
            lane,
            pack,
            bytes: arrival.bytes,
            attempt: arrival.attempt,
            accepted: {
                let now = i64::try_from(now).unwrap_or(i64::MAX);
                let age = i64::try_from(arrival.age.unwrap_or(0)).unwrap_or(i64::MAX);
                now.saturating_sub(age)
            },
            is_age_told: arrival.age.is_some(),
            earlier: None,
            ends: now.saturating_add(arrival.lease),
            look_at: 0,
            stage: Stage::Queued,
            alone: arrival.alone,
            may_be_settled: false,
            charge,
            next: None,
        }));
        self.counts.arrived += 1;
        self.held_bytes = self.held_bytes.saturating_add(arrival.bytes);
        let place = item;
        if self.join(ItemId { place, number }, pack) {
            self.sources[source as usize].held += 1;
        }
        self.look_later(item, now);
        match arrival.at_once {
            Some(Settlement::GiveBack) => return self.settle(item, self.giving_back(lane)),
            Some(how) => return self.settle(item, how),
            None => {}
        }
        let queue = &mut self.lanes[lane as usize].queue;
        queue.push_back(&mut self.items, item);
        self.no_more_waits(lane);
        self.make_ready(lane, now);
    }

    /// The lane of a key, if its messages wait for others.
    fn name_of(&self, key: Key) -> Option<LaneName> {
        match self.options.order {
            Order::Unordered => None,
            Order::Key => Some(LaneName::Key(key)),
            Order::Partition(count) => {
                let mut hasher = DefaultHasher::new();
                key.hash(&mut hasher);
                let partition = hasher.finish() % u64::from(count.get());
                let partition = u16::try_from(partition).expect("below a u16");
                Some(LaneName::Partition(partition))
            }
        }
    }

    fn hash(&self, source: u32, name: &LaneName) -> u64 {
        let of_name = match name {
            LaneName::Key(key) => self.hasher.hash_one(key.as_str()),
            LaneName::Partition(partition) => self.hasher.hash_one(partition),
        };
        of_name.rotate_left(source)
    }

    fn find_lane(&self, hash: u64, source: u32, name: &LaneName) -> Option<u32> {
        let is_it = |&lane: &u32| {
            let lane = &self.lanes[lane as usize];
            lane.source == source && lane.name.as_ref() == Some(name)
        };
        self.by_name.find(hash, is_it).copied()
    }

    fn make_lane(
        &mut self,
        source: u32,
        name: Option<LaneName>,
        hash: u64,
        tenant: Option<Key>,
        priority: u8,
    ) -> u32 {
        place(self.lanes.insert(Lane {
            source,
            name,
            hash,
            flow: None,
            tenant,
            priority,
            queue: List::default(),
            settling: List::default(),
            state: LaneState::Idle,
            in_call: false,
            calls: false,
            settle_failures: 0,
            ready_since: 0,
            error: None,
            next: None,
        }))
    }

    /// A number that nothing had before.
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Lets an idle lane wait for its turn, if it has something to run.
    fn make_ready(&mut self, at: u32, now: Millis) {
        let lane = &mut self.lanes[at as usize];
        if lane.state != LaneState::Idle || lane.queue.len() == 0 || self.mode != Mode::Working {
            return;
        }
        if self.turns.ready() == 0 {
            // Before, nothing waited, so nothing was stalled.
            self.moved = now;
        }
        lane.state = LaneState::Ready;
        lane.ready_since = now;
        let (priority, tenant) = (lane.priority, lane.tenant.clone());
        let flow = match (self.options.fairness, &lane.name) {
            (Fairness::Keys, Some(_)) => FlowOf::Own,
            _ => FlowOf::Shared(&tenant),
        };
        self.turns.push(&mut self.lanes, at, priority, flow);
    }

    /// Begins the run whose turn it is, if there is room.
    pub(super) fn start(&mut self, now: Millis) -> Option<Started<M>> {
        while self.runs.len() < self.options.concurrency {
            let limits = self.limits.as_deref_mut();
            if limits.is_some_and(|limits| limits.is_held(now)) {
                return None;
            }
            let (items, run_max) = (&self.items, self.options.run_max);
            let bytes_max = self
                .options
                .coalescing
                .map(|coalescing| coalescing.bytes_max);
            let count_of = |lane: &Lane| runnable(items, &lane.queue, run_max, bytes_max);
            let next = self.limits.as_mut().and_then(|limits| limits.next.take());
            let mut count = next.map_or(0, |at| count_of(&self.lanes[at as usize]));
            let at = next.or_else(|| {
                let taken = |lanes: &mut slab::Slab<Lane>, at: u32| {
                    count = count_of(&lanes[at as usize]);
                    count
                };
                (self.turns).pop(&mut self.lanes, &self.priorities, now, taken)
            })?;
            self.lanes[at as usize].state = LaneState::Idle;
            self.drop_lost(at);
            if count > 0 && self.wait_for_more(at, count, now) {
                count = 0;
            }
            if count > 0 && self.limits.is_some() {
                count = self.admit(at, count, now)?;
            }
            if count == 0 {
                self.drop_lane(at);
                continue;
            }
            return Some(self.begin(at, count, now));
        }
        None
    }

    /// How many of the first messages of a lane the limits let start. If there are none, it waits for a limit of its
    /// key, or the first one is settled; `None`: the worker as a whole is held.
    fn admit(&mut self, at: u32, count: usize, now: Millis) -> Option<usize> {
        let coalesces = self.coalescing(at).is_some();
        let lane = &mut self.lanes[at as usize];
        let (Some(limits), Some(first)) = (self.limits.as_deref_mut(), lane.queue.first()) else {
            return Some(count);
        };
        if let Some(never) = limits.never(&self.items[first as usize]) {
            lane.queue.pop_front(&mut self.items);
            self.reject(first, &never.into());
            self.make_ready(at, now);
            return Some(0);
        }
        let charged = if coalesces { 1 } else { count };
        let held = match limits.admit(&mut self.items, &lane.queue, charged, now) {
            Ok(_) if coalesces => return Some(count),
            Ok(count) => return Some(count),
            Err(held) => held,
        };
        if held.scope == 0 {
            lane.state = LaneState::Ready;
            (limits.next, limits.held) = (Some(at), Some(held));
            return None;
        }
        let Wait::Until(until) = held.wait else {
            lane.state = LaneState::Limited(Millis::MAX, held.limit);
            limits.wait_for_key(&self.items[first as usize], at);
            return Some(0);
        };
        let can = &self.sources[lane.source as usize].options.capabilities;
        let source_waits = lane.name.is_none() || can.key_order == KeyOrder::Locked;
        // What comes meanwhile of a key that is here comes along only if it has gone back.
        let hold_here_max = if coalesces { 1 } else { HOLD_HERE_MAX };
        let is_long = until - now >= hold_here_max;
        if is_long && source_waits && can.defer && !self.pack_has_begun(first) {
            let lane = &mut self.lanes[at as usize];
            lane.queue.pop_front(&mut self.items);
            let delay = std::time::Duration::from_millis(until - now);
            self.wait(at, first, until - now, Settlement::Defer { delay }, now);
        } else {
            self.lanes[at as usize].state = LaneState::Limited(until, held.limit);
            self.delayed.add(until, at);
        }
        Some(0)
    }

    fn begin(&mut self, at: u32, count: usize, now: Millis) -> Started<M> {
        let number = self.number();
        let run = RunId {
            place: place(self.runs.insert(Run {
                lane: at,
                number,
                len: count,
                started: now,
                cancelled: None,
                claiming: false,
                claimed: false,
            })),
            number,
        };
        let lane = &mut self.lanes[at as usize];
        lane.state = LaneState::Running(run.place);
        let source = lane.source as usize;
        let mut messages = SmallVec::with_capacity(count);
        let first: SmallVec<[u32; 8]> = lane.queue.iter(&self.items).take(count).collect();
        for item in first {
            self.begin_pack(item);
            let item = &self.items[item as usize];
            messages.push((item.message.clone(), item.attempt));
        }
        if let Some(longest) = self.options.run_time_max {
            let at = now.saturating_add(longest);
            self.overdue.add(at, run);
            let (runs, going) = (&self.runs, self.runs.len());
            self.overdue.compact(going, |_, id| {
                let run = runs.get(id.place as usize);
                run.is_some_and(|run| run.number == id.number)
            });
        }
        self.counts.started += 1;
        self.moved = now;
        Started {
            run,
            source,
            messages,
        }
    }

    /// Takes the end of a run. `random` is any number, each equally likely. Returns whether the run was
    /// current: if not, nothing has changed.
    pub fn finished(&mut self, run: RunId, end: RunEnd, now: Millis, random: u64) -> bool {
        self.now = self.now.max(now);
        let is_current = |found: &Run| found.number == run.number;
        if !self.runs.get(run.place as usize).is_some_and(is_current) {
            self.counts.stale_ends += 1;
            return false;
        }
        let ended = self.runs.remove(run.place as usize);
        let (at, len) = (ended.lane, ended.len);
        let rest = match end.rest {
            Rest::Cancelled if ended.cancelled == Some(Cancelled::TooLong) => Rest::Failed {
                error: self.too_long(),
                retry_in: None,
            },
            rest => rest,
        };
        if let Rest::Held {
            delay,
            scope: HoldScope::Queue,
        } = rest
        {
            let limits = self.limits.get_or_insert_with(WorkerLimits::none);
            limits.hold_until(now.saturating_add(delay));
        }
        self.moved = now;
        self.lanes[at as usize].state = LaneState::Idle;
        let coalesces = self.coalescing(at).is_some();
        let done = match coalesces && end.done < len {
            true => 0,
            false => end.done,
        };
        let mut untried: SmallVec<[u32; 8]> = SmallVec::new();
        let mut failed = None;
        let mut lost = false;
        for number in 0..len {
            let Some(item) = self.lanes[at as usize].queue.pop_front(&mut self.items) else {
                break;
            };
            let is_next = number == done && matches!(rest, Rest::NotBegun);
            // A run that covers them all was charged once.
            if number == 0 || !coalesces {
                self.over(item, number <= done && !is_next, now);
            }
            if self.items[item as usize].stage == Stage::Lost {
                lost = true;
                self.retire_lost(item);
            } else if ended.claimed {
                self.counts.acknowledged += 1;
                self.retire(item);
            } else if number < done {
                self.counts.covered += u64::from(coalesces && number > 0);
                self.settle(item, Settlement::Ack);
            } else if number == done {
                failed = Some(item);
            } else {
                untried.push(item);
            }
        }
        let together = 1 + untried.len();
        for item in untried.into_iter().rev() {
            let queue = &mut self.lanes[at as usize].queue;
            queue.push_front(&mut self.items, item);
        }
        if let Some(item) = failed {
            let is_told = ended.cancelled.is_some() || self.mode != Mode::Working;
            match rest {
                Rest::Cancelled | Rest::NotBegun if !is_told => {
                    self.not_tried(at, item, now, random);
                }
                rest => self.not_done((at, together), item, rest, now, random),
            }
        }
        // Behind a lost message nothing runs before it has come again.
        if self.mode != Mode::Working || lost {
            self.give_back_lane(at);
        }
        self.make_ready(at, now);
        self.drop_lane(at);
        true
    }

    /// What becomes of a message that a handler gave up though nobody told it to. At once it would be the
    /// same again, as fast as it goes; and where the source is closed, nobody may want to handle it here.
    fn not_tried(&mut self, at: u32, item: u32, now: Millis, random: u64) {
        let source = self.lanes[at as usize].source as usize;
        if self.sources[source].is_closed {
            let queue = &mut self.lanes[at as usize].queue;
            queue.push_front(&mut self.items, item);
            return self.give_back_lane(at);
        }
        let attempt = self.items[item as usize].attempt;
        let delay = self.options.backoff.after(attempt, random);
        self.not_done((at, 1), item, Rest::Deferred { delay }, now, random);
    }

    /// A message that was started is over, or has not begun: lets those start that waited for it.
    pub(super) fn over(&mut self, item: u32, has_begun: bool, now: Millis) {
        let Some(limits) = self.limits.as_deref_mut() else {
            return;
        };
        for at in limits.over(&self.items[item as usize], has_begun, now) {
            let lane = self.lanes.get_mut(at as usize);
            let is_it = |lane: &&mut Lane| matches!(lane.state, LaneState::Limited(Millis::MAX, _));
            if let Some(lane) = lane.filter(is_it) {
                lane.state = LaneState::Idle;
                self.make_ready(at, now);
            }
        }
    }

    fn too_long(&self) -> Arc<str> {
        let longest = self.options.run_time_max.unwrap_or_default();
        format!("it was cancelled after {longest} ms (run_time_max)").into()
    }

    /// What becomes of a message that did not succeed, and of the other `len - 1` that its run did not do, which are
    /// next in the lane.
    fn not_done(
        &mut self,
        (at, len): (u32, usize),
        item: u32,
        rest: Rest,
        now: Millis,
        random: u64,
    ) {
        let attempt = self.items[item as usize].attempt;
        match rest {
            Rest::Failed { error, retry_in } => {
                self.lanes[at as usize].error = Some(error.clone());
                if self.options.attempts_max.is_some_and(|max| attempt >= max) {
                    return self.reject_run((at, len), item, &error);
                }
                let delay = retry_in.unwrap_or_else(|| self.options.backoff.after(attempt, random));
                let nack = Settlement::Nack {
                    delay: std::time::Duration::from_millis(delay),
                    reason: self.nack_reason(item, &error),
                };
                if self.wait(at, item, delay, nack, now) {
                    let item = &mut self.items[item as usize];
                    item.attempt = attempt.saturating_add(1);
                    let before = item.earlier.take().map(|before| format!("{before}; "));
                    let before = before.unwrap_or_default();
                    let earlier = format!("{before}attempt {attempt}: {error}");
                    item.earlier = Some(cut_reason(earlier.into()));
                    self.counts.retried += 1;
                }
            }
            Rest::Deferred { delay } => {
                let wait = std::time::Duration::from_millis(delay);
                self.wait(at, item, delay, Settlement::Defer { delay: wait }, now);
            }
            Rest::Held { delay, scope } => {
                let lane = &self.lanes[at as usize];
                let can = &self.sources[lane.source as usize].options.capabilities;
                let (wait, holds) = (std::time::Duration::from_millis(delay), can.hold);
                let settlement = match holds && delay > 0 {
                    true => Settlement::Hold { delay: wait, scope },
                    false => Settlement::Defer { delay: wait },
                };
                // Together with the others of its pack, which end at once, it reaches the source while it matters.
                if !self.wait(at, item, delay, settlement, now) && holds {
                    self.give_back_pack(item);
                }
            }
            Rest::Rejected { reason } => self.reject_run((at, len), item, &reason),
            // A source that limits starts counts none for what is given back.
            Rest::Cancelled if self.mode != Mode::Working => {
                let delay = std::time::Duration::ZERO;
                self.wait(at, item, 0, Settlement::Defer { delay }, now);
            }
            Rest::Cancelled | Rest::NotBegun => {
                let queue = &mut self.lanes[at as usize].queue;
                queue.push_front(&mut self.items, item);
            }
        }
    }

    /// Rejects the first message of a run, and if it covered them, the rest, which is next in the lane.
    fn reject_run(&mut self, (at, len): (u32, usize), item: u32, reason: &Arc<str>) {
        let len = self.coalescing(at).map_or(1, |_| len);
        let mut last = item;
        self.reject_one(item, reason);
        for _ in 1..len {
            let queue = &mut self.lanes[at as usize].queue;
            if let Some(item) = queue.pop_front(&mut self.items) {
                last = item;
                self.reject_one(item, reason);
            }
        }
        self.after_rejection(at, last);
    }

    fn reject(&mut self, item: u32, reason: &Arc<str>) {
        let at = self.items[item as usize].lane;
        self.reject_one(item, reason);
        self.after_rejection(at, item);
    }

    /// A source that locks keys may take back with a message what came behind it of the key. A pack is rejected as a
    /// whole, so the others of it go on.
    fn after_rejection(&mut self, at: u32, item: u32) {
        let lane = &self.lanes[at as usize];
        let can = &self.sources[lane.source as usize].options.capabilities;
        if can.key_order == KeyOrder::Locked {
            let pack = self.items[item as usize].pack;
            let is_of_pack = |&item: &u32| pack.is_some() && self.items[item as usize].pack == pack;
            let queue = lane.queue.iter(&self.items);
            let keep = queue.take_while(is_of_pack).count();
            self.give_back_behind(at, keep);
        }
    }

    /// The source gets rid of the message, or where it cannot, hears of a failure: then its own limit of
    /// attempts does.
    fn reject_one(&mut self, item: u32, reason: &Arc<str>) {
        let at = self.items[item as usize].lane;
        let lane = &self.lanes[at as usize];
        let can = &self.sources[lane.source as usize].options.capabilities;
        let settlement = if can.reject {
            let reason = Some(self.whole_reason(item, reason));
            Settlement::Reject { reason }
        } else {
            let delay = std::time::Duration::from_millis(self.options.backoff.max);
            let delay = delay.min(can.nack_delay_max);
            let reason = self.nack_reason(item, reason);
            Settlement::Nack { delay, reason }
        };
        self.settle(item, settlement);
    }

    /// The reason of a nack, where the source keeps it.
    fn nack_reason(&self, item: u32, error: &Arc<str>) -> Option<Arc<str>> {
        let lane = &self.lanes[self.items[item as usize].lane as usize];
        let can = &self.sources[lane.source as usize].options.capabilities;
        can.nack_reasons.then(|| self.whole_reason(item, error))
    }

    /// The last error, and behind it those of the attempts that the source does not know of.
    fn whole_reason(&self, item: u32, error: &Arc<str>) -> Arc<str> {
        cut_reason(match &self.items[item as usize].earlier {
            None => error.clone(),
            Some(earlier) => format!("{error} (before: {earlier})").into(),
        })
    }

    /// Lets a message come again after a while. Returns whether it waits here.
    ///
    /// A source that locks keys waits itself: then nothing of the key runs meanwhile, here or elsewhere,
    /// and the wait survives this process. So does one for messages that wait for no others. It waits at
    /// most as long as it can. A source without locks would hand out the messages behind this one, so the
    /// wait is here, under the lease.
    pub(super) fn wait(
        &mut self,
        at: u32,
        item: u32,
        delay: Millis,
        settlement: Settlement,
        now: Millis,
    ) -> bool {
        let lane = &mut self.lanes[at as usize];
        let can = &self.sources[lane.source as usize].options.capabilities;
        let is_alone = lane.name.is_none();
        let longest = can.nack_delay_max;
        let source_waits = is_alone || can.key_order == KeyOrder::Locked;
        let knows_it = match settlement {
            Settlement::Defer { .. } => can.defer,
            Settlement::Hold { .. } => can.hold,
            _ => !longest.is_zero() || delay == 0,
        };
        if self.mode != Mode::Working || (source_waits && knows_it) {
            // Nothing waits here that could not wait elsewhere, however long, nor when this ends.
            let settlement = match settlement {
                Settlement::Defer { delay } if can.defer => Settlement::Defer {
                    delay: delay.min(longest),
                },
                Settlement::Hold { delay, scope } => Settlement::Hold {
                    delay: delay.min(longest),
                    scope,
                },
                Settlement::Nack { delay, reason } => Settlement::Nack {
                    delay: delay.min(longest),
                    reason,
                },
                _ => self.giving_back(at),
            };
            self.settle(item, settlement);
            self.give_back_lane(at);
            return false;
        }
        lane.queue.push_front(&mut self.items, item);
        let until = now.saturating_add(delay);
        lane.state = LaneState::Delayed(until);
        self.delayed.add(until, at);
        true
    }

    /// Lets lanes run again whose wait is over.
    pub(super) fn end_waits(&mut self, now: Millis) {
        while let Some((until, lanes)) = self.delayed.take_first(now) {
            for at in lanes {
                let lane = self.lanes.get_mut(at as usize);
                let is_it = |lane: &&mut Lane| lane.state.is_until(until);
                if let Some(lane) = lane.filter(is_it) {
                    lane.state = LaneState::Idle;
                    self.make_ready(at, now);
                }
            }
        }
    }

    /// Gives everything back that does not run.
    pub(super) fn give_back_waiting(&mut self) {
        self.turns.clear(&mut self.lanes);
        self.delayed.clear();
        if let Some(limits) = &mut self.limits {
            limits.next = None;
        }
        let all: Vec<u32> = self.lanes.iter().map(|(at, _)| place(at)).collect();
        for at in all {
            let lane = &mut self.lanes[at as usize];
            if lane.state.waits() || lane.state == LaneState::Ready {
                lane.state = LaneState::Idle;
            }
            self.give_back_lane(at);
            self.drop_lane(at);
        }
    }

    /// Gives back what waits in a lane.
    fn give_back_lane(&mut self, at: u32) {
        let running = match self.lanes[at as usize].state {
            LaneState::Running(run) => self.runs[run as usize].len,
            _ => 0,
        };
        self.give_back_behind(at, running);
    }

    /// How a message returns to the source of a lane without an attempt.
    fn giving_back(&self, at: u32) -> Settlement {
        let source = &self.sources[self.lanes[at as usize].source as usize];
        if source.options.capabilities.give_back {
            Settlement::GiveBack
        } else {
            Settlement::Nack {
                delay: std::time::Duration::ZERO,
                reason: None,
            }
        }
    }

    /// Gives back what stands in a lane behind its first `keep` messages.
    pub(super) fn give_back_behind(&mut self, at: u32, keep: usize) {
        let settlement = self.giving_back(at);
        let mut queue = std::mem::take(&mut self.lanes[at as usize].queue);
        let mut kept = List::default();
        while let Some(item) = queue.pop_front(&mut self.items) {
            if kept.len() < keep {
                kept.push_back(&mut self.items, item);
            } else if self.items[item as usize].stage == Stage::Lost {
                self.retire_lost(item);
            } else {
                self.settle(item, settlement.clone());
            }
        }
        let lane = &mut self.lanes[at as usize];
        lane.queue = kept;
        if lane.queue.len() == 0 && lane.state.waits() {
            lane.state = LaneState::Idle;
        }
    }

    /// Removes messages from the front of a lane that does not run, of which somebody else may have the
    /// lease.
    fn drop_lost(&mut self, at: u32) {
        loop {
            let queue = &mut self.lanes[at as usize].queue;
            let is_lost = |first: &u32| self.items[*first as usize].stage == Stage::Lost;
            if queue.first().filter(is_lost).is_none() {
                return;
            }
            if let Some(item) = queue.pop_front(&mut self.items) {
                self.retire_lost(item);
            }
        }
    }

    /// Forgets an item that somebody else may have.
    fn retire_lost(&mut self, item: u32) {
        match self.items[item as usize].may_be_settled {
            true => self.counts.unconfirmed += 1,
            false => self.counts.lost += 1,
        }
        let Item { pack, lane, .. } = self.items[item as usize];
        let has_others = !self.retire(item);
        if let Some(pack) = pack.filter(|_| has_others) {
            self.end_member(pack, lane);
        }
    }

    /// Forgets an item. Returns whether nothing of its pack is here any more.
    pub(super) fn retire(&mut self, item: u32) -> bool {
        let item = self.items.remove(item as usize);
        self.held_bytes = self.held_bytes.saturating_sub(item.bytes);
        let was_last = self.leave(item.pack);
        if was_last {
            self.sources[item.source as usize].held -= 1;
        }
        was_last
    }

    /// Forgets a lane in which nothing is left.
    pub(super) fn drop_lane(&mut self, at: u32) {
        let lane = &self.lanes[at as usize];
        let is_empty = lane.queue.len() == 0 && lane.settling.len() == 0;
        if is_empty && lane.state == LaneState::Idle && !lane.calls {
            let lane = self.lanes.remove(at as usize);
            if lane.name.is_some()
                && let Ok(found) = self.by_name.find_entry(lane.hash, |&found| found == at)
            {
                found.remove();
            }
        }
    }

    /// Why a key does not run, or that it does. `None`: nothing of it is here, so if it has messages,
    /// its source has not handed them out.
    ///
    /// With [`Order::Partition`] this is the state of its partition, with [`Order::Unordered`] there is
    /// none.
    #[must_use]
    pub fn explain(&self, source: usize, key: &Key) -> Option<KeyState> {
        let (source, name) = (u32::try_from(source).ok()?, self.name_of(key.clone())?);
        let lane = self.find_lane(self.hash(source, &name), source, &name)?;
        let lane = &self.lanes[lane as usize];
        let wait = match lane.state {
            LaneState::Running(run) => KeyWait::Running(self.runs[run as usize].started),
            LaneState::Ready => match self.limits.as_ref().and_then(|limits| limits.held) {
                Some(Holds { limit, wait, .. }) => KeyWait::Limit {
                    limit,
                    of_key: false,
                    until: until_of(wait),
                },
                None => KeyWait::Room(lane.ready_since),
            },
            LaneState::Delayed(until) => KeyWait::Retry(until),
            LaneState::Coalescing(until) => KeyWait::Coalescing(until),
            LaneState::Limited(until, limit) => KeyWait::Limit {
                limit,
                of_key: true,
                until: (until < Millis::MAX).then_some(until),
            },
            LaneState::Idle if self.mode != Mode::Working => KeyWait::Stopped,
            LaneState::Idle => KeyWait::Settling,
        };
        Some(KeyState {
            wait,
            messages: lane.queue.len(),
            unsettled: lane.settling.len(),
            error: lane.error.clone(),
        })
    }
}

/// How many messages from the front of a queue can run together, once those that are lost are dropped.
fn runnable<M>(
    items: &slab::Slab<Item<M>>,
    queue: &List,
    max: usize,
    bytes_max: Option<u64>,
) -> usize {
    let mut left = bytes_max.unwrap_or(u64::MAX);
    let mut is_alone = false;
    queue
        .iter(items)
        .skip_while(|&item| items[item as usize].stage == Stage::Lost)
        .take(max)
        .take_while(|&item| items[item as usize].stage == Stage::Queued)
        .enumerate()
        .take_while(|&(number, item)| {
            let item = &items[item as usize];
            let fits = item.bytes <= left && !item.alone && !is_alone;
            left = left.saturating_sub(item.bytes);
            is_alone = item.alone;
            fits || number == 0
        })
        .count()
}
