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

/// How often a call is made again that the server has undone for another's sake.
pub(crate) const TRIES_MAX: u32 = 10;

/// Statements that wait for the connection.
const QUEUE: usize = 64;

/// What the connection is for.
pub(crate) trait Purpose: Send + Sync + 'static {
    /// What the names of its tables begin with.
    fn name(&self) -> &str;

    /// Whether the server has what is needed.
    fn is_prepared(
        &self,
        connection: &mut Conn,
    ) -> impl Future<Output = Result<bool, RecordsError>> + Send;

    /// The statements that make what is needed. They may be run again where a process has ended between two of them.
    fn statements(&self) -> Vec<String>;
}

/// How to reach the server, and the connection to it.
pub(crate) struct Link<P> {
    opts: Opts,
    /// How long a statement may take, and a connect.
    timeout: Duration,
    purpose: P,
    /// Held while it is made, so that many callers make one.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    commands: Option<mpsc::Sender<Ask>>,
    /// How many were made.
    made: u64,
    backoff: Backoff,
}

struct Ask {
    sql: String,
    parameters: Params,
    answer: oneshot::Sender<Result<Answer, Fault>>,
}

/// What the server says to a statement.
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    /// How many rows it has changed.
    pub(crate) changed: u64,
    /// The number of the connection: none has the number of an earlier one.
    pub(crate) connection: u64,
}

/// Why a statement has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It was not asked for.
    NotAsked(String),
    /// The server says no, and has done nothing of it.
    Refused(String),
    /// The same, because the user may not.
    Denied(String),
    /// The server has undone it for another's sake.
    Undone(String),
    /// Nobody knows.
    Lost(String),
}

impl Fault {
    pub(crate) fn of(error: &Error) -> Self {
        let why = error.to_string();
        match error {
            Error::Server(said) => match said.code {
                // A deadlock; a lock that did not come in time; a row that has changed since it was read.
                1213 | 1205 | 1020 => Self::Undone(why),
                // A shutdown, a kill of the statement or of the connection: perhaps it was done by then.
                1053 | 1317 | 1927 | 3024 | 1969 => Self::Lost(why),
                // No right: to the database, to the table, to a column.
                1044 | 1142 | 1143 => Self::Denied(why),
                _ => Self::Refused(why),
            },
            _ => Self::Lost(why),
        }
    }
}

pub(crate) fn unavailable(why: impl ToString) -> RecordsError {
    let why = why.to_string();
    RecordsError::Unavailable { why }
}

/// Why something was not done that changes nothing, or can be done again.
pub(crate) fn not_done(error: Error) -> RecordsError {
    match Fault::of(&error) {
        Fault::Denied(why) => RecordsError::Denied { why },
        _ => unavailable(error),
    }
}

pub(crate) fn invalid(why: String) -> RecordsError {
    RecordsError::Invalid { why }
}

