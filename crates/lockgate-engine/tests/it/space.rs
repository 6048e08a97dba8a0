//! Space given back in unlucky moments: beside crashes, bad snapshots, and somebody who still reads.

use std::{
    io::{self, Write},
    sync::mpsc,
    time::Duration,
};

use lockgate_core::{DiskOperation, LogError, Position};
use lockgate_engine::{
    BackupError, BackupReport, Driver, Engine, EngineOptions, MaintenanceTask, StartError,
    StartReport, TaskRest, TaskStep, Work,
};
use lockgate_machine::{Command, Purge, QueueSettings, SettleAction};
use lockgate_sim::{Damage, Fault, FaultyDisk, ManualClock, PowerCut};
use tokio::task::JoinHandle;

use crate::support::{
    Shard, Watched, beginning, create, local_log, name, pending, receive, send, settle, text, until,
};

/// As the segments of the tests' logs.
const SEGMENT: u64 = 1 << 20;

fn options() -> EngineOptions {
    EngineOptions {
        snapshot_bytes_min: SEGMENT,
        ..EngineOptions::default()
    }
}

fn start(disk: FaultyDisk) -> (Shard, StartReport) {
    Shard::start(disk, ManualClock::default(), &options())
}

fn snapshots(disk: &FaultyDisk) -> Vec<Position> {
    local_log(&disk.kill()).snapshots().list().unwrap()
}

/// Adds as much as makes a snapshot due, and settles all of it.
fn pass_through(shard: &mut Shard) {
    let body = "x".repeat(50_000);
    for _ in 0..24 {
        shard.group([Work::from(send("q", text(&body)))]);
    }
    shard.sync();
    let leases = shard.receive_now("q", 100);
    assert_eq!(leases.len(), 24);
    for lease in leases {
        shard.run(settle(lease.token, SettleAction::Ack)).unwrap();
    }
    shard.sync();
}

/// A snapshot that is due, written whole; the driver is yet to be told.
fn write_snapshot(shard: &mut Shard) -> MaintenanceTask {
    let now = shard.now();
    let mut task = shard.driver.next_task(now).unwrap().expect("one is due");
    assert_eq!(task.name(), "snapshot");
    loop {
        match task.step(shard.durable).unwrap() {
            TaskStep::More => {}
            TaskStep::WaitDurable(_) => drop(shard.sync()),
            TaskStep::Commands(_) => panic!("a snapshot has no commands"),
            TaskStep::Done => return task,
        }
    }
}

fn take_snapshot(shard: &mut Shard) -> TaskRest {
    let task = write_snapshot(shard);
    let now = shard.now();
    shard.driver.finish_task(task, Ok(()), now)
}

fn with_queue() -> Shard {
    let (mut shard, _) = start(FaultyDisk::new());
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard
}

#[test]
fn a_crash_between_a_snapshot_and_its_trim_keeps_nothing_from_coming_back() {
    let mut shard = with_queue();
    pass_through(&mut shard);
    let _none = take_snapshot(&mut shard);
    pass_through(&mut shard);
    let _done = write_snapshot(&mut shard);
    let disk = shard.disk.kill();
    drop(shard);
    let (mut shard, report) = start(disk);
    assert!(report.snapshot.is_some());
    let now = shard.now();
    let _task = shard.driver.next_task(now).unwrap();
    assert!(shard.driver.maintenance_counts().ranges_released > 0);
}

