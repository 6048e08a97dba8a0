//! Where the events of a ledger are in the log: a row for each append, in order.

use std::{collections::VecDeque, sync::Arc};

use lockgate_core::{Position, WallTime, ledger::SequenceId};

use crate::{
    columns::{Columns, Decoder, Encoder, ImageError, Input, Row, column, damaged},
    slab::Slot,
};

/// Rows of a chunk. Small under test, so that every test crosses chunks.
const CHUNK: usize = if cfg!(test) { 3 } else { 512 };

/// The events of one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::machine) struct Block {
    /// The first of them. The last one is the one before the first of the next block.
    pub(super) first: u64,
    pub(super) position: u64,
    /// When they were appended.
    pub(super) time: u64,
    /// Bytes of payloads and unique ids.
    pub(super) bytes: u32,
}

/// The position of events whose part of the log is lost.
const LOST: u64 = u64::MAX;

impl Block {
    /// Events that were appended by a record that is lost.
    pub(super) fn lost(first: SequenceId, time: WallTime) -> Self {
        Self {
            first: first.0,
            position: LOST,
            time: time.0,
            bytes: 0,
        }
    }

    pub(super) fn position(&self) -> Option<Position> {
        (self.position != LOST).then_some(Position(self.position))
    }
}

/// Rows in chunks that a snapshot shares: a change copies a shared chunk first. All chunks but the last one are full.
#[derive(Clone, Debug, Default)]
pub(in crate::machine) struct Blocks {
    chunks: VecDeque<Arc<Vec<Block>>>,
    /// How many rows of the first chunk are gone.
    gone: usize,
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        full + self.chunks.back().map_or(0, |last| last.len()) - self.gone
    }

    pub(super) fn get(&self, index: usize) -> Option<&Block> {
        let at = self.gone + index;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    pub(super) fn push(&mut self, block: Block) {
        match self.chunks.back_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => Arc::make_mut(last).push(block),
            None => self.chunks.push_back(Arc::new(vec![block])),
        }
    }

    pub(super) fn pop_front(&mut self) -> Option<Block> {
        let first = *self.get(0)?;
        self.gone += 1;
        if self.gone == self.chunks[0].len() {
            self.chunks.pop_front();
            self.gone = 0;
        }
        Some(first)
    }

    /// The index of the block with that event.
    pub(super) fn find(&self, event: SequenceId) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle).is_some_and(|block| block.first <= event.0) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low.checked_sub(1)
    }

    /// The index of the block that begins there.
    pub(super) fn beginning_at(&self, first: SequenceId) -> Option<usize> {
        let index = self.find(first)?;
        (self.get(index)?.first == first.0).then_some(index)
    }

    /// Sets where a block is. Returns it as it was.
    pub(super) fn set_position(&mut self, index: usize, position: Option<Position>) -> Block {
        let at = self.gone + index;
        let chunk = Arc::make_mut(&mut self.chunks[at / CHUNK]);
        let block = &mut chunk[at % CHUNK];
        let before = *block;
        block.position = position.map_or(LOST, |position| position.0);
        if position.is_none() {
            block.bytes = 0;
        }
        before
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.chunks
            .iter()
            .flat_map(|chunk| chunk.iter())
            .skip(self.gone)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<Block>()
    }

    pub(super) fn gone(&self) -> usize {
        self.gone
    }

    /// Blocks whose chunks are still to be added.
    pub(super) fn without_chunks(gone: usize) -> Self {
        Self {
            gone,
            ..Self::default()
        }
    }

    /// Appends a chunk and gives it back, and returns its number. `None`: there is no such chunk.
    pub(in crate::machine) fn encode_chunk(
        &mut self,
        number: u32,
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        let chunk = std::mem::take(self.chunks.get_mut(number as usize)?);
        let rows: Vec<_> = chunk.iter().copied().map(Slot::Used).collect();
        let count = u16::try_from(rows.len()).expect("a chunk has at most 512 rows");
        out.extend_from_slice(&count.to_le_bytes());
        Encoder::encode(&rows, 0, rows.len(), out);
        Some(number)
    }

    /// Reads the next chunk.
    pub(in crate::machine) fn read_chunk(
        &mut self,
        input: &mut Input<'_>,
    ) -> Result<(), ImageError> {
        let count = usize::from(input.u16()?);
        let is_room = self.chunks.back().is_none_or(|last| last.len() == CHUNK);
        if !is_room || !(1..=CHUNK).contains(&count) {
            return Err(damaged("a chunk of events has rows it cannot have"));
        }
        let mut rows = vec![Slot::Used(Block::blank()); count];
        Decoder::decode(&mut rows, 0, count, input)?;
        let rows = rows.into_iter().filter_map(|row| match row {
            Slot::Used(block) => Some(block),
            Slot::Free(_) => None,
        });
        self.chunks.push_back(Arc::new(rows.collect()));
        Ok(())
    }

    /// Whether the chunks that were read fit together.
    pub(super) fn is_whole(&self) -> bool {
        match self.chunks.front() {
            Some(first) => self.gone < first.len(),
            None => self.gone == 0,
        }
    }
}

impl Row for Block {
    fn blank() -> Self {
        Self::lost(SequenceId(0), WallTime(0))
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, u64 first)?;
        column!(columns, u64 position)?;
        column!(columns, u64 time)?;
        column!(columns, number bytes, u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(first: u64) -> Block {
        Block {
            first,
            position: first * 10,
            time: first,
            bytes: 1,
        }
    }

    /// What a queue of rows does, with a binary search, while a snapshot shares it.
    #[test]
    fn rows_are_found_by_event_whatever_has_gone_in_front() {
        let mut blocks = Blocks::default();
        assert_eq!((blocks.len(), blocks.find(SequenceId(1))), (0, None));
        for number in 0..20 {
            blocks.push(block(1 + 2 * number));
        }
        let shared = blocks.clone();
        for gone in 0..20 {
            assert_eq!(blocks.len(), 20 - gone);
            let first = 1 + 2 * gone as u64;
            for event in first..=40 {
                let found = blocks.find(SequenceId(event)).unwrap();
                assert_eq!(found as u64, (event - first) / 2);
            }
            assert_eq!(blocks.find(SequenceId(first - 1)), None);
            assert_eq!(blocks.pop_front(), Some(block(first)));
        }
        assert_eq!((blocks.len(), blocks.pop_front()), (0, None));
        blocks.push(block(41));
        assert_eq!(blocks.beginning_at(SequenceId(41)), Some(0));
        assert_eq!(blocks.beginning_at(SequenceId(42)), None);
        assert_eq!(
            shared.iter().copied().collect::<Vec<_>>(),
            (0..20).map(|n| block(1 + 2 * n)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_row_that_moves_leaves_a_snapshot_as_it_was() {
        let mut blocks = Blocks::default();
        (1..=7).for_each(|number| blocks.push(block(number)));
        blocks.pop_front();
        let mut shared = blocks.clone();
        blocks.set_position(4, None);
        assert_eq!(blocks.get(4).unwrap().position(), None);
        assert_eq!(shared.get(4).unwrap().position(), Some(Position(60)));
        let mut loaded = Blocks::without_chunks(shared.gone());
        let mut bytes = Vec::new();
        for number in 0.. {
            bytes.clear();
            if shared.encode_chunk(number, &mut bytes).is_none() {
                break;
            }
            loaded.read_chunk(&mut Input::new(&bytes)).unwrap();
        }
        assert!(loaded.is_whole());
        let rows: Vec<_> = loaded.iter().copied().collect();
        assert_eq!(rows, (2..=7).map(block).collect::<Vec<_>>());
    }
}
