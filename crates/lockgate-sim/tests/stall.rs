//! The engine with its threads over a disk that hangs.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use lockgate_core::{DiskOperation, Level, Message, QueueName};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{Command, CreateQueue, QueueSettings, Reply, SendMessage};
use lockgate_sim::{FaultyDisk, ManualClock, PowerCut};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn start(disk: &FaultyDisk) -> Engine {
    let options = LocalLogOptions {
        segment_bytes: 64 << 10,
        record_bytes_max: 16 << 10,
        free_bytes_min: 0,
        generation_seed: Some(3),
        ..LocalLogOptions::default()
    };
    let log = LocalLog::open(Arc::new(disk.clone()), options).unwrap();
    let clock = Arc::new(ManualClock::default());
    let (engine, _report) = Engine::start(log, clock, EngineOptions::default()).unwrap();
    engine
}

fn make(engine: &Engine, queue: &str, level: Level) {
    let create = CreateQueue {
        name: QueueName::new(queue).unwrap(),
        settings: QueueSettings {
            level,
            ..QueueSettings::default()
        },
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
    };
    block_on(engine.submit(Command::CreateQueue(Box::new(create)))).unwrap();
}

fn send(engine: &Engine, queue: &str) -> Reply {
    let send = SendMessage {
        queue: QueueName::new(queue).unwrap(),
        message: Message::new("body"),
    };
    block_on(engine.submit(Command::Send(Box::new(send)))).unwrap()
}

/// While a sync hangs, who waits for the disk waits, and who does not is answered. Afterwards all is
/// well, and what was answered survives.
#[test]
fn a_sync_that_hangs_holds_up_only_who_waits_for_it() {
    let disk = FaultyDisk::new();
    let engine = start(&disk);
    make(&engine, "synced", Level::Disk);
    make(&engine, "written", Level::Process);

    let stall = disk.stall(DiskOperation::Sync, 0);
    let (answer, answered) = mpsc::channel();
    let sender = thread::spawn({
        let engine = engine.clone();
        move || answer.send(send(&engine, "synced")).unwrap()
    });
    stall.wait();
    assert!(matches!(send(&engine, "written"), Reply::Sent(_)));
    assert!(answered.try_recv().is_err(), "nothing was synced");
    stall.release();
    assert!(matches!(answered.recv().unwrap(), Reply::Sent(_)));
    sender.join().unwrap();

    block_on(engine.shutdown());
    drop(engine);
    let after = start(&disk.crash(PowerCut::LoseAllUnsynced));
    let queue = QueueName::new("synced").unwrap();
    assert!(after.directory().get(&queue).is_some());
    block_on(after.shutdown());
}

/// A file system that is frozen takes nothing: nobody gets an answer that may be lost, and after the
/// thaw everybody gets one.
#[test]
fn a_frozen_disk_answers_after_the_thaw() {
    let disk = FaultyDisk::new();
    let engine = start(&disk);
    make(&engine, "synced", Level::Disk);

    let frozen = disk.freeze(0);
    let (answer, answered) = mpsc::channel();
    let senders: Vec<_> = (0..8)
        .map(|_| {
            let (engine, answer) = (engine.clone(), answer.clone());
            thread::spawn(move || answer.send(send(&engine, "synced")).unwrap())
        })
        .collect();
    frozen.wait();
    assert!(answered.try_recv().is_err());
    frozen.release();
    for sender in senders {
        sender.join().unwrap();
    }
    assert_eq!(answered.try_iter().count(), 8);
    block_on(engine.shutdown());
}
