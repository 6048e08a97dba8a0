//! The tables, their version, and how they come to be.

use lockgate_core::LogError;

use crate::session::{Failure, Session};

/// The version of the tables below.
pub(crate) const VERSION: i32 = 2;

/// What leads from each version to the next, from an empty database on.
///
/// Tables that change with every append or sync get pages that are mostly empty, so that a new
/// version of a row goes beside the old one and no index changes. Payloads are neither compressed nor
/// moved out of line before they are larger than a page.
///
/// What stands in a table that is not logged is gone after the server has crashed, and was never on a
/// standby that becomes the primary: just where commits that nobody waited for may be lost.
const MIGRATIONS: [&str; VERSION as usize] = [
    "
    CREATE TABLE lockgate.shard (
        id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE,
        claim bigint NOT NULL DEFAULT 0,
        epoch bigint NOT NULL DEFAULT 0,
        tail bigint NOT NULL DEFAULT 1,
        next_number bigint NOT NULL DEFAULT 1,
        trimmed bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 10);
    CREATE TABLE lockgate.durable (
        shard integer PRIMARY KEY REFERENCES lockgate.shard ON DELETE CASCADE,
        position bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 10);
    CREATE TABLE lockgate.record (
        shard integer NOT NULL,
        checksum integer NOT NULL,
        position bigint NOT NULL,
        number bigint NOT NULL,
        epoch bigint NOT NULL,
        payload bytea NOT NULL,
        PRIMARY KEY (shard, position)
    ) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);
    ALTER TABLE lockgate.record ALTER COLUMN payload SET STORAGE EXTERNAL;
    CREATE TABLE lockgate.released (
        shard integer NOT NULL REFERENCES lockgate.shard ON DELETE CASCADE,
        first bigint NOT NULL,
        stop bigint NOT NULL,
        PRIMARY KEY (shard, first)
    );
    CREATE TABLE lockgate.snapshot (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        shard integer NOT NULL REFERENCES lockgate.shard ON DELETE CASCADE,
        position bigint NOT NULL,
        number bigint NOT NULL,
        pieces bigint NOT NULL DEFAULT 0,
        bytes bigint NOT NULL DEFAULT 0,
        complete boolean NOT NULL DEFAULT false
    );
    CREATE INDEX snapshot_position ON lockgate.snapshot (shard, position, id);
    CREATE TABLE lockgate.piece (
        snapshot bigint NOT NULL REFERENCES lockgate.snapshot ON DELETE CASCADE,
        index bigint NOT NULL,
        checksum integer NOT NULL,
        payload bytea NOT NULL,
        PRIMARY KEY (snapshot, index)
    );
    ALTER TABLE lockgate.piece ALTER COLUMN payload SET STORAGE EXTERNAL;
",
    "
    CREATE UNLOGGED TABLE lockgate.unsynced (
        shard integer PRIMARY KEY REFERENCES lockgate.shard ON DELETE CASCADE,
        tail bigint NOT NULL,
        written bigint NOT NULL
    );
",
];

/// Taken while the tables are made or changed; a number that nothing else is likely to use.
const LOCK: i64 = 0x6c6f_636b_6761_7465;

/// Makes the tables, or brings them to this version, or finds that they are as they should be; then
/// no right to make tables is needed.
pub(crate) fn prepare(session: &Session) -> Result<(), LogError> {
    let failed = |failure: Failure| failure.while_doing("preparing the log's tables");
    if version(session).map_err(failed)? == VERSION {
        return Ok(());
    }
    // Of several that start at once, one makes them and the others find them made.
    session
        .execute("SELECT pg_advisory_lock($1)", &[&LOCK])
        .map_err(failed)?;
    let prepared = migrate(session);
    session
        .execute("SELECT pg_advisory_unlock($1)", &[&LOCK])
        .map_err(failed)?;
    prepared
}

/// That there are tables of this version, for who must not change any. Whether there are any.
pub(crate) fn exists(session: &Session) -> Result<bool, LogError> {
    let found = version(session).map_err(|failure| failure.while_doing("looking at the tables"))?;
    if found > VERSION {
        return Err(newer(found));
    }
    Ok(found == VERSION)
}

fn newer(found: i32) -> LogError {
    let known = |number: i32| u32::try_from(number).unwrap_or_default();
    LogError::NewerFormat {
        what: "the schema lockgate of the database".to_owned(),
        found: known(found),
        known: known(VERSION),
    }
}

fn migrate(session: &Session) -> Result<(), LogError> {
    let failed = |failure: Failure| failure.while_doing("preparing the log's tables");
    let found = version(session).map_err(failed)?;
    if found > VERSION {
        return Err(newer(found));
    }
    let Some(steps) = usize::try_from(found)
        .ok()
        .and_then(|at| MIGRATIONS.get(at..))
    else {
        return Ok(());
    };
    if steps.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "BEGIN;
         CREATE SCHEMA IF NOT EXISTS lockgate;
         CREATE TABLE IF NOT EXISTS lockgate.format (version integer NOT NULL);
         {}
         DELETE FROM lockgate.format;
         INSERT INTO lockgate.format VALUES ({VERSION});
         COMMIT",
        steps.concat()
    );
    session.batch(&sql).map_err(|failure| {
        // The transaction that failed is still open.
        let _ = session.batch("ROLLBACK");
        failed(failure)
    })
}

/// The version of the tables that are there; 0 if there are none.
fn version(session: &Session) -> Result<i32, Failure> {
    let there = session.query_opt(
        "SELECT 1 WHERE to_regclass('lockgate.format') IS NOT NULL",
        &[],
    )?;
    if there.is_none() {
        return Ok(0);
    }
    let row = session.query_opt("SELECT max(version) FROM lockgate.format", &[])?;
    Ok(row.map_or(0, |row| row.get::<_, Option<i32>>(0).unwrap_or(0)))
}
