//! Records: versions, leases and their ends, the quota, and what a restart or a restore leaves.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, LeaseRecord, ListRecords, PutRecord,
    RECORD_BYTES_MAX, RECORD_LEASE_MAX, Record, RecordName, RecordVersion, RecordsError,
    ReleaseRecord, Revision,
};

use super::harness::Run;
use crate::{Command, MachineLimits, QueryReply, Rejection, Reply, TypedCommand};

fn name(text: &str) -> RecordName {
    RecordName::new(text).unwrap()
}

fn put(record: &str, value: &str, replaces: Option<u64>) -> PutRecord {
    PutRecord {
        name: name(record),
        value: Bytes::copy_from_slice(value.as_bytes()),
        replaces: replaces.map(RecordVersion),
        epoch: None,
    }
}

fn delete(record: &str, replaces: u64) -> DeleteRecord {
    DeleteRecord {
        name: name(record),
        replaces: RecordVersion(replaces),
        epoch: None,
    }
}

fn lease(record: &str, holder: &str, lease: u64) -> LeaseRecord {
    LeaseRecord {
        name: name(record),
        holder: HolderName::new(holder).unwrap(),
        lease,
        delete_at_end: false,
    }
}

fn release(record: &str, epoch: Epoch) -> ReleaseRecord {
    let name = name(record);
    ReleaseRecord { name, epoch }
}

fn extend(record: &str, epoch: Epoch, lease: u64) -> ExtendRecord {
    let name = name(record);
    ExtendRecord { name, epoch, lease }
}

/// Gives a command, and checks the machine.
#[track_caller]
fn give<C: TypedCommand>(run: &mut Run, command: C) -> Result<C::Reply, Rejection> {
    let command: Command = command.into();
    let reply = run.give(&command);
    run.check_invariants(&format!("{command:?}"));
    reply.map(|reply| C::reply(reply).expect("its reply"))
}

#[track_caller]
fn refused<C: TypedCommand>(run: &mut Run, command: C) -> String
where
    C::Reply: std::fmt::Debug,
{
    give(run, command).unwrap_err().to_string()
}

fn get(run: &mut Run, record: &str) -> Option<Record> {
    run.tick();
    run.machine.record(&name(record), run.now)
}

fn wait(run: &mut Run, millis: u64) {
    run.now.machine.0 += millis;
    run.now.wall.0 += millis;
    run.tick();
}

#[test]
fn a_write_names_the_version_that_it_replaces() {
    let mut run = Run::new();
    assert_eq!(get(&mut run, "a"), None);
    assert_eq!(
        refused(&mut run, put("a", "x", Some(1))),
        "there is no record a"
    );
    let first = give(&mut run, put("a", "one", None)).unwrap();
    assert_eq!(first.version, RecordVersion(1));
    assert_eq!(
        refused(&mut run, put("a", "x", None)),
        "record a has version 1"
    );
    let second = give(&mut run, put("a", "two", Some(1))).unwrap();
    assert_eq!(second.version, RecordVersion(2));
    assert!(second.revision > first.revision);
    assert_eq!(
        refused(&mut run, put("a", "x", Some(1))),
        "record a has version 2"
    );
    let read = get(&mut run, "a").unwrap();
    assert_eq!((&read.value[..], read.version.0), (&b"two"[..], 2));
    assert_eq!(read.revision, second.revision);
    run.check_recovery();
}

#[test]
fn no_version_of_a_name_comes_twice() {
    let mut run = Run::new();
    for replaces in [None, Some(1), Some(2)] {
        give(&mut run, put("a", "x", replaces)).unwrap();
    }
    assert_eq!(refused(&mut run, delete("a", 2)), "record a has version 3");
    give(&mut run, delete("a", 3)).unwrap();
    assert_eq!(refused(&mut run, delete("a", 3)), "there is no record a");
    assert_eq!(give(&mut run, put("b", "x", None)).unwrap().version.0, 4);
    run.restart("kill");
    assert_eq!(give(&mut run, put("a", "x", None)).unwrap().version.0, 4);
    give(&mut run, delete("b", 4)).unwrap();
    assert_eq!(give(&mut run, put("c", "x", None)).unwrap().version.0, 5);
    run.check_recovery();
}

