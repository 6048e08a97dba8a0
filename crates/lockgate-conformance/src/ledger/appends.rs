//! What an append does, and what it refuses.

use bytes::Bytes;
use lockgate_core::{
    Epoch, UniqueId, WallTime,
    ledger::{
        Append, EVENT_BYTES_MAX, Ledger, LedgerError, LedgerHead, LedgerOptions, NewEvent,
        SequenceId,
    },
};

use super::{
    Fixture,
    cases::{
        add, append, event, from_input, head, input, is_invalid, on_day, open, payloads, places,
        plain, read, read_all, unique,
    },
};

pub(super) async fn events_are_dense_and_stay<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    let empty = LedgerHead {
        sequence_id: SequenceId(0),
        first_id: SequenceId(1),
        epoch: Epoch(0),
        time: WallTime(0),
        hash: None,
        is_sealed: false,
    };
    assert_eq!(head(&ledger).await, empty);
    assert!(read_all(&ledger, 0).await.is_empty());
    let first = add(&ledger, &["a", "b"]).await;
    assert_eq!(places(&first), [(1, false), (2, false)]);
    assert_eq!(first.head, head(&ledger).await);
    assert!(add(&ledger, &[]).await.events.is_empty());
    let bytes = Bytes::from((0..=255).collect::<Vec<u8>>());
    let any = NewEvent {
        unique_id: Some(UniqueId::new("Zoë/✓").unwrap()),
        payload: bytes.clone(),
        ..NewEvent::default()
    };
    let more = ledger.append(append(vec![event(""), any])).await.unwrap();
    assert_eq!(places(&more), [(3, false), (4, false)]);
    assert_eq!(more.head.first_id, SequenceId(1));

    let events = read_all(&ledger, 0).await;
    assert_eq!(payloads(&events[..3]), ["a", "b", ""]);
    assert_eq!(events[3].payload, bytes);
    assert_eq!(events[3].unique_id.as_ref().unwrap().as_str(), "Zoë/✓");
    assert_eq!(events[2].unique_id, None);
    assert_eq!(events[3].time, more.head.time);
    // Another process has the same.
    assert_eq!(read_all(&plain(f, name).await, 0).await, events);
    assert_eq!(read_all(&ledger, 2).await, events[2..]);
    true
}

pub(super) async fn a_refused_append_changes_nothing<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    let known = ledger.append(append(vec![from_input("i", "a")])).await;
    let before = known.unwrap().head;
    let refused = |changes: fn(&mut Append)| {
        let mut append = append(vec![unique("u", "x"), from_input("j", "y")]);
        append.settled = vec![input("i")];
        changes(&mut append);
        append
    };
    let moved = refused(|append| {
        append.epoch = Epoch(9);
        append.head = Some(SequenceId(0));
    });
    let ahead = refused(|append| append.head = Some(SequenceId(2)));
    for append in [moved, ahead] {
        let head = SequenceId(1);
        let refused = ledger.append(append).await;
        assert_eq!(refused, Err(LedgerError::Moved { head }));
    }
    let (epoch, newest) = (Epoch(0), Epoch(1));
    let deposed = refused(|append| append.epoch = Epoch(0));
    let deposed = ledger.append(deposed).await;
    assert_eq!(deposed, Err(LedgerError::Deposed { epoch, newest }));
    let large = refused(|append| append.events[1].payload = vec![0; EVENT_BYTES_MAX + 1].into());
    is_invalid(ledger.append(large).await);

    assert_eq!(head(&ledger).await, before);
    assert_eq!(read_all(&ledger, 0).await.len(), 1);
    let u = UniqueId::new("u").unwrap();
    assert_eq!(ledger.find(u).await, Ok(None));
    // No id is used up, no unique id and no input reserved, and none settled.
    let events = vec![
        unique("u", "b"),
        from_input("j", "c"),
        from_input("i", "again"),
    ];
    let next = ledger.append(append(events)).await.unwrap();
    assert_eq!(places(&next), [(2, false), (3, false), (1, true)]);
    true
}

