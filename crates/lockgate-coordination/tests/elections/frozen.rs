//! Leaders over a folder, in processes of their own.

use lockgate_conformance::processes;
use lockgate_coordination::{FileRecords, RecordsCoordinator};

/// What the other test starts.
#[test]
fn process() {
    processes::lead(async |folder| {
        RecordsCoordinator::new(FileRecords::open(folder).await.unwrap())
    });
}

#[test]
fn a_process_that_is_stopped_or_killed_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("records");
    processes::leaders_are_replaced("frozen::process", records.to_str().unwrap());
}
