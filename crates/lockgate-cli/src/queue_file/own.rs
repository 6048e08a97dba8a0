//! Lockgate's own form: TOML with a `[[queue]]` for each.

use std::collections::BTreeMap;

use lockgate_server::DeclaredQueue;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Entry, Parsed, Remark};
use crate::units;

/// Times that have words of their own here, as they have for `lockgate queue create`.
const TIMES: [(&str, &str); 3] = [
    ("lease", "VisibilityTimeout"),
    ("delay", "DelaySeconds"),
    ("retention", "MessageRetentionPeriod"),
];
/// Attributes whose numbers are seconds, and may be written with a unit.
const SECONDS: [&str; 5] = [
    "VisibilityTimeout",
    "DelaySeconds",
    "MessageRetentionPeriod",
    "ReceiveMessageWaitTimeSeconds",
    "KmsDataKeyReusePeriodSeconds",
];
/// The attribute whose number is bytes.
const BYTES: &str = "MaximumMessageSize";
const KNOWN: &str = "there are name, lease, delay, retention, dead_letter, attributes and tags";
const EXAMPLE: &str = "dead_letter = { queue = \"orders-dead\", attempts = 5 }";

pub(super) fn parse(text: &str) -> Parsed {
    let ends = text.match_indices('\n').map(|(at, _)| at);
    let mut reading = Reading {
        line_ends: ends.collect(),
        problems: Vec::new(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = error.span().map_or(0, |span| span.start);
        reading.problem(at, error.message());
    }
    let mut queues = Vec::new();
    if reading.problems.is_empty() {
        for (key, value) in table.get_ref() {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("queue", DeValue::Array(items)) => {
                    queues.extend(items.iter().filter_map(|item| reading.queue(item)));
                }
                ("queue", _) => reading.problem(at, "queue: expected [[queue]], once for each"),
                (name, _) => {
                    reading.problem(at, format!("unknown key {name:?}; expected [[queue]]"));
                }
            }
        }
    }
    if reading.problems.is_empty() {
        Ok((queues, Vec::new()))
    } else {
        reading.problems.sort_by_key(|problem| problem.line);
        Err(reading.problems)
    }
}

struct Reading {
    /// Where lines end, in bytes: counting them anew for every key would take time with its square.
    line_ends: Vec<usize>,
    problems: Vec<Remark>,
}

impl Reading {
    fn line(&self, at: usize) -> usize {
        1 + self.line_ends.partition_point(|&end| end < at)
    }

    fn problem(&mut self, at: usize, text: impl Into<String>) {
        let line = self.line(at);
        self.problems.push(Remark::new(line, text));
    }

    fn queue(&mut self, item: &Spanned<DeValue<'_>>) -> Option<Entry> {
        let start = item.span().start;
        let DeValue::Table(table) = item.get_ref() else {
            self.problem(start, "queue: expected [[queue]], once for each");
            return None;
        };
        let mut entry = Entry {
            line: self.line(start),
            ..Entry::default()
        };
        for (key, value) in table {
            let at = key.span().start;
            let name = key.get_ref().as_ref();
            let time = TIMES.iter().find(|(word, _)| *word == name);
            match (name, value.get_ref()) {
                ("name", DeValue::String(name)) => {
                    entry.line = self.line(at);
                    entry.queue.name = name.to_string();
                }
                ("attributes", DeValue::Table(table)) => {
                    for (key, value) in table {
                        let (at, name) = (key.span().start, key.get_ref().as_ref());
                        self.attribute(&mut entry, at, name, attribute(name, value.get_ref()));
                    }
                }
                ("tags", DeValue::Table(table)) => {
                    entry.tags_line = self.line(at);
                    entry.queue.tags = self.tags(table);
                }
                ("dead_letter", DeValue::Table(table)) => {
                    entry.dead_letter_line = self.line(at);
                    entry.queue.dead_letter = self.dead_letter(at, table);
                }
                ("name", _) => self.problem(at, "name: expected a text"),
                ("attributes" | "tags", _) => {
                    self.problem(at, format!("{name}: expected a table, {name} = {{ ... }}"));
                }
                ("dead_letter", _) => self.problem(at, format!("dead_letter: expected {EXAMPLE}")),
                (_, value) => match time {
                    Some((_, attribute)) => {
                        self.attribute(&mut entry, at, attribute, time_of(name, value));
                    }
                    None => self.problem(at, format!("unknown key {name:?}; {KNOWN}")),
                },
            }
        }
        if entry.queue == DeclaredQueue::default() || entry.queue.name.is_empty() {
            self.problem(start, "a queue needs a name: name = \"orders\"");
        }
        Some(entry)
    }

