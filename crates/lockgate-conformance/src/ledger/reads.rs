//! What readers see, and what is kept for them.

use std::time::Duration;

use lockgate_core::{
    Epoch, ReaderName, UniqueId,
    ledger::{
        Append, EVENT_BYTES_MAX, Ledger, LedgerError, LedgerOptions, LedgerPage, NewEvent,
        ReadLedger, ReaderPosition, SequenceId,
    },
};

use super::{
    Fixture,
    cases::{
        HOUR, add, append, event, from_input, hashes, head, is_invalid, on_day, open, payloads,
        places, plain, read, read_all, unique,
    },
};

pub(super) async fn a_running_hash_is_over_the_payloads<F: Fixture>(f: &mut F, name: &str) -> bool {
    let plain = plain(f, name).await;
    if !plain.capabilities().hashes {
        return false;
    }
    let unhashed = add(&plain, &["a"]).await.head;
    assert_eq!(
        (unhashed.hash, read_all(&plain, 0).await[0].hash),
        (None, None)
    );

    let options = LedgerOptions {
        hashed: true,
        ..LedgerOptions::default()
    };
    let ledger = open(f, &format!("{name}-hashed"), options).await;
    let start = lockgate_core::ledger::EventHash::START;
    assert_eq!(head(&ledger).await.hash, Some(start));
    add(&ledger, &["a", ""]).await;
    let last = ledger.append(append(vec![unique("u", "b"), unique("u", "c")]));
    let last = last.await.unwrap();
    let expected = hashes(&["a", "", "b"]);
    assert_eq!(last.head.hash, Some(expected[2]));
    let events = read_all(&ledger, 0).await.into_iter();
    let found: Vec<_> = events.map(|event| event.hash.unwrap()).collect();
    assert_eq!(found, expected);
    true
}

pub(super) async fn a_page_has_bounds<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    add(&ledger, &["a", "b", "c"]).await;
    for limit in [0, ReadLedger::LIMIT_MAX + 1] {
        is_invalid(ledger.read(read(0, limit)).await);
    }
    let long = ReadLedger {
        wait: ReadLedger::WAIT_MAX + Duration::from_millis(1),
        ..read(0, 1)
    };
    is_invalid(ledger.read(long).await);
    let beyond = LedgerError::Beyond {
        sequence_id: SequenceId(4),
        head: SequenceId(3),
    };
    assert_eq!(ledger.read(read(4, 1)).await, Err(beyond));

    let page = ledger.read(read(1, 1)).await.unwrap();
    assert_eq!(payloads(&page.events), ["b"]);
    assert_eq!(page.head, head(&ledger).await);
    let most = ledger.read(read(0, ReadLedger::LIMIT_MAX)).await.unwrap();
    assert_eq!(payloads(&most.events), ["a", "b", "c"]);
    let at_the_end = ledger.read(read(3, 9)).await.unwrap();
    let (events, head) = (Vec::new(), head(&ledger).await);
    assert_eq!(at_the_end, LedgerPage { events, head });
    // Of an empty one too.
    let empty = plain(f, &format!("{name}-empty")).await;
    assert_eq!(empty.read(read(0, 1)).await.unwrap().events, []);

    let large = NewEvent {
        payload: vec![7; EVENT_BYTES_MAX].into(),
        ..NewEvent::default()
    };
    let per_page = ReadLedger::BYTES_MAX / EVENT_BYTES_MAX;
    let events = vec![large; per_page + 1];
    ledger.append(append(events)).await.unwrap();
    let page = ledger.read(read(3, 1_000)).await.unwrap();
    assert_eq!(page.events.len(), per_page);
    // The one that takes it to the bound is its last, however large it is.
    let page = ledger.read(read(2, 1_000)).await.unwrap();
    assert_eq!(page.events.len(), per_page + 1);
    true
}

/// A wait that must end before [`SHORT`] does.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(20);

/// Answers of reads that are woken, and did not wait until their end.
async fn woken<L: Ledger>(ledger: &L, after: u64, waits: &L) -> LedgerPage {
    let read = |after, wait| ReadLedger {
        wait,
        ..read(after, 10)
    };
    // Nothing comes to the other one, so its answer comes after a wait that is shorter.
    tokio::select! {
        biased;
        page = ledger.read(read(after, LONG)) => page.unwrap(),
        page = waits.read(read(0, SHORT)) => panic!("nobody has woken it: {page:?}"),
    }
}

