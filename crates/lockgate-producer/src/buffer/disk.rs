//! The machine's other side: what the thread of the spool is to do, and what came of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lockgate_core::{Millis, WallTime};

use super::{Buffer, Loaded, Sending, Spooling, Staged, Told, Used, Work, record_size};
use crate::{AnswerLevel, DropReason};

impl<T, I: Clone> Buffer<T, I> {
    /// What the thread of the spool is to do now.
    pub(crate) fn spool_work(&mut self, now: Millis) -> Option<Work> {
        // Half of the memory is read at a time at least, so that few reads bring much.
        let (count_max, bytes_max) = self.rules.buffer;
        let (count, bytes) = self.shelf.room(self.rules.buffer);
        let has_room = count >= count_max.div_ceil(2) && bytes >= bytes_max.div_ceil(2);
        let room = has_room.then_some((count, bytes));
        self.spool.as_mut()?.take_work(now, room)
    }

    pub(crate) fn spool_wake(&self) -> Option<Millis> {
        self.spool.as_ref()?.next_wake()
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
    pub(crate) fn spool_full(&mut self, used: Used, now: Millis) -> bool {
        self.figures.spool_full += 1;
        let Some(spool) = &mut self.spool else {
            return false;
        };
        let is_news = spool.is_out_of_room(used, now);
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
                spool.finish_on_disk(spot);
            }
        }
    }

    /// Drops what is in the oldest file, apart from what is being sent, unless that was done before.
    pub(super) fn drop_oldest_file(&mut self) {
        let Some((until, on_disk)) = self.spool.as_mut().and_then(Spooling::give_up_oldest) else {
            return;
        };
        for waits in on_disk {
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
        for loaded in records {
            let Some(spool) = &mut self.spool else {
                return;
            };
            if spool.done.contains(loaded.spot) {
                continue;
            }
            self.load(loaded, now, wall);
        }
        for spot in unreadable {
            let Some(spool) = self.spool.as_mut().filter(|it| !it.done.contains(spot)) else {
                continue;
            };
            spool.finish_on_disk(spot);
            let waits = spool.waiting.remove(&spot);
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
        spool.disk_count = spool.disk_count.saturating_sub(1);
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

    /// Takes records into memory that are not yet written, once all before them are there.
    pub(crate) fn catch_up(&mut self, now: Millis, wall: WallTime) {
        while let Some(spool) = &mut self.spool
            && let Some(staged) = spool.next_staged()
            && staged.fits(self.shelf.room(self.rules.buffer), self.shelf.is_empty())
        {
            let loaded = match staged {
                Staged::Checkpoint(_) | Staged::Void => None,
                Staged::Message {
                    spot,
                    label,
                    expires,
                    message,
                    ..
                } => Some(Loaded {
                    spot: *spot,
                    label: *label,
                    expires: *expires,
                    message: message.clone(),
                }),
            };
            spool.pass_staged();
            if let Some(loaded) = loaded {
                self.load(loaded, now, wall);
            }
        }
    }
}
