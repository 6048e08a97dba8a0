//! What the machine holds of exchanges, and the same in an image.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use lockgate_core::{ExchangeId, ExchangeName, Position, QueueId, WallTime};

use crate::{
    BindTo, Binding, BindingOptions, ExchangeCounts, ExchangeKind, ExchangeNotes, Pattern,
    Unroutable,
    codec::exchanges::{binding_from, notes_from, put_binding, put_notes},
    columns::{Columns, ImageError, Input, Row, column, damaged},
    exchanges::index::Index,
    machine::ledgers::{put_text, text},
    slab::Slab,
    table::HashSeed,
};

/// All exchanges of a shard, and their bindings.
///
/// A binding is *dead* when its queue, its exchange, or the exchange that it leads to was deleted: nothing shows it any more,
/// and it is freed in steps.
#[derive(Debug, Default)]
pub(in crate::machine) struct Exchanges {
    pub(in crate::machine) by_id: BTreeMap<u32, ExchangeState>,
    pub(super) by_name: BTreeMap<ExchangeName, u32>,
    /// How many were ever made: the last number.
    pub(in crate::machine) made: u32,
    pub(in crate::machine) bindings: Slab<BindingEntry, 64>,
    /// The bindings to each queue, by their exchange.
    pub(super) to_queue: BTreeMap<QueueId, BTreeMap<u32, BTreeSet<u32>>>,
    /// Deleted exchanges whose bindings are not freed yet. Volatile.
    gone: BTreeMap<u32, ExchangeState>,
    /// Deleted queues the bindings to which are not freed yet. Volatile.
    gone_queues: BTreeSet<QueueId>,
    /// Bindings that are not dead.
    pub(super) live: u64,
    /// Pairs of exchanges, one of which has a binding to the other.
    pub(super) links: u64,
    /// What all bindings take, dead ones included; and their texts in an image.
    pub(in crate::machine) bytes: u64,
    text_bytes: u64,
    /// What the notes of all exchanges take.
    pub(super) note_bytes: u64,
    /// The record of the log that changed any of them last. Volatile.
    pub(super) changed_at: Position,
}

/// A binding of an exchange.
#[derive(Clone, Debug)]
pub(in crate::machine) struct BindingEntry {
    pub(super) exchange: u32,
    /// Its number in the exchange.
    pub(super) number: u32,
    pub(super) binding: Arc<Binding>,
}

/// An exchange.
#[derive(Debug)]
pub(in crate::machine) struct ExchangeState {
    pub(super) name: ExchangeName,
    pub(super) kind: ExchangeKind,
    pub(super) unroutable: Unroutable<ExchangeId>,
    pub(super) created: WallTime,
    pub(super) changed: WallTime,
    /// How many bindings it ever got: the last number.
    pub(super) made: u32,
    /// The rows of its bindings, by number: in the order in which they were made.
    pub(super) own: BTreeMap<u32, u32>,
    pub(super) by_identity: BTreeMap<(BindTo<QueueId, ExchangeId>, Pattern), u32>,
    pub(super) index: Index,
    /// How many of its bindings are dead.
    pub(super) dead: u64,
    /// The bindings to it, by the exchange that has them. Of a deleted one, those that are not freed yet.
    pub(super) from: BTreeMap<u32, BTreeSet<u32>>,
    /// How many bindings it has to other exchanges, without dead ones.
    pub(super) exits: BTreeMap<u32, u32>,
    /// The exchanges whose alternate it is.
    pub(super) alternate_of: BTreeSet<u32>,
    pub(super) counts: ExchangeCounts,
    pub(super) notes: Arc<ExchangeNotes>,
}

/// An exchange of a [`StateView`](crate::StateView), with its bindings by number.
#[derive(Clone, Debug, PartialEq)]
pub struct ExchangeView {
    pub name: ExchangeName,
    pub kind: ExchangeKind,
    pub unroutable: Unroutable<ExchangeId>,
    pub created: WallTime,
    pub changed: WallTime,
    /// How many bindings it ever got.
    pub made: u32,
    pub bindings: BTreeMap<u32, Arc<Binding>>,
    pub counts: ExchangeCounts,
    pub notes: Arc<ExchangeNotes>,
}

