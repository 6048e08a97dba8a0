//! Leaders over a running server: processes with the client, which are stopped and killed, as the server is.

use std::{fs, path::Path, process::Command, time::Duration};

use lockgate_client::Client;
use lockgate_conformance::{
    processes::{self, Process},
    servers,
};
use lockgate_coordination::{
    Campaign, Coordinator as _, EndReason, Guard, Observe, RecordsCoordinator, Tenure as _,
};
use lockgate_core::{ElectionName, HolderName, RecordsError};
use rustix::process::Signal;

use crate::{
    messages::Town,
    support::{Sandbox, Server},
};

/// A server that runs, and what it keeps.
struct Serve {
    sandbox: Sandbox,
    /// `None` while it is started again.
    server: Option<Server>,
}

impl Serve {
    fn start() -> Self {
        let sandbox = Sandbox::new();
        let server = Some(Server::start(&sandbox));
        Self { sandbox, server }
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }
}

impl servers::Server for Serve {
    const GREETS: bool = false;

    type Records = Client;

    fn url(&self) -> String {
        self.server().url.clone()
    }

    async fn connect(url: String, timeout: Duration) -> Result<Client, RecordsError> {
        let client = Client::builder(url.parse().unwrap()).timeout(timeout);
        Ok(client.build().await.unwrap())
    }

    fn crash(&mut self) {
        let server = self.server.take().unwrap();
        let url = server.url.clone();
        server.signal(Signal::KILL);
        let address = url.strip_prefix("http://").unwrap();
        self.server = Some(Server::restart(server, &self.sandbox, address));
    }

    fn signal(&self, signal: &str) {
        self.server().signal(match signal {
            "-STOP" => Signal::STOP,
            "-CONT" => Signal::CONT,
            other => panic!("{other} is sent by no case"),
        });
    }

    /// A change is made whole or not at all, and nothing waits in between.
    async fn open_work(_: String) -> u64 {
        0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_and_leaders_hold_over_faults() {
    servers::faults(Serve::start()).await;
}

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

/// Sets the wall clock of the servers of a sandbox to the real time and so many seconds.
fn move_clock(folder: &Path, seconds: i64) {
    fs::write(folder.join("clock.new"), seconds.to_string()).unwrap();
    // In one step, for who reads it meanwhile.
    fs::rename(folder.join("clock.new"), folder.join("clock")).unwrap();
}

/// A server in that sandbox whose wall clock can be moved.
fn with_clock(sandbox: &Sandbox, address: &str) -> Server {
    let mut command = sandbox.command(&format!("serve --listen {address} --data data"));
    command.env("LD_PRELOAD", sandbox.path().join("clock.so"));
    command.env("LOCKGATE_TEST_CLOCK", sandbox.path().join("clock"));
    Server::spawn(command, "data")
}

fn campaign(candidate: &str) -> Campaign {
    Campaign {
        lease: Duration::from_secs(60),
        margin: Duration::from_secs(6),
        ..Campaign::new(
            ElectionName::new("clocks").unwrap(),
            HolderName::new(candidate).unwrap(),
        )
    }
}

/// The wall clock of a server ends no lease, and gives no epoch twice, however it is moved; what is due by it is due.
#[tokio::test(flavor = "multi_thread")]
async fn no_wall_clock_ends_a_lease() {
    const HOUR: i64 = 3_600;
    let sandbox = Sandbox::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/clock.c");
    let mut compiles = Command::new("cc");
    compiles.args(["-shared", "-fPIC", "-O1", "-o"]);
    compiles.arg(sandbox.path().join("clock.so")).arg(source);
    assert!(compiles.status().unwrap().success());
    move_clock(sandbox.path(), 0);
    let server = with_clock(&sandbox, "127.0.0.1:0");
    let url = server.url.clone();
    let run = |line: &str| sandbox.run(&format!("{line} --endpoint {url}"));
    run("queue create q").ok();
    run("send q later --delay 30m").ok();
    assert_eq!(run("receive q").ok(), "");

    let client = Client::builder(url.parse().unwrap()).build().await;
    let coordinator = RecordsCoordinator::new(client.unwrap());
    let look = || {
        let observe = Observe {
            election: campaign("a").election,
            seen: None,
            wait: Duration::ZERO,
        };
        coordinator.observe(observe)
    };
    let leads = coordinator.campaign(campaign("a")).await.unwrap();
    let epoch = leads.term().epoch;
    let stands = tokio::spawn({
        let coordinator = coordinator.clone();
        async move { coordinator.campaign(campaign("b")).await }
    });
    while look().await.unwrap().candidates.is_empty() {
        tokio::task::yield_now().await;
    }
    let mut guard = Guard::default();
    for step in [HOUR, -HOUR] {
        move_clock(sandbox.path(), step);
        if step == HOUR {
            // It has moved.
            assert!(run("receive q --ack --wait 5s").ok().contains("later"));
        }
        run(&format!("record put moved{step} x")).ok();
        let state = look().await.unwrap();
        let leader = state.leader.unwrap();
        assert_eq!(leader.epoch, epoch);
        assert!(leader.remaining > Duration::ZERO && leader.remaining <= campaign("a").lease);
        assert_eq!(state.candidates.len(), 1);
        assert!(!stands.is_finished());
        guard.admit(leads.fence()).unwrap();
    }
    leads.resign(EndReason::EndOfTerm, None).await.unwrap();
    let next = stands.await.unwrap().unwrap();
    assert!(next.term().epoch > epoch);
    guard.admit(next.fence()).unwrap();
    let epoch = next.term().epoch;
    next.resign(EndReason::EndOfTerm, None).await.unwrap();

    // Nor one that begins an hour before it has ended.
    move_clock(sandbox.path(), -2 * HOUR);
    server.signal(Signal::KILL);
    drop(server);
    let _server = with_clock(&sandbox, url.strip_prefix("http://").unwrap());
    let last = coordinator.campaign(campaign("a")).await.unwrap();
    assert!(last.term().epoch > epoch);
    guard.admit(last.fence()).unwrap();
    last.resign(EndReason::EndOfTerm, None).await.unwrap();
}

/// One election that cannot be read hides no other.
#[test]
fn an_election_that_cannot_be_read_is_named_beside_the_others() {
    let town = Town::new();
    for election in ["a", "c"] {
        town.run(&format!("lead --election {election} -- true"))
            .ok();
    }
    town.run("record put election/term/b strange").ok();
    let listed = town.run("leaders list --json");
    let shown: Vec<_> = crate::support::json_lines(&listed.stdout)
        .iter()
        .map(|shown| shown["election"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(shown, ["a", "c"]);
    let told = listed.fails_with(9);
    assert!(told.contains("election b cannot be read"), "{told}");
    town.run("leaders list b").fails_with(9);
}