#[test]
fn a_trim_that_fails_is_tried_again_and_costs_no_task() {
    let mut shard = with_queue();
    for _ in 0..2 {
        pass_through(&mut shard);
        let _none = take_snapshot(&mut shard);
    }
    let oldest = shard.driver.snapshots().list().unwrap()[1];
    pass_through(&mut shard);
    let task = write_snapshot(&mut shard);
    pass_through(&mut shard);
    let now = shard.now();
    let fault = Fault::Error(io::ErrorKind::Other);
    shard.disk.fail_always(DiskOperation::Rename, 0, fault);
    let released = shard.driver.maintenance_counts().ranges_released;
    let rest = shard.driver.finish_task(task, Ok(()), now);
    assert_eq!(rest.snapshots, [oldest], "to be removed all the same");
    // A snapshot is due by now, and must not count as begun.
    assert!(shard.driver.next_task(now).is_err());
    assert_eq!(shard.driver.maintenance_counts().ranges_released, released);
    shard.disk.disarm();
    let task = shard.driver.next_task(now).unwrap();
    assert_eq!(task.map(|task| task.name()), Some("snapshot"));
    assert!(shard.driver.maintenance_counts().ranges_released > released);
}

#[test]
fn a_snapshot_that_cannot_be_loaded_is_never_taken_for_the_older_one() {
    let mut shard = with_queue();
    for _ in 0..2 {
        pass_through(&mut shard);
        let _none = take_snapshot(&mut shard);
    }
    let [newest, older] = snapshots(&shard.disk)[..] else {
        panic!("two")
    };
    let disk = shard.disk.kill();
    drop(shard);
    let prefix = format!("{:016x}-", newest.0);
    let is_it = |name: &String| name.starts_with(&prefix) && name.ends_with(".snapshot");
    let mut image = disk.image();
    let name = image.keys().find(|name| is_it(name)).unwrap().clone();
    let bytes = image.get_mut(&name).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let (mut shard, report) = start(FaultyDisk::from_image(image));
    assert_eq!(report.snapshot, Some(older));
    assert_eq!(report.snapshots_unreadable.len(), 1);
    pass_through(&mut shard);
    let rest = take_snapshot(&mut shard);
    assert_eq!(rest.snapshots, [newest], "and the older one stays");
}

/// Two snapshots, the newest first, with a message of that body between them, and what a kill leaves of
/// them: the part of the log that has the message is damaged.
fn damaged_between_snapshots(body: &str) -> ([Position; 2], FaultyDisk) {
    let mut shard = with_queue();
    pass_through(&mut shard);
    let _none = take_snapshot(&mut shard);
    pass_through(&mut shard);
    shard.run(send("q", text(body))).unwrap();
    let _none = take_snapshot(&mut shard);
    let [newest, older] = snapshots(&shard.disk)[..] else {
        panic!("two")
    };
    let mut image = shard.disk.kill().image();
    let segment = image.get_mut(&format!("{:08x}.log", older.0 >> 32));
    let behind = usize::try_from(older.0 & 0xffff_ffff).unwrap() + 60;
    segment.unwrap()[behind] ^= 1;
    ([newest, older], FaultyDisk::from_image(image))
}

/// What the log lost is in the newest snapshot, which the disk would not hand over just now. To go on
/// without it would make the loss final.
#[test]
fn a_snapshot_that_the_disk_does_not_hand_over_is_not_given_up() {
    let ([newest, _], disk) = damaged_between_snapshots("kept");
    let clock = ManualClock::default();
    disk.fail(DiskOperation::Read, 0, Fault::Error(io::ErrorKind::Other));
    let refused = Driver::<u64>::recover(local_log(&disk), &options(), || beginning(&clock));
    let error = refused.err().expect("refused");
    assert!(
        matches!(error, StartError::Recover(LogError::Disk(_))),
        "{error:?}"
    );
    let (shard, report) = start(disk.kill());
    assert_eq!(report.snapshot, Some(newest));
    assert_eq!((report.messages, report.damaged.len()), (1, 0));
    drop(shard);
}

