//! Ledgers: event logs with one total order, without a gap and without a duplicate.
//!
//! The events are in the log; the machine holds where each append is, and the ids that are not in the index on disk.
//!
//! # Invariants
//! - Each event behind the first that is kept, up to the head, is in exactly one block, or in one that says that it is lost.
//! - What an append does is one effect: its events, what is remembered of them, and the messages that it settles.
//! - The epoch, the time and the place of the head never go back.

mod blocks;
mod fold;
mod ids;
mod state;

use std::{
    cell::Cell,
    collections::{BTreeMap, HashSet},
};

use lockgate_core::{
    Epoch, InputId, LedgerId, LedgerName, Level, Now, Position, UniqueId,
    ledger::{Append, EventHash, LedgerError, ReadLedger, ReaderPosition, SequenceId},
    with_prefix,
};

use self::state::{ID_BYTES, named_bytes};
pub(super) use self::state::{LedgerState, Ledgers, put_text, text};
pub use self::state::{LedgerView, LiveBlock};
use super::{Machine, draft::Draft, send::check_range};
use crate::{
    AppendEvents, AppendedEvents, BlockPlace, CreateLedger, CreatedLedger, Effect, EventBlock,
    EventPlaces, FindEvent, IdAnswer, IdSpace, LedgerDescription, LedgersPage, ListLedgers,
    LocateEvents, MoveReader, Query, Rejection, Reply, StaleReason, StoredEvent, dedup::digest,
};

/// A ledger takes at most so many times what it leaves of the memory of ledgers: alone, three quarters of all.
const LEDGER_SHARE: u64 = 3;

/// The most readers of a ledger.
const READERS_MAX: usize = 1_000;

impl Machine {
    /// The record of the log that must be durable before anything is told of that ledger, also that there is none. `None`:
    /// all are.
    #[must_use]
    pub fn ledger_rests_on(&self, ledger: &LedgerName) -> Option<Position> {
        let named = self.ledgers.named(ledger);
        let changed_at = named.map_or(self.ledgers.deleted_at, |(_, state)| state.changed_at);
        self.unless_durable(changed_at)
    }

    /// The same for all ledgers. Walks them.
    #[must_use]
    pub fn ledgers_rest_on(&self) -> Option<Position> {
        let changed = self.ledgers.by_id.values().map(|ledger| ledger.changed_at);
        let changed = changed.max().max(Some(self.ledgers.deleted_at));
        changed.and_then(|at| self.unless_durable(at))
    }

    /// The ledgers that got events, or were sealed or deleted, since the last call; one may come more than once. Changes
    /// before the first [`reached`](Self::reached) are left out: nobody can have waited for them.
    pub fn take_changed_ledgers(&mut self) -> Vec<LedgerName> {
        std::mem::take(&mut self.ledgers.changed)
    }

    /// Whether the ledger has something for a reader that has all up to `after`: an event, its end, or an error.
    #[must_use]
    pub fn has_events_behind(&self, ledger: &LedgerName, after: SequenceId) -> bool {
        self.ledgers
            .named(ledger)
            .is_none_or(|(_, state)| state.head.sequence_id != after || state.head.is_sealed)
    }

    /// All ledgers, by name.
    pub fn ledgers(&self) -> impl Iterator<Item = LedgerDescription> {
        let ids = self.ledgers.by_name.values();
        ids.filter_map(|id| Some(self.ledgers.by_id.get(id)?.describe(*id)))
    }

    /// How many events all ledgers keep.
    #[must_use]
    pub fn kept_events(&self) -> u64 {
        let kept = self
            .ledgers
            .by_id
            .values()
            .filter(|ledger| !ledger.is_deleted);
        let kept = kept.map(|ledger| ledger.head.sequence_id.next().0 - ledger.head.first_id.0);
        kept.sum()
    }

