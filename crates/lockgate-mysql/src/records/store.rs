//! What a store has in the database.

use std::time::Duration;

use lockgate_core::RecordsError;
use mysql_async::{Conn, prelude::Queryable as _};

use crate::connection::{Purpose, invalid, unavailable};

/// The version of the tables of `program.sql`: a program that knows lower ones only cannot use the store.
const VERSION: u32 = 1;

/// The version of its procedures. They serve the calls of earlier programs too, which may go on with the store.
const PROGRAM_VERSION: u32 = 2;

const PROGRAM: &str = include_str!("program.sql");

/// The time in microseconds, also in a procedure that has waited for a lock.
pub(super) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

pub(super) const COLUMNS: &str = "value, version, revision, written, holder, epoch, delete_at_end";

pub(super) struct Store {
    /// What the names of tables and procedures begin with.
    pub(super) name: String,
    pub(super) poll: Duration,
}

/// The name of the server's lock that goes with the lease of a record. Such names are of all databases of a server.
pub(super) fn lock_of(store: &str, name: &str) -> String {
    format!("CONCAT('lockgate:', SHA1(CONCAT(DATABASE(), '.{store}.', {name})))")
}

impl Purpose for Store {
    fn name(&self) -> &str {
        &self.name
    }

    async fn is_prepared(&self, connection: &mut Conn) -> Result<bool, RecordsError> {
        let store = &self.name;
        let columns: Option<u64> = connection
            .query_first(format!(
                "SELECT COUNT(*) FROM information_schema.columns
                 WHERE table_schema = DATABASE() AND table_name = '{store}_format'"
            ))
            .await
            .map_err(unavailable)?;
        let program = match columns {
            None | Some(0) => return Ok(false),
            // The first program has left no version of its procedures.
            Some(1) => "1",
            Some(_) => "MAX(program)",
        };
        let found: Option<(Option<u32>, Option<u32>)> = connection
            .query_first(format!(
                "SELECT MAX(version), {program} FROM {store}_format"
            ))
            .await
            .map_err(unavailable)?;
        match found {
            Some((Some(found), _)) if found > VERSION => Err(invalid(format!(
                "the tables of {store} have version {found}, and this program knows versions up to {VERSION}: use a newer one"
            ))),
            found => Ok(matches!(
                found,
                Some((Some(VERSION), Some(PROGRAM_VERSION..)))
            )),
        }
    }

    fn statements(&self) -> Vec<String> {
        let store = &self.name;
        let program = PROGRAM
            .replace("{lock}", &lock_of(store, "of_name"))
            .replace(
                "{columns}",
                &format!("{COLUMNS}, ends - {NOW} AS remaining"),
            )
            .replace("{now}", NOW)
            .replace("{store}", store);
        let program = program.split("\n--\n").map(str::to_owned);
        let format = [
            format!("DROP TABLE IF EXISTS {store}_format"),
            format!("CREATE TABLE {store}_format (version INT PRIMARY KEY, program INT NOT NULL)"),
            format!("INSERT INTO {store}_format VALUES ({VERSION}, {PROGRAM_VERSION})"),
        ];
        program.chain(format).collect()
    }
}
