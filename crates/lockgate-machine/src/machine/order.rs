//! A message's way through its queue, and which keys are ready.
//!
//! | from | to | by |
//! |---|---|---|
//! | - | delayed, ready | accepted, moved in |
//! | delayed | ready | its due time |
//! | ready | leased | a receive |
//! | leased | ready | nack without delay, give back, the end of the lease |
//! | leased | backoff | nack with delay |
//! | backoff | ready | the end of the delay |
//! | any | gone | ack, move, drop |
//!
//! **Keyed queues.** Ready, leased and backing-off messages stay in their key's order, so each
//! returns to its place. The key is *ready* while the first message of that order is leasable (in
//! the strict profile, only while none of its messages is leased). So a locked key is in no list
//! that a receive walks, and the number of a key's messages never matters.
//!
//! **Unkeyed queues.** A group is ready while its first message is leasable. A leased message is in
//! no list. It comes back to the group's list of *returned* messages, which takes turns with the
//! order: a message that always fails cannot starve the ones behind it, nor they it. A message
//! whose record is not synced yet blocks its group as in a keyed queue. That delays others of the
//! group by at most one sync, and only if senders ask for different levels.

use lockgate_core::{Key, Level, MachineTime, Position, Sequence, WallTime};

use super::{
    Machine,
    list::{LinksOf, List},
    state::{Awaiting, KeyState, LeaseState, Message, Place, State, Timer, flag},
};
use crate::{
    Payload,
    effect::KeyText,
    slab::NONE,
    table::{hash_bytes, hash_pair},
};

/// Neighbours in a list of the message's key.
const ORDER: LinksOf<Message> = |message| &mut message.order;
/// Neighbours in a list of the message's queue.
pub(super) const AGE: LinksOf<Message> = |message| &mut message.age;
/// Neighbours in a list of the key's content.
pub(super) const KEYS: LinksOf<KeyState> = |key| &mut key.links;

impl Machine {
    /// The queue's message with that number; `None` if it is gone or purged.
    pub(super) fn message_of(&self, queue: u32, sequence: Sequence) -> Option<u32> {
        let content = self.queues[queue].content;
        let is_it = |message: &Message| {
            message.sequence() == sequence && self.keys[message.key].content == content
        };
        if self.messages.get(self.likely_message).is_some_and(is_it) {
            return Some(self.likely_message);
        }
        self.contents[content].by_sequence.get(sequence.0)
    }

    /// The key's state, if it has a message or is parked.
    pub(super) fn key_of(&self, content: u32, name: Option<&Key>) -> Option<u32> {
        let text = name.map(Key::as_str);
        self.find_key(self.key_hash(content, name), content, text)
    }

    fn find_key(&self, hash: u32, content: u32, text: Option<&str>) -> Option<u32> {
        self.by_key
            .find(spread(hash), |key| self.keys[key].is_of(content, text))
    }

    /// The key's state, created if there is none.
    pub(super) fn key_or_new(&mut self, content: u32, name: Option<KeyText<'_>>) -> u32 {
        let text = name.map(|name| name.text);
        let is_it = |key: &KeyState| key.is_of(content, text);
        if let Some(name) = name
            && self.keys.get(name.likely).is_some_and(is_it)
        {
            return name.likely;
        }
        let hash = match name.and_then(|name| name.hash) {
            Some(hash) => key_hash(content, hash),
            None => key_hash(content, self.text_hash(text)),
        };
        if let Some(key) = self.find_key(hash, content, text) {
            return key;
        }
        let state = KeyState::new(name.map(KeyText::to_key), content, hash);
        let key = self.keys.insert(state);
        let keys = &self.keys;
        self.by_key
            .insert(spread(hash), key, |key| spread(keys[key].hash));
        key
    }

    /// Adds a message to a queue: at the end of its key's order or, until `due`, among the delayed ones. `payload`: what the
    /// record being folded has of it.
    pub(super) fn admit(
        &mut self,
        message: Message,
        payload: Payload,
        due: Option<WallTime>,
    ) -> u32 {
        let (sequence, size) = (message.sequence(), message.size);
        let is_unsynced = message.has(flag::UNSYNCED);
        let key = &self.keys[message.key];
        let is_keys_first = key.messages == 0 && key.delayed_count == 0;
        let content = &mut self.contents[key.content];
        content.counts.keys += u64::from(is_keys_first);
        content.counts.bytes += u64::from(size);
        self.count_alive(&message, payload);
        let content = &mut self.contents[self.keys[message.key].content];
        let index = self.messages.insert(message);
        content.by_sequence.insert(sequence.0, index);
        if is_unsynced {
            self.awaiting.push_back(Awaiting {
                position: self.folding_at,
                index,
                queue: content.queue_id,
                sequence,
            });
        }
        match due {
            Some(due) => self.delay(index, due),
            None => self.enter_order(index),
        }
        index
    }

