//! Opens a folder of queues, and closes it.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use lockgate_core::{Clock, DiskError, ShardId, Storage, WallTime, coordination::Fence};
use lockgate_engine::{
    BackupError, BackupReport, Engine, EngineMetrics, EngineOptions, FolderIndex, IndexOptions,
    RestoreError, RestoreReport, StartError, StartReport, Status,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use lockgate_metrics::Page;
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

/// Opens queues with options of your own. The *place* is where they are kept: a folder
/// ([`Lockgate::builder`]), a log of the caller's ([`Lockgate::over`]) or a shard of a database
/// (`Lockgate::postgres`).
#[derive(Clone)]
#[must_use]
pub struct Builder<P> {
    pub(crate) place: P,
    engine: EngineOptions,
    clock: Arc<dyn Clock>,
}

/// Where queues are kept. This crate has the implementations.
pub trait Place: sealed::Open {}

/// A data folder.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    log: LocalLogOptions,
}

pub(crate) mod sealed {
    use super::{Arc, Clock, EngineOptions, Lockgate, OpenError};

    pub trait Open: Send + 'static {
        /// Opens the place, however long it takes, and serves what is in it.
        fn open(self, clock: Arc<dyn Clock>, options: EngineOptions)
        -> Result<Lockgate, OpenError>;
    }
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
    /// The backup was not restored, or only a part of it.
    #[error("restoring a backup into {}", .path.display())]
    Restore {
        /// The folder that was to hold it.
        path: PathBuf,
        /// What the layer below says about it.
        #[source]
        source: RestoreError,
    },
    /// The engine cannot serve what is in the caller's log.
    #[error("starting from the log")]
    StartStorage(#[source] StartError),
    /// The thread that opens or restores could not be started, or it panicked.
    #[error("starting a thread for it")]
    Thread(#[source] io::Error),
}

/// How many queues, and so on, a page of metrics has by name.
const NAMES_MAX: usize = 1_000;

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
    pub fn builder(path: impl AsRef<Path>) -> Builder<Folder> {
        Builder::new(Folder {
            path: path.as_ref().to_owned(),
            log: LocalLogOptions::default(),
        })
    }

    /// The same queues and records for the leader of a term: see [`Queue::fenced`](crate::Queue::fenced).
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        Self {
            engine: self.engine.fenced(fence),
            report: self.report.clone(),
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
    ///         _ => Settlement::Nack { delay: Duration::from_secs(5), reason: None },
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

    /// Returns all figures of this folder in the text format of Prometheus, as a server's `/metrics` has them: counters and
    /// histograms of the engine, and figures of up to 1,000 queues, ledgers, exchanges and schedules each. Those of the process are
    /// not among them: a service that embeds Lockgate has its own. `docs/metrics.md` says what they mean.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let lockgate = lockgate::Lockgate::open(folder.path().join("data")).await?;
    /// let queue = lockgate.queue("mail").create().await?;
    /// queue.send(lockgate::Message::new("hello")).await?;
    /// let page = lockgate.metrics_page().await;
    /// assert!(page.contains("lockgate_queue_ready_messages{queue=\"mail\"} 1\n"));
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn metrics_page(&self) -> String {
        let mut page = Page::default();
        self.engine.write_metrics(&mut page, NAMES_MAX).await;
        page.finish()
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

impl<P> Builder<P> {
    pub(crate) fn new(place: P) -> Self {
        Self {
            place,
            engine: EngineOptions::default(),
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// Sets limits, sync window and threads of the engine. Default: [`EngineOptions::default`].
    pub fn engine_options(mut self, options: EngineOptions) -> Self {
        self.engine = options;
        self
    }

    /// Sets the number of the shard in this place. Default: 0. The first opening of a new place
    /// writes the number down; an opening under another number fails with
    /// [`StartError::OtherShard`](crate::StartError::OtherShard). Give places different numbers if
    /// the ids of their messages must differ.
    pub fn shard_number(mut self, shard: ShardId) -> Self {
        self.engine.shard = shard;
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

    /// Opens the place although files (in a database: rows) are missing that are needed: messages
    /// have their bytes in them, or they held what was done since the last snapshot. Without this,
    /// opening fails with [`StartError::Missing`](crate::StartError::Missing), which lists them, and
    /// changes nothing.
    ///
    /// With it, opening drops those messages as damaged, durably and for good. Messages in other
    /// files are lost too if their queue was created in a missing one
    /// ([`StartReport::without_queue`](crate::StartReport::without_queue)). Putting the files back
    /// later brings nothing back. It holds for one opening; use it only if you know what you lose.
    pub fn accept_loss(mut self) -> Self {
        self.engine.accept_loss = true;
        self
    }
}

impl<P: Place> Builder<P> {
    /// Opens the place on a thread of its own. A shard of a database is taken over from its present
    /// owner.
    ///
    /// Cancellation safe: if the future is dropped, the place closes again as soon as it is open.
    /// The present owner of a shard may be deposed by then.
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub async fn open(self) -> Result<Lockgate, OpenError> {
        let name = format!("{}-open", self.engine.thread_name);
        on_a_thread(name, move || self.open_blocking()).await
    }

    /// Opens the place on the caller's thread. It blocks as long as recovery reads the log: do not
    /// call it from an async task.
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub fn open_blocking(self) -> Result<Lockgate, OpenError> {
        self.place.open(self.clock, self.engine)
    }
}

impl Builder<Folder> {
    /// Sets segment size, limits and preallocation of the log. Default:
    /// [`LocalLogOptions::default`].
    pub fn log_options(mut self, options: LocalLogOptions) -> Self {
        self.place.log = options;
        self
    }

    /// Makes the folder hold what the backup holds: queues, messages, order, counts, remembered ids
    /// and leases. The folder must be missing or empty. Its shard number is the backup's,
    /// [`RestoreReport::shard`]: give it to [`shard_number`](Self::shard_number) when you open the
    /// folder, unless it is 0. The options of the engine and the clock have no effect.
    ///
    /// It runs on a thread of its own. If the future is dropped, the restore goes on to its end.
    ///
    /// # Errors
    /// [`OpenError::Restore`] if the folder holds queues, or the backup is damaged or cut. Remove the
    /// folder then, if it was empty before: it holds a part of the backup, and opening it fails, or it
    /// holds nothing. [`OpenError::Folder`] and [`OpenError::Log`] as for opening.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("backup");
    /// # let copy = folder.path().join("copy");
    /// # let lockgate = lockgate::Lockgate::open(folder.path().join("data")).await?;
    /// # let queue = lockgate.queue("mail").create().await?;
    /// # queue.send(lockgate::Message::new("hello")).await?;
    /// # lockgate.backup(std::fs::File::create(&path)?).await?;
    /// # lockgate.shutdown().await;
    /// use std::{fs::File, io::BufReader};
    ///
    /// use lockgate::Lockgate;
    ///
    /// let backup = BufReader::new(File::open(path)?);
    /// let report = Lockgate::builder(&copy).restore(backup).await?;
    /// assert_eq!(report.messages, 1);
    /// let lockgate = Lockgate::open(copy).await?;
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn restore(
        self,
        mut backup: impl io::Read + Send + 'static,
    ) -> Result<RestoreReport, OpenError> {
        let Folder { path, log } = self.place;
        on_a_thread("lockgate-restore".to_owned(), move || {
            let log = open_log(&path, log)?;
            let index = index_of(&path);
            lockgate_engine::restore_with_index(&mut backup, log, Some(&index), None)
                .map_err(|source| OpenError::Restore { path, source })
        })
        .await
    }
}

impl Place for Folder {}

impl sealed::Open for Folder {
    fn open(self, clock: Arc<dyn Clock>, options: EngineOptions) -> Result<Lockgate, OpenError> {
        let Self { path, log } = self;
        let log = open_log(&path, log)?;
        let options = EngineOptions {
            index: Some(options.index.unwrap_or_else(|| Arc::new(index_of(&path)))),
            ..options
        };
        start(log, clock, options).map_err(|source| OpenError::Start { path, source })
    }
}

/// The index of unique ids beside the log in that folder.
fn index_of(path: &Path) -> FolderIndex {
    FolderIndex::new(path.join("index"), IndexOptions::default())
}

fn open_log(path: &Path, options: LocalLogOptions) -> Result<LocalLog, OpenError> {
    let disk = FolderDisk::open(path).map_err(|source| OpenError::Folder {
        path: path.to_owned(),
        source,
    })?;
    LocalLog::open(Arc::new(disk), options).map_err(|source| OpenError::Log {
        path: path.to_owned(),
        source,
    })
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

/// Runs on a thread of its own what may take as long as reading a log. If nobody waits any more, what
/// was opened is dropped and thereby closed.
async fn on_a_thread<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    let (sender, done) = oneshot::channel();
    thread::Builder::new()
        .name(name)
        .spawn(move || drop(sender.send(work())))
        .map_err(OpenError::Thread)?;
    done.await.unwrap_or_else(|_died| {
        let died = io::Error::other("it panicked; the panic's message is on standard error");
        Err(OpenError::Thread(died))
    })
}

impl<P: fmt::Debug> fmt::Debug for Builder<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("place", &self.place)
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Lockgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lockgate").field(&self.engine).finish()
    }
}
