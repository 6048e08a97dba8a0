//! Backups, and logs made of them.

use std::{
    cell::Cell,
    collections::BTreeSet,
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use lockgate_core::{
    Clock as _, Epoch, Level, Location, Log, LogSource, MessageId, Position, ReadError,
};
use lockgate_engine::{
    BackupError, BackupReport, Driver, EngineOptions, RestoreError, RestoreReport, StartError,
    restore,
};
use lockgate_log::LocalLog;
use lockgate_machine::{
    Command, ImageLoader, Machine, MachineLimits, Purge, QueueSettings, SettleAction, StateView,
    decode_record, read_message,
};
use lockgate_sim::{FaultyDisk, PowerCut};

use crate::support::{
    Shard, Watched, at_level, beginning, create, keyed, local_log, name, receive, send, settle,
    text, unique, until,
};

/// Queues with messages in every state there is.
fn filled() -> Shard {
    let mut shard = Shard::new();
    let keys = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    let dead_letter = Some(name("dead"));
    let failing = QueueSettings {
        dead_letter,
        attempts_max: 1,
        ..keys.clone()
    };
    for (queue, settings) in [
        ("dead", keys.clone()),
        ("failing", failing),
        ("keys", keys),
        ("plain", QueueSettings::default()),
        ("purged", QueueSettings::default()),
    ] {
        shard.run(create(queue, settings)).unwrap();
    }
    // More than a segment.
    for number in 0..40 {
        let body = format!("message {number} {}", "x".repeat(number * 600));
        let key = format!("key-{}", number % 5);
        shard.run(send("keys", keyed(&body, &key))).unwrap();
        shard.run(send("failing", keyed(&body, &key))).unwrap();
        shard
            .run(send("plain", unique(&body, &format!("id-{number}"))))
            .unwrap();
        shard.run(send("purged", text(&body))).unwrap();
    }
    let later = text("later").with_due(shard.clock.wall().plus(600_000));
    shard.run(send("plain", later)).unwrap();
    for lease in shard.receive_now("keys", 7).into_iter().take(3) {
        shard.run(settle(lease.token, SettleAction::Ack)).unwrap();
    }
    for lease in shard.receive_now("failing", 3) {
        let reject = SettleAction::Reject { reason: None };
        shard.run(settle(lease.token, reject)).unwrap();
    }
    assert!(shard.driver.machine().totals().moved_out > 0);
    shard.receive_now("plain", 2);
    shard
        .run(Command::Purge(Purge {
            queue: name("purged"),
        }))
        .unwrap();
    shard
}

pub(crate) fn backup(shard: &mut Shard) -> (Vec<u8>, BackupReport) {
    let mut bytes = Vec::new();
    let now = shard.now();
    let report = shard.driver.backup(now, &mut bytes).unwrap();
    assert_eq!(report.bytes, bytes.len() as u64);
    (bytes, report)
}

pub(crate) fn restored(mut bytes: &[u8]) -> (FaultyDisk, RestoreReport) {
    let disk = FaultyDisk::new();
    let report = restore(&mut bytes, local_log(&disk), None).unwrap();
    (disk, report)
}

/// The state in the log's newest snapshot with what follows it.
fn load(log: &mut LocalLog) -> Machine {
    let store = log.snapshots();
    let newest = store.list().unwrap()[0];
    let mut loader = ImageLoader::new(MachineLimits {
        range_bits: log.capabilities().range_bits,
        ..MachineLimits::default()
    });
    let mut reader = store.open(newest).unwrap();
    while let Some(piece) = reader.next_piece().unwrap() {
        loader.piece(&piece).unwrap();
    }
    let mut machine = loader.finish().unwrap();
    log.recover(newest, Epoch(0), &mut |record, _| {
        machine.fold(&decode_record(&record.payload).unwrap(), record.position);
    })
    .unwrap();
    machine
}

/// Every message's id with its location, which are then equal for all machines.
fn take_locations(snapshot: &mut StateView) -> Vec<(MessageId, Location)> {
    let queues = snapshot.queues.values_mut();
    let messages = queues.flat_map(|queue| queue.messages.values_mut());
    let taken = messages.map(|message| (message.id, std::mem::take(&mut message.location)));
    taken.collect()
}

#[test]
fn a_restored_log_has_the_same_state_and_the_same_payloads() {
    let mut shard = filled();
    let (bytes, report) = backup(&mut shard);
    assert_eq!((report.messages, report.unreadable), (121 - 3, 0));
    let (disk, report) = restored(&bytes);
    assert_eq!(
        (report.queues, report.messages, report.dropped),
        (5, 118, 0)
    );

    let mut log = local_log(&disk);
    let machine = load(&mut log);
    let mut after = machine.state_view();
    let mut before = shard.driver.machine().state_view();
    let (was, is) = (take_locations(&mut before), take_locations(&mut after));
    assert_eq!(after, before);
    let (old, new) = (shard.driver.reader(), log.reader());
    assert_eq!(was.len(), 118);
    for ((id, was), (same, is)) in was.into_iter().zip(is) {
        assert_eq!(id, same);
        let was = read_message(&old.read(was.position).unwrap(), was.part).unwrap();
        let is = read_message(&new.read(is.position).unwrap(), is.part).unwrap();
        assert_eq!((is.id, is.message), (was.id, was.message));
    }
    let lives = machine.live_ranges().map(|(_, live)| live.messages);
    assert_eq!(lives.sum::<u64>(), 118);
}

/// What two timelines give out never collides: the restored one begins above the epoch of the backup.
#[test]
fn a_restored_log_is_owned_above_the_epoch_of_the_backup() {
    let mut shard = filled();
    let epoch = shard.driver.term().epoch;
    let (disk, _) = restored(&backup(&mut shard).0);
    let mut log = local_log(&disk);
    let found = log.recover(log.snapshots().list().unwrap()[0], Epoch(0), &mut |_, _| {});
    assert!(found.unwrap().epoch > epoch);
}

#[test]
fn a_log_with_anything_in_it_is_refused_and_stays() {
    let mut shard = filled();
    let (bytes, _) = backup(&mut shard);
    let (disk, _) = restored(&bytes);
    let error = restore(&mut &bytes[..], local_log(&disk), None).unwrap_err();
    assert!(matches!(error, RestoreError::NotEmpty), "{error}");
    assert_eq!(load(&mut local_log(&disk)).state_view().queues.len(), 5);
    // Also one in which there is nothing but a first start.
    let empty = Shard::new().disk.kill();
    let error = restore(&mut &bytes[..], local_log(&empty), None).unwrap_err();
    assert!(matches!(error, RestoreError::NotEmpty), "{error}");
    // One that was begun and no more, a snapshot that lost its log, and what cannot be read.
    let begun = FaultyDisk::new();
    let mut log = local_log(&begun);
    log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
    log.begin_epoch(Epoch(1)).unwrap();
    drop(log);
    let mut image = disk.image();
    image.retain(|name, _| name.ends_with(".snapshot"));
    let alone = FaultyDisk::from_image(image);
    let noise = ("00000002.log".to_owned(), vec![0xa5; 1 << 20]);
    let unreadable = FaultyDisk::from_image([noise].into());
    for disk in [begun, alone, unreadable] {
        let error = restore(&mut &bytes[..], local_log(&disk), None).unwrap_err();
        assert!(matches!(error, RestoreError::NotEmpty), "{error}: {disk:?}");
    }
}

/// It is told as done, so a power cut takes nothing of it.
#[test]
fn a_restored_log_survives_a_power_cut() {
    let mut shard = filled();
    let (disk, _) = restored(&backup(&mut shard).0);
    let disk = disk.crash(PowerCut::LoseAllUnsynced);
    let (shard, report) = Shard::start(disk, shard.clock.clone(), &EngineOptions::default());
    assert_eq!((report.messages, report.damaged.len()), (118, 0));
    let reader = shard.driver.reader();
    for (id, place) in take_locations(&mut shard.driver.machine().state_view()) {
        let record = reader.read(place.position).unwrap();
        assert_eq!(read_message(&record, place.part).unwrap().id, id);
    }
}

/// Its records are of no use without its snapshot, and no more an unfinished restore.
#[test]
fn a_restored_log_without_its_snapshot_is_refused_as_that() {
    let mut shard = filled();
    let (disk, _) = restored(&backup(&mut shard).0);
    let mut image = disk.image();
    image.retain(|name, _| !name.ends_with(".snapshot"));
    let log = local_log(&FaultyDisk::from_image(image));
    let options = EngineOptions::default();
    let refused = Driver::<u64>::recover(log, &options, || beginning(&shard.clock));
    let error = refused.err().expect("refused");
    assert!(matches!(error, StartError::NoSnapshot { .. }), "{error:?}");
}

/// Reads a few bytes at a time, as a pipe may.
struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.0.len()).min(7);
        buffer[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

#[test]
fn a_backup_may_come_through_a_pipe() {
    let mut shard = filled();
    let (bytes, _) = backup(&mut shard);
    let disk = FaultyDisk::new();
    let report = restore(&mut Slow(&bytes), local_log(&disk), None).unwrap();
    assert_eq!(report.messages, 118);
}

/// Cut anywhere, or with any byte changed, it is refused: never restored in part.
#[test]
fn a_cut_or_changed_backup_is_refused() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    for body in ["one", "two"] {
        shard.run(send("q", text(body))).unwrap();
    }
    let (bytes, _) = backup(&mut shard);
    let begun = Cell::new(0);
    let refused = |bytes: &[u8], what: String| {
        let disk = FaultyDisk::new();
        let outcome = restore(&mut &*bytes, local_log(&disk), None);
        let error = outcome.expect_err(&what);
        let said = matches!(error, RestoreError::Damaged { .. } | RestoreError::NoBackup);
        assert!(said, "{what}: {error}");
        let snapshots = local_log(&disk).snapshots().list().unwrap();
        assert_eq!(snapshots, [], "{what}");
        let mut log = local_log(&disk);
        let found = log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
        drop(log);
        if found.epoch > Epoch(0) {
            // Nobody may take what was written for empty queues.
            let started =
                Driver::<u64>::recover(local_log(&disk), &EngineOptions::default(), || {
                    beginning(&shard.clock)
                });
            let is_refused = matches!(started, Err(StartError::UnfinishedRestore));
            assert!(is_refused, "{what}: started");
            begun.set(begun.get() + 1);
        }
    };
    for len in 0..bytes.len() {
        refused(&bytes[..len], format!("cut at {len}"));
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        refused(&changed, format!("changed at {at}"));
    }
    let mut longer = bytes.clone();
    longer.push(0);
    refused(&longer, "longer".to_owned());
    assert!(begun.get() > 100, "{begun:?}");
}

