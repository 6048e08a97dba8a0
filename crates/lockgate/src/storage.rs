//! Queues over any log.

use std::{fmt, sync::Arc};

use lockgate_core::{Clock, ShardId, Storage};
use lockgate_engine::EngineOptions;
use lockgate_log::SystemClock;

use crate::{
    Lockgate, OpenError,
    open::{on_a_thread, start},
};

/// Opens queues over a log of the caller's. [`Lockgate::over`] makes one.
#[must_use]
pub struct StorageBuilder {
    storage: Storage,
    engine: EngineOptions,
    clock: Arc<dyn Clock>,
}

impl Lockgate {
    /// Starts to open the queues that are kept in `storage`: any [`Log`](lockgate_core::Log) with its
    /// snapshots, for who writes a log of their own or wants a faulty one in tests.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use lockgate::Lockgate;
    /// use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let disk = Arc::new(FolderDisk::open(path)?);
    /// let log = LocalLog::open(disk, LocalLogOptions::default())?;
    /// let lockgate = Lockgate::over(log).open().await?;
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn over(storage: impl Into<Storage>) -> StorageBuilder {
        StorageBuilder {
            storage: storage.into(),
            engine: EngineOptions::default(),
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl StorageBuilder {
    /// Sets limits, sync window and threads of the engine. Default: [`EngineOptions::default`].
    pub fn engine_options(mut self, options: EngineOptions) -> Self {
        self.engine = options;
        self
    }

    /// Sets the number of the shard in this log. Default: 0. See
    /// [`Builder::shard_number`](crate::Builder::shard_number).
    pub fn shard_number(mut self, shard: ShardId) -> Self {
        self.engine.shard = shard;
        self
    }

    /// Sets the clock. Default: the operating system's clock. See
    /// [`Builder::clock`](crate::Builder::clock).
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the log although parts are missing that are needed. See
    /// [`Builder::accept_loss`](crate::Builder::accept_loss).
    pub fn accept_loss(mut self) -> Self {
        self.engine.accept_loss = true;
        self
    }

    /// Opens the log on a thread of its own.
    ///
    /// Cancellation safe: if the future is dropped, the log opens all the same and closes at once.
    ///
    /// # Errors
    /// [`OpenError::StartStorage`] or [`OpenError::Thread`].
    pub async fn open(self) -> Result<Lockgate, OpenError> {
        let name = self.engine.thread_name.clone();
        on_a_thread(&name, move || self.open_blocking()).await
    }

    /// Opens the log on the caller's thread. It blocks as long as recovery reads the log: do not
    /// call it from an async task.
    ///
    /// # Errors
    /// [`OpenError::StartStorage`].
    pub fn open_blocking(self) -> Result<Lockgate, OpenError> {
        start(self.storage, self.clock, self.engine).map_err(OpenError::StartStorage)
    }
}

impl fmt::Debug for StorageBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageBuilder")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
