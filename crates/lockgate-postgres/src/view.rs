//! A shard looked at without owning it.

use std::{fmt, sync::Arc};

use lockgate_core::{
    AppendError, Epoch, Log, LogCapabilities, LogError, LogReader, LogRecord, LogSpace, LogSync,
    Position, Purpose, ReadError, RecordGroup, RecoveryReport, ReserveError, SnapshotReader,
    SnapshotStore, SnapshotWriter,
};

use crate::{
    log::FIND_SHARD,
    options::{OpenError, PostgresLogOptions},
    reader::Reader,
    recover::{For, recover},
    schema,
    session::{Commit, Link, Renewed, Session},
    shared::{Handle, ROW_BYTES, Shared},
    snapshots::Snapshots,
    tls::Target,
};

/// All reads see the database as of the first one, whatever goes on beside.
const BEGIN: &str = "
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL idle_in_transaction_session_timeout = 0";

/// A shard as it is at one instant, for telling what is in it: its server goes on and is not deposed.
///
/// It is a [`Log`] of which nothing is ever written: what is appended is counted and forgotten, so a
/// start can be tried out on it. Any number of them share one transaction that only reads; for as long
/// as that is open the database keeps old versions of rows.
pub struct PostgresView {
    /// Moves the session's bytes for as long as it is there.
    link: Arc<Link>,
    session: Arc<Session>,
    shared: Handle,
    options: PostgresLogOptions,
    tail: Position,
}

impl PostgresView {
    /// Opens the shard of that name, which must be there. Needs no right but to read.
    ///
    /// # Errors
    /// [`OpenError::NoShard`] if it is not there; and see [`OpenError`].
    pub fn open(url: &str, shard: &str, options: PostgresLogOptions) -> Result<Self, OpenError> {
        options.check()?;
        // No shard has such a name, and the database cannot even be asked for it.
        if shard.contains('\0') {
            return Err(OpenError::NoShard {
                name: shard.to_owned(),
            });
        }
        let link = Link::new(Target::of(url)?, options.timeout).map_err(OpenError::Thread)?;
        let failed = |failure: crate::session::Failure| failure.while_doing("opening the shard");
        let session = Arc::new(link.connect(Commit::Flushed).map_err(failed)?);
        session.batch(BEGIN).map_err(failed)?;
        let found = if schema::look(&session)? {
            session.query_opt(FIND_SHARD, &[&shard]).map_err(failed)?
        } else {
            None
        };
        let Some(row) = found else {
            return Err(OpenError::NoShard {
                name: shard.to_owned(),
            });
        };
        Ok(Self::over(Arc::new(link), session, row.get(0), options))
    }

    /// Another one of the same instant.
    #[must_use]
    pub fn again(&self) -> Self {
        let (link, session) = (self.link.clone(), self.session.clone());
        Self::over(link, session, self.shared.shard, self.options.clone())
    }

    fn over(
        link: Arc<Link>,
        session: Arc<Session>,
        shard: i32,
        options: PostgresLogOptions,
    ) -> Self {
        let only = || Renewed::only(session.clone());
        let shared = Shared::new(shard, options.range_bits, only(), only());
        Self {
            link,
            shared: Arc::new(shared),
            session,
            options,
            tail: Position(0),
        }
    }
}

impl Log for PostgresView {
    fn capabilities(&self) -> LogCapabilities {
        self.options.capabilities()
    }

    fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        Arc::new(Kept(Snapshots(self.shared.clone())))
    }

    fn recover(
        &mut self,
        from: Position,
        visit: &mut dyn FnMut(LogRecord),
    ) -> Result<RecoveryReport, LogError> {
        let recovered = recover(&self.shared, &self.session, For::Looking, from, visit)?;
        self.tail = recovered.tail.at;
        Ok(recovered.report)
    }

    fn begin_epoch(&mut self, _epoch: Epoch) -> Result<(), AppendError> {
        Ok(())
    }

    fn tail(&self) -> Position {
        self.tail
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        let at = *cursor;
        *cursor = Position(at.0.saturating_add(ROW_BYTES + len as u64));
        at
    }

    fn reserve(&mut self, _: u64, _: u64, _: Purpose) -> Result<(), ReserveError> {
        Ok(())
    }

    fn space(&self) -> LogSpace {
        LogSpace {
            used_bytes: self.shared.space(|space| space.used()),
            free_bytes: u64::MAX,
            ..LogSpace::default()
        }
    }

    fn append(
        &mut self,
        _epoch: Epoch,
        _expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        let mut tail = self.tail;
        for index in 0..group.len() {
            self.place(&mut tail, group.payload(index).len());
        }
        self.tail = tail;
        Ok(())
    }

    fn syncer(&self) -> Arc<dyn LogSync> {
        Arc::new(Forgotten)
    }

    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::new(Reader(self.shared.clone()))
    }

    fn begin_snapshot(&mut self) -> Result<Box<dyn SnapshotWriter>, LogError> {
        Err(LogError::Unsupported { what: NOTHING })
    }

    fn trim(&mut self, _before: Position) -> Result<(), LogError> {
        Err(LogError::Unsupported { what: NOTHING })
    }

    fn release(&mut self, _range: Position) -> Result<(), LogError> {
        Err(LogError::Unsupported { what: NOTHING })
    }
}

const NOTHING: &str = "change a shard that is only looked at";

/// What is appended here is gone with the view; nothing of it can be lost earlier.
struct Forgotten;

impl LogSync for Forgotten {
    fn sync(&self) -> Result<Position, LogError> {
        Ok(Position(u64::MAX))
    }
}

/// Snapshots that are only read.
struct Kept(Snapshots);

impl SnapshotStore for Kept {
    fn list(&self) -> Result<Vec<Position>, LogError> {
        self.0.list()
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, ReadError> {
        self.0.open(at)
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
