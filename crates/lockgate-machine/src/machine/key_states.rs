//! The states of keys: a versioned value for each key of a keyed queue that its holder has written.
//!
//! # Invariants
//! - A version is one above the one before it; the first of a key without a state is above those of all states
//!   that were dropped in the queue.
//! - Only a current lease of one of the key's messages writes it, or an operator.
//! - States outlive messages, purges and restarts. Who deletes the queue deletes them.
//! - The states of all keys stay within [`state_bytes_max`](crate::MachineLimits::state_bytes_max), and with the records
//!   within [`record_bytes_max`](crate::MachineLimits::record_bytes_max); those of a queue count to its quota of bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockgate_core::{
    Key, KeyState, KeyStateWrite, LeaseToken, Level, Now, Position, QueueId, QueueName,
    RECORD_BYTES_MAX, RecordVersion, WallTime, record_memory, with_prefix,
};

use super::{Machine, draft::Draft, query_pages::check_limit, send::check_range};
use crate::{
    ChangeKeyState, Effect, KeyStatePage, KeyStateStatus, ListKeyStates, Rejection, Reply, Settle,
    SettleAction, StaleReason, WriteState,
    columns::{ImageError, Input, damaged},
    slab::Slab,
};

/// The states of one queue's keys.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyStates {
    entries: Slab<StateEntry, 32>,
    by_key: BTreeMap<Key, u32>,
    /// The highest version of a state that was dropped.
    deleted_version: u64,
    /// Memory of all entries.
    bytes: u64,
    /// The record that last changed one.
    changed_at: Position,
}

/// The state of a key. Pages are small, because a page is copied, and written, as a whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StateEntry {
    pub(super) key: Key,
    pub(super) value: Bytes,
    pub(super) version: u64,
    pub(super) written: WallTime,
}

impl StateEntry {
    fn bytes(&self) -> u64 {
        record_memory(self.key.as_str(), self.value.len())
    }

    fn to_state(&self) -> KeyState {
        KeyState {
            value: self.value.clone(),
            version: RecordVersion(self.version),
            written: self.written,
        }
    }

    fn status(&self) -> KeyStateStatus {
        KeyStateStatus {
            version: RecordVersion(self.version),
            bytes: self.value.len() as u64,
            written: self.written,
        }
    }
}

impl KeyStates {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// What they count to the quota of bytes, and to the memory of records.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Heap memory of the entries, in bytes, beside what [`bytes`](Self::bytes) has.
    pub(super) fn table_bytes(&self) -> usize {
        self.entries.bytes()
    }

    pub(super) fn deleted_version(&self) -> RecordVersion {
        RecordVersion(self.deleted_version)
    }

    /// All states, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, KeyState)> {
        let entries = self.entries.iter();
        entries.map(|(_, entry)| (&entry.key, entry.to_state()))
    }

    fn find(&self, key: &Key) -> Option<&StateEntry> {
        Some(&self.entries[self.index(key)?])
    }

    fn index(&self, key: &Key) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    fn put(&mut self, entry: StateEntry) {
        self.bytes += entry.bytes();
        if let Some(index) = self.index(&entry.key) {
            let before = std::mem::replace(&mut self.entries[index], entry);
            self.bytes -= before.bytes();
            return;
        }
        let key = entry.key.clone();
        let index = self.entries.insert(entry);
        self.by_key.insert(key, index);
    }

    fn remove(&mut self, key: &Key) -> Option<()> {
        let index = self.by_key.remove(key)?;
        let entry = self.entries.remove(index);
        self.bytes -= entry.bytes();
        self.deleted_version = self.deleted_version.max(entry.version);
        Some(())
    }

    /// Frees up to `budget` states of a queue that is gone, and returns how many.
    pub(super) fn free(&mut self, budget: usize) -> usize {
        let mut freed = 0;
        while freed < budget
            && let Some((_, index)) = self.by_key.pop_first()
        {
            self.entries.remove(index);
            freed += 1;
        }
        freed
    }
}

/// Parts of an image.
impl KeyStates {
    /// A copy that shares the pages, to be read while these change. It has no index.
    pub(super) fn share(&mut self) -> Self {
        Self {
            entries: self.entries.share(),
            deleted_version: self.deleted_version,
            ..Self::default()
        }
    }

    /// The pages with the states.
    pub(super) fn pages(&mut self) -> &mut Slab<StateEntry, 32> {
        &mut self.entries
    }

