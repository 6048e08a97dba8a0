//! What an inbox is, over any database.

use std::future::Future;

use lockgate_consumer::Job;
use lockgate_core::MessageName;

use crate::{Error, error::checked_message_name};

/// Remembers, in the transaction of an effect, which messages a consumer has handled.
///
/// Implement it for the transactions of another client by its statements, as [`SqliteInbox`] and [`PostgresInbox`]
/// do. What an implementation must keep:
///
/// - The row is written by the same transaction as the effect: both are committed, or neither.
/// - If another transaction has written the row and is still open, `record` waits for its end or fails. It never
///   answers [`Seen::First`] while the other one may still commit, or only if the database then refuses one of
///   the two commits.
///
/// [`SqliteInbox`]: crate::SqliteInbox
/// [`PostgresInbox`]: crate::PostgresInbox
pub trait Inbox {
    /// A transaction of the database.
    type Transaction<'t>;
    /// Why the database could not do it.
    type Error;

    /// Writes down that the message is handled, and tells whether it was already.
    ///
    /// # Errors
    /// What the database says. The transaction must then be rolled back.
    fn record(
        &self,
        transaction: &Self::Transaction<'_>,
        message: &str,
    ) -> impl Future<Output = Result<Seen, Self::Error>> + Send;
}

/// Whether a message was handled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a message that was seen before has had its effect"]
pub enum Seen {
    /// No: cause its effect, in the same transaction.
    First,
    /// Yes, and its effect is committed: acknowledge the message without one.
    Before,
}

/// What an inbox calls the message of a job: the name that its source gives it.
///
/// # Errors
/// [`Error::Nameless`] if the source gives it none that lasts.
pub fn message_name(job: &Job) -> Result<String, Error> {
    let name = job.name().map(MessageName::to_string);
    let name = name.ok_or(Error::Nameless)?;
    checked_message_name(&name)?;
    Ok(name)
}
