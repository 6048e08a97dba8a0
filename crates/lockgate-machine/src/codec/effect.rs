//! Effects as bytes: a kind, a length, and a body. The body begins with a *head*, whose parts stand
//! in a fixed order and are always there, and goes on with fields, which may be absent.
//!
//! To change one, read "Changing it" in the module above.

use std::collections::BTreeMap;

use lockgate_core::{BootId, Epoch, HolderName, Incarnation, LeaseNumber, NameError, Term};

use super::{
    DecodeError, message, settings,
    wire::{Reader, Writer},
};
use crate::{DeadLetterReason, DropReason, Effect, QueueSettings};

/// What stands in front of each effect. Never reused. 0 stays free, so that zeroed bytes are no
/// effect.
pub(super) mod kind {
    pub(in crate::codec) const TERM_STARTED: u8 = 1;
    pub(in crate::codec) const TERM_ENDED: u8 = 2;
    pub(in crate::codec) const ADVANCED: u8 = 3;
    pub(in crate::codec) const QUEUE_CREATED: u8 = 4;
    pub(in crate::codec) const QUEUE_CHANGED: u8 = 5;
    pub(in crate::codec) const QUEUE_DELETED: u8 = 6;
    pub(in crate::codec) const PURGED: u8 = 7;
    pub(in crate::codec) const PAUSED: u8 = 8;
    pub(in crate::codec) const ACCEPTED: u8 = 9;
    pub(in crate::codec) const RELOCATED: u8 = 10;
    pub(in crate::codec) const SEQUENCES_RESERVED: u8 = 11;
    pub(in crate::codec) const LEASED: u8 = 12;
    pub(in crate::codec) const HORIZON_RAISED: u8 = 13;
    pub(in crate::codec) const ACKED: u8 = 14;
    pub(in crate::codec) const NACKED: u8 = 15;
    pub(in crate::codec) const EXTENDED: u8 = 16;
    pub(in crate::codec) const GIVEN_BACK: u8 = 17;
    pub(in crate::codec) const MOVED: u8 = 18;
    pub(in crate::codec) const DROPPED: u8 = 19;
    pub(in crate::codec) const RESCHEDULED: u8 = 20;
    pub(in crate::codec) const KEY_PARKED: u8 = 21;
    pub(in crate::codec) const KEY_RESUMED: u8 = 22;
}

// Fields of queue-created and queue-changed.
const SETTINGS: u8 = 1;
const ANNOTATIONS: u8 = 2;
const TAGS: u8 = 3;
// Field of nacked. Absent: leasable at once.
const UNTIL: u8 = 1;
// Fields of moved.
const ATTEMPTS: u8 = 1;
const REJECTED_BECAUSE: u8 = 2;
const SOURCE: u8 = 3;
// Numbers of dead-letter reasons.
const REASON_ATTEMPTS: u8 = 1;
const REASON_REJECTED: u8 = 2;
const REASON_REDRIVEN: u8 = 3;

pub(super) fn write(effect: &Effect, writer: &mut Writer<'_>) {
    writer.tagged(kind_of(effect), |writer| write_body(effect, writer));
}

fn kind_of(effect: &Effect) -> u8 {
    match effect {
        Effect::TermStarted { .. } => kind::TERM_STARTED,
        Effect::TermEnded { .. } => kind::TERM_ENDED,
        Effect::Advanced { .. } => kind::ADVANCED,
        Effect::QueueCreated { .. } => kind::QUEUE_CREATED,
        Effect::QueueChanged { .. } => kind::QUEUE_CHANGED,
        Effect::QueueDeleted { .. } => kind::QUEUE_DELETED,
        Effect::Purged { .. } => kind::PURGED,
        Effect::Paused { .. } => kind::PAUSED,
        Effect::Accepted(_) => kind::ACCEPTED,
        Effect::Compacted(_) => kind::RELOCATED,
        Effect::SequencesReserved { .. } => kind::SEQUENCES_RESERVED,
        Effect::Leased { .. } => kind::LEASED,
        Effect::LeaseBoundRaised { .. } => kind::HORIZON_RAISED,
        Effect::Acked { .. } => kind::ACKED,
        Effect::Nacked { .. } => kind::NACKED,
        Effect::Extended { .. } => kind::EXTENDED,
        Effect::GivenBack { .. } => kind::GIVEN_BACK,
        Effect::Moved { .. } => kind::MOVED,
        Effect::Dropped { .. } => kind::DROPPED,
        Effect::Rescheduled { .. } => kind::RESCHEDULED,
        Effect::KeyParked { .. } => kind::KEY_PARKED,
        Effect::KeyResumed { .. } => kind::KEY_RESUMED,
    }
}

