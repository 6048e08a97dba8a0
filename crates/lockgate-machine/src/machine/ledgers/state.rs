//! What the machine holds of ledgers, and the same in an image.

use std::collections::BTreeMap;

use lockgate_core::{
    Epoch, InputId, LedgerId, LedgerName, Millis, Position, ReaderName, Sequence, WallTime,
    ledger::{EventHash, LedgerHead, LedgerOptions, ReaderPosition, SequenceId},
};

use super::blocks::{Block, Blocks};
use crate::{
    LedgerDescription,
    codec::events::PLACE_MAX,
    columns::{Columns, ImageError, Input, Row, column, damaged},
    dedup::DedupWindow,
    live::{LiveRanges, RECORD_OVERHEAD},
    slab::{NONE, Slab},
    table::HashSeed,
};

/// What a unique id takes of the memory of ledgers.
pub(super) const ID_BYTES: u64 = 64;

/// What an input, or a reader, takes beside its name.
const NAMED_BYTES: u64 = 128;

/// What an input or reader of that name takes of the memory of ledgers.
pub(super) fn named_bytes(name: &str) -> u64 {
    NAMED_BYTES + name.len() as u64
}

/// All ledgers of a shard.
#[derive(Debug, Default)]
pub(in crate::machine) struct Ledgers {
    /// By number, deleted ones that are not freed yet included.
    pub(in crate::machine) by_id: BTreeMap<u32, LedgerState>,
    pub(super) by_name: BTreeMap<LedgerName, u32>,
    /// How many were ever made: the last number.
    pub(in crate::machine) made: u32,
    /// What their unique ids, inputs and readers take.
    pub(super) bytes: u64,
    /// Ledgers that got events or were sealed or deleted since they were last taken. Volatile.
    pub(super) changed: Vec<LedgerName>,
    /// The record of the log that deleted one last. Volatile.
    pub(super) deleted_at: Position,
}

/// An input that is not settled yet.
#[derive(Clone, Debug)]
pub(in crate::machine) struct InputEntry {
    pub(super) input: InputId,
    pub(super) event: u64,
}

/// A ledger.
#[derive(Clone, Debug)]
pub(in crate::machine) struct LedgerState {
    pub(super) name: LedgerName,
    pub(super) retention: Option<Millis>,
    pub(super) created: WallTime,
    pub(super) head: LedgerHead,
    pub(super) is_deleted: bool,
    pub(in crate::machine) blocks: Blocks,
    /// What the blocks count as live in the log.
    pub(super) log_bytes: u64,
    /// Unique ids that are in memory. Each expires at its event's place, so that the oldest ones leave it first.
    pub(in crate::machine) ids: DedupWindow,
    /// Up to which event the ids are in the index on disk, and not in memory.
    pub(in crate::machine) indexed: SequenceId,
    pub(in crate::machine) inputs: Slab<InputEntry, 64>,
    pub(super) by_input: BTreeMap<InputId, u32>,
    pub(super) readers: BTreeMap<ReaderName, SequenceId>,
    /// What its unique ids, inputs and readers take.
    pub(super) bytes: u64,
    /// The timer by which old events go, and when it fires.
    pub(in crate::machine) timer: u32,
    pub(super) timer_at: WallTime,
    /// The record of the log that changed it last. Volatile.
    pub(super) changed_at: Position,
}

/// A ledger of a [`StateView`](crate::StateView).
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerView {
    pub description: LedgerDescription,
    /// Whether it was deleted, and is not freed yet.
    pub is_deleted: bool,
    /// The first event of each block, and where the block is.
    pub blocks: Vec<(SequenceId, Option<Position>)>,
    /// The place of each unique id that is in memory, by its digest.
    pub unique_ids: BTreeMap<u128, SequenceId>,
    /// Up to which event they are in the index.
    pub indexed: SequenceId,
    pub inputs: BTreeMap<InputId, SequenceId>,
}

/// Events of one append that are in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    pub ledger: LedgerId,
    pub name: LedgerName,
    /// The first of them.
    pub first: SequenceId,
    /// How many they are.
    pub events: u64,
    /// The first position of the range with the record.
    pub range: Position,
    /// The least that any log needs for them.
    pub bytes_min: u64,
}

