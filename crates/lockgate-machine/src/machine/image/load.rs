//! A machine from an image.

use lockgate_core::{
    BootId, Epoch, Incarnation, MachineTime, Position, QueueId, Sequence, Term, WallTime,
};

use super::{IMAGE_VERSION, Kind, MAGIC};
use crate::{
    ImageError, Machine, MachineLimits, QueueTotals,
    columns::{Input, damaged},
    dedup::DedupWindow,
    machine::{
        housekeeping::Grave,
        order::spread,
        relocate::hash_id,
        state::{Awaiting, totals},
    },
    slab::Slab,
    table::{HashSeed, Table, hash_bytes, hash_pair},
    wheel::Wheel,
};

/// Makes a machine from the pieces of an image.
///
/// What the image says is checked as far as a machine relies on it to be walked: every index names
/// something that is there, names and settings are valid, numbers fit their fields. Loading never
/// panics and holds no more memory than the machine it makes. It is no protection against an image
/// that somebody forged: counts, for example, are taken as they are.
#[derive(Debug)]
pub struct ImageLoader {
    machine: Machine,
    /// Kind and owner of the last section.
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

    /// Takes the next piece, as [`Frozen::next_piece`](super::Frozen::next_piece) gave it.
    ///
    /// # Errors
    /// If a newer version wrote it, or it is not the next piece of an image. The loader is of no
    /// use after that.
    pub fn piece(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        let mut input = Input::new(bytes);
        if self.last.is_none() {
            if input.array()? != MAGIC {
                return Err(damaged("it is no image"));
            }
            let version = input.u32()?;
            if version > IMAGE_VERSION {
                return Err(ImageError::NewerFormat { version });
            }
        }
        while !input.is_empty() {
            let kind = input.u8()?;
            let kind = Kind::from_number(kind).ok_or(damaged("it has a section of no kind"))?;
            let (owner, len) = (input.u32()?, input.u32()?);
            let section = Input::new(input.take(len as usize)?);
            let first = self.last.is_none();
            if first != (kind == Kind::Shard)
                || self.last >= Some((Kind::End, 0))
                || self.last.is_some_and(|last| (kind, owner) < last)
            {
                return Err(damaged("its sections are not in order"));
            }
            self.last = Some((kind, owner));
            self.section(kind, owner, section)?;
        }
        Ok(())
    }

    /// The machine, when all pieces were taken. Everything it holds counts as durable.
    ///
    /// # Errors
    /// If pieces are missing, or what they say does not fit together.
    pub fn finish(self) -> Result<Machine, ImageError> {
        if self.last != Some((Kind::End, 0)) {
            return Err(damaged("its end is missing"));
        }
        let mut machine = self.machine;
        machine.rebuild()?;
        Ok(machine)
    }

    fn section(&mut self, kind: Kind, owner: u32, mut input: Input<'_>) -> Result<(), ImageError> {
        let input = &mut input;
        let machine = &mut self.machine;
        let no_owner = || damaged("it has a section of nothing that is there");
        match kind {
            Kind::Shard => machine.decode_shard(input),
            Kind::Queues => machine.queues.decode_page(input),
            Kind::Contents => machine.contents.decode_page(input),
            Kind::Keys => machine.keys.decode_page(input),
            Kind::Holders => machine.holders.decode_page(input),
            Kind::Touches => machine.touches.decode_page(input),
            Kind::Origins => machine.origins.decode_page(input),
            Kind::TimesToLive => machine.times_to_live.decode_page(input),
            Kind::WallTimers => machine.wall.nodes().decode_page(input),
            Kind::MachineTimers => machine.machine.nodes().decode_page(input),
            Kind::Messages => machine.messages.decode_page(input),
            Kind::Leaves => {
                let content = machine.contents.get_mut(owner).ok_or_else(no_owner)?;
                content.by_sequence.leaves().decode_page(input)
            }
            Kind::UniqueIds => {
                let queue = machine.queues.get_mut(owner).ok_or_else(no_owner)?;
                queue.dedup.ids().decode_page(input)
            }
            Kind::PurgedUniqueIds => {
                let grave = machine.graves.get_mut(owner as usize);
                let window = grave.and_then(|grave| grave.unique_ids.as_mut());
                window.ok_or_else(no_owner)?.ids().decode_page(input)
            }
            Kind::End => input.expect_end(),
        }
    }
}

impl Machine {
    fn decode_shard(&mut self, input: &mut Input<'_>) -> Result<(), ImageError> {
        for _ in 0..input.count(16)? {
            self.terms.push(Term {
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
        let mut deleted = QueueTotals::default();
        for total in totals(&mut deleted) {
            *total = input.u64()?;
        }
        self.deleted_totals = deleted;
        self.effects_ignored = input.u64()?;
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
        self.touches = Slab::decode_outline(input)?;
        self.origins = Slab::decode_outline(input)?;
        self.times_to_live = Slab::decode_outline(input)?;
        self.wall = Wheel::decode_outline(input)?;
        self.machine = Wheel::decode_outline(input)?;
        self.messages = Slab::decode_outline(input)?;
        for _ in 0..input.count(5)? {
            self.graves.push_back(Grave {
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
            self.unique_ids += queue.dedup.held() as u64;
        }
        for window in self
            .graves
            .iter_mut()
            .filter_map(|grave| grave.unique_ids.as_mut())
        {
            window.rebuild(seed)?;
            self.unique_ids += window.held() as u64;
        }
        self.wall.rebuild()?;
        self.machine.rebuild()?;
        self.check_links()?;

        for (index, queue) in self.queues.iter() {
            if self.queue_names.insert(queue.name.clone(), index).is_some() {
                return Err(damaged("two queues have one name"));
            }
        }
        let queues = &self.queues;
        self.queue_ids = table(queues, |queue| hash_pair(queue.id.0, 0));
        let keys = &self.keys;
        self.by_key = table(keys, |key| spread(key.hash));
        self.by_holder = table(&self.holders, |holder| {
            hash_bytes(seed, holder.name.as_str().as_bytes())
        });
        self.by_moved_message = table(&self.origins, |origin| hash_pair(origin.message, 0));
        self.by_moved_id = table(&self.origins, |origin| hash_id(origin.id));
        self.by_mortal_message = table(&self.times_to_live, |ttl| hash_pair(ttl.message, 0));

        self.count_all_live();

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
        Ok(())
    }
}

/// The table over a slab's values.
fn table<T: Clone>(slab: &Slab<T>, hash: impl Fn(&T) -> u64) -> Table {
    let mut table = Table::with_room_for(slab.len());
    for (index, value) in slab.iter() {
        table.insert(hash(value), index, |index| hash(&slab[index]));
    }
    table
}
