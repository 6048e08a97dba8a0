//! What a producer does, as a pure machine: which records it holds, what becomes of a send, what goes into the next
//! batch, and what follows from the sink's and the spool's answers. Times and random numbers come in.
//!
//! # Invariants
//! - accepted + recovered = delivered + dropped, by reason, + pending.
//! - Records of a lane are sent in their order, one batch of a lane at a time. None is sent before what is known of the
//!   one before it in the lane, apart from those of the same batch. All records of an opening with one lane number are in
//!   one lane, so no mark goes back.
//! - A key has records in the backlog, or live ones, and never both ([`backlog`]).
//! - Records in memory, those of a tenant, and records that wait to be written, stay within their bounds.
//! - A record is over once: delivered, or dropped. Who waits for it is told once.
//! - Who was told *durable* has its record in the log, synced, and it is over there only when it was delivered, or
//!   dropped for a reason that is counted.

mod answers;
mod backlog;
mod disk;
mod health;
mod lanes;
mod packing;
mod sending;
mod shelf;
mod spooling;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use lockgate_core::{
    Accepted, Key, Message, Millis, ProducerIncarnation, ProducerMark, ProducerName,
    SinkCapabilities, TransportError, WallTime,
};
use slab::Slab;

pub(crate) use self::{
    answers::RefusedOf,
    backlog::{KeyCounts, Stream, Streams},
    lanes::key_hash,
    spooling::{Lack, Load, Loaded, Recovered, Staged, Used, Work},
};
use self::{
    backlog::Pace,
    health::Health,
    lanes::Lanes,
    packing::{Packing, Packs},
    shelf::Shelf,
    spooling::Spooling,
};
use crate::{
    AnswerLevel, DropReason, Figures, Full,
    options::{Linger, PackOptions, ProducerOptions, WhenFull, WhenSpoolFull, WhenUnknown},
    spool::codec::{Label, message_len},
};

/// What a record costs beside its message, in bytes, about.
pub(crate) const RECORD_BYTES: u64 = 256;

/// What a record counts to the bounds.
fn record_size(message: &Message) -> u64 {
    message_len(message) as u64 + RECORD_BYTES
}

/// A message on its way in.
#[derive(Debug)]
pub(crate) struct Offered<T> {
    pub(crate) message: Message,
    /// How long it may wait for the sink, if it says so itself.
    pub(crate) within: Option<Millis>,
    /// When it is given up, by both clocks.
    pub(crate) expires: Option<(Millis, WallTime)>,
    pub(crate) level: AnswerLevel,
    /// Who is told, unless the level is reached at once.
    pub(crate) tell: Option<T>,
}

/// Why a send is not accepted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) full: Full,
    /// The policy lets it wait.
    pub(crate) waits: bool,
}

/// What somebody who waits is told.
#[derive(Clone, Debug)]
pub(crate) enum Told<I> {
    Durable,
    Delivered(Accepted<I>),
    Dropped(GivenUp),
}

/// A record that is not tried again.
#[derive(Clone, Debug)]
pub(crate) struct GivenUp {
    pub(crate) reason: DropReason,
    /// The sink may have it all the same.
    pub(crate) may_be_there: bool,
    /// What the sink said last, if it was that.
    pub(crate) error: Option<TransportError>,
}

impl<I> Told<I> {
    /// It is given up, for no reason of the sink's. `may_be_there`: the sink may have it, or will have it from the spool.
    pub(crate) fn dropped(reason: DropReason, may_be_there: bool) -> Self {
        Self::Dropped(GivenUp {
            reason,
            may_be_there,
            error: None,
        })
    }
}

/// A batch to send.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) id: usize,
    records: Vec<Message>,
    /// How many of the records each message has.
    packs: Packs,
}

#[derive(Debug)]
struct Record<T> {
    /// Its place in the order in which records came into memory.
    seq: u64,
    /// Its place in the log, if it is there.
    spot: Option<u64>,
    message: Message,
    label: Label,
    stream: Stream,
    lane: usize,
    size: u64,
    expires: Option<Millis>,
    tenant: Option<Key>,
    waits: Option<(AnswerLevel, T)>,
    state: Sending,
    /// Whether a send of it failed while others succeeded.
    is_retry: bool,
    packing: Packing,
    /// Whether the sink may have it.
    may_be_there: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Waits,
    Away,
}

