//! The log: recovering, owning, appending.

use std::{fmt, sync::Arc};

use lockgate_core::{
    AppendError, Epoch, Level, Log, LogCapabilities, LogError, LogMaintenance, LogProgress,
    LogRange, LogReader, LogRecord, LogSource, LogSpace, Position, Preview, Purpose, RecordGroup,
    RecordStamp, RecoveryReport, ReserveError, SnapshotStore, SnapshotWriter, SpaceState, Storage,
    StorageFailure,
};

use crate::{
    discard::Discard,
    fill::is_hidden,
    log_maintenance::PostgresMaintenance,
    options::{GROUPS_IN_FLIGHT, OpenError, PostgresLogOptions, SHARD_NAME_BYTES_MAX},
    pipeline::Pipeline,
    pooler::check_sessions,
    reader::Reader,
    recover::{For, Head, claim, preview, recover},
    schema,
    session::{Commit, Failure, Link, Renewed, Session},
    shared::{
        Broken, Fence, Handle, Point, ROW_BYTES, Shared, checksum, from_database, to_database,
    },
    snapshots::Snapshots,
    sync::{Syncing, check_all_replicated, check_commit},
    tls::Target,
};

/// A log in a PostgreSQL database. The [crate](crate) says how it works.
///
/// It has four connections. Appends and syncs have one each, which is never made again. Reads and
/// background work have one each, which is made when first needed and again when it is lost.
pub struct PostgresLog {
    name: String,
    options: PostgresLogOptions,
    shared: Handle,
    appending: Arc<Pipeline>,
    syncing: Arc<Pipeline>,
    phase: Phase,
    /// The number of the next record.
    next_number: u64,
    /// Where no recovery starts before.
    trimmed: Position,
    /// The highest epoch that recovery has found, or was told of.
    lowest: Epoch,
    /// Handed out to whoever does it.
    log_maintenance: Arc<PostgresMaintenance>,
}

#[derive(Clone, Copy)]
enum Phase {
    Opened,
    Claimed(Head),
    Recovered {
        /// The number of the recovery.
        claim: i64,
        /// The tail in the database.
        stored_tail: i64,
    },
    Serving(Fence),
}

pub(crate) const FIND_SHARD: &str = "SELECT id FROM lockgate.shard WHERE name = $1";

const MAKE_SHARD: &str = "
    WITH made AS (
        INSERT INTO lockgate.shard (name) VALUES ($1) ON CONFLICT (name) DO NOTHING RETURNING id
    )
    INSERT INTO lockgate.durable (shard) SELECT id FROM made";

const SETTINGS: &str = "
    SELECT current_setting('fsync'),
           coalesce(current_setting('synchronous_standby_names', true), ''),
           pg_has_role('pg_read_all_stats', 'USAGE'),
           quote_ident(current_user)";

/// With the mark that recovery looks for, see [`recover`]: it is there before the first append, and says
/// where that will be.
const BEGIN_EPOCH: &str = "
    WITH begun AS (
        UPDATE lockgate.shard SET epoch = $3, tail = $5, next_number = $6
        WHERE id = $1 AND claim = $2 AND epoch < $3 AND tail = $4
        RETURNING id, tail
    ), marked AS (
        INSERT INTO lockgate.unsynced (shard, tail, written)
        SELECT id, tail, txid_current() FROM begun
        ON CONFLICT (shard) DO UPDATE SET tail = excluded.tail, written = excluded.written
    )
    SELECT current_setting('synchronous_commit') FROM begun";

/// Appends and fences in one statement, which is one transaction: no row of records is written
/// unless the row of the shard could be changed, and that waits for whoever changes it just now.
///
/// It hands on a lock from turn to turn: its own, which the session has held since the turn before, it keeps
/// until it is committed, and by then it has the next one. So a sync, on a connection of its own, can wait at
/// the server for an append that is on its way.
const APPEND: &str = "
    WITH head AS (
        UPDATE lockgate.shard SET tail = $5, next_number = $7
        WHERE id = $1 AND claim = $2 AND epoch = $3 AND tail = $4
        RETURNING 1
    ), turn AS (
        SELECT pg_advisory_xact_lock($11), pg_advisory_unlock($11), pg_advisory_lock($11 + 1)
    )
    INSERT INTO lockgate.record (shard, checksum, position, number, epoch, payload)
    SELECT $1, row.checksum, row.position, $6 + row.index - 1, $3, row.payload
    FROM head, turn, unnest($8::integer[], $9::bigint[], $10::bytea[])
        WITH ORDINALITY AS row (checksum, position, payload, index)";

