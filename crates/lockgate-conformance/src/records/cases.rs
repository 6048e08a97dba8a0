//! The cases.

use std::time::Duration;

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, LeaseRecord, ListRecords, PutRecord,
    RECORD_BYTES_MAX, RECORD_LEASE_MAX, Record, RecordName, RecordVersion, Records, RecordsError,
    ReleaseRecord, WatchRecord,
};

use super::{
    Fixture, Register, Troubles,
    fences::{
        a_guard_is_a_record_as_any_other, a_guard_with_a_strange_value_has_seen_every_epoch,
        guards_compare_every_epoch, only_a_change_that_is_made_raises_the_guard,
        whoever_was_deposed_changes_nothing,
    },
};

/// Long enough for any answer, and short enough to wait for.
const LEASE_MS: u64 = 2_000;

/// Longer than a case takes.
pub(super) const LONG_MS: u64 = 60_000;

pub(super) async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
    let mut not_run = Vec::new();
    macro_rules! cases {
        ($($case:ident),+) => {$(
            println!("records: {}", stringify!($case));
            if !$case(fixture, concat!(stringify!($case), "/")).await {
                not_run.push(stringify!($case));
            }
        )+};
    }
    cases!(
        a_write_names_the_version_that_it_replaces,
        no_version_comes_twice,
        one_holder_at_a_time_may_write,
        a_lease_ends_by_itself,
        a_holder_may_ask_again,
        a_record_may_end_with_its_lease,
        what_is_out_of_bounds_is_refused,
        records_are_listed_by_prefix,
        a_watch_sees_the_last_change,
        a_watch_sees_that_a_record_is_gone,
        records_and_leases_survive_a_restart,
        whoever_was_deposed_changes_nothing,
        only_a_change_that_is_made_raises_the_guard,
        guards_compare_every_epoch,
        a_guard_with_a_strange_value_has_seen_every_epoch,
        a_guard_is_a_record_as_any_other,
        operations_are_linearizable
    );
    not_run
}

pub(super) fn name(prefix: &str, name: &str) -> RecordName {
    RecordName::new(&format!("{prefix}{name}")).unwrap()
}

pub(super) fn put(name: &RecordName, value: &str, replaces: Option<RecordVersion>) -> PutRecord {
    PutRecord {
        name: name.clone(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        replaces,
        epoch: None,
    }
}

pub(super) fn lease(name: &RecordName, holder: &str, lease: u64) -> LeaseRecord {
    LeaseRecord {
        name: name.clone(),
        holder: HolderName::new(holder).unwrap(),
        lease,
        delete_at_end: false,
    }
}

pub(super) fn release(name: &RecordName, epoch: Epoch) -> ReleaseRecord {
    let name = name.clone();
    ReleaseRecord { name, epoch }
}

pub(super) fn extend(name: &RecordName, epoch: Epoch, lease: u64) -> ExtendRecord {
    let name = name.clone();
    ExtendRecord { name, epoch, lease }
}

pub(super) fn delete(
    name: &RecordName,
    replaces: RecordVersion,
    epoch: Option<Epoch>,
) -> DeleteRecord {
    let name = name.clone();
    DeleteRecord {
        name,
        replaces,
        epoch,
    }
}

pub(super) fn epoch(record: &Record) -> Epoch {
    record.lease.as_ref().expect("it is leased").epoch
}

pub(super) fn conflict<T>(result: Result<T, RecordsError>) -> Option<RecordVersion> {
    match result {
        Err(RecordsError::Conflict { version, .. }) => version,
        Err(other) => panic!("expected a conflict: {other}"),
        Ok(_) => panic!("expected a conflict"),
    }
}

#[track_caller]
pub(super) fn is_lost<T>(result: &Result<T, RecordsError>, epoch: Epoch) {
    let lost = matches!(result, Err(RecordsError::LeaseLost { epoch: of, .. }) if *of == epoch);
    assert!(lost, "{:?}", result.as_ref().err());
}

#[track_caller]
pub(super) fn is_held<T>(result: &Result<T, RecordsError>, by: &str) {
    let held = matches!(result, Err(RecordsError::Held { holder, .. }) if holder.as_str() == by);
    assert!(held, "{:?}", result.as_ref().err());
}

/// The record when it is another than `seen`.
pub(super) async fn changed<R: Records>(
    records: &R,
    name: &RecordName,
    seen: Option<&Record>,
) -> Option<Record> {
    let watch = WatchRecord {
        name: name.clone(),
        seen: seen.map(|record| record.revision),
        wait: Duration::from_millis(LONG_MS),
    };
    records.watch(watch).await.unwrap()
}

async fn a_write_names_the_version_that_it_replaces<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (r, a) = (f.records(), &name(of, "a"));
    assert_eq!(r.get(a.clone()).await.unwrap(), None);
    assert_eq!(
        conflict(r.put(put(a, "x", Some(RecordVersion(1)))).await),
        None
    );
    let first = r.put(put(a, "one", None)).await.unwrap();
    assert_eq!(
        conflict(r.put(put(a, "x", None)).await),
        Some(first.version)
    );
    let second = r.put(put(a, "two", Some(first.version))).await.unwrap();
    assert_eq!(second.version.0, first.version.0 + 1, "versions are dense");
    assert!(second.revision > first.revision);
    let late = r.put(put(a, "x", Some(first.version))).await;
    assert_eq!(conflict(late), Some(second.version));
    let read = r.get(a.clone()).await.unwrap().unwrap();
    assert_eq!(read.value, "two");
    assert_eq!(
        (read.version, read.revision),
        (second.version, second.revision)
    );
    assert_eq!((read.name, read.lease), (a.clone(), None));
    true
}

