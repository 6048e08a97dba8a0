//! Connections to the server, and waiting for them without waiting for ever.

use std::{
    collections::HashMap,
    fmt::Write as _,
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use lockgate_core::{LogError, StorageFailure, with_sources};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
    sync::Notify,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Row, SimpleQueryMessage, SimpleQueryRow,
    Socket, Statement,
    error::{Severity, SqlState},
    types::ToSql,
};

use crate::{
    hosts::{Connected, Hosts, Use},
    thread::ConnectionThread,
    tls::{Target, Tls},
};

/// A statement's parameters.
pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The same for a statement that goes on after the call which sends it.
pub(crate) type OwnedParameters = Vec<Box<dyn ToSql + Sync + Send>>;

/// How to reach the server, and the thread that moves bytes for all connections of a log.
pub(crate) struct Link {
    hosts: Arc<Hosts>,
    tls: Option<Tls>,
    timeout: Duration,
    thread: ConnectionThread,
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
    Postgres(tokio_postgres::Error),
    #[error("no answer from the database within {0:?}")]
    Late(Duration),
    #[error(
        "no answer from the database within {after:?}; its commits wait for standbys \
         (synchronous_standby_names is {standbys:?}): see whether they are connected"
    )]
    LateForStandbys { after: Duration, standbys: String },
    #[error("the connection has ended: {0}")]
    Ended(End),
    #[error(
        "the standby ended what was read from it, because it had to go on following its primary ({}); ask \
         again, or have it wait longer for readers (max_standby_streaming_delay, or hot_standby_feedback = on)",
        with_sources(.0)
    )]
    NeededByStandby(Arc<tokio_postgres::Error>),
    #[error("the connection string names no host")]
    NoHost,
    /// What is wrong with each.
    #[error("{}", list(.0))]
    NoneServes(Vec<(String, Self)>),
    #[error("it is a standby, which takes no writes")]
    Standby,
    #[error("its name was not looked up in time")]
    NameLate,
    #[error("looking up its name")]
    Name(#[source] io::Error),
    #[error(
        "the server does not hold the shard as this instance left it: another one has taken it over, \
         or it is another server than before"
    )]
    Elsewhere,
}

/// How a connection has ended.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("connection closed")]
    Closed,
    #[error("what waited for the answer has ended")]
    NobodyWaits,
    #[error("{}", with_sources(.0))]
    Failed(Arc<tokio_postgres::Error>),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        if is_recovery_conflict(&error) {
            Self::NeededByStandby(Arc::new(error))
        } else {
            Self::Postgres(error)
        }
    }
}

/// Its codes say other things as well.
fn is_recovery_conflict(error: &tokio_postgres::Error) -> bool {
    let said = error.as_db_error();
    said.is_some_and(|said| said.message().contains("conflict with recovery"))
}

fn list(failed: &[(String, Failure)]) -> String {
    let told = failed.iter();
    let told = told.map(|(name, failure)| format!("{name}: {}", with_sources(failure)));
    told.collect::<Vec<_>>().join("; ")
}

impl Failure {
    /// The server had no room, said so, and undid the statement.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Postgres(error) if error.code() == Some(&SqlState::DISK_FULL))
    }

    /// Nothing is known of the statement but that its connection is of no more use.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            // The server said what is wrong with the statement, and goes on listening.
            Self::Postgres(error) => error
                .as_db_error()
                .is_none_or(|error| !matches!(error.parsed_severity(), Some(Severity::Error))),
            _ => true,
        }
    }

    pub(crate) fn while_doing(self, what: &str) -> LogError {
        LogError::Remote {
            what: format!("{what} in the database"),
            source: StorageFailure::new(self),
        }
    }
}

impl Link {
    /// `thread`: `None` for one of its own.
    pub(crate) fn new(
        target: Target,
        timeout: Duration,
        thread: Option<&ConnectionThread>,
    ) -> io::Result<Self> {
        let Target { config, tls } = target;
        let thread = match thread {
            Some(thread) => thread.clone(),
            None => ConnectionThread::start()?,
        };
        Ok(Self {
            hosts: Arc::new(Hosts::of(watched(config, timeout))),
            tls,
            timeout,
            thread,
        })
    }

    /// Connects, and settles everything that a server, database or user may have set otherwise.
    pub(crate) fn connect(&self, commit: Commit) -> Result<Session, Failure> {
        let (session, _) = self.connect_for(Use::Writing, commit)?;
        Ok(session)
    }

