//! Full disks: what is refused, what goes on, and the way back.

use std::{io, sync::Arc};

use lockgate_core::{
    AppendError, Disk, DiskOperation, Epoch, Log, LogSource, Position, Purpose, RecordGroup,
    ReserveError, SpaceState,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{Fault, FaultyDisk, PowerCut};

use crate::history::release_trimmed;

pub(crate) const SEGMENT: u64 = 8 << 10;
pub(crate) const RESERVE: u64 = 3;
/// Records of this test in a segment.
pub(crate) const IN_SEGMENT: u64 = 4;

fn open(disk: &FaultyDisk) -> LocalLog {
    let options = LocalLogOptions {
        segment_bytes: 8 << 10,
        record_bytes_max: 3_000,
        low_bytes: Some(4 * SEGMENT),
        free_bytes_min: SEGMENT,
        reserve_segments: 3,
        generation_seed: Some(3),
        ..LocalLogOptions::default()
    };
    LocalLog::open(Arc::new(disk.clone()), options).unwrap()
}

fn start(disk: &FaultyDisk) -> LocalLog {
    let mut log = open(disk);
    let report = log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
    log.begin_epoch(report.epoch.next()).unwrap();
    log
}

pub(crate) fn try_append(
    log: &mut LocalLog,
    epoch: Epoch,
    purpose: Purpose,
) -> Result<(), ReserveError> {
    log.reserve(950, 1, purpose)?;
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[7; 950]));
    let tail = log.tail();
    log.append(epoch, tail, &mut group)
        .expect("a granted reservation is good");
    Ok(())
}

fn fill(log: &mut LocalLog, epoch: Epoch, purpose: Purpose) -> u64 {
    let mut appended = 0;
    loop {
        match try_append(log, epoch, purpose) {
            Ok(()) => appended += 1,
            Err(ReserveError::Full { .. }) => return appended,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Growth ends before the reserve, maintenance may take it, and when segments come back growth goes on,
/// not at once but when there is one to spare. With and without somebody who attends to the log.
#[test]
fn growth_ends_before_the_reserve_and_comes_back_by_itself() {
    for is_attended in [false, true] {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(20 * SEGMENT));
        let mut log = start(&disk);
        let log_maintenance = is_attended.then(|| log.log_maintenance().unwrap());
        let tend = || {
            if let Some(log_maintenance) = &log_maintenance {
                log_maintenance.catch_up().unwrap();
            }
        };
        let epoch = Epoch(1);
        tend();
        try_append(&mut log, epoch, Purpose::Growth).unwrap();
        assert_eq!(log.space().state, SpaceState::Normal);
        let records = fill(&mut log, epoch, Purpose::Growth);
        // The reserve and the stop mark are left.
        assert!((15..17).contains(&(records / IN_SEGMENT)), "{records}");
        assert_eq!(log.space().state, SpaceState::Full);
        assert!(disk.space().unwrap().free >= SEGMENT, "the stop mark");

        let records = fill(&mut log, epoch, Purpose::Maintenance);
        assert!(records >= RESERVE * IN_SEGMENT, "{records}");
        assert!(try_append(&mut log, epoch, Purpose::Growth).is_err());
        log.progress().sync().unwrap();

        // Segments come back one by one: first the reserve is made whole.
        let mut ranges = log.ranges().into_iter();
        log.trim(log.tail()).unwrap();
        let mut released = 0;
        loop {
            tend();
            let full = try_append(&mut log, epoch, Purpose::Growth).is_err();
            assert_eq!(full, log.space().state == SpaceState::Full);
            if !full {
                break;
            }
            log.release(ranges.next().unwrap().first).unwrap();
            released += 1;
        }
        assert!(released > RESERVE, "only with one to spare: {released}");
        assert!(released <= RESERVE + 3, "{released}");
        for range in ranges {
            let _ = log.release(range.first);
        }
        tend();
        try_append(&mut log, epoch, Purpose::Growth).unwrap();
        tend();
        assert_eq!(log.space().state, SpaceState::Normal);
        // Drained, it holds no more than the reserve and two segments.
        log.progress().sync().unwrap();
        log.trim(log.tail()).unwrap();
        release_trimmed(&mut log).unwrap();
        log.trim(log.tail()).unwrap();
        tend();
        let used = log.space().used_bytes;
        if is_attended {
            assert!(used <= (RESERVE + 2) * SEGMENT, "{used}");
        }
        let files = disk
            .image()
            .values()
            .map(|file| file.len() as u64)
            .sum::<u64>();
        assert_eq!(used, files, "{disk:?}");
    }
}

/// What ends growth must be undone with something to spare before it goes on.
#[test]
fn a_full_log_does_not_come_and_go() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let mut log = start(&disk);
    fill(&mut log, Epoch(1), Purpose::Growth);
    let free = disk.space().unwrap().free;
    disk.set_free_bytes(Some(free + SEGMENT));
    assert!(try_append(&mut log, Epoch(1), Purpose::Growth).is_err());
    disk.set_free_bytes(Some(free + 2 * SEGMENT));
    try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
}

/// Others may take all the rest of the disk: a log that is full is killed, started again, emptied and
/// grows again.
#[test]
fn a_full_log_starts_on_a_full_disk() {
    for foreign in [false, true] {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(20 * SEGMENT));
        let mut log = start(&disk);
        fill(&mut log, Epoch(1), Purpose::Growth);
        log.progress().sync().unwrap();
        drop(log);
        let mut disk = disk.crash(PowerCut::LoseAllUnsynced);
        if foreign {
            // Others took all the rest.
            disk.set_free_bytes(Some(0));
        }
        for life in 2..6 {
            let mut log = start(&disk);
            if life > 2 || foreign {
                assert!(try_append(&mut log, Epoch(life), Purpose::Growth).is_err());
            }
            if life < 4 {
                try_append(&mut log, Epoch(life), Purpose::Maintenance).unwrap();
            }
            log.progress().sync().unwrap();
            drop(log);
            disk = disk.kill();
        }
        let mut log = start(&disk);
        log.trim(log.tail()).unwrap();
        release_trimmed(&mut log).unwrap();
        try_append(&mut log, Epoch(6), Purpose::Growth).unwrap();
    }
}