    /// Appends a new message to its key's order.
    fn enter_order(&mut self, index: u32) {
        let message = &mut self.messages[index];
        message.state = State::Ready;
        let key = message.key;
        let state = &mut self.keys[key];
        let content = state.content;
        state.messages += 1;
        let was_empty = state.order.is_empty();
        state.order.push_back(&mut self.messages, index, ORDER);
        let content_state = &mut self.contents[content];
        content_state.counts.ready += 1;
        content_state
            .by_age
            .push_back(&mut self.messages, index, AGE);
        if content_state.unswept == NONE {
            content_state.unswept = index;
        }
        self.arm_sweep(content);
        // Behind another message it does not change whether the key is ready.
        if was_empty {
            self.refresh(key);
        }
    }

    /// Makes a new message wait for its due time.
    fn delay(&mut self, index: u32, due: WallTime) {
        let key = self.messages[index].key;
        let state = &mut self.keys[key];
        let content = state.content;
        state.delayed_count += 1;
        state.delayed.push_back(&mut self.messages, index, ORDER);
        let content = &mut self.contents[content];
        content.counts.delayed += 1;
        content.delayed.push_back(&mut self.messages, index, AGE);
        let queue = content.queue;
        let order = self.timer_order(queue, self.messages[index].sequence());
        let message = &mut self.messages[index];
        message.state = State::Delayed;
        message.set_since(due);
        let timer = self
            .wall
            .insert(due.0, order, Timer::Message(index).to_bits());
        self.set_timer(index, timer);
    }

    /// Removes a delayed message from the delayed ones. Its timer may have fired.
    fn undelay(&mut self, index: u32) {
        let timer = self.set_timer(index, NONE);
        if timer != NONE {
            self.wall.remove(timer);
        }
        let key = self.messages[index].key;
        let state = &mut self.keys[key];
        let content = state.content;
        state.delayed_count -= 1;
        state.delayed.remove(&mut self.messages, index, ORDER);
        let content = &mut self.contents[content];
        content.counts.delayed -= 1;
        content.delayed.remove(&mut self.messages, index, AGE);
    }

    /// Makes a delayed message deliverable.
    pub(super) fn come_due(&mut self, index: u32) {
        self.undelay(index);
        self.enter_order(index);
    }

    /// Gives a message that is not leased another due time.
    pub(super) fn reschedule(&mut self, index: u32, due: WallTime) {
        match self.messages[index].state {
            State::Delayed => self.undelay(index),
            State::Leased | State::Backoff => {
                self.return_to_order(index);
                self.leave_order(index);
            }
            State::Ready => self.leave_order(index),
        }
        self.delay(index, due);
        self.restart_time_to_live(index, due);
        self.refresh(self.messages[index].key);
    }

    /// Removes a ready message from its key's order and from the queue's order by age.
    fn leave_order(&mut self, index: u32) {
        let message = &mut self.messages[index];
        let (key, returned) = (message.key, message.has(flag::RETURNED));
        message.set(flag::RETURNED, false);
        let after = message.age.after;
        let state = &mut self.keys[key];
        let content = state.content;
        state.messages -= 1;
        let list = if returned {
            &mut state.returned
        } else {
            &mut state.order
        };
        list.remove(&mut self.messages, index, ORDER);
        let content = &mut self.contents[content];
        content.counts.ready -= 1;
        if content.unswept == index {
            content.unswept = after;
        }
        content.by_age.remove(&mut self.messages, index, AGE);
    }

    /// Makes a message ready from any state, for effects of leasing: so folding always works, even
    /// after records were lost.
    pub(super) fn make_ready(&mut self, index: u32) {
        match self.messages[index].state {
            State::Ready => {}
            State::Delayed => self.come_due(index),
            State::Leased | State::Backoff => self.return_to_order(index),
        }
    }