pub(super) async fn an_append_wakes_whoever_waits<F: Fixture>(f: &mut F, name: &str) -> bool {
    let (ledger, again) = (plain(f, name).await, plain(f, name).await);
    let waits = plain(f, &format!("{name}-empty")).await;
    add(&ledger, &["a"]).await;
    let (one, two, appended) = tokio::join!(
        woken(&ledger, 1, &waits),
        woken(&again, 1, &waits),
        add(&ledger, &["b"])
    );
    for page in [&one, &two] {
        assert_eq!(payloads(&page.events), ["b"]);
        assert_eq!(page.head, appended.head);
    }
    // What is there is not waited for, and a read that comes late has missed nothing.
    assert_eq!(woken(&ledger, 0, &waits).await.events.len(), 2);
    let (page, _) = tokio::join!(woken(&ledger, 2, &waits), add(&again, &["c", "d"]));
    assert_eq!(payloads(&page.events)[0], "c");
    let over = ReadLedger {
        wait: Duration::from_millis(1),
        ..read(4, 1)
    };
    assert_eq!(ledger.read(over).await.unwrap().events, []);
    true
}

pub(super) async fn a_seal_wakes_whoever_waits<F: Fixture>(f: &mut F, name: &str) -> bool {
    let (ledger, again) = (plain(f, name).await, plain(f, name).await);
    let waits = plain(f, &format!("{name}-empty")).await;
    add(&ledger, &["a"]).await;
    let (page, sealed) = tokio::join!(woken(&ledger, 1, &waits), again.seal(Epoch(1)));
    assert_eq!((page.events, page.head), (Vec::new(), sealed.unwrap()));
    assert!(woken(&ledger, 1, &waits).await.head.is_sealed);
    true
}

fn reader(name: &str) -> ReaderName {
    ReaderName::new(name).unwrap()
}

fn at(name: &str, sequence_id: u64) -> ReaderPosition {
    ReaderPosition {
        reader: reader(name),
        sequence_id: SequenceId(sequence_id),
    }
}

pub(super) async fn places_of_readers_are_kept<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    assert_eq!(ledger.readers().await, Ok(Vec::new()));
    add(&ledger, &["a", "b", "c"]).await;
    for (name, place) in [("b", 0), ("a/ß ✓", 3), ("B", 1), ("b", 2)] {
        ledger.move_reader(at(name, place), None).await.unwrap();
    }
    let beyond = LedgerError::Beyond {
        sequence_id: SequenceId(4),
        head: SequenceId(3),
    };
    for name in ["b", "new"] {
        let moved = ledger.move_reader(at(name, 4), None).await;
        assert_eq!(moved, Err(beyond.clone()));
    }
    let all = [at("B", 1), at("a/ß ✓", 3), at("b", 2)];
    assert_eq!(ledger.readers().await.unwrap(), all);
    ledger.move_reader(at("a/ß ✓", 1), None).await.unwrap();
    assert_eq!(ledger.forget_reader(reader("B")).await, Ok(true));
    assert_eq!(ledger.forget_reader(reader("B")).await, Ok(false));
    let again = plain(f, name).await;
    let all = [at("a/ß ✓", 1), at("b", 2)];
    assert_eq!(again.readers().await.unwrap(), all);
    // A reader holds nothing back, and may be at an event that is gone.
    ledger.trim(SequenceId(4)).await.unwrap();
    ledger.move_reader(at("c", 1), None).await.unwrap();
    assert_eq!(ledger.readers().await.unwrap().len(), 3);
    true
}

/// Of two that move one reader, none undoes what it has not seen.
pub(super) async fn a_reader_moves_only_from_where_it_is_expected<F: Fixture>(
    f: &mut F,
    name: &str,
) -> bool {
    let (ledger, again) = (plain(f, name).await, plain(f, name).await);
    add(&ledger, &["a", "b", "c", "d"]).await;
    let moved = |now| {
        Err(LedgerError::ReaderMoved {
            sequence_id: SequenceId(now),
        })
    };
    // From, to, and what becomes of it. One that is not known is at 0.
    let steps = [
        (1, 2, moved(0)),
        (0, 0, Ok(())),
        (0, 0, Ok(())),
        (0, 3, Ok(())),
        (0, 1, moved(3)),
        (0, 3, moved(3)),
        (2, 4, moved(3)),
        (3, 3, Ok(())),
        (3, 2, Ok(())),
        (2, 4, Ok(())),
    ];
    for (from, to, result) in steps {
        let from = Some(SequenceId(from));
        let step = again.move_reader(at("r", to), from).await;
        assert_eq!(step, result, "from {from:?} to {to}");
    }
    let beyond = ledger.move_reader(at("r", 5), Some(SequenceId(1))).await;
    assert!(matches!(beyond, Err(LedgerError::Beyond { .. })));
    assert_eq!(ledger.readers().await.unwrap(), [at("r", 4)]);
    let ledgers = [&ledger, &again];
    for round in 0..20 {
        // Both have seen the same, and one of them moves it.
        let (from, to) = (Some(SequenceId(4 - round % 2)), 4 - (round + 1) % 2);
        let [one, other] = ledgers.map(|ledger| ledger.move_reader(at("r", to), from));
        let (one, other) = tokio::join!(one, other);
        assert_eq!(
            one.is_ok() as u8 + other.is_ok() as u8,
            1,
            "{one:?} {other:?}"
        );
    }
    true
}