    /// How many of the events of that block are kept.
    #[must_use]
    pub fn kept_of(&self, ledger: LedgerId, first: SequenceId, events: u64) -> u64 {
        let ledger = self.ledgers.by_id.get(&ledger.0);
        ledger
            .filter(|ledger| !ledger.is_deleted)
            .map_or(0, |ledger| {
                let end = first.0.saturating_add(events);
                end.saturating_sub(first.max(ledger.head.first_id).0)
            })
    }

    /// How many blocks of events have bytes in the log, those that are to be freed included. Walks all blocks.
    #[must_use]
    pub fn live_blocks(&self) -> u64 {
        let blocks = self
            .ledgers
            .by_id
            .values()
            .flat_map(|ledger| ledger.blocks.iter());
        blocks.filter(|block| block.position().is_some()).count() as u64
    }

    /// The blocks of events in the ranges whose first position satisfies `is_in`. Walks all blocks: not for a loop.
    pub fn blocks_in(&self, is_in: impl Fn(Position) -> bool) -> Vec<LiveBlock> {
        let bits = self.limits.range_bits;
        let mut found = Vec::new();
        for (&id, ledger) in &self.ledgers.by_id {
            if ledger.is_deleted {
                continue;
            }
            for (index, block) in ledger.blocks.iter().enumerate() {
                let end = ledger.end_of(index);
                let Some(position) = block.position().filter(|_| end > ledger.head.first_id) else {
                    continue;
                };
                let range = position.range(bits).start;
                if is_in(range) {
                    found.push(LiveBlock {
                        ledger: LedgerId(id),
                        name: ledger.name.clone(),
                        first: SequenceId(block.first),
                        events: end.0 - block.first,
                        range,
                        bytes_min: u64::from(block.bytes),
                    });
                }
            }
        }
        found
    }

    /// Whether the block that begins there is in the record at `at`.
    #[must_use]
    pub fn has_events_at(&self, ledger: LedgerId, first: SequenceId, at: Position) -> bool {
        self.block_position(ledger, first) == Some(at)
    }

    /// Whether there is a block that begins there, and its events are not lost.
    #[must_use]
    pub fn has_block(&self, ledger: LedgerId, first: SequenceId) -> bool {
        self.block_position(ledger, first).is_some()
    }

    fn block_position(&self, ledger: LedgerId, first: SequenceId) -> Option<Position> {
        let blocks = &self.ledgers.by_id.get(&ledger.0)?.blocks;
        blocks.get(blocks.beginning_at(first)?)?.position()
    }

    fn named_ledger(&self, name: &LedgerName) -> Result<(u32, &LedgerState), Rejection> {
        self.ledgers.named(name).ok_or_else(|| {
            let ledger = name.clone();
            LedgerError::NotFound { ledger }.into()
        })
    }

    /// As [`named_ledger`](Self::named_ledger), for a command: also a refusal waits for what it tells of.
    fn ledger_of(
        &self,
        draft: &mut Draft,
        name: &LedgerName,
    ) -> Result<(LedgerId, &LedgerState), Rejection> {
        draft.rest_on(self.ledger_rests_on(name));
        let (id, state) = self.named_ledger(name)?;
        Ok((LedgerId(id), state))
    }

    pub(super) fn decide_create_ledger(
        &self,
        draft: &mut Draft,
        create: &CreateLedger,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let CreateLedger { name, options } = create;
        if let Some((id, state)) = self.ledgers.named(name) {
            draft.rest_on(self.unless_durable(state.changed_at));
            if state.options() != *options {
                let why = format!(
                    "ledger {name} exists with other options: {}, and not {options}",
                    state.options()
                );
                return Err(LedgerError::Invalid { why }.into());
            }
            draft.level = Level::Process;
            return Ok(Reply::Ledger(Box::new(CreatedLedger {
                existed: true,
                description: state.describe(id),
            })));
        }
        let full = |what, max: u32| {
            Err(Rejection::ShardFull {
                what,
                max: u64::from(max),
            })
        };
        if self.ledgers.by_id.len() >= self.limits.ledgers_max as usize {
            return full("ledgers", self.limits.ledgers_max);
        }
        let Some(id) = self.ledgers.made.checked_add(1) else {
            return full("ledgers ever made", u32::MAX);
        };
        let created = Effect::LedgerCreated {
            ledger: LedgerId(id),
            name: name.clone(),
            hashed: options.hashed,
            retention: options.retention,
            at: now.wall,
        };
        draft.add(created, self.administration_level());
        let (hashed, retention) = (options.hashed, options.retention);
        let state = LedgerState::new(name.clone(), hashed, retention, now.wall, self.seed);
        Ok(Reply::Ledger(Box::new(CreatedLedger {
            existed: false,
            description: state.describe(id),
        })))
    }

