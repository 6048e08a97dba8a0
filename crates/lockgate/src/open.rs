//! A folder of queues.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use lockgate_core::{DiskError, ShardId, Storage};
use lockgate_engine::{Engine, EngineMetrics, EngineOptions, StartError, StartReport, Status};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use tokio::sync::oneshot;

use crate::{QueueBuilder, Transaction, queue::Queue};

/// An open folder of queues. Cheap to clone.
///
/// When the last clone, queue and delivery is dropped, the folder is closed in the background;
/// [`shutdown`](Self::shutdown) closes it in good order and waits for that.
#[derive(Clone)]
pub struct Lockgate {
    engine: Engine,
    report: Arc<StartReport>,
}

/// Opens a folder with other than the default options.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    path: PathBuf,
    engine: EngineOptions,
    log: LocalLogOptions,
}

/// Why a folder could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be made or read.
    #[error("opening the data folder {}", .path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// What failed.
        #[source]
        source: DiskError,
    },
    /// The folder is in use, by this or another process, or the log's options are wrong.
    #[error("taking the data folder {}", .path.display())]
    Log {
        /// Which.
        path: PathBuf,
        /// What failed.
        #[source]
        source: lockgate_log::OpenError,
    },
    /// What is in the folder cannot be served.
    #[error("starting from the data folder {}", .path.display())]
    Start {
        /// Which.
        path: PathBuf,
        /// What failed.
        #[source]
        source: StartError,
    },
    /// The database cannot be reached, or would not keep what a log promises.
    #[cfg(feature = "postgres")]
    #[error("opening the shard {shard:?} of the database")]
    Database {
        /// Which.
        shard: String,
        /// What failed.
        #[source]
        source: lockgate_postgres::OpenError,
    },
    /// What is in the shard cannot be served.
    #[cfg(feature = "postgres")]
    #[error("starting from the shard {shard:?} of the database")]
    StartShard {
        /// Which.
        shard: String,
        /// What failed.
        #[source]
        source: StartError,
    },
    /// The thread that opens it could not be started, or died.
    #[error("starting a thread to open it")]
    Thread(#[source] io::Error),
}

impl Lockgate {
    /// Opens the folder at `path`, making it (mode 0700) if it is not there. A folder that holds only files of
    /// others is refused ([`OpenError::Folder`]): give the log one of its own.
    ///
    /// Recovery reads the log; it runs on a thread of its own, not in the caller's task.
    ///
    /// # Errors
    /// See [`OpenError`]; in particular if the folder is open already.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder(path).open().await
    }

    /// Opens the folder at `path` with other than the default options.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder {
            path: path.as_ref().to_owned(),
            engine: EngineOptions::default(),
            log: LocalLogOptions::default(),
        }
    }

    /// Starts to make, or open, the queue of that name.
    pub fn queue(&self, name: &str) -> QueueBuilder {
        QueueBuilder::new(self.engine.clone(), name)
    }

    /// The names of all queues, in order.
    #[must_use]
    pub fn queues(&self) -> Vec<Queue> {
        let entries = self.engine.directory().all();
        entries
            .into_iter()
            .map(|entry| Queue::new(self.engine.clone(), entry.name.clone()))
            .collect()
    }

    /// Starts a transaction: settles and sends that all happen, or none.
    pub fn transact(&self) -> Transaction {
        Transaction::new(self.engine.clone())
    }

    /// What opening found and did: how much was recovered, and whether anything was damaged.
    #[must_use]
    pub fn start_report(&self) -> &StartReport {
        &self.report
    }

    /// Whether it takes work, or why not.
    #[must_use]
    pub fn status(&self) -> Status {
        self.engine.status()
    }

    /// What was counted since it was opened.
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        self.engine.metrics()
    }

    /// The engine below, for what this crate has no word for.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Closes the folder: answers what was asked, ends waiting receives empty, syncs, and gives the
    /// folder free. Leases go on until they end or the next opener's consumers settle them.
    ///
    /// May be called more than once. Cancellation safe: it closes also if nobody waits.
    pub async fn shutdown(&self) {
        self.engine.shutdown().await;
    }
}

impl Builder {
    /// Limits and windows of the engine.
    pub fn engine_options(mut self, options: EngineOptions) -> Self {
        self.engine = options;
        self
    }

    /// The number of the shard that the folder is, 0 without this. The first opening of a new folder writes it
    /// down; an opening under another number is refused with
    /// [`StartError::OtherShard`](crate::StartError::OtherShard). Folders that one process opens get different
    /// numbers, if their messages' ids are to differ for sure.
    pub fn shard_number(mut self, shard: ShardId) -> Self {
        self.engine.shard = shard;
        self
    }

    /// Sizes and limits of the log.
    pub fn log_options(mut self, options: LocalLogOptions) -> Self {
        self.log = options;
        self
    }

    /// Opens it although files of the folder are not there that are needed: messages have their bytes in them, or
    /// what was done since the last snapshot stands there. Without this the opening is refused with
    /// [`StartError::Missing`](crate::StartError::Missing), which lists them, and nothing is changed. With it
    /// those messages are dropped as damaged, durably and for good, and messages elsewhere to queues whose creation
    /// stood there are lost too ([`StartReport::without_queue`](crate::StartReport::without_queue)); putting the files back later brings
    /// nothing back. For one opening, by somebody who knows what is lost.
    pub fn accept_loss(mut self) -> Self {
        self.engine.accept_loss = true;
        self
    }

    /// Opens the folder. See [`Lockgate::open`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(self) -> Result<Lockgate, OpenError> {
        let name = self.engine.thread_name.clone();
        on_a_thread(&name, move || self.open_blocking()).await
    }

    /// Opens the folder on the caller's thread, which may take as long as reading the log: not for
    /// an async task.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_blocking(self) -> Result<Lockgate, OpenError> {
        let Self { path, engine, log } = self;
        let disk = match FolderDisk::open(&path) {
            Ok(disk) => disk,
            Err(source) => return Err(OpenError::Folder { path, source }),
        };
        let log = match LocalLog::open(Arc::new(disk), log) {
            Ok(log) => log,
            Err(source) => return Err(OpenError::Log { path, source }),
        };
        start(log, engine).map_err(|source| OpenError::Start { path, source })
    }
}

/// Serves what is in the log.
pub(crate) fn start(
    storage: impl Into<Storage>,
    options: EngineOptions,
) -> Result<Lockgate, StartError> {
    let (engine, report) = Engine::start(storage, Arc::new(SystemClock::new()), options)?;
    Ok(Lockgate {
        engine,
        report: Arc::new(report),
    })
}

/// Opens on a thread of its own, because that may take as long as reading a log.
pub(crate) async fn on_a_thread(
    name: &str,
    open: impl FnOnce() -> Result<Lockgate, OpenError> + Send + 'static,
) -> Result<Lockgate, OpenError> {
    let (sender, opened) = oneshot::channel();
    thread::Builder::new()
        .name(format!("{name}-open"))
        // If nobody waits any more, what was opened is dropped and thereby closed.
        .spawn(move || drop(sender.send(open())))
        .map_err(OpenError::Thread)?;
    opened.await.unwrap_or_else(|_died| {
        let died = io::Error::other("it panicked; the panic's message is on standard error");
        Err(OpenError::Thread(died))
    })
}

impl fmt::Debug for Lockgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lockgate").field(&self.engine).finish()
    }
}
