//! PostgreSQL servers for tests.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use tempfile::TempDir;
use tokio_postgres::NoTls;

/// The URL of a server that all tests may use; `None`, and said so, where there is none.
///
/// # Panics
/// Where `CI=true`: there the tests must run.
pub(crate) fn shared_server(test: &str) -> Option<String> {
    let url = std::env::var("LOCKGATE_TEST_POSTGRES").ok();
    if url.is_none() {
        assert_ne!(
            std::env::var("CI").as_deref(),
            Ok("true"),
            "no PostgreSQL for {test}: use scripts/services run"
        );
        println!("not run: PostgreSQL: {test}: use scripts/services run cargo test");
    }
    url
}

/// The name of a shard that no other test has.
pub(crate) fn new_shard() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
    // Whatever a name holds, it is only a name.
    format!("{process}-{next}'; DROP SCHEMA lockgate CASCADE; --\"\\")
}

/// Runs a statement beside the log; how many rows it changed or found.
pub(crate) fn execute(url: &str, sql: &str, parameters: Parameters<'_>) -> u64 {
    on_a_connection(url, async |client| client.execute(sql, parameters).await)
}

/// Runs statements beside the log.
pub(crate) fn batch(url: &str, sql: &str) {
    on_a_connection(url, async |client| client.batch_execute(sql).await);
}

/// The process ids of the server's ends of all connections that call themselves so.
pub(crate) fn backends(url: &str, application: &str) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE application_name = $1";
    let rows = on_a_connection(url, async |client| client.query(sql, &[&application]).await);
    rows.iter().map(|row| row.get(0)).collect()
}

type Parameters<'a> = &'a [&'a (dyn tokio_postgres::types::ToSql + Sync)];

fn on_a_connection<T>(
    url: &str,
    ask: impl AsyncFnOnce(tokio_postgres::Client) -> Result<T, tokio_postgres::Error>,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        ask(client).await.unwrap()
    })
}

/// The only column of the only row that a query returns.
pub(crate) fn text(url: &str, sql: &str) -> String {
    let row = on_a_connection(url, async |client| client.query_one(sql, &[]).await);
    row.get(0)
}

/// Asks again and again, on one connection, until a condition holds.
pub(crate) fn until(url: &str, condition: &str) {
    let sql = format!("SELECT {condition}");
    on_a_connection(url, async |client| {
        while !client.query_one(&sql, &[]).await?.get::<_, bool>(0) {}
        Ok(())
    });
}

/// Returns when the server has ended a connection on which nothing is asked.
pub(crate) fn until_ended(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (_client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        connection.await.unwrap_err();
    });
}

/// Sends a signal to processes. One that has ended meanwhile needs none.
pub(crate) fn signal(signal: &str, processes: &[i32]) {
    let processes = processes.iter().map(i32::to_string);
    // The shell's own: the program of that name is not on every machine.
    let each = "signal=$1; shift; for process; do kill \"$signal\" \"$process\" || [ ! -e \"/proc/$process\" ] || exit 1; done";
    let status = Command::new("sh")
        .args(["-c", each, "sh", signal])
        .args(processes)
        .status();
    assert!(status.unwrap().success());
}

/// A new database on the server.
pub(crate) fn new_database(url: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
    let name = format!("test_{process}_{next}");
    batch(url, &format!("CREATE DATABASE {name}"));
    let server = url.strip_suffix("/postgres").unwrap();
    format!("{server}/{name}")
}

/// A server that one test has for itself, to crash.
pub(crate) struct Server {
    folder: TempDir,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = services("start", &[folder.path()]);
        Self { folder, url }
    }

    /// A PgBouncer before it, with that `pool_mode`; `None`, and said so, where there is none.
    ///
    /// # Panics
    /// As [`shared_server`].
    pub(crate) fn pooler(&self, mode: &str, test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path(), self.folder.path()];
        match try_services("pooler", &folders, Some(mode)) {
            Ok(url) => Some(Self { folder, url }),
            Err(MISSING) => {
                let is_ci = std::env::var("CI").as_deref() == Ok("true");
                assert!(!is_ci, "no PgBouncer for {test}");
                println!("not run: PgBouncer: {test}");
                None
            }
            Err(code) => panic!("scripts/services pooler ended with {code}"),
        }
    }

    /// One that follows `primary` as the standby called "standby".
    pub(crate) fn standby_of(primary: &Self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = services("standby", &[folder.path(), primary.folder.path()]);
        Self { folder, url }
    }

    /// Comes back as the standby of `primary`, at its old address and without what it held.
    pub(crate) fn follow(&self, primary: &Self) {
        let url = services("standby", &[self.folder.path(), primary.folder.path()]);
        assert_eq!(url, self.url);
    }

    /// Makes a standby a primary.
    pub(crate) fn promote(&self) {
        services("promote", &[self.folder.path()]);
    }

    /// The process that takes its connections.
    pub(crate) fn listener(&self) -> i32 {
        let said = std::fs::read_to_string(self.folder.path().join("data/postmaster.pid")).unwrap();
        said.lines().next().unwrap().parse().unwrap()
    }

    /// Ends all its processes at once, and starts it again.
    pub(crate) fn crash(&self) {
        self.kill();
        self.start_again();
    }

    pub(crate) fn start_again(&self) {
        assert_eq!(services("start", &[self.folder.path()]), self.url);
    }

    /// Ends it in good order.
    pub(crate) fn stop(&self) {
        services("stop", &[self.folder.path()]);
    }

    /// Ends it at once and without a checkpoint, as `pg_ctl stop -m immediate` does.
    pub(crate) fn abort(&self) {
        services("abort", &[self.folder.path()]);
    }

    pub(crate) fn kill(&self) {
        services("crash", &[self.folder.path()]);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        services("crash", &[self.folder.path()]);
    }
}

/// The code with which `scripts/services` says that what it should start is not there.
const MISSING: i32 = 77;

/// Runs `scripts/services`; returns the URL it prints.
fn services(what: &str, folders: &[&Path]) -> String {
    try_services(what, folders, None)
        .unwrap_or_else(|code| panic!("scripts/services {what} ended with {code}"))
}

/// The same, or the code it ended with.
fn try_services(what: &str, folders: &[&Path], more: Option<&str>) -> Result<String, i32> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    // To a file: a server that it starts would keep a pipe open.
    let said = folders[0].join("said");
    let status = Command::new(script)
        .arg(what)
        .args(folders)
        .args(more)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&said).unwrap())
        .status()
        .unwrap();
    if !status.success() {
        return Err(status.code().unwrap_or(-1));
    }
    let said = std::fs::read_to_string(said).unwrap();
    let url = said.trim().strip_prefix("LOCKGATE_TEST_POSTGRES=");
    Ok(url.unwrap_or_default().to_owned())
}
