//! What ledgers in databases do beyond the cases: each function has a ledger, or a database, to itself.

use std::time::Duration;

use lockgate_core::{
    Epoch, ReaderName, UniqueId,
    ledger::{Append, Chain, Ledger, LedgerError, ReadLedger, ReaderPosition, SequenceId},
};

use super::cases::{append, event, unique};
use crate::servers::{Proxy, To};

/// Up to a thousand events from the start on.
#[must_use]
pub fn all() -> ReadLedger {
    ReadLedger {
        after: SequenceId::START,
        limit: 1_000,
        wait: Duration::ZERO,
    }
}

/// In the first term, wherever the head is, events with these unique ids, which are their payloads too.
///
/// # Panics
/// If one is no unique id.
#[must_use]
pub fn append_unique(unique_ids: &[&str]) -> Append {
    append(unique_ids.iter().map(|id| unique(id, id)).collect())
}

/// In the first term, so many events without a payload.
#[must_use]
pub fn many(events: usize) -> Append {
    append(vec![event(""); events])
}

/// Each event that is kept follows the one before it, up to the head.
///
/// # Panics
/// If one does not.
pub async fn follows<L: Ledger>(ledger: &L) {
    let head = ledger.head().await.unwrap();
    let mut chain = Chain::behind(head.first_id.previous());
    while chain.sequence_id < head.sequence_id {
        let read = ReadLedger {
            after: chain.sequence_id,
            limit: ReadLedger::LIMIT_MAX,
            wait: Duration::ZERO,
        };
        let page = ledger.read(read).await.unwrap();
        assert!(!page.events.is_empty(), "behind {}", chain.sequence_id);
        for event in &page.events {
            chain.follow(event).unwrap();
        }
    }
    chain.agrees_with(&head).unwrap();
}

/// Partitions of a new ledger, which has hashes and 10,000 events in each, are made before they are needed, and a trim drops
/// whole ones. `numbers` are those of the partitions, from 0. At the end the head is at 30,001, and there are 2 and 3.
///
/// # Panics
/// If that does not hold.
pub async fn partitions_come_and_go<L: Ledger>(ledger: &L, numbers: impl AsyncFn() -> Vec<u64>) {
    assert_eq!(numbers().await, [0]);
    for number in 1..=3 {
        let appended = ledger.append(many(10_000)).await.unwrap();
        assert_eq!(appended.head.sequence_id, SequenceId(number * 10_000));
        let expected: Vec<_> = (0..=number).collect();
        assert_eq!(numbers().await, expected, "the next one is made ahead");
    }
    let known = ledger.append(append_unique(&["known"])).await.unwrap();
    assert_eq!(known.head.sequence_id, SequenceId(30_001));
    follows(ledger).await;
    let between = ReadLedger {
        after: SequenceId(9_998),
        limit: 4,
        wait: Duration::ZERO,
    };
    let page = ledger.read(between).await.unwrap();
    let ids: Vec<_> = page.events.iter().map(|it| it.sequence_id.0).collect();
    assert_eq!(ids, [9_999, 10_000, 10_001, 10_002]);

    // All of the first two, but not of the third.
    let trimmed = ledger.trim(SequenceId(20_005)).await.unwrap();
    assert_eq!(trimmed.first_id, SequenceId(20_005));
    assert_eq!(numbers().await, [2, 3]);
    follows(ledger).await;
    let again = ledger.append(append_unique(&["known"])).await.unwrap();
    assert!(again.events[0].is_duplicate);
}

/// Partitions go when all of their events are older than the retention. The ledger has 10,000 events in each, and keeps events for
/// 1 ms. `numbers` are those of the partitions, from 0.
///
/// # Panics
/// If that does not hold.
pub async fn partitions_go_when_they_are_old<L: Ledger>(
    ledger: &L,
    numbers: impl AsyncFn() -> Vec<u64>,
) {
    let mut head = ledger.append(many(10_000)).await.unwrap().head;
    for number in 0..u64::MAX {
        if head.first_id > SequenceId(10_000) {
            break;
        }
        let id = number.to_string();
        head = ledger.append(append_unique(&[&id])).await.unwrap().head;
    }
    // Of whatever the last append has let go of.
    while numbers().await[0] == 0 {
        ledger.append(append_unique(&["last"])).await.unwrap();
    }
    assert_eq!(numbers().await, [1]);
    let gone = ledger.read(all()).await.unwrap_err();
    assert!(matches!(gone, LedgerError::Trimmed { .. }), "{gone}");
    follows(ledger).await;
}

/// Events that are older than the retention go with later appends, and their unique ids stay. The ledger is made with hashes and
/// a retention of 1 ms.
///
/// # Panics
/// If that does not hold.
pub async fn events_go_when_they_are_old<L: Ledger>(ledger: &L) {
    let mut appended = ledger.append(append_unique(&["first"])).await.unwrap();
    for number in 0..u64::MAX {
        if appended.head.first_id > SequenceId(1) {
            break;
        }
        let id = number.to_string();
        appended = ledger.append(append_unique(&[&id])).await.unwrap();
    }
    let first = UniqueId::new("first").unwrap();
    assert_eq!(ledger.find(first).await, Ok(Some(SequenceId(1))));
    let error = ledger.read(all()).await.unwrap_err();
    assert!(matches!(error, LedgerError::Trimmed { .. }), "{error}");
    let kept = ReadLedger {
        after: appended.head.first_id.previous(),
        ..all()
    };
    let page = ledger.read(kept).await.unwrap();
    let last = page.events.last();
    assert_eq!(
        last.map(|event| (event.sequence_id, event.hash)),
        Some((page.head.sequence_id, page.head.hash))
    );
}