pub(crate) fn late(timeout: Duration) -> String {
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

impl<P: Purpose> Link<P> {
    pub(crate) fn new(opts: Opts, timeout: Duration, purpose: P) -> Self {
        Self {
            opts,
            timeout,
            purpose,
            kept: Mutex::default(),
        }
    }

    pub(crate) fn purpose(&self) -> &P {
        &self.purpose
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
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
    ) -> Result<Answer, RecordsError> {
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
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(fault)) => fault,
                    // The runtime that it was made in has ended.
                    Err(_) => Fault::Lost("the connection's runtime has ended".to_owned()),
                },
            };
            match fault {
                Fault::Undone(_) if tries < TRIES_MAX => tries += 1,
                Fault::Refused(why) | Fault::Undone(why) => return Err(unavailable(why)),
                Fault::Denied(why) => return Err(RecordsError::Denied { why }),
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
        kept.made += 1;
        tokio::spawn(serve(connection, kept.made, asks, self.timeout));
        kept.commands = Some(commands.clone());
        Ok(commands)
    }

    /// A connection to a server that has what is needed.
    pub(crate) async fn make(&self) -> Result<Conn, RecordsError> {
        let made = async {
            let mut connection = self.connect().await?;
            self.check(&mut connection).await?;
            self.prepare(&mut connection).await?;
            Ok(connection)
        };
        match timeout(self.timeout, made).await {
            Ok(made) => made,
            Err(_late) => Err(unavailable(late(self.timeout))),
        }
    }

    /// A connection of which everything is settled that a server or user may have set otherwise.
    pub(crate) async fn connect(&self) -> Result<Conn, RecordsError> {
        let made = timeout(self.timeout, Conn::new(self.opts.clone())).await;
        let made = made.map_err(|_late| unavailable(late(self.timeout)))?;
        let mut connection = made.map_err(|error| {
            let (host, port) = (self.opts.ip_or_hostname(), self.opts.tcp_port());
            let why = format!("{host}:{port}: {error}");
            match Fault::of(&error) {
                Fault::Denied(_) => RecordsError::Denied { why },
                _ => unavailable(why),
            }
        })?;
        let seconds = self.timeout.as_secs().max(1);
        let settings = format!(
            "SET NAMES utf8mb4; \
             SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
             innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds};
             SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        );
        let set = connection.query_drop(settings).await;
        set.map_err(unavailable)?;
        Ok(connection)
    }

    /// That the server keeps what it answers, and takes writes.
    async fn check(&self, connection: &mut Conn) -> Result<(), RecordsError> {
        let sql = "SELECT @@global.innodb_flush_log_at_trx_commit AS flush, @@global.log_bin AS log_bin, \
            @@global.sync_binlog AS sync_binlog, @@global.read_only AS read_only, @@session.binlog_format AS binlog_format, \
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
        if number("log_bin")? == 1 && get::<String>(&row, "binlog_format")? == "STATEMENT" {
            return Err(invalid(
                "the server's setting binlog_format is STATEMENT, with which it takes no transaction of isolation \
                 READ COMMITTED: it must be ROW or MIXED"
                    .to_owned(),
            ));
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

    /// Makes what is needed, or finds that it is as it should be; then no right to make any is needed.
    async fn prepare(&self, connection: &mut Conn) -> Result<(), RecordsError> {
        let purpose = &self.purpose;
        if purpose.is_prepared(connection).await? {
            return Ok(());
        }
        // Of several that start at once, one makes them and the others find them made.
        let lock = format!(
            "CONCAT('lockgate:', SHA1(CONCAT(DATABASE(), '.{}')))",
            purpose.name()
        );
        let seconds = self.timeout.as_secs().max(1);
        let locked: Option<Option<i64>> = connection
            .query_first(format!("SELECT GET_LOCK({lock}, {seconds})"))
            .await
            .map_err(unavailable)?;
        if locked.flatten() != Some(1) {
            return Err(unavailable("another process is making the tables"));
        }
        // If it fails, the connection ends, and the lock with it.
        if !purpose.is_prepared(connection).await? {
            for statement in purpose.statements() {
                let made = connection.query_drop(statement).await;
                made.map_err(|error| {
                    let making = |why| format!("making the tables of {}: {why}", purpose.name());
                    match not_done(error) {
                        RecordsError::Denied { why } => RecordsError::Denied { why: making(why) },
                        RecordsError::Unavailable { why } => unavailable(making(why)),
                        other => other,
                    }
                })?;
            }
        }
        let released = connection.query_drop(format!("DO RELEASE_LOCK({lock})"));
        released.await.map_err(unavailable)
    }
}

/// Runs statements until one has no answer.
async fn serve(mut connection: Conn, number: u64, mut asks: mpsc::Receiver<Ask>, limit: Duration) {
    let end = loop {
        let Some(ask) = asks.recv().await else {
            // Nobody can ask any more.
            let _ = timeout(limit, connection.disconnect()).await;
            return;
        };
        if ask.answer.is_closed() {
            continue;
        }
        let asked = connection.exec::<Row, _, _>(ask.sql, ask.parameters);
        let result = match timeout(limit, asked).await {
            Ok(Ok(rows)) => Ok(Answer {
                rows,
                changed: connection.affected_rows(),
                connection: number,
            }),
            Ok(Err(error)) => Err(Fault::of(&error)),
            Err(_late) => Err(Fault::Lost(late(limit))),
        };
        let end = match &result {
            Ok(_) | Err(Fault::Undone(_) | Fault::Denied(_)) => None,
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
