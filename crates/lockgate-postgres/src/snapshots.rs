//! Snapshots: a row each, with their pieces in a table beside it.

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use lockgate_core::{LogError, Position, ReadError, SnapshotReader, SnapshotStore, SnapshotWriter};

use crate::shared::{Fence, Handle, Point, VIEWED, from_database, to_database};

const LIST: &str = "
    SELECT DISTINCT position
    FROM lockgate.snapshot
    WHERE shard = $1 AND complete
    ORDER BY position DESC";

const OPEN: &str = "
    SELECT id, pieces, bytes
    FROM lockgate.snapshot
    WHERE shard = $1 AND position = $2 AND complete
    ORDER BY id DESC
    LIMIT 1";

/// Before anything is recovered there is no claim; then whoever asks knows best. What somebody looks at stays;
/// the lock keeps others from beginning to look while it goes.
const REMOVE: &str = "
    WITH free AS MATERIALIZED (SELECT pg_try_advisory_xact_lock($5, $1) AS is_free),
    gone AS (
        DELETE FROM lockgate.snapshot
        WHERE shard = $1 AND position = $2 AND complete
            AND ($3::bigint = 0 OR EXISTS (
                SELECT FROM lockgate.shard WHERE id = $1 AND claim = $3 AND tail >= $4
            ))
            AND (SELECT is_free FROM free)
        RETURNING bytes
    )
    SELECT is_free, (SELECT coalesce(sum(bytes), 0)::bigint FROM gone) FROM free";

const READ_PIECE: &str = "
    SELECT checksum, payload FROM lockgate.piece WHERE snapshot = $1 AND index = $2";

const BEGIN: &str = "
    INSERT INTO lockgate.snapshot (shard, position, number)
    SELECT id, $4, $5
    FROM lockgate.shard
    WHERE id = $1 AND claim = $2 AND epoch = $3
    RETURNING id";

/// Only to the snapshot that was begun here: on another server its number may be another's.
const WRITE_PIECE: &str = "
    INSERT INTO lockgate.piece (snapshot, index, checksum, payload)
    SELECT snapshot.id, $2, $3, $4
    FROM lockgate.snapshot JOIN lockgate.shard ON shard.id = snapshot.shard
    WHERE snapshot.id = $1 AND NOT complete AND shard.id = $5 AND claim = $6 AND epoch = $7
    ON CONFLICT (snapshot, index) DO UPDATE SET payload = excluded.payload";

/// Takes the place of an older one of the same position, unless somebody looks at that: both say the same.
const FINISH: &str = "
    WITH older AS (
        DELETE FROM lockgate.snapshot
        WHERE shard = $1 AND position = $5 AND id <> $4 AND complete
            AND (SELECT pg_try_advisory_xact_lock($8, $1))
    )
    UPDATE lockgate.snapshot SET complete = true, pieces = $6, bytes = $7
    WHERE id = $4 AND shard = $1 AND EXISTS (
        SELECT FROM lockgate.shard WHERE id = $1 AND claim = $2 AND epoch = $3
    )";

const GIVE_UP: &str = "
    DELETE FROM lockgate.snapshot
    WHERE id = $1 AND NOT complete AND shard = $2
        AND EXISTS (SELECT FROM lockgate.shard WHERE id = $2 AND claim = $3)";

/// The snapshots of a shard.
pub(crate) struct Snapshots(pub(crate) Handle);

impl SnapshotStore for Snapshots {
    fn begin(&self, at: Position, next_number: u64) -> Result<Box<dyn SnapshotWriter>, LogError> {
        let Some(&fence) = self.0.fence.get() else {
            return Err(LogError::Unsupported {
                what: "begin a snapshot before an epoch was begun",
            });
        };
        let point = Point {
            at,
            number: next_number,
        };
        let writing = Writing::new(self.0.clone(), fence, point, self.0.record_bytes_max);
        Ok(Box::new(writing))
    }

    fn list(&self) -> Result<Vec<Position>, LogError> {
        let rows = self.0.read("listing snapshots", |session| {
            session.query(LIST, &[&self.0.shard])
        })?;
        let mut positions: Vec<_> = (rows.iter())
            .map(|row| Position(from_database(row.get(0))))
            .collect();
        self.0
            .space(|space| positions.retain(|at| !space.given_up.contains(at)));
        Ok(positions)
    }

    fn open(&self, at: Position) -> Result<Box<dyn SnapshotReader>, ReadError> {
        let row = self.0.read("opening a snapshot", |session| {
            session.query_opt(OPEN, &[&self.0.shard, &to_database(at.0)])
        })?;
        let row = row.ok_or(ReadError::Missing { at })?;
        Ok(Box::new(Reading {
            shared: self.0.clone(),
            at,
            id: row.get(0),
            pieces: row.get(1),
            total: from_database(row.get(2)),
            next: 0,
        }))
    }