pub(super) async fn trimmed_events_are_gone_and_their_ids_are_not<F: Fixture>(
    f: &mut F,
    name: &str,
) -> bool {
    let ledger = plain(f, name).await;
    let events = vec![
        unique("u", "a"),
        from_input("i", "b"),
        event("c"),
        event("d"),
    ];
    ledger.append(append(events)).await.unwrap();
    let beyond = ledger.trim(SequenceId(6)).await;
    assert!(
        matches!(
            beyond,
            Err(LedgerError::Beyond {
                head: SequenceId(4),
                ..
            })
        ),
        "{beyond:?}"
    );
    let trimmed = ledger.trim(SequenceId(3)).await.unwrap();
    assert_eq!(
        (trimmed.first_id, trimmed.sequence_id),
        (SequenceId(3), SequenceId(4))
    );
    for lower in [0, 1, 3] {
        assert_eq!(ledger.trim(SequenceId(lower)).await, Ok(trimmed));
    }
    assert_eq!(head(&ledger).await, trimmed);
    let gone = LedgerError::Trimmed {
        after: SequenceId(1),
        first: SequenceId(3),
    };
    assert_eq!(ledger.read(read(1, 1)).await, Err(gone));
    assert_eq!(payloads(&read_all(&ledger, 2).await), ["c", "d"]);
    let u = UniqueId::new("u").unwrap();
    assert_eq!(ledger.find(u).await, Ok(Some(SequenceId(1))));
    let events = vec![unique("u", "x"), from_input("i", "y"), event("e")];
    let next = ledger.append(append(events)).await.unwrap();
    assert_eq!(places(&next), [(1, true), (2, true), (5, false)]);
    // All of it.
    let trimmed = ledger.trim(SequenceId(6)).await.unwrap();
    assert_eq!(
        (trimmed.first_id, trimmed.sequence_id),
        (SequenceId(6), SequenceId(5))
    );
    assert_eq!(ledger.read(read(5, 1)).await.unwrap().events, []);
    let later = add(&ledger, &["f"]).await;
    assert_eq!(places(&later), [(6, false)]);
    assert_eq!(later.head.first_id, SequenceId(6));
    assert_eq!(payloads(&read_all(&ledger, 5).await), ["f"]);
    true
}

pub(super) async fn events_are_kept_for_the_retention<F: Fixture>(f: &mut F, name: &str) -> bool {
    let options = LedgerOptions {
        retention: Some(10 * HOUR),
        ..LedgerOptions::default()
    };
    let ledger = open(f, name, options).await;
    for hours in [1, 2, 10] {
        if !f.set_clock(on_day(hours)) {
            return false;
        }
        let event = unique(&hours.to_string(), "x");
        ledger.append(append(vec![event])).await.unwrap();
    }
    assert_eq!(read_all(&ledger, 0).await.len(), 3, "none is older");
    f.set_clock(on_day(13));
    add(&ledger, &["x"]).await;
    // They may be kept for longer, but what is kept is without a gap.
    let first = head(&ledger).await.first_id;
    assert!(first <= SequenceId(3), "{first} is not that old");
    let kept = read_all(&ledger, first.previous().0).await;
    assert_eq!(kept.len() as u64, 4 - first.previous().0);
    let known = ledger.append(append(vec![unique("1", "y")])).await;
    assert_eq!(places(&known.unwrap()), [(1, true)]);
    true
}

pub(super) async fn what_was_answered_survives_a_restart<F: Fixture>(
    f: &mut F,
    name: &str,
) -> bool {
    let ledger = plain(f, name).await;
    if !ledger.capabilities().lasts {
        return false;
    }
    let hashed = LedgerOptions {
        hashed: ledger.capabilities().hashes,
        ..LedgerOptions::default()
    };
    let name = format!("{name}-hashed");
    let ledger = open(f, &name, hashed).await;
    let events = vec![unique("u", "a"), from_input("i", "b"), event("c")];
    ledger.append(append(events)).await.unwrap();
    ledger.move_reader(at("r", 2), None).await.unwrap();
    let raises = Append {
        epoch: Epoch(8),
        ..append(Vec::new())
    };
    ledger.append(raises).await.unwrap();
    let before = ledger.trim(SequenceId(2)).await.unwrap();
    let events = read_all(&ledger, 1).await;
    drop(ledger);
    if !f.restart().await {
        return false;
    }
    let ledger = open(f, &name, hashed).await;
    assert_eq!(head(&ledger).await, before);
    assert_eq!(read_all(&ledger, 1).await, events);
    assert_eq!(ledger.readers().await.unwrap(), [at("r", 2)]);
    let late = ledger.append(append(vec![event("x")])).await;
    assert!(matches!(late, Err(LedgerError::Deposed { .. })), "{late:?}");
    let again = Append {
        epoch: Epoch(8),
        ..append(vec![unique("u", "x"), from_input("i", "y"), event("d")])
    };
    let again = ledger.append(again).await.unwrap();
    assert_eq!(places(&again), [(1, true), (2, true), (4, false)]);
    read_all(&ledger, 1).await;
    true
}
