//! Whom a command has started, wherever it has gone: by a mark in the environment, which everybody inherits.
//!
//! A process group does not have them all: `setsid`, `timeout` and every shell with job control make groups of their own. The
//! environment of a process is that of its start, so whoever has started without the mark (`env --ignore-environment`) is not
//! found, and neither is who runs as another user.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, getpgid, getpid, pidfd_open, pidfd_send_signal};

/// The marks of a process: one for each `lead` that it runs under, with colons between them.
pub(super) const VARIABLE: &str = "LOCKGATE_LEAD_MARKS";

/// How often whoever is killed is looked for again at once: somebody may start others meanwhile.
const ROUNDS_MAX: u32 = 20;

/// A mark that no other process has.
pub(super) fn new_mark() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Each is seeded with random bits.
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// The marks of what this process starts, with that one.
pub(super) fn marks_with(mark: &str) -> String {
    match std::env::var(VARIABLE) {
        Ok(marks) if !marks.is_empty() => format!("{marks}:{mark}"),
        _ => mark.to_owned(),
    }
}

/// Sends a signal to all who have the mark, but for this process and those of the group: how many.
pub(super) fn signal(mark: &str, beside: Option<Pid>, signal: Signal) -> usize {
    // Where /proc is of another namespace, its numbers are others' here.
    let own = fs::read_link("/proc/self").ok();
    let is_ours = own.is_some_and(|own| own.as_os_str() == getpid().to_string().as_str());
    let Some(processes) = fs::read_dir("/proc").ok().filter(|_| is_ours) else {
        return 0;
    };
    let numbers = processes.flatten().filter_map(|process| {
        let number: i32 = process.file_name().to_str()?.parse().ok()?;
        Pid::from_raw(number).filter(|pid| *pid != getpid())
    });
    let sent = numbers.filter(|pid| {
        // From here on the number is this process's.
        let Ok(process) = pidfd_open(*pid, PidfdFlags::empty()) else {
            return false;
        };
        has(*pid, mark)
            && !beside.is_some_and(|group| getpgid(Some(*pid)) == Ok(group))
            && pidfd_send_signal(&process, signal).is_ok()
    });
    sent.count()
}

/// Kills all who have the mark, as [`signal`], until there are no more; or, where somebody starts others as fast, most of them.
/// False: then.
pub(super) fn kill(mark: &str) -> bool {
    (0..ROUNDS_MAX).any(|_| signal(mark, None, Signal::KILL) == 0)
}

/// Whether a process was started with that mark. Of one that has ended, or is another user's, nothing can be read.
fn has(pid: Pid, mark: &str) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())) else {
        return false;
    };
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| {
        let marks = variable.strip_prefix(VARIABLE.as_bytes());
        let marks = marks.and_then(|marks| marks.strip_prefix(b"="));
        marks.is_some_and(|marks| {
            marks
                .split(|byte| *byte == b':')
                .any(|it| it == mark.as_bytes())
        })
    })
}
