//! The records themselves: what each command does at one instant.
//!
//! # Invariants
//! - A version is one above the one before it; the first of a new record is above those of all deleted ones.
//! - The revision rises with each change, and a lease's epoch is the revision of its grant.
//! - `ends` has each lease once, by its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, LeaseRecord, ListRecords, MachineTime, Millis,
    Now, PutRecord, RECORD_BYTES_MAX, RECORD_LEASE_MAX, Record, RecordLease, RecordName,
    RecordPage, RecordVersion, RecordWritten, RecordsError, ReleaseRecord, Revision, WallTime,
    coordination::Fence, record_memory,
};

/// The records of a store at one instant.
#[derive(Clone, Debug, Default)]
pub struct State {
    entries: BTreeMap<RecordName, Entry>,
    ends: BTreeSet<(MachineTime, RecordName)>,
    /// The highest revision that was given out.
    revision: u64,
    /// The highest version of a record that was deleted.
    deleted_version: u64,
    bytes: u64,
    now: Now,
    /// Records that changed since they were last taken.
    changed: Vec<RecordName>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Bytes,
    version: RecordVersion,
    revision: Revision,
    written: WallTime,
    lease: Option<SavedLease>,
}

/// All of a [`State`], to keep it elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedRecords {
    /// The highest revision that was given out.
    pub revision: u64,
    /// The highest version of a record that was deleted.
    pub deleted_version: u64,
    /// The time that it has seen last.
    pub now: Now,
    /// The records, by name.
    pub records: Vec<SavedRecord>,
}

/// A record of [`SavedRecords`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRecord {
    /// What it is called.
    pub name: RecordName,
    /// Its value.
    pub value: Bytes,
    /// The number of the value.
    pub version: RecordVersion,
    /// The number of its last change.
    pub revision: Revision,
    /// When its value was written.
    pub written: WallTime,
    /// Its lease.
    pub lease: Option<SavedLease>,
}

/// A lease of [`SavedRecords`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedLease {
    /// Whose it is.
    pub holder: HolderName,
    /// Its fencing token.
    pub epoch: Epoch,
    /// When it ends.
    pub until: MachineTime,
    /// Whether the record is deleted when it ends.
    pub delete_at_end: bool,
}

impl From<&State> for SavedRecords {
    fn from(state: &State) -> Self {
        let records = state.entries.iter().map(|(name, entry)| SavedRecord {
            name: name.clone(),
            value: entry.value.clone(),
            version: entry.version,
            revision: entry.revision,
            written: entry.written,
            lease: entry.lease.clone(),
        });
        Self {
            revision: state.revision,
            deleted_version: state.deleted_version,
            now: state.now,
            records: records.collect(),
        }
    }
}

impl From<SavedRecords> for State {
    fn from(saved: SavedRecords) -> Self {
        let mut state = Self {
            revision: saved.revision,
            deleted_version: saved.deleted_version,
            now: saved.now,
            ..Self::default()
        };
        for record in saved.records {
            state.bytes += record_memory(record.name.as_str(), record.value.len());
            if let Some(lease) = &record.lease {
                state.ends.insert((lease.until, record.name.clone()));
            }
            let entry = Entry {
                value: record.value,
                version: record.version,
                revision: record.revision,
                written: record.written,
                lease: record.lease,
            };
            state.entries.insert(record.name, entry);
        }
        state
    }
}

impl State {
    /// A machine time at which every lease has ended.
    #[must_use]
    pub fn end_of_all(&self) -> MachineTime {
        let last = self.ends.last().map(|(until, _)| *until);
        last.unwrap_or_default().max(self.now.machine)
    }

    /// Ends the leases whose time is over. Machine time never goes back, whatever the clock says.
    pub fn advance(&mut self, now: Now) {
        let machine = self.now.machine.max(now.machine);
        self.now = Now { machine, ..now };
        while self
            .ends
            .first()
            .is_some_and(|(until, _)| *until <= machine)
        {
            if let Some((_, name)) = self.ends.pop_first() {
                self.end(&name);
            }
        }
    }

    /// The records that changed since the last call.
    pub fn take_changed(&mut self) -> Vec<RecordName> {
        std::mem::take(&mut self.changed)
    }

    /// The machine time that it has seen last.
    pub fn machine_time(&self) -> MachineTime {
        self.now.machine
    }

    /// The revision of a record.
    pub fn revision_of(&self, name: &RecordName) -> Option<Revision> {
        self.entries.get(name).map(|entry| entry.revision)
    }

    /// When the record's lease ends by itself.
    pub fn end_of(&self, name: &RecordName) -> Option<MachineTime> {
        Some(self.entries.get(name)?.lease.as_ref()?.until)
    }

