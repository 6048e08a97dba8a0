//! An engine over a server that is killed in the middle of its work.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate_core::{HolderName, Key, Level, Message, QueueName};
use lockgate_engine::{BackupError, Engine, EngineOptions, StartError, StopReason};
use lockgate_log::SystemClock;
use lockgate_machine::{
    Command, CreateQueue, QueueSettings, Receive, SendMessage, Settle, SettleAction,
};
use lockgate_postgres::{PostgresLog, PostgresLogOptions};

use crate::{
    server::{Server, execute, new_shard, shared_server},
    support::Owner,
};

const PRODUCERS: usize = 8;

/// Takes the shard over when the first byte of a backup is written.
struct TakenOver<'a>(&'a str, &'a str, Option<Owner>);

impl Write for TakenOver<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self(url, shard, owner) = self;
        owner.get_or_insert_with(|| Owner::start(url, shard));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The new owner may give back what the backup is still to read.
#[test]
fn a_backup_does_not_end_well_behind_a_takeover() {
    let Some(url) = shared_server("a_backup_does_not_end_well_behind_a_takeover") else {
        return;
    };
    let shard = new_shard();
    let log = PostgresLog::open(&url, &shard, PostgresLogOptions::default()).unwrap();
    let clock = Arc::new(SystemClock::new());
    let (engine, _) = Engine::start(log, clock, EngineOptions::default()).unwrap();
    let ended = engine.backup(&mut TakenOver(&url, &shard, None));
    assert!(
        matches!(ended, Err(BackupError::Stopped { .. })),
        "{ended:?}"
    );
    drop(engine);
}

#[test]
fn a_killed_server_loses_no_answered_send() {
    if shared_server("a_killed_server_loses_no_answered_send").is_none() {
        return;
    }
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // By key: what was answered, in order; and what was sent without an answer.
    let mut answered: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    for round in 0..4 {
        let engine = start(&server.url);
        if round == 0 {
            runtime
                .block_on(engine.submit(create(&queue(), Level::Disk)))
                .unwrap();
        }
        let count = Arc::new(AtomicUsize::new(0));
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let (engine, count) = (engine.clone(), count.clone());
                runtime.spawn(async move {
                    let mut sent = Vec::new();
                    for number in 0.. {
                        let body = format!("{producer}-{round}-{number}");
                        match engine.submit(send(&queue(), &body, producer)).await {
                            Ok(_) => sent.push(body),
                            Err(_) => return (producer, sent, body),
                        }
                        count.fetch_add(1, Relaxed);
                    }
                    unreachable!("the server is killed")
                })
            })
            .collect();
        // In the middle of it, wherever that is.
        while count.load(Relaxed) < 100 * (round + 1) {
            std::thread::yield_now();
        }
        server.kill();
        runtime.block_on(async {
            for producer in producers {
                let (producer, sent, last) = producer.await.unwrap();
                answered.entry(producer).or_default().extend(sent);
                unknown.insert(last);
            }
            assert!(engine.stopped().await.is_failure());
            engine.shutdown().await;
        });
        server.start_again();
    }
    let engine = start(&server.url);
    let mut got: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    runtime.block_on(async {
        for body in drain(&engine, &queue()).await {
            let producer = body.split('-').next().unwrap().parse().unwrap();
            got.entry(producer).or_default().push(body);
        }
        engine.shutdown().await;
    });
    for bodies in got.values_mut() {
        // What was not answered may be there, once and in its place.
        bodies.retain(|body| !unknown.contains(body));
    }
    assert_eq!(got, answered, "all of it, in order, once");
}

#[test]
fn an_engine_with_nothing_to_do_notices_that_it_serves_no_more() {
    if shared_server("an_engine_with_nothing_to_do_notices_that_it_serves_no_more").is_none() {
        return;
    }
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let engine = start(&server.url);
    runtime
        .block_on(engine.submit(create(&queue(), Level::Disk)))
        .unwrap();
    let receive = Receive {
        queue: queue(),
        max: 1,
        key_max: None,
        lease: None,
        holder: HolderName::new("test").unwrap(),
    };
    let waiting = runtime.spawn({
        let (engine, receive) = (engine.clone(), receive.clone());
        async move { engine.receive(receive, Duration::from_mins(10)).await }
    });
    while engine.metrics().waiters == 0 {
        std::thread::yield_now();
    }
    server.kill();
    runtime.block_on(async {
        let waited = waiting.await.unwrap().unwrap_err();
        let told = waited.to_string();
        assert!(
            told.contains("connection to the database was lost"),
            "{told}"
        );
        assert!(engine.stopped().await.is_failure());
        engine.shutdown().await;
    });

    server.start_again();
    let first = start(&server.url);
    let second = start(&server.url);
    let by = second.term().epoch;
    assert_eq!(
        runtime.block_on(first.stopped()),
        StopReason::Deposed { by }
    );
    runtime.block_on(async {
        first.shutdown().await;
        second.shutdown().await;
    });
}

