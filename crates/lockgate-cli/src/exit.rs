//! How a command ends: the exit codes, and a failure that knows its own.

use std::{fmt, io};

use lockgate_core::LogError;

/// Why the program ends, as its exit code. Part of the interface: never renumbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    Ok = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Conflict = 4,
    Unreachable = 5,
    Timeout = 6,
    Denied = 7,
    Damaged = 8,
    Refused = 9,
    NotElected = 120,
    LeadershipLost = 121,
    StoreUnreachable = 122,
    NotRunnable = 126,
    NoCommand = 127,
    Interrupted = 130,
    Quit = 131,
    Terminated = 143,
}

impl Exit {
    /// Every code with what it means, in order; the help text is made of it.
    pub(crate) const ALL: [(Self, &str); 18] = [
        (Self::Ok, "done"),
        (Self::Failed, "failed; the message says what and why"),
        (
            Self::Usage,
            "wrong usage or configuration; nothing was done",
        ),
        (
            Self::NotFound,
            "not found: the queue or file does not exist",
        ),
        (
            Self::Conflict,
            "conflict: exists otherwise, in use by another, lease ended",
        ),
        (Self::Unreachable, "no server at the endpoint"),
        (Self::Timeout, "no answer in time"),
        (Self::Denied, "the server refused access"),
        (Self::Damaged, "damage was found; what it hit is lost"),
        (
            Self::Refused,
            "the data is refused: damaged, incomplete or of a newer version; it was left alone",
        ),
        (Self::NotElected, "lead: somebody else led all the time"),
        (
            Self::LeadershipLost,
            "lead: the leadership ended before the command did",
        ),
        (
            Self::StoreUnreachable,
            "lead, sequence, import: the store of the election, the ledger, or ZooKeeper, does not answer",
        ),
        (Self::NotRunnable, "lead: the command cannot be run"),
        (Self::NoCommand, "lead: there is no such command"),
        (Self::Interrupted, "interrupted (SIGINT)"),
        (Self::Quit, "quit (SIGQUIT)"),
        (Self::Terminated, "terminated (SIGTERM)"),
    ];

    /// How a command ends that a log's error ends: the data is refused, if it is at fault.
    pub(crate) fn of_log(error: &LogError) -> Self {
        match error {
            LogError::NewerFormat { .. }
            | LogError::Misnamed { .. }
            | LogError::Unsupported { .. } => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// Why a command did not do what was asked, for a person to read and a script to tell apart.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    /// What the program exits with in place of that: the code of a command it has run.
    code: Option<u8>,
    error: anyhow::Error,
    hint: Option<String>,
    /// It was told already, or there is nothing to tell.
    silent: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl fmt::Display) -> Self {
        Self {
            exit,
            code: None,
            error: anyhow::anyhow!("{what}"),
            hint: None,
            silent: false,
        }
    }

    pub(crate) fn usage(what: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// Several things are wrong with what was given, each told on a line of its own.
    pub(crate) fn problems(problems: &[String]) -> Self {
        // Below the word `error: `.
        Self::usage(problems.join("\n       "))
    }

    pub(crate) fn failed(what: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, what)
    }

    /// Any error with its sources.
    pub(crate) fn from_error(
        exit: Exit,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Self {
            exit,
            code: None,
            error: anyhow::Error::new(error),
            hint: None,
            silent: false,
        }
    }

    /// The same failure with another exit code.
    pub(crate) fn exits(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// The program ends because of a signal, after it has put everything in order.
    pub(crate) fn signal(exit: Exit) -> Self {
        Self::new(exit, "").told()
    }

    /// The program ends as a command has ended that it has run. There is nothing to tell of it.
    pub(crate) fn passed_on(code: u8) -> Self {
        Self {
            code: Some(code),
            ..Self::new(Exit::Failed, "").told()
        }
    }

    /// The same failure, which was logged already: only its exit code is left to give.
    pub(crate) fn told(mut self) -> Self {
        self.silent = true;
        self
    }

    /// The same with another exit code.
    pub(crate) fn exiting(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// What was being done.
    pub(crate) fn context(mut self, what: impl fmt::Display + Send + Sync + 'static) -> Self {
        self.error = self.error.context(what);
        self
    }

    /// What the reader can do about it; printed on a line of its own.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same, unless there is a hint already.
    pub(crate) fn or_hint(self, hint: impl Into<String>) -> Self {
        match self.hint {
            Some(_) => self,
            None => self.hint(hint),
        }
    }

    /// The same, behind a hint that there is already.
    pub(crate) fn and_hint(self, hint: impl Into<String>) -> Self {
        let hint = match &self.hint {
            Some(before) => format!("{before}; {}", hint.into()),
            None => hint.into(),
        };
        self.hint(hint)
    }

    /// Whether a signal ended the program.
    pub(crate) fn is_signal(&self) -> bool {
        matches!(self.exit, Exit::Interrupted | Exit::Quit | Exit::Terminated)
    }

    /// What the reader can do about it, if there is something.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// What the program exits with.
    pub(crate) fn code(&self) -> u8 {
        self.code.unwrap_or(self.exit as u8)
    }

    /// Whether there is nothing left to tell.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            exit: Exit::Failed,
            code: None,
            error,
            hint: None,
            silent: false,
        }
    }
}

/// An error of standard output. A reader that has seen enough and closed the pipe (`| head -1`) is
/// not a failure: the program just ends.
pub(crate) fn output_error(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::signal(Exit::Ok)
    } else {
        Failure::from_error(Exit::Failed, error).context("writing to standard output")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = output_error(io::ErrorKind::BrokenPipe.into());
        assert_eq!(closed.exit(), Exit::Ok);
        let full = output_error(io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit(), Exit::Failed);
    }
}
