//! Looks at an index, cuts spaces, and counts.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::{SMALL, folder, id, ids, look, open};
use crate::{IndexError, LookedIndex, UniqueIndex, open::TREE};

/// All files below a folder, with their bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    found
}

#[test]
fn a_look_changes_nothing_and_sees_all() {
    let folder = folder();
    let index = open(folder.path());
    for batch in 0..3 {
        let (first, last) = (batch * 100 + 1, batch * 100 + 100);
        index.add(7, &ids(first..=last), last).unwrap();
        index.sync().unwrap();
    }
    let looked = LookedIndex::open(folder.path(), &SMALL);
    assert!(
        matches!(looked, Err(IndexError::InUse { .. })),
        "{looked:?}"
    );
    drop(index);
    // What a crash leaves, and an open deletes.
    let stray = folder.path().join(TREE).join("tables").join("9999");
    fs::write(&stray, b"torn").unwrap();
    let before = files(folder.path());
    let looked = LookedIndex::open(folder.path(), &SMALL).unwrap().unwrap();
    assert_eq!(looked.all_up_to(), [(7, 300)]);
    assert_eq!(looked.check().unwrap(), 300);
    assert_eq!(looked.count_up_to(7, 120).unwrap(), 120);
    assert_eq!(looked.count_up_to(8, 120).unwrap(), 0);
    assert!(looked.disk_bytes() > 0);
    let open = UniqueIndex::open(folder.path(), &SMALL);
    assert!(matches!(open, Err(IndexError::InUse { .. })), "{open:?}");
    drop(looked);
    assert!(files(folder.path()) == before, "files have changed");
    drop(super::open(folder.path()));
    assert!(!stray.exists(), "an open deletes it");
}

#[test]
fn a_look_at_no_index_makes_none() {
    let folder = folder();
    let nowhere = folder.path().join("index");
    assert!(LookedIndex::open(&nowhere, &SMALL).unwrap().is_none());
    assert!(!nowhere.exists());
    // A folder that may not be written to can be looked at.
    let index = open(&nowhere);
    index.add(1, &ids(1..=5), 5).unwrap();
    index.sync().unwrap();
    drop(index);
    fs::set_permissions(&nowhere, fs::Permissions::from_mode(0o555)).unwrap();
    let looked = LookedIndex::open(&nowhere, &SMALL).unwrap().unwrap();
    assert_eq!(looked.up_to(1), Some(5));
}

#[test]
fn a_space_that_is_cut_knows_what_is_in_front_of_the_cut() {
    let folder = folder();
    let index = open(folder.path());
    for space in [6, 7, 8] {
        index.add(space, &ids(1..=30_000), 30_000).unwrap();
    }
    index.cut_space(7, 500).unwrap();
    // Up to there it is complete already, and of this one nothing is known.
    index.cut_space(7, 501).unwrap();
    index.cut_space(9, 1).unwrap();
    let holds = |index: &UniqueIndex| {
        assert_eq!(index.all_up_to(), [(6, 30_000), (7, 500), (8, 30_000)]);
        assert_eq!(index.count_up_to(7, u64::MAX).unwrap(), 500);
        assert_eq!(
            (look(index, 7, 500), look(index, 7, 501)),
            (Some(500), None)
        );
        for space in [6, 8] {
            assert_eq!(index.count_up_to(space, u64::MAX).unwrap(), 30_000);
        }
    };
    holds(&index);
    assert_eq!(index.durable_up_to(7), Some(500));
    drop(index);
    let index = open(folder.path());
    holds(&index);
    // From there on it grows again.
    assert!(index.add(7, &[(id(501), 777)], 900).unwrap());
    assert_eq!(look(&index, 7, 501), Some(777));
    index.remove_space(6, 1).unwrap();
    let removing = index.cut_space(6, 5);
    assert!(matches!(removing, Err(IndexError::Removing { space: 6 })));
}

/// What was synced is durable, whatever a merge says afterwards.
#[test]
fn a_merge_that_fails_takes_nothing_back() {
    let folder = folder();
    let index = open(folder.path());
    let mut up_to = 0;
    let mut add = |index: &UniqueIndex| {
        index
            .add(1, &ids(up_to + 1..=up_to + 500), up_to + 500)
            .unwrap();
        up_to += 500;
        (index.sync(), up_to)
    };
    add(&index).0.unwrap();
    let tables = folder.path().join(TREE).join("tables");
    let intact = files(&tables);
    for (table, bytes) in &intact {
        let mut bytes = bytes.clone();
        let at = bytes.len() / 3;
        bytes[at] ^= 1;
        fs::write(table, bytes).unwrap();
    }
    let (error, up_to) = loop {
        match add(&index) {
            (Err(error), up_to) => break (error, up_to),
            (Ok(()), up_to) => assert!(up_to < 50_000, "no merge has failed"),
        }
    };
    assert!(matches!(error, IndexError::Damaged { .. }), "{error}");
    assert_eq!(index.durable_up_to(1), Some(up_to));
    assert_eq!(index.merges_failed(), 1);
    assert_eq!(look(&index, 1, up_to), Some(up_to));
    drop(index);
    for (table, bytes) in intact {
        fs::write(table, bytes).unwrap();
    }
    let index = open(folder.path());
    assert_eq!(index.up_to(1), Some(up_to));
    assert_eq!(index.count_up_to(1, u64::MAX).unwrap(), up_to);
}
