//! Garbage in the files of an index.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{SMALL, folder, id, ids, look, open};
use crate::{IndexError, UniqueIndex, open::TREE};

const COUNT: u64 = 900;

/// The files of an index with some runs.
fn filled(folder: &Path) -> Vec<PathBuf> {
    let index = open(folder);
    for batch in 0..3 {
        let (first, last) = (batch * COUNT / 3 + 1, (batch + 1) * COUNT / 3);
        index.add(7, &ids(first..=last), last).unwrap();
        index.add(batch, &[], 1).unwrap();
        index.sync().unwrap();
    }
    drop(index);
    // What is not needed any more goes when it is opened.
    drop(open(folder));
    let mut files = Vec::new();
    for place in [folder.join(TREE), folder.join(TREE).join("tables")] {
        let entries = fs::read_dir(place)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.is_file()));
    }
    assert!(files.len() >= 5, "{files:?}");
    files.sort();
    files
}

/// Opens the index and asks for all of its ids and others. Every answer that it gives must be right. Returns whether
/// all were given.
fn all_right(folder: &Path) -> bool {
    let (index, report) = match UniqueIndex::open(folder, &SMALL) {
        Ok(opened) => opened,
        Err(IndexError::Damaged { .. } | IndexError::Format { .. }) => return false,
        Err(other) => panic!("{other}"),
    };
    assert!(!report.new);
    assert_eq!(index.all_up_to(), [(0, 1), (1, 1), (2, 1), (7, COUNT)]);
    let mut all = true;
    for number in (1..COUNT + 300).step_by(100) {
        let some: Vec<_> = (number..number + 100).map(id).collect();
        match index.look_up(7, &some) {
            Ok(looked) => {
                let right = (number..number + 100)
                    .map(|number| Some(number).filter(|&number| number <= COUNT));
                assert_eq!(looked.found, right.collect::<Vec<_>>());
            }
            Err(IndexError::Damaged { .. }) => all = false,
            Err(other) => panic!("{other}"),
        }
    }
    match index.check() {
        Ok(count) => assert_eq!(count, COUNT),
        Err(IndexError::Damaged { .. }) => all = false,
        Err(other) => panic!("{other}"),
    }
    all
}

#[test]
fn a_damaged_index_says_so_or_answers_rightly() {
    let folder = folder();
    let files = filled(folder.path());
    assert!(all_right(folder.path()));
    let (mut noticed, mut tried) = (0, 0);
    for file in &files {
        let right = fs::read(file).unwrap();
        // Every byte of the small files and of both ends of the others, and some in between.
        let ends = right.len().min(500) / 2;
        let between = (ends..right.len() - ends).step_by(499);
        let places = (0..ends)
            .step_by(9)
            .chain(between)
            .chain((right.len() - ends..right.len()).step_by(4));
        for place in places {
            let mut wrong = right.clone();
            wrong[place] ^= 1 << (place % 8);
            fs::write(file, &wrong).unwrap();
            noticed += usize::from(!all_right(folder.path()));
            tried += 1;
        }
        for length in [0, right.len() / 2, right.len() - 1] {
            fs::write(file, &right[..length]).unwrap();
            assert!(
                !all_right(folder.path()),
                "{}: {length} bytes",
                file.display()
            );
        }
        fs::remove_file(file).unwrap();
        assert!(!all_right(folder.path()), "{} is missing", file.display());
        fs::write(file, &right).unwrap();
    }
    assert!(all_right(folder.path()), "damage changes nothing");
    assert!(noticed * 10 > tried * 9, "{noticed} of {tried}");
}

#[test]
fn other_things_in_the_folder_are_no_panic() {
    let folder = folder();
    filled(folder.path());
    let runs = folder.path().join(TREE).join("tables");
    fs::write(runs.join("notes.txt"), "x").unwrap();
    assert!(!all_right(folder.path()));
    fs::remove_file(runs.join("notes.txt")).unwrap();
    fs::create_dir(runs.join("12345")).unwrap();
    assert!(!all_right(folder.path()));
    fs::remove_dir(runs.join("12345")).unwrap();
    assert!(all_right(folder.path()));
}

