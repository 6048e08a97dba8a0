//! Connections: made, checked, asked one thing after the other, and made again.
//!
//! A task owns the connection for commands. Whoever asks hands it a statement and waits for the answer; if that one is gone
//! meanwhile, the statement goes on to its end, so that the connection is never left in the middle of one.

use std::time::Duration;

use lockgate_core::RecordsError;
use lockgate_records::{Backoff, unreadable};
use mysql_async::{Conn, Error, Opts, Params, Row, Value, prelude::Queryable as _};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::timeout,
};

use crate::MysqlRecordsOptions;

/// The version of the tables of `program.sql`: a program that knows lower ones only cannot use the store.
const VERSION: u32 = 1;

/// The version of its procedures. They serve the calls of earlier programs too, which may go on with the store.
const PROGRAM_VERSION: u32 = 2;

const PROGRAM: &str = include_str!("program.sql");

/// How often a call is made again that the server has undone for another's sake.
const TRIES_MAX: u32 = 10;

/// Statements that wait for the connection.
const QUEUE: usize = 64;

/// The time in microseconds, also in a procedure that has waited for a lock.
pub(crate) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

pub(crate) const COLUMNS: &str = "value, version, revision, written, holder, epoch, delete_at_end";

/// How to reach the server, and the connection to it.
pub(crate) struct Link {
    opts: Opts,
    pub(crate) options: MysqlRecordsOptions,
    /// Held while it is made, so that many callers make one.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    commands: Option<mpsc::Sender<Ask>>,
    backoff: Backoff,
}

struct Ask {
    sql: String,
    parameters: Params,
    answer: oneshot::Sender<Result<Vec<Row>, Fault>>,
}

/// Why a statement has no answer.
#[derive(Clone, Debug)]
enum Fault {
    /// It was not asked for.
    NotAsked(String),
    /// The server says no, and has done nothing of it.
    Refused(String),
    /// The server has undone it for another's sake.
    Undone(String),
    /// Nobody knows.
    Lost(String),
}

impl Fault {
    fn of(error: &Error) -> Self {
        let why = error.to_string();
        match error {
            Error::Server(said) => match said.code {
                // A deadlock; a lock that did not come in time.
                1213 | 1205 => Self::Undone(why),
                // A shutdown, a kill of the statement or of the connection: perhaps it was done by then.
                1053 | 1317 | 1927 | 3024 | 1969 => Self::Lost(why),
                _ => Self::Refused(why),
            },
            _ => Self::Lost(why),
        }
    }
}

fn unavailable(why: impl ToString) -> RecordsError {
    let why = why.to_string();
    RecordsError::Unavailable { why }
}

fn invalid(why: String) -> RecordsError {
    RecordsError::Invalid { why }
}

fn late(timeout: Duration) -> String {
    format!("no answer from the database within {timeout:?}")
}

/// A column of a row.
pub(crate) fn get<T: mysql_async::prelude::FromValue>(
    row: &Row,
    column: &str,
) -> Result<T, RecordsError> {
    let value = row.get_opt::<T, _>(column);
    let value = value.ok_or_else(|| unreadable(&format!("there is no column {column}")))?;
    value.map_err(|_| unreadable(&format!("column {column}")))
}

impl Link {
    pub(crate) fn new(opts: Opts, options: MysqlRecordsOptions) -> Self {
        Self {
            opts,
            options,
            kept: Mutex::default(),
        }
    }

    /// Connects for the first time.
    pub(crate) async fn open(&self) -> Result<(), RecordsError> {
        self.commands().await.map(drop)
    }

