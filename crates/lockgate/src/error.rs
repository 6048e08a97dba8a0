//! The errors of operations on open queues.

use lockgate_core::{NameError, QueueName, RecordsError};
use lockgate_engine::EngineError;
use lockgate_machine::Rejection;

/// Says why an operation did not succeed. [`kind`](Self::kind) says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A queue, key or holder name is empty, too long, or has a character that is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The queue exists with other settings; nothing was changed.
    #[error("queue {queue} exists with other settings: open it, or change it with `configure`")]
    QueueDiffers {
        /// The name of the queue.
        queue: QueueName,
    },
    /// A redrive failed after it had moved messages. These stay where they are now.
    #[error("{moved} messages were moved before the redrive failed")]
    Redrive {
        /// How many it has moved. A step whose outcome is unknown may have moved up to 1,000 more.
        moved: u64,
        /// Why it failed.
        source: EngineError,
    },
    /// The engine refused the operation, or could not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Says what a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never succeed as it is. Fix it.
    Input,
    /// Nothing happened, and the request may succeed later. Try again with a growing, jittered
    /// delay.
    Retry,
    /// The request may have happened or not. Try again only if doing it twice is harmless; a unique
    /// id makes a send harmless.
    Unknown,
    /// The engine has stopped. Open the folder again.
    Closed,
}

impl Error {
    /// Returns what to do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Name(_) | Self::QueueDiffers { .. } => ErrorKind::Input,
            Self::Redrive { source, .. } | Self::Engine(source) => kind(source),
        }
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        Self::Engine(rejection.into())
    }
}

pub(crate) fn kind(error: &EngineError) -> ErrorKind {
    match error {
        EngineError::Rejected(
            Rejection::QuotaExceeded { .. }
            | Rejection::DedupFull { .. }
            | Rejection::InFlightFull { .. }
            | Rejection::ProducersFull { .. }
            | Rejection::LogFull { .. }
            | Rejection::OutOfDescriptors
            | Rejection::ShardFull { .. }
            | Rejection::Record(RecordsError::Full { .. })
            | Rejection::KeyStatesFull { .. }
            | Rejection::MessageInFlight { .. }
            // An earlier command of the same request led a publish to another queue.
            | Rejection::LookUp { .. },
        )
        | EngineError::Overloaded
        | EngineError::Index { .. }
        | EngineError::Unreadable { .. } => ErrorKind::Retry,
        EngineError::Rejected(
            Rejection::TransactionRefused { source, .. }
            | Rejection::TransactionPublishRefused { source, .. }
            | Rejection::PublishRefused { source, .. },
        ) => kind(&EngineError::Rejected((**source).clone())),
        EngineError::Rejected(_) => ErrorKind::Input,
        EngineError::Stopped { .. } => ErrorKind::Closed,
        _ => ErrorKind::Unknown,
    }
}
