//! Remembered unique ids in an image.

use lockgate_core::{MachineTime, Position, Sequence};

use super::{DedupWindow, Remembered, Run, SUPERSEDED, hash_halves};
use crate::{
    columns::{Columns, ImageError, Input, Row, column, damaged},
    slab::{Link, Slab},
    table::{HashSeed, Table},
};

impl DedupWindow {
    /// A copy of the same ids that shares their pages, to be read while this window changes. It has no table.
    pub(crate) fn share(&mut self) -> Self {
        Self {
            seed: self.seed,
            ids: self.ids.share(),
            index: Table::default(),
            runs: self.runs.clone(),
            newest: self.newest,
            runs_begun: self.runs_begun,
        }
    }

    /// Appends everything besides the ids' pages.
    pub(crate) fn encode_outline(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.runs_begun.to_le_bytes());
        let newest = self.newest.map_or(u64::MAX, |(_, number)| number);
        out.extend_from_slice(&newest.to_le_bytes());
        let runs = u32::try_from(self.runs.len()).expect("a run has an id of its own");
        out.extend_from_slice(&runs.to_le_bytes());
        for (&(expires, number), run) in &self.runs {
            out.extend_from_slice(&expires.0.to_le_bytes());
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&run.first.to_le_bytes());
            out.extend_from_slice(&run.last.to_le_bytes());
        }
        self.ids.encode_outline(out);
    }

    /// A window whose ids are still to be added.
    pub(crate) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let mut window = Self {
            runs_begun: input.u64()?,
            ..Self::default()
        };
        let newest = input.u64()?;
        for _ in 0..input.count(24)? {
            let key = (MachineTime(input.u64()?), input.u64()?);
            let run = Run {
                first: input.u32()?,
                last: input.u32()?,
            };
            if key.1 == newest {
                window.newest = Some(key);
            }
            if key.1 >= window.runs_begun || window.runs.insert(key, run).is_some() {
                return Err(damaged("the runs of unique ids do not fit"));
            }
        }
        window.ids = Slab::decode_outline(input)?;
        Ok(window)
    }

    /// How many ids take memory: remembered ones and superseded ones.
    pub(crate) fn held(&self) -> usize {
        self.ids.len()
    }

    /// The pages with the ids.
    pub(crate) fn ids(&mut self) -> &mut Slab<Remembered> {
        &mut self.ids
    }

    /// Builds the table of the ids with the shard's seed, and checks that the runs can be walked:
    /// every id is the first of a run or follows exactly one other.
    pub(crate) fn rebuild(&mut self, seed: HashSeed) -> Result<(), ImageError> {
        self.ids.check_complete()?;
        self.seed = seed;
        let firsts = self.runs.values().map(|run| run.first);
        let others = self.ids.iter().filter_map(|(_, id)| id.next.get());
        if !self.ids.is_each_once(firsts.chain(others)) {
            return Err(damaged("a unique id is in no run, or in two"));
        }
        for (key, run) in &self.runs {
            let first = self.ids.get(run.first);
            let last = self.ids.get(run.last);
            if first.is_none_or(|first| first.expires != key.0)
                || last.is_none_or(|last| last.next != Link::NONE)
            {
                return Err(damaged("a run of unique ids does not fit them"));
            }
        }
        let current = self.ids.iter().filter(|(_, id)| id.sequence != SUPERSEDED);
        let digests = current.map(|(index, id)| (hash_halves(seed, id.digest), index));
        self.index = Table::of(self.ids.len(), digests);
        Ok(())
    }
}

impl Row for Remembered {
    fn blank() -> Self {
        Self {
            digest: [0; 2],
            sequence: SUPERSEDED,
            position: Position(0),
            expires: MachineTime(0),
            next: Link::NONE,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        for half in 0..2 {
            columns.number(
                u64::MAX,
                |id| id.digest[half],
                |id, bits| id.digest[half] = bits,
            )?;
        }
        column!(columns, wrapped sequence, Sequence)?;
        column!(columns, wrapped position, Position)?;
        column!(columns, wrapped expires, MachineTime)?;
        columns.neighbour(
            |id| id.next.to_bits(),
            |id, bits| id.next = Link::from_bits(bits),
        )
    }
}
