//! An outbox in PostgreSQL.

use std::sync::Arc;

use lockgate_core::{Message, Sink};
use tokio::sync::Notify;
use tokio_postgres::{
    Client, Config, GenericClient, Socket, Transaction,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::{begin, bytea, check_table, int2, int8, store::PostgresStore, text};
use crate::{
    Error, Forwarder, ForwarderOptions, OutboxCounts, ParkedRow, RowId, StartError,
    error::checked_name, forward::start, row::Row,
};

/// Makes the table, in the first schema of the `search_path`.
pub const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS lockgate_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    outbox text NOT NULL,
    key text,
    -- For deduplication: of the message, or random.
    unique_id text NOT NULL,
    body bytea NOT NULL,
    -- JSON: [[\"name\", \"kind\", \"value in hexadecimal digits\"], ...]
    headers text,
    message_group text,
    -- Milliseconds since 1970.
    due bigint,
    -- Milliseconds.
    time_to_live bigint,
    content_type text,
    trace_context text,
    -- memory, process, disk or replicated.
    level text,
    -- 0 to 9.
    priority smallint NOT NULL DEFAULT 0,
    -- When it was first sent without a clear no, in milliseconds since 1970.
    first_sent bigint,
    -- 0: to be sent; 1: parked, with a reason; 2: behind a parked one of its key.
    state smallint NOT NULL DEFAULT 0,
    reason text
);
CREATE INDEX IF NOT EXISTS lockgate_outbox_to_send ON lockgate_outbox (outbox, id) WHERE state = 0;
CREATE INDEX IF NOT EXISTS lockgate_outbox_held ON lockgate_outbox (outbox, key, state, id) WHERE state <> 0;
";

/// Adds a message, and returns its id. Run it in your transaction.
///
/// It takes a lock of the key first, until the transaction ends, and draws the id under it. So rows of one key
/// have the order in which their transactions are committed.
pub const ENQUEUE: &str = "\
WITH key_lock AS MATERIALIZED (
    SELECT CASE WHEN $2::text IS NOT NULL
        THEN pg_advisory_xact_lock(hashtextextended('lockgate_outbox key ' || $1 || ' ' || $2, 0)) END)
INSERT INTO lockgate_outbox (outbox, key, unique_id, body, headers, message_group, due, time_to_live,
    content_type, trace_context, level, priority)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12 FROM key_lock
RETURNING id";

const COLUMNS: [&str; 16] = [
    "id bigint NOT NULL KEY 1",
    "outbox text NOT NULL",
    "key text",
    "unique_id text NOT NULL",
    "body bytea NOT NULL",
    "headers text",
    "message_group text",
    "due bigint",
    "time_to_live bigint",
    "content_type text",
    "trace_context text",
    "level text",
    "priority smallint NOT NULL",
    "first_sent bigint",
    "state smallint NOT NULL",
    "reason text",
];

/// Only one at a time decides what waits behind a parked row, until its transaction ends.
pub(super) const LOCK_PARKING: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended('lockgate_outbox parking ' || $1, 0))";

/// An outbox in a PostgreSQL database, over tokio-postgres: messages that leave with the user's transaction, or
/// not at all. Its table is `lockgate_outbox`; all outboxes of a database share it. Clones are the same outbox.
///
/// Rows of one key have the order in which their transactions are committed: [`enqueue`](Self::enqueue) takes a
/// lock of the key, until the transaction ends. Two transactions that enqueue for the same two keys in different
/// orders can deadlock; PostgreSQL then ends one of them, which you may repeat. Each key of a transaction takes a
/// place in the server's table of locks (`max_locks_per_transaction`).
#[derive(Clone, Debug)]
pub struct PostgresOutbox {
    name: String,
    added: Arc<Notify>,
}

impl PostgresOutbox {
    /// The outbox of this name. All its messages go to one sink.
    ///
    /// # Errors
    /// [`Error::Name`] if the name is not allowed.
    pub fn new(name: &str) -> Result<Self, Error> {
        let name = checked_name("an outbox", name)?;
        let added = Arc::new(Notify::new());
        Ok(Self { name, added })
    }

    /// Makes the table if it is not there, and checks its form.
    ///
    /// # Errors
    /// [`Error::OtherTable`] if there is another table of this name.
    pub async fn create_table(&self, client: &impl GenericClient) -> Result<(), Error> {
        client.batch_execute(CREATE).await?;
        self.check_table(client).await
    }

    pub(super) async fn check_table(&self, client: &impl GenericClient) -> Result<(), Error> {
        check_table(client, "lockgate_outbox", &COLUMNS).await
    }

    /// Adds a message to the transaction: it is sent if the transaction is committed. A message without a unique
    /// id gets one. If another transaction has enqueued for the same key, this waits until that one has ended.
    ///
    /// # Errors
    /// [`Error::Range`] for times and priorities that no row can hold, and what the database says.
    pub async fn enqueue(
        &self,
        transaction: &Transaction<'_>,
        message: &Message,
    ) -> Result<RowId, Error> {
        let row = Row::of(message)?;
        let parameters = &[
            text(&self.name),
            text(&row.key),
            text(&row.unique_id),
            bytea(&row.body),
            text(&row.headers),
            text(&row.message_group),
            int8(&row.due),
            int8(&row.time_to_live),
            text(&row.content_type),
            text(&row.trace_context),
            text(&row.level),
            int2(&row.priority),
        ];
        let added = transaction.query_typed_one(ENQUEUE, parameters).await?;
        Ok(RowId(added.get(0)))
    }

