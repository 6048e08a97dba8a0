//! What the machine holds as rows of an image. The columns' meaning is described in
//! `docs/internals/format.md`, section "Image"; their order and number are part of the format.

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{
    HolderName, Key, MachineTime, MessageId, Position, QueueId, QueueName, Sequence, WallTime,
};

use super::{
    Content, Holder, ID_TAIL_MAX, KeyState, LeaseState, Message, OriginEntry, Packed64, Queue,
    Reserve, State, TimeToLive, U48,
};
use crate::{
    DeadLetterReason, Effect, KeyProfile, QueueCounts, QueueSettings, QueueTotals,
    columns::{Columns, ImageError, Input, Row, narrow},
    decode_record,
    dedup::DedupWindow,
    encode_record,
    machine::{
        key_sequences::KeySequences,
        list::{Links, List},
    },
    sequences::Sequences,
    slab::NONE,
};

const U8: u64 = u8::MAX as u64;
const U16: u64 = u16::MAX as u64;
const U32: u64 = u32::MAX as u64;

impl Row for Message {
    fn blank() -> Self {
        Self::new(
            Sequence(0),
            lockgate_core::Location::default(),
            WallTime(0),
            NONE,
            0,
        )
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.number(
            u64::MAX,
            |message| message.position.get(),
            |message, position| message.position = Packed64::new(position),
        )?;
        columns.number(
            U16,
            |message| u64::from(message.part),
            |message, part| message.part = narrow(part),
        )?;
        columns.number(
            Sequence::MAX.0,
            |message| message.sequence.get(),
            |message, sequence| message.sequence = U48::new(sequence),
        )?;
        columns.number(
            U48::MAX,
            |message| message.since.get(),
            |message, since| message.since = U48::new(since),
        )?;
        columns.number(
            3,
            |message| message.state as u64,
            |message, state| {
                message.state = match state {
                    0 => State::Ready,
                    1 => State::Leased,
                    2 => State::Backoff,
                    _ => State::Delayed,
                }
            },
        )?;
        columns.number(
            U8,
            |message| u64::from(message.flags),
            |message, flags| message.flags = narrow(flags),
        )?;
        columns.index(|message| message.key, |message, key| message.key = key)?;
        columns.number(
            U32,
            |message| u64::from(message.size),
            |message, size| message.size = narrow(size),
        )?;
        columns.index(
            |message| message.extra,
            |message, extra| message.extra = extra,
        )?;
        links(
            columns,
            |message| message.order,
            |message| &mut message.order,
        )?;
        links(columns, |message| message.age, |message| &mut message.age)
    }
}

impl Row for LeaseState {
    fn blank() -> Self {
        Self::new(WallTime(0))
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.number(
            U48::MAX,
            |lease_state| lease_state.lease.get(),
            |lease_state, lease| lease_state.lease = U48::new(lease),
        )?;
        columns.number(
            U48::MAX,
            |lease_state| lease_state.first_leased.get(),
            |lease_state, since| lease_state.first_leased = U48::new(since),
        )?;
        columns.number(
            U16,
            |lease_state| u64::from(lease_state.attempts),
            |lease_state, attempts| lease_state.attempts = narrow(attempts),
        )?;
        columns.flag(
            |lease_state| lease_state.current,
            |lease_state, yes| lease_state.current = yes,
        )?;
        columns.number(
            U32,
            |lease_state| u64::from(lease_state.held_ms),
            |lease_state, held| lease_state.held_ms = narrow(held),
        )?;
        columns.index(
            |lease_state| lease_state.holder,
            |lease_state, holder| lease_state.holder = holder,
        )?;
        columns.index(
            |lease_state| lease_state.timer,
            |lease_state, timer| lease_state.timer = timer,
        )?;
        columns.number(
            U32,
            |lease_state| u64::from(lease_state.term),
            |lease_state, term| lease_state.term = narrow(term),
        )
    }
}

