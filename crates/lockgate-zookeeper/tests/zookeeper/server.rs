//! Servers of ZooKeeper.

use std::{
    env, fs,
    path::Path,
    process::{Command, Stdio},
};

use lockgate_zookeeper::ZookeeperCoordinator;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The URL of the server that all tests share. Each uses elections of its own.
pub(crate) fn shared() -> String {
    env::var("LOCKGATE_TEST_ZOOKEEPER")
        .expect("LOCKGATE_TEST_ZOOKEEPER is not set: ./scripts/zookeeper run sets it")
}

pub(crate) async fn connect() -> ZookeeperCoordinator {
    ZookeeperCoordinator::connect(&shared()).await.unwrap()
}

/// A server of a test's own.
pub(crate) struct Server {
    folder: TempDir,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = script("start", folder.path());
        Self { folder, url }
    }

    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix("zk://").unwrap()
    }

    pub(crate) fn crash(&self) {
        script("crash", self.folder.path());
    }

    pub(crate) fn restart(&self) {
        assert_eq!(script("start", self.folder.path()), self.url);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = fs::read_to_string(self.folder.path().join("pid")).unwrap();
        kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap(), signal).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        script("crash", self.folder.path());
    }
}

/// Does it, and returns the URL that it prints.
fn script(verb: &str, folder: &Path) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut command = Command::new("./scripts/zookeeper");
    let command = command.current_dir(root).arg(verb).arg(folder);
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{verb}: {}", output.status);
    let printed = String::from_utf8(output.stdout).unwrap();
    let url = printed.trim().strip_prefix("LOCKGATE_TEST_ZOOKEEPER=");
    url.unwrap_or_default().to_owned()
}
