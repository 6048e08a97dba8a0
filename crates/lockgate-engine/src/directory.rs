//! The list of queues, which any thread can read without a request to the engine.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError},
};

use lockgate_core::{QueueId, QueueName, WallTime};
use lockgate_machine::{QueueDescription, QueueSettings};

use crate::sync::RwLock;

/// The queues of a shard, as of the last durable change.
///
/// A new queue appears when the answer to its creation leaves, and a change when its answer leaves.
/// So a reader never sees a state that a power cut could take back.
#[derive(Debug, Default)]
pub struct Directory {
    entries: RwLock<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_name: HashMap<QueueName, Arc<QueueEntry>>,
    by_id: HashMap<QueueId, Arc<QueueEntry>>,
}

/// One queue, without what changes with every message.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueEntry {
    pub id: QueueId,
    pub name: QueueName,
    pub settings: QueueSettings,
    pub annotations: BTreeMap<String, String>,
    pub tags: BTreeMap<String, String>,
    /// When it was created.
    pub created: WallTime,
    /// When its settings, annotations or tags last changed.
    pub changed: WallTime,
}

impl From<QueueDescription> for QueueEntry {
    fn from(queue: QueueDescription) -> Self {
        Self {
            id: queue.id,
            name: queue.name,
            settings: queue.settings,
            annotations: queue.annotations,
            tags: queue.tags,
            created: queue.created,
            changed: queue.changed,
        }
    }
}

impl Directory {
    /// The queue of that name.
    #[must_use]
    pub fn get(&self, name: &QueueName) -> Option<Arc<QueueEntry>> {
        self.read(|entries| entries.by_name.get(name).cloned())
    }

    /// The queue of that number.
    #[must_use]
    pub fn by_id(&self, id: QueueId) -> Option<Arc<QueueEntry>> {
        self.read(|entries| entries.by_id.get(&id).cloned())
    }

    /// All queues, in order of their names. Copies one pointer per queue.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<QueueEntry>> {
        let mut all: Vec<_> = self.read(|entries| entries.by_id.values().cloned().collect());
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The queues whose dead-letter queue is `target`, in order of their names.
    #[must_use]
    pub fn dead_letter_sources(&self, target: &QueueName) -> Vec<Arc<QueueEntry>> {
        let mut sources = self.all();
        sources.retain(|entry| entry.settings.dead_letter.as_ref() == Some(target));
        sources
    }

    /// How many queues there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read(|entries| entries.by_id.len())
    }

    /// Whether there is no queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn put(&self, entry: Arc<QueueEntry>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.by_name.insert(entry.name.clone(), entry.clone());
        entries.by_id.insert(entry.id, entry);
    }

    pub(crate) fn remove(&self, id: QueueId) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.by_id.remove(&id)
            // A newer queue may have the same name.
            && entries.by_name.get(&entry.name).is_some_and(|named| named.id == id)
        {
            entries.by_name.remove(&entry.name);
        }
    }

    /// A panic under the lock leaves whole entries, so a poisoned lock can still be used.
    fn read<R>(&self, ask: impl FnOnce(&Entries) -> R) -> R {
        ask(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }
}
