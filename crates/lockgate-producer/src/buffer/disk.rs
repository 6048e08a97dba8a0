//! The machine's other side: what the thread of the spool is to do, and what came of it.

use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

use lockgate_core::{Millis, WallTime};

use super::{
    Buffer, Lack, Load, Loaded, Pace, Sending, Spooling, Staged, Stream, Told, Used, Work,
    record_size,
};
use crate::{AnswerLevel, DropReason};

impl<T, I: Clone> Buffer<T, I> {
    /// What the thread of the spool is to do now.
    pub(crate) fn spool_work(&mut self, now: Millis) -> Option<Work> {
        let load = self.next_load(now);
        self.spool.as_mut()?.take_work(now, load)
    }

    /// What may be read into memory now.
    fn next_load(&self, now: Millis) -> Option<Load> {
        let spool = self.spool.as_ref()?;
        spool.turns().into_iter().find_map(|stream| {
            let (from, is_left_over) = spool.next_read(stream, now)?;
            if stream == Stream::Live && self.must_wait() {
                return None;
            }
            // Half of its part is read at a time at least, so that few reads bring much.
            let (count_max, bytes_max) = self.share();
            let (mut count, bytes) = self.room(stream);
            let mut enough = count_max.div_ceil(2);
            if let Some(pace) = self.pace.as_ref().filter(|_| is_left_over) {
                count = count.min(pace.allows(|| self.count_at_pace(stream), now));
                enough = 1;
            }
            let has_room = count >= enough && bytes >= bytes_max.div_ceil(2);
            has_room.then(|| spool.load(stream, from, (count, bytes)))
        })
    }

    /// How many records of a stream are in memory and go to the sink as others do. What waits because the sink could not take
    /// it, or one before it, keeps no other from coming: those have their room in memory.
    fn count_at_pace(&self, stream: Stream) -> usize {
        let is_it = |place: usize| self.records[place].stream == stream;
        let waiting = self.lanes.failing().filter(|(first, _)| is_it(*first));
        let waiting: usize = waiting.map(|(_, count)| count).sum();
        let away = self.batches.iter().flat_map(|(_, sent)| &sent.records);
        let away = away
            .filter(|place| is_it(**place) && self.lanes.is_failing(self.records[**place].lane));
        let all = self.shelves[stream].count();
        all.saturating_sub(waiting).saturating_sub(away.count())
    }

    /// How many records and bytes of a stream have room in memory.
    fn room(&self, stream: Stream) -> (usize, u64) {
        let (coming, coming_bytes) = self.spool.as_ref().map_or((0, 0), |it| it.coming());
        let (count, bytes) = self.shelf.room(self.rules.buffer);
        let (own_count, own_bytes) = self.shelves[stream].room(self.share());
        let count = count.saturating_sub(coming).min(own_count);
        (count, bytes.saturating_sub(coming_bytes).min(own_bytes))
    }

    /// When the thread of the spool has work though nothing happens.
    pub(crate) fn spool_wake(&self, now: Millis) -> Option<Millis> {
        let spool = self.spool.as_ref()?;
        let waits = spool.next_read(Stream::Backlog, now);
        let waits = waits.is_some_and(|(_, is_left_over)| is_left_over);
        let pace = self.pace.as_ref().map(Pace::at);
        let pace = pace.filter(|at| waits && *at > now);
        spool.next_wake().into_iter().chain(pace).min()
    }

    pub(crate) fn spool_wrote(&mut self, count: usize, used: Used) {
        if let Some(spool) = &mut self.spool {
            spool.wrote(count, used);
        }
    }

    /// The spool's files have so many bytes.
    pub(crate) fn spool_used(&mut self, used: Used) {
        if let Some(spool) = &mut self.spool {
            spool.wrote(0, used);
        }
    }