    /// A record.
    pub fn get(&self, name: &RecordName) -> Option<Record> {
        let entry = self.entries.get(name)?;
        Some(entry.to_record(name, self.now.machine))
    }

    /// A page of records.
    pub fn list(&self, list: &ListRecords) -> Result<RecordPage, RecordsError> {
        check("limit", list.limit as u64, 1, ListRecords::LIMIT_MAX as u64)?;
        let now = self.now.machine;
        Ok(list.page(&self.entries, |name, entry| entry.to_record(name, now)))
    }

    /// Writes a record; all records may have `max` bytes.
    pub fn put(&mut self, put: PutRecord, max: u64) -> Result<RecordWritten, RecordsError> {
        let bytes = put.value.len() as u64;
        check("value_bytes", bytes, 0, RECORD_BYTES_MAX as u64)?;
        self.may_write(&put.name, put.replaces, put.epoch)?;
        // A copy, because the value may be a small part of something large.
        self.write(&put.name, Bytes::copy_from_slice(&put.value), max)
    }

    /// Makes a change of that record for the leader of a term, unless there was a later one. The guard of its election is raised
    /// behind it.
    pub fn under<T>(
        &mut self,
        fence: Option<&Fence>,
        name: &RecordName,
        max: u64,
        change: impl FnOnce(&mut Self) -> Result<T, RecordsError>,
    ) -> Result<T, RecordsError> {
        let Some(fence) = fence else {
            return change(self);
        };
        fence.check()?;
        let mark = fence.mark();
        let guard = mark.guard_for(name)?;
        let seen = self.entries.get(&guard).map(|entry| &*entry.value);
        let Some(raised) = mark.admit(seen)? else {
            return change(self);
        };
        // Of a copy, because both are made or none is. It happens once in a term.
        let mut next = self.clone();
        let done = change(&mut next)?;
        next.write(&guard, raised, max)?;
        *self = next;
        Ok(done)
    }

    /// Deletes a record.
    pub fn delete(&mut self, delete: &DeleteRecord) -> Result<(), RecordsError> {
        self.may_write(&delete.name, Some(delete.replaces), delete.epoch)?;
        self.remove(&delete.name);
        Ok(())
    }

    /// Leases for `lease` and what a clock's reading may have dropped.
    pub fn lease(
        &mut self,
        command: LeaseRecord,
        dropped: Millis,
        max: u64,
    ) -> Result<Record, RecordsError> {
        let name = command.name;
        check("lease", command.lease, 1, RECORD_LEASE_MAX)?;
        if let Some(held) = self
            .entries
            .get(&name)
            .and_then(|entry| entry.lease.as_ref())
            && held.holder != command.holder
        {
            return Err(self.held_by_other(&name, held));
        }
        if !self.entries.contains_key(&name) {
            self.write(&name, Bytes::new(), max)?;
        }
        let next = self.next_revision();
        let until = self.now.machine.plus(command.lease).plus(dropped);
        let now = self.now.machine;
        let Some(entry) = self.entries.get_mut(&name) else {
            let why = "the record was not made".to_owned();
            return Err(RecordsError::Unavailable { why });
        };
        let before = entry.lease.take();
        let epoch = before.as_ref().map_or(Epoch(next.0), |held| held.epoch);
        entry.lease = Some(SavedLease {
            holder: command.holder,
            epoch,
            until,
            delete_at_end: command.delete_at_end,
        });
        if before.is_none() {
            entry.revision = next;
        }
        let record = entry.to_record(&name, now);
        match before {
            Some(held) => self.move_end(name, held.until, until),
            None => {
                self.ends.insert((until, name.clone()));
                self.note(&name, next);
            }
        }
        Ok(record)
    }

    /// Extends a lease, as [`lease`](Self::lease).
    pub fn extend(&mut self, extend: ExtendRecord, dropped: Millis) -> Result<(), RecordsError> {
        check("lease", extend.lease, 1, RECORD_LEASE_MAX)?;
        let until = self.now.machine.plus(extend.lease).plus(dropped);
        let held = self.held(&extend.name, extend.epoch)?;
        let before = std::mem::replace(&mut held.until, until);
        self.move_end(extend.name, before, until);
        Ok(())
    }

    /// The lease of the record ends at another time.
    fn move_end(&mut self, name: RecordName, before: MachineTime, until: MachineTime) {
        self.ends.remove(&(before, name.clone()));
        self.ends.insert((until, name.clone()));
        if until < before {
            // Who watches sleeps until an end of the lease, which is nearer now.
            self.changed.push(name);
        }
    }

