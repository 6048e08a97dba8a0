//! Runs one test in both protocols: AWS JSON inputs become forms, and XML answers become AWS JSON.
//!
//! The names of the older protocol are written here a second time on purpose: the code under test
//! must not also produce the expected names.
//! has to read them must not also write them.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

/// How a test talks to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speaks {
    Json,
    Query,
}

/// Makes two tests of each function, one for each protocol.
macro_rules! in_both_protocols {
    ($($test:ident),* $(,)?) => {
        $(mod $test {
            use crate::sqs::tests::{Shop, protocols::Speaks};

            #[tokio::test]
            async fn in_json() {
                super::$test(Shop::open()).await;
            }

            #[tokio::test]
            async fn in_query() {
                super::$test(Shop::speaking(Speaks::Query)).await;
            }
        })*
    };
}
pub(super) use in_both_protocols;

/// The form of the same request; `None` if no form can express the input. Empty lists are left out,
/// as SDKs do.
pub(super) fn form(action: &str, input: &Value) -> Option<String> {
    let mut pairs = vec![("Action".to_owned(), action.to_owned())];
    members("", action, input.as_object()?, &mut pairs)?;
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
        .collect();
    Some(pairs.join("&"))
}

fn members(
    prefix: &str,
    action: &str,
    input: &Map<String, Value>,
    pairs: &mut Vec<(String, String)>,
) -> Option<()> {
    for (name, value) in input {
        let entry = format!("{action}RequestEntry");
        let list = match name.as_str() {
            "AttributeNames" => "AttributeName",
            "MessageAttributeNames" => "MessageAttributeName",
            "MessageSystemAttributeNames" => "MessageSystemAttributeName",
            "TagKeys" => "TagKey",
            "AWSAccountIds" => "AWSAccountId",
            "Actions" => "ActionName",
            "Entries" => &entry,
            "Attributes" => "Attribute",
            "Tags" | "tags" => "Tag",
            "MessageAttributes" => "MessageAttribute",
            "MessageSystemAttributes" => "MessageSystemAttribute",
            other => other,
        };
        let list = format!("{prefix}{list}");
        match value {
            Value::Array(values) => {
                for (number, value) in (1..).zip(values) {
                    match value {
                        Value::Object(entry) => {
                            members(&format!("{list}.{number}."), action, entry, pairs)?;
                        }
                        value => pairs.push((format!("{list}.{number}"), scalar(value)?)),
                    }
                }
            }
            Value::Object(values) => {
                let key_name = if name.eq_ignore_ascii_case("Tags") {
                    "Key"
                } else {
                    "Name"
                };
                for (number, (key, value)) in (1..).zip(values) {
                    let list = format!("{list}.{number}");
                    pairs.push((format!("{list}.{key_name}"), key.clone()));
                    match value {
                        Value::Object(fields) => {
                            for (field, value) in fields {
                                pairs.extend(attribute_field(
                                    &format!("{list}.Value"),
                                    field,
                                    value,
                                )?);
                            }
                        }
                        value => pairs.push((format!("{list}.Value"), scalar(value)?)),
                    }
                }
            }
            value => pairs.push((list, scalar(value)?)),
        }
    }
    Some(())
}

