//! Every error code of the API as one table, and the wording AWS uses with them.
//!
//! Clients and their tests match codes and texts, so both are AWS's.

use std::borrow::Cow;

use hyper::StatusCode;
use lockgate_core::QueueName;

use crate::{
    auth::{AuthError, Verb},
    fault::shorten,
    queue::Invalid,
    receipt::ReceiptError,
};

/// Declares the codes once: the enum, and the row of each on the wire.
macro_rules! error_codes {
    ($($(#[$doc:meta])* $code:ident = $namespace:ident $name:literal, $legacy:literal, $status:literal $blame:ident;)*) => {
        /// An error code of the API.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum ErrorCode {
            $($(#[$doc])* $code,)*
        }

        impl ErrorCode {
            /// Every code.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$code,)*];

            /// The code's names on the wire, its status and its fault.
            pub(crate) const fn row(self) -> &'static ErrorRow {
                match self {
                    $(Self::$code => &ErrorRow {
                        namespace: Namespace::$namespace,
                        name: $name,
                        legacy: $legacy,
                        status: $status,
                        blame: Blame::$blame,
                    },)*
                }
            }
        }
    };
}

// The table. Name: the modelled shape, in the body's `__type`. Legacy code: the code of the old
// Query protocol; SDKs read it from `x-amzn-query-error` and show it as the error's code, and every
// failed entry of a batch carries it. Status: as in the service model's `awsQueryError` traits.
error_codes! {
    // The caller's fault, in the service's own model.
    BatchEntryIdsNotDistinct = Sqs "BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400 Sender;
    BatchRequestTooLong = Sqs "BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400 Sender;
    EmptyBatchRequest = Sqs "EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400 Sender;
    InvalidAttributeName = Sqs "InvalidAttributeName", "InvalidAttributeName", 400 Sender;
    InvalidAttributeValue = Sqs "InvalidAttributeValue", "InvalidAttributeValue", 400 Sender;
    InvalidBatchEntryId = Sqs "InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400 Sender;
    InvalidMessageContents = Sqs "InvalidMessageContents", "InvalidMessageContents", 400 Sender;
    MessageNotInflight = Sqs "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", 400 Sender;
    OverLimit = Sqs "OverLimit", "OverLimit", 403 Sender;
    PurgeQueueInProgress = Sqs "PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403 Sender;
    QueueDoesNotExist = Sqs "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400 Sender;
    QueueNameExists = Sqs "QueueNameExists", "QueueAlreadyExists", 400 Sender;
    ReceiptHandleIsInvalid = Sqs "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404 Sender;
    ResourceNotFound = Sqs "ResourceNotFoundException", "ResourceNotFoundException", 404 Sender;
    TooManyEntriesInBatchRequest = Sqs "TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400 Sender;
    UnsupportedOperation = Sqs "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400 Sender;

    // The caller's fault, from the framework of all AWS services.
    /// The caller may not do that.
    AccessDenied = Framework "AccessDeniedException", "AccessDenied", 403 Sender;
    IncompleteSignature = Framework "IncompleteSignatureException", "IncompleteSignature", 400 Sender;
    InvalidClientTokenId = Framework "UnrecognizedClientException", "InvalidClientTokenId", 403 Sender;
    InvalidParameterValue = Framework "InvalidParameterValueException", "InvalidParameterValue", 400 Sender;
    MissingAuthenticationToken = Framework "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403 Sender;
    MissingParameter = Framework "MissingRequiredParameterException", "MissingParameter", 400 Sender;
    RequestExpired = Framework "RequestExpired", "RequestExpired", 400 Sender;
    SignatureDoesNotMatch = Framework "InvalidSignatureException", "SignatureDoesNotMatch", 403 Sender;
    Serialization = Framework "SerializationException", "SerializationException", 400 Sender;
    UnknownOperation = Framework "UnknownOperationException", "InvalidAction", 400 Sender;

    // The server's fault.
    /// It is unknown whether the request was done.
    InternalFailure = Framework "InternalFailure", "InternalFailure", 500 Receiver;
    /// Nothing was done; the same request may succeed later.
    ServiceUnavailable = Framework "ServiceUnavailableException", "ServiceUnavailable", 503 Receiver;
}

/// A row of the table of error codes.
#[derive(Debug)]
pub(crate) struct ErrorRow {
    /// Where the shape is modelled.
    pub(crate) namespace: Namespace,
    pub(crate) name: &'static str,
    /// The code of the old Query protocol.
    pub(crate) legacy: &'static str,
    pub(crate) status: u16,
    /// Whose fault it is.
    pub(crate) blame: Blame,
}

impl ErrorRow {
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

/// Where an error's shape is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    Sqs,
    /// The framework that AWS's services are written in.
    Framework,
}

impl Namespace {
    /// The namespace as `__type` names it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Sqs => "com.amazonaws.sqs",
            Self::Framework => "com.amazon.coral.service",
        }
    }
}

