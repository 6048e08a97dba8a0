//! A connection that many callers ask over: made, checked, asked, and made again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use lockgate_core::{RecordsError, with_sources};
use lockgate_records::{Asking, Backoff};
use tokio::{sync::Mutex, time::timeout};
use tokio_postgres::{
    Client, NoTls, Row,
    error::{Severity, SqlState},
    types::{ToSql, Type},
};

use crate::{
    hosts::{Connected, Hosts, Use},
    pooler,
    session::{Commit, Failure, Unasked, first_row, settings, watched},
    tls::{Target, Tls},
};

/// A value and its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// A value and its type, which spares the server a question.
pub(crate) fn text(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::TEXT)
}

pub(crate) fn int8(value: &(dyn ToSql + Sync)) -> Parameter<'_> {
    (value, Type::INT8)
}

/// How often a statement is run again that the server has undone for another's sake.
const TRIES_MAX: u32 = 10;

/// What the connection is for.
pub(crate) trait Purpose: Send + Sync + 'static {
    /// The channel that it listens to, a name that needs no quotes.
    fn channel(&self) -> &str;

    /// A notification has come; `None`: the connection has ended, so some may be missed.
    fn heard(&self, payload: Option<&str>);

    /// Makes what is needed in the database, or finds that it is there.
    fn prepare(
        &self,
        connection: &Connection,
    ) -> impl Future<Output = Result<(), RecordsError>> + Send;
}

/// How to reach the server, and the connection to it.
pub(crate) struct Link<P> {
    hosts: Hosts,
    tls: Option<Tls>,
    /// How long a statement may take, and a connect.
    timeout: Duration,
    purpose: Arc<P>,
    /// Held while it is made, so that many callers make one.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    connection: Option<Arc<Connection>>,
    backoff: Backoff,
}

pub(crate) struct Connection {
    pub(crate) client: Client,
    unasked: Arc<Unasked>,
    /// Somebody has waited for an answer in vain.
    is_silent: AtomicBool,
}

impl Connection {
    fn serves(&self) -> bool {
        !self.client.is_closed() && !self.is_silent.load(Ordering::Acquire)
    }
}

impl Drop for Connection {
    /// Nobody waits for what is still on its way.
    fn drop(&mut self) {
        self.unasked.give_up.notify_one();
    }
}

/// Why a statement has no answer.
pub(crate) enum Fault {
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
    pub(crate) fn of(error: &tokio_postgres::Error) -> Self {
        let why = with_sources(error);
        let Some(said) = error.as_db_error() else {
            return Self::Lost(why);
        };
        if !matches!(said.parsed_severity(), Some(Severity::Error)) {
            return Self::Lost(why);
        }
        let undone = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
        ];
        match said.code() {
            code if undone.contains(code) => Self::Undone(why),
            &SqlState::INSUFFICIENT_PRIVILEGE => Self::Denied(why),
            _ => Self::Refused(why),
        }
    }
}

/// Why something was not done that changes nothing, or can be done again.
fn not_done(error: &tokio_postgres::Error) -> RecordsError {
    match Fault::of(error) {
        Fault::Denied(why) => RecordsError::Denied { why },
        Fault::Refused(why) | Fault::Undone(why) | Fault::Lost(why) => unavailable(why),
    }
}

/// The same, and what was to be done.
pub(crate) fn not_done_at(what: &str, error: &tokio_postgres::Error) -> RecordsError {
    match not_done(error) {
        RecordsError::Denied { why } => RecordsError::Denied {
            why: format!("{what}: {why}"),
        },
        _ => unavailable(format!("{what}: {}", with_sources(error))),
    }
}

pub(crate) fn unavailable(why: String) -> RecordsError {
    RecordsError::Unavailable { why }
}

fn failed(failure: &Failure) -> RecordsError {
    unavailable(with_sources(failure))
}

impl<P: Purpose> Link<P> {
    pub(crate) fn new(target: Target, timeout: Duration, purpose: P) -> Self {
        Self {
            hosts: Hosts::of(watched(target.config, timeout)),
            tls: target.tls,
            timeout,
            purpose: Arc::new(purpose),
            kept: Mutex::default(),
        }
    }

