//! The states of keys.

use std::collections::BTreeSet;

use lockgate_core::{Key, KeyState, KeyStateWrite, LeaseToken, Level, QueueName, RecordVersion};
use lockgate_machine::*;

use super::{Model, Queue, State, not_found, records::STATE_BYTES};

/// What a state takes beside its key and value.
const OVERHEAD: u64 = 256;

/// Whose state a token may write.
pub(super) type Holder = Result<(QueueName, Key), StaleReason>;

fn bytes_of(key: &Key, value: usize) -> u64 {
    OVERHEAD + (key.as_str().len() + value) as u64
}

impl Queue {
    pub(super) fn state_bytes(&self) -> u64 {
        let states = self.states.iter();
        states
            .map(|(key, state)| bytes_of(key, state.value.len()))
            .sum()
    }

    pub(super) fn state_status(&self, key: &Key) -> Option<KeyStateStatus> {
        self.states.get(key).map(|state| KeyStateStatus {
            version: state.version,
            bytes: state.value.len() as u64,
            written: state.written,
        })
    }
}

impl Model {
    /// The states of the queue's keys, in the order of the keys.
    pub(crate) fn states(&self, name: &QueueName) -> Vec<(Key, KeyStateStatus)> {
        let Some(queue) = self.queues.get(name) else {
            return Vec::new();
        };
        let keys = queue.states.keys().cloned();
        keys.filter_map(|key| Some((key.clone(), queue.state_status(&key)?)))
            .collect()
    }

    /// The key that the lease locks, if it is the last one of its message and goes on.
    pub(super) fn holder(&self, token: LeaseToken) -> Result<Holder, Rejection> {
        let Some(name) = self.name_of(token.queue) else {
            return Ok(Err(StaleReason::Gone));
        };
        let queue = &self.queues[&name];
        if !queue.settings.keyed {
            return Err(Rejection::KeyStateNotTaken { queue: name });
        }
        let message = queue.message(token.sequence);
        let Some(message) = message.filter(|message| message.id == token.message) else {
            return Ok(Err(match self.lives(token) {
                true => StaleReason::Ended,
                false => StaleReason::Gone,
            }));
        };
        let leased = matches!(message.state, State::Leased { .. });
        Ok(match message.last_lease {
            Some((last, _)) if last != token => Err(StaleReason::Superseded),
            Some(_) if leased => Ok((name, message.key.clone().unwrap())),
            _ => Err(StaleReason::Ended),
        })
    }

    /// The queue and key of the token's message, while it is there.
    pub(crate) fn key_of(&self, token: LeaseToken) -> Option<(QueueName, Key)> {
        let name = self.name_of(token.queue)?;
        let key = self.queues[&name].message(token.sequence)?.key.clone()?;
        Some((name, key))
    }

    pub(super) fn write_states(
        &mut self,
        states: &[WriteState],
        holders: Vec<Holder>,
    ) -> Result<Vec<Option<RecordVersion>>, Rejection> {
        let (mut seen, mut written) = (BTreeSet::new(), Vec::new());
        for (index, (state, holder)) in states.iter().zip(holders).enumerate() {
            let (queue, key) = match holder {
                Ok(holder) => holder,
                Err(reason) => {
                    self.count_stale(state.token);
                    return Err(Rejection::KeyStateStale { index, reason });
                }
            };
            if !seen.insert((queue.clone(), key.clone())) {
                return Err(Rejection::KeyStateTwice { queue, key });
            }
            written.push(self.write_state(&queue, &key, &state.write)?);
        }
        Ok(written)
    }

    pub(super) fn change_state(
        &mut self,
        change: &ChangeKeyState,
        decision: &Decision,
    ) -> Result<Reply, Rejection> {
        let name = &change.queue;
        let queue = self.queues.get(name).ok_or_else(|| not_found(name))?;
        if !queue.settings.keyed {
            let queue = name.clone();
            return Err(Rejection::KeyStateNotTaken { queue });
        }
        // That there is none may be the work of a record that is not durable.
        if change.write.value.is_none()
            && !queue.states.contains_key(&change.key)
            && queue.settings.level >= Level::Disk
            && let Some(dropped) = queue.state_at
            && self.durable.is_some_and(|durable| dropped >= durable)
        {
            let waits = decision.rests_on >= Some(dropped);
            assert!(
                waits || decision.outcome.is_err(),
                "does not wait for the drop before it"
            );
        }
        let version = self.write_state(name, &change.key, &change.write)?;
        Ok(Reply::StateWritten(version))
    }

    fn write_state(
        &mut self,
        name: &QueueName,
        key: &Key,
        write: &KeyStateWrite,
    ) -> Result<Option<RecordVersion>, Rejection> {
        let (now, at) = (self.now, self.at);
        let queue = self.queues.get(name).unwrap();
        let version = queue.states.get(key).map(|state| state.version);
        if !write.replaces.takes(version) {
            return Err(Rejection::KeyStateConflict {
                queue: name.clone(),
                key: key.clone(),
                version,
            });
        }
        let before = queue.states.get(key);
        let before = before.map_or(0, |state| bytes_of(key, state.value.len()));
        let Some(value) = &write.value else {
            let queue = self.queues.get_mut(name).unwrap();
            if let Some(version) = version {
                queue.states.remove(key);
                queue.dropped_version = queue.dropped_version.max(version);
                queue.settled_at.insert(key.clone(), at);
                queue.state_at = Some(at);
            }
            return Ok(None);
        };
        let after = bytes_of(key, value.len());
        let messages: u64 = queue.messages.iter().map(|message| message.size).sum();
        if let Some(max) = queue.settings.quota_bytes
            && after > before
            && messages + queue.state_bytes() - before + after > max
        {
            return Err(Rejection::QuotaExceeded {
                queue: name.clone(),
                what: "bytes",
                max,
            });
        }
        self.check_record_room(before, after)?;
        let (_, states) = self.record_bytes();
        if after > before && states - before + after > STATE_BYTES {
            return Err(Rejection::KeyStatesFull { max: STATE_BYTES });
        }
        let queue = self.queues.get_mut(name).unwrap();
        let last = version.unwrap_or(queue.dropped_version);
        let state = KeyState {
            value: value.clone(),
            version: RecordVersion(last.0 + 1),
            written: now.wall,
        };
        let version = state.version;
        queue.states.insert(key.clone(), state);
        queue.settled_at.insert(key.clone(), at);
        queue.state_at = Some(at);
        Ok(Some(version))
    }
}
