//! A guard in SQLite.

use lockgate_core::{
    ElectionName, Epoch,
    coordination::{Fence, FenceError},
};
use rusqlite::{Connection, OptionalExtension as _, Transaction};

use super::check_table;
use crate::{Error, error::column};

/// Makes the table.
pub const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS lockgate_guard (
    election TEXT NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// Raises the highest epoch of an election (`?1`) to that of a fence (`?2`), and returns the highest: if that is another
/// one, roll back. Run it in the transaction of the write, and begin that by `BEGIN IMMEDIATE`.
pub const ADMIT: &str = "\
INSERT INTO lockgate_guard (election, epoch) VALUES (?1, ?2)
ON CONFLICT (election) DO UPDATE SET epoch = max(epoch, excluded.epoch) RETURNING epoch";

const COLUMNS: [&str; 2] = ["election TEXT NOT NULL KEY 1", "epoch INTEGER NOT NULL"];

/// A guard for tables of an SQLite database: lets the transactions of an election's leader pass, and refuses those of one that
/// was deposed. Its table is `lockgate_guard`, with a row for each election, which keeps the highest epoch that was admitted.
///
/// SQLite has one writer at a time. A leader that is frozen in the middle of a transaction keeps all others from writing until
/// it goes on or its process ends; when it goes on, what it writes is from before theirs.
///
/// ```
/// use lockgate_core::{ElectionName, Epoch, coordination::Fence};
/// use lockgate_sql::SqliteGuard;
/// use rusqlite::{Connection, TransactionBehavior};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = Connection::open_in_memory()?;
/// SqliteGuard.create_table(&connection)?;
/// let reports = ElectionName::new("reports")?;
/// let (old, new) = (Fence::new(reports.clone(), Epoch(7)), Fence::new(reports, Epoch(9)));
///
/// let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// SqliteGuard.admit(&transaction, &new)?;
/// transaction.commit()?;
/// let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// assert!(SqliteGuard.admit(&transaction, &old).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SqliteGuard;

impl SqliteGuard {
    /// Makes the table if it is not there, and checks its form.
    ///
    /// # Errors
    /// [`Error::OtherTable`] if there is another table of this name.
    pub fn create_table(&self, connection: &Connection) -> Result<(), Error> {
        connection.execute_batch(CREATE)?;
        check_table(connection, "lockgate_guard", &COLUMNS)
    }

    /// Lets what else is in the transaction pass, unless the fence's term is over or a later one was admitted.
    ///
    /// # Errors
    /// [`Error::Fence`], with [`FenceError::Over`] or [`FenceError::Deposed`], and what the database says. Roll the transaction
    /// back.
    pub fn admit(&self, transaction: &Transaction<'_>, fence: &Fence) -> Result<(), Error> {
        fence.check()?;
        let epoch = column("epoch", fence.epoch().0)?;
        let parameters = (fence.election().as_str(), epoch);
        let newest: i64 = transaction.query_row(ADMIT, parameters, |row| row.get(0))?;
        if newest == epoch {
            return Ok(());
        }
        Err(FenceError::Deposed {
            election: fence.election().clone(),
            epoch: fence.epoch(),
            newest: Epoch(newest.unsigned_abs()),
        }
        .into())
    }

    /// The highest epoch that was admitted; `None`: none was.
    ///
    /// # Errors
    /// What the database says.
    pub fn newest(
        &self,
        connection: &Connection,
        election: &ElectionName,
    ) -> Result<Option<Epoch>, Error> {
        let sql = "SELECT epoch FROM lockgate_guard WHERE election = ?1";
        let newest = connection.query_row(sql, [election.as_str()], |row| row.get::<_, i64>(0));
        let newest = newest.optional()?;
        Ok(newest.map(|epoch| Epoch(epoch.unsigned_abs())))
    }
}