/// A start that cannot open a file ends with that reason, whichever file it is. A snapshot is not taken
/// for damaged then.
#[test]
fn a_start_that_can_open_no_more_files_says_so() {
    let mut shard = with_queue();
    for _ in 0..2 {
        pass_through(&mut shard);
        let _none = take_snapshot(&mut shard);
    }
    let newest = snapshots(&shard.disk)[0];
    let whole = shard.disk.kill();
    drop(shard);
    for after in 0..4 {
        let disk = whole.kill();
        let out = Fault::OutOfDescriptors;
        disk.fail_always(DiskOperation::Open, after, out);
        let (log, clock) = (local_log(&disk), ManualClock::default());
        let refused = Driver::<u64>::recover(log, &options(), || beginning(&clock));
        let error = refused.err().expect("refused");
        assert!(
            matches!(&error, StartError::Recover(LogError::Disk(error)) if error.is_out_of_descriptors()),
            "{after}: {error:?}"
        );
        disk.disarm();
        let (_, report) = start(disk);
        assert_eq!(report.snapshot, Some(newest));
        assert!(report.snapshots_unreadable.is_empty());
    }
}

/// A start went on without the newest snapshot, which did not verify, and without what the log had lost
/// of what that was made of. Should it verify the next time, it must not put all that under what was
/// written since.
#[test]
fn a_snapshot_that_a_start_did_without_for_good_is_set_aside() {
    let ([newest, older], disk) = damaged_between_snapshots("lost");
    let misread = Fault::Misread {
        damage: Damage::FlippedBit,
        lasting: false,
        seed: 1,
    };
    disk.fail(DiskOperation::Read, 0, misread);
    let (mut shard, report) = start(disk);
    assert_eq!(report.snapshot, Some(older));
    assert_eq!(report.snapshots_unreadable[0].0, newest);
    assert!(!report.damaged.is_empty());
    shard.run(send("q", text("kept"))).unwrap();
    let queues = shard.driver.machine().state_view().queues;
    let disk = shard.disk.crash(PowerCut::LoseAllUnsynced);
    drop(shard);
    let aside = format!("{:016x}-", newest.0);
    let is_it = |name: &String| name.starts_with(&aside) && name.ends_with(".snapshot-damaged");
    assert!(disk.image().keys().any(is_it), "nothing is thrown away");
    let (shard, report) = start(disk);
    assert_eq!(report.snapshot, Some(older));
    assert_eq!(shard.driver.machine().state_view().queues, queues);
}

/// All segments of the newest term are lost, and with them what they say of their epoch.
#[test]
fn no_term_comes_twice_when_only_a_snapshot_knows_the_last() {
    let shard = with_queue();
    let (first, disk) = (shard.driver.term(), shard.disk.kill());
    drop(shard);
    let before = disk.image();
    let (mut shard, _) = start(disk);
    pass_through(&mut shard);
    let _none = take_snapshot(&mut shard);
    let second = shard.driver.term();
    assert!(second.epoch > first.epoch);
    let mut image = shard.disk.kill().image();
    drop(shard);
    image.retain(|name, _| before.contains_key(name) || !name.ends_with(".log"));
    let accepting = EngineOptions {
        accept_loss: true,
        ..options()
    };
    let disk = FaultyDisk::from_image(image);
    let (shard, report) = Shard::start(disk, ManualClock::default(), &accepting);
    assert!(report.snapshot.is_some());
    assert_eq!(shard.driver.term().epoch, second.epoch.next());
    assert_eq!(report.term, shard.driver.term());
}

