//! Accepts messages.

use std::num::NonZeroU64;

use lockgate_core::{
    self as core, Key, Level, Location, MachineTime, Now, PRIORITY_MAX, Produced, QueueName,
    Sequence, WallTime,
};

use super::{
    Machine,
    draft::Draft,
    key_sequences,
    key_states::KeyStates,
    state::{Message, U48, flag},
};
use crate::{
    DedupScope, Effect, Payload, QueueSettings, Rejection, SendMessage, Sent, StoredMessage,
    dedup::{DedupHit, digest},
    effect::Arrival,
};

/// How many sequence numbers are reserved at a time for sends at level `memory`: one sync for so
/// many messages, and at most so many counted as possibly lost after a crash.
const RESERVE_STEP: u64 = 1024;

/// What a remembered unique id counts against its queue's limit: the most memory that it takes, so
/// that the limit does not depend on how full a table is.
const UNIQUE_ID_BYTES: u64 = 64;

/// The capacity of the slabs, minus a reserve.
const MESSAGES_MAX: u32 = 4_000_000_000;

/// A message on its way into a queue, which gets it with this key or group.
#[derive(Clone, Copy)]
pub(super) struct Outgoing<'a> {
    pub(super) queue: &'a QueueName,
    pub(super) message: &'a core::Message,
    pub(super) key: Option<&'a Key>,
    pub(super) group: Option<&'a Key>,
    /// Where the queue finds its payload.
    pub(super) payload: Payload,
}

impl<'a> From<&'a SendMessage> for Outgoing<'a> {
    fn from(send: &'a SendMessage) -> Self {
        Self {
            queue: &send.queue,
            message: &send.message,
            key: send.message.key.as_ref(),
            group: send.message.group.as_ref(),
            payload: Payload::Own,
        }
    }
}

impl Outgoing<'_> {
    /// The message as its record has it.
    #[inline]
    fn kept(&self, key: Option<&Key>, due: Option<WallTime>) -> core::Message {
        let message = self.message;
        let mut kept = match self.payload {
            Payload::Own | Payload::Shared => message.clone(),
            Payload::Of { .. } => core::Message {
                unique_id: message.unique_id.clone(),
                time_to_live: message.time_to_live,
                level: message.level,
                priority: message.priority,
                producer: message.producer.clone(),
                ..core::Message::default()
            },
        };
        kept.due = due;
        kept.key = key.cloned();
        kept.group = None;
        kept.producer = kept.producer.map(accepted);
        kept
    }
}