    /// Appends everything besides the pages.
    pub(super) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.deleted_version.to_le_bytes());
        self.entries.encode_outline(out);
    }

    /// States whose pages are still to be added.
    pub(super) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        Ok(Self {
            deleted_version: input.u64()?,
            entries: Slab::decode_outline(input)?,
            ..Self::default()
        })
    }

    /// Builds what follows from the entries.
    pub(super) fn rebuild(&mut self) -> Result<(), ImageError> {
        self.entries.check_complete()?;
        let entries = self.entries.iter();
        self.bytes = entries.map(|(_, entry)| entry.bytes()).sum();
        let keys = self.entries.iter();
        self.by_key = keys
            .map(|(index, entry)| (entry.key.clone(), index))
            .collect();
        if self.by_key.len() == self.entries.len() {
            Ok(())
        } else {
            Err(damaged("two states of one key"))
        }
    }

    /// Whether each state is found by its key, and their memory is right.
    pub(super) fn is_sound(&self) -> bool {
        let entries = self.entries.iter();
        let bytes: u64 = entries.map(|(_, entry)| entry.bytes()).sum();
        let found = |(index, entry): (u32, &StateEntry)| self.index(&entry.key) == Some(index);
        bytes == self.bytes
            && self.by_key.len() == self.entries.len()
            && self.entries.iter().all(found)
    }
}

impl Machine {
    pub(super) fn query_key_state(
        &self,
        queue: &QueueName,
        key: &Key,
    ) -> Result<Option<KeyState>, Rejection> {
        let index = self.keyed_queue(queue)?;
        Ok(self.state_entry(index, key).map(StateEntry::to_state))
    }

    pub(super) fn query_key_states(&self, list: &ListKeyStates) -> Result<KeyStatePage, Rejection> {
        let index = self.keyed_queue(&list.queue)?;
        check_limit(list.limit)?;
        let (mut page, mut next) = (Vec::new(), None);
        if let Some(states) = self.queues[index].states.as_deref() {
            let mut found = with_prefix(&states.by_key, &list.prefix, list.after.as_ref());
            let shown = found.by_ref().take(list.limit);
            page.extend(shown.map(|(key, &at)| (key.clone(), states.entries[at].status())));
            if found.next().is_some() {
                next = page.last().map(|(key, _)| key.clone());
            }
        }
        Ok(KeyStatePage { states: page, next })
    }

    pub(super) fn key_state_status(&self, queue: u32, key: &Key) -> Option<KeyStateStatus> {
        self.state_entry(queue, key).map(StateEntry::status)
    }

    /// The state of a key for a lease.
    pub(super) fn key_state(&self, queue: u32, key: Option<&Key>) -> Option<Box<KeyState>> {
        let entry = self.state_entry(queue, key?)?;
        Some(Box::new(entry.to_state()))
    }

    fn state_entry(&self, queue: u32, key: &Key) -> Option<&StateEntry> {
        self.queues[queue].states.as_deref()?.find(key)
    }

    fn keyed_queue(&self, name: &QueueName) -> Result<u32, Rejection> {
        let index = self.named_queue(name)?;
        self.check_keyed(index)?;
        Ok(index)
    }

    fn check_keyed(&self, queue: u32) -> Result<(), Rejection> {
        let queue = &self.queues[queue];
        if queue.settings.keyed {
            Ok(())
        } else {
            Err(Rejection::KeyStateNotTaken {
                queue: queue.name.clone(),
            })
        }
    }

    pub(super) fn decide_key_state(
        &self,
        draft: &mut Draft,
        change: &ChangeKeyState,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let queue = self.keyed_queue(&change.queue)?;
        let version = self.draft_state(draft, queue, &change.key, &change.write, now)?;
        Ok(Reply::StateWritten(version))
    }

    /// The queue and key whose state the holder of that lease may write.
    pub(super) fn written_by(
        &self,
        draft: &Draft,
        token: LeaseToken,
    ) -> Result<Result<(u32, &Key), StaleReason>, Rejection> {
        self.check_shard(token)?;
        if let Some(queue) = self.queue_index(token.queue) {
            self.check_keyed(queue)?;
        }
        let settle = Settle {
            token,
            action: SettleAction::Ack,
        };
        Ok(self
            .current(draft, &settle, false)
            .and_then(|(queue, index)| {
                let key = self.keys[self.messages[index].key].name.as_ref();
                // Every message of a keyed queue has a key.
                Ok((queue, key.ok_or(StaleReason::Gone)?))
            }))
    }

    /// Writes the states of a transaction, for the holders that had the keys before it.
    pub(super) fn draft_states(
        &self,
        draft: &mut Draft,
        states: &[WriteState],
        holders: Vec<Result<(u32, &Key), StaleReason>>,
        now: Now,
    ) -> Result<Vec<Option<RecordVersion>>, Rejection> {
        let mut written = std::collections::BTreeSet::new();
        let states = states.iter().zip(holders).enumerate();
        states
            .map(|(index, (state, holder))| {
                let (queue, key) = holder.map_err(|reason| {
                    self.rest_on_removals(draft, state.token.queue);
                    Rejection::KeyStateStale { index, reason }
                })?;
                if !written.insert((queue, key)) {
                    return Err(Rejection::KeyStateTwice {
                        queue: self.queues[queue].name.clone(),
                        key: key.clone(),
                    });
                }
                self.draft_state(draft, queue, key, &state.write, now)
            })
            .collect()
    }

