//! One total order of events, without a gap and without a double, for any number of engines.
//!
//! A [`Sequencer`] reads messages from a queue and appends them to a [ledger], under the epoch of its term: run it in two or more
//! processes, and one of them leads. A [`Follower`] applies each event of a ledger once, and repairs what a live feed loses;
//! [`replay`] shows whether its handler is deterministic. A [`MemoryLedger`] is a ledger in the memory of a process.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use lockgate_consumer::{MemoryOptions, MemoryQueue, MemoryRecords};
//! use lockgate_coordination::{Campaign, RecordsCoordinator, Singleton};
//! use lockgate_core::{ElectionName, HolderName, Message, QueueName};
//! use lockgate_sequencer::{
//!     Apply, Follower, MemoryLedger, Sequencer, SequencerOptions,
//!     ledger::{Chain, Event, Ledger, LedgerOptions, SequenceId},
//! };
//!
//! /// What a service keeps: how many were bought, and behind which event it is. A database keeps both in one transaction.
//! #[derive(Default)]
//! struct Bought {
//!     count: usize,
//!     position: SequenceId,
//! }
//!
//! impl Apply for Bought {
//!     type Error = Infallible;
//!
//!     async fn apply(&mut self, events: Vec<Event>, position: Chain) -> Result<(), Infallible> {
//!         self.count += events.iter().filter(|event| event.payload.starts_with(b"buy")).count();
//!         self.position = position.sequence_id;
//!         Ok(())
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let orders = MemoryQueue::new(MemoryOptions::default())?;
//! orders.push(Message::new("buy 1")).await?;
//! orders.push(Message::new("sell 2")).await?;
//! // A sequencer of a closed queue ends when all is in the ledger.
//! orders.close();
//!
//! let ledger = MemoryLedger::new(LedgerOptions::default());
//! // The messages of this queue are gone with the process, so none comes again after a crash.
//! let options = SequencerOptions { allow_repeats: true, ..SequencerOptions::default() };
//! let mut sequencer = Sequencer::new(QueueName::new("orders")?, orders, ledger.clone()).options(options);
//! let coordinator = RecordsCoordinator::new(MemoryRecords::new());
//! let campaign = Campaign::new(ElectionName::new("orders")?, HolderName::new("host-1")?);
//! Singleton::new(coordinator, campaign).run(&mut sequencer).await?;
//!
//! // A follower of a sealed ledger ends when it has applied all.
//! ledger.seal(ledger.head().await?.epoch).await?;
//! let mut bought = Bought::default();
//! let follower = Follower::new(ledger).from(Chain::behind(bought.position));
//! follower.run(&mut bought, std::future::pending()).await?;
//! assert_eq!((bought.count, bought.position), (1, SequenceId(2)));
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
mod sequencer;

pub use lockgate_core::ledger;

#[doc(hidden)]
pub use self::message::fuzz_event;
pub use self::{
    follower::{
        Apply, Evidence, Feed, FollowError, FollowMachine, FollowOptions, FollowState,
        FollowStatus, Followed, Follower, News, Output, SourceFeed,
    },
    memory::MemoryLedger,
    message::{NoEvent, event_of, message_of},
    replay::{ReplayError, Replayed, Replica, replay},
    sequencer::{Sequencer, SequencerCounts, SequencerError, SequencerOptions},
};