#[derive(Debug)]
struct Sent {
    records: Vec<usize>,
    packs: Packs,
    lanes: Vec<usize>,
    has_retries: bool,
    at: Millis,
}

#[derive(Debug)]
struct Rules {
    is_marked: bool,
    has_unique_ids: bool,
    when_full: WhenFull,
    when_spool_full: WhenSpoolFull,
    when_unknown: WhenUnknown,
    buffer: (usize, u64),
    quota: Option<(usize, u64)>,
    batch: (usize, u64),
    pack: Option<PackOptions>,
    linger: Linger,
    in_flight_max: usize,
    backoff: lockgate_core::Backoff,
}

pub(crate) struct Buffer<T, I> {
    rules: Rules,
    tenant: Option<std::sync::Arc<crate::options::TenantFn>>,
    name: ProducerName,
    /// Of what is accepted from now on.
    openings: Streams<Opening>,
    incarnation: Option<ProducerIncarnation>,
    is_opening: bool,
    last_pack: u64,
    records: Slab<Record<T>>,
    next_seq: u64,
    lanes: Lanes,
    shelf: Shelf,
    /// What of it each stream has.
    shelves: Streams<Shelf>,
    /// The keys of the backlog, until it is over.
    backlog: Option<KeyCounts>,
    pace: Option<Pace>,
    tenants: HashMap<Key, Shelf>,
    expiring: BTreeMap<(Millis, u64), usize>,
    batches: Slab<Sent>,
    health: Health,
    spool: Option<Spooling<T>>,
    /// Since when something could be sent.
    ready_since: Option<Millis>,
    sampled: u32,
    told: Vec<(T, Told<I>)>,
    figures: Figures,
    /// What the sink said when it took nothing more.
    fenced: Option<TransportError>,
    closed: bool,
    /// Nothing is sent any more.
    abandoned: bool,
    hurry: u32,
}

impl<T, I: Clone> Buffer<T, I> {
    pub(crate) fn new(
        options: &ProducerOptions,
        sink: &SinkCapabilities,
        name: ProducerName,
        opening: u64,
        recovered: Option<Recovered>,
        now: Millis,
    ) -> Self {
        let (drops, by_priority) = match options.when_full {
            WhenFull::DropOldest | WhenFull::Sample(_) => (true, false),
            WhenFull::DropLowestPriority => (true, true),
            _ => (false, false),
        };
        let spool = options.spool.as_ref();
        let pace = spool.and_then(|spool| Some(Pace::new(spool.replay_rate?.get(), now)));
        let figures = Figures {
            recovered: recovered.as_ref().map_or(0, |it| it.count),
            ..Figures::default()
        };
        let mut backlog = None;
        let spool = spool.zip(recovered).map(|(options, mut from)| {
            backlog = from.keys.take().filter(|_| from.count > 0);
            Spooling::new(options, from, opening, now)
        });
        // Drawn at random, as the other one, so no other producer has it.
        let openings = Streams::new(Opening::new(opening.wrapping_add(1)), Opening::new(opening));
        Self {
            rules: Rules {
                is_marked: sink.producers,
                has_unique_ids: sink.unique_ids,
                when_full: options.when_full,
                when_spool_full: (options.spool.as_ref())
                    .map_or(WhenSpoolFull::Block, |it| it.when_full),
                when_unknown: options.when_unknown,
                buffer: (options.buffer_count, options.buffer_bytes),
                quota: options
                    .quota
                    .as_ref()
                    .map(|it| (it.count_max, it.bytes_max)),
                batch: (
                    options.batch_count.min(sink.batch_max.max(1)),
                    options.batch_bytes.min(sink.batch_bytes_max),
                ),
                pack: options.pack.map(|pack| pack.within(sink)),
                linger: options.linger,
                in_flight_max: options.batches_in_flight,
                backoff: options.backoff,
            },
            tenant: options.quota.as_ref().map(|it| it.tenant.clone()),
            name,
            openings,
            incarnation: None,
            is_opening: false,
            last_pack: 0,
            records: Slab::new(),
            next_seq: 0,
            lanes: Lanes::new(sink.producers),
            shelf: Shelf::new(drops, by_priority),
            shelves: Streams::new(Shelf::new(false, false), Shelf::new(false, false)),
            backlog,
            pace,
            tenants: HashMap::new(),
            expiring: BTreeMap::new(),
            batches: Slab::new(),
            health: Health::new(options.breaker, options.backoff, options.retry_budget, now),
            spool,
            ready_since: None,
            sampled: 0,
            told: Vec::new(),
            figures,
            fenced: None,
            closed: false,
            abandoned: false,
            hurry: 0,
        }
    }

