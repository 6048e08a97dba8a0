//! What became of a call that has failed.

use std::error::Error;

use aws_sdk_sqs::{
    config::http::HttpResponse,
    error::{DisplayErrorContext, ProvideErrorMetadata, SdkError},
    types::BatchResultErrorEntry,
};
use lockgate_core::{Fate, TransportError};

/// What SQS says of an entry of a batch.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{code}: {message}")]
struct EntryError {
    code: String,
    message: String,
}

/// The call as a whole.
pub(crate) fn of_call<E>(error: SdkError<E, HttpResponse>) -> TransportError
where
    E: Error + ProvideErrorMetadata + Send + Sync + 'static,
{
    let fate = match &error {
        SdkError::ConstructionFailure(_) => Fate::Refused,
        SdkError::DispatchFailure(_) if was_not_connected(&error) => Fate::Retry,
        SdkError::ServiceError(said) => {
            let (code, message) = (error.code(), error.message());
            let is_senders = said.raw().status().is_client_error();
            of_code(
                code.unwrap_or_default(),
                message.unwrap_or_default(),
                is_senders,
            )
        }
        // It may have arrived.
        _ => Fate::Unknown,
    };
    // The SDK's own text is only "service error"; what is behind it says why.
    TransportError::new(fate, DisplayErrorContext(&error).to_string())
}

/// One entry of a batch.
pub(crate) fn of_entry(entry: &BatchResultErrorEntry) -> TransportError {
    let (code, message) = (entry.code(), entry.message().unwrap_or_default());
    let fate = of_code(code, message, entry.sender_fault());
    let (code, message) = (code.to_owned(), message.to_owned());
    TransportError::new(fate, EntryError { code, message })
}

/// An answer that lacks what SQS always says.
pub(crate) fn unanswered(what: &'static str) -> TransportError {
    TransportError::new(Fate::Unknown, what)
}

fn of_code(code: &str, message: &str, is_senders: bool) -> Fate {
    // The older protocol puts AWS.SimpleQueueService or KMS in front of some.
    let code = code.rsplit('.').next().unwrap_or(code);
    let of_receipt = || {
        let message = message.to_ascii_lowercase();
        ["receipt handle", "receipthandle", "message does not exist"]
            .iter()
            .any(|part| message.contains(part))
    };
    match code {
        "NonExistentQueue" | "QueueDoesNotExist" | "QueueDeletedRecently" => Fate::Closed,
        "ReceiptHandleIsInvalid" | "MessageNotInflight" => Fate::Stale,
        "InvalidParameterValue" | "InvalidParameterValueException" if of_receipt() => Fate::Stale,
        "OverLimit"
        | "RequestThrottled"
        | "KmsThrottled"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "TooManyRequestsException"
        | "SlowDown"
        | "ServiceUnavailable"
        | "ServiceUnavailableException" => Fate::Retry,
        _ if is_senders && is_of_content(code) => Fate::Refused,
        // Who asks may be allowed to later, with other credentials, at another time, or more slowly.
        _ if is_senders => Fate::Retry,
        _ => Fate::Unknown,
    }
}

/// Whether a refusal is of what was asked, so that it can never be done.
fn is_of_content(code: &str) -> bool {
    let code = code.strip_suffix("Exception").unwrap_or(code);
    let beginnings = [
        "Invalid",
        "Missing",
        "Malformed",
        "Serialization",
        "Validation",
        "Unsupported",
    ];
    let of_batches = [
        "BatchEntryIdsNotDistinct",
        "BatchRequestTooLong",
        "EmptyBatchRequest",
        "TooManyEntriesInBatchRequest",
    ];
    // Keys of KMS and credentials may be mended.
    let of_senders = [
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignature",
        "MissingAuthenticationToken",
    ];
    !of_senders.contains(&code)
        && (beginnings.iter().any(|start| code.starts_with(start)) || of_batches.contains(&code))
}

/// Whether there was no connection, so that nothing was sent.
fn was_not_connected(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let of_client = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if of_client.is_some_and(hyper_util::client::legacy::Error::is_connect) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_says_what_became_of_it() {
        let expired = "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.";
        let too_long =
            "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]";
        for (code, message, is_senders, fate) in [
            (
                "AWS.SimpleQueueService.NonExistentQueue",
                "",
                true,
                Fate::Closed,
            ),
            ("QueueDoesNotExist", "", true, Fate::Closed),
            ("ReceiptHandleIsInvalid", "", true, Fate::Stale),
            ("InvalidParameterValue", expired, true, Fate::Stale),
            (
                "InvalidParameterValue",
                "The receipt handle has expired",
                true,
                Fate::Stale,
            ),
            ("InvalidParameterValue", too_long, true, Fate::Refused),
            ("AccessDenied", "", true, Fate::Retry),
            ("ExpiredTokenException", "", true, Fate::Retry),
            ("InvalidClientTokenId", "", true, Fate::Retry),
            ("InvalidMessageContents", "", true, Fate::Refused),
            (
                "AWS.SimpleQueueService.BatchRequestTooLong",
                "",
                true,
                Fate::Refused,
            ),
            ("KMS.ThrottlingException", "", true, Fate::Retry),
            ("RequestThrottled", "", true, Fate::Retry),
            ("ServiceUnavailable", "", false, Fate::Retry),
            ("InternalFailure", "", false, Fate::Unknown),
            ("", "", false, Fate::Unknown),
            ("", "", true, Fate::Retry),
        ] {
            assert_eq!(
                of_code(code, message, is_senders),
                fate,
                "{code}: {message}"
            );
        }
    }
}
