//! Leaders over a running server: processes with the client, which are stopped and killed, as the server is.

use lockgate_client::Client;
use lockgate_conformance::processes::{self, Process};
use lockgate_coordination::RecordsCoordinator;
use rustix::process::Signal;

use crate::support::{Sandbox, Server};

/// What the other tests start.
#[test]
fn process() {
    processes::lead(async |url| {
        let client = Client::builder(url.parse().unwrap()).build().await;
        RecordsCoordinator::new(client.unwrap())
    });
}

#[test]
fn a_process_that_is_stopped_or_killed_is_replaced() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    processes::leaders_are_replaced("leaders::process", &server.url);
}

/// A server that was killed knows the terms of before: a leader that is killed with it is waited for, and no epoch is given twice.
#[test]
fn terms_outlive_kills_of_the_server() {
    let (sandbox, folder) = (Sandbox::new(), tempfile::tempdir().unwrap());
    let mut server = Server::start(&sandbox);
    let url = server.url.clone();
    let address = url.strip_prefix("http://").unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let mut leader = Process::start("leaders::process", &url, "kills", folder.path());
        let epoch = leader.says("leads");
        assert!(epoch > last, "{epoch} {last}");
        last = epoch;
        server.signal(Signal::KILL);
        server = Server::restart(server, &sandbox, address);
    }
}
