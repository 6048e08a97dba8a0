//! What the suite of ledgers does not ask of one in memory: room.

use std::{collections::HashMap, sync::Arc};

use lockgate_conformance::ledger::{self, Fixture};
use lockgate_core::{
    Epoch, InputId, LedgerName, ManualClock, ReaderName, UniqueId, WallTime,
    ledger::{
        Append, EVENT_BYTES_MAX, Ledger, LedgerError, LedgerOptions, NewEvent, ReaderPosition,
        SequenceId,
    },
};
use lockgate_sequencer::MemoryLedger;

#[derive(Default)]
struct InMemory {
    ledgers: HashMap<LedgerName, MemoryLedger>,
    clock: ManualClock,
}

impl Fixture for InMemory {
    type Ledger = MemoryLedger;

    async fn open(&mut self, name: LedgerName, options: LedgerOptions) -> MemoryLedger {
        let clock = Arc::new(self.clock.clone());
        let make = || MemoryLedger::new(options).clock(clock);
        self.ledgers.entry(name).or_insert_with(make).clone()
    }

    fn set_clock(&mut self, wall: WallTime) -> bool {
        self.clock.set_wall(wall);
        true
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_ledger_in_memory_conforms() {
    let not_run = ledger::run(&mut InMemory::default()).await;
    assert_eq!(not_run, ["what_was_answered_survives_a_restart"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_in_memory_conforms_on_two_threads() {
    ledger::run(&mut InMemory::default()).await;
}

/// Room comes back with what is trimmed and settled, to the byte, and not with unique ids.
#[tokio::test]
async fn a_full_ledger_refuses_and_loses_nothing() {
    let input = InputId::new("i").unwrap();
    let event = NewEvent {
        unique_id: Some(UniqueId::new("u").unwrap()),
        input: Some(input.clone()),
        payload: vec![0; EVENT_BYTES_MAX].into(),
    };
    let bytes = 128 + EVENT_BYTES_MAX as u64;
    let ledger = MemoryLedger::new(LedgerOptions::default()).bytes_max(bytes + 2 * 129);
    let append = |events| Append {
        epoch: Epoch(1),
        head: None,
        events,
        settled: Vec::new(),
    };
    let first = ledger.append(append(vec![event.clone()])).await.unwrap();
    let another = NewEvent {
        unique_id: None,
        input: None,
        payload: "x".into(),
    };
    let full = ledger.append(append(vec![another])).await.unwrap_err();
    assert!(full.to_string().contains("trim it"), "{full}");
    let reader = ReaderName::new("r").unwrap();
    let place = ReaderPosition {
        reader: reader.clone(),
        sequence_id: SequenceId(1),
    };
    let refused = ledger.move_reader(place.clone(), None).await;
    assert!(matches!(refused, Err(LedgerError::Full { .. })));
    assert_eq!(ledger.head().await, Ok(first.head));

    ledger.trim(SequenceId(2)).await.unwrap();
    let settles = Append {
        settled: vec![input],
        ..append(Vec::new())
    };
    ledger.append(settles).await.unwrap();
    // The unique id is there still, so the same again has no room but for a reader's place in the stead of its input.
    ledger.move_reader(place, None).await.unwrap();
    let plain = NewEvent {
        unique_id: None,
        input: None,
        ..event
    };
    ledger.append(append(vec![plain.clone()])).await.unwrap();
    ledger.trim(SequenceId(3)).await.unwrap();
    ledger.forget_reader(reader).await.unwrap();
    let with_input = NewEvent {
        input: Some(InputId::new("j").unwrap()),
        ..plain
    };
    ledger.append(append(vec![with_input])).await.unwrap();
}

#[tokio::test]
async fn a_full_ledger_takes_an_append_that_forgets_as_much_as_it_adds() {
    let ledger = MemoryLedger::new(LedgerOptions::default()).bytes_max(128 + 129);
    let input = |text: &str| InputId::new(text).unwrap();
    let append = |event_input: &str, settled: &[&str]| Append {
        epoch: Epoch(1),
        head: None,
        events: vec![NewEvent {
            input: Some(input(event_input)),
            ..NewEvent::default()
        }],
        settled: settled.iter().map(|text| input(text)).collect(),
    };
    ledger.append(append("a", &[])).await.unwrap();
    ledger.trim(SequenceId(2)).await.unwrap();
    for settled in [&[][..], &["z"]] {
        let full = ledger.append(append("b", settled)).await;
        assert!(matches!(full, Err(LedgerError::Full { .. })), "{full:?}");
    }
    ledger.append(append("b", &["a", "a"])).await.unwrap();
    ledger.trim(SequenceId(3)).await.unwrap();
    // One that comes and goes at once takes nothing beside its event.
    ledger.append(append("c", &["c"])).await.unwrap();
    let full = ledger.append(append("d", &[])).await;
    assert!(matches!(full, Err(LedgerError::Full { .. })), "{full:?}");
}
