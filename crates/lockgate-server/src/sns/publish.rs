//! Publishes messages to topics.

use std::{collections::HashSet, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use lockgate_core::{Header, Message, RoutingKey};
use lockgate_engine::EngineError;
use lockgate_machine::{ExchangeDescription, Publication, Publish, Rejection};
use lockgate_sigv4::hex::hex;
use sha2::{Digest as _, Sha256};

use super::{
    Call, Service, arns,
    error::{Code, SnsError},
    form::{Entry, Form},
    topics::deduplicates_content,
    xml::Xml,
};
use crate::{
    auth::Verb,
    fault::shorten,
    queue::headers::{
        check_name, check_type, forbidden_character, forbidden_character_text, is_number,
        shared_kind,
    },
    raw_json::{self, Members},
    sqs::{self, ATTRIBUTES_MAX},
};

/// The most bytes of a message with its attributes, and of all messages of a batch.
const BYTES_MAX: usize = 256 << 10;
/// The most entries of a batch.
const ENTRIES_MAX: usize = 10;
/// The longest subject, in characters.
const SUBJECT_LEN_MAX: usize = 100;

/// What a request says of a message.
struct Given<'g> {
    message: Option<&'g str>,
    subject: Option<&'g str>,
    structure: Option<&'g str>,
    group: Option<&'g str>,
    deduplication: Option<&'g str>,
    attributes: Vec<Entry<'g>>,
}

impl Service {
    pub(super) async fn publish(&self, call: &Call<'_>, form: &Form<'_>) -> Result<Xml, SnsError> {
        if form.get("PhoneNumber").is_some() {
            return Err(SnsError::invalid(
                "PhoneNumber",
                Some(format_args!(
                    "Lockgate delivers to queues only, and not to phones"
                )),
            ));
        }
        // AWS takes a topic as either.
        let parameter = match (form.get("TopicArn"), form.get("TargetArn")) {
            (Some(_), Some(_)) | (None, None) => {
                return Err(SnsError::parameter(
                    "Invalid parameter: TopicArn or TargetArn Reason: exactly one of them must have a value",
                ));
            }
            (Some(_), None) => "TopicArn",
            (None, Some(target)) if target.contains(":endpoint/") => {
                return Err(SnsError::invalid(
                    "TargetArn",
                    Some(format_args!(
                        "Lockgate delivers to queues only, and not to apps on phones"
                    )),
                ));
            }
            (None, Some(_)) => "TargetArn",
        };
        let name = self.topic_named(form, parameter)?;
        let topic = self.topic(call, Verb::Send, &name).await?;
        let given = Given {
            message: form.get("Message"),
            subject: form.get("Subject"),
            structure: form.get("MessageStructure"),
            group: form.get("MessageGroupId"),
            deduplication: form.get("MessageDeduplicationId"),
            attributes: form.entries("MessageAttributes.entry"),
        };
        let publish = command(call, &topic, &given)?;
        if size(&publish) > BYTES_MAX {
            return Err(SnsError::parameter("Invalid parameter: Message too long"));
        }
        let published = self.engine.submit(publish).await;
        let published = published.map_err(|error| match error {
            EngineError::Rejected(rejection) => refusal(call, rejection),
            error => error.into(),
        })?;
        let mut xml = Xml::default();
        write_published(&mut xml, &topic, &published);
        Ok(xml)
    }

