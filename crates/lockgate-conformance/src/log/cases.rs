//! The cases. Each opens fresh storage; `true` means it was run to its end.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use lockgate_core::{
    AppendError, Epoch, Level, LogError, LogRecord, Position, ReadError, RecordGroup,
};

use super::{
    Case, Fixture,
    owner::{Owner, payload, payloads, recover},
};

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// All cases, in the order they run.
        pub const CASES: &[Case] = &[$(Case { name: stringify!($name), run: $name }),*];
    };
}

cases![
    empty_storage_recovers_empty,
    capabilities_are_consistent,
    appended_records_read_back,
    records_come_back_in_order_after_a_kill,
    records_come_back_in_order_over_many_lives,
    place_says_where_append_puts_records,
    place_changes_nothing,
    an_empty_group_changes_nothing,
    one_group_may_be_larger_than_any_unit_of_storage,
    a_wrong_position_is_refused,
    a_record_that_is_too_large_is_refused,
    an_old_epoch_cannot_be_begun_again,
    an_epoch_without_records_is_remembered,
    a_deposed_owner_cannot_append,
    recovering_twice_gives_the_same,
    sync_covers_what_was_appended_before_it,
    synced_records_survive_a_power_cut,
    an_epoch_survives_a_power_cut,
    nothing_is_read_where_no_record_starts,
    trim_keeps_everything_from_its_position_on,
    trim_of_everything_keeps_epoch_and_order,
    release_works_or_is_refused,
    readers_and_syncs_go_on_beside_appends,
];

fn empty_storage_recovers_empty(fixture: &mut dyn Fixture) -> bool {
    let mut log = fixture.open();
    let (report, records) = recover(&mut *log);
    assert!(records.is_empty());
    assert_eq!(report, Default::default());
    assert_eq!(recover(&mut *log).0, Default::default());
    true
}

fn capabilities_are_consistent(fixture: &mut dyn Fixture) -> bool {
    let log = fixture.open();
    let capabilities = log.capabilities();
    assert!(capabilities.sync_level >= Level::Disk);
    assert!(capabilities.append_level <= capabilities.sync_level);
    assert!(
        capabilities.record_bytes_max > 0,
        "a log that takes no record is none"
    );
    let owner = Owner::start(log);
    assert_eq!(owner.log.capabilities(), capabilities, "constant");
    true
}

fn appended_records_read_back(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    for payload in payloads(&*owner.log) {
        owner.append(&[payload]);
    }
    owner.check_reads();
    owner.sync();
    owner.check_reads();
    true
}

fn records_come_back_in_order_after_a_kill(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let survives = owner.log.capabilities().append_level >= Level::Process;
    owner.append(&payloads(&*owner.log));
    if !survives {
        owner.sync();
    }
    let expected = owner.records;
    drop(owner.log);
    fixture.kill();
    let owner = Owner::start(fixture.open());
    assert_eq!(owner.records, expected);
    assert!(owner.report.damaged.is_empty());
    assert_eq!(owner.report.tail_bytes_cut, 0);
    owner.check_reads();
    true
}

fn records_come_back_in_order_over_many_lives(fixture: &mut dyn Fixture) -> bool {
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
        drop(owner.log);
        fixture.kill();
    }
    true
}

