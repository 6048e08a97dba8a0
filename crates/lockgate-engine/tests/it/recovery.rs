//! What a start finds, and how time goes on.

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{Clock, Epoch, Incarnation, Level, Log, LogSource, RecordGroup};
use lockgate_engine::{Beginning, Driver, EngineOptions, StartError, Work};
use lockgate_log::LocalLog;
use lockgate_machine::{EngineCommand, QueueSettings, Rejection, Reply, SettleAction, Settled};
use lockgate_sim::{FaultyDisk, PowerCut};

use crate::support::{
    Controls, Shard, Watched, at_level, beginning, create, keyed, local_log, send, settle, text,
    unique,
};

fn restart(shard: Shard, disk: FaultyDisk) -> Shard {
    let clock = shard.clock.clone();
    drop(shard);
    Shard::start(disk, clock, &EngineOptions::default()).0
}

#[test]
fn what_was_decided_is_there_again() {
    let mut shard = Shard::new();
    let settings = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    shard.run(create("q", settings)).unwrap();
    for body in ["a", "b", "c"] {
        shard.run(send("q", keyed(body, "k"))).unwrap();
    }
    let lease = shard.receive_now("q", 1).remove(0);
    shard.sync();
    let before = shard.driver.machine().state_view();
    let disk = shard.disk.kill();
    let mut shard = restart(shard, disk);
    // The start itself is an event: its term and the time.
    let after = shard.driver.machine().state_view();
    assert_eq!(after.queues, before.queues);

    assert!(shard.receive_now("q", 1).is_empty(), "the key is in flight");
    let settled = shard.run(settle(lease.token, SettleAction::Ack));
    assert!(matches!(settled, Ok(Reply::Settled(Settled::Done))));
    assert_eq!(shard.receive_now("q", 1).len(), 1);
}

#[test]
fn every_start_has_a_term_of_its_own_and_the_secret_stays() {
    let shard = Shard::new();
    let (first, secret) = (shard.driver.term(), shard.driver.machine().secret());
    let disk = shard.disk.kill();
    let shard = restart(shard, disk);
    assert_eq!(shard.driver.term().epoch, first.epoch.next());
    assert_eq!(shard.driver.machine().secret(), secret);
}

#[test]
fn unique_ids_are_remembered_with_the_original_answer() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    let Ok(Reply::Sent(first)) = shard.run(send("q", unique("a", "id"))) else {
        panic!("another kind of answer");
    };
    let disk = shard.disk.crash(PowerCut::LoseAllUnsynced);
    let mut shard = restart(shard, disk);
    let Ok(Reply::Sent(again)) = shard.run(send("q", unique("a", "id"))) else {
        panic!("another kind of answer");
    };
    assert!(again.duplicate);
    assert_eq!((again.id, again.sequence), (first.id, first.sequence));
}

#[test]
fn a_lease_runs_on_while_the_process_is_down() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let deadline = shard.receive_now("q", 1)[0].deadline;
    let left = deadline.since(shard.now().machine);
    shard.clock.advance(left - 1);
    let disk = shard.disk.kill();
    let mut shard = restart(shard, disk);
    assert!(shard.receive_now("q", 1).is_empty());
    shard.clock.advance(1);
    assert_eq!(shard.receive_now("q", 1)[0].attempt, 2);
}

/// The owner before goes on until the log is claimed, and what it writes down by then is later than
/// the beginning of the start.
#[test]
fn a_start_reads_the_clock_when_the_log_is_claimed() {
    let mut shard = Shard::new();
    let clock = shard.clock.fork();
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    shard.clock.advance(10_000);
    assert_eq!(shard.receive_now("q", 1).len(), 1);
    let (now, disk) = (shard.now(), shard.disk.kill());
    drop(shard);

    let controls = Arc::<Controls>::default();
    let claimed = clock.clone();
    controls.at_claim(move || claimed.advance(10_000));
    let watched = Watched::with_controls(disk, clock, EngineOptions::default(), controls);
    assert_eq!(watched.engine.now(), now, "no lease ends earlier or later");
}

#[test]
fn after_a_reboot_time_goes_on_from_the_last_logged_instant() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let deadline = shard.receive_now("q", 1)[0].deadline;
    shard.sync();
    let at_lease = shard.now().machine;
    for since_boot in [0, 1_000_000_000] {
        let disk = shard.disk.crash(PowerCut::LoseAllUnsynced);
        shard.clock.reboot(since_boot);
        shard = restart(shard, disk);
        assert!(shard.now().machine >= at_lease, "never back");
        assert!(
            shard.now().machine < deadline,
            "never shorter than promised"
        );
        assert!(shard.receive_now("q", 1).is_empty());
    }
    // The lease, and the lease bound up to which others may have been given.
    shard.clock.advance(60_000);
    assert_eq!(shard.receive_now("q", 1)[0].attempt, 2);
}

