//! A machine from an image.

use lockgate_core::{
    BootId, Epoch, Incarnation, MachineTime, Position, QueueId, Sequence, ShardId, Term, WallTime,
};

use super::{IMAGE_VERSION, Kind, MAGIC};
use crate::{
    ImageError, Machine, MachineLimits, QueueTotals,
    columns::{Input, damaged},
    dedup::{DedupWindow, Remembered},
    live::LiveRanges,
    machine::{
        compact::hash_id,
        housekeeping::PurgedContent,
        key_sequences::{Count, KeySequences},
        order::spread,
        state::{
            Awaiting, Content, Contents, Holder, KeyState, Keys, LeaseState, Message, OriginEntry,
            Queue, Queues, TimeToLive,
        },
    },
    sequences::Leaf,
    slab::{Page, Slab},
    table::{HashSeed, Table, hash_bytes, hash_pair},
    wheel::{Node, Wheel},
};

/// Makes a machine from the pieces of an image.
///
/// Loading never panics, and holds little more memory than the machine it makes. Numbers fit their fields, and names and
/// settings are valid. [`finish`](Self::finish) trusts that indexes name what a machine wrote, for an image that
/// carries a checksum; [`finish_checked`](Self::finish_checked) trusts nothing.
#[derive(Debug)]
pub struct ImageLoader {
    machine: Machine,
    /// Kind and owner of the last section.
    last: Option<(Kind, u32)>,
}

/// What stands in a section.
#[derive(Debug)]
enum Section {
    Shard(Vec<u8>),
    Queues(Page<Queue>),
    Contents(Page<Content>),
    Keys(Page<KeyState>),
    Holders(Page<Holder>),
    LeaseStates(Page<LeaseState>),
    Origins(Page<OriginEntry>),
    TimesToLive(Page<TimeToLive>),
    Timers(Page<Node>),
    Messages(Page<Message>),
    Leaves(Page<Leaf>),
    UniqueIds(Page<Remembered>),
    KeySequences(KeySequences),
    KeySequencePage(Page<Count>),
    End,
}

impl Section {
    fn decode(kind: Kind, first: u32, bytes: &[u8]) -> Result<Self, ImageError> {
        let mut input = Input::new(bytes);
        let input = &mut input;
        Ok(match kind {
            Kind::Shard => Self::Shard(bytes.to_vec()),
            Kind::Queues => Self::Queues(Queues::decode_page(first, input)?),
            Kind::Contents => Self::Contents(Contents::decode_page(first, input)?),
            Kind::Keys => Self::Keys(Keys::decode_page(first, input)?),
            Kind::Holders => Self::Holders(<Slab<Holder>>::decode_page(first, input)?),
            Kind::LeaseStates => Self::LeaseStates(<Slab<LeaseState>>::decode_page(first, input)?),
            Kind::Origins => Self::Origins(<Slab<OriginEntry>>::decode_page(first, input)?),
            Kind::TimesToLive => Self::TimesToLive(<Slab<TimeToLive>>::decode_page(first, input)?),
            Kind::WallTimers | Kind::MachineTimers => {
                Self::Timers(<Slab<Node>>::decode_page(first, input)?)
            }
            Kind::Messages => Self::Messages(<Slab<Message>>::decode_page(first, input)?),
            Kind::Leaves => Self::Leaves(<Slab<Leaf>>::decode_page(first, input)?),
            Kind::UniqueIds | Kind::PurgedUniqueIds => {
                Self::UniqueIds(<Slab<Remembered>>::decode_page(first, input)?)
            }
            Kind::KeySequences => {
                let sequences = KeySequences::decode_outline(input)?;
                input.expect_end()?;
                Self::KeySequences(sequences)
            }
            Kind::KeySequencePages => {
                Self::KeySequencePage(<Slab<Count>>::decode_page(first, input)?)
            }
            Kind::End => {
                input.expect_end()?;
                Self::End
            }
        })
    }
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