/// Draws the number of a lock from 2^62.
const DRAW_TURNS: &str = "
    SELECT (floor(random() * 2147483648)::bigint << 31) + floor(random() * 2147483648)::bigint";

const FIRST_TURN: &str = "SELECT pg_advisory_lock($1)";

/// Of writers that are gone. One that is deposed only finds that its snapshot is gone.
const FORGET_UNFINISHED: &str = "
    DELETE FROM lockgate.snapshot WHERE shard = $1 AND NOT complete
    AND EXISTS (SELECT FROM lockgate.shard WHERE id = $1 AND claim = $2 AND epoch = $3 FOR UPDATE)";

pub(crate) const HEAD: &str = "SELECT claim, epoch, tail FROM lockgate.shard WHERE id = $1";

const TRIM: &str = "
    UPDATE lockgate.shard SET trimmed = greatest(trimmed, $4)
    WHERE id = $1 AND claim = $2 AND epoch = $3";

const RELEASE: &str = "
    INSERT INTO lockgate.released (shard, first, stop)
    SELECT id, $4, $5 FROM lockgate.shard WHERE id = $1 AND claim = $2 AND epoch = $3
    ON CONFLICT (shard, first) DO UPDATE SET stop = excluded.stop";

/// A group of more bytes than this is appended in several transactions.
const TRANSACTION_BYTES_MAX: usize = 32 << 20;

impl PostgresLog {
    /// Opens the shard called `shard` in the database at `url`, such as
    /// `postgres://user@host:5432/database`. Makes the shard and the tables if they are missing. It
    /// reads no records and deposes nobody; [`LogSource::recover`] does both.
    ///
    /// With `?sslmode=require` (or `verify-full`, which means the same here) it speaks TLS. The
    /// server's certificate must be for that host, and from an authority that the system trusts or
    /// that is in the file `sslrootcert=FILE`. Otherwise the connection is plain.
    ///
    /// It blocks until it is connected: do not call it from an async task.
    ///
    /// # Errors
    /// As [`OpenError`] says.
    pub fn open(url: &str, shard: &str, options: PostgresLogOptions) -> Result<Self, OpenError> {
        check_name(shard)?;
        Self::open_named(url, shard, options)
    }

    /// The same for any name.
    pub(crate) fn open_named(
        url: &str,
        shard: &str,
        options: PostgresLogOptions,
    ) -> Result<Self, OpenError> {
        options.check()?;
        let link = Link::new(Target::of(url)?, options.timeout, options.thread.as_ref())
            .map_err(OpenError::Thread)?;
        let link = Arc::new(link);
        let connect = |commit| {
            link.connect(commit)
                .map_err(|failure| failure.while_doing("opening the log"))
        };
        let syncing = connect(Commit::Flushed)?;
        let appending = connect(Commit::Soon)?;
        check_sessions(&syncing, &appending)?;
        check_server(&syncing, &options)?;
        schema::prepare(&syncing)?;
        let number = make_shard(&syncing, shard)
            .map_err(|failure| failure.while_doing("making the shard"))?;
        let shared = Arc::new(Shared::new(
            number,
            &options,
            Renewed::new(link.clone()),
            Renewed::new(link.clone()),
        ));
        let appending = Arc::new(appending);
        let syncing = Arc::new(syncing);
        let held = [appending.clone(), syncing.clone()];
        Ok(Self {
            name: shard.to_owned(),
            appending: Arc::new(Pipeline::new(appending, link.runtime())),
            syncing: Arc::new(Pipeline::new(syncing, link.runtime())),
            options,
            phase: Phase::Opened,
            next_number: 1,
            trimmed: Position(0),
            lowest: Epoch(0),
            log_maintenance: Arc::new(PostgresMaintenance::new(shared.clone(), held)),
            shared,
        })
    }

    /// Returns the shard's snapshots, which are in the same database.
    #[must_use]
    pub fn snapshots(&self) -> Arc<dyn SnapshotStore> {
        Arc::new(Snapshots(self.shared.clone()))
    }

    /// [Begins](SnapshotStore::begin) a snapshot of the state at the tail.
    ///
    /// # Errors
    /// As [`SnapshotStore::begin`].
    pub fn begin_snapshot(&self) -> Result<Box<dyn SnapshotWriter>, LogError> {
        self.snapshots().begin(self.tail(), self.next_number)
    }