pub(crate) fn queue() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn start(url: &str) -> Engine {
    start_with(url, PostgresLogOptions::default())
}

pub(crate) fn start_with(url: &str, options: PostgresLogOptions) -> Engine {
    let log = PostgresLog::open(url, "shard", options).unwrap();
    let clock = Arc::new(SystemClock::new());
    let (engine, report) = Engine::start(log, clock, EngineOptions::default()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    engine
}

pub(crate) fn create(queue: &QueueName, level: Level) -> Command {
    Command::CreateQueue(Box::new(CreateQueue {
        name: queue.clone(),
        settings: QueueSettings {
            keyed: true,
            level,
            ..QueueSettings::default()
        },
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
    }))
}

pub(crate) fn send(queue: &QueueName, body: &str, producer: usize) -> Command {
    Command::Send(Box::new(SendMessage {
        queue: queue.clone(),
        message: Message::new(body.to_owned()).with_key(Key::new(&producer.to_string()).unwrap()),
    }))
}

/// Receives and acknowledges all there is. Leases of that length are synced: after a failover nobody has to wait
/// for them.
pub(crate) async fn drain(engine: &Engine, queue: &QueueName) -> Vec<String> {
    let receive = Receive {
        queue: queue.clone(),
        max: 100,
        key_max: None,
        lease: Some(60_000),
        holder: HolderName::new("test").unwrap(),
    };
    let mut bodies = Vec::new();
    loop {
        let batch = engine
            .receive(receive.clone(), Duration::ZERO)
            .await
            .unwrap();
        if batch.is_empty() {
            return bodies;
        }
        for received in batch.keep() {
            bodies.push(String::from_utf8(received.stored.message.body.to_vec()).unwrap());
            let token = received.delivery.token;
            let action = SettleAction::Ack;
            let ack = Command::Settle(Settle { token, action });
            engine.submit(ack).await.unwrap();
        }
    }
}

/// A range of which no row is there is what a missing file is in a folder.
#[test]
fn a_start_without_the_rows_of_a_range_is_refused_until_the_loss_is_accepted() {
    let name = "a_start_without_the_rows_of_a_range_is_refused_until_the_loss_is_accepted";
    let Some(url) = shared_server(name) else {
        return;
    };
    let shard = new_shard();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let start = |accept_loss| {
        let log = PostgresLog::open(&url, &shard, PostgresLogOptions::default()).unwrap();
        let options = EngineOptions {
            accept_loss,
            ..EngineOptions::default()
        };
        Engine::start(log, Arc::new(SystemClock::new()), options)
    };
    let (engine, _) = start(false).unwrap();
    runtime.block_on(async {
        let create = create(&queue(), Level::Disk);
        engine.submit(create).await.unwrap();
        engine.submit(send(&queue(), "a", 1)).await.unwrap();
        engine.shutdown().await;
    });
    let of_shard = "SELECT shard.id FROM lockgate.shard WHERE name = $1";
    let moved = format!("UPDATE lockgate.record SET shard = -shard WHERE shard = ({of_shard})");
    assert!(execute(&url, &moved, &[&shard]) > 0);
    for _ in 0..2 {
        let Err(StartError::Missing { parts, .. }) = start(false) else {
            panic!("it is not refused");
        };
        assert!(parts.len() == 1 && parts[0].holds_records, "{parts:?}");
        let said = parts[0].to_string();
        assert!(
            said.contains("lockgate.record with positions 0 to"),
            "{said}"
        );
    }
    // The rows are back.
    let back = format!("UPDATE lockgate.record SET shard = -shard WHERE shard = -({of_shard})");
    assert!(execute(&url, &back, &[&shard]) > 0);
    let (engine, report) = start(false).unwrap();
    assert!(report.is_clean() && report.messages == 1, "{report:?}");
    runtime.block_on(engine.shutdown());

    assert!(execute(&url, &moved, &[&shard]) > 0);
    let (engine, report) = start(true).unwrap();
    assert!(
        report.missing.len() == 1 && report.queues == 0,
        "{report:?}"
    );
    runtime.block_on(engine.shutdown());
    let (engine, report) = start(false).unwrap();
    assert!(report.is_clean(), "{report:?}");
    runtime.block_on(engine.shutdown());
}
