//! One owner at a time.

use lockgate_core::{AppendError, Epoch, Position, RecordGroup, Storage};

use crate::log::{
    Fixture,
    owner::{Owner, payload, recover, reopen_finds},
};

pub(super) fn an_old_epoch_cannot_be_begun_again(fixture: &mut dyn Fixture) -> bool {
    let mut log = fixture.open().log;
    recover(&mut *log);
    log.begin_epoch(Epoch(7)).expect("any epoch above 0 begins");
    drop(log);
    for old in [0, 1, 6, 7] {
        let mut log = fixture.open().log;
        let (report, _) = recover(&mut *log);
        assert_eq!(report.epoch, Epoch(7));
        match log.begin_epoch(Epoch(old)) {
            Err(AppendError::Fenced { ours, theirs }) => {
                assert_eq!((ours, theirs), (Epoch(old), Epoch(7)));
            }
            other => panic!("epoch {old}: {other:?}"),
        }
    }
    let mut log = fixture.open().log;
    recover(&mut *log);
    log.begin_epoch(Epoch(8)).expect("a higher epoch begins");
    let tail = log.tail();
    let mut group = RecordGroup::new(log.capabilities().gap);
    group.push(|buffer| buffer.push(1));
    match log.append(Epoch(7), tail, &mut group) {
        Err(AppendError::Fenced { ours, theirs }) => {
            assert_eq!((ours, theirs), (Epoch(7), Epoch(8)));
        }
        other => panic!("{other:?}"),
    }
    true
}

pub(super) fn an_epoch_without_records_is_remembered(fixture: &mut dyn Fixture) -> bool {
    for life in 1..5 {
        let owner = Owner::start(fixture.open());
        assert_eq!(owner.epoch, Epoch(life));
        assert!(owner.records.is_empty());
        drop((owner.log, owner.snapshots));
        fixture.kill();
    }
    true
}

pub(super) fn an_epoch_survives_a_power_cut(fixture: &mut dyn Fixture) -> bool {
    for life in 1..5 {
        let owner = Owner::start(fixture.open());
        assert_eq!(owner.epoch, Epoch(life));
        drop((owner.log, owner.snapshots));
        if !fixture.cut_power() {
            return false;
        }
    }
    true
}

pub(super) fn a_deposed_owner_cannot_append(fixture: &mut dyn Fixture) -> bool {
    if !fixture.shares_storage() {
        // Exclusive storage fences by its lock; `an_old_epoch_cannot_be_begun_again` shows the rest.
        return false;
    }
    let mut old = Owner::start(fixture.open());
    old.append(&[payload(1, 10)]);
    old.sync();
    let mut new = Owner::start(fixture.open());
    assert!(new.epoch > old.epoch);
    let tail = old.log.tail();
    let mut group = old.group(&[payload(2, 10)]);
    match old.log.append(old.epoch, tail, &mut group) {
        Err(AppendError::Fenced { ours, theirs }) => {
            assert_eq!((ours, theirs), (old.epoch, new.epoch));
        }
        other => panic!("{other:?}"),
    }
    new.append(&[payload(3, 10)]);
    drop(old);
    reopen_finds(fixture, new);
    true
}

pub(super) fn a_recovery_fences_before_it_reads(fixture: &mut dyn Fixture) -> bool {
    if !fixture.shares_storage() {
        return false;
    }
    let mut old = Owner::start(fixture.open());
    old.append(&[payload(1, 10)]);
    let Storage {
        log: mut new,
        snapshots,
    } = fixture.open();
    let (report, records) = recover(&mut *new);
    assert_eq!(records, old.records);
    // Whatever the old owner could append now would be missing in what was recovered.
    old.append_fails_as_fenced(&[payload(2, 10)]);
    let epoch = report.epoch.next();
    new.begin_epoch(epoch).expect("the next epoch begins");
    drop(old);
    reopen_finds(
        fixture,
        Owner {
            log: new,
            snapshots,
            epoch,
            report,
            records,
        },
    );
    true
}

/// A log that has lost everything may not know of epochs that there were.
pub(super) fn no_epoch_up_to_the_one_that_recovery_is_told_of_begins(
    fixture: &mut dyn Fixture,
) -> bool {
    let mut log = fixture.open().log;
    let report = log.recover(Position(0), Epoch(7), &mut |_, _| {});
    assert_eq!(report.expect("the log recovers").epoch, Epoch(7));
    match log.begin_epoch(Epoch(7)) {
        Err(AppendError::Fenced { theirs, .. }) => assert_eq!(theirs, Epoch(7)),
        other => panic!("{other:?}"),
    }
    log.begin_epoch(Epoch(8)).expect("a higher epoch begins");
    true
}

pub(super) fn of_two_that_recover_the_later_one_begins(fixture: &mut dyn Fixture) -> bool {
    if !fixture.shares_storage() {
        return false;
    }
    let (mut first, mut second) = (fixture.open().log, fixture.open().log);
    recover(&mut *first);
    recover(&mut *second);
    match first.begin_epoch(Epoch(1)) {
        Err(AppendError::Fenced { .. }) => {}
        other => panic!("{other:?}"),
    }
    second.begin_epoch(Epoch(1)).expect("it recovered last");
    true
}

pub(super) fn a_deposed_owner_changes_nothing(fixture: &mut dyn Fixture) -> bool {
    if !fixture.shares_storage() {
        return false;
    }
    let mut old = Owner::start(fixture.open());
    for seed in 0..20 {
        old.append(&[payload(seed, 500)]);
    }
    old.sync();
    let first = old.snapshot(&[b"first"]);
    old.append(&[payload(30, 500)]);
    old.sync();
    let mut unfinished = old.begin_snapshot().expect("a snapshot begins");
    unfinished.write(b"of the old").expect("a piece is written");

    // As long as it pleases, the old owner stands still; meanwhile another one is made.
    let mut new = Owner::start_from(fixture.open(), first);
    new.append(&[payload(40, 500)]);
    new.sync();
    let tail = new.log.tail();

    unfinished
        .finish()
        .expect_err("a deposed owner finishes no snapshot");
    old.append_fails_as_fenced(&[payload(50, 500)]);
    old.log
        .trim(tail)
        .expect_err("a deposed owner trims nothing");
    old.log
        .release(old.records[0].position)
        .expect_err("a deposed owner releases nothing");
    old.log
        .progress()
        .sync()
        .expect_err("a deposed owner promises nothing");
    old.log
        .begin_epoch(Epoch(new.epoch.0 + 1))
        .expect_err("what it recovered is not all any more");

    assert_eq!(new.snapshots.list().expect("listed"), [first]);
    new.append(&[payload(60, 500)]);
    new.check_reads();
    let mut expected = old.records;
    expected.retain(|record| record.position < new.records[0].position);
    expected.append(&mut new.records.clone());
    drop((old.log, old.snapshots, new.log, new.snapshots));
    fixture.kill();
    let again = Owner::start(fixture.open());
    assert_eq!(again.records, expected);
    true
}
