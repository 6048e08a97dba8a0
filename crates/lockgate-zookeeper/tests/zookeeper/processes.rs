//! Real processes that are killed, and stopped by a signal for longer than their lease: this program, started again.

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Lines, Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use lockgate_coordination::{Coordinator, Fence, Guard, Tenure};
use lockgate_core::Epoch;
use lockgate_zookeeper::ZookeeperCoordinator;
use rustix::process::{Pid, Signal, kill_process};

use crate::{election, server, short};

const URL: &str = "LOCKGATE_TEST_LEADS_AT";
const ELECTION: &str = "LOCKGATE_TEST_LEADS";
const FOLDER: &str = "LOCKGATE_TEST_LEADS_IN";

/// A file of epochs, each at least as high as the one before it: the guard is its last line. False: it refuses.
fn write(file: &mut File, fence: &Fence) -> bool {
    file.lock().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    let newest = text.lines().last().map(|line| line.parse().unwrap());
    let admitted = Guard::new(newest.map(Epoch)).admit(fence).is_ok();
    if admitted {
        writeln!(file, "{}", fence.epoch().0).unwrap();
    }
    file.unlock().unwrap();
    admitted
}

/// What the processes do that the tests start; in the test itself, nothing.
#[test]
fn process() {
    let Ok(url) = env::var(URL) else {
        return;
    };
    let election = election(&env::var(ELECTION).unwrap());
    let epochs = Path::new(&env::var_os(FOLDER).unwrap()).join("epochs");
    let open = || {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true);
        file.open(&epochs).unwrap()
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let coordinator = ZookeeperCoordinator::connect(&url).await.unwrap();
        let tenure = coordinator.campaign(short(&election, "process")).await;
        let tenure = tenure.unwrap();
        let epoch = tenure.fence().epoch().0;
        println!("\nleads {epoch}");
        while tenure.fence().check().is_ok() && write(&mut open(), tenure.fence()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        println!("\nover {epoch}");
    });
}

pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(url: &str, election: &str, folder: &Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "processes::process", "--nocapture"]);
        command
            .env(URL, url)
            .env(ELECTION, election)
            .env(FOLDER, folder);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits until it says that; with which epoch. What the harness says is passed over.
    pub(crate) fn says(&mut self, what: &str) -> u64 {
        let said = self.lines.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix(what)?.trim().parse().ok()
        });
        said.unwrap_or_else(|| panic!("the process has ended, and not said {what}"))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whoever is stopped is replaced when its session ends, and when it goes on, it is over by its own clock.
#[test]
fn a_process_that_is_stopped_or_killed_is_replaced() {
    let (folder, url) = (tempfile::tempdir().unwrap(), server::shared());
    let start = || Process::start(&url, "processes", folder.path());
    let mut leads = start();
    let mut last = leads.says("leads");
    for signal in [Signal::STOP, Signal::KILL, Signal::STOP] {
        leads.signal(signal);
        let mut next = start();
        let epoch = next.says("leads");
        assert!(epoch > last, "{epoch} {last}");
        if signal == Signal::STOP {
            leads.signal(Signal::CONT);
            assert_eq!(leads.says("over"), last);
        }
        (leads, last) = (next, epoch);
    }
    drop(leads);
    let epochs = fs::read_to_string(folder.path().join("epochs")).unwrap();
    let epochs = epochs.lines().map(|line| line.parse::<u64>().unwrap());
    assert!(epochs.is_sorted(), "a leader wrote after its successor");
}
