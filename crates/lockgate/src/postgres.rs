//! Keeps queues in a PostgreSQL database.

use std::{fmt, sync::Arc};

use lockgate_core::ShardId;
use lockgate_engine::EngineOptions;
use lockgate_log::SystemClock;
use lockgate_postgres::{PostgresLog, PostgresLogOptions};

use crate::{
    Lockgate, OpenError,
    open::{on_a_thread, start},
};

/// Opens a shard of a database. [`Lockgate::postgres`] makes one.
#[derive(Clone)]
#[must_use]
pub struct PostgresBuilder {
    url: String,
    shard: String,
    engine: EngineOptions,
    log: PostgresLogOptions,
}

impl Lockgate {
    /// Starts to open the queues that a PostgreSQL database keeps as the shard with this name. Makes
    /// the tables and the shard if they are missing. `url` is as in
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`; the name has up to 255 bytes.
    ///
    /// The last one to open a shard owns it: an instance that has the shard open fails at its next
    /// append or sync, and stops. `docs/logs.md` says what the database must be like, and what the
    /// levels mean there.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lockgate::OpenError> {
    /// use lockgate::Lockgate;
    ///
    /// let url = "postgres://lockgate:secret@127.0.0.1:5432/queues";
    /// let lockgate = Lockgate::postgres(url, "orders").open().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn postgres(url: &str, shard: &str) -> PostgresBuilder {
        PostgresBuilder {
            url: url.to_owned(),
            shard: shard.to_owned(),
            engine: EngineOptions::default(),
            log: PostgresLogOptions::default(),
        }
    }
}

impl PostgresBuilder {
    /// Sets limits, sync window and threads of the engine. Default: [`EngineOptions::default`].
    pub fn engine_options(mut self, options: EngineOptions) -> Self {
        self.engine = options;
        self
    }

    /// Sets the number of the shard, beside its name in the database. Default: 0. The first opening
    /// of a new shard writes the number down; an opening under another number fails with
    /// [`StartError::OtherShard`](crate::StartError::OtherShard). Give shards different numbers if
    /// the ids of their messages must differ.
    pub fn shard_number(mut self, shard: ShardId) -> Self {
        self.engine.shard = shard;
        self
    }

    /// Sets deadlines, sizes and limits of the log. Default: [`PostgresLogOptions::default`].
    pub fn log_options(mut self, options: PostgresLogOptions) -> Self {
        self.log = options;
        self
    }

    /// Opens the shard although rows are missing that are needed: messages have their bytes in
    /// them, or they held what was done since the last snapshot. Without this, opening fails with
    /// [`StartError::Missing`](crate::StartError::Missing), which lists the rows, and changes
    /// nothing.
    ///
    /// With it, opening drops those messages as damaged, durably and for good. Messages in other
    /// rows are lost too if their queue was created in a missing one
    /// ([`StartReport::without_queue`](crate::StartReport::without_queue)). Putting the rows back
    /// later brings nothing back. It holds for one opening; use it only if you know what you lose.
    pub fn accept_loss(mut self) -> Self {
        self.engine.accept_loss = true;
        self
    }

    /// Opens the shard on a thread of its own, and takes it over from its present owner.
    ///
    /// Cancellation safe: if the future is dropped, the shard closes again as soon as it is open.
    /// The present owner may be deposed by then.
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub async fn open(self) -> Result<Lockgate, OpenError> {
        let name = self.engine.thread_name.clone();
        on_a_thread(&name, move || self.open_blocking()).await
    }

    /// Opens the shard on the caller's thread. It blocks as long as recovery reads the shard: do
    /// not call it from an async task.
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub fn open_blocking(self) -> Result<Lockgate, OpenError> {
        let Self {
            url,
            shard,
            engine,
            log,
        } = self;
        match PostgresLog::open(&url, &shard, log) {
            Ok(log) => start(log, Arc::new(SystemClock::new()), engine)
                .map_err(|source| OpenError::StartShard { shard, source }),
            Err(source) => Err(OpenError::Database { shard, source }),
        }
    }
}

/// Leaves the URL out, which may hold a password.
impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBuilder")
            .field("shard", &self.shard)
            .field("engine", &self.engine)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
