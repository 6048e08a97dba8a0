//! Exchanges and their bindings as bytes.

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{ExchangeId, ExchangeName, RoutingKey};

use super::{
    DecodeError, settings,
    wire::{Reader, Writer},
};
use crate::{
    BindTo, Binding, BindingOptions, ExchangeKind, ExchangeNotes, Filter, FilterScope, HeaderPair,
    HeadersMatch, KeyFrom, Pattern, TopicPattern, Unroutable,
};

const REJECT: u8 = 0;
const DROP: u8 = 1;
const ALTERNATE: u8 = 2;

const TO_QUEUE: u8 = 1;
const TO_EXCHANGE: u8 = 2;

const ALL_OF: u8 = 0;
const ANY_OF: u8 = 1;

// Fields of a binding. Every version that knows bindings knows them.
/// The scope of a filter, and its policy.
const FILTER: u8 = 1;
/// The name of the header from which a key comes. Empty: it comes from the routing key.
const KEY_FROM: u8 = 2;
/// There if a queue that is full is left out; it has no value.
const SKIP_WHEN_FULL: u8 = 3;
/// The topic in whose name copies are wrapped.
const ENVELOPE: u8 = 4;
/// The name of the queue that gets what the queue does not take.
const OVERFLOW: u8 = 5;

pub(super) fn write_unroutable(unroutable: Unroutable<ExchangeId>, writer: &mut Writer<'_>) {
    match unroutable {
        Unroutable::Reject => writer.byte(REJECT),
        Unroutable::Drop => writer.byte(DROP),
        Unroutable::Alternate(ExchangeId(id)) => {
            writer.byte(ALTERNATE);
            writer.number(u64::from(id));
        }
    }
}

pub(super) fn read_unroutable(
    reader: &mut Reader<'_>,
) -> Result<Unroutable<ExchangeId>, DecodeError> {
    Ok(match reader.byte()? {
        REJECT => Unroutable::Reject,
        DROP => Unroutable::Drop,
        ALTERNATE => Unroutable::Alternate(ExchangeId(reader.small()?)),
        number => return Err(reader.newer("rule for what cannot be routed", number)),
    })
}

pub(super) fn read_kind(reader: &mut Reader<'_>) -> Result<ExchangeKind, DecodeError> {
    let number = reader.byte()?;
    let kind = ExchangeKind::from_number(number);
    kind.ok_or_else(|| reader.newer("kind of exchange", number))
}

pub(super) fn exchange_name(reader: &mut Reader<'_>) -> Result<ExchangeName, DecodeError> {
    let text = reader.counted_text()?;
    ExchangeName::new(text).map_err(|_| reader.malformed("no exchange name"))
}

/// Writes a binding. Its fields come last, so nothing stands behind it.
pub(super) fn write_binding(binding: &Binding, writer: &mut Writer<'_>) {
    match binding.to {
        BindTo::Queue(queue) => {
            writer.byte(TO_QUEUE);
            writer.queue(queue);
        }
        BindTo::Exchange(ExchangeId(id)) => {
            writer.byte(TO_EXCHANGE);
            writer.number(u64::from(id));
        }
    }
    writer.byte(binding.pattern.kind() as u8);
    match &binding.pattern {
        Pattern::RoutingKey(key) => writer.bytes(key.as_str().as_bytes()),
        Pattern::Topic(pattern) => writer.bytes(pattern.as_str().as_bytes()),
        Pattern::Everything => {}
        Pattern::Headers(wanted) => {
            writer.byte(if wanted.is_any() { ANY_OF } else { ALL_OF });
            writer.number(wanted.pairs().len() as u64);
            for pair in wanted.pairs() {
                writer.bytes(pair.name.as_bytes());
                writer.byte(u8::from(pair.value.is_some()));
                if let Some(value) = &pair.value {
                    writer.bytes(value.as_bytes());
                }
            }
        }
    }
    let BindingOptions {
        filter,
        key_from,
        skip_when_full,
        envelope,
        overflow,
    } = &binding.options;
    if let Some(filter) = filter {
        writer.tagged(FILTER, |writer| {
            writer.byte(filter.scope() as u8);
            writer.raw(filter.text().as_bytes());
        });
    }
    match key_from {
        None => {}
        Some(KeyFrom::RoutingKey) => writer.tagged_bytes(KEY_FROM, b""),
        Some(KeyFrom::Header(name)) => writer.tagged_bytes(KEY_FROM, name.as_bytes()),
    }
    if *skip_when_full {
        writer.tagged_bytes(SKIP_WHEN_FULL, b"");
    }
    if let Some(topic) = envelope {
        writer.tagged_bytes(ENVELOPE, topic.as_bytes());
    }
    if let Some(queue) = overflow {
        writer.tagged_bytes(OVERFLOW, queue.as_str().as_bytes());
    }
}

