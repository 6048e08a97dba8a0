//! Who may hold a key after the database, or the host that serves, is another one than before.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate_core::{
    AppendError, BootId, Clock, Epoch, HolderName, Level, Log, LogCapabilities, LogError,
    LogMaintenance, LogProgress, LogRange, LogReader, LogRecord, LogSource, LogSpace, Millis,
    Position, Preview, Purpose, RecordGroup, RecordStamp, RecoveryReport, ReserveError, Storage,
    Unsynced, WallTime,
};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::SystemClock;
use lockgate_machine::Receive;
use lockgate_postgres::{PostgresLog, PostgresLogOptions};
use tokio::runtime::Runtime;

use crate::{
    engine::{create, queue, send},
    server::{Server, batch, execute, new_shard, shared_server},
    support::Owner,
};

/// The clock of a host, which stands still where nobody moves it: no lease ends.
struct Host(SystemClock, u8, AtomicU64);

impl Host {
    fn new(number: u8) -> Arc<Self> {
        Arc::new(Self(SystemClock::new(), number, AtomicU64::new(0)))
    }
}

impl Clock for Host {
    fn wall(&self) -> WallTime {
        self.0.wall()
    }

    fn since_boot(&self) -> Millis {
        Millis::from(self.1) * 1_000_000 + self.2.load(Relaxed)
    }

    fn boot_id(&self) -> BootId {
        BootId([self.1; 16])
    }
}

fn start(url: &str, shard: &str, host: Arc<Host>) -> Engine {
    let log = PostgresLog::open(url, shard, PostgresLogOptions::default()).unwrap();
    let mut options = EngineOptions::default();
    // So that nothing is synced but what is asked for.
    options.sync_window.after = Some(3_600_000);
    let (engine, report) = Engine::start(log, host, options).unwrap();
    assert!(report.is_clean(), "{report:?}");
    engine
}

async fn receive(engine: &Engine) -> Vec<String> {
    let receive = Receive {
        queue: queue(),
        max: 1,
        key_max: None,
        lease: Some(10_000),
        holder: HolderName::new("test").unwrap(),
    };
    let batch = engine.receive(receive, Duration::ZERO).await.unwrap();
    let received = batch.keep();
    received
        .iter()
        .map(|received| String::from_utf8(received.stored.message.body.to_vec()).unwrap())
        .collect()
}

/// A queue whose messages are synced and whose leases are not, and messages of three keys.
async fn fill(engine: &Engine) {
    let create = create(&queue(), Level::Disk);
    engine.submit(create).await.unwrap();
    for (key, body) in ["a", "b", "c"].into_iter().enumerate() {
        engine.submit(send(&queue(), body, key)).await.unwrap();
    }
}

#[test]
fn no_key_has_two_holders_after_a_crash_of_the_database() {
    let name = "no_key_has_two_holders_after_a_crash_of_the_database";
    if shared_server(name).is_none() {
        return;
    }
    let server = Server::start();
    // What nobody waits for stays in the memory of the server.
    batch(&server.url, "ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.crash();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        // The host is the same one all along.
        let engine = start(&server.url, "shard", Host::new(1));
        fill(&engine).await;
        // The first has to wait for the lease bound; the second finds it synced.
        assert_eq!(receive(&engine).await, ["a"]);
        assert_eq!(receive(&engine).await, ["b"]);
        server.crash();
        assert!(engine.stopped().await.is_failure());
        engine.shutdown().await;

        for _ in 0..2 {
            let engine = start(&server.url, "shard", Host::new(1));
            let none: [&str; 0] = [];
            assert_eq!(
                receive(&engine).await,
                none,
                "somebody may hold any of them"
            );
            engine.shutdown().await;
        }
    });
}

#[test]
fn a_clean_takeover_on_another_host_holds_nothing_back() {
    let name = "a_clean_takeover_on_another_host_holds_nothing_back";
    let Some(url) = shared_server(name) else {
        return;
    };
    let shard = new_shard();
    Runtime::new().unwrap().block_on(async {
        let first = start(&url, &shard, Host::new(1));
        fill(&first).await;
        assert_eq!(receive(&first).await, ["a"]);
        // It takes over from one that lives, and from one that has ended.
        let second = start(&url, &shard, Host::new(2));
        assert_eq!(receive(&second).await, ["b"]);
        second.shutdown().await;
        let third = start(&url, &shard, Host::new(1));
        assert_eq!(receive(&third).await, ["c"]);
        third.shutdown().await;
        first.shutdown().await;
    });
}

