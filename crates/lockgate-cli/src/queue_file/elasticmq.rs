//! ElasticMQ's form: `queues { ... }` in the file that its server is configured with.

use std::collections::BTreeMap;

use lockgate_core::{QueueName, units};
use lockgate_machine::{Setting, SettingValue};

use super::{
    Entry, Found, Parsed, Remark,
    hocon::{self, Node, Object, Value},
};

/// Milliseconds of HOCON's units of time that are a millisecond or longer.
const UNITS: [(&[&str], u64); 5] = [
    (
        &["", "ms", "milli", "millis", "millisecond", "milliseconds"],
        1,
    ),
    (&["s", "second", "seconds"], 1_000),
    (&["m", "minute", "minutes"], 60_000),
    (&["h", "hour", "hours"], 3_600_000),
    (&["d", "day", "days"], 86_400_000),
];
const KNOWN: &str = "there are defaultVisibilityTimeout, delay, receiveMessageWait, deadLettersQueue, \
                     fifo, contentBasedDeduplication and tags";
/// What ElasticMQ itself writes into a file of queues, and what says nothing of how a queue is to be.
const TIMES_OF_CHANGE: [&str; 2] = ["created", "lastModified"];

pub(super) fn parse(text: &str) -> Parsed {
    let root = hocon::parse(text).map_err(|(line, what)| vec![Remark::new(line, what)])?;
    let mut warnings = includes(&root);
    for (name, node) in root.members.iter().filter(|(name, _)| name != "queues") {
        let what = format!("{name} is not read: only `queues` is; see `lockgate serve --help`");
        warnings.push(Remark::new(node.line, what));
    }
    let queues = match root.get("queues") {
        Some(Node {
            value: Value::Object(queues),
            ..
        }) => queues,
        Some(node) => return Err(vec![Remark::new(node.line, "queues: expected { ... }")]),
        None => {
            let what = "there is no `queues { ... }` in it";
            return Err(vec![Remark::new(1, what)]);
        }
    };
    warnings.extend(includes(queues));
    let mut problems = Vec::new();
    let mut entries: Vec<Entry> = Vec::new();
    for (name, node) in &queues.members {
        let mut reading = Reading {
            name,
            problems: &mut problems,
            warnings: &mut warnings,
        };
        entries.extend(reading.queue(node));
    }
    name_dead_letters(&mut entries);
    if problems.is_empty() {
        let found = Found {
            queues: entries,
            ..Found::default()
        };
        Ok((found, warnings))
    } else {
        Err(problems)
    }
}

fn includes(object: &Object) -> Vec<Remark> {
    let tell = |(line, text): &(usize, String)| {
        Remark::new(*line, format!("{text}: what it includes is not read"))
    };
    object.includes.iter().map(tell).collect()
}

/// ElasticMQ ends the names of FIFO queues in `.fifo` where the file does not; a dead-letter queue may
/// be named as the file names it.
fn name_dead_letters(entries: &mut [Entry]) {
    let names: Vec<String> = entries
        .iter()
        .map(|entry| entry.queue.name.clone())
        .collect();
    for entry in entries {
        for (_, value) in &mut entry.queue.settings {
            let SettingValue::Queue(target) = value else {
                continue;
            };
            let fifo = format!("{target}.fifo");
            if !names.iter().any(|name| name == target.as_str())
                && names.contains(&fifo)
                && let Ok(fifo) = QueueName::new(&fifo)
            {
                *target = fifo;
            }
        }
    }
}

struct Reading<'a> {
    /// The queue, as the file names it.
    name: &'a str,
    problems: &'a mut Vec<Remark>,
    warnings: &'a mut Vec<Remark>,
}

