//! Why an action was refused: AWS's codes and words, because clients match both.

use std::{borrow::Cow, fmt};

use hyper::StatusCode;
use lockgate_engine::EngineError;
use lockgate_machine::{ExchangeError, Rejection};

use crate::{
    fault::shortened,
    queue::Invalid,
    sqs::{ErrorCode, SqsError},
};

/// Declares the codes: name on the wire and status.
macro_rules! codes {
    ($($code:ident = $name:literal $status:literal;)*) => {
        /// A code of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Code {
            $($code,)*
        }

        impl Code {
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)*
                }
            }

            pub(super) fn status(self) -> StatusCode {
                let status: u16 = match self {
                    $(Self::$code => $status,)*
                };
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    };
}

// As in AWS's model of the service. The last three are of all services.
codes! {
    AuthorizationError = "AuthorizationError" 403;
    BatchEntryIdsNotDistinct = "BatchEntryIdsNotDistinct" 400;
    BatchRequestTooLong = "BatchRequestTooLong" 400;
    EmptyBatchRequest = "EmptyBatchRequest" 400;
    InternalError = "InternalError" 500;
    InvalidBatchEntryId = "InvalidBatchEntryId" 400;
    InvalidParameter = "InvalidParameter" 400;
    NotFound = "NotFound" 404;
    ParameterValueInvalid = "ParameterValueInvalid" 400;
    ResourceNotFound = "ResourceNotFound" 404;
    SubscriptionLimitExceeded = "SubscriptionLimitExceeded" 403;
    TagLimitExceeded = "TagLimitExceeded" 400;
    TooManyEntriesInBatchRequest = "TooManyEntriesInBatchRequest" 400;
    TopicLimitExceeded = "TopicLimitExceeded" 403;
    InvalidAction = "InvalidAction" 400;
    ServiceUnavailable = "ServiceUnavailable" 503;
    ValidationError = "ValidationError" 400;
}

/// Why an action was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct SnsError {
    pub(super) code: Code,
    pub(super) message: Cow<'static, str>,
}

impl SnsError {
    pub(super) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let message = message.into();
        Self { code, message }
    }

    /// A parameter that is not allowed; any text.
    pub(super) fn parameter(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidParameter, message)
    }

    /// A parameter that is not allowed, in the form that AWS uses for most of them.
    pub(super) fn invalid(parameter: &str, reason: Option<fmt::Arguments<'_>>) -> Self {
        Self::parameter(match reason {
            None => format!("Invalid parameter: {parameter}"),
            Some(reason) => {
                let reason = shortened(reason);
                format!("Invalid parameter: {parameter} Reason: {reason}")
            }
        })
    }

    /// A required parameter is missing.
    pub(super) fn missing(parameter: &str) -> Self {
        Self::invalid(
            parameter,
            Some(format_args!("no value for required parameter")),
        )
    }

    pub(super) fn no_topic() -> Self {
        Self::new(Code::NotFound, "Topic does not exist")
    }

    pub(super) fn no_subscription() -> Self {
        Self::new(Code::NotFound, "Subscription does not exist")
    }

    /// Whether it is the server's fault.
    pub(super) fn is_servers(&self) -> bool {
        self.code.status().is_server_error()
    }
}

impl From<EngineError> for SnsError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Rejected(rejection) => rejection.into(),
            error => SqsError::from(error).into(),
        }
    }
}

impl From<Rejection> for SnsError {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Exchange(error) => match error {
                ExchangeError::NotFound { .. } => Self::no_topic(),
                error => Self::invalid("TopicArn", Some(format_args!("{error}"))),
            },
            Rejection::PublishRefused { source, .. } => match *source {
                // A queue that takes nothing now may later: SDKs try again.
                Rejection::QuotaExceeded { .. } | Rejection::DedupFull { .. } => {
                    Self::new(Code::ServiceUnavailable, source.to_string())
                }
                source => source.into(),
            },
            Rejection::ShardFull { what, max } => {
                let code = match what {
                    "exchanges" => Code::TopicLimitExceeded,
                    "bindings" | "bytes of bindings" => Code::SubscriptionLimitExceeded,
                    _ => Code::ServiceUnavailable,
                };
                Self::new(code, Rejection::ShardFull { what, max }.to_string())
            }
            Rejection::QueueNotFound { .. } => Self::new(
                Code::InvalidParameter,
                "Invalid parameter: Endpoint Reason: The queue does not exist",
            ),
            rejection => SqsError::from(rejection).into(),
        }
    }
}

/// An error of what SQS and SNS share.
impl From<SqsError> for SnsError {
    fn from(error: SqsError) -> Self {
        let code = match error.code {
            ErrorCode::ServiceUnavailable => Code::ServiceUnavailable,
            ErrorCode::InternalFailure => Code::InternalError,
            ErrorCode::AccessDenied => Code::AuthorizationError,
            _ => Code::InvalidParameter,
        };
        match code {
            Code::InvalidParameter => Self::parameter(format!("Invalid parameter: {error}")),
            code => Self::new(code, error.message),
        }
    }
}

/// A header of a message that is refused.
impl From<Invalid> for SnsError {
    fn from(error: Invalid) -> Self {
        Self::new(Code::ParameterValueInvalid, error.message)
    }
}
