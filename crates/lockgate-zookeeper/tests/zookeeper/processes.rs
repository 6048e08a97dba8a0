//! Leaders in processes of their own.

use lockgate_conformance::processes;
use lockgate_zookeeper::ZookeeperCoordinator;

use crate::server;

/// What other tests start.
#[test]
fn process() {
    processes::lead(async |url| ZookeeperCoordinator::connect(url).await.unwrap());
}

#[test]
fn a_process_that_is_stopped_or_killed_is_replaced() {
    processes::leaders_are_replaced("processes::process", &server::shared());
}
