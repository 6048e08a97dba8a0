//! The registry of busy keys.

use std::{sync::Arc, time::Duration};

use lockgate_conformance::{
    busy,
    records::{Fixture, Lossy},
};
use lockgate_consumer::MemoryRecords;
use lockgate_coordination::BusyRegistry;
use lockgate_core::{HolderName, Key, ManualClock};

struct Memory {
    records: MemoryRecords,
    clock: ManualClock,
}

impl Fixture for Memory {
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
async fn one_works_on_a_key_and_late_ones_change_nothing() {
    let clock = ManualClock::default();
    let mut memory = Memory {
        records: MemoryRecords::new().clock(Arc::new(clock.clone())),
        clock,
    };
    busy::one_works_on_a_key_and_late_ones_change_nothing(&mut memory).await;
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_asked_for_again() {
    let records = Lossy::new(MemoryRecords::new(), |number| (number == 0).then_some(true));
    let here = BusyRegistry::new(records, HolderName::new("a").unwrap());
    let user = Key::new("user-42").unwrap();
    let claim = here.claim(&user, Duration::from_secs(60)).await.unwrap();
    here.release(claim).await.unwrap();
    assert_eq!(here.busy(None, 10).await.unwrap(), []);
}