    /// The disk had no room. Where sends do not wait for it, those that found it out are told. Returns whether it had room
    /// before.
    pub(crate) fn spool_full(&mut self, used: Used, lack: Lack, now: Millis) -> bool {
        self.figures.spool_full += 1;
        let Some(spool) = &mut self.spool else {
            return false;
        };
        let is_news = spool.is_out_of_room(used, lack, now);
        if !self.rules.when_spool_full.waits() {
            for (spot, place) in spool.take_unwritten() {
                if let Some(tell) = self.who_waits(spot, place) {
                    let told = Told::dropped(DropReason::SpoolFull, true);
                    self.told.push((tell, told));
                }
            }
        }
        is_news
    }

    /// The producer has ended: what the log does not have is dropped, because nobody sends it any more. `has_ended`: the log
    /// gets nothing more.
    pub(crate) fn drop_unwritten(&mut self, has_ended: bool) {
        let Some(spool) = &self.spool else {
            return;
        };
        let may_be_written = !has_ended || spool.has_failed();
        let (written, on_disk) = (spool.written, spool.unwritten());
        let records = self.records.iter();
        let records = records.filter(|(_, it)| it.spot.is_some_and(|spot| spot >= written));
        let places: Vec<_> = records.map(|(place, _)| place).collect();
        for place in places {
            self.records[place].may_be_there |= may_be_written;
            self.drop_record(place, DropReason::Closed, None);
        }
        for spot in on_disk {
            self.figures.drop(DropReason::Closed);
            self.figures.dropped_uncertain += u64::from(may_be_written);
            if let Some(spool) = &mut self.spool {
                let _told = spool.finish_on_disk(spot);
            }
        }
    }

    /// Drops what is in the oldest file, apart from what is being sent, unless that was done before.
    pub(super) fn drop_oldest_file(&mut self) {
        let Some(spool) = &mut self.spool else {
            return;
        };
        let Some(until) = spool.may_give_up() else {
            return;
        };
        let in_memory = self.records.iter().filter_map(|(_, it)| it.spot);
        let in_memory: HashSet<u64> = in_memory.filter(|spot| *spot < until).collect();
        for waits in spool.give_up_oldest(&in_memory) {
            self.figures.drop(DropReason::Oldest);
            if let Some((_, tell)) = waits {
                // A crash before the next checkpoint brings it back.
                let told = Told::dropped(DropReason::Oldest, true);
                self.told.push((tell, told));
            }
        }
        let in_memory = self.records.iter().filter(|(_, record)| {
            record.state == Sending::Waits && record.spot.is_some_and(|spot| spot < until)
        });
        let in_memory: Vec<_> = in_memory.map(|(place, _)| place).collect();
        for place in in_memory {
            self.drop_record(place, DropReason::Oldest, None);
        }
    }

    /// Records before this spot are durable.
    pub(crate) fn spool_synced(&mut self, before: u64, now: Millis) {
        let durable = self.spool.as_mut().map(|it| it.synced(before, now));
        for (spot, place) in durable.into_iter().flatten() {
            if let Some(tell) = self.who_waits(spot, place) {
                self.told.push((tell, Told::Durable));
            }
        }
    }

    /// The log has failed. Who waits for a sync is told that it does not come; records in memory go on.
    pub(crate) fn spool_failed(&mut self) {
        let Some(spool) = &mut self.spool else {
            return;
        };
        spool.fail();
        let mut told = Vec::new();
        // Those on disk only are not sent any more either, before the producer is opened again.
        told.extend(spool.waiting.drain().map(|(_, (_, tell))| tell));
        for (spot, place) in spool.take_unsynced() {
            told.extend(self.who_waits(spot, place));
        }
        for tell in told {
            let told = Told::dropped(DropReason::SpoolFailed, true);
            self.told.push((tell, told));
        }
    }

    /// Records could not be read; that is tried again later.
    pub(crate) fn spool_not_loaded(&mut self, now: Millis) {
        if let Some(spool) = &mut self.spool {
            spool.load_failed(now);
        }
    }

