//! A candidate that gives up before it learns that it stands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockgate_consumer::MemoryRecords;
use lockgate_coordination::{Campaign, Coordinator as _, Observe, RecordsCoordinator};
use lockgate_core::{
    DeleteRecord, ElectionName, ExtendRecord, HolderName, LeaseRecord, ListRecords, PutRecord,
    Record, RecordName, RecordPage, RecordWritten, Records, RecordsError, ReleaseRecord,
    WatchRecord,
};

/// Grants leases, and does not answer the first one.
#[derive(Clone)]
struct Silent(MemoryRecords, Arc<AtomicBool>);

impl Records for Silent {
    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.0.get(name).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        self.0.list(list).await
    }

    async fn watch(&self, watch: WatchRecord) -> Result<Option<Record>, RecordsError> {
        self.0.watch(watch).await
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        self.0.put(put).await
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        self.0.delete(delete).await
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let leased = self.0.lease(lease).await;
        if !self.1.swap(true, Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        leased
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        self.0.extend(extend).await
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        self.0.release(release).await
    }
}

#[tokio::test]
async fn whoever_gives_up_before_it_is_answered_leaves_no_place() {
    let store = MemoryRecords::new();
    let election = ElectionName::new("reports").unwrap();
    let campaign = Campaign::new(election.clone(), HolderName::new("a").unwrap());
    let silent = RecordsCoordinator::new(Silent(store.clone(), Arc::default()));
    let stands = tokio::spawn(async move { silent.campaign(campaign).await.map(drop) });
    let coordinator = RecordsCoordinator::new(store);
    let candidates = async || {
        let observe = Observe {
            election: election.clone(),
            seen: None,
            wait: Duration::ZERO,
        };
        tokio::task::yield_now().await;
        coordinator.observe(observe).await.unwrap().candidates.len()
    };
    while candidates().await == 0 {}
    stands.abort();
    while candidates().await > 0 {}
}
