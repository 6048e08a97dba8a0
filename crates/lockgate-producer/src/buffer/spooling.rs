//! What of a producer's records is on disk, and what is to be written there.
//!
//! Each record of the log has a number, its *spot*. Spots are given out here, in the order in which records are handed to
//! the thread that writes them, so both agree. Records that found no room in memory are on disk only. While a stream has
//! some, all new ones of it join them, so that none overtakes: they are those of the stream in a range of spots
//! ([`Spooling::disk`]), in which those of the other stream may be in memory.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Range,
};

use lockgate_core::{Message, Millis, ProducerName, WallTime};

use super::backlog::{KeyCounts, Stream, Streams};
use crate::{
    AnswerLevel,
    clock::millis,
    options::{Persist, SpoolOptions},
    spool::{
        codec::{Checkpoint, Label},
        done::Done,
        record_bytes_max,
    },
};

/// Records that are over between two checkpoints, and the time between them if there are fewer.
const CHECKPOINT_COUNT: u64 = if cfg!(test) { 5 } else { 4_096 };
const CHECKPOINT_EVERY: Millis = 1_000;

/// How many stretches of records that are over the list in a checkpoint has, at most about: each takes so many bytes of it,
/// and some more in memory.
const STRETCHES_MAX: usize = if cfg!(test) { 4 } else { 1 << 16 };
const STRETCH_BYTES: u64 = 16;

/// What a checkpoint has beside them, at most.
const CHECKPOINT_BYTES: usize = 160;

/// So many bytes of messages are over for each byte that a checkpoint has of stretches. They may stay on disk for as long
/// as the messages do, and nothing else bounds them.
const BYTES_OVER: u64 = 8;

/// With so many stretches, checkpoints come half as often, so that those that are long cost no more than what they save.
const STRETCHES_FEW: u64 = 1_024;

/// How long nothing is written to a full disk before it is tried again.
const FULL_PAUSE: Millis = 500;

/// How long nothing is read after a read that failed.
const LOAD_PAUSE: Millis = 1_000;

/// With [`Persist::Count`], how long a record waits at most.
const COUNT_WAIT: Millis = 1_000;

/// What the log begins with.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) name: ProducerName,
    pub(crate) done: Done,
    /// The spot of the next record.
    pub(crate) next: u64,
    /// Records that are not over.
    pub(crate) count: u64,
    /// Of which keys those are.
    pub(crate) keys: Option<KeyCounts>,
    pub(crate) used: Used,
}

/// What the files of a spool take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Bytes of all of them.
    pub(crate) bytes: u64,
    /// The spot behind the oldest one, and its bytes, if it is not the only one.
    pub(crate) oldest: Option<(u64, u64)>,
}

/// A record to write. They are written in this order, each at its spot.
#[derive(Clone, Debug)]
pub(crate) enum Staged {
    Message {
        spot: u64,
        label: Label,
        expires: Option<WallTime>,
        size: u64,
        message: Message,
    },
    Checkpoint(Checkpoint),
    /// A message that was over before it was written.
    Void,
}

/// What the thread of the spool is to do, in this order.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub(crate) write: Vec<Staged>,
    pub(crate) sync: bool,
    pub(crate) load: Option<Load>,
}

/// What to read: of which stream, from which spot on, how many messages at most, and about how many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) stream: Stream,
    /// The opening of live records.
    pub(crate) live: u64,
    pub(crate) from: u64,
    /// Behind the last one that is on disk only.
    pub(crate) until: u64,
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

impl Load {
    /// Whether a record with that label is to be read.
    pub(crate) fn takes(&self, label: Label) -> bool {
        (label.opening == self.live) == (self.stream == Stream::Live)
    }
}

impl Work {
    fn is_empty(&self) -> bool {
        self.write.is_empty() && !self.sync && self.load.is_none()
    }
}

/// A record as it was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) spot: u64,
    pub(crate) label: Label,
    pub(crate) expires: Option<WallTime>,
    pub(crate) message: Message,
}

/// What the disk had none of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Bytes,
    /// No file could be opened: the process, or the system, has too many open.
    Files,
}

