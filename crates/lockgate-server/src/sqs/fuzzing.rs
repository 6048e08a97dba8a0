//! The fuzz target for SQS requests: reads and checks as much as needs no queue.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockgate_core::{
    Epoch, HolderName, Incarnation, LeaseNumber, LeaseToken, MessageId, QueueId, QueueName,
    Sequence, ShardId, Term,
};
use serde::Deserialize;

use super::{
    Config, Request,
    actions::tags,
    aws_json::AwsJson,
    dispatch::{Action, Protocol, read_entry},
    error::SqsError,
    message_attributes::{self, AttributeMap, Filter},
    names,
    query::Query,
    queue_attributes::{self, Form, Targets},
    shapes::{
        AddPermissionInput, CancelMessageMoveTaskInput, ChangeMessageVisibilityInput,
        CreateQueueInput, DeleteMessageInput, GetQueueAttributesInput, GetQueueUrlInput,
        ListDeadLetterSourceQueuesInput, ListMessageMoveTasksInput, ListQueuesInput, QueueInput,
        ReceiveMessageInput, RemovePermissionInput, SendMessageBatchInput, SendMessageEntry,
        SendMessageInput, SetQueueAttributesInput, SettleBatchInput, SettleEntry,
        StartMessageMoveTaskInput, TagQueueInput, TextMap, UntagQueueInput,
    },
    text::{Object, Text},
};
use crate::{
    few::Few,
    http::progress::Hangup,
    queue::{
        headers::forbidden_character,
        kind::{self, FIFO_SUFFIX, Kind},
    },
    receipt::Receipts,
};

/// Input: the parameters of the URL, a line feed, a form. Without a line feed, all of it is the
/// form.
pub fn query(bytes: &[u8]) -> Result<(), String> {
    let (query, body) = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (&[][..], bytes),
    };
    let mut request = request(body);
    request.query = Some(String::from_utf8_lossy(query).into_owned());
    if !Query::is_meant(&request) {
        return Err("it is no request of the Query protocol".to_owned());
    }
    let protocol = Query::new(&request, "id");
    decode(&protocol, &request)
}

/// Input: the name of an action, a line feed, a body in JSON.
pub fn aws_json(bytes: &[u8]) -> Result<(), String> {
    let at = bytes.iter().position(|&byte| byte == b'\n');
    let at = at.ok_or("there is no line feed")?;
    let mut request = request(&bytes[at + 1..]);
    let action = String::from_utf8_lossy(&bytes[..at]);
    request.target = Some(format!("AmazonSQS.{action}"));
    decode(&AwsJson::new(&request), &request)
}

