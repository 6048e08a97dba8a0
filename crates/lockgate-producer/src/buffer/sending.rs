//! Out to the sink: which records go into the next batch, and as what.

use lockgate_core::{
    Fate, Message, Millis, Produced, ProducerIncarnation, ProducerMark, TransportError, UniqueId,
};

use super::{Batch, Buffer, Label, Packing, Packs, Sending, Sent, lanes::NUMBERED};
use crate::{clock::millis, options::Linger};

impl<T, I: Clone> Buffer<T, I> {
    /// Whether the sink is to be opened for this producer now, before anything is sent.
    pub(crate) fn take_open(&mut self, now: Millis) -> bool {
        let must_open = self.must_open() && now >= self.health.until();
        self.is_opening |= must_open;
        must_open
    }

    pub(super) fn must_open(&self) -> bool {
        self.rules.is_marked
            && self.incarnation.is_none()
            && self.fenced.is_none()
            && !self.is_opening
            // What is still on its way with the earlier incarnation would be refused as from before.
            && self.batches.is_empty()
            && self.lanes.ready_count > 0
    }

    /// Batches that may be on their way: one that tries it, while the breaker is open.
    pub(super) fn in_flight_max(&self) -> usize {
        match self.health.is_open() {
            true => 1,
            false => self.rules.in_flight_max,
        }
    }

    /// The sink was opened, or not.
    pub(crate) fn opened(
        &mut self,
        result: Result<ProducerIncarnation, TransportError>,
        now: Millis,
        random: u64,
    ) {
        self.is_opening = false;
        match result {
            Ok(incarnation) => self.incarnation = Some(incarnation),
            Err(error) if error.fate == Fate::Stale => {
                self.tell_fenced(&error);
                self.fenced = Some(error);
            }
            Err(_) => {
                self.figures.failed_batches += 1;
                self.health.failed(now, random);
            }
        }
    }

    /// The next batch, if one is to be sent now.
    pub(crate) fn next_batch(&mut self, now: Millis) -> Option<Batch> {
        self.lanes.wake(now);
        if self.fenced.is_some()
            || (self.rules.is_marked && self.incarnation.is_none())
            || self.batches.len() >= self.in_flight_max()
            || now < self.health.until()
            || self.lanes.ready_count == 0
            || now < self.batch_due()
        {
            return None;
        }
        let mut batch = Filling::default();
        while batch.packs.len() < self.rules.batch.0 {
            let Some(lane) = self.lanes.take_ready() else {
                break;
            };
            match self.fill(&mut batch, lane, now) {
                Fill::Took => batch.lanes.push(lane),
                Fill::Waits(until) => self.lanes.release(lane, Some(until)),
                Fill::Full => {
                    self.lanes.release(lane, None);
                    break;
                }
            }
        }
        if batch.records.is_empty() {
            return None;
        }
        self.ready_since = (self.lanes.ready_count > 0).then_some(now);
        let mut last = [0; NUMBERED];
        let mut records = Vec::with_capacity(batch.records.len());
        for pack in batch.packs.of(&batch.records) {
            self.bind(pack);
            let (last_one, others) = pack
                .split_last()
                .unwrap_or_else(|| unreachable!("no record"));
            let others = others
                .iter()
                .map(|place| self.records[*place].message.clone());
            records.extend(others);
            records.push(self.message(*last_one, &mut last));
        }
        self.figures.batches += 1;
        self.figures.sent += batch.records.len() as u64;
        self.figures.packs += batch.packs.count_of_many() as u64;
        let packs = batch.packs.clone();
        let id = self.batches.insert(Sent {
            records: batch.records,
            packs: batch.packs,
            lanes: batch.lanes,
            has_retries: batch.has_token,
            at: now,
        });
        Some(Batch { id, records, packs })
    }

    /// When the records that are ready are to be sent.
    pub(super) fn batch_due(&self) -> Millis {
        let is_full = self.lanes.ready_count >= self.records_max()
            || self.lanes.ready_bytes >= self.rules.batch.1;
        let since = self.ready_since.unwrap_or_default();
        if is_full || self.hurry > 0 || self.closed {
            return 0;
        }
        match self.rules.linger {
            Linger::Fixed(linger) => since.saturating_add(millis(linger)),
            Linger::Adaptive(_) if self.batches.is_empty() => 0,
            Linger::Adaptive(most) => {
                let share = self.health.latency() / self.rules.in_flight_max as u64;
                since.saturating_add(share.min(millis(most)))
            }
        }
    }

