//! The process that ends a command when its term is over, also while `lead` is frozen or gone.
//!
//! It leads the process group of the command. `lead` writes lines to its standard input, each of which replaces the one
//! before: `TERM_AT KILL_AT`, in milliseconds since boot, which count while the machine is suspended. At TERM_AT the group
//! gets SIGTERM, once. At KILL_AT, and when the input ends, it gets SIGKILL, and the watchdog with it. After the first line
//! the watchdog writes `ready`: from then on no signal to the group ends it, but that one. Whom the command has started gets the
//! same in whatever group it is ([`kin`]).

use std::{
    io::{self, Write as _},
    os::fd::AsFd as _,
    thread,
};

use lockgate_core::{Clock as _, Millis};
use lockgate_log::SystemClock;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, ioctl_fionbio},
    process::{Signal, getpid, kill_process_group},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tokio::signal::unix::SignalKind;

use super::{FORWARDED, kin};
use crate::{
    args::LeadWatchdog,
    commands::{listen, runtime},
    exit::{Exit, Failure},
    output::complain,
};

/// What the watchdog writes when it is there.
pub(super) const READY: &[u8] = b"ready\n";

/// Never.
pub(super) const NEVER: Millis = Millis::MAX;

/// When the group is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Deadlines {
    /// When it gets SIGTERM.
    pub(super) term_at: Millis,
    /// When it gets SIGKILL.
    pub(super) kill_at: Millis,
}

impl Deadlines {
    /// The line that tells them.
    pub(super) fn line(self) -> String {
        format!("{} {}\n", self.term_at, self.kill_at)
    }

    fn read(line: &str) -> Option<Self> {
        let (term_at, kill_at) = line.split_once(' ')?;
        Some(Self {
            term_at: term_at.parse().ok()?,
            kill_at: kill_at.parse().ok()?,
        })
    }
}

/// What is known of the deadlines, and what was done.
#[derive(Debug)]
struct Watch {
    deadlines: Option<Deadlines>,
    /// The beginning of a line.
    input: Vec<u8>,
    is_told: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Wait for input, or until that time.
    Wait(Millis),
    Terminate,
    Kill,
}

impl Watch {
    /// Takes input; nothing is its end. False: it cannot be understood, or has ended.
    fn hear(&mut self, input: &[u8]) -> bool {
        self.input.extend_from_slice(input);
        while let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let line = str::from_utf8(&line).unwrap_or_default();
            match Deadlines::read(line.trim_end()) {
                Some(deadlines) => self.deadlines = Some(deadlines),
                None => return false,
            }
        }
        !input.is_empty() && self.input.len() < 100
    }

    fn next(&mut self, now: Millis) -> Next {
        let Some(Deadlines { term_at, kill_at }) = self.deadlines else {
            return Next::Wait(NEVER);
        };
        if now >= kill_at {
            return Next::Kill;
        }
        if now >= term_at && !self.is_told {
            self.is_told = true;
            return Next::Terminate;
        }
        Next::Wait(match self.is_told {
            true => kill_at,
            false => term_at.min(kill_at),
        })
    }
}

/// Ends all there is, whatever has become of the watchdog's own work.
struct End<'m> {
    mark: &'m str,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        kin::kill(self.mark);
        // It does not come back from there.
        let _ = kill_process_group(getpid(), Signal::KILL);
    }
}

pub(in crate::commands) fn run(args: &LeadWatchdog) -> Result<(), Failure> {
    let group = getpid();
    let mark = &args.mark;
    let _end = End { mark };
    {
        let runtime = runtime()?;
        let _context = runtime.enter();
        // Their handlers stay when nobody listens any more. The last three are a terminal's: of Ctrl-Z, and of a background
        // process that reads or writes.
        let others = [Signal::ALARM, Signal::TSTP, Signal::TTIN, Signal::TTOU];
        for signal in FORWARDED.iter().chain(&others) {
            drop(listen(SignalKind::from_raw(signal.as_raw()))?);
        }
    }
    let outcome = watch(|signal| {
        // Whoever is gone needs no signal.
        let _ = kill_process_group(group, signal);
        kin::signal(mark, Some(group), signal);
    });
    outcome.map_err(|error| Failure::from_error(Exit::Failed, error))
}

