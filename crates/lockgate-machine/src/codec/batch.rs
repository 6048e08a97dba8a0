//! Records as folding them needs them, many at a time.
//!
//! A start folds millions of records and hands none of their messages to anybody. What [`Effect`]s of
//! them would cost is memory that is allocated for each message, filled, read by the thread that folds,
//! and given back. A batch takes nothing of a message that folding does not look at, keeps what it
//! takes in a few stretches of memory, and keeps these for the next records.

use std::{mem, num::NonZeroU64};

use bytes::Bytes;
use lockgate_core::{Level, MachineTime, MessageId, Millis, Position, QueueId, Sequence, WallTime};

use super::{
    DecodeError,
    effect::{self, LastHolder, kind},
    message,
    wire::Reader,
};
use crate::{
    Effect, Machine,
    effect::{Arrival, KeyText},
    table::{HashSeed, hash_bytes},
};

/// Decodes records for [`Machine::fold_batch`], on any thread.
///
/// ```
/// use bytes::Bytes;
/// use lockgate_core::{Position, QueueId, Sequence};
/// use lockgate_machine::{BatchDecoder, Effect, Machine, MachineLimits, RecordBatch, encode_record};
///
/// let acked = Effect::Acked { queue: QueueId(1), sequence: Sequence(1) };
/// let mut record = Vec::new();
/// encode_record(&[acked], &mut record);
///
/// let mut machine = Machine::new(MachineLimits::default());
/// let mut decoder = BatchDecoder::new(&machine);
/// decoder.push(&Bytes::from(record), Position(0));
/// decoder.push(&Bytes::from("no record"), Position(100));
/// let mut unreadable = 0;
/// machine.fold_batch(&decoder.take(RecordBatch::default()), |_, record| {
///     unreadable += usize::from(record.error.is_some());
/// });
/// // There is no such queue, so the effect of the first one is ignored.
/// assert_eq!((unreadable, machine.effects_ignored()), (1, 1));
/// ```
#[derive(Debug)]
pub struct BatchDecoder {
    /// What the machine will hash keys under, as far as it is known.
    seed: Option<HashSeed>,
    holders: LastHolder,
    batch: RecordBatch,
}

/// Decoded records, in the order in which they are to be folded.
#[derive(Debug, Default)]
pub struct RecordBatch {
    /// What the keys' hashes were made under.
    seed: Option<HashSeed>,
    bytes: usize,
    records: Vec<Batched>,
    steps: Vec<Step>,
    /// One after the other the texts of keys and unique ids.
    texts: String,
    rares: Vec<Rare>,
    errors: Vec<DecodeError>,
}

/// One record of a batch, see [`Machine::fold_batch`].
#[derive(Clone, Copy, Debug)]
pub struct BatchRecord<'a> {
    /// Where it starts.
    pub position: Position,
    /// Why it cannot be decoded, if so. Then it does nothing.
    pub error: Option<&'a DecodeError>,
    /// Its effect, if it has no other and that is not the acceptance of a message.
    pub only_effect: Option<&'a Effect>,
}

/// A record: where it stands, and where its steps end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batched {
    pub(crate) position: Position,
    steps_end: u32,
    /// Its place among the errors, or `NO_ERROR`.
    error: u32,
}

const NO_ERROR: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) enum Step {
    Accepted(Kept),
    Other(Effect),
}

/// An [`Arrival`], with its texts elsewhere.
#[derive(Debug)]
pub(crate) struct Kept {
    queue: QueueId,
    sequence: Sequence,
    id: MessageId,
    accepted: WallTime,
    /// Of the key's text, if there is a key.
    hash: u64,
    key: Option<TextAt>,
    size: u32,
    level: Option<Level>,
    /// Its place among the rares, if it has any of it.
    rare: Option<u32>,
}

/// Where in a batch's texts one stands.
#[derive(Clone, Copy, Debug)]
struct TextAt {
    start: u32,
    len: u16,
}

/// What few messages have.
#[derive(Debug)]
struct Rare {
    due: Option<WallTime>,
    time_to_live: Option<Millis>,
    unique: Option<(TextAt, MachineTime)>,
    key_sequence: Option<NonZeroU64>,
}

impl BatchDecoder {
    /// A decoder of what this machine is to fold.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        let seed = machine.seed();
        Self {
            seed,
            holders: LastHolder::default(),
            batch: RecordBatch {
                seed,
                ..RecordBatch::default()
            },
        }
    }

    /// Adds the record that starts at `position`. One that cannot be decoded is there without effects,
    /// see [`BatchRecord::error`]: it is refused exactly if
    /// [`decode_record`](super::decode_record) refuses it.
    ///
    /// # Panics
    /// Beyond 4 GB of records since the last [`take`](Self::take).
    pub fn push(&mut self, record: &Bytes, position: Position) {
        let batch = &mut self.batch;
        let (steps, rares, texts) = (batch.steps.len(), batch.rares.len(), batch.texts.len());
        let mut error = NO_ERROR;
        if let Err(reason) = self.push_effects(record) {
            let batch = &mut self.batch;
            batch.steps.truncate(steps);
            batch.rares.truncate(rares);
            batch.texts.truncate(texts);
            error = place(batch.errors.len());
            batch.errors.push(reason);
        }
        let batch = &mut self.batch;
        batch.bytes += record.len();
        batch.records.push(Batched {
            position,
            steps_end: place(batch.steps.len()),
            error,
        });
    }

    /// Bytes of the records since the last [`take`](Self::take).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.batch.bytes
    }

    /// Hands over what was decoded since the last time. The next records go to the memory of `next`,
    /// whatever is in it.
    pub fn take(&mut self, mut next: RecordBatch) -> RecordBatch {
        next.records.clear();
        next.steps.clear();
        next.texts.clear();
        next.rares.clear();
        next.errors.clear();
        next.bytes = 0;
        next.seed = self.seed;
        mem::replace(&mut self.batch, next)
    }

    fn push_effects(&mut self, record: &Bytes) -> Result<(), DecodeError> {
        let mut reader = Reader::new(record);
        while let Some((kind, body)) = reader.next_effect()? {
            let step = if kind == kind::ACCEPTED {
                Step::Accepted(self.batch.keep(&message::read_arrival(body)?))
            } else {
                Step::Other(effect::read(kind, body, &mut self.holders)?)
            };
            if let Step::Other(Effect::TermStarted { secret, .. }) = &step
                && self.seed.is_none()
            {
                // For the batches behind this one. Whether the machine comes to the same is looked at
                // when they are folded.
                self.seed = Some(HashSeed::from_secret(secret));
            }
            self.batch.steps.push(step);
        }
        Ok(())
    }
}