    pub(super) fn decide_delete_ledger(
        &self,
        draft: &mut Draft,
        name: &LedgerName,
    ) -> Result<Reply, Rejection> {
        let (ledger, _) = self.ledger_of(draft, name)?;
        draft.add(
            Effect::LedgerDeleted { ledger },
            self.administration_level(),
        );
        Ok(Reply::Done)
    }

    pub(super) fn decide_append_events(
        &self,
        draft: &mut Draft,
        command: &AppendEvents,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let AppendEvents {
            ledger: name,
            append,
            settles,
        } = command;
        let (ledger, state) = self.ledger_of(draft, name)?;
        append.check()?;
        let max = AppendEvents::SETTLES_MAX as u64;
        check_range("number of settles", settles.len() as u64, 0, max)?;
        let looked_up = draft.looked_up.as_deref();
        let missing = Cell::new(None);
        let known = |id: &UniqueId| {
            let place = state.place_of(ledger, digest_of(id), looked_up);
            place.unwrap_or_else(|rejection| {
                missing.set(Some(rejection));
                None
            })
        };
        let decided = Append {
            epoch: append.epoch,
            head: append.head,
            events: append.events.clone(),
            settled: Vec::new(),
        }
        .decide(&state.head, now.wall, known, |input| state.input(input));
        // First of all, because what was decided may rest on what was not known.
        if let Some(missing) = missing.into_inner() {
            return Err(missing);
        }
        let decided = decided?;

        draft.in_transaction = true;
        for (index, settle) in settles.iter().enumerate() {
            match self.decide_settle(draft, settle, now)? {
                // Nothing is new: it is a repeat of an append whose answer was lost, and which has settled it.
                Err(StaleReason::Gone) if decided.new.is_empty() => {}
                settled => {
                    settled.map_err(|reason| Rejection::TransactionStale { index, reason })?;
                }
            }
        }
        let settles = draft.effects.len() as u64;
        check_range(
            "number of settled messages",
            settles,
            0,
            u64::from(u16::MAX),
        )?;
        let appended = decided.appended;
        let new_inputs: HashSet<&InputId> = decided.inputs.iter().map(|(input, _)| input).collect();
        let is_known =
            |input: &&InputId| state.by_input.contains_key(*input) || new_inputs.contains(*input);
        let settled: Vec<_> = append.settled.iter().filter(is_known).cloned().collect();
        let ids = decided.new.iter().filter(|event| event.unique_id.is_some());
        let bytes = |input: &InputId| named_bytes(input.as_str());
        let inputs = decided.inputs.iter().map(|(input, _)| bytes(input));
        // One that is named twice is forgotten once.
        let forgotten: HashSet<&InputId> = settled.iter().collect();
        self.check_ledger_room(
            state,
            ids.count() as u64 * ID_BYTES + inputs.sum::<u64>(),
            forgotten.into_iter().map(bytes).sum(),
        )?;
        let first = decided.new.first();
        let first = first.map_or(state.head.sequence_id.next(), |event| event.sequence_id);
        let is_change = !decided.new.is_empty()
            || appended.head.epoch != state.head.epoch
            || !settled.is_empty();
        if is_change {
            let hashes: Option<[EventHash; 2]> =
                state.head.hash.zip(appended.head.hash).map(<[_; 2]>::from);
            let events = decided.new.into_iter().map(|event| StoredEvent {
                unique_id: event.unique_id,
                payload: event.payload,
            });
            let block = EventBlock {
                ledger,
                first,
                epoch: append.epoch,
                time: appended.head.time,
                hashes,
                events: events.collect(),
            };
            let effect = Effect::EventsAppended(Box::new(AppendedEvents {
                block,
                inputs: decided.inputs,
                settled,
            }));
            draft.add(effect, self.administration_level());
        }
        Ok(Reply::Appended(Box::new(appended)))
    }

