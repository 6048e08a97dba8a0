//! A folder of its own for each test, the binary in a known environment, and a server to talk to.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// A working directory, and an environment that no setting of the developer's reaches.
pub(crate) struct Sandbox {
    folder: TempDir,
}

/// Sends a signal to a process that was started here.
pub(crate) fn signal(process: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(process);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Runs a command with a file as its standard output: what `receive --ack` asks for, which takes no pipe.
pub(crate) fn run_to_file(command: &mut Command) -> Done {
    let mut file = tempfile::tempfile().unwrap();
    let done = command.stdout(file.try_clone().unwrap()).output().unwrap();
    let mut stdout = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut stdout).unwrap();
    Output { stdout, ..done }.into()
}

/// Runs a command on a terminal, which is its standard output only.
pub(crate) fn run_on_terminal(command: &mut Command) -> Done {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let terminal = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    let reader = std::thread::spawn(move || {
        let (mut user, mut seen) = (fs::File::from(user), Vec::new());
        // It fails when nobody has the terminal open any more.
        let _ = user.read_to_end(&mut seen);
        seen
    });
    let done = command.stdout(terminal).output().unwrap();
    // It keeps the terminal open.
    command.stdout(Stdio::null());
    let stdout = reader.join().unwrap();
    Output { stdout, ..done }.into()
}

/// What a run of the program left.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// The program with these arguments, separated by spaces.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockgate"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LOCKGATE_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments.split_whitespace())
            .current_dir(self.path())
            .env("HOME", self.path())
            .env("XDG_CONFIG_HOME", self.path().join("xdg"))
            .env_remove("COLUMNS")
            .env_remove("SSL_CERT_DIR")
            .env_remove("SSL_CERT_FILE")
            .env_remove("CLICOLOR_FORCE")
            .stdin(Stdio::null());
        command
    }

    /// The same, but it may write no file larger than a MiB.
    pub(crate) fn command_with_small_files(&self, arguments: &str) -> Command {
        // In blocks of 512 bytes.
        self.shell(&self.command(arguments), "ulimit -f 2048 && exec \"$@\"")
    }

    /// The same command, run by a shell with this script.
    pub(crate) fn shell(&self, command: &Command, script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.current_dir(self.path()).stdin(Stdio::null());
        shell
    }

    pub(crate) fn run(&self, arguments: &str) -> Done {
        run_to_file(&mut self.command(arguments))
    }

    /// Runs the program with this on its standard input.
    pub(crate) fn run_with_input(&self, arguments: &str, input: &str) -> Done {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        // On a thread, so that a program that does not read all of it cannot block the test.
        let writer = std::thread::spawn(move || {
            let _ = stdin.write_all(input.as_bytes());
        });
        let done = child.wait_with_output().unwrap();
        writer.join().unwrap();
        done.into()
    }
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Done {
    /// The run's standard output, which must be all there is.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }

    /// The run's standard error, which must have ended with this code.
    #[track_caller]
    pub(crate) fn fails_with(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.stderr
    }

    /// Standard output as JSON lines.
    #[track_caller]
    pub(crate) fn json(self) -> Vec<Value> {
        json_lines(&self.ok())
    }
}

#[track_caller]
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// A running `lockgate serve`; killed when dropped.
pub(crate) struct Server {
    process: Child,
    log: BufReader<ChildStderr>,
    pub(crate) url: String,
    /// What it said of its start.
    pub(crate) recovered: Value,
    /// What it said besides, up to the last event that was waited for.
    pub(crate) passed: Vec<Value>,
}

impl Server {
    /// Starts one on a free port, with its data in the sandbox.
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        Self::start_on(sandbox, "data")
    }

    /// Starts one on a free port, with its data in that folder of the sandbox.
    pub(crate) fn start_on(sandbox: &Sandbox, folder: &str) -> Self {
        Self::start_at(sandbox, "127.0.0.1:0", folder)
    }

    /// Waits for a server that has been killed, and starts another on its address and data.
    pub(crate) fn restart(mut ended: Self, sandbox: &Sandbox, address: &str) -> Self {
        ended.process.wait().unwrap();
        Self::start_at(sandbox, address, "data")
    }

    /// Starts one that may write no file larger than a MiB.
    pub(crate) fn start_with_small_files(sandbox: &Sandbox) -> Self {
        let command = sandbox.command_with_small_files("serve --listen 127.0.0.1:0 --data data");
        Self::spawn(command, "data")
    }

    fn start_at(sandbox: &Sandbox, address: &str, folder: &str) -> Self {
        let command = sandbox.command(&format!("serve --listen {address} --data {folder}"));
        Self::spawn(command, folder)
    }

    /// Starts one by that command, with its data in that folder.
    pub(crate) fn spawn(mut command: Command, folder: &str) -> Self {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut server = Self {
            process,
            log,
            url: String::new(),
            recovered: Value::Null,
            passed: Vec::new(),
        };
        server.recovered = server.event("recovered");
        let ready = server.event("ready");
        server.url = ready["url"].as_str().unwrap().to_owned();
        assert_eq!(ready["data"], folder);
        server
    }

    /// Reads the log up to the event with this sentence.
    #[track_caller]
    pub(crate) fn event(&mut self, sentence: &str) -> Value {
        let mut line = String::new();
        while self.log.read_line(&mut line).unwrap() > 0 {
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["message"] == sentence {
                return event;
            }
            self.passed.push(event);
            line.clear();
        }
        panic!("the server ended without saying {sentence:?}");
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self::signal(&self.process, signal);
    }

    /// Waits for its end with nobody reading its log.
    pub(crate) fn wait_unread(mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        // The log must be read, or the server could wait for room in the pipe.
        std::io::copy(&mut self.log, &mut std::io::sink()).unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Compares with a file beside the tests; `UPDATE_SNAPSHOTS=1` writes it instead.
#[track_caller]
pub(crate) fn assert_snapshot(file: &Path, actual: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(file, actual).unwrap();
        return;
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    if expected != actual {
        let differs = expected
            .lines()
            .zip(actual.lines())
            .position(|(a, b)| a != b)
            .unwrap_or_else(|| expected.lines().count().min(actual.lines().count()));
        panic!(
            "{} differs from line {} on:\n  is:     {:?}\n  should: {:?}\nif that is right: \
             UPDATE_SNAPSHOTS=1 cargo test -p lockgate-cli",
            file.display(),
            differs + 1,
            actual.lines().nth(differs),
            expected.lines().nth(differs),
        );
    }
}
