//! Elections over a folder, which each process opens for itself.

use std::{fs, sync::Arc, time::Duration};

use lockgate_conformance::{
    coordination::{self, BoxedProcess},
    records,
};
use lockgate_coordination::{FileRecords, RecordsCoordinator};
use lockgate_core::{
    HolderName, LeaseRecord, ManualClock, PutRecord, RecordName, Records, RecordsError,
};
use tempfile::TempDir;

type Process = RecordsCoordinator<FileRecords>;

struct InFolder {
    folder: TempDir,
    clock: ManualClock,
    records: FileRecords,
    stores: Vec<FileRecords>,
    processes: Vec<Process>,
}

impl InFolder {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        Self {
            records: open(&folder, &clock).await,
            folder,
            clock,
            stores: Vec::new(),
            processes: Vec::new(),
        }
    }

    fn pass(&mut self, span: Duration) {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.records.clock_changed();
        self.stores.iter().for_each(FileRecords::clock_changed);
        self.processes.iter().for_each(Process::clock_changed);
    }
}

async fn open(folder: &TempDir, clock: &ManualClock) -> FileRecords {
    FileRecords::open_with(folder.path(), Arc::new(clock.clone()))
        .await
        .unwrap()
}

impl records::Fixture for InFolder {
    type Records = FileRecords;

    fn records(&self) -> &FileRecords {
        &self.records
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.pass(span);
        true
    }

    async fn restart(&mut self) -> bool {
        self.records = open(&self.folder, &self.clock).await;
        true
    }
}

impl coordination::Fixture for InFolder {
    type Coordinator = Process;

    async fn process(&mut self) -> Process {
        let store = open(&self.folder, &self.clock).await;
        self.stores.push(store.clone());
        let process = RecordsCoordinator::new(store).clock(Arc::new(self.clock.clone()));
        self.processes.push(process.clone());
        process
    }

    fn process_maker(&self) -> Box<dyn FnOnce() -> BoxedProcess<Process> + Send> {
        let (folder, clock) = (self.folder.path().to_owned(), Arc::new(self.clock.clone()));
        Box::new(move || {
            Box::pin(async move {
                let store = FileRecords::open_with(folder, clock.clone()).await.unwrap();
                RecordsCoordinator::new(store).clock(clock)
            })
        })
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.pass(span);
        true
    }

    /// All processes are gone.
    async fn restart(&mut self) -> bool {
        self.processes.clear();
        self.stores.clear();
        true
    }
}

#[tokio::test]
async fn records_in_a_folder_conform() {
    let mut folder = InFolder::new().await;
    let not_run = records::run(&mut folder).await;
    assert_eq!(not_run, <[&str; 0]>::default());
}

#[tokio::test]
async fn elections_over_a_folder_conform() {
    let mut folder = InFolder::new().await;
    let not_run = coordination::run(&mut folder).await;
    assert_eq!(not_run, <[&str; 0]>::default());
}

fn lease(name: &RecordName, holder: &str) -> LeaseRecord {
    LeaseRecord {
        name: name.clone(),
        holder: HolderName::new(holder).unwrap(),
        lease: 3_600_000,
        delete_at_end: false,
    }
}

/// Whoever had a lease is dead then; its epoch does not come again.
#[tokio::test]
async fn a_reboot_ends_all_leases() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let name = RecordName::new("leader").unwrap();
    let before = open(&folder, &clock).await;
    let epoch = before
        .lease(lease(&name, "a"))
        .await
        .unwrap()
        .lease
        .unwrap()
        .epoch;
    let held = before.lease(lease(&name, "b")).await;
    assert!(matches!(held, Err(RecordsError::Held { .. })), "{held:?}");
    clock.reboot(5);
    let after = open(&folder, &clock).await;
    let next = after.lease(lease(&name, "b")).await.unwrap().lease.unwrap();
    assert!(next.epoch > epoch);
    assert_eq!(next.remaining, Duration::from_secs(3_600));
}

/// Many write one record side by side, each with a store of its own, and no write is lost.
#[tokio::test(flavor = "multi_thread")]
async fn no_write_of_many_processes_is_lost() {
    const WRITES: u64 = 40;
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let name = RecordName::new("counter").unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (folder, name) = (folder.clone(), name.clone());
        tasks.spawn(async move {
            let store = FileRecords::open(folder.path()).await.unwrap();
            for _ in 0..WRITES {
                loop {
                    let now = store.get(name.clone()).await.unwrap();
                    let count = now.as_ref().map_or(0, |now| {
                        u64::from_be_bytes(now.value.as_ref().try_into().unwrap())
                    });
                    let put = PutRecord {
                        name: name.clone(),
                        value: (count + 1).to_be_bytes().to_vec().into(),
                        replaces: now.map(|now| now.version),
                        epoch: None,
                    };
                    match store.put(put).await {
                        Ok(_) => break,
                        Err(RecordsError::Conflict { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let store = FileRecords::open(folder.path()).await.unwrap();
    let last = store.get(name).await.unwrap().unwrap();
    assert_eq!(last.value, (4 * WRITES).to_be_bytes().to_vec());
    // Old states do not stay.
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert!(files <= 80, "{files}");
}

/// What cannot be read is told, and nothing is written over it.
#[tokio::test]
async fn a_damaged_folder_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let name = RecordName::new("leader").unwrap();
    let store = FileRecords::open(folder.path()).await.unwrap();
    store.lease(lease(&name, "a")).await.unwrap();
    let last = folder.path().join(format!("state-{:020}", 2));
    fs::write(&last, "nothing of ours").unwrap();
    let told = store.lease(lease(&name, "a")).await;
    assert!(
        matches!(&told, Err(RecordsError::Unavailable { why }) if why.contains("state-")),
        "{told:?}"
    );
    assert_eq!(fs::read(&last).unwrap(), b"nothing of ours");
    // A state that is gone is no reason to begin anew either.
    fs::remove_file(&last).unwrap();
    fs::remove_file(folder.path().join(format!("state-{:020}", 1))).unwrap();
    let told = store.lease(lease(&name, "a")).await;
    assert!(
        matches!(&told, Err(RecordsError::Unavailable { why }) if why.contains("lost state")),
        "{told:?}"
    );
}