async fn no_version_comes_twice<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (r, a) = (f.records(), &name(of, "a"));
    let mut seen = RecordVersion(0);
    for _ in 0..3 {
        let written = r.put(put(a, "x", None)).await.unwrap();
        assert!(written.version > seen);
        let again = r.put(put(a, "y", Some(written.version))).await.unwrap();
        assert_eq!(
            conflict(r.delete(delete(a, written.version, None)).await),
            Some(again.version)
        );
        r.delete(delete(a, again.version, None)).await.unwrap();
        assert_eq!(
            conflict(r.delete(delete(a, again.version, None)).await),
            None
        );
        seen = again.version;
    }
    true
}

async fn one_holder_at_a_time_may_write<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (r, a) = (f.records(), &name(of, "a"));
    let first = r.put(put(a, "x", None)).await.unwrap();
    let mine = r.lease(lease(a, "me", LONG_MS)).await.unwrap();
    assert_eq!((&mine.value[..], mine.version), (&b"x"[..], first.version));
    let held = mine.lease.as_ref().unwrap();
    assert!(held.remaining <= Duration::from_millis(LONG_MS));
    assert!(!held.remaining.is_zero());

    is_held(&r.lease(lease(a, "you", LONG_MS)).await, "me");
    is_held(&r.put(put(a, "y", Some(first.version))).await, "me");
    is_held(&r.delete(delete(a, first.version, None)).await, "me");
    let with = |epoch, replaces| PutRecord {
        epoch: Some(epoch),
        ..put(a, "y", Some(replaces))
    };
    let wrong = Epoch(epoch(&mine).0 + 1);
    is_lost(&r.put(with(wrong, first.version)).await, wrong);
    is_lost(&r.extend(extend(a, wrong, LONG_MS)).await, wrong);
    is_lost(&r.release(release(a, wrong)).await, wrong);
    let absent = r
        .put(with(epoch(&mine), RecordVersion(u64::MAX >> 12)))
        .await;
    assert_eq!(conflict(absent), Some(first.version));
    let written = r.put(with(epoch(&mine), first.version)).await.unwrap();

    r.release(release(a, epoch(&mine))).await.unwrap();
    is_lost(
        &r.put(with(epoch(&mine), written.version)).await,
        epoch(&mine),
    );
    let yours = r.lease(lease(a, "you", LONG_MS)).await.unwrap();
    assert!(epoch(&yours) > epoch(&mine));
    // A cleanup with an old epoch must not end the new lease.
    is_lost(&r.release(release(a, epoch(&mine))).await, epoch(&mine));
    let gone = delete(a, written.version, Some(epoch(&yours)));
    r.delete(gone).await.unwrap();
    is_lost(&r.release(release(a, epoch(&yours))).await, epoch(&yours));
    // Nor does the name remember less after a deletion.
    let again = r.lease(lease(a, "me", LONG_MS)).await.unwrap();
    assert!(epoch(&again) > epoch(&yours));
    true
}