    /// Leases a ready message; the caller sets the lease state and the timer.
    pub(super) fn take(&mut self, index: u32) {
        let message = &mut self.messages[index];
        let (key, returned) = (message.key, message.has(flag::RETURNED));
        message.state = State::Leased;
        message.set(flag::RETURNED, false);
        let state = &mut self.keys[key];
        let content = &mut self.contents[state.content];
        if state.leased == 0 {
            state.strict = content.is_strict();
        }
        state.leased += 1;
        content.leased += 1;
        content.counts.ready -= 1;
        content.counts.in_flight += 1;
        if !content.keyed {
            let list = if returned {
                &mut state.returned
            } else {
                &mut state.order
            };
            list.remove(&mut self.messages, index, ORDER);
            state.returned_next = !returned;
        }
    }

    /// Ends a lease. The message stays in flight without a holder until its next attempt. If
    /// `until` is `None`, the caller returns it to the order at once.
    pub(super) fn end_lease(&mut self, index: u32) {
        let timer = self.set_timer(index, NONE);
        if timer != NONE {
            self.machine.remove(timer);
        }
        let message = &mut self.messages[index];
        if message.state != State::Leased {
            return;
        }
        message.state = State::Backoff;
        let (key, extra) = (message.key, message.extra);
        let state = &mut self.keys[key];
        state.leased -= 1;
        let content = state.content;
        let state = &mut self.contents[content];
        state.leased -= 1;
        if !state.ready_keys.is_empty() {
            self.after_lease_ended(content);
        }
        let holder = std::mem::replace(&mut self.lease_states[extra].holder, NONE);
        self.release_holder(holder);
    }

    /// Makes a leased or backing-off message ready again.
    pub(super) fn return_to_order(&mut self, index: u32) {
        self.end_lease(index);
        let message = &mut self.messages[index];
        message.state = State::Ready;
        let key = message.key;
        let state = &mut self.keys[key];
        let content = state.content;
        let content_state = &mut self.contents[content];
        content_state.counts.in_flight -= 1;
        content_state.counts.ready += 1;
        if !content_state.keyed {
            message.set(flag::RETURNED, true);
            state.returned.push_back(&mut self.messages, index, ORDER);
        }
        self.after_in_flight_fell(content);
        self.refresh(key);
    }

    /// Makes a leased message wait until `until` for its next attempt.
    pub(super) fn back_off(&mut self, index: u32, until: MachineTime) {
        self.end_lease(index);
        let message = &self.messages[index];
        let (key, extra) = (message.key, message.extra);
        let queue = self.contents[self.keys[key].content].queue;
        let order = self.timer_order(queue, message.sequence());
        self.lease_states[extra].timer =
            self.machine
                .insert(until.0, order, Timer::Message(index).to_bits());
        self.refresh(key);
    }

    /// Removes a message from its queue, in any state.
    pub(super) fn remove(&mut self, index: u32) {
        match self.messages[index].state {
            State::Delayed => self.undelay(index),
            State::Ready => self.leave_order(index),
            State::Leased | State::Backoff => {
                self.end_lease(index);
                self.leave_flight(index);
            }
        }
        let key = self.messages[index].key;
        let content = self.keys[key].content;
        self.contents[content].removed_at = self.folding_at;
        self.contents[content].counts.bytes -= u64::from(self.messages[index].size);
        self.keys[key].set_settled_at(self.folding_at);
        let sequence = self.messages[index].sequence();
        self.contents[content].by_sequence.remove(sequence.0);
        if self.schedules.has_waiting() {
            let queue = self.contents[content].queue;
            self.schedules.message_left(self.queues[queue].id, sequence);
        }
        self.forget(index);
        if self.keys[key].messages == 0 && self.keys[key].delayed_count == 0 {
            self.contents[content].counts.keys -= 1;
        }
        self.refresh(key);
        self.drop_idle_key(key);
    }

    /// Removes a message in backoff, whose lease is over, from the lists and counts.
    fn leave_flight(&mut self, index: u32) {
        let key = self.messages[index].key;
        let after = self.messages[index].age.after;
        let state = &mut self.keys[key];
        let content = state.content;
        state.messages -= 1;
        if self.contents[content].keyed {
            state.order.remove(&mut self.messages, index, ORDER);
        }
        let content_state = &mut self.contents[content];
        content_state.counts.in_flight -= 1;
        if content_state.unswept == index {
            content_state.unswept = after;
        }
        content_state.by_age.remove(&mut self.messages, index, AGE);
        self.after_in_flight_fell(content);
    }

    /// Frees a message and what belongs to it besides its place in lists and tables.
    fn forget(&mut self, index: u32) {
        let message = &self.messages[index];
        if message.has(flag::TTL) {
            self.drop_time_to_live(index);
        }
        if self.messages[index].has(flag::MOVED) {
            self.drop_origin(index);
        }
        self.take_failures(index);
        let message = self.messages.remove(index);
        self.count_dead(&message);
        if message.has(flag::LEASED_ONCE) {
            self.lease_states.remove(message.extra);
        }
    }

