//! What can go wrong once a folder is open.

use lockgate_core::{NameError, QueueName};
use lockgate_engine::EngineError;
use lockgate_machine::Rejection;

/// Why an operation did not succeed. [`kind`](Self::kind) says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The queue is there already, with other settings; nothing was changed.
    #[error("queue {queue} exists with other settings: open it, or change it with `configure`")]
    QueueDiffers {
        /// Its name.
        queue: QueueName,
    },
    /// The engine refused it, or could not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request can never succeed as it is: fix it.
    Input,
    /// Nothing happened, and it may succeed later: try again with a growing, jittered delay.
    Retry,
    /// It may have happened or not: try again only if doing it twice is harmless (a unique id makes
    /// a send so).
    Unknown,
    /// The folder serves no more: open it anew.
    Closed,
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Name(_) | Self::QueueDiffers { .. } => ErrorKind::Input,
            Self::Engine(error) => kind(error),
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
            | Rejection::LogFull { .. }
            | Rejection::OutOfDescriptors
            | Rejection::ShardFull { .. }
            | Rejection::MessageInFlight { .. },
        )
        | EngineError::Overloaded
        | EngineError::Unreadable { .. } => ErrorKind::Retry,
        EngineError::Rejected(Rejection::TransactionRefused { source, .. }) => {
            kind(&EngineError::Rejected((**source).clone()))
        }
        EngineError::Rejected(_) => ErrorKind::Input,
        EngineError::Stopped { .. } => ErrorKind::Closed,
        _ => ErrorKind::Unknown,
    }
}
