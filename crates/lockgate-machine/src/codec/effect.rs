//! Effects as bytes: a kind, a length, and a body. The body begins with a *head*, whose parts have
//! a fixed order and are always present. Optional fields follow.
//!
//! Before you change one, read "Changing it" in the module above.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use lockgate_core::{
    BootId, Epoch, ExchangeId, ExchangeName, HolderName, Incarnation, Key, LeaseNumber, LedgerId,
    LedgerName, MachineTime, NameError, Now, Produced, ProducerIncarnation, ProducerName, QueueId,
    ReaderName, RecordName, RecordVersion, Revision, ScheduleId, Sequence, Term, WallTime,
    ledger::SequenceId,
};

use super::{
    DecodeError, events, exchanges, message, schedules, settings,
    wire::{Reader, Writer},
};
use crate::{
    DeadLetterReason, DropReason, Effect, ExchangeKind, Failed, Firing, HoldTarget, QueueSettings,
    Unroutable,
};

/// Declares effects with what stands in front of each of them: never reused, and 0 stays free, so that zeroed bytes
/// are no effect. Those that are their head and no more have its parts here, in their order.
macro_rules! effects {
    (
        heads: { $($head:ident = $head_number:literal: $plain:ident { $($part:ident),+ };)* }
        others: { $($other:ident = $other_number:literal: $effect:ident;)* }
    ) => {
        pub(super) mod kind {
            $(pub(in crate::codec) const $head: u8 = $head_number;)*
            $(pub(in crate::codec) const $other: u8 = $other_number;)*
        }

        fn kind_of(effect: &Effect) -> u8 {
            match effect {
                $(Effect::$plain { .. } => kind::$head,)*
                $(Effect::$effect { .. } => kind::$other,)*
            }
        }

        /// Writes an effect that is its head and no more.
        fn write_head(effect: &Effect, writer: &mut Writer<'_>) {
            match effect {
                $(Effect::$plain { $($part),+ } => {
                    $(Part::write($part, writer);)+
                })*
                $(Effect::$effect { .. })|* => unreachable!("it has more than a head"),
            }
        }

        /// Reads an effect that is its head and no more.
        fn read_head(number: u8, reader: &mut Reader<'_>) -> Result<Effect, DecodeError> {
            Ok(match number {
                $(kind::$head => Effect::$plain { $($part: Part::read(reader)?),+ },)*
                _ => return Err(reader.newer("kind", number)),
            })
        }
    };
}

effects! {
    heads: {
        TERM_STARTED = 1: TermStarted { term, boot_id, clock_offset, secret, now };
        TERM_ENDED = 2: TermEnded { now };
        ADVANCED = 3: Advanced { now, budget };
        QUEUE_DELETED = 6: QueueDeleted { queue };
        PURGED = 7: Purged { queue };
        PAUSED = 8: Paused { queue, paused };
        SEQUENCES_RESERVED = 11: SequencesReserved { queue, below };
        LEASE_BOUND_RAISED = 13: LeaseBoundRaised { queue, until };
        ACKED = 14: Acked { queue, sequence };
        EXTENDED = 16: Extended { queue, sequence, deadline };
        GIVEN_BACK = 17: GivenBack { queue, sequence, started };
        DROPPED = 19: Dropped { queue, sequence, reason };
        RESCHEDULED = 20: Rescheduled { queue, sequence, due };
        KEY_PARKED = 21: KeyParked { queue, key };
        KEY_RESUMED = 22: KeyResumed { queue, key };
        RECORD_PUT = 23: RecordPut { name, version, revision, at, value };
        RECORD_DELETED = 24: RecordDeleted { name, revision };
        RECORD_LEASED = 25: RecordLeased { name, holder, epoch, deadline, delete_at_end };
        RECORD_RELEASED = 26: RecordReleased { name, revision };
        KEY_STATE_PUT = 27: KeyStatePut { queue, key, version, at, value };
        KEY_STATE_DROPPED = 28: KeyStateDropped { queue, key };
        HELD = 29: Held { queue, what, until };
        PRODUCER_OPENED = 30: ProducerOpened { queue, producer, incarnation, at };
        PRODUCER_FORGOTTEN = 31: ProducerForgotten { queue, producer };
        MARK_RAISED = 32: MarkRaised { queue, produced, at };
        LEDGER_CREATED = 33: LedgerCreated { ledger, name, hashed, retention, at };
        LEDGER_DELETED = 34: LedgerDeleted { ledger };
        READER_MOVED = 36: ReaderMoved { ledger, reader, to };
        LEDGER_SEALED = 37: LedgerSealed { ledger, epoch };
        LEDGER_TRIMMED = 38: LedgerTrimmed { ledger, first };
        EVENTS_LOST = 40: EventsLost { ledger, first };
        IDS_INDEXED = 41: IdsIndexed { queue, up_to };
        EVENT_IDS_INDEXED = 42: EventIdsIndexed { ledger, up_to };
        EXCHANGE_CREATED = 43: ExchangeCreated { exchange, name, kind, unroutable, at };
        EXCHANGE_CHANGED = 44: ExchangeChanged { exchange, unroutable, at };
        EXCHANGE_DELETED = 45: ExchangeDeleted { exchange };
        UNBOUND = 47: Unbound { exchange, number };
        PUBLISHED = 48: Published { exchange, copies, skipped, unroutable, dropped };
        SCHEDULE_CHANGED = 52: ScheduleChanged { schedule, generation, paused, next, planned, at };
        SCHEDULE_DELETED = 53: ScheduleDeleted { schedule };
        SCHEDULE_STEPPED = 54: ScheduleStepped { schedule, firing, replaced, missed, next };
    }
    others: {
        QUEUE_CREATED = 4: QueueCreated;
        QUEUE_CHANGED = 5: QueueChanged;
        ACCEPTED = 9: Accepted;
        COMPACTED = 10: Compacted;
        LEASED = 12: Leased;
        NACKED = 15: Nacked;
        MOVED = 18: Moved;
        EVENTS_APPENDED = 35: EventsAppended;
        EVENTS_COMPACTED = 39: EventsCompacted;
        BOUND = 46: Bound;
        EXCHANGE_NOTED = 50: ExchangeNoted;
        SCHEDULE_SET = 51: ScheduleSet;
    }
}

