//! Connections to the server, and waiting for them without waiting for ever.

use std::{
    collections::HashMap,
    fmt::Write as _,
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use lockgate_core::LogError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::{self, Runtime},
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Row, Socket, Statement,
    config::TargetSessionAttrs,
    error::{Severity, SqlState},
    tls::{MakeTlsConnect, TlsConnect},
    types::ToSql,
};

use crate::tls::{Target, Tls};

/// A statement's parameters.
pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// How to reach the server, and the one thread that moves bytes for all connections of a log.
pub(crate) struct Link {
    config: Config,
    tls: Option<Tls>,
    timeout: Duration,
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
}

/// When a commit's answer comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commit {
    /// As soon as it is done in the server's memory.
    Soon,
    /// When its part of the server's own log is flushed, on the standbys too if there are any that
    /// count.
    Flushed,
}

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Postgres(#[from] tokio_postgres::Error),
    #[error("no answer from the database within {0:?}")]
    Late(Duration),
}

impl Failure {
    /// The server had no room, said so, and undid the statement.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Postgres(error) if error.code() == Some(&SqlState::DISK_FULL))
    }

    /// Nothing is known of the statement but that its connection is of no more use.
    fn is_lost(&self) -> bool {
        match self {
            // The server said what is wrong with the statement, and goes on listening.
            Self::Postgres(error) => error
                .as_db_error()
                .is_none_or(|error| !matches!(error.parsed_severity(), Some(Severity::Error))),
            Self::Late(_) => true,
        }
    }

    pub(crate) fn while_doing(self, what: &str) -> LogError {
        LogError::Remote {
            what: format!("{what} in the database"),
            source: Box::new(self),
        }
    }
}

impl Link {
    pub(crate) fn new(target: Target, timeout: Duration) -> io::Result<Self> {
        let Target { mut config, tls } = target;
        // A server or network that is gone is noticed also between two statements; of several hosts
        // only the primary will do, for reads too.
        config
            .connect_timeout(timeout)
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            .tcp_user_timeout(timeout)
            .keepalives(true)
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3);
        if config.get_application_name().is_none() {
            config.application_name("lockgate");
        }
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockgate-postgres")
            .enable_all()
            .build()?;
        Ok(Self {
            config,
            tls,
            timeout,
            runtime: Some(runtime),
        })
    }

    /// Connects, and settles everything that a server, database or user may have set otherwise.
    pub(crate) fn connect(&self, commit: Commit) -> Result<Session, Failure> {
        let runtime = self.runtime.as_ref().expect("it is taken by drop only");
        let deadline = Instant::now() + self.timeout;
        let (config, tls) = (self.config.clone(), self.tls.clone());
        let warning = Arc::<Mutex<Option<String>>>::default();
        let warned = warning.clone();
        // On that thread, because a socket belongs to the runtime in which it was made.
        let connecting = runtime.spawn(async move {
            match tls {
                Some(tls) => connect(&config, tls, warned).await,
                None => connect(&config, NoTls, warned).await,
            }
        });
        let client = wait(deadline, connecting)
            .ok_or(Failure::Late(self.timeout))?
            .expect("connecting does not panic")?;
        let session = Session {
            client,
            timeout: self.timeout,
            warning,
            statements: Mutex::default(),
        };
        session.batch(&settings(commit, self.timeout))?;
        Ok(session)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The last handle may be dropped in an async task, which must not wait for a thread.
            runtime.shutdown_background();
        }
    }
}

fn settings(commit: Commit, timeout: Duration) -> String {
    let timeout = timeout.as_millis();
    let (commit, statement_timeout) = match commit {
        Commit::Soon => ("off", timeout),
        // None: a statement that is cancelled while it waits for a standby has committed all the
        // same, and says so in a warning only. The client's own deadline ends the wait.
        Commit::Flushed => ("on", 0),
    };
    let mut sql = String::new();
    for (name, value) in [
        ("synchronous_commit", commit),
        ("default_transaction_isolation", "'read committed'"),
        ("default_transaction_read_only", "off"),
        // Nobody's table, function or operator of the same name comes first.
        ("search_path", "pg_catalog"),
        ("client_min_messages", "warning"),
        // The few statements there are have one good plan each.
        ("plan_cache_mode", "force_generic_plan"),
        ("jit", "off"),
        ("statement_timeout", &statement_timeout.to_string()),
        ("lock_timeout", &timeout.to_string()),
        ("idle_in_transaction_session_timeout", &timeout.to_string()),
    ] {
        let _infallible = write!(sql, "SET {name} = {value};");
    }
    sql
}

