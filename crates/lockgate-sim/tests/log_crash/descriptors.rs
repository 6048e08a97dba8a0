//! No file can be opened for a while: too many are open. It says nothing about the disk, and passes.

use std::sync::Arc;

use lockgate_core::{
    AppendError, DiskOperation, Epoch, Log, LogError, LogRecord, LogSource, Position, Purpose,
    ReadError, RecordGroup, ReserveError,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{Fault, FaultyDisk, PowerCut};

use crate::history::release_trimmed;

/// Records of these tests in a segment.
const IN_SEGMENT: usize = 4;

fn open(disk: &FaultyDisk) -> LocalLog {
    let options = LocalLogOptions {
        segment_bytes: 8 << 10,
        record_bytes_max: 3_000,
        free_bytes_min: 0,
        generation_seed: Some(5),
        ..LocalLogOptions::default()
    };
    LocalLog::open(Arc::new(disk.clone()), options).unwrap()
}

/// A log that serves, and the records it found.
fn start(disk: &FaultyDisk) -> (LocalLog, Vec<LogRecord>) {
    let mut log = open(disk);
    let mut records = Vec::new();
    let report = log
        .recover(Position(0), Epoch(0), &mut |record, _| records.push(record))
        .unwrap();
    log.begin_epoch(report.epoch.next()).unwrap();
    (log, records)
}

fn append(log: &mut LocalLog) -> Result<Position, AppendError> {
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(&[7; 950]));
    let tail = log.tail();
    let at = log.place(&mut { tail }, 950);
    log.append(Epoch(1), tail, &mut group).map(|()| at)
}

fn try_append(log: &mut LocalLog, purpose: Purpose) -> Result<Position, ReserveError> {
    log.reserve(950, 1, purpose)?;
    Ok(append(log).expect("a granted reservation is good"))
}

fn run_out(disk: &FaultyDisk) {
    disk.fail_always(DiskOperation::Open, 0, Fault::OutOfDescriptors);
}

/// Growth is refused once a preallocated file would have to be made, and what makes room goes on from the preallocated files
/// there are: their files are open. Nothing is lost, and it goes on by itself.
#[test]
fn growth_waits_and_maintenance_goes_on_from_open_files() {
    for is_attended in [false, true] {
        let disk = FaultyDisk::new();
        let (mut log, _) = start(&disk);
        let log_maintenance = is_attended.then(|| log.log_maintenance().unwrap());
        let tend = || {
            if let Some(log_maintenance) = &log_maintenance {
                let _full = log_maintenance.catch_up();
            }
        };
        let mut appended = Vec::new();
        for _ in 0..20 {
            appended.push(try_append(&mut log, Purpose::Growth).unwrap());
            tend();
        }
        run_out(&disk);
        tend();
        let refused = loop {
            match try_append(&mut log, Purpose::Growth) {
                Ok(at) => appended.push(at),
                Err(error) => break error,
            }
        };
        let is_passing = |error: &ReserveError| matches!(error, ReserveError::OutOfDescriptors(_));
        assert!(is_passing(&refused), "{refused:?}");
        // From the reserve: three segments.
        let before = appended.len();
        let refused = loop {
            match try_append(&mut log, Purpose::Maintenance) {
                Ok(at) => appended.push(at),
                Err(error) => break error,
            }
        };
        assert!(is_passing(&refused), "{refused:?}");
        let gone_on = appended.len() - before;
        assert!(gone_on >= 3 * IN_SEGMENT, "{gone_on}");
        assert_eq!(log.progress().sync().unwrap(), log.tail());
        // What becomes free meanwhile is given back rather than kept.
        log.trim(log.tail()).unwrap();
        release_trimmed(&mut log).unwrap();
        tend();
        let kept = log.ranges().first().unwrap().first;

        disk.disarm();
        for _ in 0..40 {
            tend();
            appended.push(try_append(&mut log, Purpose::Growth).unwrap());
        }
        log.progress().sync().unwrap();
        drop((log, log_maintenance));
        appended.retain(|&at| at > kept);
        let (_, found) = start(&disk.crash(PowerCut::LoseAllUnsynced));
        let found: Vec<_> = found.iter().map(|record| record.position).collect();
        assert_eq!(found, appended);
    }
}

