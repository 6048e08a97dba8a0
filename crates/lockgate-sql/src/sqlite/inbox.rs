//! An inbox in SQLite.

use std::{future::Future, time::Duration};

use lockgate_consumer::{Failure, Job};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::check_table;
use crate::{
    Error, Inbox, Seen,
    error::{checked_message_name, checked_name},
    inbox::message_name,
    millis,
};

/// Makes the table.
pub const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS lockgate_inbox (
    consumer TEXT NOT NULL,
    message TEXT NOT NULL,
    -- Milliseconds since 1970.
    handled_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    PRIMARY KEY (consumer, message)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lockgate_inbox_by_age ON lockgate_inbox (consumer, handled_at);
";

/// Writes down a message (`?2`) of a consumer (`?1`). If it changes no row, the message was seen before. Run it in
/// the transaction of the effect, before the effect, and begin the transaction by `BEGIN IMMEDIATE`.
pub const RECORD: &str =
    "INSERT INTO lockgate_inbox (consumer, message) VALUES (?1, ?2) ON CONFLICT DO NOTHING";

const PRUNE: &str = "\
DELETE FROM lockgate_inbox WHERE consumer = ?1 AND message IN (
    SELECT message FROM lockgate_inbox WHERE consumer = ?1
        AND handled_at < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - ?2
    ORDER BY handled_at LIMIT ?3)";

const COLUMNS: [&str; 3] = [
    "consumer TEXT NOT NULL KEY 1",
    "message TEXT NOT NULL KEY 2",
    "handled_at INTEGER NOT NULL",
];

/// An [`Inbox`] in an SQLite database, over rusqlite. Its table is `lockgate_inbox`; all consumers share it.
///
/// ```
/// use lockgate_sql::{Seen, SqliteInbox};
/// use rusqlite::{Connection, TransactionBehavior};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = Connection::open_in_memory()?;
/// let inbox = SqliteInbox::new("billing")?;
/// inbox.create_table(&connection)?;
/// for expected in [Seen::First, Seen::Before] {
///     let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     assert_eq!(inbox.record(&transaction, "message-1")?, expected);
///     transaction.commit()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteInbox {
    consumer: String,
}

impl SqliteInbox {
    /// The inbox of a consumer: of all that has one effect for each message. Workers that share the work share
    /// the name; another effect of the same messages has a name of its own.
    ///
    /// # Errors
    /// [`Error::Name`] if the name is not allowed.
    pub fn new(consumer: &str) -> Result<Self, Error> {
        let consumer = checked_name("a consumer", consumer)?;
        Ok(Self { consumer })
    }

    /// Makes the table if it is not there, and checks its form.
    ///
    /// # Errors
    /// [`Error::OtherTable`] if there is another table of this name.
    pub fn create_table(&self, connection: &Connection) -> Result<(), Error> {
        connection.execute_batch(CREATE)?;
        check_table(connection, "lockgate_inbox", &COLUMNS)
    }

    /// Causes the effect of a job once: begins a transaction, writes the message down, calls `effect` if the
    /// message is new, and commits. If it was handled before, the answer is `None`, and the handler has nothing
    /// left to do.
    ///
    /// If `effect` fails, all of it is rolled back. Do in it what belongs to the transaction and nothing else:
    /// what cannot be rolled back, such as a mail, may happen again. Return each error of the database from it:
    /// some end the transaction. It blocks: call it in
    /// [`handler::blocking`](lockgate_consumer::handler::blocking).
    ///
    /// # Errors
    /// The failure of `effect`; [`Error::Nameless`] if the source gives the message no name that lasts; and what
    /// the database says, `SQLITE_BUSY` among it if another transaction writes for longer than the connection's
    /// busy timeout. The message then comes again.
    pub fn once<T>(
        &self,
        connection: &mut Connection,
        job: &Job,
        effect: impl FnOnce(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        self.once_as(connection, &message_name(job)?, effect)
    }

    /// As [`once`](Self::once), with a name of your own for the message, of 1 to 1,024 bytes: the same each time
    /// the message comes, and never that of another message of this consumer.
    ///
    /// # Errors
    /// As [`once`](Self::once).
    pub fn once_as<T>(
        &self,
        connection: &mut Connection,
        message: &str,
        effect: impl FnOnce(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        // A deferred transaction would be refused when it begins to write after another one has written.
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior)?;
        if self.record(&transaction, message)? == Seen::Before {
            return Ok(None);
        }
        let done = effect(&transaction)?;
        transaction.commit()?;
        Ok(Some(done))
    }

    /// Writes the message down in your own transaction, which must also have its effect.
    ///
    /// # Errors
    /// What the database says; roll the transaction back.
    pub fn record(&self, transaction: &Transaction<'_>, message: &str) -> Result<Seen, Error> {
        let message = checked_message_name(message)?;
        Ok(
            match transaction.execute(RECORD, (&self.consumer, message))? {
                0 => Seen::Before,
                _ => Seen::First,
            },
        )
    }

    /// Forgets messages that were handled longer than `older_than` ago, the oldest first, at most `max`. Returns
    /// how many; call it again while it returns `max`. The [crate](crate#pruning) says which are old enough.
    ///
    /// # Errors
    /// What the database says.
    pub fn prune(
        &self,
        connection: &Connection,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, Error> {
        let parameters = (&self.consumer, millis(older_than), max);
        Ok(connection.execute(PRUNE, parameters)? as u64)
    }

    /// Forgets one message, so that it may have its effect again. Returns whether it was known.
    ///
    /// # Errors
    /// What the database says.
    pub fn forget(&self, connection: &Connection, message: &str) -> Result<bool, Error> {
        let sql = "DELETE FROM lockgate_inbox WHERE consumer = ?1 AND message = ?2";
        Ok(connection.execute(sql, (&self.consumer, message))? > 0)
    }
}

impl Inbox for SqliteInbox {
    type Transaction<'t> = Transaction<'t>;
    type Error = Error;

    /// Is done when it returns.
    fn record(
        &self,
        transaction: &Self::Transaction<'_>,
        message: &str,
    ) -> impl Future<Output = Result<Seen, Error>> + Send {
        std::future::ready(SqliteInbox::record(self, transaction, message))
    }
}
