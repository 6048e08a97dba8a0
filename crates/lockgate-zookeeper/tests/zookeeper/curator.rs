//! Candidates of Curator, in Java: they and those of Lockgate exclude each other. `scripts/test` builds them.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    thread,
};

use lockgate_conformance::processes::Process;
use lockgate_coordination::{Coordinator, EndReason, Tenure};
use lockgate_zookeeper::ZookeeperCoordinator;
use rustix::process::Signal;
use tokio::sync::mpsc;

use crate::{election, long, look, name, server, short, until};

pub(crate) const NEWEST: &str = "LOCKGATE_TEST_CURATOR";
pub(crate) const OLD: &str = "LOCKGATE_TEST_CURATOR_5_4";

/// A program that uses Curator.
pub(crate) struct Java {
    pub(crate) child: Child,
    says: mpsc::UnboundedReceiver<String>,
}

impl Java {
    fn stands(path: &str, style: &str, id: &str) -> Self {
        Self::runs("Candidate", &[path, style, id])
    }

    pub(crate) fn runs(program: &str, arguments: &[&str]) -> Self {
        Self::runs_with(NEWEST, &server::shared(), program, arguments)
    }

    /// The variable has the classes of one version of Curator.
    pub(crate) fn runs_with(variable: &str, url: &str, program: &str, arguments: &[&str]) -> Self {
        let mut child = Self::command(variable, url, program, arguments)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (told, says) = mpsc::unbounded_channel();
        thread::spawn(move || {
            for line in lines {
                let _ = told.send(line.unwrap());
            }
        });
        Self { child, says }
    }

    pub(crate) fn command(variable: &str, url: &str, program: &str, arguments: &[&str]) -> Command {
        let classes = env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: ./scripts/test --only zookeeper sets it")
        });
        let address = url.strip_prefix("zk://").unwrap();
        let mut command = Command::new("java");
        command.args([
            "-XX:TieredStopAtLevel=1",
            "-classpath",
            &classes,
            program,
            address,
        ]);
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    pub(crate) async fn says(&mut self, what: &str) {
        assert_eq!(self.says.recv().await.as_deref(), Some(what));
    }

    pub(crate) async fn said(&mut self) -> String {
        self.says.recv().await.unwrap()
    }

    /// It has said nothing yet.
    fn is_silent(&mut self) -> bool {
        self.says.try_recv() == Err(mpsc::error::TryRecvError::Empty)
    }

    async fn gives_back(mut self) {
        let mut stdin = self.child.stdin.take().unwrap();
        stdin.write_all(b"\n").unwrap();
        self.says("left").await;
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One after the other, in both languages, and each waits for the other one.
async fn exclude_each_other(style: &str) {
    let (of, path) = (format!("{style}es"), format!("/curator/{style}es"));
    let url = format!("{}/curator?style={style}", server::shared());
    let (rust, election) = (ZookeeperCoordinator::connect(&url), election(&of));
    let rust = rust.await.unwrap();
    let stands = |candidate: &str| {
        let (rust, campaign) = (rust.clone(), long(&election, candidate));
        tokio::spawn(async move { rust.campaign(campaign).await.unwrap() })
    };
    let folder = tempfile::tempdir().unwrap();

    let mut java = Java::stands(&path, style, "java-1");
    java.says("leads").await;
    let state = look(&rust, &election).await;
    let leader = state.leader.unwrap();
    // A mutex has no names: its nodes have what Curator writes by default.
    assert!(
        leader.name == name("java-1") || style == "mutex",
        "{leader:?}"
    );
    assert_eq!(leader.began, None);
    let next = stands("rust-1");
    until(&rust, &election, |state| {
        state.candidates == [name("rust-1")]
    })
    .await;
    assert!(!next.is_finished());
    java.gives_back().await;

    let tenure = next.await.unwrap();
    assert!(tenure.term().epoch > leader.epoch);
    let mut java = Java::stands(&path, style, "java-2");
    let state = until(&rust, &election, |state| state.candidates.len() == 1).await;
    assert_eq!(state.leader.unwrap().epoch, tenure.term().epoch);
    assert!(java.is_silent());
    // What is kept beside the line is nothing to Curator.
    tenure.save("page 7".into()).await.unwrap();
    assert!(java.is_silent());
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    java.says("leads").await;

    // A leader in Java that is killed, and one in Rust.
    let next = stands("rust-2");
    until(&rust, &election, |state| state.candidates.len() == 1).await;
    assert!(!next.is_finished());
    java.child.kill().unwrap();
    let tenure = next.await.unwrap();
    assert_eq!(
        tenure.term().last_checkpoint.as_ref().unwrap().value,
        "page 7"
    );
    let (url, of, in_folder) = (url.clone(), of.clone(), folder.path().to_owned());
    let process = tokio::task::spawn_blocking(move || {
        let mut process = Process::start("processes::process", &url, &of, &in_folder);
        process.says("leads");
        process
    });
    until(&rust, &election, |state| state.candidates.len() == 1).await;
    tenure.resign(EndReason::EndOfTerm, None).await.unwrap();
    let process = process.await.unwrap();
    let mut java = Java::stands(&path, style, "java-3");
    until(&rust, &election, |state| state.candidates.len() == 1).await;
    assert!(java.is_silent());
    process.signal(Signal::KILL);
    java.says("leads").await;
    let state = look(&rust, &election).await;
    assert!(state.leader.unwrap().epoch > state.history[0].epoch);
    java.gives_back().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn latches_of_both_exclude_each_other() {
    exclude_each_other("latch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_of_both_exclude_each_other() {
    exclude_each_other("selector").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mutexes_of_both_exclude_each_other() {
    exclude_each_other("mutex").await;
}

/// A lock is a mutex of Curator, whatever the style.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_a_mutex() {
    let rust = server::connect().await;
    let lock = rust.lock(short(&election("a/b"), "rust")).await.unwrap();
    let mut java = Java::stands("/_lockgate_/lock/a%2Fb", "mutex", "java");
    let proxy = lock.node().rsplit_once('/').unwrap().0.to_owned();
    assert_eq!(proxy, "/_lockgate_/lock/a%2Fb");
    let client = crate::faults::client().await;
    while client.list_children(&proxy).await.unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert!(java.is_silent());
    lock.resign(EndReason::EndOfTerm, None).await.unwrap();
    java.says("leads").await;
    java.gives_back().await;
}
