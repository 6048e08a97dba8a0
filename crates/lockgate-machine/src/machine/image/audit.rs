//! Whether what was loaded can be walked.
//!
//! A machine follows indexes without asking whether they fit: lists through messages and keys,
//! counts that must reach zero, timers and their owners. To look each of them up would cost a wait
//! for memory per link, seconds for ten million messages. Instead both ends of every relation are
//! summed up as they come by: what a message says of its successor is added, what the successor
//! says of it is taken off, each as a 64-bit hash. Only if all agree is every sum zero in the end
//! (multiset hashing: Clarke et al. 2003; with a fixed hash function, so against accidents and
//! mistakes, not against forgers).

use std::hint::black_box;

use lockgate_core::Sequence;

use crate::{
    ImageError, Machine, QueueCounts,
    columns::damaged,
    live::live_bytes,
    machine::{
        list::{Links, List},
        state::{Content, KeyState, Message, State, Timer, flag},
    },
    slab::NONE,
    table::mix,
    wheel::Wheel,
};

/// A relation of which both ends must agree.
#[derive(Clone, Copy, Debug)]
enum Relation {
    /// Neighbours in lists of messages by key.
    Order,
    /// Neighbours in lists of messages by queue.
    Age,
    /// Neighbours in lists of keys.
    Keys,
    /// How many messages a key has.
    KeyCounts,
    /// Which message has which number.
    Numbers,
    LeaseStates,
    Origins,
    TimesToLive,
    WallTimers,
    MachineTimers,
}

const RELATIONS: [(Relation, &str); 10] = [
    (
        Relation::Order,
        "the order of a key's messages does not fit them",
    ),
    (
        Relation::Age,
        "the order of a queue's messages does not fit them",
    ),
    (
        Relation::Keys,
        "the list of a queue's keys does not fit them",
    ),
    (
        Relation::KeyCounts,
        "a key's counts do not fit its messages",
    ),
    (
        Relation::Numbers,
        "the index by number does not fit the messages",
    ),
    (Relation::LeaseStates, "leases do not fit the messages"),
    (Relation::Origins, "origins do not fit the messages"),
    (
        Relation::TimesToLive,
        "times to live do not fit the messages",
    ),
    (Relation::WallTimers, "timers do not fit what they are for"),
    (
        Relation::MachineTimers,
        "timers do not fit what they are for",
    ),
];

/// The sums, and what is needed of rows that came before.
#[derive(Debug, Default)]
pub(super) struct Audit {
    sums: [u64; RELATIONS.len()],
    /// By the key's index.
    keys: Vec<KeyOutline>,
    /// What messages there are, by content.
    counts: Vec<QueueCounts>,
}

/// What messages need to know of their key, close together.
#[derive(Clone, Copy, Debug)]
struct KeyOutline {
    /// `NONE`: there is no such key.
    content: u32,
    /// Bytes in the log for each message, beside its own.
    bytes: u32,
    keyed: bool,
    dead: bool,
}

