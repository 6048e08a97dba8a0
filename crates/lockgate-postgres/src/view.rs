//! Reads a shard without owning it.

use std::{fmt, sync::Arc};

use lockgate_core::{
    Epoch, LogCapabilities, LogError, LogRange, LogReader, LogRecord, LogSource, Position,
    ReadError, RecordStamp, RecoveryReport, SnapshotReader, SnapshotStore, SnapshotWriter,
};

use crate::{
    fill::hidden,
    log::{FIND_SHARD, name_of},
    options::{OpenError, PostgresLogOptions},
    pooler::check_sessions,
    reader::Reader,
    recover::{BEGIN_LOOKING, For, Seen, recover},
    schema,
    session::{Failure, Link, Renewed, Session},
    shared::{Handle, Shared, VIEWED},
    snapshots::Snapshots,
    tls::Target,
};

/// See [`VIEWED`]. It is the session's, and ends with it.
const LOCK: &str = "SELECT pg_advisory_lock_shared($1, $2)";

/// How far a standby has come. Asked before anything is read: what is read has at least that.
const STANDBY: &str = "
    SELECT pg_last_wal_replay_lsn()::text, pg_last_wal_receive_lsn()::text,
           to_char(pg_last_xact_replay_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')";

/// Says how far the standby of a view has followed its primary. Places in the primary's own log are
/// as PostgreSQL writes them, such as `0/3000148`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standby {
    /// The place up to which the standby has replayed. The view shows at least that.
    pub replayed: String,
    /// The place up to which the standby has received; `None` if it never streamed since it
    /// started.
    pub received: Option<String>,
    /// When the last transaction that the standby has replayed was committed on the primary, in
    /// UTC; `None` if it has replayed none since it started. If the primary has nothing to do, this
    /// is long ago.
    pub last_commit: Option<String>,
}

/// A view of a shard as it is at one instant. The shard's server goes on and is not deposed.
///
/// It is a [`LogSource`] that can only be read. It may be of a standby, see
/// [`PostgresView::standby`]. Any number of views share one connection. While that is open, the
/// owner deletes no rows that it gives back. A standby cannot tell the owner, so there the view is
/// one long transaction.
pub struct PostgresView {
    /// Moves the session's bytes for as long as it is there.
    link: Arc<Link>,
    session: Arc<Session>,
    shared: Handle,
    options: PostgresLogOptions,
    standby: Option<Standby>,
    unfinished: bool,
    /// What there was when it was opened.
    seen: Arc<Seen>,
    snapshots: Arc<[Position]>,
    tail: Position,
}

impl PostgresView {
    /// Opens the existing shard with this name. It needs only the right to read. If the URL names
    /// several hosts, it takes the one that takes writes, or else the first standby. A URL that
    /// names only a standby reads that one.
    ///
    /// It blocks until it is connected: do not call it from an async task.
    ///
    /// # Errors
    /// [`OpenError::NoShard`] if the shard does not exist. Otherwise as [`OpenError`] says.
    pub fn open(url: &str, shard: &str, options: PostgresLogOptions) -> Result<Self, OpenError> {
        options.check()?;
        // No shard has such a name, and the database cannot even be asked for it.
        if shard.contains('\0') {
            return Err(OpenError::NoShard {
                name: shard.to_owned(),
                unfinished: false,
            });
        }
        let link = Link::new(Target::of(url)?, options.timeout, options.thread.as_ref())
            .map_err(OpenError::Thread)?;
        let failed = |failure: Failure| failure.while_doing("opening the shard");
        let (session, is_standby) = link.connect_to_read().map_err(failed)?;
        let (other, _) = link.connect_to_read().map_err(failed)?;
        check_sessions(&session, &other)?;
        drop(other);
        let session = Arc::new(session);
        let standby = if is_standby {
            Standby::of(&session).map_err(failed)?
        } else {
            None
        };
        let find = |name: &str| session.query_opt(FIND_SHARD, &[&name]).map_err(failed);
        let (found, unfinished) = if schema::exists(&session)? {
            (find(shard)?, find(&hidden(shard))?.is_some())
        } else {
            (None, false)
        };
        let no_shard = || OpenError::NoShard {
            name: shard.to_owned(),
            unfinished,
        };
        let number: i32 = found.ok_or_else(no_shard)?.get(0);
        if !is_standby {
            session.execute(LOCK, &[&VIEWED, &number]).map_err(failed)?;
        }
        let shared = shared_over(&session, number, &options);
        session.batch(BEGIN_LOOKING).map_err(failed)?;
        let seen = Seen::of(&shared, &session).map_err(failed)?;
        let seen = Arc::new(seen.ok_or_else(no_shard)?);
        let shared = Arc::new(shared);
        let snapshots = Snapshots(shared.clone()).list()?.into();
        if !is_standby {
            session.batch("COMMIT").map_err(failed)?;
        }
        Ok(Self {
            link: Arc::new(link),
            session,
            shared,
            options,
            standby,
            unfinished,
            seen,
            snapshots,
            tail: Position(0),
        })
    }

