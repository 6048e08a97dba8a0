//! The actions this program uses, in the protocol's own words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Call;

/// Declares that a request is an action, and what its answer is.
macro_rules! actions {
    ($($request:ty => $answer:ty, $name:literal;)*) => {$(
        impl Call for $request {
            const TARGET: &'static str = concat!("AmazonSQS.", $name);
            type Answer = $answer;
        }
    )*};
}

actions! {
    CreateQueue => QueueUrl, "CreateQueue";
    GetQueueUrl => QueueUrl, "GetQueueUrl";
    GetQueueAttributes => Attributes, "GetQueueAttributes";
    SendMessageBatch => SendMessageBatchAnswer, "SendMessageBatch";
    ReceiveMessage => Messages, "ReceiveMessage";
    DeleteMessageBatch => BatchAnswer, "DeleteMessageBatch";
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CreateQueue {
    pub(crate) queue_name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attributes: BTreeMap<String, String>,
    #[serde(rename = "tags", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetQueueUrl {
    pub(crate) queue_name: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetQueueAttributes {
    pub(crate) queue_url: String,
    pub(crate) attribute_names: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessageBatch {
    pub(crate) queue_url: String,
    pub(crate) entries: Vec<SendEntry>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendEntry {
    pub(crate) id: String,
    pub(crate) message_body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay_seconds: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) message_attributes: BTreeMap<String, MessageAttribute>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_deduplication_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_group_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MessageAttribute {
    pub(crate) data_type: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) string_value: Option<String>,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) binary_value: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiveMessage {
    pub(crate) queue_url: String,
    pub(crate) max_number_of_messages: usize,
    pub(crate) wait_time_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) visibility_timeout: Option<u64>,
    pub(crate) message_system_attribute_names: &'static [&'static str],
    pub(crate) message_attribute_names: &'static [&'static str],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DeleteMessageBatch {
    pub(crate) queue_url: String,
    pub(crate) entries: Vec<DeleteEntry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DeleteEntry {
    pub(crate) id: String,
    pub(crate) receipt_handle: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueUrl {
    pub(crate) queue_url: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Attributes {
    #[serde(default)]
    pub(crate) attributes: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessageBatchAnswer {
    #[serde(default)]
    pub(crate) successful: Vec<SentEntry>,
    #[serde(default)]
    pub(crate) failed: Vec<FailedEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SentEntry {
    pub(crate) id: String,
    pub(crate) message_id: String,
    #[serde(default)]
    pub(crate) sequence_number: Option<String>,
    /// An extension of Lockgate's, which SDKs pass over: the unique id was known.
    #[serde(default)]
    pub(crate) duplicate: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchAnswer {
    #[serde(default)]
    pub(crate) failed: Vec<FailedEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FailedEntry {
    pub(crate) id: String,
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Messages {
    #[serde(default)]
    pub(crate) messages: Vec<Message>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Message {
    pub(crate) message_id: String,
    pub(crate) receipt_handle: String,
    pub(crate) body: String,
    /// What the system says of the message.
    #[serde(default)]
    pub(crate) attributes: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) message_attributes: BTreeMap<String, MessageAttribute>,
}
