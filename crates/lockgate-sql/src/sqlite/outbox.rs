//! An outbox in SQLite.

use std::sync::Arc;

use lockgate_core::{Message, Sink};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::Notify;

use super::{check_table, lossy, store::SqliteStore};
use crate::{
    Error, Forwarder, ForwarderOptions, OutboxCounts, ParkedRow, RowId, StartError,
    error::checked_name, forward::start, row::Row,
};

/// Makes the table.
pub const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS lockgate_outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    outbox TEXT NOT NULL,
    key TEXT,
    -- For deduplication: of the message, or random.
    unique_id TEXT NOT NULL,
    body BLOB NOT NULL,
    -- JSON: [[\"name\", \"kind\", \"value in hexadecimal digits\"], ...]
    headers TEXT,
    message_group TEXT,
    -- Milliseconds since 1970.
    due INTEGER,
    -- Milliseconds.
    time_to_live INTEGER,
    content_type TEXT,
    trace_context TEXT,
    -- memory, process, disk or replicated.
    level TEXT,
    -- 0 to 9.
    priority INTEGER NOT NULL DEFAULT 0,
    -- When it was first sent without a clear no, in milliseconds since 1970.
    first_sent INTEGER,
    -- 0: to be sent; 1: parked, with a reason; 2: behind a parked one of its key.
    state INTEGER NOT NULL DEFAULT 0,
    reason TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS lockgate_outbox_to_send ON lockgate_outbox (outbox, id) WHERE state = 0;
CREATE INDEX IF NOT EXISTS lockgate_outbox_held ON lockgate_outbox (outbox, key, state, id) WHERE state <> 0;
";

/// Adds a message. Run it in your transaction.
pub const ENQUEUE: &str = "\
INSERT INTO lockgate_outbox (outbox, key, unique_id, body, headers, message_group, due, time_to_live,
    content_type, trace_context, level, priority) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

const COLUMNS: [&str; 16] = [
    "id INTEGER KEY 1",
    "outbox TEXT NOT NULL",
    "key TEXT",
    "unique_id TEXT NOT NULL",
    "body BLOB NOT NULL",
    "headers TEXT",
    "message_group TEXT",
    "due INTEGER",
    "time_to_live INTEGER",
    "content_type TEXT",
    "trace_context TEXT",
    "level TEXT",
    "priority INTEGER NOT NULL",
    "first_sent INTEGER",
    "state INTEGER NOT NULL",
    "reason TEXT",
];

/// An outbox in an SQLite database, over rusqlite: messages that leave with the user's transaction, or not at
/// all. Its table is `lockgate_outbox`; all outboxes of a database share it. Clones are the same outbox.
///
/// SQLite has one writer at a time, so rows have the order of the commits.
#[derive(Clone, Debug)]
pub struct SqliteOutbox {
    name: String,
    added: Arc<Notify>,
}

impl SqliteOutbox {
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
    pub fn create_table(&self, connection: &Connection) -> Result<(), Error> {
        connection.execute_batch(CREATE)?;
        self.check_table(connection)
    }

    pub(super) fn check_table(&self, connection: &Connection) -> Result<(), Error> {
        check_table(connection, "lockgate_outbox", &COLUMNS)
    }

    /// Adds a message to the transaction: it is sent if the transaction is committed. A message without a unique
    /// id gets one.
    ///
    /// # Errors
    /// [`Error::Range`] for times and priorities that no row can hold, and what the database says.
    pub fn enqueue(
        &self,
        transaction: &Transaction<'_>,
        message: &Message,
    ) -> Result<RowId, Error> {
        let row = Row::of(message)?;
        let mut statement = transaction.prepare(ENQUEUE)?;
        statement.execute(rusqlite::params![
            self.name,
            row.key,
            row.unique_id,
            row.body,
            row.headers,
            row.message_group,
            row.due,
            row.time_to_live,
            row.content_type,
            row.trace_context,
            row.level,
            row.priority,
        ])?;
        Ok(RowId(transaction.last_insert_rowid()))
    }

    /// Wakes the forwarder of this outbox and its clones in this process, which else looks from time to time.
    /// Call it after the commit.
    pub fn wake(&self) {
        self.added.notify_one();
    }

    /// A forwarder that sends the outbox's messages to `sink`, over a connection of its own to the database's
    /// file. One at a time runs for an outbox of a file; a lock on a file beside it sees to that. It runs as a
    /// task of the tokio runtime that this is called in.
    ///
    /// # Errors
    /// If the table, the sink or an option does not allow it, or another one runs.
    pub async fn forward<S: Sink + 'static>(
        &self,
        connection: Connection,
        sink: S,
        options: ForwarderOptions,
    ) -> Result<Forwarder, StartError> {
        let store = SqliteStore::new(self.clone(), connection);
        start(store, sink, self.added.clone(), options).await
    }

    /// Counts the rows, looking at each.
    ///
    /// # Errors
    /// What the database says.
    pub fn counts(&self, connection: &Connection) -> Result<OutboxCounts, Error> {
        let sql = "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), \
                   count(*) FILTER (WHERE state = 2) FROM lockgate_outbox WHERE outbox = ?1";
        let counts = |row: &rusqlite::Row<'_>| {
            let count = |column: usize| row.get(column).map(i64::unsigned_abs);
            Ok(OutboxCounts {
                to_send: count(0)?,
                parked: count(1)?,
                behind: count(2)?,
            })
        };
        Ok(connection.query_row(sql, [&self.name], counts)?)
    }

    /// The parked rows, the oldest first, at most `max`, behind the row `after`.
    ///
    /// # Errors
    /// What the database says.
    pub fn parked(
        &self,
        connection: &Connection,
        after: Option<RowId>,
        max: u32,
    ) -> Result<Vec<ParkedRow>, Error> {
        let sql = "SELECT id, key, unique_id, coalesce(reason, ''), first_sent IS NOT NULL FROM lockgate_outbox \
                   WHERE outbox = ?1 AND state = 1 AND id > ?2 ORDER BY id LIMIT ?3";
        let mut statement = connection.prepare(sql)?;
        let after = after.map_or(i64::MIN, |row| row.0);
        let parked = statement.query_map((&self.name, after, max), |row| {
            Ok(ParkedRow {
                id: RowId(row.get(0)?),
                key: lossy(row, 1)?,
                unique_id: lossy(row, 2)?.unwrap_or_default(),
                reason: lossy(row, 3)?.unwrap_or_default(),
                in_doubt: row.get(4)?,
            })
        })?;
        Ok(parked.collect::<Result<_, _>>()?)
    }

    /// Lets a parked row be sent again, in its place, and the rows of its key behind it. If it was in doubt, the
    /// sink may then have its message twice. Returns whether it was parked.
    ///
    /// # Errors
    /// What the database says.
    pub fn retry(&self, connection: &mut Connection, row: RowId) -> Result<bool, Error> {
        let sql = "UPDATE lockgate_outbox SET state = 0, reason = NULL, first_sent = NULL \
                   WHERE outbox = ?1 AND id = ?2 AND state = 1";
        self.resolve(connection, sql, row)
    }

    /// Deletes a parked row without sending it, and lets the rows of its key behind it go on. Returns whether it
    /// was parked.
    ///
    /// # Errors
    /// What the database says.
    pub fn discard(&self, connection: &mut Connection, row: RowId) -> Result<bool, Error> {
        let sql = "DELETE FROM lockgate_outbox WHERE outbox = ?1 AND id = ?2 AND state = 1";
        self.resolve(connection, sql, row)
    }

    fn resolve(&self, connection: &mut Connection, sql: &str, row: RowId) -> Result<bool, Error> {
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior)?;
        let parameters = (&self.name, row.0);
        let behind = "UPDATE lockgate_outbox SET state = 0 WHERE outbox = ?1 AND state = 2 \
                      AND key = (SELECT key FROM lockgate_outbox WHERE outbox = ?1 AND id = ?2 AND state = 1)";
        transaction.execute(behind, parameters)?;
        if transaction.execute(sql, parameters)? == 0 {
            return Ok(false);
        }
        transaction.commit()?;
        self.wake();
        Ok(true)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