impl LedgerState {
    pub(super) fn new(
        name: LedgerName,
        hashed: bool,
        retention: Option<Millis>,
        created: WallTime,
        seed: HashSeed,
    ) -> Self {
        Self {
            name,
            retention,
            created,
            head: LedgerHead::start(hashed),
            is_deleted: false,
            blocks: Blocks::default(),
            log_bytes: 0,
            ids: DedupWindow::new(seed),
            indexed: SequenceId(0),
            inputs: Slab::default(),
            by_input: BTreeMap::new(),
            readers: BTreeMap::new(),
            bytes: 0,
            timer: NONE,
            timer_at: WallTime(0),
            changed_at: Position(0),
        }
    }

    pub(super) fn options(&self) -> LedgerOptions {
        LedgerOptions {
            hashed: self.head.hash.is_some(),
            retention: self.retention,
        }
    }

    pub(super) fn describe(&self, id: u32) -> LedgerDescription {
        let position = |(reader, sequence_id): (&ReaderName, &SequenceId)| ReaderPosition {
            reader: reader.clone(),
            sequence_id: *sequence_id,
        };
        LedgerDescription {
            id: LedgerId(id),
            name: self.name.clone(),
            options: self.options(),
            created: self.created,
            head: self.head,
            readers: self.readers.iter().map(position).collect(),
            unique_ids: self.ids.len() as u64,
            inputs: self.inputs.len() as u64,
            appends: self.blocks.len() as u64,
            bytes: self.log_bytes,
        }
    }

    /// What its unique ids, inputs and readers take, counted.
    fn memory(&self) -> u64 {
        let inputs = self.by_input.keys().map(InputId::as_str);
        let readers = self.readers.keys().map(ReaderName::as_str);
        self.ids.held() as u64 * ID_BYTES + inputs.chain(readers).map(named_bytes).sum::<u64>()
    }

    /// One behind the last event of the block.
    pub(super) fn end_of(&self, index: usize) -> SequenceId {
        let next = self.blocks.get(index + 1);
        next.map_or(self.head.sequence_id.next(), |next| SequenceId(next.first))
    }

    pub(super) fn input(&self, input: &InputId) -> Option<SequenceId> {
        let index = *self.by_input.get(input)?;
        Some(SequenceId(self.inputs[index].event))
    }

    /// Appends everything besides the pages of blocks, inputs and unique ids.
    pub(in crate::machine) fn encode_outline(&self, out: &mut Vec<u8>) {
        put_text(out, self.name.as_str());
        out.push(u8::from(self.is_deleted));
        out.push(u8::from(self.head.is_sealed));
        put_optional(
            out,
            self.retention
                .as_ref()
                .map(|retention| retention.to_le_bytes()),
        );
        let head = &self.head;
        put_optional(out, head.hash.map(|hash| hash.0));
        for number in [
            self.created.0,
            head.sequence_id.0,
            head.first_id.0,
            head.epoch.0,
            head.time.0,
            self.timer_at.0,
            self.blocks.gone() as u64,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.timer.to_le_bytes());
        let readers = u32::try_from(self.readers.len()).expect("readers are bounded");
        out.extend_from_slice(&readers.to_le_bytes());
        for (reader, event) in &self.readers {
            put_text(out, reader.as_str());
            out.extend_from_slice(&event.0.to_le_bytes());
        }
        self.inputs.encode_outline(out);
        self.ids.encode_outline(out);
    }

    /// A ledger whose pages are still to be added.
    pub(in crate::machine) fn decode_outline(input: &mut Input<'_>) -> Result<Self, ImageError> {
        let bad_name = || damaged("a name in a ledger is none");
        let name = LedgerName::new(text(input)?).map_err(|_| bad_name())?;
        let (is_deleted, is_sealed) = (input.flag()?, input.flag()?);
        let retention = optional(input, |input| input.u64())?;
        let hash = optional(input, |input| input.array().map(EventHash))?;
        let created = WallTime(input.u64()?);
        let head = LedgerHead {
            sequence_id: SequenceId(input.u64()?),
            first_id: SequenceId(input.u64()?),
            epoch: Epoch(input.u64()?),
            time: WallTime(input.u64()?),
            hash,
            is_sealed,
        };
        if head.sequence_id.0 > PLACE_MAX || head.first_id.0 > head.sequence_id.0 + 1 {
            return Err(damaged("a ledger has places that it cannot have"));
        }
        let timer_at = WallTime(input.u64()?);
        let gone = usize::try_from(input.u64()?).map_err(|_| damaged("a count is too large"))?;
        let timer = input.u32()?;
        let mut readers = BTreeMap::new();
        for _ in 0..input.count(12)? {
            let reader = ReaderName::new(text(input)?).map_err(|_| bad_name())?;
            readers.insert(reader, SequenceId(input.u64()?));
        }
        Ok(Self {
            name,
            retention,
            created,
            head,
            is_deleted,
            blocks: Blocks::without_chunks(gone),
            log_bytes: 0,
            inputs: Slab::decode_outline(input)?,
            ids: DedupWindow::decode_outline(input)?,
            indexed: SequenceId(0),
            by_input: BTreeMap::new(),
            readers,
            bytes: 0,
            timer,
            timer_at,
            changed_at: Position(0),
        })
    }