/// Input: a handle that may be forged, and the bytes of a token. A handle that is given out must
/// open to its token, and no other handle may open.
pub fn receipt(bytes: &[u8]) -> Result<(), String> {
    let mut numbers = [0; 54];
    let len = bytes.len().min(numbers.len());
    numbers[..len].copy_from_slice(&bytes[..len]);
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&numbers[at..at + 8]);
        u64::from_le_bytes(number)
    };
    let shard = u16::from_le_bytes([numbers[52], numbers[53]]) % (ShardId::MAX.get() + 1);
    let shard = ShardId::new(shard).expect("taken modulo");
    let receipts = Receipts::new(shard, &[7; 32]);
    let token = LeaseToken {
        queue: QueueId((number(0) >> 32) as u32),
        sequence: Sequence(number(4)),
        message: MessageId::from_bits(u128::from(number(36)) << 64 | u128::from(number(44))),
        term: Term {
            shard,
            epoch: Epoch(number(12)),
            incarnation: Incarnation(number(20)),
        },
        lease: LeaseNumber(number(28)),
    };
    let handle = receipts.seal(token);
    assert_eq!(receipts.open(&handle), Ok(token), "a handle given out");
    let text = String::from_utf8_lossy(bytes);
    match receipts.open(&text) {
        Ok(token) => {
            assert_eq!(receipts.seal(token), text, "two handles of one lease");
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn request(body: &[u8]) -> Request {
    Request {
        target: None,
        content_type: None,
        accept: None,
        path: "/".to_owned(),
        query: None,
        trace_id: None,
        query_mode: false,
        body: Bytes::copy_from_slice(body),
        holder: HolderName::new("fuzzer").expect("a short name"),
        identity: None,
        host: "localhost:9324".to_owned(),
        by_link: false,
        hangup: Hangup::default(),
    }
}

fn decode(protocol: &impl Protocol, request: &Request) -> Result<(), String> {
    let outcome = protocol
        .action()
        .and_then(|action| read(action, protocol, &request.body));
    outcome.map_err(|error| {
        // The error's text contains parts of the request.
        let response = protocol.error(&error);
        assert!(!response.body.is_empty(), "an error without a body");
        error.message.into_owned()
    })
}

/// Reads the input as the action does, and checks it as far as no queue is needed.
fn read(action: Action, protocol: &impl Protocol, body: &Bytes) -> Result<(), SqsError> {
    match action {
        Action::SendMessage => {
            let input: SendMessageInput<'_> = protocol.read()?;
            ids(input.message_group_id, input.message_deduplication_id)?;
            text(input.message_body, body);
            attributes(input.message_attributes, body)?;
            system_attributes(input.message_system_attributes)?;
        }
        Action::SendMessageBatch => {
            let input: SendMessageBatchInput<'_> = protocol.read()?;
            for entry in entries(input.entries) {
                let entry: SendMessageEntry<'_> = entry?;
                names::entry_id(entry.id.as_deref().unwrap_or(""))?;
                ids(entry.message_group_id, entry.message_deduplication_id)?;
                text(entry.message_body, body);
                attributes(entry.message_attributes, body)?;
                system_attributes(entry.message_system_attributes)?;
            }
        }
        Action::ReceiveMessage => {
            let input: ReceiveMessageInput<'_> = protocol.read()?;
            let names = input.message_attribute_names.unwrap_or_default();
            Filter::new(names).passes("name");
            let system = input.message_system_attribute_names.unwrap_or_default();
            queue_attributes::wanted(system.iter().map(|name| &**name))?;
            names::receive_attempt_id(input.receive_request_attempt_id.as_deref().unwrap_or("a"))?;
        }
        Action::DeleteMessage => {
            let input: DeleteMessageInput<'_> = protocol.read()?;
            handle(input.receipt_handle);
        }
        Action::ChangeMessageVisibility => {
            let input: ChangeMessageVisibilityInput<'_> = protocol.read()?;
            handle(input.receipt_handle);
        }
        Action::DeleteMessageBatch | Action::ChangeMessageVisibilityBatch => {
            let input: SettleBatchInput<'_> = protocol.read()?;
            for entry in entries(input.entries) {
                let entry: SettleEntry<'_> = entry?;
                names::entry_id(entry.id.as_deref().unwrap_or(""))?;
                handle(entry.receipt_handle);
            }
        }
        Action::CreateQueue => {
            let input: CreateQueueInput<'_> = protocol.read()?;
            let name = input.queue_name.as_deref().unwrap_or("orders.fifo");
            kind::check_name(name)?;
            tags(input.tags)?;
            apply(&input.attributes.unwrap_or_default())?;
        }
        Action::SetQueueAttributes => {
            let input: SetQueueAttributesInput<'_> = protocol.read()?;
            url(input.queue_url);
            apply(&input.attributes.unwrap_or_default())?;
        }
        Action::TagQueue => {
            let input: TagQueueInput<'_> = protocol.read()?;
            tags(input.tags)?;
        }
        Action::GetQueueAttributes => {
            let input: GetQueueAttributesInput<'_> = protocol.read()?;
            let names = input.attribute_names.unwrap_or_default();
            queue_attributes::wanted(names.iter().map(|name| &**name))?;
        }
        Action::StartMessageMoveTask => {
            let input: StartMessageMoveTaskInput<'_> = protocol.read()?;
            arn(input.source_arn);
            arn(input.destination_arn);
        }
        Action::ListMessageMoveTasks => {
            let input: ListMessageMoveTasksInput<'_> = protocol.read()?;
            arn(input.source_arn);
        }
        Action::DeleteQueue | Action::PurgeQueue | Action::ListQueueTags => {
            let input: QueueInput<'_> = protocol.read()?;
            url(input.queue_url);
        }
        Action::UntagQueue => drop(protocol.read::<UntagQueueInput<'_>>()?),
        Action::GetQueueUrl => drop(protocol.read::<GetQueueUrlInput<'_>>()?),
        Action::ListQueues => drop(protocol.read::<ListQueuesInput<'_>>()?),
        Action::ListDeadLetterSourceQueues => {
            drop(protocol.read::<ListDeadLetterSourceQueuesInput<'_>>()?);
        }
        Action::AddPermission => drop(protocol.read::<AddPermissionInput<'_>>()?),
        Action::RemovePermission => drop(protocol.read::<RemovePermissionInput<'_>>()?),
        Action::CancelMessageMoveTask => drop(protocol.read::<CancelMessageMoveTaskInput<'_>>()?),
    }
    Ok(())
}

/// The entries of a batch as its action reads them.
fn entries<'a, T: Deserialize<'a>>(
    given: Option<Few<'a, Object<T>>>,
) -> impl Iterator<Item = Result<T, SqsError>> {
    let entries = given.unwrap_or_default();
    let read = entries.into_entries(|raw| read_entry(raw).map(Object));
    read.map(|entry| Ok(entry?.0))
}

fn ids(group: Option<Text<'_>>, unique: Option<Text<'_>>) -> Result<(), SqsError> {
    group.map(|id| names::group_id(&id)).transpose()?;
    unique.map(|id| names::deduplication_id(&id)).transpose()?;
    Ok(())
}

fn text(body: Option<Text<'_>>, request: &Bytes) {
    if let Some(body) = body {
        forbidden_character(&body);
        let len = body.len();
        assert_eq!(body.into_bytes(request).len(), len, "the body's bytes");
    }
}

fn attributes(given: Option<AttributeMap<'_>>, request: &Bytes) -> Result<(), SqsError> {
    if let Some(given) = given {
        let headers = message_attributes::to_headers(given, request)?;
        message_attributes::headers_digest(&headers);
    }
    Ok(())
}

fn system_attributes(given: Option<AttributeMap<'_>>) -> Result<(), SqsError> {
    given
        .map(message_attributes::trace_header)
        .transpose()
        .map(drop)
}

fn tags(given: Option<TextMap<'_>>) -> Result<(), SqsError> {
    let Some(given) = given else { return Ok(()) };
    let queue = QueueName::new("orders").expect("a short name");
    let tags = tags::checked(given, BTreeMap::new(), &queue)?;
    Form::new(Kind::Standard).apply_tags(&BTreeMap::new(), &tags)?;
    Form::new(Kind::Fifo).apply_tags(&BTreeMap::new(), &tags)
}

/// Every queue exists, with the kind that its name says.
struct EveryQueue;

impl Targets for EveryQueue {
    fn target(&self, name: &QueueName) -> Option<(Kind, BTreeMap<String, String>)> {
        let fifo = name.as_str().ends_with(FIFO_SUFFIX);
        let kind = if fifo { Kind::Fifo } else { Kind::Standard };
        Some((kind, BTreeMap::new()))
    }
}

fn apply(given: &TextMap<'_>) -> Result<(), SqsError> {
    let name = |name: &str| QueueName::new(name).expect("a short name");
    let standard = Form::new(Kind::Standard).apply(given, &name("orders"), &config(), &EveryQueue);
    let fifo = Form::new(Kind::Fifo).apply(given, &name("orders.fifo"), &config(), &EveryQueue);
    // Some attributes apply to one kind of queue only.
    standard.or(fifo)
}

fn config() -> Config {
    Config {
        account: "000000000000".to_owned(),
        region: "us-east-1".to_owned(),
        https: false,
    }
}

fn handle(handle: Option<Text<'_>>) {
    if let Some(handle) = handle {
        let _is_it = Receipts::new(ShardId::default(), &[7; 32]).open(&handle);
    }
}

fn url(url: Option<Text<'_>>) {
    if let Some(url) = url {
        names::queue_in_url(&config(), &url);
    }
}

fn arn(arn: Option<Text<'_>>) {
    if let Some(arn) = arn {
        names::queue_in_arn(&config(), &arn);
    }
}
