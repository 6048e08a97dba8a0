//! Payloads that several messages of a record have: how many still need them, so that each counts once in the live bytes of
//! its range until the last one is gone.
//!
//! A message that shares its payload has [`flag::SHARED`] and counts by itself without payload. All payloads of a record
//! that are shared make one row here, which counts their bytes once. The row goes with the last such message of the record.
//! So the live bytes stay exact however messages are settled, purged, moved or compacted.

use lockgate_core::Position;

use super::{
    Machine,
    state::{Message, flag},
};
use crate::{
    Payload,
    columns::{Columns, ImageError, Row, column},
    live::live_bytes,
    slab::Slab,
    table::{Table, hash_pair},
};

/// The shared payloads of all records.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedPayloads {
    pub(super) rows: Slab<SharedRow>,
    by_position: Table,
}

/// The payloads of a record that several of its messages have.
#[derive(Clone, Debug)]
pub(super) struct SharedRow {
    pub(super) position: Position,
    /// How many messages in the record need one of them.
    pub(super) messages: u32,
    /// Their bytes.
    pub(super) bytes: u64,
}

impl SharedPayloads {
    /// What an image of them needs in addition to an image without.
    pub(super) fn image_bytes(&self) -> u64 {
        self.rows.len() as u64 * 8
    }

    /// The approximate heap memory, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.rows.bytes() + self.by_position.bytes()
    }

    pub(super) fn share(&mut self) -> Self {
        Self {
            rows: self.rows.share(),
            by_position: Table::default(),
        }
    }

    pub(super) fn shrink(&mut self) {
        let rows = &self.rows;
        self.by_position.shrink(|row| hash(rows[row].position));
    }

    /// Finds the rows again after an image was read. False if a record has two.
    pub(super) fn rebuild(&mut self) -> bool {
        let mut by_position = Table::default();
        let rows = &self.rows;
        for (index, row) in rows.iter() {
            let is_it = |other| rows[other].position == row.position;
            if by_position.find(hash(row.position), is_it).is_some() {
                return false;
            }
            by_position.insert(hash(row.position), index, |row| hash(rows[row].position));
        }
        self.by_position = by_position;
        true
    }

    pub(super) fn at(&self, position: Position) -> Option<u32> {
        let is_it = |row| {
            self.rows
                .get(row)
                .is_some_and(|row: &SharedRow| row.position == position)
        };
        self.by_position.find(hash(position), is_it)
    }

    /// The bytes of the payloads of the record that several messages have.
    pub(super) fn bytes_at(&self, position: Position) -> u64 {
        self.at(position).map_or(0, |row| self.rows[row].bytes)
    }

    /// One more message needs a payload of the record, which brings so many bytes that no earlier one had.
    pub(super) fn add(&mut self, position: Position, bytes: u64) {
        let row = self.at(position).unwrap_or_else(|| {
            let row = self.rows.insert(SharedRow {
                position,
                messages: 0,
                bytes: 0,
            });
            let rows = &self.rows;
            self.by_position
                .insert(hash(position), row, |row| hash(rows[row].position));
            row
        });
        let row = &mut self.rows[row];
        row.messages += 1;
        row.bytes += bytes;
    }

    /// One message less needs a payload of the record. Returns how many bytes nobody needs now.
    pub(super) fn remove(&mut self, position: Position) -> u64 {
        let Some(index) = self.at(position) else {
            return 0;
        };
        let row = &mut self.rows[index];
        row.messages -= 1;
        if row.messages > 0 {
            return 0;
        }
        let bytes = row.bytes;
        self.by_position.remove(hash(position), |row| row == index);
        self.rows.remove(index);
        bytes
    }
}

impl Machine {
    /// For a restore, which writes every message again: a record of the new log may have the position of an old one.
    pub(super) fn forget_shared(&mut self) {
        self.shared = SharedPayloads::default();
        for (_, message) in self.messages.iter_mut() {
            message.set(flag::SHARED, false);
        }
        self.live = self.count_live();
    }

    /// Notes that a message's bytes are at its location, in the record being folded.
    pub(super) fn count_alive(&mut self, message: &Message, payload: Payload) {
        let at = message.location().position;
        let key = self.keys[message.key].name.as_ref();
        if !message.has(flag::SHARED) {
            return self.live.add(at, live_bytes(message.size, key));
        }
        let bytes = match payload {
            Payload::Shared => message.size.into(),
            Payload::Own | Payload::Of { .. } => 0,
        };
        self.shared.add(at, bytes);
        self.live.add(at, live_bytes(0, key) + bytes);
    }

    /// Notes that the message is gone from its location, while its key is not yet.
    pub(super) fn count_dead(&mut self, message: &Message) {
        let at = message.location().position;
        let key = self.keys[message.key].name.as_ref();
        let bytes = match message.has(flag::SHARED) {
            true => live_bytes(0, key) + self.shared.remove(at),
            false => live_bytes(message.size, key),
        };
        self.live.remove(at, bytes);
    }
}

impl Row for SharedRow {
    fn blank() -> Self {
        Self {
            position: Position(0),
            messages: 0,
            bytes: 0,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, wrapped position, Position)?;
        column!(columns, number messages, u64::from(u32::MAX))?;
        // Of a record.
        columns.number(1 << 40, |row| row.bytes, |row, bytes| row.bytes = bytes)
    }
}

fn hash(position: Position) -> u64 {
    hash_pair(0, position.0)
}