#[test]
fn one_holder_at_a_time_may_write() {
    let mut run = Run::new();
    give(&mut run, put("a", "x", None)).unwrap();
    let mine = give(&mut run, lease("a", "me", 1_000)).unwrap();
    let held = mine.lease.clone().unwrap();
    assert_eq!((&mine.value[..], mine.version.0), (&b"x"[..], 1));
    assert_eq!(mine.revision.0, held.epoch.0);
    assert_eq!(held.remaining.as_millis(), 1_000);

    let busy = "record a is leased by me for another 1000 ms";
    assert_eq!(refused(&mut run, lease("a", "you", 1_000)), busy);
    assert_eq!(refused(&mut run, put("a", "y", Some(1))), busy);
    assert_eq!(refused(&mut run, delete("a", 1)), busy);
    let with = |epoch, replaces| PutRecord {
        epoch: Some(epoch),
        ..put("a", "y", Some(replaces))
    };
    let wrong = Epoch(held.epoch.0 + 1);
    let lost = format!("the lease of record a with epoch {} has ended", wrong.0);
    assert_eq!(refused(&mut run, with(wrong, 1)), lost);
    assert_eq!(
        refused(&mut run, with(held.epoch, 9)),
        "record a has version 1"
    );
    give(&mut run, with(held.epoch, 1)).unwrap();
    // A write keeps the lease.
    assert_eq!(get(&mut run, "a").unwrap().lease.unwrap(), held);

    // Its end, to the millisecond.
    wait(&mut run, 999);
    assert!(get(&mut run, "a").unwrap().lease.is_some());
    wait(&mut run, 1);
    let free = get(&mut run, "a").unwrap();
    assert_eq!(free.lease, None);
    assert!(free.revision > mine.revision);
    let lost = format!(
        "the lease of record a with epoch {} has ended",
        held.epoch.0
    );
    assert_eq!(refused(&mut run, with(held.epoch, 2)), lost);
    assert_eq!(refused(&mut run, extend("a", held.epoch, 5_000)), lost);
    assert_eq!(refused(&mut run, release("a", held.epoch)), lost);
    assert_eq!(run.machine.record_counts().stale, 4);

    let yours = give(&mut run, lease("a", "you", 1_000)).unwrap();
    assert!(yours.lease.unwrap().epoch > held.epoch);
    assert_eq!(refused(&mut run, release("a", held.epoch)), lost);
    run.check_recovery();
}

#[test]
fn a_holder_whose_answer_was_lost_asks_again() {
    let mut run = Run::new();
    let first = give(&mut run, lease("a", "me", 1_000)).unwrap();
    assert_eq!((&first.value[..], first.version.0), (&b""[..], 1));
    wait(&mut run, 400);
    let again = give(&mut run, lease("a", "me", 1_000)).unwrap();
    let epoch = |record: &Record| record.lease.as_ref().unwrap().epoch;
    assert_eq!(epoch(&first), epoch(&again));
    assert_eq!(first.revision, again.revision);
    wait(&mut run, 999);
    assert!(get(&mut run, "a").unwrap().lease.is_some());
    give(&mut run, extend("a", epoch(&again), 10)).unwrap();
    wait(&mut run, 10);
    assert_eq!(get(&mut run, "a").unwrap().lease, None);
    // An extension is no change; the end is one.
    assert!(get(&mut run, "a").unwrap().revision > again.revision);
    run.check_recovery();
}

#[test]
fn a_record_may_end_with_its_lease() {
    let mut run = Run::new();
    let leased = |holder| LeaseRecord {
        delete_at_end: true,
        ..lease("a", holder, 1_000)
    };
    let first = give(&mut run, leased("me")).unwrap();
    give(&mut run, release("a", first.lease.unwrap().epoch)).unwrap();
    assert_eq!(get(&mut run, "a"), None);
    let second = give(&mut run, leased("you")).unwrap();
    assert!(second.version > first.version && second.revision > first.revision);
    wait(&mut run, 1_000);
    assert_eq!(get(&mut run, "a"), None);
    assert_eq!(run.machine.record_counts().bytes, 0);
    // A lease that is asked for again is what was asked for last.
    give(&mut run, leased("me")).unwrap();
    give(&mut run, lease("a", "me", 1_000)).unwrap();
    wait(&mut run, 1_000);
    assert!(get(&mut run, "a").is_some());
    run.check_recovery();
}

#[test]
fn leases_outlive_a_restart_and_a_power_cut() {
    for how in ["kill", "power", "clean"] {
        let mut run = Run::new();
        let leased = give(&mut run, lease("a", "me", 60_000)).unwrap();
        run.restart(how);
        let found = get(&mut run, "a").unwrap();
        let held = found.lease.unwrap();
        assert_eq!(held.epoch, leased.lease.unwrap().epoch, "{how}");
        give(&mut run, extend("a", held.epoch, 1_000)).unwrap();
        wait(&mut run, 1_000);
        assert_eq!(get(&mut run, "a").unwrap().lease, None);
        run.check_recovery();
    }
}