/// Reads a binding up to the end.
pub(super) fn read_binding(reader: &mut Reader<'_>) -> Result<Binding, DecodeError> {
    let to = match reader.byte()? {
        TO_QUEUE => BindTo::Queue(reader.queue()?),
        TO_EXCHANGE => BindTo::Exchange(ExchangeId(reader.small()?)),
        number => return Err(reader.newer("place of a binding", number)),
    };
    let pattern = match read_kind(reader)? {
        ExchangeKind::Direct => {
            let key = RoutingKey::new(reader.counted_text()?);
            Pattern::RoutingKey(key.map_err(|_| reader.malformed("no routing key"))?)
        }
        ExchangeKind::Topic => {
            let pattern = TopicPattern::new(reader.counted_text()?);
            Pattern::Topic(pattern.map_err(|_| reader.malformed("no topic pattern"))?)
        }
        ExchangeKind::Fanout => Pattern::Everything,
        ExchangeKind::Headers => Pattern::Headers(Arc::new(read_headers(reader)?)),
    };
    let mut options = BindingOptions::default();
    reader.fields(|tag, value| {
        match tag {
            FILTER => {
                let number = value.byte()?;
                let scope = FilterScope::from_number(number);
                let scope = scope.ok_or_else(|| value.newer("scope of a filter", number))?;
                let filter = Filter::new(scope, value.rest_text()?);
                options.filter = Some(filter.map_err(|_| value.malformed("no filter"))?);
            }
            KEY_FROM => {
                options.key_from = Some(match value.rest_text()? {
                    "" => KeyFrom::RoutingKey,
                    name if name.len() > KeyFrom::HEADER_BYTES_MAX => {
                        return Err(value.malformed("the header of a key has too long a name"));
                    }
                    name => KeyFrom::Header(name.into()),
                });
            }
            SKIP_WHEN_FULL => options.skip_when_full = true,
            ENVELOPE => {
                let topic = value.rest_text()?;
                if !(1..=BindingOptions::ENVELOPE_BYTES_MAX).contains(&topic.len()) {
                    return Err(value.malformed("no topic of an envelope"));
                }
                options.envelope = Some(topic.into());
            }
            OVERFLOW => {
                let queue = value.rest_text()?;
                options.overflow = Some(settings::queue_name(queue, value)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let is_to_exchange = matches!(to, BindTo::Exchange(_));
    if is_to_exchange && options.only_to_queue().is_some() {
        return Err(reader.malformed("a binding to an exchange has what only one to a queue has"));
    }
    Ok(Binding {
        to,
        pattern,
        options,
    })
}

// Fields of notes.
const ANNOTATIONS: u8 = 1;
const TAGS: u8 = 2;

/// Writes notes. Their fields come last, so nothing stands behind them.
pub(super) fn write_notes(notes: &ExchangeNotes, writer: &mut Writer<'_>) {
    for (tag, map) in [(ANNOTATIONS, &notes.annotations), (TAGS, &notes.tags)] {
        if !map.is_empty() {
            writer.tagged(tag, |writer| settings::write_map(map, writer));
        }
    }
}

/// Reads notes up to the end.
pub(super) fn read_notes(reader: &mut Reader<'_>) -> Result<ExchangeNotes, DecodeError> {
    let mut notes = ExchangeNotes::default();
    reader.fields(|tag, value| {
        let map = match tag {
            ANNOTATIONS => &mut notes.annotations,
            TAGS => &mut notes.tags,
            _ => return Ok(false),
        };
        *map = settings::read_map(value)?;
        match map.is_empty() {
            true => Err(value.malformed("notes without any are left out")),
            false => Ok(true),
        }
    })?;
    match notes.bytes() > ExchangeNotes::BYTES_MAX {
        true => Err(reader.malformed("notes are longer than they can be")),
        false => Ok(notes),
    }
}

fn read_headers(reader: &mut Reader<'_>) -> Result<HeadersMatch, DecodeError> {
    let is_any = match reader.byte()? {
        ALL_OF => false,
        ANY_OF => true,
        number => return Err(reader.newer("match of headers", number)),
    };
    let count: usize = reader.small()?;
    if count > HeadersMatch::PAIRS_MAX {
        return Err(reader.malformed("a match has more headers than it can have"));
    }
    let mut pairs = Vec::with_capacity(count);
    for _ in 0..count {
        let name = reader.counted_text()?.into();
        let value = match reader.flag()? {
            true => Some(reader.counted_text()?.into()),
            false => None,
        };
        pairs.push(HeaderPair { name, value });
    }
    // Each match has one form, so that equal effects have equal bytes.
    let is_sorted = pairs.is_sorted();
    let wanted = HeadersMatch::checked(is_any, pairs)
        .ok()
        .filter(|_| is_sorted);
    wanted.ok_or_else(|| reader.malformed("no match of headers"))
}

/// Appends a binding for an image.
pub(crate) fn put_binding(binding: &Binding, out: &mut Vec<u8>) {
    write_binding(binding, &mut Writer::into(out));
}

/// Reads what [`put_binding`] appended.
pub(crate) fn binding_from(bytes: &Bytes) -> Option<Binding> {
    read_binding(&mut Reader::new(bytes)).ok()
}

/// Appends notes for an image.
pub(crate) fn put_notes(notes: &ExchangeNotes, out: &mut Vec<u8>) {
    write_notes(notes, &mut Writer::into(out));
}

/// Reads what [`put_notes`] appended.
pub(crate) fn notes_from(bytes: &Bytes) -> Option<ExchangeNotes> {
    read_notes(&mut Reader::new(bytes)).ok()
}
