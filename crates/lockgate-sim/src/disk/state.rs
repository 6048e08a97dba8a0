//! What the faulty disk holds: the cache as programs see it, the platter as a power cut finds it, and
//! the operations between the two.

use std::{collections::BTreeMap, io};

use lockgate_core::{DiskError, DiskOperation, OpenMode};

use super::{Fault, Operations, PowerCut};
use crate::SeededRandom;

/// What hardware writes whole or not at all.
const SECTOR: usize = 512;

/// Which file, whatever its name is by now.
pub(super) type FileId = u64;

#[derive(Default)]
pub(super) struct State {
    pub(super) operations: Operations,
    files: BTreeMap<FileId, FileState>,
    files_made: FileId,
    names: BTreeMap<String, FileId>,
    names_durable: BTreeMap<String, FileId>,
    names_unsynced: Vec<(u64, NameChange)>,
    /// Numbers the unsynced operations of all files and names in one order.
    changes_made: u64,
    faults: Vec<ArmedFault>,
    power_is_off: bool,
    /// Bytes that may still be taken; `None`: no limit.
    free: Option<u64>,
}

#[derive(Clone, Default)]
struct FileState {
    /// As programs see it.
    cache: Vec<u8>,
    /// As a power cut finds it.
    platter: Vec<u8>,
    unsynced: Vec<(u64, FileChange)>,
    /// Which sectors take space.
    taken: Vec<bool>,
}

#[derive(Clone)]
enum FileChange {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

#[derive(Clone)]
enum NameChange {
    Create { name: String, id: FileId },
    Rename { from: String, to: String },
    Remove { name: String },
}

struct ArmedFault {
    /// `None`: any change.
    operation: Option<DiskOperation>,
    after: u64,
    fault: Fault,
}

impl State {
    pub(super) fn from_image(image: BTreeMap<String, Vec<u8>>) -> Self {
        let mut state = Self::default();
        for (name, bytes) in image {
            let id = state.files_made;
            state.files_made += 1;
            let file = FileState {
                taken: vec![true; bytes.len().div_ceil(SECTOR)],
                platter: bytes.clone(),
                cache: bytes,
                unsynced: Vec::new(),
            };
            state.files.insert(id, file);
            state.names.insert(name.clone(), id);
            state.names_durable.insert(name, id);
        }
        state
    }

    pub(super) fn image(&self) -> BTreeMap<String, Vec<u8>> {
        let bytes = |id| self.files[id].cache.clone();
        self.names
            .iter()
            .map(|(name, id)| (name.clone(), bytes(id)))
            .collect()
    }

    pub(super) fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let id = self.names.get(name)?;
        Some(self.files[id].cache.clone())
    }

    pub(super) fn unsynced(&self) -> usize {
        let in_files: usize = self.files.values().map(|file| file.unsynced.len()).sum();
        in_files + self.names_unsynced.len()
    }

    // Ends of a life.

    pub(super) fn kill(&self) -> Self {
        Self {
            operations: Operations::default(),
            files: self.files.clone(),
            files_made: self.files_made,
            names: self.names.clone(),
            names_durable: self.names_durable.clone(),
            names_unsynced: self.names_unsynced.clone(),
            changes_made: self.changes_made,
            faults: Vec::new(),
            power_is_off: false,
            free: self.free,
        }
    }

    pub(super) fn crash(&self, cut: PowerCut) -> Self {
        let mut fates = Fates::new(self, cut);
        let mut names = self.names_durable.clone();
        for (number, change) in &self.names_unsynced {
            if fates.of(*number) == Fate::Kept {
                change.apply(&mut names);
            }
        }
        let mut image = BTreeMap::new();
        for (name, id) in names {
            let file = &self.files[&id];
            let mut bytes = file.platter.clone();
            for (number, change) in &file.unsynced {
                match (fates.of(*number), change) {
                    (Fate::Kept, change) => change.apply(&mut bytes),
                    (Fate::Lost, _) => {}
                    (Fate::Torn, FileChange::Write { offset, bytes: new }) => {
                        fates.tear(&mut bytes, *offset, new);
                    }
                    (Fate::Torn, FileChange::SetLen(_)) => {}
                }
            }
            image.insert(name, bytes);
        }
        let mut after = Self::from_image(image);
        after.free = self.free;
        after
    }

    // Faults.

    pub(super) fn arm(&mut self, operation: Option<DiskOperation>, after: u64, fault: Fault) {
        self.faults.push(ArmedFault {
            operation,
            after,
            fault,
        });
    }