/// A virtual machine that is set back keeps its boot id. Machine time goes on all the same: else nothing
/// would end before the old reading comes round again.
#[test]
fn time_goes_on_where_the_time_since_boot_went_back() {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.clock.advance(1_000_000);
    shard.run(send("q", text("a"))).unwrap();
    let last = shard.now().machine;
    let disk = shard.disk.kill();
    let set_back = Beginning {
        since_boot: 5,
        ..beginning(&shard.clock)
    };
    drop(shard);
    let options = EngineOptions::default();
    let (driver, _) = Driver::<u64>::recover(local_log(&disk), &options, || set_back).unwrap();
    assert_eq!(driver.machine_time(5), last);
    assert_eq!(driver.machine_time(6), last.plus(1));
}

/// The secret is drawn once, and so are the numbers of a term: nobody is told of them before the record
/// that holds them is durable.
#[test]
fn a_term_is_durable_when_its_start_returns() {
    let options = EngineOptions::default();
    let clock = lockgate_sim::ManualClock::default();
    let disk = FaultyDisk::new();
    for (start, secret) in [(1, [1; 32]), (2, [2; 32])] {
        let begun = Beginning {
            incarnation: Incarnation(start),
            secret,
            ..beginning(&clock)
        };
        let (driver, _) = Driver::<u64>::recover(local_log(&disk), &options, || begun).unwrap();
        drop(driver);
    }
    let disk = disk.crash(PowerCut::LoseAllUnsynced);
    let (shard, report) = Shard::start(disk, clock, &options);
    assert_eq!(report.records, 2);
    assert_eq!(shard.driver.machine().secret(), Some([1; 32]));
}

#[test]
fn a_crash_is_told_from_an_end_in_good_order() {
    let clock = lockgate_sim::ManualClock::default();
    let options = EngineOptions::default();
    let (shard, report) = Shard::start(FaultyDisk::new(), clock.clone(), &options);
    assert!(!report.crashed, "there was nothing");
    let disk = shard.disk.kill();
    drop(shard);
    let (mut shard, report) = Shard::start(disk, clock.clone(), &options);
    assert!(report.crashed);
    shard.run(EngineCommand::EndTerm).unwrap();
    let disk = shard.disk.kill();
    drop(shard);
    let (_, report) = Shard::start(disk, clock, &options);
    assert!(!report.crashed);
}

#[test]
fn what_a_crash_may_have_taken_at_level_memory_is_counted() {
    let mut shard = Shard::new();
    shard.run(create("q", at_level(Level::Memory))).unwrap();
    for _ in 0..10 {
        shard.run(send("q", text("a"))).unwrap();
    }
    let (disk, clock) = (shard.disk.clone(), shard.clock.clone());
    // Answered, and lost with the cache.
    let answers = shard.group([(); 5].map(|()| Work::from(send("q", text("b")))));
    assert_eq!(answers.len(), 5);
    let disk = disk.crash(PowerCut::LoseAllUnsynced);
    drop(shard);
    clock.reboot(0);
    let (_, report) = Shard::start(disk, clock, &EngineOptions::default());
    assert_eq!(report.messages, 10);
    assert!(report.possibly_lost >= 5, "{}", report.possibly_lost);
}

/// A folder with one more record of these bytes.
fn with_record(payload: &[u8]) -> FaultyDisk {
    let mut shard = Shard::new();
    shard.run(create("q", QueueSettings::default())).unwrap();
    shard.run(send("q", text("a"))).unwrap();
    let (disk, epoch) = (shard.disk.kill(), shard.driver.term().epoch);
    drop(shard);
    let mut log: LocalLog = local_log(&disk);
    log.recover(lockgate_core::Position(0), Epoch(0), &mut |_, _| {})
        .unwrap();
    let epoch = Epoch(epoch.0 + 1);
    log.begin_epoch(epoch).unwrap();
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(payload));
    let tail = log.tail();
    log.append(epoch, tail, &mut group).unwrap();
    log.progress().sync().unwrap();
    disk
}

/// An effect of a kind that no version knows yet.
fn newer_effect() -> Vec<u8> {
    (1..=u8::MAX)
        .map(|kind| vec![kind, 0])
        .find(|payload| {
            matches!(
                lockgate_machine::decode_record(&Bytes::from(payload.clone())),
                Err(lockgate_machine::DecodeError::NewerFormat { .. })
            )
        })
        .expect("some kind is free")
}

#[test]
fn a_record_of_a_newer_version_refuses_the_start() {
    let disk = with_record(&newer_effect());
    let clock = lockgate_sim::ManualClock::default();
    let log = local_log(&disk);
    let refused = Driver::<u64>::recover(log, &EngineOptions::default(), || beginning(&clock));
    let Err(error) = refused else {
        panic!("it started");
    };
    assert!(matches!(error, StartError::NewerFormat { .. }), "{error}");
    assert!(error.to_string().contains("newer version"), "{error}");
}

#[test]
fn a_record_that_makes_no_sense_is_counted_and_skipped() {
    let disk = with_record(&[1, 0xff, 0xff]);
    let clock = lockgate_sim::ManualClock::default();
    let (mut shard, report) = Shard::start(disk, clock, &EngineOptions::default());
    assert_eq!(report.undecodable, 1);
    assert!(!report.is_clean());
    assert_eq!(shard.receive_now("q", 10).len(), 1, "the rest is served");
    let missing = shard.run(send("none", text("a")));
    assert!(matches!(missing, Err(Rejection::QueueNotFound { .. })));
    assert!(shard.clock.since_boot() > 0);
}
