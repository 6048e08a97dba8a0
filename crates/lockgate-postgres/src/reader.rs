//! Reading records: some, or a stretch of them.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use lockgate_core::{
    Epoch, LogError, LogReader, LogRecord, Position, ReadError, RecordStamp, Scanned,
};
use tokio_postgres::Row;

use crate::shared::{Handle, Point, Shared, checksum, from_database, to_database};

const READ: &str = "
    SELECT position, number, epoch, checksum, payload
    FROM lockgate.record
    WHERE shard = $1 AND position = ANY($2)";

/// Records of one answer.
const RECORDS_MAX: usize = 100;

/// The rows of a stretch of positions, from the first row behind `$2` on. Positions count bytes, so
/// this bounds what one answer holds.
const READ_PAGE: &str = "
    WITH start AS (
        SELECT min(position) AS at
        FROM lockgate.record
        WHERE shard = $1 AND position >= $2 AND position < $3
    )
    SELECT record.position, number, epoch, checksum, payload
    FROM start, lockgate.record
    WHERE record.shard = $1
        AND record.position >= start.at
        AND record.position < least($3, start.at + $4)
    ORDER BY record.position";

/// Bytes of one answer, or one record if that is larger.
const PAGE_BYTES: i64 = 4 << 20;

/// Reads on a connection that is made again when it is lost.
pub(crate) struct Reader(pub(crate) Handle);

/// A row of the table of records.
pub(crate) struct Stored {
    pub(crate) point: Point,
    pub(crate) epoch: Epoch,
    pub(crate) payload: Bytes,
    /// Its checksum fits.
    pub(crate) verifies: bool,
}

impl Stored {
    fn from_row(row: &Row) -> Self {
        Self::of([row.get(0), row.get(1), row.get(2)], row.get(3), row.get(4))
    }

    /// Of its columns; the numbers are position, number and epoch.
    pub(crate) fn of(numbers: [i64; 3], sum: i32, payload: &[u8]) -> Self {
        let [at, number, epoch] = numbers.map(from_database);
        let point = Point {
            at: Position(at),
            number,
        };
        let epoch = Epoch(epoch);
        Self {
            point,
            epoch,
            verifies: checksum(point, epoch, payload) == sum,
            payload: Bytes::copy_from_slice(payload),
        }
    }
}

impl Shared {
    /// The rows of the records that start at these positions, as far as there are any.
    fn rows_at(&self, at: &[Position]) -> Result<BTreeMap<Position, Stored>, LogError> {
        // No record starts beyond what a row can say.
        let held = at.iter().filter(|at| !self.is_released(**at));
        let positions = held.filter_map(|at| i64::try_from(at.0).ok());
        let positions: BTreeSet<_> = positions.collect();
        let positions: Vec<_> = positions.into_iter().collect();
        if positions.is_empty() {
            return Ok(BTreeMap::new());
        }
        let rows = self.read("reading records", |session| {
            let rows = session.query(READ, &[&self.shard, &positions])?;
            if rows.len() < positions.len() {
                // What another server lacks is not lost.
                self.check_held(session)?;
            }
            Ok(rows)
        })?;
        let stored = rows.iter().map(Stored::from_row);
        Ok(stored.map(|stored| (stored.point.at, stored)).collect())
    }

    /// What is to be said of the record at `at`, when this was found.
    fn record(&self, at: Position, found: &BTreeMap<Position, Stored>) -> Result<Bytes, ReadError> {
        match found.get(&at) {
            Some(stored) if !self.is_released(at) => {
                if stored.verifies {
                    Ok(stored.payload.clone())
                } else {
                    let what = "its checksum does not fit";
                    Err(ReadError::Damaged { at, what })
                }
            }
            _ => Err(ReadError::Missing { at }),
        }
    }

