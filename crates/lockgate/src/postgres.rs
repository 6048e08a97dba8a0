//! Keeps queues in a PostgreSQL database.

use std::{fmt, sync::Arc};

use lockgate_core::Clock;
use lockgate_engine::EngineOptions;
use lockgate_postgres::{PostgresLog, PostgresLogOptions};

use crate::{
    Builder, Lockgate, OpenError, Place,
    open::{sealed, start},
};

/// A shard of a PostgreSQL database.
#[derive(Clone)]
pub struct PostgresShard {
    url: String,
    name: String,
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
    pub fn postgres(url: &str, shard: &str) -> Builder<PostgresShard> {
        Builder::new(PostgresShard {
            url: url.to_owned(),
            name: shard.to_owned(),
            log: PostgresLogOptions::default(),
        })
    }
}

impl Builder<PostgresShard> {
    /// Sets deadlines, sizes and limits of the log. Default: [`PostgresLogOptions::default`].
    pub fn log_options(mut self, options: PostgresLogOptions) -> Self {
        self.place.log = options;
        self
    }
}

impl Place for PostgresShard {}

impl sealed::Open for PostgresShard {
    fn open(self, clock: Arc<dyn Clock>, options: EngineOptions) -> Result<Lockgate, OpenError> {
        let Self { url, name, log } = self;
        match PostgresLog::open(&url, &name, log) {
            Ok(log) => start(log, clock, options).map_err(|source| OpenError::StartShard {
                shard: name,
                source,
            }),
            Err(source) => Err(OpenError::Database {
                shard: name,
                source,
            }),
        }
    }
}

/// Leaves the URL out, which may hold a password.
impl fmt::Debug for PostgresShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresShard")
            .field("name", &self.name)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}
