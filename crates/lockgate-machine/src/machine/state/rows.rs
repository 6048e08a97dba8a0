//! The state of the machine as rows of an image. `docs/internals/format.md`, section "Image",
//! describes the columns' meaning; their order and number are part of the format.

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{
    Epoch, FailedAttempt, Failures, HolderName, Key, MachineTime, MessageId, Position,
    ProducerMark, ProducerName, QueueId, QueueName, RECORD_BYTES_MAX, RecordName, Sequence,
    WallTime, limits::Debt,
};

use super::{
    Content, FailuresEntry, Holder, ID_TAIL_MAX, KeyState, LeaseState, Message, OriginEntry,
    Packed64, Place, Queue, Reserve, State, TimeToLive, U48,
};
use crate::{
    DeadLetterReason, Effect, KeyProfile, QueueCounts, QueueSettings, QueueTotals,
    columns::{Columns, ImageError, Input, Row, column, narrow},
    decode_record,
    dedup::DedupWindow,
    encode_record,
    machine::{
        key_sequences::KeySequences,
        key_states::StateEntry,
        limits::{Debtor, QueueLimits},
        producers::{OpeningEntry, ProducerEntry},
        records::{EntryLease, RecordEntry},
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
        column!(columns, packed position, Packed64, u64::MAX)?;
        column!(columns, number part, U16)?;
        column!(columns, packed sequence, U48, Sequence::MAX.0)?;
        column!(columns, packed since, U48, U48::MAX)?;
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
        column!(columns, number flags, U8)?;
        column!(columns, index key)?;
        column!(columns, number size, U32)?;
        column!(columns, index extra)?;
        column!(columns, links order)?;
        column!(columns, links age)
    }
}