    /// Runs a statement on the connection for commands.
    pub(crate) async fn ask(
        &self,
        sql: &str,
        parameters: Vec<Value>,
        changes: bool,
    ) -> Result<Vec<Row>, RecordsError> {
        let (mut tries, mut was_lost) = (0, false);
        loop {
            let commands = self.commands().await?;
            let (answer, answered) = oneshot::channel();
            let ask = Ask {
                sql: sql.to_owned(),
                parameters: Params::Positional(parameters.clone()),
                answer,
            };
            let fault = match commands.send(ask).await {
                Err(_) => Fault::NotAsked("the connection has ended".to_owned()),
                Ok(()) => match answered.await {
                    Ok(Ok(rows)) => return Ok(rows),
                    Ok(Err(fault)) => fault,
                    // The runtime that it was made in has ended.
                    Err(_) => Fault::Lost("the connection's runtime has ended".to_owned()),
                },
            };
            match fault {
                Fault::Undone(_) if tries < TRIES_MAX => tries += 1,
                Fault::Refused(why) | Fault::Undone(why) => return Err(unavailable(why)),
                Fault::Lost(why) if changes => return Err(RecordsError::Unknown { why }),
                Fault::NotAsked(why) | Fault::Lost(why) if was_lost => {
                    return Err(unavailable(why));
                }
                Fault::NotAsked(_) | Fault::Lost(_) => was_lost = true,
            }
        }
    }

    async fn commands(&self) -> Result<mpsc::Sender<Ask>, RecordsError> {
        let mut kept = self.kept.lock().await;
        if let Some(commands) = &kept.commands
            && !commands.is_closed()
        {
            return Ok(commands.clone());
        }
        kept.commands = None;
        kept.backoff.check()?;
        let made = self.make().await;
        kept.backoff.connected(&made);
        let connection = made?;
        let (commands, asks) = mpsc::channel(QUEUE);
        tokio::spawn(serve(connection, asks, self.options.timeout));
        kept.commands = Some(commands.clone());
        Ok(commands)
    }

    /// A connection to a server that has what the store needs.
    async fn make(&self) -> Result<Conn, RecordsError> {
        let made = async {
            let mut connection = self.connect().await?;
            self.check(&mut connection).await?;
            self.prepare(&mut connection).await?;
            Ok(connection)
        };
        match timeout(self.options.timeout, made).await {
            Ok(made) => made,
            Err(_late) => Err(unavailable(late(self.options.timeout))),
        }
    }

    /// A connection of which everything is settled that a server or user may have set otherwise.
    pub(crate) async fn connect(&self) -> Result<Conn, RecordsError> {
        let made = timeout(self.options.timeout, Conn::new(self.opts.clone())).await;
        let made = made.map_err(|_late| unavailable(late(self.options.timeout)))?;
        let mut connection = made.map_err(|error| {
            let (host, port) = (self.opts.ip_or_hostname(), self.opts.tcp_port());
            unavailable(format!("{host}:{port}: {error}"))
        })?;
        let seconds = self.options.timeout.as_secs().max(1);
        let settings = format!(
            "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
             innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
        );
        let set = connection.query_drop(settings).await;
        set.map_err(unavailable)?;
        Ok(connection)
    }