    pub(crate) fn purpose(&self) -> &P {
        &self.purpose
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Connects for the first time: looks also at what cannot change with a reconnect.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<(), RecordsError> {
        let first = self.connection().await?;
        let second = self.within(self.connect()).await?;
        self.within(check_sessions(&first, &second)).await
    }

    /// Runs a statement.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        sql: &str,
        parameters: &[Parameter<'_>],
        changes: bool,
    ) -> Result<Vec<Row>, RecordsError> {
        let (mut tries, mut was_lost) = (0, false);
        loop {
            let connection = self.connection().await?;
            let asking = Asking::over(&connection.is_silent);
            let asked = connection.client.query_typed(sql, parameters);
            let asked = timeout(self.timeout, asked).await;
            asking.answered();
            let fault = match asked {
                Ok(Ok(rows)) => return Ok(rows),
                Ok(Err(error)) => Fault::of(&error),
                Err(_late) => {
                    self.forget(&connection).await;
                    // Whoever else has asked over it is told that it ended.
                    connection.unasked.give_up.notify_one();
                    let why = with_sources(&Failure::Late(self.timeout));
                    return Err(match changes {
                        true => RecordsError::Unknown { why },
                        false => unavailable(why),
                    });
                }
            };
            match fault {
                Fault::Undone(_) if tries < TRIES_MAX => tries += 1,
                Fault::Undone(why) => return Err(unavailable(why)),
                Fault::Denied(why) => return Err(RecordsError::Denied { why }),
                Fault::Refused(why) => {
                    // Perhaps somebody has dropped the schema: the next connect makes it again, or tells.
                    self.forget(&connection).await;
                    return Err(unavailable(why));
                }
                Fault::Lost(why) => {
                    self.forget(&connection).await;
                    if changes {
                        return Err(RecordsError::Unknown { why });
                    }
                    if was_lost {
                        return Err(unavailable(why));
                    }
                    was_lost = true;
                }
            }
        }
    }

    /// The connection, made if there is none. That goes on if whoever has asked for it waits no more, because the next one
    /// would begin anew with the first of several hosts.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, RecordsError> {
        // Whoever waits for the lock here may be polled no more, and would have it all the same: a task waits instead.
        if let Ok(kept) = self.kept.try_lock()
            && let Some(connection) = &kept.connection
            && connection.serves()
        {
            return Ok(connection.clone());
        }
        let link = self.clone();
        let made = tokio::spawn(async move { link.make_once().await });
        made.await
            .unwrap_or_else(|ended| Err(unavailable(ended.to_string())))
    }

    async fn make_once(&self) -> Result<Arc<Connection>, RecordsError> {
        let mut kept = self.kept.lock().await;
        if let Some(connection) = &kept.connection
            && connection.serves()
        {
            return Ok(connection.clone());
        }
        if let Some(silent) = kept.connection.take() {
            // Whoever else has asked over it is told that it ended.
            silent.unasked.give_up.notify_one();
        }
        kept.backoff.check()?;
        let made = self.within(self.make()).await.map(Arc::new);
        kept.backoff.connected(&made);
        let made = made?;
        kept.connection = Some(made.clone());
        Ok(made)
    }

    /// The next command goes over another one. This one ends with the last of those who have asked over it, and then all who
    /// watch look again.
    pub(crate) async fn forget(&self, lost: &Arc<Connection>) {
        let mut kept = self.kept.lock().await;
        if kept
            .connection
            .as_ref()
            .is_some_and(|kept| Arc::ptr_eq(kept, lost))
        {
            kept.connection = None;
        }
    }

    async fn within<T>(
        &self,
        act: impl Future<Output = Result<T, RecordsError>>,
    ) -> Result<T, RecordsError> {
        match timeout(self.timeout, act).await {
            Ok(done) => done,
            Err(_late) => Err(failed(&Failure::Late(self.timeout))),
        }
    }