/// A snapshot that finds no room takes a part of the reserve, and leaves what records need. One that
/// finds none at all is given up, and the log goes on.
#[test]
fn a_snapshot_on_a_full_disk_kills_nobody() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let mut log = start(&disk);
    fill(&mut log, Epoch(1), Purpose::Growth);
    log.progress().sync().unwrap();
    disk.set_free_bytes(Some(0));
    let ready = log.space().ready_bytes;
    let mut snapshot = log.begin_snapshot().unwrap();
    let at = snapshot.position();
    snapshot.write(&[1; 3_000]).unwrap();
    snapshot.write(&[2; 3_000]).unwrap();
    snapshot.finish().unwrap();
    assert_eq!(log.snapshots().list().unwrap(), [at]);
    assert_eq!(log.space().ready_bytes, ready - SEGMENT);

    let mut snapshot = log.begin_snapshot().unwrap();
    while snapshot.write(&[3; 3_000]).is_ok() {}
    drop(snapshot);
    let parts = |disk: &FaultyDisk| {
        let names = disk.image().into_keys();
        names
            .filter(|name| name.ends_with(".snapshot-part"))
            .count()
    };
    assert_eq!(parts(&disk), 0);
    disk.set_free_bytes(Some(0));
    let records = fill(&mut log, Epoch(1), Purpose::Maintenance);
    assert!(
        records >= 2 * IN_SEGMENT,
        "two segments are kept for records: {records}"
    );
    log.progress().sync().unwrap();

    // One that a kill interrupted is removed by the next recovery.
    disk.set_free_bytes(None);
    let mut snapshot = log.begin_snapshot().unwrap();
    snapshot.write(&[4; 100]).unwrap();
    let killed = disk.kill();
    assert_eq!(parts(&killed), 1);
    let mut log = open(&killed);
    log.recover(at, Epoch(0), &mut |_, _| {}).unwrap();
    log.apply_recovery().unwrap();
    assert_eq!(parts(&killed), 0);
}

