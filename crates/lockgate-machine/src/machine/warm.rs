//! Reading ahead for a group of commands.

use std::hint::black_box;

use smallvec::SmallVec;

use super::{Machine, order::spread};
use crate::Command;

/// How many commands are read ahead for at once: more than a core has reads on their way, and few
/// enough that what was read is still near when the last of them is decided.
const AT_ONCE: usize = 16;

/// Fewer keys than these stay in the processor's cache by themselves.
const KEYS_MIN: usize = if cfg!(test) { 1 } else { 10_000 };

impl Machine {
    /// Reads what these commands will ask for, so that deciding and folding them finds it in the
    /// processor's cache. Changes nothing but time. Worth a call for two or more commands that are
    /// given next; with one there is nothing to overlap, and with few keys it does nothing.
    ///
    /// A send to one of a million keys waits for memory five times, each time for the address of
    /// the next wait: its table's tags and slot, the key's state, its text, its last message. One
    /// after the other those waits are most of what a send costs. Here each step is done for
    /// sixteen sends before the next step is, so that their waits overlap ("group prefetching":
    /// Chen, Ailamaki, Gibbons and Mowry 2004). Receives and settles go where sends and receives
    /// were shortly before, and are not read ahead for.
    pub fn warm<'a>(&self, commands: impl IntoIterator<Item = &'a Command>) {
        if self.keys.len() < KEYS_MIN {
            return;
        }
        let mut hashes = commands
            .into_iter()
            .filter_map(|command| self.hash_of_key(command))
            .peekable();
        while hashes.peek().is_some() {
            let hashes: SmallVec<[u32; AT_ONCE]> = hashes.by_ref().take(AT_ONCE).collect();
            // Which key it is only its text says for sure; the first candidate nearly always is.
            let keys: SmallVec<[u32; AT_ONCE]> = hashes
                .iter()
                .filter_map(|&hash| self.by_key.find(spread(hash), |_| true))
                .collect();
            let states: SmallVec<[_; AT_ONCE]> = keys
                .iter()
                .filter_map(|&key| self.keys.get(key))
                .map(|state| (state.name.as_ref(), state.order.last))
                .collect();
            for (name, last) in states {
                let text = name.and_then(|name| name.as_str().as_bytes().first());
                let message = self.messages.get(last);
                black_box((text.copied(), message.map(|message| message.flags)));
            }
        }
    }

    /// By what the key of a send is found.
    fn hash_of_key(&self, command: &Command) -> Option<u32> {
        let Command::Send(send) = command else {
            return None;
        };
        let key = send.message.key.as_ref()?;
        let queue = *self.queue_names.get(&send.queue)?;
        Some(self.key_hash(self.queues[queue].content, Some(key)))
    }
}
