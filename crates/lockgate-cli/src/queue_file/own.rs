//! Lockgate's own form: TOML with a `[[queue]]`, an `[[exchange]]` and a `[[schedule]]` for each.

use std::collections::BTreeMap;

use lockgate_machine::{SETTINGS, Setting, SettingValue};
use lockgate_server::DeclaredQueue;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{Entry, Found, Parsed, Remark};

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
    let mut found = Found::default();
    if reading.problems.is_empty() {
        for (key, value) in table.get_ref() {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("queue", DeValue::Array(items)) => {
                    let queues = items.iter().filter_map(|item| reading.queue(item));
                    found.queues.extend(queues);
                }
                ("exchange", DeValue::Array(items)) => {
                    let exchanges = items.iter().filter_map(|item| reading.exchange(item));
                    found.exchanges.extend(exchanges);
                }
                ("schedule", DeValue::Array(items)) => {
                    let schedules = items.iter().filter_map(|item| reading.schedule(item));
                    found.schedules.extend(schedules);
                }
                ("schedule", _) => {
                    reading.problem(at, "schedule: expected [[schedule]], once for each");
                }
                ("queue", _) => reading.problem(at, "queue: expected [[queue]], once for each"),
                ("exchange", _) => {
                    reading.problem(at, "exchange: expected [[exchange]], once for each");
                }
                (name, _) => {
                    reading.problem(
                        at,
                        format!(
                            "unknown key {name:?}; expected [[queue]], [[exchange]] or [[schedule]]"
                        ),
                    );
                }
            }
        }
    }
    if reading.problems.is_empty() {
        Ok((found, Vec::new()))
    } else {
        reading.problems.sort_by_key(|problem| problem.line);
        Err(reading.problems)
    }
}

pub(super) struct Reading {
    /// Where lines end, in bytes: counting them anew for every key would take time with its square.
    line_ends: Vec<usize>,
    pub(super) problems: Vec<Remark>,
}

impl Reading {
    pub(super) fn line(&self, at: usize) -> usize {
        1 + self.line_ends.partition_point(|&end| end < at)
    }

    pub(super) fn problem(&mut self, at: usize, text: impl Into<String>) {
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
            match (name, value.get_ref()) {
                ("name", DeValue::String(name)) => {
                    entry.line = self.line(at);
                    entry.queue.name = name.to_string();
                }
                ("tags", DeValue::Table(table)) => {
                    entry.tags_line = self.line(at);
                    entry.queue.tags = self.tags(table);
                }
                ("name", _) => self.problem(at, "name: expected a text"),
                ("tags", _) => self.problem(at, "tags: expected a table, tags = { ... }"),
                (_, value) => match Setting::named(name) {
                    Some(setting) => match read(setting, value) {
                        Ok(value) => entry.set(self.line(at), setting, value),
                        Err(what) => self.problem(at, what),
                    },
                    None => self.problem(at, format!("unknown key {name:?}; {}", known())),
                },
            }
        }
        if entry.queue == DeclaredQueue::default() || entry.queue.name.is_empty() {
            self.problem(start, "a queue needs a name: name = \"orders\"");
        }
        Some(entry)
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
}

/// The value of a setting: a text as people write it, or a number or truth. A time or size needs a unit, which
/// only a text has.
fn read(setting: &Setting, value: &DeValue<'_>) -> Result<SettingValue, String> {
    let text = plain(value).ok_or_else(|| {
        let found = value.type_str();
        format!(
            "{}: a value of type {found} does not fit here; it must be {}",
            setting.name,
            setting.values()
        )
    })?;
    if let (DeValue::Integer(_), Some(better)) = (value, setting.with_unit(&text)) {
        let (name, values) = (setting.name, setting.values());
        return Err(format!(
            "{name} must be {values}, not {text}: write {name} = \"{better}\""
        ));
    }
    setting.parse(&text).map_err(|error| error.to_string())
}

/// What a queue may have, in words.
fn known() -> String {
    let settings: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    format!("there are name, tags, {}", settings.join(", "))
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
                "[[exchange]]\n[[exchange.bind]]\n".repeat(20_000),
            ] {
                parse(&text).unwrap_err();
            }
        });
        reading.unwrap().join().unwrap();
    }
}
