//! Writes answers and errors as XML.

use serde_json::{Map, Value};

use crate::sqs::dispatch::Action;

const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

/// The answer to an action that succeeded.
pub(super) fn answer(action: Action, output: &Value, request_id: &str, capacity: usize) -> String {
    let name = action.name();
    let mut out = Writer {
        xml: String::with_capacity(capacity + 256),
        action,
    };
    out.raw("<?xml version=\"1.0\"?>\n");
    out.raw(&format!("<{name}Response xmlns=\"{NAMESPACE}\">"));
    if answers(action) {
        match output {
            Value::Object(members) if !members.is_empty() => {
                out.open(&format!("{name}Result"));
                out.members(members);
                out.close(&format!("{name}Result"));
            }
            _ => out.raw(&format!("<{name}Result/>")),
        }
    }
    out.open("ResponseMetadata");
    out.leaf("RequestId", request_id);
    out.close("ResponseMetadata");
    out.close(&format!("{name}Response"));
    out.xml
}

/// The answer to an action that was refused.
pub(super) fn error(blame: &str, code: &str, message: &str, request_id: &str) -> String {
    let mut out = Writer {
        xml: String::with_capacity(message.len() + 256),
        action: Action::ListQueues,
    };
    out.raw("<?xml version=\"1.0\"?>\n");
    out.raw(&format!("<ErrorResponse xmlns=\"{NAMESPACE}\">"));
    out.open("Error");
    out.leaf("Type", blame);
    out.leaf("Code", code);
    out.leaf("Message", message);
    out.raw("<Detail/>");
    out.close("Error");
    out.leaf("RequestId", request_id);
    out.close("ErrorResponse");
    out.xml
}

/// Whether an action's answer has content besides success.
pub(super) fn answers(action: Action) -> bool {
    !matches!(
        action,
        Action::AddPermission
            | Action::ChangeMessageVisibility
            | Action::DeleteMessage
            | Action::DeleteQueue
            | Action::PurgeQueue
            | Action::RemovePermission
            | Action::SetQueueAttributes
            | Action::TagQueue
            | Action::UntagQueue
    )
}

struct Writer {
    xml: String,
    action: Action,
}

impl Writer {
    fn raw(&mut self, text: &str) {
        self.xml.push_str(text);
    }

    fn open(&mut self, name: &str) {
        self.xml.push('<');
        self.raw(name);
        self.xml.push('>');
    }

    fn close(&mut self, name: &str) {
        self.raw("</");
        self.raw(name);
        self.xml.push('>');
    }

    fn leaf(&mut self, name: &str, text: &str) {
        self.open(name);
        escape(text, &mut self.xml);
        self.close(name);
    }

    fn members(&mut self, members: &Map<String, Value>) {
        for (name, value) in members {
            self.member(name, value);
        }
    }

    /// Lists and maps are flattened: each entry is an element with its own name.
    fn member(&mut self, name: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(text) => self.leaf(name, text),
            Value::Bool(_) | Value::Number(_) => self.leaf(name, &value.to_string()),
            Value::Array(entries) => {
                let name = self.entry_name(name);
                for entry in entries {
                    self.member(&name, entry);
                }
            }
            Value::Object(members) => match name {
                "Attributes" => self.map("Attribute", "Name", members),
                "MessageAttributes" => self.map("MessageAttribute", "Name", members),
                "Tags" => self.map("Tag", "Key", members),
                _ => {
                    self.open(name);
                    self.members(members);
                    self.close(name);
                }
            },
        }
    }

    fn map(&mut self, element: &str, key_name: &str, members: &Map<String, Value>) {
        for (key, value) in members {
            self.open(element);
            self.leaf(key_name, key);
            self.member("Value", value);
            self.close(element);
        }
    }

    fn entry_name(&self, list: &str) -> String {
        match list {
            "QueueUrls" | "queueUrls" => "QueueUrl".to_owned(),
            "Messages" => "Message".to_owned(),
            "Successful" | "Results" => format!("{}ResultEntry", self.action.name()),
            "Failed" => "BatchResultErrorEntry".to_owned(),
            other => other.to_owned(),
        }
    }
}

/// Writes text so that a parser reads back exactly the same text; a bare carriage return would come
/// back as a line feed. Characters that XML cannot carry do not occur: a send refuses them, and in
/// texts from elsewhere they became U+FFFD.
pub(crate) fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\r' => out.push_str("&#xD;"),
            '\t' | '\n' => out.push(c),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_maps_are_flattened() {
        let output = json!({
            "Messages": [{
                "Body": "a<b>&\r\n",
                "Attributes": {"SenderId": "1"},
                "MessageAttributes": {"n": {"DataType": "String", "StringValue": "s"}},
            }],
        });
        let xml = answer(Action::ReceiveMessage, &output, "id", 0);
        assert_eq!(
            xml,
            "<?xml version=\"1.0\"?>\n\
             <ReceiveMessageResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\">\
             <ReceiveMessageResult><Message>\
             <Attribute><Name>SenderId</Name><Value>1</Value></Attribute>\
             <Body>a&lt;b&gt;&amp;&#xD;\n</Body>\
             <MessageAttribute><Name>n</Name>\
             <Value><DataType>String</DataType><StringValue>s</StringValue></Value></MessageAttribute>\
             </Message></ReceiveMessageResult>\
             <ResponseMetadata><RequestId>id</RequestId></ResponseMetadata></ReceiveMessageResponse>"
        );
    }

    #[test]
    fn an_action_without_an_answer_has_no_result() {
        let xml = answer(Action::PurgeQueue, &json!({}), "id", 0);
        assert!(!xml.contains("PurgeQueueResult"), "{xml}");
        let xml = answer(Action::ListQueues, &json!({}), "id", 0);
        assert!(xml.contains("<ListQueuesResult/>"), "{xml}");
    }

    #[test]
    fn nothing_gets_out_of_its_element() {
        let xml = error("Sender", "X", "</Message><a>\u{0}\u{ffff}]]>", "id");
        assert!(xml.contains("<Message>&lt;/Message&gt;&lt;a&gt;\u{fffd}\u{fffd}]]&gt;</Message>"));
    }
}
