//! Leaders in processes of their own, which are killed, and stopped by a signal for longer than their lease: the test program,
//! started again.

#![expect(clippy::unwrap_used, reason = "a case that does not hold panics")]

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::{BufRead as _, BufReader, Lines, Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use lockgate_core::{
    ElectionName, Epoch, HolderName,
    coordination::{Campaign, Coordinator, Fence, Guard, Tenure as _},
};
use rustix::process::{Pid, Signal, kill_process};

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

/// Where the store is of a test that a [`Process`] has started; `None` where it was not.
#[must_use]
pub fn store() -> Option<String> {
    env::var(URL).ok()
}

/// What a [`Process`] does; it is the whole of a test, which does nothing where it was not started by one. It leads one term
/// with a coordinator at that place, and writes its epoch again and again until it is over.
///
/// # Panics
/// If it is not elected.
pub fn lead<C: Coordinator>(open: impl AsyncFnOnce(&str) -> C) {
    let Some(url) = store() else {
        return;
    };
    let election = ElectionName::new(&env::var(ELECTION).unwrap()).unwrap();
    let epochs = Path::new(&env::var_os(FOLDER).unwrap()).join("epochs");
    let open_epochs = || {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true);
        file.open(&epochs).unwrap()
    };
    let campaign = Campaign {
        lease: Duration::from_secs(2),
        margin: Duration::from_millis(400),
        notice: Duration::ZERO,
        ..Campaign::new(election, HolderName::new("process").unwrap())
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let tenure = open(&url).await.campaign(campaign).await.unwrap();
        let epoch = tenure.fence().epoch().0;
        println!("\nleads {epoch}");
        while tenure.fence().check().is_ok() && write(&mut open_epochs(), tenure.fence()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        println!("\nover {epoch}");
    });
}

/// A process that leads. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts one: the test of that name [`lead`]s in the election at that place, and has a folder for what it writes.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(test: &str, url: &str, election: &str, folder: &Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command
            .env(URL, url)
            .env(ELECTION, election)
            .env(FOLDER, folder);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits until it says that, `leads` or `over`, with a number: which epoch. What the harness says is passed over.
    ///
    /// # Panics
    /// If it ends before.
    pub fn says(&mut self, what: &str) -> u64 {
        let said = self.lines.find_map(|line| {
            let line = line.unwrap();
            line.strip_prefix(what)?.trim().parse().ok()
        });
        said.unwrap_or_else(|| panic!("the process has ended, and not said {what}"))
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If that fails.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whoever is stopped or killed is replaced when its lease ends; and a process that goes on after that is over by its own
/// clock, and writes nothing more. The test of that name [`lead`]s.
///
/// # Panics
/// If that does not hold.
pub fn leaders_are_replaced(test: &str, url: &str) {
    let folder = tempfile::tempdir().unwrap();
    let start = || Process::start(test, url, "processes", folder.path());
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
