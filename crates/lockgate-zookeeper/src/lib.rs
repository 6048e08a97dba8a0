//! Elections and locks over [ZooKeeper](https://zookeeper.apache.org), by the recipes of Curator: candidates of this crate
//! and those of Curator's `LeaderLatch`, `LeaderSelector` or `InterProcessMutex` exclude each other.
//!
//! ```no_run
//! use lockgate_coordination::{Campaign, Coordinator, EndReason, Tenure};
//! use lockgate_core::{ElectionName, HolderName};
//! use lockgate_zookeeper::ZookeeperCoordinator;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "zk://zoo1:2181,zoo2:2181,zoo3:2181/teams?style=latch";
//! let coordinator = ZookeeperCoordinator::connect(url).await?;
//! let campaign = Campaign::new(ElectionName::new("reports")?, HolderName::new("host-1")?);
//! let tenure = coordinator.campaign(campaign).await?;
//! println!("{} leads in term {}", tenure.node(), tenure.term().epoch.0);
//! tenure.resign(EndReason::EndOfTerm, None).await?;
//! # Ok(())
//! # }
//! ```
//! What is wrong with a URL is told before anybody is asked:
//!
//! ```
//! use lockgate_zookeeper::{Style, ZookeeperOptions};
//!
//! let options = ZookeeperOptions::parse("zk://me:secret@localhost/teams")?.style(Style::Mutex);
//! assert!(!format!("{options:?}").contains("secret"));
//! let error = ZookeeperOptions::parse("zk://localhost?stile=latch").unwrap_err();
//! assert!(error.to_string().contains("parameters are: style"));
//! # Ok::<(), lockgate_core::coordination::CoordinationError>(())
//! ```
//!
//! Queues that Java programs have open with Curator are in [`queue`].
//!
//! # The line
//! Each candidate has an ephemeral node with a number below `PATH/NAME`, and whoever has the lowest number leads. Each
//! other one watches the node in front of its own. The name of a node begins with a GUID, so that its candidate finds it
//! again if the answer to its creation was lost.
//!
//! # The lease
//! A node is there for as long as its session. The session's timeout is the lease and the margin of the campaign; a
//! server that grants less is told as an error. One that grants more makes the successor of a crashed leader wait longer,
//! and nobody lead longer. The leader stops at its lease less the margin, by its own clock, counted from before it sent
//! the last request that was answered: a transaction that only checks its node, which a majority of the ensemble agrees
//! to. So it is over before its session can end, whether ZooKeeper can tell it or not. An ensemble's servers tell their
//! leader of their sessions every half tick, so the margin must be at least that: 1 s unless `tickTime` is more than 2 s.
//!
//! # Epochs
//! A term's epoch is the number of the change (`czxid`) that has made the leader's node. An ensemble counts its changes
//! and takes no number twice, so epochs rise also after all nodes of an election were deleted. An ensemble that is made
//! anew without its data counts anew: its epochs are below those that sinks have seen, and the sinks refuse them. So
//! [`epochs_last`](lockgate_core::coordination::CoordinatorCapabilities::epochs_last) is false. If the record of the terms
//! has come along, a candidate sees it, and is told `Damaged`.
//!
//! # What is kept
//! History, checkpoint and requests to resign are in nodes below `PATH/_lockgate_`, written in the same transaction as the
//! leader's node is checked. Nothing but candidates is below `PATH/NAME`, as Curator looks at all that is there.

// Users read these docs.
#![warn(missing_docs)]

mod book;
mod coordinator;
mod nodes;
mod options;
pub mod queue;
mod session;
mod standing;
mod tenure;

pub use self::{
    coordinator::{ZookeeperCoordinator, ZookeeperTenure},
    options::{Style, ZookeeperOptions},
};
