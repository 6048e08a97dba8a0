//! Why a key does, or does not, move.

use lockgate_core::{Key, QueueName};
use lockgate_machine::*;

use super::{Message, Model, Queue, State};

impl Model {
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
        let queue = self.queues.get(name).filter(|queue| queue.settings.keyed)?;
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
            let only_state = KeyStatus {
                key: key.clone(),
                messages: 0,
                delayed: 0,
                waits_for: KeyWait::NoMessage,
                state,
            };
            return state.map(|_| only_state);
        }
        let leased = |message: &Message| matches!(message.state, State::Leased { .. });
        let strict = queue.is_strict(key);
        let held = order.iter().find(|(_, message)| strict && leased(message));
        let front = held.or(order.first()).map(|(_, message)| *message);
        let now = self.now.machine;
        let waits_for = match (front, queue.held_until) {
            _ if queue.paused => KeyWait::Paused,
            (_, Some(until)) => KeyWait::LeaseBound {
                remaining: until.since(now),
            },
            _ if parked => KeyWait::Parked,
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
            key: key.clone(),
            messages: order.len() as u64,
            delayed,
            waits_for,
            state,
        })
    }
}