fn write_body(effect: &Effect, writer: &mut Writer<'_>) {
    match effect {
        Effect::TermStarted {
            term,
            boot_id,
            clock_offset,
            secret,
            now,
        } => {
            writer.number(u64::from(term.shard.get()));
            writer.number(term.epoch.0);
            writer.raw(&term.incarnation.0.to_le_bytes());
            writer.raw(&boot_id.0);
            writer.raw(&clock_offset.to_le_bytes());
            writer.raw(secret);
            writer.now(*now);
        }
        Effect::TermEnded { now } => writer.now(*now),
        Effect::Advanced { now, budget } => {
            writer.now(*now);
            writer.number(u64::from(*budget));
        }
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
        Effect::QueueDeleted { queue } | Effect::Purged { queue } => writer.queue(*queue),
        Effect::Paused { queue, paused } => {
            writer.queue(*queue);
            writer.byte(u8::from(*paused));
        }
        Effect::Accepted(stored) | Effect::Compacted(stored) => message::write(stored, writer),
        Effect::SequencesReserved { queue, below } => {
            writer.queue(*queue);
            writer.number(below.0);
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
        Effect::LeaseBoundRaised { queue, until } => {
            writer.queue(*queue);
            writer.number(until.0);
        }
        Effect::Acked { queue, sequence } | Effect::GivenBack { queue, sequence } => {
            writer.queue(*queue);
            writer.number(sequence.0);
        }
        Effect::Nacked {
            queue,
            sequence,
            until,
        } => {
            writer.queue(*queue);
            writer.number(sequence.0);
            if let Some(until) = until {
                writer.tagged_number(UNTIL, until.0);
            }
        }
        Effect::Extended {
            queue,
            sequence,
            deadline,
        } => {
            writer.queue(*queue);
            writer.number(sequence.0);
            writer.number(deadline.0);
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
        Effect::Dropped {
            queue,
            sequence,
            reason,
        } => {
            writer.queue(*queue);
            writer.number(sequence.0);
            writer.byte(*reason as u8);
        }
        Effect::Rescheduled {
            queue,
            sequence,
            due,
        } => {
            writer.queue(*queue);
            writer.number(sequence.0);
            writer.number(due.0);
        }
        Effect::KeyParked { queue, key } | Effect::KeyResumed { queue, key } => {
            writer.queue(*queue);
            writer.bytes(key.as_str().as_bytes());
        }
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
        kind::RELOCATED => return Ok(Effect::Compacted(Box::new(message::read(reader)?))),
        kind::TERM_STARTED => Effect::TermStarted {
            term: Term {
                shard: r.shard()?,
                epoch: Epoch(r.number()?),
                incarnation: Incarnation(u64::from_le_bytes(r.array()?)),
            },
            boot_id: BootId(r.array()?),
            clock_offset: i64::from_le_bytes(r.array()?),
            secret: r.array()?,
            now: r.now()?,
        },
        kind::TERM_ENDED => Effect::TermEnded { now: r.now()? },
        kind::ADVANCED => Effect::Advanced {
            now: r.now()?,
            budget: r.small()?,
        },
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
        kind::QUEUE_DELETED => Effect::QueueDeleted { queue: r.queue()? },
        kind::PURGED => Effect::Purged { queue: r.queue()? },
        kind::PAUSED => Effect::Paused {
            queue: r.queue()?,
            paused: r.flag()?,
        },
        kind::SEQUENCES_RESERVED => Effect::SequencesReserved {
            queue: r.queue()?,
            below: r.sequence()?,
        },
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
        kind::HORIZON_RAISED => Effect::LeaseBoundRaised {
            queue: r.queue()?,
            until: r.machine()?,
        },
        kind::ACKED => Effect::Acked {
            queue: r.queue()?,
            sequence: r.sequence()?,
        },
        kind::NACKED => return read_nacked(reader),
        kind::EXTENDED => Effect::Extended {
            queue: r.queue()?,
            sequence: r.sequence()?,
            deadline: r.machine()?,
        },
        kind::GIVEN_BACK => Effect::GivenBack {
            queue: r.queue()?,
            sequence: r.sequence()?,
        },
        kind::MOVED => return read_moved(reader),
        kind::DROPPED => Effect::Dropped {
            queue: r.queue()?,
            sequence: r.sequence()?,
            reason: drop_reason(r)?,
        },
        kind::RESCHEDULED => Effect::Rescheduled {
            queue: r.queue()?,
            sequence: r.sequence()?,
            due: r.wall()?,
        },
        kind::KEY_PARKED => Effect::KeyParked {
            queue: r.queue()?,
            key: message::key(r.counted_text()?, r)?,
        },
        kind::KEY_RESUMED => Effect::KeyResumed {
            queue: r.queue()?,
            key: message::key(r.counted_text()?, r)?,
        },
        _ => return Err(r.newer("kind", number)),
    };
    reader.no_fields()?;
    Ok(effect)
}

/// The holder that was read last: leases come in runs of one, who is made once for all of them.
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
    let mut until = None;
    reader.fields(|tag, value| {
        if tag == UNTIL {
            until = Some(value.machine()?);
        }
        Ok(tag == UNTIL)
    })?;
    Ok(Effect::Nacked {
        queue,
        sequence,
        until,
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
