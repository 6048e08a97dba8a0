//! What the handles of one log share.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Range, RangeInclusive},
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Instant,
};

use crc32c::{crc32c, crc32c_append};
use lockgate_core::{
    AppendError, Epoch, LogError, LogRange, Position, Progress, StorageFailure, Watcher,
};

use crate::{
    options::PostgresLogOptions,
    session::{End, Failure, Renewed, Session, lock},
};

/// Positions count bytes; a record takes its payload's and so many for its row.
pub(crate) const ROW_BYTES: u64 = 96;

/// Shared by the log, its progress, its readers, its snapshots and its maintenance.
pub(crate) struct Shared {
    /// The shard's number in the database.
    pub(crate) shard: i32,
    pub(crate) range_bits: u32,
    pub(crate) record_bytes_max: usize,
    /// For reading, by callers: see [`Shared::read`].
    reading: Renewed,
    /// For what nobody waits for: snapshots, deleting.
    pub(crate) working: Renewed,
    /// The number of the last recovery; 0 before.
    claim: AtomicI64,
    /// Set when an epoch has begun.
    pub(crate) fence: OnceLock<Fence>,
    /// Behind the last record that was sent to the server.
    submitted: AtomicU64,
    /// Behind the last one that it has committed.
    written: AtomicU64,
    durable: AtomicU64,
    /// Appends are numbered from 1 on; how many were submitted, and how many are written.
    turn_submitted: AtomicU64,
    turn_written: AtomicU64,
    /// How the instance has ended first.
    stopped: OnceLock<AppendError>,
    /// Groups that are submitted and not written.
    in_flight: Mutex<usize>,
    /// Something of the above has changed.
    news: Condvar,
    watcher: Mutex<Option<Arc<Watcher>>>,
    space: Mutex<Space>,
}

/// With what an owner's statements are fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    /// The number of the recovery that it rests on.
    pub(crate) claim: i64,
    pub(crate) epoch: i64,
    /// Where the numbers of its locks begin, see [`Fence::turn`].
    pub(crate) turns: i64,
}

impl Fence {
    /// The lock of a turn. Such locks are of the whole database, so where they begin is drawn from 2^62 numbers.
    pub(crate) fn turn(self, turn: u64) -> i64 {
        self.turns.wrapping_add(to_database(turn))
    }
}

/// Where in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) at: Position,
    /// The number of the record there.
    pub(crate) number: u64,
}

/// What the shard takes in the database.
#[derive(Clone, Default)]
pub(crate) struct Space {
    /// Where rows stand in each range that has some, by the range's first position.
    pub(crate) ranges: BTreeMap<u64, Range<u64>>,
    pub(crate) snapshot_bytes: u64,
    /// Ranges released and not deleted yet, as positions.
    pub(crate) released: BTreeMap<u64, u64>,
    /// Snapshots to be removed as soon as nobody looks at them.
    pub(crate) given_up: BTreeSet<Position>,
}

/// The first number of the advisory locks that are about shards; the second is the shard's. A view holds it
/// shared: what the view may still read is not deleted meanwhile. That keeps rows which are dead to the owner, and
/// nothing else, while a transaction as long as that would keep every version of the rows that each append
/// and sync changes, and they would search through all of them.
pub(crate) const VIEWED: i32 = 0x6c6f_636b;

/// Whether a server holds the shard as this instance left it. Claims are drawn at random, so no other
/// server can have the same one but as a copy; and one that lags behind has a lower tail.
const IS_OURS: &str = "
    SELECT 1 FROM lockgate.shard WHERE id = $1 AND claim = $2 AND tail >= $3";

impl Space {
    pub(crate) fn used(&self) -> u64 {
        let records: u64 = self.ranges.values().map(|rows| rows.end - rows.start).sum();
        records + self.snapshot_bytes
    }
}

impl Shared {
    pub(crate) fn new(
        shard: i32,
        options: &PostgresLogOptions,
        reading: Renewed,
        working: Renewed,
    ) -> Self {
        Self {
            shard,
            range_bits: options.range_bits,
            record_bytes_max: options.record_bytes_max,
            reading,
            working,
            claim: AtomicI64::default(),
            fence: OnceLock::new(),
            submitted: AtomicU64::default(),
            written: AtomicU64::default(),
            durable: AtomicU64::default(),
            turn_submitted: AtomicU64::default(),
            turn_written: AtomicU64::default(),
            stopped: OnceLock::new(),
            in_flight: Mutex::default(),
            news: Condvar::new(),
            watcher: Mutex::default(),
            space: Mutex::default(),
        }
    }

    /// The shard was claimed: only a server that knows of it is read from now on.
    pub(crate) fn claimed(&self, claim: i64) {
        self.claim.store(claim, Ordering::Release);
    }

