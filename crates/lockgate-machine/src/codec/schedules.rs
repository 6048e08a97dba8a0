//! Schedules as bytes.

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{
    CatchUp, Epoch, ExchangeName, Incarnation, Message, MessageId, Overlap, QueueId, QueueName,
    RoutingKey, ScheduleId, ScheduleName, Sequence, ShardId, Term, Timing, WallTime,
};

use super::{
    DecodeError, message,
    wire::{Reader, Writer},
};
use crate::{Effect, Firing, Payload, ScheduleSpec, ScheduleTo, StoredMessage};

const AT: u8 = 1;
const EVERY: u8 = 2;
const CRON: u8 = 3;

const TO_QUEUE: u8 = 1;
const TO_EXCHANGE: u8 = 2;

// How a firing ended.
const NOT_FIRED: u8 = 0;
const FIRED: u8 = 1;
const OVERLAPPED: u8 = 2;

// What stands in a message's place of a key.
const KEY: u8 = 0;
const GROUP: u8 = 1;

pub(super) fn schedule_name(reader: &mut Reader<'_>) -> Result<ScheduleName, DecodeError> {
    let text = reader.counted_text()?;
    ScheduleName::new(text).map_err(|_| reader.malformed("no schedule name"))
}

pub(super) fn write_time(time: Option<WallTime>, writer: &mut Writer<'_>) {
    writer.byte(u8::from(time.is_some()));
    if let Some(time) = time {
        writer.number(time.0);
    }
}

pub(super) fn read_time(reader: &mut Reader<'_>) -> Result<Option<WallTime>, DecodeError> {
    match reader.flag()? {
        true => reader.wall().map(Some),
        false => Ok(None),
    }
}

/// Writes what a schedule does. Its message comes last, so nothing stands behind it.
pub(super) fn write_spec(spec: &ScheduleSpec, writer: &mut Writer<'_>) {
    let ScheduleSpec {
        timing,
        to,
        message,
        catch_up,
        overlap,
        late_max,
    } = spec;
    match timing {
        Timing::At(at) => {
            writer.byte(AT);
            writer.number(at.0);
        }
        Timing::Every { period, from } => {
            writer.byte(EVERY);
            writer.number(*period);
            write_time(*from, writer);
        }
        Timing::Cron { expression, zone } => {
            writer.byte(CRON);
            writer.bytes(expression.as_bytes());
            writer.bytes(zone.as_bytes());
        }
    }
    match to {
        ScheduleTo::Queue(queue) => {
            writer.byte(TO_QUEUE);
            writer.bytes(queue.as_str().as_bytes());
        }
        ScheduleTo::Exchange {
            exchange,
            routing_key,
        } => {
            writer.byte(TO_EXCHANGE);
            writer.bytes(exchange.as_str().as_bytes());
            writer.bytes(routing_key.as_str().as_bytes());
        }
    }
    writer.byte(*catch_up as u8);
    writer.byte(*overlap as u8);
    writer.number(*late_max);
    let is_group = message.group.is_some();
    writer.byte(if is_group { GROUP } else { KEY });
    let mut message = Message::clone(message);
    message.key = message.key.take().or(message.group.take());
    message::write(&stored(message), writer);
}

/// A message as a record would have it, of no queue.
fn stored(message: Message) -> StoredMessage {
    let (queue, sequence) = (QueueId(1), Sequence(1));
    let term = Term {
        shard: ShardId::default(),
        epoch: Epoch(0),
        incarnation: Incarnation(0),
    };
    StoredMessage {
        queue,
        sequence,
        id: MessageId::new(queue, sequence, term),
        accepted: WallTime(0),
        unique_until: None,
        key_sequence: None,
        marked_at: None,
        payload: Payload::Own,
        message,
    }
}