/// Whose fault an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The client's: the same request will fail again.
    Sender,
    Receiver,
}

impl Blame {
    /// The word on the wire.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Sender => "Sender",
            Self::Receiver => "Receiver",
        }
    }
}

/// Why an action was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct SqsError {
    pub(crate) code: ErrorCode,
    pub(crate) message: Cow<'static, str>,
    /// The error for a batch entry, where AWS words it differently.
    entry: Option<InEntry>,
}

/// The error of a batch entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InEntry {
    code: ErrorCode,
    /// The byte at which the bare reason begins in the message.
    reason: usize,
}

impl SqsError {
    /// An error with a text of its own.
    pub(crate) fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            entry: None,
        }
    }

    /// The code and the text of the error in a batch entry. For a refused value, AWS gives only the
    /// bare reason there, without its final dot.
    pub(crate) fn into_entry(self) -> (ErrorCode, Cow<'static, str>) {
        match self.entry {
            None => (self.code, self.message),
            Some(InEntry { code, reason }) => {
                let reason = &self.message[reason..];
                let reason = reason.strip_suffix('.').unwrap_or(reason).to_owned();
                (code, reason.into())
            }
        }
    }

    /// A required parameter is missing.
    pub(crate) fn missing(parameter: &str) -> Self {
        Self::new(
            ErrorCode::MissingParameter,
            format!("The request must contain the parameter {parameter}."),
        )
    }

    /// A parameter's value is not allowed, in the words AWS uses for most of them.
    pub(crate) fn invalid_value(
        value: impl std::fmt::Display,
        parameter: &str,
        reason: impl std::fmt::Display,
    ) -> Self {
        Invalid::value(value, parameter, reason).into()
    }

    /// A receipt handle that is no longer valid.
    pub(crate) fn stale_receipt_handle(handle: &str, reason: &str) -> Self {
        let mut error = Self::invalid_value(handle, "ReceiptHandle", reason);
        if let Some(entry) = &mut error.entry {
            entry.code = ErrorCode::ReceiptHandleIsInvalid;
        }
        error
    }

    /// A parameter's value is not allowed; any text.
    pub(crate) fn invalid_parameter(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidParameterValue, message)
    }

    /// The caller may not do `verb` with the queue.
    pub(crate) fn access_denied(who: &str, verb: Verb, queue: &QueueName) -> Self {
        Self::new(
            ErrorCode::AccessDenied,
            format!(
                "The access key {who} is not allowed to {} the queue {queue}.",
                verb.as_str()
            ),
        )
    }

    /// A GET that a web page can cause may not change anything.
    pub(crate) fn by_link(action: &str) -> Self {
        Self::new(
            ErrorCode::AccessDenied,
            format!(
                "{action} changes something, which a GET does only with an Authorization header \
                 of AWS Signature Version 4: web pages can make a browser send any other. Use POST, \
                 or sign the request in its header; a signature in the address is not enough here."
            ),
        )
    }

    pub(crate) fn queue_does_not_exist() -> Self {
        Self::new(
            ErrorCode::QueueDoesNotExist,
            "The specified queue does not exist.",
        )
    }

    /// A receipt handle that was never given out.
    pub(crate) fn receipt_handle_is_invalid(handle: &str) -> Self {
        let handle = shorten(handle);
        Self::new(
            ErrorCode::ReceiptHandleIsInvalid,
            format!("The input receipt handle \"{handle}\" is not a valid receipt handle."),
        )
    }

    /// A receipt handle that another shard, or nobody, gave out.
    pub(crate) fn receipt_handle_does_not_open(handle: &str, error: ReceiptError) -> Self {
        match error {
            ReceiptError::Unknown => Self::receipt_handle_is_invalid(handle),
            ReceiptError::OtherShard { .. } => {
                let handle = shorten(handle);
                Self::new(
                    ErrorCode::ReceiptHandleIsInvalid,
                    format!("The receipt handle \"{handle}\" is not valid here: {error}."),
                )
            }
        }
    }

    /// A receipt handle that was given out for another queue.
    pub(crate) fn receipt_handle_of_another_queue(handle: &str) -> Self {
        let handle = shorten(handle);
        Self::new(
            ErrorCode::ReceiptHandleIsInvalid,
            format!("The receipt handle \"{handle}\" is not valid for this queue."),
        )
    }

    /// A queue attribute that is unknown, or not for this kind of queue.
    pub(crate) fn unknown_attribute(name: &str) -> Self {
        let name = shorten(name);
        Self::new(
            ErrorCode::InvalidAttributeName,
            format!("Unknown Attribute {name}."),
        )
    }

    /// A queue attribute's value is not allowed.
    pub(crate) fn invalid_attribute_value(name: &str) -> Self {
        Self::new(
            ErrorCode::InvalidAttributeValue,
            format!("Invalid value for the parameter {name}."),
        )
    }

    /// The request cannot be parsed.
    pub(crate) fn serialization(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Serialization, message)
    }
}

