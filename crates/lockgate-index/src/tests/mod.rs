//! Tests of the whole index, on a real disk.

mod damage;
mod kills;
mod look;
mod model;
mod pieces;

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::{FolderIndex, IndexError, IndexOptions, UniqueIndex};

const SMALL: IndexOptions = IndexOptions {
    memory: IndexOptions::MEMORY_MIN,
};

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(folder: &Path) -> UniqueIndex {
    UniqueIndex::open(folder, &SMALL).unwrap().0
}

/// An id that is distributed as digests are.
fn id(number: u64) -> u128 {
    u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(number)
}

fn ids(numbers: std::ops::RangeInclusive<u64>) -> Vec<(u128, u64)> {
    numbers.map(|number| (id(number), number)).collect()
}

fn look(index: &UniqueIndex, space: u64, number: u64) -> Option<u64> {
    index.look_up(space, &[id(number)]).unwrap().found[0]
}

#[test]
fn spaces_share_no_ids_and_an_unknown_space_has_none() {
    let folder = folder();
    let index = open(folder.path());
    assert!(index.add(1, &ids(1..=3), 30).unwrap());
    assert!(index.add(2, &[], 0).unwrap());
    assert_eq!(look(&index, 1, 2), Some(2));
    assert_eq!(look(&index, 2, 2), None);
    let unknown = index.look_up(3, &[id(1), id(2)]).unwrap();
    assert_eq!((unknown.up_to, unknown.found), (None, vec![None, None]));
    assert_eq!(index.all_up_to(), [(1, 30), (2, 0)]);
}

#[test]
fn what_is_complete_already_is_not_added_again() {
    let folder = folder();
    let index = open(folder.path());
    assert!(index.add(1, &ids(1..=3), 30).unwrap());
    assert!(!index.add(1, &[(id(1), 7)], 30).unwrap());
    assert!(!index.add(1, &[(id(1), 7)], 29).unwrap());
    assert_eq!((look(&index, 1, 1), index.up_to(1)), (Some(1), Some(30)));
    assert!(index.add(1, &[(id(1), 7)], 31).unwrap());
    assert_eq!((look(&index, 1, 1), index.up_to(1)), (Some(7), Some(31)));
}

#[test]
fn many_ids_are_written_before_anybody_syncs() {
    let folder = folder();
    let index = open(folder.path());
    let mut up_to = 0;
    while index.durable_up_to(1).is_none() {
        assert!(up_to < 100_000, "ids pile up in memory");
        index
            .add(1, &ids(up_to + 1..=up_to + 1000), up_to + 1000)
            .unwrap();
        up_to += 1000;
    }
    drop(index);
    let index = open(folder.path());
    assert_eq!(
        (index.up_to(1), index.check().unwrap()),
        (Some(up_to), up_to)
    );
}

#[test]
fn a_space_is_removed_in_steps_also_over_restarts() {
    let folder = folder();
    let index = open(folder.path());
    index.add(1, &ids(1..=10), 1).unwrap();
    index.add(2, &ids(1..=100), 1).unwrap();
    index.add(3, &ids(1..=10), 1).unwrap();
    index.sync().unwrap();
    // In another run, together with ids of another space.
    index.add(2, &ids(101..=200), 2).unwrap();
    index.add(3, &ids(11..=20), 2).unwrap();
    assert!(!index.remove_space(2, 30).unwrap());
    assert_eq!((look(&index, 2, 150), index.up_to(2)), (None, None));
    assert!(matches!(
        index.add(2, &ids(1..=1), 3),
        Err(IndexError::Removing { space: 2 })
    ));
    drop(index);

    let (index, report) = UniqueIndex::open(folder.path(), &SMALL).unwrap();
    assert_eq!(report.removing, [2]);
    assert_eq!(look(&index, 2, 150), None);
    let mut steps = 1;
    while !index.remove_space(2, 30).unwrap() {
        steps += 1;
    }
    assert!((3..=8).contains(&steps), "{steps}");
    assert_eq!(index.check().unwrap(), 30);
    index.sync().unwrap();
    drop(index);

    let (index, report) = UniqueIndex::open(folder.path(), &SMALL).unwrap();
    assert_eq!((report.removing, report.spaces), (vec![], 2));
    assert_eq!(
        (index.check().unwrap(), index.remove_space(2, 1).unwrap()),
        (30, true)
    );
    // The number may be used again.
    index.add(2, &ids(5..=5), 1).unwrap();
    assert_eq!((look(&index, 2, 5), look(&index, 2, 6)), (Some(5), None));
}

