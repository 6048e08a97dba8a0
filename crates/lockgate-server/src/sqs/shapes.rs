//! The inputs and outputs of actions. Their serde code is the form of AWS JSON; other protocols
//! fill and write the same shapes in their own way.
//!
//! Every member of an input is optional: each action checks which members it requires, to use AWS's
//! words.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use lockgate_core::{Header, MessageId, Sequence, WallTime};
use serde::{Deserialize, Serialize, Serializer};

use super::{
    message_attributes::{self, AttributeMap},
    text::{Given, Md5Hex, Object, Text, UuidText, integer, text_map, texts},
};
use crate::few::Few;

/// Texts by name: queue attributes and tags.
pub(crate) type TextMap<'a> = BTreeMap<Text<'a>, Text<'a>>;

/// The value of a message attribute.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct AttributeValue<'a> {
    pub(crate) data_type: Option<Text<'a>>,
    pub(crate) string_value: Option<Text<'a>>,
    pub(crate) binary_value: Option<Text<'a>>,
    /// SQS has no lists of values: only whether one is given matters.
    #[serde(default)]
    pub(crate) string_list_values: Given,
    #[serde(default)]
    pub(crate) binary_list_values: Given,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct CreateQueueInput<'a> {
    pub(crate) queue_name: Option<Text<'a>>,
    #[serde(default, deserialize_with = "text_map")]
    pub(crate) attributes: Option<TextMap<'a>>,
    #[serde(rename = "tags", default, deserialize_with = "text_map")]
    pub(crate) tags: Option<TextMap<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct GetQueueUrlInput<'a> {
    pub(crate) queue_name: Option<Text<'a>>,
    #[serde(rename = "QueueOwnerAWSAccountId")]
    pub(crate) queue_owner: Option<Text<'a>>,
}

