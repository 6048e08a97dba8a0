//! Records: small versioned values that may be leased, for what must be agreed on.
//!
//! A record has a name, a value of at most [`RECORD_BYTES_MAX`] and a version. A write names the version
//! that it replaces, so that of two writers one is told. A lease gives one holder the right to write a
//! record until a deadline, with an [`Epoch`] that is higher than that of every earlier lease: a
//! *fencing token*, with which whoever is written to can refuse a holder from before.

use std::{collections::BTreeMap, fmt, future::Future, time::Duration};

use bytes::Bytes;

use crate::{
    Epoch, HolderName, Millis, RecordName, WallTime,
    coordination::{Fence, FenceError},
    with_prefix,
};

/// The most bytes of a record's value: 256 KiB.
pub const RECORD_BYTES_MAX: usize = 256 << 10;

/// The longest lease of a record, as of a message: 12 hours.
pub const RECORD_LEASE_MAX: Millis = 12 * 3600 * 1000;

/// What a record takes of a store's memory: its name and its value, and 256 bytes for the rest.
#[must_use]
pub fn record_memory(name: &str, value_bytes: usize) -> u64 {
    (name.len() + value_bytes) as u64 + 256
}

/// The number of a record's value: the next one with each write. The first of a new record is above those of
/// all records that were deleted, so no version of a name comes twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordVersion(pub u64);

/// The number of a change to the records of one store: a write, a deletion, or a lease that begins or
/// ends. It rises with each change of any of them, and is at least the microseconds of the wall clock, so it
/// rises over the restore of a backup too. An extension of a lease is no change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The number of the change behind this one, at that wall time.
    #[must_use]
    pub fn next(self, wall: WallTime) -> Self {
        Self(wall.0.saturating_mul(1_000).max(self.0.saturating_add(1)))
    }
}

impl fmt::Display for RecordVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A record as it was at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is called.
    pub name: RecordName,
    /// Its value; a record that was only leased has an empty one.
    pub value: Bytes,
    /// The number of the value.
    pub version: RecordVersion,
    /// The number of the record's last change.
    pub revision: Revision,
    /// When its value was written.
    pub written: WallTime,
    /// Who may write it, if it is leased.
    pub lease: Option<RecordLease>,
}

/// The lease of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLease {
    /// Whose it is.
    pub holder: HolderName,
    /// Its fencing token.
    pub epoch: Epoch,
    /// How much longer it lasts, as of the answer.
    pub remaining: Duration,
    /// Whether the record is deleted when the lease ends, whichever way.
    pub delete_at_end: bool,
}

/// Writes a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRecord {
    /// Which one.
    pub name: RecordName,
    /// The new value, of at most [`RECORD_BYTES_MAX`].
    pub value: Bytes,
    /// The version that it replaces. `None`: there must be no such record.
    pub replaces: Option<RecordVersion>,
    /// The writer's lease. `None`: the record must not be leased.
    pub epoch: Option<Epoch>,
}

/// Deletes a record, and its lease with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRecord {
    /// Which one.
    pub name: RecordName,
    /// The version that it must have.
    pub replaces: RecordVersion,
    /// The caller's lease. `None`: the record must not be leased.
    pub epoch: Option<Epoch>,
}

/// Leases a record. One that is not there is made, with an empty value. The holder of the record's lease is
/// given that lease again, with the same epoch and a new end: so a caller whose answer was lost asks again. For this
/// a holder's name must be its own; two that share one share their leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Which one.
    pub name: RecordName,
    /// For whom.
    pub holder: HolderName,
    /// How long from now on: more than 0 and up to [`RECORD_LEASE_MAX`].
    pub lease: Millis,
    /// Whether to delete the record when the lease ends, whichever way. A holder that asks again may say it otherwise; that
    /// is no change that a watch sees.
    pub delete_at_end: bool,
}

/// Lets a lease last `lease` from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendRecord {
    /// Of which record.
    pub name: RecordName,
    /// Which lease.
    pub epoch: Epoch,
    /// More than 0 and up to [`RECORD_LEASE_MAX`].
    pub lease: Millis,
}

/// Ends a lease. Anybody who has read the lease's epoch may do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRecord {
    /// Of which record.
    pub name: RecordName,
    /// Which lease.
    pub epoch: Epoch,
}

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordWritten {
    /// The new version.
    pub version: RecordVersion,
    /// The number of the change.
    pub revision: Revision,
}