    /// What filling it needs beside it.
    pub(crate) fn parts(&self) -> (Handle, Arc<Session>) {
        (self.shared.clone(), self.syncing.session().clone())
    }

    /// Returns a handle that can remove the shard after the log itself is gone, for a shard that
    /// was only half filled.
    #[must_use]
    pub fn discard(&self) -> Discard {
        Discard(self.shared.clone())
    }

    fn unknown(&self, failure: Failure) -> AppendError {
        let error = self.shared.stop(failure.while_doing("appending"));
        AppendError::Unknown(error)
    }

    /// Sends the records of `part` as one transaction.
    fn submit_part(
        &mut self,
        fence: Fence,
        group: &RecordGroup,
        part: Part,
    ) -> Result<(), AppendError> {
        let from = self.tail();
        let mut tail = from;
        let is_first = part.start == 0;
        let is_last = part.end == group.len();
        let count = part.end - part.start;
        let mut checksums = Vec::with_capacity(count);
        let mut positions = Vec::with_capacity(count);
        let mut payloads = Vec::with_capacity(count);
        let mut number = self.next_number;
        for index in part {
            let payload = group.payload(index);
            let at = self.place(&mut tail, payload.len());
            let epoch = Epoch(from_database(fence.epoch));
            checksums.push(checksum(Point { at, number }, epoch, payload));
            positions.push(to_database(at.0));
            payloads.push(payload.to_vec());
            number += 1;
        }
        let turn = self.shared.next_turn();
        let asking = self.appending.session().executing(
            APPEND,
            vec![
                Box::new(self.shared.shard),
                Box::new(fence.claim),
                Box::new(fence.epoch),
                Box::new(to_database(from.0)),
                Box::new(to_database(tail.0)),
                Box::new(to_database(self.next_number)),
                Box::new(to_database(number)),
                Box::new(checksums),
                Box::new(positions),
                Box::new(payloads),
                Box::new(fence.turn(turn)),
            ],
        );
        let asking = asking.map_err(|failure| self.unknown(failure))?;
        let sent = Sent {
            shared: self.shared.clone(),
            session: self.appending.session().clone(),
            fence,
            from,
            tail,
            turn,
            is_first,
            is_last,
        };
        if is_first {
            self.shared.group_sent();
        }
        self.appending
            .send(asking, |rows| *rows > 0, |answer| sent.ended(answer));
        self.next_number = number;
        self.shared.submit(from, tail, turn);
        Ok(())
    }

    /// Runs a statement of the owner on its own row.
    fn as_owner(
        &self,
        what: &'static str,
        run: impl FnOnce(&Session, Fence) -> Result<u64, Failure>,
    ) -> Result<(), LogError> {
        self.shared.check_running()?;
        let Phase::Serving(fence) = self.phase else {
            return Err(LogError::Unsupported {
                what: "give back space before an epoch was begun",
            });
        };
        // The connection of the appends: if it is lost, so is the instance.
        match run(self.appending.session(), fence) {
            Ok(0) => Err(self.shared.deposed()),
            Ok(_) => Ok(()),
            Err(failure) => Err(self.shared.stop(failure.while_doing(what))),
        }
    }

    /// Bytes that may still be taken for what adds to the log.
    fn free_for_growth(&self, bytes_max: u64) -> u64 {
        let used = self.shared.space(|space| space.used());
        (bytes_max - bytes_max / 8).saturating_sub(used)
    }
}

/// Rows by the numbers that the table has in its column `position`.
pub(crate) fn name_of(from: Position, to: Position) -> String {
    let (from, last) = (from.0, to.0.saturating_sub(1));
    format!("the rows of lockgate.record with positions {from} to {last}")
}

pub(crate) fn check_name(shard: &str) -> Result<(), OpenError> {
    let is_name = !shard.is_empty()
        && shard.len() <= SHARD_NAME_BYTES_MAX
        && !shard.contains('\0')
        && !is_hidden(shard);
    if is_name {
        Ok(())
    } else {
        Err(OpenError::ShardName {
            name: shard.to_owned(),
        })
    }
}

type Part = std::ops::Range<usize>;

/// A transaction of a group, on its way.
struct Sent {
    shared: Handle,
    session: Arc<Session>,
    fence: Fence,
    from: Position,
    tail: Position,
    turn: u64,
    /// Of its group.
    is_first: bool,
    is_last: bool,
}

