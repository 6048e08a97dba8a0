//! The errors of an engine: the caller's, the environment's and the operator's.

use std::{error::Error, fmt, sync::Arc};

use lockgate_core::{AppendError, Epoch, LogError, Position, ReadError, ShardId, with_sources};
use lockgate_machine::Rejection;

use crate::{MissingPart, WithoutQueue};

/// Says why a request has no positive answer.
///
/// After [`Rejected`](Self::Rejected), [`Overloaded`](Self::Overloaded) and
/// [`Stopped`](Self::Stopped) nothing happened, and that is certain. After
/// [`UnknownOutcome`](Self::UnknownOutcome) it may have happened or not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The command was refused; nothing it asked for happened.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The engine has more work than it can do; nothing happened. Try again later, with jitter.
    #[error("the engine is overloaded: nothing was done, try again later")]
    Overloaded,
    /// The engine accepts no more work; nothing happened.
    #[error("the engine has stopped ({reason}): nothing was done")]
    Stopped { reason: StopReason },
    /// The engine failed after the request may have been written. Only the next start can tell.
    #[error("whether it was done is unknown: {cause}")]
    UnknownOutcome { cause: UnknownCause },
    /// Storage failed, and no payload of a receive could be read. The leases were given back.
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

/// Says why an engine serves no more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Somebody shut it down.
    ShutDown,
    /// Another owner has taken the log over. A start would take it back.
    Deposed {
        /// The lowest epoch that the other owner can have.
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
    /// Tells whether something went wrong, so that the process should end with an error.
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

/// Says why an engine could not start. Nothing was changed, except for what recovery repairs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The log could not be recovered.
    #[error("recovering the log")]
    Recover(#[source] LogError),
    /// A newer version wrote a record; serving without it would break promises.
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
    /// The log belongs to a shard with another number. Nothing was changed.
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
    /// No snapshot can be loaded, and the log does not reach back to its beginning, so the state
    /// cannot be rebuilt. Nothing was changed.
    #[error(
        "no snapshot can be loaded ({}), and the log was trimmed up to {trimmed}: restore a backup, \
         or put back the snapshot files",
        if unreadable.is_empty() { "there is none".to_owned() } else { unreadable.join("; ") }
    )]
    NoSnapshot {
        /// The position before which no recovery can start.
        trimmed: Position,
        /// The snapshots there are, and what is wrong with each.
        unreadable: Vec<String>,
    },
    /// Parts of the log are missing, such as files that somebody moved away, and they are needed:
    /// messages have their bytes in them, or they held what was done since the last snapshot.
    /// Nothing was changed. [`EngineOptions::accept_loss`](crate::EngineOptions::accept_loss)
    /// serves without them.
    #[error(
        "parts of the log are not there: {}; nothing that is stored was changed. Put them back and start again, or restore a \
         backup, or accept the loss of what they held",
        crate::missing::list(parts, without_queue)
    )]
    Missing {
        /// The missing parts, in the order of their positions.
        parts: Vec<MissingPart>,
        /// Messages in other parts that are lost together with these.
        without_queue: WithoutQueue,
    },
    /// A [`restore`](crate::restore) left the log unfinished.
    #[error("the log holds a restore that was not finished: restore again, into a new log")]
    UnfinishedRestore,
    /// The term could not be begun, or its first record could not be written.
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
