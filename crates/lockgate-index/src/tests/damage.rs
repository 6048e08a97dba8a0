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
