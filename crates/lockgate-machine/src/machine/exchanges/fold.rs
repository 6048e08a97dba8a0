//! Folds what happens to exchanges.

use std::sync::Arc;

use lockgate_core::{ExchangeId, ExchangeName, QueueId, WallTime};

use super::state::ExchangeState;
use crate::{
    BindTo, Binding, ExchangeCounts, ExchangeKind, ExchangeNotes, Unroutable, counters::TOTAL_MAX,
    machine::Machine,
};

impl Machine {
    pub(in crate::machine) fn fold_exchange_created(
        &mut self,
        exchange: ExchangeId,
        name: &ExchangeName,
        kind: ExchangeKind,
        unroutable: Unroutable<ExchangeId>,
        at: WallTime,
    ) -> Option<()> {
        let ExchangeId(id) = exchange;
        let seed = self.seed;
        let exchanges = &mut self.exchanges;
        // Only damage gives a number twice.
        if id == 0 || exchanges.by_id.contains_key(&id) {
            return None;
        }
        exchanges.free_before_reuse(None, Some(id));
        exchanges.made = exchanges.made.max(id);
        exchanges.changed_at = self.folding_at;
        // One of the same name is there only if the record of its deletion was lost.
        if let Some(&before) = exchanges.by_name.get(name) {
            exchanges.drop_exchange(before)?;
        }
        let state = ExchangeState::new(name.clone(), kind, Unroutable::Reject, at, seed);
        exchanges.by_name.insert(name.clone(), id);
        exchanges.by_id.insert(id, state);
        self.fold_unroutable(id, unroutable)
    }

    /// Without its alternate, an exchange refuses what it cannot route.
    fn fold_unroutable(&mut self, id: u32, unroutable: Unroutable<ExchangeId>) -> Option<()> {
        let exchanges = &mut self.exchanges;
        if let Unroutable::Alternate(ExchangeId(alternate)) = unroutable
            && (!exchanges.by_id.contains_key(&alternate)
                || exchanges.would_lead_back(id, alternate))
        {
            exchanges.set_unroutable(id, Unroutable::Reject);
            return None;
        }
        exchanges.set_unroutable(id, unroutable);
        Some(())
    }

    pub(in crate::machine) fn fold_exchange_changed(
        &mut self,
        exchange: ExchangeId,
        unroutable: Unroutable<ExchangeId>,
        at: WallTime,
    ) -> Option<()> {
        let state = self.exchanges.by_id.get_mut(&exchange.0)?;
        state.changed = at;
        self.exchanges.changed_at = self.folding_at;
        self.fold_unroutable(exchange.0, unroutable)
    }

    pub(in crate::machine) fn fold_exchange_noted(
        &mut self,
        exchange: ExchangeId,
        notes: &Arc<ExchangeNotes>,
    ) -> Option<()> {
        self.exchanges.set_notes(exchange.0, notes.clone())?;
        self.exchanges.changed_at = self.folding_at;
        Some(())
    }

    pub(in crate::machine) fn fold_exchange_deleted(&mut self, exchange: ExchangeId) -> Option<()> {
        self.exchanges.changed_at = self.folding_at;
        self.exchanges.drop_exchange(exchange.0)
    }

    pub(in crate::machine) fn fold_bound(
        &mut self,
        exchange: ExchangeId,
        number: u32,
        binding: &Arc<Binding>,
    ) -> Option<()> {
        let ExchangeId(id) = exchange;
        let is_target_there = match binding.to {
            BindTo::Queue(queue) => self.queue_index(queue).is_some(),
            BindTo::Exchange(ExchangeId(target)) => {
                self.exchanges.by_id.contains_key(&target)
                    && !self.exchanges.would_lead_back(id, target)
            }
        };
        let state = self.exchanges.by_id.get(&id)?;
        if !is_target_there || number == 0 || binding.pattern.kind() != state.kind {
            return None;
        }
        self.exchanges.changed_at = self.folding_at;
        let identity = (binding.to, binding.pattern.clone());
        let by_identity = state.by_identity.get(&identity).copied();
        let mut by_number = state.own.get(&number).copied();
        // Whether a dead one is freed already must not matter.
        let is_dead = |row: &u32| self.exchanges.is_dead(&self.exchanges.bindings[*row]);
        if let Some(row) = by_number.filter(is_dead) {
            self.exchanges.remove(row);
            by_number = None;
        }
        match (by_number, by_identity) {
            (Some(row), Some(same)) if row == same => {
                self.exchanges.set_options(row, &binding.options);
                Some(())
            }
            // Its number is that of another one, which damage alone does.
            (Some(_), _) => None,
            // The record that removed it was lost.
            (None, Some(row)) => {
                self.exchanges.remove(row);
                self.exchanges.add(id, number, binding.clone())
            }
            (None, None) => self.exchanges.add(id, number, binding.clone()),
        }
    }

    pub(in crate::machine) fn fold_unbound(
        &mut self,
        exchange: ExchangeId,
        number: u32,
    ) -> Option<()> {
        let state = self.exchanges.by_id.get(&exchange.0)?;
        let row = *state.own.get(&number)?;
        if self.exchanges.is_dead(&self.exchanges.bindings[row]) {
            return None;
        }
        self.exchanges.changed_at = self.folding_at;
        self.exchanges.remove(row);
        Some(())
    }

    /// Counts a publish, or what became of several, when it is folded. An exchange that was deleted since counts nothing.
    pub(in crate::machine) fn count_publish(
        &mut self,
        exchange: ExchangeId,
        more: &ExchangeCounts,
    ) {
        if let Some(state) = self.exchanges.by_id.get_mut(&exchange.0) {
            state.counts.add(more, TOTAL_MAX);
        }
    }

    /// Counts a publish that was refused because no queue matches.
    pub(in crate::machine) fn count_refused_publish(&mut self, exchange: &ExchangeName) {
        let id = self.exchanges.by_name.get(exchange).copied();
        if let Some(state) = id.and_then(|id| self.exchanges.by_id.get_mut(&id)) {
            state.counts.refused += 1;
        }
    }

    /// A queue was made: if damage has given it the number of a deleted one, nothing leads to it.
    pub(in crate::machine) fn forget_earlier_bindings(&mut self, queue: QueueId) {
        self.exchanges.free_before_reuse(Some(queue), None);
    }
}
