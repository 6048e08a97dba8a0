//! Loads a machine from an image.

use std::sync::Arc;

use lockgate_core::{
    BootId, Epoch, Incarnation, MachineTime, Position, QueueId, Sequence, ShardId, Term, WallTime,
    ledger::SequenceId,
};

use super::{IMAGE_VERSION, Kind, MAGIC};
use crate::{
    ImageError, Machine, MachineLimits, QueueTotals,
    columns::{Input, damaged},
    dedup::DedupWindow,
    live::LiveRanges,
    machine::{
        compact::hash_id,
        exchanges::ExchangeState,
        failures::memory_of,
        housekeeping::PurgedContent,
        key_sequences::KeySequences,
        key_states::KeyStates,
        ledgers::LedgerState,
        limits::debtor_hash,
        order::spread,
        producers::Producers,
        state::{Awaiting, IndexedIds, Queue},
    },
    slab::Slab,
    table::{HashSeed, Table, hash_bytes, hash_pair},
    wheel::Wheel,
};

/// Builds a machine from the pieces of an image.
///
/// Loading needs little more memory than the resulting machine. It checks that numbers fit their
/// fields and that names and settings are valid. [`finish`](Self::finish) trusts all indexes, for an
/// image that has a checksum and was written by a machine; with another one, it or the machine may
/// panic. [`finish_checked`](Self::finish_checked) checks everything and never panics.
#[derive(Debug)]
pub struct ImageLoader {
    machine: Machine,
    /// The kind and owner of the last section.
    last: Option<(Kind, u32)>,
}

impl ImageLoader {
    /// A loader of a machine with these limits.
    #[must_use]
    pub fn new(limits: MachineLimits) -> Self {
        Self {
            machine: Machine::new(limits),
            last: None,
        }
    }

    /// Takes the next piece, as [`Frozen::next_piece`](super::Frozen::next_piece) returned it.
    ///
    /// # Errors
    /// If a newer version wrote it, or it is not the next piece of an image. The loader cannot be
    /// used after that.
    pub fn piece(&mut self, piece: &[u8]) -> Result<(), ImageError> {
        let mut input = Input::new(piece);
        if input.array()? != MAGIC {
            return Err(damaged("it is no image"));
        }
        let version = input.u32()?;
        if version > IMAGE_VERSION {
            return Err(ImageError::NewerFormat { version });
        }
        while !input.is_empty() {
            let kind = input.u8()?;
            let kind = Kind::from_number(kind).ok_or(damaged("it has a section of no kind"))?;
            let (owner, first, len) = (input.u32()?, input.u32()?, input.u32()?);
            let is_next = match self.last {
                None => kind == Kind::Shard,
                Some((Kind::End, _)) => false,
                Some((last, last_owner)) => {
                    kind != Kind::Shard && (kind.place(), owner) >= (last.place(), last_owner)
                }
            };
            if !is_next {
                return Err(damaged("its sections are not in order"));
            }
            self.last = Some((kind, owner));
            let section = &mut Input::new(input.take(len as usize)?);
            self.section(kind, owner, first, section)?;
            section.expect_end()?;
        }
        Ok(())
    }

    /// The shard's number, known after the first piece; `None` for a machine that had no term.
    #[must_use]
    pub fn shard(&self) -> Option<ShardId> {
        self.machine.shard()
    }

    /// The machine, after all pieces. Everything it holds counts as durable.
    ///
    /// # Errors
    /// If pieces are missing, or contain something that no machine writes.
    pub fn finish(self) -> Result<Machine, ImageError> {
        let mut machine = self.whole()?;
        machine.settle_in();
        Ok(machine)
    }

    /// As [`finish`](Self::finish), for an image from anywhere: checks everything that the machine
    /// will rely on, which takes seconds for ten million messages.
    ///
    /// # Errors
    /// As `finish`, and if the contents contradict each other.
    pub fn finish_checked(self) -> Result<Machine, ImageError> {
        let mut machine = self.whole()?;
        let problems = machine.problems();
        if !problems.is_empty() {
            return Err(ImageError::Inconsistent { problems });
        }
        machine.settle_in();
        Ok(machine)
    }

    fn whole(self) -> Result<Machine, ImageError> {
        if self.last != Some((Kind::End, 0)) {
            return Err(damaged("its end is missing"));
        }
        let mut machine = self.machine;
        machine.rebuild()?;
        Ok(machine)
    }