impl ExchangeState {
    pub(super) fn new(
        name: ExchangeName,
        kind: ExchangeKind,
        unroutable: Unroutable<ExchangeId>,
        created: WallTime,
        seed: HashSeed,
    ) -> Self {
        Self {
            name,
            kind,
            unroutable,
            created,
            changed: created,
            made: 0,
            own: BTreeMap::new(),
            by_identity: BTreeMap::new(),
            index: Index::new(kind, seed),
            dead: 0,
            from: BTreeMap::new(),
            exits: BTreeMap::new(),
            alternate_of: BTreeSet::new(),
            counts: ExchangeCounts::default(),
            notes: Arc::default(),
        }
    }

    /// How many bindings it has.
    pub(super) fn bindings(&self) -> u64 {
        self.own.len() as u64 - self.dead
    }

    pub(in crate::machine) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    pub(super) fn alternate(&self) -> Option<u32> {
        match self.unroutable {
            Unroutable::Alternate(ExchangeId(id)) => Some(id),
            Unroutable::Reject | Unroutable::Drop => None,
        }
    }

    /// Appends everything besides its bindings.
    pub(in crate::machine) fn encode_outline(&self, out: &mut Vec<u8>) {
        put_text(out, self.name.as_str());
        out.push(self.kind as u8);
        let (unroutable, alternate) = match self.unroutable {
            Unroutable::Reject => (REJECT, 0),
            Unroutable::Drop => (DROP, 0),
            Unroutable::Alternate(ExchangeId(id)) => (ALTERNATE, id),
        };
        out.push(unroutable);
        out.extend_from_slice(&alternate.to_le_bytes());
        out.extend_from_slice(&self.made.to_le_bytes());
        for number in [self.created.0, self.changed.0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for count in self.counts.stored() {
            out.extend_from_slice(&count.to_le_bytes());
        }
    }

    /// An exchange without its bindings.
    pub(in crate::machine) fn decode_outline(
        input: &mut Input<'_>,
        seed: HashSeed,
    ) -> Result<Self, ImageError> {
        let name = ExchangeName::new(text(input)?);
        let name = name.map_err(|_| damaged("a name of an exchange is none"))?;
        let kind = ExchangeKind::from_number(input.u8()?);
        let kind = kind.ok_or_else(|| damaged("an exchange is of no kind"))?;
        let (unroutable, alternate) = (input.u8()?, ExchangeId(input.u32()?));
        let unroutable = match unroutable {
            REJECT => Unroutable::Reject,
            DROP => Unroutable::Drop,
            ALTERNATE => Unroutable::Alternate(alternate),
            _ => return Err(damaged("an exchange has no rule for what it cannot route")),
        };
        let made = input.u32()?;
        let (created, changed) = (WallTime(input.u64()?), WallTime(input.u64()?));
        let mut counts = [0; ExchangeCounts::STORED];
        for count in &mut counts {
            *count = input.u64()?;
        }
        Ok(Self {
            changed,
            made,
            counts: ExchangeCounts::of_stored(counts),
            ..Self::new(name, kind, unroutable, created, seed)
        })
    }

    /// Appends its notes.
    pub(in crate::machine) fn encode_notes(&self, out: &mut Vec<u8>) {
        let mut notes = Vec::new();
        put_notes(&self.notes, &mut notes);
        let len = u32::try_from(notes.len()).expect("notes have a bound");
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&notes);
    }

    pub(in crate::machine) fn decode_notes(
        input: &mut Input<'_>,
    ) -> Result<ExchangeNotes, ImageError> {
        let len = input.count(1)?;
        let notes = notes_from(&Bytes::copy_from_slice(input.take(len)?));
        notes.ok_or_else(|| damaged("the notes of an exchange are none"))
    }
}

// What an exchange does with what it cannot route, in an image.
const REJECT: u8 = 0;
const DROP: u8 = 1;
const ALTERNATE: u8 = 2;

impl Exchanges {
    pub(in crate::machine) fn named(&self, name: &ExchangeName) -> Option<(u32, &ExchangeState)> {
        let id = *self.by_name.get(name)?;
        Some((id, self.by_id.get(&id)?))
    }

