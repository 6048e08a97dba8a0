//! The options of a log, and why it could not be opened.

use std::{io, time::Duration};

use lockgate_core::{Level, LogCapabilities, LogError};

use crate::ConnectionThread;

/// The options of a [`PostgresLog`](crate::PostgresLog).
#[derive(Clone, Debug)]
pub struct PostgresLogOptions {
    /// How long one statement may take, and also a connect; from 10 ms to a day, by default 30 s.
    /// The server gets the same limit. A client that gets no answer by then gives up by itself;
    /// during an append or a sync that ends the log.
    pub timeout: Duration,
    /// The largest payload of a record in bytes, up to 64 MiB; by default 16 MiB.
    pub record_bytes_max: usize,
    /// The level that a sync reaches: [`Level::Disk`], the default, or [`Level::Replicated`]. The
    /// latter needs `synchronous_standby_names` on the server, and the right to see how far the
    /// standbys are (the role `pg_read_all_stats`). It ends the log when a sync did not wait for a
    /// standby.
    pub sync_level: Level,
    /// The size of a range, in which space comes back, as a power of two bytes; from 12 to 40, by
    /// default 26 (64 MiB). It may differ from one opening to the next.
    pub range_bits: u32,
    /// How many bytes of records and snapshots make the log count as full. An eighth of them is
    /// kept for what makes room again. Default: `None`, which leaves it to the server's disk.
    pub bytes_max: Option<u64>,
    /// The thread that moves bytes between the log's connections and the server. Default: `None`, a
    /// thread of its own. For many logs in one process, give all of them clones of one.
    pub thread: Option<ConnectionThread>,
}

impl Default for PostgresLogOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            record_bytes_max: 16 << 20,
            sync_level: Level::Disk,
            range_bits: 26,
            bytes_max: None,
            thread: None,
        }
    }
}

/// The limit of [`PostgresLogOptions::record_bytes_max`].
const RECORD_BYTES_LIMIT: usize = 64 << 20;

/// Groups on their way at once. With more of them, groups are smaller and each costs the server the same.
pub(crate) const GROUPS_IN_FLIGHT: usize = 4;

/// Syncs on their way at once.
const SYNCS_IN_FLIGHT: usize = 4;

/// The longest name of a shard, in bytes.
pub(crate) const SHARD_NAME_BYTES_MAX: usize = 255;

impl PostgresLogOptions {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let what = if self.timeout < Duration::from_millis(10) {
            "timeout is below 10 ms"
        } else if self.timeout > Duration::from_hours(24) {
            "timeout is above a day"
        } else if self.record_bytes_max == 0 || self.record_bytes_max > RECORD_BYTES_LIMIT {
            "record_bytes_max is zero or above 64 MiB"
        } else if !matches!(self.sync_level, Level::Disk | Level::Replicated) {
            "sync_level is neither disk nor replicated"
        } else if !(12..=40).contains(&self.range_bits) {
            "range_bits is not within 12 and 40"
        } else {
            return Ok(());
        };
        Err(OpenError::Options { what })
    }

    /// What a log with these options can do.
    pub(crate) fn capabilities(&self) -> LogCapabilities {
        LogCapabilities {
            gap: 0,
            record_bytes_max: self.record_bytes_max,
            append_level: Level::Process,
            sync_level: self.sync_level,
            groups_in_flight: GROUPS_IN_FLIGHT,
            // Who waits for standbys looks how far they are, one sync at a time.
            syncs_in_flight: match self.sync_level {
                Level::Replicated => 1,
                _ => SYNCS_IN_FLIGHT,
            },
            releases_ranges: true,
            range_bits: self.range_bits,
        }
    }
}

/// Says why a [`PostgresLog`](crate::PostgresLog) could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options contradict each other or are out of range.
    #[error("the log's options are wrong: {what}")]
    Options {
        /// The option, and what is wrong with it.
        what: &'static str,
    },
    /// The name is empty, too long, has a zero byte, or is one that a restore uses for itself.
    #[error(
        "{name:?} cannot name a shard: it needs 1 to 255 bytes and no zero byte, and a name such as \
         .NAME.lockgate-restore is what a restore has not finished yet"
    )]
    ShardName {
        /// The name that was given.
        name: String,
    },
    /// The shard does not exist, and the caller did not ask to make one.
    #[error(
        "there is no shard {name:?} in the database{}",
        if *unfinished {
            "; but a restore into it is under way, or has left it unfinished, and then the next one replaces that"
        } else {
            ""
        }
    )]
    NoShard {
        /// The name that was given.
        name: String,
        /// Whether a restore into this name is under way, or was left unfinished.
        unfinished: bool,
    },
    /// The shard has been used, but the caller asked for a new one. Nobody was deposed.
    #[error("the shard {name:?} holds something already")]
    NotNew {
        /// The name of the shard.
        name: String,
    },
    /// Somebody else is restoring into a shard of this name.
    #[error("a restore into the shard {name:?} is under way")]
    BeingFilled {
        /// The name of the shard.
        name: String,
    },
    /// The text is no connection string. The error does not show it, because it may hold a
    /// password.
    #[error("the connection string of the database cannot be read")]
    Url(#[source] tokio_postgres::Error),
    /// The connection string has an `sslmode` that does not exist.
    #[error(
        "sslmode={mode} is none of disable, prefer, require, verify-ca, verify-full: the last three are \
         TLS with a certificate that is verified, all others are plain"
    )]
    SslMode {
        /// The value that was given.
        mode: String,
    },
    /// The connection string has a parameter for TLS that this log does not support.
    #[error("{name}: certificates of clients cannot be used; use a password, which goes as SCRAM")]
    SslParameter {
        /// The name of the parameter.
        name: String,
    },
    /// The system's authorities, or those in the named file, cannot be read, so no server can be
    /// trusted.
    #[error("TLS to the database")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A pooler in front of the database gives a connection's transactions to other sessions.
    #[error(
        "a pooler before the database does not keep a session for each connection, which the log needs: have \
         it do so (PgBouncer: pool_mode = session), or name the server itself"
    )]
    Pooled,
    /// A setting of the server would break what this log promises.
    #[error("the server's setting {setting} is {value:?}, which {problem}")]
    Setting {
        /// The name of the setting.
        setting: &'static str,
        /// The value that the server has for it.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The user may not see how far the standbys are. Level `replicated` needs that.
    #[error(
        "the user {user} may not see how far the standbys are, which level replicated needs: \
         GRANT pg_read_all_stats TO {user}, or ask for level disk"
    )]
    StandbysHidden {
        /// The user that connected.
        user: String,
    },
    /// The thread that moves bytes to and from the server could not be started.
    #[error("starting a thread for the database's connections")]
    Thread(#[source] io::Error),
    /// Connecting failed, or the tables could not be read or made, or are of a newer version.
    #[error(transparent)]
    Log(#[from] LogError),
}
