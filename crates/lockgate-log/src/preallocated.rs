//! The preallocated files, of which the next segments are made, and the free space.
//!
//! Appends only write into allocated blocks. So a full disk shows in a reservation and not in an append. A
//! *preallocated file* has such blocks: it is a new file whose blocks were allocated, or a released segment.
//! The first write to an allocated block is slower than later ones, because it changes the file's metadata.
//! So maintenance writes zeros into the next preallocated files, a MiB at a time, with a sync of each piece.
//! A sync of the live segment then never waits for much of that.
//!
//! The last preallocated files are the *reserve*: only commands that make a full log less full may take them.
//!
//! Segments are small in a small log and larger in a large one. All preallocated files are at least
//! as large as the next segments. So maintenance first makes the files larger and then the
//! segments, and the other way round when they shrink.

use std::{
    cmp::Reverse,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use lockgate_core::{Disk, DiskError, DiskFile, DiskSpace, OpenMode, SpaceState, StepOutcome};

use crate::{
    format::SEGMENT_HEADER_LEN,
    names::{preallocated_name, segment_name},
    recover::keep_damaged,
    reserve::Share,
    sizes::Limits,
    sync::{AtomicBool, Condvar, Mutex, MutexGuard},
};

/// Zeros written and synced at a time.
const PIECE_BYTES: u32 = 1 << 20;

/// How many preallocated files have every block written.
const WRITTEN_MIN: usize = 2;

/// A snapshot that needs room leaves so many preallocated files, and two of three of the reserve.
const KEPT_FOR_RECORDS: usize = 2;

/// The load of so many ticks, a minute, decides how many files are kept ready.
const LOAD_TICKS: usize = 6;

/// The most files kept, unless the reserve is larger: each is an open file.
pub(crate) const PREALLOCATED_MAX: usize = 128;

/// A preallocated file with a higher number is not the log's; counting on from it would use up the numbers.
const FOUND_NUMBER_MAX: u32 = u32::MAX / 2;

/// The default of the low mark: the larger of this and a part of the file system.
const LOW_BYTES: u64 = 2 << 30;
const LOW_PART: u64 = 20;

pub(crate) struct Preallocated {
    disk: Arc<dyn Disk>,
    limits: Limits,
    state: Mutex<State>,
    /// Signals that a preallocated file that was lent is back.
    returned: Condvar,
    /// Whether another thread does the work that nobody waits for.
    is_attended: AtomicBool,
    /// Its share of a reserve that several logs share.
    share: Option<Share>,
}

#[derive(Default)]
struct State {
    /// Bytes of the next segments. No preallocated file is smaller.
    segment_bytes: u32,
    /// The size that the next segments should have. If it is larger, the preallocated files must grow first.
    wanted_bytes: u32,
    preallocated: Vec<PreallocatedFile>,
    /// Preallocated files that [`Preallocated::step`] is writing to, and their bytes.
    in_hand: usize,
    in_hand_bytes: u64,
    /// Files that are being created, of the size that segments had when that began.
    making: usize,
    /// Whether a record was promised a preallocated file larger than the next segments.
    is_large_promised: bool,
    /// The most segments a reservation asked for since the last trim.
    asked: usize,
    /// Bytes of the segments that hold records.
    held_bytes: u64,
    /// Segments of the reserve, as far as its share allows.
    reserve: usize,
    /// Segments begun in this tick and the ones before, newest first, and bytes appended before
    /// this tick and the last one.
    begun_lately: [usize; LOAD_TICKS + 1],
    appended_before: [u64; 2],
    /// The next preallocated file's number.
    next_number: u32,
    /// Segments that nobody reads any more.
    retired: Vec<Retired>,
    /// Whether the start mark that allows segments to retire may not be durable yet.
    start_unsynced: bool,
    /// Segments that hold records.
    held: usize,
    /// Segments begun since the last trim, and between the two before.
    begun: usize,
    begun_before: usize,
    /// The same for released segments.
    released: usize,
    released_before: usize,
    /// Bytes appended by this instance, and zeros written ahead of them.
    appended: u64,
    zeroed: u64,
    seen: DiskSpace,
    is_low: bool,
    is_full: bool,
    /// The log holds so little that the room in its segment is all the reserve it needs.
    is_little: bool,
    /// The next growth would be refused, as far as is known, though none was yet. For reports only;
    /// [`Self::is_full`] decides what is refused, and until when.
    is_short: bool,
}

/// A file for a segment.
pub(crate) struct PreallocatedFile {
    number: u32,
    pub(crate) handle: Arc<dyn DiskFile>,
    /// Allocated bytes.
    pub(crate) bytes: u32,
    /// Whether no header of an earlier use is left in it, durably.
    is_blank: bool,
    /// Every block before this was written durably.
    pub(crate) written_until: u32,
    /// Whether what was written may be records of an earlier use.
    was_used: bool,
    /// Whether all of it is zero.
    pub(crate) is_zero: bool,
}

impl PreallocatedFile {
    fn is_written(&self) -> bool {
        self.written_until == self.bytes
    }

    pub(crate) fn name(&self) -> String {
        preallocated_name(self.number)
    }
}

/// A segment file that the log does not use any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    pub(crate) segment: u32,
    pub(crate) bytes: u64,
    /// Some of its bytes could not be read: the file is kept under another name. Otherwise it may
    /// become a preallocated file.
    pub(crate) is_damaged: bool,
}

