//! Folds what happens to ledgers.

use lockgate_core::{
    Epoch, LedgerId, LedgerName, MachineTime, Millis, ReaderName, Sequence, WallTime,
    ledger::SequenceId,
};

use super::{
    blocks::Block,
    digest_of,
    state::{ID_BYTES, InputEntry, LedgerState, live_bytes, named_bytes},
};
use crate::{
    AppendedEvents, EventBlock,
    machine::{Machine, state::Timer},
    slab::NONE,
};

impl Machine {
    pub(in crate::machine) fn fold_ledger_created(
        &mut self,
        ledger: LedgerId,
        name: &LedgerName,
        hashed: bool,
        retention: Option<Millis>,
        at: WallTime,
    ) -> Option<()> {
        let LedgerId(id) = ledger;
        // Only damage gives a number twice.
        if id == 0 || self.ledgers.by_id.contains_key(&id) {
            return None;
        }
        self.ledgers.made = self.ledgers.made.max(id);
        let mut state = LedgerState::new(name.clone(), hashed, retention, at, self.seed);
        state.changed_at = self.folding_at;
        // One of the same name is there only if the record of its deletion was lost.
        if let Some(&before) = self.ledgers.by_name.get(name) {
            self.fold_ledger_deleted(LedgerId(before))?;
        }
        self.ledgers.by_name.insert(name.clone(), id);
        self.ledgers.by_id.insert(id, state);
        Some(())
    }

    pub(in crate::machine) fn fold_ledger_deleted(&mut self, ledger: LedgerId) -> Option<()> {
        let state = self.ledgers.by_id.get_mut(&ledger.0)?;
        if std::mem::replace(&mut state.is_deleted, true) {
            return None;
        }
        let name = state.name.clone();
        self.ledgers.by_name.remove(&name);
        self.ledgers.deleted_at = self.folding_at;
        self.note_ledger(ledger.0);
        self.arm_ledger(ledger.0);
        Some(())
    }

    pub(in crate::machine) fn fold_events_appended(
        &mut self,
        appended: &AppendedEvents,
    ) -> Option<()> {
        let AppendedEvents {
            block,
            inputs,
            settled,
        } = appended;
        let position = self.folding_at;
        let id = block.ledger.0;
        let ledgers = &mut self.ledgers;
        // If the record of its creation is lost, its number is not given out again.
        ledgers.made = ledgers.made.max(id);
        let state = ledgers.by_id.get_mut(&id)?;
        let bytes_before = state.bytes;
        let next = state.head.sequence_id.next();
        let count = block.events.len() as u64;
        if count > 0 && block.first < next {
            return None;
        }
        state.head.epoch = state.head.epoch.max(block.epoch);
        if count > 0 {
            let time = state.head.time.max(block.time);
            if block.first > next {
                // The record of the events in between was lost.
                state.blocks.push(Block::lost(next, time));
            }
            state.head.time = time;
            state.head.sequence_id = SequenceId(block.first.0 + count - 1);
            state.head.hash = block.hashes.map(|[_, last]| last);
            let bytes = bytes_of(block);
            let row = Block {
                first: block.first.0,
                position: position.0,
                time: time.0,
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            };
            state.blocks.push(row);
            state.log_bytes += live_bytes(&row);
            self.live.add(position, live_bytes(&row));
        }
        for (event, place) in block.events.iter().zip(block.first.0..) {
            if let Some(unique_id) = &event.unique_id {
                let before = state.ids.held();
                let digest = digest_of(unique_id);
                let expires = MachineTime(place);
                state
                    .ids
                    .reserve(digest, Sequence(place), position, expires);
                state.bytes += (state.ids.held() - before) as u64 * ID_BYTES;
            }
        }
        for (input, place) in inputs {
            if state.by_input.contains_key(input) {
                continue;
            }
            state.bytes += named_bytes(input.as_str());
            let entry = InputEntry {
                input: input.clone(),
                event: place.0,
            };
            let index = state.inputs.insert(entry);
            state.by_input.insert(input.clone(), index);
        }
        for input in settled {
            if let Some(index) = state.by_input.remove(input) {
                state.inputs.remove(index);
                state.bytes -= named_bytes(input.as_str());
            }
        }
        ledgers.bytes = ledgers.bytes - bytes_before + state.bytes;
        self.note_ledger(id);
        self.arm_ledger(id);
        Some(())
    }

    pub(in crate::machine) fn fold_event_ids_indexed(
        &mut self,
        ledger: LedgerId,
        up_to: SequenceId,
    ) -> Option<()> {
        let ledgers = &mut self.ledgers;
        let state = ledgers.by_id.get_mut(&ledger.0)?;
        // Behind the head only if the records of the events were lost.
        let up_to = up_to.min(state.head.sequence_id);
        state.indexed = state.indexed.max(up_to);
        let forgotten = state.ids.expire(MachineTime(state.indexed.0), usize::MAX);
        state.bytes -= forgotten as u64 * ID_BYTES;
        ledgers.bytes -= forgotten as u64 * ID_BYTES;
        self.has_indexed_ids = true;
        Some(())
    }

    pub(in crate::machine) fn fold_reader_moved(
        &mut self,
        ledger: LedgerId,
        reader: &ReaderName,
        to: Option<SequenceId>,
    ) -> Option<()> {
        let position = self.folding_at;
        let ledgers = &mut self.ledgers;
        let state = ledgers.by_id.get_mut(&ledger.0)?;
        let bytes = named_bytes(reader.as_str());
        let before = match to {
            // Behind the head only if the records of the events were lost.
            Some(to) => {
                let to = to.min(state.head.sequence_id);
                state.readers.insert(reader.clone(), to)
            }
            None => state.readers.remove(reader),
        };
        match (before, to) {
            (None, Some(_)) => {
                state.bytes += bytes;
                ledgers.bytes += bytes;
            }
            (Some(_), None) => {
                state.bytes -= bytes;
                ledgers.bytes -= bytes;
            }
            _ => {}
        }
        state.changed_at = position;
        Some(())
    }