    /// An exchange, also a deleted one that is not freed yet.
    fn any_mut(&mut self, id: u32) -> Option<&mut ExchangeState> {
        let living = self.by_id.get_mut(&id);
        living.or_else(|| self.gone.get_mut(&id))
    }

    /// Whether something of the binding was deleted.
    pub(super) fn is_dead(&self, entry: &BindingEntry) -> bool {
        let is_target_gone = match entry.binding.to {
            BindTo::Queue(queue) => self.gone_queues.contains(&queue),
            BindTo::Exchange(ExchangeId(id)) => !self.by_id.contains_key(&id),
        };
        is_target_gone || !self.by_id.contains_key(&entry.exchange)
    }

    /// Whether a binding or an alternate from one exchange to the other would lead back.
    pub(in crate::machine) fn would_lead_back(&self, from: u32, to: u32) -> bool {
        let is_linked = self
            .by_id
            .get(&from)
            .is_some_and(|state| state.exits.contains_key(&to) || state.alternate() == Some(to));
        // It does not yet, so one more link does not either.
        !is_linked && self.leads_to(to, from).0
    }

    /// Whether a message can get from one exchange to the other, by bindings or as to an alternate; and how many links that
    /// looked at. Looks from the end from which fewer links go on, until one end leads no further: most exchanges have nothing
    /// before them or nothing behind them, and a start asks this for each link in the log.
    pub(in crate::machine) fn leads_to(&self, from: u32, to: u32) -> (bool, usize) {
        if from == to {
            return (true, 0);
        }
        let (mut ahead, mut back) = (BTreeSet::from([from]), BTreeSet::from([to]));
        let (mut open_ahead, mut open_back) = (vec![from], vec![to]);
        let (mut links_ahead, mut links_back) = (0, 0);
        while let (Some(next), Some(before)) = (open_ahead.last(), open_back.last()) {
            let (next, before) = (self.by_id.get(next), self.by_id.get(before));
            let goes_on = |state: &ExchangeState| {
                state.exits.len() + usize::from(state.alternate().is_some())
            };
            let comes_from = |state: &ExchangeState| state.from.len() + state.alternate_of.len();
            let more_ahead = links_ahead + next.map_or(0, goes_on);
            let more_back = links_back + before.map_or(0, comes_from);
            if more_ahead <= more_back {
                links_ahead = more_ahead;
                open_ahead.pop();
                let alternate = next.and_then(ExchangeState::alternate);
                let exits = next.into_iter().flat_map(|state| state.exits.keys());
                for id in exits.copied().chain(alternate) {
                    if back.contains(&id) {
                        return (true, links_ahead + links_back);
                    }
                    open_ahead.extend(ahead.insert(id).then_some(id));
                }
            } else {
                links_back = more_back;
                open_back.pop();
                let sources = before.into_iter();
                for id in sources.flat_map(|state| state.from.keys().chain(&state.alternate_of)) {
                    if ahead.contains(id) {
                        return (true, links_ahead + links_back);
                    }
                    open_back.extend(back.insert(*id).then_some(*id));
                }
            }
        }
        (false, links_ahead + links_back)
    }

    /// Adds a binding to an exchange that is there, with a number and an identity that it does not have.
    pub(super) fn add(&mut self, exchange: u32, number: u32, binding: Arc<Binding>) -> Option<()> {
        let state = self.by_id.get_mut(&exchange)?;
        self.bytes += binding.bytes();
        self.text_bytes += binding.image_bytes();
        self.live += 1;
        let row = self.bindings.insert(BindingEntry {
            exchange,
            number,
            binding: binding.clone(),
        });
        state.made = state.made.max(number);
        state.own.insert(number, row);
        state.index.insert(&binding.pattern, row);
        let identity = (binding.to, binding.pattern.clone());
        state.by_identity.insert(identity, row);
        match binding.to {
            BindTo::Queue(queue) => {
                let by_exchange = self.to_queue.entry(queue).or_default();
                by_exchange.entry(exchange).or_default().insert(row);
            }
            BindTo::Exchange(ExchangeId(target)) => {
                let bindings = state.exits.entry(target).or_default();
                self.links += u64::from(*bindings == 0);
                *bindings += 1;
                let target = self.by_id.get_mut(&target)?;
                target.from.entry(exchange).or_default().insert(row);
            }
        }
        Some(())
    }