/// Nobody need be refused before a full disk shows: another program's doing is seen by whoever attends
/// to the log, and a start on a full disk knows at once.
#[test]
fn a_full_disk_shows_before_anybody_is_refused() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let mut log = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    let tend = || log_maintenance.catch_up().unwrap();
    for _ in 0..4 * IN_SEGMENT {
        try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
        tend();
    }
    assert_eq!(log.space().state, SpaceState::Normal);
    let free = disk.space().unwrap().free;
    disk.take_space(free - 3 * SEGMENT);
    tend();
    assert_eq!(log.space().state, SpaceState::Low);
    // The reserve is whole, so what is left of the segment may still be filled.
    disk.take_space(disk.space().unwrap().free);
    tend();
    assert_eq!(log.space().state, SpaceState::Low);
    loop {
        let is_shown = log.space().state == SpaceState::Full;
        let is_refused = log.reserve(1, 1, Purpose::Growth).is_err();
        assert_eq!(is_shown, is_refused);
        if is_shown {
            break;
        }
        try_append(&mut log, Epoch(1), Purpose::Maintenance).unwrap();
        tend();
    }
    log.progress().sync().unwrap();
    drop((log_maintenance, log));

    let mut log = start(&disk);
    assert_eq!(log.space().state, SpaceState::Full);
    log.reserve(1, 1, Purpose::Growth).unwrap_err();
    let log_maintenance = log.log_maintenance().unwrap();
    disk.set_free_bytes(Some(20 * SEGMENT));
    log_maintenance.catch_up().unwrap();
    assert_eq!(log.space().state, SpaceState::Normal);
    log.reserve(1, 1, Purpose::Growth).unwrap();
}

/// What a snapshot has written reaches the disk as it goes: one sync of all of it would hold up those
/// of the log for as long as it takes.
#[test]
fn a_large_snapshot_is_synced_as_it_is_written() {
    const PIECE: usize = 1 << 20;
    let disk = FaultyDisk::new();
    let log = start(&disk);
    let syncs = || disk.operations().syncs;
    let before = syncs();
    let mut snapshot = log.begin_snapshot().unwrap();
    for pieces in 1..=32_u64 {
        snapshot.write(&vec![1; PIECE]).unwrap();
        let written = pieces * (PIECE as u64);
        assert_eq!(syncs() - before, written / (8 << 20), "{written} bytes");
    }
    snapshot.finish().unwrap();
}

/// A disk may be full although its blocks were promised: growth is refused from then on, until there is
/// more room than that.
#[test]
fn a_disk_that_is_full_in_the_middle_of_an_append_shows() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let mut log = start(&disk);
    try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
    assert_eq!(log.space().state, SpaceState::Normal);
    let full = Fault::Torn(io::ErrorKind::StorageFull);
    disk.fail(DiskOperation::Write, 0, full);
    log.reserve(950, 1, Purpose::Growth).unwrap();
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[8; 950]));
    let tail = log.tail();
    let refused = log.append(Epoch(1), tail, &mut group);
    assert!(
        matches!(refused, Err(AppendError::Full { .. })),
        "{refused:?}"
    );
    assert_eq!(log.space().state, SpaceState::Full);
    try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
    assert_eq!(log.space().state, SpaceState::Normal);
}

/// Records of more than half a segment leave nearly half of each one empty, and a reservation knows it.
#[test]
fn a_reservation_counts_what_records_leave_empty() {
    let mut granted = 0;
    for segments in 2..14 {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(segments * SEGMENT));
        let mut log = start(&disk);
        if log.reserve(6 * 2_100, 6, Purpose::Maintenance).is_ok() {
            disk.set_free_bytes(Some(0));
            let mut group = RecordGroup::new(log.capabilities().gap);
            for byte in 0..6 {
                group.push(|buffer| buffer.extend_from_slice(&[byte; 2_100]));
            }
            let tail = log.tail();
            log.append(Epoch(1), tail, &mut group)
                .expect("a granted reservation is good");
            granted += 1;
        }
        // What could not be taken whole was given back.
        let image = disk.image();
        let mut preallocated = image
            .iter()
            .filter(|(name, _)| name.ends_with(".preallocated"));
        assert!(preallocated.all(|(_, file)| file.len() as u64 == SEGMENT));
    }
    assert!((3..12).contains(&granted), "{granted}");
}