/// Lets the first byte through when it is told to.
struct Slow {
    begun: Option<mpsc::Sender<()>>,
    go_on: mpsc::Receiver<()>,
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(begun) = self.begun.take() {
            begun.send(()).unwrap();
            self.go_on.recv().unwrap();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Backup = Result<BackupReport, BackupError>;

/// A backup that has begun, and goes on when it is told.
async fn slow_backup(engine: &Engine) -> (JoinHandle<Backup>, mpsc::Sender<()>) {
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let backup = tokio::task::spawn_blocking({
        let engine = engine.clone();
        move || {
            let mut slow = Slow {
                begun: Some(begun),
                go_on: may_go_on,
            };
            engine.backup(&mut slow)
        }
    });
    tokio::task::spawn_blocking(move || has_begun.recv().unwrap())
        .await
        .unwrap();
    (backup, go_on)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_backup_reads_stays_until_it_has() {
    let shard = Watched::on(FaultyDisk::new(), ManualClock::default(), options());
    let engine = &shard.engine;
    let body = "x".repeat(50_000);
    let queue = create("q", QueueSettings::default());
    engine.submit(queue).await.unwrap();
    for _ in 0..100 {
        engine.submit(send("q", text(&body))).await.unwrap();
    }
    let (backup, go_on) = slow_backup(engine).await;
    let pass = async || {
        let batch = engine.receive(receive("q", 100), Duration::ZERO).await;
        for received in batch.unwrap().keep() {
            let ack = settle(received.delivery.token, SettleAction::Ack);
            engine.submit(ack).await.unwrap();
        }
        for _ in 0..30 {
            engine.submit(send("q", text(&body))).await.unwrap();
        }
    };
    let snapshots = || engine.metrics().maintenance.snapshots;
    let taken = snapshots();
    while snapshots() < taken + 3 {
        pass().await;
    }
    let released = || engine.metrics().maintenance.ranges_released;
    let before = released();
    go_on.send(()).unwrap();
    let report = backup.await.unwrap().unwrap();
    assert_eq!((report.messages, report.unreadable), (100, 0));
    // And with nobody reading, all that comes back.
    until(|| released() >= before + 4).await;
    engine.shutdown().await;
}

/// Once the engine has stopped, the log may be another owner's, who gives room back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_does_not_outlive_its_engine() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    let engine = &shard.engine;
    engine.submit(send("q", text("a"))).await.unwrap();
    let (backup, go_on) = slow_backup(engine).await;
    engine.shutdown().await;
    go_on.send(()).unwrap();
    let error = backup.await.unwrap().unwrap_err();
    assert!(matches!(error, BackupError::Stopped { .. }), "{error}");
}

/// Fills the queue and empties it, as a few segments of traffic.
async fn pass(engine: &Engine, body: &str) {
    for _ in 0..30 {
        engine.submit(send("q", text(body))).await.unwrap();
    }
    let batch = engine.receive(receive("q", 100), Duration::ZERO).await;
    for received in batch.unwrap().keep() {
        let ack = settle(received.delivery.token, SettleAction::Ack);
        engine.submit(ack).await.unwrap();
    }
}

/// Old snapshots go while the engine runs, which may be for months.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_snapshots_are_kept_beside_a_running_engine() {
    let shard = Watched::on(FaultyDisk::new(), ManualClock::default(), options());
    let engine = &shard.engine;
    let queue = create("q", QueueSettings::default());
    engine.submit(queue).await.unwrap();
    let body = "x".repeat(50_000);
    while engine.metrics().maintenance.snapshots < 6 {
        pass(engine, &body).await;
    }
    let snapshots = || {
        let files = shard.disk.image().into_keys();
        let snapshots = files.filter(|name| name.ends_with(".snapshot"));
        snapshots.count()
    };
    until(|| snapshots() == 2).await;
    engine.shutdown().await;
}

/// A log that loses all that is before its beginning is trimmed up to what lives or is about to be read,
/// and no further.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_gives_back_its_beginning_only_keeps_what_is_needed() {
    let shard = Watched::on_whole(options());
    let engine = &shard.engine;
    for queue in ["kept", "q"] {
        let queue = create(queue, QueueSettings::default());
        engine.submit(queue).await.unwrap();
    }
    let body = "x".repeat(50_000);
    let counts = || engine.metrics().maintenance;
    let pass_snapshots = async |more: u64| {
        let until = counts().snapshots + more;
        while counts().snapshots < until {
            pass(engine, &body).await;
        }
    };
    pass_snapshots(3).await;
    engine.submit(send("kept", text("kept"))).await.unwrap();
    let page = engine.peek(name("kept"), None, None, 1).await.unwrap();
    let kept = page.messages[0].status.location.position;
    pass_snapshots(4).await;
    let trimmed = shard.controls.trimmed();
    assert!(
        trimmed > Position::default() && trimmed <= kept,
        "{trimmed}"
    );

