//! Exactly one of many works, the switch is clean, and nobody who was deposed can still write.
//!
//! A [`Coordinator`] elects one of the candidates of an election. Its leader has a term with an epoch, which is higher
//! than that of every earlier term, and gives the term's [`Fence`] to whatever it writes to.
//!
//! ```
//! use lockgate_consumer::MemoryRecords;
//! use lockgate_coordination::{Campaign, Coordinator, EndReason, RecordsCoordinator, Tenure};
//! use lockgate_core::{ElectionName, HolderName};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let coordinator = RecordsCoordinator::new(MemoryRecords::new());
//! let reports = ElectionName::new("reports")?;
//! let campaign = Campaign::new(reports, HolderName::new("host-1")?);
//!
//! let tenure = coordinator.campaign(campaign.clone()).await?;
//! let first = tenure.term().epoch;
//! tenure.fence().check()?;
//! tenure.resign(EndReason::EndOfTerm, Some("page 7".into())).await?;
//!
//! let tenure = coordinator.campaign(campaign).await?;
//! assert!(tenure.term().epoch > first);
//! assert_eq!(tenure.term().last_checkpoint.as_ref().unwrap().value, "page 7");
//! # Ok(())
//! # }
//! ```
//!
//! A [`Singleton`] runs a [`LeaderCareer`] in one of many processes: term after term, with hand-overs in between.
//!
//! What decides are two pure machines: see [`protocol`].

// Users read these docs.
#![warn(missing_docs)]

mod busy;
mod career;
mod chronicle;
#[cfg(target_os = "linux")]
mod file;
pub mod protocol;
mod records;
mod silence;
mod singleton;
mod time;
mod worker;

pub use lockgate_core::coordination::*;

#[cfg(target_os = "linux")]
pub use self::file::FileRecords;
pub use self::{
    busy::{Busy, BusyRegistry, Claim, ClaimError},
    career::{HandOver, InFlight, LeaderCareer, Next, Unit},
    records::{RecordsCoordinator, RecordsTenure},
    singleton::{Ended, Singleton},
    worker::{WorkerCareer, WorkerCareerError},
};

/// What coordinators in other crates are made of as well. No promise is made about it.
#[doc(hidden)]
pub mod shell {
    pub use crate::{
        chronicle::{Asked, Chronicle, HISTORY_MAX},
        silence::{Pauses, Silence},
        time::{Time, jittered, millis},
    };
}

/// What a fuzzer gives its bytes to, in place of the value of a term's record.
#[doc(hidden)]
pub fn fuzz_term(bytes: &[u8]) -> Result<(), String> {
    chronicle::fuzz(bytes)
}

/// The same, in place of the file of a folder's records.
#[cfg(target_os = "linux")]
#[doc(hidden)]
pub fn fuzz_file(bytes: &[u8]) -> Result<(), String> {
    file::fuzz(bytes)
}
