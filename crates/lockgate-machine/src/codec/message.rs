//! A stored message as bytes.
//!
//! Before you change it, read "Changing it" in the module above. Fields, whose numbers are never reused:

use std::num::NonZeroU64;

use lockgate_core::{
    Header, Key, Level, MachineTime, Message, MessageId, Millis, PRIORITY_MAX, Produced,
    ProducerIncarnation, ProducerMark, ProducerName, QueueId, Sequence, UniqueId, WallTime,
};

use super::{
    CRITICAL, DecodeError,
    wire::{Reader, Stretch, Writer},
};
use crate::{
    Payload, StoredMessage,
    effect::{Arrival, ArrivalMark, ArrivalNumbers, KeyText},
};

/// All bytes to the end. Absent: an empty body.
const BODY: u8 = 1;
/// For each header: name, kind, value, each with its length. Absent: none.
const HEADERS: u8 = 2;
const KEY: u8 = 3;
const UNIQUE_ID: u8 = 4;
const UNIQUE_UNTIL: u8 = 5;
const DUE: u8 = 7;
const TIME_TO_LIVE: u8 = 8;
/// One byte, up to 9. Absent: 0.
const PRIORITY: u8 = 9;
const CONTENT_TYPE: u8 = 10;
const TRACE_CONTEXT: u8 = 11;
/// One byte: the number of the level. Absent: the queue's level.
const LEVEL: u8 = 12;
/// The number among its key's messages. Absent: it has none.
const KEY_SEQUENCE: u8 = 16;
/// When the mark was raised, the mark, and the producer to the end. Absent: it is no record of a producer.
const PRODUCER: u8 = 17 | CRITICAL;
/// Empty: other messages of the record have the same payload, which is here. Else the index of the effect with the
/// message that has it, and the size of its body and headers. Absent: nobody else has it.
const PAYLOAD: u8 = 18 | CRITICAL;
// Reserved for fields that no version writes yet, see docs/internals/format.md:
//  6  was kept free for what is 17 now
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
        marked_at,
        payload,
        message,
    } = stored;
    let Message {
        body,
        headers,
        key,
        // A send copies the group into the key.
        group: _,
        unique_id,
        due,
        time_to_live,
        content_type,
        trace_context,
        level,
        priority,
        producer,
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
    if let (Some(produced), Some(at)) = (producer, marked_at) {
        writer.tagged(PRODUCER, |writer| {
            writer.number(at.0);
            write_mark(produced, writer);
            writer.raw(produced.mark.producer().as_str().as_bytes());
        });
    }
    match payload {
        Payload::Own => {}
        Payload::Shared => writer.tagged_bytes(PAYLOAD, &[]),
        Payload::Of { part, size } => writer.tagged(PAYLOAD, |writer| {
            writer.number(u64::from(*part));
            writer.number(u64::from(*size));
        }),
    }
}

pub(super) fn read(reader: Reader<'_>) -> Result<StoredMessage, DecodeError> {
    let (mut unique_until, mut key_sequence, mut marked_at) = (None, None, None);
    let (mut message, mut payload) = (Message::default(), Payload::Own);
    let head = read_fields(reader, |field, value| {
        match field {
            Field::Body(body) => message.body = body.to_bytes(),
            Field::Header {
                name,
                kind,
                value: bytes,
            } => message.headers.push(Header {
                name: name.into(),
                kind: kind.into(),
                value: bytes.to_bytes(),
            }),
            Field::Key(text) => message.key = Some(key(text, value)?),
            Field::UniqueId(text) => {
                let id = UniqueId::new(text).map_err(|_| no_unique_id(value))?;
                message.unique_id = Some(id);
            }
            Field::UniqueUntil(until) => unique_until = Some(until),
            Field::Due(due) => message.due = Some(due),
            Field::TimeToLive(span) => message.time_to_live = Some(span),
            Field::Priority(priority) => message.priority = priority,
            Field::ContentType(text) => message.content_type = Some(text.into()),
            Field::TraceContext(text) => message.trace_context = Some(text.into()),
            Field::Level(level) => message.level = Some(level),
            Field::KeySequence(number) => key_sequence = Some(number),
            Field::Payload(of) => payload = of,
            Field::Producer(numbers, name, at) => {
                message.producer = Some(produced(numbers, name, value)?);
                marked_at = Some(at);
            }
        }
        Ok(())
    })?;
    Ok(StoredMessage {
        queue: head.queue,
        sequence: head.sequence,
        id: head.id,
        accepted: head.accepted,
        unique_until,
        key_sequence,
        marked_at,
        payload,
        message,
    })
}