impl Row for LeaseState {
    fn blank() -> Self {
        Self::new(WallTime(0))
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, packed lease, U48, U48::MAX)?;
        column!(columns, packed first_leased, U48, U48::MAX)?;
        column!(columns, number attempts, U16)?;
        column!(columns, flag current)?;
        column!(columns, number held_ms, U32)?;
        column!(columns, index holder)?;
        column!(columns, index timer)?;
        column!(columns, number term, U32)
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
        column!(columns, index message)?;
        columns.bytes(
            |origin, out| out.extend_from_slice(&origin.id.to_bits().to_le_bytes()),
            |origin, bytes| {
                origin.id = MessageId::from_bits(u128::from_le_bytes(bytes.try_into().ok()?));
                Some(())
            },
        )?;
        // As in the record of its move, without the destination.
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

impl Row for FailuresEntry {
    fn blank() -> Self {
        Self {
            message: NONE,
            failures: Arc::default(),
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, index message)?;
        columns.number(
            u64::MAX,
            |entry| entry.failures.left_out(),
            |entry, left_out| entry.failures = Arc::new(Failures::new(Vec::new(), left_out)),
        )?;
        columns.bytes(
            |entry, out| {
                for failure in entry.failures.kept() {
                    let len = u32::try_from(failure.error.len()).unwrap_or(u32::MAX);
                    out.extend_from_slice(&failure.attempt.to_le_bytes());
                    out.extend_from_slice(&failure.at.0.to_le_bytes());
                    out.extend_from_slice(&len.to_le_bytes());
                    out.extend_from_slice(failure.error.as_bytes());
                }
            },
            |entry, bytes| {
                let input = &mut Input::new(bytes);
                let mut kept = Vec::new();
                while !input.is_empty() {
                    kept.push(FailedAttempt {
                        attempt: input.u32().ok()?,
                        at: WallTime(input.u64().ok()?),
                        error: {
                            let len = input.u32().ok()?;
                            let text = input.take(usize::try_from(len).ok()?).ok()?;
                            str::from_utf8(text).ok()?.into()
                        },
                    });
                }
                entry.failures = Arc::new(Failures::new(kept, entry.failures.left_out()));
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
        column!(columns, index message)?;
        column!(columns, u64 span)?;
        column!(columns, index timer)
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
        column!(columns, number leases, U32)
    }
}

impl Row for RecordEntry {
    fn blank() -> Self {
        Self {
            name: RecordName::new("-").expect("a valid name"),
            value: Bytes::new(),
            version: 0,
            revision: 0,
            written: WallTime(0),
            lease: None,
            timer: NONE,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.bytes(
            |record, out| out.extend_from_slice(record.name.as_str().as_bytes()),
            |record, bytes| {
                record.name = RecordName::new(str::from_utf8(bytes).ok()?).ok()?;
                Some(())
            },
        )?;
        columns.bytes(
            |record, out| out.extend_from_slice(&record.value),
            |record, bytes| {
                record.value = Bytes::copy_from_slice(bytes);
                (bytes.len() <= RECORD_BYTES_MAX).then_some(())
            },
        )?;
        column!(columns, u64 version)?;
        column!(columns, u64 revision)?;
        column!(columns, wrapped written, WallTime)?;
        // As in the record of its grant, without the name.
        columns.bytes(
            |record, out| {
                if let Some(lease) = &record.lease {
                    let leased = Effect::RecordLeased {
                        name: RecordName::new("-").expect("a valid name"),
                        holder: lease.holder.clone(),
                        epoch: Epoch(lease.epoch),
                        deadline: lease.until,
                        delete_at_end: lease.delete_at_end,
                    };
                    encode_record(&[leased], out);
                }
            },
            |record, bytes| {
                if bytes.is_empty() {
                    return Some(());
                }
                let Effect::RecordLeased {
                    holder,
                    epoch,
                    deadline,
                    delete_at_end,
                    ..
                } = effect(bytes)?
                else {
                    return None;
                };
                record.lease = Some(EntryLease {
                    holder,
                    epoch: epoch.0,
                    until: deadline,
                    delete_at_end,
                });
                Some(())
            },
        )?;
        column!(columns, index timer)
    }
}

impl Row for StateEntry {
    fn blank() -> Self {
        Self {
            key: Key::new("-").expect("a valid key"),
            value: Bytes::new(),
            version: 0,
            written: WallTime(0),
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.bytes(
            |state, out| out.extend_from_slice(state.key.as_str().as_bytes()),
            |state, bytes| {
                state.key = Key::new(str::from_utf8(bytes).ok()?).ok()?;
                Some(())
            },
        )?;
        columns.bytes(
            |state, out| out.extend_from_slice(&state.value),
            |state, bytes| {
                state.value = Bytes::copy_from_slice(bytes);
                (bytes.len() <= RECORD_BYTES_MAX).then_some(())
            },
        )?;
        column!(columns, u64 version)?;
        column!(columns, wrapped written, WallTime)
    }
}

impl Row for ProducerEntry {
    fn blank() -> Self {
        Self::blank()
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.bytes(
            |producer, out| out.extend_from_slice(producer.name.as_str().as_bytes()),
            |producer, bytes| {
                producer.name = ProducerName::new(str::from_utf8(bytes).ok()?).ok()?;
                Some(())
            },
        )?;
        column!(columns, u64 incarnation)?;
        column!(columns, wrapped used, MachineTime)?;
        column!(columns, wrapped seen, MachineTime)?;
        column!(columns, flag forgotten)
    }
}

impl Row for OpeningEntry {
    fn blank() -> Self {
        Self::blank()
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, index producer)?;
        column!(columns, u64 opening)?;
        for lane in 0..usize::from(ProducerMark::LANES) {
            columns.number(
                u64::MAX,
                |opening| opening.lanes[lane],
                |opening, number| opening.lanes[lane] = number,
            )?;
        }
        column!(columns, wrapped used, MachineTime)?;
        column!(columns, wrapped seen, MachineTime)
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
        column!(columns, index content)?;
        column!(columns, number hash, U32)?;
        column!(columns, list order)?;
        column!(columns, list returned)?;
        column!(columns, list delayed)?;
        column!(columns, links links)?;
        column!(columns, number messages, U32)?;
        column!(columns, number delayed_count, U32)?;
        column!(columns, number leased, U32)?;
        column!(columns, packed settled_at, Packed64, u64::MAX)?;
        column!(columns, flag strict)?;
        column!(columns, flag parked)?;
        columns.number(
            2,
            |key| key.place as u64,
            |key, place| {
                key.place = match place {
                    0 => Place::Out,
                    1 => Place::Ready,
                    _ => Place::Limited,
                }
            },
        )?;
        column!(columns, flag returned_next)
    }
}

impl Row for Debtor {
    fn blank() -> Self {
        Self {
            queue: QueueId(0),
            key: None,
            debt: Debt::default(),
            timer: NONE,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.number(
            u64::from(QueueId::MAX.0),
            |debtor| u64::from(debtor.queue.0),
            |debtor, id| debtor.queue = QueueId(narrow(id)),
        )?;
        // No name is empty.
        columns.bytes(
            |debtor, out| {
                let name = debtor.key.as_ref().map(Key::as_str);
                out.extend_from_slice(name.unwrap_or_default().as_bytes());
            },
            |debtor, bytes| {
                if !bytes.is_empty() {
                    debtor.key = Some(Key::new(str::from_utf8(bytes).ok()?).ok()?);
                }
                Some(())
            },
        )?;
        for part in 0..4 {
            columns.number(
                u64::MAX,
                |debtor| debtor.debt.to_numbers()[part],
                |debtor, number| {
                    let mut numbers = debtor.debt.to_numbers();
                    numbers[part] = number;
                    debtor.debt = Debt::from_numbers(numbers);
                },
            )?;
        }
        Ok(())
    }
}

impl Row for Content {
    fn blank() -> Self {
        Self::new(NONE, QueueId(0), &QueueSettings::default())
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, index queue)?;
        columns.number(
            u64::from(QueueId::MAX.0),
            |content| u64::from(content.queue_id.0),
            |content, id| content.queue_id = QueueId(narrow(id)),
        )?;
        column!(columns, flag keyed)?;
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
        column!(columns, flag dead)?;
        column!(columns, list ready_keys)?;
        column!(columns, list parked_keys)?;
        column!(columns, list limited_keys)?;
        column!(columns, list by_age)?;
        column!(columns, list delayed)?;
        column!(columns, index unswept)?;
        column!(columns, wrapped removed_at, Position)?;
        column!(columns, number leased, U32)?;
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
            indexed: None,
            dedup_timer: NONE,
            dedup_at: MachineTime::MAX,
            key_sequences: KeySequences::default(),
            states: None,
            producers: None,
            limits: None,
            sweep_timer: NONE,
            totals: QueueTotals::default(),
            woken: false,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        // As if the queue were created now with its settings.
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
        column!(columns, wrapped changed, WallTime)?;
        column!(columns, wrapped changed_at, Position)?;
        column!(columns, wrapped next_sequence, Sequence)?;
        column!(columns, wrapped reserve.below, Sequence)?;
        column!(columns, wrapped reserve.at, Position)?;
        column!(columns, wrapped reserve.below_before, Sequence)?;
        column!(columns, wrapped reserve.at_before, Position)?;
        column!(columns, wrapped lease_bound, MachineTime)?;
        column!(columns, wrapped lease_bound_at, Position)?;
        column!(columns, wrapped dedup_at, MachineTime)?;
        column!(columns, flag paused)?;
        columns.flag(
            |queue| queue.held_until.is_some(),
            |queue, held| queue.held_until = held.then_some(MachineTime(0)),
        )?;
        columns.number(
            u64::MAX,
            |queue| queue.held_until.map_or(0, |until| until.0),
            |queue, until| queue.held_until = queue.held_until.map(|_| MachineTime(until)),
        )?;
        column!(columns, index hold_timer)?;
        column!(columns, index dedup_timer)?;
        column!(columns, index sweep_timer)?;
        column!(columns, index content)?;
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
        // Empty: there never were any.
        columns.bytes(
            |queue, out| {
                let numbers = queue.limits.as_ref().map(|limits| limits.to_numbers());
                let numbers = numbers.iter();
                for number in numbers.flat_map(|(of, debt)| of.iter().flatten().chain(debt)) {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            },
            |queue, bytes| {
                if !bytes.is_empty() {
                    let limits = queue.settings.limits();
                    let limits = QueueLimits::from_numbers(limits, limit_numbers(bytes)?)?;
                    queue.limits = Some(Box::new(limits));
                }
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

/// How many [`counts`] there are.
const COUNTS: usize = 7;

/// The counts of a content in the image's order. A query computes the others.
fn counts(counts: &mut QueueCounts) -> [&mut u64; COUNTS] {
    let QueueCounts {
        ready,
        in_flight,
        delayed,
        bytes,
        keys,
        parked_keys,
        limited_keys,
        owing_keys: _,
        unique_ids: _,
        states: _,
        state_bytes: _,
        producers: _,
        producer_openings: _,
        oldest: _,
    } = counts;
    [
        ready,
        in_flight,
        delayed,
        bytes,
        keys,
        parked_keys,
        limited_keys,
    ]
}

/// The numbers of a queue's limits: of its two limiters, and its debt. Earlier builds wrote no last rate and no last gap:
/// these are 0 then, as if there had been none but those of the settings.
fn limit_numbers(bytes: &[u8]) -> Option<([[u64; 8]; 2], [u64; 4])> {
    // Three times four numbers of eight bytes.
    let of_each = if bytes.len() == 96 { 4 } else { 8 };
    let input = &mut Input::new(bytes);
    let (mut of, mut debt) = ([[0_u64; 8]; 2], [0_u64; 4]);
    let limiters = of.iter_mut().flat_map(|it| it.iter_mut().take(of_each));
    for number in limiters.chain(&mut debt) {
        *number = input.u64().ok()?;
    }
    input.expect_end().ok()?;
    Some((of, debt))
}

/// The only effect of a record's payload.
fn effect(record: &[u8]) -> Option<Effect> {
    let mut effects = decode_record(&Bytes::copy_from_slice(record)).ok()?;
    effects.pop().filter(|_| effects.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_earlier_builds_take_the_last_rate_and_gap_from_the_settings() {
        let bytes: Vec<u8> = (1..=12_u64).flat_map(u64::to_le_bytes).collect();
        let numbers = limit_numbers(&bytes).unwrap();
        let of = [[1, 2, 3, 4, 0, 0, 0, 0], [5, 6, 7, 8, 0, 0, 0, 0]];
        assert_eq!(numbers, (of, [9, 10, 11, 12]));

        let settings = QueueSettings {
            limit_rate: "2/s per key".parse().unwrap(),
            limit_gap: "3s".parse().unwrap(),
            ..QueueSettings::default()
        };
        let limits = QueueLimits::from_numbers(settings.limits(), numbers).unwrap();
        let of = [[1, 2, 3, 4, 0, 0, 0, 3_000], [5, 6, 7, 8, 2, 1_000, 2, 0]];
        assert_eq!(limits.to_numbers(), (of, [9, 10, 11, 12]));
    }

    #[test]
    fn limits_have_all_their_numbers() {
        let bytes: Vec<u8> = (1..=20_u64).flat_map(u64::to_le_bytes).collect();
        let of = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16]];
        assert_eq!(limit_numbers(&bytes), Some((of, [17, 18, 19, 20])));
        for len in [8, 95, 97, 152, 159] {
            assert_eq!(limit_numbers(&bytes[..len]), None, "{len} bytes");
        }
    }
}
