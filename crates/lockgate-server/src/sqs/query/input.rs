//! From numbered parameters to the members that the actions' shapes have.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::sqs::{dispatch::Action, error::SqsError};

/// What a parameter holds.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Integer,
    /// `Name.1`, `Name.2`, ...
    List,
    /// `Name.1.<key>` and `Name.1.<value>`: texts by name.
    Map {
        key: &'static str,
        value: &'static str,
    },
    /// `Name.1.Name` and `Name.1.Value.DataType` and so on: message attributes by name.
    Attributes,
    /// `Name.1.Id` and so on: a batch.
    Entries,
}

/// The member that a parameter's first name stands for, and what it holds.
fn member(action: Action, name: &str) -> Option<(&'static str, Kind)> {
    Some(match name {
        "Action" | "Version" => return None,
        "QueueUrl" => ("QueueUrl", Kind::Text),
        "QueueName" => ("QueueName", Kind::Text),
        "QueueNamePrefix" => ("QueueNamePrefix", Kind::Text),
        "QueueOwnerAWSAccountId" => ("QueueOwnerAWSAccountId", Kind::Text),
        "NextToken" => ("NextToken", Kind::Text),
        "Id" => ("Id", Kind::Text),
        "Label" => ("Label", Kind::Text),
        "MessageBody" => ("MessageBody", Kind::Text),
        "MessageDeduplicationId" => ("MessageDeduplicationId", Kind::Text),
        "MessageGroupId" => ("MessageGroupId", Kind::Text),
        "ReceiptHandle" => ("ReceiptHandle", Kind::Text),
        "ReceiveRequestAttemptId" => ("ReceiveRequestAttemptId", Kind::Text),
        "SourceArn" => ("SourceArn", Kind::Text),
        "DestinationArn" => ("DestinationArn", Kind::Text),
        "TaskHandle" => ("TaskHandle", Kind::Text),
        "MaxResults" => ("MaxResults", Kind::Integer),
        "MaxNumberOfMessages" => ("MaxNumberOfMessages", Kind::Integer),
        "MaxNumberOfMessagesPerSecond" => ("MaxNumberOfMessagesPerSecond", Kind::Integer),
        "DelaySeconds" => ("DelaySeconds", Kind::Integer),
        "VisibilityTimeout" => ("VisibilityTimeout", Kind::Integer),
        "WaitTimeSeconds" => ("WaitTimeSeconds", Kind::Integer),
        "AttributeName" => ("AttributeNames", Kind::List),
        "MessageAttributeName" => ("MessageAttributeNames", Kind::List),
        "MessageSystemAttributeName" => ("MessageSystemAttributeNames", Kind::List),
        "TagKey" => ("TagKeys", Kind::List),
        "AWSAccountId" => ("AWSAccountIds", Kind::List),
        "ActionName" => ("Actions", Kind::List),
        "Attribute" => {
            let (key, value) = ("Name", "Value");
            ("Attributes", Kind::Map { key, value })
        }
        "Tag" => {
            let (key, value) = ("Key", "Value");
            // AWS models it so.
            let small = action == Action::CreateQueue;
            (
                if small { "tags" } else { "Tags" },
                Kind::Map { key, value },
            )
        }
        "MessageAttribute" => ("MessageAttributes", Kind::Attributes),
        "MessageSystemAttribute" => ("MessageSystemAttributes", Kind::Attributes),
        "SendMessageBatchRequestEntry"
        | "DeleteMessageBatchRequestEntry"
        | "ChangeMessageVisibilityBatchRequestEntry" => ("Entries", Kind::Entries),
        _ => return None,
    })
}

/// What comes behind a parameter's first name, and its value.
type Rest<'p> = Vec<(&'p str, &'p str)>;

/// The members that the parameters give. What no action knows is passed over, as by AWS: it may be
/// part of a signature.
pub(super) fn build(
    action: Action,
    parameters: &[(String, String)],
) -> Result<Map<String, Value>, SqsError> {
    let pairs = parameters
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    members(action, pairs)
}

fn members(action: Action, parameters: Rest<'_>) -> Result<Map<String, Value>, SqsError> {
    let mut groups: BTreeMap<&str, Rest<'_>> = BTreeMap::new();
    for (name, value) in parameters {
        let (first, rest) = split(name);
        groups.entry(first).or_default().push((rest, value));
    }
    let mut members = Map::new();
    for (name, parts) in groups {
        let Some((member, kind)) = member(action, name) else {
            continue;
        };
        let value = match kind {
            Kind::Text => scalar(&parts).into(),
            Kind::Integer => integer(name, scalar(&parts))?.into(),
            Kind::List => numbered(parts)
                .iter()
                .map(|parts| Value::from(scalar(parts)))
                .collect(),
            Kind::Map { key, value } => unique(numbered(parts).iter().map(|parts| {
                let value = Value::from(field(parts, value));
                (field(parts, key).to_owned(), value)
            }))?,
            Kind::Attributes => unique(
                numbered(parts)
                    .iter()
                    .map(|parts| (field(parts, "Name").to_owned(), attribute(parts))),
            )?,
            Kind::Entries => numbered(parts)
                .into_iter()
                .map(|parts| members_of_entry(action, parts))
                .collect::<Result<Vec<_>, _>>()?
                .into(),
        };
        members.insert(member.to_owned(), value);
    }
    Ok(members)
}

