//! Targets that read files: segments, snapshots, backups.

use std::{collections::BTreeMap, sync::Arc};

use lockgate_core::{Epoch, Log as _, LogRecord, LogSource, Position, RecordGroup};
use lockgate_log::{LocalLog, LocalLogOptions, segment_file};
use lockgate_sim::FaultyDisk;

/// Bytes of a segment's header that mean something.
pub(crate) const HEADER_BYTES: usize = 64;

/// Bytes of a record before its payload.
pub(crate) const RECORD_HEADER_BYTES: usize = 44;

/// Position and number in the name of the snapshot.
pub(crate) const SNAPSHOT: (u64, u64) = (0x0000_0001_0000_10df, 4);

fn options() -> LocalLogOptions {
    LocalLogOptions {
        segment_bytes: 64 << 10,
        record_bytes_max: 16 << 10,
        low_bytes: Some(0),
        free_bytes_min: 0,
        reserve_segments: 0,
        write_ahead_bytes_max: 0,
        generation_seed: Some(1),
        ..LocalLogOptions::default()
    }
}

/// The length of the first of two segments (2 bytes), and both, each without the blank end of its
/// header's page.
///
/// Looking finds what recovering finds; recovering again finds it again, and what was appended since.
pub(crate) fn segments(bytes: &[u8]) -> Result<(), String> {
    let (len, rest) = bytes.split_at_checked(2).ok_or("there is no segment")?;
    let first = usize::from(u16::from_le_bytes([len[0], len[1]])).min(rest.len());
    let (one, other) = rest.split_at(first);
    let mut image = BTreeMap::new();
    for (number, compact) in [(1u64, one), (2, other)] {
        if !compact.is_empty() {
            let (header, records) = compact.split_at(HEADER_BYTES.min(compact.len()));
            let mut file = header.to_vec();
            if !records.is_empty() {
                file.resize(4096, 0);
                file.extend_from_slice(records);
            }
            image.insert(segment_file(Position(number << 32)), file);
        }
    }
    let disk = FaultyDisk::from_image(image);
    let mut looked = Vec::new();
    let inspection = LocalLog::inspect(Arc::new(disk.clone()), Position(0), &mut |record| {
        looked.push(record);
    });
    let mut log = LocalLog::open(Arc::new(disk.clone()), options()).map_err(|e| e.to_string())?;
    let mut recovered = Vec::new();
    let report = log.recover(Position(0), Epoch(0), &mut |record, _| {
        recovered.push(record);
    });
    let (report, inspection) = match (report, inspection) {
        (Ok(report), Ok(inspection)) => (report, inspection),
        (Err(error), Err(_)) => return Err(error.to_string()),
        (report, inspection) => panic!("recovered {report:?}, looked {inspection:?}"),
    };
    assert!(same(&looked, &recovered), "{looked:?} and {recovered:?}");
    let told = format!("{:?}", inspection.report);
    assert_eq!(told, format!("{report:?}"), "looked and recovered");
    for record in &recovered {
        let read = log.reader().read(record.position);
        let read = read.expect("a recovered record can be read");
        assert_eq!(read, record.payload, "at {:?}", record.position);
    }
    if report.epoch.0 == u64::MAX {
        return Err("there is no epoch behind it".to_owned());
    }
    let epoch = Epoch(report.epoch.0 + 1);
    log.begin_epoch(epoch).map_err(|error| error.to_string())?;
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.extend_from_slice(b"one more"));
    let at = log.tail();
    let appended = log.append(epoch, at, &mut group);
    appended.map_err(|error| error.to_string())?;
    log.progress().sync().map_err(|error| error.to_string())?;
    drop(log);
    let mut log =
        LocalLog::open(Arc::new(disk.kill()), options()).map_err(|error| error.to_string())?;
    let mut again = Vec::new();
    let second = log
        .recover(Position(0), Epoch(0), &mut |record, _| again.push(record))
        .expect("what was recovered is recovered again");
    let Some(last) = again.pop() else {
        panic!("the appended record is gone: {second:?}, after {report:?}");
    };
    assert_eq!(last.payload, "one more", "the appended record");
    assert!(same(&recovered, &again), "{recovered:?} and {again:?}");
    if report.damaged.is_empty() {
        Ok(())
    } else {
        Err("some of it is damaged".to_owned())
    }
}

fn same(one: &[LogRecord], other: &[LogRecord]) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|(one, other)| one.position == other.position && one.payload == other.payload)
}

/// A snapshot's file.
pub(crate) fn snapshot(bytes: &[u8]) -> Result<(), String> {
    let name = format!("{:016x}-{:016x}.snapshot", SNAPSHOT.0, SNAPSHOT.1);
    let disk = FaultyDisk::from_image([(name, bytes.to_vec())].into());
    let inspection = LocalLog::inspect(Arc::new(disk), Position(0), &mut |_| ())
        .map_err(|error| error.to_string())?;
    let snapshot = inspection.snapshots.into_iter().next();
    let snapshot = snapshot.ok_or("there is no snapshot")?;
    snapshot.damage.map_or(Ok(()), Err)
}

/// A backup's stream. What verifies can be restored.
pub(crate) fn backup(bytes: &[u8]) -> Result<(), String> {
    lockgate_engine::verify_backup(&mut &*bytes).map_err(|error| error.to_string())?;
    let disk = Arc::new(FaultyDisk::from_image(BTreeMap::new()));
    let log = LocalLog::open(disk, options()).map_err(|error| error.to_string())?;
    let restored = lockgate_engine::restore(&mut &*bytes, log, None);
    restored.map(drop).map_err(|error| error.to_string())
}
