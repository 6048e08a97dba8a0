//! Opens a folder of queues, and closes it.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use lockgate_core::{Clock, DiskError, ShardId, Storage, WallTime};
use lockgate_engine::{
    BackupError, BackupReport, Engine, EngineMetrics, EngineOptions, StartError, StartReport,
    Status,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use tokio::sync::oneshot;

use crate::{
    Delivery, QueueBuilder, SettleAllError, SettleError, Settlement, Transaction, queue::Queue,
    settling::settle_all,
};

/// An open folder, or database shard, of queues. Clones are cheap and share it.
///
/// When the last clone, queue and delivery is dropped, the folder closes in the background.
/// [`shutdown`](Self::shutdown) closes it in good order and waits for that.
#[derive(Clone)]
pub struct Lockgate {
    engine: Engine,
    report: Arc<StartReport>,
}

/// Opens a folder with options of your own. [`Lockgate::builder`] makes one.
#[derive(Clone)]
#[must_use]
pub struct Builder {
    path: PathBuf,
    engine: EngineOptions,
    log: LocalLogOptions,
    clock: Arc<dyn Clock>,
}

/// Says why a folder or a shard could not be opened. Nothing is served then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be made or read, or it holds files but none of Lockgate's.
    #[error("opening the data folder {}", .path.display())]
    Folder {
        /// The folder that was to be opened.
        path: PathBuf,
        /// What the layer below says about it.
        #[source]
        source: DiskError,
    },
    /// This or another process has the folder open, or the log's options are wrong.
    #[error("taking the data folder {}", .path.display())]
    Log {
        /// The folder that was to be opened.
        path: PathBuf,
        /// What the layer below says about it.
        #[source]
        source: lockgate_log::OpenError,
    },
    /// The folder is open, but the engine cannot serve what is in it.
    #[error("starting from the data folder {}", .path.display())]
    Start {
        /// The folder that was to be opened.
        path: PathBuf,
        /// What the layer below says about it.
        #[source]
        source: StartError,
    },
    /// The database cannot be reached, or it is set up so that it would not keep what a log
    /// promises.
    #[cfg(feature = "postgres")]
    #[error("opening the shard {shard:?} of the database")]
    Database {
        /// The name of the shard that was to be opened.
        shard: String,
        /// What the layer below says about it.
        #[source]
        source: lockgate_postgres::OpenError,
    },
    /// The shard is open, but the engine cannot serve what is in it.
    #[cfg(feature = "postgres")]
    #[error("starting from the shard {shard:?} of the database")]
    StartShard {
        /// The name of the shard that was to be opened.
        shard: String,
        /// What the layer below says about it.
        #[source]
        source: StartError,
    },
    /// The engine cannot serve what is in the caller's log.
    #[error("starting from the log")]
    StartStorage(#[source] StartError),
    /// The thread that opens the folder or shard could not be started, or it panicked.
    #[error("starting a thread to open it")]
    Thread(#[source] io::Error),
}

impl Lockgate {
    /// Opens the folder at `path` with the default options. Makes the folder (mode 0700) if it is
    /// missing. Refuses a folder that holds only other programs' files ([`OpenError::Folder`]):
    /// give the log a folder of its own.
    ///
    /// Recovery reads the newest snapshot and the log since then, on a thread of its own.
    ///
    /// Cancellation safe: if the future is dropped, the folder closes again as soon as it is open.
    ///
    /// # Errors
    /// [`OpenError::Log`] if the folder is open already, here or in another process; the others as
    /// [`OpenError`] says.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::builder(path).open().await
    }

    /// Starts to open the folder at `path` with options of your own.
    pub fn builder(path: impl AsRef<Path>) -> Builder {
        Builder {
            path: path.as_ref().to_owned(),
            engine: EngineOptions::default(),
            log: LocalLogOptions::default(),
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// Starts to create or open the queue with this name. Nothing happens before
    /// [`create`](QueueBuilder::create), [`open`](QueueBuilder::open) or
    /// [`configure`](QueueBuilder::configure), which also check the name.
    pub fn queue(&self, name: &str) -> QueueBuilder {
        QueueBuilder::new(self.engine.clone(), name)
    }

    /// Returns the time of the clock that the queues use. Use it for a message's [due
    /// time](lockgate_core::Message::with_due). It asks nobody.
    ///
    /// `WallTime::from(SystemTime::now())` is a reading of the system's clock.
    #[must_use]
    pub fn now(&self) -> WallTime {
        self.engine.now().wall
    }

    /// Makes the queues look at their clock again. Call it after a test has set the clock:
    /// otherwise they sleep until the next deadline as if time passed at its usual rate. Requests
    /// after the call see the new time.
    pub fn clock_changed(&self) {
        self.engine.clock_changed();
    }

    /// Writes a backup of all queues, as they are at one instant between the call and the first
    /// byte, while they serve. It contains everything that was answered before the call, and only
    /// what is durable. `lockgate restore` makes a folder of it. It takes a few MiB of memory.
    ///
    /// It runs on a thread of its own. If the future is dropped, the backup goes on to its end, and
    /// nobody learns the outcome.
    ///
    /// # Errors
    /// [`BackupError`] if the queues are closed meanwhile, the log cannot be read or `out` fails.
    /// The bytes written by then are of no use, and a restore says so.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let lockgate = lockgate::Lockgate::open(folder.path().join("data")).await?;
    /// # let path = folder.path().join("backup");
    /// let queue = lockgate.queue("mail").create().await?;
    /// queue.send(lockgate::Message::new("hello")).await?;
    /// let report = lockgate.backup(std::fs::File::create(path)?).await?;
    /// assert_eq!(report.messages, 1);
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn backup(
        &self,
        mut out: impl io::Write + Send + 'static,
    ) -> Result<BackupReport, BackupError> {
        let engine = self.engine.clone();
        let (sender, written) = oneshot::channel();
        thread::Builder::new()
            .name("lockgate-backup".to_owned())
            .spawn(move || drop(sender.send(engine.backup(&mut out))))
            .map_err(BackupError::Write)?;
        written.await.unwrap_or_else(|_died| {
            let died =
                io::Error::other("its thread panicked; the panic's message is on standard error");
            Err(BackupError::Write(died))
        })
    }

    /// Settles messages of any queues of this folder, each on its own: one may be stale and the
    /// others settled. It writes and syncs them together, so it is much cheaper than settling them
    /// one by one. Returns one result for each, in order. [`transact`](Self::transact) does all or
    /// nothing.
    ///
    /// If the future is dropped after the settles got to the engine, they may have happened or not.
    ///
    /// # Errors
    /// [`SettleAllError`] with the deliveries, if the engine could do none of them. If one settle
    /// fails, its result says so and has the delivery.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
    /// use std::time::Duration;
    ///
    /// use lockgate::{Message, Settlement};
    ///
    /// let queue = lockgate.queue("mail").create().await?;
    /// queue.send_all(["good", "bad"].map(Message::new)).await?;
    /// let deliveries = queue.receive().max(2).await?;
    /// let settles = deliveries.into_iter().map(|delivery| {
    ///     let settling = match &delivery.body()[..] {
    ///         b"good" => Settlement::Ack,
    ///         _ => Settlement::Nack { delay: Duration::from_secs(5) },
    ///     };
    ///     (delivery, settling)
    /// });
    /// for result in lockgate.settle_all(settles).await? {
    ///     result?;
    /// }
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settle_all(
        &self,
        settles: impl IntoIterator<Item = (Delivery, Settlement)>,
    ) -> Result<Vec<Result<(), SettleError>>, SettleAllError> {
        settle_all(&self.engine, settles.into_iter().collect()).await
    }

    /// Returns all queues, in the order of their names.
    #[must_use]
    pub fn queues(&self) -> Vec<Queue> {
        let entries = self.engine.directory().all();
        entries
            .into_iter()
            .map(|entry| Queue::new(self.engine.clone(), entry.name.clone()))
            .collect()
    }

    /// Starts a transaction: acknowledgements and sends that all happen, or none.
    pub fn transact(&self) -> Transaction {
        Transaction::new(self.engine.clone())
    }

    /// Tells what opening found and did: how much it recovered, and whether anything was damaged or
    /// lost.
    #[must_use]
    pub fn start_report(&self) -> &StartReport {
        &self.report
    }

    /// Tells whether the engine accepts work, or why it does not.
    #[must_use]
    pub fn status(&self) -> Status {
        self.engine.status()
    }

    /// Returns the engine's counters since it was opened. Counters of a queue are in
    /// [`Queue::describe`].
    #[must_use]
    pub fn metrics(&self) -> EngineMetrics {
        self.engine.metrics()
    }

    /// Gives access to the engine below, for operations that this crate has no method for.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Closes the folder in good order: answers requests that it has, ends waiting receives empty,
    /// syncs, and releases the folder. Leases go on until they end, or until consumers of the next
    /// opener settle them.
    ///
    /// You may call it more than once. Cancellation safe: the folder also closes if nobody waits.
    pub async fn shutdown(&self) {
        self.engine.shutdown().await;
    }
}

impl Builder {
    /// Sets limits, sync window and threads of the engine. Default: [`EngineOptions::default`].
    pub fn engine_options(mut self, options: EngineOptions) -> Self {
        self.engine = options;
        self
    }

    /// Sets the number of the shard in this folder. Default: 0. The first opening of a new folder
    /// writes the number down; an opening under another number fails with
    /// [`StartError::OtherShard`](crate::StartError::OtherShard). Give folders different numbers if
    /// the ids of their messages must differ.
    pub fn shard_number(mut self, shard: ShardId) -> Self {
        self.engine.shard = shard;
        self
    }

    /// Sets segment size, limits and preallocation of the log. Default:
    /// [`LocalLogOptions::default`].
    pub fn log_options(mut self, options: LocalLogOptions) -> Self {
        self.log = options;
        self
    }

    /// Sets the clock, for tests; the queues use no other. Default: the operating system's clock.
    /// Call [`Lockgate::clock_changed`] after you have set the clock.
    ///
    /// ```
    /// use std::{sync::Arc, time::Duration};
    ///
    /// use lockgate::{Lockgate, ManualClock, Message};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path();
    /// let clock = ManualClock::default();
    /// let lockgate = Lockgate::builder(path).clock(Arc::new(clock.clone())).open().await?;
    /// let queue = lockgate.queue("mail").create().await?;
    /// let tomorrow = lockgate.now() + Duration::from_secs(86_400);
    /// queue.send(Message::new("hello").with_due(tomorrow)).await?;
    /// assert!(queue.receive().await?.is_empty());
    ///
    /// clock.advance(86_400_000);
    /// lockgate.clock_changed();
    /// assert_eq!(queue.receive().await?[0].body(), "hello");
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the folder although files are missing that are needed: messages have their bytes in
    /// them, or they held what was done since the last snapshot. Without this, opening fails with
    /// [`StartError::Missing`](crate::StartError::Missing), which lists the files, and changes
    /// nothing.
    ///
    /// With it, opening drops those messages as damaged, durably and for good. Messages in other
    /// files are lost too if their queue was created in a missing one
    /// ([`StartReport::without_queue`](crate::StartReport::without_queue)). Putting the files back
    /// later brings nothing back. It holds for one opening; use it only if you know what you lose.
    pub fn accept_loss(mut self) -> Self {
        self.engine.accept_loss = true;
        self
    }

    /// Opens the folder on a thread of its own. See [`Lockgate::open`].
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub async fn open(self) -> Result<Lockgate, OpenError> {
        let name = self.engine.thread_name.clone();
        on_a_thread(&name, move || self.open_blocking()).await
    }

    /// Opens the folder on the caller's thread. It blocks as long as recovery reads the log: do not
    /// call it from an async task.
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub fn open_blocking(self) -> Result<Lockgate, OpenError> {
        let Self {
            path,
            engine,
            log,
            clock,
        } = self;
        let disk = match FolderDisk::open(&path) {
            Ok(disk) => disk,
            Err(source) => return Err(OpenError::Folder { path, source }),
        };
        let log = match LocalLog::open(Arc::new(disk), log) {
            Ok(log) => log,
            Err(source) => return Err(OpenError::Log { path, source }),
        };
        start(log, clock, engine).map_err(|source| OpenError::Start { path, source })
    }
}

/// Serves what is in the log.
pub(crate) fn start(
    storage: impl Into<Storage>,
    clock: Arc<dyn Clock>,
    options: EngineOptions,
) -> Result<Lockgate, StartError> {
    let (engine, report) = Engine::start(storage, clock, options)?;
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

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("path", &self.path)
            .field("engine", &self.engine)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lockgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lockgate").field(&self.engine).finish()
    }
}
