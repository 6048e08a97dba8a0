//! Records: where they go, that they read back, and that they come back.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use lockgate_core::{AppendError, Epoch, Level, LogRecord, Position, RecoveryReport};

use crate::log::{
    Fixture,
    owner::{Owner, payload, payloads, recover, reopen_finds},
};

pub(super) fn empty_storage_recovers_empty(fixture: &mut dyn Fixture) -> bool {
    let mut log = fixture.open().log;
    let (report, records) = recover(&mut *log);
    assert!(records.is_empty());
    let empty = RecoveryReport {
        unsynced: report.unsynced,
        ..RecoveryReport::default()
    };
    assert_eq!(report, empty);
    assert_eq!(recover(&mut *log).0, empty);
    true
}

pub(super) fn capabilities_are_consistent(fixture: &mut dyn Fixture) -> bool {
    let storage = fixture.open();
    let capabilities = storage.log.capabilities();
    assert!(capabilities.sync_level >= Level::Disk);
    assert!(capabilities.append_level <= capabilities.sync_level);
    assert!(
        capabilities.record_bytes_max > 0,
        "a log that takes no record is none"
    );
    let owner = Owner::start(storage);
    assert_eq!(owner.log.capabilities(), capabilities, "constant");
    true
}

pub(super) fn appended_records_read_back(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for payload in payloads(&*owner.log) {
        owner.append(&[payload]);
    }
    owner.check_reads();
    owner.sync();
    owner.check_reads();
    true
}

pub(super) fn records_come_back_in_order_after_a_kill(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let survives = owner.log.capabilities().append_level >= Level::Process;
    owner.append(&payloads(&*owner.log));
    if !survives {
        owner.sync();
    }
    let expected = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let owner = Owner::start(fixture.open());
    assert_eq!(owner.records, expected);
    assert!(owner.report.damaged.is_empty());
    assert_eq!(owner.report.tail_bytes_cut, 0);
    owner.check_reads();
    true
}

pub(super) fn records_come_back_in_order_over_many_lives(fixture: &mut dyn Fixture) -> bool {
    let mut expected: Vec<LogRecord> = Vec::new();
    for life in 0..6u64 {
        let mut owner = Owner::start(fixture.open());
        assert_eq!(owner.epoch, Epoch(life + 1));
        assert_eq!(owner.records, expected, "life {life}");
        for seed in 0..3 {
            owner.append(&[payload(seed, 200), payload(seed + 10, 3)]);
        }
        owner.sync();
        owner.check_reads();
        expected = owner.records;
        drop((owner.log, owner.snapshots));
        fixture.kill();
    }
    true
}

pub(super) fn place_says_where_append_puts_records(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let all = payloads(&*owner.log);
    // `append` of the owner compares; here it meets groups of every size.
    for (index, size) in [1, 2, 5, all.len()]
        .into_iter()
        .cycle()
        .take(12)
        .enumerate()
    {
        let from = index % all.len();
        owner.append(&all[from..(from + size).min(all.len())]);
    }
    owner.check_reads();
    true
}

pub(super) fn place_changes_nothing(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let tail = owner.log.tail();
    let walk = |owner: &Owner| {
        let mut cursor = tail;
        let lens = [10, 1_000, 0, 4_000, 4_000, 4_000, 4_000, 4_000, 4_000];
        lens.map(|len| owner.log.place(&mut cursor, len))
    };
    let first = walk(&owner);
    assert_eq!(owner.log.tail(), tail);
    assert_eq!(walk(&owner), first);
    assert!(first.windows(2).all(|pair| pair[0] < pair[1]));
    owner.append(&[payload(1, 10)]);
    assert_eq!(owner.records[0].position, first[0]);
    true
}

pub(super) fn an_empty_group_changes_nothing(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let tail = owner.log.tail();
    owner.append(&[]);
    assert_eq!(owner.log.tail(), tail);
    owner.append(&[payload(1, 5)]);
    owner.check_reads();
    true
}

pub(super) fn one_group_may_be_larger_than_any_unit_of_storage(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let max = owner.log.capabilities().record_bytes_max.min(256 << 10);
    let group: Vec<Vec<u8>> = (0..60)
        .map(|seed| payload(seed, [max / 2 + 1, max / 5, 3][seed % 3]))
        .collect();
    owner.append(&group);
    owner.append(&group);
    owner.sync();
    owner.check_reads();
    let expected = owner.records;
    drop((owner.log, owner.snapshots));
    fixture.kill();
    assert_eq!(Owner::start(fixture.open()).records, expected);
    true
}

pub(super) fn a_wrong_position_is_refused(fixture: &mut dyn Fixture) -> bool {
    for wrong in [
        |tail: Position| Position(tail.0 + 1),
        |tail: Position| Position(tail.0 - 1),
        |_| Position(0),
        |_| Position(u64::MAX),
    ] {
        fixture.fresh();
        let mut owner = Owner::start(fixture.open());
        owner.append(&[payload(1, 10)]);
        let tail = owner.log.tail();
        let mut group = owner.group(&[payload(2, 10)]);
        match owner.log.append(owner.epoch, wrong(tail), &mut group) {
            Err(AppendError::Position {
                expected,
                tail: said,
            }) => assert_eq!((expected, said), (wrong(tail), tail)),
            other => panic!("{other:?}"),
        }
        reopen_finds(fixture, owner);
    }
    true
}

