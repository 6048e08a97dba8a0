//! What a ledger has in the database.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use lockgate_core::{
    RecordsError,
    ledger::{LedgerError, LedgerHead, LedgerOptions},
};
use lockgate_records::{
    ledger::{check_version, failed, span},
    schema_name, unreadable,
};
use tokio::sync::Notify;

use crate::asked::{Connection, Purpose, not_done_at};

/// The version of the tables: a program that knows lower ones only cannot use the ledger.
const VERSION: i64 = 2;

/// What makes the tables of version 1 those of version 2.
const FROM_1: &str = "\
ALTER TABLE {ledger}.head
    ADD COLUMN IF NOT EXISTS partition_events bigint, ADD COLUMN IF NOT EXISTS partitioned_to bigint;
UPDATE {ledger}.format SET version = 2 WHERE version = 1";

const TABLES: &str = include_str!("tables.sql");

/// Taken while the tables are made; a number that nothing else is likely to use.
const LOCK: i64 = 0x6c6f_636b_6c65_6467;

pub(super) struct Store {
    pub(super) schema: String,
    /// `None`: it is not made.
    made_with: Option<LedgerOptions>,
    /// How many events a partition has, if it is made with partitions.
    partition: Option<i64>,
    /// Something was appended, or may have been.
    pub(super) changed: Notify,
    /// Its tables were there, or were made.
    was_there: AtomicBool,
}

/// Makes a partition of so many events; the first one has the number 0. It is made beside the table, and put into it, for which
/// nobody who reads or appends has to wait.
pub(super) fn partition(number: i64, of: i64) -> String {
    let (from, to) = (number * of + 1, (number + 1) * of + 1);
    format!(
        "CREATE TABLE {{ledger}}.events_{number} (LIKE {{ledger}}.events INCLUDING ALL);
         ALTER TABLE {{ledger}}.events ATTACH PARTITION {{ledger}}.events_{number} FOR VALUES FROM ({from}) TO ({to});"
    )
}

/// Checks the name of a ledger, which becomes a schema.
pub(super) fn check_name(name: &str) -> Result<(), LedgerError> {
    schema_name(name, "a ledger in a database").map_err(failed)
}

impl Store {
    pub(super) fn new(
        schema: &str,
        made_with: Option<LedgerOptions>,
        partition: Option<i64>,
    ) -> Self {
        Self {
            schema: schema.to_owned(),
            made_with,
            partition,
            changed: Notify::new(),
            was_there: AtomicBool::new(false),
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
        connection.check_encoding().await?;
        if self.to_make(connection).await?.is_none() {
            return Ok(());
        }
        // Of several that start at once, one makes them and the others find them made. If it fails, the connection ends, and the
        // transaction with it.
        let lock = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})");
        connection.batch(&lock).await?;
        let sql = self.to_make(connection).await?.unwrap_or_default();
        let sql = format!("{sql}; COMMIT");
        let made = connection.client.batch_execute(&sql).await;
        made.map_err(|error| not_done_at("making the tables of the ledger", &error))?;
        self.was_there.store(true, Relaxed);
        Ok(())
    }
}

impl Store {
    /// The statements that make what is missing, if there is anything.
    async fn to_make(&self, connection: &Connection) -> Result<Option<String>, RecordsError> {
        let schema = &self.schema;
        let there = format!("SELECT to_regclass('{schema}.format')");
        let mut found = None;
        let has_format = connection.tell(&there).await?.is_some();
        if has_format {
            let version = format!("SELECT max(version) FROM {schema}.format");
            found = connection.tell(&version).await?;
        }
        Ok(match found.as_deref() {
            // Without a version, somebody was interrupted.
            None => match self.made_with {
                Some(made_with) if !self.was_there.load(Relaxed) => {
                    let others = format!("SELECT to_regclass('{schema}.events')");
                    // They are made in one transaction.
                    if !has_format && connection.tell(&others).await?.is_some() {
                        let why = format!(
                            "the schema {schema} has a table events that is no ledger's: name the ledger otherwise"
                        );
                        return Err(RecordsError::Invalid { why });
                    }
                    Some(self.tables(made_with))
                }
                // Whoever asks for it is told. One that is gone is not made again: its numbers would begin anew.
                _ => None,
            },
            Some("1") => Some(FROM_1.replace("{ledger}", schema)),
            Some(found) => {
                let found = found.parse().map_err(|_| unreadable("its version"))?;
                check_version(schema, found, VERSION)?;
                self.was_there.store(true, Relaxed);
                None
            }
        })
    }

    /// The statements that make the tables.
    fn tables(&self, made_with: LedgerOptions) -> String {
        let schema = &self.schema;
        let start = LedgerHead::start(made_with.hashed);
        let hash = match start.hash {
            Some(hash) => format!(r"'\x{hash}'"),
            None => "NULL".to_owned(),
        };
        let retention = span(made_with.retention);
        let retention = retention.map_or("NULL".to_owned(), |span| span.to_string());
        let (mut partitions, mut first) = ("", String::new());
        let (mut events, mut to) = ("NULL".to_owned(), "NULL".to_owned());
        if let Some(of) = self.partition {
            partitions = "PARTITION BY RANGE (sequence_id)";
            first = partition(0, of).replace("{ledger}", schema);
            (events, to) = (of.to_string(), of.to_string());
        }
        format!(
            "CREATE SCHEMA IF NOT EXISTS {schema};
             {tables}
             {first}
             INSERT INTO {schema}.head VALUES (true, 0, 1, 0, 0, {hash}, false, {retention}, {events}, {to})
             ON CONFLICT DO NOTHING;
             INSERT INTO {schema}.format SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM {schema}.format)",
            tables = TABLES
                .replace("{partitions}", partitions)
                .replace("{ledger}", schema)
        )
    }
}
