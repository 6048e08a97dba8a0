//! What the faulty disk holds: the cache as programs see it, the platter as a power cut finds it, and
//! the operations between the two.

use std::{collections::BTreeMap, io, ops::Range};

use lockgate_core::{DiskError, DiskOperation, DiskSpace, OpenMode};

use super::{
    Damage, Fault, PowerCut,
    content::{Content, SECTOR},
    cut::{Fate, Fates, Survivors},
    fault::Faults,
};
use crate::SeededRandom;

/// Too many files are open, on every Unix.
const EMFILE: i32 = 24;

/// Which file, whatever its name is by now.
pub(super) type FileId = u64;

#[derive(Default)]
pub(super) struct State {
    pub(super) faults: Faults,
    files: BTreeMap<FileId, FileState>,
    files_made: FileId,
    names: BTreeMap<String, FileId>,
    names_durable: BTreeMap<String, FileId>,
    names_unsynced: Vec<(u64, NameChange)>,
    /// Numbers the unsynced operations of all files and names in one order.
    changes_made: u64,
    /// Bytes of the whole disk; `None`: no limit.
    total: Option<u64>,
    /// Of them, bytes that others have taken.
    foreign: u64,
}

#[derive(Clone, Default)]
struct FileState {
    /// As programs see it.
    cache: Content,
    /// As a power cut finds it.
    platter: Content,
    unsynced: Vec<(u64, FileChange)>,
    /// Bytes that cannot be read.
    unreadable: Range<usize>,
}

#[derive(Clone)]
enum FileChange {
    Write {
        offset: usize,
        bytes: Vec<u8>,
        /// Where the disk writes it instead.
        astray: Option<(FileId, usize)>,
    },
    Zeros {
        offset: usize,
        len: usize,
    },
    SetLen(usize),
    Allocate(usize),
}

#[derive(Clone)]
enum NameChange {
    Create { name: String, id: FileId },
    Rename { from: String, to: String },
    Remove { name: String },
}

impl State {
    pub(super) fn from_image(image: BTreeMap<String, Vec<u8>>) -> Self {
        Self::from_contents(
            image
                .into_iter()
                .map(|(name, bytes)| (name, Content::new(&bytes))),
        )
    }

    fn from_contents(contents: impl Iterator<Item = (String, Content)>) -> Self {
        let mut state = Self::default();
        for (name, content) in contents {
            let id = state.files_made;
            state.files_made += 1;
            let file = FileState {
                platter: content.clone(),
                cache: content,
                unsynced: Vec::new(),
                ..FileState::default()
            };
            state.files.insert(id, file);
            state.names.insert(name.clone(), id);
            state.names_durable.insert(name, id);
        }
        state
    }

    pub(super) fn image(&self) -> BTreeMap<String, Vec<u8>> {
        self.names
            .iter()
            .map(|(name, id)| (name.clone(), self.files[id].cache.to_vec()))
            .collect()
    }

    pub(super) fn lengths(&self) -> BTreeMap<&str, usize> {
        self.names
            .iter()
            .map(|(name, id)| (name.as_str(), self.files[id].cache.len()))
            .collect()
    }

