//! What stores of [`Records`](lockgate_core::Records) on servers share, and [ledgers](ledger) in databases.
//!
//! A store on a server has a program there (functions, procedures, scripts) that does one command at one instant, by
//! the server's time. What is left for the client is the same for all: it checks bounds and what is
//! [`guarded`], reads the program's [`Row`]s and [`Outcome`]s, waits for changes on a [`Bell`], and connects again with
//! [`Backoff`].
//!
//! ```
//! use std::time::Duration;
//!
//! use lockgate_core::{RecordName, WatchRecord};
//! use lockgate_records::{Bell, watch};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let bell = Bell::default();
//! let name = RecordName::new("reports/leader")?;
//! let wait = WatchRecord { name, seen: None, wait: Duration::from_millis(1) };
//! // A store in which there is no such record.
//! assert_eq!(watch(&bell, wait, || async { Ok(None) }).await?, None);
//! # Ok(())
//! # }
//! ```

// Users read these docs.
#![warn(missing_docs)]

mod asking;
mod backoff;
mod bell;
mod bounds;
mod fence;
pub mod ledger;
mod row;
mod url;

pub use self::{
    asking::{Asking, wait_for_end},
    backoff::Backoff,
    bell::{Bell, Listening, watch},
    bounds::{
        STORE_NAME, check_lease, check_limit, check_put, number, page, prefix_end, schema_name,
        store_name,
    },
    fence::{Guarded, guarded},
    row::{Outcome, Row, unreadable},
    url::Url,
};
