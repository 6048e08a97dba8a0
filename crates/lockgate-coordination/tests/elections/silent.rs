//! Candidates over a store that answers late, or takes nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockgate_consumer::MemoryRecords;
use lockgate_coordination::{
    AskToResign, Campaign, CoordinationError, Coordinator as _, ElectionState, Observe,
    RecordsCoordinator, Tenure as _,
};
use lockgate_core::{
    DeleteRecord, ElectionName, ExtendRecord, HolderName, LeaseRecord, ListRecords, PutRecord,
    Record, RecordName, RecordPage, RecordWritten, Records, RecordsError, ReleaseRecord,
    WatchRecord,
};

/// Grants leases.
#[derive(Clone)]
struct Stubborn {
    records: MemoryRecords,
    /// The next lease is not answered.
    is_silent: Arc<AtomicBool>,
    /// There is no room for what is put.
    is_full: bool,
}

impl Records for Stubborn {
    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.records.get(name).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        self.records.list(list).await
    }

    async fn watch(&self, watch: WatchRecord) -> Result<Option<Record>, RecordsError> {
        self.records.watch(watch).await
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        match self.is_full {
            true => Err(RecordsError::Full { max: 7 }),
            false => self.records.put(put).await,
        }
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        self.records.delete(delete).await
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let leased = self.records.lease(lease).await;
        if self.is_silent.swap(false, Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        leased
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        self.records.extend(extend).await
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        self.records.release(release).await
    }
}

fn campaign() -> Campaign {
    let mut campaign = Campaign::new(
        ElectionName::new("reports").unwrap(),
        HolderName::new("a").unwrap(),
    );
    campaign.lease = Duration::from_secs(1);
    campaign.margin = Duration::from_millis(100);
    campaign.notice = Duration::ZERO;
    campaign
}

async fn look(store: &MemoryRecords) -> ElectionState {
    let observe = Observe {
        election: campaign().election,
        seen: None,
        wait: Duration::ZERO,
    };
    let coordinator = RecordsCoordinator::new(store.clone());
    tokio::task::yield_now().await;
    coordinator.observe(observe).await.unwrap()
}

#[tokio::test]
async fn whoever_gives_up_before_it_is_answered_leaves_no_place() {
    let store = MemoryRecords::new();
    let silent = RecordsCoordinator::new(Stubborn {
        records: store.clone(),
        is_silent: Arc::new(AtomicBool::new(true)),
        is_full: false,
    });
    let stands = tokio::spawn({
        let silent = silent.clone();
        async move { silent.campaign(campaign()).await.map(drop) }
    });
    while look(&store).await.candidates.is_empty() {}
    stands.abort();
    let _ = stands.await;
    // Whoever waits for that may end its process.
    silent.left().await;
    assert_eq!(look(&store).await.candidates, []);
}

/// A store that grants the lease of the term and takes no record of it: nobody else could lead meanwhile.
#[tokio::test]
async fn whoever_cannot_open_its_term_gives_it_back_and_is_told() {
    let store = MemoryRecords::new();
    let full = RecordsCoordinator::new(Stubborn {
        records: store.clone(),
        is_silent: Arc::default(),
        is_full: true,
    });
    let told = full.campaign(campaign()).await.map(drop);
    assert!(
        matches!(&told, Err(CoordinationError::Unavailable { why }) if why.contains("may have 7 bytes")),
        "{told:?}"
    );
    full.left().await;
    let state = look(&store).await;
    assert_eq!((state.leader, state.candidates), (None, vec![]));
}

/// The version before, say, which cannot read what the next one writes.
#[tokio::test]
async fn whoever_cannot_read_the_term_gives_it_back_and_is_told() {
    let store = MemoryRecords::new();
    let name = RecordName::new("election/term/reports").unwrap();
    let put = PutRecord {
        name: name.clone(),
        value: "of another version".into(),
        replaces: None,
        epoch: None,
    };
    store.put(put).await.unwrap();
    let coordinator = RecordsCoordinator::new(store.clone());
    let told = coordinator.campaign(campaign()).await.map(drop);
    assert!(
        matches!(told, Err(CoordinationError::Damaged { .. })),
        "{told:?}"
    );
    coordinator.left().await;
    assert_eq!(store.get(name).await.unwrap().unwrap().lease, None);
}

/// Who asks a leader to go that another one has followed does not undo a request to that one.
#[tokio::test]
async fn a_late_request_to_resign_replaces_no_later_one() {
    let store = MemoryRecords::new();
    let coordinator = RecordsCoordinator::new(store.clone());
    let tenure = coordinator.campaign(campaign()).await.unwrap();
    let epoch = tenure.term().epoch;
    let later = PutRecord {
        name: RecordName::new("election/ask/reports").unwrap(),
        value: format!("{{\"epoch\":{},\"by\":\"b\"}}", epoch.0 + 1).into(),
        replaces: None,
        epoch: None,
    };
    let later = store.put(later).await.unwrap();
    let ask = AskToResign {
        election: campaign().election,
        epoch,
        by: HolderName::new("a").unwrap(),
        even_if_alone: true,
    };
    let told = coordinator.ask_to_resign(ask).await;
    assert!(
        matches!(told, Err(CoordinationError::Over { .. })),
        "{told:?}"
    );
    let left = store.get(RecordName::new("election/ask/reports").unwrap());
    assert_eq!(left.await.unwrap().unwrap().version, later.version);
}
