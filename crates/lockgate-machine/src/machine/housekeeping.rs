//! Frees purged memory in steps.

use lockgate_core::MachineTime;

use super::{Machine, compact::hash_id, limits::debtor_hash, order};
use crate::{dedup::DedupWindow, slab::NONE, table::hash_pair};

/// Whether [`Machine::housekeep`] has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Housekeeping {
    /// Nothing is left to be freed.
    Finished,
    /// There is more to be freed.
    Unfinished,
}

impl Housekeeping {
    /// Whether there is more to be freed.
    #[must_use]
    pub fn is_unfinished(self) -> bool {
        self == Self::Unfinished
    }
}

/// A purged content.
#[derive(Debug)]
pub(super) struct PurgedContent {
    pub(super) content: u32,
    pub(super) unique_ids: Option<DedupWindow>,
}

impl Machine {
    /// Frees about `budget` messages, unique ids, states of keys, producers or bindings of purged and deleted content, and a little
    /// memory that tables no longer need.
    ///
    /// Changes nothing visible, is not logged, and may be called at any time or never.
    pub fn housekeep(&mut self, budget: usize) -> Housekeeping {
        let mut left = budget;
        while left > 0
            && let Some(purged) = self.purged.front_mut()
        {
            if let Some(ids) = &mut purged.unique_ids {
                let forgotten = ids.expire(MachineTime::MAX, left);
                self.unique_ids -= forgotten as u64;
                left = left.saturating_sub(forgotten.max(1));
                if ids.is_empty() {
                    purged.unique_ids = None;
                }
                continue;
            }
            let content = purged.content;
            left -= 1;
            if !self.free_one(content) {
                self.purged.pop_front();
                self.contents.remove(content);
            }
        }
        // Behind the messages, because an image leaves them out: a machine that was loaded frees messages at the same pace.
        while left > 0
            && let Some(states) = self.dead_states.last_mut()
        {
            let looked_at = states.free(left);
            left = left.saturating_sub(looked_at.max(1));
            if states.len() == 0 {
                self.dead_states.pop();
            }
        }
        while left > 0
            && let Some(producers) = self.dead_producers.last_mut()
        {
            if producers.free(&mut left) {
                self.dead_producers.pop();
            }
        }
        let bindings_are_freed = self.exchanges.free(&mut left);
        self.shrink_tables();
        if bindings_are_freed
            && self.purged.is_empty()
            && self.dead_states.is_empty()
            && self.dead_producers.is_empty()
        {
            Housekeeping::Finished
        } else {
            Housekeeping::Unfinished
        }
    }

    /// Frees one message, or one parked key, of a dead content. Returns false if there is none left.
    fn free_one(&mut self, content: u32) -> bool {
        let state = &mut self.contents[content];
        if state.by_age.first != NONE {
            let index = state.by_age.first;
            state.by_age.remove(&mut self.messages, index, order::AGE);
            self.free_purged(index);
        } else if state.delayed.first != NONE {
            let index = state.delayed.first;
            state.delayed.remove(&mut self.messages, index, order::AGE);
            self.free_purged(index);
        } else if state.parked_keys.first != NONE {
            let key = state.parked_keys.first;
            state.parked_keys.remove(&mut self.keys, key, order::KEYS);
            self.keys[key].parked = false;
            self.drop_idle_key(key);
        } else {
            return false;
        }
        true
    }

    fn shrink_tables(&mut self) {
        let keys = &self.keys;
        self.by_key.shrink(|key| order::spread(keys[key].hash));
        let origins = &self.origins;
        self.by_moved_message
            .shrink(|origin| hash_pair(origins[origin].message, 0));
        self.by_moved_id
            .shrink(|origin| hash_id(origins[origin].id));
        self.shared.shrink();
        let times_to_live = &self.times_to_live;
        self.by_ttl_message
            .shrink(|entry| hash_pair(times_to_live[entry].message, 0));
        let failures = &self.failures;
        self.by_failed_message
            .shrink(|entry| hash_pair(failures[entry].message, 0));
        let (debtors, seed) = (&self.debtors, self.seed);
        self.by_debtor.shrink(|debtor| {
            let debtor = &debtors[debtor];
            debtor_hash(seed, debtor.queue, debtor.key.as_ref())
        });
    }
}