/// A part of a head.
trait Part: Sized {
    fn write(&self, writer: &mut Writer<'_>);

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// Declares parts: how each is written and read.
macro_rules! parts {
    ($($type:ty: |$part:ident, $writer:ident| $write:expr, |$reader:ident| $read:expr;)*) => {$(
        impl Part for $type {
            fn write(&self, $writer: &mut Writer<'_>) {
                let $part = self;
                $write;
            }

            fn read($reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                $read
            }
        }
    )*};
}

parts! {
    QueueId: |queue, w| w.queue(*queue), |r| r.queue();
    Sequence: |sequence, w| w.number(sequence.0), |r| r.sequence();
    WallTime: |at, w| w.number(at.0), |r| r.wall();
    MachineTime: |at, w| w.number(at.0), |r| r.machine();
    Now: |now, w| w.now(*now), |r| r.now();
    Key: |key, w| w.bytes(key.as_str().as_bytes()), |r| message::key(r.counted_text()?, r);
    DropReason: |reason, w| w.byte(*reason as u8), |r| drop_reason(r);
    BootId: |id, w| w.raw(&id.0), |r| r.array().map(BootId);
    bool: |flag, w| w.byte(u8::from(*flag)), |r| r.flag();
    u32: |number, w| w.number(u64::from(*number)), |r| r.small();
    i64: |number, w| w.raw(&number.to_le_bytes()), |r| r.array().map(i64::from_le_bytes);
    [u8; 32]: |bytes, w| w.raw(bytes), |r| r.array();
    Epoch: |epoch, w| w.number(epoch.0), |r| r.number().map(Epoch);
    RecordVersion: |version, w| w.number(version.0), |r| r.number().map(RecordVersion);
    Revision: |revision, w| w.number(revision.0), |r| r.number().map(Revision);
    RecordName: |name, w| w.bytes(name.as_str().as_bytes()), |r| record_name(r);
    ProducerName: |name, w| w.bytes(name.as_str().as_bytes()), |r| message::producer_name(r.counted_text()?, r);
    ProducerIncarnation: |incarnation, w| w.number(incarnation.0), |r| r.number().map(ProducerIncarnation);
    HolderName: |name, w| w.bytes(name.as_str().as_bytes()), |r| holder_name(r);
    u64: |number, w| w.number(*number), |r| r.number();
    LedgerId: |ledger, w| w.number(u64::from(ledger.0)), |r| r.small().map(LedgerId);
    LedgerName: |name, w| w.bytes(name.as_str().as_bytes()), |r| events::ledger_name(r);
    ReaderName: |name, w| w.bytes(name.as_str().as_bytes()), |r| events::reader_name(r);
    SequenceId: |place, w| w.number(place.0), |r| r.number().map(SequenceId);
    ExchangeId: |exchange, w| w.number(u64::from(exchange.0)), |r| r.small().map(ExchangeId);
    ExchangeName: |name, w| w.bytes(name.as_str().as_bytes()), |r| exchanges::exchange_name(r);
    ExchangeKind: |kind, w| w.byte(*kind as u8), |r| exchanges::read_kind(r);
    Unroutable<ExchangeId>: |unroutable, w| exchanges::write_unroutable(*unroutable, w), |r| exchanges::read_unroutable(r);
    ScheduleId: |schedule, w| w.number(u64::from(schedule.0)), |r| r.small().map(ScheduleId);
    Option<Firing>: |firing, w| schedules::write_firing(*firing, w), |r| schedules::read_firing(r);
    Bytes: |bytes, w| w.bytes(bytes), |r| Ok(r.bytes()?.to_bytes());
}

impl<P: Part> Part for Option<P> {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.byte(u8::from(self.is_some()));
        if let Some(part) = self {
            part.write(writer);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.flag()? {
            true => P::read(reader).map(Some),
            false => Ok(None),
        }
    }
}

const HELD_QUEUE: u8 = 0;
const HELD_KEY: u8 = 1;
const HELD_NO_KEY: u8 = 2;

impl Part for HoldTarget {
    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Queue => writer.byte(HELD_QUEUE),
            Self::Key(None) => writer.byte(HELD_NO_KEY),
            Self::Key(Some(key)) => {
                writer.byte(HELD_KEY);
                key.write(writer);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match reader.byte()? {
            HELD_QUEUE => Self::Queue,
            HELD_KEY => Self::Key(Some(Key::read(reader)?)),
            HELD_NO_KEY => Self::Key(None),
            other => return Err(reader.newer("what is held", other)),
        })
    }
}

impl Part for Box<Produced> {
    fn write(&self, writer: &mut Writer<'_>) {
        message::write_mark(self, writer);
        writer.bytes(self.mark.producer().as_str().as_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let numbers = message::read_mark(reader)?;
        let producer = reader.counted_text()?;
        message::produced(numbers, producer, reader)
    }
}

impl Part for Term {
    fn write(&self, writer: &mut Writer<'_>) {
        writer.number(u64::from(self.shard.get()));
        writer.number(self.epoch.0);
        writer.raw(&self.incarnation.0.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            shard: reader.shard()?,
            epoch: Epoch(reader.number()?),
            incarnation: Incarnation(u64::from_le_bytes(reader.array()?)),
        })
    }
}

// Fields of queue-created and queue-changed.
const SETTINGS: u8 = 1;
const ANNOTATIONS: u8 = 2;
const TAGS: u8 = 3;
// Fields of nacked. Absent: the message is leasable at once.
const UNTIL: u8 = 1;
/// Absent: nobody said why.
const FAILED_AT: u8 = 2;
/// Absent: there was no room for it.
const ERROR: u8 = 3;
// Fields of moved.
const ATTEMPTS: u8 = 1;
const REJECTED_BECAUSE: u8 = 2;
const SOURCE: u8 = 3;
// Numbers of the reasons for a move.
const REASON_ATTEMPTS: u8 = 1;
const REASON_REJECTED: u8 = 2;
const REASON_REDRIVEN: u8 = 3;

pub(super) fn write(effect: &Effect, writer: &mut Writer<'_>) {
    writer.tagged(kind_of(effect), |writer| write_body(effect, writer));
}

fn write_body(effect: &Effect, writer: &mut Writer<'_>) {
    match effect {
        Effect::QueueCreated {
            queue,
            name,
            settings,
            annotations,
            tags,
            at,
        } => {
            writer.queue(*queue);
            writer.number(at.0);
            writer.bytes(name.as_str().as_bytes());
            writer.tagged(SETTINGS, |writer| settings::write(settings, writer));
            writer.tagged(ANNOTATIONS, |writer| {
                settings::write_map(annotations, writer);
            });
            writer.tagged(TAGS, |writer| settings::write_map(tags, writer));
        }
        Effect::QueueChanged {
            queue,
            settings,
            annotations,
            tags,
            at,
        } => {
            writer.queue(*queue);
            writer.number(at.0);
            writer.tagged(SETTINGS, |writer| settings::write(settings, writer));
            writer.tagged(ANNOTATIONS, |writer| {
                settings::write_map(annotations, writer);
            });
            writer.tagged(TAGS, |writer| settings::write_map(tags, writer));
        }
        Effect::Accepted(stored) | Effect::Compacted(stored) => message::write(stored, writer),
        Effect::EventsAppended(appended) => events::write_appended(appended, writer),
        Effect::EventsCompacted(block) => events::write_block(block, writer),
        Effect::Bound {
            exchange,
            number,
            binding,
        } => {
            writer.number(u64::from(exchange.0));
            writer.number(u64::from(*number));
            exchanges::write_binding(binding, writer);
        }
        Effect::ScheduleSet {
            schedule,
            name,
            generation,
            next,
            planned,
            anchor,
            at,
            spec,
        } => {
            writer.number(u64::from(schedule.0));
            writer.bytes(name.as_str().as_bytes());
            writer.number(*generation);
            schedules::write_time(*next, writer);
            schedules::write_time(*planned, writer);
            writer.number(anchor.0);
            writer.number(at.0);
            schedules::write_spec(spec, writer);
        }
        Effect::ExchangeNoted { exchange, notes } => {
            writer.number(u64::from(exchange.0));
            exchanges::write_notes(notes, writer);
        }
        Effect::Leased {
            queue,
            sequence,
            lease,
            now,
            deadline,
            holder,
        } => {
            writer.queue(*queue);
            writer.number(sequence.0);
            writer.number(lease.0);
            writer.now(*now);
            writer.number(deadline.0);
            writer.bytes(holder.as_str().as_bytes());
        }
        Effect::Nacked {
            queue,
            sequence,
            until,
            failed,
        } => {
            writer.queue(*queue);
            writer.number(sequence.0);
            if let Some(until) = until {
                writer.tagged_number(UNTIL, until.0);
            }
            if let Some(Failed { at, error }) = failed {
                writer.tagged_number(FAILED_AT, at.0);
                if let Some(error) = error {
                    writer.tagged_bytes(ERROR, error.as_bytes());
                }
            }
        }
        Effect::Moved {
            from,
            sequence,
            to,
            to_sequence,
            reason,
            at,
        } => {
            writer.queue(*from);
            writer.number(sequence.0);
            writer.queue(*to);
            writer.number(to_sequence.0);
            writer.number(at.0);
            match reason {
                DeadLetterReason::Attempts { attempts } => {
                    writer.byte(REASON_ATTEMPTS);
                    writer.tagged_number(ATTEMPTS, u64::from(*attempts));
                }
                DeadLetterReason::Rejected { reason } => {
                    writer.byte(REASON_REJECTED);
                    if let Some(text) = reason {
                        writer.tagged_bytes(REJECTED_BECAUSE, text.as_bytes());
                    }
                }
                DeadLetterReason::Redriven { source } => {
                    writer.byte(REASON_REDRIVEN);
                    if let Some(source) = source {
                        writer.tagged_number(SOURCE, u64::from(source.0));
                    }
                }
            }
        }
        _ => write_head(effect, writer),
    }
}

pub(super) fn read(
    number: u8,
    mut reader: Reader<'_>,
    holders: &mut LastHolder,
) -> Result<Effect, DecodeError> {
    let r = &mut reader;
    let effect = match number {
        kind::ACCEPTED => return Ok(Effect::Accepted(Box::new(message::read(reader)?))),
        kind::COMPACTED => return Ok(Effect::Compacted(Box::new(message::read(reader)?))),
        kind::QUEUE_CREATED => {
            let (queue, at) = (r.queue()?, r.wall()?);
            let name = settings::queue_name(r.counted_text()?, r)?;
            let (settings, annotations, tags) = read_queue_fields(r)?;
            Effect::QueueCreated {
                queue,
                name,
                settings,
                annotations,
                tags,
                at,
            }
        }
        kind::QUEUE_CHANGED => {
            let (queue, at) = (r.queue()?, r.wall()?);
            let (settings, annotations, tags) = read_queue_fields(r)?;
            Effect::QueueChanged {
                queue,
                settings,
                annotations,
                tags,
                at,
            }
        }
        kind::LEASED => Effect::Leased {
            queue: r.queue()?,
            sequence: r.sequence()?,
            lease: LeaseNumber(r.number()?),
            now: r.now()?,
            deadline: r.machine()?,
            holder: {
                let text = r.counted_text()?;
                holders
                    .name(text)
                    .map_err(|_| r.malformed("no holder name"))?
            },
        },
        kind::EVENTS_APPENDED => Effect::EventsAppended(Box::new(events::read_appended(r)?)),
        kind::EVENTS_COMPACTED => Effect::EventsCompacted(Box::new(events::read_block(r)?)),
        kind::BOUND => {
            return Ok(Effect::Bound {
                exchange: ExchangeId(r.small()?),
                number: r.small()?,
                binding: Arc::new(exchanges::read_binding(r)?),
            });
        }
        kind::EXCHANGE_NOTED => {
            return Ok(Effect::ExchangeNoted {
                exchange: ExchangeId(r.small()?),
                notes: Arc::new(exchanges::read_notes(r)?),
            });
        }
        kind::SCHEDULE_SET => return schedules::read_set(r),
        kind::NACKED => return read_nacked(reader),
        kind::MOVED => return read_moved(reader),
        _ => read_head(number, r)?,
    };
    reader.no_fields()?;
    Ok(effect)
}

/// The holder of the last lease that was read: leases come in runs of one holder, whose name is
/// then allocated once.
#[derive(Debug, Default)]
pub(super) struct LastHolder(Option<HolderName>);

impl LastHolder {
    fn name(&mut self, text: &str) -> Result<HolderName, NameError> {
        match &self.0 {
            Some(last) if last.as_str() == text => Ok(last.clone()),
            _ => Ok(self.0.insert(HolderName::new(text)?).clone()),
        }
    }
}

type QueueFields = (
    Box<QueueSettings>,
    BTreeMap<String, String>,
    BTreeMap<String, String>,
);

fn read_queue_fields(reader: &mut Reader<'_>) -> Result<QueueFields, DecodeError> {
    let mut settings = None;
    let mut annotations = BTreeMap::new();
    let mut tags = BTreeMap::new();
    reader.fields(|tag, value| {
        match tag {
            SETTINGS => settings = Some(settings::read(value)?),
            ANNOTATIONS => annotations = settings::read_map(value)?,
            TAGS => tags = settings::read_map(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let settings = settings.ok_or_else(|| reader.malformed("a queue has no settings"))?;
    Ok((settings, annotations, tags))
}

fn read_nacked(mut reader: Reader<'_>) -> Result<Effect, DecodeError> {
    let (queue, sequence) = (reader.queue()?, reader.sequence()?);
    let (mut until, mut failed_at, mut error) = (None, None, None);
    reader.fields(|tag, value| {
        match tag {
            UNTIL => until = Some(value.machine()?),
            FAILED_AT => failed_at = Some(value.wall()?),
            ERROR => error = Some(value.rest_text()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if failed_at.is_none() && error.is_some() {
        return Err(reader.malformed("a failure has no time"));
    }
    Ok(Effect::Nacked {
        queue,
        sequence,
        until,
        failed: failed_at.map(|at| Failed { at, error }),
    })
}

fn read_moved(mut reader: Reader<'_>) -> Result<Effect, DecodeError> {
    let (from, sequence) = (reader.queue()?, reader.sequence()?);
    let (to, to_sequence) = (reader.queue()?, reader.sequence()?);
    let at = reader.wall()?;
    let number = reader.byte()?;
    let (mut attempts, mut because, mut source) = (None, None, None);
    reader.fields(|tag, value| {
        match (number, tag) {
            (REASON_ATTEMPTS, ATTEMPTS) => attempts = Some(value.small()?),
            (REASON_REJECTED, REJECTED_BECAUSE) => because = Some(value.rest_text()?.into()),
            (REASON_REDRIVEN, SOURCE) => source = Some(value.queue()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let reason = match number {
        REASON_ATTEMPTS => DeadLetterReason::Attempts {
            attempts: attempts.ok_or_else(|| reader.malformed("the attempts are missing"))?,
        },
        REASON_REJECTED => DeadLetterReason::Rejected { reason: because },
        REASON_REDRIVEN => DeadLetterReason::Redriven { source },
        _ => return Err(reader.newer("dead-letter reason", number)),
    };
    Ok(Effect::Moved {
        from,
        sequence,
        to,
        to_sequence,
        reason,
        at,
    })
}

fn record_name(reader: &mut Reader<'_>) -> Result<RecordName, DecodeError> {
    let text = reader.counted_text()?;
    RecordName::new(text).map_err(|_| reader.malformed("no record name"))
}

fn holder_name(reader: &mut Reader<'_>) -> Result<HolderName, DecodeError> {
    let text = reader.counted_text()?;
    HolderName::new(text).map_err(|_| reader.malformed("no holder name"))
}

fn drop_reason(reader: &mut Reader<'_>) -> Result<DropReason, DecodeError> {
    Ok(match reader.byte()? {
        1 => DropReason::Purged,
        2 => DropReason::QueueDeleted,
        3 => DropReason::Expired,
        4 => DropReason::Damaged,
        5 => DropReason::Rejected,
        6 => DropReason::Cancelled,
        7 => DropReason::KeyDropped,
        number => return Err(reader.newer("drop reason", number)),
    })
}
