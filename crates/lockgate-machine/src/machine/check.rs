//! Checks that a machine is consistent.
//!
//! A machine follows indexes without checking them. Folding keeps them consistent, and so is an image that a
//! machine wrote, so a start trusts an image once its checksums agree. `lockgate check`, a restore and the
//! tests run this check. It never panics and always ends, whatever the machine holds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lockgate_core::Sequence;

use super::{
    Machine,
    key_states::KeyStates,
    list::{Links, List},
    producers::Producers,
    state::{Content, KeyState, Message, Place, State, Timer, flag},
};
use crate::{
    QueueCounts,
    live::{LiveRanges, live_bytes},
    slab::{NONE, Slab},
    wheel::Wheel,
};

/// The most problems that are reported.
const PROBLEMS_MAX: usize = 100;

/// The first problems found.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds && self.0.len() < PROBLEMS_MAX {
            self.0.push(problem());
        }
    }

    fn expect_equal<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, counted: T, kept: T) {
        self.expect(counted == kept, || {
            format!("{what}: {counted:?} counted, {kept:?} kept")
        });
    }
}

/// What was counted for a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OfKey {
    messages: u32,
    delayed: u32,
    leased: u32,
    /// Messages in its lists of ordered or returned messages.
    in_order: u32,
}

/// Sums over the keys of a content.
#[derive(Clone, Copy, Default)]
struct OfContent {
    messages: u64,
    delayed: u64,
    parked_keys: u64,
    ready_keys: u64,
    limited_keys: u64,
}

/// The list of its key that a message belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InKey {
    Order,
    Returned,
    Delayed,
    /// None: leased or backing off in an unkeyed queue.
    None,
}