    /// Replaces what a binding does beside matching.
    pub(super) fn set_options(&mut self, row: u32, options: &BindingOptions) {
        let entry = &mut self.bindings[row];
        self.bytes -= entry.binding.bytes();
        self.text_bytes -= entry.binding.image_bytes();
        entry.binding = Arc::new(Binding {
            to: entry.binding.to,
            pattern: entry.binding.pattern.clone(),
            options: options.clone(),
        });
        self.bytes += entry.binding.bytes();
        self.text_bytes += entry.binding.image_bytes();
    }

    /// Removes a binding, dead or not, from everything that knows it.
    pub(super) fn remove(&mut self, row: u32) {
        let is_dead = self.is_dead(&self.bindings[row]);
        let BindingEntry {
            exchange,
            number,
            binding,
        } = self.bindings.remove(row);
        self.bytes -= binding.bytes();
        self.text_bytes -= binding.image_bytes();
        self.live -= u64::from(!is_dead);
        let is_gone = !self.by_id.contains_key(&exchange);
        let mut is_last_link = false;
        if let Some(state) = self.any_mut(exchange) {
            state.own.remove(&number);
            state.index.remove(&binding.pattern, row);
            if is_dead && !is_gone {
                state.dead -= 1;
            }
            if let (BindTo::Exchange(ExchangeId(target)), false) = (binding.to, is_dead)
                && let Some(bindings) = state.exits.get_mut(&target)
            {
                *bindings -= 1;
                if *bindings == 0 {
                    state.exits.remove(&target);
                    is_last_link = true;
                }
            }
            let identity = (binding.to, binding.pattern.clone());
            state.by_identity.remove(&identity);
        }
        self.links -= u64::from(is_last_link);
        match binding.to {
            BindTo::Queue(queue) => {
                if let Some(by_exchange) = self.to_queue.get_mut(&queue) {
                    take_out(by_exchange, exchange, row);
                    if by_exchange.is_empty() {
                        self.to_queue.remove(&queue);
                        self.gone_queues.remove(&queue);
                    }
                }
            }
            BindTo::Exchange(ExchangeId(target)) => {
                if let Some(target) = self.any_mut(target) {
                    take_out(&mut target.from, exchange, row);
                }
            }
        }
    }

    /// A queue was deleted: its bindings are dead from now on. Takes time in the number of exchanges that have some.
    pub(in crate::machine) fn drop_queue(&mut self, queue: QueueId, at: Position) {
        let Some(by_exchange) = self.to_queue.get(&queue) else {
            return;
        };
        self.changed_at = at;
        self.gone_queues.insert(queue);
        for (exchange, rows) in by_exchange {
            if let Some(state) = self.by_id.get_mut(exchange) {
                state.dead += rows.len() as u64;
                self.live -= rows.len() as u64;
            }
        }
    }

    /// Replaces the notes of an exchange.
    pub(in crate::machine) fn set_notes(
        &mut self,
        id: u32,
        notes: Arc<ExchangeNotes>,
    ) -> Option<()> {
        let state = self.by_id.get_mut(&id)?;
        self.note_bytes += notes.bytes();
        self.note_bytes -= state.notes.bytes();
        state.notes = notes;
        Some(())
    }

