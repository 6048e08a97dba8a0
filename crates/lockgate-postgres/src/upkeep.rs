//! Deleting what was released, a little at a time; and noticing that the shard is another's.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockgate_core::{LogError, LogUpkeep};

use crate::{
    session::{Failure, Session, lock},
    shared::{Handle, Space, from_database, to_database},
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

/// How often it looks whether the shard is still this owner's.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const CLAIM: &str = "SELECT claim FROM lockgate.shard WHERE id = $1";

pub(crate) struct Upkeep {
    shared: Handle,
    /// The connections that are never made again.
    held: [Arc<Session>; 2],
    looked: Mutex<Instant>,
}

impl Upkeep {
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
            Some(end) => Err(shared.stop(LogError::Stopped {
                reason: format!("the connection to the database was lost: {end}"),
            })),
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

    /// Deletes some rows of a released range; whether there is more.
    fn delete(&self, first: u64, stop: u64) -> Result<bool, LogError> {
        let shared = &self.shared;
        let (from, to) = (to_database(first), to_database(stop));
        let what = "deleting what was released";
        let deleted = shared.working.run(what, |session| {
            let (claim, tail) = shared.held();
            let shard = &shared.shard;
            session.execute(DELETE, &[shard, &from, &to, &ROWS, &claim, &tail])
        })?;
        if from_database(ROWS) <= deleted {
            return Ok(true);
        }
        shared.working.run(what, |session| {
            let (claim, tail) = shared.held();
            match session.execute(FORGET, &[&shared.shard, &from, &claim, &tail])? {
                0 => Err(Failure::Elsewhere),
                _ => Ok(()),
            }
        })?;
        Ok(shared.space(|space| {
            space.released.remove(&first);
            space
                .ranges
                .retain(|_, rows| rows.start < first || rows.end > stop);
            !space.released.is_empty()
        }))
    }
}

impl LogUpkeep for Upkeep {
    fn step(&self) -> Result<bool, LogError> {
        self.check_connected()?;
        let released = |space: &mut Space| space.released.first_key_value().map(|(&a, &b)| (a, b));
        let Some((first, stop)) = self.shared.space(released) else {
            if self.is_time_to_look() {
                self.check_owned()?;
            }
            return Ok(false);
        };
        self.delete(first, stop).or_else(|error| {
            self.check_owned()?;
            Err(error)
        })
    }
}
