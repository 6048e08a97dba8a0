//! What a ledger has in the database.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use lockgate_core::{
    RecordsError,
    ledger::{LedgerError, LedgerHead, LedgerOptions},
};
use lockgate_records::{
    ledger::{check_version, failed, span},
    schema_name,
};
use mysql_async::{Conn, Row, prelude::Queryable as _};

use super::{append::literal, partitions};
use crate::connection::{Purpose, get, invalid, not_done, unavailable};

/// The version of the tables: a program that knows lower ones only cannot use the ledger.
const VERSION: i64 = 1;

const TABLES: &str = include_str!("tables.sql");

/// What a server must take as one packet: a statement, which has up to [`STATEMENT_BYTES`](super::append::STATEMENT_BYTES).
const PACKET_BYTES_MIN: u64 = 4 << 20;

pub(super) struct Store {
    /// What the names of the tables begin with.
    pub(super) name: String,
    /// `None`: it is not made.
    made_with: Option<LedgerOptions>,
    /// How many events a partition has, if it is made with partitions.
    partition: Option<i64>,
    /// Its tables were there, or were made.
    was_made: AtomicBool,
    /// The server shows nothing before it is flushed.
    shows_flushed: AtomicBool,
    /// A revision of the head that was flushed, as the connection of that number has seen.
    flushed: Mutex<(u64, i64)>,
}

/// Checks the name of a ledger, with which names of tables begin.
pub(super) fn check_name(name: &str) -> Result<(), LedgerError> {
    schema_name(name, "a ledger in a database").map_err(failed)
}

impl Store {
    pub(super) fn new(
        name: String,
        made_with: Option<LedgerOptions>,
        partition: Option<i64>,
    ) -> Self {
        Self {
            name,
            made_with,
            partition,
            was_made: AtomicBool::new(false),
            shows_flushed: AtomicBool::new(false),
            flushed: Mutex::default(),
        }
    }

    /// Whether what a connection has seen up to that revision stays.
    pub(super) fn is_flushed(&self, connection: u64, revision: i64) -> bool {
        let (known, flushed) = *self.flushed();
        self.shows_flushed.load(Ordering::Relaxed) || (known == connection && revision <= flushed)
    }

    pub(super) fn has_flushed(&self, connection: u64, revision: i64) {
        let mut flushed = self.flushed();
        *flushed = match *flushed {
            (known, before) if known == connection => (known, before.max(revision)),
            (known, before) if known > connection => (known, before),
            _ => (connection, revision),
        };
    }

    fn flushed(&self) -> std::sync::MutexGuard<'_, (u64, i64)> {
        // What panics under it has changed nothing by halves.
        self.flushed
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Purpose for Store {
    fn name(&self) -> &str {
        &self.name
    }

    async fn is_prepared(&self, connection: &mut Conn) -> Result<bool, RecordsError> {
        let name = &self.name;
        let sql = "SELECT @@global.max_allowed_packet, @@global.log_bin";
        let settings: Option<(u64, u64)> =
            connection.query_first(sql).await.map_err(unavailable)?;
        let (packet, has_binary_log) = settings.unwrap_or_default();
        if packet < PACKET_BYTES_MIN {
            return Err(invalid(format!(
                "the server's max_allowed_packet is {packet} bytes: a ledger needs {PACKET_BYTES_MIN} (4M) at least"
            )));
        }
        let shows_flushed = has_binary_log != 0 && logs_all(connection).await;
        (self.shows_flushed).store(shows_flushed, Ordering::Relaxed);
        let there = format!(
            "SELECT COUNT(*) FROM information_schema.tables
             WHERE table_schema = DATABASE() AND table_name = '{name}_version'"
        );
        let there: Option<u64> = connection.query_first(there).await.map_err(unavailable)?;
        if there == Some(0) {
            // Where it is not to be made, whoever asks for it is told. One that is gone is not made again: its numbers would
            // begin anew.
            return Ok(self.made_with.is_none() || self.was_made.load(Ordering::Relaxed));
        }
        let version = format!("SELECT MAX(version) FROM {name}_version");
        let version: Option<Option<i64>> =
            connection.query_first(version).await.map_err(not_done)?;
        match version.flatten() {
            // Somebody was interrupted, or is at it: who makes ledgers goes on with that.
            None => Ok(self.made_with.is_none() || self.was_made.load(Ordering::Relaxed)),
            Some(found) => {
                check_version(name, found, VERSION)?;
                self.was_made.store(true, Ordering::Relaxed);
                Ok(true)
            }
        }
    }

    fn statements(&self) -> Vec<String> {
        self.was_made.store(true, Ordering::Relaxed);
        let name = &self.name;
        let null = || "NULL".to_owned();
        let made_with = self.made_with.unwrap_or_default();
        let hash = LedgerHead::start(made_with.hashed).hash;
        let hash = hash.map_or_else(null, |hash| literal(&hash.0));
        let retention = span(made_with.retention).map_or_else(null, |span| span.to_string());
        let tables = TABLES
            .replace("{ledger}", name)
            .replace("{partitions}", &partitions::made_with(self.partition));
        let partition = (self.partition).map_or_else(null, |events| events.to_string());
        let tables = tables.split("\n--\n").map(str::to_owned);
        let rows = [
            format!(
                "INSERT IGNORE INTO {name}_head
                 VALUES (1, 0, 1, 0, 0, {hash}, false, {retention}, {partition}, 0)"
            ),
            format!("INSERT IGNORE INTO {name}_version VALUES ({VERSION})"),
        ];
        tables.chain(rows).collect()
    }
}

/// Whether every transaction goes through the server's binary log, which is flushed before they are shown; that it is flushed at
/// all was looked at. Where the user may not know whether some are left out, they may be.
async fn logs_all(connection: &mut Conn) -> bool {
    for sql in ["SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"] {
        if let Ok(Some(status)) = connection.query_first::<Row, _>(sql).await {
            let is_empty = |column| get::<String>(&status, column).is_ok_and(|it| it.is_empty());
            return is_empty("Binlog_Do_DB") && is_empty("Binlog_Ignore_DB");
        }
    }
    false
}
