//! The files that the next segments will be made of, and the room there is.
//!
//! Appends only write into blocks that are taken already. So a full disk shows in a reservation and
//! not in an append. A *preallocated file* has such blocks: it is a new file whose blocks were
//! allocated, or a released segment. Writing an allocated block for the first time is slower than
//! ever after, because it changes the file's metadata. So maintenance writes zeros into the next
//! preallocated files, a MiB at a time, each with a sync of its own. A sync of the live segment
//! then never waits for many of them.
//!
//! The last preallocated files are the *reserve*: only what makes a full log less full may take
//! them.
//!
//! Segments are small in a small log and larger in a large one. All preallocated files are at least
//! as large as the segments to come. So maintenance makes the files larger before the segments, and
//! smaller after them.

use std::{
    cmp::Reverse,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use lockgate_core::{Disk, DiskError, DiskFile, DiskSpace, OpenMode, SpaceState};

use crate::{
    format::SEGMENT_HEADER_LEN,
    names::{damaged_name, preallocated_name, segment_name},
    reserve::Share,
    sizes::Limits,
    sync::{AtomicBool, Condvar, Mutex, MutexGuard},
};

/// Zeros written and synced at a time.
const PIECE_BYTES: u32 = 1 << 20;

/// So many preallocated files are kept with every block written.
const WRITTEN_MIN: usize = 2;

/// So many preallocated files are not given up to a snapshot, nor so many of three of the reserve.
const KEPT_FOR_RECORDS: usize = 2;

/// The load of so many ticks decides how much is kept ready: of a minute.
const LOAD_TICKS: usize = 6;

/// No more are kept than this, or than the reserve: each is an open file.
pub(crate) const PREALLOCATED_MAX: usize = 128;

/// A preallocated file of a higher number is none of a log's making, and would leave no numbers for others.
const FOUND_NUMBER_MAX: u32 = u32::MAX / 2;

/// The default of the low mark: the larger of so many bytes and this part of the file system.
const LOW_BYTES: u64 = 2 << 30;
const LOW_PART: u64 = 20;

pub(crate) struct Preallocated {
    disk: Arc<dyn Disk>,
    limits: Limits,
    state: Mutex<State>,
    /// A preallocated file that was in somebody's hands is back.
    returned: Condvar,
    /// Whether somebody else does the work nobody waits for.
    is_attended: AtomicBool,
    /// Its share of a reserve that several logs have together.
    share: Option<Share>,
}

#[derive(Default)]
struct State {
    /// Bytes of the segments to come. No preallocated file is smaller.
    segment_bytes: u32,
    /// How large they are to be. Larger: once the preallocated files are.
    wanted_bytes: u32,
    preallocated: Vec<PreallocatedFile>,
    /// Preallocated that [`Preallocated::step`] is writing to just now, and their bytes.
    in_hand: usize,
    in_hand_bytes: u64,
    /// Files that are being made, of the size that segments had when that began.
    making: usize,
    /// Whether a preallocated file larger than the segments to come was promised to a record.
    is_large_promised: bool,
    /// The most segments a reservation asked for since the last trim.
    asked: usize,
    /// Bytes of the segments that hold records.
    held_bytes: u64,
    /// Segments of the reserve, as far as it is allowed to have them.
    reserve: usize,
    /// Segments begun in this tick and those before, newest first, and bytes appended before this tick and the
    /// last.
    begun_lately: [usize; LOAD_TICKS + 1],
    appended_before: [u64; 2],
    /// The next preallocated file's number.
    next_number: u32,
    /// Segments nobody will read again.
    retired: Vec<Retired>,
    /// Whether the start mark that lets segments retire may not be durable yet.
    start_unsynced: bool,
    /// Segments that hold records.
    held: usize,
    /// Segments begun since the last trim, and between the two before.
    begun: usize,
    begun_before: usize,
    /// The same of segments given back.
    released: usize,
    released_before: usize,
    /// Bytes appended by this instance, and zeros written ahead of them.
    appended: u64,
    zeroed: u64,
    seen: DiskSpace,
    is_low: bool,
    is_full: bool,
    /// The log holds so little that the room left in its segment is all the reserve it needs.
    is_little: bool,
    /// As far as was seen nobody has been refused, but the next one would be. Only shows: what is
    /// refused, and until when, is the business of [`Self::is_full`].
    is_short: bool,
}

/// A file to make a segment of.
pub(crate) struct PreallocatedFile {
    number: u32,
    pub(crate) file: Arc<dyn DiskFile>,
    /// So many are taken.
    pub(crate) bytes: u32,
    /// Whether nothing of an earlier use stands in its header, durably.
    is_blank: bool,
    /// Every block before it was written, durably.
    pub(crate) written_until: u32,
    /// Whether all of it is zero.
    pub(crate) is_zero: bool,
    is_named_written: bool,
}

impl PreallocatedFile {
    pub(crate) fn name(&self) -> String {
        preallocated_name(self.number, self.is_named_written)
    }
}

/// A segment file the log no longer knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    pub(crate) segment: u32,
    pub(crate) bytes: u64,
    /// It has bytes that could not be read: keeps them, under another name. Else it may become a preallocated file.
    pub(crate) is_damaged: bool,
}