/// The parts of a stored message that folding needs. Refuses what [`read`] refuses, and copies nothing.
pub(super) fn read_arrival(reader: Reader<'_>) -> Result<Arrival<'_>, DecodeError> {
    let mut size = 0;
    let (mut key, mut unique_id, mut unique_until) = (None, None, None);
    let (mut due, mut time_to_live, mut level, mut key_sequence) = (None, None, None, None);
    let (mut mark, mut payload) = (None, Payload::Own);
    let head = read_fields(reader, |field, value| {
        match field {
            Field::Body(body) => size += body.len(),
            Field::Header {
                name,
                kind,
                value: bytes,
            } => size += name.len() + kind.len() + bytes.len(),
            Field::Key(text) => {
                Key::check(text).map_err(|_| no_key(value))?;
                key = Some(text);
            }
            Field::UniqueId(text) => {
                UniqueId::check(text).map_err(|_| no_unique_id(value))?;
                unique_id = Some(text);
            }
            Field::UniqueUntil(until) => unique_until = Some(until),
            Field::Due(at) => due = Some(at),
            Field::TimeToLive(span) => time_to_live = Some(span),
            Field::Level(of) => level = Some(of),
            Field::KeySequence(number) => key_sequence = Some(number),
            Field::Payload(of) => payload = of,
            Field::Producer(numbers, producer, at) => {
                check_mark(&numbers, value)?;
                ProducerName::check(producer).map_err(|_| no_producer_name(value))?;
                mark = Some(ArrivalMark {
                    producer,
                    incarnation: numbers.incarnation,
                    opening: numbers.opening,
                    lane: numbers.lane,
                    number: numbers.number,
                    at,
                });
            }
            Field::ContentType(_) | Field::TraceContext(_) | Field::Priority(_) => {}
        }
        Ok(())
    })?;
    Ok(Arrival {
        numbers: ArrivalNumbers {
            queue: head.queue,
            sequence: head.sequence,
            id: head.id,
            accepted: head.accepted,
            size: match payload {
                Payload::Of { size, .. } => size,
                Payload::Own | Payload::Shared => u32::try_from(size).unwrap_or(u32::MAX),
            },
            level,
            due,
            time_to_live,
            key_sequence,
            payload,
        },
        key: key.map(KeyText::from),
        unique: unique_id.zip(unique_until),
        mark,
    })
}

/// The fixed beginning of a stored message.
struct Head {
    queue: QueueId,
    sequence: Sequence,
    id: MessageId,
    accepted: WallTime,
}

/// A field, or one of several headers. Borrows its value.
enum Field<'a> {
    Body(Stretch<'a>),
    Header {
        name: &'a str,
        kind: &'a str,
        value: Stretch<'a>,
    },
    Key(&'a str),
    UniqueId(&'a str),
    UniqueUntil(MachineTime),
    Due(WallTime),
    TimeToLive(Millis),
    Priority(u8),
    ContentType(&'a str),
    TraceContext(&'a str),
    Level(Level),
    KeySequence(NonZeroU64),
    Payload(Payload),
    Producer(MarkNumbers, &'a str, MachineTime),
}

/// A mark without its producer.
pub(super) struct MarkNumbers {
    incarnation: u64,
    opening: u64,
    lane: u8,
    number: u64,
}

/// Reads a stored message and passes its fields to `take`, each with the reader behind it, so that
/// an error has a position.
#[inline(always)]
fn read_fields<'a>(
    mut reader: Reader<'a>,
    mut take: impl FnMut(Field<'a>, &Reader<'a>) -> Result<(), DecodeError>,
) -> Result<Head, DecodeError> {
    let head = Head {
        queue: reader.queue()?,
        sequence: reader.sequence()?,
        id: MessageId::from_bits(u128::from_le_bytes(reader.array()?)),
        accepted: reader.wall()?,
    };
    let mut has_payload = false;
    reader.fields(|tag, value| {
        has_payload |= matches!(tag, BODY | HEADERS | CONTENT_TYPE | TRACE_CONTEXT);
        let field = match tag {
            BODY => Field::Body(value.rest()),
            HEADERS => {
                while !value.is_at_end() {
                    let header = Field::Header {
                        name: value.counted_text()?,
                        kind: value.counted_text()?,
                        value: value.bytes()?,
                    };
                    take(header, value)?;
                }
                return Ok(true);
            }
            KEY => Field::Key(value.rest_text()?),
            UNIQUE_ID => Field::UniqueId(value.rest_text()?),
            UNIQUE_UNTIL => Field::UniqueUntil(value.machine()?),
            DUE => Field::Due(value.wall()?),
            TIME_TO_LIVE => Field::TimeToLive(value.number()?),
            PRIORITY => Field::Priority(priority(value)?),
            CONTENT_TYPE => Field::ContentType(value.rest_text()?),
            TRACE_CONTEXT => Field::TraceContext(value.rest_text()?),
            LEVEL => Field::Level(level(value)?),
            KEY_SEQUENCE => {
                let number = NonZeroU64::new(value.number()?);
                Field::KeySequence(
                    number.ok_or_else(|| value.malformed("a key sequence begins at 1"))?,
                )
            }
            PAYLOAD if value.is_at_end() => Field::Payload(Payload::Shared),
            PAYLOAD if has_payload => {
                return Err(value.malformed("a message has its own payload and that of another"));
            }
            PAYLOAD => Field::Payload(Payload::Of {
                part: value.small()?,
                size: value.small()?,
            }),
            PRODUCER => {
                let at = value.machine()?;
                let numbers = read_mark(value)?;
                Field::Producer(numbers, value.rest_text()?, at)
            }
            _ => return Ok(false),
        };
        take(field, value)?;
        Ok(true)
    })?;
    Ok(head)
}

/// Writes a mark without its producer.
pub(super) fn write_mark(produced: &Produced, writer: &mut Writer<'_>) {
    let mark = &produced.mark;
    writer.number(produced.incarnation.0);
    writer.raw(&mark.opening().to_le_bytes());
    writer.byte(mark.lane());
    writer.number(mark.number());
}

pub(super) fn read_mark(reader: &mut Reader<'_>) -> Result<MarkNumbers, DecodeError> {
    Ok(MarkNumbers {
        incarnation: reader.number()?,
        opening: u64::from_le_bytes(reader.array()?),
        lane: reader.byte()?,
        number: reader.number()?,
    })
}

/// Refuses what [`produced`] refuses.
fn check_mark(numbers: &MarkNumbers, reader: &Reader<'_>) -> Result<(), DecodeError> {
    match numbers.lane < ProducerMark::LANES && numbers.number > 0 {
        true => Ok(()),
        false => Err(no_mark(reader)),
    }
}

/// The mark of that producer's record.
pub(super) fn produced(
    numbers: MarkNumbers,
    producer: &str,
    reader: &Reader<'_>,
) -> Result<Box<Produced>, DecodeError> {
    let MarkNumbers {
        incarnation,
        opening,
        lane,
        number,
    } = numbers;
    check_mark(&numbers, reader)?;
    let producer = producer_name(producer, reader)?;
    let mark = ProducerMark::new(producer, opening, lane, number).map_err(|_| no_mark(reader))?;
    Ok(Box::new(Produced {
        mark,
        incarnation: ProducerIncarnation(incarnation),
        // It said when the record may be accepted, and now it is.
        after: 0,
    }))
}

pub(super) fn producer_name(text: &str, reader: &Reader<'_>) -> Result<ProducerName, DecodeError> {
    ProducerName::new(text).map_err(|_| no_producer_name(reader))
}

fn no_producer_name(reader: &Reader<'_>) -> DecodeError {
    reader.malformed("no producer name")
}

fn no_mark(reader: &Reader<'_>) -> DecodeError {
    reader.malformed("no mark of a producer")
}

pub(super) fn key(text: &str, reader: &Reader<'_>) -> Result<Key, DecodeError> {
    Key::new(text).map_err(|_| no_key(reader))
}

fn no_key(reader: &Reader<'_>) -> DecodeError {
    reader.malformed("no key")
}

fn no_unique_id(reader: &Reader<'_>) -> DecodeError {
    reader.malformed("no unique id")
}

fn priority(reader: &mut Reader<'_>) -> Result<u8, DecodeError> {
    match reader.byte()? {
        priority @ 0..=PRIORITY_MAX => Ok(priority),
        _ => Err(reader.malformed("a priority is 0 to 9")),
    }
}

/// A level's number.
pub(super) fn level(reader: &mut Reader<'_>) -> Result<Level, DecodeError> {
    let number = reader.byte()?;
    Level::from_number(number).ok_or_else(|| reader.newer("durability level", number))
}
