//! Operations that fail while the machine goes on.

use std::io::ErrorKind;

use lockgate_core::{AppendError, DiskOperation, Epoch, Log, LogSource, RecordGroup};
use lockgate_sim::{Fault, FaultyDisk, PowerCut};

use crate::history::{History, Step, check_survivors, open, recover, script};

fn counts(disk: &FaultyDisk) -> [(DiskOperation, u64); 6] {
    let made = disk.operations();
    [
        (DiskOperation::Open, made.opens),
        (DiskOperation::Write, made.writes),
        (DiskOperation::SetLen, made.set_lens),
        (DiskOperation::Sync, made.syncs),
        (DiskOperation::Rename, made.renames),
        (DiskOperation::Remove, made.removes),
    ]
}

#[test]
fn every_operation_fails_once() {
    let whole = FaultyDisk::new();
    History::run(&whole, &script());
    let mut cases = 0;
    for (operation, count) in counts(&whole) {
        for after in 0..count {
            for fault in [
                Fault::Error(ErrorKind::Other),
                Fault::Torn(ErrorKind::StorageFull),
                Fault::LostPages,
            ] {
                println!("{operation:?} {after} {fault:?}");
                let disk = FaultyDisk::new();
                disk.fail(operation, after, fault);
                let history = History::run(&disk, &script());
                // An append that finds no space is taken back.
                let is_harmless = fault == Fault::Torn(ErrorKind::StorageFull);
                assert!(history.error.is_some() || is_harmless, "a failure is told");
                check_survivors(&history, &disk.kill());
                check_survivors(&history, &disk.crash(PowerCut::LoseAllUnsynced));
                for seed in 0..4 {
                    check_survivors(&history, &disk.crash(PowerCut::Seeded(seed)));
                }
                cases += 6;
            }
        }
    }
    assert!(cases > 1_000, "{cases}");
}

/// A sync failed and its pages are gone from the disk, though not from the cache. The process is
/// started again on the same kernel: what it then reads and answers from must be made durable anew.
#[test]
fn what_is_recovered_after_a_failed_sync_is_durable() {
    let whole = FaultyDisk::new();
    History::run(&whole, &script());
    for after in 0..whole.operations().syncs {
        let disk = FaultyDisk::new();
        disk.fail(DiskOperation::Sync, after, Fault::LostPages);
        let mut history = History::run(&disk, &script());
        assert!(history.error.is_some());
        let disk = disk.kill();
        let mut log = open(&disk);
        let (report, records) = recover(&mut log).unwrap();
        history.check(&report, &records);
        history.survived(&records, log.tail());
        drop(log);
        println!("sync {after}");
        check_survivors(&history, &disk.crash(PowerCut::LoseAllUnsynced));
    }
}

#[test]
fn space_ends_after_any_number_of_bytes() {
    let steps: Vec<Step> = script()
        .into_iter()
        .filter(|step| !matches!(step, Step::Restart))
        .collect();
    let (mut refused, mut failed) = (0, 0);
    for budget in (0..90 * 512).step_by(512) {
        println!("{budget} bytes");
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(budget));
        let history = History::run(&disk, &steps);
        refused += u64::from(history.was_refused);
        if let Some(error) = &history.error {
            // A reservation that was granted is good: only the start, which reserves nothing, may
            // meet the end of space.
            assert!(history.appended.is_empty(), "{error}");
            failed += 1;
        }
        // Started again while the disk is still full: all there is can be read.
        let full = disk.kill();
        let (report, records) = recover(&mut open(&full)).unwrap();
        history.check(&report, &records);
        let freed = disk.crash(PowerCut::LoseAllUnsynced);
        freed.set_free_bytes(None);
        check_survivors(&history, &freed);
    }
    assert!(refused > 20 && failed > 0, "{refused} {failed}");
}

/// Records without payload take space too.
#[test]
fn a_reservation_counts_headers() {
    let mut granted = 0;
    for budget in (10_000..300_000).step_by(2_048) {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(budget));
        let mut log = open(&disk);
        recover(&mut log).unwrap();
        log.begin_epoch(Epoch(1)).unwrap();
        if log
            .reserve(0, 1_000, lockgate_core::Purpose::Growth)
            .is_ok()
        {
            let mut group = RecordGroup::new(log.capabilities().gap);
            (0..1_000).for_each(|_| _ = group.push(|_| {}));
            let tail = log.tail();
            log.append(Epoch(1), tail, &mut group).unwrap();
            granted += 1;
        }
    }
    assert!((20..120).contains(&granted), "{granted}");
}

/// Without a reservation an append meets the end of space in the middle of a group.
#[test]
fn space_ends_within_an_append() {
    let mut refused = 0;
    for budget in (20_000..80_000).step_by(512) {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(budget));
        let mut history = History::run(&disk, &[Step::Append(vec![100]), Step::Sync]);
        assert_eq!(history.error, None);
        let mut log = open(&disk);
        let (_, records) = recover(&mut log).unwrap();
        history.survived(&records, log.tail());
        if log.begin_epoch(Epoch(2)).is_ok() {
            history.epoch = Epoch(2);
            let mut group = RecordGroup::new(log.capabilities().gap);
            let mut cursor = log.tail();
            for byte in 0..8 {
                let payload = vec![byte; 2_500];
                history.appended.push(lockgate_core::LogRecord {
                    position: log.place(&mut cursor, payload.len()),
                    payload: payload.clone().into(),
                });
                group.push(|buffer| buffer.extend_from_slice(&payload));
            }
            let tail = log.tail();
            match log.append(Epoch(2), tail, &mut group) {
                Ok(()) => {}
                Err(AppendError::Full(_)) => {
                    history.appended.truncate(records.len());
                    refused += 1;
                }
                Err(error) => panic!("{error:?}"),
            }
            assert_eq!(log.progress().sync().unwrap(), log.tail());
            history.synced = log.tail();
        }
        drop(log);
        for crashed in [disk.kill(), disk.crash(PowerCut::LoseAllUnsynced)] {
            crashed.set_free_bytes(None);
            check_survivors(&history, &crashed);
        }
    }
    assert!(refused > 10, "{refused}");
}
