//! Shapes of records.

use lockgate_core::{ListRecords as CoreList, Millis, RECORD_LEASE_MAX};
use serde::{Deserialize, Serialize};

use super::{Encoding, Instant, WAIT_MS_MAX, Within};

/// Which records a list shows.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListRecords {
    /// Only names that start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// How many at most, 1 to 1000. Default 100. A page ends earlier with the record that takes its values to
    /// 1 MiB.
    #[serde(default)]
    pub(crate) limit: Option<Within<1, { CoreList::LIMIT_MAX as u64 }>>,
    /// `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// Some records.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Records {
    /// In order of their names; may be empty.
    pub(crate) records: Vec<RecordView>,
    /// The next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// A record.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RecordView {
    /// Its name.
    pub(crate) name: String,
    /// The value, in the encoding that `value_encoding` names.
    pub(crate) value: String,
    /// The encoding of `value`: `text` if it is UTF-8.
    pub(crate) value_encoding: Encoding,
    /// The number of the value: the next one with each write. No version of a name comes twice.
    pub(crate) version: u64,
    /// The number of the last change: a write, or a lease that began or ended.
    pub(crate) revision: u64,
    /// When the value was written.
    pub(crate) written_at: Instant,
    /// Who may write it, if it is leased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<RecordLeaseView>,
}

/// The lease of a record.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RecordLeaseView {
    /// Whose it is.
    pub(crate) holder: String,
    /// Its fencing token: higher than that of every earlier lease.
    pub(crate) epoch: u64,
    /// How much longer it lasts.
    pub(crate) remaining_ms: Millis,
    /// Whether the record is deleted when the lease ends, whichever way.
    pub(crate) delete_at_end: bool,
}

/// What to wait for before a record is shown.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct WatchRecord {
    /// How long to wait until the record is another than was seen. 0 to 20 s; default 0.
    #[serde(default)]
    pub(crate) wait_ms: Option<Within<0, WAIT_MS_MAX>>,
    /// The revision that was seen. Default: it was seen that there is no such record.
    #[serde(default)]
    pub(crate) seen: Option<u64>,
}

/// A value to write.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct PutRecord {
    /// The value, in the encoding that `value_encoding` names; up to 256 KiB.
    pub(crate) value: String,
    /// The encoding of `value`. Default `text`.
    #[serde(default)]
    pub(crate) value_encoding: Encoding,
    /// The version that it replaces. Default: there must be no such record.
    #[serde(default)]
    pub(crate) replaces: Option<u64>,
    /// The epoch of the writer's lease. Default: the record must not be leased.
    #[serde(default)]
    pub(crate) epoch: Option<u64>,
}

/// What a write did.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RecordWritten {
    /// The new version.
    pub(crate) version: u64,
    /// The number of the change.
    pub(crate) revision: u64,
}

/// Which version of a record to delete.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DeleteRecord {
    /// The version that it must have.
    pub(crate) replaces: u64,
    /// The epoch of the caller's lease. Default: the record must not be leased.
    #[serde(default)]
    pub(crate) epoch: Option<u64>,
}

/// A lease to take.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseRecord {
    /// For whom. The holder of the lease is given it again, with a new end, so this must be a name that nobody else
    /// uses.
    pub(crate) holder: String,
    /// How long it lasts, 1 ms to 12 h.
    pub(crate) lease_ms: Within<1, RECORD_LEASE_MAX>,
    /// Whether to delete the record when the lease ends, whichever way. Default: no.
    #[serde(default)]
    pub(crate) delete_at_end: bool,
}

/// A new end of a lease.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendRecord {
    /// The epoch of the lease.
    pub(crate) epoch: u64,
    /// How long it lasts from now on, 1 ms to 12 h.
    pub(crate) lease_ms: Within<1, RECORD_LEASE_MAX>,
}

/// A lease to end.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseRecord {
    /// The epoch of the lease.
    pub(crate) epoch: u64,
}

/// What a record is, where it is not what a request says.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RecordFault {
    /// Its name; absent with `records_full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// With `record_conflict`: its version; absent if there is no such record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u64>,
    /// With `record_held`: who holds its lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<String>,
    /// With `record_held`: how much longer the lease lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<Millis>,
    /// With `records_full`: how many bytes all records may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_max: Option<u64>,
}