/// Room that a reservation wants for records larger than a segment: so many files of so many bytes.
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
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that [`step`](Self::step) will be called from now on.
    pub(crate) fn attend(&self) {
        self.is_attended.store(true, Ordering::Release);
    }

    pub(crate) fn is_attended(&self) -> bool {
        self.is_attended.load(Ordering::Acquire)
    }

    /// Takes over the preallocated files a recovery found, and removes what cannot be one or is too much. `held`: segments
    /// that hold records, and their bytes.
    pub(crate) fn start(
        &self,
        found: &[(u32, bool)],
        (held, held_bytes): (usize, u64),
    ) -> Result<(), DiskError> {
        let least = self.limits.segment_bytes_min();
        let mut whole = Vec::new();
        for &(number, is_named_written) in found {
            let name = preallocated_name(number, is_named_written);
            let file = self.disk.open(&name, OpenMode::Existing)?;
            let bytes = u32::try_from(file.len()?).unwrap_or(0);
            if bytes < least || number > FOUND_NUMBER_MAX {
                self.disk.remove(&name)?;
                continue;
            }
            whole.push(PreallocatedFile {
                number,
                file,
                bytes,
                // It may have been a segment whose name was lost.
                is_blank: false,
                written_until: if is_named_written { bytes } else { 0 },
                is_zero: false,
                is_named_written,
            });
        }
        let wanted_bytes = (self.limits).segment_bytes_for(self.limits.segment_bytes, held_bytes);
        // On a full disk there is nothing but what was found.
        let shortest = whole
            .iter()
            .map(|preallocated_file| preallocated_file.bytes)
            .min();
        let segment_bytes = shortest.map_or(wanted_bytes, |bytes| bytes.min(wanted_bytes));
        let reserve = self.limits.reserve(segment_bytes, held_bytes);
        // And one to grow into.
        let preallocated_max = preallocated_max(reserve, 1);
        let mut preallocated = Vec::new();
        for preallocated_file in whole {
            if preallocated.len() < preallocated_max {
                preallocated.push(preallocated_file);
            } else {
                self.disk.remove(&preallocated_file.name())?;
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
                .map(|&(number, _)| number)
                .filter(|&number| number <= FOUND_NUMBER_MAX)
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

    /// Makes sure that `segments` can be begun without taking more of the disk, and `large` ones beside
    /// them, and for growth that the reserve is left then. Adds the files that were taken for that, also if it
    /// fails: they survive a power cut once they and their names are synced.
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
                // While it is full and somebody else looks at the disk, nobody need ask for every
                // refused command.
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
                Ok(preallocated_file) => {
                    created.push(preallocated_file.file.clone());
                    self.put(preallocated_file);
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

    /// A preallocated file for a new segment of at least so many bytes, the best there is; `None` if there is none.
    pub(crate) fn take(&self, bytes: u32) -> Result<Option<PreallocatedFile>, DiskError> {
        let mut state = self.state();
        let mut preallocated_file = loop {
            let enough =
                (0..state.preallocated.len()).filter(|&at| state.preallocated[at].bytes >= bytes);
            // A large one is for a large record.
            let best = enough.max_by_key(|&index| {
                let preallocated_file = &state.preallocated[index];
                (
                    Reverse(preallocated_file.bytes),
                    preallocated_file.is_blank,
                    preallocated_file.written_until,
                )
            });
            if let Some(best) = best {
                break state.preallocated.swap_remove(best);
            }
            if state.in_hand == 0 {
                return Ok(None);
            }
            // A piece of zeros is being written to it: a few milliseconds.
            state = self
                .returned
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        if !preallocated_file.is_blank {
            blank(&*preallocated_file.file)?;
            preallocated_file.is_blank = true;
        }
        Ok(Some(preallocated_file))
    }

    pub(crate) fn note_begun(&self) {
        let mut state = self.state();
        state.held += 1;
        state.begun += 1;
        state.begun_lately[0] += 1;
        self.judge_reserve(&mut state);
    }

    /// Between two groups: how large the next segments are, of a log that holds so many bytes.
    pub(crate) fn adapt(&self, held_bytes: u64) -> u32 {
        let mut state = self.state();
        state.held_bytes = held_bytes;
        state.is_large_promised = false;
        // At a high rate small segments cost syncs of names without end.
        let bytes = held_bytes.max(state.appended - state.appended_before[1]);
        let wanted = self.limits.segment_bytes_for(state.segment_bytes, bytes);
        state.wanted_bytes = wanted;
        // Larger ones come when the preallocated files are as large.
        state.segment_bytes = state.segment_bytes.min(wanted);
        self.judge_reserve(&mut state);
        state.segment_bytes
    }

    /// How large the next segments are at the start.
    pub(crate) fn segment_bytes(&self) -> u32 {
        match self.state().segment_bytes {
            0 => self.limits.segment_bytes,
            bytes => bytes,
        }
    }

    /// Ten seconds have passed.
    pub(crate) fn tick(&self) {
        let mut state = self.state();
        state.begun_lately.rotate_right(1);
        state.begun_lately[0] = 0;
        state.appended_before = [state.appended, state.appended_before[0]];
    }

    /// A segment was begun and is gone again.
    pub(crate) fn note_taken_back(&self) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(1);
        state.begun = state.begun.saturating_sub(1);
        self.judge_reserve(&mut state);
    }

    /// The log's first segment has only a part of its blocks, or has all of them now.
    pub(crate) fn note_little(&self, is_little: bool) {
        let mut state = self.state();
        state.is_little = is_little;
        self.judge_reserve(&mut state);
    }

    pub(crate) fn is_little(&self) -> bool {
        self.state().is_little
    }

    /// Whether growth may take so many bytes of the disk: the stop mark is not passed.
    pub(crate) fn may_grow(&self, bytes: u32) -> Result<bool, DiskError> {
        let seen = self.disk.space()?;
        self.note_space(&mut self.state(), seen);
        Ok(seen.free.saturating_sub(self.limits.free_bytes_min) >= u64::from(bytes))
    }

    /// The disk was found full where nobody looked for it.
    pub(crate) fn note_full(&self) {
        self.state().is_full = true;
    }

    pub(crate) fn note_appended(&self, bytes: u64) {
        self.state().appended += bytes;
    }

    /// The start mark moved on.
    pub(crate) fn note_trimmed(&self) {
        let mut state = self.state();
        state.start_unsynced = true;
        state.begun_before = std::mem::take(&mut state.begun);
        state.released_before = std::mem::take(&mut state.released);
        state.asked = 0;
    }

    /// Takes over a segment that nobody will read again.
    pub(crate) fn retire(&self, segment: Retired) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(1);
        state.released += 1;
        state.retired.push(segment);
        self.judge_reserve(&mut state);
    }

    /// Gives a part of the reserve back to the disk, for a snapshot that found no room: it is what
    /// makes room again. What records need is kept.
    pub(crate) fn give_up_one(&self) -> Result<bool, DiskError> {
        let reserve = self.state().reserve;
        self.give_up_above((2 * reserve).div_ceil(3).max(KEPT_FOR_RECORDS))
    }

    /// The same for records, in a segment that lacks blocks: all of it is theirs.
    pub(crate) fn give_up_for_records(&self) -> Result<bool, DiskError> {
        self.give_up_above(0)
    }

    fn give_up_above(&self, kept: usize) -> Result<bool, DiskError> {
        let preallocated_file = {
            let mut state = self.state();
            if state.preallocated.len() <= kept {
                return Ok(false);
            }
            let worst = state.worst();
            worst.map(|worst| state.preallocated.swap_remove(worst))
        };
        match preallocated_file {
            Some(preallocated_file) => self.remove(preallocated_file).map(|()| true),
            None => Ok(false),
        }
    }

    /// Bytes in preallocated files, free bytes of the disk as last seen, and what to think of it.
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

    /// One piece of work; whether there is more.
    pub(crate) fn step(&self) -> Result<bool, StepError> {
        let recycled = match self.recycle() {
            Ok(true) => return Ok(true),
            Err(StepError::Names(error)) => return Err(StepError::Names(error)),
            // Tried again by the next step, and no reason to leave the rest undone.
            recycled => recycled,
        };
        let seen = self.disk.space()?;
        {
            let mut state = self.state();
            self.note_space(&mut state, seen);
            self.judge_reserve(&mut state);
        }
        let more = self.shrink()? || self.fit()? || self.supply()? || self.write_piece()?;
        if more { Ok(true) } else { recycled }
    }

    /// Makes preallocated files of retired segments, or gives them back. Returns whether there were any. What fails
    /// with one of them is told when all were tried, and tried again the next time.
    pub(crate) fn recycle(&self) -> Result<bool, StepError> {
        let (retired, start_unsynced) = {
            let mut state = self.state();
            if state.retired.is_empty() {
                return Ok(false);
            }
            let retired = std::mem::take(&mut state.retired);
            (retired, std::mem::take(&mut state.start_unsynced))
        };
        // A segment may only go when the mark that says so cannot be lost any more.
        if start_unsynced {
            self.disk.sync_folder().map_err(StepError::Names)?;
        }
        let mut renamed = Vec::new();
        let mut failed = None;
        for segment in retired {
            let number = segment.segment;
            let done = if segment.is_damaged {
                (self.disk).rename(&segment_name(number), &damaged_name(number))
            } else {
                self.to_preallocated(number, renamed.len())
                    .map(|preallocated_file| renamed.extend(preallocated_file))
            };
            match done {
                Ok(()) => {}
                // There is nothing left to give back.
                Err(error) if error.is_not_found() => _ = failed.get_or_insert(error),
                Err(error) => {
                    self.state().retired.push(segment);
                    failed.get_or_insert(error);
                }
            }
        }
        if !renamed.is_empty() {
            // Before a byte of one changes: under its old name it is a segment.
            self.disk.sync_folder().map_err(StepError::Names)?;
        }
        for mut preallocated_file in renamed {
            if let Err(error) = blank(&*preallocated_file.file) {
                // After a failed sync its bytes cannot be trusted.
                let _ = self.disk.remove(&preallocated_file.name());
                failed.get_or_insert(error);
                continue;
            }
            preallocated_file.is_blank = true;
            self.state().preallocated.push(preallocated_file);
        }
        // In place of those that would have to be written first. Only now: a reserve is never short.
        while self.shrink()? {}
        let seen = self.disk.space()?;
        self.note_space(&mut self.state(), seen);
        match failed {
            None => Ok(true),
            Some(error) => Err(error.into()),
        }
    }

    /// Renames a released segment to a preallocated file, if one is wanted besides `more` or better than one there
    /// is, or else removes it.
    fn to_preallocated(
        &self,
        segment: u32,
        more: usize,
    ) -> Result<Option<PreallocatedFile>, DiskError> {
        let name = segment_name(segment);
        let (number, whole) = {
            let mut state = self.state();
            let is_written = |preallocated_file: &&PreallocatedFile| {
                preallocated_file.written_until == preallocated_file.bytes
            };
            let written = state.preallocated.iter().filter(is_written).count();
            let is_wanted = written + state.in_hand + more < self.preallocated_max(&state);
            (is_wanted.then(|| state.take_number()), state.segment_bytes)
        };
        let opened = match number {
            Some(number) => match self.disk.open(&name, OpenMode::Existing) {
                Ok(file) => Some((number, file)),
                // It cannot be kept, and goes.
                Err(error) if error.is_out_of_descriptors() => None,
                Err(error) => return Err(error),
            },
            None => None,
        };
        if let Some((number, file)) = opened {
            // The last segment of an earlier epoch was cut, and others are of a smaller log's. A larger one is
            // cut by the next step.
            let bytes = u32::try_from(file.len()?).unwrap_or(0);
            if bytes >= whole {
                let preallocated_file = PreallocatedFile {
                    number,
                    file,
                    bytes,
                    is_blank: false,
                    written_until: bytes,
                    is_zero: false,
                    is_named_written: true,
                };
                self.disk.rename(&name, &preallocated_file.name())?;
                return Ok(Some(preallocated_file));
            }
        }
        self.disk.remove(&name)?;
        Ok(None)
    }

    /// Removes a preallocated file that is not wanted any more.
    fn shrink(&self) -> Result<bool, DiskError> {
        let preallocated_file = {
            let mut state = self.state();
            if state.preallocated.len() <= self.preallocated_max(&state) {
                return Ok(false);
            }
            let worst = state.worst();
            worst.map(|worst| state.preallocated.swap_remove(worst))
        };
        if let Some(preallocated_file) = preallocated_file {
            self.remove(preallocated_file)?;
        }
        Ok(true)
    }

    /// Gives a preallocated file back to the disk. One that cannot be removed stays a preallocated file.
    fn remove(&self, preallocated_file: PreallocatedFile) -> Result<(), DiskError> {
        let removed = self.disk.remove(&preallocated_file.name());
        if removed.as_ref().is_err_and(|error| !error.is_not_found()) {
            self.state().preallocated.push(preallocated_file);
        }
        removed
    }

    /// Takes one more preallocated file if there are fewer than the next segment and the reserve need.
    fn supply(&self) -> Result<bool, StepError> {
        let (number, bytes) = {
            let mut state = self.state();
            let count = state.preallocated.len() + state.in_hand;
            self.judge_fullness(&mut state);
            // The next segment's only once the log is in use: an idle one takes little.
            let next = usize::from(state.appended >= u64::from(state.segment_bytes / 2));
            if count >= self.wanted(&state, next, true) || self.obtainable(&state) == 0 {
                return Ok(false);
            }
            state.making += 1;
            (state.take_number(), state.segment_bytes)
        };
        // A reserve must be there after a power cut too.
        let made = self.create(number, bytes);
        let made = made.and_then(|preallocated_file| match preallocated_file.file.sync() {
            Ok(()) => Ok(preallocated_file),
            Err(error) => {
                // After a failed sync its blocks cannot be trusted, and the next attempt makes a new one.
                let _ = self.disk.remove(&preallocated_file.name());
                Err(error)
            }
        });
        match made {
            Ok(preallocated_file) => {
                self.put(preallocated_file);
                self.disk.sync_folder().map_err(StepError::Names)?;
                Ok(true)
            }
            Err(error) => {
                self.state().making -= 1;
                if error.is_full() {
                    // Somebody else took it.
                    return Ok(false);
                }
                Err(error.into())
            }
        }
    }

    /// Cuts a preallocated file that is larger than the segments to come, or makes one larger before they are.
    fn fit(&self) -> Result<bool, DiskError> {
        let (mut preallocated_file, bytes) = {
            let mut state = self.state();
            let (now, wanted) = (state.segment_bytes, state.wanted_bytes);
            let is_larger =
                |preallocated_file: &PreallocatedFile| preallocated_file.bytes > wanted.max(now);
            let larger = state.preallocated.iter().position(is_larger);
            let next = larger.filter(|_| !state.is_large_promised).or_else(|| {
                let is_smaller =
                    |preallocated_file: &PreallocatedFile| preallocated_file.bytes < wanted;
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
        let was = preallocated_file.bytes;
        let fitted = self.fit_to(&mut preallocated_file, bytes);
        let mut state = self.state();
        state.give_back(preallocated_file, was);
        self.returned.notify_all();
        match fitted {
            // Somebody else took it.
            Err(error) if error.is_full() => Ok(false),
            fitted => fitted.map(|()| true),
        }
    }

    fn fit_to(
        &self,
        preallocated_file: &mut PreallocatedFile,
        bytes: u32,
    ) -> Result<(), DiskError> {
        if bytes < preallocated_file.bytes {
            preallocated_file.file.set_len(bytes.into())?;
            preallocated_file.bytes = bytes;
            preallocated_file.written_until = preallocated_file.written_until.min(bytes);
            return Ok(());
        }
        if preallocated_file.is_named_written {
            // Its name says that every block of it was written.
            let name = preallocated_name(preallocated_file.number, false);
            self.disk.rename(&preallocated_file.name(), &name)?;
            preallocated_file.is_named_written = false;
        }
        preallocated_file.file.allocate(bytes.into())?;
        // It is to be as large after a power cut.
        preallocated_file.file.sync()?;
        preallocated_file.bytes = bytes;
        Ok(())
    }

    /// Writes zeros to a preallocated file that will be needed.
    fn write_piece(&self) -> Result<bool, DiskError> {
        let mut preallocated_file = {
            let mut state = self.state();
            let is_written = |preallocated_file: &&PreallocatedFile| {
                preallocated_file.written_until == preallocated_file.bytes
            };
            if state.preallocated.iter().filter(is_written).count() >= WRITTEN_MIN {
                return Ok(false);
            }
            // Twice what was appended, to get ahead of it: a log that is hardly used pays little.
            if state.zeroed >= state.appended.saturating_mul(2) {
                return Ok(false);
            }
            let next = (0..state.preallocated.len())
                .filter(|&index| {
                    state.preallocated[index].written_until < state.preallocated[index].bytes
                })
                .max_by_key(|&index| state.preallocated[index].written_until);
            let Some(next) = next else {
                return Ok(false);
            };
            state.lend(next)
        };
        let outcome = self.write_zeros(&mut preallocated_file);
        let mut state = self.state();
        match outcome {
            Ok(written) => {
                state.zeroed += u64::from(written);
                let bytes = preallocated_file.bytes;
                state.give_back(preallocated_file, bytes);
                self.returned.notify_all();
                Ok(true)
            }
            Err(error) => {
                state.in_hand -= 1;
                state.in_hand_bytes -= u64::from(preallocated_file.bytes);
                // After a failed sync its bytes cannot be trusted.
                self.returned.notify_all();
                drop(state);
                let _ = self.disk.remove(&preallocated_file.name());
                Err(error)
            }
        }
    }

    fn write_zeros(&self, preallocated_file: &mut PreallocatedFile) -> Result<u32, DiskError> {
        let from = preallocated_file.written_until;
        let count = PIECE_BYTES.min(preallocated_file.bytes - from);
        preallocated_file
            .file
            .write_at(&vec![0; count as usize], u64::from(from))?;
        preallocated_file.file.sync()?;
        preallocated_file.is_blank = true;
        preallocated_file.written_until = from + count;
        if preallocated_file.written_until == preallocated_file.bytes {
            preallocated_file.is_zero = true;
            let written = preallocated_name(preallocated_file.number, true);
            self.disk.rename(&preallocated_file.name(), &written)?;
            preallocated_file.is_named_written = true;
        }
        Ok(count)
    }

    /// A new file with its blocks taken.
    fn create(&self, number: u32, bytes: u32) -> Result<PreallocatedFile, DiskError> {
        let name = preallocated_name(number, false);
        let file = self.disk.open(&name, OpenMode::CreateNew)?;
        if let Err(error) = file.allocate(bytes.into()) {
            // What could be taken of it goes back; if not, the next recovery removes it.
            let _ = self.disk.remove(&name);
            return Err(error);
        }
        Ok(PreallocatedFile {
            number,
            file,
            bytes,
            is_blank: true,
            written_until: 0,
            is_zero: true,
            is_named_written: false,
        })
    }

    fn put(&self, preallocated_file: PreallocatedFile) {
        let mut state = self.state();
        state.making -= 1;
        state.seen.free = (state.seen.free).saturating_sub(preallocated_file.bytes.into());
        state.preallocated.push(preallocated_file);
    }

    // Marks.

    fn note_space(&self, state: &mut State, seen: DiskSpace) {
        state.seen = seen;
        let low = self
            .limits
            .low_bytes
            .unwrap_or_else(|| LOW_BYTES.max(seen.total / LOW_PART));
        // Back only when it is clearly above, so that it does not come and go.
        state.is_low = seen.free < low || state.is_low && seen.free < low.saturating_add(low / 8);
    }

    /// Looks whether growth would be refused, so that a full disk shows before somebody is; and whether
    /// there is room again.
    pub(crate) fn look(&self) {
        self.judge_fullness(&mut self.state());
    }

    fn judge_fullness(&self, state: &mut State) {
        let count = state.preallocated.len() + state.in_hand + self.obtainable(state);
        if state.is_full && count >= self.wanted(state, 1, true) {
            state.is_full = false;
        }
        // Back only with a segment to spare, so that it does not come and go. A log that holds little takes
        // one next.
        let segments = usize::from(state.is_short) + usize::from(state.is_little);
        state.is_short = count < self.wanted(state, segments, true);
    }

    /// How many preallocated files there must be before `segments` may be begun. A log that holds little needs
    /// little to be emptied, so its reserve is no larger than what it holds. Once it was full, there
    /// must be one more than that.
    fn wanted(&self, state: &State, segments: usize, is_growth: bool) -> usize {
        if !is_growth {
            return segments;
        }
        let reserve = if state.is_little { 0 } else { state.reserve };
        segments + reserve + usize::from(state.is_full)
    }

    /// How much of the disk growth may still take.
    fn above_stop(&self, state: &State) -> u64 {
        state.seen.free.saturating_sub(self.limits.free_bytes_min)
    }

    /// Segments that could still be taken from the disk without passing the stop mark.
    fn obtainable(&self, state: &State) -> usize {
        let segments = self.above_stop(state) / u64::from(state.segment_bytes.max(1));
        usize::try_from(segments).unwrap_or(usize::MAX / 4)
    }

    /// How many segments the reserve is to be: no more than the log holds, and no more than its share.
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

    /// Preallocated beyond these go back. In steady use as many segments come back after a trim as were begun since
    /// the one before, and they are begun again until the next, if the load stays what it was in the last minute.
    /// Where a backlog drains more come back, and where it grows fewer do.
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

/// Preallocated beyond these go back: the reserve, and so many more.
fn preallocated_max(reserve: usize, more: usize) -> usize {
    (reserve + more).min(PREALLOCATED_MAX.max(reserve))
}

impl State {
    /// The preallocated file with the fewest bytes written.
    fn worst(&self) -> Option<usize> {
        (0..self.preallocated.len()).min_by_key(|&index| self.preallocated[index].written_until)
    }

    /// Takes a preallocated file out for maintenance; it counts as there.
    fn lend(&mut self, index: usize) -> PreallocatedFile {
        let preallocated_file = self.preallocated.swap_remove(index);
        self.in_hand += 1;
        self.in_hand_bytes += u64::from(preallocated_file.bytes);
        preallocated_file
    }

    /// It is back, and had so many bytes.
    fn give_back(&mut self, preallocated_file: PreallocatedFile, had: u32) {
        self.in_hand -= 1;
        self.in_hand_bytes -= u64::from(had);
        self.preallocated.push(preallocated_file);
    }

    fn take_number(&mut self) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }
}

/// Why a piece of work failed.
pub(crate) enum StepError {
    /// Nobody knows which names are durable any more.
    Names(DiskError),
    Disk(DiskError),
}

impl From<DiskError> for StepError {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

/// Takes the header of an earlier use away for good. Without that, a preallocated file that becomes a segment of
/// the same number as in a life that a power cut took would, if the new header is lost as well, be
/// that old segment again.
fn blank(file: &dyn DiskFile) -> Result<(), DiskError> {
    file.write_at(&[0; SEGMENT_HEADER_LEN as usize], 0)?;
    file.sync()
}