/// Why the spool takes nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The disk was full; it is tried again then, and takes nothing else before it has taken what waits. `nothing_fits`: it
    /// had no room even for what is no message.
    Full {
        until: Millis,
        lack: Lack,
        nothing_fits: bool,
    },
    /// The log has failed, and only another start can tell what it has.
    Failed,
}

/// Who waits for a record, and for what, if anybody does.
pub(super) type Waits<T> = Option<(AnswerLevel, T)>;

#[derive(Debug)]
pub(super) struct Spooling<T> {
    pub(super) persist: Persist,
    bytes_max: u64,
    name: ProducerName,
    /// The spot of the next record that is staged.
    next: u64,
    /// Records that are not known to be written, oldest first.
    pub(super) staged: VecDeque<Staged>,
    pub(super) staged_bytes: u64,
    /// Records before it are written, and synced.
    pub(super) written: u64,
    synced: u64,
    /// When the last sync ended, if no record was staged since. The log knows by the next record what was durable before it,
    /// and takes damage there for a torn tail until then.
    untold: Option<Millis>,
    /// When the first record was staged that is not synced.
    unsynced_since: Option<Millis>,
    /// Where records of each stream are that are on disk only: all of its records between, apart from those that are over.
    disk: Streams<Range<u64>>,
    disk_count: u64,
    /// The opening of live records, and the first spot that is not of an earlier one.
    live: u64,
    born: u64,
    loading: Option<Load>,
    /// Of which stream was read last.
    loaded: Stream,
    /// Nothing is read before, because it failed.
    load_after: Millis,
    /// Who waits for records that are on disk only.
    pub(super) waiting: HashMap<u64, (AnswerLevel, T)>,
    /// Records that somebody wants to be durable: the spot, and where the record is if it is in memory.
    unsynced: VecDeque<(u64, Option<(u64, usize)>)>,
    pub(super) done: Done,
    /// How many stretches a checkpoint may have.
    stretches_max: usize,
    /// Records that are over since the last checkpoint, bytes of those that were in memory, and when that was.
    over: u64,
    over_bytes: u64,
    checkpoint_at: Millis,
    used: Used,
    /// The oldest file was given up: it goes when nothing of it is being sent any more.
    is_given_up: bool,
    trouble: Option<Trouble>,
    /// What was handed over last to be written has a message.
    writes_message: bool,
    /// The last of all is written now.
    closing: bool,
}

/// How many stretches there may be where files have so many bytes.
fn stretches_max(file_bytes: u32) -> usize {
    let bytes = record_bytes_max(file_bytes).saturating_sub(CHECKPOINT_BYTES) as u64;
    let most = usize::try_from(bytes / STRETCH_BYTES).unwrap_or(usize::MAX);
    most.min(STRETCHES_MAX)
}

impl<T> Spooling<T> {
    pub(super) fn new(options: &SpoolOptions, from: Recovered, live: u64, now: Millis) -> Self {
        let left = if from.count > 0 {
            from.done.floor()
        } else {
            from.next
        };
        let mut it = Self {
            persist: options.persist,
            bytes_max: options.bytes_max,
            name: from.name,
            next: from.next,
            staged: VecDeque::new(),
            staged_bytes: 0,
            written: from.next,
            synced: from.next,
            untold: None,
            unsynced_since: None,
            disk: Streams::new(left..from.next, 0..0),
            disk_count: from.count,
            live,
            born: from.next,
            loading: None,
            loaded: Stream::Live,
            load_after: 0,
            waiting: HashMap::new(),
            unsynced: VecDeque::new(),
            done: from.done,
            stretches_max: stretches_max(options.file_bytes),
            over: 0,
            over_bytes: 0,
            checkpoint_at: now,
            used: from.used,
            is_given_up: false,
            trouble: None,
            writes_message: false,
            closing: false,
        };
        // So the name is kept before any record is.
        it.stage_checkpoint(now);
        it
    }

    /// Whether each record goes to the log.
    pub(super) fn persists_all(&self) -> bool {
        self.persist != Persist::Overflow
    }

