//! Recovering: what there is, and what of it is missing.

pub(crate) mod fuzzing;

use std::ops::{ControlFlow, Range};

use lockgate_core::{
    DamagedRange, Epoch, LogError, LogRecord, Position, Preview, RecordStamp, RecoveryReport,
    Unsynced,
};
use tokio_postgres::Row;

use crate::{
    session::{Failure, Session},
    shared::{Broken, Point, ROW_BYTES, Shared, Space, from_database, to_database},
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

const NEWEST_SNAPSHOT: &str = "
    SELECT position, number
    FROM lockgate.snapshot
    WHERE shard = $1 AND complete
    ORDER BY position DESC, id DESC
    LIMIT 1";

/// The numbers of the last record before a stretch and of the first one behind it.
const AROUND: &str = "
    SELECT (SELECT number FROM lockgate.record
            WHERE shard = $1 AND position < $2 ORDER BY position DESC LIMIT 1),
           (SELECT number FROM lockgate.record
            WHERE shard = $1 AND position >= $3 ORDER BY position LIMIT 1)";

/// So much of the end of the log is looked at before a claim.
const PREVIEW_BYTES: u64 = 1 << 20;

const SNAPSHOT_BYTES: &str = "
    SELECT coalesce(sum(bytes), 0)::bigint FROM lockgate.snapshot WHERE shard = $1";

/// All reads in it see the database as of the first one, whatever goes on beside.
pub(crate) const BEGIN_LOOKING: &str = "
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL idle_in_transaction_session_timeout = 0";

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

/// What can be told of the shard at little cost, whoever owns it.
pub(crate) fn preview(shared: &Shared, session: &Session) -> Result<Preview, LogError> {
    let failed = |failure: Failure| failure.while_doing("looking at the shard");
    session.batch(BEGIN_LOOKING).map_err(failed)?;
    let seen = Seen::of(shared, session).map_err(failed)?;
    let seen = seen.ok_or(Broken::NoShard)?;
    let missing = lost_ranges(shared, session, &seen).map_err(failed)?;
    session.batch("COMMIT").map_err(failed)?;
    let (trimmed, tail) = (seen.head.trimmed, Position(seen.head.tail));
    let from = Position(tail.0.saturating_sub(PREVIEW_BYTES)).max(trimmed);
    let mut newest = Vec::new();
    shared.visit_rows(from, tail, &mut |stored| {
        if stored.verifies {
            newest.push(LogRecord {
                position: stored.point.at,
                payload: stored.payload,
            });
        }
        ControlFlow::Continue(())
    })?;
    Ok(Preview {
        trimmed,
        newest,
        missing,
    })
}

/// Ranges behind the newest snapshot that have no rows and had some, as the numbers around them tell.
fn lost_ranges(
    shared: &Shared,
    session: &Session,
    seen: &Seen,
) -> Result<Vec<Range<Position>>, Failure> {
    let (head, shard) = (seen.head, &shared.shard);
    let snapshot = session.query_opt(NEWEST_SNAPSHOT, &[shard])?;
    let (from, number) = snapshot.map_or((0, None), |row| {
        (from_database(row.get(0)), Some(row.get::<_, i64>(1)))
    });
    let claimed = head.claimed(Position(from).max(head.trimmed), number);
    if claimed.from >= claimed.tail.at {
        return Ok(Vec::new());
    }
    let all = DamagedRange {
        from: claimed.from,
        to: claimed.tail.at,
        records: 0,
        kept_as: None,
    };
    let mut lost = Vec::new();
    for empty in missing(&[all], &seen.space, shared.range_bits) {
        let (start, end) = (to_database(empty.start.0), to_database(empty.end.0));
        let Some(row) = session.query_opt(AROUND, &[shard, &start, &end])? else {
            continue;
        };
        let behind = row.get::<_, Option<i64>>(0);
        let behind = behind.map(|last| from_database(last) + 1);
        // What is lost before the snapshot is in it.
        let expected = behind.max(claimed.from_number);
        let next = row.get::<_, Option<i64>>(1).map(from_database);
        let next = next.unwrap_or(claimed.tail.number);
        if expected.is_some_and(|expected| expected < next) {
            lost.push(empty);
        }
    }
    Ok(lost)
}

/// Fences whoever owns the shard.
pub(crate) fn claim(shared: &Shared, session: &Session) -> Result<Head, LogError> {
    let row = session
        .query_opt(CLAIM, &[&shared.shard])
        .map_err(|failure| failure.while_doing("claiming the shard"))?;
    let head = Head::from_row(&row.ok_or(Broken::NoShard)?);
    shared.claimed(head.claim);
    Ok(head)
}

/// Hands over the records of the shard from `from` on.
pub(crate) fn recover(
    shared: &Shared,
    session: &Session,
    reason: For<'_>,
    from: Position,
    visit: &mut dyn FnMut(LogRecord, RecordStamp),
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
        let stamp = RecordStamp {
            number: stored.point.number,
            epoch: stored.epoch,
        };
        let record = LogRecord {
            position: stored.point.at,
            payload: stored.payload,
        };
        if judge.see(&record, stored.point.number, stored.verifies) {
            visit(record, stamp);
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