async fn a_lease_ends_by_itself<F: Fixture>(f: &mut F, of: &str) -> bool {
    let a = &name(of, "a");
    let mine = f.records().lease(lease(a, "me", LEASE_MS)).await.unwrap();
    f.pass(Duration::from_millis(LEASE_MS));
    let free = changed(f.records(), a, Some(&mine)).await.unwrap();
    assert_eq!((free.lease, free.version), (None, mine.version));
    assert!(free.revision > mine.revision);
    let r = f.records();
    is_lost(
        &r.extend(extend(a, epoch(&mine), LONG_MS)).await,
        epoch(&mine),
    );
    let late = PutRecord {
        epoch: Some(epoch(&mine)),
        ..put(a, "late", Some(mine.version))
    };
    is_lost(&r.put(late).await, epoch(&mine));
    let yours = r.lease(lease(a, "you", LEASE_MS)).await.unwrap();
    assert!(epoch(&yours) > epoch(&mine));
    true
}

async fn a_holder_may_ask_again<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (r, a) = (f.records(), &name(of, "a"));
    let first = r.lease(lease(a, "me", LEASE_MS)).await.unwrap();
    assert_eq!(&first.value[..], b"", "the lease made it");
    let again = r.lease(lease(a, "me", LONG_MS)).await.unwrap();
    assert_eq!(epoch(&first), epoch(&again));
    assert_eq!(
        (first.version, first.revision),
        (again.version, again.revision)
    );
    let remaining = |record: &Record| record.lease.as_ref().unwrap().remaining;
    assert!(remaining(&again) > Duration::from_millis(LEASE_MS));
    // An end that is nearer than before.
    r.extend(extend(a, epoch(&again), LEASE_MS)).await.unwrap();
    let now = r.get(a.clone()).await.unwrap().unwrap();
    assert!(remaining(&now) <= Duration::from_millis(LEASE_MS));
    assert_eq!(now.revision, first.revision, "an extension is no change");
    true
}

async fn a_record_may_end_with_its_lease<F: Fixture>(f: &mut F, of: &str) -> bool {
    let a = &name(of, "a");
    let leased = |ms| LeaseRecord {
        delete_at_end: true,
        ..lease(a, "me", ms)
    };
    let r = f.records();
    let first = r.lease(leased(LONG_MS)).await.unwrap();
    assert!(first.lease.as_ref().unwrap().delete_at_end);
    r.release(release(a, epoch(&first))).await.unwrap();
    assert_eq!(r.get(a.clone()).await.unwrap(), None);
    let second = r.lease(leased(LEASE_MS)).await.unwrap();
    assert!(epoch(&second) > epoch(&first) && second.version > first.version);
    f.pass(Duration::from_millis(LEASE_MS));
    assert_eq!(changed(f.records(), a, Some(&second)).await, None);
    true
}

async fn what_is_out_of_bounds_is_refused<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (r, a) = (f.records(), &name(of, "a"));
    let large = "x".repeat(RECORD_BYTES_MAX + 1);
    let invalid = |result: Result<(), RecordsError>| match result {
        Err(RecordsError::Invalid { why }) => assert!(!why.is_empty()),
        other => panic!("expected a refusal: {other:?}"),
    };
    invalid(r.put(put(a, &large, None)).await.map(drop));
    for ms in [0, RECORD_LEASE_MAX + 1] {
        invalid(r.lease(lease(a, "me", ms)).await.map(drop));
        invalid(r.extend(extend(a, Epoch(1), ms)).await);
    }
    for limit in [0, ListRecords::LIMIT_MAX + 1] {
        let list = ListRecords {
            prefix: of.to_owned(),
            after: None,
            limit,
        };
        invalid(r.list(list).await.map(drop));
    }
    assert_eq!(r.get(a.clone()).await.unwrap(), None);
    let written = r.put(put(a, &large[1..], None)).await.unwrap();
    let read = r.get(a.clone()).await.unwrap().unwrap();
    assert_eq!(read.value.len(), RECORD_BYTES_MAX);
    r.delete(delete(a, written.version, None)).await.unwrap();
    // Any bytes, and any name.
    let odd = &name(of, "ö/..//%2F?#&=+ ✓");
    let value = Bytes::from((0..=255).collect::<Vec<u8>>());
    let binary = PutRecord {
        value: value.clone(),
        ..put(odd, "", None)
    };
    r.put(binary).await.unwrap();
    assert_eq!(r.get(odd.clone()).await.unwrap().unwrap().value, value);
    true
}

