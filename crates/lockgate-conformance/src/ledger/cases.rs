//! The list of cases, and what they share.

use std::time::Duration;

use bytes::Bytes;
use lockgate_core::{
    Epoch, InputId, LedgerName, Millis, UniqueId, WallTime,
    ledger::{
        Append, Appended, Chain, Event, EventHash, Ledger, LedgerError, LedgerHead, LedgerOptions,
        NewEvent, ReadLedger, SequenceId,
    },
};

use super::{
    Fixture,
    appends::{
        a_refused_append_changes_nothing, a_sealed_ledger_takes_nothing_new,
        a_unique_id_is_remembered_for_ever, an_append_has_bounds,
        an_input_is_remembered_until_it_is_settled, checks_are_made_in_their_order,
        epochs_never_fall, events_are_dense_and_stay, time_never_goes_back,
    },
    concurrent::{
        one_of_many_writers_appends_each_event, readers_never_see_behind_the_head,
        what_many_send_is_appended_once,
    },
    reads::{
        a_page_has_bounds, a_reader_moves_only_from_where_it_is_expected,
        a_running_hash_is_over_the_payloads, a_seal_wakes_whoever_waits,
        an_append_wakes_whoever_waits, events_are_kept_for_the_retention,
        places_of_readers_are_kept, trimmed_events_are_gone_and_their_ids_are_not,
        what_was_answered_survives_a_restart,
    },
};

pub(super) async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
    let mut not_run = Vec::new();
    macro_rules! cases {
        ($($case:ident),+) => {$(
            println!("ledger: {}", stringify!($case));
            if !$case(fixture, stringify!($case)).await {
                not_run.push(stringify!($case));
            }
        )+};
    }
    cases!(
        events_are_dense_and_stay,
        a_refused_append_changes_nothing,
        checks_are_made_in_their_order,
        an_append_has_bounds,
        a_unique_id_is_remembered_for_ever,
        an_input_is_remembered_until_it_is_settled,
        epochs_never_fall,
        time_never_goes_back,
        a_sealed_ledger_takes_nothing_new,
        a_running_hash_is_over_the_payloads,
        a_page_has_bounds,
        an_append_wakes_whoever_waits,
        a_seal_wakes_whoever_waits,
        places_of_readers_are_kept,
        a_reader_moves_only_from_where_it_is_expected,
        trimmed_events_are_gone_and_their_ids_are_not,
        events_are_kept_for_the_retention,
        one_of_many_writers_appends_each_event,
        what_many_send_is_appended_once,
        readers_never_see_behind_the_head,
        what_was_answered_survives_a_restart
    );
    not_run
}

pub(super) const HOUR: Millis = 3_600_000;

/// A time of a day to come, because a server may start no earlier than it was made.
pub(super) fn on_day(hours: u64) -> WallTime {
    WallTime(2_000_000_000_000 + hours * HOUR)
}

pub(super) async fn plain<F: Fixture>(f: &mut F, name: &str) -> F::Ledger {
    open(f, name, LedgerOptions::default()).await
}

pub(super) async fn open<F: Fixture>(f: &mut F, name: &str, options: LedgerOptions) -> F::Ledger {
    f.open(LedgerName::new(name).unwrap(), options).await
}

pub(super) fn event(payload: &str) -> NewEvent {
    NewEvent {
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        ..NewEvent::default()
    }
}

pub(super) fn unique(id: &str, payload: &str) -> NewEvent {
    NewEvent {
        unique_id: Some(UniqueId::new(id).unwrap()),
        ..event(payload)
    }
}

pub(super) fn input(id: &str) -> InputId {
    InputId::new(id).unwrap()
}

pub(super) fn from_input(id: &str, payload: &str) -> NewEvent {
    NewEvent {
        input: Some(input(id)),
        ..event(payload)
    }
}

/// In the first term, wherever the head is.
pub(super) fn append(events: Vec<NewEvent>) -> Append {
    Append {
        epoch: Epoch(1),
        head: None,
        events,
        settled: Vec::new(),
    }
}

/// Appends events with these payloads.
pub(super) async fn add<L: Ledger>(ledger: &L, payloads: &[&str]) -> Appended {
    let events = payloads.iter().map(|payload| event(payload)).collect();
    ledger.append(append(events)).await.unwrap()
}

/// The places of events, and which of them came before.
pub(super) fn places(appended: &Appended) -> Vec<(u64, bool)> {
    let events = appended.events.iter();
    events
        .map(|event| (event.sequence_id.0, event.is_duplicate))
        .collect()
}

pub(super) fn read(after: u64, limit: usize) -> ReadLedger {
    ReadLedger {
        after: SequenceId(after),
        limit,
        wait: Duration::ZERO,
    }
}

/// Reads all events behind that one in pages of at most three, and checks that each follows.
pub(super) async fn read_all<L: Ledger>(ledger: &L, after: u64) -> Vec<Event> {
    let mut chain = Chain::behind(SequenceId(after));
    let mut events = Vec::new();
    loop {
        let page = ledger.read(read(chain.sequence_id.0, 3)).await.unwrap();
        assert!(page.events.len() <= 3);
        for event in page.events {
            chain.follow(&event).unwrap();
            events.push(event);
        }
        chain.agrees_with(&page.head).unwrap();
        if page.head.sequence_id == chain.sequence_id {
            return events;
        }
    }
}

pub(super) fn payloads(events: &[Event]) -> Vec<&str> {
    let payloads = events.iter().map(|event| &event.payload[..]);
    payloads
        .map(|payload| str::from_utf8(payload).unwrap())
        .collect()
}

pub(super) async fn head<L: Ledger>(ledger: &L) -> LedgerHead {
    ledger.head().await.unwrap()
}

#[track_caller]
pub(super) fn is_invalid<T: std::fmt::Debug>(result: Result<T, LedgerError>) {
    match result {
        Err(LedgerError::Invalid { why }) => assert!(!why.is_empty()),
        other => panic!("expected a refusal: {other:?}"),
    }
}

/// The running hash up to each of these payloads.
pub(super) fn hashes(payloads: &[&str]) -> Vec<EventHash> {
    let mut last = EventHash::START;
    let hash = |payload: &&str| {
        last = last.next(payload.as_bytes());
        last
    };
    payloads.iter().map(hash).collect()
}