    /// Builds what follows from the rows.
    fn rebuild(&mut self, seed: HashSeed) -> Result<(), ImageError> {
        self.inputs.check_complete()?;
        self.ids.rebuild(seed)?;
        if !self.blocks.is_whole() {
            return Err(damaged("blocks of events are missing"));
        }
        self.log_bytes = self.blocks.iter().map(live_bytes).sum();
        let inputs = self.inputs.iter();
        self.by_input = inputs
            .map(|(index, entry)| (entry.input.clone(), index))
            .collect();
        self.bytes = self.memory();
        match self.by_input.len() == self.inputs.len() {
            true => Ok(()),
            false => Err(damaged("a ledger has an input twice")),
        }
    }

    fn share(&mut self) -> Self {
        Self {
            name: self.name.clone(),
            blocks: self.blocks.clone(),
            ids: self.ids.share(),
            inputs: self.inputs.share(),
            by_input: BTreeMap::new(),
            readers: self.readers.clone(),
            ..*self
        }
    }
}

/// What a block counts as live in the log.
pub(super) fn live_bytes(block: &Block) -> u64 {
    match block.position() {
        Some(_) => u64::from(block.bytes) + RECORD_OVERHEAD,
        None => 0,
    }
}

impl Ledgers {
    pub(super) fn named(&self, name: &LedgerName) -> Option<(u32, &LedgerState)> {
        let id = *self.by_name.get(name)?;
        Some((id, self.by_id.get(&id)?))
    }

    pub(in crate::machine) fn forget_positions(&mut self) {
        self.deleted_at = Position(0);
        for ledger in self.by_id.values_mut() {
            ledger.changed_at = Position(0);
            ledger.ids.forget_positions();
        }
    }

    pub(in crate::machine) fn heap_bytes(&self) -> usize {
        let each = |ledger: &LedgerState| {
            ledger.blocks.heap_bytes() + ledger.ids.bytes() + ledger.inputs.bytes()
        };
        self.by_id.values().map(each).sum()
    }

    pub(in crate::machine) fn image_bytes(&self) -> u64 {
        let blocks = self
            .by_id
            .values()
            .map(|ledger| ledger.blocks.len() as u64 * 12);
        self.bytes + blocks.sum::<u64>() + self.by_id.len() as u64 * 256
    }

    pub(in crate::machine) fn share(&mut self) -> Self {
        let shared = |(&id, ledger): (&u32, &mut LedgerState)| (id, ledger.share());
        Self {
            by_id: self.by_id.iter_mut().map(shared).collect(),
            made: self.made,
            ..Self::default()
        }
    }

    pub(in crate::machine) fn rebuild(&mut self, seed: HashSeed) -> Result<(), ImageError> {
        for (&id, ledger) in &mut self.by_id {
            ledger.rebuild(seed)?;
            self.bytes += ledger.bytes;
            let name = ledger.name.clone();
            if id == 0 || id > self.made {
                return Err(damaged("a ledger has a number that was not given out"));
            }
            if !ledger.is_deleted && self.by_name.insert(name, id).is_some() {
                return Err(damaged("two ledgers have one name"));
            }
        }
        Ok(())
    }

    pub(in crate::machine) fn count_live(&self, live: &mut LiveRanges) {
        for block in self.by_id.values().flat_map(|ledger| ledger.blocks.iter()) {
            if let Some(position) = block.position() {
                live.add(position, live_bytes(block));
            }
        }
    }

