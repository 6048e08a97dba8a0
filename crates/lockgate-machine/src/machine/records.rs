//! Records: versioned values of the shard that may be leased.
//!
//! # Invariants
//! - A version is one above the one before it; the first of a new record is above those of all deleted ones.
//! - The revision rises with each change, and a lease's epoch is the revision of its grant. So no epoch comes
//!   twice, whatever was deleted. It is at least the wall clock's microseconds: a backup that is restored goes on
//!   above what was given out after it was taken, unless the clock was set back.
//! - A record that is leased has a timer, which ends the lease.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, LeaseRecord, ListRecords, MachineTime, Millis,
    Now, Position, PutRecord, RECORD_BYTES_MAX, RECORD_LEASE_MAX, Record, RecordLease, RecordName,
    RecordPage, RecordVersion, RecordWritten, RecordsError, ReleaseRecord, Revision, WallTime,
    record_memory,
};

use super::{Machine, draft::Draft, send::check_range, state::Timer};
use crate::{
    Command, Effect, Fenced, Rejection, Reply,
    slab::{NONE, Slab},
};

/// A record. Pages are small, because a page is copied, and written, as a whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecordEntry {
    pub(super) name: RecordName,
    pub(super) value: Bytes,
    pub(super) version: u64,
    pub(super) revision: u64,
    pub(super) written: WallTime,
    pub(super) lease: Option<EntryLease>,
    /// The timer of its lease.
    pub(super) timer: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct EntryLease {
    pub(super) holder: HolderName,
    pub(super) epoch: u64,
    pub(super) until: MachineTime,
    pub(super) delete_at_end: bool,
}

/// All records of a shard.
#[derive(Debug, Default)]
pub(super) struct RecordTable {
    pub(super) entries: Slab<RecordEntry, 32>,
    pub(super) by_name: BTreeMap<RecordName, u32>,
    /// The highest revision that was given out.
    pub(super) revision: u64,
    /// The highest version of a record that was deleted.
    pub(super) deleted_version: u64,
    /// Memory of all records.
    pub(super) bytes: u64,
    /// Records that changed since they were last taken, if somebody takes them. Volatile.
    pub(super) changed: Vec<RecordName>,
    /// Commands that named a lease that had ended. Volatile.
    pub(super) stale: u64,
    /// The record of the log that changed them last. Volatile.
    changed_at: Position,
}

/// How much the records of a shard are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records.
    pub records: u64,
    /// What they take of [`MachineLimits::record_bytes_max`](crate::MachineLimits::record_bytes_max).
    pub bytes: u64,
    /// What the states of keys take of it.
    pub state_bytes: u64,
    /// Commands since the start that named a lease that had ended.
    pub stale: u64,
}

impl RecordEntry {
    fn bytes(&self) -> u64 {
        record_memory(self.name.as_str(), self.value.len())
    }
}

impl RecordTable {
    fn find(&self, name: &RecordName) -> Option<(u32, &RecordEntry)> {
        let index = *self.by_name.get(name)?;
        Some((index, &self.entries[index]))
    }

    /// Rebuilds what follows from the entries. Returns false if two have one name.
    pub(super) fn rebuild(&mut self) -> bool {
        self.bytes = self.entries.iter().map(|(_, entry)| entry.bytes()).sum();
        let names = self.entries.iter();
        self.by_name = names
            .map(|(index, entry)| (entry.name.clone(), index))
            .collect();
        self.by_name.len() == self.entries.len()
    }

    /// Whether an image needs them.
    pub(super) fn is_unused(&self) -> bool {
        self.entries.is_empty() && self.revision == 0
    }

    pub(super) fn share(&mut self) -> Self {
        Self {
            entries: self.entries.share(),
            revision: self.revision,
            deleted_version: self.deleted_version,
            ..Self::default()
        }
    }
}

impl Machine {
    /// How much the records of the shard are.
    #[must_use]
    pub fn record_counts(&self) -> RecordCounts {
        RecordCounts {
            records: self.records.entries.len() as u64,
            bytes: self.records.bytes,
            state_bytes: self.key_state_bytes,
            stale: self.records.stale,
        }
    }

    /// How many keys of all queues have a state. Walks the queues.
    #[must_use]
    pub fn key_state_count(&self) -> u64 {
        let states = self
            .queues
            .iter()
            .filter_map(|(_, queue)| queue.states.as_deref());
        states.map(|states| states.len() as u64).sum()
    }

    /// The record of that name at `now`.
    #[must_use]
    pub fn record(&self, name: &RecordName, now: Now) -> Option<Record> {
        let (_, entry) = self.records.find(name)?;
        Some(entry.to_record(self.monotonic(now)))
    }