    /// How many records make a full batch.
    fn records_max(&self) -> usize {
        let of_one = self.rules.pack.map_or(1, |pack| pack.count_max);
        self.rules.batch.0.saturating_mul(of_one)
    }

    /// Puts records of a lane into a batch.
    fn fill(&mut self, batch: &mut Filling, lane: usize, now: Millis) -> Fill {
        let many = self.lanes.takes_many(lane);
        let mut opening = None;
        let mut open = None;
        while let Some(place) = self.lanes.front(lane) {
            let record = &self.records[place];
            let (size, its_opening) = (record.size, record.label.opening);
            let joined = self.joined(open, record);
            let is_first = joined.is_none();
            // The rest of a pack that must go as it went has its room since its first.
            let is_promised = !is_first && matches!(record.packing, Packing::In { .. });
            let bytes = match is_promised {
                true => 0,
                false => self.bytes_in_batch(place, is_first),
            };
            let is_over = (is_first && batch.packs.len() >= self.rules.batch.0)
                || (is_first && opening.is_some() && !many)
                || (!batch.records.is_empty()
                    && !is_promised
                    && batch.bytes + bytes > self.rules.batch.1)
                // A sink knows the records of one opening in their order, and nothing of those of two.
                || opening.is_some_and(|opening| opening != its_opening);
            if is_over {
                break;
            }
            if let Err(until) = self.may_send(place, batch, now) {
                match opening {
                    Some(_) => break,
                    None => return Fill::Waits(until),
                }
            }
            opening = Some(its_opening);
            self.set_state(place, Sending::Away);
            self.lanes.pop_front(lane, size);
            batch.bytes += bytes;
            batch.records.push(place);
            match joined {
                Some(joined) => {
                    batch.packs.add_to_last();
                    open = Some(joined);
                }
                None => {
                    batch.packs.add();
                    open = Some(self.open_pack(place));
                }
            }
        }
        match opening {
            Some(_) => Fill::Took,
            None => Fill::Full,
        }
    }

    /// One that is being sent is none that may be dropped for another.
    pub(super) fn set_state(&mut self, place: usize, state: Sending) {
        let record = &mut self.records[place];
        record.state = state;
        let (priority, seq) = (record.message.priority, record.seq);
        let tenant = (record.tenant.as_ref()).and_then(|it| self.tenants.get_mut(it));
        for shelf in [Some(&mut self.shelf), tenant].into_iter().flatten() {
            match state {
                Sending::Waits => shelf.order(priority, seq, place),
                Sending::Away => shelf.unorder(priority, seq),
            }
        }
    }

    /// Whether the budget of retries lets a record go now, and else when.
    fn may_send(&mut self, place: usize, batch: &mut Filling, now: Millis) -> Result<(), Millis> {
        let record = &self.records[place];
        if record.is_retry && !batch.has_token {
            self.health.take_token(now)?;
            batch.has_token = true;
        }
        Ok(())
    }

    /// A record as the sink gets it. `last` has the record before it in each lane of the batch.
    fn message(&self, place: usize, last: &mut [u64; NUMBERED]) -> Message {
        let record = &self.records[place];
        let mut message = record.message.clone();
        let Label {
            opening,
            lane,
            number,
        } = record.label;
        let number = match record.packing {
            Packing::In { last, .. } => last,
            _ => number,
        };
        if let (true, Some(incarnation)) = (self.rules.is_marked, self.incarnation)
            && let Ok(mark) = ProducerMark::new(self.name.clone(), opening, lane, number)
        {
            let after = std::mem::replace(&mut last[record.lane], number);
            message.producer = Some(Box::new(Produced {
                mark,
                incarnation,
                after,
            }));
        } else if self.rules.has_unique_ids && message.unique_id.is_none() {
            // Within what every broker takes as an id. The opening is random, so it is no other producer's.
            let id = match record.packing {
                Packing::In { pack, .. } => format!("{opening:016x}-p{pack}"),
                _ => format!("{opening:016x}-{lane:x}-{number}"),
            };
            message.unique_id = UniqueId::new(&id).ok();
        }
        message
    }
}

#[derive(Default)]
struct Filling {
    records: Vec<usize>,
    packs: Packs,
    lanes: Vec<usize>,
    bytes: u64,
    has_token: bool,
}

enum Fill {
    Took,
    /// Nothing of the lane may be sent before.
    Waits(Millis),
    /// The batch has no room for it.
    Full,
}
