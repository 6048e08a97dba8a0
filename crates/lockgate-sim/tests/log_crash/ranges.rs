//! Recovery from a snapshot, and ranges that were given back.

use std::{
    collections::BTreeMap,
    ops::{ControlFlow, RangeInclusive},
    sync::Arc,
};

use lockgate_core::{
    Epoch, Log, LogError, LogRecord, LogSource, Position, ReadError, RecordGroup, Scanned,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{Fault, FaultyDisk, PowerCut};

use crate::history::{History, Step, open, options, recover, release_trimmed};

/// Several lives of records, a snapshot in the middle, and what was appended.
fn with_snapshot() -> (FaultyDisk, Vec<LogRecord>, Position) {
    let disk = FaultyDisk::new();
    let mut history = History::default();
    let many: Vec<Step> = (0..12)
        .flat_map(|_| [Step::Append(vec![900, 700, 1_300]), Step::Sync])
        .collect();
    history.go_on(&disk, &many);
    let mut log = started(&disk);
    // In the middle of a segment.
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[5; 300]));
    let tail = log.tail();
    history.appended.push(LogRecord {
        position: tail,
        payload: vec![5; 300].into(),
    });
    history.synced_when_appended.push(tail);
    log.append(history.epoch.next(), tail, &mut group).unwrap();
    let at = snapshot(&mut log);
    drop(log);
    let mut rest = History {
        records_made: 1_000,
        ..history
    };
    rest.go_on(&disk, &many[..8]);
    assert_eq!(rest.error, None);
    (disk, rest.appended, at)
}

fn started(disk: &FaultyDisk) -> LocalLog {
    let mut log = open(disk);
    let (report, _) = recover(&mut log).unwrap();
    log.begin_epoch(report.epoch.next()).unwrap();
    log
}

fn snapshot(log: &mut LocalLog) -> Position {
    log.progress().sync().unwrap();
    let mut snapshot = log.begin_snapshot().unwrap();
    let at = snapshot.position();
    snapshot.write(b"everything").unwrap();
    snapshot.finish().unwrap();
    at
}

fn segments(disk: &FaultyDisk) -> Vec<String> {
    let names = disk.image().into_keys();
    names.filter(|name| name.ends_with(".log")).collect()
}

fn segment_of(at: Position) -> u64 {
    at.0 >> 32
}

fn name(segment: u64) -> String {
    format!("{segment:08x}.log")
}

/// Removing or damaging anything before the snapshot changes nothing of what is recovered from it.
#[test]
fn what_stands_before_the_snapshot_is_not_judged() {
    let (disk, appended, at) = with_snapshot();
    let expected: Vec<_> = appended.iter().filter(|r| r.position >= at).collect();
    assert!(expected.len() > 10 && expected.len() < appended.len());
    for segment in 1..=segment_of(at) {
        for harm in 0..3 {
            let mut image = disk.image();
            let file = image.get_mut(&name(segment)).unwrap();
            let end = if segment == segment_of(at) {
                usize::try_from(at.0 & 0xffff_ffff).unwrap()
            } else {
                file.len()
            };
            match harm {
                0 => file[..end].fill(0xa5),
                1 => file[..512].fill(0),
                _ if segment < segment_of(at) => _ = image.remove(&name(segment)),
                _ => continue,
            }
            println!("segment {segment}, harm {harm}");
            let harmed = FaultyDisk::from_image(image);
            let mut log = open(&harmed);
            let mut found = Vec::new();
            let report = log
                .recover(at, Epoch(0), &mut |record, _| found.push(record))
                .unwrap();
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{report:?}");
            assert!(report.damaged.is_empty(), "{report:?}");
            assert_eq!(report.tail_bytes_cut, 0);
            // Payloads that are whole are read, whatever became of their segment's header.
            let reader = log.reader();
            log.begin_epoch(report.epoch.next()).unwrap();
            for record in &appended {
                let is_gone = harm != 1 && segment_of(record.position) == segment;
                let read = reader.read(record.position);
                if !is_gone || record.position >= at {
                    assert_eq!(read.unwrap(), record.payload);
                } else {
                    assert!(
                        matches!(
                            read,
                            Err(ReadError::Missing { .. } | ReadError::Damaged { .. })
                        ),
                        "{read:?}"
                    );
                }
            }
        }
    }
}