/// Tells people, on a thread: standard error may be a pipe that nobody reads, and the watchdog must not wait for it.
fn say(text: &'static str) {
    // Without a thread nobody is told: the command may have used up all there are.
    let _ = thread::Builder::new().spawn(move || complain("warning", text));
}

/// Ends when the group is to be killed.
fn watch(signal: impl Fn(Signal)) -> io::Result<()> {
    let clock = SystemClock::new();
    let timer = timerfd_create(
        TimerfdClockId::Boottime,
        TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
    )?;
    // Without a buffer, of which a poll knows nothing.
    let (input, mut buffer) = (io::stdin(), [0; 4_096]);
    let stdin = input.as_fd();
    ioctl_fionbio(stdin, true)?;
    let mut watch = Watch {
        deadlines: None,
        input: Vec::new(),
        is_told: false,
    };
    let mut is_ready = false;
    loop {
        let until = match watch.next(clock.since_boot()) {
            Next::Kill => return Ok(()),
            Next::Terminate => {
                signal(Signal::TERM);
                say("the lease is not renewed, and the command is told to end");
                continue;
            }
            Next::Wait(until) => until,
        };
        if watch.deadlines.is_some() && !is_ready {
            is_ready = true;
            let mut stdout = io::stdout().lock();
            stdout.write_all(READY)?;
            stdout.flush()?;
        }
        timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &at(until))?;
        {
            let mut polled = [
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::new(&timer, PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // All that there is: the last line counts.
        loop {
            match rustix::io::read(stdin, &mut buffer) {
                Ok(read) if watch.hear(&buffer[..read]) => {}
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Once at that time; never is beyond what the kernel counts, so it is a time of zero, which none is.
fn at(millis: Millis) -> Itimerspec {
    let at = match millis {
        NEVER => Timespec::default(),
        _ => Timespec {
            tv_sec: i64::try_from(millis / 1_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(millis % 1_000).unwrap_or(0) * 1_000_000,
        },
    };
    Itimerspec {
        it_interval: Timespec::default(),
        it_value: at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        Watch {
            deadlines: None,
            input: Vec::new(),
            is_told: false,
        }
    }

    #[test]
    fn a_group_is_told_once_and_killed_at_its_deadline() {
        let mut watch = watch();
        assert_eq!(watch.next(5), Next::Wait(NEVER));
        assert!(watch.hear(b"10 2"));
        assert_eq!(watch.next(5), Next::Wait(NEVER));
        assert!(watch.hear(b"0\n"));
        assert_eq!(watch.next(5), Next::Wait(10));
        // A renewal.
        assert!(watch.hear(b"20 30\n"));
        assert_eq!(watch.next(19), Next::Wait(20));
        assert_eq!(watch.next(20), Next::Terminate);
        assert_eq!(watch.next(20), Next::Wait(30));
        // A late renewal tells it nothing new.
        assert!(watch.hear(b"30 40\n"));
        assert_eq!(watch.next(39), Next::Wait(40));
        assert_eq!(watch.next(40), Next::Kill);
    }

    #[test]
    fn a_group_that_lead_has_told_is_not_told_again() {
        let mut watch = watch();
        let told = Deadlines {
            term_at: NEVER,
            kill_at: 30,
        };
        assert!(watch.hear(told.line().as_bytes()));
        assert_eq!(watch.next(29), Next::Wait(30));
        assert_eq!(watch.next(30), Next::Kill);
    }

    #[test]
    fn the_end_of_input_and_what_is_no_line_are_the_end() {
        for input in [&b""[..], b"x\n", b"1\n", b"1 -1\n", &[b'1'; 100]] {
            assert!(!watch().hear(input), "{input:?}");
        }
    }
}