    pub(super) async fn publish_batch(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<Xml, SnsError> {
        let name = self.topic_named(form, "TopicArn")?;
        let entries = form.entries("PublishBatchRequestEntries.member");
        let ids = checked_ids(&entries)?;
        let topic = self.topic(call, Verb::Send, &name).await?;
        let mut commands = Vec::with_capacity(entries.len());
        for entry in &entries {
            let given = Given {
                message: entry.get("Message"),
                subject: entry.get("Subject"),
                structure: entry.get("MessageStructure"),
                group: entry.get("MessageGroupId"),
                deduplication: entry.get("MessageDeduplicationId"),
                attributes: entry.entries("MessageAttributes.entry"),
            };
            // As on AWS, one message that cannot be read makes the whole batch refuse.
            commands.push(command(call, &topic, &given)?);
        }
        if commands.iter().map(size).sum::<usize>() > BYTES_MAX {
            return Err(SnsError::new(
                Code::BatchRequestTooLong,
                "The length of all the messages put together is more than the limit.",
            ));
        }
        let results = self
            .engine
            .submit_all(commands.into_iter().collect())
            .await?;
        let (mut done, mut failed) = (Xml::default(), Xml::default());
        done.open("Successful");
        failed.open("Failed");
        for (id, result) in ids.iter().zip(results) {
            match result {
                Ok(published) => {
                    done.open("member");
                    done.leaf("Id", id);
                    write_published(&mut done, &topic, &published);
                    done.close("member");
                }
                Err(rejection) => {
                    let error = refusal(call, rejection);
                    failed.open("member");
                    failed.leaf("Id", id);
                    failed.leaf("Code", error.code.name());
                    failed.leaf("Message", &error.message);
                    failed.leaf("SenderFault", &(!error.is_servers()).to_string());
                    failed.close("member");
                }
            }
        }
        done.close("Successful");
        failed.close("Failed");
        done.append(&failed);
        Ok(done)
    }
}

/// The refusal of a publish, without what it says of a queue that the caller may not know of.
fn refusal(call: &Call<'_>, rejection: Rejection) -> SnsError {
    let is_hidden = matches!(&rejection, Rejection::PublishRefused { queue, .. }
        if !call.may_with_queue(Verb::Read, queue) && !call.may_with_queue(Verb::Send, queue));
    let error = SnsError::from(rejection);
    match is_hidden {
        true => SnsError::new(
            error.code,
            "A queue that the topic leads to refused its copy, so no queue has the message",
        ),
        false => error,
    }
}

/// Checks the messages of a request, as one and as a batch: for a fuzz target, which has no topic.
pub(super) fn checked(form: &Form<'_>) -> Vec<Result<(), SnsError>> {
    let entries = form.entries("PublishBatchRequestEntries.member");
    let mut checks = vec![headers(&form.entries("MessageAttributes.entry")).map(drop)];
    let text = form.get("Message").unwrap_or("");
    checks.push(body(text, form.get("MessageStructure")).map(drop));
    if !entries.is_empty() {
        checks.push(checked_ids(&entries).map(drop));
    }
    for entry in &entries {
        checks.push(headers(&entry.entries("MessageAttributes.entry")).map(drop));
    }
    checks
}

fn write_published(xml: &mut Xml, topic: &ExchangeDescription, published: &Publication) {
    xml.leaf("MessageId", &published.id.to_string());
    if arns::is_fifo(&topic.name) {
        xml.leaf("SequenceNumber", &format!("{:020}", published.number));
    }
}

/// The ids of a batch, after the checks of the batch as a whole.
fn checked_ids<'e>(entries: &[Entry<'e>]) -> Result<Vec<&'e str>, SnsError> {
    if entries.is_empty() {
        return Err(SnsError::new(
            Code::EmptyBatchRequest,
            "The batch request doesn't contain any entries.",
        ));
    }
    if entries.len() > ENTRIES_MAX {
        return Err(SnsError::new(
            Code::TooManyEntriesInBatchRequest,
            "The batch request contains more entries than permissible.",
        ));
    }
    let mut ids = Vec::with_capacity(entries.len());
    let mut seen = HashSet::new();
    for entry in entries {
        let id = entry.get("Id").ok_or_else(|| SnsError::missing("Id"))?;
        if sqs::entry_id(id).is_err() {
            return Err(SnsError::new(
                Code::InvalidBatchEntryId,
                "The Id of a batch entry in a batch request doesn't abide by the specification.",
            ));
        }
        if !seen.insert(id) {
            return Err(SnsError::new(
                Code::BatchEntryIdsNotDistinct,
                "Two or more batch entries in the request have the same Id.",
            ));
        }
        ids.push(id);
    }
    Ok(ids)
}