impl Machine {
    /// The inconsistencies, as at most 100 sentences. None: the machine is sound.
    ///
    /// Reads everything, which takes seconds for ten million messages. Never panics, even for a
    /// machine that was loaded from a forged image.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Problems::default();
        self.check_references(&mut problems);
        // The later checks follow only indexes that were checked here.
        if problems.0.is_empty() {
            let of_keys = self.check_counts(&mut problems);
            self.check_lists(&of_keys, &mut problems);
        }
        problems.0
    }

    /// Checks that every index exists, and that mutual references agree.
    fn check_references(&self, problems: &mut Problems) {
        for (index, key) in self.keys.iter() {
            let of_queue = self.contents.get(key.content).is_some();
            problems.expect(of_queue, || format!("key {index} is of no queue"));
            let hash = self.key_hash(key.content, key.name.as_ref());
            problems.expect(key.hash == hash, || {
                format!("the hash of key {index} does not fit its name")
            });
        }
        self.check_messages(problems);
        self.check_queues(problems);
        self.check_leases(problems);
        for (what, flag, named) in [
            ("origin", flag::MOVED, self.origin_messages()),
            ("time to live", flag::TTL, self.ttl_messages()),
            ("failure", flag::FAILED, self.failed_messages()),
        ] {
            let flagged = self.messages.iter().filter(|(_, m)| m.has(flag)).count();
            let distinct: BTreeSet<u32> = named.iter().copied().collect();
            let has = |&index: &u32| self.messages.get(index).is_some_and(|m| m.has(flag));
            problems.expect(
                flagged == named.len() && distinct.len() == flagged && distinct.iter().all(has),
                || format!("{flagged} messages have a {what}, {} are kept", named.len()),
            );
        }
        for problem in self.ledgers.problems() {
            problems.expect(false, || problem);
        }
        for problem in self.problems_of_exchanges() {
            problems.expect(false, || problem);
        }
        for problem in self.problems_of_schedules() {
            problems.expect(false, || problem);
        }
        self.check_timers(problems);
    }

    pub(crate) fn problems_of_schedules(&self) -> Vec<String> {
        let is_there = |queue, sequence| {
            let queue = self.queue_index(queue);
            queue.is_some_and(|queue| self.message_of(queue, sequence).is_some())
        };
        self.schedules.problems(is_there)
    }

    pub(crate) fn problems_of_exchanges(&self) -> Vec<String> {
        let has_queue = |queue| self.queue_index(queue).is_some();
        self.exchanges.problems(has_queue)
    }

    fn origin_messages(&self) -> Vec<u32> {
        self.origins.iter().map(|(_, o)| o.message).collect()
    }

    fn ttl_messages(&self) -> Vec<u32> {
        self.times_to_live.iter().map(|(_, t)| t.message).collect()
    }

    fn failed_messages(&self) -> Vec<u32> {
        self.failures.iter().map(|(_, f)| f.message).collect()
    }

    fn check_messages(&self, problems: &mut Problems) {
        for (index, message) in self.messages.iter() {
            let content = self.keys.get(message.key);
            let content = content.and_then(|key| self.contents.get(key.content));
            problems.expect(content.is_some(), || format!("message {index} has no key"));
            let lease = message
                .has(flag::LEASED_ONCE)
                .then(|| self.lease_states.get(message.extra));
            let needs_lease = matches!(message.state, State::Leased | State::Backoff);
            problems.expect(lease.map_or(!needs_lease, |lease| lease.is_some()), || {
                format!("the lease of message {index} is missing")
            });
            let has_holder = lease.flatten().is_some_and(|lease| lease.holder != NONE);
            problems.expect(has_holder == (message.state == State::Leased), || {
                format!(
                    "message {index} is {:?}, holder {has_holder}",
                    message.state
                )
            });
            let keyed = content.is_some_and(|content| content.keyed);
            let returned = message.has(flag::RETURNED);
            problems.expect(
                !returned || (!keyed && message.state == State::Ready),
                || format!("message {index} counts as returned and is not"),
            );
        }
        let leases = self
            .messages
            .iter()
            .filter(|(_, m)| m.has(flag::LEASED_ONCE));
        problems.expect(
            self.lease_states.is_each_once(leases.map(|(_, m)| m.extra)),
            || "leases do not fit the messages".to_owned(),
        );
    }

    fn check_queues(&self, problems: &mut Problems) {
        for (index, queue) in self.queues.iter() {
            let fits = |content: &Content| {
                content.queue == index
                    && content.queue_id == queue.id
                    && content.keyed == queue.settings.keyed
                    && content.profile == queue.settings.key_profile
                    && !content.dead
            };
            let content = self.contents.get(queue.content);
            problems.expect(content.is_some_and(fits), || {
                format!("queue {} does not fit its content", queue.name)
            });
            let next = queue.next_sequence.0.max(queue.reserve.below.0);
            problems.expect(next <= Sequence::MAX.0 + 1, || {
                format!(
                    "the next number of queue {} is above the highest",
                    queue.name
                )
            });
        }
        for (_, queue) in self.queues.iter() {
            let sound = |states: &KeyStates| queue.settings.keyed && states.is_sound();
            problems.expect(queue.states.as_deref().is_none_or(sound), || {
                format!("the states of queue {} cannot be found", queue.name)
            });
            let producers = queue.producers.as_deref();
            problems.expect(producers.is_none_or(Producers::is_sound), || {
                format!("the producers of queue {} cannot be found", queue.name)
            });
        }
        let states = self
            .queues
            .iter()
            .filter_map(|(_, queue)| queue.states.as_deref());
        let state_bytes = states.map(KeyStates::bytes).sum();
        problems.expect_equal("bytes of states", state_bytes, self.key_state_bytes);
        let purged = || self.purged.iter().map(|purged| purged.content);
        problems.expect(
            purged().all(|at| self.contents.get(at).is_some_and(|content| content.dead)),
            || "what was purged is missing".to_owned(),
        );
        let contents = self.queues.iter().map(|(_, queue)| queue.content);
        problems.expect(self.contents.is_each_once(contents.chain(purged())), || {
            "a content belongs to no queue, or to two".to_owned()
        });
        for (index, content) in self.contents.iter().filter(|(_, content)| !content.dead) {
            let next = self.queues.get(content.queue);
            let next = next.map_or(0, |queue| queue.next_sequence.0);
            for (number, at) in content.by_sequence.iter() {
                let message = self.messages.get(at);
                let fits = |message: &Message| {
                    message.sequence().0 == number && self.is_in(message, index)
                };
                problems.expect(number < next && message.is_some_and(fits), || {
                    format!("number {number} of content {index} is not that of message {at}")
                });
            }
            problems.expect(content.by_sequence.takes(next), || {
                format!("the next number of content {index} was given out")
            });
            let unswept = self.messages.get(content.unswept);
            let swept_next =
                |message: &Message| message.state != State::Delayed && self.is_in(message, index);
            problems.expect(
                content.unswept == NONE || unswept.is_some_and(swept_next),
                || format!("the next message of content {index} to expire is missing"),
            );
        }
    }

    fn check_leases(&self, problems: &mut Problems) {
        let mut held = vec![0_u32; self.holders.slots()];
        for (index, lease) in self.lease_states.iter() {
            if lease.holder == NONE {
                continue;
            }
            match self.holders.get(lease.holder) {
                Some(_) => held[lease.holder as usize] += 1,
                None => problems.expect(false, || format!("lease {index} has no holder")),
            }
        }
        for (index, holder) in self.holders.iter() {
            let what = format!("leases of holder {index}");
            problems.expect_equal(&what, held[index as usize], holder.leases);
        }
    }

    /// Checks that every timer belongs to exactly one owner, which refers to it.
    fn check_timers(&self, problems: &mut Problems) {
        let (mut wall, mut machine) = (0, 0);
        let mut named = |is_wall: bool, handle: u32, what: Timer| {
            if handle == NONE {
                return;
            }
            let (wheel, count): (&Wheel, &mut usize) = if is_wall {
                (&self.wall, &mut wall)
            } else {
                (&self.machine, &mut machine)
            };
            *count += 1;
            // The payload names the owner, so two owners cannot have the same timer.
            problems.expect(wheel.payload(handle) == Some(what.to_bits()), || {
                format!("timer {handle} is not for {what:?}")
            });
        };
        for (index, queue) in self.queues.iter() {
            named(true, queue.sweep_timer, Timer::Sweep(index));
            named(false, queue.dedup_timer, Timer::Dedup(index));
            named(false, queue.hold_timer, Timer::Hold(index));
            let producers = queue.producers.as_deref();
            let timer = producers.map_or(NONE, |producers| producers.timer);
            named(false, timer, Timer::Producers(index));
        }
        for (row, schedule) in self.schedules.rows.iter() {
            named(true, schedule.timer, Timer::Schedule(row));
        }
        for (&id, ledger) in &self.ledgers.by_id {
            named(true, ledger.timer, Timer::Ledger(id));
        }
        for (index, record) in self.records.entries.iter() {
            named(false, record.timer, Timer::RecordLease(index));
        }
        for (_, ttl) in self.times_to_live.iter() {
            named(true, ttl.timer, Timer::TimeToLive(ttl.message));
        }
        for (index, message) in self.messages.iter() {
            let timer = if message.has(flag::LEASED_ONCE) {
                let lease = self.lease_states.get(message.extra);
                lease.map_or(NONE, |lease| lease.timer)
            } else {
                message.extra
            };
            named(
                message.state == State::Delayed,
                timer,
                Timer::Message(index),
            );
        }
        for (_, record) in self.records.entries.iter() {
            problems.expect(record.lease.is_some() == (record.timer != NONE), || {
                format!("the lease of record {} does not fit its timer", record.name)
            });
        }
        problems.expect_equal("timers by wall time", wall, self.wall.len());
        problems.expect_equal("timers by machine time", machine, self.machine.len());
    }

    /// Checks all counts. Returns the counts of keys, by their index.
    fn check_counts(&self, problems: &mut Problems) -> Vec<OfKey> {
        let messages = |counts: &QueueCounts| counts.ready + counts.in_flight + counts.delayed;
        let mut of_keys = vec![OfKey::default(); self.keys.slots()];
        let mut counts = vec![QueueCounts::default(); self.contents.slots()];
        let mut leased = vec![0_u32; self.contents.slots()];
        for (_, message) in self.messages.iter() {
            let key = &self.keys[message.key];
            let of_content = &mut counts[key.content as usize];
            let of_key = &mut of_keys[message.key as usize];
            of_content.bytes += u64::from(message.size);
            match message.state {
                State::Ready => of_content.ready += 1,
                State::Leased | State::Backoff => of_content.in_flight += 1,
                State::Delayed => of_content.delayed += 1,
            }
            match message.state {
                State::Delayed => of_key.delayed += 1,
                _ => of_key.messages += 1,
            }
            of_key.leased += u32::from(message.state == State::Leased);
            leased[key.content as usize] += u32::from(message.state == State::Leased);
            of_key.in_order += u32::from(matches!(
                self.in_key(message),
                InKey::Order | InKey::Returned
            ));
        }
        for (index, key) in self.keys.iter() {
            let of_key = &of_keys[index as usize];
            let of_content = &mut counts[key.content as usize];
            of_content.keys += u64::from(of_key.messages + of_key.delayed > 0);
            of_content.parked_keys += u64::from(key.parked);
            of_content.limited_keys += u64::from(key.place == Place::Limited);
            let dead = self.contents[key.content].dead;
            let counted = (of_key.messages, of_key.delayed);
            let what = format!("messages of key {index}");
            problems.expect_equal(&what, counted, (key.messages, key.delayed_count));
            problems.expect(dead || of_key.leased == key.leased, || {
                format!("key {index}: {} leased, {} kept", of_key.leased, key.leased)
            });
            problems.expect(dead || counted != (0, 0) || key.parked, || {
                format!("key {index} has nothing and is not parked")
            });
        }
        for (index, content) in self.contents.iter().filter(|(_, content)| !content.dead) {
            let what = format!("content {index}");
            problems.expect_equal(&what, counts[index as usize], content.counts);
            let leased = leased[index as usize];
            problems.expect_equal(&format!("{what} leased"), leased, content.leased);
            let numbers = content.by_sequence.iter().count() as u64;
            let there = messages(&counts[index as usize]);
            problems.expect_equal(&format!("{what} by number"), numbers, there);
        }
        for (_, queue) in self.queues.iter() {
            let totals = queue.totals;
            let came = totals.accepted.saturating_add(totals.moved_in);
            let left = [
                totals.acknowledged,
                totals.moved_out,
                totals.dropped.total(),
            ];
            let left = left.into_iter().fold(0, u64::saturating_add);
            let there = messages(&counts[queue.content as usize]);
            problems.expect(came == left.saturating_add(there), || {
                format!(
                    "{}: {came} came, {left} left, {there} are there",
                    queue.name
                )
            });
        }
        let key_sequences = self
            .queues
            .iter()
            .map(|(_, queue)| queue.key_sequences.len());
        for (what, counted, kept) in [
            (
                "moved messages",
                self.origins.len(),
                self.by_moved_message.len(),
            ),
            (
                "moved messages by id",
                self.origins.len(),
                self.by_moved_id.len(),
            ),
            (
                "times to live",
                self.times_to_live.len(),
                self.by_ttl_message.len(),
            ),
            (
                "messages that failed",
                self.failures.len(),
                self.by_failed_message.len(),
            ),
            ("keys by name", self.keys.len(), self.by_key.len()),
            ("debtors by name", self.debtors.len(), self.by_debtor.len()),
            (
                "records by name",
                self.records.entries.len(),
                self.records.by_name.len(),
            ),
            ("holders by name", self.holders.len(), self.by_holder.len()),
            (
                "keys that are counted",
                key_sequences.sum(),
                usize::try_from(self.key_sequences).unwrap_or(usize::MAX),
            ),
        ] {
            problems.expect_equal(what, counted, kept);
        }
        let messages = self.messages.iter().map(|(_, message)| message);
        let sharing = messages.filter(|message| message.has(flag::SHARED));
        let mut counted: BTreeMap<_, u32> = BTreeMap::new();
        for message in sharing {
            *counted.entry(message.location().position).or_default() += 1;
        }
        let kept = self
            .shared
            .rows
            .iter()
            .map(|(_, row)| (row.position, row.messages));
        let kept: BTreeMap<_, _> = kept.collect();
        problems.expect(counted == kept, || {
            format!("messages that share payloads: {counted:?} counted, {kept:?} kept")
        });
        let (counted, kept) = (self.count_live(), &self.live);
        problems.expect(counted.iter().eq(kept.iter()), || {
            let counted: Vec<_> = counted.iter().collect();
            let kept: Vec<_> = kept.iter().collect();
            format!("alive: {counted:?} counted, {kept:?} kept")
        });
        of_keys
    }

    /// Checks that each message and key is once in each list it belongs to, and in no other.
    fn check_lists(&self, of_keys: &[OfKey], problems: &mut Problems) {
        let (order, age) = (|m: &Message| m.order, |m: &Message| m.age);
        for (index, key) in self.keys.iter() {
            // Freeing a purged content leaves its keys' lists as they are.
            if self.contents[key.content].dead {
                continue;
            }
            let of_key = of_keys[index as usize];
            let mut walk = |list, which| {
                let belongs = |m: &Message| m.key == index && self.in_key(m) == which;
                walk(list, &self.messages, order, belongs).unwrap_or_else(|at| {
                    problems.expect(false, || format!("a list of key {index} breaks at {at}"));
                    0
                })
            };
            let in_order = walk(key.order, InKey::Order) + walk(key.returned, InKey::Returned);
            let delayed = walk(key.delayed, InKey::Delayed);
            let what = format!("lists of key {index}");
            problems.expect_equal(
                &what,
                (in_order, delayed),
                (of_key.in_order, of_key.delayed),
            );
            problems.expect(
                self.key_of(key.content, key.name.as_ref()) == Some(index),
                || format!("key {index} is not found by its name"),
            );
            problems.expect(self.ready_now(key) == (key.place != Place::Out), || {
                format!("key {index} is {:?}, which is wrong", key.place)
            });
            let queue = &self.queues[self.contents[key.content].queue];
            problems.expect(
                key.place != Place::Limited || queue.limits.is_some(),
                || format!("no limit holds key {index}"),
            );
        }
        let mut of_contents = vec![OfContent::default(); self.contents.slots()];
        for (at, key) in self.keys.iter() {
            let (of_key, of_content) =
                (of_keys[at as usize], &mut of_contents[key.content as usize]);
            of_content.messages += u64::from(of_key.messages);
            of_content.delayed += u64::from(of_key.delayed);
            of_content.parked_keys += u64::from(key.parked);
            let is_in = |place| u64::from(key.place == place && !key.parked);
            of_content.ready_keys += is_in(Place::Ready);
            of_content.limited_keys += is_in(Place::Limited);
        }
        let mut debtors = HashMap::new();
        for (_, debtor) in self.debtors.iter() {
            *debtors.entry(debtor.queue).or_default() += 1;
        }
        for (_, queue) in self.queues.iter() {
            let counted = debtors.remove(&queue.id).unwrap_or_default();
            let kept = queue.limits.as_ref().map_or(0, |limits| limits.debtors);
            problems.expect_equal("keys of a queue that owe", counted, kept);
        }
        for (index, content) in self.contents.iter() {
            let of_content = of_contents[index as usize];
            let links = |key: &KeyState| key.links;
            let mut found = |what: &str, list: Result<u32, u32>, expected: u64| match list {
                Ok(found) => {
                    let what = format!("{what} of content {index}");
                    problems.expect_equal(&what, u64::from(found), expected);
                }
                Err(at) => problems.expect(false, || {
                    format!("the list of {what} of content {index} breaks at {at}")
                }),
            };
            let is_parked = |key: &KeyState| key.content == index && key.parked;
            let list = walk(content.parked_keys, &self.keys, links, is_parked);
            found("parked keys", list, of_content.parked_keys);
            let is_deliverable = |m: &Message| m.state != State::Delayed && self.is_in(m, index);
            let is_delayed = |m: &Message| m.state == State::Delayed && self.is_in(m, index);
            let by_age = walk(content.by_age, &self.messages, age, is_deliverable);
            let delayed = walk(content.delayed, &self.messages, age, is_delayed);
            if !content.dead {
                let is_in = |place| {
                    move |key: &KeyState| key.content == index && key.place == place && !key.parked
                };
                let list = walk(content.ready_keys, &self.keys, links, is_in(Place::Ready));
                found("ready keys", list, of_content.ready_keys);
                let list = walk(
                    content.limited_keys,
                    &self.keys,
                    links,
                    is_in(Place::Limited),
                );
                found("limited keys", list, of_content.limited_keys);
            }
            found("messages by age", by_age, of_content.messages);
            found("delayed messages", delayed, of_content.delayed);
        }
    }

    /// Counts the live bytes by range again.
    pub(super) fn count_live(&self) -> LiveRanges {
        let mut live = LiveRanges::new(self.limits.range_bits);
        for (_, message) in self.messages.iter() {
            let key = self.keys.get(message.key);
            let size = if message.has(flag::SHARED) {
                0
            } else {
                message.size
            };
            let bytes = live_bytes(size, key.and_then(|key| key.name.as_ref()));
            live.add(message.location().position, bytes);
        }
        for (_, row) in self.shared.rows.iter() {
            live.add_payload(row.position, row.bytes);
        }
        self.ledgers.count_live(&mut live);
        live
    }

    fn is_in(&self, message: &Message, content: u32) -> bool {
        let key = self.keys.get(message.key);
        key.is_some_and(|key| key.content == content)
    }

    fn in_key(&self, message: &Message) -> InKey {
        let keyed = self.contents[self.keys[message.key].content].keyed;
        match message.state {
            State::Delayed => InKey::Delayed,
            State::Ready if message.has(flag::RETURNED) => InKey::Returned,
            State::Leased | State::Backoff if !keyed => InKey::None,
            _ => InKey::Order,
        }
    }

    /// Whether a receive may have a message of the key.
    fn ready_now(&self, key: &KeyState) -> bool {
        let leasable = |index: u32| self.messages.get(index).is_some_and(Message::is_leasable);
        let locked = key.strict && key.leased > 0;
        !key.parked && !locked && (leasable(key.order.first) || leasable(key.returned.first))
    }
}