#[test]
fn a_newer_backup_is_refused_by_its_version() {
    let mut shard = Shard::new();
    let (mut bytes, _) = backup(&mut shard);
    bytes[8..12].copy_from_slice(&3_u32.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..36]);
    bytes[36..40].copy_from_slice(&sum.to_le_bytes());
    let disk = FaultyDisk::new();
    let error = restore(&mut &bytes[..], local_log(&disk), None).unwrap_err();
    assert!(error.to_string().contains("format version 3"), "{error}");
    assert!(matches!(error, RestoreError::NewerFormat { .. }), "{error}");
}

/// A message whose payload is damaged cannot be backed up. The rest can, and the restored queue does
/// not hold a message that nobody could ever receive.
#[test]
fn what_cannot_be_read_is_counted_and_dropped() {
    let mut shard = filled();
    let mut snapshot = shard.driver.machine().state_view();
    let lost = take_locations(&mut snapshot)[60].1.position;
    damage(&shard.disk, lost);
    let read = shard.driver.reader().read(lost);
    assert!(matches!(read, Err(ReadError::Damaged { .. })), "{read:?}");
    let (bytes, report) = backup(&mut shard);
    assert_eq!((report.messages, report.unreadable), (117, 1));
    let (disk, report) = restored(&bytes);
    assert_eq!((report.messages, report.dropped), (117, 1));
    let mut log = local_log(&disk);
    let machine = load(&mut log);
    let mut snapshot = machine.state_view();
    assert_eq!(machine.totals().dropped.damaged, 1);
    assert_eq!(take_locations(&mut snapshot).len(), 117);
}

