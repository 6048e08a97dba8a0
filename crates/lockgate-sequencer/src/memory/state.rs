//! What each command of a ledger in memory does at one instant.
//!
//! # Invariants
//! - `events` has the places `first` to `last`, without a gap.
//! - The place of each unique id, and of each input that is not settled, is at most `last`.
//! - A command that is refused changes nothing.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use bytes::Bytes;
use lockgate_core::{
    Epoch, InputId, ReaderName, UniqueId, WallTime,
    ledger::{
        Append, Appended, Event, LedgerError, LedgerHead, LedgerOptions, LedgerPage, ReadLedger,
        ReaderPosition, SequenceId,
    },
};

/// What is counted for each event, id and reader beside its own bytes.
const ENTRY_BYTES: u64 = 128;

#[derive(Debug)]
pub(super) struct State {
    options: LedgerOptions,
    bytes_max: u64,
    bytes: u64,
    head: LedgerHead,
    events: VecDeque<Event>,
    unique_ids: HashMap<UniqueId, SequenceId>,
    inputs: HashMap<InputId, SequenceId>,
    readers: BTreeMap<ReaderName, SequenceId>,
}

impl State {
    pub(super) fn new(options: LedgerOptions, bytes_max: u64) -> Self {
        Self {
            options,
            bytes_max,
            bytes: 0,
            head: LedgerHead::start(options.hashed),
            events: VecDeque::new(),
            unique_ids: HashMap::new(),
            inputs: HashMap::new(),
            readers: BTreeMap::new(),
        }
    }

    pub(super) fn head(&self) -> LedgerHead {
        self.head
    }

    pub(super) fn append(
        &mut self,
        mut append: Append,
        now: WallTime,
    ) -> Result<Appended, LedgerError> {
        append.check()?;
        let settled = std::mem::take(&mut append.settled);
        let known = |id: &UniqueId| self.unique_ids.get(id).copied();
        let known_input = |input: &InputId| self.inputs.get(input).copied();
        let decision = append.decide(&self.head, now, known, known_input)?;
        // Events that are older than the retention may go at any time, and make room.
        if let Some(retention) = self.options.retention {
            while let Some(event) = self.events.front()
                && now.since(event.time) > retention
            {
                self.let_go_of_first();
            }
        }
        let inputs = decision.inputs.iter();
        let inputs: u64 = inputs.map(|(input, _)| id_bytes(input.as_str())).sum();
        let more = decision.new.iter().map(bytes_of).sum::<u64>() + inputs;
        let new_inputs: HashSet<&InputId> =
            decision.inputs.iter().map(|(input, _)| input).collect();
        let forgotten: HashSet<&InputId> = settled.iter().collect();
        let forgotten = forgotten
            .into_iter()
            .filter(|input| self.inputs.contains_key(*input) || new_inputs.contains(input));
        let less: u64 = forgotten.map(|input| id_bytes(input.as_str())).sum();
        self.check_room(more.saturating_sub(less))?;

        let mut appended = decision.appended;
        appended.head.first_id = self.head.first_id;
        self.head = appended.head;
        for mut event in decision.new {
            self.bytes += bytes_of(&event);
            if let Some(id) = &event.unique_id {
                self.unique_ids.insert(id.clone(), event.sequence_id);
            }
            // A copy, because the payload may be a small part of something large.
            event.payload = Bytes::copy_from_slice(&event.payload);
            self.events.push_back(event);
        }
        self.bytes += inputs;
        self.inputs.extend(decision.inputs);
        for input in &settled {
            if self.inputs.remove(input).is_some() {
                self.bytes -= id_bytes(input.as_str());
            }
        }
        Ok(appended)
    }

    fn check_room(&self, bytes: u64) -> Result<(), LedgerError> {
        let max = self.bytes_max;
        match self.bytes.saturating_add(bytes) > max {
            true => Err(LedgerError::Full {
                why: format!("this ledger in memory has room for {max} bytes: trim it"),
            }),
            false => Ok(()),
        }
    }

    pub(super) fn read(&self, read: &ReadLedger) -> Result<LedgerPage, LedgerError> {
        self.head.keeps_behind(read.after)?;
        let next = read.after.next();
        let skipped = usize::try_from(next.0 - self.head.first_id.0).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut events = Vec::new();
        for event in self.events.iter().skip(skipped).take(read.limit) {
            bytes += event.payload.len();
            events.push(event.clone());
            if bytes >= ReadLedger::BYTES_MAX {
                break;
            }
        }
        let head = self.head();
        Ok(LedgerPage { events, head })
    }

    pub(super) fn find(&self, unique_id: &UniqueId) -> Option<SequenceId> {
        self.unique_ids.get(unique_id).copied()
    }

    pub(super) fn move_reader(
        &mut self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        self.head.reaches(position.sequence_id)?;
        let before = self.readers.get(&position.reader).copied();
        ReaderPosition::check_from(before, from)?;
        let bytes = id_bytes(position.reader.as_str());
        if before.is_none() {
            self.check_room(bytes)?;
            self.bytes += bytes;
        }
        self.readers.insert(position.reader, position.sequence_id);
        Ok(())
    }

    pub(super) fn forget_reader(&mut self, reader: &ReaderName) -> bool {
        let was_there = self.readers.remove(reader).is_some();
        if was_there {
            self.bytes -= id_bytes(reader.as_str());
        }
        was_there
    }

    pub(super) fn readers(&self) -> Vec<ReaderPosition> {
        let position = |(reader, sequence_id): (&ReaderName, &SequenceId)| ReaderPosition {
            reader: reader.clone(),
            sequence_id: *sequence_id,
        };
        self.readers.iter().map(position).collect()
    }

    pub(super) fn seal(&mut self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        self.head.admits(epoch)?;
        if !self.head.is_sealed {
            self.head.is_sealed = true;
            self.head.epoch = epoch;
        }
        Ok(self.head)
    }

    pub(super) fn trim(&mut self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        self.head.reaches(first.previous())?;
        while self.head.first_id < first {
            self.let_go_of_first();
        }
        Ok(self.head())
    }

    fn let_go_of_first(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.bytes -= ENTRY_BYTES + event.payload.len() as u64;
            self.head.first_id = self.head.first_id.next();
        }
    }
}

fn id_bytes(id: &str) -> u64 {
    ENTRY_BYTES + id.len() as u64
}

/// What an event takes beside its input: of it the payload goes when it is trimmed, and the unique id never.
fn bytes_of(event: &Event) -> u64 {
    let unique_id = event.unique_id.as_ref().map(|id| id_bytes(id.as_str()));
    ENTRY_BYTES + event.payload.len() as u64 + unique_id.unwrap_or(0)
}