#[cfg(test)]
impl Machine {
    /// Messages, keys and contents in use, without the contents of live queues.
    pub(crate) fn memory_in_use(&self) -> (usize, usize, usize) {
        (
            self.messages.len() + self.lease_states.len(),
            self.keys.len() + self.holders.len(),
            self.contents.len() - self.queues.len(),
        )
    }

    /// Messages with failures, and the memory of these.
    pub(crate) fn failures_in_use(&self) -> (usize, u64) {
        (self.failures.len(), self.failure_bytes)
    }

    /// How many keys a receive from the queue could walk over.
    pub(crate) fn ready_keys(&self, queue: &lockgate_core::QueueName) -> usize {
        let content = self.queues[self.queue_names[queue]].content;
        let list = self.contents[content].ready_keys;
        let keys = walk(
            list,
            &self.keys,
            |key| key.links,
            |key| key.place == Place::Ready,
        );
        keys.expect("the list can be walked") as usize
    }
}

/// The number of elements in the list, all of which must belong in it; or the first index that does not fit.
///
/// Each element must name the one before it, and the first one none. So no element occurs twice.
fn walk<T: Clone, const PAGE: u32>(
    list: List,
    slab: &Slab<T, PAGE>,
    links: impl Fn(&T) -> Links,
    belongs: impl Fn(&T) -> bool,
) -> Result<u32, u32> {
    let (mut count, mut before, mut at) = (0, NONE, list.first);
    while at != NONE {
        let element = slab.get(at).filter(|element| belongs(element));
        let links = links(element.ok_or(at)?);
        if links.before != before {
            return Err(at);
        }
        count += 1;
        (before, at) = (at, links.after);
    }
    if before == list.last {
        Ok(count)
    } else {
        Err(list.last)
    }
}
