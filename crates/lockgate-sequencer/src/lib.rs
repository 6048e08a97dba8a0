//! One total order of events.
//!
//! A [`MemoryLedger`] is a ledger in the memory of a process.
//!
//! ```
//! use lockgate_core::ledger::{Ledger, LedgerOptions, SequenceId};
//! use lockgate_sequencer::MemoryLedger;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ledger = MemoryLedger::new(LedgerOptions::default());
//! assert_eq!(ledger.head().await?.sequence_id, SequenceId::START);
//! # Ok(())
//! # }
//! ```

// Users read these docs.
#![warn(missing_docs)]

mod memory;

pub use self::memory::MemoryLedger;
