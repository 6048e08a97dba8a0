//! The ledgers of a server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate_client::{Client, ServerLedger};
use lockgate_conformance::ledger::{self, Fixture};
use lockgate_core::{
    BootId, Clock, Epoch, LedgerName, Millis, WallTime,
    ledger::{Append, Ledger, LedgerError, LedgerOptions, NewEvent, ReadLedger, SequenceId},
};
use lockgate_log::SystemClock;
use tempfile::TempDir;

use crate::support::{TestServer, with_access_key};

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

struct Remote {
    folder: TempDir,
    clock: Arc<SetWall>,
    /// `None` while it is restarted.
    server: Option<TestServer>,
    client: Client,
}

impl Remote {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = SetWall::new();
        let server = TestServer::start_by(folder.path(), clock.clone(), with_access_key).await;
        let client = server.signing_client().await;
        Self {
            folder,
            clock,
            server: Some(server),
            client,
        }
    }
}

impl Fixture for Remote {
    type Ledger = ServerLedger;

    async fn open(&mut self, name: LedgerName, options: LedgerOptions) -> ServerLedger {
        let ledger = self.client.ledger(name);
        ledger.create(options).await.unwrap();
        ledger
    }

    fn set_clock(&mut self, wall: WallTime) -> bool {
        self.clock.wall.store(wall.0, Relaxed);
        let server = self.server.as_ref().unwrap();
        server.engine.clock_changed();
        true
    }

    async fn restart(&mut self) -> bool {
        self.server.take().unwrap().stop().await;
        let (folder, clock) = (self.folder.path(), self.clock.clone());
        let server = TestServer::start_by(folder, clock, with_access_key).await;
        self.client = server.signing_client().await;
        self.server = Some(server);
        true
    }
}

#[tokio::test]
async fn the_ledgers_of_a_server_conform() {
    let mut remote = Remote::start().await;
    let not_run = ledger::run(&mut remote).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    remote.server.unwrap().stop().await;
}

/// The largest append there can be goes through, in the encoding that takes most room.
#[tokio::test]
async fn an_append_of_eight_mebibytes_arrives() {
    let mut remote = Remote::start().await;
    let name = LedgerName::new("large").unwrap();
    let ledger = remote.open(name, LedgerOptions::default()).await;
    let event = NewEvent {
        payload: vec![0xff; 1 << 20].into(),
        ..NewEvent::default()
    };
    let append = Append {
        epoch: Epoch(1),
        head: None,
        events: vec![event; 8],
        settled: Vec::new(),
    };
    let appended = ledger.append(append.clone()).await.unwrap();
    assert_eq!(appended.head.sequence_id, SequenceId(8));
    let mut after = SequenceId::START;
    while after < SequenceId(8) {
        let read = ReadLedger {
            after,
            limit: 8,
            wait: Duration::ZERO,
        };
        let page = ledger.read(read).await.unwrap();
        assert!(
            page.events
                .iter()
                .all(|event| event.payload == append.events[0].payload)
        );
        after = page.events.last().unwrap().sequence_id;
    }
    remote.server.unwrap().stop().await;
}

/// The server ends all waits when it stops: the reader learns that nothing was looked at to the end.
#[tokio::test]
async fn a_read_that_waits_on_a_server_that_stops_ends() {
    let mut remote = Remote::start().await;
    let name = LedgerName::new("a").unwrap();
    let ledger = remote.open(name, LedgerOptions::default()).await;
    let read = ReadLedger {
        after: SequenceId::START,
        limit: 1,
        wait: ReadLedger::WAIT_MAX,
    };
    let waits = tokio::spawn({
        let ledger = ledger.clone();
        async move { ledger.read(read).await }
    });
    // Requests on one connection each: the read is there once the server counts one that waits.
    let server = remote.server.unwrap();
    while server.engine.metrics().waiters == 0 {
        ledger.head().await.unwrap();
    }
    server.stop().await;
    let ended = waits.await.unwrap();
    assert!(
        matches!(ended, Err(LedgerError::Unavailable { .. })),
        "{ended:?}"
    );
}