#[test]
fn no_epoch_comes_twice_after_a_restore() {
    let mut run = Run::new();
    give(&mut run, put("a", "x", None)).unwrap();
    let backup = run.log.len();
    wait(&mut run, 10);
    let taken = give(&mut run, lease("a", "me", 1_000)).unwrap();
    wait(&mut run, 10);
    // What came after the backup is gone, and time has passed.
    run.lose_all_but(backup);
    let again = give(&mut run, lease("a", "you", 1_000)).unwrap();
    assert!(again.lease.unwrap().epoch > taken.lease.unwrap().epoch);
}

#[test]
fn the_quota_bounds_names_and_values() {
    let limits = MachineLimits {
        record_bytes_max: 1_000,
        ..MachineLimits::default()
    };
    let mut run = Run::with_limits(limits);
    give(&mut run, put("a", &"x".repeat(600), None)).unwrap();
    assert_eq!(run.machine.record_counts().bytes, 857);
    let full = "records and states of keys may have 1000 bytes together: delete some";
    assert_eq!(refused(&mut run, put("b", "", None)), full);
    assert_eq!(refused(&mut run, lease("b", "me", 1_000)), full);
    assert_eq!(refused(&mut run, put("a", &"x".repeat(744), Some(1))), full);
    give(&mut run, put("a", &"x".repeat(743), Some(1))).unwrap();
    // What grows nothing is always possible.
    give(&mut run, lease("a", "me", 1_000)).unwrap();
    let smaller = run.recovered();
    assert_eq!(smaller.record_counts().bytes, 1_000);
    wait(&mut run, 1_000);
    give(&mut run, put("a", "", Some(2))).unwrap();
    give(&mut run, put("b", "", None)).unwrap();
    run.check_recovery();
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    let mut run = Run::new();
    let large = "x".repeat(RECORD_BYTES_MAX + 1);
    assert_eq!(
        refused(&mut run, put("a", &large, None)),
        "value_bytes must be 0 to 262144, not 262145"
    );
    give(&mut run, put("a", &large[1..], None)).unwrap();
    for given in [0, RECORD_LEASE_MAX + 1] {
        let expected = format!("lease must be 1 to 43200000, not {given}");
        assert_eq!(refused(&mut run, lease("a", "me", given)), expected);
        assert_eq!(refused(&mut run, extend("a", Epoch(1), given)), expected);
    }
    give(&mut run, lease("a", "me", RECORD_LEASE_MAX)).unwrap();
    run.check_recovery();
}

#[test]
fn records_are_listed_by_prefix_in_pages() {
    let mut run = Run::new();
    for record in ["b", "a/2", "a", "a/1", "a/10", "aa"] {
        give(&mut run, put(record, record, None)).unwrap();
    }
    let page = |run: &Run, prefix: &str, after: Option<&str>, limit| {
        let list = ListRecords {
            prefix: prefix.to_owned(),
            after: after.map(name),
            limit,
        };
        let Ok(QueryReply::Records(page)) = run.machine.query(&list.into(), run.now) else {
            panic!("no page");
        };
        let names: Vec<_> = page.records.iter().map(|it| it.name.to_string()).collect();
        (names.join(" "), page.next.map(|name| name.to_string()))
    };
    let next = |name: &str| Some(name.to_owned());
    assert_eq!(page(&run, "", None, 9).0, "a a/1 a/10 a/2 aa b");
    assert_eq!(page(&run, "a/", None, 9), ("a/1 a/10 a/2".into(), None));
    assert_eq!(page(&run, "a/", None, 2), ("a/1 a/10".into(), next("a/10")));
    assert_eq!(page(&run, "a/", Some("a/10"), 2), ("a/2".into(), None));
    assert_eq!(page(&run, "a/", Some("a"), 1), ("a/1".into(), next("a/1")));
    assert_eq!(page(&run, "c", None, 9), (String::new(), None));
    // A page ends with the record that takes its values to 1 MiB.
    for record in ["l/1", "l/2", "l/3", "l/4", "l/5"] {
        let value = "x".repeat(RECORD_BYTES_MAX);
        give(&mut run, put(record, &value, None)).unwrap();
    }
    assert_eq!(page(&run, "l", None, 9).1, next("l/4"));
}

