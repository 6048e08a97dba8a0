//! SQLite.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate::{
    Accepted, Lockgate, Message, Sink, SinkCapabilities, Source, TransportError,
    consumer::{
        Failure, Job, MemoryOptions, MemoryQueue, Worker, dispatch::DispatchCounts, handler,
    },
};
use lockgate_sql::{
    Error, Forwarder, ForwarderOptions, ForwarderState, OutboxCounts, ParkedRow, RowId, Seen,
    SqliteInbox, SqliteOutbox, StartError,
};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::suite::{self, Database, sink::TestSink};

/// Within which nothing fails that is not meant to.
const LONG: Duration = Duration::from_secs(60);

struct Sqlite {
    folder: TempDir,
    outbox: SqliteOutbox,
}

impl Sqlite {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let outbox = SqliteOutbox::new("mails").unwrap();
        let new = Self { folder, outbox };
        let connection = new.connection();
        connection
            .pragma_update(None, "journal_mode", "wal")
            .unwrap();
        SqliteInbox::new("a")
            .unwrap()
            .create_table(&connection)
            .unwrap();
        new.outbox.create_table(&connection).unwrap();
        connection
            .execute_batch("CREATE TABLE effects (message TEXT)")
            .unwrap();
        new
    }

    fn connection(&self) -> Connection {
        let connection = Connection::open(self.folder.path().join("service.db")).unwrap();
        // What survives a kill, and not a power cut, is enough here.
        connection
            .pragma_update(None, "synchronous", "normal")
            .unwrap();
        connection
    }

    fn execute(&self, sql: &str) {
        self.connection().execute(sql, []).unwrap();
    }
}

fn effect(transaction: &Transaction<'_>, consumer: &str, message: &str) -> rusqlite::Result<usize> {
    let sql = "INSERT INTO effects VALUES (?1 || ' ' || ?2)";
    transaction.execute(sql, (consumer, message))
}

impl Database for Sqlite {
    async fn handle(&self, consumer: &str, message: &str, succeeds: bool) -> Result<bool, String> {
        let inbox = SqliteInbox::new(consumer).unwrap();
        let done = inbox.once_as(&mut self.connection(), message, |transaction| {
            effect(transaction, consumer, message)?;
            if succeeds {
                Ok(())
            } else {
                Err("on purpose".into())
            }
        });
        done.map(|done| done.is_some())
            .map_err(|failure| format!("{failure:?}"))
    }

    async fn effects(&self) -> Vec<String> {
        let connection = self.connection();
        let mut statement = connection
            .prepare("SELECT message FROM effects ORDER BY 1")
            .unwrap();
        let effects = statement.query_map([], |row| row.get(0)).unwrap();
        effects.map(Result::unwrap).collect()
    }

    async fn age_inbox(&self, by: Duration) {
        let by = by.as_millis();
        self.execute(&format!(
            "UPDATE lockgate_inbox SET handled_at = handled_at - {by}"
        ));
    }

    async fn prune(&self, consumer: &str, older_than: Duration, max: u32) -> u64 {
        let inbox = SqliteInbox::new(consumer).unwrap();
        inbox.prune(&self.connection(), older_than, max).unwrap()
    }

    async fn forget(&self, consumer: &str, message: &str) -> bool {
        let inbox = SqliteInbox::new(consumer).unwrap();
        inbox.forget(&self.connection(), message).unwrap()
    }

    async fn create_over_another_table(&self) -> Error {
        self.execute("DROP TABLE lockgate_inbox");
        // Without its key it would remember nothing.
        self.execute(
            "CREATE TABLE lockgate_inbox (consumer TEXT, message TEXT, handled_at INTEGER)",
        );
        let inbox = SqliteInbox::new("a").unwrap();
        inbox.create_table(&self.connection()).unwrap_err()
    }

    async fn enqueue(&self, messages: &[Message], commit: bool) -> Vec<RowId> {
        let mut connection = self.connection();
        let transaction = connection.transaction().unwrap();
        let rows = messages
            .iter()
            .map(|message| self.outbox.enqueue(&transaction, message).unwrap());
        let rows = rows.collect();
        if commit {
            transaction.commit().unwrap();
            self.outbox.wake();
        }
        rows
    }

