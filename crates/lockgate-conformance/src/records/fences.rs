//! The cases of fences.

use std::{sync::Arc, time::Duration};

use lockgate_core::{
    ElectionName, Epoch, ListRecords, PutRecord, Record, RecordName, Records, RecordsError,
    coordination::{Fence, FenceError, TermSpan},
};

use super::{
    Fixture,
    cases::{
        LONG_MS, changed, conflict, delete, epoch, extend, is_held, is_lost, lease, name, put,
        release,
    },
};

struct Over;

impl TermSpan for Over {
    fn remaining(&self) -> Duration {
        Duration::ZERO
    }
}

fn election(of: &str) -> ElectionName {
    ElectionName::new(of).unwrap()
}

fn guard(of: &str) -> RecordName {
    RecordName::new(&format!("fence/{of}")).unwrap()
}

/// The store under the term of that number. `None`: it takes no fence, and says so.
fn under<R: Records>(records: &R, of: &str, term: u64) -> Option<R> {
    match records.fenced(&Fence::new(election(of), Epoch(term))) {
        Ok(fenced) => Some(fenced),
        Err(FenceError::Unsupported { .. }) => None,
        Err(other) => panic!("expected another refusal: {other}"),
    }
}

#[track_caller]
fn is_deposed<T>(result: Result<T, RecordsError>, of: &str, term: u64, newest: u64) {
    let deposed = RecordsError::Fenced(FenceError::Deposed {
        election: election(of),
        epoch: Epoch(term),
        newest: Epoch(newest),
    });
    assert_eq!(result.map(drop), Err(deposed));
}

async fn guard_of<R: Records>(records: &R, of: &str) -> Option<Record> {
    records.get(guard(of)).await.unwrap()
}

/// Every change under that term, each refused for a later term; `held`: a record that is leased.
async fn is_deposed_throughout<R: Records>(old: &R, of: &str, newest: u64, held: &Record) {
    let (a, lease_of) = (&held.name, epoch(held));
    let late = PutRecord {
        epoch: Some(lease_of),
        ..put(a, "late", Some(held.version))
    };
    is_deposed(old.put(late).await, of, 7, newest);
    // Also what would be refused anyhow.
    is_deposed(old.put(put(a, "late", None)).await, of, 7, newest);
    let gone = old.delete(delete(a, held.version, Some(lease_of))).await;
    is_deposed(gone, of, 7, newest);
    let taken = old.lease(lease(&name(of, "b"), "me", LONG_MS)).await;
    is_deposed(taken, of, 7, newest);
    let longer = old.extend(extend(a, lease_of, 2 * LONG_MS)).await;
    is_deposed(longer, of, 7, newest);
    is_deposed(old.release(release(a, lease_of)).await, of, 7, newest);
    let now = old.get(a.clone()).await.unwrap().unwrap();
    assert_eq!((&now.value, now.revision), (&held.value, held.revision));
    let remaining = now.lease.unwrap().remaining;
    assert!(remaining <= Duration::from_millis(LONG_MS));
    assert_eq!(old.get(name(of, "b")).await.unwrap(), None);
}

pub(super) async fn whoever_was_deposed_changes_nothing<F: Fixture>(f: &mut F, of: &str) -> bool {
    let (old, new) = (under(f.records(), of, 7), under(f.records(), of, 9));
    let Some((old, new)) = old.zip(new) else {
        return false;
    };
    let a = &name(of, "a");
    let first = old.put(put(a, "one", None)).await.unwrap();
    new.put(put(a, "two", Some(first.version))).await.unwrap();
    let held = new.lease(lease(a, "me", LONG_MS)).await.unwrap();
    is_deposed_throughout(&old, of, 9, &held).await;
    assert_eq!(guard_of(&old, of).await.unwrap().value, "9");
    // A store under a fence is put under another one, and one without a fence is as before.
    let again = under(&old, of, 9).unwrap();
    again
        .extend(extend(a, epoch(&held), LONG_MS))
        .await
        .unwrap();
    let free = put(&name(of, "free"), "x", None);
    f.records().put(free).await.unwrap();
    // Another election has its own guard.
    let other = under(f.records(), &format!("{of}other"), 1).unwrap();
    other.put(put(&name(of, "other"), "x", None)).await.unwrap();
    if f.restart().await {
        let old = under(f.records(), of, 7).unwrap();
        is_deposed_throughout(&old, of, 9, &held).await;
    }
    true
}

