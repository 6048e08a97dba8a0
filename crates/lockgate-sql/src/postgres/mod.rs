//! For transactions of tokio-postgres.

mod guard;
mod inbox;
mod outbox;
mod store;

use tokio_postgres::{
    Client, GenericClient, IsolationLevel, Transaction,
    types::{ToSql, Type},
};

pub use self::{guard::PostgresGuard, inbox::PostgresInbox, outbox::PostgresOutbox};
use crate::{Error, error::check_columns};

/// The statements that make the tables, for who makes them by other means.
pub mod schema {
    pub use super::{
        guard::{ADMIT, CREATE as CREATE_GUARD},
        inbox::{CREATE as CREATE_INBOX, RECORD},
        outbox::{CREATE as CREATE_OUTBOX, ENQUEUE},
    };
}

/// A transaction that sees what is committed while it waits for a lock, whatever the default of the database is.
async fn begin(client: &mut Client) -> Result<Transaction<'_>, Error> {
    let transaction = client.build_transaction();
    let level = IsolationLevel::ReadCommitted;
    Ok(transaction.isolation_level(level).start().await?)
}

async fn check_table(
    client: &impl GenericClient,
    table: &'static str,
    expected: &[&str],
) -> Result<(), Error> {
    let sql = "\
SELECT a.attname || ' ' || format_type(a.atttypid, NULL)
    || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
    || coalesce(' KEY ' || array_position(i.indkey::int2[], a.attnum) + 1, '')
FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum";
    let rows = client.query_typed(sql, &[text(&table)]).await?;
    let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    check_columns(table, expected, &found)
}

/// A value and its type, which spares the server a question. An unnamed statement also goes through poolers.
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

fn text(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::TEXT)
}

fn int8(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::INT8)
}

fn int2(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::INT2)
}

fn bytea(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::BYTEA)
}

fn boolean(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::BOOL)
}

fn texts(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::TEXT_ARRAY)
}

fn int8s(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::INT8_ARRAY)
}
