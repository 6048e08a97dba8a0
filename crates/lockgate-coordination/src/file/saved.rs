//! The file of a state, as JSON.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use lockgate_consumer::records_state::{SavedLease, SavedRecord, SavedRecords, State};
use lockgate_core::{
    BootId, Epoch, HolderName, MachineTime, Millis, Now, RecordName, RecordVersion, Revision,
    WallTime,
};
use serde::{Deserialize, Serialize};

const FORMAT: u32 = 1;

/// All records of a folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Saved {
    /// The boot whose clock its machine time follows.
    pub(super) boot: BootId,
    /// What machine time is ahead of the time since that boot.
    pub(super) offset: Millis,
    pub(super) state: State,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    boot: String,
    offset_ms: Millis,
    revision: u64,
    deleted_version: u64,
    wall_ms: u64,
    machine_ms: Millis,
    records: Vec<StoredRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRecord {
    name: String,
    value: String,
    version: u64,
    revision: u64,
    written_ms: u64,
    lease: Option<StoredLease>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredLease {
    holder: String,
    epoch: u64,
    until_ms: Millis,
    delete_at_end: bool,
}

impl Saved {
    pub(super) fn encode(&self) -> Vec<u8> {
        let saved = SavedRecords::from(&self.state);
        let records = saved.records.into_iter().map(|record| StoredRecord {
            name: record.name.as_str().to_owned(),
            value: STANDARD.encode(&record.value),
            version: record.version.0,
            revision: record.revision.0,
            written_ms: record.written.0,
            lease: record.lease.map(|lease| StoredLease {
                holder: lease.holder.as_str().to_owned(),
                epoch: lease.epoch.0,
                until_ms: lease.until.0,
                delete_at_end: lease.delete_at_end,
            }),
        });
        let stored = Stored {
            format: FORMAT,
            boot: STANDARD.encode(self.boot.0),
            offset_ms: self.offset,
            revision: saved.revision,
            deleted_version: saved.deleted_version,
            wall_ms: saved.now.wall.0,
            machine_ms: saved.now.machine.0,
            records: records.collect(),
        };
        // Maps with keys that are no text are what JSON cannot say; there is none.
        serde_json::to_vec(&stored).unwrap_or_default()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let stored: Stored = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if stored.format != FORMAT {
            let format = stored.format;
            return Err(format!(
                "it has format {format}, and this version knows format {FORMAT}"
            ));
        }
        let boot = STANDARD.decode(&stored.boot).map_err(|e| e.to_string())?;
        let boot = boot.try_into().map_err(|_| "boot has not 16 bytes")?;
        stored.check()?;
        let records = stored.records.into_iter().map(StoredRecord::into_saved);
        let saved = SavedRecords {
            revision: stored.revision,
            deleted_version: stored.deleted_version,
            now: Now {
                wall: WallTime(stored.wall_ms),
                machine: MachineTime(stored.machine_ms),
            },
            records: records.collect::<Result<_, _>>()?,
        };
        Ok(Self {
            boot: BootId(boot),
            offset: stored.offset_ms,
            state: saved.into(),
        })
    }
}

/// Above this nothing has counted so far, and what rises could not.
const NUMBER_MAX: u64 = u64::MAX / 4;

impl Stored {
    fn check(&self) -> Result<(), String> {
        let times = [self.offset_ms, self.machine_ms, self.revision];
        let numbers = self.records.iter().flat_map(|record| {
            let until = record.lease.as_ref().map_or(0, |lease| lease.until_ms);
            [record.version, until]
        });
        let mut numbers = times
            .into_iter()
            .chain([self.deleted_version])
            .chain(numbers);
        if let Some(number) = numbers.find(|number| *number > NUMBER_MAX) {
            return Err(format!("{number} is too high"));
        }
        for record in &self.records {
            let epoch = record.lease.as_ref().map_or(0, |lease| lease.epoch);
            if record.revision.max(epoch) > self.revision {
                return Err(format!("record {} is newer than all of it", record.name));
            }
        }
        let names = self.records.iter().map(|record| &record.name);
        match names.is_sorted_by(|before, after| before < after) {
            true => Ok(()),
            false => Err("its records are not in order, or one is there twice".to_owned()),
        }
    }
}

impl StoredRecord {
    fn into_saved(self) -> Result<SavedRecord, String> {
        let lease = self.lease.map(|lease| {
            Ok::<_, String>(SavedLease {
                holder: HolderName::new(&lease.holder).map_err(|error| error.to_string())?,
                epoch: Epoch(lease.epoch),
                until: MachineTime(lease.until_ms),
                delete_at_end: lease.delete_at_end,
            })
        });
        let value = STANDARD.decode(&self.value);
        Ok(SavedRecord {
            name: RecordName::new(&self.name).map_err(|error| error.to_string())?,
            value: value.map_err(|error| error.to_string())?.into(),
            version: RecordVersion(self.version),
            revision: Revision(self.revision),
            written: WallTime(self.written_ms),
            lease: lease.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_said_is_refused() {
        let why = |fields: &str, records: &str| {
            let boot = "AAAAAAAAAAAAAAAAAAAAAA==";
            let text = format!(
                "{{\"format\":1,\"boot\":\"{boot}\",\"deleted_version\":0,\"wall_ms\":0,{fields},\"records\":[{records}]}}"
            );
            Saved::decode(text.as_bytes()).map(|saved| saved.encode())
        };
        let fields = "\"offset_ms\":0,\"machine_ms\":0,\"revision\":7";
        let record = |name: &str, revision| {
            format!(
                "{{\"name\":\"{name}\",\"value\":\"\",\"version\":1,\"revision\":{revision},\"written_ms\":0,\"lease\":null}}"
            )
        };
        let [a, b, newer] = [record("a", 7), record("b", 6), record("c", 8)];
        assert!(why(fields, &format!("{a},{b}")).is_ok());
        for (fields, records, what) in [
            (fields, format!("{b},{a}"), "not in order"),
            (fields, format!("{a},{a}"), "there twice"),
            (fields, newer, "newer"),
            (
                "\"offset_ms\":0,\"machine_ms\":0,\"revision\":18446744073709551615",
                a,
                "too high",
            ),
        ] {
            let why = why(fields, &records).unwrap_err();
            assert!(why.contains(what), "{why}");
        }
    }
}