    /// Counts the operation and says which fault strikes at it, if any.
    fn strike(&mut self, operation: DiskOperation) -> Result<Option<Fault>, io::Error> {
        if self.power_is_off {
            return Err(io::Error::other("the power is off"));
        }
        let counter = match operation {
            DiskOperation::Open => &mut self.operations.opens,
            DiskOperation::Write => &mut self.operations.writes,
            DiskOperation::SetLen => &mut self.operations.set_lens,
            DiskOperation::Sync => &mut self.operations.syncs,
            DiskOperation::Rename => &mut self.operations.renames,
            DiskOperation::Remove => &mut self.operations.removes,
            _ => &mut self.operations.reads,
        };
        *counter += 1;
        let is_change = !matches!(
            operation,
            DiskOperation::Open | DiskOperation::Read | DiskOperation::Inspect
        );
        let mut struck = None;
        self.faults.retain_mut(|armed| {
            let counts = armed.operation.map_or(is_change, |kind| kind == operation);
            if !counts {
                return true;
            }
            if armed.after == 0 && struck.is_none() {
                struck = Some(armed.fault);
                return false;
            }
            armed.after = armed.after.saturating_sub(1);
            true
        });
        if struck == Some(Fault::PowerOff) {
            self.power_is_off = true;
        }
        Ok(struck)
    }