/// Nothing follows the snapshot: what is cut behind it takes no payload before it along.
#[test]
fn nothing_before_the_snapshot_is_cut() {
    let disk = FaultyDisk::new();
    let steps = [Step::Append(vec![900, 700, 1_300]), Step::Sync];
    let mut history = History::run(&disk, &steps);
    let mut log = started(&disk);
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[5; 300]));
    history.appended.push(LogRecord {
        position: log.tail(),
        payload: vec![5; 300].into(),
    });
    let tail = log.tail();
    log.append(Epoch(2), tail, &mut group).unwrap();
    let at = snapshot(&mut log);
    drop(log);
    let mut harmed = disk.image();
    harmed.get_mut(&name(segment_of(at))).unwrap()[..512].fill(0);
    for image in [disk.image(), harmed] {
        let disk = FaultyDisk::from_image(image);
        for _ in 0..2 {
            let mut log = open(&disk);
            let report = log
                .recover(at, Epoch(0), &mut |_, _| panic!("no record"))
                .unwrap();
            assert!(report.damaged.is_empty(), "{report:?}");
            assert!(log.tail() > at);
            log.begin_epoch(Epoch(10 + report.epoch.0)).unwrap();
            for record in &history.appended {
                let read = log.reader().read(record.position);
                assert_eq!(read.unwrap(), record.payload);
            }
        }
    }
}

/// Everything behind the snapshot is lost: new positions come after it all the same, and so do
/// numbers, or the next recovery from it would not take them.
#[test]
fn a_snapshot_alone_is_enough() {
    let (disk, _, at) = with_snapshot();
    let mut image = disk.image();
    image.retain(|name, _| !name.ends_with(".log"));
    let alone = FaultyDisk::from_image(image);
    for life in 0..3 {
        let mut log = open(&alone);
        let mut found = Vec::new();
        let report = log
            .recover(at, Epoch(0), &mut |record, _| found.push(record))
            .unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
        assert_eq!(found.len(), life);
        assert!(log.tail() > at);
        // Epochs were in the headers: only the caller knows better.
        let epoch = Epoch(100 + life as u64);
        log.begin_epoch(epoch).unwrap();
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|buffer| buffer.push(1));
        let tail = log.tail();
        log.append(epoch, tail, &mut group).unwrap();
        log.progress().sync().unwrap();
    }
}

#[test]
fn a_position_no_recovery_can_start_at_is_refused() {
    let (disk, appended, at) = with_snapshot();
    for wrong in [appended[3].position, Position(at.0 + 1), Position(5)] {
        let refused = open(&disk).recover(wrong, Epoch(0), &mut |_, _| {});
        assert!(
            matches!(refused, Err(LogError::Unsupported { .. })),
            "{refused:?}"
        );
    }
    // A snapshot from before what was trimmed is a leftover.
    let mut log = started(&disk);
    let later = snapshot(&mut log);
    log.trim(later).unwrap();
    assert_eq!(log.snapshots().list().unwrap(), [later]);
    drop(log);
    let refused = open(&disk).recover(at, Epoch(0), &mut |_, _| {});
    assert!(
        matches!(refused, Err(LogError::Unsupported { .. })),
        "{refused:?}"
    );
    let mut log = open(&disk);
    let report = log.recover(later, Epoch(0), &mut |_, _| {}).unwrap();
    log.apply_recovery().unwrap();
    assert_eq!(report.trimmed, later);
    let names = disk.image().into_keys();
    assert_eq!(names.filter(|name| name.ends_with(".snapshot")).count(), 1);
}

/// A log is not trimmed past what is durable, also not to a snapshot: what it would promise to be there
/// could still be lost, and would be taken for damage.
#[test]
fn a_trim_goes_no_further_than_what_is_durable() {
    let disk = FaultyDisk::new();
    let steps = [Step::Append(vec![900; 20]), Step::Sync];
    let history = History::run(&disk, &steps);
    let mut log = started(&disk);
    let begun = log.tail();
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[5; 300]));
    log.append(history.epoch.next(), begun, &mut group).unwrap();
    let mut snapshot = log.begin_snapshot().unwrap();
    let at = snapshot.position();
    assert!(at > begun);
    snapshot.write(b"everything").unwrap();
    snapshot.finish().unwrap();
    log.trim(at).unwrap();
    release_trimmed(&mut log).unwrap();
    let cut = disk.crash(PowerCut::LoseAllUnsynced);
    let mut log = open(&cut);
    let (report, records) = recover(&mut log).unwrap();
    assert!(report.trimmed <= begun, "{report:?}");
    assert_eq!((report.damaged.len(), records.len()), (0, 0), "{report:?}");
}

