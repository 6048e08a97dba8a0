//! The records themselves: what each command does at one instant.
//!
//! # Invariants
//! - A version is one above the one before it; the first of a new record is above those of all deleted ones.
//! - The revision rises with each change, and a lease's epoch is the revision of its grant.
//! - `ends` has each lease once, by its end.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, LeaseRecord, ListRecords, MachineTime, Millis,
    Now, PutRecord, RECORD_BYTES_MAX, RECORD_LEASE_MAX, Record, RecordLease, RecordName,
    RecordPage, RecordVersion, RecordWritten, RecordsError, ReleaseRecord, Revision, WallTime,
};

/// Memory of a record beside its name and its value.
const RECORD_OVERHEAD: u64 = 256;

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
        // Names with the prefix are together in order, from the prefix on.
        let start = match (&list.after, RecordName::new(&list.prefix)) {
            (Some(after), _) if after.as_str() >= list.prefix.as_str() => {
                Bound::Excluded(after.clone())
            }
            (_, Ok(prefix)) => Bound::Included(prefix),
            (_, Err(_)) => Bound::Unbounded,
        };
        let mut found = (self.entries.range((start, Bound::Unbounded)))
            .take_while(|(name, _)| name.as_str().starts_with(&list.prefix));
        let (mut page, mut bytes) = (RecordPage::default(), 0);
        for (name, entry) in found.by_ref() {
            bytes += entry.value.len();
            page.records.push(entry.to_record(name, self.now.machine));
            if page.records.len() == list.limit || bytes >= ListRecords::BYTES_MAX {
                break;
            }
        }
        if found.next().is_some() {
            page.next = page.records.last().map(|record| record.name.clone());
        }
        Ok(page)
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
        if let Some(held) = &before {
            self.ends.remove(&(held.until, name.clone()));
        } else {
            entry.revision = next;
        }
        let record = entry.to_record(&name, now);
        self.ends.insert((until, name.clone()));
        if before.is_none() {
            self.note(&name, next);
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
        self.ends.remove(&(before, extend.name.clone()));
        self.ends.insert((until, extend.name.clone()));
        if until < before {
            // Who watches sleeps until an end of a lease, which is nearer now.
            self.changed.push(extend.name);
        }
        Ok(())
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
        let freed = before.map_or(0, |entry| bytes_of(name, &entry.value));
        let taken = bytes_of(name, &value);
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
            self.bytes -= bytes_of(name, &entry.value);
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

    /// At least the microseconds of the wall clock.
    fn next_revision(&self) -> Revision {
        Revision(self.now.wall.0.saturating_mul(1_000).max(self.revision + 1))
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

fn bytes_of(name: &RecordName, value: &Bytes) -> u64 {
    (name.as_str().len() + value.len()) as u64 + RECORD_OVERHEAD
}

fn check(what: &str, given: u64, min: u64, max: u64) -> Result<(), RecordsError> {
    if (min..=max).contains(&given) {
        return Ok(());
    }
    let why = format!("{what} must be {min} to {max}, not {given}");
    Err(RecordsError::Invalid { why })
}