    /// Whether the memory of ledgers has room for `more` bytes of that ledger, which gives back `less` of its own.
    ///
    /// What one ledger may take depends on what is left then, so that the others, and the next one, always find some room.
    fn check_ledger_room(
        &self,
        state: &LedgerState,
        more: u64,
        less: u64,
    ) -> Result<(), Rejection> {
        let Some(grows) = more.checked_sub(less).filter(|grows| *grows > 0) else {
            return Ok(());
        };
        let max = self.limits.ledger_bytes_max;
        let own = state.bytes.saturating_add(grows);
        let left = max.saturating_sub(self.ledgers.bytes.saturating_add(grows));
        if own <= left.saturating_mul(LEDGER_SHARE) {
            return Ok(());
        }
        let what_to_do = match self.limits.unique_id_index {
            true => {
                "try again, because unique ids leave it for their index on disk; or settle inputs"
            }
            false => {
                "settle inputs, or delete a ledger: this log has no index on disk for unique ids"
            }
        };
        let left = max.saturating_sub(self.ledgers.bytes);
        let why = format!(
            "the unique ids, inputs and readers of all ledgers may take {max} bytes of memory, and those of one ledger \
             {LEDGER_SHARE} times what it leaves. This one has {} and would get {grows} more, and {left} are left: {what_to_do}",
            state.bytes
        );
        Err(LedgerError::Full { why }.into())
    }

    pub(super) fn decide_move_reader(
        &self,
        draft: &mut Draft,
        command: &MoveReader,
    ) -> Result<Reply, Rejection> {
        let MoveReader {
            ledger: name,
            reader,
            to,
            from,
        } = command;
        let (ledger, state) = self.ledger_of(draft, name)?;
        let before = state.readers.get(reader).copied();
        if let Some(to) = to {
            state.head.reaches(*to)?;
        }
        ReaderPosition::check_from(before, *from)?;
        if to.is_some() && before.is_none() {
            if state.readers.len() >= READERS_MAX {
                let why = format!("a ledger keeps the places of {READERS_MAX} readers: forget one");
                return Err(LedgerError::Full { why }.into());
            }
            self.check_ledger_room(state, named_bytes(reader.as_str()), 0)?;
        }
        if before != *to {
            let moved = Effect::ReaderMoved {
                ledger,
                reader: reader.clone(),
                to: *to,
            };
            draft.add(moved, self.administration_level());
        }
        Ok(Reply::ReaderMoved(before.is_some()))
    }

    pub(super) fn decide_seal_ledger(
        &self,
        draft: &mut Draft,
        name: &LedgerName,
        epoch: Epoch,
    ) -> Result<Reply, Rejection> {
        let (ledger, state) = self.ledger_of(draft, name)?;
        let mut head = state.head;
        head.admits(epoch)?;
        if !head.is_sealed {
            (head.is_sealed, head.epoch) = (true, epoch);
            draft.add(
                Effect::LedgerSealed { ledger, epoch },
                self.administration_level(),
            );
        }
        Ok(Reply::LedgerHead(Box::new(head)))
    }