/// Only what is before the trim can be released; it is then reused, and a segment with damage is
/// kept under another name instead.
#[test]
fn released_segments_are_used_again_and_damaged_ones_kept() {
    let (disk, appended, _) = with_snapshot();
    let damaged = segment_of(appended[0].position);
    let mut image = disk.image();
    image.get_mut(&name(damaged)).unwrap()[4_096 + 44] ^= 1;
    let disk = FaultyDisk::from_image(image);
    let mut log = started(&disk);
    let at = snapshot(&mut log);
    assert!(log.release(appended[5].position).is_err());
    log.trim(at).unwrap();
    let before = segments(&disk).len();
    release_trimmed(&mut log).unwrap();
    assert!(segments(&disk).len() < before);
    let image = disk.image();
    assert!(image.contains_key("00000001.damaged"), "{disk:?}");
    let preallocated = image.keys().filter(|name| name.ends_with(".preallocated"));
    assert_eq!(preallocated.count(), 2, "{disk:?}");
    for record in &appended {
        if segment_of(record.position) < segment_of(at) {
            let read = log.reader().read(record.position);
            assert!(matches!(read, Err(ReadError::Missing { .. })), "{read:?}");
        }
    }
}

/// Damage before the snapshot is found by who reads there, and then its segment is kept too.
#[test]
fn a_segment_in_which_a_reader_met_damage_is_kept() {
    let (disk, appended, at) = with_snapshot();
    let record = &appended[0];
    let mut image = disk.image();
    image.get_mut(&name(segment_of(record.position))).unwrap()[4_096 + 44] ^= 1;
    for is_scan in [false, true] {
        let disk = FaultyDisk::from_image(image.clone());
        let mut log = open(&disk);
        let report = log.recover(at, Epoch(0), &mut |_, _| {}).unwrap();
        log.begin_epoch(report.epoch.next()).unwrap();
        let reader = log.reader();
        if is_scan {
            let mut damaged = 0;
            let scanned = reader.scan(record.position, at, &mut |scanned| {
                damaged += u32::from(matches!(scanned, Scanned::Damaged { .. }));
                ControlFlow::Continue(())
            });
            scanned.unwrap();
            assert_eq!(damaged, 1);
        } else {
            let read = reader.read(record.position);
            assert!(matches!(read, Err(ReadError::Damaged { .. })), "{read:?}");
        }
        let later = snapshot(&mut log);
        log.trim(later).unwrap();
        release_trimmed(&mut log).unwrap();
        assert!(disk.image().contains_key("00000001.damaged"), "{disk:?}");
    }
}

/// Who reads a stretch is handed nothing from behind it, also where the stretch itself cannot be read.
#[test]
fn a_scan_ends_where_it_was_told_to() {
    let (disk, appended, at) = with_snapshot();
    let mut image = disk.image();
    let [first, second, third] = [0, 1, 2].map(|index: usize| appended[index].position);
    assert_eq!(segment_of(first), segment_of(third));
    let broken = usize::try_from(second.0 & 0xffff_ffff).unwrap() + 44;
    image.get_mut(&name(segment_of(second))).unwrap()[broken] ^= 1;
    let disk = FaultyDisk::from_image(image);
    let mut log = open(&disk);
    log.recover(at, Epoch(0), &mut |_, _| {}).unwrap();
    let seen = |from, to| {
        let mut seen = Vec::new();
        let scanned = log.reader().scan(from, to, &mut |scanned| {
            seen.push(match scanned {
                Scanned::Record { record, .. } => record.position,
                Scanned::Damaged { from, .. } => from,
            });
            ControlFlow::Continue(())
        });
        scanned.unwrap();
        seen
    };
    assert_eq!(seen(first, second), [first]);
    assert_eq!(seen(first, third), [first]);
    assert_eq!(seen(second, third), []);
    assert_eq!(seen(first, Position(third.0 + 1)), [first, second, third]);
}

