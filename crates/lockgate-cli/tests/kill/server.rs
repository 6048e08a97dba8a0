//! The server process.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use anyhow::{Context as _, Result};

const START_MAX: Duration = Duration::from_secs(60);

/// A running server; killed when dropped.
pub(crate) struct Server {
    process: Child,
    folder: PathBuf,
    address: SocketAddr,
}

impl Server {
    /// Starts one on a free port, with its data and its log in `folder`.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let (process, ready) = launch(folder, "127.0.0.1:0")?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut server = Self {
            process,
            folder: folder.to_owned(),
            address: any,
        };
        server.wait_until_ready(&ready)?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// SIGKILL, then a start on the same folder and the same port.
    pub(crate) fn restart_after_kill(&mut self) -> Result<()> {
        let ready = self.kill_and_launch()?;
        self.wait_until_ready(&ready)
    }

    /// SIGKILL, then a start that is killed itself after so long, most likely in its recovery.
    pub(crate) fn kill_and_kill_the_next(&mut self, after: Duration) -> Result<()> {
        self.kill_and_launch()?;
        std::thread::sleep(after);
        Ok(())
    }

    fn kill_and_launch(&mut self) -> Result<mpsc::Receiver<SocketAddr>> {
        self.process.kill()?;
        self.process.wait()?;
        let (process, ready) = launch(&self.folder, &self.address.to_string())?;
        self.process = process;
        Ok(ready)
    }

    fn wait_until_ready(&mut self, ready: &mpsc::Receiver<SocketAddr>) -> Result<()> {
        match ready.recv_timeout(START_MAX) {
            Ok(address) => {
                self.address = address;
                Ok(())
            }
            Err(error) => {
                let log = log_tail(&self.folder);
                Err(error).with_context(|| format!("the server did not get ready:\n{log}"))
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The last lines of what the server, in all its lives, has said.
pub(crate) fn log_tail(folder: &Path) -> String {
    let log = fs::read_to_string(folder.join("server.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Starts a process; what comes back tells the address when it serves.
fn launch(folder: &Path, listen: &str) -> Result<(Child, mpsc::Receiver<SocketAddr>)> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("server.log"))?;
    let mut process = Command::new(env!("CARGO_BIN_EXE_lockgate"))
        .args(["serve", "--listen", listen, "--data"])
        .arg(folder.join("data"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("could not start the server")?;
    let stderr = process.stderr.take().context("stderr was asked for")?;
    let (sender, ready) = mpsc::channel();
    std::thread::spawn(move || copy_log(stderr, log, &sender));
    Ok((process, ready))
}

/// Keeps the pipe empty for as long as the process lives, and tells the address when a line names it.
fn copy_log(stderr: ChildStderr, mut log: File, ready: &mpsc::Sender<SocketAddr>) {
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        // Whoever waits may have gone, and a full disk shows elsewhere.
        let _ = writeln!(log, "{line}");
        if let Some(address) = address_in(&line) {
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