#[test]
fn an_index_is_opened_once_and_with_enough_memory() {
    let folder = folder();
    let first = open(folder.path());
    let error = UniqueIndex::open(folder.path(), &SMALL).unwrap_err();
    assert!(matches!(error, IndexError::InUse { .. }), "{error}");
    let error = UniqueIndex::set_aside(folder.path()).unwrap_err();
    assert!(matches!(error, IndexError::InUse { .. }), "{error}");
    drop(first);
    let little = IndexOptions { memory: 1 << 20 };
    let error = UniqueIndex::open(folder.path(), &little).unwrap_err();
    assert!(matches!(error, IndexError::Memory { .. }), "{error}");
}

#[test]
fn an_index_of_a_folder_is_made_when_it_is_needed() {
    let folder = folder();
    let place = FolderIndex::new(folder.path().join("index"), SMALL);
    assert!(place.open().unwrap().is_none() && place.get().is_none());
    assert!(!place.folder().exists());
    place
        .open_or_make()
        .unwrap()
        .add(1, &ids(1..=3), 3)
        .unwrap();
    assert_eq!(look(&place.get().unwrap(), 1, 3), Some(3));
    assert!(matches!(place.set_aside(), Err(IndexError::InUse { .. })));
    place.close();
    assert!(place.get().is_none());
    assert!(place.open().unwrap().is_some());
    place.close();
    assert!(place.set_aside().unwrap().is_some());
    assert!(place.open().unwrap().is_none());
}

/// A look-up may wait for a disk that does not answer.
#[test]
fn closing_an_index_that_is_in_use_can_be_given_up() {
    let folder = folder();
    let place = FolderIndex::new(folder.path().join("index"), SMALL);
    let used = place.open_or_make().unwrap();
    assert!(!place.close_within(Duration::ZERO));
    assert!(place.get().is_none());
    assert!(matches!(
        place.open_or_make(),
        Err(IndexError::InUse { .. })
    ));
    drop(used);
    drop(place.open_or_make().unwrap());
    assert!(place.close_within(Duration::MAX));
    assert!(place.close_within(Duration::ZERO), "it is closed");
}

#[test]
fn an_index_that_is_being_opened_holds_up_nobody_who_asks_whether_it_is_open() {
    let folder = folder();
    let tree = folder.path().join("index/ids");
    fs::create_dir_all(&tree).unwrap();
    // Who reads this file waits until somebody has written to it.
    let current = tree.join("current");
    let made = Command::new("mkfifo").arg(&current).status();
    assert!(made.unwrap().success());
    let place = Arc::new(FolderIndex::new(folder.path().join("index"), SMALL));
    let opens = thread::spawn({
        let place = place.clone();
        move || place.open().map(drop)
    });
    // Waits until the other thread reads it.
    let disk = File::options().write(true).open(&current).unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn({
        let place = place.clone();
        move || sender.send(place.get().is_some() || !place.close_within(Duration::ZERO))
    });
    assert_eq!(asked.recv_timeout(Duration::from_secs(60)), Ok(false));
    drop(disk);
    let refused = opens.join().unwrap();
    assert!(matches!(refused, Err(IndexError::Damaged { .. })));
}

/// Whoever looks up never misses an id up to where the space was complete, whatever is written and merged meanwhile.
#[test]
fn look_ups_beside_writes_miss_nothing() {
    const BATCH: u64 = 1_000;
    let folder = folder();
    let index = open(folder.path());
    index.add(1, &[], 0).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 1..=30 {
                let last = batch * BATCH;
                index.add(1, &ids(last - BATCH + 1..=last), last).unwrap();
                if batch % 3 == 0 {
                    index.sync().unwrap();
                }
            }
            done.store(true, Ordering::Release);
        });
        // The last ids of the batches, the newest first.
        let numbers: Vec<_> = (1..=30).rev().map(|batch| batch * BATCH).collect();
        let all: Vec<_> = numbers.iter().map(|&number| id(number)).collect();
        let mut looked = 0;
        while !done.load(Ordering::Acquire) || looked == 0 {
            let answer = index.look_up(1, &all).unwrap();
            let up_to = answer.up_to.unwrap();
            for (&number, found) in numbers.iter().zip(answer.found) {
                let right = found == Some(number) || found.is_none() && number > up_to;
                assert!(right, "{number}: {found:?}, complete up to {up_to}");
            }
            looked += 1;
        }
    });
}