/// The same where its header is lost: nobody knows what else there was.
#[test]
fn a_segment_without_a_header_is_kept() {
    let (disk, _, at) = with_snapshot();
    let mut image = disk.image();
    for segment in [1, segment_of(at)] {
        image.get_mut(&name(segment)).unwrap()[..512].fill(0);
    }
    let disk = FaultyDisk::from_image(image);
    let mut log = open(&disk);
    let report = log.recover(at, Epoch(0), &mut |_, _| {}).unwrap();
    log.begin_epoch(report.epoch.next()).unwrap();
    let later = snapshot(&mut log);
    log.trim(later).unwrap();
    release_trimmed(&mut log).unwrap();
    for segment in [1, segment_of(at)] {
        let aside = format!("{segment:08x}.damaged");
        assert!(disk.image().contains_key(&aside), "{disk:?}");
    }
}

/// Whoever sets one aside goes on without it, so it must not be there again.
#[test]
fn a_snapshot_that_was_set_aside_stays_there() {
    let (disk, _, at) = with_snapshot();
    let log = started(&disk);
    let store = log.snapshots();
    store.set_aside(at).unwrap();
    assert_eq!(store.list().unwrap(), []);
    let cut = disk.crash(PowerCut::LoseAllUnsynced);
    assert_eq!(open(&cut).snapshots().list().unwrap(), []);
    let names = cut.image().into_keys();
    let aside = names.filter(|name| name.ends_with(".snapshot-damaged"));
    assert_eq!(aside.count(), 1);
}

/// A log that was trimmed to the middle of a segment begins there: what stands before it is nobody's loss.
#[test]
fn what_stands_before_a_trim_within_a_segment_is_not_judged() {
    let (disk, appended, at) = with_snapshot();
    let mut log = started(&disk);
    log.trim(at).unwrap();
    log.progress().sync().unwrap();
    drop(log);
    let mut image = disk.image();
    let end = usize::try_from(at.0 & 0xffff_ffff).unwrap();
    let file = image.get_mut(&name(segment_of(at))).unwrap();
    file[..end].fill(0xa5);
    let mut found = Vec::new();
    let disk = FaultyDisk::from_image(image);
    let report = open(&disk).recover(Position(0), Epoch(0), &mut |record, _| found.push(record));
    let report = report.unwrap();
    assert_eq!(report.trimmed, at);
    assert!(report.damaged.is_empty(), "{report:?}");
    let expected: Vec<_> = appended.into_iter().filter(|r| r.position >= at).collect();
    assert_eq!(found, expected);
}

/// Pieces of a snapshot that have changed places, or are of another snapshot, are not taken.
#[test]
fn a_snapshot_knows_its_pieces() {
    let disk = FaultyDisk::new();
    let mut log = started(&disk);
    let mut written = Vec::new();
    for life in 0..2_u8 {
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|buffer| buffer.push(1));
        let tail = log.tail();
        log.append(Epoch(1), tail, &mut group).unwrap();
        log.progress().sync().unwrap();
        let mut snapshot = log.begin_snapshot().unwrap();
        for piece in 0..2 {
            snapshot.write(&[2 * life + piece; 100]).unwrap();
        }
        written.push(snapshot.position());
        snapshot.finish().unwrap();
    }
    drop(log);
    let image = disk.image();
    let name_of = |at: &Position| {
        let is_it = |name: &&String| name.starts_with(&format!("{:016x}-", at.0));
        let mut names = image.keys().filter(|name| name.ends_with(".snapshot"));
        names.find(is_it).unwrap().clone()
    };
    let [first, second] = [name_of(&written[0]), name_of(&written[1])];
    // A head of 32 bytes, then twice eight bytes and a piece.
    let (one, two) = (32..140, 140..248);
    let mut swapped = image.clone();
    let file = swapped.get_mut(&first).unwrap();
    file[one.clone()].copy_from_slice(&image[&first][two.clone()]);
    file[two.clone()].copy_from_slice(&image[&first][one.clone()]);
    let mut foreign = image.clone();
    let file = foreign.get_mut(&first).unwrap();
    file[two.clone()].copy_from_slice(&image[&second][two]);
    let mut renamed = image.clone();
    let other = image[&second].clone();
    *renamed.get_mut(&first).unwrap() = other;
    // Without its end, and with all of it.
    let mut cut = image.clone();
    cut.get_mut(&first).unwrap().truncate(248);
    for (image, is_whole) in [
        (swapped, false),
        (foreign, false),
        (renamed, false),
        (cut, false),
        (image.clone(), true),
    ] {
        let log = open(&FaultyDisk::from_image(image));
        let read = log.snapshots().open(written[0]).and_then(|mut reader| {
            while reader.next_piece()?.is_some() {}
            Ok(())
        });
        let is_damaged = matches!(read, Err(ReadError::Damaged { .. }));
        assert_eq!(is_damaged, !is_whole, "{read:?}");
    }
}