/// Changes a byte of the payload of the record at that position.
fn damage(disk: &FaultyDisk, at: Position) {
    use lockgate_core::{Disk as _, OpenMode};
    let segment = format!("{:08x}.log", at.0 >> 32);
    let file = disk.open(&segment, OpenMode::Existing).unwrap();
    let offset = (at.0 & u64::from(u32::MAX)) + 50;
    let mut byte = [0];
    file.read_at(&mut byte, offset).unwrap();
    file.write_at(&[byte[0] ^ 1], offset).unwrap();
}

/// What the callers of one key know.
#[derive(Default)]
struct Known {
    /// Answered before the backup was asked for.
    sent: Vec<String>,
    /// Acks that were asked for before the backup was written, whether answered or not.
    acked: BTreeSet<String>,
}

/// Every message that was answered before the backup began and was not acked is in it, with its body,
/// and messages of a key keep their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_under_load_has_all_that_was_answered() {
    let keys = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    let shard = Watched::with_queue(keys).await;
    let engine = shard.engine.clone();
    let (begun, written) = (AtomicBool::new(false), AtomicBool::new(false));
    let flags = Arc::new((begun, written));
    let mut callers = Vec::new();
    for key in 0..8 {
        let (engine, flags) = (engine.clone(), flags.clone());
        callers.push(tokio::spawn(async move {
            let mut known = Known::default();
            let mut number = 0;
            while !flags.1.load(SeqCst) {
                let body = format!("{key} {number:08} {}", "x".repeat(number % 300));
                let message = keyed(&body, &format!("key-{key}"));
                engine.submit(send("q", message)).await.unwrap();
                if !flags.0.load(SeqCst) {
                    known.sent.push(body);
                }
                number += 1;
                if number.is_multiple_of(3) {
                    let batch = engine.receive(receive("q", 1), Duration::ZERO).await;
                    for received in batch.unwrap().keep() {
                        let body = received.stored.message.body.to_vec();
                        known.acked.insert(String::from_utf8(body).unwrap());
                        let ack = settle(received.delivery.token, SettleAction::Ack);
                        engine.submit(ack).await.unwrap();
                    }
                }
            }
            known
        }));
    }
    let counted = || engine.metrics().commands > 4_000;
    until(counted).await;
    let bytes = tokio::task::spawn_blocking({
        let (engine, flags) = (engine.clone(), flags.clone());
        move || {
            let mut bytes = Vec::new();
            flags.0.store(true, SeqCst);
            let report = engine.backup(&mut bytes).unwrap();
            flags.1.store(true, SeqCst);
            assert_eq!(report.unreadable, 0);
            bytes
        }
    });
    let bytes = bytes.await.unwrap();
    let (mut sent, mut acked) = (Vec::new(), BTreeSet::new());
    for caller in callers {
        let known = caller.await.unwrap();
        sent.extend(known.sent);
        acked.extend(known.acked);
    }
    engine.shutdown().await;

    let (disk, _) = restored(&bytes);
    let mut log = local_log(&disk);
    let machine = load(&mut log);
    let queue = machine.state_view().queues.remove(&name("q")).unwrap();
    let reader = log.reader();
    let body = |location: Location| {
        let record = reader.read(location.position).unwrap();
        let stored = read_message(&record, location.part).unwrap();
        String::from_utf8(stored.message.body.to_vec()).unwrap()
    };
    let mut there = BTreeSet::new();
    for (key, state) in &queue.keys {
        let order = state.order.iter();
        let bodies: Vec<_> = order
            .map(|sequence| body(queue.messages[sequence].location))
            .collect();
        assert!(bodies.is_sorted(), "{key:?}");
        there.extend(bodies);
    }
    for body in &sent {
        assert!(there.contains(body) || acked.contains(body), "{body}");
    }
    assert!(sent.len() > 1_000 && there.len() > 500);
}