/// Waits until a record is another than the caller has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchRecord {
    /// Which one.
    pub name: RecordName,
    /// The revision that the caller has seen; `None`: it has seen that there is no such record.
    pub seen: Option<Revision>,
    /// How long to wait.
    pub wait: Duration,
}

/// Records by name, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRecords {
    /// Only names that start with this.
    pub prefix: String,
    /// Only names after this one: the last of the page before.
    pub after: Option<RecordName>,
    /// The most records, 1 to [`LIMIT_MAX`](Self::LIMIT_MAX). A page ends earlier with the record that takes its
    /// values to [`BYTES_MAX`](Self::BYTES_MAX).
    pub limit: usize,
}

impl ListRecords {
    /// The most records of a page.
    pub const LIMIT_MAX: usize = 1_000;

    /// About how many bytes of values a page has at most.
    pub const BYTES_MAX: usize = 1 << 20;

    /// The page of a store that has its records by name. The store has checked the limit.
    pub fn page<E>(
        &self,
        by_name: &BTreeMap<RecordName, E>,
        show: impl Fn(&RecordName, &E) -> Record,
    ) -> RecordPage {
        let mut found = with_prefix(by_name, &self.prefix, self.after.as_ref());
        let (mut page, mut bytes) = (RecordPage::default(), 0);
        for (name, entry) in found.by_ref() {
            let record = show(name, entry);
            bytes += record.value.len();
            page.records.push(record);
            if page.records.len() == self.limit || bytes >= Self::BYTES_MAX {
                break;
            }
        }
        if found.next().is_some() {
            page.next = page.records.last().map(|record| record.name.clone());
        }
        page
    }
}

/// Some records in order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records.
    pub records: Vec<Record>,
    /// Where the next page begins: [`ListRecords::after`]. `None`: this is the last.
    pub next: Option<RecordName>,
}

/// Why a command for a record did nothing, or may have done it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// The record has another version. Read it, and decide again.
    #[error("{}", conflict(name, *version))]
    Conflict {
        /// Which record.
        name: RecordName,
        /// Its version; `None`: there is no such record.
        version: Option<RecordVersion>,
    },
    /// Somebody holds the record's lease.
    #[error("record {name} is leased by {holder} for another {} ms", remaining.as_millis())]
    Held {
        /// Which record.
        name: RecordName,
        /// Who holds it.
        holder: HolderName,
        /// How much longer, as of the answer.
        remaining: Duration,
    },
    /// The lease with that epoch has ended, and somebody else may hold the record.
    #[error("the lease of record {name} with epoch {} has ended", epoch.0)]
    LeaseLost {
        /// Which record.
        name: RecordName,
        /// The lease that was given.
        epoch: Epoch,
    },
    /// The store has no room for more.
    #[error("records and states of keys may have {max} bytes together: delete some")]
    Full {
        /// The bytes that all records, and states of keys, may have.
        max: u64,
    },
    /// The term of the [fence](Records::fenced) is over.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// The command can never succeed: a value or a duration is out of its bounds.
    #[error("{why}")]
    Invalid {
        /// What is wrong, and what is right.
        why: String,
    },
    /// The command may have happened: its answer was lost. Read the record to learn it.
    #[error("the command's outcome is not known: {why}")]
    Unknown {
        /// What happened to the answer.
        why: String,
    },
    /// The store does not let the caller do that. Nothing happened.
    #[error("the store refuses access: {why}")]
    Denied {
        /// Why.
        why: String,
    },
    /// The command did not happen, and may succeed later.
    #[error("the store does not answer now: {why}")]
    Unavailable {
        /// Why.
        why: String,
    },
}

fn conflict(name: &RecordName, version: Option<RecordVersion>) -> String {
    match version {
        Some(version) => format!("record {name} has version {version}"),
        None => format!("there is no record {name}"),
    }
}

/// What a store of records can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordsCapabilities {
    /// Whether what was answered lasts as long as the store is there, so that versions, revisions and epochs rise for ever.
    /// If false, a crash or a failover may take back the last writes, and a lease that was granted may be granted to another
    /// holder.
    pub lasts: bool,
    /// Whether a watch is told of each change at once. If false, it looks now and then.
    pub wakes: bool,
}