#[test]
fn changed_records_are_told_once_somebody_serves() {
    let mut run = Run::new();
    run.set_syncing(false);
    give(&mut run, put("a", "x", None)).unwrap();
    run.sync();
    run.machine.take_changed_records();
    give(&mut run, put("b", "x", None)).unwrap();
    let leased = give(&mut run, lease("a", "me", 1_000)).unwrap();
    assert_eq!(run.machine.take_changed_records(), [name("b"), name("a")]);
    let epoch = leased.lease.unwrap().epoch;
    give(&mut run, extend("a", epoch, 2_000)).unwrap();
    assert_eq!(run.machine.take_changed_records(), []);
    wait(&mut run, 2_000);
    assert_eq!(run.machine.take_changed_records(), [name("a")]);
    give(&mut run, delete("a", 1)).unwrap();
    assert_eq!(run.machine.take_changed_records(), [name("a")]);
    assert_eq!(run.machine.record_revision(&name("a")), None);
}

/// What a random history has seen of records.
#[derive(Default)]
pub(super) struct Seen {
    /// The highest version of each name.
    versions: BTreeMap<RecordName, RecordVersion>,
    epoch: Epoch,
    revision: Revision,
}

impl Seen {
    /// One command for one of a few records, mostly with its version and its lease, and what must hold of it.
    pub(super) fn step(&mut self, run: &mut Run, number: u8, how: u8, with: u8) {
        let record = ["a", "a/b", "c", "d"][usize::from(number % 4)];
        let name = name(record);
        run.tick();
        let before = run.machine.record(&name, run.now);
        let right = !with.is_multiple_of(8);
        let lease_before = before.as_ref().and_then(|record| record.lease.clone());
        let epoch_before = lease_before.as_ref().map(|lease| lease.epoch);
        let epoch = epoch_before.filter(|_| right);
        let version_before = before.as_ref().map(|record| record.version);
        let wrong = Some(RecordVersion(u64::from(with)));
        let replaces = if right { version_before } else { wrong };
        let any_epoch = epoch.unwrap_or(Epoch(u64::from(with)));
        let holder = ["me", "you"][usize::from(with / 8 % 2)];
        let millis = 1 + u64::from(with) * 100;
        let command: Command = match how % 6 {
            0 | 1 => PutRecord {
                epoch,
                replaces,
                ..put(record, &"x".repeat(usize::from(with)), None)
            }
            .into(),
            2 => DeleteRecord {
                epoch,
                ..delete(record, replaces.map_or(1, |version| version.0))
            }
            .into(),
            3 => LeaseRecord {
                delete_at_end: with.is_multiple_of(3),
                ..lease(record, holder, millis)
            }
            .into(),
            4 => extend(record, any_epoch, millis).into(),
            _ => release(record, any_epoch).into(),
        };
        let reply = run.give(&command);
        let after = run.machine.record(&name, run.now);
        match reply {
            Ok(Reply::RecordWritten(written)) => {
                assert_eq!(version_before, replaces, "{command:?}");
                assert_eq!(epoch_before, epoch, "{command:?}");
                assert_eq!(after.as_ref().unwrap().version, written.version);
                self.note_revision(written.revision);
            }
            Ok(Reply::Record(leased)) => {
                let held = leased.lease.as_ref().unwrap();
                match epoch_before {
                    Some(before) => assert_eq!(held.epoch, before, "{command:?}"),
                    None => {
                        assert!(held.epoch > self.epoch, "{command:?}");
                        self.epoch = held.epoch;
                        self.note_revision(Revision(held.epoch.0));
                    }
                }
                assert_eq!(after.as_ref(), Some(&*leased), "{command:?}");
            }
            Ok(_) => match &command {
                Command::DeleteRecord(_) => assert_eq!(after, None),
                Command::ReleaseRecord(_) => {
                    assert!(after.is_none_or(|record| record.lease.is_none()));
                    assert_eq!(epoch_before, Some(any_epoch));
                }
                _ => assert_eq!(epoch_before, Some(any_epoch)),
            },
            Err(Rejection::Record(RecordsError::Full { .. }) | Rejection::OutOfRange { .. }) => {
                assert_eq!(after, before);
            }
            Err(error) => {
                assert_eq!(after, before, "{error}");
                let held = lease_before.is_some_and(|lease| lease.holder.as_str() != holder);
                assert!(!right || held || epoch.is_none(), "{command:?}: {error}");
            }
        }
        if let Some(after) = run.machine.record(&name, run.now) {
            let seen = self.versions.entry(name).or_default();
            let expected = match version_before {
                Some(before) => after.version == before || after.version.0 == before.0 + 1,
                None => after.version > *seen,
            };
            assert!(expected, "{command:?}: version {}", after.version);
            *seen = after.version;
        }
    }

    fn note_revision(&mut self, revision: Revision) {
        assert!(revision > self.revision);
        self.revision = revision;
    }
}
