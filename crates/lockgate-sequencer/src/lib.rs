//! One total order of events.
//!
//! A [ledger](lockgate_core::ledger) keeps the order. A [`Follower`] applies each of its events once, and repairs what a live
//! feed loses; [`replay`] shows whether a handler is deterministic. A [`MemoryLedger`] is a ledger in the memory of a process.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use lockgate_core::{
//!     Epoch,
//!     ledger::{Append, Chain, Event, Ledger, LedgerOptions, NewEvent, SequenceId},
//! };
//! use lockgate_sequencer::{Apply, Followed, Follower, MemoryLedger};
//!
//! /// What a service keeps: a sum, and behind which event it is. A database keeps both in one transaction.
//! struct Sum {
//!     sum: i64,
//!     position: Chain,
//! }
//!
//! impl Apply for Sum {
//!     type Error = Infallible;
//!
//!     async fn apply(&mut self, events: Vec<Event>, position: Chain) -> Result<(), Infallible> {
//!         self.sum += events.iter().map(|event| event.payload.len() as i64).sum::<i64>();
//!         self.position = position;
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ledger = MemoryLedger::new(LedgerOptions::default());
//! let event = NewEvent { payload: "12345".into(), ..NewEvent::default() };
//! let append = Append { epoch: Epoch(1), head: None, events: vec![event], settled: Vec::new() };
//! ledger.append(append).await?;
//! ledger.seal(Epoch(1)).await?;
//!
//! let mut sum = Sum { sum: 0, position: Chain::START };
//! let follower = Follower::new(ledger).from(sum.position);
//! // Until the ledger is sealed; mostly until a signal comes.
//! let followed = follower.run(&mut sum, std::future::pending()).await?;
//! assert_eq!(followed, Followed::Sealed);
//! assert_eq!((sum.sum, sum.position.sequence_id), (5, SequenceId(1)));
//! # Ok(())
//! # }
//! ```
//!
//! What decides in a follower is a pure machine, [`FollowMachine`].

// Users read these docs.
#![warn(missing_docs)]

mod follower;
mod memory;
mod message;
mod random;
mod replay;

pub use self::{
    follower::{
        Apply, Evidence, Feed, FollowError, FollowMachine, FollowOptions, FollowState,
        FollowStatus, Followed, Follower, News, Output, SourceFeed,
    },
    memory::MemoryLedger,
    message::{NoEvent, event_of, message_of},
    replay::{ReplayError, Replayed, Replica, replay},
};