/// Epoch 2 is in segment 2. What it writes into segments 3 and 4 is lost, and the next epoch has those
/// numbers again. Returns what is left without preallocated files, what was written, and what segment 4 was.
fn with_a_lost_segment() -> (BTreeMap<String, Vec<u8>>, History, Vec<u8>) {
    let mut steps = vec![
        Step::Append(vec![900]),
        Step::Restart,
        Step::Append(vec![1_000; 3]),
        Step::Sync,
    ];
    let base = FaultyDisk::new();
    let history = History::run(&base, &steps);
    let mut image = base.image();
    image.retain(|name, _| !name.ends_with(".preallocated"));
    image.insert("00000008.ready".to_owned(), vec![0; 8 << 10]);
    steps.push(Step::Append(vec![1_000; 6]));
    let first = FaultyDisk::new();
    History::run(&first, &steps);
    let lost = first.image()["00000004.log"].clone();
    (image, history, lost)
}

/// Appends records of these bytes as one group. Not reserved, which would take a better preallocated file.
fn append_unreserved(log: &mut LocalLog, bytes: RangeInclusive<u8>, history: &mut History) {
    let mut group = RecordGroup::new(log.capabilities().gap);
    let mut cursor = log.tail();
    for byte in bytes {
        let payload = vec![byte; 1_000];
        group.push(|buffer| buffer.extend_from_slice(&payload));
        history.appended.push(LogRecord {
            position: log.place(&mut cursor, payload.len()),
            payload: payload.into(),
        });
    }
    let tail = log.tail();
    log.append(Epoch(3), tail, &mut group).unwrap();
}

/// Gives that segment to the next life as a preallocated file of this name, has six records appended and cuts the
/// power: the records of the first life are nowhere.
fn check_forgotten(name: &str, append: impl Fn(&mut LocalLog, &mut History)) {
    let (mut image, history, lost) = with_a_lost_segment();
    image.insert(name.to_owned(), lost);
    let mut survived = 0;
    for seed in 0..400 {
        let disk = FaultyDisk::from_image(image.clone());
        let mut second = history.clone();
        let mut log = started(&disk);
        append(&mut log, &mut second);
        assert!(
            !disk.image().contains_key("00000007.preallocated"),
            "{disk:?}"
        );
        let crashed = disk.crash(PowerCut::Seeded(seed));
        let (report, records) = recover(&mut open(&crashed)).unwrap();
        second.check(&report, &records);
        survived += usize::from(records.len() > 7);
    }
    assert!(survived > 20, "{survived}");
}

/// A preallocated file became a segment, and a power cut took the name but not the bytes; the next life gives the
/// same preallocated file to a segment of the same number, and the next cut takes the bytes but not the name.
#[test]
fn a_preallocated_file_forgets_what_it_was() {
    check_forgotten("00000007.preallocated", |log, history| {
        append_unreserved(log, 1..=6, history);
    });
}

/// The same where maintenance has written zeros over the preallocated file meanwhile: they are durable before it counts
/// as blank.
#[test]
fn a_preallocated_file_written_with_zeros_forgets_what_it_was() {
    check_forgotten("00000007.preallocated", |log, history| {
        let log_maintenance = log.log_maintenance().unwrap();
        for bytes in [1..=3, 4..=6] {
            append_unreserved(log, bytes, history);
            log_maintenance.catch_up().unwrap();
        }
    });
}

