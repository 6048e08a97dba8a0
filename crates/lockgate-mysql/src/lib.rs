//! Records in a MySQL or MariaDB database, for elections and whatever else processes agree on; and ledgers.
//!
//! [`MysqlRecords`] is a store of [`Records`](lockgate_core::Records); `docs/records.md` says what records are, and
//! `docs/coordination.md` how to elect over them. [`MysqlLedger`] is a [`Ledger`](lockgate_core::ledger::Ledger):
//! `docs/sequencer.md`. What follows is about records.
//!
//! ```
//! use lockgate_core::{PutRecord, RecordName, Records};
//! use lockgate_mysql::MysqlRecords;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let Ok(url) = std::env::var("LOCKGATE_TEST_MYSQL") else { return Ok(()) };
//! # let url = &format!("{url}?store=example_{}", std::process::id());
//! let records = MysqlRecords::connect(url).await?;
//! let name = RecordName::new("reports/page")?;
//! let first = PutRecord { name: name.clone(), value: "7".into(), replaces: None, epoch: None };
//! records.put(first).await?;
//! assert_eq!(records.get(name).await?.unwrap().value, "7");
//! # Ok(())
//! # }
//! ```
//!
//! # Tables and procedures
//! The first connect makes them in the URL's database, with names that begin with the store's (`lockgate_records_`). Each
//! command is one call of a procedure, which is one transaction at READ COMMITTED and runs to its end whatever becomes of the
//! client. Who changes a record locks the store's one row first, so all changes of a store are made one after the other. A
//! transaction that the server undoes for another's sake (errors 1213 and 1205) is run again, up to 10 times.
//!
//! # Who is woken how
//! These servers have nothing that tells a client of a change. Two things come near:
//!
//! - The session of a lease's holder holds a lock of the server (`GET_LOCK`) as long as it has the lease. One connection of
//!   each process that watches such a record waits for that lock, and is woken as soon as the lease is given back or the
//!   holder's process has died. It waits for one record at a time, a second each if there are more.
//! - For all other changes each process looks every 100 ms ([`MysqlRecordsOptions::poll`]) at the revisions of what it
//!   watches, in one query.
//!
//! Nothing depends on these locks but how soon somebody looks.
//!
//! # What is tested
//! MariaDB 10.11. There is nothing in it that MySQL 8.0 does not have by its manual. MariaDB from 10.6 and MySQL from 8.0.1
//! have `SKIP LOCKED`, which it needs.

// Users read these docs.
#![warn(missing_docs)]

mod connection;
mod ledger;
mod records;
mod url;

pub use self::{
    ledger::{MysqlLedger, MysqlLedgerOptions},
    records::{MysqlRecords, MysqlRecordsOptions},
};
