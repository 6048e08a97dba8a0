//! What can go wrong, by whose turn it is: the caller's, the environment's, the operator's.

use std::{error::Error, fmt, sync::Arc};

use lockgate_core::{AppendError, Epoch, LogError, Position, ReadError, ShardId, with_sources};
use lockgate_machine::Rejection;

use crate::{MissingPart, WithoutQueue};

/// Why a request has no positive answer.
///
/// What a caller may conclude differs: after [`Rejected`](Self::Rejected),
/// [`Overloaded`](Self::Overloaded) and [`Stopped`](Self::Stopped) nothing happened, and that is
/// certain; after [`UnknownOutcome`](Self::UnknownOutcome) it may have happened or not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The command was refused; nothing it asked for happened.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The engine has more work than it can take; nothing happened. Try again later, with jitter.
    #[error("the engine is overloaded: nothing was done, try again later")]
    Overloaded,
    /// The engine takes no more work; nothing happened.
    #[error("the engine has stopped ({reason}): nothing was done")]
    Stopped { reason: StopReason },
    /// The engine failed after the request may have been written: only the next start can tell.
    #[error("whether it was done is unknown: {cause}")]
    UnknownOutcome { cause: UnknownCause },
    /// No payload of a receive could be read, because storage failed. The leases were given back.
    #[error("reading the message at {at}; its lease was given back")]
    Unreadable {
        /// The record that was to be read.
        at: Position,
        #[source]
        source: ReadError,
    },
}

/// Why nobody can say whether a request was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownCause {
    /// The engine stopped while the request was on its way to the log.
    Stopped(StopReason),
    /// The thread that had the request gave no answer to it: it has panicked.
    NoAnswer,
}

/// Why an engine serves no more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It was asked to.
    ShutDown,
    /// Another owner has taken the log over: a start takes it back from there.
    Deposed {
        /// The lowest epoch that it can have.
        by: Epoch,
    },
    /// The log failed; the folder must be opened anew. What was answered before stays true, unless this says that
    /// files were removed.
    Storage(StorageFailure),
    /// A part of the engine has panicked; the folder must be opened anew. What was answered before stays true.
    Panicked,
}

/// What the log failed with, for everybody whom that concerns. Displays the error with its sources.
#[derive(Clone)]
pub struct StorageFailure(Arc<dyn Error + Send + Sync>);

impl StorageFailure {
    /// The error itself, such as a [`LogError`] or an [`AppendError`].
    #[must_use]
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0
    }
}

impl fmt::Display for StorageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_sources(&*self.0))
    }
}

impl fmt::Debug for StorageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// By what they tell.
impl PartialEq for StorageFailure {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for StorageFailure {}

impl StopReason {
    /// Whether something went wrong, so that a process should end with an error.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::ShutDown)
    }

    /// What a failure of the log means for who serves it.
    pub fn of(error: impl Error + Send + Sync + 'static) -> Self {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
        while let Some(error) = cause {
            if let Some(LogError::Deposed { by }) = error.downcast_ref() {
                return Self::Deposed { by: *by };
            }
            if let Some(AppendError::Fenced { theirs, .. }) = error.downcast_ref() {
                return Self::Deposed { by: *theirs };
            }
            cause = error.source();
        }
        Self::Storage(StorageFailure(Arc::new(error)))
    }

    /// For those whose requests it leaves unknown.
    pub(crate) fn unknown_outcome(&self) -> EngineError {
        EngineError::UnknownOutcome {
            cause: UnknownCause::Stopped(self.clone()),
        }
    }
}

impl fmt::Display for UnknownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(reason) => reason.fmt(f),
            Self::NoAnswer => f.write_str("a thread of the engine gave no answer"),
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ShutDown => f.write_str("it was shut down"),
            Self::Deposed { by } => LogError::Deposed { by: *by }.fmt(f),
            Self::Storage(failure) => failure.fmt(f),
            Self::Panicked => {
                f.write_str("the engine panicked; the panic's message is on standard error")
            }
        }
    }
}

/// Why an engine could not start. Nothing was changed but what recovery repairs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The log could not be recovered.
    #[error("recovering the log")]
    Recover(#[source] LogError),
    /// A record was written by a newer version; serving without it would break promises.
    #[error(
        "what the log holds at {at} was written by a newer version: use that version or a later one"
    )]
    NewerFormat {
        /// The first such record.
        at: Position,
        /// What is not known: a [`DecodeError`](lockgate_machine::DecodeError) of the record, or an
        /// [`ImageError`](lockgate_machine::ImageError) of the snapshot.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The log is that of a shard of another number. Nothing was changed.
    #[error(
        "the log is that of shard {held}, and it was opened as shard {given}: open it as shard {held}, or open \
         the log of shard {given}"
    )]
    OtherShard {
        /// The number in the log.
        held: ShardId,
        /// The number in [`EngineOptions::shard`](crate::EngineOptions::shard).
        given: ShardId,
    },
    /// No snapshot can be loaded, and the log alone does not reach back to the beginning: what is
    /// missing cannot be made up. Nothing was changed.
    #[error(
        "no snapshot can be loaded ({}), and the log was trimmed up to {trimmed}: restore a backup, \
         or put back the snapshot files",
        if unreadable.is_empty() { "there is none".to_owned() } else { unreadable.join("; ") }
    )]
    NoSnapshot {
        /// No recovery can start before it.
        trimmed: Position,
        /// The snapshots there are, and what is wrong with each.
        unreadable: Vec<String>,
    },
    /// Parts of the log are not there at all, such as files that somebody moved away, and messages have their
    /// bytes in them, or what was done since the last snapshot stood there. Nothing was changed. Serving without
    /// them is what [`EngineOptions::accept_loss`](crate::EngineOptions::accept_loss) is for.
    #[error(
        "parts of the log are not there: {}; nothing that is stored was changed. Put them back and start again, or restore a \
         backup, or accept the loss of what they held",
        crate::missing::list(parts, without_queue)
    )]
    Missing {
        /// Which, in the order of their positions.
        parts: Vec<MissingPart>,
        /// Messages in parts that are there, which are lost with these.
        without_queue: WithoutQueue,
    },
    /// The log is what a [`restore`](crate::restore) left that was not finished.
    #[error("the log holds a restore that was not finished: restore again, into a new log")]
    UnfinishedRestore,
    /// The term could not be begun, or its first record not be written.
    #[error("beginning a term on the log")]
    BeginTerm(#[source] AppendError),
    /// The log could not be synced.
    #[error("syncing the log before the first answer")]
    Sync(#[source] LogError),
    /// The operating system gave no random bytes.
    #[error("drawing random bytes")]
    Random(#[source] getrandom::Error),
    /// A thread could not be started.
    #[error("starting the engine's threads")]
    Threads(#[source] std::io::Error),
}
