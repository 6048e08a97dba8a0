//! Elections over an embedded shard.

use std::{sync::Arc, time::Duration};

use lockgate::{Lockgate, ManualClock, coordination::RecordsCoordinator};
use lockgate_conformance::coordination::{self, BoxedProcess, Fixture};
use tempfile::TempDir;

type Process = RecordsCoordinator<Lockgate>;

struct Embedded {
    folder: TempDir,
    lockgate: Lockgate,
    clock: ManualClock,
    processes: Vec<Process>,
}

async fn open(folder: &TempDir, clock: &ManualClock) -> Lockgate {
    let builder = Lockgate::builder(folder.path()).clock(Arc::new(clock.clone()));
    builder.open().await.unwrap()
}

impl Fixture for Embedded {
    type Coordinator = Process;

    async fn process(&mut self) -> Process {
        let process = RecordsCoordinator::new(self.lockgate.clone());
        let process = process.clock(Arc::new(self.clock.clone()));
        self.processes.push(process.clone());
        process
    }

    fn process_maker(&self) -> Box<dyn FnOnce() -> BoxedProcess<Process> + Send> {
        let (lockgate, clock) = (self.lockgate.clone(), Arc::new(self.clock.clone()));
        Box::new(|| Box::pin(async move { RecordsCoordinator::new(lockgate).clock(clock) }))
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.lockgate.clock_changed();
        for process in &self.processes {
            process.clock_changed();
        }
        true
    }

    async fn restart(&mut self) -> bool {
        self.lockgate.shutdown().await;
        self.lockgate = open(&self.folder, &self.clock).await;
        true
    }
}

#[tokio::test]
async fn elections_over_an_embedded_shard_conform() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let mut embedded = Embedded {
        lockgate: open(&folder, &clock).await,
        folder,
        clock,
        processes: Vec::new(),
    };
    let not_run = coordination::run(&mut embedded).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    embedded.lockgate.shutdown().await;
}