    /// Deletes an exchange: its bindings, and those to it, are dead from now on. Exchanges whose alternate it was refuse what
    /// they cannot route. Takes time in the number of exchanges that are linked with it.
    pub(super) fn drop_exchange(&mut self, id: u32) -> Option<()> {
        let mut state = self.by_id.remove(&id)?;
        self.by_name.remove(&state.name);
        self.live -= state.bindings();
        self.note_bytes -= state.notes.bytes();
        for (source, rows) in &state.from {
            if let Some(source) = self.by_id.get_mut(source) {
                source.dead += rows.len() as u64;
                source.exits.remove(&id);
                self.live -= rows.len() as u64;
            }
        }
        for target in state.exits.keys() {
            if let Some(target) = self.by_id.get_mut(target) {
                target.from.remove(&id);
            }
        }
        self.links -= (state.from.len() + state.exits.len()) as u64;
        state.exits.clear();
        if let Some(alternate) = state.alternate().and_then(|it| self.by_id.get_mut(&it)) {
            alternate.alternate_of.remove(&id);
        }
        for other in std::mem::take(&mut state.alternate_of) {
            if let Some(other) = self.by_id.get_mut(&other) {
                other.unroutable = Unroutable::Reject;
            }
        }
        if !(state.own.is_empty() && state.from.is_empty()) {
            self.gone.insert(id, state);
        }
        Some(())
    }

    /// Changes the rule for what an exchange cannot route. An alternate must be there.
    pub(super) fn set_unroutable(&mut self, id: u32, unroutable: Unroutable<ExchangeId>) {
        let Some(state) = self.by_id.get_mut(&id) else {
            return;
        };
        let before = state.alternate();
        state.unroutable = unroutable;
        let now = state.alternate();
        if let Some(before) = before.and_then(|it| self.by_id.get_mut(&it)) {
            before.alternate_of.remove(&id);
        }
        if let Some(now) = now.and_then(|it| self.by_id.get_mut(&it)) {
            now.alternate_of.insert(id);
        }
    }

    /// Frees up to `left` dead bindings. Returns whether there are none left.
    pub(in crate::machine) fn free(&mut self, left: &mut usize) -> bool {
        while *left > 0
            && let Some(row) = self.next_dead()
        {
            *left -= 1;
            self.remove(row);
            let is_freed = |state: &ExchangeState| state.own.is_empty() && state.from.is_empty();
            if self
                .gone
                .first_key_value()
                .is_some_and(|(_, state)| is_freed(state))
            {
                self.gone.pop_first();
            }
        }
        self.is_freed()
    }

    pub(in crate::machine) fn is_freed(&self) -> bool {
        self.gone.is_empty() && self.gone_queues.is_empty()
    }

    fn next_dead(&mut self) -> Option<u32> {
        while let Some((_, state)) = self.gone.first_key_value() {
            let own = state.own.values().next();
            let row = own
                .or_else(|| state.from.values().flatten().next())
                .copied();
            if row.is_some() {
                return row;
            }
            self.gone.pop_first();
        }
        while let Some(queue) = self.gone_queues.first() {
            let rows = self.to_queue.get(queue).into_iter();
            let row = rows.flat_map(BTreeMap::values).flatten().next().copied();
            if row.is_some() {
                return row;
            }
            self.gone_queues.pop_first();
        }
        None
    }

    /// A queue or an exchange gets a number that a deleted one had, which only damage does: what is dead of it is freed before.
    pub(in crate::machine) fn free_before_reuse(
        &mut self,
        queue: Option<QueueId>,
        id: Option<u32>,
    ) {
        let is_reused = queue.is_some_and(|queue| self.gone_queues.contains(&queue))
            || id.is_some_and(|id| self.gone.contains_key(&id));
        if is_reused {
            let mut all = usize::MAX;
            self.free(&mut all);
        }
    }

    pub(in crate::machine) fn forget_positions(&mut self) {
        self.changed_at = Position(0);
    }

    pub(in crate::machine) fn is_unused(&self) -> bool {
        self.made == 0
    }

    pub(in crate::machine) fn heap_bytes(&self) -> usize {
        self.bindings.bytes() + usize::try_from(self.bytes + self.note_bytes).unwrap_or(usize::MAX)
    }

    pub(in crate::machine) fn image_bytes(&self) -> u64 {
        // Dead ones are left out, because a loaded machine has none; only until they are freed their texts count.
        self.live * 48 + self.text_bytes + self.by_id.len() as u64 * 128 + self.note_bytes
    }