    /// What a statement of the owner that changes something has to find: the claim, and the tail. The
    /// connection it runs on may have been made again, to another server.
    pub(crate) fn held(&self) -> (i64, i64) {
        let claim = self.claim.load(Ordering::Acquire);
        (claim, to_database(self.written().0))
    }

    /// Reads, from a server that holds the shard as this instance left it.
    pub(crate) fn read<T>(
        &self,
        what: &str,
        ask: impl Fn(&Session) -> Result<T, Failure>,
    ) -> Result<T, LogError> {
        self.reading.run(what, |session| {
            session.check_once(|session| {
                // Before the claim nothing can be checked, and what is read after it must be.
                let (claim, _) = self.held();
                self.check_held(session).map(|()| claim != 0)
            })?;
            ask(session)
        })
    }

    /// That the server is still, or again, one that holds the shard as this instance left it.
    pub(crate) fn check_held(&self, session: &Session) -> Result<(), Failure> {
        let (claim, tail) = self.held();
        if claim == 0 {
            // Nothing is known yet that a server could lack.
            return Ok(());
        }
        match session.query_opt(IS_OURS, &[&self.shard, &claim, &tail])? {
            Some(_) => Ok(()),
            None => Err(Failure::Elsewhere),
        }
    }

    /// Begins anew, with what recovery has found.
    pub(crate) fn recovered(&self, tail: Position, space: Space) {
        self.submitted.store(tail.0, Ordering::Release);
        self.written.store(tail.0, Ordering::Release);
        *lock(&self.space) = space;
    }

    pub(crate) fn submitted(&self) -> Position {
        Position(self.submitted.load(Ordering::Acquire))
    }

    pub(crate) fn written(&self) -> Position {
        Position(self.written.load(Ordering::Acquire))
    }

    pub(crate) fn progress(&self) -> Progress {
        let written = self.written();
        // The answer to a sync may be seen before that to the append.
        Progress {
            written,
            durable: self.durable().min(written),
        }
    }

    /// Has somebody told whenever the progress changes, or the instance ends.
    pub(crate) fn watch(&self, watcher: Watcher) {
        *lock(&self.watcher) = Some(Arc::new(watcher));
    }

