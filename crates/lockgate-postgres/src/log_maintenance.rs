//! Deleting what was released or given up, a little at a time; and noticing that the shard is another's.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockgate_core::{LogError, LogMaintenance, SnapshotStore as _, StepOutcome};

use crate::{
    session::{Session, lock},
    shared::{Broken, Handle, Space, VIEWED, from_database, to_database},
    snapshots::Snapshots,
};

/// Deletes the first rows of a released range; on a server that holds everything that was appended
/// before it was released, and with it what was moved out of it.
pub(crate) const DELETE: &str = "
    WITH dead AS (
        SELECT position
        FROM lockgate.record
        WHERE shard = $1 AND position >= $2 AND position < $3
            AND EXISTS (SELECT FROM lockgate.shard WHERE id = $1 AND claim = $5 AND tail >= $6)
        ORDER BY position
        LIMIT $4
    )
    DELETE FROM lockgate.record
    USING dead
    WHERE record.shard = $1 AND record.position = dead.position";

const FORGET: &str = "
    DELETE FROM lockgate.released
    WHERE shard = $1 AND first = $2
        AND EXISTS (SELECT FROM lockgate.shard WHERE id = $1 AND claim = $3 AND tail >= $4)";

/// Rows of one step: about a MiB of common messages.
pub(crate) const ROWS: i64 = 1_000;

/// How often it looks whether the shard is still this owner's: so that a second has not passed when several are
/// looked at together, up to a quarter of a second later.
const LOOK_EVERY: Duration = Duration::from_millis(750);

/// Whether nobody looks at the shard. Only asked, not kept: what is deleted next was released before, and
/// who comes to look later sees that it was.
const NOT_VIEWED: &str = "SELECT pg_try_advisory_xact_lock($1, $2)";

const CLAIM: &str = "SELECT claim FROM lockgate.shard WHERE id = $1";

pub(crate) struct PostgresMaintenance {
    shared: Handle,
    /// The connections that are never made again.
    held: [Arc<Session>; 2],
    looked: Mutex<Instant>,
}

impl PostgresMaintenance {
    pub(crate) fn new(shared: Handle, held: [Arc<Session>; 2]) -> Self {
        Self {
            shared,
            held,
            looked: Mutex::new(Instant::now()),
        }
    }

    /// That the log can still be appended to, as far as can be told without asking: so that an owner
    /// with nothing to do does not believe for hours that it serves.
    fn check_connected(&self) -> Result<(), LogError> {
        let shared = &self.shared;
        shared.check_running()?;
        match self.held.iter().find_map(|session| session.ended()) {
            None => Ok(()),
            Some(end) => Err(shared.stop(Broken::Connection(end).into())),
        }
    }

    /// That nobody has taken the shard over.
    fn check_owned(&self) -> Result<(), LogError> {
        let shared = &self.shared;
        let Some(fence) = shared.fence.get() else {
            return Ok(());
        };
        let row = shared
            .working
            .run("looking who owns the shard", |session| {
                session.query_opt(CLAIM, &[&shared.shard])
            })?;
        if row.is_none_or(|row| row.get::<_, i64>(0) != fence.claim) {
            return Err(shared.stop(shared.deposed()));
        }
        Ok(())
    }

    fn is_time_to_look(&self) -> bool {
        let mut looked = lock(&self.looked);
        let is_time = looked.elapsed() >= LOOK_EVERY;
        if is_time {
            *looked = Instant::now();
        }
        is_time
    }

    /// Whether somebody looks at the shard who may still read what was released since.
    fn is_viewed(&self) -> Result<bool, LogError> {
        let shared = &self.shared;
        let row = shared
            .working
            .run("looking whether the shard is looked at", |session| {
                session.query_opt(NOT_VIEWED, &[&VIEWED, &shared.shard])
            })?;
        Ok(row.is_some_and(|row| !row.get::<_, bool>(0)))
    }

    /// Deletes some rows of a released range.
    fn delete(&self, first: u64, stop: u64) -> Result<StepOutcome, LogError> {
        let shared = &self.shared;
        let (from, to) = (to_database(first), to_database(stop));
        let what = "deleting what was released";
        let deleted = shared.working.run(what, |session| {
            let (claim, tail) = shared.held();
            let shard = &shared.shard;
            session.execute(DELETE, &[shard, &from, &to, &ROWS, &claim, &tail])
        })?;
        if from_database(ROWS) <= deleted {
            return Ok(StepOutcome::More);
        }
        shared.working.run(what, |session| {
            let (claim, tail) = shared.held();
            match session.execute(FORGET, &[&shared.shard, &from, &claim, &tail])? {
                // It was forgotten by a statement whose answer was lost, unless the shard is elsewhere.
                0 => shared.check_held(session),
                _ => Ok(()),
            }
        })?;
        Ok(shared.space(|space| {
            space.released.remove(&first);
            space
                .ranges
                .retain(|_, rows| rows.start < first || rows.end > stop);
            if space.released.is_empty() {
                StepOutcome::Done
            } else {
                StepOutcome::More
            }
        }))
    }
}

impl LogMaintenance for PostgresMaintenance {
    fn step(&self) -> Result<StepOutcome, LogError> {
        self.check_connected()?;
        let released = |space: &mut Space| space.released.first_key_value().map(|(&a, &b)| (a, b));
        let given_up = |space: &mut Space| space.given_up.first().copied();
        let (range, snapshot) = (self.shared.space(released), self.shared.space(given_up));
        if (range.is_some() || snapshot.is_some()) && !self.is_viewed()? {
            let deleted = match (range, snapshot) {
                (Some((first, stop)), _) => self.delete(first, stop),
                (None, Some(at)) => Snapshots(self.shared.clone())
                    .remove(at)
                    .map(|()| StepOutcome::More),
                (None, None) => Ok(StepOutcome::Done),
            };
            return deleted.or_else(|error| {
                self.check_owned()?;
                Err(error)
            });
        }
        if self.is_time_to_look() {
            self.check_owned()?;
        }
        Ok(StepOutcome::Done)
    }

    fn check_storage(&self) -> Result<(), LogError> {
        self.check_connected()?;
        match self.check_owned() {
            Err(error @ (LogError::Stopped { .. } | LogError::Deposed { .. })) => Err(error),
            // Or it could not be asked just now.
            _ => Ok(()),
        }
    }

    /// Until the next look.
    fn pause(&self) -> Duration {
        LOOK_EVERY.saturating_sub(lock(&self.looked).elapsed())
    }
}
