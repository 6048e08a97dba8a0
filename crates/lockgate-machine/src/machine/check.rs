//! What must hold of a machine's insides at every instant. For tests.

use std::collections::BTreeMap;

use super::{
    Machine,
    list::List,
    state::{State, flag},
};
use crate::{LiveRange, QueueCounts, live::live_bytes, slab::NONE};

impl Machine {
    /// Everything that is wrong; nothing, if the machine is as it must be.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut wrong = |what: String| problems.push(what);

        let mut by_content: BTreeMap<u32, QueueCounts> = BTreeMap::new();
        let mut by_key: BTreeMap<u32, (u32, u32, u32)> = BTreeMap::new();
        let (mut leased_once, mut moved, mut with_ttl) = (0, 0, 0);
        let mut live = BTreeMap::new();
        for (index, message) in self.messages.iter() {
            let Some(key) = self.keys.get(message.key) else {
                wrong(format!("message {index} has no key"));
                continue;
            };
            let range = message.location().position.0 >> self.limits.range_bits;
            let alive: &mut LiveRange = live.entry(range).or_default();
            alive.messages += 1;
            alive.bytes += live_bytes(message.size, key.name.as_ref());
            let counts = by_content.entry(key.content).or_default();
            let of_key = by_key.entry(message.key).or_default();
            counts.bytes += u64::from(message.size);
            match message.state {
                State::Ready => counts.ready += 1,
                State::Leased | State::Backoff => counts.in_flight += 1,
                State::Delayed => counts.delayed += 1,
            }
            if message.state == State::Delayed {
                of_key.1 += 1;
            } else {
                of_key.0 += 1;
            }
            if message.state == State::Leased {
                of_key.2 += 1;
            }
            leased_once += usize::from(message.has(flag::TOUCHED));
            moved += usize::from(message.has(flag::MOVED));
            with_ttl += usize::from(message.has(flag::TTL));
            let leased = message.state == State::Leased;
            let has_holder = self
                .leased_once(index)
                .is_some_and(|lease_state| lease_state.holder != NONE);
            if leased != has_holder {
                wrong(format!(
                    "message {index}: leased {leased}, holder {has_holder}"
                ));
            }
        }
        for (what, counted, kept) in [
            ("lease_states", leased_once, self.lease_states.len()),
            ("origins", moved, self.origins.len()),
            ("moved messages", moved, self.by_moved_message.len()),
            ("moved messages by id", moved, self.by_moved_id.len()),
            ("times to live", with_ttl, self.times_to_live.len()),
            ("TTL messages", with_ttl, self.by_ttl_message.len()),
            ("keys by name", self.keys.len(), self.by_key.len()),
            ("holders by name", self.holders.len(), self.by_holder.len()),
            (
                "keys that are counted",
                self.queues
                    .iter()
                    .map(|(_, queue)| queue.key_sequences.iter().count())
                    .sum(),
                usize::try_from(self.key_sequences).expect("fewer than there is memory"),
            ),
        ] {
            if counted != kept {
                wrong(format!("{what}: {counted} counted, {kept} kept"));
            }
        }

        let kept: Vec<_> = self.live_ranges().collect();
        let first = |range| lockgate_core::Position(range << self.limits.range_bits);
        let counted: Vec<_> = live
            .into_iter()
            .map(|(at, alive)| (first(at), alive))
            .collect();
        if counted != kept {
            wrong(format!("alive: {counted:?} counted, {kept:?} kept"));
        }

