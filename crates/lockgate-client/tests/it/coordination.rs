//! Elections over a server: each process has a client of its own.

use std::{sync::Arc, time::Duration};

use lockgate_client::Client;
use lockgate_conformance::coordination::{self, BoxedProcess, Fixture};
use lockgate_coordination::RecordsCoordinator;
use tempfile::TempDir;

use crate::support::{TestServer, client_of};

type Process = RecordsCoordinator<Client>;

struct Remote {
    folder: TempDir,
    /// `None` while it is restarted.
    server: Option<TestServer>,
    processes: Vec<Process>,
}

impl Remote {
    fn server(&self) -> &TestServer {
        self.server.as_ref().unwrap()
    }
}

impl Fixture for Remote {
    type Coordinator = Process;

    async fn process(&mut self) -> Process {
        let server = self.server();
        let process = RecordsCoordinator::new(server.client());
        let process = process.clock(Arc::new(server.clock.clone()));
        self.processes.push(process.clone());
        process
    }

    fn terms(&self) -> usize {
        100
    }

    fn process_maker(&self) -> Box<dyn FnOnce() -> BoxedProcess<Process> + Send> {
        let server = self.server();
        let (address, clock) = (server.address, Arc::new(server.clock.clone()));
        Box::new(move || {
            let client = client_of(address);
            Box::pin(async move { RecordsCoordinator::new(client).clock(clock) })
        })
    }

    fn pass(&mut self, span: Duration) -> bool {
        let server = self.server();
        server.clock.advance(span.as_millis().try_into().unwrap());
        server.engine.clock_changed();
        for process in &self.processes {
            process.clock_changed();
        }
        true
    }

    async fn restart(&mut self) -> bool {
        let before = self.server.take().unwrap();
        let clock = before.clock.clone();
        before.stop().await;
        let server = TestServer::start_at(self.folder.path(), clock, |_| ()).await;
        self.server = Some(server);
        true
    }
}

#[tokio::test]
async fn elections_over_a_server_conform() {
    let (server, folder) = TestServer::plain().await;
    let mut remote = Remote {
        folder,
        server: Some(server),
        processes: Vec::new(),
    };
    let not_run = coordination::run(&mut remote).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    remote.server.unwrap().stop().await;
}
