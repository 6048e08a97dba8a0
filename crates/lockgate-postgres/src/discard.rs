//! Taking a shard back that was filled in half.

use lockgate_core::LogError;

use crate::{
    log_maintenance::{DELETE, ROWS},
    shared::{Handle, from_database},
};

/// Fences whoever still appends to it.
const CLAIM: &str = "
    UPDATE lockgate.shard SET claim = claim + 1 + floor(random() * 4294967296)::bigint
    WHERE id = $1 AND claim = $2
    RETURNING claim";

/// Takes the rows of all tables that refer to it along.
const DELETE_SHARD: &str = "DELETE FROM lockgate.shard WHERE id = $1 AND claim = $2";

/// Removes the shard of a log. [`PostgresLog::discard`](crate::PostgresLog::discard) makes one.
pub struct Discard(pub(crate) Handle);

impl Discard {
    /// Removes the shard with everything in it, if it still belongs to that log. Ends the log if it
    /// is still in use. It blocks until everything is deleted.
    ///
    /// # Errors
    /// If another instance has taken the shard over, which then keeps it; if the log never
    /// recovered; or if the database fails, which may have deleted a part by then.
    pub fn run(self) -> Result<(), LogError> {
        let shared = &*self.0;
        let shard = &shared.shard;
        let what = "removing the shard";
        let (claim, _) = shared.held();
        let row = shared
            .working
            .run(what, |session| session.query_opt(CLAIM, &[shard, &claim]))?;
        let claim: i64 = row.ok_or_else(|| shared.deposed())?.get(0);
        loop {
            let deleted = shared.working.run(what, |session| {
                session.execute(DELETE, &[shard, &0_i64, &i64::MAX, &ROWS, &claim, &0_i64])
            })?;
            if deleted < from_database(ROWS) {
                break;
            }
        }
        let removed = shared.working.run(what, |session| {
            session.execute(DELETE_SHARD, &[shard, &claim])
        })?;
        match removed {
            0 => Err(shared.deposed()),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for Discard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Discard").field(&self.0.shard).finish()
    }
}
