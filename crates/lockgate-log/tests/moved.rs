//! Files that are not where they should be, while the log is in use.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

use std::{fs, ops::ControlFlow, path::Path, sync::Arc};

use lockgate_core::{Epoch, Log, LogError, LogSource, Position, ReadError, RecordGroup};
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
    log.recover(Position(0), Epoch(0), &mut |record, _| {
        records.push(record.position);
    })
    .unwrap();
    log.begin_epoch(Epoch(epoch)).unwrap();
    (log, records)
}

fn append(log: &mut LocalLog, epoch: u64, records: usize) {
    for _ in 0..records {
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|bytes| bytes.extend_from_slice(&[7; 1_000]));
        log.append(Epoch(epoch), log.tail(), &mut group).unwrap();
    }
    log.progress().sync().unwrap();
}

/// What lives in a file that is not found for a while is not gone: who takes it for released would
/// drop it for good.
#[test]
fn a_file_that_was_moved_away_is_an_error_of_the_disk_and_nothing_is_missing() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("data");
    let (mut log, _) = start(&folder, 1);
    append(&mut log, 1, 5);
    drop(log);
    let (log, records) = start(&folder, 2);
    assert_eq!(records.len(), 5);
    let reader = log.reader();
    let (here, there) = (folder.join("00000001.log"), temp.path().join("there"));
    fs::rename(&here, &there).unwrap();
    let first = records.iter().filter(|at| at.0 >> 32 == 1);
    assert!(first.clone().count() > 1);
    for &at in first {
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

/// Somebody moves the folder away, puts a restored one there, and only then stops the server. What
/// that one still does, it does to its own folder.
#[test]
fn what_is_put_where_the_folder_was_is_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let (here, there) = (temp.path().join("here"), temp.path().join("there"));
    let (mut log, _) = start(&here, 1);
    append(&mut log, 1, 20);
    fs::rename(&here, &there).unwrap();
    let (mut other, _) = start(&here, 1);
    append(&mut other, 1, 20);
    drop(other);
    let contents = || {
        let files = fs::read_dir(&here).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            (path, bytes)
        });
        files.collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = contents();
    // All that changes a folder: new segments, a snapshot, the start mark, segments given back.
    append(&mut log, 1, 20);
    for _ in 0..2 {
        let mut snapshot = log.begin_snapshot().unwrap();
        snapshot.write(b"state").unwrap();
        snapshot.finish().unwrap();
        append(&mut log, 1, 20);
    }
    let newest = log.snapshots().list().unwrap()[0];
    log.trim(newest).unwrap();
    log.release(Position(1 << 32)).unwrap();
    let log_maintenance = log.log_maintenance().unwrap();
    log_maintenance.catch_up().unwrap();
    drop(log);
    assert!(contents() == before);
    let (_, records) = start(&there, 2);
    assert_eq!(records.len(), 20, "those behind the newest snapshot");
}

/// A file that was removed takes its room for as long as somebody has it open, and a log runs for months.
#[test]
fn no_file_that_was_given_back_is_kept_open() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("data");
    let (mut log, _) = start(&folder, 1);
    let first = log.tail();
    append(&mut log, 1, 100);
    let (reader, tail) = (log.reader(), log.tail());
    let mut count = 0;
    let scanned = reader.scan(first, tail, &mut |_| {
        count += 1;
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    assert_eq!(count, 100);
    log.trim(tail).unwrap();
    for range in log.ranges() {
        if range.first.0 >> 32 < tail.0 >> 32 {
            log.release(range.first).unwrap();
        }
    }
    let open = || {
        let links = fs::read_dir("/proc/self/fd").unwrap();
        let files = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
        let ours = files.filter(|file| file.starts_with(&folder));
        ours.map(|file| file.display().to_string())
            .collect::<Vec<_>>()
    };
    assert!(!open().is_empty());
    let removed: Vec<_> = open()
        .into_iter()
        .filter(|file| file.ends_with("(deleted)"))
        .collect();
    assert_eq!(removed, [""; 0]);
}

/// Somebody removes or replaces what the log writes to: it goes on into a file that nobody can find any more.
/// The log says so, and takes nothing more.
#[test]
fn a_newest_segment_that_is_removed_or_replaced_ends_the_log() {
    let takes_away: [fn(&Path); 4] = [
        |folder| fs::remove_dir_all(folder).unwrap(),
        |folder| {
            for file in ["00000001.log", "00000002.log"] {
                fs::remove_file(folder.join(file)).unwrap();
            }
        },
        // A copy of it takes its place.
        |folder| {
            fs::copy(folder.join("00000002.log"), folder.join("copy")).unwrap();
            fs::rename(folder.join("copy"), folder.join("00000002.log")).unwrap();
        },
        |folder| {
            fs::rename(folder.join("00000002.log"), folder.join("kept")).unwrap();
            fs::copy(folder.join("kept"), folder.join("00000002.log")).unwrap();
        },
    ];
    for (index, take_away) in takes_away.into_iter().enumerate() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("data");
        let (mut log, _) = start(&folder, 1);
        let log_maintenance = log.log_maintenance().unwrap();
        append(&mut log, 1, 5);
        assert_eq!(log.tail().0 >> 32, 2);
        log_maintenance.check_storage().unwrap();
        take_away(&folder);
        let error = log_maintenance.check_storage().unwrap_err();
        let said = lockgate_core::with_sources(&error);
        let gone = if index < 2 {
            "00000001.log, 00000002.log in "
        } else {
            "00000002.log in "
        };
        assert!(said.contains(gone), "{said}");
        assert!(said.contains("removed or replaced"), "{said}");
        let stopped = log.progress().sync().unwrap_err();
        assert!(matches!(stopped, LogError::Stopped { .. }), "{stopped:?}");
    }
}

/// The next segment is not begun behind one that nobody can find.
#[test]
fn a_segment_is_not_begun_behind_one_that_was_removed() {
    let temp = tempfile::tempdir().unwrap();
    let (mut log, _) = start(temp.path(), 1);
    append(&mut log, 1, 2);
    fs::remove_file(temp.path().join("00000001.log")).unwrap();
    let error = loop {
        let mut group = RecordGroup::new(log.capabilities().gap);
        group.push(|bytes| bytes.extend_from_slice(&[7; 1_000]));
        if let Err(error) = log.append(Epoch(1), log.tail(), &mut group) {
            break error;
        }
        assert_eq!(log.tail().0 >> 32, 1);
    };
    let said = lockgate_core::with_sources(&error);
    assert!(said.contains("removed or replaced"), "{said}");
    assert!(!temp.path().join("00000002.log").exists());
}
