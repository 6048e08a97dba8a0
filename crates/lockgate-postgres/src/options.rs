//! What can be chosen, and why a log could not be opened.

use std::{io, time::Duration};

use lockgate_core::{Level, LogCapabilities, LogError};

use crate::ConnectionThread;

/// What can be chosen for a [`PostgresLog`](crate::PostgresLog).
#[derive(Clone, Debug)]
pub struct PostgresLogOptions {
    /// How long one statement may take, a connect included; default 30 s, at least 10 ms. The server
    /// is told the same, and a client that gets no answer by then gives up by itself: for an append
    /// or a sync that is the end of the instance.
    pub timeout: Duration,
    /// The largest payload of a record in bytes; default 16 MiB, at most 64 MiB.
    pub record_bytes_max: usize,
    /// What a sync is to reach: [`Level::Disk`], the default, or [`Level::Replicated`], which needs
    /// `synchronous_standby_names` on the server and the right to see how far the standbys are (the role
    /// `pg_read_all_stats`), and stops the log when a sync was not waited for by
    /// a standby.
    pub sync_level: Level,
    /// Space comes back in ranges of two to the power of so many bytes; default 26 (64 MiB), from 12
    /// to 40. May differ from one opening to the next.
    pub range_bits: u32,
    /// Bytes of records and snapshots from which on the log counts as full; default `None`, which
    /// leaves it to the server's disk. An eighth is kept for what makes room again.
    pub bytes_max: Option<u64>,
    /// The thread that moves bytes between the log's connections and the server. Default `None`: one of its own.
    /// For many logs in one process give all of them clones of one.
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

/// Why a [`PostgresLog`](crate::PostgresLog) could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options contradict each other or are out of range.
    #[error("the log's options are wrong: {what}")]
    Options {
        /// Which, and why.
        what: &'static str,
    },
    /// The name of the shard cannot be one.
    #[error(
        "{name:?} cannot name a shard: it needs 1 to 255 bytes and no zero byte, and a name such as \
         .NAME.lockgate-restore is what a restore has not finished yet"
    )]
    ShardName {
        /// What was given.
        name: String,
    },
    /// There is no such shard, and none was to be made.
    #[error(
        "there is no shard {name:?} in the database{}",
        if *unfinished {
            "; but a restore into it is under way, or has left it unfinished, and then the next one replaces that"
        } else {
            ""
        }
    )]
    NoShard {
        /// What was given.
        name: String,
        /// Somebody began to fill it.
        unfinished: bool,
    },
    /// The shard is not a new one, and a new one was asked for. Nobody was deposed.
    #[error("the shard {name:?} holds something already")]
    NotNew {
        /// Which.
        name: String,
    },
    /// Somebody else fills a shard of that name just now.
    #[error("a restore into the shard {name:?} is under way")]
    BeingFilled {
        /// Which.
        name: String,
    },
    /// The text is no connection string. The text itself may hold a password and is not shown.
    #[error("the connection string of the database cannot be read")]
    Url(#[source] tokio_postgres::Error),
    /// The connection string asks for TLS in a way there is none.
    #[error(
        "sslmode={mode} is none of disable, prefer, require, verify-ca, verify-full: the last three are \
         TLS with a certificate that is verified, all others are plain"
    )]
    SslMode {
        /// What was given.
        mode: String,
    },
    /// The connection string names something for TLS that this log cannot do.
    #[error("{name}: certificates of clients cannot be used; use a password, which goes as SCRAM")]
    SslParameter {
        /// The parameter.
        name: String,
    },
    /// Nobody can be trusted to say who the server is.
    #[error("TLS to the database")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A pooler before the database gives a connection's transactions to sessions of others.
    #[error(
        "a pooler before the database does not keep a session for each connection, which the log needs: have \
         it do so (PgBouncer: pool_mode = session), or name the server itself"
    )]
    Pooled,
    /// The server would not keep what this log promises.
    #[error("the server's setting {setting} is {value:?}, which {problem}")]
    Setting {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The user cannot see how far standbys are, without which nothing can be called replicated.
    #[error(
        "the user {user} may not see how far the standbys are, which level replicated needs: \
         GRANT pg_read_all_stats TO {user}, or ask for level disk"
    )]
    StandbysHidden {
        /// Who connected.
        user: String,
    },
    /// The thread that moves bytes to and from the server could not be started.
    #[error("starting a thread for the database's connections")]
    Thread(#[source] io::Error),
    /// Connecting failed, or the tables could not be read or made, or are of a newer version.
    #[error(transparent)]
    Log(#[from] LogError),
}
