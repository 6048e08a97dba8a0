//! What shards cost that nobody uses: alone in its process, because it counts the process's threads.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, fs, sync::Arc, thread, time::Duration};

use lockgate_engine::{Engine, EngineOptions, MaintenanceThreads};
use lockgate_log::SystemClock;
use lockgate_postgres::{ConnectionThread, PostgresLog, PostgresLogOptions};

const SHARDS: usize = 16;

/// How long wake-ups are counted. Only shown: how many there are is the system's affair too.
const COUNTED: Duration = Duration::from_secs(5);

/// Voluntary context switches of each thread of this process.
fn threads() -> BTreeMap<String, u64> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        // A thread may end while the list is read.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let switches = (status.lines())
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
            .unwrap();
        let name = task.file_name().into_string().unwrap();
        threads.insert(name, switches.trim().parse().unwrap());
    }
    threads
}

fn connections(runtime: &tokio::runtime::Runtime, url: &str, application: &str) -> i64 {
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
        let row = client.query_one(sql, &[&application]).await.unwrap();
        row.get(0)
    })
}

#[test]
fn idle_shards_have_two_threads_and_four_connections_each() {
    let Ok(url) = std::env::var("LOCKGATE_TEST_POSTGRES") else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no PostgreSQL");
        println!("not run: PostgreSQL: use scripts/services run cargo test");
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let application = format!("lockgate-idle-{}", std::process::id());
    let own = format!("{url}?application_name={application}");
    let maintenance = MaintenanceThreads::default();
    let connection_thread = ConnectionThread::start().unwrap();
    let before = threads();
    let engines: Vec<Engine> = (0..SHARDS)
        .map(|shard| {
            let name = format!("{application}-{shard}");
            let log_options = PostgresLogOptions {
                thread: Some(connection_thread.clone()),
                ..PostgresLogOptions::default()
            };
            let log = PostgresLog::open(&own, &name, log_options).unwrap();
            let options = EngineOptions {
                maintenance: Some(maintenance.clone()),
                ..EngineOptions::default()
            };
            let clock = Arc::new(SystemClock::new());
            Engine::start(log, clock, options).unwrap().0
        })
        .collect();
    let now = threads();
    let new = |threads: &BTreeMap<String, u64>| {
        let new = threads
            .iter()
            .filter(|(name, _)| !before.contains_key(*name));
        new.map(|(_, switches)| *switches).collect::<Vec<_>>()
    };
    // Owner and sync thread of each, two for maintenance, and the one that looks names up where a host has one.
    let bound = 2 * SHARDS + 2 + 1;
    assert!(new(&now).len() <= bound, "{} threads", new(&now).len());
    // Appending, syncing, reading at the start, and looking after.
    thread::sleep(COUNTED);
    let (first, connections) = (threads(), connections(&runtime, &url, &application));
    assert_eq!(connections, 4 * i64::try_from(SHARDS).unwrap());
    thread::sleep(COUNTED);
    let then = threads();
    let moved_bytes = then.iter().filter_map(|(name, switches)| {
        let seen = first.get(name)?;
        Some(switches - seen)
    });
    let switches: u64 = moved_bytes.sum();
    println!(
        "{SHARDS} shards: {} threads, {connections} connections, {:.1} wake-ups a second",
        new(&then).len(),
        switches as f64 / COUNTED.as_secs_f64(),
    );
    runtime.block_on(async {
        for engine in engines {
            engine.shutdown().await;
        }
    });
}