    /// The same without what follows from the rows.
    pub(in crate::machine) fn share(&mut self) -> Self {
        let outline = |(&id, state): (&u32, &ExchangeState)| {
            let outline = ExchangeState {
                changed: state.changed,
                made: state.made,
                counts: state.counts,
                notes: state.notes.clone(),
                ..ExchangeState::new(
                    state.name.clone(),
                    state.kind,
                    state.unroutable,
                    state.created,
                    HashSeed::default(),
                )
            };
            (id, outline)
        };
        Self {
            by_id: self.by_id.iter().map(outline).collect(),
            note_bytes: self.note_bytes,
            made: self.made,
            bindings: self.bindings.share(),
            ..Self::default()
        }
    }

    /// Builds what follows from the rows. Dead bindings are not kept.
    pub(in crate::machine) fn rebuild(
        &mut self,
        has_queue: impl Fn(QueueId) -> bool,
    ) -> Result<(), ImageError> {
        let ids: Vec<_> = self
            .by_id
            .iter()
            .map(|(&id, state)| (id, state.alternate()))
            .collect();
        for (id, alternate) in ids {
            let name = self.by_id[&id].name.clone();
            if id == 0 || id > self.made {
                return Err(damaged("an exchange has a number that was not given out"));
            }
            if self.by_name.insert(name, id).is_some() {
                return Err(damaged("two exchanges have one name"));
            }
            if let Some(alternate) = alternate {
                let alternate = self.by_id.get_mut(&alternate);
                let alternate = alternate.ok_or_else(|| damaged("an alternate is not there"))?;
                alternate.alternate_of.insert(id);
            }
        }
        let rows: Vec<_> = self
            .bindings
            .iter()
            .map(|(row, entry)| (row, entry.clone()))
            .collect();
        self.bindings = Slab::default();
        for (_, entry) in rows {
            let BindingEntry {
                exchange,
                number,
                binding,
            } = entry;
            let is_target_there = match binding.to {
                BindTo::Queue(queue) => has_queue(queue),
                BindTo::Exchange(ExchangeId(id)) => self.by_id.contains_key(&id),
            };
            let Some(state) = self.by_id.get(&exchange).filter(|_| is_target_there) else {
                continue;
            };
            let identity = (binding.to, binding.pattern.clone());
            if number == 0
                || number > state.made
                || state.own.contains_key(&number)
                || state.by_identity.contains_key(&identity)
                || binding.pattern.kind() != state.kind
            {
                return Err(damaged(
                    "a binding is there twice, or cannot be of its exchange",
                ));
            }
            self.add(exchange, number, binding);
        }
        match self.has_cycle() {
            true => Err(damaged("exchanges lead back to themselves")),
            false => Ok(()),
        }
    }

    /// Whether a message could come to an exchange again. Takes exchanges off that nothing leads to, until none is left.
    fn has_cycle(&self) -> bool {
        let comes_from = |state: &ExchangeState| state.from.len() + state.alternate_of.len();
        let mut entries: BTreeMap<u32, usize> = BTreeMap::new();
        for (&id, state) in &self.by_id {
            entries.insert(id, comes_from(state));
        }
        let mut open: Vec<u32> = Vec::new();
        open.extend(
            entries
                .iter()
                .filter(|(_, left)| **left == 0)
                .map(|(id, _)| *id),
        );
        let mut taken = 0;
        while let Some(id) = open.pop() {
            taken += 1;
            let state = &self.by_id[&id];
            for next in state.exits.keys().copied().chain(state.alternate()) {
                if let Some(left) = entries.get_mut(&next) {
                    *left -= 1;
                    if *left == 0 {
                        open.push(next);
                    }
                }
            }
        }
        taken < self.by_id.len()
    }

    pub(in crate::machine) fn view(&self) -> BTreeMap<ExchangeId, ExchangeView> {
        let each = |(&id, state): (&u32, &ExchangeState)| {
            let own = state.own.iter();
            let live = own.filter(|(_, row)| !self.is_dead(&self.bindings[**row]));
            let view = ExchangeView {
                name: state.name.clone(),
                kind: state.kind,
                unroutable: state.unroutable,
                created: state.created,
                changed: state.changed,
                made: state.made,
                bindings: live
                    .map(|(&number, &row)| (number, self.bindings[row].binding.clone()))
                    .collect(),
                counts: ExchangeCounts {
                    refused: 0,
                    ..state.counts
                },
                notes: state.notes.clone(),
            };
            (ExchangeId(id), view)
        };
        self.by_id.iter().map(each).collect()
    }

