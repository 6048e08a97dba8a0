//! Elections over a store whose answers are lost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockgate_conformance::records::Lossy;
use lockgate_consumer::MemoryRecords;
use lockgate_coordination::{
    Campaign, CoordinationError, Coordinator, EndReason, Guard, RecordsCoordinator, Tenure,
};
use lockgate_core::{ElectionName, HolderName, ManualClock, PutRecord, RecordName, Records};

type Store = Lossy<MemoryRecords>;

fn over(clock: &ManualClock, lose: fn(u64) -> Option<bool>) -> Store {
    let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
    Lossy::new(records, lose).losing_releases()
}

fn campaign(candidate: &str) -> Campaign {
    Campaign::new(
        ElectionName::new("reports").unwrap(),
        HolderName::new(candidate).unwrap(),
    )
}

/// One of 8, that looks like a draw: in a plain rhythm the same command could be lost again and again.
fn drawn(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61
}

fn process(store: &Store, clock: &ManualClock) -> RecordsCoordinator<Store> {
    RecordsCoordinator::new(store.clone()).clock(Arc::new(clock.clone()))
}

/// Whatever is lost, one leads at a time, epochs rise, and everybody gets its turn. What a leader has left is there.
#[tokio::test]
async fn a_lost_answer_is_looked_up() {
    let ways: [fn(u64) -> Option<bool>; 4] = [
        |number| (drawn(number) < 4).then_some(true),
        |number| (drawn(number) < 4).then_some(false),
        |number| (drawn(number) < 6).then_some(true),
        |number| (drawn(number) < 6).then_some(drawn(number).is_multiple_of(2)),
    ];
    for (way, lose) in ways.into_iter().enumerate() {
        let clock = ManualClock::default();
        let store = over(&clock, lose);
        let leads = Arc::new(AtomicUsize::new(0));
        let sink = Arc::new(Mutex::new((Guard::default(), 0_u64)));
        let mut tasks = tokio::task::JoinSet::new();
        for candidate in 0..4 {
            let coordinator = process(&store, &clock);
            let (leads, sink) = (leads.clone(), sink.clone());
            tasks.spawn(async move {
                for _ in 0..5 {
                    let campaign = campaign(&format!("host-{candidate}"));
                    let tenure = coordinator.campaign(campaign).await.unwrap();
                    assert_eq!(leads.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                    let (mut guard, before) = *sink.lock().unwrap();
                    guard.admit(tenure.fence()).unwrap();
                    assert!(tenure.term().epoch.0 > before, "an epoch does not rise");
                    let left = tenure.term().last_checkpoint.clone();
                    let left = left.map_or(0, |left| left.value.len() as u64);
                    assert_eq!(left, u64::from(before > 0) * (before % 100));
                    *sink.lock().unwrap() = (guard, tenure.term().epoch.0);
                    let checkpoint = vec![7; (tenure.term().epoch.0 % 100) as usize];
                    leads.fetch_sub(1, Ordering::SeqCst);
                    let resigned = tenure.resign(EndReason::EndOfTerm, Some(checkpoint.into()));
                    resigned.await.unwrap();
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap_or_else(|error| panic!("way {way}: {error}"));
        }
    }
}

/// The end of a term wakes one candidate: a switch costs as many changes and reads however many stand.
#[tokio::test]
async fn a_switch_costs_the_same_however_many_stand() {
    for candidates in [1_u64, 20] {
        let clock = ManualClock::default();
        let store = over(&clock, |_| None);
        let first = process(&store, &clock);
        let tenure = first.campaign(campaign("first")).await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for candidate in 0..candidates {
            let coordinator = process(&store, &clock);
            tasks.spawn(async move {
                let campaign = campaign(&format!("host-{candidate}"));
                let tenure = coordinator.campaign(campaign).await.unwrap();
                // Whoever was woken too looks meanwhile.
                for _ in 0..200 {
                    tokio::task::yield_now().await;
                }
                let resigned = tenure.resign(EndReason::EndOfTerm, None);
                resigned.await.unwrap();
            });
        }
        // All stand, and nobody has anything to do.
        let mut before = u64::MAX;
        while std::mem::replace(&mut before, store.commands()) != before {
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
        let reads = store.reads();
        tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        // Who comes to be the first in the line looks, and once more when the term has ended.
        let reads = store.reads() - reads;
        assert!(reads <= 6 * candidates, "{reads} reads of {candidates}");
        // The first one closes its term and releases it; each other one claims, opens, closes and releases its term, and
        // leaves the line.
        let expected = before + 2 + 5 * candidates;
        while store.commands() < expected {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.commands(), expected);
    }
}

/// A store that loses everything is not asked for ever.
#[tokio::test]
async fn a_store_that_loses_every_answer_is_given_up() {
    let clock = ManualClock::default();
    let coordinator = process(&over(&clock, |_| Some(false)), &clock);
    let stands = coordinator.campaign(campaign("host-1"));
    tokio::pin!(stands);
    let told = loop {
        tokio::select! {
            biased;
            told = &mut stands => break told.map(drop),
            () = tokio::task::yield_now() => clock.advance(10),
        }
    };
    assert!(
        matches!(told, Err(CoordinationError::Unknown { .. })),
        "{told:?}"
    );
}

/// A leader whose renewals are lost is called with notice, and is over by its own clock before its successor may lead.
#[tokio::test]
async fn a_leader_that_cannot_renew_limits_itself() {
    let clock = ManualClock::default();
    // Standing, claiming, opening, leaving; nothing behind it is answered.
    let store = over(&clock, |number| (number > 3).then_some(false));
    let coordinator = process(&store, &clock);
    let tenure = coordinator.campaign(campaign("host-1")).await.unwrap();
    let mut was_called_at = None;
    let mut millis = 0;
    while tenure.fence().check().is_ok() {
        clock.advance(100);
        millis += 100;
        store.store().clock_changed();
        coordinator.clock_changed();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let is_called = tokio::select! {
            biased;
            () = tenure.lost() => true,
            () = std::future::ready(()) => false,
        };
        if is_called {
            was_called_at.get_or_insert(millis);
        }
    }
    assert_eq!((was_called_at, millis), (Some(7_000), 9_000));
    let name = RecordName::new("election/term/reports").unwrap();
    let term = store.store().get(name).await.unwrap().unwrap();
    assert_eq!(term.lease.unwrap().remaining, Duration::from_secs(1));
    // What is under way may not pass it on.
    let resigned = tenure.resign(EndReason::LeaseLost, None);
    tokio::pin!(resigned);
    let told = loop {
        tokio::select! {
            biased;
            told = &mut resigned => break told,
            () = tokio::task::yield_now() => clock.advance(10),
        }
    };
    assert!(
        matches!(
            told,
            Err(CoordinationError::Over { .. } | CoordinationError::Unknown { .. })
        ),
        "{told:?}"
    );
}

/// What somebody else has written into the record is told, and stays.
#[tokio::test]
async fn a_damaged_term_is_told() {
    let records = MemoryRecords::new();
    let name = RecordName::new("election/term/reports").unwrap();
    let put = PutRecord {
        name: name.clone(),
        value: "nothing of ours".into(),
        replaces: None,
        epoch: None,
    };
    records.put(put).await.unwrap();
    let coordinator = RecordsCoordinator::new(records.clone());
    let told = coordinator.campaign(campaign("host-1")).await.map(drop);
    assert!(
        matches!(told, Err(CoordinationError::Damaged { .. })),
        "{told:?}"
    );
    let kept = records.get(name).await.unwrap().unwrap();
    assert_eq!(kept.value, "nothing of ours");
}
