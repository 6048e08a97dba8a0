//! Snapshots, space that comes back, and messages that are moved forward.

use std::sync::Arc;

use lockgate_core::{Epoch, Log, LogSource, LogSpace, Position, QueueName, SnapshotStore};
use lockgate_engine::{Driver, EngineOptions, StartError, TaskStep, Work};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{
    Command, Move, MoveTo, Purge, QueueSettings, SettleAction, StateView, read_message,
};
use lockgate_sim::{FaultyDisk, ManualClock, SeededRandom};

use crate::support::{
    Shard, beginning, create, keyed, local_log, name, send, settle, text, unique,
};

const SEGMENT: u64 = 1 << 20;
/// What the log keeps for the work that goes on while the disk is full.
const RESERVE: u64 = 3 * SEGMENT;
/// Two snapshots of little.
const SNAPSHOTS: u64 = 128 << 10;

pub(crate) fn options() -> EngineOptions {
    EngineOptions {
        snapshot_bytes_min: SEGMENT,
        ..EngineOptions::default()
    }
}

impl Shard {
    fn small() -> Self {
        let mut shard = Self::with_options(&options());
        shard.run(create("q", QueueSettings::default())).unwrap();
        shard
    }

    /// Does all that there is to do.
    pub(crate) fn keep(&mut self) {
        self.sync();
        for _ in 0..10_000 {
            let now = self.now();
            let Some(mut task) = self.driver.next_task(now).unwrap() else {
                let log_maintenance = self.driver.log_maintenance().expect("a local log has some");
                log_maintenance.catch_up().unwrap();
                return;
            };
            let outcome = loop {
                match task.step(self.durable) {
                    Ok(TaskStep::More) => {}
                    Ok(TaskStep::WaitDurable(position)) => {
                        assert!(position > self.durable);
                        self.sync();
                    }
                    Ok(TaskStep::Commands(commands)) => {
                        self.group(commands.into_iter().map(Work::from));
                    }
                    Ok(TaskStep::Done) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            self.sync();
            let rest = self.driver.finish_task(task, outcome, now);
            let store = self.store();
            for position in rest.snapshots {
                store.remove(position).unwrap();
            }
        }
        panic!("maintenance finds no end");
    }

    fn store(&self) -> std::sync::Arc<dyn SnapshotStore> {
        self.driver.snapshots()
    }

    fn space(&self) -> LogSpace {
        self.driver.space()
    }

    /// Bytes that hold something.
    fn held(&self) -> u64 {
        self.space().used_bytes - self.space().ready_bytes
    }

    fn fill(&mut self, messages: u64) {
        let body = "x".repeat(1_000);
        for first in (0..messages).step_by(100) {
            let batch = (first..messages.min(first + 100))
                .map(|number| send("q", text(&format!("{number:08} {body}"))));
            self.group([Work::Commands(batch.collect())]);
            self.keep();
        }
    }

    /// Receives so many and acknowledges those that `chosen` says; the others go back.
    fn settle_some(&mut self, count: u64, mut chosen: impl FnMut() -> bool) -> u64 {
        let (mut settled, mut left) = (0, count);
        while left > 0 {
            let leases = self.receive_now("q", u16::try_from(left.min(100)).unwrap());
            if leases.is_empty() {
                break;
            }
            left -= leases.len() as u64;
            let settles: Vec<_> = leases
                .iter()
                .filter(|_| chosen())
                .map(|lease| settle(lease.token, SettleAction::Ack))
                .collect();
            settled += settles.len() as u64;
            self.group([Work::Commands(settles.into())]);
            self.keep();
        }
        settled
    }

    fn state(&self) -> StateView {
        self.driver.machine().state_view()
    }

    /// Every payload is where the machine says it is.
    fn check_payloads(&self) {
        let reader = self.driver.reader();
        for queue in self.state().queues.into_values() {
            for (sequence, message) in queue.messages {
                let record = reader.read(message.location.position).unwrap();
                let stored = read_message(&record, message.location.part).unwrap();
                assert_eq!((stored.id, stored.sequence), (message.id, sequence));
            }
        }
    }

    pub(crate) fn restarted(self) -> (Self, lockgate_engine::StartReport) {
        let disk = self.disk.kill();
        let clock = self.clock.clone();
        drop(self);
        Self::start(disk, clock, &options())
    }
}

#[test]
fn a_start_reads_the_newest_snapshot_and_what_was_appended_since() {
    let mut shard = Shard::small();
    shard.fill(5_000);
    shard.settle_some(2_000, || true);
    let before = shard.state();
    let snapshots = shard.store().list().unwrap();
    assert_eq!(snapshots.len(), 2);
    let (shard, report) = shard.restarted();
    assert_eq!(shard.state().queues, before.queues);
    assert_eq!(report.snapshot, Some(snapshots[0]));
    assert!(report.bytes < 2 * SEGMENT, "{report:?}");
    shard.check_payloads();
}

#[test]
fn a_drained_log_keeps_its_reserve_and_two_segments() {
    let mut shard = Shard::small();
    shard.fill(20_000);
    let peak = shard.held();
    assert!(peak > 18 * SEGMENT, "{peak}");
    shard.settle_some(u64::MAX, || true);
    shard.keep();
    let held = shard.space().used_bytes;
    let most = RESERVE + 2 * SEGMENT + SNAPSHOTS;
    assert!(held <= most, "{held} of {peak}");
    let (mut shard, _) = shard.restarted();
    shard.keep();
    let held = shard.space().used_bytes;
    assert!(held <= most, "{held} after a start");
}

/// The ids of all that went are remembered, so that a snapshot is as large as a part of the log.
#[test]
fn a_drained_log_that_remembers_ids_keeps_no_more() {
    let mut shard = Shard::small();
    let body = "x".repeat(200);
    for first in (0..20_000).step_by(100) {
        let batch = (first..first + 100).map(|number| {
            let message = unique(&body, &format!("id-{number}"));
            send("q", message)
        });
        shard.group([Work::Commands(batch.collect())]);
        shard.keep();
    }
    shard.settle_some(u64::MAX, || true);
    shard.keep();
    let image = shard.driver.machine().image_bytes();
    assert!(image > SEGMENT / 2, "{image}");
    let held = shard.space().used_bytes;
    let most = RESERVE + 2 * SEGMENT + 2 * image + SNAPSHOTS;
    assert!(held <= most, "{held} of {most}");
}

/// With the options that a server has.
#[test]
fn a_small_log_of_usual_options_takes_what_it_holds_and_drained_64_mib() {
    let disk = FaultyDisk::new();
    let log = LocalLog::open(Arc::new(disk.clone()), LocalLogOptions::default()).unwrap();
    let usual = EngineOptions::default();
    let (mut shard, _) = Shard::start_over(log, disk, ManualClock::default(), &usual);
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.keep();
    let used = shard.space().used_bytes;
    assert!(used <= 2 * SEGMENT, "{used} where nothing is");
    shard.fill(10_000);
    let used = shard.space().used_bytes;
    assert!(used <= 64 * SEGMENT, "{used} for 10 MiB");
    shard.fill(90_000);
    let peak = shard.space().used_bytes;
    assert!(peak <= 160 * SEGMENT, "{peak} for 100 MiB");
    shard.settle_some(u64::MAX, || true);
    shard.keep();
    let used = shard.space().used_bytes;
    assert!(used <= 64 * SEGMENT, "{used} of {peak}");
}

/// A large snapshot takes long, and what empties meanwhile need not wait for its end.
#[test]
fn ranges_come_back_while_a_task_is_out() {
    let mut shard = Shard::small();
    shard.fill(8_000);
    let ranges = shard.driver.maintenance_counts().ranges;
    assert!(ranges >= 8, "{ranges}");
    let mut task = None;
    while task.is_none() {
        let body = "x".repeat(50_000);
        shard.group([Work::from(send("q", text(&body)))]);
        shard.sync();
        let now = shard.now();
        task = shard.driver.next_task(now).unwrap();
    }
    let released = |shard: &Shard| shard.driver.maintenance_counts().ranges_released;
    let before = released(&shard);
    for _ in 0..40 {
        let leases = shard.receive_now("q", 100);
        let acks = leases.iter().map(|it| settle(it.token, SettleAction::Ack));
        shard.group([Work::Commands(acks.collect())]);
        shard.sync();
    }
    // What emptied them is to be durable.
    for _ in 0..2 {
        shard.sync();
        let now = shard.now();
        shard.driver.give_back(now).unwrap();
    }
    assert!(
        released(&shard) >= before + 3,
        "{}",
        released(&shard) - before
    );
    shard.check_payloads();
}

#[test]
fn a_log_that_is_purged_and_then_left_alone_keeps_no_more() {
    let mut shard = Shard::small();
    shard.fill(20_000);
    let appended = |shard: &Shard| shard.driver.counts().records;
    let before = appended(&shard);
    let queue = QueueName::new("q").unwrap();
    shard.run(Command::Purge(Purge { queue })).unwrap();
    while shard.driver.housekeep(1_000).is_unfinished() {}
    shard.keep();
    let held = shard.space().used_bytes;
    let most = RESERVE + 2 * SEGMENT + SNAPSHOTS;
    assert!(held <= most, "{held}");
    // The purge, and one that is there for the second snapshot.
    assert_eq!(appended(&shard) - before, 2);
    shard.keep();
    assert_eq!(appended(&shard) - before, 2);
    // A start goes on in a new segment. The one before it comes back, after two snapshots.
    let (mut shard, _) = shard.restarted();
    for _ in 0..3 {
        shard.keep();
        assert_eq!(appended(&shard), 2);
    }
    let held = shard.space().used_bytes;
    assert!(held <= most, "{held} after a start");
}

/// The same where there was no snapshot yet.
#[test]
fn a_young_log_that_is_purged_and_then_left_alone_keeps_no_more() {
    let mut shard = Shard::with_options(&EngineOptions {
        snapshot_bytes_min: 64 * SEGMENT,
        ..options()
    });
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.fill(20_000);
    assert_eq!(shard.store().list().unwrap(), []);
    let queue = QueueName::new("q").unwrap();
    shard.run(Command::Purge(Purge { queue })).unwrap();
    while shard.driver.housekeep(1_000).is_unfinished() {}
    shard.keep();
    let held = shard.space().used_bytes;
    assert!(held <= RESERVE + 2 * SEGMENT + SNAPSHOTS, "{held}");
}

#[test]
fn half_drained_in_order_a_log_is_a_good_half_as_large() {
    let mut shard = Shard::small();
    shard.fill(20_000);
    let peak = shard.held();
    shard.settle_some(10_000, || true);
    let held = shard.held();
    assert!(held * 100 <= peak * 60, "{held} of {peak}");
    shard.check_payloads();
}

#[test]
fn half_drained_at_random_a_log_shrinks_by_moving_messages() {
    let mut shard = Shard::small();
    shard.fill(20_000);
    let peak = shard.held();
    let mut random = SeededRandom::new(7);
    let settled = shard.settle_some(20_000, || random.below(2) == 0);
    assert!((9_000..11_000).contains(&settled));
    shard.keep();
    let held = shard.held();
    assert!(held * 100 <= peak * 70, "{held} of {peak}");
    assert!(shard.driver.maintenance_counts().compacted_messages > 1_000);
    shard.check_payloads();
    let before = shard.state();
    let (shard, _) = shard.restarted();
    assert_eq!(shard.state().queues, before.queues);
    shard.check_payloads();
}

#[test]
fn steady_churn_writes_less_than_half_as_much_again() {
    let mut shard = Shard::small();
    let live = 8_000;
    shard.fill(live);
    let mut random = SeededRandom::new(11);
    let body = "x".repeat(1_000);
    let (counts, maintenance) = (shard.driver.counts(), shard.driver.maintenance_counts());
    let mut accepted = 0;
    for round in 0..1_000 {
        // Half of what is received goes back: what dies is spread over all ages.
        let settled = shard.settle_some(200, || random.below(2) == 0);
        let batch = (0..settled).map(|n| send("q", text(&format!("{round} {n} {body}"))));
        shard.group([Work::Commands(batch.collect())]);
        accepted += settled * 1_000;
        shard.keep();
    }
    let written = shard.driver.counts().bytes - counts.bytes;
    let snapshots = shard.driver.maintenance_counts().snapshot_bytes - maintenance.snapshot_bytes;
    let compacted = shard.driver.maintenance_counts().compacted_bytes - maintenance.compacted_bytes;
    let own = written - compacted;
    assert!(compacted > 0 && own >= accepted);
    let percent = (written + snapshots) * 100 / own;
    assert!(
        percent < 150,
        "{percent}: {own} own, {compacted} compacted, {snapshots} snapshots"
    );
    let held = shard.held();
    assert!(held < 3 * live * 1_100, "{held}");
    shard.check_payloads();
}

#[test]
fn a_snapshot_is_complete_only_when_the_log_is_durable_up_to_it() {
    let mut shard = Shard::small();
    let body = "x".repeat(60_000);
    for _ in 0..20 {
        shard.group([Work::from(send("q", text(&body)))]);
    }
    // Written, and not synced.
    let now = shard.now();
    let mut task = shard.driver.next_task(now).unwrap().expect("a snapshot");
    let position = loop {
        match task.step(shard.durable).unwrap() {
            TaskStep::More => {}
            TaskStep::WaitDurable(position) => break position,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(position, shard.driver.tail());
    assert_eq!(shard.store().list().unwrap(), []);
    shard.sync();
    assert!(matches!(task.step(shard.durable), Ok(TaskStep::Done)));
    assert_eq!(shard.store().list().unwrap(), [position]);
}

/// The disk, with one bit of that snapshot flipped.
fn damage(disk: &FaultyDisk, position: Position) -> FaultyDisk {
    let prefix = format!("{:016x}-", position.0);
    let mut image = disk.image();
    let is_it = |name: &String| name.starts_with(&prefix) && name.ends_with(".snapshot");
    let name = image.keys().find(|name| is_it(name)).unwrap().clone();
    let bytes = image.get_mut(&name).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    FaultyDisk::from_image(image)
}

#[test]
fn a_damaged_snapshot_costs_nothing_and_two_are_an_error_that_says_so() {
    let mut shard = Shard::small();
    shard.fill(5_000);
    shard.settle_some(1_000, || true);
    let before = shard.state();
    let snapshots = shard.store().list().unwrap();
    let disk = shard.disk.kill();
    drop(shard);
    let disk = damage(&disk, snapshots[0]);
    let (shard, report) = Shard::start(disk, ManualClock::default(), &options());
    assert_eq!(shard.state().queues, before.queues);
    assert_eq!(report.snapshot, Some(snapshots[1]));
    assert_eq!(report.snapshots_unreadable.len(), 1);
    assert!(!report.is_clean());
    shard.check_payloads();
    let disk = shard.disk.kill();
    drop(shard);
    let disk = damage(&disk, snapshots[1]);
    let clock = ManualClock::default();
    let refused = Driver::<u64>::recover(local_log(&disk), &options(), || beginning(&clock));
    let error = refused.err().expect("refused");
    assert!(matches!(error, StartError::NoSnapshot { .. }), "{error:?}");
    assert!(error.to_string().contains("restore a backup"), "{error}");
}

/// What was moved once is moved again, as often as its segment is nearly empty.
#[test]
fn a_message_is_moved_forward_again_and_again() {
    let mut shard = Shard::small();
    let later = shard.now().wall.plus(3_600_000);
    shard.run(send("q", text("kept").with_due(later))).unwrap();
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..20 {
        shard.fill(2_500);
        shard.settle_some(u64::MAX, || true);
        let queues = shard.state().queues.into_values();
        let mut messages = queues.flat_map(|queue| queue.messages.into_values());
        places.insert(messages.next().unwrap().location.position.0 >> 32);
    }
    assert!(places.len() > 3, "{places:?}");
    shard.check_payloads();
}

/// A stop in good order adds one, and takes the one away that it makes unneeded.
#[test]
fn two_snapshots_are_kept_however_often_it_is_stopped() {
    let mut shard = Shard::with_options(&EngineOptions::default());
    shard.run(create("q", QueueSettings::default())).unwrap();
    let body = "x".repeat(1_000);
    for stops in 1..=4 {
        for _ in 0..50 {
            let batch = (0..100).map(|_| send("q", text(&body)));
            shard.group([Work::Commands(batch.collect())]);
        }
        shard.sync();
        let now = shard.now();
        assert!(shard.driver.final_snapshot(now).unwrap());
        let files = shard.disk.image().into_keys();
        let snapshots = files.filter(|name| name.ends_with(".snapshot"));
        assert_eq!(snapshots.count(), stops.min(2));
        let (disk, clock) = (shard.disk.kill(), shard.clock.clone());
        drop(shard);
        shard = Shard::start(disk, clock, &EngineOptions::default()).0;
    }
}

/// A snapshot of a later version, be it the file's or the state's in it, is not passed over for an older
/// one: that would undo what came since.
#[test]
fn a_snapshot_of_a_newer_version_refuses_the_start() {
    let mut shard = Shard::small();
    shard.fill(5_000);
    let newest = shard.store().list().unwrap()[0];
    let disk = shard.disk.kill();
    drop(shard);
    let mut file_newer = disk.image();
    let prefix = format!("{:016x}-", newest.0);
    let is_it = |name: &String| name.starts_with(&prefix) && name.ends_with(".snapshot");
    let name = file_newer.keys().find(|name| is_it(name)).unwrap().clone();
    let bytes = file_newer.get_mut(&name).unwrap();
    bytes[8] += 1;
    let sum = crc32c::crc32c(&bytes[..28]);
    bytes[28..32].copy_from_slice(&sum.to_le_bytes());

    let mut log = local_log(&disk);
    let epoch = log.recover(newest, Epoch(0), &mut |_, _| {}).unwrap().epoch;
    log.begin_epoch(epoch.next()).unwrap();
    let mut snapshot = log.begin_snapshot().unwrap();
    snapshot.write(b"LOCKGIMG\x02\0\0\0").unwrap();
    snapshot.finish().unwrap();
    drop(log);
    for image in [file_newer, disk.image()] {
        let disk = FaultyDisk::from_image(image.clone());
        let clock = ManualClock::default();
        let log = local_log(&disk);
        let refused = Driver::<u64>::recover(log, &options(), || beginning(&clock));
        let error = refused.err().expect("refused");
        let said = lockgate_core::with_sources(&error);
        assert!(said.contains("version"), "{said}");
        assert!(disk.image() == image, "nothing was changed");
    }
}

/// A file before the snapshot is not missed by recovery, which reads none of it. What has its bytes
/// there is: the start is refused until the file is back, or the loss is accepted.
#[test]
fn a_start_without_a_part_of_the_log_is_refused_until_the_loss_is_accepted() {
    let mut shard = Shard::small();
    shard.fill(5_000);
    let (first, live) = shard.driver.machine().live_ranges().next().unwrap();
    let messages = shard.driver.machine().messages_in(|_| true).count() as u64;
    let (whole, report) = shard.restarted();
    assert!(report.snapshot.is_some() && report.is_clean(), "{report:?}");
    let whole = whole.disk.kill().image();
    let file = format!("{:08x}.log", first.0 >> 32);
    let mut image = whole.clone();
    image.remove(&file).unwrap();

    let disk = FaultyDisk::from_image(image.clone());
    let error = refusal(&disk);
    let StartError::Missing { parts, .. } = &error else {
        panic!("{error:?}");
    };
    let part = &parts[0];
    assert_eq!((parts.len(), part.from, &part.name), (1, first, &file));
    assert_eq!(part.queues, [(name("q"), live.messages)]);
    assert!(!part.holds_records && !part.may_be_given_back, "{part:?}");
    let said = error.to_string();
    let told = format!("{file} ({} messages: {0} of q)", live.messages);
    assert!(said.contains(&told), "{said}");
    assert!(disk.image() == image, "nothing was changed");

    // The file is back.
    let (shard, report) = Shard::start(
        FaultyDisk::from_image(whole),
        ManualClock::default(),
        &options(),
    );
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.messages, messages);
    drop(shard);

    let accepting = EngineOptions {
        accept_loss: true,
        ..options()
    };
    let (shard, report) = Shard::start(disk, ManualClock::default(), &accepting);
    assert_eq!(&report.missing, parts);
    assert_eq!(report.messages, messages - live.messages);
    assert!(report.damaged.is_empty() && !report.is_clean());
    let totals = shard.driver.machine().totals();
    assert_eq!(totals.dropped.damaged, live.messages);
    shard.check_payloads();
    // It need not be said again, and says nothing again.
    let (shard, report) = shard.restarted();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.messages, messages - live.messages);
    shard.check_payloads();
}

/// Records that no snapshot covers stood in the file: how many, the next file tells.
#[test]
fn a_start_without_records_behind_the_snapshot_is_refused_until_the_loss_is_accepted() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let body = "x".repeat(1_000);
    for _ in 0..30 {
        let batch = (0..100).map(|_| send("q", text(&body)));
        shard.group([Work::Commands(batch.collect())]);
    }
    shard.sync();
    let (whole, report) = shard.restarted();
    assert!(report.snapshot.is_none(), "{report:?}");
    let mut image = whole.disk.kill().image();
    image.remove("00000002.log").unwrap();
    let disk = FaultyDisk::from_image(image.clone());
    let error = refusal(&disk);
    let StartError::Missing { parts, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(parts.len(), 1);
    assert!(parts[0].holds_records && parts[0].messages == 0);
    let said = error.to_string();
    let told = "00000002.log (what was done since the last snapshot)";
    assert!(said.contains(told), "{said}");
    assert!(disk.image() == image, "nothing was changed");

    let accepting = EngineOptions {
        accept_loss: true,
        ..EngineOptions::default()
    };
    let (shard, report) = Shard::start(disk, ManualClock::default(), &accepting);
    assert_eq!(&report.missing, parts);
    assert!(report.damaged[0].records > 0, "{report:?}");
    shard.check_payloads();
    let (_, report) = shard.restarted();
    assert!(report.is_clean(), "{report:?}");
}

/// The file that is missing has the creation of queues: messages to them in the other files are of no use, and
/// the refusal and the start without the file count them. So are those that were moved from there.
#[test]
fn messages_to_queues_whose_creation_is_missing_are_counted() {
    let mut shard = Shard::new();
    for queue in ["gone", "gone-too", "emptied"] {
        shard.run(create(queue, QueueSettings::default())).unwrap();
    }
    let body = "x".repeat(1_000);
    let fill = |shard: &mut Shard, queue: &str, count: usize| {
        let batch = (0..count).map(|_| send(queue, text(&body)));
        shard.group([Work::Commands(batch.collect())]);
        shard.sync();
    };
    let tail = |shard: &Shard| shard.driver.tail().0 >> 32;
    while tail(&shard) == 1 {
        fill(&mut shard, "gone", 10);
    }
    shard.run(create("kept", QueueSettings::default())).unwrap();
    for queue in ["gone", "gone-too", "emptied", "kept"] {
        fill(&mut shard, queue, 40);
    }
    // Of what is left some is settled, moved and purged.
    let leases = shard.receive_now("gone-too", 7);
    for lease in leases {
        shard.run(settle(lease.token, SettleAction::Ack)).unwrap();
    }
    let move_all = |from: &str, to: &str| {
        Command::Move(Move {
            from: name(from),
            to: MoveTo::Queue(name(to)),
            max: 5,
            cursor: None,
        })
    };
    shard.run(move_all("gone-too", "kept")).unwrap();
    shard.run(move_all("kept", "gone-too")).unwrap();
    shard.run(move_all("emptied", "gone")).unwrap();
    let purge = Command::Purge(Purge {
        queue: name("emptied"),
    });
    shard.run(purge).unwrap();
    shard.sync();
    let (whole, report) = shard.restarted();
    assert!(report.snapshot.is_none() && report.is_clean(), "{report:?}");

    let queues = whole.driver.machine().state_view().queues;
    let left = |queue: &str| {
        let messages = queues[&name(queue)].messages.values();
        let in_others = messages.filter(|message| message.location.position.0 >> 32 > 1);
        in_others.count() as u64
    };
    // What is moved out of a known queue into an unknown one stays where it was.
    let lost = left("gone") + left("gone-too");
    assert_eq!(left("kept"), 40);
    let mut image = whole.disk.kill().image();
    image.remove("00000001.log").unwrap();
    let disk = FaultyDisk::from_image(image.clone());
    let error = refusal(&disk);
    let StartError::Missing { without_queue, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!((without_queue.messages, without_queue.queues), (lost, 3));
    let said = error.to_string();
    let told = format!("{lost} messages to 3 queues whose creation is lost cannot be used either");
    assert!(said.contains(&told), "{said}");
    assert!(disk.image() == image, "nothing was changed");

    let accepting = EngineOptions {
        accept_loss: true,
        ..EngineOptions::default()
    };
    let (shard, report) = Shard::start(disk, ManualClock::default(), &accepting);
    assert_eq!(&report.without_queue, without_queue);
    assert_eq!((report.queues, report.messages), (1, 40));
    shard.check_payloads();
    let (_, report) = shard.restarted();
    assert!(report.is_clean(), "{report:?}");
}

pub(crate) fn refusal(disk: &FaultyDisk) -> StartError {
    let log = local_log(disk);
    let refused = Driver::<u64>::recover(log, &options(), || beginning(&ManualClock::default()));
    refused.err().expect("refused")
}

/// Its header and a few messages are all that is left of a file: damaged bytes, which refuse no start.
#[test]
fn a_part_of_the_log_that_is_cut_short_is_told_at_the_start() {
    let mut shard = Shard::small();
    shard.fill(5_000);
    let (first, live) = shard.driver.machine().live_ranges().next().unwrap();
    let (whole, report) = shard.restarted();
    assert!(report.snapshot.is_some() && report.is_clean(), "{report:?}");
    let mut image = whole.disk.kill().image();
    let file = format!("{:08x}.log", first.0 >> 32);
    image.get_mut(&file).unwrap().truncate(8_192);
    let disk = FaultyDisk::from_image(image);
    let (_, report) = Shard::start(disk, ManualClock::default(), &options());
    assert!(report.missing.is_empty() && !report.is_clean());
    let part = &report.cut_short[0];
    assert_eq!(
        (part.from, &part.name, part.messages),
        (first, &file, live.messages)
    );
}

/// What a purge leaves is freed step by step, and its part of the log given back before a start has freed
/// any of it again.
#[test]
fn what_was_purged_is_not_missed() {
    let mut shard = Shard::small();
    shard.fill(5_000);
    let (whole, report) = shard.restarted();
    assert!(report.snapshot.is_some() && report.is_clean(), "{report:?}");
    let mut shard = whole;
    shard
        .run(Command::Purge(Purge { queue: name("q") }))
        .unwrap();
    while shard.driver.housekeep(1_000).is_unfinished() {}
    shard.keep();
    let released = shard.driver.maintenance_counts().ranges_released;
    assert!(released > 0, "{:?}", shard.driver.maintenance_counts());
    let (_, report) = shard.restarted();
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn keys_in_flight_and_order_outlive_snapshot_and_compaction() {
    let mut shard = Shard::small();
    let settings = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    shard.run(create("k", settings)).unwrap();
    for number in 0..50 {
        let message = keyed(&format!("{number}"), &format!("key {}", number % 10));
        shard.run(send("k", message)).unwrap();
    }
    let leased = shard.receive_now("k", 3);
    shard.fill(6_000);
    shard.settle_some(u64::MAX, || true);
    shard.keep();
    let before = shard.state();
    let (mut shard, _) = shard.restarted();
    assert_eq!(shard.state().queues, before.queues);
    shard.check_payloads();
    let token = leased[0].token;
    assert!(shard.run(settle(token, SettleAction::Ack)).is_ok());
}

#[test]
fn a_crash_right_behind_a_snapshot_is_told_from_an_end_in_good_order() {
    let mut shard = Shard::small();
    let body = "x".repeat(1_000);
    for _ in 0..50 {
        let batch = (0..100).map(|_| send("q", text(&body)));
        shard.group([Work::Commands(batch.collect())]);
    }
    shard.sync();
    // Nothing comes behind this snapshot, so no record tells how the term ended.
    let now = shard.now();
    assert!(shard.driver.final_snapshot(now).unwrap());
    let (_, report) = shard.restarted();
    assert_eq!((report.records, report.messages), (0, 5_000));
    assert!(report.crashed, "{report:?}");
}
