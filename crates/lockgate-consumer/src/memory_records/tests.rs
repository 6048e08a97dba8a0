//! What the suite of records does not ask of a store in memory: room, and what is kept of watches.

use std::{pin::pin, task::Poll};

use lockgate_conformance::records::{self, Fixture};
use lockgate_core::{HolderName, ManualClock};

use super::*;

struct InMemory {
    records: MemoryRecords,
    clock: ManualClock,
}

impl Fixture for InMemory {
    type Records = MemoryRecords;

    fn records(&self) -> &MemoryRecords {
        &self.records
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.records.clock_changed();
        true
    }

    async fn restart(&mut self) -> bool {
        false
    }
}

#[tokio::test]
async fn records_in_memory_conform() {
    let clock = ManualClock::default();
    let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
    let not_run = records::run(&mut InMemory { records, clock }).await;
    assert_eq!(not_run, ["records_and_leases_survive_a_restart"]);
}

fn put(name: &str, value: &str) -> PutRecord {
    PutRecord {
        name: RecordName::new(name).unwrap(),
        value: value.to_owned().into(),
        replaces: None,
        epoch: None,
    }
}

#[tokio::test]
async fn a_full_store_refuses_and_loses_nothing() {
    let records = MemoryRecords::new().bytes_max(2 * (256 + 2));
    for name in ["a", "b"] {
        records.put(put(name, "x")).await.unwrap();
    }
    let full = RecordsError::Full { max: 516 };
    assert_eq!(records.put(put("c", "")).await, Err(full.clone()));
    let a = records.get(RecordName::new("a").unwrap()).await.unwrap();
    let longer = PutRecord {
        replaces: a.as_ref().map(|record| record.version),
        ..put("a", "xy")
    };
    assert_eq!(records.put(longer).await, Err(full));
    assert_eq!(a.unwrap().value, "x");
}

#[tokio::test]
async fn a_watch_ends_with_the_lease_and_leaves_nothing() {
    let clock = ManualClock::default();
    let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
    let name = RecordName::new("a").unwrap();
    let lease = LeaseRecord {
        name: name.clone(),
        holder: HolderName::new("me").unwrap(),
        lease: 5_000,
        delete_at_end: true,
    };
    let leased = records.lease(lease).await.unwrap();
    let watch = WatchRecord {
        name,
        seen: Some(leased.revision),
        wait: Duration::MAX,
    };
    {
        // One that is given up leaves nothing either.
        let mut given_up = pin!(records.watch(watch.clone()));
        let asked =
            std::future::poll_fn(|context| Poll::Ready(given_up.as_mut().poll(context).is_ready()));
        assert!(!asked.await);
    }
    let (gone, ()) = tokio::join!(records.watch(watch), async {
        clock.advance(5_000);
        records.clock_changed();
    });
    assert_eq!(gone, Ok(None));
    assert!(records.0.shared.lock().unwrap().watches.is_empty());
}
