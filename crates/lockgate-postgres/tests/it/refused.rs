//! Starts that are refused while another owner serves.

use std::sync::Arc;

use lockgate_core::{Level, LogSource, ShardId};
use lockgate_engine::{Engine, EngineOptions, StartError, Status};
use lockgate_log::SystemClock;
use lockgate_postgres::{PostgresLog, PostgresLogOptions};
use tokio::runtime::Runtime;

use crate::{
    engine::{create, drain, queue, send},
    server::{execute, new_shard, shared_server},
    support::Owner,
};

fn start(url: &str, shard: &str) -> Result<Engine, StartError> {
    start_as(url, shard, EngineOptions::default())
}

fn start_as(url: &str, shard: &str, options: EngineOptions) -> Result<Engine, StartError> {
    let small_ranges = PostgresLogOptions {
        range_bits: 12,
        ..PostgresLogOptions::default()
    };
    let log = PostgresLog::open(url, shard, small_ranges).unwrap();
    Engine::start(log, Arc::new(SystemClock::new()), options).map(|(engine, _)| engine)
}

/// One that serves a shard with two messages, which are not in the same range.
fn serving(runtime: &Runtime, url: &str, shard: &str) -> Engine {
    let engine = start(url, shard).unwrap();
    runtime.block_on(async {
        engine.submit(create(&queue(), Level::Disk)).await.unwrap();
        for body in before() {
            engine.submit(send(&queue(), &body, 1)).await.unwrap();
        }
    });
    engine
}

fn before() -> [String; 2] {
    ["a", "b"].map(|body| body.repeat(4_000))
}

/// It has not been deposed by what was refused.
fn goes_on(runtime: &Runtime, engine: &Engine) {
    runtime.block_on(async {
        engine.submit(send(&queue(), "after", 1)).await.unwrap();
        let [first, second] = before();
        assert_eq!(drain(engine, &queue()).await, [&first, &second, "after"]);
        assert_eq!(engine.status(), Status::Serving);
        engine.shutdown().await;
    });
}

const SHARD: &str = "(SELECT id FROM lockgate.shard WHERE name = $1)";

#[test]
fn an_owner_outlives_a_start_under_another_number() {
    let Some(url) = shared_server("an_owner_outlives_a_start_under_another_number") else {
        return;
    };
    let (runtime, shard) = (Runtime::new().unwrap(), new_shard());
    let engine = serving(&runtime, &url, &shard);
    let options = EngineOptions {
        shard: ShardId::new(7).unwrap(),
        ..EngineOptions::default()
    };
    let refused = start_as(&url, &shard, options).unwrap_err();
    assert!(
        matches!(refused, StartError::OtherShard { .. }),
        "{refused:?}"
    );
    goes_on(&runtime, &engine);
}

#[test]
fn an_owner_outlives_a_start_that_finds_no_snapshot() {
    let Some(url) = shared_server("an_owner_outlives_a_start_that_finds_no_snapshot") else {
        return;
    };
    let (runtime, shard) = (Runtime::new().unwrap(), new_shard());
    let engine = serving(&runtime, &url, &shard);
    let trim = |to: i64| {
        let trim = format!("UPDATE lockgate.shard SET trimmed = {to} WHERE id = {SHARD}");
        assert_eq!(execute(&url, &trim, &[&shard]), 1);
    };
    trim(1);
    let refused = start(&url, &shard).unwrap_err();
    let StartError::NoSnapshot { unreadable, .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(unreadable.is_empty(), "{unreadable:?}");

    // One that is no image.
    let fake = format!(
        "WITH snapshot AS (
            INSERT INTO lockgate.snapshot (shard, position, number, complete, pieces, bytes)
            VALUES ({SHARD}, 1, 1, true, 0, 0) RETURNING id)
         SELECT id FROM snapshot"
    );
    assert_eq!(execute(&url, &fake, &[&shard]), 1);
    let refused = start(&url, &shard).unwrap_err();
    let StartError::NoSnapshot { unreadable, .. } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(unreadable.len(), 1);
    let remove = format!("DELETE FROM lockgate.snapshot WHERE shard = {SHARD}");
    assert_eq!(execute(&url, &remove, &[&shard]), 1);
    trim(0);
    goes_on(&runtime, &engine);
}

#[test]
fn an_owner_outlives_a_start_that_misses_rows() {
    let Some(url) = shared_server("an_owner_outlives_a_start_that_misses_rows") else {
        return;
    };
    let (runtime, shard) = (Runtime::new().unwrap(), new_shard());
    let engine = serving(&runtime, &url, &shard);
    let moved = format!(
        "UPDATE lockgate.record SET shard = -shard WHERE shard = {SHARD} AND position < 4096"
    );
    assert!(execute(&url, &moved, &[&shard]) > 0);
    let refused = start(&url, &shard).unwrap_err();
    let StartError::Missing { parts, .. } = refused else {
        panic!("{refused:?}");
    };
    assert!(parts.len() == 1 && parts[0].holds_records, "{parts:?}");
    let back = format!("UPDATE lockgate.record SET shard = -shard WHERE shard = -{SHARD}");
    assert!(execute(&url, &back, &[&shard]) > 0);
    goes_on(&runtime, &engine);
}

#[test]
fn a_newer_owner_outlives_an_older_start() {
    let Some(url) = shared_server("a_newer_owner_outlives_an_older_start") else {
        return;
    };
    let shard = new_shard();
    let mut newer = Owner::start(&url, &shard);
    // A kind of effect that nobody knows yet, with one byte.
    newer.append("\u{7f}\u{1}x").unwrap();
    let at = newer.records[0].position;
    let refused = start(&url, &shard).unwrap_err();
    assert!(
        matches!(refused, StartError::NewerFormat { at: newer, .. } if newer == at),
        "{refused:?}"
    );
    newer.append("more").unwrap();
    assert_eq!(newer.sync(), newer.log.tail());
}