impl From<Invalid> for SqsError {
    fn from(Invalid { message, reason }: Invalid) -> Self {
        let code = ErrorCode::InvalidParameterValue;
        Self {
            entry: reason.map(|reason| InEntry { code, reason }),
            ..Self::new(code, message)
        }
    }
}

impl From<AuthError> for SqsError {
    fn from(error: AuthError) -> Self {
        let code = match error {
            AuthError::Missing => ErrorCode::MissingAuthenticationToken,
            AuthError::Incomplete(_) => ErrorCode::IncompleteSignature,
            AuthError::UnknownKey => ErrorCode::InvalidClientTokenId,
            AuthError::Mismatch | AuthError::Scope { .. } => ErrorCode::SignatureDoesNotMatch,
            AuthError::Expired { .. } => ErrorCode::RequestExpired,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_status_of_its_blame() {
        for code in ErrorCode::ALL {
            let row = code.row();
            let expected = match row.blame {
                Blame::Sender => 400..=499,
                Blame::Receiver => 500..=599,
            };
            assert!(expected.contains(&row.status), "{code:?}: {row:?}");
            assert_eq!(row.status().as_u16(), row.status, "{code:?}");
            assert!(!row.legacy.contains(';'), "{code:?}: breaks the header");
        }
    }

    #[test]
    fn an_error_never_repeats_a_whole_large_request() {
        let huge = "ä".repeat(1 << 20);
        for error in [
            SqsError::receipt_handle_is_invalid(&huge),
            SqsError::invalid_value(&huge, "MessageGroupId", "too long"),
            SqsError::unknown_attribute(&huge),
        ] {
            assert!(error.message.len() < 1300, "{}", error.message.len());
            assert!(error.message.contains("ää..."));
        }
    }
}
