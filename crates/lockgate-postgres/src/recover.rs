//! Recovering: what there is, and what of it is missing.

pub(crate) mod fuzzing;

use std::ops::{ControlFlow, Range};

use lockgate_core::{DamagedRange, Epoch, LogError, LogRecord, Position, RecoveryReport, Unsynced};
use tokio_postgres::Row;

use crate::{
    session::{Failure, Session},
    shared::{Point, ROW_BYTES, Shared, Space, from_database, to_database},
};

/// Fences every instance that recovered before, whether it has begun an epoch or not. The lock of the
/// row orders this with an append that is just being done: it is either read below or refused.
///
/// The next claim is drawn at random: on two servers that have parted, the same number would mean two
/// owners.
const CLAIM: &str = "
    UPDATE lockgate.shard SET claim = claim + 1 + floor(random() * 4294967296)::bigint WHERE id = $1
    RETURNING claim, epoch, tail, next_number, trimmed,
        (SELECT position FROM lockgate.durable WHERE shard = $1)";

/// The same without claiming it.
const LOOK: &str = "
    SELECT claim, epoch, tail, next_number, trimmed,
        (SELECT position FROM lockgate.durable WHERE shard = $1)
    FROM lockgate.shard WHERE id = $1";

/// Whether everything that was ever appended is there, synced or not. Asked on the session that is to begin
/// the epoch, which a crash in between would end.
///
/// The last owner left a mark in a table that a crash of the server empties, and of which a standby has no
/// rows. It counts once something was appended behind it: an owner that was told of a loss, and left the
/// mark, may have ended before it wrote down what follows from that.
///
/// A row that was put back, from a dump of the database say, is by another transaction than the one that
/// it names. Where the table was made a usual one, or storage outlives the server (Aurora), the mark says
/// nothing.
const IS_KEPT: &str = "
    SELECT 1
    FROM lockgate.unsynced JOIN lockgate.shard ON shard.id = unsynced.shard
    WHERE shard.id = $1 AND shard.tail > unsynced.tail
        AND unsynced.xmin::text::bigint = unsynced.written % 4294967296
        AND (SELECT relpersistence FROM pg_class WHERE oid = 'lockgate.unsynced'::regclass) = 'u'
        AND to_regproc('pg_catalog.aurora_version') IS NULL";

const SNAPSHOT_NUMBER: &str = "
    SELECT number
    FROM lockgate.snapshot
    WHERE shard = $1 AND position = $2 AND complete
    ORDER BY id DESC
    LIMIT 1";

/// One probe of the index for each range that has rows.
const RANGES: &str = "
    WITH RECURSIVE present (position) AS (
        SELECT min(position) FROM lockgate.record WHERE shard = $1
        UNION ALL
        SELECT (
            SELECT min(record.position)
            FROM lockgate.record
            WHERE shard = $1 AND record.position >= ((present.position >> $2) + 1) << $2
        )
        FROM present
        WHERE present.position IS NOT NULL
    )
    SELECT position FROM present WHERE position IS NOT NULL";

const RELEASED: &str = "SELECT first, stop FROM lockgate.released WHERE shard = $1";

const SNAPSHOT_BYTES: &str = "
    SELECT coalesce(sum(bytes), 0)::bigint FROM lockgate.snapshot WHERE shard = $1";

/// What a recovery has found.
pub(crate) struct Recovered {
    pub(crate) report: RecoveryReport,
    /// The number of the recovery.
    pub(crate) claim: i64,
    /// The tail as the database has it.
    pub(crate) stored_tail: i64,
    /// Where the next record goes, and its number.
    pub(crate) tail: Point,
}

/// What a recovery is for.
#[derive(Clone, Copy)]
pub(crate) enum For<'a> {
    /// Owning the shard, whose row was this when it was claimed.
    Owning(Head),
    /// Telling what was there when this was seen, changing nothing.
    Looking(&'a Seen),
}

/// The row of a shard.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    claim: i64,
    epoch: Epoch,
    stored_tail: i64,
    tail: u64,
    next_number: u64,
    trimmed: Position,
}

