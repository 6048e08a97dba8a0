//! The program that libFuzzer drives, as a process.

use std::{
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

use super::{Target, minimize::minimize, parse_table};

/// The stack that a target runs on, in KiB, with the few frames of libFuzzer on it. Sixteen times less
/// than the server's threads have.
const STACK_KIB: u32 = 128;

/// One input may take so many seconds, on a machine that does much else too.
const SECONDS_PER_INPUT: u32 = 10;

/// The driver may hold so many MiB.
const MEMORY_MIB: u32 = 1024;

/// How long smaller inputs are tried.
const MINIMIZE: Duration = Duration::from_secs(60);

/// The driver, and where it keeps its inputs from one run to the next.
pub(super) struct Driver {
    program: PathBuf,
    folder: PathBuf,
}

/// How fuzzing a target ended.
pub(super) struct Outcome {
    /// Inputs tried, as far as they were counted.
    pub(super) inputs: u64,
    pub(super) took: Duration,
    /// What broke it, if anything did.
    pub(super) found: Option<Found>,
}

/// An input that breaks its target.
pub(super) struct Found {
    pub(super) input: Vec<u8>,
    /// How the driver ended.
    pub(super) how: String,
    /// The last lines it wrote.
    pub(super) said: String,
}

impl Driver {
    pub(super) fn new(program: PathBuf, folder: PathBuf) -> Result<Self> {
        ensure!(program.is_file(), "there is no {}", program.display());
        fs::create_dir_all(&folder)?;
        Ok(Self { program, folder })
    }

    /// The targets there are; writes what each of them needs.
    pub(super) fn targets(&self) -> Result<Vec<Target>> {
        let mut command = Command::new(&self.program);
        command.env("LOCKGATE_FUZZ_PREPARE", &self.folder);
        let status = command.status().context("starting the driver")?;
        ensure!(status.success(), "the driver wrote no table of its targets");
        parse_table(&fs::read_to_string(self.folder.join("targets"))?)
    }

    /// Fuzzes a target for so many seconds, or until something is found.
    pub(super) fn fuzz(&self, target: &Target, seconds: u32) -> Result<Outcome> {
        let folder = self.folder.join(&target.name);
        let corpus = folder.join("corpus");
        // What is planted is to be found anew each time.
        if target.is_planted && corpus.exists() {
            fs::remove_dir_all(&corpus)?;
        }
        fs::create_dir_all(&corpus)?;
        let current = folder.join("current");
        let log = folder.join("log");
        let mut command = self.command(target, &log)?;
        command
            .env("LOCKGATE_FUZZ_CURRENT", &current)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={}", target.bytes_max))
            .arg("-reload=0")
            .arg(&corpus)
            .arg(folder.join("seeds"));
        let words = folder.join("words");
        if fs::metadata(&words)?.len() > 0 {
            command.arg(format!("-dict={}", words.display()));
        }
        let started = Instant::now();
        let status = wait(command.spawn().context("starting the driver")?, seconds)?;
        let took = started.elapsed();
        let said = fs::read(&log)?;
        let said = String::from_utf8_lossy(&said);
        let held = status.is_some_and(|status| status.success());
        let found = if held {
            None
        } else {
            let why = || format!("the driver tried no input:\n{}", last_lines(&said));
            Some(Found {
                input: kept(&current).with_context(why)?,
                how: describe(status),
                said: last_lines(&said),
            })
        };
        Ok(Outcome {
            inputs: executed(&said),
            took,
            found,
        })
    }

    /// A smaller input that breaks the target too.
    pub(super) fn minimize(&self, target: &Target, input: Vec<u8>) -> Vec<u8> {
        let started = Instant::now();
        minimize(input, |input| {
            let breaks = || self.breaks(target, input).ok();
            (started.elapsed() < MINIMIZE).then(breaks).flatten()
        })
    }

    fn breaks(&self, target: &Target, input: &[u8]) -> Result<bool> {
        let folder = self.folder.join(&target.name);
        let path = folder.join("smaller");
        fs::write(&path, input)?;
        let mut command = self.command(target, &folder.join("log-smaller"))?;
        let status = wait(command.arg(&path).spawn()?, 0)?;
        Ok(!status.is_some_and(|status| status.success()))
    }

    /// The driver for a target, on a small stack. Nothing else is in its environment: that lies on the
    /// stack too.
    fn command(&self, target: &Target, log: &Path) -> Result<Command> {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("ulimit -s {STACK_KIB} && exec \"$0\" \"$@\""))
            .arg(&self.program)
            .arg(format!("-timeout={SECONDS_PER_INPUT}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
            // libFuzzer's own copy of what broke it, if it comes to that.
            .arg(format!(
                "-artifact_prefix={}/artifact-",
                self.folder.join(&target.name).display()
            ))
            .env_clear()
            .env("LOCKGATE_FUZZ_TARGET", &target.name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log)?);
        Ok(command)
    }
}

/// Waits for longer than the driver should take; `None` if it had to be killed.
fn wait(mut child: Child, seconds: u32) -> io::Result<Option<ExitStatus>> {
    let patience = Duration::from_secs(u64::from(seconds + 3 * SECONDS_PER_INPUT));
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn describe(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.signal(), status.code())) {
        None => "it did not end and was killed".to_owned(),
        Some((Some(7 | 11), _)) => "the stack overflowed".to_owned(),
        Some((Some(signal), _)) => format!("signal {signal}"),
        Some((None, Some(70))) => "one input took too long".to_owned(),
        Some((None, Some(71))) => "it took too much memory".to_owned(),
        Some((None, Some(77))) => "a panic".to_owned(),
        Some((None, code)) => format!("exit code {code:?}"),
    }
}

/// The input that was being tried: its length, and its bytes.
fn kept(current: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(current).ok()?;
    let (len, input) = bytes.split_at_checked(8)?;
    let len = u64::from_le_bytes(len.try_into().ok()?);
    Some(input.get(..usize::try_from(len).ok()?)?.to_vec())
}

/// Inputs tried, by the last line of progress.
fn executed(said: &str) -> u64 {
    let number = |line: &str| {
        let number = line.strip_prefix('#')?.split(['\t', ' ']).next()?;
        number.parse().ok()
    };
    said.lines().rev().find_map(number).unwrap_or(0)
}

/// Without the lines of progress.
fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_leaves_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("current");
        assert_eq!(kept(&path), None);
        // A longer input was there before.
        fs::write(&path, b"\x03\0\0\0\0\0\0\0abcdef").unwrap();
        assert_eq!(kept(&path).unwrap(), b"abc");
        fs::write(&path, b"\x09\0\0\0\0\0\0\0abcdef").unwrap();
        assert_eq!(kept(&path), None);
        let said =
            "INFO: x\n#2\tINITED cov: 9\n#737\tNEW    cov: 9\n\nthread panicked\nSUMMARY: y\n";
        assert_eq!(executed(said), 737);
        assert_eq!(last_lines(said), "INFO: x\nthread panicked\nSUMMARY: y");
    }
}