    fn who_waits(&mut self, spot: u64, place: Option<(u64, usize)>) -> Option<T> {
        let record = place.and_then(|(seq, place)| {
            let record = self.records.get_mut(place);
            record.filter(|record| record.seq == seq)
        });
        match record {
            Some(record) => record
                .waits
                .take_if(|(level, _)| *level == AnswerLevel::Durable),
            // It may have been on disk only, and in memory since.
            None => self.spool.as_mut()?.waiting.remove(&spot),
        }
        .map(|(_, tell)| tell)
    }

    /// Records were read, and all others before `next` are over, or could not be read.
    pub(crate) fn spool_loaded(
        &mut self,
        records: Vec<Loaded>,
        next: u64,
        unreadable: Vec<u64>,
        now: Millis,
        wall: WallTime,
    ) {
        let is_paced = self.spool.as_ref().is_some_and(Spooling::loads_left_overs);
        let before = self.shelf.count();
        for loaded in records {
            let Some(spool) = &mut self.spool else {
                return;
            };
            if spool.done.contains(loaded.spot) {
                continue;
            }
            self.load(loaded, now, wall);
        }
        if let Some(pace) = self.pace.as_mut().filter(|_| is_paced) {
            pace.came(self.shelf.count() - before, now);
        }
        let in_memory = match unreadable.is_empty() {
            true => HashSet::new(),
            false => self.records.iter().filter_map(|(_, it)| it.spot).collect(),
        };
        for spot in unreadable {
            let spool = self.spool.as_mut();
            // One of the other stream that is in memory is there still.
            let Some(spool) =
                spool.filter(|it| !it.done.contains(spot) && !in_memory.contains(&spot))
            else {
                continue;
            };
            let waits = spool.finish_on_disk(spot);
            self.figures.drop(DropReason::Unreadable);
            if let Some((_, tell)) = waits {
                self.told
                    .push((tell, Told::dropped(DropReason::Unreadable, false)));
            }
        }
        if let Some(spool) = &mut self.spool {
            spool.loaded(next);
        }
        self.catch_up(now, wall);
    }

    fn load(&mut self, loaded: Loaded, now: Millis, wall: WallTime) {
        let Some(spool) = &mut self.spool else {
            return;
        };
        let size = record_size(&loaded.message);
        spool.comes();
        // Who waits for the sync is found there, by its spot.
        let waits = match spool.waiting.get(&loaded.spot) {
            Some((AnswerLevel::Delivered, _)) => spool.waiting.remove(&loaded.spot),
            _ => None,
        };
        // A function that panics has counted nothing.
        let tenant = self.tenant.as_ref().and_then(|of| {
            let of = AssertUnwindSafe(|| of(&loaded.message));
            catch_unwind(of).ok().flatten()
        });
        let expires = loaded.expires.map(|at| now.saturating_add(at.since(wall)));
        self.put(
            Some(loaded.spot),
            loaded.message,
            loaded.label,
            size,
            expires,
            tenant,
            waits,
            now,
        );
    }

    /// Takes records into memory that are not yet written, once all before them of their stream are there.
    pub(crate) fn catch_up(&mut self, now: Millis, wall: WallTime) {
        self.end_backlog();
        self.catch_up_with(Stream::Backlog, now, wall);
        if !self.must_wait() {
            self.catch_up_with(Stream::Live, now, wall);
        }
    }

    fn catch_up_with(&mut self, stream: Stream, now: Millis, wall: WallTime) {
        while let Some(staged) = self.spool.as_ref().and_then(|it| it.next_staged(stream)) {
            let loaded = match staged {
                Some(Staged::Message {
                    spot,
                    label,
                    expires,
                    message,
                    size,
                }) => {
                    let (count, bytes) = self.room(stream);
                    let is_alone = self.shelf.is_empty() && count > 0;
                    if !is_alone && (count == 0 || *size > bytes) {
                        return;
                    }
                    Some(Loaded {
                        spot: *spot,
                        label: *label,
                        expires: *expires,
                        message: message.clone(),
                    })
                }
                _ => None,
            };
            if let Some(spool) = &mut self.spool {
                spool.pass_staged(stream);
            }
            if let Some(loaded) = loaded {
                self.load(loaded, now, wall);
            }
        }
    }
}