    pub(super) fn is_full(&self, size: u64) -> bool {
        self.trouble.is_some() || self.is_filled(size)
    }

    /// Whether it is full, and a file that is given up makes room.
    pub(super) fn wants_file(&self, size: u64) -> bool {
        match self.trouble {
            None => self.is_filled(size),
            Some(Trouble::Full { lack, .. }) => lack == Lack::Bytes,
            Some(Trouble::Failed) => false,
        }
    }

    fn is_filled(&self, size: u64) -> bool {
        let given_up = self.used.oldest.filter(|_| self.is_given_up);
        let used = self.used.bytes - given_up.map_or(0, |(_, bytes)| bytes);
        used.saturating_add(self.staged_bytes + size) > self.bytes_max
    }

    pub(super) fn has_failed(&self) -> bool {
        self.trouble == Some(Trouble::Failed)
    }

    pub(super) fn used(&self) -> u64 {
        self.used.bytes
    }

    /// The spot behind the oldest file. `None`: there is only one file, or it was given up before.
    pub(super) fn may_give_up(&self) -> Option<u64> {
        let oldest = self.used.oldest.filter(|_| !self.is_given_up)?;
        Some(oldest.0)
    }

    /// Whether the file of that spot was given up.
    pub(super) fn has_given_up(&self, spot: u64) -> bool {
        let oldest = self.used.oldest.filter(|_| self.is_given_up);
        oldest.is_some_and(|(until, _)| spot < until)
    }

    /// Gives up the records of the oldest file that are on disk only. Returns who waits for each of them.
    pub(super) fn give_up_oldest(&mut self, in_memory: &HashSet<u64>) -> Vec<Waits<T>> {
        let Some(until) = self.may_give_up() else {
            return Vec::new();
        };
        self.is_given_up = true;
        let mut waits = Vec::new();
        for spot in self.done.floor()..until {
            if !self.done.contains(spot) && !in_memory.contains(&spot) {
                waits.push(self.finish_on_disk(spot));
            }
        }
        for stream in Stream::ALL {
            self.raise(stream, until);
        }
        waits
    }

    fn set_used(&mut self, used: Used) {
        let is_same = used.oldest.map(|it| it.0) == self.used.oldest.map(|it| it.0);
        self.is_given_up &= is_same;
        if !is_same && !self.has_failed() {
            // A file has gone, so there is room, and no other is given up before that was tried.
            self.trouble = None;
        }
        self.used = used;
    }

    /// Gives a record its spot.
    pub(super) fn stage(
        &mut self,
        label: Label,
        expires: Option<WallTime>,
        size: u64,
        message: Message,
        now: Millis,
    ) -> u64 {
        let spot = self.next;
        self.next += 1;
        self.staged_bytes += size;
        self.unsynced_since.get_or_insert(now);
        self.untold = None;
        self.staged.push_back(Staged::Message {
            spot,
            label,
            expires,
            size,
            message,
        });
        spot
    }

    pub(super) fn want_durable(&mut self, spot: u64, place: Option<(u64, usize)>) {
        self.unsynced.push_back((spot, place));
    }

    fn stage_checkpoint(&mut self, now: Millis) {
        // A checkpoint is over as soon as there is one.
        self.done.insert_blank(self.next);
        self.next += 1;
        self.staged.push_back(Staged::Checkpoint(Checkpoint {
            name: self.name.clone(),
            done: self.done.clone(),
        }));
        (self.over, self.over_bytes) = (0, 0);
        (self.checkpoint_at, self.untold) = (now, None);
    }

    fn stage_void(&mut self) {
        self.done.insert_blank(self.next);
        self.next += 1;
        self.staged.push_back(Staged::Void);
        self.untold = None;
    }

    /// A record is over. `bytes`: of its message.
    pub(super) fn finish(&mut self, spot: u64, bytes: u64) {
        self.done.insert(spot);
        self.over += 1;
        self.over_bytes += bytes;
    }

