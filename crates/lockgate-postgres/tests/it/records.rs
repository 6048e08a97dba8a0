//! Records in a database.

use std::{fs, time::Duration};

use lockgate_conformance::{
    processes,
    servers::{self, Proxy, Scripted, name, put},
};
use lockgate_coordination::RecordsCoordinator;
use lockgate_core::{ListRecords, Records, RecordsError};
use lockgate_postgres::{PostgresRecords, PostgresRecordsOptions};
use tokio_postgres::NoTls;

use crate::server::{Server, batch, execute, new_database, shared_server, signal, text};

struct Postgres(Server);

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Signals all processes of a server.
pub(crate) fn signal_all(server: &Server, name: &str) {
    let listener = server.listener();
    let children = format!("/proc/{listener}/task/{listener}/children");
    let children = fs::read_to_string(children).unwrap();
    let mut processes = vec![listener];
    processes.extend(
        children
            .split_whitespace()
            .map(|it| it.parse::<i32>().unwrap()),
    );
    signal(name, &processes);
}

impl servers::Server for Postgres {
    type Records = PostgresRecords;

    fn url(&self) -> String {
        self.0.url.clone()
    }

    async fn connect(url: String, timeout: Duration) -> Result<PostgresRecords, RecordsError> {
        let options = PostgresRecordsOptions {
            timeout,
            ..PostgresRecordsOptions::default()
        };
        PostgresRecords::connect_with(&url, options).await
    }

    fn crash(&mut self) {
        self.0.crash();
    }

    fn signal(&self, name: &str) {
        signal_all(&self.0, name);
    }

    async fn open_work(url: String) -> u64 {
        let sql = "SELECT count(*) FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()";
        let row = client(&url).await.query_one(sql, &[]).await.unwrap();
        row.get::<_, i64>(0).unsigned_abs()
    }
}