/// A log that was begun on a full disk has a segment without room, and says so before it is written to.
#[test]
fn a_log_begun_without_room_promises_none() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(5 << 10));
    let mut log = start(&disk);
    for purpose in [Purpose::Growth, Purpose::Maintenance] {
        let refused = log.reserve(950, 1, purpose);
        assert!(
            matches!(refused, Err(ReserveError::Full { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(log.space().state, SpaceState::Full);
    disk.set_free_bytes(Some(20 * SEGMENT));
    try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
}

/// Records that nobody reserved room for, too many for the disk.
fn append_too_much(log: &mut LocalLog) {
    let mut group = RecordGroup::new(log.capabilities().gap);
    for byte in 0..40 {
        group.push(|buffer| buffer.extend_from_slice(&[byte; 2_900]));
    }
    let tail = log.tail();
    let refused = log.append(Epoch(1), tail, &mut group);
    assert!(
        matches!(refused, Err(AppendError::Full { .. })),
        "{refused:?}"
    );
}

/// Nothing of it is found by a recovery, however little of what took it back had reached the disk by
/// itself.
#[test]
fn what_was_refused_for_space_never_comes_back() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(12 * SEGMENT));
    let mut log = start(&disk);
    // The next record does not fit into the segment, so what was refused follows without a gap.
    for _ in 0..3 {
        try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
    }
    log.progress().sync().unwrap();
    append_too_much(&mut log);
    for seed in 0..200 {
        let crashed = disk.crash(PowerCut::Seeded(seed));
        let mut found = Vec::new();
        let report =
            open(&crashed).recover(Position(0), Epoch(0), &mut |record, _| found.push(record));
        assert_eq!(found.len(), 3, "seed {seed}: {report:?}");
    }
}

/// A segment that was taken back is begun again, as another file: that one is synced.
#[test]
fn what_follows_something_that_was_taken_back_is_synced() {
    let disk = FaultyDisk::new();
    let mut log = start(&disk);
    for _ in 0..IN_SEGMENT {
        try_append(&mut log, Epoch(1), Purpose::Maintenance).unwrap();
    }
    log.progress().sync().unwrap();
    // Room for one segment of what is too much.
    disk.set_free_bytes(Some(SEGMENT));
    append_too_much(&mut log);
    disk.set_free_bytes(None);
    // Not reserved, which would have the file synced for its own sake.
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[8; 950]));
    let tail = log.tail();
    log.append(Epoch(1), tail, &mut group).unwrap();
    log.progress().sync().unwrap();
    let mut found = 0;
    let crashed = disk.crash(PowerCut::LoseAllUnsynced);
    let report = open(&crashed).recover(Position(0), Epoch(0), &mut |_, _| found += 1);
    assert_eq!(found, IN_SEGMENT + 1, "{report:?}");
}

/// Segments that were taken back are none that there must be a reserve for.
#[test]
fn what_was_taken_back_wants_no_reserve() {
    let disk = FaultyDisk::new();
    // The first segment, the reserve of one that it needs, one to grow into, and the stop mark.
    disk.set_free_bytes(Some(4 * SEGMENT));
    let mut log = start(&disk);
    try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
    for _ in 0..3 {
        append_too_much(&mut log);
        try_append(&mut log, Epoch(1), Purpose::Growth).unwrap();
    }
}

/// The low mark goes only when the disk is clearly above it.
#[test]
fn a_low_disk_does_not_come_and_go() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let log = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    log_maintenance.catch_up().unwrap();
    let state_at = |free| {
        disk.set_free_bytes(Some(free));
        log_maintenance.catch_up().unwrap();
        log.space().state
    };
    let low = 4 * SEGMENT;
    assert_eq!(state_at(low), SpaceState::Normal);
    assert_eq!(state_at(low - 1), SpaceState::Low);
    assert_eq!(state_at(low), SpaceState::Low);
    assert_eq!(state_at(low + low / 8 - 1), SpaceState::Low);
    assert_eq!(state_at(low + low / 8), SpaceState::Normal);
}

