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

/// Runs a statement beside the log.
pub(crate) fn execute(
    url: &str,
    sql: &str,
    parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.execute(sql, parameters).await.unwrap()
    })
}

/// A server that one test has for itself, to crash.
pub(crate) struct Server {
    folder: TempDir,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = services("start", folder.path());
        Self { folder, url }
    }

    /// Ends all its processes at once, and starts it again.
    pub(crate) fn crash(&self) {
        self.kill();
        assert_eq!(services("start", self.folder.path()), self.url);
    }

    pub(crate) fn kill(&self) {
        services("crash", self.folder.path());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        services("crash", self.folder.path());
    }
}

/// Runs `scripts/services`; returns the URL it prints.
fn services(what: &str, folder: &Path) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    // To a file: a server that it starts would keep a pipe open.
    let said = folder.join("said");
    let status = Command::new(script)
        .arg(what)
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&said).unwrap())
        .status()
        .unwrap();
    assert!(status.success(), "scripts/services {what}");
    let said = std::fs::read_to_string(said).unwrap();
    let url = said.trim().strip_prefix("LOCKGATE_TEST_POSTGRES=");
    url.unwrap_or_default().to_owned()
}