impl Audit {
    /// A page of keys has come, and all contents before.
    pub(super) fn keys<'a>(
        &mut self,
        machine: &Machine,
        page: impl Iterator<Item = (u32, &'a KeyState)>,
    ) -> Result<(), ImageError> {
        for (index, key) in page {
            let Some(content) = machine.contents.get(key.content) else {
                return Err(damaged("a key is of no queue"));
            };
            if key.hash != machine.key_hash(key.content, key.name.as_ref()) {
                return Err(damaged("a key's hash does not fit its name"));
            }
            let none = KeyOutline {
                content: NONE,
                bytes: 0,
                keyed: false,
                dead: false,
            };
            self.keys.resize(index as usize, none);
            self.keys.push(KeyOutline {
                content: key.content,
                bytes: u32::try_from(live_bytes(0, key.name.as_ref())).unwrap_or(u32::MAX),
                keyed: content.keyed,
                dead: content.dead,
            });

            // Freeing what was purged leaves its keys' lists as they are, but for parked keys.
            if !content.dead {
                self.list(Relation::Order, key_list(index, ORDER), key.order);
                self.list(Relation::Order, key_list(index, RETURNED), key.returned);
                self.list(Relation::Order, key_list(index, DELAYED), key.delayed);
                self.subtract(Relation::KeyCounts, key_list(index, LEASED), key.leased);
            }
            self.subtract(Relation::KeyCounts, key_list(index, ORDER), key.messages);
            let delayed = key.delayed_count;
            self.subtract(Relation::KeyCounts, key_list(index, DELAYED), delayed);
            if key.parked {
                self.links(
                    Relation::Keys,
                    key_list(key.content, PARKED),
                    index,
                    key.links,
                );
            } else if key.ready && !content.dead {
                self.links(
                    Relation::Keys,
                    key_list(key.content, READY),
                    index,
                    key.links,
                );
            }
            let content = self.content(key.content);
            content.keys += u64::from(key.messages > 0 || key.delayed_count > 0);
            content.parked_keys += u64::from(key.parked);
        }
        Ok(())
    }