/// What a backup holds must be true whatever happens to the shard it was taken from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_holds_nothing_that_a_power_cut_could_take() {
    struct Told(mpsc::Sender<()>);

    impl io::Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(()).map_err(|_gone| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let shard = Watched::with_queue(at_level(Level::Process)).await;
    let syncs = shard.controls.syncs();
    shard.controls.hold_syncs(true);
    shard.engine.submit(send("q", text("a"))).await.unwrap();
    let (told, written) = mpsc::channel();
    let backup = tokio::task::spawn_blocking({
        let engine = shard.engine.clone();
        move || engine.backup(&mut Told(told)).unwrap()
    });
    shard.controls.wait_for_syncs(syncs + 1);
    // Another question to the owner, behind the backup's.
    assert_eq!(shard.engine.metrics().maintenance.snapshots, 0);
    assert!(written.try_recv().is_err(), "nothing is written yet");
    shard.controls.hold_syncs(false);
    assert_eq!(backup.await.unwrap().messages, 1);
    assert!(written.try_recv().is_ok());
    shard.engine.shutdown().await;
}

#[tokio::test]
async fn a_stopped_engine_gives_no_backup() {
    let shard = Watched::with_queue(QueueSettings::default()).await;
    shard.engine.shutdown().await;
    let error = shard.engine.backup(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, BackupError::Stopped { .. }), "{error}");
}