fn place_says_where_append_puts_records(fixture: &mut dyn Fixture) -> bool {
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

fn place_changes_nothing(fixture: &mut dyn Fixture) -> bool {
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

fn an_empty_group_changes_nothing(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let tail = owner.log.tail();
    owner.append(&[]);
    assert_eq!(owner.log.tail(), tail);
    owner.append(&[payload(1, 5)]);
    owner.check_reads();
    true
}

fn one_group_may_be_larger_than_any_unit_of_storage(fixture: &mut dyn Fixture) -> bool {
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
    drop(owner.log);
    fixture.kill();
    assert_eq!(Owner::start(fixture.open()).records, expected);
    true
}

fn a_wrong_position_is_refused(fixture: &mut dyn Fixture) -> bool {
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

fn a_record_that_is_too_large_is_refused(fixture: &mut dyn Fixture) -> bool {
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

fn an_old_epoch_cannot_be_begun_again(fixture: &mut dyn Fixture) -> bool {
    let mut log = fixture.open();
    recover(&mut *log);
    log.begin_epoch(Epoch(7)).expect("any epoch above 0 begins");
    drop(log);
    for old in [0, 1, 6, 7] {
        let mut log = fixture.open();
        let (report, _) = recover(&mut *log);
        assert_eq!(report.epoch, Epoch(7));
        match log.begin_epoch(Epoch(old)) {
            Err(AppendError::Fenced { ours, theirs }) => {
                assert_eq!((ours, theirs), (Epoch(old), Epoch(7)));
            }
            other => panic!("epoch {old}: {other:?}"),
        }
    }
    let mut log = fixture.open();
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

fn an_epoch_without_records_is_remembered(fixture: &mut dyn Fixture) -> bool {
    for life in 1..5 {
        let owner = Owner::start(fixture.open());
        assert_eq!(owner.epoch, Epoch(life));
        assert!(owner.records.is_empty());
        drop(owner.log);
        fixture.kill();
    }
    true
}

fn a_deposed_owner_cannot_append(fixture: &mut dyn Fixture) -> bool {
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

fn recovering_twice_gives_the_same(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    owner.append(&payloads(&*owner.log));
    drop(owner.log);
    fixture.kill();
    let mut log = fixture.open();
    let first = recover(&mut *log);
    assert_eq!(recover(&mut *log).1, first.1, "the same instance");
    let tail = log.tail();
    drop(log);
    let mut log = fixture.open();
    let second = recover(&mut *log);
    assert_eq!(second.1, first.1, "another instance");
    assert_eq!(second.0.epoch, first.0.epoch);
    assert_eq!(log.tail(), tail);
    true
}

fn sync_covers_what_was_appended_before_it(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let syncer = owner.log.syncer();
    let mut last = syncer.sync().expect("an empty log syncs");
    assert!(last <= owner.log.tail());
    for seed in 0..20 {
        owner.append(&[payload(seed, 700)]);
        let durable = syncer.sync().expect("the log syncs");
        assert!(durable >= last, "never goes back");
        assert!(durable > owner.records[seed].position);
        assert!(durable <= owner.log.tail(), "promises nothing unwritten");
        last = durable;
    }
    true
}

fn synced_records_survive_a_power_cut(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    owner.append(&payloads(&*owner.log));
    let durable = owner.sync();
    owner.append(&[payload(1, 100)]);
    let mut expected = owner.records;
    drop(owner.log);
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

fn an_epoch_survives_a_power_cut(fixture: &mut dyn Fixture) -> bool {
    for life in 1..5 {
        let owner = Owner::start(fixture.open());
        assert_eq!(owner.epoch, Epoch(life));
        drop(owner.log);
        if !fixture.cut_power() {
            return false;
        }
    }
    true
}

fn nothing_is_read_where_no_record_starts(fixture: &mut dyn Fixture) -> bool {
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

fn trim_keeps_everything_from_its_position_on(fixture: &mut dyn Fixture) -> bool {
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
    drop(owner.log);
    fixture.kill();
    let owner = Owner::start(fixture.open());
    // Space may come back in larger pieces, but the records that stay are whole and in order.
    assert!(owner.records.ends_with(&expected));
    assert!(owner.report.damaged.is_empty(), "{:?}", owner.report);
    owner.check_reads();
    true
}

fn trim_of_everything_keeps_epoch_and_order(fixture: &mut dyn Fixture) -> bool {
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
        drop(owner.log);
        fixture.kill();
    }
    true
}

fn release_works_or_is_refused(fixture: &mut dyn Fixture) -> bool {
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

fn readers_and_syncs_go_on_beside_appends(fixture: &mut dyn Fixture) -> bool {
    let mut owner = Owner::start(fixture.open());
    let (syncer, reader) = (owner.log.syncer(), owner.log.reader());
    let done = AtomicBool::new(false);
    let appended: Mutex<Vec<LogRecord>> = Mutex::default();
    let durable = Mutex::new(Position(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let position = syncer.sync().expect("the log syncs");
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

/// Syncs, kills, opens again and expects exactly the owner's records.
fn reopen_finds(fixture: &mut dyn Fixture, owner: Owner) {
    // The instance may have ended itself after an error, and then says so.
    let _ = owner.log.syncer().sync();
    let expected = owner.records;
    drop(owner.log);
    fixture.kill();
    let owner = Owner::start(fixture.open());
    assert_eq!(owner.records, expected);
    owner.check_reads();
}