    /// That the server keeps what it answers, and takes writes.
    async fn check(&self, connection: &mut Conn) -> Result<(), RecordsError> {
        let sql = "SELECT @@global.innodb_flush_log_at_trx_commit AS flush, @@global.log_bin AS log_bin, \
            @@global.sync_binlog AS sync_binlog, @@global.read_only AS read_only, \
            SYSDATE(6) AS time_before, SLEEP(0.001), SYSDATE(6) AS time_behind";
        let row: Option<Row> = connection.query_first(sql).await.map_err(unavailable)?;
        let row = row.ok_or_else(|| unreadable("there are no settings"))?;
        let number = |column| get::<u64>(&row, column);
        let forgets = |setting: &str, value: u64| {
            invalid(format!(
                "the server's setting {setting} is {value}, which loses what was answered with the power: it must be 1"
            ))
        };
        match number("flush")? {
            1 => {}
            other => return Err(forgets("innodb_flush_log_at_trx_commit", other)),
        }
        match number("sync_binlog")? {
            other if other != 1 && number("log_bin")? == 1 => {
                return Err(forgets("sync_binlog", other));
            }
            _ => {}
        }
        if number("read_only")? != 0 {
            return Err(unavailable("the server is read-only: it is a replica"));
        }
        if get::<Value>(&row, "time_before")? == get::<Value>(&row, "time_behind")? {
            return Err(invalid(
                "the server runs with sysdate-is-now, with which a procedure cannot know the time"
                    .to_owned(),
            ));
        }
        let sql = "SHOW GLOBAL VARIABLES LIKE 'wsrep_on'";
        let galera: Option<(String, String)> =
            connection.query_first(sql).await.map_err(unavailable)?;
        if galera.is_some_and(|(_, value)| value == "ON") {
            return Err(invalid(
                "the server is one of a Galera cluster (wsrep_on), where several take writes and a read may be of the past"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Makes the tables and procedures, or finds that they are as they should be; then no right to make any is needed.
    async fn prepare(&self, connection: &mut Conn) -> Result<(), RecordsError> {
        let store = &self.options.store;
        if self.is_prepared(connection).await? {
            return Ok(());
        }
        // Of several that start at once, one makes them and the others find them made.
        let lock = format!("CONCAT('lockgate:', SHA1(CONCAT(DATABASE(), '.{store}')))");
        let seconds = self.options.timeout.as_secs().max(1);
        let locked: Option<Option<i64>> = connection
            .query_first(format!("SELECT GET_LOCK({lock}, {seconds})"))
            .await
            .map_err(unavailable)?;
        if locked.flatten() != Some(1) {
            return Err(unavailable("another process is making the tables"));
        }
        // If it fails, the connection ends, and the lock with it.
        if !self.is_prepared(connection).await? {
            for statement in self.program().split("\n--\n") {
                let made = connection.query_drop(statement).await;
                made.map_err(|error| unavailable(format!("making what the store needs: {error}")))?;
            }
            for statement in [
                format!("DROP TABLE IF EXISTS {store}_format"),
                format!(
                    "CREATE TABLE {store}_format (version INT PRIMARY KEY, program INT NOT NULL)"
                ),
                format!("INSERT INTO {store}_format VALUES ({VERSION}, {PROGRAM_VERSION})"),
            ] {
                connection
                    .query_drop(statement)
                    .await
                    .map_err(unavailable)?;
            }
        }
        let released = connection.query_drop(format!("DO RELEASE_LOCK({lock})"));
        released.await.map_err(unavailable)
    }

    async fn is_prepared(&self, connection: &mut Conn) -> Result<bool, RecordsError> {
        let store = &self.options.store;
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

    fn program(&self) -> String {
        PROGRAM
            .replace("{lock}", &lock_of(&self.options.store, "of_name"))
            .replace(
                "{columns}",
                &format!("{COLUMNS}, ends - {NOW} AS remaining"),
            )
            .replace("{now}", NOW)
            .replace("{store}", &self.options.store)
    }
}

/// The name of the server's lock that goes with the lease of a record. Such names are of all databases of a server.
pub(crate) fn lock_of(store: &str, name: &str) -> String {
    format!("CONCAT('lockgate:', SHA1(CONCAT(DATABASE(), '.{store}.', {name})))")
}

/// Runs statements until one has no answer.
async fn serve(mut connection: Conn, mut asks: mpsc::Receiver<Ask>, limit: Duration) {
    let end = loop {
        let Some(ask) = asks.recv().await else {
            // The store is gone.
            let _ = timeout(limit, connection.disconnect()).await;
            return;
        };
        if ask.answer.is_closed() {
            continue;
        }
        let asked = connection.exec::<Row, _, _>(ask.sql, ask.parameters);
        let result = match timeout(limit, asked).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(Fault::of(&error)),
            Err(_late) => Err(Fault::Lost(late(limit))),
        };
        let end = match &result {
            Ok(_) | Err(Fault::Undone(_)) => None,
            // One that was refused may have left a transaction open, or its table is gone: the next connect sees to it.
            Err(Fault::Refused(why) | Fault::Lost(why) | Fault::NotAsked(why)) => Some(why.clone()),
        };
        let _ = ask.answer.send(result);
        if let Some(why) = end {
            break why;
        }
    };
    asks.close();
    drop(connection);
    while let Some(ask) = asks.recv().await {
        let _ = ask.answer.send(Err(Fault::NotAsked(end.clone())));
    }
}
