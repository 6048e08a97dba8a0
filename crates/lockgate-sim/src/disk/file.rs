//! An open file of the faulty disk.

use std::sync::Arc;

use lockgate_core::{DiskError, DiskFile};

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
        Self {
            shared,
            id,
            name,
            writable,
        }
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.shared
            .state()
            .read(self.id, &self.name, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        assert!(self.writable, "{} was opened for reading", self.name);
        self.shared
            .state()
            .write(self.id, &self.name, bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        assert!(self.writable, "{} was opened for reading", self.name);
        self.shared.state().set_len(self.id, &self.name, len)
    }

    fn allocate(&self, len: u64) -> Result<(), DiskError> {
        assert!(self.writable, "{} was opened for reading", self.name);
        self.shared.state().allocate(self.id, &self.name, len)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.shared.state().len(self.id, &self.name)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.shared.state().sync(self.id, &self.name)
    }
}
