//! The process group of a command, with its watchdog, and the children of `lead`.

use std::{
    ffi::OsStr,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt as _},
    process::{Command, Stdio},
    time::Duration,
};

use lockgate_core::{Clock as _, Millis};
use lockgate_log::SystemClock;
use rustix::{
    io::{Errno, ioctl_fionbio},
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper,
        wait, waitpgid,
    },
};
use tokio::{
    io::AsyncReadExt as _,
    net::unix::pipe,
    signal::unix::{self, SignalKind},
    time::{sleep, timeout},
};

use super::{
    ends, kin,
    watchdog::{Deadlines, NEVER, READY},
};
use crate::{
    commands::listen,
    exit::{Exit, Failure},
};

/// How often children are looked at without word of one.
const LOOK: Duration = Duration::from_secs(1);

/// How long is waited before whoever does not die is looked for again.
const AGAIN: Duration = Duration::from_millis(5);

/// The process's own program, also when its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// The children of this process, and those that their parents have left to it.
pub(super) struct Children {
    changed: unix::Signal,
}

impl Children {
    /// From now on this process has what its children leave, so it knows when all of a group has gone.
    pub(super) fn new() -> Result<Self, Failure> {
        set_child_subreaper(Some(getpid()))
            .map_err(|error| Failure::from_error(Exit::Failed, io::Error::from(error)))?;
        Ok(Self {
            changed: listen(SignalKind::child())?,
        })
    }

    /// The next child that has ended, or was stopped.
    ///
    /// # Cancellation
    /// None is missed.
    pub(super) async fn next(&mut self) -> (Pid, WaitStatus) {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(ended)) => return ended,
                Err(Errno::INTR) => {}
                // There may be children later.
                Ok(None) | Err(_) => self.change().await,
            }
        }
    }

    /// Waits for word of a child. There is none where this process was started with the signal blocked: then it looks now and
    /// then.
    async fn change(&mut self) {
        let _ = timeout(LOOK, self.changed.recv()).await;
    }

    /// Waits until nobody of the group is left.
    async fn gone(&mut self, group: Pid) {
        loop {
            match waitpgid(group, WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => self.change().await,
                Err(_) => return,
            }
        }
    }
}

/// A process group and the watchdog that leads it.
pub(super) struct Group {
    watchdog: Pid,
    deadlines: OwnedFd,
    clock: SystemClock,
    notice: Duration,
    /// What the watchdog was told last.
    told: Deadlines,
    has_term: bool,
    is_killed: bool,
    /// Whom it has started has this, also in another group.
    mark: String,
}

impl Group {
    /// Starts a watchdog, and waits until it is there. The group's term has no end until it is [told](Self::tell).
    pub(super) async fn start(notice: Duration) -> io::Result<Self> {
        let mark = kin::new_mark();
        let mut child = Command::new(PROGRAM)
            .arg0("lockgate")
            .arg("lead-watchdog")
            .arg(&mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let deadlines = OwnedFd::from(stdin);
        // A watchdog that is frozen stops nobody.
        ioctl_fionbio(&deadlines, true)?;
        let mut group = Self {
            watchdog: Pid::from_child(&child),
            deadlines,
            clock: SystemClock::new(),
            notice,
            told: Deadlines {
                term_at: NEVER,
                kill_at: NEVER,
            },
            has_term: false,
            is_killed: false,
            mark,
        };
        group.write(group.told);
        let mut ready = [0; READY.len()];
        let mut stdout = pipe::Receiver::from_owned_fd(stdout.into())?;
        stdout.read_exact(&mut ready).await?;
        Ok(group)
    }

    pub(super) fn watchdog(&self) -> Pid {
        self.watchdog
    }

    /// A command that runs in the group once it is spawned, and dies with this process.
    pub(super) fn command<'a>(&self, words: impl IntoIterator<Item = &'a OsStr>) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .arg0("lockgate")
            .arg("lead-command")
            .arg(getpid().as_raw_nonzero().to_string())
            .arg("--")
            .args(words)
            .env(kin::VARIABLE, kin::marks_with(&self.mark))
            .process_group(self.watchdog.as_raw_nonzero().get());
        command
    }

    /// Has whoever runs in the group hear nothing before it is killed: it is started to end what is lost already.
    pub(super) fn runs_to_its_end(&mut self) {
        self.has_term = true;
    }

    /// Tells the watchdog how much of the term is left.
    pub(super) fn tell(&mut self, remaining: Duration) {
        let remaining = Millis::try_from(remaining.as_millis()).unwrap_or(NEVER);
        let kill_at = self.clock.since_boot().saturating_add(remaining);
        // Later than this process does it, which may be well: nobody is told twice.
        let notice = Millis::try_from(self.notice.as_millis()).unwrap_or(0) * 3 / 4;
        self.write(Deadlines {
            term_at: match self.has_term {
                true => NEVER,
                false => kill_at.saturating_sub(notice),
            },
            kill_at,
        });
    }

    /// A line is written whole or not at all. If there is no room for it the watchdog does not read, and an earlier deadline
    /// holds.
    fn write(&mut self, deadlines: Deadlines) {
        if rustix::io::write(&self.deadlines, deadlines.line().as_bytes()).is_ok() {
            self.told = deadlines;
        }
    }

    /// Tells the group to end, if nobody has.
    pub(super) fn terminate(&mut self, remaining: Duration) {
        // The watchdog may have done it while this process was frozen.
        let is_told = self.clock.since_boot() >= self.told.term_at;
        if !self.has_term && !is_told {
            self.signal(Signal::TERM);
        }
        self.has_term = true;
        self.tell(remaining);
    }

    pub(super) fn signal(&mut self, signal: Signal) {
        self.is_killed |= signal == Signal::KILL;
        self.has_term |= signal == Signal::TERM;
        // Whoever has gone needs no signal.
        let _ = kill_process_group(self.watchdog, signal);
        // The others are for a group whose leader has chosen to hear them.
        if ends(signal) || signal == Signal::KILL {
            kin::signal(&self.mark, Some(self.watchdog), signal);
        }
    }

    /// Ends what is left of the group and of whom it has started, and waits until they have gone.
    pub(super) async fn end(mut self, children: &mut Children) {
        // Once is enough; then the number may be another group's.
        if !self.is_killed {
            self.signal(Signal::KILL);
        }
        children.gone(self.watchdog).await;
        while !kin::kill(&self.mark) {
            sleep(AGAIN).await;
        }
    }
}
