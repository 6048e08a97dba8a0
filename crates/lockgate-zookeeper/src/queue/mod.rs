//! Queues that share their nodes with those of [Curator](https://curator.apache.org): Java programs put and these take, and
//! the other way round, in one queue at the same time.
//!
//! ```no_run
//! use lockgate_zookeeper::{
//!     ZookeeperOptions,
//!     queue::{CuratorQueue, CuratorQueueOptions, Kind, Place, Taking},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = ZookeeperOptions::parse("zk://zoo1:2181,zoo2:2181")?;
//! let options = CuratorQueueOptions {
//!     // The same as `lockPath` of the Java programs.
//!     taking: Some(Taking::LockSafe("/locks/orders".to_owned())),
//!     ..CuratorQueueOptions::new("/orders", Kind::Delay)
//! };
//! let queue = CuratorQueue::open(&server, options).await?;
//! queue.put(Place::At(1_795_210_223_441), &["order-3"]).await?;
//! let taken = queue.take().await?;
//! println!("{} has {} items", taken.name, taken.items.len());
//! taken.done().await?;
//! # Ok(())
//! # }
//! ```
//!
//! `QueueSharder` and `SimpleDistributedQueue` are left out.

pub mod drain;
pub mod names;
pub mod payload;
pub mod schedule;
mod shell;

pub use self::{
    names::{Kind, Place},
    shell::{
        Connection, CuratorQueue, CuratorQueueError, CuratorQueueOptions, ErrorMode, Gauges, Taken,
        Taking,
    },
};
