//! Snapshots: complete or not there, and where recovery starts from.

use std::mem;

use lockgate_core::{LogError, Position, ReadError};

use crate::log::{
    Fixture,
    owner::{Owner, payload, pieces, recover_from},
};

pub(super) fn a_snapshot_is_of_the_tail_at_which_it_began(fixture: &mut dyn Fixture) -> bool {
    let storage = fixture.open();
    let begun = storage.snapshots.begin(Position(0), 1);
    match begun.map(|writer| writer.position()) {
        Err(LogError::Unsupported { .. }) => {}
        other => panic!("before there is an owner: {other:?}"),
    }
    let mut owner = Owner::start(storage);
    owner.append(&[payload(1, 100)]);
    let tail = owner.log.tail();
    let mut writer = owner.begin_snapshot().expect("a snapshot begins");
    owner.append(&[payload(2, 100)]);
    writer.write(b"piece").expect("a piece is written");
    assert_eq!(writer.position(), tail);
    owner.append(&[payload(3, 100)]);
    owner.sync();
    writer.finish().expect("the snapshot is finished");
    assert_eq!(owner.snapshots.list().expect("listed"), [tail]);
    owner.check_reads();
    true
}

pub(super) fn snapshots_are_listed_newest_first_and_read_back(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let max = owner.log.capabilities().record_bytes_max.min(1 << 20);
    let contents: Vec<Vec<Vec<u8>>> = vec![
        vec![],
        vec![payload(1, 100)],
        vec![vec![], payload(2, max), payload(3, 1), payload(4, max)],
        (0..50).map(|seed| payload(seed, 10 * seed)).collect(),
    ];
    let mut written = Vec::new();
    for content in &contents {
        owner.append(&[payload(7, 50)]);
        owner.sync();
        let content: Vec<&[u8]> = content.iter().map(Vec::as_slice).collect();
        written.push(owner.snapshot(&content));
    }
    let newest_first: Vec<Position> = written.iter().rev().copied().collect();
    assert_eq!(owner.snapshots.list().expect("listed"), newest_first);
    drop((owner.log, owner.snapshots));
    fixture.kill();

    // From the opening on, before anything is recovered.
    let store = fixture.open().snapshots;
    assert_eq!(store.list().expect("listed"), newest_first);
    for (at, content) in written.iter().zip(&contents) {
        assert_eq!(pieces(&*store, *at).expect("it reads back"), *content);
        let total: usize = content.iter().map(Vec::len).sum();
        let reader = store.open(*at).expect("it opens");
        assert!(reader.total_bytes() >= total as u64);
    }
    for missing in [Position(0), Position(u64::MAX), Position(written[0].0 + 1)] {
        match store.open(missing).map(|_| ()) {
            Err(ReadError::Missing { at }) => assert_eq!(at, missing),
            other => panic!("{other:?}"),
        }
    }
    store.remove(written[1]).expect("it is removed");
    store.remove(written[1]).expect("nothing to remove");
    assert_eq!(
        store.list().expect("listed"),
        [written[3], written[2], written[0]]
    );
    assert!(matches!(
        store.open(written[1]).map(|_| ()),
        Err(ReadError::Missing { .. })
    ));
    true
}

pub(super) fn an_unfinished_snapshot_is_never_there(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    owner.append(&[payload(1, 100)]);
    owner.sync();
    let at = owner.log.tail();
    let begin = |owner: &mut Owner| {
        let mut writer = owner.begin_snapshot().expect("a snapshot begins");
        for seed in 0..5 {
            writer
                .write(&payload(seed, 1_000))
                .expect("a piece is written");
        }
        writer
    };
    let given_up = begin(&mut owner);
    assert_eq!(owner.snapshots.list().expect("listed"), []);
    drop(given_up);
    assert_eq!(owner.snapshots.list().expect("listed"), []);
    // The death of the process asks nobody to clean up.
    mem::forget(begin(&mut owner));
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let mut owner = Owner::start(fixture.open());
    assert_eq!(owner.snapshots.list().expect("listed"), []);
    assert!(owner.report.damaged.is_empty(), "{:?}", owner.report);
    assert!(owner.log.tail() >= at);
    let at = owner.snapshot(&[b"whole"]);
    let store = owner.snapshots;
    assert_eq!(pieces(&*store, at).expect("it reads back"), ["whole"]);
    true
}

pub(super) fn recovery_starts_at_a_snapshot(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let mut snapshots = Vec::new();
    for round in 0..3 {
        for seed in 0..20 {
            owner.append(&[payload(seed, 700), payload(round, 9)]);
        }
        owner.sync();
        snapshots.push(owner.snapshot(&[b"state"]));
    }
    owner.append(&[payload(99, 10)]);
    owner.sync();
    let all = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    for &from in snapshots.iter().rev().chain([&Position(0)]) {
        let mut log = fixture.open().log;
        let (report, records) = recover_from(&mut *log, from);
        let expected = all.iter().filter(|record| record.position >= from);
        assert!(records.iter().eq(expected), "from {from}");
        assert!(report.damaged.is_empty(), "{report:?}");
        assert_eq!(report.tail_bytes_cut, 0);
    }
    let mut owner = Owner::start_from(fixture.open(), snapshots[2]);
    owner.append(&[payload(100, 10)]);
    owner.sync();
    owner.records = all.into_iter().chain(owner.records.pop()).collect();
    // What stands before the snapshot is still there to be read.
    owner.check_reads();
    true
}

pub(super) fn a_snapshot_survives_a_power_cut(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..20 {
        owner.append(&[payload(seed, 700)]);
    }
    owner.sync();
    let at = owner.snapshot(&[b"one", b"two"]);
    // Not synced: it may be lost, and the snapshot then stands at the very end.
    owner.append(&[payload(50, 100)]);
    drop((owner.log, owner.snapshots));
    if !fixture.cut_power() {
        return false;
    }
    let storage = fixture.open();
    let store = storage.snapshots.clone();
    assert_eq!(store.list().expect("listed"), [at]);
    assert_eq!(pieces(&*store, at).expect("it reads back"), ["one", "two"]);
    drop(store);
    let mut owner = Owner::start_from(storage, at);
    assert!(owner.records.len() <= 1);
    assert!(owner.log.tail() >= at, "positions are not used again");
    owner.append(&[payload(60, 100)]);
    owner.sync();
    let expected = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let owner = Owner::start_from(fixture.open(), at);
    assert_eq!(owner.records, expected);
    owner.check_reads();
    true
}

pub(super) fn a_damaged_snapshot_says_so(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    owner.append(&[payload(1, 100)]);
    owner.sync();
    let content = [payload(2, 500), payload(3, 500), payload(4, 500)];
    let content: Vec<&[u8]> = content.iter().map(Vec::as_slice).collect();
    let at = owner.snapshot(&content);
    drop((owner.log, owner.snapshots));
    fixture.kill();
    if !fixture.damage(content[1]) {
        return false;
    }
    let storage = fixture.open();
    let mut reader = storage.snapshots.open(at).expect("it opens");
    let first = reader.next_piece().expect("the first verifies");
    assert_eq!(first.as_deref(), Some(content[0]));
    match reader.next_piece() {
        Err(ReadError::Damaged { at: said, .. }) => assert_eq!(said, at),
        other => panic!("{other:?}"),
    }
    true
}
