//! Programs of the system, run with a deadline: on a broken file system any of them may hang.

use std::{
    io::Read as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// No program here works longer than this.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Between looks at a process.
const POLL: Duration = Duration::from_millis(2);

/// Runs a program to its end; fails with what it said if it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    run_with(command, &[0])
}

/// The same for a program that says more with its exit code.
pub(crate) fn run_with(command: &mut Command, good: &[i32]) -> Result<()> {
    let shown = shown(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start {shown}"))?;
    let Some(status) = wait(&mut child, RUN_MAX)? else {
        // In state D it lives on until the kernel lets go of it; that must not hang us too.
        let _ = child.kill();
        bail!("{shown} did not end within {RUN_MAX:?}");
    };
    if status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).unwrap_or_default();
    }
    bail!("{shown} ended with {status}: {}", said.trim());
}

/// Waits for the end of a process; `None` if it does not come within so long.
pub(crate) fn wait(child: &mut Child, within: Duration) -> Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > within {
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

/// Whether a program can be started by its name.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Those for administrators are not on everybody's path.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .map(|folder| folder.join(program))
        .any(|file| Path::is_file(&file))
}

fn shown(command: &Command) -> String {
    let arguments = command
        .get_args()
        .map(|argument| argument.to_string_lossy());
    let words = std::iter::once(command.get_program().to_string_lossy()).chain(arguments);
    words.collect::<Vec<_>>().join(" ")
}