    /// Frees a key that has no messages and is not parked.
    pub(super) fn drop_idle_key(&mut self, key: u32) {
        let state = &self.keys[key];
        if state.messages == 0 && state.delayed_count == 0 && !state.parked {
            let hash = spread(state.hash);
            self.by_key.remove(hash, |other| other == key);
            self.keys.remove(key);
        }
    }

    /// Frees one message of a purged content.
    pub(super) fn free_purged(&mut self, index: u32) {
        let timer = self.set_timer(index, NONE);
        let message = &self.messages[index];
        let key = message.key;
        match message.state {
            State::Delayed => {
                if timer != NONE {
                    self.wall.remove(timer);
                }
                self.keys[key].delayed_count -= 1;
            }
            State::Ready | State::Leased | State::Backoff => {
                if timer != NONE {
                    self.machine.remove(timer);
                }
                self.keys[key].messages -= 1;
            }
        }
        if message.has(flag::LEASED_ONCE) {
            let extra = message.extra;
            let holder = std::mem::replace(&mut self.lease_states[extra].holder, NONE);
            self.release_holder(holder);
        }
        self.forget(index);
        self.drop_idle_key(key);
    }

    /// Adds a key to the list of ready keys, or removes it, as its messages require.
    pub(super) fn refresh(&mut self, key: u32) {
        let place = match self.is_ready(key) {
            false => Place::Out,
            true if self.is_limited(key) => Place::Limited,
            true => Place::Ready,
        };
        let state = &self.keys[key];
        let content = state.content;
        if place == state.place {
            return;
        }
        let was_in_the_way = state.place == Place::Ready && self.is_in_the_way(key);
        let before = std::mem::replace(&mut self.keys[key].place, place);
        let content_state = &mut self.contents[content];
        for (one, change) in [(before, u64::MAX), (place, 1)] {
            if one == Place::Limited {
                let limited = &mut content_state.counts.limited_keys;
                *limited = limited.wrapping_add(change);
            }
        }
        if let Some(list) = content_state.keys_of(before) {
            list.remove(&mut self.keys, key, KEYS);
        }
        if let Some(list) = content_state.keys_of(place) {
            list.push_back(&mut self.keys, key, KEYS);
        }
        // The keys that stood behind it may have their turn.
        let lets_go = was_in_the_way && !self.contents[content].ready_keys.is_empty();
        if place == Place::Ready || lets_go {
            self.wake(content);
        }
    }

    /// Moves a key that was served and is still ready behind the others.
    pub(super) fn rotate(&mut self, key: u32) {
        self.refresh(key);
        let state = &self.keys[key];
        if state.place == Place::Ready {
            let content = &mut self.contents[state.content];
            content.ready_keys.remove(&mut self.keys, key, KEYS);
            content.ready_keys.push_back(&mut self.keys, key, KEYS);
        }
    }

    /// Whether a receive may have a message of the key, if no limit holds it.
    fn is_ready(&self, key: u32) -> bool {
        let state = &self.keys[key];
        let leasable = |list: List| list.first != NONE && self.messages[list.first].is_leasable();
        if state.parked {
            return false;
        }
        if state.strict && state.leased > 0 {
            return false;
        }
        leasable(state.order) || leasable(state.returned)
    }

    /// Parks or resumes a key.
    pub(super) fn set_parked(&mut self, key: u32, parked: bool) {
        if self.keys[key].parked == parked {
            return;
        }
        let content = self.keys[key].content;
        if parked {
            self.keys[key].parked = true;
            self.refresh(key);
            self.contents[content].counts.parked_keys += 1;
            let content = &mut self.contents[content];
            content.parked_keys.push_back(&mut self.keys, key, KEYS);
        } else {
            let content = &mut self.contents[content];
            content.counts.parked_keys -= 1;
            content.parked_keys.remove(&mut self.keys, key, KEYS);
            self.keys[key].parked = false;
            self.refresh(key);
            self.drop_idle_key(key);
        }
    }

    /// Notes that a queue may have something for a waiting receive.
    pub(super) fn wake(&mut self, content: u32) {
        let queue = self.contents[content].queue;
        let queue = &mut self.queues[queue];
        if !queue.woken && queue.content == content {
            queue.woken = true;
            self.woken.push(queue.id);
        }
    }

