//! Reading: single records, stretches, and what is damaged.

use std::ops::ControlFlow;

use lockgate_core::{LogReader, LogRecord, Position, ReadError};

use crate::log::{
    Fixture,
    owner::{Owner, payload, scan, stamps},
};

pub(super) fn nothing_is_read_where_no_record_starts(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..10 {
        owner.append(&[payload(seed, 300)]);
    }
    let reader = owner.log.reader();
    let tail = owner.log.tail();
    for missing in [Position(0), tail, Position(tail.0 + 1), Position(u64::MAX)] {
        match reader.read(missing) {
            Err(ReadError::Missing { at }) => assert_eq!(at, missing),
            other => panic!("{missing}: {other:?}"),
        }
    }
    // Within records: refused in one way or the other, whatever bytes stand there.
    let start = owner.records[0].position;
    for at in start.0..start.0 + 2_000 {
        let at = Position(at);
        let is_record = owner.records.iter().any(|record| record.position == at);
        match reader.read(at) {
            Ok(_) => assert!(is_record, "{at}"),
            Err(ReadError::Missing { .. } | ReadError::Damaged { .. }) => assert!(!is_record),
            Err(other) => panic!("{at}: {other:?}"),
        }
    }
    true
}

pub(super) fn several_records_are_read_as_each_of_them(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let largest = owner.log.capabilities().record_bytes_max.min(30_000);
    for seed in 0..60 {
        // Many to a page, and some larger than one.
        let large = if seed % 16 == 0 { largest } else { 90 };
        owner.append(&[
            payload(seed, 300),
            payload(seed, seed),
            payload(seed, large),
        ]);
    }
    let reader = owner.log.reader();
    let all: Vec<_> = owner.records.iter().map(|record| record.position).collect();
    owner.check_reads();
    read_all_as_each(&*reader, &all);
    read_all_as_each(&*reader, &[]);
    let backwards: Vec<_> = all.iter().rev().copied().collect();
    read_all_as_each(&*reader, &backwards);
    let spread: Vec<_> = all.iter().step_by(7).copied().collect();
    read_all_as_each(&*reader, &spread);
    let twice: Vec<_> = all.iter().flat_map(|&at| [at, at]).collect();
    read_all_as_each(&*reader, &twice);
    // Also where there is none.
    let start = all[0].0;
    let any: Vec<_> = (start..start + 1_000).map(Position).collect();
    read_all_as_each(&*reader, &any);
    let tail = owner.log.tail();
    let last = all[all.len() - 1];
    read_all_as_each(
        &*reader,
        &[Position(0), last, tail, Position(u64::MAX), all[0]],
    );
    true
}

/// What is said of each, alone and among others.
fn read_all_as_each(reader: &dyn LogReader, at: &[Position]) {
    let told = |read: Result<_, ReadError>| match read {
        Ok(record) => Ok(record),
        Err(ReadError::Missing { at }) => Err(("missing", at)),
        Err(ReadError::Damaged { at, .. }) => Err(("damaged", at)),
        Err(error) => panic!("{error}"),
    };
    let each: Vec<_> = at.iter().map(|&at| told(reader.read(at))).collect();
    let all: Vec<_> = reader.read_all(at).into_iter().map(told).collect();
    assert_eq!(all, each);
    if let Some(at_once) = reader.try_read_all(at) {
        let at_once: Vec<_> = at_once.into_iter().map(Ok).collect();
        assert_eq!(at_once, each, "what is read without waiting");
    }
}

pub(super) fn a_scan_visits_what_starts_within_its_bounds(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..40 {
        owner.append(&[payload(seed, 700), payload(seed + 100, seed)]);
    }
    let (reader, tail) = (owner.log.reader(), owner.log.tail());
    let records = &owner.records;
    let start = records[0].position;
    assert_eq!(scan(&*reader, start, tail), (records.clone(), vec![]));
    for (first, end) in [(0, 1), (3, 3), (5, 30), (41, 80), (79, 80)] {
        let to = records.get(end).map_or(tail, |record| record.position);
        let found = scan(&*reader, records[first].position, to);
        assert_eq!(found, (records[first..end].to_vec(), vec![]));
    }
    // The record in which the end lies starts before it.
    let within = Position(records[10].position.0 + 1);
    let found = scan(&*reader, records[8].position, within);
    assert_eq!(found.0, records[8..11]);
    assert_eq!(scan(&*reader, tail, tail), (vec![], vec![]));
    // From the first position of the range on.
    let bits = owner.log.capabilities().range_bits;
    let range = start.range(bits).start;
    assert_eq!(scan(&*reader, range, records[4].position).0, records[..4]);
    true
}

