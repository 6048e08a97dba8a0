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
fn an_allocation_takes_space_and_is_lost_like_a_length() {
    let disk = FaultyDisk::new();
    disk.set_free_bytes(Some(4_096));
    let file = disk.open("a", OpenMode::CreateNew).unwrap();
    disk.sync_folder().unwrap();
    file.allocate(2_048).unwrap();
    assert_eq!(disk.contents("a").unwrap(), [0; 2_048]);
    assert_eq!(
        (disk.space().unwrap().free, disk.used_bytes()),
        (2_048, 2_048)
    );
    let lost = disk.crash(PowerCut::LoseAllUnsynced);
    assert_eq!(lost.contents("a").unwrap(), []);
    assert_eq!(
        lost.space().unwrap().free,
        4_096,
        "its blocks are free again"
    );
    file.sync().unwrap();
    let kept = disk.crash(PowerCut::LoseAllUnsynced);
    assert_eq!(kept.space().unwrap().free, 2_048);

    // What was allocated can be written when nothing else can.
    disk.take_space(u64::MAX);
    file.write_at(&[1; 2_048], 0).unwrap();
    file.write_at(&[1; 1], 2_048).unwrap_err();
    assert!(file.allocate(4_096).unwrap_err().is_full());
    disk.give_space(1_024);
    assert!(file.allocate(4_096).unwrap_err().is_full());
    assert_eq!(file.len().unwrap(), 3_072, "a part was taken");
}

#[test]
fn another_program_takes_space_and_gives_it_back() {
    let disk = FaultyDisk::new();
    assert_eq!(disk.take_space(5), 0, "there is no limit");
    disk.set_free_bytes(Some(10_240));
    assert_eq!(disk.take_space(9_216), 9_216);
    assert_eq!(disk.space().unwrap().free, 1_024);
    let file = disk.open("a", OpenMode::CreateNew).unwrap();
    assert!(file.write_at(&[1; 2_000], 0).unwrap_err().is_full());
    assert_eq!(file.len().unwrap(), 1_024);
    disk.give_space(9_216);
    file.write_at(&[1; 2_000], 0).unwrap();
    assert_eq!(disk.space().unwrap().free, 8_192);
    // A crash that takes the file gives its space back, and the other program keeps its own.
    disk.take_space(1_024);
    let after = disk.crash(PowerCut::LoseAllUnsynced);
    assert_eq!(after.space().unwrap().free, 9_216);
}

#[test]
fn any_subset_can_be_kept() {
    let (disk, file) = with_file(b"....");
    file.write_at(b"1", 0).unwrap();
    file.write_at(b"2", 1).unwrap();
    disk.rename("a", "b").unwrap();
    file.set_len(3).unwrap();
    disk.open("c", OpenMode::CreateNew).unwrap();
    let kept = |cut| {
        let image = disk.crash(cut).image();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        image
            .into_iter()
            .map(|(name, bytes)| format!("{name}={}", text(bytes)))
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (subset, expected) in [
        (0b00000, "a=...."),
        (0b00001, "a=1..."),
        (0b00010, "a=.2.."),
        (0b00101, "b=1..."),
        (0b01010, "a=.2."),
        (0b10100, "b=.... c="),
        (0b11111, "b=12. c="),
    ] {
        assert_eq!(kept(PowerCut::KeepSubset(subset)), expected, "{subset:b}");
    }
    assert_eq!(kept(PowerCut::KeepNames), "b=.... c=");
    assert_eq!(kept(PowerCut::KeepBytes), "a=12.");
}

#[test]
fn a_torn_write_may_leave_only_its_length() {
    let (disk, file) = with_file(b"old");
    file.write_at(&[1; 1_000], 3).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        seen.insert(disk.crash(PowerCut::Seeded(seed)).contents("a").unwrap());
    }
    let with_rest = |rest: &[u8]| [b"old", rest].concat();
    assert!(seen.contains(&with_rest(&[])));
    assert!(seen.contains(&with_rest(&[0; 1_000])));
    assert!(seen.contains(&with_rest(&[1; 1_000])));
    let second_half = [vec![0; 509], vec![1; 491]].concat();
    assert!(seen.contains(&with_rest(&second_half)));
}

