//! Turns the engine's errors into SQS's.

use lockgate_engine::EngineError;
use lockgate_machine::{Rejection, SettingsError};

use crate::sqs::error::{ErrorCode, SqsError};

/// The error text for a message of a FIFO queue without a deduplication id.
pub(super) const NEEDS_DEDUPLICATION: &str = "The queue should either have \
     ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly";

impl From<EngineError> for SqsError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Rejected(rejection) => rejection.into(),
            EngineError::Overloaded | EngineError::Stopped { .. } => {
                Self::new(ErrorCode::ServiceUnavailable, error.to_string())
            }
            EngineError::UnknownOutcome { .. } => {
                tracing::error!(%error, "a request's outcome is unknown");
                Self::new(ErrorCode::InternalFailure, error.to_string())
            }
            // Nothing happened: a read failed, and the leases were given back.
            EngineError::Unreadable { .. } => {
                tracing::error!(error = ?error, "a message could not be read");
                Self::new(ErrorCode::ServiceUnavailable, error.to_string())
            }
            EngineError::Index { .. } => {
                let why = lockgate_core::with_sources(&error).to_string();
                tracing::error!(error = why, "a unique id could not be looked up");
                Self::new(ErrorCode::ServiceUnavailable, error.to_string())
            }
            _ => Self::new(ErrorCode::InternalFailure, error.to_string()),
        }
    }
}

impl From<Rejection> for SqsError {
    fn from(rejection: Rejection) -> Self {
        match &rejection {
            Rejection::QueueNotFound { .. } => Self::queue_does_not_exist(),
            Rejection::Settings { source, .. } => settings(source),
            Rejection::KeyRequired { .. } => Self::missing("MessageGroupId"),
            Rejection::UniqueIdRequired { .. } => Self::invalid_parameter(NEEDS_DEDUPLICATION),
            Rejection::MessageTooLarge { max, .. } => Self::invalid_parameter(format!(
                "One or more parameters are invalid. Reason: Message must be shorter than {max} \
                 bytes."
            )),
            Rejection::InFlightFull { .. } => Self::new(
                ErrorCode::OverLimit,
                "Too many messages have been received without being deleted. Please delete your \
                 received messages or let them timeout before receiving more.",
            ),
            Rejection::OtherShard { .. } => {
                Self::new(ErrorCode::ReceiptHandleIsInvalid, rejection.to_string())
            }
            // There may be room later without an operator, as consumers delete messages or time passes.
            Rejection::QuotaExceeded { .. }
            | Rejection::DedupFull { .. }
            | Rejection::LogFull { .. }
            | Rejection::OutOfDescriptors
            | Rejection::ShardFull { .. } => {
                Self::new(ErrorCode::ServiceUnavailable, rejection.to_string())
            }
            // SQS has no code of its own for the others.
            _ => Self::invalid_parameter(rejection.to_string()),
        }
    }
}

fn settings(error: &SettingsError) -> SqsError {
    let redrive = |reason: &str| {
        SqsError::invalid_parameter(format!(
            "Value for parameter RedrivePolicy is invalid. Reason: {reason}"
        ))
    };
    match error {
        SettingsError::DeadLetterMissing { .. } => redrive("Dead letter target does not exist."),
        SettingsError::DeadLetterKind { .. } => {
            redrive("Dead-letter queue must be same type of queue as the source.")
        }
        SettingsError::OwnDeadLetter => redrive("A queue cannot be its own dead-letter queue."),
        _ => SqsError::new(ErrorCode::InvalidAttributeValue, error.to_string()),
    }
}

/// An expired receipt handle, on a queue where that matters.
pub(super) fn receipt_expired(handle: &str) -> SqsError {
    SqsError::stale_receipt_handle(handle, "The receipt handle has expired.")
}

/// A receipt handle of a message that cannot be extended.
pub(super) fn not_available(handle: &str) -> SqsError {
    SqsError::stale_receipt_handle(
        handle,
        "Message does not exist or is not available for visibility timeout change.",
    )
}

/// A parameter that only the other kind of queue may have.
pub(super) fn not_for_this_kind(value: impl std::fmt::Display, parameter: &str) -> SqsError {
    SqsError::invalid_value(
        value,
        parameter,
        "The request include parameter that is not valid for this queue type.",
    )
}
