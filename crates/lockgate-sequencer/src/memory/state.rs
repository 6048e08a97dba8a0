//! What each command of a ledger in memory does at one instant.
//!
//! # Invariants
//! - `events` has the places `first` to `last`, without a gap.
//! - The place of each unique id, and of each input that is not settled, is at most `last`.
//! - A command that is refused changes nothing.

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;
use lockgate_core::{
    Epoch, InputId, ReaderName, UniqueId, WallTime,
    ledger::{
        Append, Appended, AppendedEvent, Event, EventHash, LedgerError, LedgerHead, LedgerOptions,
        LedgerPage, NewEvent, ReadLedger, ReaderPosition, SequenceId,
    },
};

/// What is counted for each event, id and reader beside its own bytes.
const ENTRY_BYTES: u64 = 128;

#[derive(Debug)]
pub(super) struct State {
    options: LedgerOptions,
    bytes_max: u64,
    bytes: u64,
    first: SequenceId,
    events: VecDeque<Event>,
    last: SequenceId,
    time: WallTime,
    epoch: Epoch,
    hash: Option<EventHash>,
    is_sealed: bool,
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
            first: SequenceId::START.next(),
            events: VecDeque::new(),
            last: SequenceId::START,
            time: WallTime(0),
            epoch: Epoch(0),
            hash: options.hashed.then_some(EventHash::START),
            is_sealed: false,
            unique_ids: HashMap::new(),
            inputs: HashMap::new(),
            readers: BTreeMap::new(),
        }
    }

    pub(super) fn head(&self) -> LedgerHead {
        LedgerHead {
            sequence_id: self.last,
            first_id: self.first,
            epoch: self.epoch,
            time: self.time,
            hash: self.hash,
            is_sealed: self.is_sealed,
        }
    }

    pub(super) fn append(
        &mut self,
        append: Append,
        now: WallTime,
    ) -> Result<Appended, LedgerError> {
        append.check()?;
        self.check_epoch(append.epoch)?;
        let (places, new) = self.look_up(&append.events);
        if self.is_sealed && !new.is_empty() {
            return Err(LedgerError::Sealed { head: self.last });
        }
        if append.head.is_some_and(|expected| expected != self.last) {
            return Err(LedgerError::Moved { head: self.last });
        }
        let events = append.events.iter().zip(&places);
        let bytes = events
            .filter(|(_, place)| !place.is_duplicate)
            .map(|(event, _)| bytes_of(event));
        self.check_room(bytes.sum())?;

        self.epoch = append.epoch;
        let events = append.events.into_iter().zip(&places);
        for (event, place) in events.filter(|(_, place)| !place.is_duplicate) {
            self.add(event, place.sequence_id, now);
        }
        for input in &append.settled {
            if self.inputs.remove(input).is_some() {
                self.bytes -= id_bytes(input.as_str());
            }
        }
        if let Some(retention) = self.options.retention {
            while let Some(event) = self.events.front()
                && now.since(event.time) > retention
            {
                self.let_go_of_first();
            }
        }
        Ok(Appended {
            events: places,
            head: self.head(),
        })
    }

    fn check_epoch(&self, epoch: Epoch) -> Result<(), LedgerError> {
        match epoch < self.epoch {
            true => Err(LedgerError::Deposed {
                epoch,
                newest: self.epoch,
            }),
            false => Ok(()),
        }
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

    /// The place of each event, and where in the append the new ones are.
    fn look_up(&self, events: &[NewEvent]) -> (Vec<AppendedEvent>, Vec<usize>) {
        let (mut unique_ids, mut inputs) = (HashMap::new(), HashMap::new());
        let mut new = Vec::new();
        let mut last = self.last;
        let mut places = Vec::with_capacity(events.len());
        for (at, event) in events.iter().enumerate() {
            let by_unique_id = event.unique_id.as_ref().and_then(|id| {
                let earlier = self.unique_ids.get(id);
                earlier.or_else(|| unique_ids.get(id)).copied()
            });
            let known = by_unique_id.or_else(|| {
                let input = event.input.as_ref()?;
                let earlier = self.inputs.get(input);
                earlier.or_else(|| inputs.get(input)).copied()
            });
            let sequence_id = known.unwrap_or_else(|| {
                last = last.next();
                new.push(at);
                if let Some(id) = &event.unique_id {
                    unique_ids.insert(id, last);
                }
                if let Some(input) = &event.input {
                    inputs.insert(input, last);
                }
                last
            });
            places.push(AppendedEvent {
                sequence_id,
                is_duplicate: known.is_some(),
            });
        }
        (places, new)
    }

    fn add(&mut self, event: NewEvent, sequence_id: SequenceId, now: WallTime) {
        self.bytes += bytes_of(&event);
        self.time = self.time.max(now);
        self.hash = self.hash.map(|last| last.next(&event.payload));
        if let Some(id) = event.unique_id.clone() {
            self.unique_ids.insert(id, sequence_id);
        }
        if let Some(input) = event.input {
            self.inputs.insert(input, sequence_id);
        }
        self.events.push_back(Event {
            sequence_id,
            previous_id: self.last,
            unique_id: event.unique_id,
            time: self.time,
            epoch: self.epoch,
            hash: self.hash,
            // A copy, because the payload may be a small part of something large.
            payload: Bytes::copy_from_slice(&event.payload),
        });
        self.last = sequence_id;
    }

    pub(super) fn read(&self, read: &ReadLedger) -> Result<LedgerPage, LedgerError> {
        self.check_reached(read.after)?;
        let next = read.after.next();
        if next < self.first {
            return Err(LedgerError::Trimmed {
                after: read.after,
                first: self.first,
            });
        }
        let skipped = usize::try_from(next.0 - self.first.0).unwrap_or(usize::MAX);
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

    fn check_reached(&self, sequence_id: SequenceId) -> Result<(), LedgerError> {
        match sequence_id > self.last {
            true => Err(LedgerError::Beyond {
                sequence_id,
                head: self.last,
            }),
            false => Ok(()),
        }
    }

    pub(super) fn find(&self, unique_id: &UniqueId) -> Option<SequenceId> {
        self.unique_ids.get(unique_id).copied()
    }

    pub(super) fn move_reader(&mut self, position: ReaderPosition) -> Result<(), LedgerError> {
        self.check_reached(position.sequence_id)?;
        let bytes = id_bytes(position.reader.as_str());
        if !self.readers.contains_key(&position.reader) {
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
        self.check_epoch(epoch)?;
        if !self.is_sealed {
            self.is_sealed = true;
            self.epoch = epoch;
        }
        Ok(self.head())
    }

    pub(super) fn trim(&mut self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        self.check_reached(first.previous())?;
        while self.first < first {
            self.let_go_of_first();
        }
        Ok(self.head())
    }

    fn let_go_of_first(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.bytes -= ENTRY_BYTES + event.payload.len() as u64;
            self.first = self.first.next();
        }
    }
}

fn id_bytes(id: &str) -> u64 {
    ENTRY_BYTES + id.len() as u64
}

/// What an event takes: of it the payload goes when it is trimmed, the input when it is settled, and the unique id never.
fn bytes_of(event: &NewEvent) -> u64 {
    let unique_id = event.unique_id.as_ref().map(|id| id_bytes(id.as_str()));
    let input = event.input.as_ref().map(|input| id_bytes(input.as_str()));
    let payload = event.payload.len() as u64;
    ENTRY_BYTES + payload + unique_id.unwrap_or(0) + input.unwrap_or(0)
}