/// What is more than the database counts to is refused, or is for ever; it is not taken for something else. The ledger is made
/// with the longest retention.
///
/// # Panics
/// If that does not hold.
pub async fn the_largest_numbers_are_refused_or_for_ever<L: Ledger>(ledger: &L) {
    for id in ["a", "b"] {
        ledger.append(append_unique(&[id])).await.unwrap();
    }
    assert_eq!(ledger.read(all()).await.unwrap().events.len(), 2);
    let last = SequenceId(u64::MAX);
    let position = ReaderPosition {
        reader: ReaderName::new("r").unwrap(),
        sequence_id: last,
    };
    let beyond = |error| matches!(error, Err(LedgerError::Beyond { .. }));
    assert!(beyond(ledger.move_reader(position, None).await));
    assert!(beyond(ledger.trim(last).await.map(drop)));
    let after = ReadLedger {
        after: last,
        ..all()
    };
    assert!(beyond(ledger.read(after).await.map(drop)));
    let invalid = |error| matches!(error, Err(LedgerError::Invalid { .. }));
    let epoch = Epoch(u64::MAX);
    let late = Append {
        epoch,
        ..append_unique(&["c"])
    };
    assert!(invalid(ledger.append(late).await.map(drop)));
    assert!(invalid(ledger.seal(epoch).await.map(drop)));
    assert_eq!(ledger.readers().await, Ok(Vec::new()));
}

/// A server that is frozen is not waited for, and nothing of the append is there twice. The ledger's commands take up to two
/// seconds; `signal` sends one to all processes of its server.
///
/// # Panics
/// If that does not hold.
pub async fn an_append_to_a_frozen_server_is_given_up<L: Ledger>(
    ledger: &L,
    signal: impl Fn(&str),
) {
    ledger.append(append_unique(&["a"])).await.unwrap();
    signal("-STOP");
    let error = ledger.append(append_unique(&["b"])).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    let error = ledger.read(all()).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    signal("-CONT");
    while let Err(error) = ledger.append(append_unique(&["b"])).await {
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    }
    while let Err(error) = ledger.head().await {
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    }
    assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId(2));
}

/// A writer whose connection is cut in any place of an append asks again, and its events are there once. What is told to have
/// not happened has not.
///
/// # Panics
/// If that does not hold.
pub async fn what_is_appended_through_cuts_is_there_once<L: Ledger>(
    url: &str,
    connect: impl AsyncFn(&str) -> L,
) {
    const CUTS: i64 = 50;
    let proxy = Proxy::start(url);
    let (ledger, beside) = (connect(&proxy.url).await, connect(url).await);
    ledger.append(append_unique(&["first"])).await.unwrap();
    proxy.heal();
    ledger.append(append_unique(&["02"])).await.unwrap();
    let lengths = [To::Server, To::Client].map(|to| (to, proxy.passed(to)));
    let mut ids = vec!["first".to_owned(), "02".to_owned()];
    let (mut unknown, mut unavailable) = (0, 0);
    for number in 0..CUTS {
        for (to, length) in lengths {
            // Everywhere, and at each of the last bytes.
            let id = format!("{number:02}-{to:?}");
            let spread = CUTS - 12;
            proxy.cut_after(
                to,
                match number < spread {
                    true => length * number / spread,
                    false => length + 6 - (number - spread),
                },
            );
            let mut is_in_doubt = false;
            loop {
                match ledger.append(append_unique(&[&id])).await {
                    Ok(_) => break,
                    Err(LedgerError::Unknown { .. }) => {
                        is_in_doubt = true;
                        unknown += 1;
                    }
                    Err(LedgerError::Unavailable { .. }) => {
                        unavailable += 1;
                        let found = beside.find(UniqueId::new(&id).unwrap()).await;
                        // One that was in doubt may have come through.
                        assert!(found == Ok(None) || is_in_doubt, "{id}: {found:?}");
                    }
                    Err(other) => panic!("{other}"),
                }
                proxy.heal();
            }
            ids.push(id);
        }
    }
    proxy.heal();
    println!("cut off: {unknown} in doubt, {unavailable} not done");
    assert!(unknown > 0 && unavailable > 0, "{unknown} {unavailable}");
    let page = beside.read(all()).await.unwrap();
    let payloads: Vec<_> = page.events.iter().map(|it| it.payload.clone()).collect();
    assert_eq!(payloads, ids);
}

/// Of a user who may read the head of a ledger with an event, and nothing else, everything else is denied.
///
/// # Panics
/// If it is not.
pub async fn is_denied<L: Ledger>(ledger: &L) {
    let denied =
        |error: LedgerError| assert!(matches!(error, LedgerError::Denied { .. }), "{error:?}");
    denied(ledger.read(all()).await.unwrap_err());
    let unique_id = UniqueId::new("a").unwrap();
    denied(ledger.find(unique_id).await.unwrap_err());
    denied(ledger.readers().await.unwrap_err());
    let position = ReaderPosition {
        reader: ReaderName::new("r").unwrap(),
        sequence_id: SequenceId(1),
    };
    denied(ledger.move_reader(position, None).await.unwrap_err());
    denied(ledger.append(append_unique(&["b"])).await.unwrap_err());
}
