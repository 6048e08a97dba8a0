//! Records: what is asked of them, and what answers must be.
//!
//! Every answer about a record has reached the disk, so whatever the disk loses, no version and no epoch that was
//! answered is given out again, and a lease that was followed by another can write nothing.

use std::collections::BTreeMap;

use lockgate_core::{
    DeleteRecord, Epoch, HolderName, LeaseRecord, PutRecord, Record, RecordName, RecordVersion,
    RecordsError, ReleaseRecord,
};
use lockgate_engine::{Request, Work};
use lockgate_machine::{Command, GetRecord, Rejection, Reply};

use crate::{Violation, answers::Asked, world::World};

const RECORDS: usize = 3;

/// Short, so that leases end in a history.
const LEASE_MS: u64 = 400;

/// What was answered about a record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownRecord {
    /// The highest version.
    version: u64,
    /// The newest lease, and whose it is.
    epoch: u64,
    holder: usize,
    /// The last change that was shown.
    revision: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AskedRecord {
    /// With the epoch of the writer's lease.
    Put(Option<u64>),
    Lease {
        holder: usize,
    },
    /// A deletion or a release; with the epoch of the caller's lease.
    Other(Option<u64>),
    Get,
}

pub(crate) type Records = BTreeMap<usize, KnownRecord>;

impl World {
    pub(crate) fn any_record_request(&mut self) -> Request<u64> {
        let record = self.random.index(RECORDS);
        let name = RecordName::new(&format!("record-{record}")).unwrap();
        let known = self.model.records.get(&record).copied().unwrap_or_default();
        let epoch = self.random.chance(50).then_some(known.epoch);
        let version = RecordVersion(known.version);
        if self.random.chance(20) {
            let get = Work::Query(GetRecord { name }.into());
            let asked = AskedRecord::Get;
            return self.request(get, vec![Asked::Record { record, asked }]);
        }
        let (command, asked): (Command, _) = match self.random.below(10) {
            0..5 => {
                let put = PutRecord {
                    name,
                    value: vec![7; self.random.index(600)].into(),
                    replaces: self.random.chance(70).then_some(version),
                    epoch: epoch.map(Epoch),
                };
                (put.into(), AskedRecord::Put(epoch))
            }
            5..8 => {
                let holder = self.random.index(2);
                let lease = LeaseRecord {
                    name,
                    holder: HolderName::new(&format!("holder-{holder}")).unwrap(),
                    lease: 1 + self.random.below(LEASE_MS),
                    delete_at_end: self.random.chance(20),
                };
                (lease.into(), AskedRecord::Lease { holder })
            }
            8 => {
                let delete = DeleteRecord {
                    name,
                    replaces: version,
                    epoch: epoch.map(Epoch),
                };
                (delete.into(), AskedRecord::Other(epoch))
            }
            _ => {
                let epoch = known.epoch;
                let release = ReleaseRecord {
                    name,
                    epoch: Epoch(epoch),
                };
                (release.into(), AskedRecord::Other(Some(epoch)))
            }
        };
        self.request(command.into(), vec![Asked::Record { record, asked }])
    }

    /// What is shown is not taken back.
    pub(crate) fn record_shown(
        &mut self,
        record: usize,
        shown: Option<&Record>,
    ) -> Result<(), Violation> {
        let known = self.model.records.entry(record).or_default();
        let Some(shown) = shown else { return Ok(()) };
        let (version, revision) = (shown.version.0, shown.revision.0);
        if version < known.version || revision < known.revision {
            return Err(format!(
                "record {record}, {known:?}: shows {version}, {revision}"
            ));
        }
        (known.version, known.revision) = (version, revision);
        self.tally.count("records shown", 1);
        Ok(())
    }

    pub(crate) fn record_answered(
        &mut self,
        record: usize,
        asked: AskedRecord,
        result: Result<Reply, Rejection>,
    ) -> Result<(), Violation> {
        let before = self.model.records.get(&record).copied().unwrap_or_default();
        let known = self.model.records.entry(record).or_default();
        let wrong = |what: &str| Err(format!("record {record}, {before:?}: {asked:?} {what}"));
        let epoch = match asked {
            AskedRecord::Put(epoch) | AskedRecord::Other(epoch) => epoch,
            AskedRecord::Lease { .. } | AskedRecord::Get => None,
        };
        match result {
            Ok(_) if epoch.is_some_and(|epoch| epoch < before.epoch) => {
                return wrong("was done for a holder from before");
            }
            Ok(Reply::RecordWritten(written)) => {
                if written.version.0 <= before.version {
                    return wrong(&format!("got {} again", written.version));
                }
                known.version = written.version.0;
                known.revision = written.revision.0;
                self.tally.count("records written", 1);
            }
            Ok(Reply::Record(leased)) => {
                let AskedRecord::Lease { holder } = asked else {
                    return wrong("got a lease");
                };
                let epoch = leased.lease.as_ref().map_or(0, |lease| lease.epoch.0);
                let is_again = epoch == before.epoch && holder == before.holder;
                if epoch <= before.epoch && !is_again {
                    return wrong(&format!("got epoch {epoch}"));
                }
                if leased.version.0 < before.version {
                    return wrong(&format!("saw {}", leased.version));
                }
                *known = KnownRecord {
                    version: leased.version.0,
                    epoch,
                    holder,
                    revision: leased.revision.0,
                };
                self.tally.count("records leased", 1);
            }
            Ok(_) => {}
            Err(Rejection::Record(RecordsError::Conflict { version, .. })) => {
                if version.is_some_and(|version| version.0 < before.version) {
                    return wrong("was told of a version from before");
                }
            }
            Err(Rejection::Record(RecordsError::Held { .. } | RecordsError::LeaseLost { .. })) => {}
            result => return wrong(&format!("was answered by {result:?}")),
        }
        Ok(())
    }
}