/// A field of a message attribute; those of lists have numbers.
fn attribute_field(list: &str, field: &str, value: &Value) -> Option<Vec<(String, String)>> {
    let Value::Array(values) = value else {
        return Some(vec![(format!("{list}.{field}"), scalar(value)?)]);
    };
    let name = field.strip_suffix('s')?;
    (1..)
        .zip(values)
        .map(|(number, value)| Some((format!("{list}.{name}.{number}"), scalar(value)?)))
        .collect()
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The content of an XML answer, in the shape of AWS JSON.
pub(super) fn output(action: &str, xml: &str) -> Value {
    let answer = parse(xml);
    let Some(result) = answer.child(&format!("{action}Result")) else {
        return json!({});
    };
    let mut output = object(action, result);
    // A list without elements leaves no trace in XML.
    for (of, list) in [
        ("ListDeadLetterSourceQueues", "queueUrls"),
        ("ListMessageMoveTasks", "Results"),
    ] {
        if of == action && output.get(list).is_none() {
            output[list] = json!([]);
        }
    }
    output
}

/// An error's code, fault and text, as JSON would have them.
pub(super) fn error(xml: &str) -> (String, String, String) {
    let (code, fault, message) = error_as_written(xml);
    // AWS adds this in this protocol only.
    let message = message.replace(" for this wsdl version", "");
    (code, fault, message)
}

/// The same without changes to the text.
pub(super) fn error_as_written(xml: &str) -> (String, String, String) {
    let answer = parse(xml);
    assert_eq!(answer.name, "ErrorResponse");
    assert!(answer.child("RequestId").is_some(), "{xml}");
    let error = answer.child("Error").expect("an error");
    let text = |name: &str| error.child(name).expect(name).text.clone();
    (text("Code"), text("Type"), text("Message"))
}

fn object(action: &str, element: &Element) -> Value {
    let mut object = Map::new();
    for child in &element.children {
        let name = child.name.as_str();
        let many = match name {
            "QueueUrl" if action == "ListQueues" => "QueueUrls",
            "QueueUrl" if action == "ListDeadLetterSourceQueues" => "queueUrls",
            "Message" if !child.children.is_empty() => "Messages",
            "BatchResultErrorEntry" => "Failed",
            "ListMessageMoveTasksResultEntry" => "Results",
            _ if name == format!("{action}ResultEntry") => "Successful",
            _ => "",
        };
        let map = match name {
            "Attribute" => "Attributes",
            "MessageAttribute" => "MessageAttributes",
            "Tag" => "Tags",
            _ => "",
        };
        if !many.is_empty() {
            let list = object.entry(many).or_insert_with(|| json!([]));
            let list = list.as_array_mut().expect("made as a list");
            list.push(value(action, child));
        } else if !map.is_empty() {
            let [key, entry] = &child.children[..] else {
                panic!("{name} has a key and a value")
            };
            let map = object.entry(map).or_insert_with(|| json!({}));
            map[&key.text] = value(action, entry);
        } else {
            object.insert(name.to_owned(), value(action, child));
        }
    }
    Value::Object(object)
}

fn value(action: &str, element: &Element) -> Value {
    let text = element.text.as_str();
    let is_number = matches!(
        element.name.as_str(),
        "ApproximateNumberOfMessagesMoved"
            | "ApproximateNumberOfMessagesToMove"
            | "MaxNumberOfMessagesPerSecond"
            | "StartedTimestamp"
    );
    match element.name.as_str() {
        _ if !element.children.is_empty() => object(action, element),
        "SenderFault" | "Duplicate" => json!(text == "true"),
        _ if is_number => text.parse::<i64>().expect("a number").into(),
        _ => text.into(),
    }
}

/// An element of an answer; it has children or text.
#[derive(Debug, Default)]
struct Element {
    name: String,
    children: Vec<Element>,
    text: String,
}

impl Element {
    fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.name == name)
    }
}

/// Reads what the service writes: elements, attributes of the first one, and texts.
fn parse(xml: &str) -> Element {
    let xml = xml.strip_prefix("<?xml version=\"1.0\"?>\n").expect("XML");
    let mut open = vec![Element::default()];
    let mut rest = xml;
    while let Some((text, tail)) = rest.split_once('<') {
        open.last_mut().unwrap().text.push_str(&unescape(text));
        let (tag, tail) = tail.split_once('>').expect("a tag ends");
        rest = tail;
        let close = |open: &mut Vec<Element>| {
            let closed = open.pop().unwrap();
            open.last_mut().expect("it was open").children.push(closed);
        };
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.last().unwrap().name, name);
            close(&mut open);
        } else {
            let empty = tag.strip_suffix('/');
            let name = empty.unwrap_or(tag).split(' ').next().unwrap();
            open.push(Element {
                name: name.to_owned(),
                ..Element::default()
            });
            if empty.is_some() {
                close(&mut open);
            }
        }
    }
    assert!(open.len() == 1 && rest.is_empty(), "{xml}");
    let mut root = open.pop().unwrap();
    assert_eq!(root.children.len(), 1);
    root.children.pop().unwrap()
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#xD;", "\r")
        .replace("&amp;", "&")
}
