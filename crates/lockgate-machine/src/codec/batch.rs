//! Decodes many records at a time into the form that folding needs.
//!
//! A start folds millions of records and delivers none of their messages. Decoding them into
//! [`Effect`]s would allocate memory for each message, fill it, have the folding thread read it,
//! and free it. A batch copies only what folding needs of a message, keeps it in a few large
//! buffers, and reuses the buffers for the next records.

use std::mem;

use bytes::Bytes;
use lockgate_core::{MachineTime, Position};

use super::{
    DecodeError,
    effect::{self, LastHolder, kind},
    message,
    wire::Reader,
};
use crate::{
    Effect, Machine,
    effect::{Arrival, ArrivalMark, ArrivalNumbers, KeyText},
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
    /// The seed under which the machine will hash keys, if it is known already.
    seed: Option<HashSeed>,
    holders: LastHolder,
    batch: RecordBatch,
}

/// Decoded records, in the order in which they must be folded.
#[derive(Debug, Default)]
pub struct RecordBatch {
    /// The seed of the keys' hashes.
    seed: Option<HashSeed>,
    bytes: usize,
    records: Vec<Batched>,
    steps: Vec<Step>,
    /// The texts of keys and unique ids, one after the other.
    texts: String,
    errors: Vec<DecodeError>,
}

/// One record of a batch, see [`Machine::fold_batch`].
#[derive(Clone, Copy, Debug)]
pub struct BatchRecord<'a> {
    /// Where the record starts.
    pub position: Position,
    /// Why the record cannot be decoded. If it cannot, it has no effect.
    pub error: Option<&'a DecodeError>,
    /// The record's effect, if it has only one and that does not accept a message.
    pub only_effect: Option<&'a Effect>,
}

/// A record of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batched {
    pub(crate) position: Position,
    /// Where its steps end, among those of the batch.
    pub(crate) steps_end: usize,
    /// Its index among the errors, or `NO_ERROR`.
    error: u32,
}

const NO_ERROR: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) enum Step {
    Accepted(Kept),
    Other(Effect),
}

/// An [`Arrival`] whose texts are stored elsewhere.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) numbers: ArrivalNumbers,
    /// The hash of the key's text, if there is a key.
    hash: u64,
    key: Option<TextAt>,
    unique: Option<(TextAt, MachineTime)>,
    /// The mark, whose producer is the text. In a box, because few messages have one.
    mark: Option<Box<(TextAt, ArrivalMark<'static>)>>,
}

/// The place of a text in the batch's texts.
#[derive(Clone, Copy, Debug)]
struct TextAt {
    start: u32,
    len: u16,
}

impl BatchDecoder {
    /// A decoder for records that this machine will fold.
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

    /// Adds the record that starts at `position`. A record that cannot be decoded is added without
    /// effects, see [`BatchRecord::error`]. That happens exactly if
    /// [`decode_record`](super::decode_record) refuses it.
    ///
    /// # Panics
    /// Beyond 4 GB of records since the last [`take`](Self::take).
    pub fn push(&mut self, record: &Bytes, position: Position) {
        let batch = &mut self.batch;
        let (steps, texts) = (batch.steps.len(), batch.texts.len());
        let mut error = NO_ERROR;
        if let Err(reason) = self.push_effects(record) {
            let batch = &mut self.batch;
            batch.steps.truncate(steps);
            batch.texts.truncate(texts);
            error = place(batch.errors.len());
            batch.errors.push(reason);
        }
        let batch = &mut self.batch;
        batch.bytes += record.len();
        batch.records.push(Batched {
            position,
            steps_end: batch.steps.len(),
            error,
        });
    }

    /// Bytes of the records since the last [`take`](Self::take).
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.batch.bytes
    }

    /// Takes out what was decoded since the last call. The next records go to the memory of `next`,
    /// whose content is discarded.
    pub fn take(&mut self, mut next: RecordBatch) -> RecordBatch {
        next.records.clear();
        next.steps.clear();
        next.texts.clear();
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
                // For the batches after this one. Folding checks whether the machine derives the same seed.
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

    /// The effects of all records, in order.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// A record of the batch with these effects.
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

    /// The message, for a machine that hashes under `seed` and probably has its key at `likely_key`.
    pub(crate) fn arrival(&self, kept: &Kept, seed: HashSeed, likely_key: u32) -> Arrival<'_> {
        Arrival {
            numbers: kept.numbers,
            key: kept.key.map(|key| {
                let hash = self.is_hashed_under(seed).then_some(kept.hash);
                KeyText {
                    hash,
                    likely: likely_key,
                    ..KeyText::from(self.text(key))
                }
            }),
            unique: kept.unique.map(|(id, until)| (self.text(id), until)),
            mark: kept.mark.as_deref().map(|&(producer, mark)| ArrivalMark {
                producer: self.text(producer),
                ..mark
            }),
        }
    }

    /// The hash under `seed` of the key's text, if the message has a key.
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
        let &Arrival {
            numbers,
            key,
            unique,
            ref mark,
        } = arrival;
        Kept {
            numbers,
            hash: match (self.seed, key) {
                (Some(seed), Some(key)) => hash_bytes(seed, key.text.as_bytes()),
                _ => 0,
            },
            key: key.map(|key| self.keep_text(key.text)),
            unique: unique.map(|(id, until)| (self.keep_text(id), until)),
            mark: mark.as_ref().map(|mark| {
                let producer = self.keep_text(mark.producer);
                let mark = ArrivalMark {
                    producer: "",
                    ..*mark
                };
                Box::new((producer, mark))
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

/// An index in a batch.
fn place(number: usize) -> u32 {
    u32::try_from(number).expect("a batch is handed over long before")
}

/// The error for which a batch refuses the record.
#[cfg(test)]
pub(super) fn error_of(record: &Bytes) -> Option<DecodeError> {
    let mut decoder = BatchDecoder::new(&Machine::new(crate::MachineLimits::default()));
    decoder.push(record, Position(0));
    let batch = decoder.take(RecordBatch::default());
    let error = batch.errors.first().cloned();
    assert!(
        error.is_none() || batch.steps.len() + batch.texts.len() == 0,
        "a part of a record that is refused is left"
    );
    error
}