    /// What does not fit together, as sentences.
    pub(in crate::machine) fn problems(&self, has_queue: impl Fn(QueueId) -> bool) -> Vec<String> {
        let mut problems = Vec::new();
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                problems.push(format!("exchanges: {what}"));
            }
        };
        let (mut live, mut bytes, mut links) = (0, 0, BTreeSet::new());
        for (row, entry) in self.bindings.iter() {
            bytes += entry.binding.bytes();
            let is_dead = self.is_dead(entry);
            live += u64::from(!is_dead);
            let state = self.by_id.get(&entry.exchange);
            let state = state.or_else(|| self.gone.get(&entry.exchange));
            let identity = (entry.binding.to, entry.binding.pattern.clone());
            expect(
                state.is_some_and(|state| {
                    state.own.get(&entry.number) == Some(&row)
                        && state.by_identity.get(&identity) == Some(&row)
                        && entry.binding.pattern.kind() == state.kind
                        && entry.number <= state.made
                }),
                "a binding is not where it belongs",
            );
            let is_found_by_target = match entry.binding.to {
                BindTo::Queue(queue) => {
                    expect(
                        has_queue(queue) != self.gone_queues.contains(&queue),
                        "a binding leads to no queue",
                    );
                    let by_exchange = self.to_queue.get(&queue);
                    by_exchange.and_then(|it| it.get(&entry.exchange))
                }
                BindTo::Exchange(ExchangeId(id)) => {
                    if !is_dead {
                        links.insert((entry.exchange, id));
                    }
                    let target = self.by_id.get(&id).or_else(|| self.gone.get(&id));
                    target.and_then(|target| target.from.get(&entry.exchange))
                }
            };
            expect(
                is_dead || is_found_by_target.is_some_and(|rows| rows.contains(&row)),
                "what a binding leads to does not know it",
            );
        }
        let comes_from_none = |state: &ExchangeState| {
            let mut from = state.from.keys().chain(&state.alternate_of);
            from.any(|id| !self.by_id.contains_key(id))
        };
        expect(
            !self.by_id.values().any(comes_from_none),
            "a deleted one still leads to another",
        );
        let own = |state: &ExchangeState| state.own.len() as u64;
        let all = self.by_id.values().chain(self.gone.values());
        expect(
            all.map(own).sum::<u64>() == self.bindings.len() as u64,
            "an exchange has a binding that is not there",
        );
        let shown: u64 = self.by_id.values().map(ExchangeState::bindings).sum();
        expect(
            shown == self.live && live == self.live,
            "bindings do not add up",
        );
        let notes = self.by_id.values().map(|state| state.notes.bytes());
        expect(
            notes.sum::<u64>() == self.note_bytes,
            "their notes do not add up",
        );
        expect(bytes == self.bytes, "their bytes do not add up");
        expect(
            links.len() as u64 == self.links,
            "their links do not add up",
        );
        expect(!self.has_cycle(), "they lead back to themselves");
        problems
    }
}

fn take_out(by_exchange: &mut BTreeMap<u32, BTreeSet<u32>>, exchange: u32, row: u32) {
    if let Some(rows) = by_exchange.get_mut(&exchange) {
        rows.remove(&row);
        if rows.is_empty() {
            by_exchange.remove(&exchange);
        }
    }
}

impl Row for BindingEntry {
    fn blank() -> Self {
        Self {
            exchange: 0,
            number: 0,
            binding: Arc::new(Binding {
                to: BindTo::Queue(QueueId(0)),
                pattern: Pattern::Everything,
                options: BindingOptions::default(),
            }),
        }
    }

    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError> {
        column!(columns, number exchange, u64::from(u32::MAX))?;
        column!(columns, number number, u64::from(u32::MAX))?;
        columns.bytes(
            |entry, out| put_binding(&entry.binding, out),
            |entry, bytes| {
                entry.binding = Arc::new(binding_from(&Bytes::copy_from_slice(bytes))?);
                Some(())
            },
        )
    }
}