#[test]
fn a_failed_sync_may_have_done_a_part() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let (disk, file) = with_file(b"..");
        file.write_at(b"1", 0).unwrap();
        file.write_at(b"2", 1).unwrap();
        disk.fail(DiskOperation::Sync, 0, Fault::LostSome(seed));
        file.sync().unwrap_err();
        file.sync().unwrap();
        assert_eq!(disk.contents("a").unwrap(), b"12");
        seen.insert(lost_all(&disk)["a"].clone());
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_fault_can_strike_every_time() {
    let (disk, file) = with_file(b"x");
    disk.fail_always(DiskOperation::Write, 1, Fault::Error(ErrorKind::Other));
    file.write_at(b"1", 0).unwrap();
    for _ in 0..3 {
        file.write_at(b"2", 0).unwrap_err();
    }
    disk.disarm();
    file.write_at(b"3", 0).unwrap();
    assert_eq!(disk.struck().len(), 3);
    assert_eq!(
        disk.struck()[0],
        Struck {
            operation: DiskOperation::Write,
            name: "a".to_owned(),
            fault: Fault::Error(ErrorKind::Other),
        }
    );
}

#[test]
fn every_kind_of_operation_can_fail() {
    use DiskOperation::{Allocate, Inspect, Open, Read, Remove, Rename, SetLen, Sync, Write};
    let (disk, file) = with_file(b"x");
    let attempt = |operation| match operation {
        Open => disk.open("a", OpenMode::Read).map(|_| ()),
        Read => file.read_at(&mut [0], 0).map(|_| ()),
        Write => file.write_at(b"y", 0),
        SetLen => file.set_len(2),
        Allocate => file.allocate(2),
        Sync => file.sync(),
        Rename => disk.rename("a", "b"),
        Remove => disk.remove("a"),
        _ => disk.space().map(|_| ()),
    };
    for operation in [
        Open, Read, Write, SetLen, Allocate, Sync, Rename, Remove, Inspect,
    ] {
        disk.fail(operation, 0, Fault::Error(ErrorKind::Other));
        assert_eq!(attempt(operation).unwrap_err().operation, operation);
    }
    assert_eq!(lost_all(&disk), disk.image(), "nothing has changed");
    let made = disk.operations();
    assert_eq!((made.allocates, made.reads, made.inspections), (1, 1, 1));
}

#[test]
fn a_misread_is_wrong_once_or_for_good() {
    let sectors: Vec<u8> = (0..4).flat_map(|sector| [sector + 1; 512]).collect();
    for damage in [
        Damage::FlippedBit,
        Damage::ZeroedSector,
        Damage::SwappedSectors,
    ] {
        for (lasting, seed) in [(false, 1), (true, 2)] {
            let (disk, file) = with_file(&sectors);
            let misread = Fault::Misread {
                damage,
                lasting,
                seed,
            };
            disk.fail(DiskOperation::Read, 0, misread);
            let read = || {
                let mut bytes = vec![0; 2_048];
                assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 2_048);
                bytes
            };
            let first = read();
            let changed = |bytes: &[u8]| {
                let pairs = bytes.iter().zip(&sectors);
                pairs.filter(|(now, then)| now != then).count()
            };
            let expected = match damage {
                Damage::FlippedBit => 1,
                Damage::ZeroedSector => 512,
                Damage::SwappedSectors => 1_024,
            };
            assert_eq!(changed(&first), expected, "{damage:?}");
            assert_eq!(read() == first, lasting);
            assert_eq!(lost_all(&disk)["a"] == first, lasting);
        }
    }
}

#[test]
fn damage_stays_within_its_range() {
    for seed in 0..100 {
        let (disk, _file) = with_file(&[7; 4_096]);
        assert!(disk.damage("a", Damage::FlippedBit, 100..200, seed));
        assert!(disk.damage("a", Damage::ZeroedSector, 600..700, seed));
        assert!(!disk.damage("a", Damage::ZeroedSector, 600..700, seed));
        assert!(!disk.damage("a", Damage::SwappedSectors, 1_024..4_096, seed));
        assert!(!disk.damage("a", Damage::FlippedBit, 5_000..6_000, seed));
        assert!(!disk.damage("b", Damage::FlippedBit, 0..1, seed));
        let bytes = disk.contents("a").unwrap();
        let changed: Vec<_> = (0..4_096).filter(|&at| bytes[at] != 7).collect();
        assert_eq!(changed.len(), 101);
        assert!((100..200).contains(&changed[0]) && changed[1..] == (600..700).collect::<Vec<_>>());
        assert_eq!(lost_all(&disk)["a"], bytes);
    }
}

