//! Inboxes and outboxes in PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../it/suite/mod.rs"]
mod suite;

use std::{
    pin::pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use lockgate_core::{Key, Message};
use lockgate_sql::{
    Error, Forwarder, ForwarderOptions, Inbox, OutboxCounts, ParkedRow, PostgresInbox,
    PostgresOutbox, RowId, Seen, StartError,
};
use tokio::time::timeout;
use tokio_postgres::{Client, Config, IsolationLevel, NoTls, Transaction};

use self::suite::{Database, sink::TestSink};

mod guard;

/// Within which nothing fails that is not meant to.
const LONG: Duration = Duration::from_secs(60);

/// A schema of a server that tests share.
struct Postgres {
    config: Config,
    outbox: PostgresOutbox,
    /// The name of the outbox and the schema: advisory locks know no schemas.
    name: String,
}

/// The URL of a server that all tests may use; `None`, and said so, where there is none.
fn server(test: &str) -> Option<String> {
    let url = std::env::var("LOCKGATE_TEST_POSTGRES").ok();
    if url.is_none() {
        let ci = std::env::var("CI");
        assert_ne!(
            ci.as_deref(),
            Ok("true"),
            "no PostgreSQL for {test}: use scripts/services run"
        );
        println!("not run: PostgreSQL: {test}: use scripts/services run cargo test");
    }
    url
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Postgres {
    async fn new(url: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Relaxed);
        let name = format!("sql_test_{}_{next}", std::process::id());
        let mut config: Config = url.parse().unwrap();
        let client = connect(&config).await;
        client
            .batch_execute(&format!("CREATE SCHEMA {name}"))
            .await
            .unwrap();
        config.options(format!("-c search_path={name}"));
        let outbox = PostgresOutbox::new(&name).unwrap();
        let new = Self {
            config,
            outbox,
            name,
        };
        let client = new.client().await;
        // A second time changes nothing.
        for _ in 0..2 {
            PostgresInbox::new("a")
                .unwrap()
                .create_table(&client)
                .await
                .unwrap();
            new.outbox.create_table(&client).await.unwrap();
        }
        client
            .batch_execute("CREATE TABLE effects (message text)")
            .await
            .unwrap();
        new
    }

    async fn client(&self) -> Client {
        connect(&self.config).await
    }

    async fn execute(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.unwrap();
    }

    /// Until a session waits for a lock of the kind.
    async fn until_one_waits(&self, watching: &Client, kind: &str) {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND wait_event = $1 AND application_name = $2";
        let name = self.config.get_application_name().unwrap_or_default();
        while watching
            .query_one(sql, &[&kind, &name])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {}
    }
}

async fn effect(transaction: &Transaction<'_>, consumer: &str, message: &str) {
    let sql = "INSERT INTO effects VALUES ($1 || ' ' || $2)";
    transaction
        .execute(sql, &[&consumer, &message])
        .await
        .unwrap();
}

impl Database for Postgres {
    async fn handle(&self, consumer: &str, message: &str, succeeds: bool) -> Result<bool, String> {
        let inbox = PostgresInbox::new(consumer).unwrap();
        let mut client = self.client().await;
        let done = inbox.once_as(&mut client, message, async |transaction| {
            effect(transaction, consumer, message).await;
            if succeeds {
                Ok(())
            } else {
                Err("on purpose".into())
            }
        });
        let done = done.await.map(|done| done.is_some());
        done.map_err(|failure| format!("{failure:?}"))
    }

    async fn effects(&self) -> Vec<String> {
        let sql = "SELECT message FROM effects ORDER BY message COLLATE \"C\"";
        let rows = self.client().await.query(sql, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn age_inbox(&self, by: Duration) {
        let by = by.as_millis();
        self.execute(&format!(
            "UPDATE lockgate_inbox SET handled_at = handled_at - {by}"
        ))
        .await;
    }

    async fn prune(&self, consumer: &str, older_than: Duration, max: u32) -> u64 {
        let inbox = PostgresInbox::new(consumer).unwrap();
        inbox
            .prune(&self.client().await, older_than, max)
            .await
            .unwrap()
    }

    async fn forget(&self, consumer: &str, message: &str) -> bool {
        let inbox = PostgresInbox::new(consumer).unwrap();
        inbox.forget(&self.client().await, message).await.unwrap()
    }

    async fn create_over_another_table(&self) -> Error {
        self.execute("DROP TABLE lockgate_inbox").await;
        // Without its key it would remember nothing.
        let columns = "consumer text NOT NULL, message text NOT NULL, handled_at bigint NOT NULL";
        self.execute(&format!("CREATE TABLE lockgate_inbox ({columns})"))
            .await;
        let inbox = PostgresInbox::new("a").unwrap();
        inbox.create_table(&self.client().await).await.unwrap_err()
    }

    async fn enqueue(&self, messages: &[Message], commit: bool) -> Vec<RowId> {
        let mut client = self.client().await;
        let transaction = client.transaction().await.unwrap();
        let mut rows = Vec::new();
        for message in messages {
            rows.push(self.outbox.enqueue(&transaction, message).await.unwrap());
        }
        if commit {
            transaction.commit().await.unwrap();
            self.outbox.wake();
        }
        rows
    }

    async fn forward(
        &self,
        sink: TestSink,
        options: ForwarderOptions,
    ) -> Result<Forwarder, StartError> {
        self.outbox
            .forward(self.config.clone(), NoTls, sink, options)
            .await
    }

    async fn counts(&self) -> OutboxCounts {
        self.outbox.counts(&self.client().await).await.unwrap()
    }

    async fn parked(&self, after: Option<RowId>, max: u32) -> Vec<ParkedRow> {
        self.outbox
            .parked(&self.client().await, after, max)
            .await
            .unwrap()
    }

    async fn retry(&self, row: RowId) -> bool {
        self.outbox
            .retry(&mut self.client().await, row)
            .await
            .unwrap()
    }

    async fn discard(&self, row: RowId) -> bool {
        self.outbox
            .discard(&mut self.client().await, row)
            .await
            .unwrap()
    }

    async fn age_claims(&self, by: Duration) {
        let by = by.as_millis();
        self.execute(&format!(
            "UPDATE lockgate_outbox SET first_sent = first_sent - {by}"
        ))
        .await;
    }

    async fn delete_parked_by_hand(&self) {
        self.execute("DELETE FROM lockgate_outbox WHERE state = 1")
            .await;
    }

    async fn spoil(&self, column: &str, value: &str) {
        self.execute(&format!("UPDATE lockgate_outbox SET {column} = '{value}'"))
            .await;
    }
}

#[tokio::test]
async fn postgres_keeps_what_is_promised() {
    let Some(url) = server("postgres_keeps_what_is_promised") else {
        return;
    };
    suite::run(async || Postgres::new(&url).await).await;
}

#[tokio::test]
async fn of_two_transactions_with_one_message_the_second_waits_and_one_has_an_effect() {
    let Some(url) = server("of_two_transactions_with_one_message") else {
        return;
    };
    for isolation in [
        IsolationLevel::ReadCommitted,
        IsolationLevel::RepeatableRead,
        IsolationLevel::Serializable,
    ] {
        for commit in [true, false] {
            let mut database = Postgres::new(&url).await;
            database.config.application_name(&database.name);
            let inbox = PostgresInbox::new("a").unwrap();
            let (mut first, mut second) = (database.client().await, database.client().await);
            let transaction = first.build_transaction().isolation_level(isolation);
            let transaction = transaction.start().await.unwrap();
            assert_eq!(inbox.record(&transaction, "m").await.unwrap(), Seen::First);
            effect(&transaction, "a", "m").await;

            let again = async {
                let transaction = second.build_transaction().isolation_level(isolation);
                let transaction = transaction.start().await.unwrap();
                let seen = inbox.record(&transaction, "m").await?;
                if seen == Seen::First {
                    effect(&transaction, "a", "m").await;
                    transaction.commit().await?;
                }
                Ok::<_, Error>(seen)
            };
            let watching = database.client().await;
            let end = async {
                database.until_one_waits(&watching, "transactionid").await;
                match commit {
                    true => transaction.commit().await.unwrap(),
                    false => transaction.rollback().await.unwrap(),
                }
            };
            let (seen, ()) = tokio::join!(again, end);
            match (commit, isolation) {
                (false, _) => assert_eq!(seen.unwrap(), Seen::First),
                (true, IsolationLevel::ReadCommitted) => assert_eq!(seen.unwrap(), Seen::Before),
                (true, _) => assert!(seen.is_err(), "a serialization failure: it comes again"),
            }
            assert_eq!(database.effects().await, ["a m"], "{isolation:?}");
        }
    }
}

/// PostgreSQL answers the commit of a transaction that it has given up as if all were well.
#[tokio::test]
async fn an_effect_that_hides_an_error_is_not_taken_for_committed() {
    let Some(url) = server("an_effect_that_hides_an_error") else {
        return;
    };
    let database = Postgres::new(&url).await;
    let inbox = PostgresInbox::new("a").unwrap();
    let mut client = database.client().await;
    let hidden = inbox.once_as(&mut client, "m", async |transaction| {
        effect(transaction, "a", "m").await;
        let _ = transaction.execute("SELECT 1 / 0", &[]).await;
        Ok(())
    });
    assert!(hidden.await.is_err());
    assert_eq!(
        database.handle("a", "m", true).await,
        Ok(true),
        "it comes again"
    );
}

#[tokio::test]
async fn rows_of_a_key_have_the_order_of_their_commits() {
    let Some(url) = server("rows_of_a_key_have_the_order_of_their_commits") else {
        return;
    };
    let mut database = Postgres::new(&url).await;
    database.config.application_name(&database.name);
    let of = |key: &str, body: &str| Message::new(body.to_owned()).with_key(Key::new(key).unwrap());
    let (mut first, mut second) = (database.client().await, database.client().await);
    let transaction = first.transaction().await.unwrap();
    let one = database
        .outbox
        .enqueue(&transaction, &of("a", "1"))
        .await
        .unwrap();
    // Others do not wait.
    database
        .enqueue(&[of("b", "other"), Message::new("none")], true)
        .await;

    let mut waiting = pin!(async {
        let transaction = second.transaction().await.unwrap();
        let two = database
            .outbox
            .enqueue(&transaction, &of("a", "2"))
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        two
    });
    let watching = database.client().await;
    tokio::select! {
        _ = &mut waiting => panic!("it did not wait for the other transaction"),
        () = database.until_one_waits(&watching, "advisory") => {}
    }
    // It must not be seen before the one that was first, so its id is drawn under the lock.
    let three = database
        .outbox
        .enqueue(&transaction, &of("a", "3"))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let two = waiting.await;
    assert!(one < three && three < two, "{one:?} {three:?} {two:?}");
}

#[tokio::test]
async fn a_second_forwarder_takes_over_when_the_first_is_gone() {
    let Some(url) = server("a_second_forwarder_takes_over") else {
        return;
    };
    let database = Postgres::new(&url).await;
    let sink = TestSink::new();
    let options = ForwarderOptions {
        poll: Duration::from_millis(5),
        ..ForwarderOptions::default()
    };
    let first = database
        .forward(sink.clone(), options.clone())
        .await
        .unwrap();
    first.wait_for(|state| state.leading).await;
    let second = database.forward(sink.clone(), options).await.unwrap();
    database.enqueue(&[Message::new("1")], true).await;
    first
        .wait_for(|state| state.forwarded == 1 && state.idle)
        .await;
    assert!(!second.state().leading);

    first.drain(Duration::from_secs(60)).await;
    second.wait_for(|state| state.leading).await;
    database.enqueue(&[Message::new("2")], true).await;
    second.wait_for(|state| state.forwarded == 1).await;
    assert_eq!(sink.bodies(), ["1", "2"]);
}

#[tokio::test]
async fn a_forwarder_whose_connection_breaks_goes_on() {
    let Some(url) = server("a_forwarder_whose_connection_breaks") else {
        return;
    };
    let mut database = Postgres::new(&url).await;
    database.config.application_name(&database.name);
    let sink = TestSink::new();
    let forwarder = database.forward(sink.clone(), ForwarderOptions::default());
    let forwarder = forwarder.await.unwrap();
    forwarder.wait_for(|state| state.leading).await;
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE application_name = $1 AND pid <> pg_backend_pid()";
    database
        .client()
        .await
        .execute(sql, &[&database.name])
        .await
        .unwrap();
    database.enqueue(&[Message::new("1")], true).await;
    forwarder.wait_for(|state| state.forwarded == 1).await;
    assert_eq!(sink.bodies(), ["1"]);
}

/// A schema for each tenant, with an outbox of the same name in each.
#[tokio::test]
async fn forwarders_of_two_schemas_run_at_the_same_time() {
    let Some(url) = server("forwarders_of_two_schemas") else {
        return;
    };
    let first = Postgres::new(&url).await;
    let mut second = Postgres::new(&url).await;
    second.outbox = first.outbox.clone();
    let sinks = [TestSink::new(), TestSink::new()];
    let mut forwarders = Vec::new();
    for (database, sink) in [&first, &second].into_iter().zip(&sinks) {
        database.enqueue(&[Message::new("1")], true).await;
        let options = ForwarderOptions::default();
        forwarders.push(database.forward(sink.clone(), options).await.unwrap());
    }
    for (forwarder, sink) in forwarders.iter().zip(&sinks) {
        let sent = timeout(LONG, forwarder.wait_for(|state| state.forwarded == 1)).await;
        assert!(
            sent.is_ok(),
            "the other schema's forwarder keeps it waiting"
        );
        assert_eq!(sink.bodies(), ["1"]);
    }
}

/// The default level of a database or of a user may be another one. There, a transaction that has waited for a lock
/// sees what was before the wait.
#[tokio::test]
async fn a_row_is_not_held_back_behind_one_that_was_resolved_meanwhile() {
    let Some(url) = server("a_row_is_not_held_back") else {
        return;
    };
    let mut database = Postgres::new(&url).await;
    database.config.application_name(&database.name);
    let options = format!(
        "-c search_path={} -c default_transaction_isolation=serializable",
        database.name
    );
    database.config.options(options);
    let of = |body: &str| Message::new(body.to_owned()).with_key(Key::new("a").unwrap());
    let sink = TestSink::new();
    sink.state().refused.insert("1".to_owned());
    database.enqueue(&[of("1")], true).await;
    let forwarder = database.forward(sink.clone(), ForwarderOptions::default());
    let forwarder = forwarder.await.unwrap();
    forwarder
        .wait_for(|state| state.parked == 1 && state.idle)
        .await;

    // As `discard` does it, with a wait between lock and change.
    let (mut client, watching) = (database.client().await, database.client().await);
    let transaction = client.build_transaction();
    let transaction = transaction.isolation_level(IsolationLevel::ReadCommitted);
    let transaction = transaction.start().await.unwrap();
    let sql = "SELECT pg_advisory_xact_lock(hashtextextended('lockgate_outbox parking ' || $1, 0))";
    transaction.execute(sql, &[&database.name]).await.unwrap();
    database.enqueue(&[of("2")], true).await;
    database.until_one_waits(&watching, "advisory").await;
    let sql = "DELETE FROM lockgate_outbox WHERE state = 1";
    transaction.execute(sql, &[]).await.unwrap();
    transaction.commit().await.unwrap();

    let sent = timeout(LONG, forwarder.wait_for(|state| state.forwarded == 1)).await;
    assert!(
        sent.is_ok(),
        "it waits behind nothing: {:?}",
        database.counts().await
    );
    assert_eq!(sink.bodies(), ["2"]);
}