/// Whoever takes a backup and goes away ends it, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_cannot_be_written_ends() {
    struct Full(usize);

    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = (self.0.checked_sub(bytes.len())).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let shard = Watched::with_queue(QueueSettings::default()).await;
    let bytes = shard.engine.backup(&mut Vec::new()).unwrap().bytes;
    let nearly = usize::try_from(bytes).unwrap() - 1;
    for room in [0, 50, nearly] {
        let error = shard.engine.backup(&mut Full(room)).unwrap_err();
        assert!(matches!(error, BackupError::Write(_)), "{error}");
    }
    shard.engine.submit(send("q", text("more"))).await.unwrap();
    shard.engine.shutdown().await;
}

/// A restore that was broken off leaves nothing that could be taken for empty queues.
#[test]
fn a_start_on_an_unfinished_restore_is_refused() {
    let mut shard = filled();
    for number in 0..100 {
        let body = format!("{number}").repeat(20_000);
        shard.run(send("plain", text(&body))).unwrap();
    }
    let (bytes, _) = backup(&mut shard);
    let disk = FaultyDisk::new();
    // More than is appended together has come by then.
    let cut = &bytes[..bytes.len() - 1];
    restore(&mut &*cut, local_log(&disk), None).unwrap_err();
    let mut log = local_log(&disk);
    let records = log
        .recover(Position(0), Epoch(0), &mut |_, _| {})
        .unwrap()
        .records;
    drop(log);
    let started = Driver::<u64>::recover(local_log(&disk), &EngineOptions::default(), || {
        beginning(&shard.clock)
    });
    match started {
        Err(StartError::UnfinishedRestore) => {}
        Ok((_, report)) => panic!("{records} records, started: {report:?}"),
        Err(error) => panic!("{error}"),
    }
}
