//! Whether what was loaded can be walked.

use crate::{
    ImageError, Machine,
    columns::damaged,
    machine::{
        list::{Links, List},
        state::{State, Timer, flag},
    },
    slab::{NONE, Slab},
};

impl Machine {
    /// Whether all pages of all slabs came.
    pub(super) fn check_complete(&self) -> Result<(), ImageError> {
        self.queues.check_complete()?;
        self.contents.check_complete()?;
        self.keys.check_complete()?;
        self.holders.check_complete()?;
        self.touches.check_complete()?;
        self.origins.check_complete()?;
        self.times_to_live.check_complete()?;
        self.messages.check_complete()
    }

    /// Whether every index names something that is there.
    pub(super) fn check_links(&self) -> Result<(), ImageError> {
        let all = self
            .messages
            .iter()
            .all(|(index, _)| self.message_fits(index));
        ensure(all, "a message does not fit what it belongs to")?;
        let all = self.keys.iter().all(|(_, key)| {
            let Some(content) = self.contents.get(key.content) else {
                return false;
            };
            let lists = [key.order, key.returned, key.delayed];
            // Freeing what was purged leaves all links but those of parked keys as they are.
            (content.dead || lists.iter().all(|&list| is_list(&self.messages, list)))
                && ((content.dead && !key.parked) || are_links(&self.keys, key.links))
        });
        ensure(all, "a key does not fit what it belongs to")?;
        let all = self
            .touches
            .iter()
            .all(|(_, touch)| has_or_none(&self.holders, touch.holder));
        ensure(all, "a lease does not fit what it belongs to")?;
        let all = self
            .origins
            .iter()
            .all(|(_, origin)| has(&self.messages, origin.message));
        ensure(all, "an origin does not fit what it belongs to")?;
        let all = self.times_to_live.iter().all(|(_, ttl)| {
            has(&self.messages, ttl.message) && (ttl.timer == NONE || self.wall.has(ttl.timer))
        });
        ensure(all, "a time to live does not fit what it belongs to")?;
        let all = self.contents.iter().all(|(_, content)| {
            let alive = has(&self.queues, content.queue)
                && is_list(&self.keys, content.ready_keys)
                && has_or_none(&self.messages, content.unswept);
            (content.dead || alive)
                && is_list(&self.keys, content.parked_keys)
                && is_list(&self.messages, content.by_age)
                && is_list(&self.messages, content.delayed)
                && content
                    .by_sequence
                    .values()
                    .all(|index| has(&self.messages, index))
        });
        ensure(all, "a queue's content does not fit what it belongs to")?;
        let all = self.queues.iter().all(|(index, queue)| {
            let content = self.contents.get(queue.content);
            content.is_some_and(|content| content.queue == index && !content.dead)
                && (queue.sweep_timer == NONE || self.wall.has(queue.sweep_timer))
                && [queue.dedup_timer, queue.hold_timer]
                    .iter()
                    .all(|&timer| timer == NONE || self.machine.has(timer))
        });
        ensure(all, "a queue does not fit what belongs to it")?;
        let all = self.graves.iter().all(|grave| {
            self.contents
                .get(grave.content)
                .is_some_and(|content| content.dead)
        });
        ensure(all, "what was purged is missing")?;
        let timers = self.wall.payloads().chain(self.machine.payloads());
        ensure(
            timers
                .map(Timer::from_bits)
                .all(|timer| self.timer_fits(timer)),
            "a timer is for nothing",
        )
    }

    fn message_fits(&self, index: u32) -> bool {
        let message = &self.messages[index];
        let timer = if message.has(flag::TOUCHED) {
            match self.touches.get(message.extra) {
                Some(touch) => touch.timer,
                None => return false,
            }
        } else {
            message.extra
        };
        let has_timer = match message.state {
            State::Delayed => self.wall.has(timer),
            _ => self.machine.has(timer),
        };
        let is_touched =
            message.has(flag::TOUCHED) || !matches!(message.state, State::Leased | State::Backoff);
        let Some(key) = self.keys.get(message.key) else {
            return false;
        };
        let is_dead = self
            .contents
            .get(key.content)
            .is_some_and(|content| content.dead);
        (timer == NONE || has_timer)
            && is_touched
            && (is_dead || are_links(&self.messages, message.order))
            && are_links(&self.messages, message.age)
    }

    fn timer_fits(&self, timer: Timer) -> bool {
        match timer {
            Timer::Message(index) | Timer::TimeToLive(index) => has(&self.messages, index),
            Timer::Sweep(queue) | Timer::Dedup(queue) | Timer::Hold(queue) => {
                has(&self.queues, queue)
            }
        }
    }
}

fn ensure(fits: bool, what: &'static str) -> Result<(), ImageError> {
    if fits { Ok(()) } else { Err(damaged(what)) }
}

fn has<T: Clone>(slab: &Slab<T>, index: u32) -> bool {
    slab.get(index).is_some()
}

fn has_or_none<T: Clone>(slab: &Slab<T>, index: u32) -> bool {
    index == NONE || has(slab, index)
}

fn is_list<T: Clone>(slab: &Slab<T>, list: List) -> bool {
    (list.first == NONE) == (list.last == NONE)
        && has_or_none(slab, list.first)
        && has_or_none(slab, list.last)
}

fn are_links<T: Clone>(slab: &Slab<T>, links: Links) -> bool {
    has_or_none(slab, links.before) && has_or_none(slab, links.after)
}