pub(super) fn numbers_are_dense_over_epochs(fixture: &mut dyn Fixture) -> bool {
    let mut epochs = Vec::new();
    for _ in 0..3 {
        let mut owner = Owner::start(fixture.open());
        for seed in 0..4 {
            owner.append(&[payload(seed, 300), payload(seed + 10, 50)]);
            epochs.extend([owner.epoch; 2]);
        }
        owner.sync();
        let (from, to) = (owner.records[0].position, owner.log.tail());
        let found = stamps(&*owner.log.reader(), from, to);
        assert!(found.iter().map(|stamp| stamp.epoch).eq(epochs.clone()));
        let first = found[0].number;
        assert!(
            (first..)
                .zip(&found)
                .all(|(number, stamp)| stamp.number == number)
        );
        drop((owner.log, owner.snapshots));
        fixture.kill();
    }
    true
}

pub(super) fn a_scan_ends_when_it_is_told_to(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..20 {
        owner.append(&[payload(seed, 300)]);
    }
    let mut visited = 0;
    let (start, tail) = (owner.records[0].position, owner.log.tail());
    owner
        .log
        .reader()
        .scan(start, tail, &mut |_| {
            visited += 1;
            if visited == 7 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .expect("the log is scanned");
    assert_eq!(visited, 7);
    true
}

pub(super) fn damage_is_told_apart_counted_and_passed_over(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..20 {
        owner.append(&[payload(seed, 400)]);
        // What comes later names what was durable before it.
        owner.sync();
    }
    let bad = owner.records.remove(7);
    let expected = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    if !fixture.damage(&bad.payload) {
        return false;
    }
    let mut owner = Owner::start(fixture.open());
    assert_eq!(owner.records, expected);
    assert_eq!(owner.report.records_lost(), 1);
    let [damaged] = &owner.report.damaged[..] else {
        panic!("{:?}", owner.report);
    };
    assert!(damaged.from <= bad.position && bad.position < damaged.to);
    owner.check_reads();
    let reader = owner.log.reader();
    is_unreadable(&*reader, bad.position);
    let mut all: Vec<_> = expected.iter().map(|record| record.position).collect();
    all.insert(7, bad.position);
    read_all_as_each(&*reader, &all);
    owner.append(&[payload(50, 10)]);
    let (found, stretches) = scan(&*reader, expected[0].position, owner.log.tail());
    assert_eq!(found, owner.records);
    // The number of what is lost is missing.
    let numbers = stamps(&*reader, expected[0].position, owner.log.tail());
    let first = numbers[0].number;
    let are_dense = (first..)
        .filter(|number| *number != first + 7)
        .zip(&numbers)
        .all(|(number, stamp)| stamp.number == number);
    assert!(are_dense, "{numbers:?}");
    let holds = |(from, to): &(Position, Position)| *from <= bad.position && bad.position < *to;
    assert!(stretches.iter().any(holds), "{stretches:?}");
    true
}

pub(super) fn damage_is_told_while_the_log_is_in_use(fixture: &mut dyn Fixture) -> bool {
    if !fixture.shares_storage() {
        return false;
    }
    let mut owner = Owner::start(fixture.open());
    for seed in 0..5 {
        owner.append(&[payload(seed, 400)]);
    }
    let bad: LogRecord = owner.records.remove(2);
    if !fixture.damage(&bad.payload) {
        return false;
    }
    owner.check_reads();
    match owner.log.reader().read(bad.position) {
        Err(ReadError::Damaged { at, .. }) => assert_eq!(at, bad.position),
        other => panic!("{other:?}"),
    }
    let end = owner.records[2].position;
    let (found, stretches) = scan(&*owner.log.reader(), owner.records[0].position, end);
    assert_eq!(found, owner.records[..2]);
    assert_eq!(stretches, [(bad.position, end)]);
    true
}

fn is_unreadable(reader: &dyn LogReader, at: Position) {
    match reader.read(at) {
        Err(ReadError::Missing { at: said } | ReadError::Damaged { at: said, .. }) => {
            assert_eq!(said, at);
        }
        other => panic!("{other:?}"),
    }
}