/// Each kind of change raises the guard behind itself, and one that is refused for another reason does not.
pub(super) async fn only_a_change_that_is_made_raises_the_guard<F: Fixture>(
    f: &mut F,
    of: &str,
) -> bool {
    let r = f.records();
    let Some(late) = under(r, of, 90) else {
        return false;
    };
    let (a, b) = (&name(of, "a"), &name(of, "b"));
    let term = |term| under(r, of, term).unwrap();
    let raised = async |to: &str| {
        let guard = guard_of(r, of).await.unwrap();
        assert_eq!(guard.value, to);
        guard.revision
    };
    let wrong = Epoch(1);
    is_lost(&late.extend(extend(a, wrong, LONG_MS)).await, wrong);
    let gone = late.delete(delete(a, lockgate_core::RecordVersion(1), None));
    assert_eq!(conflict(gone.await), None);
    assert_eq!(guard_of(r, of).await, None);

    let written = term(1).put(put(a, "one", None)).await.unwrap();
    assert!(raised("1").await > written.revision);
    let leased = term(2).lease(lease(a, "me", LONG_MS)).await.unwrap();
    assert_eq!(&leased.value[..], b"one");
    assert!(raised("2").await > leased.revision);
    let held = epoch(&leased);
    term(3).extend(extend(a, held, LONG_MS)).await.unwrap();
    let third = raised("3").await;

    is_held(&late.put(put(a, "x", Some(written.version))).await, "me");
    is_held(&late.lease(lease(a, "you", LONG_MS)).await, "me");
    is_lost(&late.release(release(a, wrong)).await, wrong);
    let stale = PutRecord {
        epoch: Some(held),
        ..put(a, "x", None)
    };
    assert_eq!(conflict(late.put(stale).await), Some(written.version));
    assert_eq!(raised("3").await, third, "nothing was changed");

    term(4).release(release(a, held)).await.unwrap();
    let fourth = raised("4").await;
    let gone = term(5).delete(delete(a, written.version, None)).await;
    gone.unwrap();
    assert!(raised("5").await > fourth);
    // Of the same term it stays as it is.
    let fifth = raised("5").await;
    term(5).lease(lease(b, "me", LONG_MS)).await.unwrap();
    assert_eq!(raised("5").await, fifth);
    is_deposed(term(4).put(put(a, "late", None)).await, of, 4, 5);
    true
}

/// Epochs that a float, a signed number or a comparison of texts would confuse.
pub(super) async fn guards_compare_every_epoch<F: Fixture>(f: &mut F, of: &str) -> bool {
    let r = f.records();
    if under(r, of, 0).is_none() {
        return false;
    }
    let (a, mut version, mut before) = (&name(of, "a"), None, None);
    let large = [
        (1 << 53) - 1,
        1 << 53,
        (1 << 53) + 1,
        i64::MAX as u64,
        1 << 63,
    ];
    let rising = [0, 1, 9, 10, 99, 100].into_iter().chain(large);
    for term in rising.chain([10_000_000_000_000_000_000, u64::MAX - 1, u64::MAX]) {
        let new = under(r, of, term).unwrap();
        for value in ["first", "second"] {
            let written = new.put(put(a, value, version)).await.unwrap();
            version = Some(written.version);
        }
        if let Some(before) = before {
            let old = under(r, of, before).unwrap();
            is_deposed(old.put(put(a, "late", version)).await, of, before, term);
        }
        let guard = guard_of(r, of).await.unwrap();
        assert_eq!(guard.value, term.to_string());
        before = Some(term);
    }
    true
}