impl RecordsCapabilities {
    /// One that can do all of it.
    pub const ALL: Self = Self {
        lasts: true,
        wakes: true,
    };

    /// The same, but that a crash or a failover may take back the last writes.
    #[must_use]
    pub const fn forgetful(self) -> Self {
        Self {
            lasts: false,
            ..self
        }
    }

    /// The same, but that watches look now and then.
    #[must_use]
    pub const fn polling(self) -> Self {
        Self {
            wakes: false,
            ..self
        }
    }
}

/// A store of records. Every operation is atomic and *linearizable*: it takes effect at one instant between
/// call and answer. An operation that has been answered survives whatever the store promises to survive; what a
/// read has shown too.
///
/// # Cancellation
/// A command whose future is dropped may have happened. Reads change nothing.
pub trait Records: Send + Sync {
    /// What the store can do; unless it says otherwise, all.
    fn capabilities(&self) -> RecordsCapabilities {
        RecordsCapabilities::ALL
    }

    /// The same store for the leader of a term: each change is refused with [`Fenced`](RecordsError::Fenced) once the store
    /// has seen a later term of that election. Reads are as before. The highest epoch is kept in the record
    /// [`fence/ELECTION`](crate::coordination::FenceMark::guard), and raised in the same step as the change, if that is made: one
    /// that is refused raises nothing. Whoever holds a lease of that record keeps it. A change of that record itself is `Invalid`
    /// here. The term's own clock is asked too before each change. A store under a fence is put under this one instead.
    ///
    /// # Errors
    /// [`Unsupported`](FenceError::Unsupported) for a store that cannot do that.
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError>
    where
        Self: Sized,
    {
        let _ = fence;
        Err(FenceError::Unsupported {
            what: "this store of records",
        })
    }

    /// The record with that name; `None` if there is none.
    ///
    /// # Errors
    /// [`Unavailable`](RecordsError::Unavailable).
    fn get(
        &self,
        name: RecordName,
    ) -> impl Future<Output = Result<Option<Record>, RecordsError>> + Send;

    /// Records by name, in order. The pages of one listing need not be of one instant.
    ///
    /// # Errors
    /// [`Invalid`](RecordsError::Invalid) for a limit out of range, and `Unavailable`.
    fn list(
        &self,
        list: ListRecords,
    ) -> impl Future<Output = Result<RecordPage, RecordsError>> + Send;

    /// The record as soon as it is another than the caller has seen, or as it is when the wait is over. Of changes
    /// that follow one another quickly, the last is seen.
    ///
    /// # Errors
    /// `Unavailable`.
    fn watch(
        &self,
        watch: WatchRecord,
    ) -> impl Future<Output = Result<Option<Record>, RecordsError>> + Send;

    /// Writes a record. A lost answer leaves open who has written: two writers of one value look alike, so a writer
    /// that must know puts something of its own in it.
    ///
    /// # Errors
    /// `Conflict`, `Held`, `LeaseLost`, `Full`, `Invalid`, `Unknown` and `Unavailable`.
    fn put(
        &self,
        put: PutRecord,
    ) -> impl Future<Output = Result<RecordWritten, RecordsError>> + Send;

    /// Deletes a record.
    ///
    /// # Errors
    /// `Conflict`, `Held`, `LeaseLost`, `Unknown` and `Unavailable`.
    fn delete(&self, delete: DeleteRecord)
    -> impl Future<Output = Result<(), RecordsError>> + Send;

    /// Leases a record, and reads it with the lease.
    ///
    /// # Errors
    /// `Held`, `Full`, `Invalid`, `Unknown` and `Unavailable`.
    fn lease(
        &self,
        lease: LeaseRecord,
    ) -> impl Future<Output = Result<Record, RecordsError>> + Send;

    /// Lets a lease last longer, or end earlier.
    ///
    /// # Errors
    /// `LeaseLost`, `Invalid`, `Unknown` and `Unavailable`.
    fn extend(&self, extend: ExtendRecord)
    -> impl Future<Output = Result<(), RecordsError>> + Send;

    /// Ends a lease.
    ///
    /// # Errors
    /// `LeaseLost`, `Unknown` and `Unavailable`.
    fn release(
        &self,
        release: ReleaseRecord,
    ) -> impl Future<Output = Result<(), RecordsError>> + Send;
}
