//! Records in Redis, over servers that `scripts/redis` starts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use lockgate_conformance::{
    processes,
    servers::{self, Scripted, name, put},
};
use lockgate_coordination::{Coordinator, RecordsCoordinator};
use lockgate_core::{ListRecords, Records, RecordsError};
use lockgate_redis::{RedisDurability, RedisRecords, RedisRecordsOptions};
use redis::aio::MultiplexedConnection;

struct Redis(Scripted);

impl Redis {
    /// `None`, and said so, where there is no Redis.
    fn start(test: &str) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/redis");
        Scripted::start(script, "LOCKGATE_TEST_REDIS", test).map(Self)
    }
}

async fn client(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

impl servers::Server for Redis {
    type Records = RedisRecords;

    fn url(&self) -> String {
        self.0.url.clone()
    }

    async fn connect(url: String, timeout: Duration) -> Result<RedisRecords, RecordsError> {
        let options = RedisRecordsOptions {
            timeout,
            ..RedisRecordsOptions::default()
        };
        RedisRecords::connect_with(&url, options).await
    }

    fn crash(&mut self) {
        self.0.crash();
    }

    fn signal(&self, signal: &str) {
        self.0.signal(signal);
    }

    /// A script is not interrupted, and there are no transactions.
    async fn open_work(_: String) -> u64 {
        0
    }
}

impl servers::Shifts for Redis {
    async fn shift(url: String, span: Duration) {
        let script = redis::Script::new(
            "local P = '{lockgate_records}:'
             for _, of in ipairs(redis.call('ZRANGE', P .. 'ends', 0, -1)) do
                local ends = tonumber(redis.call('HGET', P .. 'record:' .. of, 'ends')) - ARGV[1]
                redis.call('HSET', P .. 'record:' .. of, 'ends', string.format('%.0f', ends))
                redis.call('ZADD', P .. 'ends', string.format('%.0f', ends), of)
                redis.call('PUBLISH', P .. 'changes', of)
             end",
        );
        let mut client = client(&url).await;
        let span = u64::try_from(span.as_micros()).unwrap();
        let shifted = script.arg(span).invoke_async::<()>(&mut client).await;
        shifted.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_and_elections_conform() {
    let Some(server) = Redis::start("records_and_elections_conform") else {
        return;
    };
    let (_server, not_run) = servers::suites(server).await;
    assert!(not_run.is_empty(), "{not_run:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_hold_over_faults() {
    let Some(server) = Redis::start("records_hold_over_faults") else {
        return;
    };
    servers::faults(server).await;
}

/// What the next test starts.
#[test]
fn process() {
    processes::lead(async |url| RecordsCoordinator::new(RedisRecords::connect(url).await.unwrap()));
}

#[test]
fn a_process_that_is_stopped_or_killed_is_replaced() {
    if let Some(server) = Redis::start("a_process_that_is_stopped_or_killed_is_replaced") {
        processes::leaders_are_replaced("process", &server.0.url);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_rise_whatever_the_clock_does() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/redis");
    let test = "epochs_rise_whatever_the_clock_does";
    if let Some(server) = Scripted::start_with_clock(script, "LOCKGATE_TEST_REDIS", test) {
        servers::clocks::<Redis>(&server.url, |seconds| server.move_clock(seconds)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_serves_many() {
    let Some(server) = Redis::start("one_server_serves_many") else {
        return;
    };
    let url = &server.0.url;
    a_store_says_what_it_cannot_promise(url).await;
    leases_that_ended_are_cleared_by_whoever_comes_by(url).await;
    a_server_without_room_takes_no_writes_and_goes_on(url).await;
    a_server_that_is_demoted_shows_nothing_of_the_past(url).await;
}

async fn a_server_that_is_demoted_shows_nothing_of_the_past(url: &str) {
    let records = RedisRecords::connect(url).await.unwrap();
    let of = name("demoted");
    records.put(put("demoted", "x")).await.unwrap();
    let mut client = client(url).await;
    let mut follow = async |host: &str, port: &str| {
        let mut follow = redis::cmd("REPLICAOF");
        let followed = follow.arg(host).arg(port).query_async::<()>(&mut client);
        followed.await.unwrap();
    };
    follow("127.0.0.1", "1").await;
    let read = records.get(of.clone()).await;
    assert!(
        matches!(read, Err(RecordsError::Unavailable { .. })),
        "{read:?}"
    );
    follow("NO", "ONE").await;
    while records.get(of.clone()).await.is_err() {}
}

async fn a_store_says_what_it_cannot_promise(url: &str) {
    let records = RedisRecords::connect(url).await.unwrap();
    assert!(!records.capabilities().lasts && records.capabilities().wakes);
    let coordinator = RecordsCoordinator::new(records.clone());
    assert!(!coordinator.capabilities().epochs_last);
    let mut client = client(url).await;
    for (appendonly, appendfsync, expected) in [
        ("yes", "always", RedisDurability::Always),
        ("yes", "everysec", RedisDurability::EverySecond),
        ("no", "everysec", RedisDurability::Memory),
    ] {
        for (setting, value) in [("appendonly", appendonly), ("appendfsync", appendfsync)] {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg(setting).arg(value);
            set.query_async::<()>(&mut client).await.unwrap();
        }
        assert_eq!(records.durability().await.unwrap(), expected);
    }
}

async fn leases_that_ended_are_cleared_by_whoever_comes_by(url: &str) {
    let records = RedisRecords::connect(&format!("{url}?store=other"))
        .await
        .unwrap();
    let mut client = client(url).await;
    servers::ended_leases_are_cleared(&records, 200, async || {
        let mut keys = redis::cmd("KEYS");
        keys.arg("{other}:record:line/*");
        let left: Vec<String> = keys.query_async(&mut client).await.unwrap();
        !left.is_empty()
    })
    .await;
    // Another store knows nothing of them.
    let list = ListRecords {
        prefix: String::new(),
        after: None,
        limit: 1_000,
    };
    let here = RedisRecords::connect(url).await.unwrap();
    assert_eq!(here.list(list).await.unwrap().records, []);
}

async fn a_server_without_room_takes_no_writes_and_goes_on(url: &str) {
    let records = RedisRecords::connect(url).await.unwrap();
    records.put(put("before", "x")).await.unwrap();
    let mut client = client(url).await;
    let mut set = async |max: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(max);
        set.query_async::<()>(&mut client).await.unwrap();
    };
    set("1").await;
    let refused = records.put(put("a", "x")).await;
    assert!(
        matches!(&refused, Err(RecordsError::Unavailable { why }) if why.contains("OOM")),
        "{refused:?}"
    );
    set("0").await;
    // Nothing of it is there.
    assert_eq!(records.get(name("a")).await.unwrap(), None);
    records.put(put("a", "x")).await.unwrap();
}

#[tokio::test]
async fn bad_input_is_told_without_the_password() {
    let urls = [
        (
            "redis://user:secret@host/0?unknown=1",
            "\"unknown\" is not known",
        ),
        (
            "redis://user:secret@host/0?store=A-b",
            "cannot name a store",
        ),
        ("redis://user:secret@host:port/0", "cannot be read"),
        ("redis://user:secret@host/x", "cannot be read"),
        (
            "rediss://user:secret@host/0?ssl-ca=/nowhere",
            "ssl-ca=/nowhere",
        ),
        (
            "postgres://user:secret@host/x",
            "does not begin with redis://",
        ),
        ("redis://user:secret@127.0.0.1:1/0", "127.0.0.1:1"),
    ];
    let connect = async |url| RedisRecords::connect(url).await;
    servers::bad_urls_are_told_without_the_password(connect, &urls).await;
    let options = RedisRecordsOptions {
        timeout: Duration::ZERO,
        ..RedisRecordsOptions::default()
    };
    let error = RedisRecords::connect_with("redis://host", options).await;
    assert!(
        matches!(error, Err(RecordsError::Invalid { .. })),
        "{error:?}"
    );
}