/// Checks what is said of a message, and makes the command that publishes it.
fn command(
    call: &Call<'_>,
    topic: &ExchangeDescription,
    given: &Given<'_>,
) -> Result<Publish, SnsError> {
    let message = given.message.filter(|message| !message.is_empty());
    let message = message.ok_or_else(|| SnsError::parameter("Invalid parameter: Empty message"))?;
    let subject = given.subject.map(checked_subject).transpose()?;
    let body = body(message, given.structure)?;
    if let Some(found) = forbidden_character(&body) {
        let text = forbidden_character_text(found, "message");
        return Err(SnsError::invalid("Message", Some(format_args!("{text}"))));
    }
    let headers = headers(&given.attributes)?;
    let group = given.group.map(sqs::group_id).transpose();
    let group = group.map_err(|error| of_parameter("MessageGroupId", &error))?;
    let given_id = given.deduplication.map(sqs::deduplication_id).transpose();
    let given_id = given_id.map_err(|error| of_parameter("MessageDeduplicationId", &error))?;
    let unique_id = match arns::is_fifo(&topic.name) {
        true if group.is_none() => {
            return Err(SnsError::parameter(
                "Invalid parameter: The MessageGroupId parameter is required for FIFO topics",
            ));
        }
        true => match given_id {
            Some(id) => Some(id),
            None if deduplicates_content(topic) => {
                let digest = hex(&Sha256::digest(message.as_bytes()));
                let id = sqs::deduplication_id(&digest);
                Some(id.map_err(|error| of_parameter("MessageDeduplicationId", &error))?)
            }
            None => {
                return Err(SnsError::parameter(
                    "Invalid parameter: The topic should either have ContentBasedDeduplication enabled or \
                     MessageDeduplicationId provided explicitly",
                ));
            }
        },
        false if given_id.is_some() => {
            return Err(SnsError::parameter(
                "Invalid parameter: MessageDeduplicationId Reason: The request includes MessageDeduplicationId \
                 parameter that is not valid for this topic type",
            ));
        }
        false => None,
    };
    let trace = call.trace_id.filter(|id| sqs::is_trace_id(id));
    Ok(Publish {
        exchange: topic.name.clone(),
        routing_key: RoutingKey::default(),
        message: Message {
            body: body.into_owned().into(),
            headers,
            group,
            unique_id,
            trace_context: trace.map(Into::into),
            ..Message::default()
        },
        subject,
    })
}

fn of_parameter(parameter: &str, error: &sqs::SqsError) -> SnsError {
    SnsError::invalid(parameter, Some(format_args!("{error}")))
}

fn checked_subject(subject: &str) -> Result<Arc<str>, SnsError> {
    let len = subject.chars().count();
    match (1..=SUBJECT_LEN_MAX).contains(&len) && !subject.chars().any(char::is_control) {
        true => Ok(subject.into()),
        false => Err(SnsError::parameter("Invalid parameter: Subject")),
    }
}

/// The text for queues.
fn body<'m>(
    message: &'m str,
    structure: Option<&str>,
) -> Result<std::borrow::Cow<'m, str>, SnsError> {
    match structure {
        None | Some("") => return Ok(message.into()),
        Some("json") => {}
        Some(other) => {
            let other = shorten(other);
            let reason = format_args!("Invalid value [{other}]. It must be json, or left out");
            return Err(SnsError::invalid("MessageStructure", Some(reason)));
        }
    }
    let Some(Members {
        known: [default, for_queues],
        ..
    }) = raw_json::members(message, ["default", "sqs"])
    else {
        return Err(SnsError::parameter(
            "Invalid parameter: Message Structure - JSON message body failed to parse",
        ));
    };
    let default = default.and_then(raw_json::text).ok_or_else(|| {
        SnsError::parameter(
            "Invalid parameter: Message Structure - No default entry in JSON message body",
        )
    })?;
    // A value that is no text is passed over.
    let text = for_queues.and_then(raw_json::text).unwrap_or(default);
    match text.is_empty() {
        true => Err(SnsError::parameter("Invalid parameter: Empty message")),
        false => Ok(text),
    }
}