impl Machine {
    /// The effect that accepts the message, if there is one, is the last one of the draft then.
    pub(super) fn decide_send(
        &self,
        draft: &mut Draft,
        send: Outgoing<'_>,
        now: Now,
    ) -> Result<Sent, Rejection> {
        let index = self.named_queue(send.queue)?;
        let queue = &self.queues[index];
        let settings = &queue.settings;
        let message = send.message;
        let key = settings.key_or_group(send.queue, send.key, send.group)?;
        if settings.keyed && key.is_none() {
            return Err(Rejection::KeyRequired {
                queue: send.queue.clone(),
            });
        }
        let size = message.size() as u64;
        if size > u64::from(settings.message_bytes_max) {
            return Err(Rejection::MessageTooLarge {
                queue: send.queue.clone(),
                size,
                max: u64::from(settings.message_bytes_max),
            });
        }
        let level = message.level.unwrap_or(settings.level);
        if level < settings.level || level > self.limits.log_level {
            return Err(Rejection::Level {
                queue: send.queue.clone(),
                asked: level,
                queue_level: settings.level,
                log_level: self.limits.log_level,
            });
        }
        check_range(
            "time to live",
            message.time_to_live.unwrap_or(1),
            1,
            U48::MAX,
        )?;
        check_range("priority", message.priority.into(), 0, PRIORITY_MAX.into())?;

        if let Some(produced) = &message.producer {
            self.check_mark(draft, index, produced, level)?;
        }
        let unique = self.unique_digest(settings, &send, key, now.machine)?;
        let unique = unique.filter(|_| !draft.forgets_ids);
        if let Some(digest) = unique {
            let in_transaction = |digest| {
                let first = draft.unique_ids.get(&(index, digest))?;
                Some(Sent {
                    duplicate: true,
                    ..*first
                })
            };
            if let Some(first) = in_transaction(digest) {
                self.raise_for_duplicate(draft, index, message, level, now);
                return Ok(first);
            }
            let mut hit = queue.dedup.get(digest);
            // An id that was sent before the scope changed counts in its former scope. An id that was
            // sent since does not, although a message without a key has the same digest in both scopes.
            if hit.is_none()
                && let Some(from) = settings.dedup_scope_from
                && let Some(id) = &message.unique_id
            {
                let scope = settings.dedup_scope_at(now.machine).other();
                let former = self::digest(scope_key(scope, key.map(Key::as_str)), id.as_str());
                if now.machine < from
                    && let Some(first) = in_transaction(former)
                {
                    self.raise_for_duplicate(draft, index, message, level, now);
                    return Ok(first);
                }
                let sent_before =
                    |hit: &DedupHit| hit.expires.0.saturating_sub(settings.dedup_window) < from.0;
                hit = queue.dedup.get(former).filter(sent_before);
            }
            if let Some(hit) = hit {
                if level >= Level::Disk {
                    draft.rest_on(self.unless_durable(hit.position));
                }
                draft.level = draft.level.max(level.min(Level::Process));
                self.raise_for_duplicate(draft, index, message, level, now);
                return Ok(Sent {
                    id: queue.id_of(hit.sequence),
                    sequence: hit.sequence,
                    duplicate: true,
                });
            }
            if let Some(first) = self.indexed_id(draft, queue, digest)? {
                draft.level = draft.level.max(level.min(Level::Process));
                self.raise_for_duplicate(draft, index, message, level, now);
                return Ok(Sent {
                    id: queue.id_of(first),
                    sequence: first,
                    duplicate: true,
                });
            }
            if (queue.dedup.len() as u64 + 1) * UNIQUE_ID_BYTES > settings.dedup_bytes_max {
                return Err(Rejection::DedupFull {
                    queue: send.queue.clone(),
                    max: settings.dedup_bytes_max,
                });
            }
        }

        self.check_quota(draft, index, size)?;
        let due = match message.due {
            Some(due) => Some(due),
            None if settings.delay > 0 => Some(now.wall.plus(settings.delay)),
            None => None,
        }
        .filter(|&due| due > now.wall)
        // If earlier messages are due and wait for a tick, this one waits with them, to keep the order.
        .or_else(|| {
            let waits = self.contents[queue.content].counts.delayed > 0;
            (waits && self.wall.has_due(now.wall.0)).then_some(now.wall)
        });
        check_range("due time", due.map_or(0, |due| due.0), 0, U48::MAX)?;

        let sequence = self.next_sequence(draft, index)?;
        let id = lockgate_core::MessageId::new(queue.id, sequence, self.term());
        if level == Level::Memory {
            self.reserve_sequence(draft, index, sequence);
        }

        let key_sequence = self.next_key_sequence(draft, index, key);
        let kept = send.kept(key, due);
        draft.add(
            Effect::Accepted(Box::new(StoredMessage {
                queue: queue.id,
                sequence,
                id,
                accepted: now.wall,
                unique_until: unique.map(|_| now.machine.plus(settings.dedup_window)),
                key_sequence,
                marked_at: message.producer.as_ref().map(|_| now.machine),
                payload: send.payload,
                message: kept,
            })),
            level,
        );
        let delta = draft.delta_mut(index);
        delta.sequences += 1;
        delta.messages += 1;
        delta.bytes += i64::try_from(size).unwrap_or(i64::MAX);
        let sent = Sent {
            id,
            sequence,
            duplicate: false,
        };
        // Only a transaction can contain the same id again before this one is folded.
        if let Some(digest) = unique.filter(|_| draft.in_transaction) {
            draft.unique_ids.insert((index, digest), sent);
        }
        Ok(sent)
    }