impl Row for OriginEntry {
    fn blank() -> Self {
        Self {
            message: NONE,
            id: MessageId::from_bits(0),
            queue: QueueId(0),
            sequence: Sequence(0),
            reason: DeadLetterReason::Redriven { source: None },
            at: WallTime(0),
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.index(
            |origin| origin.message,
            |origin, message| origin.message = message,
        )?;
        columns.bytes(
            |origin, out| out.extend_from_slice(&origin.id.to_bits().to_le_bytes()),
            |origin, bytes| {
                origin.id = MessageId::from_bits(u128::from_le_bytes(bytes.try_into().ok()?));
                Some(())
            },
        )?;
        // As the record of its move has it, but for where it went.
        columns.bytes(
            |origin, out| {
                let moved = Effect::Moved {
                    from: origin.queue,
                    sequence: origin.sequence,
                    to: QueueId(0),
                    to_sequence: Sequence(0),
                    reason: origin.reason.clone(),
                    at: origin.at,
                };
                encode_record(&[moved], out);
            },
            |origin, bytes| {
                let Effect::Moved {
                    from,
                    sequence,
                    reason,
                    at,
                    ..
                } = effect(bytes)?
                else {
                    return None;
                };
                origin.queue = from;
                origin.sequence = sequence;
                origin.reason = reason;
                origin.at = at;
                Some(())
            },
        )
    }
}

impl Row for TimeToLive {
    fn blank() -> Self {
        Self {
            message: NONE,
            span: 0,
            timer: NONE,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.index(|ttl| ttl.message, |ttl, message| ttl.message = message)?;
        columns.number(u64::MAX, |ttl| ttl.span, |ttl, span| ttl.span = span)?;
        columns.index(|ttl| ttl.timer, |ttl, timer| ttl.timer = timer)
    }
}

impl Row for Holder {
    fn blank() -> Self {
        Self {
            name: HolderName::new("-").expect("a valid name"),
            leases: 0,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.bytes(
            |holder, out| out.extend_from_slice(holder.name.as_str().as_bytes()),
            |holder, bytes| {
                holder.name = HolderName::new(str::from_utf8(bytes).ok()?).ok()?;
                Some(())
            },
        )?;
        columns.number(
            U32,
            |holder| u64::from(holder.leases),
            |holder, leases| holder.leases = narrow(leases),
        )
    }
}

impl Row for KeyState {
    fn blank() -> Self {
        Self::new(None, NONE, 0)
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        // No name is empty.
        columns.bytes(
            |key, out| {
                if let Some(name) = &key.name {
                    out.extend_from_slice(name.as_str().as_bytes());
                }
            },
            |key, bytes| {
                if !bytes.is_empty() {
                    key.name = Some(Key::new(str::from_utf8(bytes).ok()?).ok()?);
                }
                Some(())
            },
        )?;
        columns.index(|key| key.content, |key, content| key.content = content)?;
        columns.number(
            U32,
            |key| u64::from(key.hash),
            |key, hash| key.hash = narrow(hash),
        )?;
        list(columns, |key| key.order, |key| &mut key.order)?;
        list(columns, |key| key.returned, |key| &mut key.returned)?;
        list(columns, |key| key.delayed, |key| &mut key.delayed)?;
        links(columns, |key| key.links, |key| &mut key.links)?;
        columns.number(
            U32,
            |key| u64::from(key.messages),
            |key, messages| key.messages = narrow(messages),
        )?;
        columns.number(
            U32,
            |key| u64::from(key.delayed_count),
            |key, delayed| key.delayed_count = narrow(delayed),
        )?;
        columns.number(
            U32,
            |key| u64::from(key.leased),
            |key, leased| key.leased = narrow(leased),
        )?;
        columns.number(
            u64::MAX,
            |key| key.settled_at.get(),
            |key, at| key.settled_at = Packed64::new(at),
        )?;
        columns.flag(|key| key.strict, |key, yes| key.strict = yes)?;
        columns.flag(|key| key.parked, |key, yes| key.parked = yes)?;
        columns.flag(|key| key.ready, |key, yes| key.ready = yes)?;
        columns.flag(|key| key.returned_next, |key, yes| key.returned_next = yes)
    }
}

impl Row for Content {
    fn blank() -> Self {
        Self::new(NONE, QueueId(0), &QueueSettings::default())
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.index(
            |content| content.queue,
            |content, queue| content.queue = queue,
        )?;
        columns.number(
            u64::from(QueueId::MAX.0),
            |content| u64::from(content.queue_id.0),
            |content, id| content.queue_id = QueueId(narrow(id)),
        )?;
        columns.flag(|content| content.keyed, |content, yes| content.keyed = yes)?;
        columns.flag(
            |content| content.profile == KeyProfile::Strict,
            |content, strict| {
                content.profile = if strict {
                    KeyProfile::Strict
                } else {
                    KeyProfile::Sqs
                };
            },
        )?;
        columns.flag(|content| content.dead, |content, yes| content.dead = yes)?;
        list(
            columns,
            |content| content.ready_keys,
            |content| &mut content.ready_keys,
        )?;
        list(
            columns,
            |content| content.parked_keys,
            |content| &mut content.parked_keys,
        )?;
        list(
            columns,
            |content| content.by_age,
            |content| &mut content.by_age,
        )?;
        list(
            columns,
            |content| content.delayed,
            |content| &mut content.delayed,
        )?;
        columns.index(
            |content| content.unswept,
            |content, message| content.unswept = message,
        )?;
        columns.number(
            u64::MAX,
            |content| content.removed_at.0,
            |content, at| content.removed_at = Position(at),
        )?;
        for count in 0..COUNTS {
            columns.number(
                u64::MAX,
                |content| *counts(&mut content.counts.clone())[count],
                |content, number| *counts(&mut content.counts)[count] = number,
            )?;
        }
        columns.bytes(
            |content, out| content.by_sequence.encode_outline(out),
            |content, bytes| {
                let input = &mut Input::new(bytes);
                content.by_sequence = Sequences::decode_outline(input).ok()?;
                input.expect_end().ok()
            },
        )
    }
}

impl Row for Queue {
    fn blank() -> Self {
        Self {
            id: QueueId(0),
            name: QueueName::new("-").expect("a valid name"),
            settings: Arc::default(),
            annotations: Arc::default(),
            tags: Arc::default(),
            created: WallTime(0),
            changed: WallTime(0),
            changed_at: Position(0),
            paused: false,
            held_until: None,
            hold_timer: NONE,
            content: NONE,
            next_sequence: Sequence(1),
            id_tails: Vec::new(),
            reserve: Reserve::default(),
            lease_bound: MachineTime(0),
            lease_bound_at: Position(0),
            dedup: DedupWindow::default(),
            dedup_timer: NONE,
            dedup_at: MachineTime::MAX,
            key_sequences: KeySequences::default(),
            sweep_timer: NONE,
            totals: QueueTotals::default(),
            woken: false,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        // As if it were created now with what it has.
        columns.bytes(
            |queue, out| {
                let created = Effect::QueueCreated {
                    queue: queue.id,
                    name: queue.name.clone(),
                    settings: Box::new((*queue.settings).clone()),
                    annotations: (*queue.annotations).clone(),
                    tags: (*queue.tags).clone(),
                    at: queue.created,
                };
                encode_record(&[created], out);
            },
            |row, bytes| {
                let Effect::QueueCreated {
                    queue,
                    name,
                    settings,
                    annotations,
                    tags,
                    at,
                } = effect(bytes)?
                else {
                    return None;
                };
                row.id = queue;
                row.name = name;
                row.settings = Arc::new(*settings);
                row.annotations = Arc::new(annotations);
                row.tags = Arc::new(tags);
                row.created = at;
                Some(())
            },
        )?;
        for (get, set) in INSTANTS {
            columns.number(u64::MAX, get, set)?;
        }
        columns.flag(|queue| queue.paused, |queue, yes| queue.paused = yes)?;
        columns.flag(
            |queue| queue.held_until.is_some(),
            |queue, held| queue.held_until = held.then_some(MachineTime(0)),
        )?;
        columns.number(
            u64::MAX,
            |queue| queue.held_until.map_or(0, |until| until.0),
            |queue, until| queue.held_until = queue.held_until.map(|_| MachineTime(until)),
        )?;
        columns.index(
            |queue| queue.hold_timer,
            |queue, timer| queue.hold_timer = timer,
        )?;
        columns.index(
            |queue| queue.dedup_timer,
            |queue, timer| queue.dedup_timer = timer,
        )?;
        columns.index(
            |queue| queue.sweep_timer,
            |queue, timer| queue.sweep_timer = timer,
        )?;
        columns.index(
            |queue| queue.content,
            |queue, content| queue.content = content,
        )?;
        columns.bytes(
            |queue, out| {
                for (first, tail) in &queue.id_tails {
                    out.extend_from_slice(&first.0.to_le_bytes());
                    out.extend_from_slice(&tail.to_le_bytes());
                }
            },
            |queue, bytes| {
                let input = &mut Input::new(bytes);
                while !input.is_empty() {
                    let first = Sequence(input.u64().ok()?);
                    let tail = input.u64().ok().filter(|&tail| tail <= ID_TAIL_MAX)?;
                    queue.id_tails.push((first, tail));
                }
                queue.id_tails.is_sorted().then_some(())
            },
        )?;
        columns.bytes(
            |queue, out| queue.totals.encode(out),
            |queue, bytes| {
                queue.totals = QueueTotals::decode(&mut Input::new(bytes)).ok()?;
                Some(())
            },
        )?;
        columns.bytes(
            |queue, out| queue.dedup.encode_outline(out),
            |queue, bytes| {
                let input = &mut Input::new(bytes);
                queue.dedup = DedupWindow::decode_outline(input).ok()?;
                input.expect_end().ok()
            },
        )
    }
}

/// How to read and how to set a number.
type NumberOf<T> = (fn(&T) -> u64, fn(&mut T, u64));

/// Instants, positions and sequence numbers of a queue.
const INSTANTS: [NumberOf<Queue>; 10] = [
    (
        |queue| queue.changed.0,
        |queue, at| queue.changed = WallTime(at),
    ),
    (
        |queue| queue.changed_at.0,
        |queue, at| queue.changed_at = Position(at),
    ),
    (
        |queue| queue.next_sequence.0,
        |queue, next| queue.next_sequence = Sequence(next),
    ),
    (
        |queue| queue.reserve.below.0,
        |queue, below| queue.reserve.below = Sequence(below),
    ),
    (
        |queue| queue.reserve.at.0,
        |queue, at| queue.reserve.at = Position(at),
    ),
    (
        |queue| queue.reserve.below_before.0,
        |queue, below| queue.reserve.below_before = Sequence(below),
    ),
    (
        |queue| queue.reserve.at_before.0,
        |queue, at| queue.reserve.at_before = Position(at),
    ),
    (
        |queue| queue.lease_bound.0,
        |queue, until| queue.lease_bound = MachineTime(until),
    ),
    (
        |queue| queue.lease_bound_at.0,
        |queue, at| queue.lease_bound_at = Position(at),
    ),
    (
        |queue| queue.dedup_at.0,
        |queue, at| queue.dedup_at = MachineTime(at),
    ),
];

/// How many [`counts`] there are.
const COUNTS: usize = 6;

/// What a content counts, in the order of the image. The others are filled in by a query.
fn counts(counts: &mut QueueCounts) -> [&mut u64; COUNTS] {
    let QueueCounts {
        ready,
        in_flight,
        delayed,
        bytes,
        keys,
        parked_keys,
        unique_ids: _,
        oldest: _,
    } = counts;
    [ready, in_flight, delayed, bytes, keys, parked_keys]
}

fn links<T>(
    columns: &mut impl Columns<T>,
    get: impl Fn(&T) -> Links,
    of: impl Fn(&mut T) -> &mut Links,
) -> Result<(), ImageError> {
    columns.neighbour(|row| get(row).before, |row, other| of(row).before = other)?;
    columns.neighbour(|row| get(row).after, |row, other| of(row).after = other)
}

fn list<T>(
    columns: &mut impl Columns<T>,
    get: impl Fn(&T) -> List,
    of: impl Fn(&mut T) -> &mut List,
) -> Result<(), ImageError> {
    columns.index(|row| get(row).first, |row, first| of(row).first = first)?;
    columns.index(|row| get(row).last, |row, last| of(row).last = last)
}

/// The only effect of a record's payload.
fn effect(record: &[u8]) -> Option<Effect> {
    let mut effects = decode_record(&Bytes::copy_from_slice(record)).ok()?;
    effects.pop().filter(|_| effects.is_empty())
}
