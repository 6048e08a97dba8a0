//! The ledgers of an embedded shard.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate::{
    BootId, Clock, EngineOptions, Epoch, IndexPace, LedgerName, Lockgate, Message, Millis,
    WallTime,
    ledger::{
        Append, AppendAckError, EmbeddedLedger, Ledger, LedgerError, LedgerOptions, ListLedgers,
        NewEvent, SequenceId,
    },
    parts::log::SystemClock,
};
use lockgate_conformance::ledger::{self, Fixture};
use tempfile::TempDir;

/// Its wall clock stands where it is set, and time passes all the same.
struct SetWall {
    system: SystemClock,
    wall: AtomicU64,
}

impl Clock for SetWall {
    fn wall(&self) -> WallTime {
        WallTime(self.wall.load(Relaxed))
    }

    fn since_boot(&self) -> Millis {
        self.system.since_boot()
    }

    fn boot_id(&self) -> BootId {
        self.system.boot_id()
    }
}

impl SetWall {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            system: SystemClock::new(),
            wall: AtomicU64::new(1),
        })
    }
}

struct Embedded {
    folder: TempDir,
    lockgate: Lockgate,
    clock: Arc<SetWall>,
    pace: IndexPace,
}

async fn open(folder: &TempDir, clock: &Arc<SetWall>, pace: IndexPace) -> Lockgate {
    let options = EngineOptions {
        index_pace: pace,
        ..EngineOptions::default()
    };
    let builder = Lockgate::builder(folder.path())
        .clock(clock.clone())
        .engine_options(options);
    builder.open().await.unwrap()
}

impl Fixture for Embedded {
    type Ledger = EmbeddedLedger;

    async fn open(&mut self, name: LedgerName, options: LedgerOptions) -> EmbeddedLedger {
        self.lockgate.create_ledger(name, options).await.unwrap()
    }

    fn set_clock(&mut self, wall: WallTime) -> bool {
        self.clock.wall.store(wall.0, Relaxed);
        self.lockgate.clock_changed();
        true
    }

    async fn restart(&mut self) -> bool {
        self.lockgate.shutdown().await;
        self.lockgate = open(&self.folder, &self.clock, self.pace).await;
        true
    }
}

#[tokio::test]
async fn embedded_ledgers_conform() {
    conforms(IndexPace::default()).await;
}

#[tokio::test]
async fn embedded_ledgers_whose_ids_leave_memory_at_once_conform() {
    let pace = IndexPace {
        more_than: 0,
        every: Duration::ZERO,
    };
    conforms(pace).await;
}

async fn conforms(pace: IndexPace) {
    let folder = tempfile::tempdir().unwrap();
    let clock = SetWall::new();
    let lockgate = open(&folder, &clock, pace).await;
    let mut embedded = Embedded {
        folder,
        lockgate,
        clock,
        pace,
    };
    let not_run = ledger::run(&mut embedded).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    let has_index = embedded.folder.path().join("index").exists();
    assert!(has_index || pace.more_than > 0, "no id has left memory");
    embedded.lockgate.shutdown().await;
}

fn name(text: &str) -> LedgerName {
    LedgerName::new(text).unwrap()
}

#[tokio::test]
async fn ledgers_are_made_listed_and_deleted() {
    let (_folder, lockgate) = crate::open().await;
    let hashed = LedgerOptions {
        hashed: true,
        retention: None,
    };
    for text in ["a.1", "a.2", "b"] {
        lockgate.create_ledger(name(text), hashed).await.unwrap();
    }
    lockgate.create_ledger(name("b"), hashed).await.unwrap();
    let other = lockgate.create_ledger(name("b"), LedgerOptions::default());
    let other = other.await.unwrap_err();
    assert!(matches!(other, LedgerError::Invalid { .. }), "{other:?}");
    let list = |after, limit| ListLedgers {
        prefix: "a".to_owned(),
        after,
        limit,
    };
    let page = lockgate.list_ledgers(list(None, 1)).await.unwrap();
    assert_eq!(page.ledgers[0].name, name("a.1"));
    let page = lockgate.list_ledgers(list(page.next, 1)).await.unwrap();
    assert_eq!((&page.ledgers[0].name, page.next), (&name("a.2"), None));
    let ledger = lockgate.ledger(name("b"));
    lockgate.delete_ledger(name("b")).await.unwrap();
    let gone = ledger.head().await.unwrap_err();
    assert_eq!(gone, LedgerError::NotFound { ledger: name("b") });
    assert_eq!(lockgate.delete_ledger(name("b")).await, Err(gone));
    lockgate.shutdown().await;
}

/// The message is settled with its event; a lease that has ended takes neither.
#[tokio::test]
async fn an_append_settles_the_message_that_it_came_with() {
    let (_folder, lockgate) = crate::open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    let ledger = lockgate.create_ledger(name("l"), LedgerOptions::default());
    let ledger = ledger.await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    let taken = queue.receive().wait(Duration::from_secs(60)).await.unwrap();
    let append = |payload: &str| Append {
        epoch: Epoch(1),
        head: None,
        events: vec![NewEvent {
            payload: payload.to_owned().into(),
            ..NewEvent::default()
        }],
        settled: Vec::new(),
    };
    lockgate
        .create_ledger(name("sealed"), LedgerOptions::default())
        .await
        .unwrap();
    lockgate
        .ledger(name("sealed"))
        .seal(Epoch(1))
        .await
        .unwrap();
    let refused = lockgate
        .append_acking(name("sealed"), append("a"), taken)
        .await;
    let AppendAckError {
        source, deliveries, ..
    } = refused.unwrap_err();
    assert!(matches!(source, LedgerError::Sealed { .. }), "{source:?}");
    let in_flight = async || queue.describe().await.unwrap().counts.in_flight;
    assert_eq!(in_flight().await, 1);
    let appended = lockgate
        .append_acking(name("l"), append("a"), deliveries)
        .await;
    assert_eq!(appended.unwrap().head.sequence_id, SequenceId(1));
    assert_eq!(in_flight().await, 0);

    queue.send(Message::new("b")).await.unwrap();
    let taken = queue.receive().wait(Duration::from_secs(60)).await.unwrap();
    queue.purge().await.unwrap();
    let stale = lockgate.append_acking(name("l"), append("b"), taken).await;
    let stale = stale.unwrap_err().source;
    assert!(matches!(stale, LedgerError::Invalid { .. }), "{stale:?}");
    assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId(1));
    lockgate.shutdown().await;
}