    /// Ends a lease.
    pub fn release(&mut self, release: &ReleaseRecord) -> Result<(), RecordsError> {
        let until = self.held(&release.name, release.epoch)?.until;
        self.ends.remove(&(until, release.name.clone()));
        self.end(&release.name);
        Ok(())
    }

    fn write(
        &mut self,
        name: &RecordName,
        value: Bytes,
        max: u64,
    ) -> Result<RecordWritten, RecordsError> {
        let before = self.entries.get(name);
        let freed = before.map_or(0, |entry| record_memory(name.as_str(), entry.value.len()));
        let taken = record_memory(name.as_str(), value.len());
        if taken > freed && self.bytes - freed + taken > max {
            return Err(RecordsError::Full { max });
        }
        let last = before.map_or(self.deleted_version, |entry| entry.version.0);
        let written = RecordWritten {
            version: RecordVersion(last + 1),
            revision: self.next_revision(),
        };
        self.bytes = self.bytes - freed + taken;
        let lease = self
            .entries
            .get_mut(name)
            .and_then(|entry| entry.lease.take());
        let entry = Entry {
            value,
            version: written.version,
            revision: written.revision,
            written: self.now.wall,
            lease,
        };
        self.entries.insert(name.clone(), entry);
        self.note(name, written.revision);
        Ok(written)
    }

    /// Ends the record's lease, which is not among `ends` any more.
    fn end(&mut self, name: &RecordName) {
        let revision = self.next_revision();
        let Some(entry) = self.entries.get_mut(name) else {
            return;
        };
        let lease = entry.lease.take();
        if lease.is_some_and(|lease| lease.delete_at_end) {
            return self.remove(name);
        }
        entry.revision = revision;
        self.note(name, revision);
    }

    fn remove(&mut self, name: &RecordName) {
        let revision = self.next_revision();
        if let Some(entry) = self.entries.remove(name) {
            self.bytes -= record_memory(name.as_str(), entry.value.len());
            self.deleted_version = self.deleted_version.max(entry.version.0);
            if let Some(lease) = entry.lease {
                self.ends.remove(&(lease.until, name.clone()));
            }
            self.note(name, revision);
        }
    }

    fn note(&mut self, name: &RecordName, revision: Revision) {
        self.revision = self.revision.max(revision.0);
        self.changed.push(name.clone());
    }

    fn next_revision(&self) -> Revision {
        Revision(self.revision).next(self.now.wall)
    }

    /// The lease is looked at first: who has lost it must learn that, whatever was written since.
    fn may_write(
        &mut self,
        name: &RecordName,
        replaces: Option<RecordVersion>,
        epoch: Option<Epoch>,
    ) -> Result<(), RecordsError> {
        if let Some(epoch) = epoch {
            self.held(name, epoch)?;
        }
        let entry = self.entries.get(name);
        if let (Some(held), None) = (entry.and_then(|entry| entry.lease.as_ref()), epoch) {
            return Err(self.held_by_other(name, held));
        }
        let version = entry.map(|entry| entry.version);
        if version != replaces {
            let name = name.clone();
            return Err(RecordsError::Conflict { name, version });
        }
        Ok(())
    }

    fn held(&mut self, name: &RecordName, epoch: Epoch) -> Result<&mut SavedLease, RecordsError> {
        let entry = self.entries.get_mut(name);
        let lease = entry.and_then(|entry| entry.lease.as_mut());
        let lease = lease.filter(|lease| lease.epoch == epoch);
        lease.ok_or_else(|| RecordsError::LeaseLost {
            name: name.clone(),
            epoch,
        })
    }

    fn held_by_other(&self, name: &RecordName, held: &SavedLease) -> RecordsError {
        RecordsError::Held {
            name: name.clone(),
            holder: held.holder.clone(),
            remaining: Duration::from_millis(held.until.since(self.now.machine)),
        }
    }
}

impl Entry {
    fn to_record(&self, name: &RecordName, now: MachineTime) -> Record {
        Record {
            name: name.clone(),
            value: self.value.clone(),
            version: self.version,
            revision: self.revision,
            written: self.written,
            lease: self.lease.as_ref().map(|lease| RecordLease {
                holder: lease.holder.clone(),
                epoch: lease.epoch,
                remaining: Duration::from_millis(lease.until.since(now)),
                delete_at_end: lease.delete_at_end,
            }),
        }
    }
}

fn check(what: &str, given: u64, min: u64, max: u64) -> Result<(), RecordsError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    let why = format!("{what} must be {min} to {max}, not {given}");
    Err(RecordsError::Invalid { why })
}