    /// What becomes of a record whose unique id is known is certain, so its mark is raised: when the id is forgotten, the
    /// record is still known.
    fn raise_for_duplicate(
        &self,
        draft: &mut Draft,
        index: u32,
        message: &core::Message,
        level: Level,
        now: Now,
    ) {
        if let Some(produced) = &message.producer {
            let raised = Effect::MarkRaised {
                queue: self.queues[index].id,
                produced: accepted(produced.clone()),
                at: now.machine,
            };
            draft.add(raised, level);
        }
    }

    /// The digest of the message's unique id; `None` if it has none or the queue remembers none.
    pub(super) fn unique_digest(
        &self,
        settings: &QueueSettings,
        send: &Outgoing<'_>,
        key: Option<&Key>,
        now: MachineTime,
    ) -> Result<Option<u128>, Rejection> {
        let message = &send.message;
        match &message.unique_id {
            None if settings.dedup_content => Err(Rejection::UniqueIdRequired {
                queue: send.queue.clone(),
            }),
            Some(id) if settings.dedup_window > 0 => {
                let scope = settings.dedup_scope_at(now);
                let scope = scope_key(scope, key.map(Key::as_str));
                Ok(Some(digest(scope, id.as_str())))
            }
            _ => Ok(None),
        }
    }

    /// The message's number among those of its key; `None` if the queue does not number them.
    fn next_key_sequence(
        &self,
        draft: &mut Draft,
        index: u32,
        key: Option<&Key>,
    ) -> Option<NonZeroU64> {
        let queue = &self.queues[index];
        let key = key.filter(|_| queue.settings.key_sequences_max > 0)?;
        let key = key_sequences::digest(key.as_str());
        let earlier = draft.key_sequences.get(&(index, key));
        let last = earlier.map_or_else(|| queue.key_sequences.last(key), |last| last.get());
        let number = NonZeroU64::MIN.saturating_add(last);
        // Only a transaction can contain the same key again before this one is folded.
        if draft.in_transaction {
            draft.key_sequences.insert((index, key), number);
        }
        Some(number)
    }

    /// Whether another message of `size` bytes fits into the queue and the shard.
    fn check_quota(&self, draft: &Draft, index: u32, size: u64) -> Result<(), Rejection> {
        let queue = &self.queues[index];
        let content = &self.contents[queue.content];
        let delta = draft.delta(index);
        if let Some(max) = queue.settings.quota_messages
            && content.messages().saturating_add_signed(delta.messages) >= max
        {
            return Err(Rejection::QuotaExceeded {
                queue: queue.name.clone(),
                what: "messages",
                max,
            });
        }
        self.check_quota_bytes(draft, index, size)?;
        let max = u64::from(self.limits.messages_max.min(MESSAGES_MAX));
        if self.messages.len() as u64 + draft.effects.len() as u64 >= max {
            return Err(Rejection::ShardFull {
                what: "messages",
                max,
            });
        }
        Ok(())
    }

    /// Whether the queue may have `more` bytes, of messages or states.
    pub(super) fn check_quota_bytes(
        &self,
        draft: &Draft,
        index: u32,
        more: u64,
    ) -> Result<(), Rejection> {
        let queue = &self.queues[index];
        let Some(max) = queue.settings.quota_bytes else {
            return Ok(());
        };
        let states = queue.states.as_deref().map_or(0, KeyStates::bytes);
        let bytes = self.contents[queue.content]
            .counts
            .bytes
            .saturating_add(states);
        let bytes = bytes.saturating_add_signed(draft.delta(index).bytes);
        if bytes.saturating_add(more) > max {
            return Err(Rejection::QuotaExceeded {
                queue: queue.name.clone(),
                what: "bytes",
                max,
            });
        }
        Ok(())
    }

