//! Records and ledgers in MariaDB, over servers that `scripts/mariadb` starts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ledger;

use std::time::{Duration, Instant};

use lockgate_conformance::{
    processes,
    servers::{self, Scripted, name, put},
};
use lockgate_coordination::RecordsCoordinator;
use lockgate_core::{
    ExtendRecord, HolderName, LeaseRecord, ListRecords, Records, RecordsError, ReleaseRecord,
    WatchRecord,
};
use lockgate_mysql::{MysqlRecords, MysqlRecordsOptions};
use mysql_async::{Conn, Opts, prelude::Queryable as _};

struct Mysql(Scripted);

impl Mysql {
    /// `None`, and said so, where there is no MariaDB.
    fn start(test: &str) -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mariadb");
        Scripted::start(script, "LOCKGATE_TEST_MYSQL", test).map(Self)
    }
}

async fn client(url: &str) -> Conn {
    Conn::new(Opts::from_url(url).unwrap()).await.unwrap()
}

impl servers::Server for Mysql {
    type Records = MysqlRecords;

    fn url(&self) -> String {
        self.0.url.clone()
    }

    async fn connect(url: String, timeout: Duration) -> Result<MysqlRecords, RecordsError> {
        let options = MysqlRecordsOptions {
            timeout,
            ..MysqlRecordsOptions::default()
        };
        MysqlRecords::connect_with(&url, options).await
    }

    fn crash(&mut self) {
        self.0.crash();
    }

    fn signal(&self, signal: &str) {
        self.0.signal(signal);
    }

    async fn open_work(url: String) -> u64 {
        let sql = "SELECT (SELECT COUNT(*) FROM information_schema.innodb_trx)
            + (SELECT COUNT(*) FROM information_schema.processlist
                WHERE user = 'lockgate' AND command <> 'Sleep' AND id <> CONNECTION_ID())";
        client(&url).await.query_first(sql).await.unwrap().unwrap()
    }
}

impl servers::Shifts for Mysql {
    async fn shift(url: String, span: Duration) {
        let mut client = client(&url).await;
        for sql in [
            "START TRANSACTION".to_owned(),
            "SELECT * FROM lockgate_records_store FOR UPDATE".to_owned(),
            format!(
                "UPDATE lockgate_records_record SET ends = ends - {}",
                span.as_micros()
            ),
            "COMMIT".to_owned(),
        ] {
            client.query_drop(sql).await.unwrap();
        }
    }
}