/// The attributes of a message as headers, sorted by name.
fn headers(attributes: &[Entry<'_>]) -> Result<Vec<Header>, SnsError> {
    if attributes.len() > ATTRIBUTES_MAX {
        return Err(SnsError::new(
            Code::ParameterValueInvalid,
            format!(
                "Number of message attributes [{}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].",
                attributes.len()
            ),
        ));
    }
    let headers = attributes.iter().map(header);
    let mut headers = headers.collect::<Result<Vec<_>, _>>()?;
    headers.sort_by(|one, other| one.name.cmp(&other.name));
    match headers.windows(2).any(|two| two[0].name == two[1].name) {
        true => Err(SnsError::new(
            Code::ParameterValueInvalid,
            "Two message attributes have the same name.",
        )),
        false => Ok(headers),
    }
}

fn header(attribute: &Entry<'_>) -> Result<Header, SnsError> {
    let invalid = |message: String| SnsError::new(Code::ParameterValueInvalid, message);
    let name = attribute.get("Name").unwrap_or("");
    if name.is_empty() {
        return Err(invalid(
            "The message attribute name must not be empty.".into(),
        ));
    }
    check_name(name)?;
    let kind = attribute.get("Value.DataType").filter(|it| !it.is_empty());
    let kind = kind.ok_or_else(|| {
        SnsError::new(
            Code::ValidationError,
            format!(
                "1 validation error detected: Value null at 'messageAttributes.{name}.member.dataType' failed to \
                 satisfy constraint: Member must not be null"
            ),
        )
    })?;
    let base = check_type(name, kind)?;
    let [used, other] = match base {
        "Binary" => ["Value.BinaryValue", "Value.StringValue"],
        _ => ["Value.StringValue", "Value.BinaryValue"],
    };
    let value = attribute.get(used).filter(|value| !value.is_empty());
    let value = value.ok_or_else(|| {
        invalid(match attribute.get(other) {
            Some(_) => format!(
                "The message attribute '{name}' with type '{kind}' must use field '{}'.",
                if base == "Binary" { "Binary" } else { "String" }
            ),
            None => format!(
                "The message attribute '{name}' must contain non-empty message attribute value for message attribute \
                 type '{kind}'."
            ),
        })
    })?;
    let value = match base {
        "Binary" => {
            let bytes = STANDARD.decode(value);
            let bytes = bytes.map_err(|error| {
                invalid(format!(
                    "The binary value of attribute '{name}' is no base64: {error}"
                ))
            })?;
            Bytes::from(bytes)
        }
        _ => {
            if base == "Number" && !is_number(value) {
                return Err(invalid(format!(
                    "Could not cast message attribute '{name}' value to number."
                )));
            }
            if let Some(found) = forbidden_character(value) {
                return Err(invalid(forbidden_character_text(
                    found,
                    "message attribute value",
                )));
            }
            Bytes::copy_from_slice(value.as_bytes())
        }
    };
    Ok(Header {
        name: name.into(),
        kind: shared_kind(kind),
        value,
    })
}

/// The bytes that count towards the limits.
fn size(publish: &Publish) -> usize {
    let headers = publish.message.headers.iter();
    let headers = headers.map(|it| it.name.len() + it.kind.len() + it.value.len());
    publish.message.body.len() + headers.sum::<usize>()
}