    /// Ensures that `sequence` may be given out before its record is written. The reserve is raised
    /// when half of it is left, so that in a steady flow no send waits for it.
    fn reserve_sequence(&self, draft: &mut Draft, index: u32, sequence: Sequence) {
        let queue = &self.queues[index];
        let reserve = queue.reserve;
        let sync = self.limits.log_level.min(Level::Disk);
        if sequence.0 + RESERVE_STEP / 2 >= reserve.below.0 && !draft.delta(index).reserved {
            let below = Sequence(sequence.0 + RESERVE_STEP).min(Sequence::MAX);
            draft.add(
                Effect::SequencesReserved {
                    queue: queue.id,
                    below,
                },
                Level::Memory,
            );
            draft.delta_mut(index).reserved = true;
        }
        if sequence >= reserve.below {
            // The reserve raised by this command covers it.
            draft.level = draft.level.max(sync);
        } else if sequence >= reserve.below_before {
            draft.rest_on(self.unless_durable(reserve.at));
        } else {
            draft.rest_on(self.unless_durable(reserve.at_before));
        }
    }

    pub(super) fn fold_accepted(&mut self, arrival: &Arrival<'_>, part: u16) -> Option<()> {
        let &Arrival {
            numbers: arrival,
            key,
            unique,
            ref mark,
        } = arrival;
        let index = self.queue_index(arrival.queue)?;
        self.recent_queue = index;
        let at = self.folding_at;
        let queue = &mut self.queues[index];
        if arrival.sequence < queue.next_sequence {
            return None;
        }
        queue.next_sequence = arrival.sequence.next();
        queue.note_id(arrival.sequence, arrival.id);
        queue.totals.accepted += 1;
        let content = queue.content;
        let level = arrival.level.unwrap_or(queue.settings.level);
        let key_text = key.map(|key| key.text);
        if let Some((id, until)) = unique {
            // The settings at the time of its acceptance.
            let settings = &queue.settings;
            let sent = MachineTime(until.0.saturating_sub(settings.dedup_window));
            let scope = settings.dedup_scope_at(sent);
            let digest = digest(scope_key(scope, key_text), id);
            queue.dedup.reserve(digest, arrival.sequence, at, until);
            self.unique_ids += 1;
            self.ids_for_ever += u64::from(settings.remembers_for_ever());
            self.arm_dedup(index);
        }
        if let Some(mark) = mark {
            self.raise_mark(index, mark);
        }
        if let (Some(number), Some(key)) = (arrival.key_sequence, key_text) {
            let key = key_sequences::digest(key);
            let queue = &mut self.queues[index];
            let sequences = &mut queue.key_sequences;
            self.key_sequences -= sequences.len() as u64;
            sequences.set(key, number, queue.settings.key_sequences_max);
            self.key_sequences += sequences.len() as u64;
        }
        let key = self.key_or_new(content, key);
        let location = Location { position: at, part };
        let (sequence, accepted) = (arrival.sequence, arrival.accepted);
        let mut entry = Message::new(sequence, location, accepted, key, arrival.size);
        entry.set(flag::UNSYNCED, self.waits_for_sync(level));
        entry.set(flag::SHARED, arrival.payload != Payload::Own);
        let entry = self.admit(entry, arrival.payload, arrival.due);
        if let Some(span) = arrival.time_to_live {
            self.start_time_to_live(entry, arrival.due.unwrap_or(accepted), span);
        }
        Some(())
    }

    pub(super) fn fold_sequences_reserved(
        &mut self,
        queue: lockgate_core::QueueId,
        below: Sequence,
    ) -> Option<()> {
        let index = self.queue_index(queue)?;
        let at = self.folding_at;
        let reserve = &mut self.queues[index].reserve;
        reserve.below_before = reserve.below;
        reserve.at_before = reserve.at;
        reserve.below = reserve.below.max(below);
        reserve.at = at;
        Some(())
    }
}

/// What is kept of a record: the one that it comes after is there, and is not named any more.
fn accepted(mut produced: Box<Produced>) -> Box<Produced> {
    produced.after = 0;
    produced
}

/// The key within which a unique id is unique in that scope.
fn scope_key(scope: DedupScope, key: Option<&str>) -> Option<&str> {
    match scope {
        DedupScope::Queue => None,
        DedupScope::Key => key,
    }
}

/// Refuses a number outside its range.
pub(super) fn check_range(
    what: &'static str,
    value: u64,
    min: u64,
    max: u64,
) -> Result<(), Rejection> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(Rejection::OutOfRange {
            what,
            value,
            min,
            max,
        })
    }
}
