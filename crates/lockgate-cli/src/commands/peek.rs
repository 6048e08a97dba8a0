//! `lockgate peek`, and pages of what the admin API lists.

use hyper::Method;
use serde_json::Value;

use super::{NOTHING, block_on, client, part};
use crate::{
    args::Peek,
    client::Client,
    exit::Failure,
    output::{Output, Table},
};

/// Characters of a body, or of an error, in a table.
const BODY_CHARS_MAX: usize = 40;

pub(super) fn run(args: &Peek) -> Result<(), Failure> {
    let client = client(&args.settings)?;
    block_on(async {
        let target = format!("/queues/{}/messages", part(&args.queue));
        let messages = match &args.id {
            Some(id) => {
                let target = format!("{target}/{}", part(id));
                vec![client.call(Method::GET, &target, NOTHING).await?]
            }
            None => {
                let mut target = format!("{target}?limit=100");
                for (name, value) in [
                    ("key", &args.key),
                    ("group", &args.group),
                    ("state", &args.state),
                ] {
                    if let Some(value) = value {
                        target.push_str(&format!("&{name}={}", part(value)));
                    }
                }
                pages(&client, &target, "messages", args.max).await?
            }
        };
        let header = [
            "ID",
            "STATE",
            "KEY OR GROUP",
            "PRIORITY",
            "ATTEMPTS",
            "HOLDER",
            "SENT",
            "LAST ERROR",
            "BODY",
        ];
        print(args.json, &messages, header, |message| {
            [
                text(&message["id"]),
                text(&message["state"]),
                key(message),
                text(&message["priority"]),
                text(&message["attempts"]),
                text(&message["holder"]),
                text(&message["sent_at"]),
                last_error(message).unwrap_or_default(),
                body(message),
            ]
        })
    })
}

/// Up to `max` items of a list, page after page. `target` has its parameters, but for the page.
pub(super) async fn pages(
    client: &Client,
    target: &str,
    items: &str,
    max: u64,
) -> Result<Vec<Value>, Failure> {
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    let mut page = String::new();
    loop {
        let target = format!("{target}{page}");
        let mut answer: Value = client.call(Method::GET, &target, NOTHING).await?;
        if let Value::Array(items) = answer[items].take() {
            found.extend(items);
        }
        match answer["next_page"].as_str() {
            Some(next) if found.len() < max => page = format!("&page={}", part(next)),
            _ => break,
        }
    }
    found.truncate(max);
    Ok(found)
}

/// Items as JSON lines, or as a table.
pub(super) fn print<const COLUMNS: usize>(
    json: bool,
    items: &[Value],
    header: [&'static str; COLUMNS],
    row: impl Fn(&Value) -> [String; COLUMNS],
) -> Result<(), Failure> {
    let mut output = Output::new();
    if json {
        for item in items {
            output.json(item)?;
        }
    } else {
        let mut table = Table::new(header);
        for item in items {
            table.row(row(item));
        }
        output.table(&table)?;
    }
    output.flush()
}

/// A value as it stands in a table; nothing for what is not there.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The key of a message, or its group.
pub(super) fn key(message: &Value) -> String {
    text(match &message["key"] {
        Value::Null => &message["group"],
        key => key,
    })
}

/// The beginning of the last reason of a nack.
pub(super) fn last_error(message: &Value) -> Option<String> {
    let error = message["failures"].as_array()?.last()?["error"].as_str()?;
    Some(beginning(error))
}

pub(super) fn beginning(text: &str) -> String {
    match text.char_indices().nth(BODY_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The beginning of a body, and its size where that is not text.
pub(super) fn body(message: &Value) -> String {
    if message["damaged"] == true {
        return "(damaged)".to_owned();
    }
    if message["body_encoding"] == "base64" {
        return format!("({} bytes)", message["bytes"]);
    }
    beginning(&text(&message["body"]))
}