    shard.controls.hold_appends(true);
    let mut stuck = Box::pin(engine.submit(send("q", text("stuck"))));
    assert!(pending(stuck.as_mut()).await);
    let mut told = Box::pin(engine.receive(receive("kept", 1), Duration::ZERO));
    assert!(pending(told.as_mut()).await);
    shard.controls.hold_appends(false);
    stuck.await.unwrap();
    let queue = name("kept");
    engine
        .submit(Command::Purge(Purge { queue }))
        .await
        .unwrap();
    pass_snapshots(4).await;
    let trimmed = shard.controls.trimmed();
    assert!(trimmed <= kept, "{trimmed}");
    assert_eq!(told.await.unwrap()[0].stored.message.body, "kept");
    while shard.controls.trimmed() <= kept {
        pass_snapshots(1).await;
    }
    engine.shutdown().await;
}

/// Whoever was told where messages are may take his time to read them. Meanwhile they are moved, and the
/// segment they were in would go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_reader_was_told_stays_until_it_was_read() {
    for is_peek in [false, true] {
        let shard = Watched::on(FaultyDisk::new(), ManualClock::default(), options());
        let engine = &shard.engine;
        for queue in ["kept", "q"] {
            let queue = create(queue, QueueSettings::default());
            engine.submit(queue).await.unwrap();
        }
        engine.submit(send("kept", text("kept"))).await.unwrap();
        shard.controls.hold_appends(true);
        let told = async {
            if is_peek {
                let page = engine.peek(name("kept"), None, None, 1).await.unwrap();
                let stored = page.messages.into_iter().next().unwrap().stored;
                stored.expect("it can be read").message.body
            } else {
                let batch = engine.receive(receive("kept", 1), Duration::ZERO).await;
                let received = batch.unwrap().keep().pop().expect("it can be read");
                received.stored.message.body
            }
        };
        let mut told = Box::pin(told);
        // Stuck, so that it cannot be answered before it is left alone.
        let mut stuck = Box::pin(engine.submit(send("q", text("stuck"))));
        assert!(pending(stuck.as_mut()).await);
        assert!(pending(told.as_mut()).await);
        shard.controls.hold_appends(false);
        stuck.await.unwrap();
        let body = "x".repeat(50_000);
        let counts = || engine.metrics().maintenance;
        for passes in 0.. {
            assert!(passes < 200, "it is never moved: {:?}", counts());
            if counts().compacted_messages > 0 {
                break;
            }
            pass(engine, &body).await;
        }
        let until = counts().snapshots + 3;
        while counts().snapshots < until {
            pass(engine, &body).await;
        }
        assert_eq!(told.await, "kept");
        engine.shutdown().await;
    }
}

/// A snapshot that cannot be removed for a while goes later, whatever has failed beside it.
#[tokio::test]
async fn an_old_snapshot_that_cannot_be_removed_goes_later() {
    let options = EngineOptions {
        snapshot_bytes_min: 64 << 10,
        ..EngineOptions::default()
    };
    let disk = FaultyDisk::new();
    let shard = Watched::on(disk.clone(), ManualClock::default(), options);
    let queue = create("q", QueueSettings::default());
    shard.engine.submit(queue).await.unwrap();
    let another_snapshot = async || {
        let before = shard.engine.metrics().maintenance.snapshots;
        while shard.engine.metrics().maintenance.snapshots == before {
            let message = text(&"x".repeat(10_000));
            shard.engine.submit(send("q", message)).await.unwrap();
        }
    };
    let snapshots = || {
        let files = disk.image().into_keys();
        files.filter(|name| name.ends_with(".snapshot")).count()
    };
    let fault = Fault::Error(io::ErrorKind::Other);
    disk.fail_always(DiskOperation::Remove, 0, fault);
    while snapshots() < 5 {
        another_snapshot().await;
    }
    disk.disarm();
    another_snapshot().await;
    until(|| snapshots() == 2).await;
    shard.engine.shutdown().await;
}
