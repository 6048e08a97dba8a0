//! Servers that scripts start.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use lockgate_core::WallTime;
use tempfile::TempDir;

/// A server that a script with the verbs `start`, `crash` and `stop` has started over a folder of its own. It is killed when
/// this is dropped.
#[derive(Debug)]
pub struct Scripted {
    script: PathBuf,
    variable: &'static str,
    folder: TempDir,
    /// Where it is.
    pub url: String,
}

/// The code with which a script says that what it should start is not there.
const MISSING: i32 = 77;

impl Scripted {
    /// Starts one, of which the script says where it is as `VARIABLE=URL`. `None`, and said so for that test: there is no such
    /// server, and the script could not install it.
    ///
    /// # Panics
    /// If it does not start; and where `CI=true`, if it is not there.
    #[must_use]
    pub fn start(script: &str, variable: &'static str, test: &str) -> Option<Self> {
        Self::begin(script, variable, test, false)
    }

    /// The same, of a server whose wall clock can be [moved](Self::move_clock).
    ///
    /// # Panics
    /// As [`start`](Self::start), also where there is no libfaketime.
    #[must_use]
    pub fn start_with_clock(script: &str, variable: &'static str, test: &str) -> Option<Self> {
        Self::begin(script, variable, test, true)
    }

    fn begin(script: &str, variable: &'static str, test: &str, has_clock: bool) -> Option<Self> {
        let mut started = Self {
            script: script.into(),
            variable,
            folder: tempfile::tempdir().unwrap(),
            url: String::new(),
        };
        let clock = match has_clock {
            true => started.run("clock", &["+0"]).map(drop),
            false => Ok(()),
        };
        match clock.and_then(|()| started.run("start", &[])) {
            Ok(url) => started.url = url,
            Err(MISSING) => {
                let is_ci = std::env::var("CI").as_deref() == Ok("true");
                assert!(!is_ci, "{script} found no server for {test}");
                println!("not run: {test}: {script} found no server");
                return None;
            }
            Err(code) => panic!("{script} start ended with {code}"),
        }
        Some(started)
    }

    /// Sets the server's wall clock to the real time and so many seconds, while it runs.
    ///
    /// # Panics
    /// If that fails.
    pub fn move_clock(&self, seconds: i64) {
        self.run("clock", &[&format!("{seconds:+}")]).unwrap();
    }

    /// Sets it to that time, or up to a second behind it, while it runs.
    ///
    /// # Panics
    /// As [`move_clock`](Self::move_clock).
    pub fn set_clock(&self, wall: WallTime) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let ahead = i128::from(wall.0) - i128::try_from(now.as_millis()).unwrap();
        self.move_clock(i64::try_from(ahead.div_euclid(1_000) + 1).unwrap());
    }

    /// Has MariaDB flush its log no more, so that whoever commits waits, until it is [killed](Self::crash). It was started
    /// [with a clock](Self::start_with_clock).
    ///
    /// # Panics
    /// If that fails.
    pub fn hold_log(&self) {
        fs::write(self.folder.path().join("clock.hold"), "").unwrap();
    }

    /// Kills it, and starts it again.
    ///
    /// # Panics
    /// If it does not start.
    pub fn crash(&self) {
        self.run("crash", &[]).unwrap();
        let _ = fs::remove_file(self.folder.path().join("clock.hold"));
        assert_eq!(self.run("start", &[]), Ok(self.url.clone()));
    }

    /// Sends it a signal, such as `-STOP`.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, signal: &str) {
        let process = fs::read_to_string(self.folder.path().join("pid")).unwrap();
        // The shell's own: the program of that name is not on every machine.
        let sent = Command::new("sh")
            .args(["-c", "kill \"$@\"", "sh", signal, process.trim()])
            .status();
        assert!(sent.unwrap().success());
    }

    /// The URL that the script prints, or the code it ended with.
    fn run(&self, verb: &str, more: &[&str]) -> Result<String, i32> {
        // To a file: a server that it starts would keep a pipe open.
        let said = self.folder.path().join("said");
        let status = Command::new(&self.script)
            .arg(verb)
            .arg(self.folder.path())
            .args(more)
            .stdin(Stdio::null())
            .stdout(fs::File::create(&said).unwrap())
            .status()
            .unwrap();
        if !status.success() {
            return Err(status.code().unwrap_or(-1));
        }
        let said = fs::read_to_string(said).unwrap();
        let url = said.trim().strip_prefix(self.variable);
        let url = url.and_then(|url| url.strip_prefix('='));
        Ok(url.unwrap_or_default().to_owned())
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = self.run("crash", &[]);
    }
}
