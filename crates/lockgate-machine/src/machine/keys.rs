//! Parks, resumes and empties keys.

use lockgate_core::{Key, QueueId, QueueName};

use super::{Machine, draft::Draft, state::State};
use crate::{DropReason, Effect, KeyAction, Rejection, Reply, slab::NONE};

impl Machine {
    pub(super) fn decide_key(
        &self,
        draft: &mut Draft,
        queue: &QueueName,
        key: &Key,
        action: KeyAction,
    ) -> Result<Reply, Rejection> {
        let index = self.named_queue(queue)?;
        let state = &self.queues[index];
        let (id, level) = (state.id, state.settings.level);
        let not_found = || Rejection::KeyNotFound {
            queue: queue.clone(),
            key: key.clone(),
        };
        // Groups of unkeyed queues share turns and block nothing, so they cannot be parked.
        if !state.settings.keyed && action != KeyAction::Drop {
            return Err(not_found());
        }
        let found = self.key_of(state.content, Some(key));
        match action {
            KeyAction::Park => {
                if !found.is_some_and(|found| self.keys[found].parked) {
                    draft.add(
                        Effect::KeyParked {
                            queue: id,
                            key: key.clone(),
                        },
                        level,
                    );
                }
                Ok(Reply::Done)
            }
            KeyAction::Resume => {
                let found = found.ok_or_else(not_found)?;
                if self.keys[found].parked {
                    draft.add(
                        Effect::KeyResumed {
                            queue: id,
                            key: key.clone(),
                        },
                        level,
                    );
                }
                Ok(Reply::Done)
            }
            KeyAction::Drop => {
                let found = found.ok_or_else(not_found)?;
                let messages = self.draft_drop_key(draft, index, found);
                // An emptied key has no reason to stay parked.
                if self.keys[found].parked && messages < KeyAction::DROPS_MAX {
                    draft.add(
                        Effect::KeyResumed {
                            queue: id,
                            key: key.clone(),
                        },
                        level,
                    );
                }
                Ok(Reply::Dropped(messages as u64))
            }
        }
    }

    /// Drops the waiting messages of a key, including those that are not due yet. Examines no more
    /// messages than it may drop.
    fn draft_drop_key(&self, draft: &mut Draft, queue: u32, key: u32) -> usize {
        let state = &self.keys[key];
        let level = self.queues[queue].settings.level;
        let mut dropped = 0;
        for list in [state.order, state.returned, state.delayed] {
            let mut index = list.first;
            while index != NONE && dropped < KeyAction::DROPS_MAX {
                let message = &self.messages[index];
                if message.state != State::Leased {
                    self.draft_drop(draft, (queue, index), DropReason::KeyDropped, level);
                    dropped += 1;
                }
                index = message.order.after;
            }
        }
        dropped
    }

    pub(super) fn fold_key_parked(&mut self, queue: QueueId, key: &Key) -> Option<()> {
        let queue = self.queue_index(queue)?;
        let content = self.queues[queue].content;
        let key = self.key_or_new(content, Some(key.into()));
        self.set_parked(key, true);
        Some(())
    }

    pub(super) fn fold_key_resumed(&mut self, queue: QueueId, key: &Key) -> Option<()> {
        let queue = self.queue_index(queue)?;
        let key = self.key_of(self.queues[queue].content, Some(key))?;
        let front = self.keys[key].order.first;
        if front != NONE && self.messages[front].state != State::Leased {
            self.reset_attempts(front);
        }
        self.set_parked(key, false);
        Some(())
    }

    /// Sets the message's attempts to zero.
    fn reset_attempts(&mut self, index: u32) {
        if self.leased_once(index).is_some() {
            let lease_state = self.messages[index].extra;
            self.lease_states[lease_state].attempts = 0;
        }
    }
}
