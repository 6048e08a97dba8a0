//! The server process.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::wait;

const START_MAX: Duration = Duration::from_secs(60);
/// A killed process is gone within this, unless the kernel holds it.
const KILL_MAX: Duration = Duration::from_secs(60);

/// How the name of a snapshot ends while it is written (docs/internals/format.md).
const SNAPSHOT_PART: &str = ".snapshot-part";

/// How a server is started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) binary: PathBuf,
    /// Its data folder.
    pub(crate) data: PathBuf,
    /// Where its log goes.
    pub(crate) log: PathBuf,
    /// More of its command line.
    pub(crate) arguments: Vec<String>,
    /// End it with us, even if we are killed; Linux only.
    pub(crate) tied: bool,
}

/// A running server; killed when dropped.
pub(crate) struct Server {
    launch: Launch,
    process: Child,
    address: SocketAddr,
    recovery_max: Duration,
    memory_max: u64,
    in_snapshot: u64,
}

impl Server {
    /// Starts one on a free port.
    pub(crate) fn start(launch: Launch) -> Result<Self> {
        let began = Instant::now();
        let (process, ready) = launch.spawn("127.0.0.1:0")?;
        let mut server = Self {
            launch,
            process,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            recovery_max: Duration::ZERO,
            memory_max: 0,
            in_snapshot: 0,
        };
        server.wait_until_ready(&ready, began)?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The longest time from a start to the first answer.
    pub(crate) fn recovery_max(&self) -> Duration {
        self.recovery_max
    }

    /// The most memory that one of its processes was seen to have used, in bytes; 0 where the
    /// system does not tell.
    pub(crate) fn memory_max(&mut self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let line = status.ok().and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            line?.split_whitespace().next()?.parse::<u64>().ok()
        });
        self.memory_max = self.memory_max.max(line.unwrap_or(0) << 10);
        self.memory_max
    }

    /// How many of its lives ended with a snapshot half written.
    pub(crate) fn in_snapshot(&self) -> u64 {
        self.in_snapshot
    }

    /// Whether it is writing a snapshot, or was when it ended.
    pub(crate) fn has_half_a_snapshot(&self) -> bool {
        let files = fs::read_dir(&self.launch.data).into_iter().flatten();
        files
            .flatten()
            .any(|file| file.file_name().to_string_lossy().ends_with(SNAPSHOT_PART))
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.memory_max();
        self.process.kill()?;
        if wait(&mut self.process, KILL_MAX)?.is_none() {
            bail!("the server still lived {KILL_MAX:?} after SIGKILL");
        }
        Ok(())
    }

    pub(crate) fn terminate(&mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.process.id())?).context("no process")?;
        kill_process(pid, Signal::TERM).context("SIGTERM")
    }

    /// Waits for its end; `None` if it does not come within so long.
    pub(crate) fn wait(&mut self, within: Duration) -> Result<Option<ExitStatus>> {
        self.memory_max();
        wait(&mut self.process, within)
    }

    /// Starts it again on the same folder and the same port, after its end.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.in_snapshot += u64::from(self.has_half_a_snapshot());
        let began = Instant::now();
        let (process, ready) = self.launch.spawn(&self.address.to_string())?;
        self.process = process;
        self.wait_until_ready(&ready, began)
    }

    /// SIGKILL, then a start.
    pub(crate) fn restart_after_kill(&mut self) -> Result<()> {
        self.kill()?;
        self.start_again()
    }

    /// SIGKILL, then a start that is killed itself after so long, most likely in its recovery.
    pub(crate) fn kill_and_kill_the_next(&mut self, after: Duration) -> Result<()> {
        self.kill()?;
        let (process, _) = self.launch.spawn(&self.address.to_string())?;
        self.process = process;
        thread::sleep(after);
        Ok(())
    }

    /// How many lines its log has so far.
    pub(crate) fn log_lines(&self) -> usize {
        self.log_since(0).len()
    }

    /// The lines of its log, in all its lives, without the first ones.
    pub(crate) fn log_since(&self, lines: usize) -> Vec<String> {
        let log = fs::read_to_string(&self.launch.log).unwrap_or_default();
        log.lines().skip(lines).map(str::to_owned).collect()
    }

    fn wait_until_ready(
        &mut self,
        ready: &mpsc::Receiver<SocketAddr>,
        began: Instant,
    ) -> Result<()> {
        match ready.recv_timeout(START_MAX) {
            Ok(address) => {
                self.address = address;
                self.recovery_max = self.recovery_max.max(began.elapsed());
                Ok(())
            }
            Err(error) => {
                let log = log_tail(&self.launch.log);
                Err(error).with_context(|| format!("the server did not get ready:\n{log}"))
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already, which is as good. One that hangs in the kernel is not waited for.
        let _ = self.process.kill();
        let _ = wait(&mut self.process, Duration::from_secs(5));
    }
}

/// The last lines of what a server, in all its lives, has said.
pub(crate) fn log_tail(log: &Path) -> String {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

impl Launch {
    /// Starts a process; what comes back tells the address when it serves.
    fn spawn(&self, listen: &str) -> Result<(Child, mpsc::Receiver<SocketAddr>)> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = if self.tied {
            let mut command = Command::new("setpriv");
            command
                .args(["--pdeathsig", "KILL", "--"])
                .arg(&self.binary);
            command
        } else {
            Command::new(&self.binary)
        };
        let mut process = command
            .args(["serve", "--listen", listen, "--data"])
            .arg(&self.data)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("could not start the server")?;
        let stderr = process.stderr.take().context("stderr was asked for")?;
        let (sender, ready) = mpsc::channel();
        thread::spawn(move || copy_log(stderr, log, &sender));
        Ok((process, ready))
    }
}

/// Keeps the pipe empty for as long as the process lives, and tells the address when a line names it.
fn copy_log(stderr: ChildStderr, mut log: File, ready: &mpsc::Sender<SocketAddr>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        // Whoever waits may have gone, and a full disk shows elsewhere.
        let _ = writeln!(log, "{line}");
        if let Some(address) = address_in(&line).filter(|_| line.contains("ready")) {
            let _ = ready.send(address);
        }
    }
}

fn address_in(line: &str) -> Option<SocketAddr> {
    let start = line.find("127.0.0.1:")?;
    let end = |c: char| !(c.is_ascii_digit() || matches!(c, '.' | ':'));
    let address: SocketAddr = line[start..]
        .split(end)
        .next()?
        .trim_end_matches(['.', ':'])
        .parse()
        .ok()?;
    (address.port() != 0).then_some(address)
}