/// Reads what a schedule does, up to the end.
pub(super) fn read_spec(reader: &mut Reader<'_>) -> Result<ScheduleSpec, DecodeError> {
    let timing = match reader.byte()? {
        AT => Timing::At(reader.wall()?),
        EVERY => Timing::Every {
            period: reader.number()?,
            from: read_time(reader)?,
        },
        CRON => Timing::Cron {
            expression: reader.counted_text()?.into(),
            zone: reader.counted_text()?.into(),
        },
        number => return Err(reader.newer("timing of a schedule", number)),
    };
    let to = match reader.byte()? {
        TO_QUEUE => {
            let name = QueueName::new(reader.counted_text()?);
            ScheduleTo::Queue(name.map_err(|_| reader.malformed("no queue name"))?)
        }
        TO_EXCHANGE => {
            let exchange = ExchangeName::new(reader.counted_text()?);
            let exchange = exchange.map_err(|_| reader.malformed("no exchange name"))?;
            let routing_key = RoutingKey::new(reader.counted_text()?);
            ScheduleTo::Exchange {
                exchange,
                routing_key: routing_key.map_err(|_| reader.malformed("no routing key"))?,
            }
        }
        number => return Err(reader.newer("target of a schedule", number)),
    };
    let number = reader.byte()?;
    let catch_up = CatchUp::from_number(number);
    let catch_up = catch_up.ok_or_else(|| reader.newer("rule for missed times", number))?;
    let number = reader.byte()?;
    let overlap = Overlap::from_number(number);
    let overlap = overlap.ok_or_else(|| reader.newer("rule for the last message", number))?;
    let late_max = reader.number()?;
    let is_group = match reader.byte()? {
        KEY => false,
        GROUP => true,
        number => return Err(reader.newer("kind of key", number)),
    };
    let read = message::read(reader.again())?;
    // Each spec has one form, so that equal effects have equal bytes.
    let mut message = read.message.clone();
    let is_plain = read == stored(read.message.clone())
        && message.due.is_none()
        && message.unique_id.is_none()
        && (!is_group || message.key.is_some());
    if !is_plain {
        return Err(reader.malformed("no message of a schedule"));
    }
    if is_group {
        message.group = message.key.take();
    }
    Ok(ScheduleSpec {
        timing,
        to,
        message: Arc::new(message),
        catch_up,
        overlap,
        late_max,
    })
}

pub(super) fn write_firing(firing: Option<Firing>, writer: &mut Writer<'_>) {
    let Some(Firing {
        scheduled,
        at,
        message,
    }) = firing
    else {
        return writer.byte(NOT_FIRED);
    };
    writer.byte(if message.is_some() { FIRED } else { OVERLAPPED });
    write_time(scheduled, writer);
    writer.number(at.0);
    if let Some(message) = message {
        writer.raw(&message.to_bits().to_le_bytes());
    }
}

pub(super) fn read_firing(reader: &mut Reader<'_>) -> Result<Option<Firing>, DecodeError> {
    let is_fired = match reader.byte()? {
        NOT_FIRED => return Ok(None),
        FIRED => true,
        OVERLAPPED => false,
        number => return Err(reader.newer("end of a firing", number)),
    };
    let (scheduled, at) = (read_time(reader)?, reader.wall()?);
    let message = match is_fired {
        true => Some(MessageId::from_bits(u128::from_le_bytes(reader.array()?))),
        false => None,
    };
    Ok(Some(Firing {
        scheduled,
        at,
        message,
    }))
}

/// Appends a schedule's name and what it does, for an image.
pub(crate) fn put_schedule(name: &ScheduleName, spec: &ScheduleSpec, out: &mut Vec<u8>) {
    let mut writer = Writer::into(out);
    writer.bytes(name.as_str().as_bytes());
    write_spec(spec, &mut writer);
}

/// Reads what [`put_schedule`] appended.
pub(crate) fn schedule_from(bytes: &Bytes) -> Option<(ScheduleName, ScheduleSpec)> {
    let mut reader = Reader::new(bytes);
    let name = schedule_name(&mut reader).ok()?;
    Some((name, read_spec(&mut reader).ok()?))
}

/// Reads a schedule-set effect.
pub(super) fn read_set(reader: &mut Reader<'_>) -> Result<Effect, DecodeError> {
    Ok(Effect::ScheduleSet {
        schedule: ScheduleId(reader.small()?),
        name: schedule_name(reader)?,
        generation: reader.number()?,
        next: read_time(reader)?,
        planned: read_time(reader)?,
        anchor: reader.wall()?,
        at: reader.wall()?,
        spec: Arc::new(read_spec(reader)?),
    })
}
