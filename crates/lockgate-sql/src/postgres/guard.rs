//! A guard in PostgreSQL.

use lockgate_core::{
    ElectionName, Epoch,
    coordination::{Fence, FenceError},
};
use tokio_postgres::{GenericClient, Transaction};

use super::{check_table, int8, text};
use crate::{Error, error::column, millis};

/// Makes the table, in the first schema of the `search_path`.
pub const CREATE: &str = "\
CREATE TABLE IF NOT EXISTS lockgate_guard (
    election text PRIMARY KEY,
    epoch bigint NOT NULL
) WITH (fillfactor = 50);
";

/// Raises the highest epoch of an election (`$1`) to that of a fence (`$2`), and returns the highest: if that is another
/// one, roll back. Run it in the transaction of the write. It locks the election's row until the transaction ends, and has
/// the server end a session that is idle in this transaction for longer than the fence lasts (`$3`, in milliseconds; null
/// for one that does not know).
pub const ADMIT: &str = "\
INSERT INTO lockgate_guard AS it (election, epoch) VALUES ($1, $2)
ON CONFLICT (election) DO UPDATE SET epoch = greatest(it.epoch, EXCLUDED.epoch)
RETURNING epoch, CASE WHEN $3 IS NOT NULL THEN set_config('idle_in_transaction_session_timeout', least($3, nullif((extract(
    epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint, 0))::text, true) END";

const COLUMNS: [&str; 2] = ["election text NOT NULL KEY 1", "epoch bigint NOT NULL"];

/// A guard for tables of a PostgreSQL database: lets the transactions of an election's leader pass, and refuses those of one
/// that was deposed. Its table is `lockgate_guard`, with a row for each election.
///
/// The row keeps the highest epoch that was admitted. Whoever admits a fence locks it until the transaction ends, so of two
/// leaders one waits for the other: if the later term was first, the earlier one is refused; if the earlier one was first, it
/// has committed or failed before the later one writes.
///
/// A leader that is frozen in the middle of such a transaction holds the lock. Therefore the server ends its session when it
/// has been idle for as long as the fence lasted; nothing of the transaction lands then, and the successor goes on. A fence
/// that does not know how long it lasts sets no such limit: then set `idle_in_transaction_session_timeout` yourself.
///
/// ```no_run
/// use lockgate_core::coordination::Fence;
/// use lockgate_sql::PostgresGuard;
///
/// async fn write(client: &mut tokio_postgres::Client, fence: &Fence) -> Result<(), lockgate_sql::Error> {
///     let transaction = client.transaction().await?;
///     PostgresGuard.admit(&transaction, fence).await?;
///     transaction.execute("UPDATE reports SET page = page + 1", &[]).await?;
///     transaction.commit().await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PostgresGuard;

impl PostgresGuard {
    /// Makes the table if it is not there, and checks its form.
    ///
    /// # Errors
    /// [`Error::OtherTable`] if there is another table of this name.
    pub async fn create_table(&self, client: &impl GenericClient) -> Result<(), Error> {
        client.batch_execute(CREATE).await?;
        check_table(client, "lockgate_guard", &COLUMNS).await
    }

    /// Lets what else is in the transaction pass, unless the fence's term is over or a later one was admitted. If another
    /// transaction has admitted a fence of the election, this waits until that one has ended. Above READ COMMITTED it may fail
    /// with a serialization failure instead.
    ///
    /// # Errors
    /// [`Error::Fence`], with [`FenceError::Over`] or [`FenceError::Deposed`], and what the database says. Roll the transaction
    /// back.
    pub async fn admit(&self, transaction: &Transaction<'_>, fence: &Fence) -> Result<(), Error> {
        fence.check()?;
        let election = fence.election().as_str();
        let epoch = column("epoch", fence.epoch().0)?;
        let lasts = fence.remaining().map(|left| millis(left).max(1));
        let parameters = &[text(&election), int8(&epoch), int8(&lasts)];
        let row = transaction.query_typed_one(ADMIT, parameters).await?;
        let newest: i64 = row.get(0);
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
    pub async fn newest(
        &self,
        client: &impl GenericClient,
        election: &ElectionName,
    ) -> Result<Option<Epoch>, Error> {
        let sql = "SELECT epoch FROM lockgate_guard WHERE election = $1";
        let rows = client.query_typed(sql, &[text(&election.as_str())]).await?;
        let newest = rows.first().map(|row| row.get::<_, i64>(0));
        Ok(newest.map(|epoch| Epoch(epoch.unsigned_abs())))
    }
}
