//! Space: what is kept back, and how it comes back.

use lockgate_core::{Epoch, LogError, Position, Purpose, ReadError, ReserveError};

use crate::log::{
    Fixture,
    owner::{Owner, payload, scan},
};

pub(super) fn trim_keeps_everything_from_its_position_on(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..60 {
        owner.append(&[payload(seed, 1_500)]);
        if seed % 10 == 9 {
            owner.sync();
            let before = owner.records[owner.records.len() / 2].position;
            owner.log.trim(before).expect("the log trims");
            owner.records.retain(|record| record.position >= before);
            owner.check_reads();
        }
    }
    let expected = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let owner = Owner::start(fixture.open());
    // Space may come back in larger pieces, but the records that stay are whole and in order.
    assert!(owner.records.ends_with(&expected));
    assert!(owner.report.damaged.is_empty(), "{:?}", owner.report);
    owner.check_reads();
    true
}

pub(super) fn trim_of_everything_keeps_epoch_and_order(fixture: &mut dyn Fixture) -> bool {
    let mut last_tail = Position(0);
    for life in 1..4 {
        let mut owner = Owner::start(fixture.open());
        assert_eq!(owner.epoch, Epoch(life));
        assert!(
            owner.log.tail() >= last_tail,
            "positions are not used again"
        );
        assert!(owner.report.damaged.is_empty(), "{:?}", owner.report);
        for seed in 0..20 {
            owner.append(&[payload(seed, 1_500)]);
        }
        last_tail = owner.sync();
        owner.log.trim(owner.log.tail()).expect("the log trims");
        owner.records.clear();
        owner.append(&[payload(99, 10)]);
        owner.check_reads();
        drop((owner.log, owner.snapshots));
        fixture.kill();
    }
    true
}

pub(super) fn a_range_is_released_only_behind_a_trim(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..20 {
        owner.append(&[payload(seed, 1_000)]);
    }
    owner.sync();
    match owner.log.release(owner.records[5].position) {
        Ok(()) => panic!("released what recovery may still start with"),
        Err(LogError::Unsupported { .. }) => {}
        Err(other) => panic!("{other:?}"),
    }
    owner.check_reads();
    owner.append(&[payload(50, 10)]);
    owner.check_reads();
    true
}

/// More than this is not written to fill a range.
const FILL_BYTES_MAX: u64 = 8 << 20;

pub(super) fn a_released_range_is_gone_and_all_others_stay(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let capabilities = owner.log.capabilities();
    if !capabilities.releases_ranges {
        return false;
    }
    let range = |at: Position| at.0 >> capabilities.range_bits;
    let len = capabilities.record_bytes_max.min(2_000);
    let first = range(owner.log.tail());
    let mut written = 0;
    while range(owner.log.tail()) < first + 6 {
        owner.append(&[payload(owner.records.len(), len)]);
        written += len as u64;
        if written > FILL_BYTES_MAX {
            return false;
        }
    }
    owner.sync();
    let snapshot = owner.snapshot(&[b"as of here"]);
    owner.append(&[payload(9_000, 100)]);
    owner.sync();
    owner.log.trim(snapshot).expect("the log trims");
    owner.check_reads();
    match owner.log.release(owner.log.tail()) {
        Err(LogError::Unsupported { .. }) => {}
        other => panic!("released the range of the tail: {other:?}"),
    }

    let listed = |owner: &Owner| -> Vec<u64> {
        let ranges = owner.log.ranges();
        assert!(ranges.windows(2).all(|pair| pair[0].first < pair[1].first));
        ranges.iter().map(|held| range(held.first)).collect()
    };
    let last = range(owner.log.tail());
    let before = listed(&owner);
    assert!(
        (first..=last).all(|range| before.contains(&range)),
        "{before:?}"
    );

    // Not the first: what stands before it must not matter.
    let dead = [first + 1, first + 2, first + 4];
    for dead in dead {
        let within = owner
            .records
            .iter()
            .rfind(|record| range(record.position) == dead);
        let within = within.expect("every range has records").position;
        owner.log.release(within).expect("the range is released");
    }
    let is_dead = |at: Position| dead.contains(&range(at));
    let gone: Vec<_> = owner
        .records
        .extract_if(.., |record| is_dead(record.position))
        .collect();
    assert!(gone.len() >= 3);
    let check = |owner: &Owner| {
        let held = listed(owner);
        assert!(dead.iter().all(|dead| !held.contains(dead)), "{held:?}");
        let reader = owner.log.reader();
        owner.check_reads();
        for record in &gone {
            match reader.read(record.position) {
                Err(ReadError::Missing { at }) => assert_eq!(at, record.position),
                other => panic!("{other:?}"),
            }
        }
        let start = owner.records[0].position;
        let (found, damaged) = scan(&*reader, start, owner.log.tail());
        assert_eq!((found, damaged), (owner.records.clone(), vec![]));
    };
    check(&owner);
    owner.run_log_maintenance();
    check(&owner);
    owner.append(&[payload(9_001, 100)]);
    owner.sync();

    let kept = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let mut owner = Owner::start_from(fixture.open(), snapshot);
    assert_eq!(owner.records[..], kept[kept.len() - 2..]);
    assert!(owner.report.damaged.is_empty(), "{:?}", owner.report);
    assert_eq!(owner.report.trimmed, snapshot);
    owner.records = kept;
    check(&owner);
    owner.run_log_maintenance();
    check(&owner);
    true
}

pub(super) fn a_reservation_that_cannot_be_met_changes_nothing(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    owner.append(&[payload(1, 100)]);
    match owner.log.reserve(1 << 62, 1, Purpose::Growth) {
        Err(ReserveError::Full { needed, free }) => assert!(needed >= 1 << 62 && free < needed),
        Err(other) => panic!("{other:?}"),
        Ok(()) => return false,
    }
    owner.append(&[payload(2, 100)]);
    for purpose in [Purpose::Growth, Purpose::Maintenance] {
        owner
            .log
            .reserve(1_000, 10, purpose)
            .expect("there is room for a little");
    }
    owner.append(&[payload(3, 100)]);
    owner.check_reads();
    true
}

pub(super) fn maintenance_changes_nothing_that_can_be_read(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for seed in 0..30 {
        owner.append(&[payload(seed, 1_500)]);
        if seed % 10 == 5 {
            owner.run_log_maintenance();
        }
    }
    owner.check_reads();
    let expected = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let owner = Owner::start(fixture.open());
    assert_eq!(owner.records, expected);
    assert!(owner.report.damaged.is_empty(), "{:?}", owner.report);
    true
}
