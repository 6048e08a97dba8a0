//! Deleting what was released, a little at a time.

use lockgate_core::{LogError, LogUpkeep};

use crate::{
    session::Failure,
    shared::{Handle, from_database, to_database},
};

/// Deletes the first rows of a released range; on a server that holds everything that was appended
/// before it was released, and with it what was moved out of it.
const DELETE: &str = "
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
const ROWS: i64 = 1_000;

pub(crate) struct Upkeep(pub(crate) Handle);

impl LogUpkeep for Upkeep {
    fn step(&self) -> Result<bool, LogError> {
        let shared = &self.0;
        let next = shared.space(|space| space.released.first_key_value().map(|(&a, &b)| (a, b)));
        let Some((first, stop)) = next else {
            return Ok(false);
        };
        let (from, to) = (to_database(first), to_database(stop));
        let deleted = shared
            .working
            .run("deleting what was released", |session| {
                let (claim, tail) = shared.held();
                session.execute(DELETE, &[&shared.shard, &from, &to, &ROWS, &claim, &tail])
            })?;
        if from_database(ROWS) > deleted {
            shared
                .working
                .run("deleting what was released", |session| {
                    let (claim, tail) = shared.held();
                    match session.execute(FORGET, &[&shared.shard, &from, &claim, &tail])? {
                        0 => Err(Failure::Elsewhere),
                        _ => Ok(()),
                    }
                })?;
            return Ok(shared.space(|space| {
                space.released.remove(&first);
                space
                    .ranges
                    .retain(|_, rows| rows.start < first || rows.end > stop);
                !space.released.is_empty()
            }));
        }
        Ok(true)
    }
}