    pub(in crate::machine) fn fold_ledger_sealed(
        &mut self,
        ledger: LedgerId,
        epoch: Epoch,
    ) -> Option<()> {
        let state = self.ledgers.by_id.get_mut(&ledger.0)?;
        state.head.is_sealed = true;
        state.head.epoch = state.head.epoch.max(epoch);
        self.note_ledger(ledger.0);
        Some(())
    }

    pub(in crate::machine) fn fold_ledger_trimmed(
        &mut self,
        ledger: LedgerId,
        first: SequenceId,
    ) -> Option<()> {
        let position = self.folding_at;
        let state = self.ledgers.by_id.get_mut(&ledger.0)?;
        let first = first.min(state.head.sequence_id.next());
        state.head.first_id = state.head.first_id.max(first);
        state.changed_at = position;
        self.arm_ledger(ledger.0);
        Some(())
    }

    pub(in crate::machine) fn fold_events_compacted(&mut self, block: &EventBlock) -> Option<()> {
        let position = self.folding_at;
        let blocks = &mut self.ledgers.by_id.get_mut(&block.ledger.0)?.blocks;
        let index = blocks.beginning_at(block.first)?;
        // One that counts as lost stays so: its bytes are not counted.
        let from = blocks.get(index)?.position()?;
        let row = blocks.set_position(index, Some(position));
        self.live.remove(from, live_bytes(&row));
        self.live.add(position, live_bytes(&row));
        Some(())
    }

    pub(in crate::machine) fn fold_events_lost(
        &mut self,
        ledger: LedgerId,
        first: SequenceId,
    ) -> Option<()> {
        let state = self.ledgers.by_id.get_mut(&ledger.0)?;
        let index = state.blocks.beginning_at(first)?;
        let from = state.blocks.get(index)?.position()?;
        let row = state.blocks.set_position(index, None);
        state.log_bytes -= live_bytes(&row);
        self.live.remove(from, live_bytes(&row));
        Some(())
    }

    /// The timer of a ledger was taken out of its wheel. Lets go of old events, and frees what is not needed any more.
    pub(in crate::machine) fn fire_ledger(&mut self, id: u32, now: WallTime, budget: u32) {
        let position = self.folding_at;
        let ledgers = &mut self.ledgers;
        let Some(state) = ledgers.by_id.get_mut(&id) else {
            return;
        };
        state.timer = NONE;
        let mut left = budget;
        while left > 0
            && let Some(block) = state.blocks.get(0).copied()
        {
            let end = state.end_of(0);
            let is_old = state
                .retention
                .is_some_and(|retention| now.since(WallTime(block.time)) > retention);
            if is_old && end > state.head.first_id {
                state.head.first_id = end;
                state.changed_at = position;
            }
            if !state.is_deleted && end > state.head.first_id {
                break;
            }
            state.blocks.pop_front();
            state.log_bytes -= live_bytes(&block);
            if let Some(at) = block.position() {
                self.live.remove(at, live_bytes(&block));
            }
            left -= 1;
        }
        let bytes_before = state.bytes;
        if state.is_deleted {
            let forgotten = state.ids.expire(MachineTime::MAX, left as usize);
            state.bytes -= forgotten as u64 * ID_BYTES;
            left = left.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
            while left > 0
                && let Some((input, index)) = state.by_input.pop_first()
            {
                state.inputs.remove(index);
                state.bytes -= named_bytes(input.as_str());
                left -= 1;
            }
            if state.blocks.len() == 0 && state.ids.held() == 0 && state.by_input.is_empty() {
                // Its readers, which are few, go with it.
                ledgers.bytes -= bytes_before;
                ledgers.by_id.remove(&id);
                return;
            }
        }
        ledgers.bytes = ledgers.bytes - bytes_before + state.bytes;
        self.arm_ledger(id);
    }

    /// Ensures that there is a timer for what is to be freed, or for the events that become old first. A timer that fires
    /// too early finds nothing and sets itself again.
    fn arm_ledger(&mut self, id: u32) {
        let Some(state) = self.ledgers.by_id.get_mut(&id) else {
            return;
        };
        let is_freed = state.is_deleted
            || state.blocks.get(0).is_some() && state.end_of(0) <= state.head.first_id;
        let oldest = state.blocks.get(0).map(|block| WallTime(block.time));
        let due = match (is_freed, oldest.zip(state.retention)) {
            // Behind what is due before, so that it holds up no other timer.
            (true, _) => self.clock.now.wall,
            (false, Some((oldest, retention))) => oldest.plus(retention).plus(1),
            (false, None) => return,
        };
        if state.timer != NONE {
            if state.timer_at <= due {
                return;
            }
            self.wall.remove(state.timer);
        }
        state.timer_at = due;
        // Behind the other timers of the same instant.
        let order = 1 << 61 | u64::from(id);
        state.timer = self.wall.insert(due.0, order, Timer::Ledger(id).to_bits());
    }

    fn note_ledger(&mut self, id: u32) {
        let Some(state) = self.ledgers.by_id.get_mut(&id) else {
            return;
        };
        state.changed_at = self.folding_at;
        if self.durable.is_some() {
            self.ledgers.changed.push(state.name.clone());
        }
    }
}

/// Bytes of payloads and unique ids.
fn bytes_of(block: &EventBlock) -> u64 {
    let each = block.events.iter().map(|event| {
        let id = event.unique_id.as_ref().map_or(0, |id| id.as_str().len());
        (event.payload.len() + id) as u64
    });
    each.sum()
}
