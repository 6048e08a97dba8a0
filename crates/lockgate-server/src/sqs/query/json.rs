//! Writes answers and errors as JSON, which AWS offers in this protocol to clients that accept it.

use serde_json::{Map, Value, json};

use super::output::answers;
use crate::sqs::dispatch::Action;

/// The answer to an action that succeeded.
pub(super) fn answer(action: Action, output: Value, request_id: &str) -> Vec<u8> {
    let name = action.name();
    let mut response = Map::new();
    if answers(action) {
        let mut result = member(output);
        // Empty lists are kept; other empty members are left out.
        let list = match action {
            Action::ReceiveMessage => Some("messages"),
            Action::ListQueues | Action::ListDeadLetterSourceQueues => Some("queueUrls"),
            _ => None,
        };
        if let (Some(list), Value::Object(result)) = (list, &mut result) {
            result.entry(list).or_insert(Value::Null);
        }
        response.insert(format!("{name}Result"), result);
    }
    response.insert(
        "ResponseMetadata".to_owned(),
        json!({"RequestId": request_id}),
    );
    json!({format!("{name}Response"): response})
        .to_string()
        .into()
}

/// The answer to an action that was refused.
pub(super) fn error(blame: &str, code: &str, message: &str, request_id: &str) -> String {
    json!({
        "Error": {"Code": code, "Message": message, "Type": blame},
        "RequestId": request_id,
    })
    .to_string()
}

/// A member in this form: maps are lists of names and values, and two lists have different names.
fn member(value: Value) -> Value {
    match value {
        Value::Array(entries) => entries.into_iter().map(member).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(name, value)| match (name.as_str(), value) {
                ("Messages", value) => ("messages".to_owned(), member(value)),
                ("QueueUrls", value) => ("queueUrls".to_owned(), member(value)),
                ("Attributes" | "MessageAttributes", Value::Object(map)) => {
                    (name, list("Name", map))
                }
                ("Tags", Value::Object(map)) => (name, list("Key", map)),
                (_, value) => (name, member(value)),
            })
            .collect::<Map<_, _>>()
            .into(),
        value => value,
    }
}

fn list(key_name: &str, map: Map<String, Value>) -> Value {
    map.into_iter()
        .map(|(key, value)| json!({key_name: key, "Value": member(value)}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(action: Action, output: Value) -> Value {
        serde_json::from_slice(&answer(action, output, "id")).unwrap()
    }

    #[test]
    fn maps_become_lists() {
        let output = json!({
            "Messages": [{
                "Body": "a<b>\"\r\n",
                "Attributes": {"SenderId": "1"},
                "MessageAttributes": {"n": {"DataType": "String", "StringValue": "s"}},
            }],
        });
        assert_eq!(
            said(Action::ReceiveMessage, output),
            json!({"ReceiveMessageResponse": {
                "ReceiveMessageResult": {"messages": [{
                    "Body": "a<b>\"\r\n",
                    "Attributes": [{"Name": "SenderId", "Value": "1"}],
                    "MessageAttributes": [{
                        "Name": "n", "Value": {"DataType": "String", "StringValue": "s"}}],
                }]},
                "ResponseMetadata": {"RequestId": "id"},
            }})
        );
        assert_eq!(
            said(Action::ListQueueTags, json!({"Tags": {"team": "a"}}))["ListQueueTagsResponse"]["ListQueueTagsResult"],
            json!({"Tags": [{"Key": "team", "Value": "a"}]})
        );
    }

    #[test]
    fn an_empty_list_is_null_and_nothing_has_no_result() {
        assert_eq!(
            said(Action::ReceiveMessage, json!({}))["ReceiveMessageResponse"]["ReceiveMessageResult"],
            json!({"messages": null})
        );
        assert_eq!(
            said(Action::PurgeQueue, json!({})),
            json!({"PurgeQueueResponse": {"ResponseMetadata": {"RequestId": "id"}}})
        );
    }
}
