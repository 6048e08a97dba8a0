//! Elections within a process.

use std::{sync::Arc, time::Duration};

use lockgate_conformance::coordination::{self, BoxedProcess, Fixture};
use lockgate_consumer::MemoryRecords;
use lockgate_coordination::RecordsCoordinator;
use lockgate_core::ManualClock;

struct Memory {
    records: MemoryRecords,
    clock: ManualClock,
    processes: Vec<RecordsCoordinator<MemoryRecords>>,
}

impl Fixture for Memory {
    type Coordinator = RecordsCoordinator<MemoryRecords>;

    async fn process(&mut self) -> Self::Coordinator {
        let process =
            RecordsCoordinator::new(self.records.clone()).clock(Arc::new(self.clock.clone()));
        self.processes.push(process.clone());
        process
    }

    fn terms(&self) -> usize {
        250
    }

    fn process_maker(&self) -> Box<dyn FnOnce() -> BoxedProcess<Self::Coordinator> + Send> {
        let (records, clock) = (self.records.clone(), self.clock.clone());
        Box::new(move || {
            Box::pin(async move { RecordsCoordinator::new(records).clock(Arc::new(clock)) })
        })
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.records.clock_changed();
        for process in &self.processes {
            process.clock_changed();
        }
        true
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

#[tokio::test]
async fn elections_in_memory_conform() {
    let clock = ManualClock::default();
    let mut memory = Memory {
        records: MemoryRecords::new().clock(Arc::new(clock.clone())),
        clock,
        processes: Vec::new(),
    };
    let not_run = coordination::run(&mut memory).await;
    assert_eq!(not_run, ["epochs_and_history_survive_a_restart"]);
}