/// Nobody reserves here, so the append itself meets it. It takes back what it wrote.
#[test]
fn an_append_that_cannot_open_its_segment_wrote_nothing() {
    let disk = FaultyDisk::new();
    let (mut log, _) = start(&disk);
    let mut appended = Vec::new();
    run_out(&disk);
    let refused = loop {
        match append(&mut log) {
            Ok(at) => appended.push(at),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(
            &refused,
            AppendError::Full(ReserveError::OutOfDescriptors(_))
        ),
        "{refused:?}"
    );
    disk.disarm();
    appended.push(append(&mut log).unwrap());
    log.progress().sync().unwrap();
    drop(log);
    let (_, found) = start(&disk.crash(PowerCut::LoseAllUnsynced));
    let found: Vec<_> = found.iter().map(|record| record.position).collect();
    assert_eq!(found, appended);
}

/// A record whose file cannot be opened is neither damaged nor missing: who takes it for that drops it.
#[test]
fn a_record_whose_file_cannot_be_opened_is_an_error_of_storage() {
    let disk = FaultyDisk::new();
    let (mut log, _) = start(&disk);
    let first = try_append(&mut log, Purpose::Growth).unwrap();
    let second = try_append(&mut log, Purpose::Growth).unwrap();
    log.progress().sync().unwrap();
    drop(log);
    let disk = disk.kill();
    let (log, _) = start(&disk);
    let reader = log.reader();
    run_out(&disk);
    let is_passing = |read: &ReadError| matches!(read, ReadError::Log(LogError::Disk(error)) if error.is_out_of_descriptors());
    assert!(is_passing(&reader.read(first).unwrap_err()));
    let both = reader.read_all(&[first, second]);
    assert!(
        both.iter()
            .all(|read| is_passing(read.as_ref().unwrap_err()))
    );
    disk.disarm();
    assert_eq!(reader.read(first).unwrap()[..], [7; 950][..]);
}

/// Recovery ends with the reason at whichever file it is, changes nothing that matters, and the next one
/// finds everything.
#[test]
fn a_recovery_that_cannot_open_a_file_says_so_and_can_be_repeated() {
    let disk = FaultyDisk::new();
    let (mut log, _) = start(&disk);
    for _ in 0..30 {
        try_append(&mut log, Purpose::Growth).unwrap();
    }
    log.progress().sync().unwrap();
    drop(log);
    let opens = |disk: &FaultyDisk| disk.operations().opens;
    let whole = disk.kill();
    let before = opens(&whole);
    let found = start(&whole).1.len();
    let opened = opens(&whole) - before;
    assert!(opened > 10, "{opened}");
    for after in 0..opened {
        let disk = disk.kill();
        disk.fail_always(DiskOperation::Open, after, Fault::OutOfDescriptors);
        let mut log = open(&disk);
        let recovered = log.recover(Position(0), Epoch(0), &mut |_, _| {});
        let told = match recovered {
            Err(error) => Some(lockgate_core::with_sources(&error)),
            Ok(report) => {
                let begun = log.begin_epoch(report.epoch.next());
                begun.err().map(|error| lockgate_core::with_sources(&error))
            }
        };
        match told {
            Some(told) => {
                assert!(told.contains("opening"), "{told}");
                assert!(told.contains("os error 24"), "{told}");
            }
            // The last one only opens anew what is open.
            None => assert_eq!(after, opened - 1),
        }
        drop(log);
        disk.disarm();
        assert_eq!(start(&disk.kill()).1.len(), found, "{after}");
    }
}

/// A large log is written and read, and keeps many of the segments that it gives back for those to come.
#[test]
fn no_more_files_are_open_than_the_options_say() {
    let disk = FaultyDisk::new();
    let (mut log, _) = start(&disk);
    let log_maintenance = log.log_maintenance().unwrap();
    let reader = log.reader();
    let mut appended = Vec::new();
    let fill = |log: &mut LocalLog, appended: &mut Vec<Position>, segments| {
        for _ in 0..segments * IN_SEGMENT {
            appended.push(try_append(log, Purpose::Growth).unwrap());
            if appended.len().is_multiple_of(4 * IN_SEGMENT) {
                log.progress().sync().unwrap();
            }
        }
    };
    fill(&mut log, &mut appended, 200);
    log.trim(appended[195 * IN_SEGMENT]).unwrap();
    release_trimmed(&mut log).unwrap();
    appended.drain(..200 * IN_SEGMENT);
    fill(&mut log, &mut appended, 1_300);
    for &at in appended.iter().step_by(IN_SEGMENT) {
        reader.read(at).unwrap();
    }
    log.trim(appended[300 * IN_SEGMENT]).unwrap();
    release_trimmed(&mut log).unwrap();
    log_maintenance.catch_up().unwrap();
    let files = disk.image().into_keys();
    let preallocated = files.filter(|name| name.ends_with(".preallocated")).count();
    assert_eq!(preallocated, 128);
    let allowed = LocalLogOptions::default().files_max();
    let most = disk.open_files_max();
    assert!(most <= allowed, "{most} were open, {allowed} were said");
}
