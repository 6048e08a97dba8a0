//! Records: small versioned values that may be leased, for what must be agreed on, such as who leads.
//!
//! An open [`Lockgate`] is a store of [`Records`]. With the features `postgres`, `mysql` and `redis` there are stores in such
//! databases: `PostgresRecords`, `MysqlRecords` and `RedisRecords`.

use lockgate_core::coordination::{Fence, FenceError};
pub use lockgate_core::{
    DeleteRecord, ExtendRecord, LeaseRecord, ListRecords, PutRecord, RECORD_BYTES_MAX,
    RECORD_LEASE_MAX, Record, RecordLease, RecordName, RecordPage, RecordVersion, RecordWritten,
    Records, RecordsCapabilities, RecordsError, ReleaseRecord, Revision, WatchRecord,
};
use lockgate_engine::EngineError;
use lockgate_machine::{GetRecord, Rejection, TypedCommand};
#[cfg(feature = "mysql")]
pub use lockgate_mysql::{MysqlRecords, MysqlRecordsOptions};
#[cfg(feature = "postgres")]
pub use lockgate_postgres::{PostgresRecords, PostgresRecordsOptions};
#[cfg(feature = "redis")]
pub use lockgate_redis::{RedisDurability, RedisRecords, RedisRecordsOptions};

use crate::{ErrorKind, Lockgate, error::kind};

/// Records survive a power cut, whatever the levels of queues: an answer waits for the disk, as that of a queue of
/// level `disk` does. They take up to
/// [`record_bytes_max`](lockgate_machine::MachineLimits::record_bytes_max) of memory together.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
/// use lockgate::{
///     HolderName,
///     records::{LeaseRecord, PutRecord, RecordName, Records},
/// };
///
/// let leader = RecordName::new("reports/leader")?;
/// let leased = lockgate
///     .lease(LeaseRecord {
///         name: leader.clone(),
///         holder: HolderName::new("host-1")?,
///         lease: 10_000,
///         delete_at_end: false,
///     })
///     .await?;
/// let epoch = leased.lease.map(|lease| lease.epoch);
/// let checkpoint = PutRecord {
///     name: leader.clone(),
///     value: "page 7".into(),
///     replaces: Some(leased.version),
///     epoch,
/// };
/// lockgate.put(checkpoint).await?;
/// assert_eq!(lockgate.get(leader).await?.unwrap().value, "page 7");
/// # lockgate.shutdown().await;
/// # Ok(())
/// # }
/// ```
impl Records for Lockgate {
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self::fenced(self, fence))
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        let get = GetRecord { name };
        self.engine().query(get).await.map_err(error)
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        self.engine().query(list).await.map_err(error)
    }

    async fn watch(&self, watch: WatchRecord) -> Result<Option<Record>, RecordsError> {
        self.engine().watch_record(watch).await.map_err(error)
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        self.submit(put).await
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        self.submit(delete).await
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        self.submit(lease).await
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        self.submit(extend).await
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        self.submit(release).await
    }
}

impl Lockgate {
    async fn submit<C: TypedCommand>(&self, command: C) -> Result<C::Reply, RecordsError> {
        self.engine().submit(command).await.map_err(error)
    }
}

fn error(error: EngineError) -> RecordsError {
    let why = lockgate_core::with_sources(&error).to_string();
    match error {
        EngineError::Rejected(Rejection::Record(refused)) => refused,
        EngineError::Rejected(Rejection::Fenced(refused)) => refused.into(),
        other => match kind(&other) {
            ErrorKind::Input => RecordsError::Invalid { why },
            ErrorKind::Retry | ErrorKind::Closed => RecordsError::Unavailable { why },
            ErrorKind::Unknown => RecordsError::Unknown { why },
        },
    }
}