#[test]
fn a_misdirected_write_is_found_after_the_cache_is_gone() {
    let mut strayed = 0;
    for seed in 0..50 {
        let (disk, file) = with_file(&[1; 4_096]);
        let other = disk.open("b", OpenMode::CreateNew).unwrap();
        other.write_at(&[2; 2_048], 0).unwrap();
        other.sync().unwrap();
        disk.sync_folder().unwrap();
        disk.fail(DiskOperation::Write, 0, Fault::Misdirected(seed));
        file.write_at(&[9; 600], 100).unwrap();
        file.sync().unwrap();
        let cached = disk.image();
        assert_eq!(cached["a"][100..700], [9; 600]);
        assert_eq!(cached["b"], [2; 2_048]);
        let after = lost_all(&disk);
        let nines: Vec<_> = ["a", "b"]
            .into_iter()
            .flat_map(|name| after[name].iter().enumerate().map(move |at| (name, at)))
            .filter(|(_, (_, byte))| **byte == 9)
            .map(|(name, (at, _))| (name, at))
            .collect();
        assert_eq!(nines.len(), 600);
        assert_eq!(nines[0].1 % 512, 100, "only the sector is wrong");
        strayed += u32::from(nines[0] != ("a", 100));
    }
    assert!(strayed > 40, "{strayed}");
}

#[test]
fn a_stall_holds_up_only_its_own_operations() {
    let (disk, file) = with_file(b"old");
    let stall = disk.stall(DiskOperation::Sync, 1);
    file.sync().unwrap();
    let synced = std::thread::spawn({
        let file = file.clone();
        move || file.sync()
    });
    stall.wait();
    // The disk goes on for everybody else.
    file.write_at(b"new", 0).unwrap();
    let also = std::thread::spawn({
        let disk = disk.clone();
        move || disk.sync_folder()
    });
    assert_eq!(lost_all(&disk)["a"], b"old");
    stall.release();
    synced.join().unwrap().unwrap();
    also.join().unwrap().unwrap();
    assert_eq!(
        lost_all(&disk)["a"],
        b"new",
        "what was written meanwhile went along"
    );
}

#[test]
fn a_frozen_disk_can_be_read() {
    let (disk, file) = with_file(b"old");
    let frozen = disk.freeze(0);
    let written = std::thread::spawn({
        let file = file.clone();
        move || file.write_at(b"new", 0)
    });
    frozen.wait();
    assert_eq!(file.read_at(&mut [0; 3], 0).unwrap(), 3);
    assert_eq!(disk.contents("a").unwrap(), b"old");
    drop(frozen);
    written.join().unwrap().unwrap();
    assert_eq!(disk.contents("a").unwrap(), b"new");
}

/// A big file that is allocated or holds zeros costs next to nothing, nor does a crash of it.
#[test]
fn zeros_cost_no_memory() {
    let disk = FaultyDisk::new();
    let file = disk.open("a", OpenMode::CreateNew).unwrap();
    file.allocate(1 << 28).unwrap();
    file.write_at(&[0; 1 << 16], 1 << 27).unwrap();
    file.write_at(b"x", (1 << 28) - 1).unwrap();
    file.sync().unwrap();
    disk.sync_folder().unwrap();
    let after = disk.crash(PowerCut::LoseAllUnsynced);
    let file = after.open("a", OpenMode::Existing).unwrap();
    let mut end = [0; 2];
    assert_eq!(file.read_at(&mut end, (1 << 28) - 2).unwrap(), 2);
    assert_eq!(&end, b"\0x");
    file.set_len(1).unwrap();
    assert_eq!(after.contents("a").unwrap(), [0]);
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