    fn section(
        &mut self,
        kind: Kind,
        owner: u32,
        first: u32,
        input: &mut Input<'_>,
    ) -> Result<(), ImageError> {
        let machine = &mut self.machine;
        let no_owner = || damaged("it has a section of nothing that is there");
        match kind {
            Kind::Shard => machine.decode_shard(input),
            Kind::Queues => machine.queues.read_page(first, input),
            Kind::Contents => machine.contents.read_page(first, input),
            Kind::Keys => machine.keys.read_page(first, input),
            Kind::Holders => machine.holders.read_page(first, input),
            Kind::LeaseStates => machine.lease_states.read_page(first, input),
            Kind::Origins => machine.origins.read_page(first, input),
            Kind::TimesToLive => machine.times_to_live.read_page(first, input),
            Kind::WallTimers => machine.wall.nodes().read_page(first, input),
            Kind::MachineTimers => machine.machine.nodes().read_page(first, input),
            Kind::Messages => machine.messages.read_page(first, input),
            Kind::Leaves => {
                let content = machine.contents.get_mut(owner).ok_or_else(no_owner)?;
                content.by_sequence.leaves().read_page(first, input)
            }
            Kind::UniqueIds => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.dedup.ids().read_page(first, input)
            }
            Kind::PurgedUniqueIds => {
                let purged = machine.purged.get_mut(owner as usize);
                let window = purged.and_then(|purged| purged.unique_ids.as_mut());
                let window = window.ok_or_else(no_owner)?;
                window.ids().read_page(first, input)
            }
            Kind::KeySequences => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.key_sequences = KeySequences::decode_outline(input)?;
                Ok(())
            }
            Kind::KeySequencePages => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.key_sequences.pages().read_page(first, input)
            }
            Kind::Failures => {
                machine.failures = Slab::decode_outline(input)?;
                Ok(())
            }
            Kind::FailurePages => machine.failures.read_page(first, input),
            Kind::Debtors => {
                machine.debtors = Slab::decode_outline(input)?;
                Ok(())
            }
            Kind::DebtorPages => machine.debtors.read_page(first, input),
            Kind::Records => {
                machine.records.revision = input.u64()?;
                machine.records.deleted_version = input.u64()?;
                machine.records.entries = Slab::decode_outline(input)?;
                Ok(())
            }
            Kind::RecordPages => machine.records.entries.read_page(first, input),
            Kind::KeyStates => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.states = Some(Box::new(KeyStates::decode_outline(input)?));
                Ok(())
            }
            Kind::KeyStatePages => {
                let states = machine.queues.get_mut(owner);
                let states = states.and_then(|queue| queue.states.as_mut());
                states.ok_or_else(no_owner)?.pages().read_page(first, input)
            }
            Kind::Producers => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.producers = Some(Box::new(Producers::decode_outline(input)?));
                Ok(())
            }
            Kind::ProducerPages | Kind::OpeningPages => {
                let queue = machine.queues.get_mut(owner);
                let producers = queue.and_then(|queue| queue.producers.as_mut());
                let producers = producers.ok_or_else(no_owner)?;
                match kind {
                    Kind::ProducerPages => producers.entries().read_page(first, input),
                    _ => producers.opening_entries().read_page(first, input),
                }
            }
            Kind::LedgersMade => {
                machine.ledgers.made = input.u32()?;
                Ok(())
            }
            Kind::Ledgers => {
                let ledger = LedgerState::decode_outline(input)?;
                machine.ledgers.by_id.insert(owner, ledger);
                Ok(())
            }
            Kind::EventBlocks | Kind::InputPages | Kind::EventIdPages => {
                let ledger = machine.ledgers.by_id.get_mut(&owner).ok_or_else(no_owner)?;
                match kind {
                    Kind::EventBlocks => ledger.blocks.read_chunk(input),
                    Kind::InputPages => ledger.inputs.read_page(first, input),
                    _ => ledger.ids.ids().read_page(first, input),
                }
            }
            Kind::IndexedIds => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.indexed = Some(IndexedIds {
                    up_to: Sequence(input.u64()?),
                    forgotten: Sequence(input.u64()?),
                });
                Ok(())
            }
            Kind::IndexedEventIds => {
                let ledger = machine.ledgers.by_id.get_mut(&owner).ok_or_else(no_owner)?;
                ledger.indexed = SequenceId(input.u64()?);
                Ok(())
            }
            Kind::Exchanges => {
                machine.exchanges.made = input.u32()?;
                machine.exchanges.bindings = Slab::decode_outline(input)?;
                Ok(())
            }
            Kind::Exchange => {
                let exchange = ExchangeState::decode_outline(input, machine.seed)?;
                machine.exchanges.by_id.insert(owner, exchange);
                Ok(())
            }
            Kind::BindingPages => machine.exchanges.bindings.read_page(first, input),
            Kind::SharedPayloads => {
                machine.shared.rows = Slab::decode_outline(input)?;
                Ok(())
            }
            Kind::SharedPayloadPages => machine.shared.rows.read_page(first, input),
            Kind::ExchangeNotes => {
                let notes = Arc::new(ExchangeState::decode_notes(input)?);
                let set = machine.exchanges.set_notes(owner, notes);
                set.ok_or_else(no_owner)
            }
            Kind::Schedules => {
                machine.schedules.made = input.u32()?;
                machine.schedules.revision = input.u64()?;
                machine.schedules.rows = Slab::decode_outline(input)?;
                Ok(())
            }
            Kind::SchedulePages => machine.schedules.rows.read_page(first, input),
            Kind::End => Ok(()),
        }
    }
}