    /// A record is over that is on disk only. Returns who waits for it.
    pub(super) fn finish_on_disk(&mut self, spot: u64) -> Waits<T> {
        self.finish(spot, 0);
        self.disk_count = self.disk_count.saturating_sub(1);
        self.waiting.remove(&spot)
    }

    /// The last of all is written now. A full disk is tried once more.
    pub(super) fn close(&mut self) {
        self.closing = true;
        if !self.has_failed() {
            self.trouble = None;
        }
    }

    /// What the thread is to do now. `load`: what it may read.
    pub(super) fn take_work(&mut self, now: Millis, load: Option<Load>) -> Option<Work> {
        if self.trouble == Some(Trouble::Failed) {
            return None;
        }
        let (is_full, nothing_fits) = match self.trouble {
            Some(Trouble::Full {
                until,
                nothing_fits,
                ..
            }) => (now < until, nothing_fits),
            _ => (false, false),
        };
        if !is_full && !nothing_fits && !self.staged.iter().any(|it| self.needs_room(it)) {
            // The next one that comes tries it.
            self.trouble = None;
        }
        let is_due = match self.closing {
            true => self.over > 0,
            false => self.checkpoint_due().is_some_and(|due| due <= now),
        };
        let is_untold = self.untold_due().is_some_and(|due| due <= now);
        // One that is not written yet is enough: it may stand behind a message that finds no room for hours.
        if !is_full && is_due && !self.has_staged_checkpoint() {
            self.stage_checkpoint(now);
        } else if !is_full && is_untold {
            self.stage_void();
        }
        // What is over needs no room, also on a full disk; what is behind it waits. If even that finds none, all waits.
        let fresh = self.staged.iter().map(|staged| match staged {
            Staged::Message { spot, .. } if self.done.contains(*spot) => Staged::Void,
            other => other.clone(),
        });
        let fresh = fresh
            .take_while(|it| !is_full || !(nothing_fits || matches!(it, Staged::Message { .. })));
        let mut work = Work {
            write: fresh.collect(),
            ..Work::default()
        };
        let is_message = |it: &Staged| matches!(it, Staged::Message { .. });
        self.writes_message = work.write.iter().any(is_message);
        work.sync = self.is_sync_due(now, !work.write.is_empty());
        self.loading = self.loading.or(load);
        work.load = load;
        (!work.is_empty()).then_some(work)
    }

    fn has_staged_checkpoint(&self) -> bool {
        let mut staged = self.staged.iter();
        staged.any(|it| matches!(it, Staged::Checkpoint(_)))
    }

    fn untold_due(&self) -> Option<Millis> {
        Some(
            self.untold
                .filter(|_| !self.closing)?
                .saturating_add(CHECKPOINT_EVERY),
        )
    }

    /// When the next checkpoint comes, if that does not wait for more records that are over.
    fn checkpoint_due(&self) -> Option<Millis> {
        let stretches = self.done.stretches() as u64;
        let is_worth_it = self.over_bytes >= BYTES_OVER * STRETCH_BYTES * stretches;
        // The oldest file goes when there is one.
        let frees_file = (self.used.oldest).is_some_and(|(until, _)| until <= self.done.floor());
        if self.over == 0 || !(is_worth_it || frees_file) {
            return None;
        }
        let seldom = 1 + stretches / STRETCHES_FEW;
        if self.over >= CHECKPOINT_COUNT * seldom {
            return Some(0);
        }
        Some((self.checkpoint_at).saturating_add(CHECKPOINT_EVERY * seldom))
    }

    /// Whether something is written, or about to be, that is to be synced now.
    fn is_sync_due(&self, now: Millis, writes: bool) -> bool {
        if !writes && self.synced >= self.written {
            return false;
        }
        // Where there are only checkpoints, their sync comes with the next one.
        let Some(since) = self.unsynced_since else {
            return self.closing;
        };
        self.closing || now >= self.sync_due(since)
    }