impl servers::Shifts for Postgres {
    async fn shift(url: String, span: Duration) {
        let sql = format!(
            "SELECT FROM lockgate_records.store FOR UPDATE;
             UPDATE lockgate_records.record SET ends = ends - {};
             SELECT pg_notify('lockgate_records', name) FROM lockgate_records.record",
            span.as_micros()
        );
        client(&url).await.batch_execute(&sql).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_and_elections_conform() {
    if shared_server("records_and_elections_conform").is_none() {
        return;
    }
    let (_server, not_run) = servers::suites(Postgres(Server::start())).await;
    assert!(not_run.is_empty(), "{not_run:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_hold_over_faults() {
    if shared_server("records_hold_over_faults").is_none() {
        return;
    }
    servers::faults(Postgres(Server::start())).await;
}

/// What the next test starts.
#[test]
fn process() {
    processes::lead(async |url| {
        RecordsCoordinator::new(PostgresRecords::connect(url).await.unwrap())
    });
}

#[test]
fn a_process_that_is_stopped_or_killed_is_replaced() {
    if let Some(url) = shared_server("a_process_that_is_stopped_or_killed_is_replaced") {
        processes::leaders_are_replaced("records::process", &new_database(&url));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_rise_whatever_the_clock_does() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/services");
    let test = "epochs_rise_whatever_the_clock_does";
    let variable = "LOCKGATE_TEST_POSTGRES";
    if let Some(server) = Scripted::start_with_clock(script, variable, test) {
        let move_clock = |seconds| server.move_clock(seconds);
        servers::clocks::<Postgres>(&server.url, move_clock).await;
    }
}

/// Whose statements would have a syntax error.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_not_named_by_a_word_of_sql() {
    let Some(url) = shared_server("a_store_is_not_named_by_a_word_of_sql") else {
        return;
    };
    for word in ["user", "order", "pg_store"] {
        let refused = PostgresRecords::connect(&format!("{url}?store={word}")).await;
        assert!(
            matches!(refused, Err(RecordsError::Invalid { .. })),
            "{refused:?}"
        );
    }
}

/// Of many that come to a new database one makes the tables; a user who may make nothing can use what is there.
#[tokio::test(flavor = "multi_thread")]
async fn tables_are_made_once_and_then_used_by_others() {
    let Some(url) = shared_server("tables_are_made_once_and_then_used_by_others") else {
        return;
    };
    let url = &tokio::task::block_in_place(|| new_database(&url));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let url = url.clone();
        tasks.spawn(async move {
            let records = PostgresRecords::connect(&url).await.unwrap();
            records.put(put(&format!("{number}"), "x")).await.unwrap();
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let (server, database) = url.rsplit_once('/').unwrap();
    let (_, host) = server.rsplit_once('@').unwrap();
    let user = format!("records_of_{database}");
    let grants = format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'secret';
         GRANT USAGE ON SCHEMA lockgate_records TO {user};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lockgate_records TO {user}"
    );
    tokio::task::spawn_blocking({
        let url = url.clone();
        move || batch(&url, &grants)
    })
    .await
    .unwrap();
    let theirs = format!("postgres://{user}:secret@{host}/{database}");
    let records = PostgresRecords::connect(&theirs).await.unwrap();
    records.put(put("theirs", "x")).await.unwrap();
    let list = ListRecords {
        prefix: String::new(),
        after: None,
        limit: 100,
    };
    assert_eq!(records.list(list).await.unwrap().records.len(), 9);
    // Another store in the same database, which they may not make.
    let other = PostgresRecords::connect(&format!("{theirs}?store=other")).await;
    assert!(
        matches!(other, Err(RecordsError::Denied { .. })),
        "{other:?}"
    );
    let other = PostgresRecords::connect(&format!("{url}?store=other"))
        .await
        .unwrap();
    assert_eq!(other.get(name("theirs")).await.unwrap(), None);
    // Of a newer version.
    tokio::task::spawn_blocking({
        let url = url.clone();
        move || execute(&url, "UPDATE other.format SET version = 99", &[])
    })
    .await
    .unwrap();
    let newer = PostgresRecords::connect(&format!("{url}?store=other")).await;
    assert!(
        matches!(&newer, Err(RecordsError::Invalid { why }) if why.contains("version 99")),
        "{newer:?}"
    );
}

/// The first program knew no fences, and left no version of its functions. It may go on beside that of today.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_an_earlier_program_goes_on_with_fences() {
    let Some(url) = shared_server("a_store_of_an_earlier_program_goes_on_with_fences") else {
        return;
    };
    let url = &tokio::task::block_in_place(|| new_database(&url));
    let earlier = PostgresRecords::connect(url).await.unwrap();
    earlier.put(put("a", "x")).await.unwrap();
    let client = client(url).await;
    client
        .batch_execute(
            "ALTER TABLE lockgate_records.format DROP COLUMN program;
             DROP FUNCTION lockgate_records.put, lockgate_records.delete, lockgate_records.lease,
                lockgate_records.extend, lockgate_records.release;
             CREATE FUNCTION lockgate_records.put(text, bytea, bigint, bigint, OUT outcome text)
                LANGUAGE sql AS $$ SELECT 'earlier' $$;
             CREATE FUNCTION lockgate_records.release(text, bigint) RETURNS text LANGUAGE sql AS $$ SELECT 'earlier' $$",
        )
        .await
        .unwrap();
    let today = PostgresRecords::connect(url).await.unwrap();
    assert_eq!(today.get(name("a")).await.unwrap().unwrap().value, "x");
    servers::fences_hold(&today).await;
    earlier.put(put("b", "x")).await.unwrap();
    // As the first program asks, and what it looks at when it connects.
    let asked = "SELECT outcome FROM lockgate_records.put($1, '', NULL, NULL)";
    let outcome = client.query_one(asked, &[&"c"]).await.unwrap();
    assert_eq!(outcome.get::<_, &str>(0), "done");
    let version = "SELECT max(version), max(program) FROM lockgate_records.format";
    let versions = client.query_one(version, &[]).await.unwrap();
    assert_eq!((versions.get(0), versions.get(1)), (1, 2));
    // Of a later program, which serves this one too: nothing is made anew.
    let later = "UPDATE lockgate_records.format SET program = 99";
    client.batch_execute(later).await.unwrap();
    PostgresRecords::connect(url).await.unwrap();
    let versions = client.query_one(version, &[]).await.unwrap();
    assert_eq!((versions.get(0), versions.get(1)), (1, 99));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_ended_are_cleared_by_whoever_comes_by() {
    let Some(url) = shared_server("leases_that_ended_are_cleared_by_whoever_comes_by") else {
        return;
    };
    let url = tokio::task::block_in_place(|| new_database(&url));
    let records = PostgresRecords::connect(&url).await.unwrap();
    servers::ended_leases_are_cleared(&records, 20, async || {
        let url = url.clone();
        let count = "SELECT count(*)::text FROM lockgate_records.record WHERE name LIKE 'line/%'";
        let left = tokio::task::spawn_blocking(move || text(&url, count)).await;
        left.unwrap() != "0"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_shares_sessions_is_refused_and_one_that_keeps_them_serves() {
    let test = "a_pooler_that_shares_sessions_is_refused_and_one_that_keeps_them_serves";
    if shared_server(test).is_none() {
        return;
    }
    let server = Server::start();
    let poolers = server
        .pooler("session", test)
        .zip(server.pooler("transaction", test));
    let Some((session, shared)) = poolers else {
        return;
    };
    let records = PostgresRecords::connect(&session.url).await.unwrap();
    records.put(put("a", "x")).await.unwrap();
    let refused = PostgresRecords::connect(&shared.url).await;
    assert!(
        matches!(&refused, Err(RecordsError::Invalid { why }) if why.contains("pooler")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn bad_input_is_told_without_the_password() {
    let urls = [
        ("postgres://user:secret@host/x?unknown=1", "unknown"),
        (
            "postgres://user:secret@host/x?store=A-b",
            "cannot name a store",
        ),
        ("postgres://user:secret@host:port/x", "cannot be read"),
        (
            "postgres://user:secret@host/x?target_session_attrs=read-only",
            "primary",
        ),
        ("postgres://user:secret@127.0.0.1:1/x", "127.0.0.1:1"),
    ];
    let connect = async |url| PostgresRecords::connect(url).await;
    servers::bad_urls_are_told_without_the_password(connect, &urls).await;
    let options = PostgresRecordsOptions {
        timeout: Duration::ZERO,
        ..PostgresRecordsOptions::default()
    };
    let error = PostgresRecords::connect_with("postgres://u@host/x", options).await;
    assert!(
        matches!(error, Err(RecordsError::Invalid { .. })),
        "{error:?}"
    );
    // Nobody listens where the proxy leads.
    let proxy = Proxy::start("postgres://u:secret@127.0.0.1:1/x");
    let error = PostgresRecords::connect(&proxy.url).await;
    assert!(
        matches!(error, Err(RecordsError::Unavailable { .. })),
        "{error:?}"
    );
}