/// Nobody knows what a value has seen that is no epoch: it lets pass the last epoch there is only.
pub(super) async fn a_guard_with_a_strange_value_has_seen_every_epoch<F: Fixture>(
    f: &mut F,
    of: &str,
) -> bool {
    let r = f.records();
    let (Some(new), Some(last)) = (under(r, of, 9), under(r, of, u64::MAX)) else {
        return false;
    };
    let digits = "9".repeat(200);
    let values: [&[u8]; 15] = [
        b"",
        b"x",
        b" 8",
        b"8 ",
        b"8\n",
        b"8\0",
        b"+8",
        b"-8",
        b"08",
        b"8.0",
        b"8e0",
        b"\xff\xfe",
        b"18446744073709551616",
        b"99999999999999999999",
        digits.as_bytes(),
    ];
    let (a, mut version, mut strange) = (&name(of, "a"), None, None);
    for value in values {
        let value = bytes::Bytes::copy_from_slice(value);
        let damages = PutRecord {
            value: value.clone(),
            ..put(&guard(of), "", strange)
        };
        strange = Some(r.put(damages).await.unwrap().version);
        is_deposed(new.put(put(a, "x", version)).await, of, 9, u64::MAX);
        let passes = last.put(put(a, "last", version)).await;
        version = Some(passes.unwrap().version);
        assert_eq!(guard_of(r, of).await.unwrap().value, value);
    }
    // Whoever writes it knows what it has seen.
    r.put(put(&guard(of), "8", strange)).await.unwrap();
    new.put(put(a, "x", version)).await.unwrap();
    true
}

/// It may be watched, listed, leased and deleted; and under its own fence it may not be changed.
pub(super) async fn a_guard_is_a_record_as_any_other<F: Fixture>(f: &mut F, of: &str) -> bool {
    let r = f.records();
    let (Some(first), Some(second)) = (under(r, of, 1), under(r, of, 2)) else {
        return false;
    };
    let (a, b, guard) = (&name(of, "a"), &name(of, "b"), &guard(of));
    let (seen, written) = tokio::join!(changed(r, guard, None), first.put(put(a, "x", None)));
    written.unwrap();
    let seen = seen.unwrap();
    assert_eq!(seen.value, "1");
    let list = ListRecords {
        prefix: guard.to_string(),
        after: None,
        limit: 10,
    };
    let listed = r.list(list).await.unwrap().records;
    assert_eq!(listed, std::slice::from_ref(&seen));

    // Whoever has its lease keeps it, and finds the value raised.
    let leased = r.lease(lease(guard, "me", LONG_MS)).await.unwrap();
    let (raised, made) = tokio::join!(
        changed(r, guard, Some(&leased)),
        second.put(put(b, "x", None))
    );
    made.unwrap();
    let raised = raised.unwrap();
    assert_eq!(raised.value, "2");
    assert_eq!(raised.version.0, seen.version.0 + 1);
    assert_eq!(epoch(&raised), epoch(&leased));
    let late = first.put(put(&name(of, "c"), "late", None)).await;
    is_deposed(late, of, 1, 2);

    let own = PutRecord {
        epoch: Some(epoch(&leased)),
        ..put(guard, "7", Some(raised.version))
    };
    for fenced in [&second, &under(r, of, 3).unwrap()] {
        let (own, held) = (own.clone(), epoch(&leased));
        for refused in [
            fenced.put(own).await.map(drop),
            fenced.extend(extend(guard, held, LONG_MS)).await,
            fenced.release(release(guard, held)).await,
            fenced
                .delete(delete(guard, raised.version, Some(held)))
                .await,
            fenced.lease(lease(guard, "me", LONG_MS)).await.map(drop),
        ] {
            let invalid = matches!(refused, Err(RecordsError::Invalid { .. }));
            assert!(invalid, "{refused:?}");
        }
    }
    // One whose term is over by its own clock does not even ask.
    let over = Fence::new(election(of), Epoch(9)).with_span(Arc::new(Over));
    let over = r.fenced(&over).unwrap().put(put(a, "x", None)).await;
    assert!(
        matches!(over, Err(RecordsError::Fenced(FenceError::Over { .. }))),
        "{over:?}"
    );
    let now = guard_of(r, of).await.unwrap();
    assert_eq!((&now.value[..], now.revision), (&b"2"[..], raised.revision));

    // Whoever deletes it lets earlier terms write again.
    let gone = delete(guard, raised.version, Some(epoch(&leased)));
    r.delete(gone).await.unwrap();
    first.put(put(&name(of, "c"), "x", None)).await.unwrap();
    let again = guard_of(r, of).await.unwrap();
    assert_eq!((&again.value[..], again.lease), (&b"1"[..], None));
    assert!(again.version > raised.version);
    true
}
