//! The most that the queues may hold by their own limits.

use std::collections::BTreeSet;

use lockgate_machine::{MachineLimits, QueueDescription};
use serde::Serialize;

/// The sums of the limits of all queues.
#[derive(Debug, Default, Serialize)]
pub struct Granted {
    /// Messages; `None` if a queue has no limit.
    pub messages_max: Option<u64>,
    /// Bytes of bodies and headers on disk; `None` if a queue has no limit.
    pub message_bytes_max: Option<u64>,
    /// Bytes of memory; `None` if a queue has no limit of messages.
    pub memory_bytes_max: Option<u64>,
    /// Bytes of memory for remembered unique ids, which always have a limit.
    pub unique_ids_bytes_max: u64,
    /// Bytes of memory, of these, for keys that owe something under a rate or a gap of each, in all queues together,
    /// with names of up to 100 bytes: those of longer ones count beside that. 0 if no queue has such a limit.
    pub owing_keys_bytes_max: u64,
    /// The queues without a limit of messages, in order of their names.
    pub messages_without_limit: Vec<String>,
    /// The queues without a limit of bytes.
    pub bytes_without_limit: Vec<String>,
}

impl Granted {
    pub fn of(queues: &[QueueDescription]) -> Self {
        // Moved dead letters are exempt from the quota.
        let takes_dead_letters: BTreeSet<_> = (queues.iter())
            .filter_map(|queue| queue.settings.dead_letter.as_ref())
            .collect();
        let mut granted = Self {
            messages_max: Some(0),
            message_bytes_max: Some(0),
            memory_bytes_max: Some(0),
            ..Self::default()
        };
        for queue in queues {
            let settings = &queue.settings;
            let is_held = !takes_dead_letters.contains(&queue.name);
            let messages = settings.quota_messages.filter(|_| is_held);
            let bytes = settings.quota_bytes.filter(|_| is_held);
            let memory = settings.memory_bytes_max().filter(|_| is_held);
            add(&mut granted.messages_max, messages);
            add(&mut granted.message_bytes_max, bytes);
            add(&mut granted.memory_bytes_max, memory);
            let unique_ids = settings.unique_ids_bytes_max();
            granted.unique_ids_bytes_max = granted.unique_ids_bytes_max.saturating_add(unique_ids);
            if messages.is_none() {
                granted.messages_without_limit.push(queue.name.to_string());
            }
            if bytes.is_none() {
                granted.bytes_without_limit.push(queue.name.to_string());
            }
        }
        if queues.iter().any(|queue| queue.settings.keys_owe()) {
            let keys = MachineLimits::default().owing_keys_max;
            granted.owing_keys_bytes_max = keys * MachineLimits::OWING_KEY_BYTES;
            let owing = Some(granted.owing_keys_bytes_max);
            add(&mut granted.memory_bytes_max, owing);
        }
        granted
    }
}

/// The sum is `None` if a part has no limit.
fn add(sum: &mut Option<u64>, part: Option<u64>) {
    *sum = match (*sum, part) {
        (Some(sum), Some(part)) => Some(sum.saturating_add(part)),
        _ => None,
    };
}
