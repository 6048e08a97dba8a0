//! Unique ids of ledgers: in memory until they are in the index on disk.
//!
//! An id whose event is behind [`indexed`](LedgerState::indexed) is in memory, and any other one in the index.

use std::{cmp::Reverse, collections::BTreeMap};

use lockgate_core::{LedgerId, Level, Sequence, ledger::SequenceId};

use super::{digest_of, state::LedgerState};
use crate::{
    AppendEvents, Effect, FindEvent, IdAnswer, IdSpace, IdsToIndex, Rejection,
    machine::{Machine, draft::Draft, ids::in_index},
};

impl LedgerState {
    /// Where the event with that id is, by memory or else by what was looked up.
    pub(super) fn place_of(
        &self,
        ledger: LedgerId,
        digest: u128,
        answers: Option<&BTreeMap<(IdSpace, u128), IdAnswer>>,
    ) -> Result<Option<SequenceId>, Rejection> {
        let place = match self.ids.get(digest) {
            Some(hit) => Some(hit.sequence),
            None => {
                let id = (IdSpace::Ledger(ledger), digest);
                in_index(answers, id, Sequence(self.indexed.0))?
            }
        };
        Ok(place.map(|Sequence(place)| SequenceId(place)))
    }
}

impl Machine {
    /// The unique ids of an append that have to be looked up.
    pub(in crate::machine) fn event_ids_to_look_up(
        &self,
        append: &AppendEvents,
        answers: Option<&BTreeMap<(IdSpace, u128), IdAnswer>>,
    ) -> Vec<(IdSpace, u128)> {
        let Some((id, state)) = self.ledgers.named(&append.ledger) else {
            return Vec::new();
        };
        if state.indexed == SequenceId(0) {
            return Vec::new();
        }
        let events = append.append.events.iter();
        let digests = events.filter_map(|event| event.unique_id.as_ref().map(digest_of));
        let asked = digests.filter(|digest| {
            let place = state.place_of(LedgerId(id), *digest, answers);
            place.is_err()
        });
        asked
            .map(|digest| (IdSpace::Ledger(LedgerId(id)), digest))
            .collect()
    }

    /// The id that a look for an event has to look up.
    pub(in crate::machine) fn event_id_to_look_up(
        &self,
        find: &FindEvent,
        answers: Option<&BTreeMap<(IdSpace, u128), IdAnswer>>,
    ) -> Option<(IdSpace, u128)> {
        let (id, state) = self.ledgers.named(&find.ledger)?;
        let digest = digest_of(&find.unique_id);
        let place = state.place_of(LedgerId(id), digest, answers);
        place
            .is_err()
            .then_some((IdSpace::Ledger(LedgerId(id)), digest))
    }

    /// The first durable ids of each ledger with more than `more_than` in memory, fullest first and at most `most` of
    /// all together. Where ledgers take half of the memory that they may, of each ledger with any.
    pub(in crate::machine) fn event_ids_to_index(
        &self,
        more_than: usize,
        most: usize,
    ) -> Vec<IdsToIndex> {
        let is_half_full = self.ledgers.bytes > self.limits.ledger_bytes_max / 2;
        let more_than = if is_half_full { 0 } else { more_than };
        let ledgers = self.ledgers.by_id.iter();
        let ledgers = ledgers.filter(|(_, state)| !state.is_deleted && state.ids.len() > more_than);
        let mut ledgers: Vec<_> = ledgers.collect();
        ledgers.sort_by_key(|(_, state)| Reverse(state.ids.len()));
        let (mut left, mut moves) = (most, Vec::new());
        for (&id, state) in ledgers {
            let durable = state
                .ids
                .oldest()
                .take_while(|(.., position)| self.unless_durable(*position).is_none());
            let ids: Vec<_> = durable
                .take(left)
                .map(|(digest, place, _)| (digest, place.0))
                .collect();
            left -= ids.len();
            if let Some(&(_, last)) = ids.last() {
                moves.push(IdsToIndex {
                    space: IdSpace::Ledger(LedgerId(id)),
                    ids,
                    up_to: Sequence(last),
                });
            }
        }
        moves
    }

    pub(in crate::machine) fn decide_event_ids_indexed(
        &self,
        draft: &mut Draft,
        ledger: LedgerId,
        up_to: SequenceId,
    ) {
        if let Some(state) = self.ledgers.by_id.get(&ledger.0)
            && !state.is_deleted
            && up_to > state.indexed
            && up_to <= state.head.sequence_id
        {
            draft.add(Effect::EventIdsIndexed { ledger, up_to }, Level::Memory);
        }
    }

    /// The ledgers, each with the event up to which the index must have the ids, and the place of its next event.
    pub(in crate::machine) fn ledger_spaces(
        &self,
    ) -> impl Iterator<Item = (IdSpace, Sequence, Sequence)> {
        let ledgers = self.ledgers.by_id.iter();
        let kept = ledgers.filter(|(_, state)| !state.is_deleted);
        kept.map(|(&id, state)| {
            let next = state.head.sequence_id.next();
            let space = IdSpace::Ledger(LedgerId(id));
            (space, Sequence(state.indexed.0), Sequence(next.0))
        })
    }
}