    async fn forward(
        &self,
        sink: TestSink,
        options: ForwarderOptions,
    ) -> Result<Forwarder, StartError> {
        self.outbox.forward(self.connection(), sink, options).await
    }

    async fn counts(&self) -> OutboxCounts {
        self.outbox.counts(&self.connection()).unwrap()
    }

    async fn parked(&self, after: Option<RowId>, max: u32) -> Vec<ParkedRow> {
        self.outbox.parked(&self.connection(), after, max).unwrap()
    }

    async fn retry(&self, row: RowId) -> bool {
        self.outbox.retry(&mut self.connection(), row).unwrap()
    }

    async fn discard(&self, row: RowId) -> bool {
        self.outbox.discard(&mut self.connection(), row).unwrap()
    }

    async fn age_claims(&self, by: Duration) {
        let by = by.as_millis();
        self.execute(&format!(
            "UPDATE lockgate_outbox SET first_sent = first_sent - {by}"
        ));
    }

    async fn delete_parked_by_hand(&self) {
        self.execute("DELETE FROM lockgate_outbox WHERE state = 1");
    }

    async fn spoil(&self, column: &str, value: &str) {
        self.execute(&format!("UPDATE lockgate_outbox SET {column} = '{value}'"));
    }
}

#[tokio::test]
async fn sqlite_keeps_what_is_promised() {
    suite::run(async || Sqlite::new()).await;
}

#[test]
fn of_two_transactions_with_one_message_the_second_is_refused_until_the_first_ends() {
    let database = Sqlite::new();
    let inbox = SqliteInbox::new("a").unwrap();
    let (mut first, mut second) = (database.connection(), database.connection());
    second.busy_timeout(Duration::ZERO).unwrap();

    let behavior = TransactionBehavior::Immediate;
    let transaction = first.transaction_with_behavior(behavior).unwrap();
    assert_eq!(inbox.record(&transaction, "m").unwrap(), Seen::First);
    effect(&transaction, "a", "m").unwrap();
    let busy = inbox.once_as(&mut second, "m", |_| Ok(()));
    assert!(format!("{busy:?}").contains("locked"), "{busy:?}");
    // As a deferred transaction, it is refused when it writes.
    let deferred = second.transaction().unwrap();
    let Err(Error::Sqlite(error)) = inbox.record(&deferred, "m") else {
        panic!("it was not refused");
    };
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    drop(deferred);
    transaction.commit().unwrap();

    let seen = inbox.once_as(&mut second, "m", |transaction| {
        Ok(effect(transaction, "a", "m")?)
    });
    assert!(matches!(seen, Ok(None)), "{seen:?}");
    let sql = "SELECT count(*) FROM effects";
    assert_eq!(second.query_row(sql, [], |row| row.get(0)), Ok(1));
}

/// Runs a worker over a source until it has settled so many messages; how often the effect happened.
async fn effects_of(source: impl Source + 'static, rejects: bool, runs: u64) -> (i64, Vec<String>) {
    let database = Sqlite::new();
    let path = database.folder.path().join("service.db");
    let errors = Arc::new(Mutex::new(Vec::new()));
    let (inbox, told) = (SqliteInbox::new("a").unwrap(), errors.clone());
    let handler = handler::blocking(move |job: Job| {
        let mut connection = Connection::open(&path)?;
        let done = inbox.once(&mut connection, &job, |transaction| {
            Ok(effect(transaction, "a", "m")?)
        });
        match done {
            Ok(Some(_)) if rejects => Err(Failure::reject("on purpose")),
            Ok(_) => Ok(()),
            Err(failure) => {
                told.lock().unwrap().push(format!("{failure:?}"));
                Err(Failure::reject("it has failed"))
            }
        }
    });
    let worker = Worker::over(source).start(handler).unwrap();
    let settled = |counts: DispatchCounts| counts.acknowledged + counts.rejected;
    while worker
        .state()
        .await
        .is_some_and(|state| settled(state.counts) < runs)
    {
        tokio::task::yield_now().await;
    }
    worker.drain(Duration::from_secs(60)).await;
    let sql = "SELECT count(*) FROM effects";
    let count = database
        .connection()
        .query_row(sql, [], |row| row.get(0))
        .unwrap();
    let errors = std::mem::take(&mut *errors.lock().unwrap());
    (count, errors)
}