fn members_of_entry(action: Action, parts: Rest<'_>) -> Result<Value, SqsError> {
    members(action, parts).map(Value::Object)
}

/// A map, in which no name may be twice.
fn unique(pairs: impl Iterator<Item = (String, Value)>) -> Result<Value, SqsError> {
    let mut map = Map::new();
    for (name, value) in pairs {
        if map.contains_key(&name) {
            let message = format!("duplicate field `{name:.100}`");
            return Err(SqsError::serialization(message));
        }
        map.insert(name, value);
    }
    Ok(Value::Object(map))
}

/// The value of a message attribute: whatever stands under `Value`. Its lists are refused later, and
/// by what they are.
fn attribute(parts: &Rest<'_>) -> Value {
    let mut fields = Map::new();
    for &(name, text) in parts {
        let ("Value", field) = split(name) else {
            continue;
        };
        match split(field).0 {
            "" => {}
            // An empty list.
            "StringListValue" | "BinaryListValue" if is_empty((split(field).1, text)) => {}
            list @ ("StringListValue" | "BinaryListValue") => {
                fields.insert(format!("{list}s"), vec![text].into());
            }
            _ => {
                fields.insert(field.to_owned(), text.into());
            }
        }
    }
    Value::Object(fields)
}

/// Splits parameters by their number, in rising order. One without a number is the first: an old way
/// to give a single one.
fn numbered(parts: Rest<'_>) -> Vec<Rest<'_>> {
    let mut by_number: BTreeMap<u64, Rest<'_>> = BTreeMap::new();
    // An empty list or map is written as its bare name, by JavaScript v2 and Go v1 for example.
    for (name, value) in parts.into_iter().filter(|&part| !is_empty(part)) {
        let (first, rest) = split(name);
        match first.parse() {
            Ok(number) => by_number.entry(number).or_default().push((rest, value)),
            Err(_) => by_number.entry(0).or_default().push((name, value)),
        }
    }
    by_number.into_values().collect()
}

/// Whether a parameter has neither a number nor a value: that is how SDKs write an empty list.
fn is_empty((name, value): (&str, &str)) -> bool {
    name.is_empty() && value.is_empty()
}

/// The value of a parameter that is given once; of several the last one counts.
fn scalar<'p>(parts: &Rest<'p>) -> &'p str {
    parts.last().map_or("", |&(_, value)| value)
}

fn field<'p>(parts: &Rest<'p>, wanted: &str) -> &'p str {
    let found = parts.iter().rev().find(|&&(name, _)| name == wanted);
    found.map_or("", |&(_, value)| value)
}

fn integer(name: &str, value: &str) -> Result<i64, SqsError> {
    value
        .parse()
        .map_err(|_| SqsError::invalid_value(value, name, "Must be an integer."))
}

/// The part of a name before its first dot, and the part behind it.
fn split(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn built(action: Action, form: &str) -> Value {
        let pairs = crate::sqs::query::form::parse(form.as_bytes()).unwrap();
        Value::Object(build(action, &pairs).unwrap())
    }

    #[test]
    fn numbered_parameters_become_lists_maps_and_entries() {
        assert_eq!(
            built(
                Action::CreateQueue,
                "QueueName=a&Attribute.2.Name=B&Attribute.2.Value=2&Attribute.1.Name=A&Attribute.1.Value=1\
                 &Tag.1.Key=k&Tag.1.Value=v&Version=2012-11-05&Signature=x"
            ),
            json!({"QueueName": "a", "Attributes": {"A": "1", "B": "2"}, "tags": {"k": "v"}})
        );
        assert_eq!(
            built(
                Action::SendMessageBatch,
                "SendMessageBatchRequestEntry.10.Id=b&SendMessageBatchRequestEntry.9.Id=a\
                 &SendMessageBatchRequestEntry.9.DelaySeconds=5\
                 &SendMessageBatchRequestEntry.10.MessageAttribute.1.Name=n\
                 &SendMessageBatchRequestEntry.10.MessageAttribute.1.Value.DataType=String\
                 &SendMessageBatchRequestEntry.10.MessageAttribute.1.Value.StringValue=s"
            ),
            json!({"Entries": [
                {"Id": "a", "DelaySeconds": 5},
                {"Id": "b", "MessageAttributes": {"n": {"DataType": "String", "StringValue": "s"}}},
            ]})
        );
        assert_eq!(
            built(
                Action::GetQueueAttributes,
                "AttributeName.1=All&AttributeName.2=X"
            ),
            json!({"AttributeNames": ["All", "X"]})
        );
        assert_eq!(
            built(
                Action::SetQueueAttributes,
                "Attribute.Name=VisibilityTimeout&Attribute.Value=40"
            ),
            json!({"Attributes": {"VisibilityTimeout": "40"}})
        );
        assert_eq!(
            built(Action::GetQueueAttributes, "AttributeName=All"),
            json!({"AttributeNames": ["All"]})
        );
    }

    #[test]
    fn a_number_that_is_none_is_named() {
        let pairs = [("DelaySeconds".to_owned(), "soon".to_owned())];
        let error = build(Action::SendMessage, &pairs).unwrap_err();
        assert_eq!(
            error.message,
            "Value soon for parameter DelaySeconds is invalid. Reason: Must be an integer."
        );
    }
}