    pub(super) fn decide_trim_ledger(
        &self,
        draft: &mut Draft,
        name: &LedgerName,
        first: SequenceId,
    ) -> Result<Reply, Rejection> {
        let (ledger, state) = self.ledger_of(draft, name)?;
        let mut head = state.head;
        head.reaches(first.previous())?;
        if first > head.first_id {
            head.first_id = first;
            draft.add(
                Effect::LedgerTrimmed { ledger, first },
                self.administration_level(),
            );
        }
        Ok(Reply::LedgerHead(Box::new(head)))
    }

    pub(super) fn decide_compact_events(
        &self,
        draft: &mut Draft,
        block: &EventBlock,
        from: Position,
    ) -> Result<Reply, Rejection> {
        if self.has_events_at(block.ledger, block.first, from) {
            let effect = Effect::EventsCompacted(Box::new(block.clone()));
            draft.add(effect, Level::Process.min(self.limits.log_level));
        }
        Ok(Reply::Done)
    }

    pub(super) fn decide_lose_events(
        &self,
        draft: &mut Draft,
        ledger: LedgerId,
        first: SequenceId,
    ) -> Result<Reply, Rejection> {
        let lost = Effect::EventsLost { ledger, first };
        draft.add(lost, self.administration_level());
        Ok(Reply::Done)
    }

    pub(super) fn query_ledger(
        &self,
        name: &LedgerName,
    ) -> Result<Box<LedgerDescription>, Rejection> {
        let (id, state) = self.named_ledger(name)?;
        Ok(Box::new(state.describe(id)))
    }

    pub(super) fn query_ledgers(&self, list: &ListLedgers) -> Result<LedgersPage, Rejection> {
        check_range("limit", list.limit as u64, 1, Query::LIMIT_MAX as u64)?;
        let mut matching = with_prefix(&self.ledgers.by_name, &list.prefix, list.after.as_ref());
        let page = matching.by_ref().take(list.limit);
        let ledgers: Vec<_> = page
            .filter_map(|(_, id)| Some(self.ledgers.by_id.get(id)?.describe(*id)))
            .collect();
        let last = ledgers.last().filter(|_| matching.next().is_some());
        Ok(LedgersPage {
            next: last.map(|last| last.name.clone()),
            ledgers,
        })
    }

    pub(super) fn query_events(
        &self,
        locate: &LocateEvents,
    ) -> Result<Box<EventPlaces>, Rejection> {
        let LocateEvents {
            ledger,
            after,
            limit,
        } = locate;
        let (id, state) = self.named_ledger(ledger)?;
        check_range("limit", *limit as u64, 1, ReadLedger::LIMIT_MAX as u64)?;
        state.head.keeps_behind(*after)?;
        let mut blocks = Vec::new();
        let (mut events, mut bytes) = (0, 0);
        let first = after.next();
        if first <= state.head.sequence_id
            && let Some(start) = state.blocks.find(first)
        {
            for index in start..state.blocks.len() {
                let Some(block) = state.blocks.get(index) else {
                    break;
                };
                blocks.push(BlockPlace {
                    first: SequenceId(block.first),
                    last: state.end_of(index).previous(),
                    position: block.position(),
                    bytes: u64::from(block.bytes),
                });
                events += state.end_of(index).0 - block.first.max(first.0);
                // What one block has in front of the first event that is asked for does not count.
                bytes += if index == start {
                    0
                } else {
                    block.bytes as usize
                };
                if events >= *limit as u64 || bytes >= ReadLedger::BYTES_MAX {
                    break;
                }
            }
        }
        Ok(Box::new(EventPlaces {
            head: state.head,
            ledger: LedgerId(id),
            blocks,
        }))
    }

    pub(super) fn query_event(
        &self,
        find: &FindEvent,
        answers: Option<&BTreeMap<(IdSpace, u128), IdAnswer>>,
    ) -> Result<Option<SequenceId>, Rejection> {
        let (id, state) = self.named_ledger(&find.ledger)?;
        state.place_of(LedgerId(id), digest_of(&find.unique_id), answers)
    }
}

/// What stands for a unique id of a ledger.
fn digest_of(id: &UniqueId) -> u128 {
    digest(None, id.as_str())
}