    // ---- In ----

    /// Takes a message in, or leaves it there. `tenant`: whose it is, where there are quotas. Returns why it was dropped, if
    /// that was at once.
    pub(crate) fn offer(
        &mut self,
        offer: &mut Option<Offered<T>>,
        tenant: Option<Key>,
        now: Millis,
    ) -> Result<Option<DropReason>, NoRoom> {
        let Some(offered) = offer else {
            return Ok(None);
        };
        self.end_backlog();
        let size = record_size(&offered.message);
        let place = self.place(offered, size, tenant.as_ref());
        let place = place.inspect_err(|no_room| {
            self.figures.refused += u64::from(!no_room.waits);
        })?;
        let Some(offered) = offer.take() else {
            return Ok(None);
        };
        match place {
            Place::Memory { stream, spooled } => {
                self.keep(offered, stream, size, tenant, spooled, now);
            }
            Place::Disk(stream) => self.keep_on_disk(offered, stream, size, now),
            Place::Drop(reason) => {
                self.figures.accepted += 1;
                self.figures.drop(reason);
                if let Some(tell) = offered.tell {
                    self.told.push((tell, Told::dropped(reason, false)));
                }
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }

    fn place(
        &mut self,
        offered: &Offered<T>,
        size: u64,
        tenant: Option<&Key>,
    ) -> Result<Place, NoRoom> {
        let none = |full, waits| Err(NoRoom { full, waits });
        if self.closed {
            return none(Full::Closed, false);
        }
        if self.fenced.is_some() {
            return none(Full::Fenced, false);
        }
        let is_durable = offered.level == AnswerLevel::Durable;
        let persists_all = (self.spool.as_ref()).is_some_and(|it| it.persists_all() || is_durable);
        let mut stream = self.stream(&offered.message);
        let mut spilled = self.must_spill(stream, size);
        if self.rules.when_spool_full == WhenSpoolFull::DropOldest
            && (self.spool.as_ref())
                .is_some_and(|it| (persists_all || spilled) && it.wants_file(size))
        {
            self.drop_oldest_file();
            stream = self.stream(&offered.message);
            spilled = self.must_spill(stream, size);
        }
        let mut spooled = persists_all || spilled;
        if let Some(spool) = self.spool.as_ref().filter(|it| spooled && it.is_full(size)) {
            let full = match spool.has_failed() {
                true => Full::SpoolFailed,
                false => Full::Spool,
            };
            match self.rules.when_spool_full {
                policy if policy.waits() => return none(full, full == Full::Spool),
                WhenSpoolFull::DropNewest if !is_durable => {
                    return Ok(Place::Drop(DropReason::Newest));
                }
                // What is on disk only comes first, and there is no room behind it.
                WhenSpoolFull::MemoryOnly if !is_durable && !spilled => spooled = false,
                _ => return none(full, false),
            }
        }
        // What waits to be written is in memory too.
        let staged = self.spool.as_ref().map_or(0, |it| it.staged_bytes);
        if spooled && staged > 0 && staged + size > self.rules.buffer.1 {
            return none(Full::Spool, self.rules.when_spool_full.waits());
        }
        if spilled {
            return Ok(Place::Disk(stream));
        }
        let mut drawn = None;
        loop {
            let quota = self.rules.quota.zip(tenant);
            let quota = quota.map(|(max, tenant)| (max, self.tenants.get(tenant)));
            let (full, victim) = if let Some((max, Some(shelf))) = quota
                && !shelf.has_room(max, size)
            {
                (Full::Tenant, shelf.first())
            } else if !self.has_room(stream, size) {
                (Full::Buffer, self.shelf.first())
            } else {
                return Ok(Place::Memory { stream, spooled });
            };
            let reason = match self.rules.when_full {
                WhenFull::Block => return none(full, true),
                WhenFull::Reject => return none(full, false),
                WhenFull::DropNewest => return Ok(Place::Drop(DropReason::Newest)),
                WhenFull::Spool if full == Full::Tenant => return none(full, true),
                WhenFull::Spool => return Ok(Place::Disk(stream)),
                WhenFull::DropOldest => DropReason::Oldest,
                WhenFull::DropLowestPriority => {
                    let is_lowest =
                        victim.is_some_and(|(priority, _)| offered.message.priority <= priority);
                    if is_lowest {
                        return Ok(Place::Drop(DropReason::LowestPriority));
                    }
                    DropReason::LowestPriority
                }
                WhenFull::Sample(one_of) => {
                    // Once for a send, however many make room for it.
                    let kept = *drawn.get_or_insert_with(|| {
                        self.sampled = (self.sampled + 1) % one_of;
                        self.sampled == 0
                    });
                    if !kept {
                        return Ok(Place::Drop(DropReason::Sampled));
                    }
                    DropReason::Sampled
                }
            };
            // All that is in memory is being sent: room comes soon.
            let Some((_, place)) = victim else {
                return none(full, true);
            };
            self.drop_record(place, reason, None);
        }
    }

    /// A key that has records in the backlog goes there. What has no key waits for none.
    fn stream(&self, message: &Message) -> Stream {
        let keys = self.backlog.as_ref().zip(message.key.as_ref());
        match keys.is_some_and(|(keys, key)| keys.has(key)) {
            true => Stream::Backlog,
            false => Stream::Live,
        }
    }

    /// Whether a record goes to disk only, whatever the policy: behind others of its stream, or because what is there has
    /// taken the room.
    fn must_spill(&self, stream: Stream, size: u64) -> bool {
        let Some(spool) = &self.spool else {
            return false;
        };
        let others = Stream::ALL.into_iter().any(|it| spool.is_spilled(it));
        spool.is_spilled(stream)
            || (others && !self.has_room(stream, size))
            || (stream == Stream::Live && self.must_wait())
    }

    /// Whether live records wait for the backlog, because too much of the spool is over behind what is not.
    fn must_wait(&self) -> bool {
        self.backlog.is_some() && self.spool.as_ref().is_some_and(Spooling::is_scattered)
    }

    fn has_room(&self, stream: Stream, size: u64) -> bool {
        let (count, bytes) = self.rules.buffer;
        // What is being read comes into memory soon.
        let (coming, coming_bytes) = self.spool.as_ref().map_or((0, 0), Spooling::coming);
        let free = (
            count.saturating_sub(coming),
            bytes.saturating_sub(coming_bytes),
        );
        self.shelf.has_room(free, size) && self.shelves[stream].has_room(self.share(), size)
    }

    /// The part of memory that a stream may fill: while the backlog is on disk, both have half.
    fn share(&self) -> (usize, u64) {
        let (count, bytes) = self.rules.buffer;
        match (self.spool.as_ref()).is_some_and(|it| it.is_spilled(Stream::Backlog)) {
            true => (count.div_ceil(2), bytes.div_ceil(2)),
            false => (count, bytes),
        }
    }

    fn label(&mut self, message: &Message, stream: Stream) -> Label {
        let lane = self.lanes.number(message);
        if stream == Stream::Backlog
            && let (Some(keys), Some(key)) = (&mut self.backlog, &message.key)
        {
            keys.join(key);
        }
        let opening = &mut self.openings[stream];
        let number = &mut opening.numbers[usize::from(lane)];
        *number += 1;
        Label {
            opening: opening.opening,
            lane,
            number: *number,
        }
    }

    fn keep(
        &mut self,
        offered: Offered<T>,
        stream: Stream,
        size: u64,
        tenant: Option<Key>,
        spooled: bool,
        now: Millis,
    ) {
        self.figures.accepted += 1;
        let label = self.label(&offered.message, stream);
        let expires = offered.expires;
        let waits = offered.tell.map(|tell| (offered.level, tell));
        let is_durable = waits.is_some() && offered.level == AnswerLevel::Durable;
        let spot = (self.spool.as_mut().filter(|_| spooled)).map(|spool| {
            let wall = expires.map(|(_, wall)| wall);
            spool.stage(label, wall, size, offered.message.clone(), now)
        });
        let message = offered.message;
        let expires = expires.map(|(at, _)| at);
        let place = self.put(spot, message, label, size, expires, tenant, waits, now);
        if let (Some(spool), Some(spot)) = (&mut self.spool, spot)
            && is_durable
        {
            spool.want_durable(spot, Some((self.records[place].seq, place)));
        }
    }

    fn keep_on_disk(&mut self, offered: Offered<T>, stream: Stream, size: u64, now: Millis) {
        self.figures.accepted += 1;
        let label = self.label(&offered.message, stream);
        let Some(spool) = &mut self.spool else {
            return;
        };
        let wall = offered.expires.map(|(_, wall)| wall);
        let spot = spool.stage(label, wall, size, offered.message, now);
        spool.spill(stream, spot);
        if let Some(tell) = offered.tell {
            spool.waiting.insert(spot, (offered.level, tell));
            if offered.level == AnswerLevel::Durable {
                spool.want_durable(spot, None);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a record")]
    fn put(
        &mut self,
        spot: Option<u64>,
        message: Message,
        label: Label,
        size: u64,
        expires: Option<Millis>,
        tenant: Option<Key>,
        waits: Option<(AnswerLevel, T)>,
        now: Millis,
    ) -> usize {
        let seq = self.next_seq;
        self.next_seq += 1;
        let stream = self.openings.stream(label);
        let lane = self.lanes.lane(&message, label.lane, stream);
        let priority = message.priority;
        let packing = Packing::of(&message, label.opening != self.openings[stream].opening);
        let place = self.records.insert(Record {
            seq,
            spot,
            message,
            label,
            stream,
            lane,
            size,
            expires,
            tenant,
            waits,
            state: Sending::Waits,
            is_retry: false,
            packing,
            may_be_there: false,
        });
        self.shelf.add(size);
        self.shelf.order(priority, seq, place);
        self.shelves[stream].add(size);
        if let Some(tenant) = &self.records[place].tenant {
            let new = || Shelf::new(self.shelf.is_ordered(), self.shelf.by_priority());
            let shelf = match self.tenants.get_mut(tenant) {
                Some(shelf) => shelf,
                None => self.tenants.entry(tenant.clone()).or_insert_with(new),
            };
            shelf.add(size);
            shelf.order(priority, seq, place);
        }
        if let Some(expires) = expires {
            self.expiring.insert((expires, seq), place);
        }
        self.lanes.push_back(lane, seq, place, size);
        self.ready_since.get_or_insert(now);
        place
    }

    // ---- The ends of records ----

    fn deliver(&mut self, place: usize, accepted: Accepted<I>) {
        self.figures.delivered += 1;
        self.figures.duplicates += u64::from(accepted.duplicate);
        if let Some((_, tell)) = self.take_record(place, true).waits {
            self.told.push((tell, Told::Delivered(accepted)));
        }
    }

    fn drop_record(&mut self, place: usize, reason: DropReason, error: Option<TransportError>) {
        self.figures.drop(reason);
        let made_room = matches!(
            reason,
            DropReason::Oldest | DropReason::LowestPriority | DropReason::Sampled
        );
        let it = &self.records[place];
        // A crash before the next checkpoint brings back what made room for others.
        let may_come = it.may_be_there || (made_room && it.spot.is_some());
        let mut record = self.take_record(place, !may_come);
        if let (Some(spool), Some(spot), None) = (&mut self.spool, record.spot, &record.waits) {
            // Who waits for the sync of a record that was on disk only.
            record.waits = spool.waiting.remove(&spot);
        }
        self.figures.dropped_uncertain += u64::from(record.may_be_there);
        if record.state == Sending::Waits {
            self.lanes.remove(record.lane, record.seq, record.size);
        }
        if let Some((_, tell)) = record.waits {
            let given_up = GivenUp {
                reason,
                may_be_there: may_come,
                error,
            };
            self.told.push((tell, Told::Dropped(given_up)));
        }
    }

    /// `leaves_key`: it does not come to the sink later, so what follows with its key need not stay behind it.
    fn take_record(&mut self, place: usize, leaves_key: bool) -> Record<T> {
        let record = self.records.remove(place);
        let (priority, seq) = (record.message.priority, record.seq);
        self.shelf.remove(record.size);
        self.shelf.unorder(priority, seq);
        self.shelves[record.stream].remove(record.size);
        if record.stream == Stream::Backlog
            && leaves_key
            && let (Some(keys), Some(key)) = (&mut self.backlog, &record.message.key)
        {
            keys.leave(key);
        }
        if let Some(tenant) = &record.tenant
            && let Some(shelf) = self.tenants.get_mut(tenant)
        {
            shelf.remove(record.size);
            shelf.unorder(priority, seq);
            if shelf.is_empty() {
                self.tenants.remove(tenant);
            }
        }
        if let Some(expires) = record.expires {
            self.expiring.remove(&(expires, seq));
        }
        if let (Some(spool), Some(spot)) = (&mut self.spool, record.spot) {
            spool.finish(spot, record.size - RECORD_BYTES);
        }
        record
    }

    /// When nothing is left in the backlog, all that comes is live. Not while a message has a stream and no place yet.
    fn end_backlog(&mut self) {
        let is_spilled = |it: &Spooling<T>| it.is_spilled(Stream::Backlog);
        if self.shelves[Stream::Backlog].is_empty() && !self.spool.as_ref().is_some_and(is_spilled)
        {
            self.backlog = None;
        }
    }

    /// Gives up the records whose time is over. Returns whether there were some.
    pub(crate) fn expire(&mut self, now: Millis) -> bool {
        let mut passed = Vec::new();
        for (&(at, seq), &place) in &self.expiring {
            if at > now {
                break;
            }
            passed.push((at, seq, place));
        }
        let mut dropped = false;
        for (at, seq, place) in passed {
            // One that is being sent is judged when its answer comes.
            self.expiring.remove(&(at, seq));
            let record = &self.records[place];
            if record.state == Sending::Waits {
                self.drop_record(place, DropReason::Expired, None);
                dropped = true;
            }
        }
        dropped
    }

    // ---- The rest ----

    /// When there is something to do though nothing happens.
    pub(crate) fn next_wake(&self) -> Option<Millis> {
        let expires = self.expiring.keys().next().map(|(at, _)| *at);
        let is_open = !self.rules.is_marked || self.incarnation.is_some();
        let may_send = self.fenced.is_none() && self.batches.len() < self.in_flight_max();
        let may_send = (is_open && may_send) || self.must_open();
        let batch = (may_send && self.lanes.ready_count > 0)
            .then(|| self.batch_due().max(self.health.until()));
        let lanes = self.lanes.next_wake();
        [expires, batch, lanes].into_iter().flatten().min()
    }

    /// What those who wait are to be told, since the last call.
    pub(crate) fn take_told(&mut self) -> Vec<(T, Told<I>)> {
        std::mem::take(&mut self.told)
    }

    /// Accepts nothing more, and sends what there is without delay.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Nothing is sent any more: what is in memory only is dropped, and what is in the spool stays there.
    pub(crate) fn abandon(&mut self, now: Millis) {
        (self.closed, self.abandoned) = (true, true);
        // The time that they took stays in the figures.
        for (_, sent) in &self.batches {
            self.figures.sending += Duration::from_millis(now.saturating_sub(sent.at));
        }
        // Nobody hears what the sink says of them any more.
        self.batches.clear();
        let places: Vec<_> = self.records.iter().map(|(place, _)| place).collect();
        for place in places {
            let record = &mut self.records[place];
            record.may_be_there |= record.state == Sending::Away;
            if record.spot.is_none() {
                self.drop_record(place, DropReason::Closed, None);
            } else if let Some((_, tell)) = record.waits.take() {
                self.told
                    .push((tell, Told::dropped(DropReason::Closed, true)));
            }
        }
        if let Some(spool) = &mut self.spool {
            let waiting = std::mem::take(&mut spool.waiting);
            for (_, (_, tell)) in waiting {
                self.told
                    .push((tell, Told::dropped(DropReason::Closed, true)));
            }
            spool.close();
        }
    }

    /// Somebody more, or less, wants batches to go without waiting for more.
    pub(crate) fn hurry(&mut self, more: bool) {
        self.hurry = match more {
            true => self.hurry.saturating_add(1),
            false => self.hurry.saturating_sub(1),
        };
    }

    /// Another has taken over: who waits is told. What is in the spool stays there.
    fn tell_fenced(&mut self, error: &TransportError) {
        let told = |may_be_there| {
            Told::Dropped(GivenUp {
                reason: DropReason::Fenced,
                may_be_there,
                error: Some(error.clone()),
            })
        };
        for (_, record) in &mut self.records {
            if let Some((_, tell)) = record.waits.take() {
                let is_away = record.state == Sending::Away;
                let may_be_there = record.spot.is_some() || record.may_be_there || is_away;
                self.told.push((tell, told(may_be_there)));
            }
        }
        if let Some(spool) = &mut self.spool {
            let waiting = spool.waiting.drain();
            (self.told).extend(waiting.map(|(_, (_, tell))| (tell, told(true))));
        }
    }

    /// Whether nothing that is pending can be sent any more.
    pub(crate) fn is_stuck(&self) -> bool {
        let spool_failed = self.spool.as_ref().is_some_and(Spooling::has_failed);
        self.fenced.is_some() || self.abandoned || (spool_failed && self.records.is_empty())
    }

    /// How many records are neither delivered nor dropped.
    pub(crate) fn pending(&self) -> u64 {
        self.records.len() as u64 + self.spool.as_ref().map_or(0, Spooling::disk_count)
    }

    /// Whether the spool has all that it is to have, or cannot get it, or there is none.
    pub(crate) fn is_settled(&self) -> bool {
        self.spool.as_ref().is_none_or(Spooling::is_settled)
    }

    /// The first spot whose record is not over: files before it are not needed.
    pub(crate) fn spool_floor(&self) -> u64 {
        self.spool.as_ref().map_or(0, |it| it.done.floor())
    }

    pub(crate) fn fenced(&self) -> Option<TransportError> {
        self.fenced.clone()
    }

    /// With the time of batches that are on their way.
    pub(crate) fn figures_at(&self, now: Millis) -> Figures {
        let underway = self.batches.iter();
        let underway = underway.map(|(_, it)| Duration::from_millis(now.saturating_sub(it.at)));
        let figures = self.figures();
        Figures {
            sending: figures.sending + underway.sum::<Duration>(),
            ..figures
        }
    }

    pub(crate) fn figures(&self) -> Figures {
        let spool = self.spool.as_ref();
        Figures {
            pending: self.pending(),
            memory_count: self.shelf.count() as u64,
            memory_bytes: self.shelf.bytes(),
            in_flight: self
                .batches
                .iter()
                .map(|(_, it)| it.records.len() as u64)
                .sum(),
            spool_count: spool.map_or(0, Spooling::disk_count),
            spool_bytes: spool.map_or(0, Spooling::used),
            spool_failed: spool.is_some_and(Spooling::has_failed),
            breaker_open: self.health.is_open(),
            delayed_lanes: self.lanes.delayed() as u64,
            fenced: self.fenced.is_some(),
            batch_millis: self.health.latency(),
            batches_in_flight_max: self.rules.in_flight_max as u64,
            ..self.figures.clone()
        }
    }
}

/// Where a message goes.
enum Place {
    Memory { stream: Stream, spooled: bool },
    Disk(Stream),
    Drop(DropReason),
}

/// What the marks of a stream's own records are counted by.
#[derive(Debug)]
struct Opening {
    opening: u64,
    /// The last number of each lane.
    numbers: [u64; ProducerMark::LANES as usize],
}

impl Opening {
    fn new(opening: u64) -> Self {
        Self {
            opening,
            numbers: [0; ProducerMark::LANES as usize],
        }
    }
}

impl Streams<Opening> {
    /// In which stream a record with that label is.
    fn stream(&self, label: Label) -> Stream {
        match label.opening == self[Stream::Live].opening {
            true => Stream::Live,
            false => Stream::Backlog,
        }
    }
}
