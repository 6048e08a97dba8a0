//! An inbox in PostgreSQL.

use std::time::Duration;

use lockgate_consumer::{Failure, Job};
use tokio_postgres::{Client, GenericClient, Transaction};

use super::{check_table, int8, text};
use crate::{
    Error, Inbox, Seen,
    error::{checked_message_name, checked_name},
    inbox::message_name,
    millis,
};

/// Makes the table, in the first schema of the `search_path`.
pub const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS lockgate_inbox (
    consumer text NOT NULL,
    message text NOT NULL,
    -- Milliseconds since 1970.
    handled_at bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
    PRIMARY KEY (consumer, message)
);
CREATE INDEX IF NOT EXISTS lockgate_inbox_by_age ON lockgate_inbox (consumer, handled_at);
";

/// Writes down a message (`$2`) of a consumer (`$1`). If it changes no row, the message was seen before. Run it in
/// the transaction of the effect, before the effect.
pub const RECORD: &str =
    "INSERT INTO lockgate_inbox (consumer, message) VALUES ($1, $2) ON CONFLICT DO NOTHING";

const PRUNE: &str = "\
DELETE FROM lockgate_inbox WHERE consumer = $1 AND message IN (
    SELECT message FROM lockgate_inbox WHERE consumer = $1
        AND handled_at < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $2
    ORDER BY handled_at LIMIT $3)";

const COLUMNS: [&str; 3] = [
    "consumer text NOT NULL KEY 1",
    "message text NOT NULL KEY 2",
    "handled_at bigint NOT NULL",
];

/// An [`Inbox`] in a PostgreSQL database, over tokio-postgres. Its table is `lockgate_inbox`; all consumers share
/// it.
///
/// Every isolation level will do. If two transactions handle one message at the same time, the second waits until
/// the first has ended. If that one was committed, the second sees the message as handled (`READ COMMITTED`, the
/// default) or fails with a serialization failure (above it), so that the message comes again.
///
/// ```no_run
/// use lockgate_consumer::{Failure, Job};
/// use lockgate_sql::PostgresInbox;
/// # async fn connection() -> Result<tokio_postgres::Client, tokio_postgres::Error> { unreachable!() }
///
/// async fn handle(inbox: PostgresInbox, job: Job) -> Result<(), Failure> {
///     let mut client = connection().await?; // mostly of a pool
///     inbox
///         .once(&mut client, &job, async |transaction| {
///             let sql = "UPDATE accounts SET balance = balance - 1 WHERE owner = $1";
///             transaction.execute(sql, &[&job.key().map(|key| key.as_str())]).await?;
///             Ok(())
///         })
///         .await?;
///     Ok(())
/// }
/// # fn sends(inbox: PostgresInbox) -> impl lockgate_consumer::Handler {
/// #     move |job: Job| handle(inbox.clone(), job)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresInbox {
    consumer: String,
}

impl PostgresInbox {
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
    pub async fn create_table(&self, client: &impl GenericClient) -> Result<(), Error> {
        client.batch_execute(CREATE).await?;
        check_table(client, "lockgate_inbox", &COLUMNS).await
    }

    /// Causes the effect of a job once: begins a transaction, writes the message down, calls `effect` if the
    /// message is new, and commits. If it was handled before, the answer is `None`, and the handler has nothing
    /// left to do.
    ///
    /// If `effect` fails, all of it is rolled back. Do in it what belongs to the transaction and nothing else:
    /// what cannot be rolled back, such as a mail, may happen again.
    ///
    /// # Cancellation
    /// If it is dropped, the transaction is rolled back, unless its commit was on the way.
    ///
    /// # Errors
    /// The failure of `effect`; [`Error::Nameless`] if the source gives the message no name that lasts; and what
    /// the database says. The message then comes again.
    pub async fn once<T>(
        &self,
        client: &mut Client,
        job: &Job,
        effect: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        self.once_as(client, &message_name(job)?, effect).await
    }

    /// As [`once`](Self::once), with a name of your own for the message, of 1 to 1,024 bytes: the same each time
    /// the message comes, and never that of another message of this consumer.
    ///
    /// # Errors
    /// As [`once`](Self::once).
    pub async fn once_as<T>(
        &self,
        client: &mut Client,
        message: &str,
        effect: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, Failure>,
    ) -> Result<Option<T>, Failure> {
        let transaction = client.transaction().await?;
        if self.record(&transaction, message).await? == Seen::Before {
            return Ok(None);
        }
        let done = effect(&transaction).await?;
        // If `effect` kept an error to itself, PostgreSQL has given the transaction up, and would answer the
        // commit with success all the same. It refuses this.
        transaction.batch_execute("SELECT").await?;
        transaction.commit().await?;
        Ok(Some(done))
    }

    /// Forgets messages that were handled longer than `older_than` ago, the oldest first, at most `max`. Returns
    /// how many; call it again while it returns `max`. The [crate](crate#pruning) says which are old enough.
    ///
    /// # Errors
    /// What the database says.
    pub async fn prune(
        &self,
        client: &impl GenericClient,
        older_than: Duration,
        max: u32,
    ) -> Result<u64, Error> {
        let (age, max) = (millis(older_than), i64::from(max));
        let parameters = &[text(&self.consumer), int8(&age), int8(&max)];
        Ok(client.execute_typed(PRUNE, parameters).await?)
    }

    /// Forgets one message, so that it may have its effect again. Returns whether it was known.
    ///
    /// # Errors
    /// What the database says.
    pub async fn forget(&self, client: &impl GenericClient, message: &str) -> Result<bool, Error> {
        let sql = "DELETE FROM lockgate_inbox WHERE consumer = $1 AND message = $2";
        let parameters = &[text(&self.consumer), text(&message)];
        Ok(client.execute_typed(sql, parameters).await? > 0)
    }
}

impl Inbox for PostgresInbox {
    type Transaction<'t> = Transaction<'t>;
    type Error = Error;

    async fn record(
        &self,
        transaction: &Self::Transaction<'_>,
        message: &str,
    ) -> Result<Seen, Error> {
        let message = checked_message_name(message)?;
        let parameters = &[text(&self.consumer), text(&message)];
        Ok(match transaction.execute_typed(RECORD, parameters).await? {
            0 => Seen::Before,
            _ => Seen::First,
        })
    }
}
