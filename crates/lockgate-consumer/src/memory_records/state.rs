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
    record_memory,
};

#[derive(Debug, Default)]
pub(super) struct State {
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

#[derive(Debug)]
struct Entry {
    value: Bytes,
    version: RecordVersion,
    revision: Revision,
    written: WallTime,
    lease: Option<Lease>,
}

#[derive(Debug)]
struct Lease {
    holder: HolderName,
    epoch: Epoch,
    until: MachineTime,
    delete_at_end: bool,
}

impl State {
    /// Ends the leases whose time is over. Machine time never goes back, whatever the clock says.
    pub(super) fn advance(&mut self, now: Now) {
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
    pub(super) fn take_changed(&mut self) -> Vec<RecordName> {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn machine_time(&self) -> MachineTime {
        self.now.machine
    }

    pub(super) fn revision_of(&self, name: &RecordName) -> Option<Revision> {
        self.entries.get(name).map(|entry| entry.revision)
    }

    /// When the record's lease ends by itself.
    pub(super) fn end_of(&self, name: &RecordName) -> Option<MachineTime> {
        Some(self.entries.get(name)?.lease.as_ref()?.until)
    }

    pub(super) fn get(&self, name: &RecordName) -> Option<Record> {
        let entry = self.entries.get(name)?;
        Some(entry.to_record(name, self.now.machine))
    }

    pub(super) fn list(&self, list: &ListRecords) -> Result<RecordPage, RecordsError> {
        check("limit", list.limit as u64, 1, ListRecords::LIMIT_MAX as u64)?;
        let now = self.now.machine;
        Ok(list.page(&self.entries, |name, entry| entry.to_record(name, now)))
    }

    pub(super) fn put(&mut self, put: PutRecord, max: u64) -> Result<RecordWritten, RecordsError> {
        let bytes = put.value.len() as u64;
        check("value_bytes", bytes, 0, RECORD_BYTES_MAX as u64)?;
        self.may_write(&put.name, put.replaces, put.epoch)?;
        // A copy, because the value may be a small part of something large.
        self.write(&put.name, Bytes::copy_from_slice(&put.value), max)
    }

    pub(super) fn delete(&mut self, delete: &DeleteRecord) -> Result<(), RecordsError> {
        self.may_write(&delete.name, Some(delete.replaces), delete.epoch)?;
        self.remove(&delete.name);
        Ok(())
    }

    /// Leases for `lease` and what a clock's reading may have dropped.
    pub(super) fn lease(
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
        entry.lease = Some(Lease {
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

    pub(super) fn extend(
        &mut self,
        extend: ExtendRecord,
        dropped: Millis,
    ) -> Result<(), RecordsError> {
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

    pub(super) fn release(&mut self, release: &ReleaseRecord) -> Result<(), RecordsError> {
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

    fn held(&mut self, name: &RecordName, epoch: Epoch) -> Result<&mut Lease, RecordsError> {
        let entry = self.entries.get_mut(name);
        let lease = entry.and_then(|entry| entry.lease.as_mut());
        let lease = lease.filter(|lease| lease.epoch == epoch);
        lease.ok_or_else(|| RecordsError::LeaseLost {
            name: name.clone(),
            epoch,
        })
    }

    fn held_by_other(&self, name: &RecordName, held: &Lease) -> RecordsError {
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
