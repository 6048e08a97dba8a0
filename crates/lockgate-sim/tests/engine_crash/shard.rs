//! One life of the shard.

use std::{collections::VecDeque, sync::Arc};

use lockgate_core::{
    Clock, Disk, DiskError, DiskFile, FileIdentity, FolderLock, Incarnation, LockError, Log,
    LogMaintenance, LogProgress, LogReader, OpenMode, Position,
};
use lockgate_engine::{Beginning, Driver, EngineOptions, Output, StartReport};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::{
    planted::{Bug, LogHandle, WatchedLog},
    witness::Witness,
};

pub(crate) struct Shard {
    pub(crate) driver: Driver<u64>,
    /// What the start of this life said.
    pub(crate) report: StartReport,
    pub(crate) progress: Arc<dyn LogProgress>,
    pub(crate) reader: Arc<dyn LogReader>,
    /// The log's work that nobody waits for, if somebody does it in this life.
    pub(crate) log_maintenance: Option<Arc<dyn LogMaintenance>>,
    pub(crate) log: LogHandle,
    /// Answers that wait for a sync.
    pub(crate) held: VecDeque<Output<u64>>,
    pub(crate) durable: Position,
}

impl Shard {
    /// Starts; an error is the text of the refusal.
    pub(crate) fn start(
        disk: &FaultyDisk,
        clock: &ManualClock,
        starts: u64,
        witness: &Witness,
        bug: Option<Bug>,
        with_maintenance: bool,
    ) -> Result<Self, String> {
        let disk: Arc<dyn Disk> = if bug == Some(Bug::SyncRetried) {
            Arc::new(RetryingDisk(disk.clone()))
        } else {
            Arc::new(disk.clone())
        };
        let log = LocalLog::open(disk, log_options()).map_err(|error| format!("{error:?}"))?;
        let log_maintenance = with_maintenance.then(|| log.log_maintenance()).flatten();
        let handle = LogHandle::new(log);
        let log = WatchedLog::new(handle.clone(), witness, bug);
        let beginning = Beginning {
            wall: clock.wall(),
            since_boot: clock.since_boot(),
            boot_id: clock.boot_id(),
            incarnation: Incarnation(starts),
            secret: [7; 32],
        };
        let options = EngineOptions {
            snapshot_bytes_min: 2_000,
            // These tests have one of their own.
            checks_index: false,
            ..EngineOptions::default()
        };
        let (driver, report) =
            Driver::recover(log, &options, || beginning).map_err(|error| format!("{error:?}"))?;
        Ok(Self {
            progress: driver.progress(),
            reader: driver.reader(),
            log_maintenance,
            log: handle,
            held: VecDeque::new(),
            durable: driver.tail(),
            driver,
            report,
        })
    }
}

/// Small segments, so that every history fills some.
pub(crate) fn log_options() -> LocalLogOptions {
    LocalLogOptions {
        segment_bytes: SEGMENT_BYTES,
        record_bytes_max: 4_000,
        free_bytes_min: 0,
        generation_seed: Some(5),
        ..LocalLogOptions::default()
    }
}

pub(crate) const SEGMENT_BYTES: u32 = 8 << 10;

/// A disk whose failed syncs are tried again.
struct RetryingDisk(FaultyDisk);

struct RetryingFile(Arc<dyn DiskFile>);

impl Disk for RetryingDisk {
    fn lock(&self) -> Result<Box<dyn FolderLock>, LockError> {
        self.0.lock()
    }
    fn open(&self, name: &str, mode: OpenMode) -> Result<Arc<dyn DiskFile>, DiskError> {
        Ok(Arc::new(RetryingFile(self.0.open(name, mode)?)))
    }
    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.0.list()
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        self.0.remove(name)
    }
    fn sync_folder(&self) -> Result<(), DiskError> {
        self.0.sync_folder()
    }
    fn space(&self) -> Result<lockgate_core::DiskSpace, DiskError> {
        self.0.space()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

impl DiskFile for RetryingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.0.read_at(buffer, offset)
    }
    fn try_read_at(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        self.0.try_read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), DiskError> {
        self.0.write_at(bytes, offset)
    }
    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.0.set_len(len)
    }
    fn allocate(&self, len: u64) -> Result<(), DiskError> {
        self.0.allocate(len)
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.0.len()
    }
    fn identity(&self) -> Result<FileIdentity, DiskError> {
        self.0.identity()
    }
    fn sync(&self) -> Result<(), DiskError> {
        self.0.sync().or_else(|_| self.0.sync())
    }
}
