//! Queues in a PostgreSQL database.

use std::fmt;

use lockgate_core::ShardId;
use lockgate_engine::EngineOptions;
use lockgate_postgres::{PostgresLog, PostgresLogOptions};

use crate::{
    Lockgate, OpenError,
    open::{on_a_thread, start},
};

/// Opens a shard of a database with other than the default options.
#[derive(Clone)]
#[must_use]
pub struct PostgresBuilder {
    url: String,
    shard: String,
    engine: EngineOptions,
    log: PostgresLogOptions,
}

impl Lockgate {
    /// Starts to open the queues that are kept as the shard of that name in a PostgreSQL database,
    /// making tables and shard if they are not there.
    ///
    /// Whoever opens a shard last owns it: an instance that has it open is refused at its next append or
    /// sync and stops. `docs/logs.md` says what the database must be like and what the levels mean there.
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
    /// Limits and windows of the engine.
    pub fn engine_options(mut self, options: EngineOptions) -> Self {
        self.engine = options;
        self
    }

    /// The number of the shard, beside its name in the database; 0 without this. The first opening of a new
    /// shard writes it down; an opening under another number is refused with
    /// [`StartError::OtherShard`](crate::StartError::OtherShard). Shards that one process opens get different
    /// numbers, if their messages' ids are to differ for sure.
    pub fn shard_number(mut self, shard: ShardId) -> Self {
        self.engine.shard = shard;
        self
    }

    /// Deadlines, sizes and limits of the log.
    pub fn log_options(mut self, options: PostgresLogOptions) -> Self {
        self.log = options;
        self
    }

    /// Opens it although rows of the shard are not there that are needed: messages have their bytes in them, or
    /// what was done since the last snapshot stands there. Without this the opening is refused with
    /// [`StartError::Missing`](crate::StartError::Missing), which lists them, and nothing is changed. With it
    /// those messages are dropped as damaged, durably and for good, and messages elsewhere to queues whose creation
    /// stood there are lost too ([`StartReport::without_queue`](crate::StartReport::without_queue)); putting the rows back later brings
    /// nothing back. For one opening, by somebody who knows what is lost.
    pub fn accept_loss(mut self) -> Self {
        self.engine.accept_loss = true;
        self
    }

    /// Opens the shard; reading it takes place on a thread of its own.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(self) -> Result<Lockgate, OpenError> {
        let name = self.engine.thread_name.clone();
        on_a_thread(&name, move || self.open_blocking()).await
    }

    /// Opens the shard on the caller's thread, which may take as long as reading it: not for an async
    /// task.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_blocking(self) -> Result<Lockgate, OpenError> {
        let Self {
            url,
            shard,
            engine,
            log,
        } = self;
        match PostgresLog::open(&url, &shard, log) {
            Ok(log) => start(log, engine).map_err(|source| OpenError::StartShard { shard, source }),
            Err(source) => Err(OpenError::Database { shard, source }),
        }
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresBuilder")
            .field("shard", &self.shard)
            .field("engine", &self.engine)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