    fn attribute(
        &mut self,
        entry: &mut Entry,
        at: usize,
        name: &str,
        value: Result<String, String>,
    ) {
        let line = self.line(at);
        match value {
            Err(what) => self.problem(at, what),
            Ok(value) => {
                if entry
                    .queue
                    .attributes
                    .insert(name.to_owned(), value)
                    .is_some()
                {
                    self.problem(at, format!("{name} is given twice; keep one"));
                }
                entry.attribute_lines.insert(name.to_owned(), line);
            }
        }
    }

    fn tags(&mut self, table: &DeTable<'_>) -> BTreeMap<String, String> {
        let mut tags = BTreeMap::new();
        for (key, value) in table {
            match plain(value.get_ref()) {
                Some(value) => {
                    tags.insert(key.get_ref().to_string(), value);
                }
                None => {
                    let what = format!("tag {}: expected a text", key.get_ref());
                    self.problem(key.span().start, what);
                }
            }
        }
        tags
    }

    fn dead_letter(&mut self, at: usize, table: &DeTable<'_>) -> Option<(String, u64)> {
        let mut queue = None;
        let mut attempts = None;
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("queue", DeValue::String(name)) => queue = Some(name.to_string()),
                ("attempts", value) => {
                    attempts = plain(value).and_then(|text| text.parse().ok());
                }
                _ => {}
            }
        }
        let whole = queue.zip(attempts).filter(|_| table.len() == 2);
        if whole.is_none() {
            self.problem(at, format!("dead_letter: expected {EXAMPLE}"));
        }
        whole
    }
}

/// The value of an attribute as SQS takes it.
fn attribute(name: &str, value: &DeValue<'_>) -> Result<String, String> {
    let text = plain(value).ok_or_else(|| {
        let found = value.type_str();
        format!("{name}: a value of type {found} does not fit here; write a text or a number")
    })?;
    // A bare number is what SQS says it is.
    if text.parse::<u64>().is_ok() {
        return Ok(text);
    }
    let told = |what| format!("{name}: {what}");
    if SECONDS.contains(&name) {
        let time = units::whole_seconds(&text).map_err(told)?;
        Ok(time.as_secs().to_string())
    } else if name == BYTES {
        units::size(&text)
            .map(|bytes| bytes.to_string())
            .map_err(told)
    } else {
        Ok(text)
    }
}

/// A time under a word of ours, which always has a unit.
fn time_of(word: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => units::whole_seconds(text)
            .map(|time| time.as_secs().to_string())
            .map_err(|what| format!("{word}: {what}")),
        other => {
            let text = plain(other).unwrap_or_else(|| other.type_str().to_owned());
            Err(format!(
                "{word}: {text} is no duration: write it with a unit, such as \"30s\""
            ))
        }
    }
}

fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().replace('_', "")),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_uses_up_the_stack() {
        let small = std::thread::Builder::new().stack_size(128 << 10);
        let reading = small.spawn(|| {
            for text in [
                "a = ".to_owned() + &"[".repeat(300_000),
                "a = ".to_owned() + &"{a=".repeat(300_000),
                "a = ".to_owned() + &"[{a=".repeat(300_000),
                "a.".repeat(300_000) + "b = 1",
                "[".to_owned() + &"a.".repeat(300_000) + "b]",
                "[[".to_owned() + &"a.".repeat(300_000) + "b]]",
                "a = {".to_owned() + &"a.".repeat(300_000) + "b = 1}",
                "[[queue]]\n[queue.a]\n".repeat(20_000),
            ] {
                parse(&text).unwrap_err();
            }
        });
        reading.unwrap().join().unwrap();
    }
}