    /// Wakes receives that stopped at the limit of messages in flight.
    fn after_in_flight_fell(&mut self, content: u32) {
        let state = &self.contents[content];
        let limit = u64::from(self.queues[state.queue].settings.in_flight_max);
        if state.counts.in_flight + 1 == limit && !state.ready_keys.is_empty() {
            self.wake(content);
        }
    }

    /// The message's lease state, created if it has none.
    pub(super) fn lease_state(&mut self, index: u32, first_leased: WallTime) -> u32 {
        let message = &mut self.messages[index];
        if !message.has(flag::LEASED_ONCE) {
            let mut lease_state = LeaseState::new(first_leased);
            lease_state.timer = message.extra;
            message.extra = self.lease_states.insert(lease_state);
            message.set(flag::LEASED_ONCE, true);
        }
        message.extra
    }

    /// The message's lease state, if it was ever leased in this queue.
    pub(super) fn leased_once(&self, index: u32) -> Option<&LeaseState> {
        let message = &self.messages[index];
        message
            .has(flag::LEASED_ONCE)
            .then(|| &self.lease_states[message.extra])
    }

    /// Frees the lease state of a message, which must have no timer.
    pub(super) fn drop_lease_state(&mut self, index: u32) {
        let message = &mut self.messages[index];
        if message.has(flag::LEASED_ONCE) {
            self.lease_states.remove(message.extra);
            message.extra = NONE;
            message.set(flag::LEASED_ONCE, false);
        }
    }

    /// When the message's lease, backoff or delay ends; `None` if it has none of them.
    pub(super) fn deadline(&self, index: u32) -> Option<u64> {
        let message = &self.messages[index];
        let timer = self
            .leased_once(index)
            .map_or(message.extra, |lease_state| lease_state.timer);
        let wheel = match message.state {
            State::Delayed => &self.wall,
            _ => &self.machine,
        };
        (timer != NONE).then(|| wheel.deadline(timer))
    }

    /// Sets the message's timer (`NONE`: none) and returns the previous one.
    pub(super) fn set_timer(&mut self, index: u32, timer: u32) -> u32 {
        let message = &mut self.messages[index];
        let slot = if message.has(flag::LEASED_ONCE) {
            &mut self.lease_states[message.extra].timer
        } else {
            &mut message.extra
        };
        std::mem::replace(slot, timer)
    }

    /// Orders timers of one millisecond: by acceptance within a queue, and between queues by any
    /// order that does not depend on the use of memory.
    pub(super) fn timer_order(&self, queue: u32, sequence: Sequence) -> u64 {
        sequence.0 << 16 | u64::from(self.queues[queue].id.0 & 0xffff)
    }

    /// Every record that starts before `durable` is durable: messages that waited for that become leasable.
    pub(super) fn drain_awaiting(&mut self, durable: Position) {
        while let Some(front) = self.awaiting.front() {
            if front.position >= durable {
                break;
            }
            let Awaiting {
                index,
                queue,
                sequence,
                ..
            } = *front;
            self.awaiting.pop_front();
            // The message may be gone and its slot used by another, which waits by itself.
            let Some(message) = self.messages.get_mut(index) else {
                continue;
            };
            let key = message.key;
            let content = &self.contents[self.keys[key].content];
            if message.sequence() == sequence && content.queue_id == queue && !content.dead {
                message.set(flag::UNSYNCED, false);
                // Behind another message it does not change whether the key is ready.
                let state = &self.keys[key];
                if state.order.first == index || state.returned.first == index {
                    self.refresh(key);
                }
            }
        }
    }

    /// Whether a message of this level, accepted by the record being folded, must wait for the record's sync.
    pub(super) fn waits_for_sync(&self, level: Level) -> bool {
        level >= Level::Disk && self.unless_durable(self.folding_at).is_some()
    }

    /// A key's hash in its state, see [`KeyState::hash`].
    pub(super) fn key_hash(&self, content: u32, name: Option<&Key>) -> u32 {
        key_hash(content, self.text_hash(name.map(Key::as_str)))
    }

    fn text_hash(&self, text: Option<&str>) -> u64 {
        text.map_or(0, |text| hash_bytes(self.seed, text.as_bytes()))
    }
}

/// A key's hash in its state, from the content and the hash of its text; 0 if it has none.
pub(super) fn key_hash(content: u32, text: u64) -> u32 {
    let [.., a, b, c, d] = hash_pair(content, text).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The hash for tables, from the hash in a key's state.
pub(super) fn spread(hash: u32) -> u64 {
    hash_pair(0, u64::from(hash))
}