impl Head {
    fn from_row(row: &Row) -> Self {
        let numbers = [row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)];
        Self::of(numbers, row.get(5))
    }

    /// Of its columns; the numbers are claim, epoch, tail, next number and trim.
    fn of(numbers: [i64; 5], durable: Option<i64>) -> Self {
        let [claim, epoch, stored_tail, next_number, trimmed] = numbers;
        Self {
            claim,
            epoch: Epoch(from_database(epoch)),
            stored_tail,
            // They are ahead of the tail only if somebody has put single tables back from a backup.
            tail: from_database(stored_tail.max(durable.unwrap_or_default())),
            next_number: from_database(next_number),
            trimmed: Position(from_database(trimmed)),
        }
    }

    /// What a recovery from `from` on starts with, given the number of the snapshot that stands
    /// there.
    fn claimed(self, from: Position, snapshot: Option<i64>) -> Claimed {
        let from_number = match snapshot {
            Some(number) => Some(from_database(number)),
            None => (from == Position(0)).then_some(1),
        };
        Claimed {
            claim: self.claim,
            epoch: self.epoch,
            stored_tail: self.stored_tail,
            tail: Point {
                at: Position(self.tail).max(from),
                number: self.next_number.max(from_number.unwrap_or(1)),
            },
            trimmed: self.trimmed,
            from,
            from_number,
        }
    }
}

/// What tells where everything of a shard is, at one instant: what goes on there later is not looked at.
pub(crate) struct Seen {
    head: Head,
    space: Space,
}

impl Seen {
    /// `None` if there is no such shard. To be called in a transaction that sees one instant.
    pub(crate) fn of(shared: &Shared, session: &Session) -> Result<Option<Self>, Failure> {
        let Some(row) = session.query_opt(LOOK, &[&shared.shard])? else {
            return Ok(None);
        };
        let head = Head::from_row(&row);
        let space = find_space(shared, session, Position(head.tail))?;
        Ok(Some(Self { head, space }))
    }
}

/// Fences whoever owns the shard.
pub(crate) fn claim(shared: &Shared, session: &Session) -> Result<Head, LogError> {
    let row = session
        .query_opt(CLAIM, &[&shared.shard])
        .map_err(|failure| failure.while_doing("claiming the shard"))?;
    let head = Head::from_row(&row.ok_or_else(|| LogError::Stopped {
        reason: "the shard is not in the database any more".to_owned(),
    })?);
    shared.claimed(head.claim);
    Ok(head)
}

/// Hands over the records of the shard from `from` on.
pub(crate) fn recover(
    shared: &Shared,
    session: &Session,
    reason: For<'_>,
    from: Position,
    visit: &mut dyn FnMut(LogRecord),
) -> Result<Recovered, LogError> {
    let failed = |failure: Failure| failure.while_doing("recovering");
    let claimed = begin(shared, session, reason, from).map_err(failed)?;
    let unsynced = match reason {
        For::Owning(_) => {
            let kept = session.query_opt(IS_KEPT, &[&shared.shard]);
            match kept.map_err(failed)? {
                Some(_) => Unsynced::Kept,
                None => Unsynced::MayBeLost,
            }
        }
        // A standby has no such table. Nobody is handed anything by what is only looked at.
        For::Looking(_) => Unsynced::MayBeLost,
    };
    let mut judge = Judge::new(&claimed);
    shared.visit_rows(claimed.from, claimed.tail.at, &mut |stored| {
        let record = LogRecord {
            position: stored.point.at,
            payload: stored.payload,
        };
        if judge.see(&record, stored.point.number, stored.verifies) {
            visit(record);
        }
        ControlFlow::Continue(())
    })?;
    let space = match reason {
        For::Owning(_) => find_space(shared, session, claimed.tail.at).map_err(failed)?,
        For::Looking(seen) => seen.space.clone(),
    };
    let mut report = judge.end(claimed.tail);
    report.unsynced = unsynced;
    report.missing = missing(&report.damaged, &space, shared.range_bits);
    shared.recovered(claimed.tail.at, space);
    Ok(Recovered {
        report,
        claim: claimed.claim,
        stored_tail: claimed.stored_tail,
        tail: claimed.tail,
    })
}

/// What reading starts with.
struct Claimed {
    claim: i64,
    epoch: Epoch,
    stored_tail: i64,
    tail: Point,
    trimmed: Position,
    /// Where reading starts.
    from: Position,
    /// The number of the first record there, if that is known.
    from_number: Option<u64>,
}

