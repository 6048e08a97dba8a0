//! Queues over any log.

use std::sync::Arc;

use lockgate_core::{Clock, Storage};
use lockgate_engine::EngineOptions;

use crate::{
    Builder, Lockgate, OpenError, Place,
    open::{sealed, start},
};

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
    pub fn over(storage: impl Into<Storage>) -> Builder<Storage> {
        Builder::new(storage.into())
    }
}

impl Place for Storage {}

impl sealed::Open for Storage {
    fn open(self, clock: Arc<dyn Clock>, options: EngineOptions) -> Result<Lockgate, OpenError> {
        start(self, clock, options).map_err(OpenError::StartStorage)
    }
}
