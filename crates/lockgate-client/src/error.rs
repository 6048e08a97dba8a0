//! Why a call has no positive answer.

use std::{io, time::Duration};

use hyper::StatusCode;
use lockgate_core::{Fate, TransportError, coordination::FenceError, units::show_millis};
use serde::Deserialize;

use crate::{Endpoint, TlsCause};

/// Says why a call has no positive answer. [`fate`](Self::fate) says what became of what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request cannot be written or addressed. Nothing was sent.
    #[error("the request cannot be made: {what}")]
    Request {
        /// What is wrong with it.
        what: String,
    },
    /// There is no connection. Nothing was sent.
    #[error("no server at {endpoint}")]
    Connect {
        /// Where the server should be.
        endpoint: Endpoint,
        /// What the operating system says.
        source: io::Error,
    },
    /// The server is not who it should be, or speaks no TLS. Nothing was sent.
    #[error("no TLS with {endpoint}: {cause}")]
    NoTls {
        /// Where the server should be.
        endpoint: Endpoint,
        /// Why.
        cause: TlsCause,
    },
    /// The request left, or part of it; whether it was carried out is unknown.
    #[error("the connection to {endpoint} was lost before the answer came")]
    Lost {
        /// Where the server is.
        endpoint: Endpoint,
        /// What happened to the connection.
        source: hyper::Error,
    },
    /// The request left and no answer came; whether it was carried out is unknown.
    #[error("no answer from {endpoint} within {}", show(*after))]
    Timeout {
        /// Where the server is.
        endpoint: Endpoint,
        /// How long the call has waited.
        after: Duration,
    },
    /// The server said no.
    #[error("{message} ({code})")]
    Refused {
        /// The status of the answer.
        status: StatusCode,
        /// For programs, such as `invalid_value`.
        code: String,
        /// For people.
        message: String,
        /// The part of the request that is at fault, such as `sends[2].message.key`, if the server names one.
        field: Option<String>,
        /// With `state_conflict`: the version that the state of the key has, if it has one.
        version: Option<u64>,
    },
    /// The term of the client's [fence](crate::Client::fenced) is over. Nothing was done.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// A record is not what the request says of it. Nothing was done.
    #[error("{message} ({code})")]
    Record {
        /// The status of the answer.
        status: StatusCode,
        /// For programs, such as `record_conflict`.
        code: String,
        /// For people.
        message: String,
        /// What the record is.
        fault: Box<RecordFault>,
    },
    /// A ledger is not what the request says of it. Nothing was done.
    #[error("{message} ({code})")]
    Ledger {
        /// The status of the answer.
        status: StatusCode,
        /// For programs, such as `ledger_moved`.
        code: String,
        /// For people.
        message: String,
        /// What the ledger is.
        fault: Box<LedgerFault>,
    },
    /// There is no such queue, or not for this caller.
    #[error("there is no queue {name:?} at {endpoint}")]
    NoQueue {
        /// Where the server is.
        endpoint: Endpoint,
        /// The name, as it was asked for.
        name: String,
    },
    /// Something else answered. Whether anything was carried out is unknown.
    #[error("{endpoint} does not answer like a Lockgate server: {what}")]
    NoLockgate {
        /// Where it is.
        endpoint: Endpoint,
        /// What it does instead.
        what: String,
    },
}

/// What a record is, where it is not what a request says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct RecordFault {
    /// Its name.
    pub name: Option<String>,
    /// Its version, if another was named.
    pub version: Option<u64>,
    /// Who holds its lease, if that is in the way.
    pub holder: Option<String>,
    /// How much longer that lease lasts, in milliseconds.
    pub remaining_ms: Option<u64>,
    /// How many bytes all records may have, if these would be more.
    pub bytes_max: Option<u64>,
}

/// What a ledger is, where it is not what a request says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct LedgerFault {
    /// Its last event, if that is in the way.
    pub head: Option<u64>,
    /// The first event that it keeps, if one before it was asked for.
    pub first_id: Option<u64>,
    /// The place that the request named.
    pub sequence_id: Option<u64>,
    /// The term of the request, if it is over.
    pub epoch: Option<u64>,
    /// The latest term that it has seen.
    pub newest_epoch: Option<u64>,
}

fn show(duration: Duration) -> String {
    show_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

impl CallError {
    /// Returns what became of what was asked. A queue that is gone is [`Fate::Closed`]: what was asked is
    /// not at fault, and whoever has the queue open has to look for it again.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            Self::Request { .. } => Fate::Refused,
            Self::Fenced(_) => Fate::Stale,
            Self::Connect { .. } | Self::NoTls { .. } => Fate::Retry,
            Self::NoQueue { .. } => Fate::Closed,
            Self::Refused { status, .. }
            | Self::Record { status, .. }
            | Self::Ledger { status, .. } => of_status(*status),
            Self::Lost { .. } | Self::Timeout { .. } | Self::NoLockgate { .. } => Fate::Unknown,
        }
    }

    /// Returns whether the request certainly had no effect.
    #[must_use]
    pub fn nothing_done(&self) -> bool {
        self.fate() != Fate::Unknown
    }

    /// Returns whether the same request may fare better in a moment.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Lost { .. } | Self::Timeout { .. } => true,
            Self::NoTls { cause, .. } => *cause == TlsCause::Closed,
            Self::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }
}

/// What became of what a server has answered with this status, and a problem of its own.
pub(crate) fn of_status(status: StatusCode) -> Fate {
    match status {
        // A server whose storage fails under the request cannot know itself.
        StatusCode::INTERNAL_SERVER_ERROR => Fate::Unknown,
        StatusCode::TOO_MANY_REQUESTS => Fate::Retry,
        // Not what was asked is at fault, but who asks: a key that was revoked, a clock that is wrong.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Fate::Closed,
        status if status.is_server_error() => Fate::Retry,
        _ => Fate::Refused,
    }
}

impl From<CallError> for TransportError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Fenced(refused) => refused.into(),
            error => Self::new(error.fate(), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stops_during_the_handshake_may_be_back_in_a_moment() {
        let no_tls = |cause| CallError::NoTls {
            endpoint: "https://a".parse().unwrap(),
            cause,
        };
        let closed = no_tls(TlsCause::Closed);
        assert!(closed.may_pass() && closed.nothing_done());
        assert!(!no_tls(TlsCause::NotSpoken).may_pass());
    }
}
