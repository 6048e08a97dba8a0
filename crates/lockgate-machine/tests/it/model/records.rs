//! Records, and the memory that they and the states of keys share.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, LeaseRecord, Level, MachineTime, Now, Position,
    PutRecord, Record, RecordLease, RecordName, RecordVersion, RecordWritten, RecordsError,
    ReleaseRecord, Revision, WallTime,
};
use lockgate_machine::*;

use super::Model;

/// What records and states of keys may take together.
pub(crate) const RECORD_BYTES: u64 = 1_400;
/// What states of keys may take of it.
pub(crate) const STATE_BYTES: u64 = 600;

#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    kept: BTreeMap<RecordName, Kept>,
    /// The last one that was given out, or the last incarnation of a producer: they have one counter.
    pub(super) revision: Revision,
    /// The highest version of a record that was deleted.
    deleted: RecordVersion,
    /// The last record of the log that a command has changed one with.
    at: Option<Position>,
}

#[derive(Clone, Debug)]
struct Kept {
    value: Bytes,
    version: RecordVersion,
    revision: Revision,
    written: WallTime,
    lease: Option<Lease>,
}

#[derive(Clone, Debug)]
struct Lease {
    holder: HolderName,
    epoch: Epoch,
    until: MachineTime,
    delete_at_end: bool,
}

fn bytes_of(name: &RecordName, value: &Bytes) -> u64 {
    256 + (name.as_str().len() + value.len()) as u64
}

impl Kept {
    fn shown(&self, name: &RecordName, now: Now) -> Record {
        Record {
            name: name.clone(),
            value: self.value.clone(),
            version: self.version,
            revision: self.revision,
            written: self.written,
            lease: self.lease.as_ref().map(|lease| RecordLease {
                holder: lease.holder.clone(),
                epoch: lease.epoch,
                remaining: Duration::from_millis(lease.until.since(now.machine)),
                delete_at_end: lease.delete_at_end,
            }),
        }
    }
}

impl Records {
    fn bytes(&self) -> u64 {
        let kept = self.kept.iter();
        kept.map(|(name, record)| bytes_of(name, &record.value))
            .sum()
    }

    fn change(&mut self, now: Now) -> Revision {
        self.revision = self.revision.next(now.wall);
        self.revision
    }

    fn delete(&mut self, name: &RecordName) {
        let gone = self.kept.remove(name).unwrap();
        self.deleted = self.deleted.max(gone.version);
    }

    fn end_lease(&mut self, name: &RecordName, now: Now) {
        let revision = self.change(now);
        let record = self.kept.get_mut(name).unwrap();
        record.revision = revision;
        if record.lease.take().unwrap().delete_at_end {
            self.delete(name);
        }
    }

    /// Ends what is over, in the order in which it ends.
    pub(super) fn advance(&mut self, now: Now) {
        loop {
            let leases = self.kept.iter();
            let leases = leases.filter_map(|(name, record)| Some((name, record.lease.as_ref()?)));
            let over = leases.filter(|(_, lease)| lease.until <= now.machine);
            let first = over.min_by_key(|(_, lease)| (lease.until, lease.epoch));
            let Some(name) = first.map(|(name, _)| name.clone()) else {
                return;
            };
            self.end_lease(&name, now);
        }
    }

    pub(super) fn ends(&self) -> impl Iterator<Item = MachineTime> {
        self.kept
            .values()
            .filter_map(|record| Some(record.lease.as_ref()?.until))
    }

    /// The record, if it has the lease with that epoch.
    fn held(&mut self, name: &RecordName, epoch: Epoch) -> Result<&mut Kept, RecordsError> {
        let record = self.kept.get_mut(name);
        let held = |record: &&mut Kept| {
            let lease = record.lease.as_ref();
            lease.is_some_and(|lease| lease.epoch == epoch)
        };
        let name = name.clone();
        record
            .filter(held)
            .ok_or(RecordsError::LeaseLost { name, epoch })
    }

    fn may_write(
        &mut self,
        name: &RecordName,
        replaces: Option<RecordVersion>,
        epoch: Option<Epoch>,
        now: Now,
    ) -> Result<(), RecordsError> {
        match epoch {
            Some(epoch) => {
                self.held(name, epoch)?;
            }
            None => self.check_free(name, None, now)?,
        }
        let version = self.kept.get(name).map(|record| record.version);
        if version == replaces {
            return Ok(());
        }
        let name = name.clone();
        Err(RecordsError::Conflict { name, version })
    }

    /// Whether nobody but this one holds it.
    fn check_free(
        &self,
        name: &RecordName,
        by: Option<&HolderName>,
        now: Now,
    ) -> Result<(), RecordsError> {
        let lease = self.kept.get(name).and_then(|record| record.lease.as_ref());
        match lease {
            Some(lease) if Some(&lease.holder) != by => Err(RecordsError::Held {
                name: name.clone(),
                holder: lease.holder.clone(),
                remaining: Duration::from_millis(lease.until.since(now.machine)),
            }),
            _ => Ok(()),
        }
    }
}

