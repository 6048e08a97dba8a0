//! For transactions of mysql_async.

use lockgate_core::{
    ElectionName, Epoch,
    coordination::{Fence, FenceError},
};
use mysql_async::{Transaction, prelude::Queryable};

use crate::{Error, error::check_columns};

/// The statements that make the table, for who makes it by other means, and those of a guard.
pub mod schema {
    /// Makes the table.
    pub const CREATE_GUARD: &str = "\
CREATE TABLE IF NOT EXISTS lockgate_guard (
    election VARBINARY(200) NOT NULL PRIMARY KEY,
    epoch BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB";

    /// Raises the highest epoch of an election (the first `?`) to that of a fence (the second), and locks the election's row until
    /// the transaction ends. Run it in the transaction of the write, and then [`NEWEST`].
    pub const RAISE: &str = "\
INSERT INTO lockgate_guard (election, epoch) VALUES (?, ?)
ON DUPLICATE KEY UPDATE epoch = GREATEST(epoch, VALUES(epoch))";

    /// The highest epoch of an election (`?`): if that is another one than was raised to, roll back.
    pub const NEWEST: &str = "SELECT epoch FROM lockgate_guard WHERE election = ? FOR UPDATE";
}

const COLUMNS: [&str; 2] = [
    "election varbinary(200) NOT NULL KEY",
    "epoch bigint unsigned NOT NULL",
];

/// The longest limit that the servers know, in seconds: a year.
const LIMIT_MAX: u64 = 31_536_000;

/// A guard for tables of a MySQL or MariaDB database: lets the transactions of an election's leader pass, and refuses those of
/// one that was deposed. Its table is `lockgate_guard`, with a row for each election.
///
/// The row keeps the highest epoch that was admitted. Whoever admits a fence locks it until the transaction ends, so of two
/// leaders one waits for the other: if the later term was first, the earlier one is refused; if the earlier one was first, it
/// has committed or failed before the later one writes. One waits for `innodb_lock_wait_timeout`, 50 s by default, and then
/// fails. What the transaction writes to must be of InnoDB too.
///
/// A leader that is frozen in the middle of such a transaction holds the lock. Therefore the server ends its session when it
/// has been idle for as long as the fence lasted, in whole seconds; nothing of the transaction lands then, and the successor goes
/// on. The guard sets `idle_transaction_timeout` of the session for that in MariaDB, and `wait_timeout` in MySQL, which also ends a
/// session that is idle between transactions. They stay set until the next fence or the end of the session: a pool of
/// mysql_async resets a connection that comes back. A fence that does not know how long it lasts sets no such limit: then set one
/// yourself.
///
/// ```no_run
/// use lockgate_core::coordination::Fence;
/// use lockgate_sql::MysqlGuard;
/// use mysql_async::{TxOpts, prelude::Queryable as _};
///
/// async fn write(connection: &mut mysql_async::Conn, fence: &Fence) -> Result<(), lockgate_sql::Error> {
///     let mut transaction = connection.start_transaction(TxOpts::default()).await?;
///     if let Err(refused) = MysqlGuard.admit(&mut transaction, fence).await {
///         transaction.rollback().await?;
///         return Err(refused);
///     }
///     transaction.query_drop("UPDATE reports SET page = page + 1").await?;
///     transaction.commit().await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MysqlGuard;

impl MysqlGuard {
    /// Makes the table if it is not there, and checks its form. In MySQL and MariaDB this ends a transaction that is open.
    ///
    /// # Errors
    /// [`Error::OtherTable`] if there is another table of this name.
    pub async fn create_table(&self, connection: &mut impl Queryable) -> Result<(), Error> {
        connection.query_drop(schema::CREATE_GUARD).await?;
        let sql = "\
SELECT CONCAT(column_name, ' ', column_type, IF(is_nullable = 'NO', ' NOT NULL', ''), IF(column_key = 'PRI', ' KEY', ''))
FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'lockgate_guard' ORDER BY ordinal_position";
        let found: Vec<String> = connection.query(sql).await?;
        // MariaDB, and MySQL before 8.0.19, name a width, which means nothing.
        let found: Vec<_> = (found.iter())
            .map(|column| column.replace("bigint(20)", "bigint"))
            .collect();
        check_columns("lockgate_guard", &COLUMNS, &found)
    }

    /// Lets what else is in the transaction pass, unless the fence's term is over or a later one was admitted. If another
    /// transaction has admitted a fence of the election, this waits until that one has ended. Call it first in the transaction:
    /// what the transaction has read before may be of before that.
    ///
    /// # Errors
    /// [`Error::Fence`], with [`FenceError::Over`] or [`FenceError::Deposed`], and what the database says. Roll the transaction
    /// back: mysql_async leaves one that is dropped open, with its locks, until its connection is used again.
    ///
    /// # Cancellation
    /// The transaction may hold the lock. Roll it back.
    pub async fn admit(
        &self,
        transaction: &mut Transaction<'_>,
        fence: &Fence,
    ) -> Result<(), Error> {
        fence.check()?;
        if let Some(left) = fence.remaining() {
            let seconds = left.as_millis().div_ceil(1_000).max(1);
            let seconds = u64::try_from(seconds).unwrap_or(LIMIT_MAX).min(LIMIT_MAX);
            // Before anything is locked. Each server reads its own comment; the limit of the server itself still holds.
            let sql = format!(
                "SET SESSION /*M! idle_transaction_timeout */ /*!80000 wait_timeout */ = LEAST({seconds},
                /*M! COALESCE(NULLIF(@@GLOBAL.idle_transaction_timeout, 0), {LIMIT_MAX}) */
                /*!80000 @@GLOBAL.wait_timeout */)"
            );
            transaction.query_drop(sql).await?;
        }
        let (election, epoch) = (fence.election().as_str(), fence.epoch().0);
        transaction
            .exec_drop(schema::RAISE, (election, epoch))
            .await?;
        let newest: Option<u64> = transaction.exec_first(schema::NEWEST, (election,)).await?;
        // The row is there, and locked.
        let newest = newest.unwrap_or(epoch);
        if newest == epoch {
            return Ok(());
        }
        Err(FenceError::Deposed {
            election: fence.election().clone(),
            epoch: fence.epoch(),
            newest: Epoch(newest),
        }
        .into())
    }

    /// The highest epoch that was admitted; `None`: none was.
    ///
    /// # Errors
    /// What the database says.
    pub async fn newest(
        &self,
        connection: &mut impl Queryable,
        election: &ElectionName,
    ) -> Result<Option<Epoch>, Error> {
        let sql = "SELECT epoch FROM lockgate_guard WHERE election = ?";
        let newest = connection.exec_first(sql, (election.as_str(),)).await?;
        Ok(newest.map(Epoch))
    }
}
