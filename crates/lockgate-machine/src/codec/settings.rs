//! A queue's settings, annotations and tags as bytes.
//!
//! Every setting is written under the number of its row, even if it has its default: a later
//! version may have other defaults, which must not change an existing queue. A setting without a
//! value is not written, and a later one, from [`LEFT_OUT`] on, is not written at its default, which never changes. Before you add one, read "Changing it" in the module above.

use std::collections::BTreeMap;

use lockgate_core::{MachineTime, QueueName};

use super::{
    DecodeError,
    wire::{CRITICAL, Reader, Writer},
};
use crate::{
    QueueSettings,
    settings::{Kind, SETTINGS, Value},
};

/// Whether the queue is keyed: 0 or 1.
const KEYED: u8 = 1;
/// When the scope of unique ids last changed: machine time, milliseconds. Absent: never. A version
/// that does not know this field would take a duplicate for a new message. It has the last number,
/// so every setting comes before it.
const DEDUP_SCOPE_FROM: u8 = 127 | CRITICAL;

/// Settings from this number on came when there were queues, whose bytes must stay what they are.
const LEFT_OUT: u8 = 26;

pub(super) fn write(settings: &QueueSettings, writer: &mut Writer<'_>) {
    writer.tagged_bytes(KEYED, &[u8::from(settings.keyed)]);
    // Fields are in order of their numbers, rows in the order for readers.
    let mut rows: Vec<_> = SETTINGS.iter().collect();
    rows.sort_unstable_by_key(|setting| setting.number);
    let default = QueueSettings::default();
    for setting in rows {
        let number = setting.number;
        let value = setting.get(settings);
        if number & !CRITICAL >= LEFT_OUT && value == setting.get(&default) {
            continue;
        }
        match (value, setting.kind) {
            (Value::None, _) => {}
            (Value::Flag(flag), _) => writer.tagged_bytes(number, &[u8::from(flag)]),
            (Value::Word(word), Kind::Word(words)) => {
                // A linear search: there are few words.
                let at = words.iter().position(|other| *other == word).unwrap_or(0);
                writer.tagged_number(number, at as u64 + 1);
            }
            (Value::Word(_), _) => {}
            (Value::Number(value), _) => writer.tagged_number(number, value),
            (Value::Queue(name), _) => writer.tagged_bytes(number, name.as_str().as_bytes()),
            (Value::Limit(text), _) => writer.tagged_bytes(number, text.as_bytes()),
        }
    }
    if let Some(from) = settings.dedup_scope_from {
        writer.tagged_number(DEDUP_SCOPE_FROM, from.0);
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Box<QueueSettings>, DecodeError> {
    let mut settings = Box::new(QueueSettings::default());
    reader.fields(|tag, value| {
        match tag {
            KEYED => {
                settings.keyed = value.flag()?;
                return Ok(true);
            }
            DEDUP_SCOPE_FROM => {
                settings.dedup_scope_from = Some(MachineTime(value.number()?));
                return Ok(true);
            }
            _ => {}
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.number == tag) else {
            return Ok(false);
        };
        let read = match setting.kind {
            Kind::Flag => Value::Flag(value.flag()?),
            Kind::Word(words) => {
                let number = value.small::<u8>()?;
                match words.get(usize::from(number).wrapping_sub(1)) {
                    Some(word) => Value::Word(word),
                    None => return Err(value.newer(setting.name, number)),
                }
            }
            Kind::Count { .. } | Kind::Time { .. } | Kind::Bytes { .. } => {
                Value::Number(value.number()?)
            }
            Kind::Queue => Value::Queue(queue_name(value.rest_text()?, value)?),
            Kind::Rate | Kind::Concurrency | Kind::Gap => {
                Value::Limit(value.rest_text()?.to_owned())
            }
        };
        match setting.set(&mut settings, read) {
            Ok(()) => Ok(true),
            Err(_) => Err(value.malformed("a setting is out of its bounds")),
        }
    })?;
    Ok(settings)
}

/// For each entry in order of names: the name and the value, each with its length.
pub(super) fn write_map(map: &BTreeMap<String, String>, writer: &mut Writer<'_>) {
    for (name, value) in map {
        writer.bytes(name.as_bytes());
        writer.bytes(value.as_bytes());
    }
}

pub(super) fn read_map(reader: &mut Reader<'_>) -> Result<BTreeMap<String, String>, DecodeError> {
    let mut map = BTreeMap::new();
    while !reader.is_at_end() {
        let name = reader.counted_text()?.to_owned();
        let value = reader.counted_text()?.to_owned();
        if map.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(reader.malformed("names are not in rising order"));
        }
        map.insert(name, value);
    }
    Ok(map)
}

pub(super) fn queue_name(text: &str, reader: &Reader<'_>) -> Result<QueueName, DecodeError> {
    QueueName::new(text).map_err(|_| reader.malformed("no queue name"))
}
