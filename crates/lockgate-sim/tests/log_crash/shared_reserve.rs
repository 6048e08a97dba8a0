//! Logs that have one reserve together.

use std::sync::Arc;

use lockgate_core::{Epoch, Log, LogSource, Position, Purpose};
use lockgate_log::{LocalLog, LocalLogOptions, SharedReserve};
use lockgate_sim::{FaultyDisk, PowerCut};

use crate::space::{IN_SEGMENT, RESERVE, SEGMENT, try_append};

const SHARDS: usize = 8;

fn start(disk: &FaultyDisk, reserve: &SharedReserve) -> LocalLog {
    let options = LocalLogOptions {
        segment_bytes: 8 << 10,
        record_bytes_max: 3_000,
        low_bytes: Some(4 * SEGMENT),
        free_bytes_min: SEGMENT,
        shared_reserve: Some(reserve.clone()),
        generation_seed: Some(3),
        ..LocalLogOptions::default()
    };
    let mut log = LocalLog::open(Arc::new(disk.clone()), options).unwrap();
    let report = log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
    log.begin_epoch(report.epoch.next()).unwrap();
    log
}

fn preallocated(disk: &FaultyDisk) -> u64 {
    let names = disk.image().into_keys();
    let is_preallocated = |name: &String| name.ends_with(".preallocated");
    names.filter(is_preallocated).count() as u64
}

/// However many there are, the reserves of all stay below the bound, or are one segment each; and each log goes
/// on when all disks are full, also after a crash.
#[test]
fn the_reserves_of_all_are_bounded_and_each_log_goes_on_when_the_disk_is_full() {
    for bound in [4, 12, 100] {
        let reserve = SharedReserve::new(bound * SEGMENT);
        let disks: Vec<_> = (0..SHARDS).map(|_| FaultyDisk::new()).collect();
        let mut logs: Vec<_> = disks.iter().map(|disk| start(disk, &reserve)).collect();
        for log in &mut logs {
            // The first ones have the most there is until others want some.
            let log_maintenance = log.log_maintenance().unwrap();
            for _ in 0..6 * IN_SEGMENT {
                try_append(log, Epoch(1), Purpose::Growth).unwrap();
                log_maintenance.catch_up().unwrap();
            }
        }
        for _ in 0..7 {
            for log in &logs {
                let log_maintenance = log.log_maintenance().unwrap();
                log_maintenance.check_storage().unwrap();
                log_maintenance.catch_up().unwrap();
            }
        }
        let all: u64 = disks.iter().map(preallocated).sum();
        // One to grow into for each beside the reserves.
        let each = SHARDS as u64;
        let most = bound.clamp(each, RESERVE * each) + each;
        assert!(all <= most, "{all} of {most}");
        assert!(disks.iter().all(|disk| preallocated(disk) >= 2));

        for (disk, log) in disks.iter().zip(&mut logs) {
            disk.set_free_bytes(Some(0));
            while try_append(log, Epoch(1), Purpose::Growth).is_ok() {}
            log.progress().sync().unwrap();
            let disk = disk.crash(PowerCut::LoseAllUnsynced);
            for _ in 0..IN_SEGMENT {
                try_append(log, Epoch(1), Purpose::Maintenance).unwrap();
            }
            let mut log = start(&disk, &reserve);
            assert!(try_append(&mut log, Epoch(2), Purpose::Growth).is_err());
            try_append(&mut log, Epoch(2), Purpose::Maintenance).unwrap();
        }
    }
}