pub(super) fn a_record_that_is_too_large_is_refused(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let max = owner.log.capabilities().record_bytes_max;
    owner.append(&[payload(1, 10)]);
    let tail = owner.log.tail();
    // The one that fits comes first: it must not be written either.
    let mut group = owner.group(&[payload(2, 10), vec![7; max + 1]]);
    match owner.log.append(owner.epoch, tail, &mut group) {
        Err(AppendError::TooLarge { len, max: said }) => assert_eq!((len, said), (max + 1, max)),
        other => panic!("{other:?}"),
    }
    reopen_finds(fixture, owner);
    true
}

pub(super) fn recovering_twice_gives_the_same(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    owner.append(&payloads(&*owner.log));
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let mut log = fixture.open().log;
    let first = recover(&mut *log);
    assert_eq!(recover(&mut *log).1, first.1, "the same instance");
    let tail = log.tail();
    drop(log);
    let mut log = fixture.open().log;
    let second = recover(&mut *log);
    assert_eq!(second.1, first.1, "another instance");
    assert_eq!(second.0.epoch, first.0.epoch);
    assert_eq!(log.tail(), tail);
    true
}

pub(super) fn sync_covers_what_was_appended_before_it(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let progress = owner.log.progress();
    let mut last = progress.sync().expect("an empty log syncs");
    assert!(last <= owner.log.tail());
    for seed in 0..20 {
        owner.append(&[payload(seed, 700)]);
        let durable = progress.sync().expect("the log syncs");
        assert!(durable >= last, "never goes back");
        assert!(durable > owner.records[seed].position);
        assert!(durable <= owner.log.tail(), "promises nothing unwritten");
        last = durable;
    }
    true
}

pub(super) fn synced_records_survive_a_power_cut(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    owner.append(&payloads(&*owner.log));
    let durable = owner.sync();
    owner.append(&[payload(1, 100)]);
    let mut expected = owner.records;
    drop((owner.log, owner.snapshots));
    if !fixture.cut_power() {
        return false;
    }
    let owner = Owner::start(fixture.open());
    assert!(owner.records.len() <= expected.len());
    assert_eq!(owner.records, expected[..owner.records.len()]);
    expected.retain(|record| record.position < durable);
    assert!(owner.records.len() >= expected.len());
    owner.check_reads();
    true
}

pub(super) fn readers_and_syncs_go_on_beside_appends(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let (progress, reader) = (owner.log.progress(), owner.log.reader());
    let done = AtomicBool::new(false);
    let appended: Mutex<Vec<LogRecord>> = Mutex::default();
    let durable = Mutex::new(Position(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let position = progress.sync().expect("the log syncs");
                let mut durable = durable.lock().expect("no thread panicked");
                assert!(position >= *durable);
                *durable = position;
            }
        });
        scope.spawn(|| {
            let mut turn = 0;
            while !done.load(Ordering::Acquire) {
                turn += 1;
                let record = {
                    let appended = appended.lock().expect("no thread panicked");
                    let count = appended.len().max(1);
                    appended.get(turn % count).cloned()
                };
                if let Some(record) = record {
                    let read = reader.read(record.position).expect("a record reads back");
                    assert_eq!(read, record.payload);
                }
            }
        });
        // Also when an append panics, so that the others end.
        let _stop = StopOnDrop(&done);
        for seed in 0..200 {
            owner.append(&[payload(seed, 50 + seed * 7), payload(seed, 5)]);
            let new = owner.records[owner.records.len() - 2..].to_vec();
            appended.lock().expect("no thread panicked").extend(new);
        }
    });
    let durable = *durable.lock().expect("no thread panicked");
    assert!(durable <= owner.log.tail());
    assert_eq!(owner.sync(), owner.log.tail());
    reopen_finds(fixture, owner);
    true
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub(super) fn a_record_is_found_by_its_number(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let first = owner.log.next_number();
    for seed in 0..200 {
        owner.append(&[payload(seed, 700), payload(seed, 3)]);
    }
    owner.sync();
    let find = |owner: &Owner, number| owner.log.reader().locate(number).expect("it is looked for");
    let check = |owner: &Owner| {
        for (number, record) in (first..).zip(&owner.records).step_by(7) {
            assert_eq!(find(owner, number), Some(record.position), "{number}");
        }
        assert_eq!(find(owner, owner.log.next_number()), None);
        assert_eq!(find(owner, 0), None);
    };
    check(&owner);
    drop((owner.log, owner.snapshots));
    fixture.kill();
    let mut owner = Owner::start(fixture.open());
    owner.append(&[payload(9, 9)]);
    check(&owner);
    true
}

pub(super) fn who_follows_is_told_of_what_is_durable(fixture: &mut dyn Fixture) -> bool {
    const LONG: Duration = Duration::from_secs(60);
    let mut owner = Owner::start(fixture.open());
    owner.append(&[payload(1, 100)]);
    owner.sync();
    let (reader, durable) = (owner.log.reader(), owner.log.tail());
    let follow = |beyond, wait| reader.wait_tail(beyond, wait).expect("the log is followed");
    assert_eq!(follow(Position(0), LONG), durable);
    assert_eq!(follow(durable, Duration::ZERO), durable);
    owner.append(&[payload(2, 100)]);
    assert_eq!(follow(durable, Duration::ZERO), durable, "it is not synced");
    let follower = thread::spawn({
        let reader = reader.clone();
        move || reader.wait_tail(durable, LONG)
    });
    owner.sync();
    let told = follower.join().expect("it does not panic");
    assert_eq!(told.expect("the log is followed"), owner.log.tail());
    true
}