fn begin(
    shared: &Shared,
    session: &Session,
    reason: For<'_>,
    from: Position,
) -> Result<Claimed, Failure> {
    let shard = &shared.shard;
    let head = match reason {
        For::Owning(head) => head,
        For::Looking(seen) => seen.head,
    };
    let from = from.max(head.trimmed);
    let snapshot = session.query_opt(SNAPSHOT_NUMBER, &[shard, &to_database(from.0)])?;
    Ok(head.claimed(from, snapshot.map(|row| row.get(0))))
}

fn find_space(shared: &Shared, session: &Session, tail: Position) -> Result<Space, Failure> {
    let shard = &shared.shard;
    let bits = shared.range_bits.cast_signed();
    let mut space = Space::default();
    for row in session.query(RANGES, &[shard, &bits])? {
        space.found(from_database(row.get(0)), tail, shared.range_bits);
    }
    for row in session.query(RELEASED, &[shard])? {
        let (first, stop) = (row.get(0), row.get(1));
        space
            .released
            .insert(from_database(first), from_database(stop));
    }
    if let Some(row) = session.query_opt(SNAPSHOT_BYTES, &[shard])? {
        space.snapshot_bytes = from_database(row.get(0));
    }
    Ok(space)
}

/// The ranges of which no row is there, where records are lost.
fn missing(damaged: &[DamagedRange], space: &Space, range_bits: u32) -> Vec<Range<Position>> {
    let mut missing = Vec::new();
    for lost in damaged {
        let mut next = lost.from.range(range_bits).start;
        let last = Position(lost.to.0.saturating_sub(1)).max(lost.from);
        let end = last.range(range_bits).end;
        let there = space.ranges.range(next.0..end.0);
        let there = there.map(|(&first, _)| Position(first)).chain([end]);
        for there in there {
            if there > next {
                missing.push(next..there);
            }
            next = there.range(range_bits).end;
        }
    }
    missing
}

impl Space {
    /// Takes over that the first row of a range is at `first`.
    fn found(&mut self, first: u64, tail: Position, range_bits: u32) {
        let range = Position(first).range(range_bits);
        let end = range.end.0.min(tail.0).max(first);
        self.ranges.insert(range.start.0, first..end);
    }
}

/// Counts what is there and finds what is missing. A transaction is there whole or not at all, so
/// there is no torn tail: whatever is missing below the tail was there once.
struct Judge {
    report: RecoveryReport,
    /// The number of the next record, if that is known.
    expected: Option<u64>,
    /// Behind the last good record.
    end: Position,
    /// Rows that do not verify since then: the first one's position, and how many.
    unreadable: Option<(Position, u64)>,
}

impl Judge {
    fn new(claimed: &Claimed) -> Self {
        Self {
            report: RecoveryReport {
                epoch: claimed.epoch,
                trimmed: claimed.trimmed,
                ..RecoveryReport::default()
            },
            expected: claimed.from_number,
            end: claimed.from,
            unreadable: None,
        }
    }

    /// Whether the record is good.
    fn see(&mut self, record: &LogRecord, number: u64, verifies: bool) -> bool {
        if !verifies {
            let (_, count) = self.unreadable.get_or_insert((record.position, 0));
            *count += 1;
            return false;
        }
        self.reach(record.position, number);
        let bytes = ROW_BYTES + record.payload.len() as u64;
        self.report.records += 1;
        self.report.bytes += bytes;
        self.expected = Some(number + 1);
        self.end = Position(record.position.0.saturating_add(bytes));
        true
    }

    /// Counts what is missing before the record of that number.
    fn reach(&mut self, to: Position, number: u64) {
        let unreadable = self.unreadable.take();
        let missing = match self.expected {
            Some(expected) => number.saturating_sub(expected),
            None => unreadable.map_or(0, |(_, count)| count),
        };
        if missing > 0 {
            self.report.damaged.push(DamagedRange {
                from: unreadable.map_or(self.end, |(at, _)| at.min(to)),
                to,
                records: missing,
                kept_as: unreadable.map(|_| "rows of the table lockgate.record".to_owned()),
            });
        }
    }

    fn end(mut self, tail: Point) -> RecoveryReport {
        self.reach(tail.at, tail.number);
        self.report
    }
}