    /// Waits until `is_it` of how many groups are in flight, which changes when anything else does.
    pub(crate) fn wait_until(&self, is_it: impl Fn(usize) -> bool) {
        let in_flight = lock(&self.in_flight);
        let waited = self.news.wait_while(in_flight, |groups| !is_it(*groups));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The same, not longer than that.
    pub(crate) fn wait_until_by(&self, end: Instant, is_it: impl Fn() -> bool) {
        let left = end.saturating_duration_since(Instant::now());
        let in_flight = lock(&self.in_flight);
        let waited = self.news.wait_timeout_while(in_flight, left, |_| !is_it());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Somebody else has written up to there.
    pub(crate) fn follow(&self, written: Position) {
        self.written.fetch_max(written.0, Ordering::AcqRel);
    }

    pub(crate) fn group_sent(&self) {
        *lock(&self.in_flight) += 1;
    }

    /// A part of a group has been committed, or will not be: what `change` notes before anybody is told.
    pub(crate) fn part_ended(&self, is_last: bool, change: impl FnOnce()) {
        self.tell(|in_flight| {
            change();
            *in_flight -= usize::from(is_last);
        });
    }

    pub(crate) fn set_written(&self, written: Position, turn: u64) {
        self.turn_written.fetch_max(turn, Ordering::AcqRel);
        self.written.fetch_max(written.0, Ordering::AcqRel);
    }

    /// The turn of the next append.
    pub(crate) fn next_turn(&self) -> u64 {
        self.turn_submitted.load(Ordering::Acquire) + 1
    }

    /// The turns that are on their way.
    pub(crate) fn turns_in_flight(&self) -> RangeInclusive<u64> {
        let written = self.turn_written.load(Ordering::Acquire);
        written + 1..=self.turn_submitted.load(Ordering::Acquire)
    }

    /// Changes something and tells whoever waits for that.
    fn tell<T>(&self, change: impl FnOnce(&mut usize) -> T) -> T {
        let changed = change(&mut lock(&self.in_flight));
        self.news.notify_all();
        let watcher = lock(&self.watcher).clone();
        if let Some(watcher) = watcher {
            watcher();
        }
        changed
    }

    /// Records from `from` on to before `tail` are sent.
    pub(crate) fn submit(&self, from: Position, tail: Position, turn: u64) {
        let mut space = lock(&self.space);
        let mut first = from.0;
        while first < tail.0 {
            let range = self.range(Position(first));
            let end = range.end.min(tail.0);
            let rows = space.ranges.entry(range.start).or_insert(first..end);
            rows.end = end;
            first = end;
        }
        drop(space);
        // First the turn: who syncs up to that tail waits for it.
        self.turn_submitted.store(turn, Ordering::Release);
        self.submitted.store(tail.0, Ordering::Release);
    }

    pub(crate) fn durable(&self) -> Position {
        Position(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn set_durable(&self, durable: Position) {
        self.tell(|_| self.durable.fetch_max(durable.0, Ordering::AcqRel));
    }

    pub(crate) fn space<T>(&self, look: impl FnOnce(&mut Space) -> T) -> T {
        look(&mut lock(&self.space))
    }

    /// The ranges that have rows and are not released.
    pub(crate) fn ranges(&self) -> Vec<LogRange> {
        let ranges = self.space(|space| space.ranges.clone());
        ranges
            .into_iter()
            .filter(|(_, rows)| !self.is_released(Position(rows.start)))
            .map(|(first, rows)| LogRange {
                first: Position(first),
                bytes: rows.end - rows.start,
            })
            .collect()
    }

    /// The positions of the range that `at` is in.
    pub(crate) fn range(&self, at: Position) -> Range<u64> {
        let range = at.range(self.range_bits);
        range.start.0..range.end.0
    }

    pub(crate) fn is_released(&self, at: Position) -> bool {
        self.space(|space| {
            let before = space.released.range(..=at.0).next_back();
            before.is_some_and(|(_, &stop)| at.0 < stop)
        })
    }

    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    /// # Errors
    /// The first failure, if there was one.
    pub(crate) fn check_running(&self) -> Result<(), LogError> {
        match self.stopped.get() {
            None => Ok(()),
            Some(first) => Err(again(first)),
        }
    }

    /// Why the instance has ended; and whether it is certain that nothing more was written.
    pub(crate) fn failure(&self) -> Option<AppendError> {
        let first = self.stopped.get()?;
        Some(match first {
            AppendError::Unknown(_) => AppendError::Unknown(again(first)),
            certain => certain.clone(),
        })
    }

    /// Another instance has taken the shard over: a statement of the owner hit nothing. Whoever only claimed it
    /// yet will begin a higher epoch at the least.
    pub(crate) fn deposed(&self) -> LogError {
        let ours = self.fence.get().map_or(0, |fence| fence.epoch);
        LogError::Deposed {
            by: Epoch(from_database(ours)).next(),
        }
    }

    /// Ends the instance; the first failure is kept.
    pub(crate) fn stop(&self, error: LogError) -> LogError {
        self.tell(|_| self.refused(AppendError::Unknown(error.clone())));
        error
    }

    /// Ends the instance because a group was refused: neither that one nor any behind it was written.
    pub(crate) fn refused(&self, error: AppendError) {
        self.stopped.get_or_init(|| error);
    }
}

/// The first failure, for who asks later.
fn again(first: &AppendError) -> LogError {
    match first {
        AppendError::Unknown(error @ (LogError::Deposed { .. } | LogError::Stopped { .. })) => {
            error.clone()
        }
        AppendError::Fenced { theirs, .. } => LogError::Deposed { by: *theirs },
        AppendError::Unknown(error) => LogError::Stopped {
            reason: StorageFailure::new(error.clone()),
        },
        error => LogError::Stopped {
            reason: StorageFailure::new(error.clone()),
        },
    }
}

/// What nobody expects of a database, and no instance goes on after.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection to the database was lost: {0}")]
    Connection(End),
    #[error("the shard is not in the database any more")]
    NoShard,
    #[error("the server lost what was not synced")]
    Lost,
    #[error(
        "a commit was not flushed: synchronous_commit was {setting}, which this session had set to on; \
         a pooler before the database must be in session mode"
    )]
    NotFlushed { setting: String },
    #[error("a commit was not replicated: {warning}")]
    NotReplicated {
        /// In the server's words.
        warning: String,
    },
    #[error("a commit was not replicated: synchronous_standby_names is empty")]
    NoStandbys,
}

impl From<Broken> for LogError {
    fn from(broken: Broken) -> Self {
        Self::Stopped {
            reason: StorageFailure::new(broken),
        }
    }
}

/// Position, number and epoch are in it, so that a row that was moved or changed does not verify.
pub(crate) fn checksum(point: Point, epoch: Epoch, payload: &[u8]) -> i32 {
    let mut place = [0; 24];
    place[..8].copy_from_slice(&point.at.0.to_le_bytes());
    place[8..16].copy_from_slice(&point.number.to_le_bytes());
    place[16..].copy_from_slice(&epoch.0.to_le_bytes());
    crc32c_append(crc32c(&place), payload).cast_signed()
}

/// The database's numbers have a sign. A position above its range is one that no record has.
pub(crate) fn to_database(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// See [`to_database`]; nothing below zero is ever written.
pub(crate) fn from_database(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A shared log.
pub(crate) type Handle = Arc<Shared>;