pub(super) async fn checks_are_made_in_their_order<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    let first = append(vec![unique("u", "a")]);
    let first = Append {
        epoch: Epoch(5),
        ..first
    };
    ledger.append(first.clone()).await.unwrap();
    let known = Append {
        head: Some(SequenceId(0)),
        ..first
    };
    // Whoever is behind hears of it also where nothing would be appended.
    let moved = Err(LedgerError::Moved {
        head: SequenceId(1),
    });
    assert_eq!(ledger.append(known.clone()).await, moved);
    ledger.seal(Epoch(5)).await.unwrap();
    assert_eq!(ledger.append(known.clone()).await, moved);

    let mut wrong = known;
    wrong.events.push(event("b"));
    let sealed = LedgerError::Sealed {
        head: SequenceId(1),
    };
    assert_eq!(ledger.append(wrong.clone()).await, Err(sealed));
    wrong.epoch = Epoch(4);
    let deposed = LedgerError::Deposed {
        epoch: Epoch(4),
        newest: Epoch(5),
    };
    assert_eq!(ledger.append(wrong.clone()).await, Err(deposed));
    wrong.events[1].payload = vec![0; EVENT_BYTES_MAX + 1].into();
    is_invalid(ledger.append(wrong).await);
    true
}

pub(super) async fn an_append_has_bounds<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    let max = Append::EVENTS_MAX;
    is_invalid(ledger.append(append(vec![event("x"); max + 1])).await);
    let settled = vec![input("i"); max + 1];
    let many = Append {
        settled,
        ..append(Vec::new())
    };
    is_invalid(ledger.append(many).await);
    let large = NewEvent {
        payload: vec![7; EVENT_BYTES_MAX].into(),
        ..NewEvent::default()
    };
    let fit = Append::BYTES_MAX / EVENT_BYTES_MAX;
    let mut events = vec![large; fit];
    events.push(event("x"));
    is_invalid(ledger.append(append(events.clone())).await);
    assert_eq!(head(&ledger).await.sequence_id, SequenceId(0));

    events.truncate(fit);
    ledger.append(append(events)).await.unwrap();
    let many = append(vec![event(""); max]);
    let many = ledger.append(many).await.unwrap();
    assert_eq!(many.head.sequence_id.0, (fit + max) as u64);
    assert_eq!(many.events[max - 1].sequence_id, many.head.sequence_id);
    let page = ledger.read(read(0, 1)).await.unwrap();
    assert_eq!(page.events[0].payload, vec![7; EVENT_BYTES_MAX]);
    true
}

pub(super) async fn a_unique_id_is_remembered_for_ever<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    let longest = "x".repeat(UniqueId::MAX_LEN);
    let events = vec![
        unique("a", "1"),
        unique("b", "2"),
        unique("a", "other"),
        event("3"),
        unique(&longest, "4"),
    ];
    let first = ledger.append(append(events)).await.unwrap();
    let expected = [(1, false), (2, false), (1, true), (3, false), (4, false)];
    assert_eq!(places(&first), expected);
    let events = vec![unique("b", "other"), unique("c", "5"), unique(&longest, "")];
    let again = ledger.append(append(events)).await.unwrap();
    assert_eq!(places(&again), [(2, true), (5, false), (4, true)]);
    let only = append(vec![unique("b", "x"), unique("b", "y")]);
    let only = ledger.append(only).await.unwrap();
    assert_eq!(places(&only), [(2, true), (2, true)]);
    assert_eq!(only.head, again.head, "nothing was appended");
    let all = read_all(&ledger, 0).await;
    assert_eq!(payloads(&all), ["1", "2", "3", "4", "5"]);
    // Cases are told apart, and so are ids of which one begins with the other.
    for (id, place) in [("a", Some(1)), ("c", Some(5)), ("A", None), ("aa", None)] {
        let found = ledger.find(UniqueId::new(id).unwrap()).await;
        assert_eq!(found, Ok(place.map(SequenceId)), "{id}");
    }
    let events = vec![unique("A", "6"), unique("a ", "7"), unique("á", "8")];
    let near = ledger.append(append(events)).await.unwrap();
    assert_eq!(places(&near), [(6, false), (7, false), (8, false)]);
    true
}

pub(super) async fn an_input_is_remembered_until_it_is_settled<F: Fixture>(
    f: &mut F,
    name: &str,
) -> bool {
    let ledger = plain(f, name).await;
    let events = vec![
        from_input("q/1", "1"),
        from_input("q/2", "2"),
        from_input("q/1", "other"),
    ];
    let first = ledger.append(append(events)).await.unwrap();
    assert_eq!(places(&first), [(1, false), (2, false), (1, true)]);

    // What is settled in the same append is known there still. One that nobody knows is passed over.
    let settled = vec![input("q/1"), input("q/9"), input("q/3")];
    let events = vec![from_input("q/1", "again"), from_input("q/3", "3")];
    let settles = Append {
        settled,
        ..append(events)
    };
    let settles = ledger.append(settles).await.unwrap();
    assert_eq!(places(&settles), [(1, true), (3, false)]);
    let events = vec![
        from_input("q/1", "4"),
        from_input("q/2", "known"),
        from_input("q/3", "5"),
        from_input("Q/2", "6"),
    ];
    let later = ledger.append(append(events)).await.unwrap();
    assert_eq!(
        places(&later),
        [(4, false), (2, true), (5, false), (6, false)]
    );

    // A unique id counts before an input, and one that only its input made known is not remembered.
    let both = |id, of| NewEvent {
        input: Some(input(of)),
        ..unique(id, "7")
    };
    let events = vec![both("u", "q/7"), both("u", "q/2"), both("v", "q/2")];
    let both = ledger.append(append(events)).await.unwrap();
    assert_eq!(places(&both), [(7, false), (7, true), (2, true)]);
    let v = UniqueId::new("v").unwrap();
    assert_eq!(ledger.find(v).await, Ok(None));
    true
}

