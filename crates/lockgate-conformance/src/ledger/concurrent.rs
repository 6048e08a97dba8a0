//! What holds while many write and read.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockgate_core::{
    Epoch,
    ledger::{Append, Chain, Event, Ledger, LedgerError, LedgerOptions, ReadLedger, SequenceId},
};
use tokio::task::{JoinSet, yield_now};

use super::{
    Fixture,
    cases::{append, event, head, open, payloads, plain, read, read_all, unique},
};

const WRITERS: usize = 4;
const APPENDS: usize = 25;

/// Compare-and-swap: each writer names the head that it has seen, and tries again where another one was first.
pub(super) async fn one_of_many_writers_appends_each_event<F: Fixture>(
    f: &mut F,
    name: &str,
) -> bool {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let ledger = plain(f, name).await;
        writers.spawn(async move {
            let mut places = BTreeMap::new();
            let mut seen = head(&ledger).await.sequence_id;
            for number in 0..APPENDS {
                let payloads = [
                    format!("{writer}-{number}-a"),
                    format!("{writer}-{number}-b"),
                ];
                loop {
                    let events = payloads.iter().map(|payload| event(payload)).collect();
                    let append = Append {
                        head: Some(seen),
                        ..append(events)
                    };
                    match ledger.append(append).await {
                        Ok(appended) => {
                            let first = appended.events[0].sequence_id;
                            assert_eq!(first, seen.next(), "directly behind what it has named");
                            assert_eq!(appended.head.sequence_id, first.next());
                            places.insert(first.0, payloads[0].clone());
                            places.insert(first.0 + 1, payloads[1].clone());
                            seen = appended.head.sequence_id;
                            break;
                        }
                        Err(LedgerError::Moved { head }) => {
                            assert!(head > seen, "heads rise");
                            seen = head;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                yield_now().await;
            }
            places
        });
    }
    let mut places = BTreeMap::new();
    while let Some(written) = writers.join_next().await {
        places.extend(written.unwrap());
    }
    let ledger = plain(f, name).await;
    let events = read_all(&ledger, 0).await;
    assert_eq!(events.len(), 2 * WRITERS * APPENDS);
    let written: Vec<_> = places.values().map(String::as_str).collect();
    assert_eq!(
        payloads(&events),
        written,
        "each is where its writer was told"
    );
    true
}

/// Who repeats an append whose answer was lost does so while the first one may be under way still.
pub(super) async fn what_many_send_is_appended_once<F: Fixture>(f: &mut F, name: &str) -> bool {
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let ledger = plain(f, name).await;
        writers.spawn(async move {
            let mut places = Vec::new();
            for number in 0..APPENDS {
                let events = [2 * number, 2 * number + 1];
                let events = events.map(|id| unique(&id.to_string(), &id.to_string()));
                let appended = ledger.append(append(events.into())).await.unwrap();
                let of = appended.events.iter().map(|event| event.sequence_id);
                places.extend(of);
                yield_now().await;
            }
            places
        });
    }
    let ledger = plain(f, name).await;
    let mut all = Vec::new();
    while let Some(places) = writers.join_next().await {
        all.push(places.unwrap());
    }
    let events = read_all(&ledger, 0).await;
    assert_eq!(events.len(), 2 * APPENDS);
    for places in all {
        for (id, place) in places.into_iter().enumerate() {
            let at = usize::try_from(place.0 - 1).unwrap();
            assert_eq!(events[at].payload, id.to_string());
        }
    }
    true
}

/// What a reader has seen stays, and nothing comes late below a head that somebody has read.
pub(super) async fn readers_never_see_behind_the_head<F: Fixture>(f: &mut F, name: &str) -> bool {
    let options = LedgerOptions {
        hashed: plain(f, &format!("{name}-plain"))
            .await
            .capabilities()
            .hashes,
        ..LedgerOptions::default()
    };
    let total = (WRITERS * APPENDS) as u64;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let ledger = open(f, name, options).await;
        writers.spawn(async move {
            for number in 0..APPENDS {
                let event = event(&format!("{writer}-{number}"));
                ledger.append(append(vec![event])).await.unwrap();
                yield_now().await;
            }
        });
    }
    let mut readers = JoinSet::new();
    for _ in 0..2 {
        let ledger = Arc::new(open(f, name, options).await);
        readers.spawn(follows(ledger, total));
    }
    while let Some(written) = writers.join_next().await {
        written.unwrap();
    }
    let ledger = open(f, name, options).await;
    let expected = read_all(&ledger, 0).await;
    assert_eq!(expected.len() as u64, total);
    while let Some(events) = readers.join_next().await {
        assert_eq!(events.unwrap(), expected);
    }
    true
}

async fn follows<L: Ledger>(ledger: Arc<L>, total: u64) -> Vec<Event> {
    let mut chain = Chain::START;
    let mut events = Vec::new();
    let mut newest = (SequenceId(0), Epoch(0));
    while chain.sequence_id.0 < total {
        let before = head(&*ledger).await;
        let at = chain.sequence_id.0;
        let page = ledger
            .read(ReadLedger {
                wait: Duration::from_secs(60),
                ..read(at, 7)
            })
            .await
            .unwrap();
        for event in page.events {
            chain.follow(&event).unwrap();
            events.push(event);
        }
        chain.agrees_with(&page.head).unwrap();
        for head in [before, page.head] {
            let seen = (head.sequence_id, head.epoch);
            assert!(seen >= newest, "{seen:?} after {newest:?}");
            newest = seen;
        }
        // All that a head says is there can be read.
        if let Some(missing) = before.sequence_id.0.checked_sub(at).filter(|it| *it > 0) {
            let all = ledger.read(read(at, ReadLedger::LIMIT_MAX)).await.unwrap();
            assert!(all.events.len() as u64 >= missing);
        }
    }
    events
}
