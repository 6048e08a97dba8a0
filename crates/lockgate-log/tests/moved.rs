//! Files that are not where they should be, while the log is in use.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::{fs, ops::ControlFlow, path::Path, sync::Arc};

use lockgate_core::{Epoch, Log, LogError, Position, ReadError, RecordGroup};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};

fn start(path: &Path, epoch: u64) -> (LocalLog, Vec<Position>) {
    let disk = FolderDisk::open(path).unwrap();
    let options = LocalLogOptions {
        segment_bytes: 8 << 10,
        record_bytes_max: 2_000,
        free_bytes_min: 0,
        ..LocalLogOptions::default()
    };
    let mut log = LocalLog::open(Arc::new(disk), options).unwrap();
    let mut records = Vec::new();
    log.recover(Position(0), &mut |record| records.push(record.position))
        .unwrap();
    log.begin_epoch(Epoch(epoch)).unwrap();
    (log, records)
}

/// What lives in a file that is not found for a while is not gone: who takes it for released would
/// drop it for good.
#[test]
fn a_folder_that_was_moved_away_is_an_error_of_the_disk_and_nothing_is_missing() {
    let temp = tempfile::tempdir().unwrap();
    let (here, there) = (temp.path().join("here"), temp.path().join("there"));
    let (mut log, _) = start(&here, 1);
    for _ in 0..5 {
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|bytes| bytes.extend_from_slice(&[7; 1_000]));
        log.append(Epoch(1), log.tail(), &mut group).unwrap();
    }
    log.syncer().sync().unwrap();
    drop(log);
    let (log, records) = start(&here, 2);
    assert_eq!(records.len(), 5);
    let reader = log.reader();
    fs::rename(&here, &there).unwrap();
    for &at in &records {
        let read = reader.read(at);
        assert!(
            matches!(read, Err(ReadError::Log(LogError::Disk(_)))),
            "{read:?}"
        );
    }
    let scan = || {
        let mut count = 0;
        let scanned = reader.scan(Position(0), log.tail(), &mut |_| {
            count += 1;
            ControlFlow::Continue(())
        });
        scanned.map(|()| count)
    };
    assert!(matches!(scan(), Err(ReadError::Log(LogError::Disk(_)))));
    fs::rename(&there, &here).unwrap();
    for &at in &records {
        assert_eq!(reader.read(at).unwrap(), [7; 1_000][..]);
    }
    assert_eq!(scan().unwrap(), 5);
}
