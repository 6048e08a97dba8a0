//! What a store of records has in the database.

use lockgate_core::RecordsError;
use lockgate_records::Bell;

use crate::asked::{Connection, Purpose, not_done_at};

/// The version of the tables of `program.sql`: a program that knows lower ones only cannot use the store.
const VERSION: i32 = 1;

/// The version of its functions. They serve the calls of earlier programs too, which may go on with the store.
const PROGRAM_VERSION: i32 = 2;

const PROGRAM: &str = include_str!("program.sql");

/// Taken while the tables are made; a number that nothing else is likely to use.
const LOCK: i64 = 0x6c6f_636b_7265_6373;

pub(super) struct Store {
    /// Its schema.
    pub(super) name: String,
    pub(super) bell: Bell,
}

impl Purpose for Store {
    fn channel(&self) -> &str {
        &self.name
    }

    fn heard(&self, payload: Option<&str>) {
        match payload {
            Some(name) => self.bell.ring(name),
            None => self.bell.ring_all(),
        }
    }

    /// Makes the tables and functions, or finds that they are as they should be; then no right to make any is needed.
    async fn prepare(&self, connection: &Connection) -> Result<(), RecordsError> {
        let store = &self.name;
        connection.check_schema(store, "store").await?;
        let there = format!("SELECT to_regclass('{store}.format')");
        let found = match connection.tell(&there).await? {
            None => None,
            Some(_) => {
                // The first program has left no version of its functions.
                let versions = format!(
                    "SELECT max(version) || ' ' || coalesce(max((to_jsonb(it) ->> 'program')::integer), 1)
                     FROM {store}.format AS it"
                );
                connection.tell(&versions).await?
            }
        };
        let found = found.as_deref().and_then(|found| found.split_once(' '));
        match found.map(|(version, program)| (version.parse::<i32>(), program.parse::<i32>())) {
            Some((Ok(VERSION), Ok(PROGRAM_VERSION..))) => return Ok(()),
            Some((Ok(found), _)) if found > VERSION => {
                let why = format!(
                    "the schema {store} has version {found}, and this program knows versions up to {VERSION}: use a newer one"
                );
                return Err(RecordsError::Invalid { why });
            }
            _ => {}
        }
        // Of several that start at once, one makes them and the others find them made.
        let sql = format!(
            "BEGIN;
             SELECT pg_advisory_xact_lock({LOCK});
             CREATE SCHEMA IF NOT EXISTS {store};
             {program}
             CREATE TABLE IF NOT EXISTS {store}.format (version integer NOT NULL);
             ALTER TABLE {store}.format ADD COLUMN IF NOT EXISTS program integer NOT NULL DEFAULT 1;
             DELETE FROM {store}.format;
             INSERT INTO {store}.format (version, program) VALUES ({VERSION}, {PROGRAM_VERSION});
             COMMIT",
            program = PROGRAM.replace("{store}", store)
        );
        // If it fails, the connection ends, and the transaction with it.
        let made = connection.client.batch_execute(&sql).await;
        made.map_err(|error| not_done_at("making what the store needs", &error))
    }
}