    /// Runs an operation on which a fault acts as a whole: it happens, or it does not.
    fn whole<T>(
        &mut self,
        operation: DiskOperation,
        name: &str,
        act: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> Result<T, DiskError> {
        let outcome = match self.strike(operation) {
            Err(error) => Err(error),
            Ok(None) => act(self),
            Ok(Some(Fault::Error(kind) | Fault::Torn(kind))) => Err(kind.into()),
            Ok(Some(Fault::LostPages)) => Err(io::Error::other("input/output error")),
            Ok(Some(Fault::PowerOff)) => {
                if operation != DiskOperation::Sync {
                    let _ = act(self);
                }
                Err(io::Error::other("the power went off"))
            }
        };
        outcome.map_err(|source| DiskError {
            operation,
            name: name.to_owned(),
            source,
        })
    }

    fn change_number(&mut self) -> u64 {
        self.changes_made += 1;
        self.changes_made
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
        self.whole(DiskOperation::Inspect, "folder", |state| {
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
            let id = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
            state.change_name(NameChange::Remove {
                name: name.to_owned(),
            });
            let file = state.files.get_mut(&id).expect("named files exist");
            file.give_back(0, &mut state.free);
            Ok(())
        })
    }

    pub(super) fn sync_folder(&mut self) -> Result<(), DiskError> {
        self.whole(DiskOperation::Sync, "folder", |state| {
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

    fn next_is_lost_pages(&self) -> bool {
        self.faults.iter().any(|armed| {
            armed.after == 0
                && armed.fault == Fault::LostPages
                && armed
                    .operation
                    .is_none_or(|kind| kind == DiskOperation::Sync)
        })
    }

    // Files.

    pub(super) fn read(
        &mut self,
        id: FileId,
        name: &str,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize, DiskError> {
        self.whole(DiskOperation::Read, name, |state| {
            let cache = &state.files[&id].cache;
            let start = to_index(offset).min(cache.len());
            let count = buffer.len().min(cache.len() - start);
            buffer[..count].copy_from_slice(&cache[start..start + count]);
            Ok(count)
        })
    }

    pub(super) fn write(
        &mut self,
        id: FileId,
        name: &str,
        bytes: &[u8],
        offset: u64,
    ) -> Result<(), DiskError> {
        let error = |source: io::Error| DiskError {
            operation: DiskOperation::Write,
            name: name.to_owned(),
            source,
        };
        let offset = to_index(offset);
        let struck = self.strike(DiskOperation::Write).map_err(error)?;
        match struck {
            None => self.put(id, bytes, offset),
            Some(Fault::Error(kind)) => Err(kind.into()),
            Some(Fault::Torn(kind)) => {
                let _ = self.put(id, &bytes[..bytes.len() / 2], offset);
                Err(kind.into())
            }
            Some(Fault::PowerOff) => {
                let _ = self.put(id, bytes, offset);
                Err(io::Error::other("the power went off"))
            }
            Some(Fault::LostPages) => Err(io::Error::other("input/output error")),
        }
        .map_err(error)
    }

    /// Writes as much as there is space for.
    fn put(&mut self, id: FileId, bytes: &[u8], offset: usize) -> io::Result<()> {
        let file = self.files.get_mut(&id).expect("open files exist");
        let fits = file.take(offset, bytes.len(), &mut self.free);
        if fits > 0 || bytes.is_empty() {
            let change = FileChange::Write {
                offset,
                bytes: bytes[..fits].to_vec(),
            };
            change.apply(&mut file.cache);
            self.changes_made += 1;
            file.unsynced.push((self.changes_made, change));
        }
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub(super) fn set_len(&mut self, id: FileId, name: &str, len: u64) -> Result<(), DiskError> {
        let len = to_index(len);
        self.whole(DiskOperation::SetLen, name, |state| {
            let number = state.change_number();
            let file = state.files.get_mut(&id).expect("open files exist");
            file.give_back(len, &mut state.free);
            let change = FileChange::SetLen(len);
            change.apply(&mut file.cache);
            file.unsynced.push((number, change));
            Ok(())
        })
    }

    pub(super) fn allocate(&mut self, id: FileId, name: &str, len: u64) -> Result<(), DiskError> {
        let len = to_index(len);
        let now = self.files[&id].cache.len();
        if len > now {
            self.set_len(id, name, len as u64)?;
        }
        self.whole(DiskOperation::Allocate, name, |state| {
            let file = state.files.get_mut(&id).expect("open files exist");
            if file.take(0, len, &mut state.free) < len {
                return Err(io::ErrorKind::StorageFull.into());
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
        let lost_pages = self.next_is_lost_pages();
        let outcome = self.whole(DiskOperation::Sync, name, |state| {
            let file = state.files.get_mut(&id).expect("open files exist");
            for (_, change) in file.unsynced.drain(..) {
                change.apply(&mut file.platter);
            }
            Ok(())
        });
        if outcome.is_err() && lost_pages {
            let file = self.files.get_mut(&id).expect("open files exist");
            file.unsynced.clear();
        }
        outcome
    }

    // Space.

    pub(super) fn set_free_bytes(&mut self, free: Option<u64>) {
        self.free = free;
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.free.unwrap_or(u64::MAX / 2)
    }
}

impl FileState {
    /// Takes the sectors under a write of `len` bytes; returns how many of the bytes fit.
    fn take(&mut self, offset: usize, len: usize, free: &mut Option<u64>) -> usize {
        let end = offset + len;
        if self.taken.len() < end.div_ceil(SECTOR) {
            self.taken.resize(end.div_ceil(SECTOR), false);
        }
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            if self.taken[sector] {
                continue;
            }
            if let Some(free) = free {
                let Some(rest) = free.checked_sub(SECTOR as u64) else {
                    return (sector * SECTOR).saturating_sub(offset);
                };
                *free = rest;
            }
            self.taken[sector] = true;
        }
        len
    }

    fn give_back(&mut self, len: usize, free: &mut Option<u64>) {
        let kept = len.div_ceil(SECTOR).min(self.taken.len());
        let given = self.taken.drain(kept..).filter(|&taken| taken).count();
        if let Some(free) = free {
            *free += (given * SECTOR) as u64;
        }
    }
}

impl FileChange {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if file.len() < end {
                    file.resize(end, 0);
                }
                file[*offset..end].copy_from_slice(bytes);
            }
            Self::SetLen(len) => file.resize(*len, 0),
        }
    }
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Torn,
    Lost,
}

/// Decides what happens to each unsynced operation when the power goes.
struct Fates {
    of_seed: Option<(SeededRandom, u64)>,
    /// Without a seed: operations up to this number are kept, the one named second is torn.
    kept_until: u64,
    torn: u64,
}

impl Fates {
    fn new(state: &State, cut: PowerCut) -> Self {
        let mut fates = Self {
            of_seed: None,
            kept_until: 0,
            torn: 0,
        };
        match cut {
            PowerCut::LoseAllUnsynced => {}
            PowerCut::KeepAll => fates.kept_until = u64::MAX,
            PowerCut::KeepPrefix(count) => {
                let in_files = state.files.values().flat_map(|file| &file.unsynced);
                let mut numbers: Vec<u64> = in_files
                    .map(|(number, _)| *number)
                    .chain(state.names_unsynced.iter().map(|(number, _)| *number))
                    .collect();
                numbers.sort_unstable();
                fates.torn = numbers.get(count).copied().unwrap_or(u64::MAX);
                fates.kept_until = fates.torn - 1;
            }
            PowerCut::Seeded(seed) => {
                let mut random = SeededRandom::new(seed);
                // Some cuts take little, some nearly all.
                let keep_percent = [10, 50, 90][random.index(3)];
                fates.of_seed = Some((random, keep_percent));
            }
        }
        fates
    }

    fn of(&mut self, number: u64) -> Fate {
        match &mut self.of_seed {
            Some((random, keep_percent)) => {
                if random.chance(*keep_percent) {
                    Fate::Kept
                } else if random.chance(50) {
                    Fate::Torn
                } else {
                    Fate::Lost
                }
            }
            None if number <= self.kept_until => Fate::Kept,
            None if number == self.torn => Fate::Torn,
            None => Fate::Lost,
        }
    }

    /// Writes some of the sectors of `new`: a first half, or with a seed any of them.
    fn tear(&mut self, file: &mut Vec<u8>, offset: usize, new: &[u8]) {
        let first = offset / SECTOR;
        let sectors = (offset + new.len()).div_ceil(SECTOR) - first;
        // With a seed half of the tears keep a beginning, the other half any sectors.
        let (beginning, any) = match &mut self.of_seed {
            Some((random, _)) => (random.index(sectors.max(1)), random.chance(50)),
            None => (sectors.div_ceil(2), false),
        };
        for sector in 0..sectors {
            let kept = match &mut self.of_seed {
                Some((random, _)) if any => random.chance(50),
                _ => sector < beginning,
            };
            if !kept {
                continue;
            }
            let start = ((first + sector) * SECTOR).max(offset);
            let end = ((first + sector + 1) * SECTOR).min(offset + new.len());
            let change = FileChange::Write {
                offset: start,
                bytes: new[start - offset..end - offset].to_vec(),
            };
            change.apply(file);
        }
    }
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).expect("files in memory are small")
}