    /// Connects for reading, to a standby if nobody takes writes. Whether it is one.
    pub(crate) fn connect_to_read(&self) -> Result<(Session, bool), Failure> {
        self.connect_for(Use::Reading, Commit::Flushed)
    }

    /// Where the bytes of all its connections are moved.
    pub(crate) fn runtime(&self) -> &Handle {
        self.thread.runtime().handle()
    }

    fn connect_for(&self, wanted: Use, commit: Commit) -> Result<(Session, bool), Failure> {
        let deadline = Instant::now() + self.timeout;
        let (hosts, tls) = (self.hosts.clone(), self.tls.clone());
        // On that thread, because a socket belongs to the runtime in which it was made.
        let connecting = self.thread.runtime().spawn(async move {
            match tls {
                Some(tls) => hosts.connect(deadline, wanted, tls).await,
                None => hosts.connect(deadline, wanted, NoTls).await,
            }
        });
        let Connected {
            client,
            unasked,
            is_standby,
            standbys,
        } = wait(deadline, connecting)
            .ok_or(Failure::Late(self.timeout))?
            .expect("connecting does not panic")?;
        let session = Session {
            client,
            timeout: self.timeout,
            waits_for: standbys.filter(|_| commit == Commit::Flushed),
            unasked,
            statements: Mutex::default(),
            is_checked: AtomicBool::new(false),
        };
        session.batch(&settings(commit, self.timeout))?;
        Ok((session, is_standby))
    }
}

/// A server or network that is gone is noticed also between two statements.
pub(crate) fn watched(mut config: Config, timeout: Duration) -> Config {
    config
        .tcp_user_timeout(timeout)
        .keepalives(true)
        .keepalives_idle(Duration::from_secs(15))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3);
    if config.get_application_name().is_none() {
        config.application_name("lockgate");
    }
    config
}

pub(crate) fn settings(commit: Commit, timeout: Duration) -> String {
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
    // Not every version has these. They end a session because nothing was asked of it for a while.
    sql.push_str(
        "SELECT set_config(name, '0', false) FROM pg_settings
         WHERE name IN ('idle_session_timeout', 'transaction_timeout')",
    );
    sql
}

/// What a server says on one connection without being asked.
#[derive(Default)]
pub(crate) struct Unasked {
    warning: Mutex<Option<String>>,
    /// Why the connection ended. A client is told a moment earlier that it did, and waits for this:
    /// whatever ends [`drive`] sets it.
    end: OnceLock<End>,
    /// Told the payload of each notification, and `None` when the connection has ended.
    pub(crate) heard: OnceLock<Box<Heard>>,
    /// Ends the connection, whatever is on its way.
    pub(crate) give_up: Notify,
}

impl Unasked {
    pub(crate) fn take_warning(&self) -> Option<String> {
        lock(&self.warning).take()
    }
}

type Heard = dyn Fn(Option<&str>) + Send + Sync;

/// Moves bytes until the connection ends; keeps the last warning, and why it ended.
pub(crate) async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<Socket, S>,
    unasked: Arc<Unasked>,
) {
    /// The runtime may drop this function where it waits.
    struct Driven(Arc<Unasked>);

    impl Drop for Driven {
        fn drop(&mut self) {
            self.0.end.get_or_init(|| End::Closed);
            if let Some(heard) = self.0.heard.get() {
                heard(None);
            }
        }
    }

    let Driven(unasked) = &Driven(unasked);
    loop {
        let message = tokio::select! {
            biased;
            message = poll_fn(|context| connection.poll_message(context)) => message,
            () = unasked.give_up.notified() => return,
        };
        match message {
            Some(Ok(AsyncMessage::Notification(it))) => {
                if let Some(heard) = unasked.heard.get() {
                    heard(Some(it.payload()));
                }
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                *lock(&unasked.warning) = Some(notice.message().to_owned());
            }
            Some(Ok(_)) => {}
            // Whoever waits for an answer is told as well.
            Some(Err(error)) => {
                unasked.end.get_or_init(|| End::Failed(Arc::new(error)));
                return;
            }
            None => return,
        }
    }
}

/// The first row of the answer to a statement that was not prepared.
pub(crate) fn first_row(messages: &[SimpleQueryMessage]) -> Option<&SimpleQueryRow> {
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    })
}