    /// When records are to be synced of which the first was staged then.
    fn sync_due(&self, since: Millis) -> Millis {
        match self.persist {
            Persist::Each => since,
            Persist::Every(every) => since.saturating_add(millis(every)),
            Persist::Count(most) if self.next - self.synced >= u64::from(most.get()) => since,
            Persist::Overflow if !self.unsynced.is_empty() => since,
            Persist::Count(_) | Persist::Overflow => since.saturating_add(COUNT_WAIT),
        }
    }

    /// When there will be work though nothing happens.
    pub(super) fn next_wake(&self) -> Option<Millis> {
        let sync = self.unsynced_since.map(|since| self.sync_due(since));
        let checkpoint = self.checkpoint_due();
        let checkpoint = checkpoint.into_iter().chain(self.untold_due()).min();
        match self.trouble {
            Some(Trouble::Failed) => None,
            Some(Trouble::Full { until, .. }) => Some(until),
            None if self.staged.is_empty() && self.synced >= self.written => checkpoint,
            None => sync.into_iter().chain(checkpoint).min(),
        }
    }

    /// So many of the staged records are written.
    pub(super) fn wrote(&mut self, count: usize, used: Used) {
        self.set_used(used);
        if self.staged.iter().take(count).any(|it| self.needs_room(it)) {
            self.trouble = None;
        }
        if let Some(Trouble::Full { nothing_fits, .. }) = &mut self.trouble {
            *nothing_fits &= count == 0;
        }
        for staged in self.staged.drain(..count) {
            if let Staged::Message { size, .. } = staged {
                self.staged_bytes -= size;
            }
        }
        self.written += count as u64;
    }

    /// Whether it is a message that is not over.
    fn needs_room(&self, staged: &Staged) -> bool {
        matches!(staged, Staged::Message { spot, .. } if !self.done.contains(*spot))
    }

    /// The disk lacked that for the records that were handed over last, from the first that is not written. Returns
    /// whether it had room before.
    pub(super) fn is_out_of_room(&mut self, used: Used, lack: Lack, now: Millis) -> bool {
        self.set_used(used);
        let full = Trouble::Full {
            until: now.saturating_add(FULL_PAUSE),
            lack,
            nothing_fits: !self.writes_message,
        };
        self.trouble.replace(full).is_none()
    }

    pub(super) fn fail(&mut self) {
        self.trouble = Some(Trouble::Failed);
    }

    /// Records before this spot are durable. Returns those that somebody waits for.
    pub(super) fn synced(&mut self, before: u64, now: Millis) -> Vec<(u64, Option<(u64, usize)>)> {
        // A sync of a checkpoint alone is no news.
        if self.unsynced_since.is_some() && self.staged.is_empty() {
            self.untold = Some(now);
        }
        self.synced = self.synced.max(before);
        // What was staged meanwhile waits from now on.
        self.unsynced_since = (self.synced < self.next && !self.staged.is_empty()).then_some(now);
        let mut durable = Vec::new();
        while let Some(first) = self.unsynced.front().filter(|(spot, _)| *spot < before) {
            durable.push(*first);
            self.unsynced.pop_front();
        }
        durable
    }

    /// Those who wait for a sync of what is not even written.
    pub(super) fn take_unwritten(&mut self) -> Vec<(u64, Option<(u64, usize)>)> {
        let written = self.written;
        let at = self.unsynced.partition_point(|(spot, _)| *spot < written);
        self.unsynced.split_off(at).into()
    }

    /// The messages that are neither written nor over, and on disk only.
    pub(super) fn unwritten(&self) -> Vec<u64> {
        let staged = self.staged.iter().filter(|it| self.needs_room(it));
        let spots = staged.filter_map(|it| match it {
            Staged::Message { spot, label, .. } => {
                let disk = &self.disk[self.stream(*label)];
                disk.contains(spot).then_some(*spot)
            }
            _ => None,
        });
        spots.collect()
    }

    /// All who wait for a sync, which will not come.
    pub(super) fn take_unsynced(&mut self) -> Vec<(u64, Option<(u64, usize)>)> {
        std::mem::take(&mut self.unsynced).into()
    }

    /// A load has failed; it is tried again later.
    pub(super) fn load_failed(&mut self, now: Millis) {
        self.loading = None;
        self.load_after = now.saturating_add(LOAD_PAUSE);
    }