    /// Returns the standby that the view is of, if it is one. The view does not show what the
    /// primary did later. What it says of a start is what a start would find if this standby were
    /// promoted now.
    #[must_use]
    pub fn standby(&self) -> Option<&Standby> {
        self.standby.as_ref()
    }

    /// Tells whether somebody is filling another shard for this name, or has left that unfinished.
    /// [`PostgresLog::open_to_fill`](crate::PostgresLog::open_to_fill) removes what was left.
    #[must_use]
    pub fn has_unfinished(&self) -> bool {
        self.unfinished
    }

    /// Returns the shard's snapshots of that instant. They can only be read.
    #[must_use]
    pub fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        Arc::new(Kept {
            there: self.snapshots.clone(),
            store: Snapshots(self.shared.clone()),
        })
    }

    /// Returns another view of the same instant.
    #[must_use]
    pub fn again(&self) -> Self {
        let shared = shared_over(&self.session, self.shared.shard, &self.options);
        Self {
            link: self.link.clone(),
            session: self.session.clone(),
            shared: Arc::new(shared),
            options: self.options.clone(),
            standby: self.standby.clone(),
            unfinished: self.unfinished,
            seen: self.seen.clone(),
            snapshots: self.snapshots.clone(),
            tail: Position(0),
        }
    }
}

fn shared_over(session: &Arc<Session>, shard: i32, options: &PostgresLogOptions) -> Shared {
    let only = || Renewed::only(session.clone());
    Shared::new(shard, options, only(), only())
}

impl Standby {
    fn of(session: &Session) -> Result<Option<Self>, Failure> {
        let row = session.query_opt(STANDBY, &[])?;
        Ok(row.and_then(|row| {
            Some(Self {
                replayed: row.get::<_, Option<String>>(0)?,
                received: row.get(1),
                last_commit: row.get(2),
            })
        }))
    }
}

impl LogSource for PostgresView {
    fn capabilities(&self) -> LogCapabilities {
        self.options.capabilities()
    }

    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError> {
        let mut recovered = recover(
            &self.shared,
            &self.session,
            For::Looking(&self.seen),
            from,
            visit,
        )?;
        recovered.report.epoch = recovered.report.epoch.max(lowest);
        self.tail = recovered.tail.at;
        Ok(recovered.report)
    }

    fn tail(&self) -> Position {
        self.tail
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::new(Reader(self.shared.clone()))
    }

    fn ranges(&self) -> Vec<LogRange> {
        self.shared.ranges()
    }

    fn name_of(&self, from: Position, to: Position) -> String {
        name_of(from, to)
    }
}

/// Snapshots that are only read.
struct Kept {
    there: Arc<[Position]>,
    store: Snapshots,
}

impl SnapshotStore for Kept {
    fn list(&self) -> Result<Vec<Position>, LogError> {
        Ok(self.there.to_vec())
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, ReadError> {
        if !self.there.contains(&at) {
            return Err(ReadError::Missing { at });
        }
        self.store.open(at)
    }

    fn begin(&self, _at: Position, _next_number: u64) -> Result<Box<dyn SnapshotWriter>, LogError> {
        Err(LogError::Unsupported {
            what: "write a snapshot of a shard that is only looked at",
        })
    }

    /// A start would; this one tells.
    fn remove(&self, _at: Position) -> Result<(), LogError> {
        Ok(())
    }
}

impl fmt::Debug for PostgresView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresView")
            .field("shard", &self.shared.shard)
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}
