//! Several engines in one process: each has its own queues and its own end, whatever else they share.

use std::{num::NonZeroUsize, path::Path, sync::Arc, time::Duration};

use lockgate_core::{DiskOperation, Level};
use lockgate_engine::{Engine, EngineOptions, MaintenanceThreads, Status, StopReason};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use lockgate_machine::{QueueSettings, SettleAction};
use lockgate_sim::{Fault, FaultyDisk, ManualClock};

use crate::support::{Watched, at_level, create, name, receive, send, settle, text};

/// Rounds of work on both shards.
const ROUNDS: usize = 10;

fn options(maintenance: Option<&MaintenanceThreads>) -> EngineOptions {
    EngineOptions {
        // So little that there is maintenance to do.
        snapshot_bytes_min: 16 << 10,
        maintenance: maintenance.cloned(),
        ..EngineOptions::default()
    }
}

fn start(folder: &Path, maintenance: Option<&MaintenanceThreads>) -> Engine {
    let log_options = LocalLogOptions {
        segment_bytes: 64 << 10,
        record_bytes_max: 16 << 10,
        ..LocalLogOptions::default()
    };
    let disk = FolderDisk::open(folder).unwrap();
    let log = LocalLog::open(Arc::new(disk), log_options).unwrap();
    let clock = Arc::new(SystemClock::new());
    let (engine, report) = Engine::start(log, clock, options(maintenance)).unwrap();
    assert!(report.is_clean(), "{report:?}");
    engine
}

/// Sends to the queue and takes what comes, all of which is to begin with its name.
async fn work(engine: &Engine, queue: &str, rounds: usize) {
    for round in 0..rounds {
        for part in 0..10 {
            let body = format!("{queue} {round} {part} {}", "x".repeat(500));
            engine.submit(send(queue, text(&body))).await.unwrap();
        }
        let batch = engine.receive(receive(queue, 10), Duration::ZERO).await;
        let received = batch.unwrap().keep();
        assert_eq!(received.len(), 10, "all that was sent, and nothing else");
        for (part, received) in received.into_iter().enumerate() {
            let body = received.stored.message.body;
            let begins = format!("{queue} {round} {part} ");
            assert!(body.starts_with(begins.as_bytes()), "{body:?}");
            let ack = settle(received.delivery.token, SettleAction::Ack);
            engine.submit(ack).await.unwrap();
        }
    }
}

/// The names of its queues.
fn queues(engine: &Engine) -> Vec<String> {
    let all = engine.directory().all();
    all.iter().map(|entry| entry.name.to_string()).collect()
}

#[tokio::test]
async fn two_engines_over_two_folders_are_two_shards() {
    for maintenance in [
        None,
        Some(MaintenanceThreads::default()),
        Some(MaintenanceThreads::new(NonZeroUsize::MIN)),
    ] {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let open = |which: usize| start(folders[which].path(), maintenance.as_ref());
        let (first, second) = (open(0), open(1));
        for (engine, queue) in [(&first, "a"), (&second, "b")] {
            let queue = create(queue, QueueSettings::default());
            engine.submit(queue).await.unwrap();
        }
        tokio::join!(work(&first, "a", ROUNDS), work(&second, "b", ROUNDS));
        assert_eq!(
            (queues(&first), queues(&second)),
            (vec!["a".into()], vec!["b".into()])
        );
        assert!(first.submit(send("b", text("x"))).await.is_err());
        for (engine, queue) in [(&first, "a"), (&second, "b")] {
            until_snapshots(engine, queue, 1).await;
        }

        // One stops in the middle of the other's work, and starts again beside it.
        first.submit(send("a", text("left"))).await.unwrap();
        tokio::join!(first.shutdown(), work(&second, "b", ROUNDS));
        assert_eq!(first.stopped().await, StopReason::ShutDown);
        assert_eq!(second.status(), Status::Serving);
        let (third, ()) = tokio::join!(async { open(0) }, work(&second, "b", ROUNDS));
        assert_eq!(queues(&third), ["a"]);
        let left = third.receive(receive("a", 10), Duration::ZERO).await;
        assert_eq!(left.unwrap().keep().len(), 1);

        // One fails: what it writes to is gone.
        for file in std::fs::read_dir(folders[0].path()).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "log") {
                std::fs::remove_file(path).unwrap();
            }
        }
        tokio::join!(third.shutdown(), work(&second, "b", ROUNDS));
        assert!(third.stopped().await.is_failure());
        work(&second, "b", ROUNDS).await;
        until_snapshots(&second, "b", 1).await;
        second.shutdown().await;
        assert_eq!(second.stopped().await, StopReason::ShutDown);
    }
}

#[tokio::test]
async fn an_engine_whose_disk_fails_leaves_the_others_theirs() {
    let maintenance = MaintenanceThreads::default();
    let on = |disk| Watched::on(disk, ManualClock::default(), options(Some(&maintenance)));
    let (failing, well) = (on(FaultyDisk::new()), on(FaultyDisk::new()));
    for shard in [&failing, &well] {
        let queue = create("q", QueueSettings::default());
        shard.engine.submit(queue).await.unwrap();
    }
    let failure = Fault::Error(std::io::ErrorKind::Other);
    failing.disk.fail_always(DiskOperation::Sync, 0, failure);
    assert!(failing.engine.submit(send("q", text("a"))).await.is_err());
    assert!(failing.engine.stopped().await.is_failure());
    until_snapshots(&well.engine, "q", 2).await;
    assert_eq!(well.engine.status(), Status::Serving);
    well.engine.shutdown().await;
    assert_eq!(well.engine.stopped().await, StopReason::ShutDown);
}

/// Its work holds one of the two threads.
#[tokio::test]
async fn an_engine_whose_disk_hangs_leaves_the_others_their_maintenance() {
    let maintenance = MaintenanceThreads::default();
    let disk = FaultyDisk::new();
    // No room for a reserve: maintenance has nothing to do until there is some.
    disk.set_free_bytes(Some(1_100 << 10));
    let on = |disk| Watched::on(disk, ManualClock::default(), options(Some(&maintenance)));
    let hanging = on(disk);
    let well = on(FaultyDisk::new());
    let queue = create("q", at_level(Level::Process));
    well.engine.submit(queue).await.unwrap();
    let stall = hanging.disk.stall(DiskOperation::Sync, 0);
    hanging.disk.set_free_bytes(None);
    stall.wait();
    until_snapshots(&well.engine, "q", 2).await;
    well.engine.shutdown().await;
    assert_eq!(well.engine.stopped().await, StopReason::ShutDown);
    assert_eq!(hanging.engine.status(), Status::Serving);
    stall.release();
    hanging.engine.shutdown().await;
    assert_eq!(hanging.engine.stopped().await, StopReason::ShutDown);
    assert!(hanging.engine.directory().get(&name("q")).is_none());
}

/// Works until so many more snapshots were taken. Gives up, for a clear failure, when they never will be.
async fn until_snapshots(engine: &Engine, queue: &str, more: u64) {
    let began = std::time::Instant::now();
    let taken = engine.metrics().maintenance.snapshots;
    while engine.metrics().maintenance.snapshots < taken + more {
        assert!(began.elapsed().as_secs() < 30, "there is no maintenance");
        work(engine, queue, 1).await;
    }
}
