//! Callers of one key in many processes over a running server: they are stopped and killed, and so is the server.

use std::{future, time::Duration};

use lockgate_client::Client;
use lockgate_conformance::processes::{self, Process};
use lockgate_consumer::coalesce::{
    Merge, SharedCoalescer, SharedEntered, SharedOptions, SharedRun,
};
use lockgate_core::Key;
use rustix::process::Signal;

use crate::support::{Sandbox, Server};

async fn coalescer(url: &str) -> SharedCoalescer<Client> {
    let client = Client::builder(url.parse().unwrap()).build().await.unwrap();
    let options = SharedOptions {
        merge: Merge::Append { max: 9 },
        lease: Duration::from_secs(2),
        ..SharedOptions::default()
    };
    SharedCoalescer::new(client, options).unwrap()
}

async fn enters(shared: &SharedCoalescer<Client>, payload: &str) -> Option<SharedRun<Client>> {
    let payload = payload.to_owned().into();
    match shared.enter(&Key::new("k").unwrap(), payload).await {
        Ok(SharedEntered::Run(run)) => Some(run),
        Ok(SharedEntered::Covered(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// What the next test starts: runs until it is replaced.
#[tokio::test]
async fn process() {
    let Some(url) = processes::store() else {
        return;
    };
    let run = enters(&coalescer(&url).await, "process").await.unwrap();
    println!("\nruns {}", run.token().0);
    run.alive(future::pending::<()>()).await.unwrap_err();
    run.succeed().await.unwrap_err();
    println!("\nstale 0");
}

#[tokio::test]
async fn a_process_that_is_stopped_or_killed_leaves_its_work_to_the_next() {
    let (sandbox, folder) = (Sandbox::new(), tempfile::tempdir().unwrap());
    let server = Server::start(&sandbox);
    let shared = coalescer(&server.url).await;
    for signal in [Signal::KILL, Signal::STOP] {
        let mut process = Process::start("coalescer::process", &server.url, "none", folder.path());
        let token = process.says("runs");
        process.signal(signal);
        let next = enters(&shared, "next").await.unwrap();
        assert_eq!(next.batch().payloads(), ["process", "next"]);
        assert!(next.token().0 > token);
        if signal == Signal::STOP {
            process.signal(Signal::CONT);
            process.says("stale");
        }
        next.succeed().await.unwrap();
    }
}

/// A run ends, and those who wait go on, over a server that is killed and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn callers_outlast_a_kill_of_the_server() {
    let sandbox = Sandbox::new();
    let server = Server::start(&sandbox);
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let shared = coalescer(&server.url).await;
    let first = enters(&shared, "first").await.unwrap();
    let waits = || {
        let shared = shared.clone();
        tokio::spawn(async move {
            match enters(&shared, "waits").await {
                Some(run) => run.succeed().await.map(|()| 1).unwrap(),
                None => 0,
            }
        })
    };
    let waiters = [waits(), waits(), waits()];
    while shared.counts().pending + shared.counts().covered < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.signal(Signal::KILL);
    let ends = tokio::spawn(first.succeed());
    let server = tokio::task::block_in_place(|| Server::restart(server, &sandbox, &address));
    ends.await.unwrap().unwrap();
    let mut runs = 0;
    for waiter in waiters {
        runs += waiter.await.unwrap();
    }
    assert_eq!(runs, 1);
    drop(server);
}
