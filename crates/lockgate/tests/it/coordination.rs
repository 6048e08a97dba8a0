//! Elections over an embedded shard.

use std::{sync::Arc, time::Duration};

use lockgate::{
    ElectionName, EngineError, Epoch, Fence, FenceError, Lockgate, ManualClock, Message, Rejection,
    SettleError, Settlement, coordination::RecordsCoordinator,
};
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

    fn terms(&self) -> usize {
        250
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

#[tokio::test]
async fn a_part_under_a_fence_puts_all_of_a_transaction_under_it() {
    let folder = tempfile::tempdir().unwrap();
    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let queue = lockgate.queue("q").create().await.unwrap();
    let under = |epoch| {
        let election = ElectionName::new("reports").unwrap();
        queue.fenced(&Fence::new(election, Epoch(epoch)))
    };
    let (old, new) = (under(7), under(9));
    old.send(Message::new("a")).await.unwrap();
    let delivery = old.receive().await.unwrap().into_iter().next().unwrap();
    new.send(Message::new("b")).await.unwrap();

    let deposed = |error: &EngineError| matches!(error, EngineError::Rejected(Rejection::Fenced(FenceError::Deposed { newest, .. })) if newest.0 == 9);
    let sends = lockgate.transact().send(&old, Message::new("late"));
    assert!(deposed(&sends.commit().await.unwrap_err().source));
    let acks = lockgate.transact().ack(delivery).commit().await;
    let mut acks = acks.unwrap_err();
    assert!(deposed(&acks.source));
    let settles = [(acks.deliveries.remove(0), Settlement::Ack)];
    let settled = lockgate.settle_all(settles).await.unwrap().remove(0);
    let error = settled.unwrap_err();
    assert!(
        matches!(&error, SettleError::Engine { source, .. } if deposed(source)),
        "{error}"
    );

    // Two terms at once are a mistake.
    let both = lockgate
        .transact()
        .send(&old, Message::new("x"))
        .send(&new, Message::new("x"));
    let refused = both.commit().await.unwrap_err().source.to_string();
    assert_eq!(refused, "number of fences must be 0 to 1, not 2");
    let sends = lockgate.transact().send(&new, Message::new("c"));
    sends
        .send(&queue, Message::new("d"))
        .commit()
        .await
        .unwrap();
    lockgate.shutdown().await;
}