    fn draft_state(
        &self,
        draft: &mut Draft,
        index: u32,
        key: &Key,
        write: &KeyStateWrite,
        now: Now,
    ) -> Result<Option<RecordVersion>, Rejection> {
        let queue = &self.queues[index];
        let entry = self.state_entry(index, key);
        let version = entry.map(|entry| RecordVersion(entry.version));
        if !write.replaces.takes(version) {
            return Err(Rejection::KeyStateConflict {
                queue: queue.name.clone(),
                key: key.clone(),
                version,
            });
        }
        let (id, level) = (queue.id, queue.settings.level);
        let before = entry.map_or(0, StateEntry::bytes);
        let Some(value) = &write.value else {
            if entry.is_some() {
                let (queue, key) = (id, key.clone());
                draft.add(Effect::KeyStateDropped { queue, key }, level);
                self.draft_state_growth(draft, index, before, 0);
            } else if let Some(states) = queue.states.as_deref() {
                // The drop before this one must have reached its level.
                draft.level = draft.level.max(level.min(Level::Process));
                if level >= Level::Disk {
                    draft.rest_on(self.unless_durable(states.changed_at));
                }
            }
            return Ok(None);
        };
        let bytes = value.len() as u64;
        check_range("bytes of the state", bytes, 0, RECORD_BYTES_MAX as u64)?;
        let after = record_memory(key.as_str(), value.len());
        if after > before {
            self.check_quota_bytes(draft, index, after - before)?;
            self.check_record_room(draft, before, after)?;
            let max = self.limits.key_state_bytes_max();
            let bytes = self
                .key_state_bytes
                .saturating_add_signed(draft.state_bytes);
            if bytes - before + after > max {
                return Err(Rejection::KeyStatesFull { max });
            }
        }
        self.draft_state_growth(draft, index, before, after);
        let dropped = queue
            .states
            .as_deref()
            .map_or(0, |states| states.deleted_version);
        let version = version.map_or(dropped, |version| version.0);
        let version = RecordVersion(version.saturating_add(1));
        let put = Effect::KeyStatePut {
            queue: id,
            key: key.clone(),
            version,
            at: now.wall,
            value: value.clone(),
        };
        draft.add(put, level);
        Ok(Some(version))
    }

    /// Counts for the later parts of the command.
    fn draft_state_growth(&self, draft: &mut Draft, queue: u32, before: u64, after: u64) {
        let growth = i64::try_from(after).unwrap_or(i64::MAX) - i64::try_from(before).unwrap_or(0);
        draft.record_bytes += growth;
        draft.state_bytes += growth;
        draft.delta_mut(queue).bytes += growth;
    }

    pub(super) fn fold_key_state_put(
        &mut self,
        queue: QueueId,
        key: &Key,
        version: RecordVersion,
        at: WallTime,
        value: &Bytes,
    ) -> Option<()> {
        let index = self
            .queue_index(queue)
            .filter(|&at| self.queues[at].settings.keyed)?;
        let states = self.queues[index].states.get_or_insert_default();
        states.changed_at = self.folding_at;
        self.key_state_bytes -= states.bytes;
        states.put(StateEntry {
            key: key.clone(),
            // A copy, because the value may be a slice of a record of the log.
            value: Bytes::copy_from_slice(value),
            version: version.0,
            written: at,
        });
        self.key_state_bytes += states.bytes;
        self.note_state_written(index, key);
        Some(())
    }

    pub(super) fn fold_key_state_dropped(&mut self, queue: QueueId, key: &Key) -> Option<()> {
        let index = self.queue_index(queue)?;
        let states = self.queues[index].states.as_deref_mut()?;
        states.changed_at = self.folding_at;
        self.key_state_bytes -= states.bytes;
        let removed = states.remove(key);
        self.key_state_bytes += states.bytes;
        removed?;
        self.note_state_written(index, key);
        Some(())
    }

    /// The next delivery of the key shows the state, so it depends on this record. Where the key has no message now, the
    /// next one comes in a later record.
    fn note_state_written(&mut self, queue: u32, key: &Key) {
        if let Some(found) = self.key_of(self.queues[queue].content, Some(key)) {
            self.keys[found].set_settled_at(self.folding_at);
        }
    }
}