/// The room that a reservation needs for records larger than a segment: so many files of so many bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Large {
    pub(crate) count: usize,
    pub(crate) bytes: u32,
}

/// Why there is no room.
pub(crate) enum NoRoom {
    Full { free: u64 },
    OutOfDescriptors(DiskError),
    Disk(DiskError),
}

impl Preallocated {
    pub(crate) fn new(disk: Arc<dyn Disk>, limits: Limits, share: Option<Share>) -> Self {
        Self {
            disk,
            limits,
            state: Mutex::default(),
            returned: Condvar::new(),
            is_attended: AtomicBool::new(false),
            share,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the log that a thread will call [`step`](Self::step) from now on.
    pub(crate) fn attend(&self) {
        self.is_attended.store(true, Ordering::Release);
    }

    pub(crate) fn is_attended(&self) -> bool {
        self.is_attended.load(Ordering::Acquire)
    }

    /// Takes over the preallocated files that a recovery found, and removes those that are
    /// unsuitable or too many. `held`: segments that hold records, and their bytes.
    pub(crate) fn start(
        &self,
        found: &[u32],
        (held, held_bytes): (usize, u64),
    ) -> Result<(), DiskError> {
        let least = self.limits.segment_bytes_min();
        let mut whole = Vec::new();
        for &number in found {
            let name = preallocated_name(number);
            let file = self.disk.open(&name, OpenMode::Existing)?;
            let bytes = u32::try_from(file.len()?).unwrap_or(0);
            if bytes < least || number > FOUND_NUMBER_MAX {
                self.disk.remove(&name)?;
                continue;
            }
            whole.push(PreallocatedFile {
                number,
                handle: file,
                bytes,
                // It may be a segment whose name was lost.
                is_blank: false,
                written_until: 0,
                was_used: false,
                is_zero: false,
            });
        }
        let wanted_bytes = (self.limits).segment_bytes_for(self.limits.segment_bytes, held_bytes);
        // On a full disk only the files found are available.
        let shortest = whole.iter().map(|file| file.bytes).min();
        let segment_bytes = shortest.map_or(wanted_bytes, |bytes| bytes.min(wanted_bytes));
        let reserve = self.limits.reserve(segment_bytes, held_bytes);
        // And one to grow into.
        let preallocated_max = preallocated_max(reserve, 1);
        let mut preallocated = Vec::new();
        for file in whole {
            if preallocated.len() < preallocated_max {
                preallocated.push(file);
            } else {
                self.disk.remove(&file.name())?;
            }
        }
        let seen = self.disk.space()?;
        let mut state = self.state();
        *state = State {
            segment_bytes,
            wanted_bytes,
            preallocated,
            next_number: found
                .iter()
                .filter(|&&number| number <= FOUND_NUMBER_MAX)
                .max()
                .map_or(1, |number| number + 1),
            held,
            held_bytes,
            reserve,
            ..State::default()
        };
        self.note_space(&mut state, seen);
        self.judge_reserve(&mut state);
        Ok(())
    }

    // What the owner of the log does.

    /// Ensures that `segments` can be begun without taking more of the disk, with `large` ones besides them;
    /// for growth, also that the reserve is then left. Adds the files that were made for that to `created`,
    /// even if this fails: they survive a power cut once they and their names are synced.
    pub(crate) fn reserve(
        &self,
        segments: usize,
        large: Large,
        is_growth: bool,
        created: &mut Vec<Arc<dyn DiskFile>>,
    ) -> Result<(), NoRoom> {
        let mut asked = false;
        loop {
            let (number, bytes) = {
                let mut state = self.state();
                let wanted = self.wanted(&state, segments + large.count, is_growth);
                let are_large = state
                    .preallocated
                    .iter()
                    .filter(|it| it.bytes >= large.bytes);
                let lacks_large = large.count.saturating_sub(are_large.count());
                let lacking = wanted
                    .saturating_sub(state.preallocated.len() + state.in_hand)
                    .max(lacks_large);
                if lacking == 0 {
                    state.asked = state.asked.max(segments + large.count);
                    state.is_large_promised |= large.count > 0;
                    state.is_full &= !is_growth;
                    state.is_short &= !is_growth;
                    return Ok(());
                }
                // While the log is full and another thread checks the disk, refused commands need
                // not check it each time.
                if is_growth && !(asked || state.is_full && self.is_attended()) {
                    let seen = self.disk.space().map_err(NoRoom::Disk)?;
                    self.note_space(&mut state, seen);
                    asked = true;
                }
                let in_large = (lacks_large as u64).saturating_mul(large.bytes.into());
                let usual = (lacking - lacks_large) as u64;
                let needed = usual
                    .saturating_mul(state.segment_bytes.into())
                    .saturating_add(in_large);
                if is_growth && self.above_stop(&state) < needed {
                    state.is_full = true;
                    let free = self.room_for_growth(&state);
                    return Err(NoRoom::Full { free });
                }
                let bytes = if lacks_large > 0 {
                    large.bytes
                } else {
                    state.segment_bytes
                };
                state.making += 1;
                (state.take_number(), bytes)
            };
            match self.create(number, bytes) {
                Ok(file) => {
                    created.push(file.handle.clone());
                    self.put(file);
                }
                Err(error) => {
                    let mut state = self.state();
                    state.making -= 1;
                    if error.is_full() {
                        state.is_full |= is_growth;
                        state.seen.free = state.seen.free.min(bytes.into());
                        let free = self.room_for_growth(&state);
                        return Err(NoRoom::Full { free });
                    }
                    return Err(if error.is_out_of_descriptors() {
                        NoRoom::OutOfDescriptors(error)
                    } else {
                        NoRoom::Disk(error)
                    });
                }
            }
        }
    }

    /// Takes the best preallocated file of at least so many bytes for a new segment; `None` if there is none.
    pub(crate) fn take(&self, bytes: u32) -> Result<Option<PreallocatedFile>, DiskError> {
        let mut state = self.state();
        let mut file = loop {
            let enough =
                (0..state.preallocated.len()).filter(|&at| state.preallocated[at].bytes >= bytes);
            // A large file is kept for a large record.
            let best = enough.max_by_key(|&index| {
                let file = &state.preallocated[index];
                (Reverse(file.bytes), file.is_blank, file.written_until)
            });
            if let Some(best) = best {
                break state.preallocated.swap_remove(best);
            }
            if state.in_hand == 0 {
                return Ok(None);
            }
            // Maintenance is writing a piece of zeros to it, which takes a few milliseconds.
            state = self
                .returned
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        if !file.is_blank {
            blank(&*file.handle)?;
            file.is_blank = true;
        }
        Ok(Some(file))
    }

    pub(crate) fn note_begun(&self) {
        let mut state = self.state();
        state.held += 1;
        state.begun += 1;
        state.begun_lately[0] += 1;
        self.judge_reserve(&mut state);
    }

    /// Between two groups: chooses the size of the next segments, for a log that holds so many bytes.
    pub(crate) fn adapt(&self, held_bytes: u64) -> u32 {
        let mut state = self.state();
        state.held_bytes = held_bytes;
        state.is_large_promised = false;
        // At a high rate, small segments would cost too many folder syncs.
        let bytes = held_bytes.max(state.appended - state.appended_before[1]);
        let wanted = self.limits.segment_bytes_for(state.segment_bytes, bytes);
        state.wanted_bytes = wanted;
        // Larger segments must wait until the preallocated files are as large.
        state.segment_bytes = state.segment_bytes.min(wanted);
        self.judge_reserve(&mut state);
        state.segment_bytes
    }

    /// The size of the first segments.
    pub(crate) fn segment_bytes(&self) -> u32 {
        match self.state().segment_bytes {
            0 => self.limits.segment_bytes,
            bytes => bytes,
        }
    }

    /// Called every ten seconds.
    pub(crate) fn tick(&self) {
        let mut state = self.state();
        state.begun_lately.rotate_right(1);
        state.begun_lately[0] = 0;
        state.appended_before = [state.appended, state.appended_before[0]];
    }

    /// A segment was begun and taken back.
    pub(crate) fn note_taken_back(&self) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(1);
        state.begun = state.begun.saturating_sub(1);
        self.judge_reserve(&mut state);
    }

    /// The log's first segment has only part of its blocks, or now all of them.
    pub(crate) fn note_little(&self, is_little: bool) {
        let mut state = self.state();
        state.is_little = is_little;
        self.judge_reserve(&mut state);
    }

    pub(crate) fn is_little(&self) -> bool {
        self.state().is_little
    }

    /// Whether growth may take so many bytes of the disk without passing the stop mark.
    pub(crate) fn may_grow(&self, bytes: u32) -> Result<bool, DiskError> {
        let seen = self.disk.space()?;
        self.note_space(&mut self.state(), seen);
        Ok(seen.free.saturating_sub(self.limits.free_bytes_min) >= u64::from(bytes))
    }

    /// A write found the disk full.
    pub(crate) fn note_full(&self) {
        self.state().is_full = true;
    }

    pub(crate) fn note_appended(&self, bytes: u64) {
        self.state().appended += bytes;
    }

    /// The start mark has moved.
    pub(crate) fn note_trimmed(&self) {
        let mut state = self.state();
        state.start_unsynced = true;
        state.begun_before = std::mem::take(&mut state.begun);
        state.released_before = std::mem::take(&mut state.released);
        state.asked = 0;
    }

    /// Takes over a segment that nobody reads any more.
    pub(crate) fn retire(&self, segment: Retired) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(1);
        state.released += 1;
        state.retired.push(segment);
        self.judge_reserve(&mut state);
    }

    /// Gives a part of the reserve back to the disk for a snapshot that found no room: the snapshot
    /// makes room again. The files that records need stay.
    pub(crate) fn give_up_one(&self) -> Result<bool, DiskError> {
        self.give_up_above(|state| (2 * state.reserve).div_ceil(3).max(KEPT_FOR_RECORDS))
    }

    /// The same for records, in a segment that lacks blocks: they may have the whole reserve.
    pub(crate) fn give_up_for_records(&self) -> Result<bool, DiskError> {
        self.give_up_above(|_| 0)
    }

    /// Removes a preallocated file if there are more than are `kept`. Returns whether it has.
    fn give_up_above(&self, kept: impl Fn(&State) -> usize) -> Result<bool, DiskError> {
        let file = {
            let mut state = self.state();
            if state.preallocated.len() <= kept(&state) {
                return Ok(false);
            }
            let worst = state.worst();
            worst.map(|worst| state.preallocated.swap_remove(worst))
        };
        match file {
            Some(file) => self.remove(file).map(|()| true),
            None => Ok(false),
        }
    }

    /// Bytes in preallocated files, the disk's free bytes as last read, and their state.
    pub(crate) fn space(&self) -> (u64, u64, SpaceState) {
        let state = self.state();
        let in_preallocated: u64 = state
            .preallocated
            .iter()
            .map(|it| u64::from(it.bytes))
            .sum();
        let retired: u64 = state.retired.iter().map(|it| it.bytes).sum();
        let judgement = if state.is_full || state.is_short {
            SpaceState::Full
        } else if state.is_low {
            SpaceState::Low
        } else {
            SpaceState::Normal
        };
        let bytes = in_preallocated + state.in_hand_bytes + retired;
        (bytes, state.seen.free, judgement)
    }

    // What nobody waits for.

    /// Does one piece of work.
    pub(crate) fn step(&self) -> Result<StepOutcome, StepError> {
        let recycled = match self.recycle() {
            Ok(true) => return Ok(StepOutcome::More),
            Err(StepError::Names(error)) => return Err(StepError::Names(error)),
            // The next step tries it again, and the other work goes on.
            recycled => recycled,
        };
        let seen = self.disk.space()?;
        {
            let mut state = self.state();
            self.note_space(&mut state, seen);
            self.judge_reserve(&mut state);
        }
        let mut failed = None;
        for work in [Self::shrink, Self::fit, Self::supply, Self::write_piece] {
            match work(self) {
                // After a failure the other work goes on, but the caller waits before it tries again.
                Ok(done) if done && failed.is_none() => return Ok(StepOutcome::More),
                Ok(_) => {}
                Err(StepError::Names(error)) => return Err(StepError::Names(error)),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => recycled.map(|_none| StepOutcome::Done),
        }
    }

    /// Makes preallocated files of retired segments, or removes them. Returns whether there were any. Errors
    /// with single files are returned after all were tried, and the next call tries those again.
    pub(crate) fn recycle(&self) -> Result<bool, StepError> {
        let (retired, start_unsynced) = {
            let mut state = self.state();
            if state.retired.is_empty() {
                return Ok(false);
            }
            let retired = std::mem::take(&mut state.retired);
            (retired, std::mem::take(&mut state.start_unsynced))
        };
        // A segment may go only when the mark that allows it is durable.
        if start_unsynced {
            self.disk.sync_folder().map_err(StepError::Names)?;
        }
        let mut renamed = Vec::new();
        let mut failed = None;
        for segment in retired {
            let number = segment.segment;
            let done = if segment.is_damaged {
                keep_damaged(&*self.disk, number)
            } else {
                self.to_preallocated(number, renamed.len())
                    .map(|file| renamed.extend(file))
            };
            match done {
                Ok(()) => {}
                // The file is gone already.
                Err(error) if error.is_not_found() => _ = failed.get_or_insert(error),
                Err(error) => {
                    self.state().retired.push(segment);
                    failed.get_or_insert(error);
                }
            }
        }
        if !renamed.is_empty() {
            // Before any of their bytes change: under its old name, each is a segment.
            self.disk.sync_folder().map_err(StepError::Names)?;
        }
        for mut file in renamed {
            if let Err(error) = blank(&*file.handle) {
                // After a failed sync its bytes cannot be trusted.
                let _ = self.disk.remove(&file.name());
                failed.get_or_insert(error);
                continue;
            }
            file.is_blank = true;
            self.state().preallocated.push(file);
        }
        // Remove the files that still have to be written and that these replace. Only now, so that
        // the reserve is never short.
        while self.shrink()? {}
        let seen = self.disk.space()?;
        self.note_space(&mut self.state(), seen);
        match failed {
            None => Ok(true),
            Some(error) => Err(error.into()),
        }
    }

    /// Renames a released segment to a preallocated file, if one is wanted besides `more` or it is
    /// better than a present one; otherwise removes it.
    fn to_preallocated(
        &self,
        segment: u32,
        more: usize,
    ) -> Result<Option<PreallocatedFile>, DiskError> {
        let name = segment_name(segment);
        let (number, whole) = {
            let mut state = self.state();
            let written = state.written();
            let is_wanted = written + state.in_hand + more < self.preallocated_max(&state);
            (is_wanted.then(|| state.take_number()), state.segment_bytes)
        };
        let opened = match number {
            Some(number) => match self.disk.open(&name, OpenMode::Existing) {
                Ok(file) => Some((number, file)),
                // It cannot be kept open, so it is removed.
                Err(error) if error.is_out_of_descriptors() => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        if let Some((number, file)) = opened {
            // The last segment of an earlier epoch was cut, and some are of a time when segments
            // were smaller. The next step cuts one that is too large.
            let bytes = u32::try_from(file.len()?).unwrap_or(0);
            if bytes >= whole {
                let file = PreallocatedFile {
                    number,
                    handle: file,
                    bytes,
                    is_blank: false,
                    written_until: bytes,
                    was_used: true,
                    is_zero: false,
                };
                self.disk.rename(&name, &file.name())?;
                return Ok(Some(file));
            }
        }
        self.disk.remove(&name)?;
        Ok(None)
    }

    /// Removes a preallocated file that is not wanted any more.
    fn shrink(&self) -> Result<bool, StepError> {
        let kept = |state: &State| self.preallocated_max(state);
        Ok(self.give_up_above(kept)?)
    }

    /// Removes a preallocated file. If that fails, the file stays preallocated.
    fn remove(&self, file: PreallocatedFile) -> Result<(), DiskError> {
        let removed = self.disk.remove(&file.name());
        if removed.as_ref().is_err_and(|error| !error.is_not_found()) {
            self.state().preallocated.push(file);
        }
        removed
    }

    /// Makes one more preallocated file if there are fewer than the next segment and the reserve need.
    fn supply(&self) -> Result<bool, StepError> {
        let (number, bytes) = {
            let mut state = self.state();
            let count = state.preallocated.len() + state.in_hand;
            self.judge_fullness(&mut state);
            // One for the next segment only after some traffic: an idle log takes little.
            let next = usize::from(state.appended >= u64::from(state.segment_bytes / 2));
            if count >= self.wanted(&state, next, true) || self.obtainable(&state) == 0 {
                return Ok(false);
            }
            state.making += 1;
            (state.take_number(), state.segment_bytes)
        };
        // The reserve must survive a power cut.
        let made = self.create(number, bytes);
        let made = made.and_then(|file| match file.handle.sync() {
            Ok(()) => Ok(file),
            Err(error) => {
                // After a failed sync its blocks cannot be trusted; the next attempt makes a new file.
                let _ = self.disk.remove(&file.name());
                Err(error)
            }
        });
        match made {
            Ok(file) => {
                self.put(file);
                self.disk.sync_folder().map_err(StepError::Names)?;
                Ok(true)
            }
            Err(error) => {
                self.state().making -= 1;
                if error.is_full() {
                    // Another thread took it.
                    return Ok(false);
                }
                Err(error.into())
            }
        }
    }

    /// Cuts a preallocated file that is larger than the next segments, or grows one before they grow.
    fn fit(&self) -> Result<bool, StepError> {
        let (mut file, bytes) = {
            let mut state = self.state();
            let (now, wanted) = (state.segment_bytes, state.wanted_bytes);
            let is_larger = |file: &PreallocatedFile| file.bytes > wanted.max(now);
            let larger = state.preallocated.iter().position(is_larger);
            let next = larger.filter(|_| !state.is_large_promised).or_else(|| {
                let is_smaller = |file: &PreallocatedFile| file.bytes < wanted;
                state.preallocated.iter().position(is_smaller)
            });
            let Some(next) = next else {
                let is_idle = state.in_hand == 0 && state.making == 0;
                if now < wanted && is_idle {
                    state.segment_bytes = wanted;
                    self.judge_reserve(&mut state);
                    return Ok(true);
                }
                return Ok(false);
            };
            let more = wanted.saturating_sub(state.preallocated[next].bytes);
            if u64::from(more) > self.above_stop(&state) {
                return Ok(false);
            }
            (state.lend(next), wanted.max(now))
        };
        let was = file.bytes;
        let fitted = Self::fit_to(&mut file, bytes);
        let grown = match fitted {
            // Its new size must survive a power cut.
            Ok(()) if bytes > was => file.handle.sync(),
            _ => Ok(()),
        };
        if let Err(error) = grown {
            self.discard(&file, was);
            return Err(error.into());
        }
        self.state().give_back(file, was);
        self.returned.notify_all();
        match fitted {
            Ok(()) => Ok(true),
            // Another thread took it.
            Err(error) if error.is_full() => Ok(false),
            // The file is as it was, as far as the log counts on it.
            Err(error) => Err(error.into()),
        }
    }

    fn fit_to(file: &mut PreallocatedFile, bytes: u32) -> Result<(), DiskError> {
        if bytes < file.bytes {
            // Not synced: a start reads the length, and a file that is too long is cut again.
            file.handle.set_len(bytes.into())?;
            file.written_until = file.written_until.min(bytes);
        } else {
            file.handle.allocate(bytes.into())?;
        }
        file.bytes = bytes;
        Ok(())
    }

    /// Removes a lent file of `had` bytes whose sync failed: what it has cannot be trusted, and another sync
    /// might say nothing of it. If the removal fails, the next start finds the file and blanks it before use.
    ///
    /// A reservation may have counted on it. Its append then makes a file, and ends the log on a full disk. That
    /// takes two failures of one disk at a time, and loses nothing that was answered.
    fn discard(&self, file: &PreallocatedFile, had: u32) {
        let mut state = self.state();
        state.in_hand -= 1;
        state.in_hand_bytes -= u64::from(had);
        self.returned.notify_all();
        drop(state);
        let _ = self.disk.remove(&file.name());
    }

    /// Writes zeros to a preallocated file that will be used.
    fn write_piece(&self) -> Result<bool, StepError> {
        let mut file = {
            let mut state = self.state();
            if state.written() >= WRITTEN_MIN {
                return Ok(false);
            }
            // Twice what was appended, to get ahead; so a log with little traffic pays little.
            if state.zeroed >= state.appended.saturating_mul(2) {
                return Ok(false);
            }
            let next = (0..state.preallocated.len())
                .filter(|&index| !state.preallocated[index].is_written())
                .max_by_key(|&index| state.preallocated[index].written_until);
            let Some(next) = next else {
                return Ok(false);
            };
            state.lend(next)
        };
        match self.write_zeros(&mut file) {
            Ok(written) => {
                let mut state = self.state();
                state.zeroed += u64::from(written);
                let bytes = file.bytes;
                state.give_back(file, bytes);
                self.returned.notify_all();
                Ok(true)
            }
            Err(error) => {
                self.discard(&file, file.bytes);
                Err(error.into())
            }
        }
    }

    fn write_zeros(&self, file: &mut PreallocatedFile) -> Result<u32, DiskError> {
        let from = file.written_until;
        let count = PIECE_BYTES.min(file.bytes - from);
        file.handle
            .write_at(&vec![0; count as usize], u64::from(from))?;
        file.handle.sync()?;
        file.is_blank |= from == 0;
        file.written_until = from + count;
        // A file of an earlier use that grew has zeros at its end only.
        file.is_zero |= file.written_until == file.bytes && !file.was_used;
        Ok(count)
    }

    /// Creates a file and allocates its blocks.
    fn create(&self, number: u32, bytes: u32) -> Result<PreallocatedFile, DiskError> {
        let name = preallocated_name(number);
        let file = self.disk.open(&name, OpenMode::CreateNew)?;
        if let Err(error) = file.allocate(bytes.into()) {
            // Gives the allocated part back; if that fails, the next recovery removes it.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        Ok(PreallocatedFile {
            number,
            handle: file,
            bytes,
            is_blank: true,
            written_until: 0,
            was_used: false,
            is_zero: true,
        })
    }

    fn put(&self, file: PreallocatedFile) {
        let mut state = self.state();
        state.making -= 1;
        state.seen.free = (state.seen.free).saturating_sub(file.bytes.into());
        state.preallocated.push(file);
    }

    // Marks.

    fn note_space(&self, state: &mut State, seen: DiskSpace) {
        state.seen = seen;
        let low = self
            .limits
            .low_bytes
            .unwrap_or_else(|| LOW_BYTES.max(seen.total / LOW_PART));
        // Leaves the low state only well above the mark, so that the state does not flicker.
        state.is_low = seen.free < low || state.is_low && seen.free < low.saturating_add(low / 8);
    }

    /// Checks whether growth would be refused, so that a full disk shows before a command is
    /// refused, and whether there is room again.
    pub(crate) fn look(&self) {
        self.judge_fullness(&mut self.state());
    }

    fn judge_fullness(&self, state: &mut State) {
        let count = state.preallocated.len() + state.in_hand + self.obtainable(state);
        if state.is_full && count >= self.wanted(state, 1, true) {
            state.is_full = false;
        }
        // Leaves the full state only with room for one segment more, so that the state does not
        // flicker. A small log takes one next.
        let segments = usize::from(state.is_short) + usize::from(state.is_little);
        state.is_short = count < self.wanted(state, segments, true);
    }

    /// How many preallocated files must exist before `segments` may be begun. A small log can be emptied with
    /// little, so its reserve is no larger than what it holds. Once the log was full, one more is needed.
    fn wanted(&self, state: &State, segments: usize, is_growth: bool) -> usize {
        if !is_growth {
            return segments;
        }
        let reserve = if state.is_little { 0 } else { state.reserve };
        segments + reserve + usize::from(state.is_full)
    }

    /// Bytes of the disk that growth may still take.
    fn above_stop(&self, state: &State) -> u64 {
        state.seen.free.saturating_sub(self.limits.free_bytes_min)
    }

    /// Segments that could still be allocated without passing the stop mark.
    fn obtainable(&self, state: &State) -> usize {
        let segments = self.above_stop(state) / u64::from(state.segment_bytes.max(1));
        usize::try_from(segments).unwrap_or(usize::MAX / 4)
    }

    /// Sets the size of the reserve: no more segments than the log holds, and no more than its share.
    fn judge_reserve(&self, state: &mut State) {
        let reserve = (self.limits)
            .reserve(state.segment_bytes, state.held_bytes)
            .min(state.held);
        state.reserve = match &self.share {
            Some(share) if !state.is_little => share.claim(reserve, state.segment_bytes),
            Some(share) => {
                share.claim(0, state.segment_bytes);
                reserve
            }
            None => reserve,
        };
    }

    /// The most preallocated files that are kept. In steady use, as many segments come back at a trim as were
    /// begun since the previous one, and as many are begun until the next, if the load stays that of the last
    /// minute. While a backlog drains more come back, and while it grows fewer do.
    fn preallocated_max(&self, state: &State) -> usize {
        let until_trim = state.begun_before.min(state.released_before);
        let by_load = state.begun_lately.iter().sum();
        let more = until_trim
            .saturating_sub(state.begun)
            .min(by_load)
            .min(state.held);
        preallocated_max(state.reserve, more.max(state.asked).max(1))
    }

    fn room_for_growth(&self, state: &State) -> u64 {
        let reserve = self.wanted(state, 0, true);
        let segments = (state.preallocated.len() + state.in_hand + self.obtainable(state))
            .saturating_sub(reserve);
        let bytes = u64::from(state.segment_bytes.saturating_sub(SEGMENT_HEADER_LEN));
        (segments as u64).saturating_mul(bytes)
    }
}

/// The most preallocated files that are kept: the reserve, and `more`.
fn preallocated_max(reserve: usize, more: usize) -> usize {
    (reserve + more).min(PREALLOCATED_MAX.max(reserve))
}

impl State {
    /// How many preallocated files have every block written.
    fn written(&self) -> usize {
        let written = self.preallocated.iter().filter(|file| file.is_written());
        written.count()
    }

    /// The preallocated file with the fewest bytes written, but none that a large record was promised.
    fn worst(&self) -> Option<usize> {
        let largest = self.segment_bytes.max(self.wanted_bytes);
        (0..self.preallocated.len())
            .filter(|&index| !self.is_large_promised || self.preallocated[index].bytes <= largest)
            .min_by_key(|&index| self.preallocated[index].written_until)
    }

    /// Takes a preallocated file out for maintenance; the file still counts.
    fn lend(&mut self, index: usize) -> PreallocatedFile {
        let file = self.preallocated.swap_remove(index);
        self.in_hand += 1;
        self.in_hand_bytes += u64::from(file.bytes);
        file
    }

    /// Takes a lent file back; `had` is its size when it was lent.
    fn give_back(&mut self, file: PreallocatedFile, had: u32) {
        self.in_hand -= 1;
        self.in_hand_bytes -= u64::from(had);
        self.preallocated.push(file);
    }

    fn take_number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}

/// Why a step failed.
pub(crate) enum StepError {
    /// It is unknown which names are durable.
    Names(DiskError),
    Disk(DiskError),
}

impl From<DiskError> for StepError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

/// Durably erases the header of an earlier use. Otherwise the old segment could come back: if a
/// power cut has taken the same segment number back, the file becomes a segment of that number
/// again, and its new header is lost too, then the old header would be valid.
fn blank(file: &dyn DiskFile) -> Result<(), DiskError> {
    file.write_at(&[0; SEGMENT_HEADER_LEN as usize], 0)?;
    file.sync()
}