async fn records_are_listed_by_prefix<F: Fixture>(f: &mut F, of: &str) -> bool {
    let r = f.records();
    for it in ["b", "a/2", "a", "a/1", "a/10", "aa"] {
        r.put(put(&name(of, it), it, None)).await.unwrap();
    }
    let page = async |prefix: &str, after: Option<RecordName>, limit| {
        let list = ListRecords {
            prefix: format!("{of}{prefix}"),
            after,
            limit,
        };
        r.list(list).await.unwrap()
    };
    let values = |page: &[Record]| {
        let values = page.iter().map(|it| String::from_utf8_lossy(&it.value));
        values.collect::<Vec<_>>().join(" ")
    };
    let all = page("", None, 100).await;
    assert_eq!(values(&all.records), "a a/1 a/10 a/2 aa b");
    assert_eq!(all.next, None);
    let first = page("a/", None, 2).await;
    assert_eq!(values(&first.records), "a/1 a/10");
    assert_eq!(first.next, Some(name(of, "a/10")));
    let last = page("a/", first.next, 2).await;
    assert_eq!(values(&last.records), "a/2");
    assert_eq!(last.next, None);
    assert!(page("c", None, 1).await.records.is_empty());
    true
}

async fn a_watch_sees_the_last_change<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (r, a) = (f.records(), &name(of, "a"));
    let no_wait = |seen| WatchRecord {
        name: a.clone(),
        seen,
        wait: Duration::ZERO,
    };
    assert_eq!(r.watch(no_wait(None)).await.unwrap(), None);
    // Both orders of watch and change.
    let (seen, first) = tokio::join!(changed(r, a, None), r.put(put(a, "one", None)));
    let first = first.unwrap();
    assert_eq!(seen.as_ref().unwrap().revision, first.revision);
    assert_eq!(changed(r, a, None).await, seen);
    assert_eq!(r.watch(no_wait(Some(first.revision))).await.unwrap(), seen);
    let (leased, mine) = tokio::join!(
        changed(r, a, seen.as_ref()),
        r.lease(lease(a, "me", LONG_MS))
    );
    let (leased, mine) = (leased.unwrap(), mine.unwrap());
    assert_eq!(epoch(&leased), epoch(&mine));
    // What was seen before may be long ago.
    assert_eq!(
        changed(r, a, seen.as_ref()).await.unwrap().revision,
        mine.revision
    );
    let (released, _) = tokio::join!(
        changed(r, a, Some(&leased)),
        r.release(release(a, epoch(&mine)))
    );
    assert_eq!(released.unwrap().lease, None);
    true
}

async fn a_watch_sees_that_a_record_is_gone<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (r, a) = (f.records(), &name(of, "a"));
    let written = r.put(put(a, "one", None)).await.unwrap();
    let seen = r.get(a.clone()).await.unwrap();
    let (gone, deleted) = tokio::join!(
        changed(r, a, seen.as_ref()),
        r.delete(delete(a, written.version, None))
    );
    deleted.unwrap();
    assert_eq!(gone, None);
    assert_eq!(changed(r, a, seen.as_ref()).await, None);
    true
}

async fn records_and_leases_survive_a_restart<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (a, b) = (&name(of, "a"), &name(of, "b"));
    let first = f.records().put(put(a, "one", None)).await.unwrap();
    let mine = f.records().lease(lease(a, "me", LONG_MS)).await.unwrap();
    let other = f.records().put(put(b, "x", None)).await.unwrap();
    let gone = delete(b, other.version, None);
    f.records().delete(gone).await.unwrap();
    if !f.restart().await {
        return false;
    }
    let r = f.records();
    let read = r.get(a.clone()).await.unwrap().unwrap();
    assert_eq!(
        (&read.value[..], read.version),
        (&b"one"[..], first.version)
    );
    assert_eq!((epoch(&read), read.revision), (epoch(&mine), mine.revision));
    is_held(&r.lease(lease(a, "you", LONG_MS)).await, "me");
    let written = PutRecord {
        epoch: Some(epoch(&mine)),
        ..put(a, "two", Some(first.version))
    };
    assert!(r.put(written).await.unwrap().revision > mine.revision);
    assert_eq!(r.get(b.clone()).await.unwrap(), None);
    assert!(r.put(put(b, "y", None)).await.unwrap().version > other.version);
    true
}

async fn operations_are_linearizable<F: Fixture>(f: &mut F, of: &str) -> bool {
    let register = Register::new(f.records(), name(of, "register"), 60).await;
    register.run().await;
    assert_eq!(register.check(), Troubles::default(), "the store was there");
    true
}
