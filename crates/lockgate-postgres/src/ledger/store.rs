//! What a ledger has in the database.

use lockgate_core::{
    RecordsError,
    ledger::{LedgerError, LedgerHead, LedgerOptions},
    with_sources,
};
use lockgate_records::schema_name;
use tokio::sync::Notify;

use super::{failed, span};
use crate::asked::{Connection, Purpose, unavailable};

/// The version of the tables: a program that knows lower ones only cannot use the ledger.
const VERSION: i32 = 1;

const TABLES: &str = include_str!("tables.sql");

/// Taken while the tables are made; a number that nothing else is likely to use.
const LOCK: i64 = 0x6c6f_636b_6c65_6467;

pub(super) struct Store {
    pub(super) schema: String,
    /// `None`: it is not made.
    made_with: Option<LedgerOptions>,
    /// Something was appended, or may have been.
    pub(super) changed: Notify,
}

/// Checks the name of a ledger, which becomes a schema.
pub(super) fn check_name(name: &str) -> Result<(), LedgerError> {
    schema_name(name, "a ledger in a database").map_err(failed)
}

impl Store {
    pub(super) fn new(schema: &str, made_with: Option<LedgerOptions>) -> Self {
        Self {
            schema: schema.to_owned(),
            made_with,
            changed: Notify::new(),
        }
    }
}

impl Purpose for Store {
    fn channel(&self) -> &str {
        &self.schema
    }

    fn heard(&self, _payload: Option<&str>) {
        self.changed.notify_waiters();
    }

    /// Makes the tables, or finds that they are there; then no right to make any is needed.
    async fn prepare(&self, connection: &Connection) -> Result<(), RecordsError> {
        let schema = &self.schema;
        connection.check_schema(schema, "ledger").await?;
        let there = format!("SELECT to_regclass('{schema}.format')");
        if connection.tell(&there).await?.is_some() {
            let version = format!("SELECT max(version) FROM {schema}.format");
            let found = connection.tell(&version).await?;
            match found.map(|found| found.parse::<i32>()) {
                Some(Ok(VERSION)) => return Ok(()),
                Some(Ok(found)) if found > VERSION => {
                    let why = format!(
                        "the ledger {schema} has version {found}, and this program knows versions up to {VERSION}: use a \
                         newer one"
                    );
                    return Err(RecordsError::Invalid { why });
                }
                _ => {}
            }
        }
        let Some(made_with) = self.made_with else {
            // Whoever asks for it is told.
            return Ok(());
        };
        let start = LedgerHead::start(made_with.hashed);
        let hash = match start.hash {
            Some(hash) => format!(r"'\x{hash}'"),
            None => "NULL".to_owned(),
        };
        let retention = span(made_with.retention);
        let retention = retention.map_or("NULL".to_owned(), |span| span.to_string());
        // Of several that start at once, one makes them and the others find them made.
        let sql = format!(
            "BEGIN;
             SELECT pg_advisory_xact_lock({LOCK});
             CREATE SCHEMA IF NOT EXISTS {schema};
             {tables}
             INSERT INTO {schema}.head VALUES (true, 0, 1, 0, 0, {hash}, false, {retention}) ON CONFLICT DO NOTHING;
             INSERT INTO {schema}.format SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM {schema}.format);
             COMMIT",
            tables = TABLES.replace("{ledger}", schema)
        );
        // If it fails, the connection ends, and the transaction with it.
        let made = connection.client.batch_execute(&sql).await;
        made.map_err(|error| {
            let why = with_sources(&error);
            unavailable(format!("making the tables of the ledger: {why}"))
        })
    }
}