#[test]
fn a_damaged_index_is_set_aside_and_made_again() {
    let folder = folder();
    let files = filled(folder.path());
    assert_eq!(
        UniqueIndex::set_aside(&folder.path().join("none")).unwrap(),
        None
    );
    fs::write(&files[0], "garbage").unwrap();
    let error = UniqueIndex::open(folder.path(), &SMALL).unwrap_err();
    assert!(error.to_string().contains("is damaged"), "{error}");
    let place = UniqueIndex::set_aside(folder.path()).unwrap().unwrap();
    assert_eq!(place, folder.path().join("damaged-1"));
    let (index, report) = UniqueIndex::open(folder.path(), &SMALL).unwrap();
    assert!(report.new);
    index.add(7, &ids(1..=1), 1).unwrap();
    assert_eq!(look(&index, 7, 1), Some(1));
    drop(index);
    let place = UniqueIndex::set_aside(folder.path()).unwrap().unwrap();
    assert_eq!(place, folder.path().join("damaged-2"));
}

#[test]
fn what_can_be_read_of_a_damaged_index_is_kept() {
    const MANY: u64 = 30_000;
    let folder = folder();
    let index = open(folder.path());
    for (space, first) in [(3, 1), (7, 1), (7, MANY / 2 + 1), (9, 1)] {
        let last = if space == 7 {
            first + MANY / 2 - 1
        } else {
            100
        };
        index.add(space, &ids(first..=last), last).unwrap();
        index.sync().unwrap();
    }
    drop(index);
    let runs = fs::read_dir(folder.path().join(TREE).join("tables")).unwrap();
    let runs: Vec<_> = runs.map(|entry| entry.unwrap().path()).collect();
    let largest = runs.iter().max_by_key(|run| run.metadata().unwrap().len());
    let largest = largest.unwrap();
    let right = fs::read(largest).unwrap();
    // One block, and two.
    let places = [
        vec![right.len() / 3],
        vec![right.len() / 4, right.len() / 2],
    ];
    for (number, places) in places.iter().enumerate() {
        let mut wrong = right.clone();
        for &place in places {
            wrong[place] ^= 1;
        }
        fs::write(largest, &wrong).unwrap();
        let index = open(folder.path());
        assert!(matches!(index.check(), Err(IndexError::Damaged { .. })));
        drop(index);

        let kept = UniqueIndex::salvage(folder.path(), &SMALL).unwrap();
        // Rows of spaces count as lost ids.
        assert!(
            (0..20).contains(&(kept.ids + kept.lost - MANY - 200)),
            "{kept:?}"
        );
        assert!((1..MANY / 10).contains(&kept.lost), "{kept:?}");
        assert_eq!(
            kept.aside,
            folder.path().join(format!("damaged-{}", number + 1))
        );
        let index = open(folder.path());
        assert_eq!(index.check().unwrap(), kept.ids);
        assert_eq!(index.all_up_to(), [(3, 100), (7, MANY), (9, 100)]);
        let all: Vec<_> = (1..=MANY).map(id).collect();
        let found = index.look_up(7, &all).unwrap().found;
        let right = found
            .iter()
            .zip(1..)
            .filter(|(found, number)| **found == Some(*number));
        let missing = found.iter().filter(|found| found.is_none()).count() as u64;
        assert_eq!(right.count() as u64 + missing, MANY);
        assert_eq!(kept.ids + missing, MANY + 200);
        drop(index);
        fs::remove_dir_all(folder.path().join(TREE)).unwrap();
        fs::rename(&kept.aside, folder.path().join(TREE)).unwrap();
        fs::create_dir(kept.aside).unwrap();
    }
    fs::write(largest, &right).unwrap();
    let all = UniqueIndex::salvage(folder.path(), &SMALL).unwrap();
    assert_eq!(all.ids, MANY + 200);

    // After a crash behind each of its renames.
    let (tree, salvaged) = (folder.path().join(TREE), folder.path().join("salvaged"));
    fs::rename(&tree, &salvaged).unwrap();
    assert_eq!(open(folder.path()).check().unwrap(), MANY + 200);
    fs::create_dir(&salvaged).unwrap();
    assert_eq!(open(folder.path()).check().unwrap(), MANY + 200);
    assert!(!salvaged.exists());
}
