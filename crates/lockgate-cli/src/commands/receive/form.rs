//! What a message that was received looks like: text on a terminal, a line of JSON for programs.

use serde_json::{Value, value::RawValue};

use super::Sink;
use crate::{
    args::Receive,
    commands::peek,
    exit::{Exit, Failure},
    output::printable,
};

/// How messages are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As the server wrote it, one message a line: nothing that it says is lost on the way.
    Json,
    /// For people.
    Text {
        /// Whether somebody can still settle the message.
        receipt: bool,
    },
}

impl Form {
    pub(super) fn of(args: &Receive, sink: Sink) -> Self {
        if args.json || sink != Sink::Terminal {
            return Self::Json;
        }
        Self::Text {
            receipt: !args.ack && !args.nack,
        }
    }

    /// A message as it is printed, with a line feed at its end.
    pub(super) fn write(self, message: &RawValue) -> Result<Vec<u8>, Failure> {
        let text = match self {
            Self::Json => format!("{}\n", message.get()),
            Self::Text { receipt } => {
                let message = serde_json::from_str(message.get()).map_err(|error| {
                    Failure::from_error(Exit::Failed, error).context("reading a message")
                })?;
                text(&message, receipt)
            }
        };
        Ok(text.into_bytes())
    }
}

/// Names and values, an empty line, the body, an empty line.
fn text(message: &Value, receipt: bool) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: &Value| {
        if !value.is_null() {
            // A line feed in a value must not look like another row.
            let value = printable(&peek::text(value)).replace('\n', "\\n");
            text.push_str(&format!("{name:<13} {value}\n"));
        }
    };
    row("message", &message["id"]);
    for name in [
        "key",
        "group",
        "unique_id",
        "attempt",
        "priority",
        "sent_at",
        "content_type",
    ] {
        row(&name.replace('_', " "), &message[name]);
    }
    for (name, header) in message["headers"].as_object().into_iter().flatten() {
        row(
            "header",
            &format!("{name}={}", peek::text(&header["value"])).into(),
        );
    }
    row("from", &message["origin"]["queue"]);
    for failure in message["failures"].as_array().into_iter().flatten() {
        let [attempt, error] = ["attempt", "error"].map(|name| peek::text(&failure[name]));
        row("failed", &format!("attempt {attempt}: {error}").into());
    }
    if receipt {
        row("lease ends at", &message["lease_ends_at"]);
        row("receipt", &message["receipt"]);
    }
    let body = match message["body_encoding"].as_str() {
        Some("base64") => "(the body is not text: --json prints it in base64)".to_owned(),
        _ => printable(&peek::text(&message["body"])),
    };
    text.push_str(&format!("\n{}\n\n", body.trim_end_matches('\n')));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_are_rows() {
        let message = json!({"id": "i", "body": "",
            "failures": [{"attempt": 2, "at": "then", "error": "no\nstock"}]});
        assert_eq!(
            text(&message, false),
            "message       i\nfailed        attempt 2: no\\nstock\n\n\n\n"
        );
    }

    #[test]
    fn no_message_can_write_to_the_terminal_what_it_likes() {
        let message = json!({"id": "i", "key": "a\nreceipt b", "body": "\u{1b}[2Jx\ny\n",
            "headers": {"h": {"type": "String", "value": "\r"}}, "receipt": "r"});
        assert_eq!(
            text(&message, false),
            "message       i\nkey           a\\nreceipt b\nheader        h=\\r\n\n\\u{1b}[2Jx\ny\n\n"
        );
    }
}
