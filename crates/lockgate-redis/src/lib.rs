//! Records in Redis, for elections and whatever else processes agree on.
//!
//! [`RedisRecords`] is a store of [`Records`](lockgate_core::Records); `docs/records.md` says what records are, and
//! `docs/coordination.md` how to elect over them.
//!
//! ```
//! use lockgate_core::{PutRecord, RecordName, Records};
//! use lockgate_redis::RedisRecords;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let Ok(url) = std::env::var("LOCKGATE_TEST_REDIS") else { return Ok(()) };
//! # let url = &format!("{url}?store=example_{}", std::process::id());
//! let records = RedisRecords::connect(url).await?;
//! let name = RecordName::new("reports/page")?;
//! let first = PutRecord { name: name.clone(), value: "7".into(), replaces: None, epoch: None };
//! records.put(first).await?;
//! assert_eq!(records.get(name).await?.unwrap().value, "7");
//! # Ok(())
//! # }
//! ```
//!
//! # What it cannot promise
//! One server does one script after the other, so as long as it lives every operation is atomic, and one holder has a lease.
//! What it has answered may be taken back, and then a lease that somebody holds is granted to another one:
//!
//! | what happens | what is lost |
//! |---|---|
//! | the server is restarted, without an append-only file | all since the last snapshot, or all |
//! | it is restarted, with `appendfsync everysec` (the default) | nothing if only its process died; up to two seconds if its machine did |
//! | it is restarted, with `appendfsync always` | nothing |
//! | a replica takes over (Sentinel, a managed service) | whatever had not come to the replica: it follows without being waited for |
//!
//! Nobody is told when it happens. So a lease in Redis is advice unless what its holder writes to checks the epoch: give it
//! the fence. Epochs are at least the microseconds of the server's wall clock; as long as the clocks of all servers are right
//! they rise over a loss too, and a sink refuses the holder from before. The store says of itself that it does not last
//! ([`RecordsCapabilities::lasts`](lockgate_core::RecordsCapabilities)), and a coordinator over it that epochs do not. The store
//! takes fences on its own writes ([`fenced`](lockgate_core::Records::fenced)), but the guard is a record that may be lost as any
//! other, and then a holder from before is let in until the next one has written.
//! [`RedisRecords::durability`] asks the server what it is set to.

// Users read these docs.
#![warn(missing_docs)]

mod connection;
mod records;

pub use self::{
    connection::RedisDurability,
    records::{RedisRecords, RedisRecordsOptions},
};