/// Files that are too short to be a segment, that no log has made, or that are too many.
#[test]
fn a_start_keeps_no_preallocated_file_that_is_none() {
    let begun = FaultyDisk::new();
    drop(start(&begun));
    let is_preallocated = |name: &&String| name.ends_with(".preallocated");
    let kept_of = |added: &[(String, u64)]| {
        let mut image = begun.image();
        image.retain(|name, _| !is_preallocated(&name));
        for (name, bytes) in added {
            image.insert(name.clone(), vec![0; usize::try_from(*bytes).unwrap()]);
        }
        let disk = FaultyDisk::from_image(image);
        let mut log = open(&disk);
        let report = log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
        assert!(report.damaged.is_empty());
        log.apply_recovery().unwrap();
        let image = disk.image();
        image.keys().filter(is_preallocated).count() as u64
    };
    let whole = |number: u32| (format!("{number:08x}.preallocated"), SEGMENT);
    assert_eq!(kept_of(&[whole(7)]), 1);
    assert_eq!(kept_of(&[("00000001.preallocated".to_owned(), 4_096)]), 0);
    assert_eq!(kept_of(&[("00000002.ready".to_owned(), SEGMENT - 1)]), 0);
    assert_eq!(kept_of(&[whole(0xffff_fffe)]), 0);
    let many: Vec<_> = (0..40).map(whole).collect();
    assert_eq!(kept_of(&many), RESERVE + 1, "and one to grow into");
}

/// A snapshot that was given up where its file could not be removed is written anew at the same place;
/// and what snapshots take is counted for as long as they are there.
#[test]
fn a_snapshot_that_left_something_behind_is_begun_again() {
    let disk = FaultyDisk::new();
    let log = start(&disk);
    let mut snapshot = log.begin_snapshot().unwrap();
    snapshot.write(&[1; 3_000]).unwrap();
    let failure = Fault::Error(io::ErrorKind::Other);
    disk.fail(DiskOperation::Remove, 0, failure);
    drop(snapshot);
    let mut snapshot = log.begin_snapshot().unwrap();
    let at = snapshot.position();
    snapshot.write(&[2; 300]).unwrap();
    snapshot.finish().unwrap();
    let used = || {
        let files = disk.image().into_values();
        files.map(|file| file.len() as u64).sum::<u64>()
    };
    assert_eq!(log.space().used_bytes, used(), "{disk:?}");
    let store = log.snapshots();
    let mut reader = store.open(at).unwrap();
    assert_eq!(reader.next_piece().unwrap().unwrap(), [2; 300][..]);
    assert_eq!(reader.next_piece().unwrap(), None);
    store.remove(at).unwrap();
    assert_eq!(log.space().used_bytes, used(), "{disk:?}");
}

/// A preallocated file that maintenance is writing zeros to counts as room, so whoever needs it just then waits for it.
#[test]
fn a_preallocated_file_in_the_hands_of_maintenance_is_waited_for() {
    let disk = FaultyDisk::new();
    let mut log = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    for _ in 0..IN_SEGMENT {
        try_append(&mut log, Epoch(1), Purpose::Maintenance).unwrap();
    }
    log.reserve(950, 1, Purpose::Maintenance).unwrap();
    disk.set_free_bytes(Some(0));
    let stall = disk.stall(DiskOperation::Sync, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| log_maintenance.catch_up().unwrap());
        stall.wait();
        let appending = scope.spawn(|| try_append(&mut log, Epoch(1), Purpose::Maintenance));
        // It has every chance to go wrong before the preallocated file is back.
        for _ in 0..10_000 {
            std::thread::yield_now();
        }
        stall.release();
        appending.join().unwrap().unwrap();
    });
}

/// A reserve that a power cut could take would be missing on a full disk.
#[test]
fn what_maintenance_keeps_ready_survives_a_power_cut() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let log = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    log_maintenance.catch_up().unwrap();
    let preallocated = |disk: &FaultyDisk| {
        let is_preallocated = |name: &str| name.ends_with(".preallocated");
        let files = disk.image().into_iter();
        let whole =
            files.filter(|(name, file)| is_preallocated(name) && file.len() as u64 == SEGMENT);
        whole.count()
    };
    assert_eq!(preallocated(&disk), 1, "as much as there is to be emptied");
    assert_eq!(preallocated(&disk.crash(PowerCut::LoseAllUnsynced)), 1);
}

