//! Two engines in one process over two shards of one database.

use std::sync::Arc;

use lockgate_core::Level;
use lockgate_engine::{Engine, EngineOptions, MaintenanceThreads, Status, StopReason};
use lockgate_log::SystemClock;
use lockgate_postgres::{ConnectionThread, PostgresLog, PostgresLogOptions};

use crate::{
    engine::{create, drain, queue, send},
    server::{execute, new_shard, shared_server},
};

#[derive(Clone, Default)]
struct Common {
    maintenance: Option<MaintenanceThreads>,
    thread: Option<ConnectionThread>,
}

impl Common {
    fn start(&self, url: &str, shard: &str) -> Engine {
        let log_options = PostgresLogOptions {
            thread: self.thread.clone(),
            ..PostgresLogOptions::default()
        };
        let options = EngineOptions {
            maintenance: self.maintenance.clone(),
            ..EngineOptions::default()
        };
        let log = PostgresLog::open(url, shard, log_options).unwrap();
        let clock = Arc::new(SystemClock::new());
        let (engine, report) = Engine::start(log, clock, options).unwrap();
        assert!(report.is_clean(), "{report:?}");
        engine
    }
}

/// Sends some and takes all there is, which is to be just that.
async fn work(engine: &Engine, name: &str) {
    let bodies: Vec<_> = (0..20).map(|number| format!("{name}-{number}")).collect();
    for body in &bodies {
        engine.submit(send(&queue(), body, 1)).await.unwrap();
    }
    assert_eq!(drain(engine, &queue()).await, bodies);
}

#[test]
fn two_engines_over_one_database_are_two_shards() {
    let Some(url) = shared_server("two_engines_over_one_database_are_two_shards") else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let shared = Common {
        maintenance: Some(MaintenanceThreads::default()),
        thread: Some(ConnectionThread::start().unwrap()),
    };
    for common in [Common::default(), shared] {
        let shards = [new_shard(), new_shard()];
        let first = common.start(&url, &shards[0]);
        let second = common.start(&url, &shards[1]);
        runtime.block_on(async {
            let created = create(&queue(), Level::Disk);
            first.submit(created.clone()).await.unwrap();
            assert!(
                second.directory().is_empty(),
                "that queue is of the first only"
            );
            second.submit(created).await.unwrap();
            tokio::join!(work(&first, "first"), work(&second, "second"));

            // One stops in the middle of the other's work.
            first.submit(send(&queue(), "left", 1)).await.unwrap();
            tokio::join!(first.shutdown(), work(&second, "second"));
            assert_eq!(first.stopped().await, StopReason::ShutDown);
        });
        // It starts again beside it, and fails: somebody takes its rows away.
        let third = common.start(&url, &shards[0]);
        runtime.block_on(async {
            assert_eq!(drain(&third, &queue()).await, ["left"]);
            let work = work(&second, "second");
            let gone = "UPDATE lockgate.shard SET claim = claim + 1 WHERE name = $1";
            let taken = tokio::task::spawn_blocking({
                let (url, shard) = (url.clone(), shards[0].clone());
                move || execute(&url, gone, &[&shard])
            });
            let (taken, ()) = tokio::join!(taken, work);
            assert_eq!(taken.unwrap(), 1);
            assert!(third.stopped().await.is_failure());
            third.shutdown().await;
        });
        runtime.block_on(async {
            work(&second, "second").await;
            assert_eq!(second.status(), Status::Serving);
            second.shutdown().await;
            assert_eq!(second.stopped().await, StopReason::ShutDown);
        });
    }
}
