//! Elections and locks over ZooKeeper, by the recipes of Curator.
#![warn(missing_docs)]

mod book;
mod coordinator;
mod nodes;
mod options;
mod session;
mod standing;
mod tenure;

pub use self::{
    coordinator::{ZookeeperCoordinator, ZookeeperTenure},
    options::{Style, ZookeeperOptions},
};
