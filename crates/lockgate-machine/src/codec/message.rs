//! A stored message as bytes.
//!
//! To change it, read "Changing it" in the module above. Fields, with the numbers taken for ever:

use std::{num::NonZeroU64, sync::Arc};

use lockgate_core::{Header, Key, Level, Message, MessageId, ProducerMark, UniqueId};

use super::{
    DecodeError,
    wire::{Reader, Writer},
};
use crate::StoredMessage;

/// Bytes to the end. Absent: an empty body.
const BODY: u8 = 1;
/// For each header: name, kind, value, each with its length. Absent: none.
const HEADERS: u8 = 2;
/// Text.
const KEY: u8 = 3;
/// Text.
const UNIQUE_ID: u8 = 4;
/// Machine time.
const UNIQUE_UNTIL: u8 = 5;
/// Lane, number, producer's name to the end.
const PRODUCER: u8 = 6;
/// Wall time.
const DUE: u8 = 7;
/// Milliseconds.
const TIME_TO_LIVE: u8 = 8;
/// One byte. Absent: 0.
const PRIORITY: u8 = 9;
/// Text.
const CONTENT_TYPE: u8 = 10;
/// Text.
const TRACE_CONTEXT: u8 = 11;
/// One byte: the level's number. Absent: the queue's level.
const LEVEL: u8 = 12;
/// The number among its key's messages. Absent: none.
const KEY_SEQUENCE: u8 = 16;
// Taken for what no version writes yet, see docs/format.md:
// 13  group (beside a key)
// 14  origin queue
// 15  dead-letter reason

pub(super) fn write(stored: &StoredMessage, writer: &mut Writer<'_>) {
    let StoredMessage {
        queue,
        sequence,
        id,
        accepted,
        unique_until,
        key_sequence,
        message,
    } = stored;
    let Message {
        body,
        headers,
        key,
        unique_id,
        producer,
        due,
        time_to_live,
        priority,
        content_type,
        trace_context,
        level,
    } = message;
    writer.queue(*queue);
    writer.number(sequence.0);
    writer.raw(&id.to_bits().to_le_bytes());
    writer.number(accepted.0);

    if !body.is_empty() {
        writer.tagged_bytes(BODY, body);
    }
    if !headers.is_empty() {
        writer.tagged(HEADERS, |writer| {
            for Header { name, kind, value } in headers {
                writer.bytes(name.as_bytes());
                writer.bytes(kind.as_bytes());
                writer.bytes(value);
            }
        });
    }
    if let Some(key) = key {
        writer.tagged_bytes(KEY, key.as_str().as_bytes());
    }
    if let Some(id) = unique_id {
        writer.tagged_bytes(UNIQUE_ID, id.as_str().as_bytes());
    }
    if let Some(until) = unique_until {
        writer.tagged_number(UNIQUE_UNTIL, until.0);
    }
    if let Some(mark) = producer {
        writer.tagged(PRODUCER, |writer| {
            writer.number(u64::from(mark.lane));
            writer.number(mark.number);
            writer.raw(mark.producer.as_bytes());
        });
    }
    if let Some(due) = due {
        writer.tagged_number(DUE, due.0);
    }
    if let Some(span) = time_to_live {
        writer.tagged_number(TIME_TO_LIVE, *span);
    }
    if *priority != 0 {
        writer.tagged_bytes(PRIORITY, &[*priority]);
    }
    if let Some(text) = content_type {
        writer.tagged_bytes(CONTENT_TYPE, text.as_bytes());
    }
    if let Some(text) = trace_context {
        writer.tagged_bytes(TRACE_CONTEXT, text.as_bytes());
    }
    if let Some(level) = level {
        writer.tagged_bytes(LEVEL, &[*level as u8]);
    }
    if let Some(number) = key_sequence {
        writer.tagged_number(KEY_SEQUENCE, number.get());
    }
}

pub(super) fn read(mut reader: Reader<'_>) -> Result<StoredMessage, DecodeError> {
    let mut stored = StoredMessage {
        queue: reader.queue()?,
        sequence: reader.sequence()?,
        id: MessageId::from_bits(u128::from_le_bytes(reader.array()?)),
        accepted: reader.wall()?,
        unique_until: None,
        key_sequence: None,
        message: Message::default(),
    };
    let message = &mut stored.message;
    reader.fields(|tag, value| {
        match tag {
            BODY => message.body = value.rest(),
            HEADERS => {
                while !value.is_at_end() {
                    message.headers.push(Header {
                        name: value.counted_text()?.into(),
                        kind: value.counted_text()?.into(),
                        value: value.bytes()?,
                    });
                }
            }
            KEY => message.key = Some(key(value.rest_text()?, value)?),
            UNIQUE_ID => {
                let id = UniqueId::new(value.rest_text()?);
                message.unique_id = Some(id.map_err(|_| value.malformed("no unique id"))?);
            }
            UNIQUE_UNTIL => stored.unique_until = Some(value.machine()?),
            PRODUCER => {
                message.producer = Some(ProducerMark {
                    lane: value.small()?,
                    number: value.number()?,
                    producer: Arc::from(value.rest_text()?),
                });
            }
            DUE => message.due = Some(value.wall()?),
            TIME_TO_LIVE => message.time_to_live = Some(value.number()?),
            PRIORITY => message.priority = value.byte()?,
            CONTENT_TYPE => message.content_type = Some(value.rest_text()?.into()),
            TRACE_CONTEXT => message.trace_context = Some(value.rest_text()?.into()),
            LEVEL => message.level = Some(level(value)?),
            KEY_SEQUENCE => {
                let number = NonZeroU64::new(value.number()?);
                stored.key_sequence =
                    Some(number.ok_or_else(|| value.malformed("a key sequence begins at 1"))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(stored)
}

pub(super) fn key(text: &str, reader: &Reader<'_>) -> Result<Key, DecodeError> {
    Key::new(text).map_err(|_| reader.malformed("no key"))
}

/// A level's number.
pub(super) fn level(reader: &mut Reader<'_>) -> Result<Level, DecodeError> {
    let number = reader.byte()?;
    Level::from_number(number).ok_or_else(|| reader.newer("durability level", number))
}
