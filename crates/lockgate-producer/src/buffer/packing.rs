//! Which records share a message.
//!
//! # Invariants
//! - A record that the sink may have goes as it went: by itself, or with the records of its pack, in one batch. Else the
//!   sink could take it for a new one. What an earlier opening has left goes by itself, because nobody knows how it went.
//! - A pack keeps the mark of the last record that it began with, also when that one is dropped. Else the sink would take
//!   the first request, if that comes late, for what is behind the second.
//! - The records of a pack are neighbours in their lane, and the sink treats them alike.

use lockgate_core::{Message, pack};

use super::{Batch, Buffer, Record};

/// How many records each message of a batch has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packs(Vec<usize>);

impl Packs {
    pub(super) fn add(&mut self) {
        self.0.push(1);
    }

    pub(super) fn add_to_last(&mut self) {
        if let Some(last) = self.0.last_mut() {
            *last += 1;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn count_of_many(&self) -> usize {
        self.0.iter().filter(|count| **count > 1).count()
    }

    /// The records of each message.
    pub(crate) fn of<'a, T>(&'a self, mut records: &'a [T]) -> impl Iterator<Item = &'a [T]> {
        self.0.iter().map(move |&count| {
            let (these, rest) = records.split_at(count.min(records.len()));
            records = rest;
            these
        })
    }
}

impl Batch {
    /// What the sink gets: the records of a pack in one message.
    pub(crate) fn messages(self, compress: bool) -> Vec<Message> {
        if self.packs.len() == self.records.len() {
            return self.records;
        }
        let message = |records: &[Message]| match records {
            [record] => record.clone(),
            records => pack::pack(records, compress),
        };
        self.packs.of(&self.records).map(message).collect()
    }
}

/// With which others a record may share a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// With those next to it that are free too.
    Free,
    /// With those of this pack, under the mark of its last record as it was sent first.
    In { pack: u64, last: u64 },
    /// With none.
    Alone,
}

impl Packing {
    pub(super) fn of(message: &Message, is_left_over: bool) -> Self {
        match pack::is_packable(message) && !is_left_over {
            true => Self::Free,
            false => Self::Alone,
        }
    }

    /// What it is after a send whose outcome is, or is not, unknown. `may_be_there`: the sink may have it, from this send
    /// or an earlier one.
    pub(super) fn after(self, is_unknown: bool, may_be_there: bool) -> Self {
        match self {
            Self::Free if is_unknown => Self::Alone,
            Self::In { .. } if !may_be_there => Self::Free,
            other => other,
        }
    }
}

/// A message that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// Its first record.
    first: usize,
    count: usize,
    bytes: usize,
    packing: Packing,
}

impl<T, I: Clone> Buffer<T, I> {
    pub(super) fn open_pack(&self, first: usize) -> Open {
        let record = &self.records[first];
        Open {
            first,
            count: 1,
            bytes: pack::packed_len(&record.message),
            packing: record.packing,
        }
    }

    /// The message with the record, if the record may be its next.
    pub(super) fn joined(&self, open: Option<Open>, record: &Record<T>) -> Option<Open> {
        let (mut open, rules) = (open?, self.rules.pack?);
        open.count += 1;
        open.bytes += pack::packed_len(&record.message);
        let joins = match (open.packing, record.packing) {
            (Packing::In { pack: one, .. }, Packing::In { pack: other, .. }) => one == other,
            (Packing::Free, Packing::Free) => {
                let first = &self.records[open.first].message;
                open.count <= rules.count_max
                    && open.bytes as u64 <= rules.bytes_max
                    && pack::go_together(first, &record.message)
            }
            _ => false,
        };
        joins.then_some(open)
    }

    /// The records of a message are a pack from now on, if they are several and were none before.
    pub(super) fn bind(&mut self, message: &[usize]) {
        let [_, .., last] = message else {
            return;
        };
        let last = &self.records[*last];
        if last.packing == Packing::Free {
            self.last_pack += 1;
            let packing = Packing::In {
                pack: self.last_pack,
                last: last.label.number,
            };
            for place in message {
                self.records[*place].packing = packing;
            }
        }
    }

    /// How many bytes of a batch the record takes, with all of its pack if it is the first of one that must go as it went.
    pub(super) fn bytes_in_batch(&self, place: usize, is_first: bool) -> u64 {
        let record = &self.records[place];
        let of = |record: &Record<T>| pack::packed_len(&record.message) as u64;
        match (self.rules.pack, record.packing) {
            (None, _) => record.message.size() as u64,
            (Some(_), Packing::In { .. }) if is_first => {
                let together = (self.lanes.places(record.lane))
                    .map(|place| &self.records[place])
                    .take_while(|other| other.packing == record.packing);
                pack::HEADER_BYTES as u64 + together.map(of).sum::<u64>()
            }
            (Some(_), _) => of(record) + u64::from(is_first) * pack::HEADER_BYTES as u64,
        }
    }
}
