//! Why a key does, or does not, move.

use std::collections::BTreeSet;

use lockgate_core::{Key, QueueName, Sequence};
use lockgate_machine::*;

use super::{Message, Model, Queue, State};

impl Model {
    /// What a group with messages that are due waits for.
    fn group_wait(&self, queue: &Queue, group: &Key) -> KeyWait {
        let messages = queue.messages.iter();
        let mut of_group = messages.filter(|message| message.key.as_ref() == Some(group));
        let max = queue.settings.in_flight_max;
        let free = self.candidates(queue, &BTreeSet::new());
        let is_free = |sequence: &Sequence| {
            let message = queue.message(*sequence).unwrap();
            message.key.as_ref() == Some(group)
        };
        if !of_group.any(|message| message.state == State::Ready) {
            KeyWait::InFlight
        } else if !free.iter().any(is_free) {
            KeyWait::Durability
        } else if let Some(wait) = queue.limit_wait(group, self.now.machine) {
            wait
        } else if queue.in_flight() >= u64::from(max) {
            KeyWait::InFlightFull { max }
        } else {
            KeyWait::Nothing
        }
    }

    fn first_due(&self, queue: &Queue, key: &Key) -> Option<KeyWait> {
        let of_key = |message: &&Message| message.key.as_ref() == Some(key);
        let due = |message: &Message| match message.state {
            State::Delayed { due } => Some((due, message.sequence)),
            _ => None,
        };
        let first = queue.messages.iter().filter(of_key).filter_map(due).min();
        first.map(|(at, sequence)| KeyWait::Due { sequence, at })
    }

    pub(crate) fn explain(&self, name: &QueueName, key: &Key) -> Option<KeyStatus> {
        let queue = self.queues.get(name)?;
        let held = queue.key_held(key, self.now.machine);
        let mut order = Vec::new();
        let mut delayed = 0;
        for message in &queue.messages {
            if message.key.as_ref() == Some(key) {
                match message.arrival {
                    Some(arrival) => order.push((arrival, message)),
                    None => delayed += 1,
                }
            }
        }
        order.sort_by_key(|(arrival, _)| *arrival);
        let parked = queue.parked.contains(key);
        let state = queue.state_status(key);
        if order.is_empty() && delayed == 0 && !parked {
            let nothing_waits = KeyStatus {
                key: Some(key.clone()),
                messages: 0,
                delayed: 0,
                waits_for: KeyWait::NoMessage,
                held,
                state,
            };
            let has_something = state.is_some() || queue.own_hold(key, self.now.machine).is_some();
            return has_something.then_some(nothing_waits);
        }
        let is_group = !queue.settings.keyed;
        let leased = |message: &Message| matches!(message.state, State::Leased { .. });
        let strict = queue.is_strict(key);
        let first_leased = order.iter().find(|(_, message)| strict && leased(message));
        let front = first_leased.or(order.first()).map(|(_, message)| *message);
        let now = self.now.machine;
        let waits_for = match (front, queue.held_until) {
            _ if queue.paused => KeyWait::Paused,
            (_, Some(until)) => KeyWait::LeaseBound {
                remaining: until.since(now),
            },
            _ if parked => KeyWait::Parked,
            (Some(_), _) if is_group => self.group_wait(queue, key),
            (None, _) => self.first_due(queue, key).unwrap_or(KeyWait::NoMessage),
            (Some(message), _) => match &message.state {
                State::Leased { until, holder, .. } => KeyWait::Lease {
                    sequence: message.sequence,
                    holder: holder.clone(),
                    remaining: until.since(now),
                    attempt: message.attempts,
                },
                State::Backoff { until } => KeyWait::Backoff {
                    sequence: message.sequence,
                    remaining: until.since(now),
                },
                _ if !self.is_durable(message) => KeyWait::Durability,
                _ if let Some(wait) = queue.limit_wait(key, now) => wait,
                _ if queue.in_flight() >= u64::from(queue.settings.in_flight_max) => {
                    KeyWait::InFlightFull {
                        max: queue.settings.in_flight_max,
                    }
                }
                _ => KeyWait::Nothing,
            },
        };
        Some(KeyStatus {
            key: Some(key.clone()),
            messages: order.len() as u64,
            delayed,
            waits_for,
            held,
            state,
        })
    }
}