/// A new preallocated file that cannot be synced is tried again with another file, for as long as that fails.
#[test]
fn a_preallocated_file_that_cannot_be_synced_leaves_no_file() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let log = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    let files = || {
        let names = disk.image().into_keys();
        names.filter(|name| name.ends_with(".preallocated")).count()
    };
    for _ in 0..3 {
        disk.fail(DiskOperation::Sync, 0, Fault::Error(io::ErrorKind::Other));
        log_maintenance.step().unwrap_err();
        assert_eq!(files(), 0);
    }
    log_maintenance.catch_up().unwrap();
    assert_eq!(files(), 1, "as much as there is to be emptied");
}

/// A preallocated file whose blocks were never written costs their zeros before it is as good as a segment that
/// comes back, so it goes for that one.
#[test]
fn what_comes_back_takes_the_place_of_preallocated_files_that_were_never_written() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(20 * SEGMENT));
    let mut log = start(&disk);
    fill(&mut log, Epoch(1), Purpose::Growth);
    log.progress().sync().unwrap();
    let preallocated = || {
        let names = disk.image().into_keys();
        let preallocated = names.filter(|name| name.ends_with(".preallocated"));
        preallocated.collect::<Vec<_>>()
    };
    let never_written = preallocated();
    assert_eq!(never_written.len() as u64, RESERVE);
    log.trim(log.tail()).unwrap();
    release_trimmed(&mut log).unwrap();
    // A reserve of one, as it holds no more than one, and one to grow into.
    let left = preallocated();
    assert_eq!(left.len(), 2);
    assert!(
        left.iter().all(|name| !never_written.contains(name)),
        "{left:?}"
    );
}

/// One of several segments cannot be given back just now. The others are, and that one with the next step.
#[test]
fn a_segment_that_cannot_be_given_back_is_tried_again() {
    let operations = [
        DiskOperation::Open,
        DiskOperation::Inspect,
        DiskOperation::Rename,
        DiskOperation::Remove,
        DiskOperation::Write,
    ];
    for (operation, after) in operations.into_iter().zip([0, 1].into_iter().cycle()) {
        let disk = FaultyDisk::new();
        let mut log = start(&disk);
        let log_maintenance = log.log_maintenance().unwrap();
        let epoch = Epoch(1);
        while log.tail().0 >> 32 < 10 {
            try_append(&mut log, epoch, Purpose::Growth).unwrap();
        }
        log_maintenance.catch_up().unwrap();
        log.progress().sync().unwrap();
        log.begin_snapshot().unwrap().finish().unwrap();
        let newest = log.snapshots().list().unwrap()[0];
        log.trim(newest).unwrap();
        for segment in 1..8_u64 {
            log.release(Position(segment << 32)).unwrap();
        }
        disk.fail(operation, after, Fault::Error(io::ErrorKind::Other));
        log_maintenance.step().unwrap_err();
        let segments = || {
            let image = disk.image();
            let left = image.keys().filter(|name| name.ends_with(".log")).count();
            let preallocated = image.keys().filter(|name| name.ends_with(".preallocated"));
            (left, preallocated.count())
        };
        // Those that were not given back, and the one that is to be tried again.
        assert!(segments().0 <= 4, "{operation}: {:?}", disk.image().keys());
        log_maintenance.catch_up().unwrap();
        assert_eq!(segments().0, 3, "{operation}: {:?}", disk.image().keys());
        // What the log counts is what is there.
        let bytes = (segments().0 + segments().1) as u64 * SEGMENT;
        let image = disk.image();
        let snapshots = image.iter().filter(|(name, _)| name.ends_with(".snapshot"));
        let snapshots: u64 = snapshots.map(|(_, bytes)| bytes.len() as u64).sum();
        assert_eq!(log.space().used_bytes, bytes + snapshots, "{operation}");
    }
}

/// A log with large segments that holds next to nothing.
mod little {
    use super::*;