    /// Takes the next piece, as [`Frozen::next_piece`](super::Frozen::next_piece) gave it.
    ///
    /// # Errors
    /// If a newer version wrote it, or it is not the next piece of an image. The loader is of no
    /// use after that.
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
            let section = Section::decode(kind, first, input.take(len as usize)?)?;
            self.section(kind, owner, first, section)?;
        }
        Ok(())
    }

    /// The shard's number, as soon as the first piece was taken; `None` for a machine that had no term.
    #[must_use]
    pub fn shard(&self) -> Option<ShardId> {
        self.machine.shard()
    }

    /// The machine, when all pieces were taken. Everything it holds counts as durable.
    ///
    /// # Errors
    /// If pieces are missing, or what they say is not what any machine writes.
    pub fn finish(self) -> Result<Machine, ImageError> {
        let mut machine = self.whole()?;
        machine.settle_in();
        Ok(machine)
    }

    /// As [`finish`](Self::finish), for an image that may come from anywhere: looks at everything that the machine will
    /// rely on, which takes seconds for ten million messages.
    ///
    /// # Errors
    /// As `finish`, and if what the pieces say does not fit together.
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
        section: Section,
    ) -> Result<(), ImageError> {
        let machine = &mut self.machine;
        let no_owner = || damaged("it has a section of nothing that is there");
        match section {
            Section::Shard(bytes) => machine.decode_shard(&mut Input::new(&bytes)),
            Section::Queues(page) => machine.queues.add_read_page(first, page),
            Section::Contents(page) => machine.contents.add_read_page(first, page),
            Section::Keys(page) => machine.keys.add_read_page(first, page),
            Section::Holders(page) => machine.holders.add_read_page(first, page),
            Section::LeaseStates(page) => machine.lease_states.add_read_page(first, page),
            Section::Origins(page) => machine.origins.add_read_page(first, page),
            Section::TimesToLive(page) => machine.times_to_live.add_read_page(first, page),
            Section::Timers(page) => {
                let wheel = match kind {
                    Kind::WallTimers => &mut machine.wall,
                    _ => &mut machine.machine,
                };
                wheel.nodes().add_read_page(first, page)
            }
            Section::Messages(page) => machine.messages.add_read_page(first, page),
            Section::Leaves(page) => {
                let content = machine.contents.get_mut(owner).ok_or_else(no_owner)?;
                content.by_sequence.leaves().add_read_page(first, page)
            }
            Section::UniqueIds(page) => {
                let window = if kind == Kind::UniqueIds {
                    machine.queues.get_mut(owner).map(|queue| &mut queue.dedup)
                } else {
                    let purged = machine.purged.get_mut(owner as usize);
                    purged.and_then(|purged| purged.unique_ids.as_mut())
                };
                window
                    .ok_or_else(no_owner)?
                    .ids()
                    .add_read_page(first, page)
            }
            Section::KeySequences(sequences) => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.key_sequences = sequences;
                Ok(())
            }
            Section::KeySequencePage(page) => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.key_sequences.pages().add_read_page(first, page)
            }
            Section::End => Ok(()),
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
        input.expect_end()
    }

    /// Builds what follows from the rows.
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
        // A restore gives the log other ranges.
        if self.live.bits() != self.limits.range_bits {
            self.live = self.count_live();
        }
        Ok(())
    }

    /// Whether all pages of all slabs came.
    fn check_complete(&self) -> Result<(), ImageError> {
        self.queues.check_complete()?;
        self.contents.check_complete()?;
        self.keys.check_complete()?;
        self.holders.check_complete()?;
        self.lease_states.check_complete()?;
        self.origins.check_complete()?;
        self.times_to_live.check_complete()?;
        self.messages.check_complete()
    }

    /// What is volatile is as after a start.
    fn settle_in(&mut self) {
        // It was written when its position was durable, and so is everything before.
        self.drain_awaiting(Position(u64::MAX));
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

/// The table over a slab's values.
fn table<T: Clone, const PAGE: u32>(slab: &Slab<T, PAGE>, hash: impl Fn(&T) -> u64) -> Table {
    let values = slab.iter().map(|(index, value)| (hash(value), index));
    Table::of(slab.len(), values)
}