pub(super) async fn epochs_never_fall<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    let of = |epoch, events| Append {
        epoch: Epoch(epoch),
        ..append(events)
    };
    ledger.append(of(3, vec![event("a")])).await.unwrap();
    ledger.append(of(3, vec![event("b")])).await.unwrap();
    // Nothing but the epoch: whoever led before is over.
    let raised = ledger.append(of(1 << 40, Vec::new())).await.unwrap();
    assert_eq!(raised.head.epoch, Epoch(1 << 40));
    assert_eq!(head(&ledger).await, raised.head);
    let deposed = LedgerError::Deposed {
        epoch: Epoch(3),
        newest: Epoch(1 << 40),
    };
    for events in [vec![event("x")], Vec::new()] {
        let late = ledger.append(of(3, events)).await;
        assert_eq!(late, Err(deposed.clone()));
    }
    assert_eq!(ledger.seal(Epoch(3)).await, Err(deposed));
    ledger.append(of(1 << 40, vec![event("c")])).await.unwrap();
    let known = Append {
        epoch: Epoch((1 << 40) + 1),
        ..append(vec![unique("u", "d")])
    };
    ledger.append(known.clone()).await.unwrap();
    // An append of duplicates raises it too.
    let known = Append {
        epoch: Epoch(1 << 50),
        ..known
    };
    let raised = ledger.append(known).await.unwrap();
    assert_eq!(raised.head.epoch, Epoch(1 << 50));
    let epochs = read_all(&ledger, 0).await.into_iter();
    let epochs: Vec<_> = epochs.map(|event| event.epoch.0).collect();
    assert_eq!(epochs, [3, 3, 1 << 40, (1 << 40) + 1]);
    true
}

pub(super) async fn time_never_goes_back<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = plain(f, name).await;
    let mut last = WallTime(0);
    for hours in [5, 9, 2, 10] {
        let wall = on_day(hours);
        if !f.set_clock(wall) {
            return false;
        }
        let head = add(&ledger, &["x"]).await.head;
        if wall < last {
            assert_eq!(head.time, last, "the clock has gone back");
        } else {
            // A server's clock has gone on meanwhile.
            assert!(
                (wall..on_day(hours + 1)).contains(&head.time),
                "{:?}",
                head.time
            );
        }
        last = head.time;
    }
    let mut times = Vec::new();
    for event in read_all(&ledger, 0).await {
        times.push(event.time);
    }
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!((times.len(), times[1]), (4, times[2]));
    true
}

pub(super) async fn a_sealed_ledger_takes_nothing_new<F: Fixture>(f: &mut F, name: &str) -> bool {
    let ledger = open(f, name, LedgerOptions::default()).await;
    let events = vec![unique("u", "a"), from_input("i", "b")];
    let known = append(events);
    ledger.append(known.clone()).await.unwrap();
    let sealed = ledger.seal(Epoch(4)).await.unwrap();
    assert_eq!(
        (sealed.is_sealed, sealed.epoch, sealed.sequence_id),
        (true, Epoch(4), SequenceId(2))
    );
    assert_eq!(head(&ledger).await, sealed);
    assert_eq!(ledger.seal(Epoch(7)).await, Ok(sealed), "nothing changes");
    let in_term = |append| Append {
        epoch: Epoch(4),
        ..append
    };
    let refused = in_term(append(vec![unique("u", "a"), event("c")]));
    let error = LedgerError::Sealed {
        head: SequenceId(2),
    };
    assert_eq!(ledger.append(refused).await, Err(error));
    // Whoever has lost an answer hears where its events are, and inputs are settled.
    let again = ledger.append(in_term(known)).await.unwrap();
    assert_eq!(places(&again), [(1, true), (2, true)]);
    let settles = Append {
        settled: vec![input("i")],
        ..append(Vec::new())
    };
    ledger.append(in_term(settles)).await.unwrap();
    assert_eq!(read_all(&ledger, 0).await.len(), 2);
    true
}