    /// The revision of the record of that name.
    #[must_use]
    pub fn record_revision(&self, name: &RecordName) -> Option<Revision> {
        self.records
            .find(name)
            .map(|(_, entry)| Revision(entry.revision))
    }

    /// The record of the log that must be durable before anything is told of the shard's records: also the end of a lease,
    /// which is written at level `process`, must not be taken back. `None`: all are.
    #[must_use]
    pub fn records_rest_on(&self) -> Option<Position> {
        self.unless_durable(self.records.changed_at)
    }

    /// The records that changed since the last call; one that changed more than once may come more than once.
    /// Changes before the first [`reached`](Self::reached) are left out: nobody can have waited for them.
    pub fn take_changed_records(&mut self) -> Vec<RecordName> {
        std::mem::take(&mut self.records.changed)
    }

    pub(super) fn query_records(
        &self,
        list: &ListRecords,
        now: Now,
    ) -> Result<RecordPage, Rejection> {
        check_range("limit", list.limit as u64, 1, ListRecords::LIMIT_MAX as u64)?;
        let now = self.monotonic(now);
        let entries = &self.records.entries;
        Ok(list.page(&self.records.by_name, |_, &index| {
            entries[index].to_record(now)
        }))
    }

    pub(super) fn decide_put_record(
        &self,
        draft: &mut Draft,
        put: &PutRecord,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.records_rest_on());
        let PutRecord {
            name,
            value,
            replaces,
            epoch,
        } = put;
        let bytes = value.len() as u64;
        check_range("value_bytes", bytes, 0, RECORD_BYTES_MAX as u64)?;
        self.may_write(name, *replaces, *epoch, now)?;
        let written = self.put(draft, name, value, now, 0)?;
        Ok(Reply::RecordWritten(written))
    }

    pub(super) fn decide_delete_record(
        &self,
        draft: &mut Draft,
        delete: &DeleteRecord,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.records_rest_on());
        let DeleteRecord {
            name,
            replaces,
            epoch,
        } = delete;
        self.may_write(name, Some(*replaces), *epoch, now)?;
        let deleted = Effect::RecordDeleted {
            name: name.clone(),
            revision: self.next_revision(now, 0),
        };
        draft.add(deleted, self.administration_level());
        Ok(Reply::Done)
    }

    pub(super) fn decide_lease_record(
        &self,
        draft: &mut Draft,
        command: &LeaseRecord,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.records_rest_on());
        let LeaseRecord {
            name,
            holder,
            lease,
            delete_at_end,
        } = command;
        check_lease(*lease)?;
        let entry = self.records.find(name).map(|(_, entry)| entry);
        let (version, value, written, revision) = match entry {
            Some(entry) => (
                RecordVersion(entry.version),
                entry.value.clone(),
                entry.written,
                Revision(entry.revision),
            ),
            None => {
                let put = self.put(draft, name, &Bytes::new(), now, 0)?;
                (put.version, Bytes::new(), now.wall, put.revision)
            }
        };
        let epoch = match entry.and_then(|entry| entry.lease.as_ref()) {
            Some(held) if held.holder != *holder => return Err(held_by_other(name, held, now)),
            Some(held) => Epoch(held.epoch),
            None => Epoch(self.next_revision(now, u64::from(entry.is_none())).0),
        };
        let leased = Effect::RecordLeased {
            name: name.clone(),
            holder: holder.clone(),
            epoch,
            deadline: now.machine.plus(*lease),
            delete_at_end: *delete_at_end,
        };
        draft.add(leased, self.administration_level());
        Ok(Reply::Record(Box::new(Record {
            name: name.clone(),
            value,
            version,
            revision: revision.max(Revision(epoch.0)),
            written,
            lease: Some(RecordLease {
                holder: holder.clone(),
                epoch,
                remaining: Duration::from_millis(*lease),
                delete_at_end: *delete_at_end,
            }),
        })))
    }

    pub(super) fn decide_extend_record(
        &self,
        draft: &mut Draft,
        extend: &ExtendRecord,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.records_rest_on());
        check_lease(extend.lease)?;
        let held = self.held_by(&extend.name, extend.epoch)?;
        let leased = Effect::RecordLeased {
            name: extend.name.clone(),
            holder: held.holder.clone(),
            epoch: extend.epoch,
            deadline: now.machine.plus(extend.lease),
            delete_at_end: held.delete_at_end,
        };
        draft.add(leased, self.administration_level());
        Ok(Reply::Done)
    }

    pub(super) fn decide_release_record(
        &self,
        draft: &mut Draft,
        release: &ReleaseRecord,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.records_rest_on());
        self.held_by(&release.name, release.epoch)?;
        let released = Effect::RecordReleased {
            name: release.name.clone(),
            revision: self.next_revision(now, 0),
        };
        draft.add(released, self.administration_level());
        Ok(Reply::Done)
    }

    /// Decides a command under a fence. The guard is raised behind it, in the same record of the log.
    pub(super) fn decide_fenced(
        &self,
        draft: &mut Draft,
        fenced: &Fenced<Command>,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let Fenced { mark, command } = fenced;
        if let Command::Fenced(_) = command {
            return Err(Rejection::OutOfRange {
                what: "number of fences",
                value: 2,
                min: 0,
                max: 1,
            });
        }
        let guard = mark.guard().map_err(|error| RecordsError::Invalid {
            why: error.to_string(),
        })?;
        let seen = self.records.find(&guard).map(|(_, entry)| &*entry.value);
        // A refusal must not be taken back; what passes is behind the guard in the log.
        let raised = mark
            .admit(seen)
            .inspect_err(|_| draft.rest_on(self.records_rest_on()))?;
        let reply = self.decide_into(draft, command, now)?;
        let mut later = 0;
        for changed in draft.effects.iter().filter_map(Effect::record_name) {
            mark.guard_for(changed)?;
            later += 1;
        }
        if let Some(value) = raised {
            self.put(draft, &guard, &value, now, later)?;
        }
        Ok(reply)
    }

    /// Adds the effect of a write, if there is room for it: the command's change number `later`, from 0.
    fn put(
        &self,
        draft: &mut Draft,
        name: &RecordName,
        value: &Bytes,
        now: Now,
        later: u64,
    ) -> Result<RecordWritten, Rejection> {
        let entry = self.records.find(name).map(|(_, entry)| entry);
        let before = entry.map_or(0, RecordEntry::bytes);
        let after = record_memory(name.as_str(), value.len());
        self.check_record_room(draft, before, after)?;
        draft.record_bytes += after.cast_signed() - before.cast_signed();
        let version = entry.map_or(self.records.deleted_version, |entry| entry.version);
        let written = RecordWritten {
            version: RecordVersion(version.saturating_add(1)),
            revision: self.next_revision(now, later),
        };
        let put = Effect::RecordPut {
            name: name.clone(),
            version: written.version,
            revision: written.revision,
            at: now.wall,
            value: value.clone(),
        };
        draft.add(put, self.administration_level());
        Ok(written)
    }

    /// Whether a record, or the state of a key, may take `after` bytes instead of `before`.
    pub(super) fn check_record_room(
        &self,
        draft: &Draft,
        before: u64,
        after: u64,
    ) -> Result<(), Rejection> {
        let max = self.limits.record_bytes_max;
        let bytes = self.records.bytes + self.key_state_bytes;
        let bytes = bytes.saturating_add_signed(draft.record_bytes);
        if after > before && bytes - before + after > max {
            return Err(RecordsError::Full { max }.into());
        }
        Ok(())
    }

    /// The revision of the command's change number `later`, from 0.
    pub(super) fn next_revision(&self, now: Now, later: u64) -> Revision {
        let next = Revision(self.records.revision).next(now.wall);
        Revision(next.0.saturating_add(later))
    }

    /// Whether a caller with that lease may replace that version. The lease is looked at first: who has lost it must
    /// learn that, whatever was written since.
    fn may_write(
        &self,
        name: &RecordName,
        replaces: Option<RecordVersion>,
        epoch: Option<Epoch>,
        now: Now,
    ) -> Result<(), Rejection> {
        let entry = self.records.find(name).map(|(_, entry)| entry);
        match (entry.and_then(|entry| entry.lease.as_ref()), epoch) {
            (_, Some(epoch)) => {
                self.held_by(name, epoch)?;
            }
            (Some(held), None) => return Err(held_by_other(name, held, now)),
            (None, None) => {}
        }
        let version = entry.map(|entry| RecordVersion(entry.version));
        if version != replaces {
            let name = name.clone();
            return Err(RecordsError::Conflict { name, version }.into());
        }
        Ok(())
    }

    /// The lease with that epoch, if the record has it.
    fn held_by(&self, name: &RecordName, epoch: Epoch) -> Result<&EntryLease, Rejection> {
        let lease = self
            .records
            .find(name)
            .and_then(|(_, entry)| entry.lease.as_ref());
        let lease = lease.filter(|lease| lease.epoch == epoch.0);
        lease.ok_or_else(|| {
            let name = name.clone();
            RecordsError::LeaseLost { name, epoch }.into()
        })
    }

    pub(super) fn fold_record_put(
        &mut self,
        name: &RecordName,
        version: RecordVersion,
        revision: Revision,
        at: WallTime,
        value: &Bytes,
    ) -> Option<()> {
        // A copy, because the value may be a slice of a record of the log.
        let value = Bytes::copy_from_slice(value);
        let entry = RecordEntry {
            name: name.clone(),
            value,
            version: version.0,
            revision: revision.0,
            written: at,
            lease: None,
            timer: NONE,
        };
        let records = &mut self.records;
        records.bytes += entry.bytes();
        match records.by_name.get(name) {
            Some(&index) => {
                let before = &mut records.entries[index];
                records.bytes -= before.bytes();
                *before = RecordEntry {
                    lease: before.lease.take(),
                    timer: before.timer,
                    ..entry
                };
            }
            None => {
                let index = records.entries.insert(entry);
                records.by_name.insert(name.clone(), index);
            }
        }
        self.note_change(name, revision);
        Some(())
    }

    pub(super) fn fold_record_deleted(
        &mut self,
        name: &RecordName,
        revision: Revision,
    ) -> Option<()> {
        self.note_change(name, revision);
        let records = &mut self.records;
        let index = records.by_name.remove(name)?;
        let entry = records.entries.remove(index);
        records.bytes -= entry.bytes();
        records.deleted_version = records.deleted_version.max(entry.version);
        if entry.timer != NONE {
            self.machine.remove(entry.timer);
        }
        Some(())
    }

    pub(super) fn fold_record_leased(
        &mut self,
        name: &RecordName,
        holder: &HolderName,
        epoch: Epoch,
        until: MachineTime,
        delete_at_end: bool,
    ) -> Option<()> {
        let index = *self.records.by_name.get(name)?;
        let entry = &mut self.records.entries[index];
        let is_new = entry
            .lease
            .as_ref()
            .is_none_or(|held| held.epoch != epoch.0);
        entry.lease = Some(EntryLease {
            holder: holder.clone(),
            epoch: epoch.0,
            until,
            delete_at_end,
        });
        if is_new {
            entry.revision = epoch.0;
        }
        if entry.timer != NONE {
            self.machine.remove(entry.timer);
        }
        // Leases that end at one instant end in the order in which they were given.
        let timer = Timer::RecordLease(index).to_bits();
        self.records.entries[index].timer = self.machine.insert(until.0, epoch.0, timer);
        if is_new {
            self.note_change(name, Revision(epoch.0));
        }
        Some(())
    }

    pub(super) fn fold_record_released(
        &mut self,
        name: &RecordName,
        revision: Revision,
    ) -> Option<()> {
        let index = *self.records.by_name.get(name)?;
        let timer = std::mem::replace(&mut self.records.entries[index].timer, NONE);
        if timer != NONE {
            self.machine.remove(timer);
        }
        self.end_record_lease(index, revision)
    }

    /// The timer of a lease has been taken out of its wheel.
    pub(super) fn fire_record_lease(&mut self, index: u32) {
        self.records.entries[index].timer = NONE;
        let revision = Revision(self.records.revision).next(self.clock.now.wall);
        self.end_record_lease(index, revision);
    }

    fn end_record_lease(&mut self, index: u32, revision: Revision) -> Option<()> {
        let entry = &mut self.records.entries[index];
        let lease = entry.lease.take()?;
        let name = entry.name.clone();
        if lease.delete_at_end {
            return self.fold_record_deleted(&name, revision);
        }
        entry.revision = revision.0;
        self.note_change(&name, revision);
        Some(())
    }

    fn note_change(&mut self, name: &RecordName, revision: Revision) {
        self.records.revision = self.records.revision.max(revision.0);
        self.records.changed_at = self.folding_at;
        if self.durable.is_some() {
            self.records.changed.push(name.clone());
        }
    }
}

impl RecordEntry {
    fn to_record(&self, now: Now) -> Record {
        Record {
            name: self.name.clone(),
            value: self.value.clone(),
            version: RecordVersion(self.version),
            revision: Revision(self.revision),
            written: self.written,
            lease: self.lease.as_ref().map(|lease| RecordLease {
                holder: lease.holder.clone(),
                epoch: Epoch(lease.epoch),
                remaining: Duration::from_millis(lease.until.since(now.machine)),
                delete_at_end: lease.delete_at_end,
            }),
        }
    }
}

fn held_by_other(name: &RecordName, held: &EntryLease, now: Now) -> Rejection {
    let held = RecordsError::Held {
        name: name.clone(),
        holder: held.holder.clone(),
        remaining: Duration::from_millis(held.until.since(now.machine)),
    };
    held.into()
}

fn check_lease(lease: Millis) -> Result<(), Rejection> {
    check_range("lease", lease, 1, RECORD_LEASE_MAX)
}