    const SEGMENT: u64 = 4 << 20;
    const PAYLOAD: usize = 50 << 10;

    fn start(disk: &FaultyDisk) -> (LocalLog, Epoch) {
        let options = LocalLogOptions {
            segment_bytes: 4 << 20,
            record_bytes_max: 100 << 10,
            low_bytes: Some(0),
            free_bytes_min: 1 << 20,
            reserve_segments: 3,
            generation_seed: Some(3),
            ..LocalLogOptions::default()
        };
        let mut log = LocalLog::open(Arc::new(disk.clone()), options).unwrap();
        let epoch = log
            .recover(Position(0), Epoch(0), &mut |_, _| {})
            .unwrap()
            .epoch
            .next();
        log.begin_epoch(epoch).unwrap();
        let log_maintenance = log.log_maintenance().unwrap();
        log_maintenance.catch_up().unwrap();
        (log, epoch)
    }

    /// Bytes of all files.
    fn taken(disk: &FaultyDisk) -> u64 {
        let files = disk.image();
        files.values().map(|file| file.len() as u64).sum()
    }

    fn append(log: &mut LocalLog, epoch: Epoch, purpose: Purpose) -> Result<(), ReserveError> {
        log.reserve(PAYLOAD as u64, 1, purpose)?;
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|buffer| buffer.extend_from_slice(&[7; PAYLOAD]));
        let tail = log.tail();
        log.append(epoch, tail, &mut group).unwrap();
        let log_maintenance = log.log_maintenance().unwrap();
        log_maintenance.catch_up().unwrap();
        Ok(())
    }

    #[test]
    fn it_takes_neither_a_segment_nor_a_reserve_until_it_needs_more() {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(20 * SEGMENT));
        for start_number in 1..=3 {
            let (log, _) = start(&disk);
            assert!(
                taken(&disk) <= 1100 << 10,
                "{start_number}: {}",
                taken(&disk)
            );
            assert_eq!(log.space().used_bytes, taken(&disk));
        }
        let (mut log, epoch) = start(&disk);
        for _ in 0..9 {
            append(&mut log, epoch, Purpose::Growth).unwrap();
        }
        assert!(taken(&disk) <= 1100 << 10, "{}", taken(&disk));
        for _ in 0..3 {
            append(&mut log, epoch, Purpose::Growth).unwrap();
        }
        // A whole segment, and as much in reserve for each segment that the log holds.
        assert!(taken(&disk) >= 2 * SEGMENT, "{}", taken(&disk));
        assert_eq!(log.space().used_bytes, taken(&disk));
        drop(log);
        // What it holds now is worth a reserve from the start.
        start(&disk);
        assert!(taken(&disk) >= 2 * SEGMENT, "{}", taken(&disk));
    }

    /// Growth leaves what the log can be emptied with.
    #[test]
    fn on_a_full_disk_half_of_what_it_has_is_kept() {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(20 * SEGMENT));
        let (mut log, epoch) = start(&disk);
        // Less above the stop mark than its segment lacks.
        disk.set_free_bytes(Some(3 << 20));
        let fill = |log: &mut LocalLog, purpose| {
            let mut bytes = 0;
            loop {
                match append(log, epoch, purpose) {
                    Ok(()) => bytes += PAYLOAD,
                    Err(ReserveError::Full { .. }) => return bytes,
                    Err(error) => panic!("{error:?}"),
                }
            }
        };
        let grown = fill(&mut log, Purpose::Growth);
        assert!((400 << 10..512 << 10).contains(&grown), "{grown}");
        assert_eq!(log.space().state, SpaceState::Full);
        disk.set_free_bytes(Some(0));
        let kept = fill(&mut log, Purpose::Maintenance);
        assert!((450 << 10..600 << 10).contains(&kept), "{kept}");
        // Room comes back, and it goes on.
        disk.set_free_bytes(Some(20 * SEGMENT));
        let log_maintenance = log.log_maintenance().unwrap();
        log_maintenance.catch_up().unwrap();
        append(&mut log, epoch, Purpose::Growth).unwrap();
        assert_eq!(log.space().state, SpaceState::Normal);
    }
}