impl Machine {
    fn decode_shard(&mut self, input: &mut Input<'_>) -> Result<(), ImageError> {
        for _ in 0..input.count(18)? {
            let shard = ShardId::new(u16::from_le_bytes(input.array()?));
            self.terms.push(Term {
                shard: shard.ok_or_else(|| damaged("a shard number is above the highest"))?,
                epoch: Epoch(input.u64()?),
                incarnation: Incarnation(input.u64()?),
            });
        }
        self.clock.boot_id = BootId(input.array()?);
        self.clock.clock_offset = i64::from_le_bytes(input.array()?);
        self.clock.now.wall = WallTime(input.u64()?);
        self.clock.now.machine = MachineTime(input.u64()?);
        let has_secret = input.flag()?;
        let secret = input.array()?;
        self.secret = has_secret.then_some(secret);
        if input.flag()? {
            self.seed = HashSeed::from_secret(&secret);
        }
        self.next_lease = input.u64()?;
        self.next_queue = input.u32()?;
        if self.next_lease > 1 << 48 || self.next_queue == 0 {
            return Err(damaged("a next number is above the highest"));
        }
        let totals = input.count(1)?;
        self.deleted_totals = QueueTotals::decode(&mut Input::new(input.take(totals)?))?;
        self.effects_ignored = input.u64()?.min(crate::counters::TOTAL_MAX);
        self.live = LiveRanges::decode(input)?;
        for _ in 0..input.count(24)? {
            self.awaiting.push_back(Awaiting {
                position: Position(input.u64()?),
                index: input.u32()?,
                queue: QueueId(input.u32()?),
                sequence: Sequence(input.u64()?),
            });
        }
        self.queues = Slab::decode_outline(input)?;
        self.contents = Slab::decode_outline(input)?;
        self.keys = Slab::decode_outline(input)?;
        self.holders = Slab::decode_outline(input)?;
        self.lease_states = Slab::decode_outline(input)?;
        self.origins = Slab::decode_outline(input)?;
        self.times_to_live = Slab::decode_outline(input)?;
        self.wall = Wheel::decode_outline(input)?;
        self.machine = Wheel::decode_outline(input)?;
        self.messages = Slab::decode_outline(input)?;
        for _ in 0..input.count(5)? {
            self.purged.push_back(PurgedContent {
                content: input.u32()?,
                unique_ids: if input.flag()? {
                    Some(DedupWindow::decode_outline(input)?)
                } else {
                    None
                },
            });
        }
        Ok(())
    }

