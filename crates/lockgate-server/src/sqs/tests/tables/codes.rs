//! The error codes as AWS models them and SDKs read them. Written here a second time on purpose:
//! the server's answers are compared with this table and not with the server's own.

/// An error code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// `__type` in AWS JSON.
    pub(super) kind: &'static str,
    /// The code in the older protocol, in `x-amzn-query-error`, and of a batch's entry.
    pub(super) legacy: &'static str,
    pub(super) status: u16,
}

impl Code {
    /// Whose fault it is.
    pub(super) const fn fault(&self) -> &'static str {
        if self.status < 500 {
            "Sender"
        } else {
            "Receiver"
        }
    }
}

const fn code(kind: &'static str, legacy: &'static str, status: u16) -> Code {
    Code {
        kind,
        legacy,
        status,
    }
}

#[rustfmt::skip]
mod list {
    use super::{Code, code};

    pub(in super::super) const BATCH_TOO_LONG: Code = code("com.amazonaws.sqs#BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400);
    pub(in super::super) const EMPTY_BATCH: Code = code("com.amazonaws.sqs#EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400);
    pub(in super::super) const ENTRY_ID: Code = code("com.amazonaws.sqs#InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400);
    pub(in super::super) const ENTRY_IDS_NOT_DISTINCT: Code = code("com.amazonaws.sqs#BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400);
    pub(in super::super) const ATTRIBUTE_NAME: Code = code("com.amazonaws.sqs#InvalidAttributeName", "InvalidAttributeName", 400);
    pub(in super::super) const ATTRIBUTE_VALUE: Code = code("com.amazonaws.sqs#InvalidAttributeValue", "InvalidAttributeValue", 400);
    pub(in super::super) const CONTENTS: Code = code("com.amazonaws.sqs#InvalidMessageContents", "InvalidMessageContents", 400);
    pub(in super::super) const HANDLE: Code = code("com.amazonaws.sqs#ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404);
    pub(in super::super) const INVALID: Code = code("com.amazon.coral.service#InvalidParameterValueException", "InvalidParameterValue", 400);
    pub(in super::super) const INVALID_ACTION: Code = code("com.amazon.coral.service#UnknownOperationException", "InvalidAction", 400);
    pub(in super::super) const MISSING: Code = code("com.amazon.coral.service#MissingRequiredParameterException", "MissingParameter", 400);
    pub(in super::super) const NAME_EXISTS: Code = code("com.amazonaws.sqs#QueueNameExists", "QueueAlreadyExists", 400);
    pub(in super::super) const NO_QUEUE: Code = code("com.amazonaws.sqs#QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400);
    pub(in super::super) const NOT_FOUND: Code = code("com.amazonaws.sqs#ResourceNotFoundException", "ResourceNotFoundException", 404);
    pub(in super::super) const NOT_IN_FLIGHT: Code = code("com.amazonaws.sqs#MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight", 400);
    pub(in super::super) const OVER_LIMIT: Code = code("com.amazonaws.sqs#OverLimit", "OverLimit", 403);
    pub(in super::super) const PURGE_IN_PROGRESS: Code = code("com.amazonaws.sqs#PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403);
    pub(in super::super) const SERIALIZATION: Code = code("com.amazon.coral.service#SerializationException", "SerializationException", 400);
    pub(in super::super) const TOO_MANY_ENTRIES: Code = code("com.amazonaws.sqs#TooManyEntriesInBatchRequest", "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", 400);
    pub(in super::super) const UNSUPPORTED: Code = code("com.amazonaws.sqs#UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400);

    /// All codes that a row expects, or could expect.
    pub(in super::super) const ALL: &[&Code] = &[
        &BATCH_TOO_LONG,
        &EMPTY_BATCH,
        &ENTRY_ID,
        &ENTRY_IDS_NOT_DISTINCT,
        &ATTRIBUTE_NAME,
        &ATTRIBUTE_VALUE,
        &CONTENTS,
        &HANDLE,
        &INVALID,
        &INVALID_ACTION,
        &MISSING,
        &NAME_EXISTS,
        &NO_QUEUE,
        &NOT_FOUND,
        &NOT_IN_FLIGHT,
        &OVER_LIMIT,
        &PURGE_IN_PROGRESS,
        &SERIALIZATION,
        &TOO_MANY_ENTRIES,
        &UNSUPPORTED,
    ];
}
pub(super) use list::*;

/// The text for a queue that is not there.
pub(super) const NO_QUEUE_TEXT: &str = "The specified queue does not exist.";
pub(super) const NO_QUEUE_TEXT_IN_QUERY: &str =
    "The specified queue does not exist for this wsdl version.";