fn recovered(url: &str, shard: &str) -> (PostgresLog, Unsynced) {
    let mut log = PostgresLog::open(url, shard, PostgresLogOptions::default()).unwrap();
    let report = log.recover(Position(0), Epoch(0), &mut |_, _| {}).unwrap();
    (log, report.unsynced)
}

#[test]
fn a_loss_is_told_until_somebody_has_written_down_what_follows_from_it() {
    let name = "a_loss_is_told_until_somebody_has_written_down_what_follows_from_it";
    let Some(url) = shared_server(name) else {
        return;
    };
    let shard = new_shard();
    let told = || recovered(&url, &shard).1;
    assert_eq!(told(), Unsynced::MayBeLost);
    drop(Owner::start(&url, &shard));
    assert_eq!(told(), Unsynced::MayBeLost, "it has begun, and no more");
    let mut owner = Owner::start(&url, &shard);
    owner.append("a").unwrap();
    assert_eq!(told(), Unsynced::Kept);
    assert_eq!(told(), Unsynced::Kept, "nothing has happened since");

    // As a crash, or a promotion, leaves it.
    let of_shard = "shard = (SELECT id FROM lockgate.shard WHERE name = $1)";
    let emptied = format!("DELETE FROM lockgate.unsynced WHERE {of_shard}");
    assert_eq!(execute(&url, &emptied, &[&shard]), 1);
    let (mut log, unsynced) = recovered(&url, &shard);
    assert_eq!(unsynced, Unsynced::MayBeLost);
    let epoch = owner.epoch.next().next();
    log.begin_epoch(epoch).unwrap();
    assert_eq!(told(), Unsynced::MayBeLost);
    Owner::start(&url, &shard).append("b").unwrap();
    assert_eq!(told(), Unsynced::Kept);

    // As a dump of the database puts it back.
    let again = format!("UPDATE lockgate.unsynced SET tail = tail WHERE {of_shard}");
    assert_eq!(execute(&url, &again, &[&shard]), 1);
    assert_eq!(told(), Unsynced::MayBeLost);
}

#[test]
fn a_restart_of_the_database_in_good_order_loses_nothing_and_a_crash_may() {
    let name = "a_restart_of_the_database_in_good_order_loses_nothing_and_a_crash_may";
    if shared_server(name).is_none() {
        return;
    }
    let server = Server::start();
    let mut owner = Owner::start(&server.url, "shard");
    owner.append("a").unwrap();
    server.stop();
    server.start_again();
    assert_eq!(recovered(&server.url, "shard").1, Unsynced::Kept);
    server.crash();
    assert_eq!(recovered(&server.url, "shard").1, Unsynced::MayBeLost);

    // Where the table survives that, it says nothing.
    Owner::start(&server.url, "shard").append("b").unwrap();
    assert_eq!(recovered(&server.url, "shard").1, Unsynced::Kept);
    batch(&server.url, "ALTER TABLE lockgate.unsynced SET LOGGED");
    Owner::start(&server.url, "shard").append("c").unwrap();
    assert_eq!(recovered(&server.url, "shard").1, Unsynced::MayBeLost);
}

/// A log whose opener is slow: much happens between its steps.
struct Slow<F> {
    log: PostgresLog,
    before: Step,
    happens: Option<F>,
}

/// What the opener is slow to do.
#[derive(PartialEq)]
enum Step {
    Claim,
    Recover,
}

impl<F: FnOnce()> Slow<F> {
    fn happen(&mut self, before: Step) {
        if self.before == before
            && let Some(happens) = self.happens.take()
        {
            happens();
        }
    }
}

impl<F: FnOnce() + Send + 'static> From<Slow<F>> for Storage {
    fn from(log: Slow<F>) -> Self {
        Self {
            snapshots: log.log.snapshots(),
            log: Box::new(log),
        }
    }
}

impl<F: FnOnce() + Send> LogSource for Slow<F> {
    fn capabilities(&self) -> LogCapabilities {
        self.log.capabilities()
    }

    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError> {
        self.happen(Step::Recover);
        self.log.recover(from, lowest, visit)
    }