#[tokio::test]
async fn a_dead_letter_that_is_moved_back_has_no_second_effect() {
    let folder = tempfile::tempdir().unwrap();
    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let dead = lockgate.queue("dead").create().await.unwrap();
    let mails = lockgate
        .queue("mails")
        .dead_letter("dead")
        .create()
        .await
        .unwrap();
    mails.send(Message::new("x")).await.unwrap();
    // The worker takes it to the dead letters after its effect, and gets it again.
    let both = effects_of(mails.clone(), true, 2);
    let redrive = async {
        while dead.describe().await.unwrap().counts.ready == 0 {
            tokio::task::yield_now().await;
        }
        dead.redrive().await.unwrap()
    };
    let ((effects, errors), moved) = tokio::join!(both, redrive);
    assert_eq!((effects, moved.moved), (1, 1), "{errors:?}");
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_message_without_a_lasting_name_has_no_effect_and_says_why() {
    let queue = MemoryQueue::new(MemoryOptions::default()).unwrap();
    queue.push(Message::new("x")).await.unwrap();
    let (effects, errors) = effects_of(queue, false, 1).await;
    assert_eq!(effects, 0);
    assert!(errors[0].contains("once_as"), "{errors:?}");
}

#[tokio::test]
async fn one_forwarder_runs_for_an_outbox() {
    let database = Sqlite::new();
    let forward = || database.forward(TestSink::new(), ForwarderOptions::default());
    let forwarder = forward().await.unwrap();
    let error = forward().await.unwrap_err();
    assert!(matches!(error, StartError::Running { .. }), "{error}");
    let other = SqliteOutbox::new("others").unwrap();
    let others = other.forward(
        database.connection(),
        TestSink::new(),
        ForwarderOptions::default(),
    );
    others.await.unwrap().drain(Duration::from_secs(60)).await;
    forwarder.drain(Duration::from_secs(60)).await;
    forward()
        .await
        .unwrap()
        .drain(Duration::from_secs(60))
        .await;
}

#[tokio::test]
async fn an_outbox_in_memory_or_without_a_table_has_no_forwarder() {
    let outbox = SqliteOutbox::new("mails").unwrap();
    let start = async |connection| {
        let started = outbox
            .forward(connection, TestSink::new(), ForwarderOptions::default())
            .await;
        started.unwrap_err()
    };
    let connection = Connection::open_in_memory().unwrap();
    outbox.create_table(&connection).unwrap();
    let error = start(connection).await;
    assert!(matches!(error, StartError::NoFile), "{error}");
    let error = start(Connection::open_in_memory().unwrap()).await;
    assert!(error.to_string().contains("create_table"), "{error}");
}

/// SQLite takes any bytes for a text.
#[tokio::test]
async fn a_text_that_is_none_is_parked_and_stops_nobody_else() {
    let database = Sqlite::new();
    let columns = [
        "unique_id",
        "key",
        "headers",
        "message_group",
        "content_type",
        "level",
        "priority",
    ];
    let mut messages = vec![Message::new("spoilt"); columns.len()];
    messages.push(Message::new("other"));
    let rows = database.enqueue(&messages, true).await;
    for (column, row) in columns.iter().zip(&rows) {
        let id = row.0;
        let sql = match *column {
            "priority" => "100000",
            _ => "CAST(x'61ff' AS TEXT)",
        };
        database.execute(&format!(
            "UPDATE lockgate_outbox SET {column} = {sql} WHERE id = {id}"
        ));
    }
    let sink = TestSink::new();
    let options = ForwarderOptions::default();
    let forwarder = database.forward(sink.clone(), options).await.unwrap();
    let all = columns.len() as u64;
    let parked = |state: &ForwarderState| state.parked == all && state.idle;
    let parked = timeout(LONG, forwarder.wait_for(parked)).await;
    assert!(parked.is_ok(), "{:?}", forwarder.state());
    assert_eq!(sink.bodies(), ["other"]);
    for (column, parked) in columns.iter().zip(database.parked(None, 10).await) {
        let wanted = format!("column {column} ");
        assert!(parked.reason.contains(&wanted), "{parked:?}");
        assert!(database.discard(parked.id).await);
    }
    forwarder.drain(LONG).await;
}

/// Does something before each send.
struct Doing<F>(TestSink, F);

impl<F: Fn() + Send + Sync> Sink for Doing<F> {
    type Id = usize;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.0.sink_capabilities()
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<usize>, TransportError>> {
        (self.1)();
        self.0.send_batch(messages).await
    }
}

/// Somebody restores the database, or makes the table anew.
#[tokio::test]
async fn a_row_that_has_the_number_of_an_accepted_one_is_sent() {
    let database = Sqlite::new();
    database.enqueue(&[Message::new("old")], true).await;
    let (sink, others) = (TestSink::new(), database.connection());
    let (others, once) = (Mutex::new(others), AtomicBool::new(true));
    let anew = "DELETE FROM lockgate_outbox; DELETE FROM sqlite_sequence; \
                INSERT INTO lockgate_outbox (outbox, unique_id, body) VALUES ('mails', 'new', x'6e6577')";
    let doing = Doing(sink.clone(), move || {
        if once.swap(false, Relaxed) {
            others.lock().unwrap().execute_batch(anew).unwrap();
        }
    });
    let options = ForwarderOptions::default();
    let forwarder = database
        .outbox
        .forward(database.connection(), doing, options);
    let forwarder = forwarder.await.unwrap();
    forwarder
        .wait_for(|state| state.forwarded > 0 && state.idle)
        .await;
    assert_eq!(sink.bodies(), ["old", "new"]);
}

#[tokio::test]
async fn a_forwarder_whose_sink_panics_says_so() {
    let database = Sqlite::new();
    database.enqueue(&[Message::new("1")], true).await;
    let doing = Doing(TestSink::new(), || panic!("on purpose"));
    let options = ForwarderOptions::default();
    let forwarder = database
        .outbox
        .forward(database.connection(), doing, options);
    let state = forwarder.await.unwrap().wait_for(|_| false).await;
    let trouble = state.trouble.unwrap_or_default();
    assert!(trouble.contains("panicked"), "{trouble}");
    assert!(!state.leading && !state.idle);
}

#[tokio::test]
async fn a_forwarder_starts_where_one_was_dropped() {
    let database = Sqlite::new();
    for _ in 0..2 {
        let options = ForwarderOptions::default();
        let forwarder = database.forward(TestSink::new(), options).await.unwrap();
        forwarder.wait_for(|state| state.idle).await;
        drop(forwarder);
    }
}

#[test]
fn a_guard_lets_no_leader_write_after_a_later_one() {
    use lockgate_core::{
        ElectionName, Epoch,
        coordination::{Fence, FenceError},
    };
    use lockgate_sql::SqliteGuard;

    let folder = tempfile::tempdir().unwrap();
    let open = || Connection::open(folder.path().join("guard.db")).unwrap();
    let reports = ElectionName::new("reports").unwrap();
    let fence = |epoch| Fence::new(reports.clone(), Epoch(epoch));
    let (mut old, mut new) = (open(), open());
    old.execute_batch("CREATE TABLE pages (by TEXT)").unwrap();
    for _ in 0..2 {
        SqliteGuard.create_table(&old).unwrap();
    }
    let write = |connection: &mut Connection, epoch: u64| -> Result<(), Error> {
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        transaction.execute("INSERT INTO pages VALUES (?1)", [epoch.to_string()])?;
        SqliteGuard.admit(&transaction, &fence(epoch))?;
        transaction.commit()?;
        Ok(())
    };
    for epoch in [7, 7] {
        write(&mut old, epoch).unwrap();
    }
    write(&mut new, 9).unwrap();
    let refused = write(&mut old, 7);
    assert!(
        matches!(
            refused,
            Err(Error::Fence(FenceError::Deposed {
                newest: Epoch(9),
                ..
            }))
        ),
        "{refused:?}"
    );
    let pages: i64 = old
        .query_row("SELECT count(*) FROM pages", [], |row| row.get(0))
        .unwrap();
    assert_eq!(pages, 3, "nothing of it landed");
    assert_eq!(SqliteGuard.newest(&old, &reports).unwrap(), Some(Epoch(9)));
}
