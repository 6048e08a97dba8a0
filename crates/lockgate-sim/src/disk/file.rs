//! An open file of the faulty disk.

use std::sync::{Arc, atomic::Ordering};

use lockgate_core::{DiskError, DiskFile, DiskOperation, FileIdentity};

use super::{Shared, state::FileId};

pub(super) struct FaultyFile {
    shared: Arc<Shared>,
    id: FileId,
    /// The name it was opened under, for messages.
    name: String,
    writable: bool,
}

impl FaultyFile {
    pub(super) fn new(shared: Arc<Shared>, id: FileId, name: String, writable: bool) -> Self {
        let open = shared.open_files.fetch_add(1, Ordering::Relaxed) + 1;
        shared.open_files_max.fetch_max(open, Ordering::Relaxed);
        Self {
            shared,
            id,
            name,
            writable,
        }
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        self.shared.open_files.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.shared
            .enter(DiskOperation::Read)
            .read(self.id, &self.name, buffer, offset)
    }

    /// Everything is in memory, unless somebody wants reads to be held up or to fail: that meets the read
    /// that may wait.
    fn try_read_at(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        if self.shared.gates.would_hold(DiskOperation::Read) {
            return None;
        }
        let mut state = self.shared.state();
        if state.faults.may_strike(DiskOperation::Read) {
            return None;
        }
        state.read(self.id, &self.name, buffer, offset).ok()
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        assert!(self.writable, "{} was opened for reading", self.name);
        self.shared
            .enter(DiskOperation::Write)
            .write(self.id, &self.name, bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        assert!(self.writable, "{} was opened for reading", self.name);
        self.shared
            .enter(DiskOperation::SetLen)
            .set_len(self.id, &self.name, len)
    }

    fn allocate(&self, len: u64) -> Result<(), DiskError> {
        assert!(self.writable, "{} was opened for reading", self.name);
        self.shared
            .enter(DiskOperation::Allocate)
            .allocate(self.id, &self.name, len)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.shared
            .enter(DiskOperation::Inspect)
            .len(self.id, &self.name)
    }

    fn identity(&self) -> Result<FileIdentity, DiskError> {
        // Of a file that is open nothing need be asked, so that no fault meets it.
        Ok(FileIdentity {
            device: 0,
            inode: self.id,
        })
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.shared
            .enter(DiskOperation::Sync)
            .sync(self.id, &self.name)
    }
}