/// For actions that name a queue and nothing else.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct QueueInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct ListQueuesInput<'a> {
    pub(crate) queue_name_prefix: Option<Text<'a>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) max_results: Option<i64>,
    pub(crate) next_token: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct ListDeadLetterSourceQueuesInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) max_results: Option<i64>,
    pub(crate) next_token: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct GetQueueAttributesInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    #[serde(default, deserialize_with = "texts")]
    pub(crate) attribute_names: Option<Vec<Text<'a>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct SetQueueAttributesInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    #[serde(default, deserialize_with = "text_map")]
    pub(crate) attributes: Option<TextMap<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct TagQueueInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    #[serde(default, deserialize_with = "text_map")]
    pub(crate) tags: Option<TextMap<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct UntagQueueInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    #[serde(default, deserialize_with = "texts")]
    pub(crate) tag_keys: Option<Vec<Text<'a>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct AddPermissionInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    pub(crate) label: Option<Text<'a>>,
    #[serde(rename = "AWSAccountIds", default, deserialize_with = "texts")]
    pub(crate) accounts: Option<Vec<Text<'a>>>,
    #[serde(default, deserialize_with = "texts")]
    pub(crate) actions: Option<Vec<Text<'a>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct RemovePermissionInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    pub(crate) label: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct StartMessageMoveTaskInput<'a> {
    pub(crate) source_arn: Option<Text<'a>>,
    pub(crate) destination_arn: Option<Text<'a>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) max_number_of_messages_per_second: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct ListMessageMoveTasksInput<'a> {
    pub(crate) source_arn: Option<Text<'a>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) max_results: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct CancelMessageMoveTaskInput<'a> {
    pub(crate) task_handle: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct SendMessageInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    pub(crate) message_body: Option<Text<'a>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) delay_seconds: Option<i64>,
    pub(crate) message_attributes: Option<AttributeMap<'a>>,
    pub(crate) message_system_attributes: Option<AttributeMap<'a>>,
    pub(crate) message_deduplication_id: Option<Text<'a>>,
    pub(crate) message_group_id: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct SendMessageBatchInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    pub(crate) entries: Option<Few<'a, Object<SendMessageEntry<'a>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct SendMessageEntry<'a> {
    pub(crate) id: Option<Text<'a>>,
    pub(crate) message_body: Option<Text<'a>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) delay_seconds: Option<i64>,
    pub(crate) message_attributes: Option<AttributeMap<'a>>,
    pub(crate) message_system_attributes: Option<AttributeMap<'a>>,
    pub(crate) message_deduplication_id: Option<Text<'a>>,
    pub(crate) message_group_id: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct ReceiveMessageInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    /// The older name of the next member; both work.
    #[serde(default, deserialize_with = "texts")]
    pub(crate) attribute_names: Option<Vec<Text<'a>>>,
    #[serde(default, deserialize_with = "texts")]
    pub(crate) message_system_attribute_names: Option<Vec<Text<'a>>>,
    #[serde(default, deserialize_with = "texts")]
    pub(crate) message_attribute_names: Option<Vec<Text<'a>>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) max_number_of_messages: Option<i64>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) visibility_timeout: Option<i64>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) wait_time_seconds: Option<i64>,
    pub(crate) receive_request_attempt_id: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct DeleteMessageInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    pub(crate) receipt_handle: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct ChangeMessageVisibilityInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    pub(crate) receipt_handle: Option<Text<'a>>,
    #[serde(default, deserialize_with = "integer")]
    pub(crate) visibility_timeout: Option<i64>,
}

/// For the two batches that settle messages.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct SettleBatchInput<'a> {
    pub(crate) queue_url: Option<Text<'a>>,
    pub(crate) entries: Option<Few<'a, Object<SettleEntry<'a>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", bound(deserialize = "'de: 'a"))]
pub(crate) struct SettleEntry<'a> {
    pub(crate) id: Option<Text<'a>>,
    pub(crate) receipt_handle: Option<Text<'a>>,
    /// For ChangeMessageVisibilityBatch only.
    #[serde(default, deserialize_with = "integer")]
    pub(crate) visibility_timeout: Option<i64>,
}

/// For actions with an empty answer.
#[derive(Debug, Serialize)]
pub(crate) struct Nothing {}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct QueueUrlOutput {
    pub(crate) queue_url: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListQueuesOutput {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) queue_urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListDeadLetterSourceQueuesOutput {
    /// With a small `q`, as in AWS's model.
    #[serde(rename = "queueUrls")]
    pub(crate) queue_urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct GetQueueAttributesOutput {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) attributes: BTreeMap<&'static str, Cow<'static, str>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListQueueTagsOutput {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct StartMessageMoveTaskOutput {
    pub(crate) task_handle: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct CancelMessageMoveTaskOutput {
    pub(crate) approximate_number_of_messages_moved: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListMessageMoveTasksOutput {
    pub(crate) results: Vec<MoveTaskEntry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct MoveTaskEntry {
    pub(crate) approximate_number_of_messages_moved: u64,
    pub(crate) approximate_number_of_messages_to_move: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_number_of_messages_per_second: Option<u16>,
    pub(crate) source_arn: String,
    pub(crate) started_timestamp: u64,
    pub(crate) status: &'static str,
    /// Only while the task runs: CancelMessageMoveTask needs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) task_handle: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessageOutput {
    #[serde(serialize_with = "as_uuid")]
    pub(crate) message_id: MessageId,
    #[serde(rename = "MD5OfMessageBody")]
    pub(crate) body_digest: Md5Hex,
    #[serde(
        rename = "MD5OfMessageAttributes",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) attributes_digest: Option<Md5Hex>,
    #[serde(
        rename = "MD5OfMessageSystemAttributes",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) system_attributes_digest: Option<Md5Hex>,
    /// FIFO queues only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence_number: Option<SequenceNumber>,
    /// Lockgate's own: `true` if the unique id was known and nothing was added. AWS has no such
    /// member, and its SDKs ignore unknown members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duplicate: Option<bool>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchOutput<T> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) successful: Vec<T>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<FailedEntry>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SentEntry {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) sent: SendMessageOutput,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SettledEntry {
    pub(crate) id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FailedEntry {
    pub(crate) id: String,
    pub(crate) code: &'static str,
    pub(crate) message: Cow<'static, str>,
    pub(crate) sender_fault: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiveMessageOutput {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) messages: Vec<ReceivedMessage>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceivedMessage {
    #[serde(serialize_with = "as_uuid")]
    pub(crate) message_id: MessageId,
    pub(crate) receipt_handle: String,
    #[serde(rename = "MD5OfBody")]
    pub(crate) body_digest: Md5Hex,
    pub(crate) body: BodyText,
    #[serde(skip_serializing_if = "SystemAttributes::is_empty")]
    pub(crate) attributes: SystemAttributes,
    #[serde(
        rename = "MD5OfMessageAttributes",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) attributes_digest: Option<Md5Hex>,
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "as_attribute_map"
    )]
    pub(crate) message_attributes: Vec<Header>,
}

/// The system attributes that a receive asked for.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SystemAttributes {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sender_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_millis")]
    pub(crate) sent_timestamp: Option<WallTime>,
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_text_option"
    )]
    pub(crate) approximate_receive_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_millis")]
    pub(crate) approximate_first_receive_timestamp: Option<WallTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sequence_number: Option<SequenceNumber>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_deduplication_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_group_id: Option<String>,
    #[serde(rename = "AWSTraceHeader", skip_serializing_if = "Option::is_none")]
    pub(crate) trace_header: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dead_letter_queue_source_arn: Option<String>,
    /// Lockgate's own; only for requests that name it. AWS's SDKs pass unknown names on.
    #[serde(
        rename = "lockgate.PrevSequenceNumber",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) previous_sequence_number: Option<SequenceNumber>,
    /// Lockgate's own: the message's number in its group.
    #[serde(
        rename = "lockgate.KeySequence",
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_text_option"
    )]
    pub(crate) key_sequence: Option<u64>,
    #[serde(
        rename = "lockgate.PrevKeySequence",
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_text_option"
    )]
    pub(crate) previous_key_sequence: Option<u64>,
}