    pub(super) fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let id = self.names.get(name)?;
        Some(self.files[id].cache.to_vec())
    }

    /// The numbers of all unsynced operations, in order.
    pub(super) fn unsynced_numbers(&self) -> Vec<u64> {
        let in_files = self.files.values().flat_map(|file| &file.unsynced);
        let mut numbers: Vec<u64> = in_files
            .map(|(number, _)| *number)
            .chain(self.names_unsynced.iter().map(|(number, _)| *number))
            .collect();
        numbers.sort_unstable();
        numbers
    }

    // Ends of a life.

    pub(super) fn kill(&self) -> Self {
        Self {
            faults: Faults::default(),
            files: self.files.clone(),
            files_made: self.files_made,
            names: self.names.clone(),
            names_durable: self.names_durable.clone(),
            names_unsynced: self.names_unsynced.clone(),
            changes_made: self.changes_made,
            total: self.total,
            foreign: self.foreign,
        }
    }

    pub(super) fn crash(&self, cut: PowerCut) -> Self {
        let mut fates = Fates::new(self, cut);
        let mut names = self.names_durable.clone();
        for (number, change) in &self.names_unsynced {
            if fates.of_name(*number) == Fate::Kept {
                change.apply(&mut names);
            }
        }
        let mut platters: BTreeMap<FileId, Content> = self
            .files
            .iter()
            .map(|(id, file)| (*id, file.platter.clone()))
            .collect();
        for (id, file) in &self.files {
            for (number, change) in &file.unsynced {
                match fates.of_bytes(*number) {
                    Fate::Kept => change.reach_disk(*id, &mut platters),
                    Fate::Torn => change.reach_disk_torn(*id, &mut fates, &mut platters),
                    Fate::Lost => {}
                }
            }
        }
        let contents = names
            .into_iter()
            .map(|(name, id)| (name, platters[&id].clone()));
        let mut after = Self::from_contents(contents);
        after.total = self.total;
        after.foreign = self.foreign;
        after
    }

    /// Runs an operation on which a fault acts as a whole: it happens, or it does not.
    fn whole<T>(
        &mut self,
        operation: DiskOperation,
        name: &str,
        act: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> Result<T, DiskError> {
        let outcome = match self.faults.strike(operation, name) {
            Err(error) => Err(error),
            Ok(struck) => self.act_under(operation, struck, act),
        };
        outcome.map_err(|source| disk_error(operation, name, source))
    }

    fn act_under<T>(
        &mut self,
        operation: DiskOperation,
        struck: Option<Fault>,
        act: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        match struck {
            // A sync that the power cut hit did nothing; anything else is in the cache.
            Some(Fault::PowerOff) => {
                if operation != DiskOperation::Sync {
                    act(self)?;
                }
                Err(io::Error::other("the power went off"))
            }
            Some(Fault::Error(kind) | Fault::Torn(kind)) => Err(kind.into()),
            Some(Fault::OutOfDescriptors) => Err(io::Error::from_raw_os_error(EMFILE)),
            Some(Fault::LostPages | Fault::LostSome(_)) => {
                Err(io::Error::other("input/output error"))
            }
            // These are for other operations; here they do nothing.
            None | Some(Fault::Misdirected(_) | Fault::Misread { .. }) => act(self),
        }
    }

    // Names.

    pub(super) fn open(&mut self, name: &str, mode: OpenMode) -> Result<FileId, DiskError> {
        self.whole(DiskOperation::Open, name, |state| {
            match (state.names.get(name), mode) {
                (Some(_), OpenMode::CreateNew) => Err(io::ErrorKind::AlreadyExists.into()),
                (Some(&id), _) => Ok(id),
                (None, OpenMode::CreateNew) => {
                    let id = state.files_made;
                    state.files_made += 1;
                    state.files.insert(id, FileState::default());
                    state.change_name(NameChange::Create {
                        name: name.to_owned(),
                        id,
                    });
                    Ok(id)
                }
                (None, _) => Err(io::ErrorKind::NotFound.into()),
            }
        })
    }

    pub(super) fn list(&mut self) -> Result<Vec<String>, DiskError> {
        self.whole(DiskOperation::Inspect, FOLDER, |state| {
            Ok(state.names.keys().cloned().collect())
        })
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<(), DiskError> {
        self.whole(DiskOperation::Rename, from, |state| {
            if !state.names.contains_key(from) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.change_name(NameChange::Rename {
                from: from.to_owned(),
                to: to.to_owned(),
            });
            Ok(())
        })
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<(), DiskError> {
        self.whole(DiskOperation::Remove, name, |state| {
            if !state.names.contains_key(name) {
                return Err(io::ErrorKind::NotFound.into());
            }
            state.change_name(NameChange::Remove {
                name: name.to_owned(),
            });
            Ok(())
        })
    }

    pub(super) fn sync_folder(&mut self) -> Result<(), DiskError> {
        self.whole(DiskOperation::Sync, FOLDER, |state| {
            for (_, change) in state.names_unsynced.drain(..) {
                change.apply(&mut state.names_durable);
            }
            Ok(())
        })
    }

    fn change_name(&mut self, change: NameChange) {
        let number = self.change_number();
        change.apply(&mut self.names);
        self.names_unsynced.push((number, change));
    }

    fn change_number(&mut self) -> u64 {
        self.changes_made += 1;
        self.changes_made
    }

    // Files.

    pub(super) fn read(
        &mut self,
        id: FileId,
        name: &str,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, DiskError> {
        let error = |source| disk_error(DiskOperation::Read, name, source);
        let offset = to_index(offset);
        let struck = self
            .faults
            .strike(DiskOperation::Read, name)
            .map_err(error)?;
        let unreadable = &self.file(id).unreadable;
        if unreadable.start < offset + buffer.len() && offset < unreadable.end {
            return Err(error(io::Error::other("a sector cannot be read")));
        }
        if let Some(Fault::Misread {
            damage,
            lasting,
            seed,
        }) = struck
        {
            let cache = &self.file(id).cache;
            let end = cache.len().min(offset + buffer.len());
            let mut seen = cache.clone();
            if let Some(spot) = Spot::draw(damage, seed, offset..end) {
                spot.spoil(&mut seen);
                if lasting {
                    self.decay(id, &spot);
                }
            }
            return Ok(seen.read(offset, buffer));
        }
        self.act_under(DiskOperation::Read, struck, |state| {
            Ok(state.files[&id].cache.read(offset, buffer))
        })
        .map_err(error)
    }

    pub(super) fn write(
        &mut self,
        id: FileId,
        name: &str,
        bytes: &[u8],
        offset: u64,
    ) -> Result<(), DiskError> {
        let error = |source| disk_error(DiskOperation::Write, name, source);
        let offset = to_index(offset);
        let struck = self
            .faults
            .strike(DiskOperation::Write, name)
            .map_err(error)?;
        match struck {
            Some(Fault::Torn(kind)) => {
                let _ = self.put(id, name, &bytes[..bytes.len() / 2], offset, None);
                Err(kind.into())
            }
            Some(Fault::Misdirected(seed)) => {
                let astray = self.draw_place(seed, offset, bytes.len());
                self.put(id, name, bytes, offset, astray)
            }
            struck => self.act_under(DiskOperation::Write, struck, |state| {
                state.put(id, name, bytes, offset, None)
            }),
        }
        .map_err(error)
    }

    /// Writes as much as there is space for.
    fn put(
        &mut self,
        id: FileId,
        name: &str,
        bytes: &[u8],
        offset: usize,
        astray: Option<(FileId, usize)>,
    ) -> io::Result<()> {
        let mut free = self.free_bytes();
        let file = self.file(id);
        let fits = file.cache.take(offset, bytes.len(), &mut free);
        if fits > 0 || bytes.is_empty() {
            let written = &bytes[..fits];
            let is_zero = astray.is_none() && written.iter().all(|byte| *byte == 0);
            let change = if is_zero {
                FileChange::Zeros { offset, len: fits }
            } else {
                FileChange::Write {
                    offset,
                    bytes: written.to_vec(),
                    astray,
                }
            };
            self.change_file(id, change);
        }
        if fits < bytes.len() {
            return Err(self.faults.out_of_space(DiskOperation::Write, name));
        }
        Ok(())
    }

    /// Where else a write of so many bytes may land: within a file, as far into a sector as it
    /// should have been.
    fn draw_place(&self, seed: u64, offset: usize, len: usize) -> Option<(FileId, usize)> {
        let mut random = SeededRandom::new(seed);
        let places: Vec<(FileId, usize)> = self
            .names
            .values()
            .map(|id| (*id, self.files[id].cache.len()))
            .filter(|(_, file_len)| *file_len >= (offset % SECTOR) + len && *file_len > 0)
            .collect();
        if places.is_empty() {
            return None;
        }
        let (id, file_len) = places[random.index(places.len())];
        let sectors = (file_len - len - offset % SECTOR) / SECTOR + 1;
        Some((id, random.index(sectors) * SECTOR + offset % SECTOR))
    }

    pub(super) fn set_len(&mut self, id: FileId, name: &str, len: u64) -> Result<(), DiskError> {
        let len = to_index(len);
        self.whole(DiskOperation::SetLen, name, |state| {
            state.change_file(id, FileChange::SetLen(len));
            Ok(())
        })
    }

    pub(super) fn allocate(&mut self, id: FileId, name: &str, len: u64) -> Result<(), DiskError> {
        let len = to_index(len);
        self.whole(DiskOperation::Allocate, name, |state| {
            let mut free = state.free_bytes();
            let fits = state.file(id).cache.take(0, len, &mut free);
            // As the real call, it may have taken a part, and the file is as long as that then.
            state.change_file(id, FileChange::Allocate(fits));
            if fits < len {
                return Err(state.faults.out_of_space(DiskOperation::Allocate, name));
            }
            Ok(())
        })
    }

    pub(super) fn len(&mut self, id: FileId, name: &str) -> Result<u64, DiskError> {
        self.whole(DiskOperation::Inspect, name, |state| {
            Ok(state.files[&id].cache.len() as u64)
        })
    }

    pub(super) fn sync(&mut self, id: FileId, name: &str) -> Result<(), DiskError> {
        let error = |source| disk_error(DiskOperation::Sync, name, source);
        let struck = self
            .faults
            .strike(DiskOperation::Sync, name)
            .map_err(error)?;
        match struck {
            // Lengths are the file system's, and its journal does not forget.
            Some(Fault::LostPages) => {
                let unsynced = &mut self.file(id).unsynced;
                unsynced.retain(|(_, change)| change.is_of_length());
            }
            Some(Fault::LostSome(seed)) => {
                let mut random = SeededRandom::new(seed);
                self.reach_disk(id, |change| change.is_of_length() || random.chance(50));
            }
            _ => {}
        }
        self.act_under(DiskOperation::Sync, struck, |state| {
            state.reach_disk(id, |_| true);
            Ok(())
        })
        .map_err(error)
    }

    /// What was not synced of the file is, or will never be.
    fn reach_disk(&mut self, id: FileId, mut gets_through: impl FnMut(&FileChange) -> bool) {
        for (_, change) in std::mem::take(&mut self.file(id).unsynced) {
            if !gets_through(&change) {
                continue;
            }
            match change {
                FileChange::Write {
                    bytes,
                    astray: Some((other, offset)),
                    ..
                } => self.file(other).platter.write(offset, &bytes),
                change => change.apply(&mut self.file(id).platter),
            }
        }
    }

    fn change_file(&mut self, id: FileId, change: FileChange) {
        let number = self.change_number();
        let file = self.file(id);
        change.apply(&mut file.cache);
        file.unsynced.push((number, change));
    }

    fn file(&mut self, id: FileId) -> &mut FileState {
        self.files.get_mut(&id).expect("files are never forgotten")
    }

    /// Damages a file for good, somewhere in the given bytes. Whether any byte is another now.
    pub(super) fn damage(
        &mut self,
        name: &str,
        damage: Damage,
        within: Range<u64>,
        seed: u64,
    ) -> bool {
        let Some(&id) = self.names.get(name) else {
            return false;
        };
        let end = self.files[&id].cache.len().min(to_index(within.end));
        match Spot::draw(damage, seed, to_index(within.start)..end) {
            Some(spot) => self.decay(id, &spot),
            None => false,
        }
    }

    pub(super) fn make_unreadable(&mut self, name: &str, within: Range<u64>) -> bool {
        let Some(&id) = self.names.get(name) else {
            return false;
        };
        self.file(id).unreadable = to_index(within.start)..to_index(within.end);
        true
    }

    fn decay(&mut self, id: FileId, spot: &Spot) -> bool {
        let number = self.change_number();
        let file = self.file(id);
        spot.spoil(&mut file.platter);
        let changed = spot.spoil(&mut file.cache);
        if !file.unsynced.is_empty() {
            // What is still to be written is written as it is now.
            for offset in spot.places() {
                let mut bytes = vec![0; spot.len().min(file.cache.len() - offset)];
                file.cache.read(offset, &mut bytes);
                let change = FileChange::Write {
                    offset,
                    bytes,
                    astray: None,
                };
                file.unsynced.push((number, change));
            }
        }
        changed
    }

    // Space.

    pub(super) fn set_free_bytes(&mut self, free: Option<u64>) {
        self.total = free.map(|free| free + self.used_bytes() + self.foreign);
    }

    pub(super) fn take_space(&mut self, bytes: u64) -> u64 {
        let taken = match self.total {
            Some(_) => bytes.min(self.free_bytes()),
            None => 0,
        };
        self.foreign += taken;
        taken
    }

    pub(super) fn give_space(&mut self, bytes: u64) {
        self.foreign = self.foreign.saturating_sub(bytes);
    }

    pub(super) fn free_bytes(&self) -> u64 {
        match self.total {
            Some(total) => total.saturating_sub(self.used_bytes() + self.foreign),
            None => u64::MAX / 2,
        }
    }

    pub(super) fn space(&mut self) -> Result<DiskSpace, DiskError> {
        self.whole(DiskOperation::Inspect, FOLDER, |state| {
            Ok(DiskSpace {
                free: state.free_bytes(),
                total: state.total.unwrap_or(u64::MAX / 2),
            })
        })
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.names
            .values()
            .map(|id| self.files[id].cache.taken_bytes())
            .sum()
    }
}

impl FileChange {
    fn is_of_length(&self) -> bool {
        matches!(self, Self::SetLen(_) | Self::Allocate(_))
    }

    /// As programs see it.
    fn apply(&self, file: &mut Content) {
        let mut room = u64::MAX;
        match self {
            Self::Write { offset, bytes, .. } => {
                file.take(*offset, bytes.len(), &mut room);
                file.write(*offset, bytes);
            }
            Self::Zeros { offset, len } => {
                file.take(*offset, *len, &mut room);
                file.zero(*offset, *len);
            }
            Self::SetLen(len) => file.set_len(*len),
            Self::Allocate(len) => {
                file.take(0, *len, &mut room);
                file.grow(*len);
            }
        }
    }

    /// As the disk has it afterwards.
    fn reach_disk(&self, id: FileId, platters: &mut BTreeMap<FileId, Content>) {
        match self {
            Self::Write {
                bytes,
                astray: Some((other, offset)),
                ..
            } => platter(platters, *other).write(*offset, bytes),
            change => change.apply(platter(platters, id)),
        }
    }

    fn reach_disk_torn(
        &self,
        id: FileId,
        fates: &mut Fates,
        platters: &mut BTreeMap<FileId, Content>,
    ) {
        let (id, offset, len) = match self {
            Self::Write {
                astray: Some(_), ..
            }
            | Self::SetLen(_) => return,
            Self::Write { offset, bytes, .. } => (id, *offset, bytes.len()),
            Self::Zeros { offset, len } => (id, *offset, *len),
            Self::Allocate(len) => (id, 0, *len),
        };
        let file = platter(platters, id);
        let first = offset / SECTOR;
        let sectors = (offset + len).div_ceil(SECTOR) - first;
        let survivors = match fates.survivors(sectors) {
            Survivors::LengthOnly => return file.grow(offset + len),
            Survivors::Sectors(survivors) => survivors,
        };
        if let Self::Allocate(_) = self {
            // Taken from the front on, and as long as that.
            let taken = survivors.iter().filter(|survives| **survives).count();
            return Self::Allocate((taken * SECTOR).min(len)).apply(file);
        }
        for (sector, survives) in survivors.into_iter().enumerate() {
            if !survives {
                continue;
            }
            let start = ((first + sector) * SECTOR).max(offset);
            let end = ((first + sector + 1) * SECTOR).min(offset + len);
            let part = match self {
                Self::Write { bytes, .. } => Self::Write {
                    offset: start,
                    bytes: bytes[start - offset..end - offset].to_vec(),
                    astray: None,
                },
                _ => Self::Zeros {
                    offset: start,
                    len: end - start,
                },
            };
            part.apply(file);
        }
    }
}

fn platter(platters: &mut BTreeMap<FileId, Content>, id: FileId) -> &mut Content {
    platters.get_mut(&id).expect("every file has one")
}

impl NameChange {
    /// Applies the change to a folder that may lack what an earlier, lost change would have made.
    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            Self::Create { name, id } => _ = names.insert(name.clone(), *id),
            Self::Rename { from, to } => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Self::Remove { name } => _ = names.remove(name),
        }
    }
}

/// Which bytes are damaged, and how.
enum Spot {
    Flip { at: usize, bit: u32 },
    Zero { at: usize, len: usize },
    Swap { at: usize, other: usize },
}

impl Spot {
    /// Draws a place within `within`; `None` if that is too little for it.
    fn draw(damage: Damage, seed: u64, within: Range<usize>) -> Option<Self> {
        let mut random = SeededRandom::new(seed);
        let whole_sectors = within.start.div_ceil(SECTOR)..within.end / SECTOR;
        match damage {
            _ if within.is_empty() => None,
            Damage::FlippedBit => Some(Self::Flip {
                at: within.start + random.index(within.len()),
                bit: u32::try_from(random.below(8)).expect("below 8"),
            }),
            Damage::ZeroedSector => {
                let at = within.start + random.index(within.len());
                let start = (at / SECTOR * SECTOR).max(within.start);
                let end = ((at / SECTOR + 1) * SECTOR).min(within.end);
                Some(Self::Zero {
                    at: start,
                    len: end - start,
                })
            }
            Damage::SwappedSectors if whole_sectors.len() < 2 => None,
            Damage::SwappedSectors => {
                let one = random.index(whole_sectors.len());
                let other = (one + 1 + random.index(whole_sectors.len() - 1)) % whole_sectors.len();
                Some(Self::Swap {
                    at: (whole_sectors.start + one) * SECTOR,
                    other: (whole_sectors.start + other) * SECTOR,
                })
            }
        }
    }

    fn places(&self) -> Vec<usize> {
        match *self {
            Self::Flip { at, .. } | Self::Zero { at, .. } => vec![at],
            Self::Swap { at, other } => vec![at, other],
        }
    }

    fn len(&self) -> usize {
        match *self {
            Self::Flip { .. } => 1,
            Self::Zero { len, .. } => len,
            Self::Swap { .. } => SECTOR,
        }
    }

    /// Whether any byte is another now.
    fn spoil(&self, file: &mut Content) -> bool {
        match *self {
            Self::Flip { at, bit } => {
                let mut byte = [0];
                file.read(at, &mut byte) == 1 && file.replace(at, &[byte[0] ^ (1 << bit)])
            }
            Self::Zero { at, len } => {
                let len = len.min(file.len().saturating_sub(at));
                file.replace(at, &vec![0; len])
            }
            Self::Swap { at, other } => {
                let (mut a, mut b) = ([0; SECTOR], [0; SECTOR]);
                let there = file.read(at, &mut a) == SECTOR && file.read(other, &mut b) == SECTOR;
                there && file.replace(at, &b) | file.replace(other, &a)
            }
        }
    }
}

const FOLDER: &str = "folder";

fn disk_error(operation: DiskOperation, name: &str, source: io::Error) -> DiskError {
    DiskError {
        operation,
        name: name.to_owned(),
        source,
    }
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