fn lease(of: &str, holder: &str, lease: u64) -> LeaseRecord {
    LeaseRecord {
        name: name(of),
        holder: HolderName::new(holder).unwrap(),
        lease,
        delete_at_end: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_and_elections_conform() {
    let Some(server) = Mysql::start("records_and_elections_conform") else {
        return;
    };
    let (_server, not_run) = servers::suites(server).await;
    assert!(not_run.is_empty(), "{not_run:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_hold_over_faults() {
    let Some(server) = Mysql::start("records_hold_over_faults") else {
        return;
    };
    servers::faults(server).await;
}

/// What the next test starts.
#[test]
fn process() {
    processes::lead(async |url| RecordsCoordinator::new(MysqlRecords::connect(url).await.unwrap()));
}

#[test]
fn a_process_that_is_stopped_or_killed_is_replaced() {
    if let Some(server) = Mysql::start("a_process_that_is_stopped_or_killed_is_replaced") {
        processes::leaders_are_replaced("process", &server.0.url);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_rise_whatever_the_clock_does() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mariadb");
    let test = "epochs_rise_whatever_the_clock_does";
    if let Some(server) = Scripted::start_with_clock(script, "LOCKGATE_TEST_MYSQL", test) {
        servers::clocks::<Mysql>(&server.url, |seconds| server.move_clock(seconds)).await;
    }
}

/// Who waits for its end waits for that lock.
async fn a_lease_that_is_extended_keeps_its_lock(url: &str) {
    let records = MysqlRecords::connect(url).await.unwrap();
    let lease = LeaseRecord {
        name: name("extended"),
        holder: HolderName::new("me").unwrap(),
        lease: 500,
        delete_at_end: false,
    };
    let began = Instant::now();
    let leased = records.lease(lease.clone()).await.unwrap();
    let extend = ExtendRecord {
        name: lease.name,
        epoch: leased.lease.unwrap().epoch,
        lease: 60_000,
    };
    records.extend(extend).await.unwrap();
    // Past the end that it had at first, whatever else is asked for.
    let mut number = 0;
    while began.elapsed() <= 2 * Duration::from_millis(lease.lease) {
        records
            .put(put(&format!("beside/{number}"), "x"))
            .await
            .unwrap();
        number += 1;
    }
    records.put(put("beside/last", "x")).await.unwrap();
    let lock = "SELECT IS_USED_LOCK(CONCAT('lockgate:', SHA1(CONCAT(DATABASE(), '.lockgate_records.extended'))))";
    let held: Option<Option<u64>> = client(url).await.query_first(lock).await.unwrap();
    assert!(held.flatten().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_serves_many() {
    let Some(server) = Mysql::start("one_server_serves_many") else {
        return;
    };
    let url = &server.0.url;
    tables_are_made_once_and_then_used_by_others(url).await;
    a_store_of_an_earlier_program_goes_on_with_fences(url).await;
    leases_that_ended_are_cleared_by_whoever_comes_by(url).await;
    the_end_of_a_lease_wakes_who_watches_it(url).await;
    a_lease_that_is_extended_keeps_its_lock(url).await;
    a_server_that_forgets_is_refused(url).await;
}

/// Of many that come to a new database one makes the tables; a user who may make nothing can use what is there.
async fn tables_are_made_once_and_then_used_by_others(url: &str) {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let url = url.to_owned();
        tasks.spawn(async move {
            let records = MysqlRecords::connect(&url).await.unwrap();
            records.put(put(&format!("{number}"), "x")).await.unwrap();
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let mut client = client(url).await;
    for sql in [
        "CREATE USER theirs@'%' IDENTIFIED BY 'secret'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON lockgate.* TO theirs@'%'",
    ] {
        client.query_drop(sql).await.unwrap();
    }
    let (_, host) = url.rsplit_once('@').unwrap();
    let theirs = format!("mysql://theirs:secret@{host}");
    let records = MysqlRecords::connect(&theirs).await.unwrap();
    records.put(put("theirs", "x")).await.unwrap();
    let list = ListRecords {
        prefix: String::new(),
        after: None,
        limit: 100,
    };
    assert_eq!(records.list(list).await.unwrap().records.len(), 9);
    // Another store in the same database, which they may not make.
    let other = MysqlRecords::connect(&format!("{theirs}?store=other")).await;
    assert!(
        matches!(other, Err(RecordsError::Denied { .. })),
        "{other:?}"
    );
    let other = MysqlRecords::connect(&format!("{url}?store=other"))
        .await
        .unwrap();
    assert_eq!(other.get(name("theirs")).await.unwrap(), None);
    client
        .query_drop("UPDATE other_format SET version = 99")
        .await
        .unwrap();
    let newer = MysqlRecords::connect(&format!("{url}?store=other")).await;
    assert!(
        matches!(&newer, Err(RecordsError::Invalid { why }) if why.contains("version 99")),
        "{newer:?}"
    );
}

/// The first program knew no fences, and left no version of its procedures. It may go on beside that of today.
async fn a_store_of_an_earlier_program_goes_on_with_fences(url: &str) {
    let store = &format!("{url}?store=earlier");
    let earlier = MysqlRecords::connect(store).await.unwrap();
    earlier.put(put("a", "x")).await.unwrap();
    let mut client = client(url).await;
    for sql in [
        "ALTER TABLE earlier_format DROP COLUMN program",
        "DROP PROCEDURE earlier_fenced_put",
        "DROP PROCEDURE earlier_fenced_release",
        "DROP PROCEDURE earlier_put",
        "CREATE PROCEDURE earlier_put(IN a INT, IN b INT, IN c INT, IN d INT) SELECT 'earlier' AS outcome",
    ] {
        client.query_drop(sql).await.unwrap();
    }
    let today = MysqlRecords::connect(store).await.unwrap();
    assert_eq!(today.get(name("a")).await.unwrap().unwrap().value, "x");
    servers::fences_hold(&today).await;
    earlier.put(put("b", "x")).await.unwrap();
    // As the first program asks, and what it looks at when it connects.
    let asked = "CALL earlier_put('c', '', NULL, NULL)";
    let row: mysql_async::Row = client.query_first(asked).await.unwrap().unwrap();
    assert_eq!(row.get::<String, _>("outcome").unwrap(), "done");
    let versions = "SELECT MAX(version), MAX(program) FROM earlier_format";
    let found: Option<(u32, u32)> = client.query_first(versions).await.unwrap();
    assert_eq!(found, Some((1, 2)));
    // Of a later program, which serves this one too: nothing is made anew.
    let later = "UPDATE earlier_format SET program = 99";
    client.query_drop(later).await.unwrap();
    MysqlRecords::connect(store).await.unwrap();
    let found: Option<(u32, u32)> = client.query_first(versions).await.unwrap();
    assert_eq!(found, Some((1, 99)));
}

async fn leases_that_ended_are_cleared_by_whoever_comes_by(url: &str) {
    let records = MysqlRecords::connect(url).await.unwrap();
    let mut client = client(url).await;
    servers::ended_leases_are_cleared(&records, 20, async || {
        let left = "SELECT COUNT(*) FROM lockgate_records_record WHERE name LIKE 'line/%'";
        client.query_first::<u64, _>(left).await.unwrap() != Some(0)
    })
    .await;
}

/// Nobody looks by the clock here.
async fn the_end_of_a_lease_wakes_who_watches_it(url: &str) {
    let options = MysqlRecordsOptions {
        poll: Duration::from_secs(60),
        ..MysqlRecordsOptions::default()
    };
    let holds = MysqlRecords::connect_with(url, options.clone())
        .await
        .unwrap();
    let waits = MysqlRecords::connect_with(url, options).await.unwrap();
    for round in 0..3 {
        let record = holds.lease(lease("woken", "me", 600_000)).await.unwrap();
        let watch = WatchRecord {
            name: record.name.clone(),
            seen: Some(record.revision),
            wait: Duration::from_secs(50),
        };
        let watching = tokio::spawn({
            let waits = waits.clone();
            async move { waits.watch(watch).await.unwrap() }
        });
        // Until it waits for the lock of the holder's session.
        let mut client = client(url).await;
        let waiting =
            "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";
        while client.query_first::<u64, _>(waiting).await.unwrap() != Some(1) {}
        let release = ReleaseRecord {
            name: record.name.clone(),
            epoch: record.lease.unwrap().epoch,
        };
        holds.release(release).await.unwrap();
        assert_eq!(watching.await.unwrap(), None, "round {round}");
    }
}

async fn a_server_that_forgets_is_refused(url: &str) {
    let mut client = client(url).await;
    let set = "SET GLOBAL innodb_flush_log_at_trx_commit = 2";
    client.query_drop(set).await.unwrap();
    let refused = MysqlRecords::connect(url).await;
    assert!(
        matches!(&refused, Err(RecordsError::Invalid { why }) if why.contains("flush_log")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn bad_input_is_told_without_the_password() {
    let urls = [
        (
            "mysql://user:secret@host/x?unknown=1",
            "\"unknown\" is not known",
        ),
        (
            "mysql://user:secret@host/x?store=A-b",
            "cannot name a store",
        ),
        ("mysql://user:secret@host:port/x", "cannot be read"),
        ("mysql://user:secret@host", "names no database"),
        (
            "mysql://user:secret@host/x?ssl-mode=always",
            "ssl-mode=always is none of",
        ),
        (
            "mysql://user:secret@host/x?ssl-mode=required&ssl-ca=/nowhere",
            "ssl-ca=/nowhere",
        ),
        (
            "postgres://user:secret@host/x",
            "does not begin with mysql://",
        ),
        ("mysql://user:secret@127.0.0.1:1/x", "127.0.0.1:1"),
    ];
    let connect = async |url| MysqlRecords::connect(url).await;
    servers::bad_urls_are_told_without_the_password(connect, &urls).await;
    let options = MysqlRecordsOptions {
        poll: Duration::ZERO,
        ..MysqlRecordsOptions::default()
    };
    let error = MysqlRecords::connect_with("mysql://u@host/x", options).await;
    assert!(
        matches!(error, Err(RecordsError::Invalid { .. })),
        "{error:?}"
    );
}
