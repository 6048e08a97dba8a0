//! Lists a queue's messages and keys, page by page, without changing anything.
//!
//! A page takes a bounded number of steps, however much the queue holds and however little of it
//! matches, so listing does not delay commands. A cursor names the end of the last page. Entries
//! that come or go between two pages may be missed.

use lockgate_core::{Key, MachineTime, MessageId, Now, QueueName, Sequence, WallTime};

use super::{Machine, send::check_range, state::State};
use crate::{
    KeyPage, MessagePage, MessageStatus, MessageWait, Query, QueryReply, Rejection, SettingsError,
    slab::NONE,
};

/// Messages or keys that one page examines, whether it returns them or not.
const STEPS_MAX: usize = 10_000;

impl Machine {
    /// Messages in the order of their arrival, then those that are not due yet.
    pub(super) fn query_messages(
        &self,
        queue: &QueueName,
        key: Option<&Key>,
        after: Option<Sequence>,
        limit: usize,
        now: Now,
    ) -> Result<QueryReply, Rejection> {
        let index = self.named_queue(queue)?;
        check_limit(limit)?;
        let state = &self.queues[index];
        let only = match key {
            None => None,
            Some(key) => Some(self.key_of(state.content, Some(key)).ok_or_else(|| {
                Rejection::KeyNotFound {
                    queue: queue.clone(),
                    key: key.clone(),
                }
            })?),
        };
        // Only a keyed queue keeps messages in flight in the order of their key.
        let (lists, of_key) = match only {
            Some(key) if state.settings.keyed => {
                let key = &self.keys[key];
                ([key.order.first, key.delayed.first], true)
            }
            _ => {
                let content = &self.contents[state.content];
                ([content.by_age.first, content.delayed.first], false)
            }
        };
        let following = |message: u32| {
            let message = &self.messages[message];
            if of_key {
                message.order.after
            } else {
                message.age.after
            }
        };
        let wanted = |message: u32| only.is_none_or(|key| self.messages[message].key == key);

        let reached = after
            .and_then(|after| self.message_of(index, after))
            .filter(|&message| wanted(message));
        let (mut list, mut at) = match reached {
            Some(message) => {
                let list = usize::from(self.messages[message].state == State::Delayed);
                (list, following(message))
            }
            None => (0, lists[0]),
        };
        // The last message of the previous page is gone: start from the front, and skip what the
        // previous pages returned.
        let shown = after.filter(|_| reached.is_none());
        let mut messages = Vec::new();
        let mut next = None;
        let mut looked_at = None;
        for step in 0.. {
            if at == NONE && list == 0 {
                (list, at) = (1, lists[1]);
            }
            if at == NONE {
                break;
            }
            if messages.len() == limit || step == STEPS_MAX {
                next = looked_at;
                break;
            }
            let sequence = self.messages[at].sequence();
            looked_at = Some(sequence);
            if wanted(at) && shown.is_none_or(|shown| sequence > shown) {
                messages.push(self.message_status(index, at, now));
            }
            at = following(at);
        }
        Ok(QueryReply::Messages(MessagePage { messages, next }))
    }

    /// The message with that id, as a page.
    pub(super) fn query_message(
        &self,
        queue: &QueueName,
        message: MessageId,
        now: Now,
    ) -> Result<QueryReply, Rejection> {
        let (queue, index) = self.present_message(queue, message)?;
        Ok(QueryReply::Messages(MessagePage {
            messages: vec![self.message_status(queue, index, now)],
            next: None,
        }))
    }

    fn message_status(&self, queue: u32, index: u32, now: Now) -> MessageStatus {
        let message = &self.messages[index];
        let sequence = message.sequence();
        let origin = self.origin(index);
        let lease_state = self.leased_once(index);
        let until = self.deadline(index);
        let remaining = until.map_or(0, |until| MachineTime(until).since(now.machine));
        MessageStatus {
            id: origin.map_or_else(|| self.queues[queue].id_of(sequence), |origin| origin.id),
            sequence,
            key: self.keys[message.key].name.clone(),
            location: message.location(),
            size: message.size,
            since: message.since(),
            attempts: lease_state.map_or(0, |lease_state| lease_state.attempts),
            first_leased: lease_state
                .filter(|lease_state| lease_state.attempts > 0)
                .map(super::state::LeaseState::first_leased),
            waits_for: match (message.state, lease_state) {
                (State::Delayed, _) => MessageWait::Due {
                    at: until.map_or(message.since(), WallTime),
                },
                (State::Backoff, _) => MessageWait::Backoff { remaining },
                (State::Leased, Some(lease_state)) => MessageWait::Lease {
                    holder: self.holders[lease_state.holder].name.clone(),
                    remaining,
                },
                _ => MessageWait::Turn,
            },
            origin: origin.map(|origin| self.origin_view(origin)),
            failures: self.failures(index).cloned(),
        }
    }

    /// Keys in no order, each with what it waits for.
    pub(super) fn query_keys(
        &self,
        queue: &QueueName,
        parked: bool,
        after: Option<u32>,
        limit: usize,
        now: Now,
    ) -> Result<QueryReply, Rejection> {
        let index = self.named_queue(queue)?;
        check_limit(limit)?;
        let state = &self.queues[index];
        if !state.settings.keyed {
            return Err(Rejection::Settings {
                queue: queue.clone(),
                source: SettingsError::NeedsKeys {
                    what: "listing keys",
                },
            });
        }
        let mut keys = Vec::new();
        let mut next = None;
        let first = after.map_or(0, |after| after.saturating_add(1));
        for (step, at) in (first..self.keys.end()).enumerate() {
            if keys.len() == limit || step == STEPS_MAX {
                next = at.checked_sub(1);
                break;
            }
            let Some(key) = self.keys.get(at) else {
                continue;
            };
            if key.content == state.content
                && (key.parked || !parked)
                && let Some(name) = &key.name
            {
                keys.push(self.key_status(index, at, Some(name), now));
            }
        }
        Ok(QueryReply::Keys(KeyPage { keys, next }))
    }
}

pub(super) fn check_limit(limit: usize) -> Result<(), Rejection> {
    check_range("limit", limit as u64, 1, Query::LIMIT_MAX as u64)
}
