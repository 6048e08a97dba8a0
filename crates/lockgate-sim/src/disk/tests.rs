//! The faulty disk must itself be trusted: each promise and each fault, once.

use std::io::ErrorKind;

use super::*;

/// A file "a" with synced contents and a synced name.
fn with_file(bytes: &[u8]) -> (FaultyDisk, Arc<dyn DiskFile>) {
    let disk = FaultyDisk::new();
    let file = disk.open("a", OpenMode::CreateNew).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync().unwrap();
    disk.sync_folder().unwrap();
    (disk, file)
}

fn lost_all(disk: &FaultyDisk) -> BTreeMap<String, Vec<u8>> {
    disk.crash(PowerCut::LoseAllUnsynced).image()
}

#[test]
fn names_and_bytes_are_synced_apart() {
    let disk = FaultyDisk::new();
    let file = disk.open("a", OpenMode::CreateNew).unwrap();
    file.write_at(b"x", 0).unwrap();
    file.sync().unwrap();
    assert!(lost_all(&disk).is_empty(), "the name was not synced");
    disk.sync_folder().unwrap();
    file.write_at(b"y", 1).unwrap();
    assert_eq!(lost_all(&disk)["a"], b"x");

    disk.rename("a", "b").unwrap();
    assert!(lost_all(&disk).contains_key("a"));
    disk.sync_folder().unwrap();
    assert!(lost_all(&disk).contains_key("b"));
    disk.remove("b").unwrap();
    assert!(lost_all(&disk).contains_key("b"));
    disk.sync_folder().unwrap();
    assert!(lost_all(&disk).is_empty());
}

#[test]
fn a_changed_length_is_lost_like_a_write() {
    let (disk, file) = with_file(b"hello");
    file.set_len(2).unwrap();
    assert_eq!(disk.contents("a").unwrap(), b"he");
    assert_eq!(lost_all(&disk)["a"], b"hello");
    file.set_len(4).unwrap();
    file.sync().unwrap();
    assert_eq!(lost_all(&disk)["a"], b"he\0\0");
}

#[test]
fn a_kill_keeps_what_was_written_and_what_was_not_synced() {
    let (disk, file) = with_file(b"hello");
    file.write_at(b"J", 0).unwrap();
    disk.open("b", OpenMode::CreateNew).unwrap();
    let killed = disk.kill();
    assert_eq!(killed.image(), disk.image());
    assert_eq!(lost_all(&killed)["a"], b"hello");
    assert_eq!(killed.unsynced(), 2);
}

#[test]
fn prefixes_are_kept_in_order_and_the_next_write_is_torn() {
    let (disk, file) = with_file(&[0; 1_536]);
    file.write_at(&[1; 1_024], 0).unwrap();
    file.write_at(&[2; 1_024], 512).unwrap();
    let kept = |count| {
        disk.crash(PowerCut::KeepPrefix(count))
            .contents("a")
            .unwrap()
    };
    let halves = |bytes: Vec<u8>| [bytes[0], bytes[512], bytes[1_024]];
    assert_eq!(halves(kept(0)), [1, 0, 0]);
    assert_eq!(halves(kept(1)), [1, 2, 0]);
    assert_eq!(halves(kept(2)), [1, 2, 2]);
    assert_eq!(disk.crash(PowerCut::KeepAll).image(), disk.image());
}

#[test]
fn seeds_choose_subsets_and_tear_only_at_sectors() {
    let (disk, file) = with_file(&[0; 2_048]);
    for index in 0..4 {
        let bytes = [index + 1; 512];
        file.write_at(&bytes, u64::from(index) * 512).unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let bytes = disk.crash(PowerCut::Seeded(seed)).contents("a").unwrap();
        for sector in bytes.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "whole or not");
        }
        seen.insert([bytes[0], bytes[512], bytes[1_024], bytes[1_536]]);
        assert_eq!(
            disk.crash(PowerCut::Seeded(seed)).contents("a").unwrap(),
            bytes
        );
    }
    assert_eq!(seen.len(), 16, "every subset comes up");
}

#[test]
fn faults_strike_once_at_their_operation() {
    let (disk, file) = with_file(b"hello");
    disk.fail(DiskOperation::Write, 1, Fault::Error(ErrorKind::Other));
    disk.fail(DiskOperation::Write, 2, Fault::Torn(ErrorKind::StorageFull));
    file.write_at(b"1", 0).unwrap();
    file.write_at(b"2", 0).unwrap_err();
    assert!(file.write_at(b"ABCD", 1).unwrap_err().is_full());
    file.write_at(b"3", 0).unwrap();
    assert_eq!(disk.contents("a").unwrap(), b"3ABlo");
    assert_eq!(disk.operations().writes, 5);
}

#[test]
fn a_lying_sync_loses_what_it_failed_to_write() {
    let (disk, file) = with_file(b"old");
    file.write_at(b"new", 0).unwrap();
    disk.fail(DiskOperation::Sync, 0, Fault::LostPages);
    file.sync().unwrap_err();
    file.sync().expect("the second sync says all is well");
    assert_eq!(disk.contents("a").unwrap(), b"new", "so do reads");
    assert_eq!(lost_all(&disk)["a"], b"old");
    file.write_at(b"new", 0).unwrap();
    file.sync().unwrap();
    assert_eq!(lost_all(&disk)["a"], b"new", "written again, it is there");
}

#[test]
fn after_power_off_nothing_works() {
    let (disk, file) = with_file(b"old");
    disk.fail_change(1, Fault::PowerOff);
    file.write_at(b"1", 0).unwrap();
    file.sync().unwrap_err();
    file.write_at(b"2", 0).unwrap_err();
    disk.list().unwrap_err();
    assert_eq!(lost_all(&disk)["a"], b"old", "the sync it hit did nothing");
    assert_eq!(disk.crash(PowerCut::KeepAll).contents("a").unwrap(), b"1ld");
}

#[test]
fn space_is_counted_in_sectors_and_comes_back() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(1_024));
    let file = disk.open("a", OpenMode::CreateNew).unwrap();
    file.write_at(&[1; 600], 0).unwrap();
    file.write_at(&[2; 1_024], 0).unwrap();
    assert_eq!(disk.space().unwrap().free, 0);
    assert!(file.write_at(&[3; 100], 1_000).unwrap_err().is_full());
    assert_eq!(file.len().unwrap(), 1_024, "as much as there was space for");
    file.set_len(10).unwrap();
    assert_eq!(disk.space().unwrap().free, 512);
    disk.remove("a").unwrap();
    assert_eq!(disk.space().unwrap().free, 1_024);
}

#[test]
fn one_owner_at_a_time() {
    let disk = FaultyDisk::new();
    let lock = disk.lock().unwrap();
    assert!(matches!(disk.clone().lock(), Err(LockError::Held { .. })));
    disk.kill()
        .lock()
        .map(|_| ())
        .expect("death frees the folder");
    drop(lock);
    disk.lock().map(|_| ()).unwrap();
}