        let (mut keys_by_content, mut ready_by_content) = (BTreeMap::new(), BTreeMap::new());
        for (index, key) in self.keys.iter() {
            let counted = by_key.get(&index).copied().unwrap_or_default();
            let kept = (key.messages, key.delayed_count, key.leased);
            let content = &self.contents[key.content];
            if content.dead {
                continue;
            }
            if counted != kept {
                wrong(format!("key {index}: counted {counted:?}, kept {kept:?}"));
            }
            if counted.0 + counted.1 == 0 && !key.parked {
                wrong(format!("key {index} has nothing and is not parked"));
            }
            *keys_by_content.entry(key.content).or_insert(0) +=
                u64::from(counted.0 + counted.1 > 0);
            *ready_by_content.entry(key.content).or_insert(0) += usize::from(key.ready);
            let in_lists = self.length(key.order, |index| self.messages[index].order.after)
                + self.length(key.returned, |index| self.messages[index].order.after);
            let expected = if content.keyed {
                key.messages
            } else {
                key.messages - key.leased - self.backing_off(index)
            };
            if in_lists != expected as usize {
                wrong(format!(
                    "key {index}: {in_lists} in its order, not {expected}"
                ));
            }
            if self.key_of(key.content, key.name.as_ref()) != Some(index) {
                wrong(format!("key {index} is not found by its name"));
            }
            if self.ready_now(index) != key.ready {
                wrong(format!(
                    "key {index} is ready: {}, which is wrong",
                    key.ready
                ));
            }
        }

        for (_, queue) in self.queues.iter() {
            let content = &self.contents[queue.content];
            let mut counted = by_content.get(&queue.content).copied().unwrap_or_default();
            counted.keys = keys_by_content.get(&queue.content).copied().unwrap_or(0);
            counted.parked_keys = content.counts.parked_keys;
            if counted != content.counts {
                wrong(format!(
                    "{}: {counted:?} but {:?}",
                    queue.name, content.counts
                ));
            }
            if content.by_sequence.len() as u64 != content.messages() {
                wrong(format!(
                    "{}: {} by number",
                    queue.name,
                    content.by_sequence.len()
                ));
            }
            let by_age = self.length(content.by_age, |index| self.messages[index].age.after);
            if by_age as u64 != counted.ready + counted.in_flight {
                wrong(format!("{}: {by_age} by age", queue.name));
            }
            let ready = self.length(content.ready_keys, |key| self.keys[key].links.after);
            if ready != ready_by_content.get(&queue.content).copied().unwrap_or(0) {
                wrong(format!("{}: {ready} ready keys in the list", queue.name));
            }
            let parked = self.length(content.parked_keys, |key| self.keys[key].links.after);
            if parked as u64 != content.counts.parked_keys {
                wrong(format!("{}: {parked} parked keys in the list", queue.name));
            }
            let totals = queue.totals;
            let came = totals.accepted + totals.moved_in;
            let left = totals.acknowledged + totals.moved_out + totals.dropped.total();
            if came != left + content.messages() {
                wrong(format!(
                    "{}: {came} came, {left} left, {} are there",
                    queue.name,
                    content.messages()
                ));
            }
        }
        problems
    }

    /// Messages, keys and contents but those of live queues, in use.
    pub(crate) fn memory_in_use(&self) -> (usize, usize, usize) {
        (
            self.messages.len() + self.lease_states.len(),
            self.keys.len() + self.holders.len(),
            self.contents.len() - self.queues.len(),
        )
    }

    /// How many keys a receive from the queue could walk over.
    pub(crate) fn ready_keys(&self, queue: &lockgate_core::QueueName) -> usize {
        let content = self.queues[self.queue_names[queue]].content;
        self.length(self.contents[content].ready_keys, |key| {
            self.keys[key].links.after
        })
    }

    fn ready_now(&self, key: u32) -> bool {
        let state = &self.keys[key];
        let leasable = |index: u32| index != NONE && self.messages[index].is_leasable();
        let locked = state.strict && state.leased > 0;
        !state.parked && !locked && (leasable(state.order.first) || leasable(state.returned.first))
    }

    fn backing_off(&self, key: u32) -> u32 {
        let all = self.messages.iter();
        let these = all.filter(|(_, m)| m.key == key && m.state == State::Backoff);
        u32::try_from(these.count()).expect("few messages in tests")
    }

    fn length(&self, list: List, after: impl Fn(u32) -> u32) -> usize {
        let some = |index| (index != NONE).then_some(index);
        let elements = std::iter::successors(some(list.first), |&index| some(after(index)));
        elements.count()
    }
}
