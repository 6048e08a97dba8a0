//! Copies by pieces.

use super::{SMALL, folder, ids, look, open};
use crate::{IndexError, PIECE_BYTES_MAX, PieceCheck, UniqueIndex, open::LOADING};

/// An index with more ids than fit into a piece, and its pieces.
fn pieces() -> Vec<Vec<u8>> {
    let folder = folder();
    let index = open(folder.path());
    index.add(1, &ids(1..=50_000), 9).unwrap();
    index.add(2, &ids(1..=3), 8).unwrap();
    index.add(3, &ids(1..=5), 7).unwrap();
    index.add(4, &[], 6).unwrap();
    assert!(!index.remove_space(3, 2).unwrap());
    let view = index.view().unwrap();
    // A view shows one point in time.
    index.add(1, &ids(60_000..=60_010), 10).unwrap();
    index.sync().unwrap();
    view.collect::<Result<_, _>>().unwrap()
}

#[test]
fn an_index_is_built_from_the_pieces_of_another() {
    let pieces = pieces();
    assert_eq!(pieces.len(), 4, "spaces, two of ids, the end");
    assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
    let folder = folder();
    let options = &SMALL;
    let loaded = pieces.iter().cloned().map(Ok);
    let (copy, report) = UniqueIndex::load(folder.path(), options, loaded).unwrap();
    assert_eq!(
        (report.new, report.spaces, &*report.removing),
        (false, 3, &[][..])
    );
    assert_eq!(copy.all_up_to(), [(1, 9), (2, 8), (4, 6)]);
    assert_eq!(copy.durable_up_to(1), Some(9));
    assert_eq!(copy.check().unwrap(), 50_003);
    for number in [1, 25_000, 50_000] {
        assert_eq!(look(&copy, 1, number), Some(number));
    }
    assert_eq!((look(&copy, 1, 60_000), look(&copy, 3, 1)), (None, None));
    // It takes more ids, which count before those that were loaded.
    copy.add(1, &[(super::id(1), 77)], 10).unwrap();
    copy.sync().unwrap();
    assert_eq!((look(&copy, 1, 1), look(&copy, 1, 2)), (Some(77), Some(2)));
    let again: Vec<_> = copy.view().unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(again.len(), pieces.len());
    let error = UniqueIndex::load(folder.path(), options, []).unwrap_err();
    assert!(matches!(error, IndexError::InUse { .. }), "{error}");
    drop(copy);
    let error = UniqueIndex::load(folder.path(), options, []).unwrap_err();
    assert!(matches!(error, IndexError::Exists { .. }), "{error}");
}

#[test]
fn a_view_can_leave_out_what_came_later() {
    let folder = folder();
    let index = open(&folder.path().join("index"));
    index.add(1, &ids(1..=9), 9).unwrap();
    index.add(2, &ids(1..=3), 3).unwrap();
    let view = || index.view().unwrap();
    assert!(view().only(vec![(1, 10)]).is_none());
    assert!(view().only(vec![(3, 0)]).is_none());
    let earlier = view().only(vec![(1, 5)]).unwrap();
    let copy = folder.path().join("copy");
    let (copy, _) = UniqueIndex::load(&copy, &SMALL, earlier).unwrap();
    assert_eq!((copy.all_up_to(), copy.check().unwrap()), (vec![(1, 5)], 5));
    assert_eq!((look(&copy, 1, 5), look(&copy, 1, 6)), (Some(5), None));
}

/// The spaces and the number of ids, without a disk.
fn checked(pieces: &[Vec<u8>]) -> Result<(Vec<(u64, u64)>, u64), IndexError> {
    let mut check = PieceCheck::default();
    for piece in pieces {
        check.piece(piece)?;
    }
    check.finish()
}

#[test]
fn pieces_that_do_not_fit_leave_nothing() {
    let right = pieces();
    let spaces = vec![(1, 9), (2, 8), (4, 6)];
    assert_eq!(checked(&right).unwrap(), (spaces, 50_003));
    let sealed = |number: u64, kind: u8, rows: &[u8]| {
        let mut piece = [&[0; 4], &number.to_le_bytes()[..], &[kind], rows].concat();
        let checksum = crc32c::crc32c(&piece[4..]);
        piece[..4].copy_from_slice(&checksum.to_le_bytes());
        piece
    };
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Vec<Vec<u8>>));
    let changes: [Change<'_>; 9] = [
        (
            "piece 3 of an index of unique ids: it is missing",
            &|pieces| drop(pieces.pop()),
        ),
        (
            "piece 0 of an index of unique ids: it is missing",
            &Vec::clear,
        ),
        (
            "piece 1 of an index of unique ids: another piece is there in its place",
            &|pieces| pieces.swap(1, 2),
        ),
        (
            "piece 2 of an index of unique ids: it has another checksum",
            &|pieces| pieces[2][500] ^= 1,
        ),
        (
            "piece 1 of an index of unique ids: it has another checksum",
            &|pieces| pieces[1].clear(),
        ),
        (
            "piece 4 of an index of unique ids: it comes after the end",
            &|pieces| pieces.push(sealed(4, 3, &[0; 16])),
        ),
        (
            "piece 3 of an index of unique ids: its rows have another shape",
            &|pieces| pieces[3] = sealed(3, 3, &[1; 16]),
        ),
        (
            "piece 1 of an index of unique ids: its rows have another shape",
            &|pieces| pieces[1] = sealed(1, 2, &[255; 40]),
        ),
        (
            "piece 1 of an index of unique ids: its rows are not in order",
            &|pieces| pieces[1] = sealed(1, 1, &[0; 16]),
        ),
    ];
    for (what, change) in changes {
        let folder = folder();
        let mut pieces = right.clone();
        change(&mut pieces);
        let error =
            UniqueIndex::load(folder.path(), &SMALL, pieces.iter().cloned().map(Ok)).unwrap_err();
        assert_eq!(error.to_string(), what);
        assert_eq!(checked(&pieces).unwrap_err().to_string(), what);
        assert!(!folder.path().join(LOADING).exists());
        assert!(UniqueIndex::open(folder.path(), &SMALL).unwrap().1.new);
    }
}

#[test]
fn a_load_that_was_killed_is_forgotten() {
    let folder = folder();
    std::fs::create_dir_all(folder.path().join(LOADING).join("tables")).unwrap();
    let pieces = pieces().into_iter().map(Ok);
    UniqueIndex::load(folder.path(), &SMALL, pieces).unwrap();
    assert!(!folder.path().join(LOADING).exists());
}
