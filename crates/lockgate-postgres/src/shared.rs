//! What the handles of one log share.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use crc32c::{crc32c, crc32c_append};
use lockgate_core::{AppendError, Epoch, LogError, LogRange, Position, with_sources};

use crate::session::{Failure, Renewed, Session, lock};

/// Positions count bytes; a record takes its payload's and so many for its row.
pub(crate) const ROW_BYTES: u64 = 96;

/// Shared by the log, its syncer, its readers, its snapshots and its upkeep.
pub(crate) struct Shared {
    /// The shard's number in the database.
    pub(crate) shard: i32,
    pub(crate) range_bits: u32,
    /// For reading, by callers: see [`Shared::read`].
    reading: Renewed,
    /// For what nobody waits for: snapshots, deleting.
    pub(crate) working: Renewed,
    /// The number of the last recovery; 0 before.
    claim: AtomicI64,
    /// Set when an epoch has begun.
    pub(crate) fence: OnceLock<Fence>,
    appended: AtomicU64,
    durable: AtomicU64,
    stopped: OnceLock<Stop>,
    space: Mutex<Space>,
}

/// With what an owner's statements are fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    /// The number of the recovery that it rests on.
    pub(crate) claim: i64,
    pub(crate) epoch: i64,
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
    pub(crate) fn new(shard: i32, range_bits: u32, reading: Renewed, working: Renewed) -> Self {
        Self {
            shard,
            range_bits,
            reading,
            working,
            claim: AtomicI64::default(),
            fence: OnceLock::new(),
            appended: AtomicU64::default(),
            durable: AtomicU64::default(),
            stopped: OnceLock::new(),
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
        (claim, to_database(self.appended().0))
    }

    /// Reads, from a server that holds the shard as this instance left it.
    pub(crate) fn read<T>(
        &self,
        what: &str,
        ask: impl Fn(&Session) -> Result<T, Failure>,
    ) -> Result<T, LogError> {
        self.reading.run(what, |session| {
            session.check_once(|session| self.check_held(session))?;
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
        self.appended.store(tail.0, Ordering::Release);
        *lock(&self.space) = space;
    }

    pub(crate) fn appended(&self) -> Position {
        Position(self.appended.load(Ordering::Acquire))
    }

    /// Records from `from` on to before `tail` were appended.
    pub(crate) fn publish(&self, from: Position, tail: Position) {
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
        self.appended.store(tail.0, Ordering::Release);
    }

    pub(crate) fn durable(&self) -> Position {
        Position(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn set_durable(&self, durable: Position) {
        self.durable.fetch_max(durable.0, Ordering::AcqRel);
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

    /// # Errors
    /// The first failure, if there was one.
    pub(crate) fn check_running(&self) -> Result<(), LogError> {
        match self.stopped.get() {
            None => Ok(()),
            Some(Stop::Deposed(by)) => Err(LogError::Deposed { by: *by }),
            Some(Stop::Failed(reason)) => Err(LogError::Stopped {
                reason: reason.clone(),
            }),
        }
    }

    /// Another instance has taken the shard over: a statement of the owner hit nothing. Whoever only claimed it
    /// yet will begin a higher epoch at the least.
    pub(crate) fn deposed(&self) -> LogError {
        let ours = self.fence.get().map_or(0, |fence| fence.epoch);
        LogError::Deposed {
            by: Epoch(from_database(ours)).next(),
        }
    }

    /// Ends the instance; the first reason is kept.
    pub(crate) fn stop<E: Error + 'static>(&self, error: E) -> E {
        self.stopped.get_or_init(|| Stop::of(&error));
        error
    }
}

/// The first reason why the instance ended.
enum Stop {
    Deposed(Epoch),
    Failed(String),
}

impl Stop {
    fn of(error: &(dyn Error + 'static)) -> Self {
        let append = error.downcast_ref::<AppendError>();
        let source = match append {
            Some(AppendError::Fenced { theirs, .. }) => return Self::Deposed(*theirs),
            Some(AppendError::Unknown(source)) => Some(source),
            _ => error.downcast_ref::<LogError>(),
        };
        match source {
            Some(LogError::Deposed { by }) => Self::Deposed(*by),
            _ => Self::Failed(with_sources(error)),
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
