//! The suite of all coordinators.

use std::time::Duration;

use lockgate_conformance::coordination::{self, BoxedProcess, Fixture};
use lockgate_zookeeper::ZookeeperCoordinator;

use crate::server::Server;

struct Processes {
    server: Server,
    url: String,
    terms: usize,
}

impl Fixture for Processes {
    type Coordinator = ZookeeperCoordinator;

    async fn process(&mut self) -> ZookeeperCoordinator {
        ZookeeperCoordinator::connect(&self.url).await.unwrap()
    }

    fn terms(&self) -> usize {
        self.terms
    }

    fn process_maker(&self) -> Box<dyn FnOnce() -> BoxedProcess<ZookeeperCoordinator> + Send> {
        let url = self.url.clone();
        Box::new(move || {
            Box::pin(async move { ZookeeperCoordinator::connect(&url).await.unwrap() })
        })
    }

    /// A session lasts by the server's clock.
    fn pass(&mut self, _: Duration) -> bool {
        false
    }

    async fn restart(&mut self) -> bool {
        self.server.crash();
        self.server.restart();
        true
    }
}

async fn conforms(style: &str, terms: usize) {
    let server = Server::start();
    let url = format!("{}/teams/eu?style={style}", server.url);
    let not_run = coordination::run(&mut Processes { server, url, terms }).await;
    // `faults` has them, with short leases.
    assert_eq!(
        not_run,
        [
            "a_crashed_leader_is_waited_out",
            "a_leader_that_renews_stays",
            "a_frozen_leader_is_replaced_and_told",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn elections_by_latches_conform() {
    conforms("latch", 250).await;
}

#[tokio::test]
async fn elections_by_mutexes_conform() {
    conforms("mutex", 25).await;
}