impl Sent {
    /// The server has answered, or will not.
    fn ended(self, answer: Result<u64, Failure>) {
        let error = match answer {
            Ok(0) => Some(self.why_refused()),
            Ok(_) => None,
            Err(failure) if failure.is_full() => Some(AppendError::Full(ReserveError::Full {
                needed: self.tail.0 - self.from.0,
                free: 0,
            })),
            Err(failure) => Some(AppendError::Unknown(failure.while_doing("appending"))),
        };
        let change = || match error {
            None => self.shared.set_written(self.tail, self.turn),
            Some(error) if self.is_first => self.shared.refused(error),
            // A part of the group is written: that is neither nothing nor all of it.
            Some(error) => self.shared.refused(AppendError::Unknown(LogError::Remote {
                what: "appending the rest of a large group".to_owned(),
                source: StorageFailure::new(error),
            })),
        };
        self.shared.part_ended(self.is_last, change);
    }

    /// Why the statement hit nothing.
    fn why_refused(&self) -> AppendError {
        let Self { shared, fence, .. } = self;
        let head = match self.session.query_opt(HEAD, &[&shared.shard]) {
            Ok(head) => head,
            Err(failure) => return AppendError::Unknown(failure.while_doing("appending")),
        };
        let Some(head) = head else {
            return AppendError::Unknown(Broken::NoShard.into());
        };
        let (claim, epoch, tail): (i64, i64, i64) = (head.get(0), head.get(1), head.get(2));
        if (claim, epoch) == (fence.claim, fence.epoch) {
            return AppendError::Position {
                expected: self.from,
                tail: Position(from_database(tail)),
            };
        }
        let ours = Epoch(from_database(fence.epoch));
        // Who has only recovered yet will begin a higher epoch at the least.
        let theirs = Epoch(from_database(epoch)).max(ours.next());
        AppendError::Fenced { ours, theirs }
    }
}

fn check_server(session: &Session, options: &PostgresLogOptions) -> Result<(), OpenError> {
    let row = session
        .query_opt(SETTINGS, &[])
        .map_err(|failure| failure.while_doing("asking for settings"))?;
    let Some(row) = row else { return Ok(()) };
    let (fsync, standbys): (String, String) = (row.get(0), row.get(1));
    let sees_standbys: bool = row.get(2);
    let (setting, value, problem) = if fsync != "on" {
        ("fsync", fsync, "loses what was promised with the power")
    } else if options.sync_level == Level::Replicated && standbys.is_empty() {
        let problem = "leaves nobody to replicate to: name standbys, or ask for level disk";
        ("synchronous_standby_names", standbys, problem)
    } else if options.sync_level == Level::Replicated && !sees_standbys {
        return Err(OpenError::StandbysHidden { user: row.get(3) });
    } else {
        return Ok(());
    };
    Err(OpenError::Setting {
        setting,
        value,
        problem,
    })
}

fn make_shard(session: &Session, name: &str) -> Result<i32, Failure> {
    if let Some(row) = session.query_opt(FIND_SHARD, &[&name])? {
        return Ok(row.get(0));
    }
    session.execute(MAKE_SHARD, &[&name])?;
    let row = session.query_opt(FIND_SHARD, &[&name])?;
    let number = row.map_or(0, |row| row.get(0));
    Ok(number)
}

impl From<PostgresLog> for Storage {
    fn from(log: PostgresLog) -> Self {
        Self {
            snapshots: log.snapshots(),
            log: Box::new(log),
        }
    }
}

impl LogSource for PostgresLog {
    fn capabilities(&self) -> LogCapabilities {
        self.options.capabilities()
    }

    fn recover(
        &mut self,
        from: Position,
        lowest: Epoch,
        visit: &mut dyn FnMut(LogRecord, RecordStamp),
    ) -> Result<RecoveryReport, LogError> {
        if !matches!(self.phase, Phase::Claimed(_)) {
            self.claim()?;
        }
        let Phase::Claimed(head) = self.phase else {
            return Err(LogError::Unsupported {
                what: "recover before it is claimed",
            });
        };
        // What is recovered once more is claimed anew.
        self.phase = Phase::Opened;
        let reason = For::Owning(head);
        let mut recovered = recover(&self.shared, self.syncing.session(), reason, from, visit)?;
        if self.options.sync_level == Level::Replicated {
            check_all_replicated(self.syncing.session(), self.shared.shard)?;
        }
        recovered.report.epoch = recovered.report.epoch.max(lowest);
        self.lowest = recovered.report.epoch;
        self.trimmed = recovered.report.trimmed;
        self.next_number = recovered.tail.number;
        self.phase = Phase::Recovered {
            claim: recovered.claim,
            stored_tail: recovered.stored_tail,
        };
        Ok(recovered.report)
    }