    /// A connection of which everything is settled that a server, database or user may have set otherwise.
    async fn connect(&self) -> Result<Connection, RecordsError> {
        let deadline = Instant::now() + self.timeout;
        let connected = match self.tls.clone() {
            Some(tls) => self.hosts.connect(deadline, Use::Writing, tls).await,
            None => self.hosts.connect(deadline, Use::Writing, NoTls).await,
        };
        let Connected {
            client, unasked, ..
        } = connected.map_err(|failure| failed(&failure))?;
        let connection = Connection {
            client,
            unasked,
            is_silent: AtomicBool::new(false),
        };
        let settings = settings(Commit::Flushed, self.timeout);
        connection.batch(&settings).await?;
        Ok(connection)
    }

    /// A connection that listens, to a server that has what the store needs.
    async fn make(&self) -> Result<Connection, RecordsError> {
        let connection = self.connect().await?;
        let purpose = self.purpose.clone();
        let heard = move |payload: Option<&str>| purpose.heard(payload);
        let _ = connection.unasked.heard.set(Box::new(heard));
        let fsync = connection.tell("SELECT current_setting('fsync')").await?;
        if fsync.as_deref() != Some("on") {
            let why =
                "the server's setting fsync is off, which loses what was answered with the power";
            return Err(RecordsError::Invalid {
                why: why.to_owned(),
            });
        }
        self.purpose.prepare(&connection).await?;
        let listen = format!("LISTEN {}", self.purpose.channel());
        connection.batch(&listen).await?;
        Ok(connection)
    }
}

impl Connection {
    /// Ends it, with whatever is open and on its way.
    pub(crate) fn end(&self) {
        self.is_silent.store(true, Ordering::Release);
        self.unasked.give_up.notify_one();
    }

    /// Looks that a name needs no quotes and is no word of PostgreSQL's own; `what` it names.
    pub(crate) async fn check_schema(&self, name: &str, what: &str) -> Result<(), RecordsError> {
        let as_name = format!("SELECT quote_ident('{name}')");
        if self.tell(&as_name).await?.as_deref() != Some(name) || name.starts_with("pg_") {
            let why = format!("{name} is a word of PostgreSQL's own: name the {what} otherwise");
            return Err(RecordsError::Invalid { why });
        }
        Ok(())
    }

    /// That every text can be written: a text that the database's encoding lacks is an error each time that it comes.
    pub(crate) async fn check_encoding(&self) -> Result<(), RecordsError> {
        match self.tell("SHOW server_encoding").await?.as_deref() {
            Some("UTF8" | "SQL_ASCII") => Ok(()),
            other => {
                let encoding = other.unwrap_or("not known");
                let why = format!(
                    "the database's encoding is {encoding}: a ledger needs one of encoding UTF8"
                );
                Err(RecordsError::Invalid { why })
            }
        }
    }

    /// The last warning of the server since this was last asked.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.unasked.take_warning()
    }

    pub(crate) async fn batch(&self, sql: &str) -> Result<(), RecordsError> {
        let done = self.client.batch_execute(sql).await;
        done.map_err(|error| not_done(&error))
    }

    /// The first column of the first row.
    pub(crate) async fn tell(&self, sql: &str) -> Result<Option<String>, RecordsError> {
        let asked = self.client.simple_query(sql).await;
        let messages = asked.map_err(|error| not_done(&error))?;
        let row = first_row(&messages);
        Ok(row.and_then(|row| row.get(0)).map(str::to_owned))
    }
}

/// As [`pooler::check_sessions`]: through a pooler that shares sessions, nobody would hear a notification.
async fn check_sessions(first: &Connection, second: &Connection) -> Result<(), RecordsError> {
    let mark = first.tell(pooler::MARK).await?;
    second.batch("BEGIN").await?;
    let seen = second.tell(pooler::LOOK).await?;
    let kept = first.tell(pooler::LOOK).await?;
    second.batch("ROLLBACK").await?;
    if mark.is_none() || seen == mark || kept != mark {
        let why = "a pooler before the database does not keep a session for each connection, which watches need: have it do \
             so (PgBouncer: pool_mode = session), or name the server itself";
        return Err(RecordsError::Invalid {
            why: why.to_owned(),
        });
    }
    Ok(())
}