impl Reading<'_> {
    fn problem(&mut self, line: usize, what: impl std::fmt::Display) {
        let text = format!("queue {:?}: {what}", self.name);
        self.problems.push(Remark::new(line, text));
    }

    fn queue(&mut self, node: &Node) -> Option<Entry> {
        let Value::Object(object) = &node.value else {
            self.problem(node.line, "expected { ... }");
            return None;
        };
        self.warnings.extend(includes(object));
        let mut entry = Entry {
            line: node.line,
            ..Entry::default()
        };
        let mut fifo = false;
        for (key, node) in &object.members {
            let line = node.line;
            let setting = match key.as_str() {
                "defaultVisibilityTimeout" => Some(("lease", time(node))),
                "delay" => Some(("delay", time(node))),
                "receiveMessageWait" => Some(("receive_wait", time(node))),
                "contentBasedDeduplication" => {
                    let truth = truth(node);
                    // Its own default, which says nothing.
                    let is_default = truth == Ok(false);
                    let truth = truth.map(|truth| truth.to_string());
                    (!is_default).then_some(("dedup_content", truth))
                }
                "fifo" => {
                    match truth(node) {
                        Ok(truth) => fifo = truth,
                        Err(what) => self.problem(line, format!("fifo: {what}")),
                    }
                    None
                }
                "deadLettersQueue" => {
                    match dead_letter(node) {
                        Ok([queue, attempts]) => {
                            self.set(&mut entry, line, key, "dead_letter", Ok(queue));
                            self.set(&mut entry, line, key, "attempts_max", Ok(attempts));
                        }
                        Err((line, what)) => {
                            self.problem(line, format!("deadLettersQueue: {what}"));
                        }
                    }
                    None
                }
                "tags" => {
                    entry.tags_line = line;
                    match tags(node) {
                        Ok(tags) => entry.queue.tags = tags,
                        Err((line, what)) => self.problem(line, format!("tags: {what}")),
                    }
                    None
                }
                "copyTo" | "moveTo" => {
                    let what = format!(
                        "{key} is not supported, a message goes to one queue only: remove it, and let \
                         the sender send to both queues"
                    );
                    self.problem(line, what);
                    None
                }
                key if TIMES_OF_CHANGE.contains(&key) => None,
                _ => {
                    self.problem(line, format!("unknown key {key:?}; {KNOWN}"));
                    None
                }
            };
            if let Some((name, text)) = setting {
                self.set(&mut entry, line, key, name, text);
            }
        }
        let suffix = if fifo && !self.name.ends_with(".fifo") {
            ".fifo"
        } else {
            ""
        };
        entry.queue.name = format!("{}{suffix}", self.name);
        Some(entry)
    }

    /// Takes over what the file calls `key`.
    fn set(
        &mut self,
        entry: &mut Entry,
        line: usize,
        key: &str,
        name: &str,
        text: Result<String, String>,
    ) {
        let Some(setting) = Setting::named(name) else {
            return;
        };
        let value = text.and_then(|text| setting.parse(&text).map_err(|error| error.to_string()));
        match value {
            Ok(value) => entry.set(line, setting, value),
            Err(what) => self.problem(line, format!("{key}: {what}")),
        }
    }
}

fn text(node: &Node) -> Result<&str, String> {
    match &node.value {
        Value::Text(text) => Ok(text),
        Value::Substitution(text) => Err(format!("{text} is not replaced here; write the value")),
        Value::Object(_) | Value::Array(_) => Err("expected one value".to_owned()),
    }
}

fn truth(node: &Node) -> Result<bool, String> {
    match text(node)? {
        "true" | "yes" | "on" => Ok(true),
        "false" | "no" | "off" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

/// A duration, as settings are written.
fn time(node: &Node) -> Result<String, String> {
    let text = text(node)?;
    let bad = || format!("{text:?} is no duration such as 10 seconds");
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| bad())?;
    let unit = text[digits..].trim();
    let (_, millis) = UNITS
        .iter()
        .find(|(names, _)| names.contains(&unit))
        .ok_or_else(bad)?;
    let millis = number.checked_mul(*millis).ok_or_else(bad)?;
    if unit.is_empty() && millis % 1_000 != 0 {
        // What ElasticMQ makes 0 of in silence, and nobody means.
        return Err(format!(
            "{text:?} without a unit is milliseconds in HOCON: write {text} seconds"
        ));
    }
    Ok(units::show_millis(millis))
}

/// The dead-letter queue, and how many attempts a message has.
fn dead_letter(node: &Node) -> Result<[String; 2], (usize, String)> {
    let here = |what: String| (node.line, what);
    let Value::Object(object) = &node.value else {
        return Err(here(
            "expected { name = ..., maxReceiveCount = ... }".to_owned(),
        ));
    };
    let member = |name: &str| {
        let node = object
            .get(name)
            .ok_or_else(|| here(format!("{name} is missing")))?;
        text(node).map_err(|what| (node.line, format!("{name}: {what}")))
    };
    let name = member("name")?.to_owned();
    Ok([name, member("maxReceiveCount")?.to_owned()])
}

fn tags(node: &Node) -> Result<BTreeMap<String, String>, (usize, String)> {
    let Value::Object(object) = &node.value else {
        return Err((node.line, "expected { name = value, ... }".to_owned()));
    };
    let tag = |(key, node): &(String, Node)| match text(node) {
        Ok(text) => Ok((key.clone(), text.to_owned())),
        Err(what) => Err((node.line, format!("{key}: {what}"))),
    };
    object.members.iter().map(tag).collect()
}