    /// Wakes the forwarder of this outbox and its clones in this process, which else looks from time to time.
    /// Call it after the commit.
    pub fn wake(&self) {
        self.added.notify_one();
    }

    /// A forwarder that sends the outbox's messages to `sink`, over a connection of its own. It runs as a task of
    /// the tokio runtime that this is called in.
    ///
    /// Of several forwarders of the same table, in any processes, one forwards, and the others wait to take over: it
    /// holds an advisory lock of its session. So the connection must be a session of the server: no pooler that
    /// shares sessions between transactions. If its computer disappears, the others wait until the server notices
    /// that; see the server's settings `tcp_keepalives_idle` and `client_connection_check_interval`.
    ///
    /// # Errors
    /// If the database, the table, the sink or an option does not allow it.
    pub async fn forward<S, T>(
        &self,
        config: Config,
        tls: T,
        sink: S,
        options: ForwarderOptions,
    ) -> Result<Forwarder, StartError>
    where
        S: Sink + 'static,
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let store = PostgresStore::new(self.clone(), config, tls);
        start(store, sink, self.added.clone(), options).await
    }

    /// Counts the rows, looking at each.
    ///
    /// # Errors
    /// What the database says.
    pub async fn counts(&self, client: &impl GenericClient) -> Result<OutboxCounts, Error> {
        let sql = "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), \
                   count(*) FILTER (WHERE state = 2) FROM lockgate_outbox WHERE outbox = $1";
        let row = client.query_typed_one(sql, &[text(&self.name)]).await?;
        let count = |column: usize| row.get::<_, i64>(column).unsigned_abs();
        Ok(OutboxCounts {
            to_send: count(0),
            parked: count(1),
            behind: count(2),
        })
    }

    /// The parked rows, the oldest first, at most `max`, behind the row `after`.
    ///
    /// # Errors
    /// What the database says.
    pub async fn parked(
        &self,
        client: &impl GenericClient,
        after: Option<RowId>,
        max: u32,
    ) -> Result<Vec<ParkedRow>, Error> {
        let sql = "SELECT id, key, unique_id, coalesce(reason, ''), first_sent IS NOT NULL FROM lockgate_outbox \
                   WHERE outbox = $1 AND state = 1 AND id > $2 ORDER BY id LIMIT $3";
        let (after, max) = (after.map_or(i64::MIN, |row| row.0), i64::from(max));
        let parameters = &[text(&self.name), int8(&after), int8(&max)];
        let rows = client.query_typed(sql, parameters).await?;
        let parked = rows.iter().map(|row| ParkedRow {
            id: RowId(row.get(0)),
            key: row.get(1),
            unique_id: row.get(2),
            reason: row.get(3),
            in_doubt: row.get(4),
        });
        Ok(parked.collect())
    }

    /// Lets a parked row be sent again, in its place, and the rows of its key behind it. If it was in doubt, the
    /// sink may then have its message twice. Returns whether it was parked.
    ///
    /// # Errors
    /// What the database says.
    pub async fn retry(&self, client: &mut Client, row: RowId) -> Result<bool, Error> {
        let sql = "UPDATE lockgate_outbox SET state = 0, reason = NULL, first_sent = NULL \
                   WHERE outbox = $1 AND id = $2 AND state = 1 RETURNING key";
        self.resolve(client, sql, row).await
    }

    /// Deletes a parked row without sending it, and lets the rows of its key behind it go on. Returns whether it
    /// was parked.
    ///
    /// # Errors
    /// What the database says.
    pub async fn discard(&self, client: &mut Client, row: RowId) -> Result<bool, Error> {
        let sql =
            "DELETE FROM lockgate_outbox WHERE outbox = $1 AND id = $2 AND state = 1 RETURNING key";
        self.resolve(client, sql, row).await
    }

    async fn resolve(&self, client: &mut Client, sql: &str, row: RowId) -> Result<bool, Error> {
        let transaction = begin(client).await?;
        let outbox = text(&self.name);
        transaction
            .query_typed(LOCK_PARKING, std::slice::from_ref(&outbox))
            .await?;
        let resolved = transaction
            .query_typed_opt(sql, &[outbox.clone(), int8(&row.0)])
            .await?;
        let Some(resolved) = resolved else {
            return Ok(false);
        };
        let key: Option<String> = resolved.get(0);
        let sql =
            "UPDATE lockgate_outbox SET state = 0 WHERE outbox = $1 AND key = $2 AND state = 2";
        transaction
            .execute_typed(sql, &[outbox, text(&key)])
            .await?;
        transaction.commit().await?;
        self.wake();
        Ok(true)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
