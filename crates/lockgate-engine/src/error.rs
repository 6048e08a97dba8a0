//! The errors of an engine: the caller's, the environment's and the operator's.

use std::{error::Error, fmt};

use lockgate_core::{
    AppendError, Epoch, LogError, Position, ReadError, ShardId, StorageFailure, with_sources,
};
use lockgate_index::IndexError;
use lockgate_machine::{ImageError, Rejection};

use crate::{MissingPart, WithoutQueue};

/// Why a request failed.
///
/// After [`Rejected`](Self::Rejected), [`Overloaded`](Self::Overloaded) and
/// [`Stopped`](Self::Stopped) it is certain that nothing happened. After
/// [`UnknownOutcome`](Self::UnknownOutcome) the request may have happened or not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The machine refused the command; nothing happened.
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
    /// The index of unique ids could not be read; nothing was decided.
    #[error(
        "the index of unique ids cannot be read, so nothing was done: `lockgate check` says whether it is damaged, and what to do"
    )]
    Index {
        #[source]
        source: StorageFailure,
    },
    /// Storage failed, and no payload of a receive could be read. The leases were given back.
    #[error("reading the message at {at}; its lease was given back")]
    Unreadable {
        at: Position,
        #[source]
        source: ReadError,
    },
}

/// Why it is unknown whether a request was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownCause {
    /// The engine stopped while the request was on its way to the log.
    Stopped(StopReason),
    /// The thread that had the request panicked before it answered.
    NoAnswer,
}

/// Why an engine stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// It was shut down on request.
    ShutDown,
    /// Another owner has taken over the log. A new start here would take it back.
    Deposed {
        /// The lowest epoch that the other owner can have.
        by: Epoch,
    },
    /// The log failed; open the folder again. What was answered before stays true, unless the error
    /// says that files were removed.
    Storage(StorageFailure),
    /// A part of the engine has panicked; open the folder again. What was answered before stays true.
    Panicked,
}

impl StopReason {
    /// Whether something went wrong, so that the process should end with an error.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(self, Self::ShutDown)
    }

    /// The reason to stop after this error of the log.
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
        Self::Storage(StorageFailure::new(error))
    }

    /// The error for requests whose outcome it leaves unknown.
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

impl Error for StopReason {}

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

/// Why an engine could not start. Nothing was changed, except for what recovery repairs.
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
        /// What this version does not know: a [`DecodeError`](lockgate_machine::DecodeError) of the
        /// record, or an [`ImageError`](lockgate_machine::ImageError) of the snapshot.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The log belongs to a shard with another number. Nothing was changed.
    #[error(
        "the log is that of shard {held}, and it was opened as shard {given}: open it as shard {held}, or open \
         the log of shard {given}"
    )]
    OtherShard { held: ShardId, given: ShardId },
    /// No snapshot can be loaded, and the log does not reach back to its beginning, so the state
    /// cannot be rebuilt. Nothing was changed.
    #[error(
        "no snapshot can be loaded ({}), and the log was trimmed up to {trimmed}: restore a backup, \
         or put back the snapshot files",
        list(unreadable)
    )]
    NoSnapshot {
        /// The position before which no recovery can start.
        trimmed: Position,
        /// The snapshots there are, newest first, and what is wrong with each.
        unreadable: Vec<(Position, SnapshotError)>,
    },
    /// Needed parts of the log are missing, for example because files were moved away: messages have their
    /// bytes in them, or they held records behind the last snapshot. Nothing was changed.
    /// [`EngineOptions::accept_loss`](crate::EngineOptions::accept_loss) starts without them.
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
    /// The index of unique ids cannot be opened. Nothing was changed.
    #[error("opening the index of unique ids")]
    Index(#[source] IndexError),
    /// The index of unique ids lacks some that queues remember for ever, or is not of this log. Nothing was changed.
    /// [`EngineOptions::accept_loss`](crate::EngineOptions::accept_loss) starts without these ids.
    #[error(
        "the index of unique ids does not fit to the log, for {}; nothing that is stored was changed. Put back the \
         index that belongs to the log and start again, or accept the loss: then these queues and ledgers forget ids \
         that are not in memory, and take messages and events with them again",
        spaces.join(", ")
    )]
    MissingIds {
        /// The queues and ledgers, each with what its index lacks, in words.
        spaces: Vec<String>,
    },
    /// The index of unique ids is that of another log. Nothing was changed.
    /// [`EngineOptions::accept_loss`](crate::EngineOptions::accept_loss) sets it aside.
    #[error(
        "the index of unique ids in {} belongs to another log; nothing that is stored was changed. Put back the index that belongs \
         to this log and start again, or accept the loss: then the index is set aside, and ids that are not in memory are forgotten",
        folder.display()
    )]
    OtherIndex {
        /// The index's folder.
        folder: std::path::PathBuf,
    },
    /// The index of unique ids has some of what the log has never had. Nothing was changed.
    /// [`EngineOptions::accept_loss`](crate::EngineOptions::accept_loss) removes them.
    #[error(
        "the index of unique ids in {} has ids of queues that the log has never had, number{} {}: it is the index of \
         another log, or this log has lost its end; nothing that is stored was changed. Put back the index that \
         belongs to the log and start again, or accept the loss: then these ids are removed",
        folder.display(), if spaces.len() == 1 { "" } else { "s" },
        spaces.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    )]
    StrayIds {
        /// The index's folder.
        folder: std::path::PathBuf,
        /// The numbers of the queues.
        spaces: Vec<u64>,
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
    /// The operating system provided no random bytes.
    #[error("drawing random bytes")]
    Random(#[source] getrandom::Error),
    /// A thread could not be started.
    #[error("starting the engine's threads")]
    Threads(#[source] std::io::Error),
}

/// Says why a snapshot cannot be loaded.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Storage did not hand it over, or its bytes are damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What was read is no image of a machine.
    #[error(transparent)]
    Image(#[from] ImageError),
}

fn list(unreadable: &[(Position, SnapshotError)]) -> String {
    let told = unreadable.iter();
    let told: Vec<_> = told
        .map(|(at, error)| format!("{at}: {}", with_sources(error)))
        .collect();
    if told.is_empty() {
        "there is none".to_owned()
    } else {
        told.join("; ")
    }
}
