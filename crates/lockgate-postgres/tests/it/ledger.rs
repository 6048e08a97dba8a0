//! A ledger in a database.

use std::time::Duration;

use lockgate_conformance::{
    ledger::{
        self, Fixture,
        databases::{self, append_unique},
    },
    servers::Scripted,
};
use lockgate_core::{
    LedgerName, UniqueId, WallTime,
    ledger::{Ledger, LedgerError, LedgerOptions, SequenceId},
};
use lockgate_postgres::{PostgresLedger, PostgresLedgerOptions};
use tokio_postgres::{Client, NoTls};

use crate::server::{Server, new_database, shared_server};

struct Postgres(Scripted);

fn options(ledger: &str, made_with: LedgerOptions) -> PostgresLedgerOptions {
    PostgresLedgerOptions {
        ledger: ledger.to_owned(),
        made_with,
        ..PostgresLedgerOptions::default()
    }
}

impl Fixture for Postgres {
    type Ledger = PostgresLedger;

    async fn open(&mut self, name: LedgerName, made_with: LedgerOptions) -> PostgresLedger {
        let schema = name.as_str().replace(['-', '.'], "_");
        let schema: String = schema.chars().take(40).collect();
        PostgresLedger::connect_with(&self.0.url, options(&schema, made_with))
            .await
            .unwrap()
    }

    fn set_clock(&mut self, wall: WallTime) -> bool {
        self.0.set_clock(wall);
        true
    }

    async fn restart(&mut self) -> bool {
        self.0.crash();
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_in_a_database_conforms() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/services");
    let (variable, test) = ("LOCKGATE_TEST_POSTGRES", "a_ledger_in_a_database_conforms");
    if let Some(server) = Scripted::start_with_clock(script, variable, test) {
        let not_run = ledger::run(&mut Postgres(server)).await;
        assert!(not_run.is_empty(), "{not_run:?}");
    }
}

/// Runs a test over a new database of the shared server, and a client of it.
fn over_a_database(test: &str, run: impl AsyncFnOnce(&str, Client)) {
    let Some(url) = shared_server(test) else {
        return;
    };
    let url = new_database(&url);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        run(&url, client).await;
    });
}