    /// Visits the rows that start in `from..to`, in order, as long as `visit` wants more.
    pub(crate) fn visit_rows(
        &self,
        from: Position,
        to: Position,
        visit: &mut dyn FnMut(Stored) -> ControlFlow<()>,
    ) -> Result<(), LogError> {
        let (mut from, to) = (to_database(from.0), to_database(to.0));
        while from < to {
            let rows = self.read("reading records", |session| {
                session.query(READ_PAGE, &[&self.shard, &from, &to, &PAGE_BYTES])
            })?;
            let Some(last) = rows.last() else {
                return Ok(());
            };
            from = last.get::<_, i64>(0) + 1;
            for row in &rows {
                if visit(Stored::from_row(row)).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The first record from a position on, and its number.
const FIRST_FROM: &str = "
    SELECT position, number FROM lockgate.record
    WHERE shard = $1 AND position >= $2 ORDER BY position LIMIT 1";

const DURABLE: &str = "SELECT position FROM lockgate.durable WHERE shard = $1";

/// How often one who follows a log that another process appends to asks how far it is.
const FOLLOW_EVERY: Duration = Duration::from_millis(20);

impl LogReader for Reader {
    /// Numbers rise with positions, and the table is found by position: so the number is searched for.
    fn locate(&self, number: u64) -> Result<Option<Position>, ReadError> {
        let shared = &self.0;
        let (mut low, mut high) = (0, to_database(shared.written().0));
        while low < high {
            let middle = low + (high - low) / 2;
            let row = shared.read("looking for a record", |session| {
                session.query_opt(FIRST_FROM, &[&shared.shard, &middle])
            })?;
            let Some(row) = row else {
                high = middle;
                continue;
            };
            let (position, found): (i64, i64) = (row.get(0), row.get(1));
            match from_database(found).cmp(&number) {
                Ordering::Less => low = position + 1,
                Ordering::Equal => {
                    let at = Position(from_database(position));
                    return match self.read(at) {
                        Ok(_) => Ok(Some(at)),
                        Err(ReadError::Missing { .. } | ReadError::Damaged { .. }) => Ok(None),
                        Err(error) => Err(error),
                    };
                }
                Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    fn wait_tail(&self, beyond: Position, wait: Duration) -> Result<Position, LogError> {
        let shared = &self.0;
        // A time without end is a day here, after which the caller asks again.
        let until = Instant::now() + wait.min(Duration::from_hours(24));
        if shared.fence.get().is_some() {
            shared.wait_until_by(until, || {
                shared.progress().durable > beyond || shared.has_stopped()
            });
            let durable = shared.progress().durable;
            if durable <= beyond {
                shared.check_running()?;
            }
            return Ok(durable);
        }
        loop {
            let row = shared.read("following the log", |session| {
                session.query_opt(DURABLE, &[&shared.shard])
            })?;
            let durable = Position(row.map_or(0, |row| from_database(row.get(0))));
            let left = until.saturating_duration_since(Instant::now());
            if durable > beyond || left.is_zero() {
                // What is behind it was not there when the view began, and may be read now.
                shared.follow(durable);
                return Ok(durable);
            }
            thread::sleep(FOLLOW_EVERY.min(left));
        }
    }

    fn read(&self, at: Position) -> Result<Bytes, ReadError> {
        let found = self.0.rows_at(&[at])?;
        self.0.record(at, &found)
    }

    fn read_all(&self, at: &[Position]) -> Vec<Result<Bytes, ReadError>> {
        let shared = &self.0;
        let mut records = Vec::with_capacity(at.len());
        for some in at.chunks(RECORDS_MAX) {
            match shared.rows_at(some) {
                Ok(found) => records.extend(some.iter().map(|&at| shared.record(at, &found))),
                Err(error) => {
                    records.push(Err(error.into()));
                    break;
                }
            }
        }
        records
    }

    fn scan(
        &self,
        from: Position,
        to: Position,
        visit: &mut dyn FnMut(Scanned) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let shared = &self.0;
        let to = to.min(shared.written());
        let mut damaged_from = None;
        let mut stopped = false;
        shared.visit_rows(from, to, &mut |stored| {
            let position = stored.point.at;
            if shared.is_released(position) {
                return ControlFlow::Continue(());
            }
            if !stored.verifies {
                damaged_from.get_or_insert(position);
                return ControlFlow::Continue(());
            }
            let mut flow = ControlFlow::Continue(());
            if let Some(from) = damaged_from.take() {
                flow = visit(Scanned::Damaged { from, to: position });
            }
            if flow.is_continue() {
                let payload = stored.payload;
                flow = visit(Scanned::Record {
                    record: LogRecord { position, payload },
                    stamp: RecordStamp {
                        number: stored.point.number,
                        epoch: stored.epoch,
                    },
                });
            }
            stopped = flow.is_break();
            flow
        })?;
        if let (Some(from), false) = (damaged_from, stopped) {
            let _last = visit(Scanned::Damaged { from, to });
        }
        Ok(())
    }
}