    /// Builds everything that follows from the rows.
    fn rebuild(&mut self) -> Result<(), ImageError> {
        self.check_complete()?;
        let seed = self.seed;
        for (_, content) in self.contents.iter_mut() {
            content.by_sequence.rebuild()?;
        }
        for (_, queue) in self.queues.iter_mut() {
            queue.dedup.rebuild(seed)?;
            queue.key_sequences.rebuild(seed)?;
            self.key_sequences += queue.key_sequences.len() as u64;
            self.unique_ids += queue.dedup.held() as u64;
            if queue.settings.remembers_for_ever() {
                self.ids_for_ever += queue.dedup.held() as u64;
            }
            self.has_indexed_ids |= queue.indexed.is_some();
            if let Some(states) = &mut queue.states {
                states.rebuild()?;
                self.key_state_bytes += states.bytes();
            }
            if let Some(producers) = &mut queue.producers {
                producers.rebuild()?;
                self.producer_bytes += producers.image_bytes();
            }
        }
        for window in self
            .purged
            .iter_mut()
            .filter_map(|purged| purged.unique_ids.as_mut())
        {
            window.rebuild(seed)?;
            self.unique_ids += window.held() as u64;
        }
        self.wall.rebuild()?;
        self.machine.rebuild()?;

        for (index, queue) in self.queues.iter() {
            if self.queue_names.insert(queue.name.clone(), index).is_some() {
                return Err(damaged("two queues have one name"));
            }
        }
        let queues = &self.queues;
        self.queue_ids = table(queues, |queue| hash_pair(queue.id.0, 0));
        if self
            .queues
            .iter()
            .any(|(_, queue)| queue.id.0 >= self.next_queue)
        {
            return Err(damaged("the next queue's number was given out"));
        }
        let is_itself = |(index, queue): (u32, &Queue)| self.queue_index(queue.id) == Some(index);
        if !self.queues.iter().all(is_itself) {
            return Err(damaged("two queues have one number"));
        }
        let keys = &self.keys;
        self.by_key = table(keys, |key| spread(key.hash));
        self.by_holder = table(&self.holders, |holder| {
            hash_bytes(seed, holder.name.as_str().as_bytes())
        });
        self.by_moved_message = table(&self.origins, |origin| hash_pair(origin.message, 0));
        self.by_moved_id = table(&self.origins, |origin| hash_id(origin.id));
        self.by_ttl_message = table(&self.times_to_live, |ttl| hash_pair(ttl.message, 0));
        self.by_failed_message = table(&self.failures, |entry| hash_pair(entry.message, 0));
        self.by_debtor = table(&self.debtors, |debtor| {
            debtor_hash(seed, debtor.queue, debtor.key.as_ref())
        });
        self.count_debtors();
        if !self.records.rebuild() {
            return Err(damaged("two records have one name"));
        }
        self.ledgers.rebuild(seed)?;
        let mut ledgers = self.ledgers.by_id.values();
        self.has_indexed_ids |= ledgers.any(|ledger| ledger.indexed > SequenceId(0));
        let mut exchanges = std::mem::take(&mut self.exchanges);
        exchanges.rebuild(|queue| self.queue_index(queue).is_some())?;
        self.exchanges = exchanges;
        self.schedules.rebuild()?;
        let failures = self.failures.iter();
        self.failure_bytes = failures.map(|(_, entry)| memory_of(&entry.failures)).sum();
        if !self.shared.rebuild() {
            return Err(damaged("the payloads of a record are counted twice"));
        }
        self.place_schedules();
        // A restore's log may have other ranges.
        if self.live.bits() != self.limits.range_bits {
            self.live = self.count_live();
        }
        Ok(())
    }

    /// Checks that all pages of all slabs were read.
    fn check_complete(&self) -> Result<(), ImageError> {
        self.queues.check_complete()?;
        self.contents.check_complete()?;
        self.keys.check_complete()?;
        self.holders.check_complete()?;
        self.lease_states.check_complete()?;
        self.origins.check_complete()?;
        self.times_to_live.check_complete()?;
        self.failures.check_complete()?;
        self.debtors.check_complete()?;
        self.records.entries.check_complete()?;
        self.exchanges.bindings.check_complete()?;
        self.schedules.rows.check_complete()?;
        self.shared.rows.check_complete()?;
        self.messages.check_complete()
    }

    /// Sets the volatile parts as after a start.
    fn settle_in(&mut self) {
        // The image was written after its position, and so everything in it, was durable.
        self.drain_awaiting(Position(u64::MAX));
        self.settle_limits();
        self.woken.clear();
        let queues: Vec<u32> = self.queues.iter().map(|(index, _)| index).collect();
        for queue in queues {
            self.queues[queue].woken = false;
            if self.is_leasable(queue) {
                self.wake(self.queues[queue].content);
            }
        }
    }
}

/// Builds the table of a slab's values.
fn table<T: Clone, const PAGE: u32>(slab: &Slab<T, PAGE>, hash: impl Fn(&T) -> u64) -> Table {
    let values = slab.iter().map(|(index, value)| (hash(value), index));
    Table::of(slab.len(), values)
}