/// One connection.
pub(crate) struct Session {
    client: Client,
    timeout: Duration,
    /// What `synchronous_standby_names` was, if commits here wait for them.
    waits_for: Option<String>,
    unasked: Arc<Unasked>,
    statements: Mutex<HashMap<&'static str, Statement>>,
    /// It was looked whether this is the server that holds what was appended.
    is_checked: AtomicBool,
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

    /// As [`execute`](Self::execute), when it is polled.
    ///
    /// # Errors
    /// If the statement cannot be prepared, which is waited for here.
    pub(crate) fn executing(
        self: &Arc<Self>,
        sql: &'static str,
        parameters: OwnedParameters,
    ) -> Result<impl Future<Output = Result<u64, tokio_postgres::Error>> + Send + use<>, Failure>
    {
        let statement = self.prepared(sql)?;
        let session = self.clone();
        Ok(async move { session.client.execute_raw(&statement, parameters).await })
    }

    /// As [`query_opt`](Self::query_opt), when it is polled.
    ///
    /// # Errors
    /// As [`executing`](Self::executing).
    pub(crate) fn querying(
        self: &Arc<Self>,
        sql: &'static str,
        parameters: OwnedParameters,
    ) -> Result<
        impl Future<Output = Result<Option<Row>, tokio_postgres::Error>> + Send + use<>,
        Failure,
    > {
        let statement = self.prepared(sql)?;
        let session = self.clone();
        Ok(async move {
            let parameters: Vec<&(dyn ToSql + Sync)> = parameters
                .iter()
                .map(|parameter| &**parameter as &(dyn ToSql + Sync))
                .collect();
            session.client.query_opt(&statement, &parameters).await
        })
    }

    /// Runs statements without parameters, together one transaction.
    pub(crate) fn batch(&self, sql: &str) -> Result<(), Failure> {
        self.wait(self.client.batch_execute(sql))
    }

    /// The first column of the row that a statement returns, which is not prepared.
    pub(crate) fn tell(&self, sql: &str) -> Result<Option<String>, Failure> {
        let messages = self.wait(self.client.simple_query(sql))?;
        Ok(first_row(&messages)
            .and_then(|row| row.get(0))
            .map(str::to_owned))
    }

    /// How long a statement may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The last warning of the server since this was last asked.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.unasked.take_warning()
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
        self.judge(wait(Instant::now() + self.timeout, answer))
    }

    /// What became of a statement; `None` if it is not known in time. May wait for a moment.
    pub(crate) fn judge<T>(
        &self,
        answer: Option<Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Failure> {
        match answer {
            Some(Err(error)) if error.is_closed() => Err(match self.ended() {
                Some(End::Failed(error)) if is_recovery_conflict(&error) => {
                    Failure::NeededByStandby(error)
                }
                Some(end) => Failure::Ended(end),
                None => error.into(),
            }),
            Some(answer) => Ok(answer?),
            None => Err(match &self.waits_for {
                None => Failure::Late(self.timeout),
                Some(standbys) => Failure::LateForStandbys {
                    after: self.timeout,
                    standbys: standbys.clone(),
                },
            }),
        }
    }

    /// Why the connection has ended, if it has.
    pub(crate) fn ended(&self) -> Option<End> {
        let is_closed = self.client.is_closed();
        is_closed.then(|| self.unasked.end.wait().clone())
    }

    /// Runs `check`, which says whether that is for good, unless it was on this connection before.
    pub(crate) fn check_once(
        &self,
        check: impl FnOnce(&Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        if !self.is_checked.load(Ordering::Acquire) && check(self)? {
            self.is_checked.store(true, Ordering::Release);
        }
        Ok(())
    }
}

/// A connection for statements that may be tried twice: made when it is first needed, and made again
/// when it was lost.
pub(crate) struct Renewed {
    /// `None`: it is never made again.
    link: Option<Arc<Link>>,
    session: Mutex<Option<Arc<Session>>>,
}

impl Renewed {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link: Some(link),
            session: Mutex::default(),
        }
    }

    /// One that is there and never made again, because of what it has begun.
    pub(crate) fn only(session: Arc<Session>) -> Self {
        Self {
            link: None,
            session: Mutex::new(Some(session)),
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
                let was_late =
                    matches!(failure, Failure::Late(_) | Failure::LateForStandbys { .. });
                if is_new || was_late {
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
        let Some(link) = &self.link else {
            return Err(Failure::Ended(End::Closed));
        };
        let session = Arc::new(link.connect(Commit::Flushed)?);
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