    fn tail(&self) -> Position {
        self.shared.submitted()
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

impl Log for PostgresLog {
    fn preview(&self) -> Result<Option<Preview>, LogError> {
        self.shared.check_running()?;
        preview(&self.shared, self.syncing.session()).map(Some)
    }

    fn claim(&mut self) -> Result<(), LogError> {
        if matches!(self.phase, Phase::Serving(_)) {
            return Err(LogError::Unsupported {
                what: "recover again after an epoch was begun",
            });
        }
        self.shared.check_running()?;
        self.phase = Phase::Claimed(claim(&self.shared, self.syncing.session())?);
        Ok(())
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), AppendError> {
        self.shared.check_running().map_err(AppendError::Unknown)?;
        let unsupported = |what| AppendError::Unknown(LogError::Unsupported { what });
        let Phase::Recovered { claim, stored_tail } = self.phase else {
            return Err(unsupported(
                "begin an epoch but once, after it has recovered",
            ));
        };
        if epoch <= self.lowest {
            return Err(AppendError::Fenced {
                ours: epoch,
                theirs: self.lowest,
            });
        }
        let Ok(number) = i64::try_from(epoch.0) else {
            return Err(unsupported("begin an epoch of 2^63 or above"));
        };
        let begun = self.syncing.session().query_opt(
            BEGIN_EPOCH,
            &[
                &self.shared.shard,
                &claim,
                &number,
                &stored_tail,
                &to_database(self.tail().0),
                &to_database(self.next_number),
            ],
        );
        match begun {
            Ok(Some(row)) => {
                check_commit(&row)
                    .map_err(|error| AppendError::Unknown(self.shared.stop(error)))?;
            }
            Ok(None) => {
                let head = self
                    .syncing
                    .session()
                    .query_opt(HEAD, &[&self.shared.shard]);
                let head = head.map_err(|failure| self.unknown(failure))?;
                let theirs = head.map_or(0, |head| from_database(head.get(1)));
                // Somebody else has recovered since then, and will begin a higher one at the least.
                let theirs = if theirs < epoch.0 {
                    epoch.next()
                } else {
                    Epoch(theirs)
                };
                return Err(AppendError::Fenced {
                    ours: epoch,
                    theirs,
                });
            }
            Err(failure) => return Err(self.unknown(failure)),
        }
        if self.options.sync_level == Level::Replicated {
            check_all_replicated(self.syncing.session(), self.shared.shard)
                .map_err(|error| AppendError::Unknown(self.shared.stop(error)))?;
        }
        self.syncing
            .session()
            .execute(FORGET_UNFINISHED, &[&self.shared.shard, &claim, &number])
            .map_err(|failure| self.unknown(failure))?;
        // That commit was flushed, and with it everything recovered.
        self.shared.set_durable(self.tail());
        let appending = self.appending.session();
        let drawn = appending.query_opt(DRAW_TURNS, &[]);
        let drawn = drawn.map_err(|failure| self.unknown(failure))?;
        let fence = Fence {
            claim,
            epoch: number,
            turns: drawn.map_or(0, |row| row.get(0)),
        };
        let first = fence.turn(self.shared.next_turn());
        appending
            .query_opt(FIRST_TURN, &[&first])
            .map_err(|failure| self.unknown(failure))?;
        self.shared.fence.get_or_init(|| fence);
        self.phase = Phase::Serving(fence);
        Ok(())
    }

    fn next_number(&self) -> u64 {
        self.next_number
    }

    fn place(&self, cursor: &mut Position, len: usize) -> Position {
        let at = *cursor;
        *cursor = Position(at.0.saturating_add(ROW_BYTES + len as u64));
        at
    }

    fn reserve(&mut self, bytes: u64, records: u64, purpose: Purpose) -> Result<(), ReserveError> {
        self.shared.check_running()?;
        let (Some(bytes_max), Purpose::Growth) = (self.options.bytes_max, purpose) else {
            return Ok(());
        };
        let needed = bytes.saturating_add(records.saturating_mul(ROW_BYTES));
        let free = self.free_for_growth(bytes_max);
        if needed > free {
            return Err(ReserveError::Full { needed, free });
        }
        Ok(())
    }

    fn space(&self) -> LogSpace {
        let used_bytes = self.shared.space(|space| space.used());
        let Some(bytes_max) = self.options.bytes_max else {
            return LogSpace {
                used_bytes,
                free_bytes: u64::MAX,
                ..LogSpace::default()
            };
        };
        let free_bytes = self.free_for_growth(bytes_max);
        LogSpace {
            state: match free_bytes {
                0 => SpaceState::Full,
                free if free < bytes_max / 8 => SpaceState::Low,
                _ => SpaceState::Normal,
            },
            used_bytes,
            ready_bytes: 0,
            free_bytes,
        }
    }

    fn submit(
        &mut self,
        epoch: Epoch,
        expected: Position,
        group: &mut RecordGroup,
    ) -> Result<(), AppendError> {
        self.shared.check_running().map_err(AppendError::Unknown)?;
        let unsupported = |what| AppendError::Unknown(LogError::Unsupported { what });
        let Phase::Serving(fence) = self.phase else {
            return Err(unsupported("append before an epoch was begun"));
        };
        let begun = Epoch(from_database(fence.epoch));
        if epoch < begun {
            return Err(AppendError::Fenced {
                ours: epoch,
                theirs: begun,
            });
        }
        if epoch > begun {
            return Err(unsupported("append under an epoch that was not begun"));
        }
        let tail = self.tail();
        if expected != tail {
            return Err(AppendError::Position { expected, tail });
        }
        if group.gap() != 0 {
            return Err(unsupported(
                "append records with another gap than it asks for",
            ));
        }
        let max = self.options.record_bytes_max;
        let mut end = tail;
        for len in (0..group.len()).map(|index| group.payload(index).len()) {
            if len > max {
                return Err(AppendError::TooLarge { len, max });
            }
            self.place(&mut end, len);
        }
        if i64::try_from(end.0).is_err() {
            return Err(unsupported("number more than 2^63 bytes"));
        }
        self.shared
            .wait_until(|in_flight| in_flight < GROUPS_IN_FLIGHT || self.shared.has_stopped());
        let mut part = 0..0;
        let mut bytes = 0;
        while part.start < group.len() {
            while part.end < group.len() && bytes <= TRANSACTION_BYTES_MAX {
                bytes += group.payload(part.end).len();
                part.end += 1;
            }
            self.submit_part(fence, group, part.clone())?;
            part = part.end..part.end;
            bytes = 0;
        }
        Ok(())
    }

    fn progress(&self) -> Arc<dyn LogProgress> {
        Arc::new(Syncing {
            shared: self.shared.clone(),
            pipeline: self.syncing.clone(),
            level: self.options.sync_level,
        })
    }

    fn log_maintenance(&self) -> Option<Arc<dyn LogMaintenance>> {
        Some(self.log_maintenance.clone())
    }

    fn trim(&mut self, before: Position) -> Result<(), LogError> {
        let before = before.min(self.tail());
        let shard = &self.shared.shard;
        self.as_owner("trimming", |session, Fence { claim, epoch, .. }| {
            session.execute(TRIM, &[shard, &claim, &epoch, &to_database(before.0)])
        })?;
        self.trimmed = self.trimmed.max(before);
        Ok(())
    }

    fn release(&mut self, range: Position) -> Result<(), LogError> {
        let range = self.shared.range(range);
        self.shared.check_running()?;
        if range.end > self.trimmed.0 {
            return Err(LogError::Unsupported {
                what: "release a range that is not all before the last trim",
            });
        }
        let shard = &self.shared.shard;
        let (first, stop) = (to_database(range.start), to_database(range.end));
        self.as_owner(
            "releasing a range",
            |session, Fence { claim, epoch, .. }| {
                session.execute(RELEASE, &[shard, &claim, &epoch, &first, &stop])
            },
        )?;
        self.shared
            .space(|space| space.released.insert(range.start, range.end));
        let is_handed_out = Arc::strong_count(&self.log_maintenance) > 1;
        if !is_handed_out {
            self.log_maintenance.catch_up()?;
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLog")
            .field("shard", &self.name)
            .field("tail", &self.tail())
            .finish_non_exhaustive()
    }
}