    pub(in crate::machine) fn view(&self) -> BTreeMap<LedgerId, LedgerView> {
        let each = |(&id, ledger): (&u32, &LedgerState)| {
            let blocks = ledger.blocks.iter();
            let ids = ledger.ids.iter();
            let inputs = ledger.inputs.iter();
            let view = LedgerView {
                description: ledger.describe(id),
                is_deleted: ledger.is_deleted,
                blocks: blocks
                    .map(|block| (SequenceId(block.first), block.position()))
                    .collect(),
                unique_ids: ids
                    .map(|(digest, Sequence(event))| (digest, SequenceId(event)))
                    .collect(),
                indexed: ledger.indexed,
                inputs: inputs
                    .map(|(_, entry)| (entry.input.clone(), SequenceId(entry.event)))
                    .collect(),
            };
            (LedgerId(id), view)
        };
        self.by_id.iter().map(each).collect()
    }

    /// What does not fit together, as sentences.
    pub(in crate::machine) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut expect = |holds: bool, ledger: &LedgerState, what: &str| {
            if !holds {
                problems.push(format!("ledger {}: {what}", ledger.name));
            }
        };
        for ledger in self.by_id.values() {
            let head = &ledger.head;
            let end = head.sequence_id.next();
            let firsts: Vec<u64> = ledger.blocks.iter().map(|block| block.first).collect();
            expect(
                firsts.is_sorted_by(|a, b| a < b) && firsts.last().is_none_or(|last| *last < end.0),
                ledger,
                "its blocks are not in order",
            );
            // Blocks before the first event are freed in steps; one that begins later would be a gap.
            let begins = firsts.first().copied().unwrap_or(end.0);
            expect(
                ledger.is_deleted || begins <= head.first_id.0 && head.first_id <= end,
                ledger,
                "events are missing at its beginning",
            );
            let times = ledger.blocks.iter().map(|block| block.time);
            expect(
                times.is_sorted() && ledger.blocks.iter().all(|block| block.time <= head.time.0),
                ledger,
                "its time goes back",
            );
            let places = (ledger.ids.iter().map(|(_, Sequence(event))| event))
                .chain(ledger.inputs.iter().map(|(_, entry)| entry.event))
                .chain(ledger.readers.values().map(|event| event.0));
            expect(
                { places }.all(|event| event <= head.sequence_id.0),
                ledger,
                "an id, an input or a reader is behind its end",
            );
            let mut ids = ledger.ids.iter();
            expect(
                ids.all(|(_, Sequence(event))| event > ledger.indexed.0)
                    && ledger.indexed <= head.sequence_id,
                ledger,
                "an id is in the index and in memory, or in the index alone and behind its end",
            );
            let bytes: u64 = ledger.blocks.iter().map(live_bytes).sum();
            expect(bytes == ledger.log_bytes, ledger, "its bytes do not add up");
            expect(
                ledger.memory() == ledger.bytes,
                ledger,
                "its memory does not add up",
            );
        }
        let memory: u64 = self.by_id.values().map(LedgerState::memory).sum();
        if memory != self.bytes {
            problems.push(format!(
                "the memory of ledgers is {memory}, and {} is kept",
                self.bytes
            ));
        }
        problems
    }
}

impl Row for InputEntry {
    fn blank() -> Self {
        Self {
            input: InputId::new("-").expect("a valid id"),
            event: 0,
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        columns.bytes(
            |entry, out| out.extend_from_slice(entry.input.as_str().as_bytes()),
            |entry, bytes| {
                entry.input = InputId::new(str::from_utf8(bytes).ok()?).ok()?;
                Some(())
            },
        )?;
        column!(columns, u64 event)
    }
}

pub(in crate::machine) fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u32::try_from(text.len()).expect("names are short");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_optional<const N: usize>(out: &mut Vec<u8>, bytes: Option<[u8; N]>) {
    out.push(u8::from(bytes.is_some()));
    out.extend_from_slice(bytes.as_ref().map_or(&[], |bytes| &bytes[..]));
}

pub(in crate::machine) fn text<'a>(input: &mut Input<'a>) -> Result<&'a str, ImageError> {
    let len = input.count(1)?;
    str::from_utf8(input.take(len)?).map_err(|_| damaged("a text is not UTF-8"))
}

fn optional<'a, T>(
    input: &mut Input<'a>,
    read: impl FnOnce(&mut Input<'a>) -> Result<T, ImageError>,
) -> Result<Option<T>, ImageError> {
    match input.flag()? {
        true => read(input).map(Some),
        false => Ok(None),
    }
}