    /// Reads what these messages will ask for of their keys, all at once: one after the other most
    /// of a message's time would be a wait for memory.
    pub(super) fn read_ahead<'a>(&self, page: impl Iterator<Item = &'a Message>) {
        let contents = page.map(|message| {
            let key = self.keys.get(message.key as usize);
            key.map_or(NONE, |key| key.content)
        });
        black_box(contents.fold(0, |all, content| all ^ content));
    }

    /// A message has come, and all keys and touches before. Returns the bytes that it takes in the
    /// log.
    pub(super) fn message(
        &mut self,
        machine: &Machine,
        index: u32,
        message: &Message,
    ) -> Result<u64, ImageError> {
        let key = self.keys.get(message.key as usize);
        let Some(&key) = key.filter(|key| key.content != NONE) else {
            return Err(damaged("a message is of no key"));
        };
        let is_delayed = message.state == State::Delayed;
        if message.has(flag::RETURNED) && (key.keyed || message.state != State::Ready) {
            return Err(damaged("a message counts as returned but is not"));
        }
        let which = if is_delayed {
            DELAYED
        } else if message.has(flag::RETURNED) {
            RETURNED
        } else {
            ORDER
        };
        let in_order = key.keyed || matches!(message.state, State::Ready | State::Delayed);
        let order = key_list(message.key, which);
        if key.dead {
            // Only the lists by which it is freed go on.
        } else if in_order {
            self.links(Relation::Order, order, index, message.order);
        } else if message.order != Links::NONE {
            return Err(damaged("a message stands in an order while it is leased"));
        }
        let by_age = if is_delayed { DELAYED } else { ORDER };
        self.links(
            Relation::Age,
            key_list(key.content, by_age),
            index,
            message.age,
        );
        let counted = if which == by_age {
            order
        } else {
            key_list(message.key, by_age)
        };
        self.add(Relation::KeyCounts, counted);
        let number = message.sequence().0;
        if !key.dead {
            if message.state == State::Leased {
                self.add(Relation::KeyCounts, key_list(message.key, LEASED));
            }
            self.add(Relation::Numbers, numbered(key.content, number, index));
        }
        let counts = self.content(key.content);
        counts.bytes += u64::from(message.size);
        match message.state {
            State::Ready => counts.ready += 1,
            State::Leased | State::Backoff => counts.in_flight += 1,
            State::Delayed => counts.delayed += 1,
        }
        if message.has(flag::TOUCHED) {
            let Some(lease_state) = machine.lease_states.get(message.extra) else {
                return Err(damaged("a message's lease is missing"));
            };
            self.add(Relation::LeaseStates, hash(0, u64::from(message.extra)));
            self.timer(is_delayed, lease_state.timer, Timer::Message(index));
        } else if matches!(message.state, State::Leased | State::Backoff) {
            return Err(damaged("a message has no lease but is leased"));
        } else if message.extra != NONE {
            self.timer(is_delayed, message.extra, Timer::Message(index));
        }
        if message.has(flag::MOVED) {
            self.add(Relation::Origins, hash(0, u64::from(index)));
        }
        if message.has(flag::TTL) {
            self.add(Relation::TimesToLive, hash(0, u64::from(index)));
        }
        Ok(u64::from(key.bytes) + u64::from(message.size))
    }

    /// Everything has come.
    pub(super) fn finish(mut self, machine: &Machine) -> Result<(), ImageError> {
        self.leases(machine)?;
        for (index, queue) in machine.queues.iter() {
            let fits = |content: &Content| {
                content.queue == index
                    && content.queue_id == queue.id
                    && content.keyed == queue.settings.keyed
                    && content.profile == queue.settings.key_profile
                    && !content.dead
            };
            if !machine.contents.get(queue.content).is_some_and(fits) {
                return Err(damaged("a queue does not fit its content"));
            }
            let highest = Sequence::MAX.0 + 1;
            if queue.next_sequence.0.max(queue.reserve.below.0) > highest {
                return Err(damaged("a queue's next number is above the highest"));
            }
            self.timer(true, queue.sweep_timer, Timer::Sweep(index));
            self.timer(false, queue.dedup_timer, Timer::Dedup(index));
            self.timer(false, queue.hold_timer, Timer::Hold(index));
        }
        for purged in &machine.purged {
            if !machine
                .contents
                .get(purged.content)
                .is_some_and(|content| content.dead)
            {
                return Err(damaged("what was purged is missing"));
            }
        }
        let contents = machine.queues.iter().map(|(_, queue)| queue.content);
        let purged = machine.purged.iter().map(|purged| purged.content);
        if !machine.contents.is_each_once(contents.chain(purged)) {
            return Err(damaged("a content belongs to no queue, or to two"));
        }
        self.contents(machine)?;
        for (_, origin) in machine.origins.iter() {
            self.subtract(Relation::Origins, hash(0, u64::from(origin.message)), 1);
        }
        for (_, ttl) in machine.times_to_live.iter() {
            self.subtract(Relation::TimesToLive, hash(0, u64::from(ttl.message)), 1);
            self.timer(true, ttl.timer, Timer::TimeToLive(ttl.message));
        }
        self.timers(Relation::WallTimers, &machine.wall);
        self.timers(Relation::MachineTimers, &machine.machine);
        match RELATIONS
            .iter()
            .find(|(relation, _)| self.sums[*relation as usize] != 0)
        {
            Some((_, what)) => Err(damaged(what)),
            None => Ok(()),
        }
    }

    /// Few messages are leased, so these may be looked up.
    fn leases(&mut self, machine: &Machine) -> Result<(), ImageError> {
        let mut held = Vec::new();
        for (index, lease_state) in machine.lease_states.iter() {
            self.subtract(Relation::LeaseStates, hash(0, u64::from(index)), 1);
            if lease_state.holder == NONE {
                continue;
            }
            if machine.holders.get(lease_state.holder).is_none() {
                return Err(damaged("a lease has no holder"));
            }
            let holder = lease_state.holder as usize;
            held.resize(held.len().max(holder + 1), 0_u32);
            held[holder] += 1;
        }
        for (index, holder) in machine.holders.iter() {
            if held.get(index as usize) != Some(&holder.leases) {
                return Err(damaged("a holder's leases do not fit it"));
            }
        }
        Ok(())
    }

    fn contents(&mut self, machine: &Machine) -> Result<(), ImageError> {
        for (index, content) in machine.contents.iter() {
            self.list(Relation::Age, key_list(index, ORDER), content.by_age);
            self.list(Relation::Age, key_list(index, DELAYED), content.delayed);
            self.list(Relation::Keys, key_list(index, PARKED), content.parked_keys);
            if content.dead {
                continue;
            }
            self.list(Relation::Keys, key_list(index, READY), content.ready_keys);
            let next = machine.queues.get(content.queue);
            let next = next.map_or(0, |queue| queue.next_sequence.0);
            for (number, message) in content.by_sequence.iter() {
                if number >= next {
                    return Err(damaged("a number was given out that is still to come"));
                }
                self.subtract(Relation::Numbers, numbered(index, number, message), 1);
            }
            if !content.by_sequence.takes(next) {
                return Err(damaged("a queue's next number was given out"));
            }
            if *self.content(index) != content.counts {
                return Err(damaged("a queue's counts do not fit its messages"));
            }
            let is_in_by_age = |message: &Message| {
                let key = machine.keys.get(message.key);
                message.state != State::Delayed && key.is_some_and(|key| key.content == index)
            };
            if content.unswept != NONE
                && !machine
                    .messages
                    .get(content.unswept)
                    .is_some_and(is_in_by_age)
            {
                return Err(damaged("the next message to expire is missing"));
            }
        }
        Ok(())
    }

    /// Something says that this timer, unless it is `NONE`, is for it.
    fn timer(&mut self, wall: bool, handle: u32, what: Timer) {
        if handle != NONE {
            let relation = if wall {
                Relation::WallTimers
            } else {
                Relation::MachineTimers
            };
            self.add(relation, hash(u64::from(handle), what.to_bits()));
        }
    }

    fn timers(&mut self, relation: Relation, wheel: &Wheel) {
        for (handle, payload) in wheel.payloads() {
            self.subtract(relation, hash(u64::from(handle), payload), 1);
        }
    }

    fn content(&mut self, content: u32) -> &mut QueueCounts {
        let content = content as usize;
        if self.counts.len() <= content {
            self.counts.resize(content + 1, QueueCounts::default());
        }
        &mut self.counts[content]
    }

    /// An element of a list says who its neighbours are.
    fn links(&mut self, relation: Relation, list: u64, index: u32, links: Links) {
        let leaves = edge(list, index, links.after);
        let arrives = edge(list, links.before, index);
        let sum = &mut self.sums[relation as usize];
        *sum = sum.wrapping_add(leaves).wrapping_sub(arrives);
    }

    /// A list says which its ends are.
    fn list(&mut self, relation: Relation, list: u64, ends: List) {
        let leaves = edge(list, NONE, ends.first);
        let arrives = edge(list, ends.last, NONE);
        let sum = &mut self.sums[relation as usize];
        *sum = sum.wrapping_add(leaves).wrapping_sub(arrives);
    }

    fn add(&mut self, relation: Relation, hash: u64) {
        let sum = &mut self.sums[relation as usize];
        *sum = sum.wrapping_add(hash);
    }

    fn subtract(&mut self, relation: Relation, hash: u64, times: u32) {
        let sum = &mut self.sums[relation as usize];
        *sum = sum.wrapping_sub(hash.wrapping_mul(u64::from(times)));
    }
}

// Which of the lists of a key or a content, or which of its counts.
const ORDER: u64 = 0;
const RETURNED: u64 = 1;
const DELAYED: u64 = 2;
const LEASED: u64 = 3;
const READY: u64 = 0;
const PARKED: u64 = 1;

/// Added where a number may be zero, which hashes to zero, and zero times anything is nothing.
const NOT_ZERO: u64 = 0x9e37_79b9_7f4a_7c15;

/// A list of a key, or of a content.
fn key_list(owner: u32, which: u64) -> u64 {
    mix((u64::from(owner) << 2 | which).wrapping_add(NOT_ZERO))
}

/// One step in a list.
fn edge(list: u64, from: u32, to: u32) -> u64 {
    mix(list ^ (u64::from(from) << 32 | u64::from(to)))
}

fn numbered(content: u32, number: u64, message: u32) -> u64 {
    let spread = number.wrapping_mul(NOT_ZERO);
    mix(spread ^ (u64::from(content) << 32 | u64::from(message)))
}

fn hash(of: u64, what: u64) -> u64 {
    mix(mix(of.wrapping_add(NOT_ZERO)) ^ what)
}