/// What stands behind the last record of a recycled segment is of its earlier use, and no torn tail.
#[test]
fn bytes_of_an_earlier_use_are_not_reported_as_a_torn_tail() {
    let disk = FaultyDisk::new();
    History::run(&disk, &[Step::Append(vec![1_000; 3]), Step::Sync]);
    let mut log = without_reserve(&disk);
    let (report, _) = recover(&mut log).unwrap();
    let epoch = report.epoch.next();
    log.begin_epoch(epoch).unwrap();
    let append = |log: &mut LocalLog| {
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|buffer| buffer.extend_from_slice(&[7; 1_000]));
        let tail = log.tail();
        log.append(epoch, tail, &mut group).unwrap();
        log.progress().sync().unwrap();
    };
    (0..6).for_each(|_| append(&mut log));
    let at = snapshot(&mut log);
    log.trim(at).unwrap();
    release_trimmed(&mut log).unwrap();
    let preallocated = |disk: &FaultyDisk| {
        disk.image()
            .into_keys()
            .filter(|name| name.ends_with(".preallocated"))
            .count()
    };
    let before = preallocated(&disk);
    assert!(before > 0);
    let segment = segment_of(log.tail());
    while segment_of(log.tail()) == segment {
        append(&mut log);
    }
    assert!(preallocated(&disk) < before, "a recycled one was taken");
    drop(log);
    let (report, _) = recover(&mut open(&disk.kill())).unwrap();
    assert_eq!(report.tail_bytes_cut, 0);
}

/// A log that takes no segment before it needs it.
fn without_reserve(disk: &FaultyDisk) -> LocalLog {
    let options = LocalLogOptions {
        reserve_segments: 0,
        ..options(1)
    };
    LocalLog::open(Arc::new(disk.clone()), options).unwrap()
}

/// Whatever a power cut leaves of the recycling, no segment that was whole looks damaged afterwards.
#[test]
fn recycling_that_is_cut_leaves_nothing_that_looks_damaged() {
    let (disk, ..) = with_snapshot();
    let mut log = started(&disk);
    let at = snapshot(&mut log);
    log.trim(at).unwrap();
    drop(log);
    let base = disk.crash(PowerCut::KeepAll);
    for change in 0..12 {
        let disk = base.crash(PowerCut::KeepAll);
        let mut log = started(&disk);
        disk.fail_change(change, Fault::PowerOff);
        let _ = release_trimmed(&mut log);
        drop(log);
        for seed in 0..40 {
            let crashed = disk.crash(PowerCut::Seeded(seed));
            let mut log = started(&crashed);
            release_trimmed(&mut log).unwrap();
            let mut names = crashed.image().into_keys();
            assert!(!names.any(|name| name.ends_with(".damaged")), "{crashed:?}");
        }
    }
}

/// An inspection says what a recovery then does, and changes nothing.
#[test]
fn an_inspection_changes_nothing_and_tells_what_recovery_does() {
    let (disk, appended, at) = with_snapshot();
    let mut image = disk.image();
    // A torn record behind the last one, damage in the middle, and a snapshot that is none.
    let last = name(segment_of(appended.last().unwrap().position));
    let end = appended
        .last()
        .map(|r| (r.position.0 & 0xffff_ffff) + 44 + r.payload.len() as u64);
    let end = usize::try_from(end.unwrap()).unwrap();
    image.get_mut(&last).unwrap()[end] = 7;
    image.get_mut(&name(2)).unwrap()[4_096 + 50] ^= 1;
    let snapshot = image
        .keys()
        .find(|name| name.ends_with(".snapshot"))
        .unwrap()
        .clone();
    image.get_mut(&snapshot).unwrap()[40] ^= 1;
    let disk = FaultyDisk::from_image(image.clone());
    let shared: std::sync::Arc<dyn lockgate_core::Disk> = std::sync::Arc::new(disk.clone());
    for from in [Position(0), at] {
        let mut records = Vec::new();
        let seen = LocalLog::inspect(shared.clone(), from, &mut |r| records.push(r)).unwrap();
        assert_eq!(disk.image(), image, "nothing was changed");
        assert_eq!(disk.operations().changes(), 0);
        assert_eq!(
            seen.would_cut.as_ref().unwrap(),
            &(last.clone(), end as u64)
        );
        assert!(seen.snapshots[0].damage.is_some() && seen.snapshots[0].position == at);
        assert_eq!(seen.segments.len(), segments(&disk).len());
        let copy = disk.kill();
        let mut found = Vec::new();
        let mut log = open(&copy);
        let report = log
            .recover(from, Epoch(0), &mut |r, _| found.push(r))
            .unwrap();
        assert_eq!(copy.image(), image, "nothing was changed yet");
        log.apply_recovery().unwrap();
        assert_eq!((seen.report, records), (report, found));
        assert_eq!(copy.image()[&last].len(), end);
    }
    let seen = LocalLog::inspect(shared, Position(0), &mut |_| {}).unwrap();
    assert_eq!(seen.report.records_lost(), 1);
    assert_eq!(seen.would_set_aside, ["00000002.damaged"]);
}
