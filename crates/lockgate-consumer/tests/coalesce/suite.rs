//! The cases that hold both coalescers, over the one of a process and over records in memory.

use std::sync::Arc;

use bytes::Bytes;
use lockgate_conformance::coalesce;
use lockgate_consumer::{
    MemoryRecords,
    coalesce::{SharedCoalescer, SharedEntered, SharedOptions},
};
use lockgate_core::{Clock as _, Key, ManualClock, WallTime};

#[tokio::test]
async fn callers_of_one_process_conform() {
    coalesce::in_one_process().await;
}

#[tokio::test]
async fn processes_conform_over_records_in_memory() {
    let clock = ManualClock::default();
    let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
    let all = [records.clone(), records.clone(), records.clone()];
    let pass = |span: std::time::Duration| {
        clock.advance(span.as_millis().try_into().unwrap());
        records.clock_changed();
    };
    coalesce::across_processes(all, pass).await;
}

/// A step of the wall clock, in either direction, ends no lease and keeps none.
#[tokio::test]
async fn steps_of_the_wall_clock_change_nothing() {
    let clock = ManualClock::default();
    let records = MemoryRecords::new().clock(Arc::new(clock.clone()));
    let options = SharedOptions::default();
    let lease = options.lease.as_millis().try_into().unwrap();
    let shared = SharedCoalescer::new(records.clone(), options).unwrap();
    let enters = async || match shared.enter(&Key::new("k").unwrap(), Bytes::new()).await {
        Ok(SharedEntered::Run(run)) => run,
        other => panic!("{other:?}"),
    };
    for step in [1, u64::from(u32::MAX) * 1_000] {
        let run = enters().await;
        clock.set_wall(WallTime(step));
        records.clock_changed();
        run.heartbeat().await.unwrap();
        clock.advance(lease);
        records.clock_changed();
        run.heartbeat().await.unwrap_err();
        run.succeed().await.unwrap_err();
    }
    assert!(clock.wall().0 > 0);
}
