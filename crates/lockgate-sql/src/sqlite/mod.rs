//! For transactions of rusqlite.

mod guard;
mod inbox;
mod outbox;
mod store;

use rusqlite::Connection;

pub use self::{guard::SqliteGuard, inbox::SqliteInbox, outbox::SqliteOutbox};
use crate::{Error, error::check_columns};

/// The statements that make the tables, for who makes them by other means.
pub mod schema {
    pub use super::{
        guard::{ADMIT, CREATE as CREATE_GUARD},
        inbox::{CREATE as CREATE_INBOX, RECORD},
        outbox::{CREATE as CREATE_OUTBOX, ENQUEUE},
    };
}

/// A text; what is none in it is replaced. A text of SQLite may be any bytes.
fn lossy(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    let bytes = row.get_ref(column)?.as_bytes_or_null()?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}

fn check_table(
    connection: &Connection,
    table: &'static str,
    expected: &[&str],
) -> Result<(), Error> {
    let sql = "SELECT name || ' ' || type || iif(\"notnull\", ' NOT NULL', '') || \
               iif(pk > 0, ' KEY ' || pk, '') FROM pragma_table_info(?1) ORDER BY cid";
    let mut statement = connection.prepare(sql)?;
    let found = statement.query_map([table], |row| row.get(0))?;
    let found: Vec<String> = found.collect::<Result<_, _>>()?;
    check_columns(table, expected, &found)
}