    /// A load has ended: the records of its stream before `next` are in memory or over.
    pub(super) fn loaded(&mut self, next: u64) {
        if let Some(load) = self.loading.take() {
            self.loaded = load.stream;
            self.raise(load.stream, next);
        }
    }

    fn raise(&mut self, stream: Stream, next: u64) {
        let disk = &mut self.disk[stream];
        disk.start = disk.start.max(next);
    }

    fn stream(&self, label: Label) -> Stream {
        match label.opening == self.live {
            true => Stream::Live,
            false => Stream::Backlog,
        }
    }

    /// How many records are on disk only.
    pub(super) fn disk_count(&self) -> u64 {
        self.disk_count
    }

    /// Whether records of the stream are on disk only.
    pub(super) fn is_spilled(&self, stream: Stream) -> bool {
        !self.disk[stream].is_empty()
    }

    /// How many records, and bytes, are being read.
    pub(super) fn coming(&self) -> (usize, u64) {
        (self.loading.as_ref()).map_or((0, 0), |load| (load.count, load.bytes))
    }

    /// Where the next record of the stream is read, if one may be read now, and whether an earlier opening has left it.
    pub(super) fn next_read(&self, stream: Stream, now: Millis) -> Option<(u64, bool)> {
        let from = self.disk[stream].start;
        let may_read = self.is_spilled(stream)
            && from < self.written
            && self.loading.is_none()
            && !self.closing
            && now >= self.load_after;
        may_read.then_some((from, from < self.born))
    }

    /// Whether what is being read is what an earlier opening has left.
    pub(super) fn loads_left_overs(&self) -> bool {
        (self.loading.as_ref())
            .is_some_and(|load| load.stream == Stream::Backlog && load.from < self.born)
    }

    /// Of which stream is read first: of both in turn.
    pub(super) fn turns(&self) -> [Stream; 2] {
        match self.loaded {
            Stream::Live => [Stream::Backlog, Stream::Live],
            Stream::Backlog => [Stream::Live, Stream::Backlog],
        }
    }

    pub(super) fn load(&self, stream: Stream, from: u64, (count, bytes): (usize, u64)) -> Load {
        Load {
            stream,
            live: self.live,
            from,
            until: self.disk[stream].end,
            count,
            bytes,
        }
    }

    /// Whether what is over is in so many stretches that there must not be more.
    pub(super) fn is_scattered(&self) -> bool {
        self.done.stretches() >= self.stretches_max
    }

    /// The first record of a stream that is on disk only, if it is still staged: it need not be read. A record of the
    /// other stream, or one that is over, is none.
    pub(super) fn next_staged(&self, stream: Stream) -> Option<Option<&Staged>> {
        let from = Some(self.disk[stream].start).filter(|_| self.is_spilled(stream))?;
        let at = from.checked_sub(self.written)?;
        let staged = self.staged.get(usize::try_from(at).ok()?)?;
        let is_it = matches!(staged, Staged::Message { spot, label, .. }
            if self.stream(*label) == stream && !self.done.contains(*spot));
        Some(is_it.then_some(staged))
    }

    /// That record is in memory now, or was none.
    pub(super) fn pass_staged(&mut self, stream: Stream) {
        self.disk[stream].start += 1;
    }

    /// A record was staged that is on disk only.
    pub(super) fn spill(&mut self, stream: Stream, spot: u64) {
        self.disk_count += 1;
        if !self.is_spilled(stream) {
            self.disk[stream].start = spot;
        }
        self.disk[stream].end = spot + 1;
    }

    /// A record that was on disk only comes into memory.
    pub(super) fn comes(&mut self) {
        self.disk_count = self.disk_count.saturating_sub(1);
    }

    /// Whether the log has everything that it is to have, or cannot get it.
    pub(super) fn is_settled(&self) -> bool {
        let has_all = self.staged.is_empty() && self.synced >= self.written && self.over == 0;
        has_all || self.has_failed() || (self.closing && self.trouble.is_some())
    }
}