    fn remove(&self, at: Position) -> Result<(), LogError> {
        let row = self.0.working.run("removing a snapshot", |session| {
            let (claim, tail) = self.0.held();
            let shard = &self.0.shard;
            session.query_opt(REMOVE, &[shard, &to_database(at.0), &claim, &tail, &VIEWED])
        })?;
        let Some(row) = row else { return Ok(()) };
        let (is_free, bytes): (bool, i64) = (row.get(0), row.get(1));
        self.0.space(|space| {
            if is_free {
                space.given_up.remove(&at);
            } else {
                space.given_up.insert(at);
            }
            space.snapshot_bytes = space.snapshot_bytes.saturating_sub(from_database(bytes));
        });
        Ok(())
    }
}

struct Reading {
    shared: Handle,
    at: Position,
    id: i64,
    pieces: i64,
    total: u64,
    next: i64,
}

impl SnapshotReader for Reading {
    fn total_bytes(&self) -> u64 {
        self.total
    }

    fn next_piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        if self.next >= self.pieces {
            return Ok(None);
        }
        let row = self.shared.read("reading a snapshot's piece", |session| {
            session.query_opt(READ_PIECE, &[&self.id, &self.next])
        })?;
        let damaged = |what| ReadError::Damaged { at: self.at, what };
        let row = row.ok_or_else(|| damaged("a piece is missing"))?;
        let payload: &[u8] = row.get(1);
        if piece_checksum(self.at, self.next, payload) != row.get::<_, i32>(0) {
            return Err(damaged("a piece does not verify"));
        }
        self.next += 1;
        Ok(Some(Bytes::copy_from_slice(payload)))
    }
}

/// A snapshot being written: its row says that it is not complete.
pub(crate) struct Writing {
    shared: Handle,
    fence: Fence,
    point: Point,
    piece_bytes_max: usize,
    /// Known from the first piece on.
    id: Option<i64>,
    pieces: i64,
    bytes: u64,
    finished: bool,
}

impl Writing {
    pub(crate) fn new(shared: Handle, fence: Fence, point: Point, piece_bytes_max: usize) -> Self {
        Self {
            shared,
            fence,
            point,
            piece_bytes_max,
            id: None,
            pieces: 0,
            bytes: 0,
            finished: false,
        }
    }

    fn id(&mut self) -> Result<i64, LogError> {
        if let Some(id) = self.id {
            return Ok(id);
        }
        let Fence { claim, epoch, .. } = self.fence;
        let (at, number) = (to_database(self.point.at.0), to_database(self.point.number));
        let row = self.shared.working.run("beginning a snapshot", |session| {
            session.query_opt(BEGIN, &[&self.shared.shard, &claim, &epoch, &at, &number])
        })?;
        let id = row.ok_or_else(|| self.shared.deposed())?.get(0);
        self.id = Some(id);
        Ok(id)
    }
}

impl SnapshotWriter for Writing {
    fn position(&self) -> Position {
        self.point.at
    }

    fn write(&mut self, piece: &[u8]) -> Result<(), LogError> {
        if piece.len() > self.piece_bytes_max {
            return Err(LogError::Unsupported {
                what: "keep a piece of a snapshot above its record_bytes_max",
            });
        }
        let (id, index) = (self.id()?, self.pieces);
        let checksum = piece_checksum(self.point.at, index, piece);
        let Fence { claim, epoch, .. } = self.fence;
        let shared = &self.shared;
        let written = shared
            .working
            .run("writing a snapshot's piece", |session| {
                session.execute(
                    WRITE_PIECE,
                    &[
                        &id,
                        &index,
                        &checksum,
                        &piece,
                        &shared.shard,
                        &claim,
                        &epoch,
                    ],
                )
            })?;
        if written == 0 {
            return Err(self.shared.deposed());
        }
        self.pieces += 1;
        self.bytes += piece.len() as u64;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), LogError> {
        let id = self.id()?;
        let shared = &self.shared;
        let Fence { claim, epoch, .. } = self.fence;
        let (at, bytes) = (to_database(self.point.at.0), to_database(self.bytes));
        let finished = shared.working.run("finishing a snapshot", |session| {
            session.execute(
                FINISH,
                &[
                    &shared.shard,
                    &claim,
                    &epoch,
                    &id,
                    &at,
                    &self.pieces,
                    &bytes,
                    &VIEWED,
                ],
            )
        })?;
        if finished == 0 {
            return Err(self.shared.deposed());
        }
        shared.space(|space| {
            space.snapshot_bytes += self.bytes;
            // What was given up there was the same state; now it is wanted.
            space.given_up.remove(&self.point.at);
        });
        self.finished = true;
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let (Some(id), false) = (self.id, self.finished) {
            // If it stays it does not count, and the next recovery removes it.
            let _ = self.shared.working.run("giving up a snapshot", |session| {
                let claim = self.fence.claim;
                session.execute(GIVE_UP, &[&id, &self.shared.shard, &claim])
            });
        }
    }
}

/// Position and index are in it, so that a piece of another snapshot or place does not verify.
fn piece_checksum(at: Position, index: i64, piece: &[u8]) -> i32 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&at.0.to_le_bytes());
    place[8..].copy_from_slice(&index.to_le_bytes());
    crc32c_append(crc32c(&place), piece).cast_signed()
}
