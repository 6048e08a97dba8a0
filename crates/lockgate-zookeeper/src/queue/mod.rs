//! Queues that share their nodes with those of [Curator](https://curator.apache.org): Java programs put and these take, and
//! the other way round, in one queue at the same time.
//!
//! `QueueSharder` and `SimpleDistributedQueue` are left out.

pub mod names;
pub mod payload;
pub mod schedule;
mod shell;

pub use self::{
    names::{Kind, Place},
    shell::{CuratorQueue, CuratorQueueError, CuratorQueueOptions, Taken, Taking},
};
