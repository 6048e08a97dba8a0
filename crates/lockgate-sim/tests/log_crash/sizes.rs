//! Segments of several sizes.

use std::{io, sync::Arc};

use lockgate_core::{
    Disk as _, DiskOperation, Epoch, Log, LogSource, Position, Purpose, RecordGroup,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{Fault, FaultyDisk, PowerCut};

use crate::history::release_trimmed;

const MIB: u64 = 1 << 20;
const SMALLEST: u64 = 8 * MIB;
const PAYLOAD: usize = 1 << 20;

fn options() -> LocalLogOptions {
    LocalLogOptions {
        low_bytes: Some(0),
        free_bytes_min: MIB,
        generation_seed: Some(3),
        write_ahead_bytes_max: 0,
        ..LocalLogOptions::default()
    }
}

fn start(disk: &FaultyDisk) -> (LocalLog, Epoch, u64) {
    let mut log = LocalLog::open(Arc::new(disk.clone()), options()).unwrap();
    let mut found = 0;
    let report = log
        .recover(Position(0), Epoch(0), &mut |_, _| found += 1)
        .unwrap();
    let epoch = report.epoch.next();
    log.begin_epoch(epoch).unwrap();
    (log, epoch, found)
}

fn tend(log: &LocalLog) {
    let log_maintenance = log.log_maintenance().unwrap();
    log_maintenance.catch_up().unwrap();
}

/// One group of records, at the places they were told before.
fn append(log: &mut LocalLog, epoch: Epoch, lens: &[usize], purpose: Purpose) {
    let bytes: usize = lens.iter().sum();
    log.reserve(bytes as u64, lens.len() as u64, purpose)
        .unwrap();
    // Whatever was reserved is there, whoever takes the rest of the disk.
    let mut group = RecordGroup::new(log.capabilities().gap);
    let tail = log.tail();
    let mut cursor = tail;
    let mut places = Vec::new();
    for &len in lens {
        group.push(|buffer| buffer.resize(buffer.len() + len, 7));
        places.push(log.place(&mut cursor, len));
    }
    log.append(epoch, tail, &mut group).unwrap();
    assert_eq!(log.tail(), cursor);
    let reader = log.reader();
    for (at, &len) in places.into_iter().zip(lens) {
        assert_eq!(reader.read(at).unwrap().len(), len);
    }
}

fn lengths(disk: &FaultyDisk, suffixes: &[&str]) -> Vec<u64> {
    let files = disk.image().into_iter();
    let of_kind = files.filter(|(name, _)| suffixes.iter().any(|it| name.ends_with(it)));
    of_kind.map(|(_, file)| file.len() as u64).collect()
}

fn preallocated(disk: &FaultyDisk) -> Vec<u64> {
    lengths(disk, &[".preallocated"])
}

/// It holds what was appended, one more segment and its reserve: an eighth of it, or three segments.
#[test]
fn a_small_log_is_made_of_small_segments_and_has_a_small_reserve() {
    let disk = FaultyDisk::new();
    let (mut log, epoch, _) = start(&disk);
    for appended in 1..=100 {
        append(&mut log, epoch, &[PAYLOAD], Purpose::Growth);
        tend(&log);
        let used = log.space().used_bytes;
        let reserve = 3 * SMALLEST;
        // Seven records in a segment, the one that is begun, and the next.
        let most = appended * 8 * MIB / 7 + 2 * SMALLEST + reserve;
        assert!(used <= most, "{used} for {appended} MiB");
    }
    let segments = lengths(&disk, &[".log"]);
    assert!(
        segments.iter().all(|&bytes| bytes == SMALLEST),
        "{segments:?}"
    );
    assert!(preallocated(&disk).iter().all(|&bytes| bytes == SMALLEST));
    // What comes back is kept as far as it is wanted, and a restart finds it.
    log.progress().sync().unwrap();
    let (log, _, found) = start(&disk.crash(PowerCut::LoseAllUnsynced));
    assert_eq!(found, 100);
    tend(&log);
}

/// Records that no small segment holds are alone in one of their own, also many in a group and on a disk that
/// somebody else fills as soon as room is reserved.
#[test]
fn a_record_larger_than_a_segment_has_one_of_its_own() {
    let disk = FaultyDisk::new();
    let (mut log, epoch, _) = start(&disk);
    let (small, large) = (100 << 10, 9 << 20);
    let groups: [&[usize]; 5] = [
        &[small],
        &[large],
        &[small, large, small, large, large],
        &[small, 8 << 20, 16 << 20],
        &[small, small],
    ];
    let mut records = 0;
    for lens in groups {
        let free = 400 * MIB;
        disk.set_free_bytes(Some(free));
        let bytes: usize = lens.iter().sum();
        log.reserve(bytes as u64, lens.len() as u64, Purpose::Growth)
            .unwrap();
        disk.set_free_bytes(Some(0));
        append(&mut log, epoch, lens, Purpose::Maintenance);
        disk.set_free_bytes(Some(free));
        tend(&log);
        records += lens.len() as u64;
    }
    log.progress().sync().unwrap();
    let (_, _, found) = start(&disk.crash(PowerCut::LoseAllUnsynced));
    assert_eq!(found, records);
}

/// What was given to it lately makes the segments larger, what it holds then smaller again; the preallocated files follow,
/// and are never smaller than a segment to come.
#[test]
fn segments_and_preallocated_files_grow_with_a_log_and_shrink_with_it() {
    let disk = FaultyDisk::new();
    let (mut log, mut epoch, _) = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    let release = |log: &mut LocalLog| {
        log.progress().sync().unwrap();
        log.trim(log.tail()).unwrap();
        release_trimmed(log).unwrap();
    };
    // More than a GiB in a short time, of which little is held.
    for round in 0..1_100 {
        append(&mut log, epoch, &[PAYLOAD], Purpose::Growth);
        tend(&log);
        if round % 16 == 15 {
            release(&mut log);
        }
    }
    let newest = |disk: &FaultyDisk| lengths(disk, &[".log"]).pop().unwrap();
    assert_eq!(newest(&disk), 2 * SMALLEST);
    assert!(
        preallocated(&disk)
            .iter()
            .all(|&bytes| bytes >= 2 * SMALLEST)
    );
    // A start finds what it left, and goes on with small ones: it holds little.
    drop(log_maintenance);
    drop(log);
    (log, epoch, _) = start(&disk);
    tend(&log);
    assert!(preallocated(&disk).iter().all(|&bytes| bytes == SMALLEST));
    let log_maintenance = log.log_maintenance().unwrap();
    for _ in 0..1_100 {
        append(&mut log, epoch, &[PAYLOAD], Purpose::Growth);
        release(&mut log);
        tend(&log);
    }
    assert_eq!(newest(&disk), 2 * SMALLEST);
    // When that is long ago, they are small again, and the large one goes with the next record.
    for _ in 0..8 {
        log_maintenance.check_storage().unwrap();
    }
    for _ in 0..20 {
        append(&mut log, epoch, &[PAYLOAD], Purpose::Growth);
        release(&mut log);
        tend(&log);
    }
    assert_eq!(newest(&disk), SMALLEST);
    assert!(preallocated(&disk).iter().all(|&bytes| bytes == SMALLEST));
    let used = log.space().used_bytes;
    let files: u64 = disk.image().values().map(|file| file.len() as u64).sum();
    assert_eq!(used, files);
    assert!(used <= 5 * SMALLEST, "{used}");
}

/// While segments become larger, and maintenance is slow, what was granted is good on a disk that is full.
#[test]
fn a_reservation_is_good_while_segments_become_larger() {
    let disk = FaultyDisk::new();
    let (mut log, epoch, _) = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    let mut granted = 0;
    for round in 0..1_100 {
        let is_close = (1_024..1_060).contains(&round);
        disk.set_free_bytes(is_close.then_some(0));
        if log.reserve(PAYLOAD as u64, 1, Purpose::Maintenance).is_ok() {
            append(&mut log, epoch, &[PAYLOAD], Purpose::Maintenance);
            granted += 1;
        }
        disk.set_free_bytes(None);
        if !is_close {
            tend(&log);
        } else if round == 1_025 {
            // The segments are to be larger by now.
            log_maintenance.step().unwrap();
        }
        if round % 16 == 15 {
            log.progress().sync().unwrap();
            log.trim(log.tail()).unwrap();
            release_trimmed(&mut log).unwrap();
        }
    }
    assert!(granted > 1_050, "{granted}");
    let newest = lengths(&disk, &[".log"]).pop().unwrap();
    assert_eq!(newest, 2 * SMALLEST);
}

/// More is kept ready while there is load, and a minute without gives it back.
#[test]
fn what_is_kept_ready_is_what_the_last_minute_needed() {
    let disk = FaultyDisk::new();
    let (mut log, epoch, _) = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    // It drains: what comes back now is not needed again.
    let mut kept = Vec::new();
    for round in 0..3 {
        for _ in 0..100 {
            append(&mut log, epoch, &[PAYLOAD], Purpose::Growth);
        }
        log.progress().sync().unwrap();
        log.trim(log.tail()).unwrap();
        let ranges = log.ranges();
        for range in &ranges[..if round == 0 { 6 } else { 12 }] {
            log.release(range.first).unwrap();
        }
        tend(&log);
        kept.push(preallocated(&disk).len());
    }
    // The reserve and the next; and what came back the last time.
    assert_eq!(kept, [4, 9, 15]);
    for _ in 0..7 {
        log_maintenance.check_storage().unwrap();
    }
    tend(&log);
    assert_eq!(preallocated(&disk).len(), 4, "the reserve and the next");
}

/// What a reservation made for a large record is there when the record comes, though maintenance removes other
/// preallocated files meanwhile.
#[test]
fn a_file_that_was_reserved_for_a_large_record_is_not_removed() {
    let disk = FaultyDisk::new();
    let (mut log, epoch, _) = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    for _ in 0..100 {
        append(&mut log, epoch, &[PAYLOAD], Purpose::Growth);
    }
    log.progress().sync().unwrap();
    log.trim(log.tail()).unwrap();
    release_trimmed(&mut log).unwrap();
    let large = 9 << 20;
    log.reserve(large as u64, 1, Purpose::Maintenance).unwrap();
    // The released segments take the place of preallocated files that were never written.
    log_maintenance.catch_up().unwrap();
    disk.set_free_bytes(Some(0));
    append(&mut log, epoch, &[large], Purpose::Maintenance);
}

/// A second sync after a failed one may succeed though the blocks are lost, so the file goes.
#[test]
fn a_preallocated_file_whose_growth_cannot_be_synced_is_removed() {
    let disk = FaultyDisk::new();
    let (mut log, epoch, _) = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    for round in 1..=1_040 {
        append(&mut log, epoch, &[PAYLOAD], Purpose::Growth);
        if round % 16 == 0 && round <= 1_000 {
            log.progress().sync().unwrap();
            log.trim(log.tail()).unwrap();
            release_trimmed(&mut log).unwrap();
            tend(&log);
        }
    }
    // By now the segments are to be larger.
    log.reserve(20 * MIB, 20, Purpose::Growth).unwrap();
    let names = || -> Vec<String> {
        let names = disk.image().into_keys();
        names
            .filter(|name| name.ends_with(".preallocated"))
            .collect()
    };
    let before = names();
    disk.fail(DiskOperation::Sync, 0, Fault::Error(io::ErrorKind::Other));
    log_maintenance.step().unwrap_err();
    let gone: Vec<_> = before
        .iter()
        .filter(|name| !names().contains(name))
        .collect();
    assert_eq!(gone.len(), 1, "{before:?}");
    tend(&log);
    let lengths = preallocated(&disk);
    assert!(
        lengths.iter().all(|&bytes| bytes >= 2 * SMALLEST),
        "{lengths:?}"
    );
}

/// A file that cannot be cut keeps nobody from making the next one.
#[test]
fn the_next_file_is_made_although_another_one_cannot_be_cut() {
    let disk = FaultyDisk::new();
    let (mut log, _, _) = start(&disk);
    log.reserve(9 * MIB, 1, Purpose::Maintenance).unwrap();
    drop(log);
    let small = |(name, file): (String, Vec<u8>)| {
        (name.ends_with(".preallocated") && file.len() as u64 == SMALLEST).then_some(name)
    };
    // One for the next segment stays.
    for name in disk.image().into_iter().filter_map(small).skip(1) {
        disk.remove(&name).unwrap();
    }
    let (mut log, epoch, _) = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    append(&mut log, epoch, &[4 << 20, 1 << 20], Purpose::Growth);
    let before = preallocated(&disk);
    disk.fail_always(DiskOperation::SetLen, 0, Fault::Error(io::ErrorKind::Other));
    log_maintenance.step().unwrap_err();
    let after = preallocated(&disk);
    assert_eq!(after.len(), before.len() + 1, "{before:?} {after:?}");
}