impl RecordBatch {
    pub(crate) fn records(&self) -> &[Batched] {
        &self.records
    }

    /// The effects of all records, one after the other.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// A record of the batch, which has these effects.
    pub(crate) fn record<'a>(&'a self, record: &Batched, steps: &'a [Step]) -> BatchRecord<'a> {
        BatchRecord {
            position: record.position,
            error: self.errors.get(record.error as usize),
            only_effect: match steps {
                [Step::Other(effect)] => Some(effect),
                _ => None,
            },
        }
    }

    /// The message, for a machine that hashes under `seed` and has its key probably at `likely_key`.
    pub(crate) fn arrival(&self, kept: &Kept, seed: HashSeed, likely_key: u32) -> Arrival<'_> {
        let rare = kept.rare.map(|rare| &self.rares[rare as usize]);
        Arrival {
            queue: kept.queue,
            sequence: kept.sequence,
            id: kept.id,
            accepted: kept.accepted,
            key: kept.key.map(|key| {
                let hash = self.is_hashed_under(seed).then_some(kept.hash);
                KeyText {
                    hash,
                    likely: likely_key,
                    ..KeyText::from(self.text(key))
                }
            }),
            size: kept.size,
            level: kept.level,
            due: rare.and_then(|rare| rare.due),
            time_to_live: rare.and_then(|rare| rare.time_to_live),
            unique: rare.and_then(|rare| {
                let (id, until) = rare.unique?;
                Some((self.text(id), until))
            }),
            key_sequence: rare.and_then(|rare| rare.key_sequence),
        }
    }

    /// The hash under `seed` of the text of an accepted message's key, if it has one.
    pub(crate) fn key_hash(&self, kept: &Kept, seed: HashSeed) -> Option<u64> {
        let key = kept.key?;
        Some(if self.is_hashed_under(seed) {
            kept.hash
        } else {
            hash_bytes(seed, self.text(key).as_bytes())
        })
    }

    fn is_hashed_under(&self, seed: HashSeed) -> bool {
        self.seed == Some(seed)
    }

    fn keep(&mut self, arrival: &Arrival<'_>) -> Kept {
        let Arrival {
            queue,
            sequence,
            id,
            accepted,
            key,
            size,
            level,
            due,
            time_to_live,
            unique,
            key_sequence,
        } = *arrival;
        let rare = Rare {
            due,
            time_to_live,
            unique: unique.map(|(id, until)| (self.keep_text(id), until)),
            key_sequence,
        };
        Kept {
            queue,
            sequence,
            id,
            accepted,
            hash: match (self.seed, key) {
                (Some(seed), Some(key)) => hash_bytes(seed, key.text.as_bytes()),
                _ => 0,
            },
            key: key.map(|key| self.keep_text(key.text)),
            size,
            level,
            rare: rare.is_any().then(|| {
                self.rares.push(rare);
                place(self.rares.len() - 1)
            }),
        }
    }

    fn keep_text(&mut self, text: &str) -> TextAt {
        let start = place(self.texts.len());
        self.texts.push_str(text);
        TextAt {
            start,
            len: u16::try_from(text.len()).expect("names have 1,024 bytes at most"),
        }
    }

    fn text(&self, at: TextAt) -> &str {
        let start = at.start as usize;
        &self.texts[start..start + usize::from(at.len)]
    }
}

impl Batched {
    /// Where its effects end, among those of the batch.
    pub(crate) fn steps_end(&self) -> usize {
        self.steps_end as usize
    }
}

impl Kept {
    pub(crate) fn queue(&self) -> QueueId {
        self.queue
    }

    pub(crate) fn sequence(&self) -> Sequence {
        self.sequence
    }
}

impl Rare {
    fn is_any(&self) -> bool {
        self.due.is_some()
            || self.time_to_live.is_some()
            || self.unique.is_some()
            || self.key_sequence.is_some()
    }
}

/// A place in a batch.
fn place(number: usize) -> u32 {
    u32::try_from(number).expect("a batch is handed over long before")
}

/// Why a batch refuses the record.
#[cfg(test)]
pub(super) fn error_of(record: &Bytes) -> Option<DecodeError> {
    let mut decoder = BatchDecoder::new(&Machine::new(crate::MachineLimits::default()));
    decoder.push(record, Position(0));
    let batch = decoder.take(RecordBatch::default());
    let error = batch.errors.first().cloned();
    assert!(
        error.is_none() || batch.steps.len() + batch.rares.len() + batch.texts.len() == 0,
        "a part of a record that is refused is left"
    );
    error
}