    fn tail(&self) -> Position {
        self.log.tail()
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        self.log.reader()
    }

    fn ranges(&self) -> Vec<LogRange> {
        self.log.ranges()
    }
}

impl<F: FnOnce() + Send> Log for Slow<F> {
    fn preview(&self) -> Result<Option<Preview>, LogError> {
        self.log.preview()
    }

    fn claim(&mut self) -> Result<(), LogError> {
        self.happen(Step::Claim);
        self.log.claim()
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError> {
        self.log.begin_epoch(epoch)
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        self.log.place(cursor, len)
    }

    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError> {
        self.log.reserve(bytes, records, purpose)
    }

    fn space(&self) -> LogSpace {
        self.log.space()
    }

    fn submit(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        self.log.append(epoch, expected, group)
    }

    fn progress(&self) -> Arc<dyn LogProgress> {
        self.log.progress()
    }

    fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        self.log.log_maintenance()
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        self.log.trim(before)
    }

    fn release(&mut self, range: Position) -> Result<(), LogError> {
        self.log.release(range)
    }

    fn next_number(&self) -> u64 {
        self.log.next_number()
    }
}

#[test]
fn a_newcomer_is_not_overtaken_by_the_snapshots_of_a_live_owner() {
    let name = "a_newcomer_is_not_overtaken_by_the_snapshots_of_a_live_owner";
    let Some(url) = shared_server(name) else {
        return;
    };
    let shard = new_shard();
    let options = || EngineOptions {
        snapshot_bytes_min: 1,
        ..EngineOptions::default()
    };
    let open = || PostgresLog::open(&url, &shard, PostgresLogOptions::default()).unwrap();
    let runtime = Runtime::new().unwrap();
    let clock = Arc::new(SystemClock::new());
    let (owner, _) = Engine::start(open(), clock.clone(), options()).unwrap();
    runtime
        .block_on(owner.submit(create(&queue(), Level::Disk)))
        .unwrap();
    let runtime = Arc::new(runtime);
    let send_until = {
        let (owner, runtime) = (owner.clone(), runtime.clone());
        // As long as that is taken.
        move |snapshots| {
            // Large ones: a snapshot has only what is known of them, and waits for eight times its size.
            let body = "x".repeat(64 << 10);
            for number in 0.. {
                let is_enough = owner.metrics().maintenance.snapshots >= snapshots;
                let sent = send(&queue(), &body, number);
                if is_enough || runtime.block_on(owner.submit(sent)).is_err() {
                    return;
                }
            }
        }
    };
    send_until(2);
    let snapshots = owner.metrics().maintenance.snapshots + 3;
    let log = Slow {
        log: open(),
        before: Step::Recover,
        happens: Some(move || send_until(snapshots)),
    };
    let (newcomer, report) = Engine::start(log, clock, options()).unwrap();
    assert!(report.is_clean() && report.snapshot.is_some(), "{report:?}");
    runtime.block_on(async {
        newcomer.submit(send(&queue(), "y", 0)).await.unwrap();
        newcomer.shutdown().await;
        owner.shutdown().await;
    });
}

#[test]
fn a_takeover_from_a_live_owner_ends_no_lease_early() {
    let name = "a_takeover_from_a_live_owner_ends_no_lease_early";
    let Some(url) = shared_server(name) else {
        return;
    };
    let shard = new_shard();
    let runtime = Arc::new(Runtime::new().unwrap());
    let host = Host::new(1);
    let owner = start(&url, &shard, host.clone());
    runtime.block_on(fill(&owner));
    // The owner lives on for long, and leases a message, while the next one is on its way to the claim.
    let happens = {
        let (owner, host, runtime) = (owner.clone(), host.clone(), runtime.clone());
        move || {
            host.2.fetch_add(20_000, Relaxed);
            assert_eq!(runtime.block_on(receive(&owner)), ["a"]);
        }
    };
    let log = Slow {
        log: PostgresLog::open(&url, &shard, PostgresLogOptions::default()).unwrap(),
        before: Step::Claim,
        happens: Some(happens),
    };
    let (newcomer, report) = Engine::start(log, host, EngineOptions::default()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(newcomer.now().machine, owner.now().machine);
    runtime.block_on(async {
        newcomer.shutdown().await;
        owner.shutdown().await;
    });
}