async fn count(client: &Client, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// A mistyped name makes no ledger, unless that is asked for.
#[test]
fn a_ledger_that_is_not_there_is_not_made_unless_it_may_be() {
    over_a_database(
        "a_ledger_that_is_not_there_is_not_made_unless_it_may_be",
        async |url, client| {
            let there = PostgresLedgerOptions {
                create: false,
                ..options("there", LedgerOptions::default())
            };
            let missing = PostgresLedger::connect_with(url, there.clone()).await;
            let ledger = LedgerName::new("there").unwrap();
            assert_eq!(missing.unwrap_err(), LedgerError::NotFound { ledger });
            let made =
                "SELECT count(*) FROM information_schema.schemata WHERE schema_name = 'there'";
            let made: i64 = client.query_one(made, &[]).await.unwrap().get(0);
            assert_eq!(made, 0);
            PostgresLedger::connect_with(url, options("there", LedgerOptions::default()))
                .await
                .unwrap();
            let ledger = PostgresLedger::connect_with(url, there).await.unwrap();
            assert_eq!(ledger.head().await.unwrap().sequence_id.0, 0);
        },
    );
}

/// What somebody must mend is not told as what passes.
#[test]
fn a_reader_without_rights_is_denied() {
    over_a_database("a_reader_without_rights_is_denied", async |url, client| {
        let made = options("denied", LedgerOptions::default());
        let ledger = PostgresLedger::connect_with(url, made).await.unwrap();
        ledger.append(append_unique(&["a"])).await.unwrap();
        let (server, database) = url.rsplit_once('/').unwrap();
        let user = format!("reader_of_{database}");
        let create = format!("CREATE ROLE {user} LOGIN PASSWORD 'secret'");
        client.batch_execute(&create).await.unwrap();
        let (_, host) = server.rsplit_once('@').unwrap();
        let theirs = format!("postgres://{user}:secret@{host}/{database}");
        let there = PostgresLedgerOptions {
            create: false,
            ..options("denied", LedgerOptions::default())
        };
        let refused = PostgresLedger::connect_with(&theirs, there.clone()).await;
        assert!(
            matches!(refused, Err(LedgerError::Denied { .. })),
            "{refused:?}"
        );
        let grant = format!(
            "GRANT USAGE ON SCHEMA denied TO {user}; GRANT SELECT ON denied.format, denied.head TO {user}"
        );
        client.batch_execute(&grant).await.unwrap();
        let theirs = PostgresLedger::connect_with(&theirs, there).await.unwrap();
        assert_eq!(theirs.head().await.unwrap().sequence_id, SequenceId(1));
        databases::is_denied(&theirs).await;
        let grant = format!("GRANT SELECT ON denied.events TO {user}");
        client.batch_execute(&grant).await.unwrap();
        let page = theirs.read(databases::all()).await.unwrap();
        assert_eq!(page.events.len(), 1, "a right that comes counts at once");
    });
}

/// Tables that are not those of a ledger are left alone, and told as what lasts.
#[test]
fn tables_of_others_and_tables_that_were_changed_are_told() {
    let test = "tables_of_others_and_tables_that_were_changed_are_told";
    over_a_database(test, async |url, client| {
        let shop = "CREATE SCHEMA shop; CREATE TABLE shop.events (id int, what text)";
        client.batch_execute(shop).await.unwrap();
        let made = options("shop", LedgerOptions::default());
        let refused = PostgresLedger::connect_with(url, made).await;
        assert!(
            matches!(&refused, Err(LedgerError::Invalid { why }) if why.contains("no ledger's")),
            "{refused:?}"
        );
        let made = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'shop'";
        let made: i64 = client.query_one(made, &[]).await.unwrap().get(0);
        assert_eq!(made, 1);

        let made = options("behind", LedgerOptions::default());
        let ledger = PostgresLedger::connect_with(url, made).await.unwrap();
        ledger.append(append_unique(&["a", "b"])).await.unwrap();
        let head = "UPDATE behind.head SET sequence_id = 1";
        client.batch_execute(head).await.unwrap();
        let refused = ledger.append(append_unique(&["c"])).await;
        assert!(
            matches!(refused, Err(LedgerError::Damaged { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn events_go_when_they_are_old() {
    over_a_database("events_go_when_they_are_old", async |url, _| {
        let made_with = LedgerOptions {
            retention: Some(1),
            hashed: true,
        };
        let ledger = PostgresLedger::connect_with(url, options("old", made_with)).await;
        databases::events_go_when_they_are_old(&ledger.unwrap()).await;
    });
}

#[test]
fn the_largest_numbers_are_refused_or_for_ever() {
    over_a_database(
        "the_largest_numbers_are_refused_or_for_ever",
        async |url, _| {
            let made_with = LedgerOptions {
                retention: Some(u64::MAX),
                ..LedgerOptions::default()
            };
            let ledger = PostgresLedger::connect_with(url, options("large", made_with)).await;
            databases::the_largest_numbers_are_refused_or_for_ever(&ledger.unwrap()).await;
        },
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_to_a_frozen_server_is_given_up() {
    if shared_server("an_append_to_a_frozen_server_is_given_up").is_none() {
        return;
    }
    let server = Server::start();
    let options = PostgresLedgerOptions {
        timeout: Duration::from_secs(2),
        ..PostgresLedgerOptions::default()
    };
    let ledger = PostgresLedger::connect_with(&server.url, options).await;
    let signal = |name: &str| crate::records::signal_all(&server, name);
    databases::an_append_to_a_frozen_server_is_given_up(&ledger.unwrap(), signal).await;
}

/// Events and what the caller writes are there together, or neither.
#[test]
fn an_append_in_a_transaction_of_its_caller_commits_with_it() {
    over_a_database(
        "an_append_in_a_transaction_of_its_caller_commits_with_it",
        async |url, mut client| {
            let ledger = PostgresLedger::connect(url).await.unwrap();
            client
                .batch_execute("CREATE TABLE accounts (owner text)")
                .await
                .unwrap();
            for commits in [false, true] {
                let transaction = client.transaction().await.unwrap();
                let insert = "INSERT INTO accounts VALUES ('a')";
                transaction.execute(insert, &[]).await.unwrap();
                let appended = PostgresLedger::append_within(
                    &transaction,
                    "lockgate_ledger",
                    append_unique(&["u"]),
                );
                let appended = appended.await.unwrap();
                assert_eq!(appended.events[0].sequence_id, SequenceId(1));
                // Nobody sees it before it is committed.
                assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId::START);
                match commits {
                    true => transaction.commit().await.unwrap(),
                    false => transaction.rollback().await.unwrap(),
                }
                let head = ledger.head().await.unwrap().sequence_id;
                let there = (count(&client, "accounts").await, head.0);
                assert_eq!(there, (i64::from(commits), u64::from(commits)));
            }
            let again = ledger.append(append_unique(&["u", "v"])).await.unwrap();
            let places: Vec<_> = again
                .events
                .iter()
                .map(|of| (of.sequence_id.0, of.is_duplicate))
                .collect();
            assert_eq!(places, [(1, true), (2, false)]);
        },
    );
}

/// Of an append that is given up while it waits for another's, nothing lands, and its ledger serves on.
#[test]
fn an_append_that_is_given_up_leaves_nothing() {
    over_a_database(
        "an_append_that_is_given_up_leaves_nothing",
        async |url, mut client| {
            let ledger = PostgresLedger::connect(url).await.unwrap();
            let holds = client.transaction().await.unwrap();
            let lock = "SELECT * FROM lockgate_ledger.head FOR UPDATE";
            holds.execute(lock, &[]).await.unwrap();
            let mut waits = Box::pin(ledger.append(append_unique(&["lost"])));
            let (looks, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            let is_waiting = async {
                let waiting = "pg_stat_activity WHERE wait_event_type = 'Lock'";
                while count(&looks, waiting).await == 0 {}
            };
            tokio::select! {
                _ = &mut waits => panic!("the head is locked"),
                () = is_waiting => {}
            }
            drop(waits);
            holds.rollback().await.unwrap();
            let appended = ledger.append(append_unique(&["kept"])).await.unwrap();
            assert_eq!(appended.head.sequence_id, SequenceId(1));
            assert_eq!(ledger.find(UniqueId::new("lost").unwrap()).await, Ok(None));
        },
    );
}

#[test]
fn what_is_appended_through_cuts_is_there_once() {
    over_a_database(
        "what_is_appended_through_cuts_is_there_once",
        async |url, client| {
            let connect = async |url: &str| PostgresLedger::connect(url).await.unwrap();
            databases::what_is_appended_through_cuts_is_there_once(url, connect).await;
            assert_eq!(count(&client, "lockgate_ledger.unique_ids").await, 102);
        },
    );
}

/// The numbers of a ledger's partitions.
async fn numbers(client: &Client, ledger: &str) -> Vec<u64> {
    let sql = format!(
        "SELECT substr(relname, 8)::bigint FROM pg_class JOIN pg_inherits ON oid = inhrelid
         WHERE inhparent = '{ledger}.events'::regclass ORDER BY 1"
    );
    let rows = client.query(&sql, &[]).await.unwrap();
    let numbers = rows.iter().map(|row| row.get::<_, i64>(0));
    numbers
        .map(|number| u64::try_from(number).unwrap())
        .collect()
}

#[test]
fn partitions_come_and_go() {
    over_a_database("partitions_come_and_go", async |url, mut client| {
        let made = |retention| LedgerOptions {
            retention,
            hashed: true,
        };
        let (looks, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let partition = "partition=10000";
        let old = format!("{url}?{partition}&ledger=old_parts");
        let old = PostgresLedger::connect_with(&old, options("", made(Some(1)))).await;
        let old_numbers = async || numbers(&looks, "old_parts").await;
        databases::partitions_go_when_they_are_old(&old.unwrap(), old_numbers).await;

        let url = format!("{url}?{partition}");
        let ledger = PostgresLedger::connect_with(&url, options("parts", made(None))).await;
        let ledger = ledger.unwrap();
        let numbers = async || numbers(&looks, "parts").await;
        databases::partitions_come_and_go(&ledger, numbers).await;

        // An append that could make one ahead does not wait for who changes the table, nor fails.
        let holds = client.transaction().await.unwrap();
        let lock = "LOCK TABLE parts.events IN SHARE UPDATE EXCLUSIVE MODE";
        holds.batch_execute(lock).await.unwrap();
        ledger.append(databases::many(9_000)).await.unwrap();
        assert_eq!(numbers().await, [2, 3]);
        holds.rollback().await.unwrap();
        ledger.append(databases::many(1)).await.unwrap();
        assert_eq!(numbers().await, [2, 3, 4]);
        // One that takes up two does not either.
        for _ in 0..2 {
            ledger.append(databases::many(10_000)).await.unwrap();
        }
        databases::follows(&ledger).await;

        // A drop waits for no transaction that uses the table, and the next trim makes up for it.
        let uses = client.transaction().await.unwrap();
        uses.query("SELECT max(sequence_id) FROM parts.events", &[])
            .await
            .unwrap();
        ledger.trim(SequenceId(40_001)).await.unwrap();
        assert_eq!(numbers().await[0], 2);
        uses.rollback().await.unwrap();
        ledger.trim(SequenceId(40_001)).await.unwrap();
        assert_eq!(numbers().await[0], 4);
        databases::follows(&ledger).await;
    });
}

/// The tables of the first version had nothing about partitions.
#[test]
fn tables_of_an_earlier_version_are_brought_up_to_date() {
    over_a_database(
        "tables_of_an_earlier_version_are_brought_up_to_date",
        async |url, client| {
            let ledger = PostgresLedger::connect(url).await.unwrap();
            ledger.append(append_unique(&["a"])).await.unwrap();
            let earlier = "ALTER TABLE lockgate_ledger.head DROP COLUMN partition_events, DROP COLUMN partitioned_to;
                UPDATE lockgate_ledger.format SET version = 1";
            client.batch_execute(earlier).await.unwrap();
            let again = PostgresLedger::connect(url).await.unwrap();
            let appended = again.append(append_unique(&["a", "b"])).await.unwrap();
            assert_eq!(appended.head.sequence_id, SequenceId(2));
            let later = "UPDATE lockgate_ledger.format SET version = 99";
            client.batch_execute(later).await.unwrap();
            let refused = PostgresLedger::connect(url).await.unwrap_err().to_string();
            assert!(refused.contains("has version 99"), "{refused}");
        },
    );
}