impl Model {
    /// The version of a record and the epoch of its lease.
    pub(crate) fn record(&self, name: &RecordName) -> (Option<RecordVersion>, Option<Epoch>) {
        let record = self.records.kept.get(name);
        let lease = record.and_then(|record| record.lease.as_ref());
        (
            record.map(|record| record.version),
            lease.map(|lease| lease.epoch),
        )
    }

    /// All records, by name.
    pub(crate) fn all_records(&self) -> Vec<Record> {
        let kept = self.records.kept.iter();
        kept.map(|(name, record)| record.shown(name, self.now))
            .collect()
    }

    /// What records take, and what states of keys take.
    pub(crate) fn record_bytes(&self) -> (u64, u64) {
        let states = self.queues.values().map(super::Queue::state_bytes).sum();
        (self.records.bytes(), states)
    }

    /// Whether a record or a state may take so much instead of that.
    pub(super) fn check_record_room(&self, before: u64, after: u64) -> Result<(), Rejection> {
        let (records, states) = self.record_bytes();
        let max = RECORD_BYTES;
        match after > before && records + states - before + after > max {
            true => Err(RecordsError::Full { max }.into()),
            false => Ok(()),
        }
    }

    fn put(&mut self, name: &RecordName, value: &Bytes) -> Result<RecordWritten, Rejection> {
        let before = self.records.kept.get(name);
        let bytes = before.map_or(0, |before| bytes_of(name, &before.value));
        self.check_record_room(bytes, bytes_of(name, value))?;
        let version = before.map_or(self.records.deleted, |before| before.version);
        let lease = before.and_then(|before| before.lease.clone());
        let written = RecordWritten {
            version: RecordVersion(version.0 + 1),
            revision: self.records.change(self.now),
        };
        let record = Kept {
            value: value.clone(),
            version: written.version,
            revision: written.revision,
            written: self.now.wall,
            lease,
        };
        self.records.kept.insert(name.clone(), record);
        Ok(written)
    }

    fn lease(&mut self, lease: &LeaseRecord) -> Result<Record, Rejection> {
        let (name, now) = (&lease.name, self.now);
        let holder = &lease.holder;
        self.records.check_free(name, Some(holder), now)?;
        if !self.records.kept.contains_key(name) {
            self.put(name, &Bytes::new())?;
        }
        let held = self.records.kept[name].lease.as_ref();
        let epoch = match held.map(|lease| lease.epoch) {
            Some(epoch) => epoch,
            None => {
                let revision = self.records.change(now);
                self.records.kept.get_mut(name).unwrap().revision = revision;
                Epoch(revision.0)
            }
        };
        let record = self.records.kept.get_mut(name).unwrap();
        record.lease = Some(Lease {
            holder: holder.clone(),
            epoch,
            until: now.machine.plus(lease.lease),
            delete_at_end: lease.delete_at_end,
        });
        Ok(record.shown(name, now))
    }

    /// What a command for a record does.
    pub(super) fn take_record(
        &mut self,
        command: &Command,
        decision: &Decision,
    ) -> Result<Reply, Rejection> {
        let now = self.now;
        // What it says must not be taken back.
        if let (Some(at), Some(durable)) = (self.records.at, self.durable)
            && at >= durable
        {
            let waits = decision.rests_on >= Some(at);
            assert!(waits, "does not wait for the change before it");
        }
        let reply = match command {
            Command::PutRecord(put) => {
                let PutRecord {
                    name,
                    value,
                    replaces,
                    epoch,
                } = &**put;
                self.records.may_write(name, *replaces, *epoch, now)?;
                Reply::RecordWritten(self.put(name, value)?)
            }
            Command::DeleteRecord(DeleteRecord {
                name,
                replaces,
                epoch,
            }) => {
                self.records.may_write(name, Some(*replaces), *epoch, now)?;
                self.records.change(now);
                self.records.delete(name);
                Reply::Done
            }
            Command::LeaseRecord(lease) => Reply::Record(Box::new(self.lease(lease)?)),
            Command::ExtendRecord(ExtendRecord { name, epoch, lease }) => {
                let record = self.records.held(name, *epoch)?;
                let held = record.lease.as_mut().unwrap();
                held.until = now.machine.plus(*lease);
                Reply::Done
            }
            Command::ReleaseRecord(ReleaseRecord { name, epoch }) => {
                self.records.held(name, *epoch)?;
                self.records.end_lease(name, now);
                Reply::Done
            }
            other => panic!("the model does not know {other:?}"),
        };
        assert!(decision.level >= Level::Disk, "a change is not synced");
        self.records.at = Some(self.at);
        Ok(reply)
    }
}