impl SystemAttributes {
    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A message's number for SQS clients: 10^19 + n, so that all have 20 digits and sort the same as
/// texts and as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceNumber(pub(crate) Sequence);

impl std::fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A sequence has 48 bits, so the sum fits.
        (10_000_000_000_000_000_000 + self.0.0).fmt(f)
    }
}

impl Serialize for SequenceNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The body of a message in an answer. Bodies sent through SQS are text; other APIs can send any
/// bytes, and those that are no UTF-8 become U+FFFD.
#[derive(Clone, Debug)]
pub(crate) struct BodyText(Bytes);

impl BodyText {
    /// Takes a body, and replaces bytes that are no UTF-8.
    pub(crate) fn new(body: Bytes) -> Self {
        match std::str::from_utf8(&body) {
            Ok(_) => Self(body),
            Err(_) => Self(String::from_utf8_lossy(&body).into_owned().into()),
        }
    }

    /// The text's bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Serialize for BodyText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // `new` checked this already; checking again is cheaper than storing the text a second
        // time.
        serializer.serialize_str(&String::from_utf8_lossy(&self.0))
    }
}

fn as_uuid<S: Serializer>(id: &MessageId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(UuidText::new(id.to_bits()).as_str())
}

#[expect(clippy::ref_option, reason = "the signature serde calls")]
fn as_text_option<S: Serializer>(
    value: &Option<impl std::fmt::Display>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

#[expect(clippy::ref_option, reason = "the signature serde calls")]
fn as_millis<S: Serializer>(time: &Option<WallTime>, serializer: S) -> Result<S::Ok, S::Error> {
    as_text_option(&time.map(|time| time.0), serializer)
}

/// Headers as a map from name to data type and value.
fn as_attribute_map<S: Serializer>(headers: &[Header], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Value<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        string_value: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        binary_value: Option<String>,
        data_type: &'a str,
    }
    serializer.collect_map(headers.iter().map(|header| {
        let binary = message_attributes::is_binary(&header.kind);
        let value = Value {
            string_value: (!binary).then(|| String::from_utf8_lossy(&header.value)),
            binary_value: binary.then(|| message_attributes::to_base64(&header.value)),
            data_type: &header.kind,
        };
        (&*header.name, value)
    }))
}