/// Connects, and has the runtime it is called on move the connection's bytes.
async fn connect<T>(
    config: &Config,
    tls: T,
    warning: Arc<Mutex<Option<String>>>,
) -> Result<Client, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket, Stream: Send + 'static, TlsConnect: Send>,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, connection) = config.connect(tls).await?;
    tokio::spawn(drive(connection, warning));
    Ok(client)
}

/// Moves bytes until the connection ends; keeps the last warning.
async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<Socket, S>,
    warning: Arc<Mutex<Option<String>>>,
) {
    // Why it ended is told to whoever waits for an answer.
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notice(notice) = message {
            *lock(&warning) = Some(notice.message().to_owned());
        }
    }
}

/// One connection.
pub(crate) struct Session {
    client: Client,
    timeout: Duration,
    warning: Arc<Mutex<Option<String>>>,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl Session {
    /// Runs a statement that returns rows.
    pub(crate) fn query(
        &self,
        sql: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Vec<Row>, Failure> {
        let statement = self.prepared(sql)?;
        self.wait(self.client.query(&statement, parameters))
    }

    /// Runs a statement that returns at most one row.
    pub(crate) fn query_opt(
        &self,
        sql: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<Option<Row>, Failure> {
        let statement = self.prepared(sql)?;
        self.wait(self.client.query_opt(&statement, parameters))
    }

    /// Runs a statement; returns how many rows it changed.
    pub(crate) fn execute(
        &self,
        sql: &'static str,
        parameters: Parameters<'_>,
    ) -> Result<u64, Failure> {
        let statement = self.prepared(sql)?;
        self.wait(self.client.execute(&statement, parameters))
    }

    /// Runs statements without parameters, together one transaction.
    pub(crate) fn batch(&self, sql: &str) -> Result<(), Failure> {
        self.wait(self.client.batch_execute(sql))
    }

    /// The last warning of the server since this was last asked.
    pub(crate) fn take_warning(&self) -> Option<String> {
        lock(&self.warning).take()
    }

    fn prepared(&self, sql: &'static str) -> Result<Statement, Failure> {
        if let Some(statement) = lock(&self.statements).get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(self.client.prepare(sql))?;
        lock(&self.statements).insert(sql, statement.clone());
        Ok(statement)
    }

    fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        match wait(Instant::now() + self.timeout, answer) {
            Some(answer) => Ok(answer?),
            None => Err(Failure::Late(self.timeout)),
        }
    }
}

/// A connection for statements that may be tried twice: made when it is first needed, and made again
/// when it was lost.
pub(crate) struct Renewed {
    link: Arc<Link>,
    session: Mutex<Option<Arc<Session>>>,
}

impl Renewed {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            session: Mutex::default(),
        }
    }

    /// Runs what `ask` asks. If the connection is lost, once more on a new one, so that a server
    /// which was restarted is noticed by nobody.
    pub(crate) fn run<T>(
        &self,
        what: &str,
        ask: impl Fn(&Session) -> Result<T, Failure>,
    ) -> Result<T, LogError> {
        self.try_twice(ask)
            .map_err(|failure| failure.while_doing(what))
    }

    fn try_twice<T>(&self, ask: impl Fn(&Session) -> Result<T, Failure>) -> Result<T, Failure> {
        let (session, is_new) = self.session()?;
        match ask(&session) {
            Err(failure) if failure.is_lost() => {
                self.forget(&session);
                if is_new || matches!(failure, Failure::Late(_)) {
                    return Err(failure);
                }
                let (session, _) = self.session()?;
                ask(&session).inspect_err(|failure| {
                    if failure.is_lost() {
                        self.forget(&session);
                    }
                })
            }
            answer => answer,
        }
    }

    fn session(&self) -> Result<(Arc<Session>, bool), Failure> {
        let mut kept = lock(&self.session);
        if let Some(session) = &*kept {
            return Ok((session.clone(), false));
        }
        let session = Arc::new(self.link.connect(Commit::Flushed)?);
        *kept = Some(session.clone());
        Ok((session, true))
    }

    fn forget(&self, lost: &Arc<Session>) {
        let mut kept = lock(&self.session);
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, lost)) {
            *kept = None;
        }
    }
}

/// Waits for a future on this thread, without a runtime, so that it works also on a thread that has
/// one. `None` if the deadline comes first.
fn wait<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        thread::park_timeout(left);
    }
}

/// A panic elsewhere leaves nothing half changed in what is locked here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
