//! A ledger in a database.

use std::time::Duration;

use lockgate_conformance::{
    ledger::{self, Fixture},
    servers::{Proxy, To},
};
use lockgate_core::{
    Epoch, LedgerName, ReaderName, UniqueId, WallTime,
    ledger::{
        Append, Ledger, LedgerError, LedgerOptions, NewEvent, ReadLedger, ReaderPosition,
        SequenceId,
    },
};
use lockgate_postgres::{PostgresLedger, PostgresLedgerOptions};
use tokio_postgres::{Client, NoTls};

use crate::server::{Server, new_database, shared_server};

struct Postgres(Server);

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

    fn set_clock(&mut self, _wall: WallTime) -> bool {
        false
    }

    async fn restart(&mut self) -> bool {
        self.0.crash();
        true
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_in_a_database_conforms() {
    if shared_server("a_ledger_in_a_database_conforms").is_none() {
        return;
    }
    let not_run = ledger::run(&mut Postgres(Server::start())).await;
    // The server's clock stays as it is.
    assert_eq!(
        not_run,
        ["time_never_goes_back", "events_are_kept_for_the_retention"]
    );
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
            ledger.append(append(1, &["first"])).await.unwrap();
        },
    );
}

/// Events that are older than the retention go with later appends, and their unique ids stay.
#[test]
fn events_go_when_they_are_old() {
    over_a_database("events_go_when_they_are_old", async |url, _| {
        let made_with = LedgerOptions {
            retention: Some(1),
            hashed: true,
        };
        let options = options("old", made_with);
        let ledger = PostgresLedger::connect_with(url, options);
        let ledger = ledger.await.unwrap();
        let mut appended = ledger.append(append(1, &["first"])).await.unwrap();
        for number in 0..u64::MAX {
            if appended.head.first_id > SequenceId(1) {
                break;
            }
            let id = number.to_string();
            let next = append(1, &[&id]);
            appended = ledger.append(next).await.unwrap();
        }
        let first = UniqueId::new("first").unwrap();
        assert_eq!(ledger.find(first).await, Ok(Some(SequenceId(1))));
        let error = ledger.read(all()).await.unwrap_err();
        assert!(matches!(error, LedgerError::Trimmed { .. }), "{error}");
        let kept = ReadLedger {
            after: appended.head.first_id.previous(),
            ..all()
        };
        let page = ledger.read(kept).await.unwrap();
        assert_eq!(
            page.events
                .last()
                .map(|event| (event.sequence_id, event.hash)),
            Some((page.head.sequence_id, page.head.hash))
        );
    });
}

fn all() -> ReadLedger {
    ReadLedger {
        after: SequenceId::START,
        limit: 1_000,
        wait: Duration::ZERO,
    }
}

fn event(unique_id: &str) -> NewEvent {
    NewEvent {
        unique_id: Some(UniqueId::new(unique_id).unwrap()),
        payload: unique_id.to_owned().into(),
        ..NewEvent::default()
    }
}

fn append(epoch: u64, unique_ids: &[&str]) -> Append {
    Append {
        epoch: Epoch(epoch),
        head: None,
        events: unique_ids.iter().map(|id| event(id)).collect(),
        settled: Vec::new(),
    }
}

/// What is more than the database counts to is refused, or is for ever; it is not taken for something else.
#[test]
fn the_largest_numbers_are_refused_or_for_ever() {
    over_a_database(
        "the_largest_numbers_are_refused_or_for_ever",
        async |url, _| {
            let made_with = LedgerOptions {
                retention: Some(u64::MAX),
                ..LedgerOptions::default()
            };
            let ledger = PostgresLedger::connect_with(url, options("large", made_with));
            let ledger = ledger.await.unwrap();
            for id in ["a", "b"] {
                ledger.append(append(1, &[id])).await.unwrap();
            }
            assert_eq!(ledger.read(all()).await.unwrap().events.len(), 2);
            let last = SequenceId(u64::MAX);
            let position = ReaderPosition {
                reader: ReaderName::new("r").unwrap(),
                sequence_id: last,
            };
            let beyond = |error| matches!(error, Err(LedgerError::Beyond { .. }));
            assert!(beyond(ledger.move_reader(position).await));
            assert!(beyond(ledger.trim(last).await.map(drop)));
            let invalid = |error| matches!(error, Err(LedgerError::Invalid { .. }));
            assert!(invalid(
                ledger.append(append(u64::MAX, &["c"])).await.map(drop)
            ));
            assert!(invalid(ledger.seal(Epoch(u64::MAX)).await.map(drop)));
            assert_eq!(ledger.readers().await, Ok(Vec::new()));
        },
    );
}

/// A server that is frozen is not waited for, and nothing of the append is there twice.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_to_a_frozen_server_is_given_up() {
    if shared_server("an_append_to_a_frozen_server_is_given_up").is_none() {
        return;
    }
    let server = Postgres(Server::start());
    let options = PostgresLedgerOptions {
        timeout: Duration::from_secs(2),
        ..PostgresLedgerOptions::default()
    };
    let ledger = PostgresLedger::connect_with(&server.0.url, options);
    let ledger = ledger.await.unwrap();
    ledger.append(append(1, &["a"])).await.unwrap();
    crate::records::signal_all(&server.0, "-STOP");
    let error = ledger.append(append(1, &["b"])).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    crate::records::signal_all(&server.0, "-CONT");
    while let Err(error) = ledger.append(append(1, &["b"])).await {
        assert!(matches!(error, LedgerError::Unavailable { .. }), "{error}");
    }
    assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId(2));
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
                    append(1, &["u"]),
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
            let again = ledger.append(append(1, &["u", "v"])).await.unwrap();
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
            let mut waits = Box::pin(ledger.append(append(1, &["lost"])));
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
            let appended = ledger.append(append(1, &["kept"])).await.unwrap();
            assert_eq!(appended.head.sequence_id, SequenceId(1));
            assert_eq!(ledger.find(UniqueId::new("lost").unwrap()).await, Ok(None));
        },
    );
}

/// A writer whose connection is cut in any place of an append asks again, and its events are there once.
#[test]
fn what_is_appended_through_cuts_is_there_once() {
    over_a_database(
        "what_is_appended_through_cuts_is_there_once",
        async |url, client| {
            let proxy = Proxy::start(url);
            let ledger = PostgresLedger::connect(&proxy.url).await.unwrap();
            let (mut unknown, mut unavailable) = (0, 0);
            for number in 0..100 {
                let id = number.to_string();
                match number % 2 {
                    0 => proxy.cut_after(To::Server, number * 17),
                    _ => proxy.cut_after(To::Client, number * 20),
                }
                loop {
                    match ledger.append(append(1, &[&id])).await {
                        Ok(_) => break,
                        Err(LedgerError::Unknown { .. }) => unknown += 1,
                        Err(LedgerError::Unavailable { .. }) => unavailable += 1,
                        Err(other) => panic!("{other}"),
                    }
                    proxy.heal();
                }
            }
            proxy.heal();
            assert!(unknown > 0 && unavailable > 0, "{unknown} {unavailable}");
            let page = ledger.read(all()).await.unwrap();
            let ids: Vec<_> = page
                .events
                .iter()
                .map(|event| event.payload.clone())
                .collect();
            let all: Vec<_> = (0..100).map(|number| number.to_string()).collect();
            assert_eq!(ids, all);
            assert_eq!(count(&client, "lockgate_ledger.unique_ids").await, 100);
        },
    );
}
