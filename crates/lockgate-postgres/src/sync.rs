//! Making durable what was appended.

use std::sync::Arc;

use lockgate_core::{Level, LogError, LogSync, Position};
use tokio_postgres::Row;

use crate::{
    session::Session,
    shared::{Fence, Handle, to_database},
};

/// Commits something, and waits until it is flushed; the server's own log is flushed in order, so
/// everything before it is. The row of the shard itself is only read: appends must not wait for its
/// lock. It tells whether what was appended is still there: a server that was restarted meanwhile
/// may have lost it, and then somewhere else must not be told that it is durable.
///
/// The setting it is committed with is looked at, because a pooler may have had another session run it.
const SYNC: &str = "
    UPDATE lockgate.durable SET position = greatest(position, $4)
    WHERE shard = $1 AND EXISTS (
        SELECT FROM lockgate.shard
        WHERE id = $1 AND claim = $2 AND epoch = $3 AND tail >= $4
    )
    RETURNING current_setting('synchronous_commit')";

const STANDBYS: &str = "
    SELECT 1 WHERE coalesce(current_setting('synchronous_standby_names', true), '') <> ''";

pub(crate) struct Syncer {
    pub(crate) shared: Handle,
    pub(crate) session: Arc<Session>,
    pub(crate) level: Level,
}

impl LogSync for Syncer {
    fn sync(&self) -> Result<Position, LogError> {
        self.shared.check_running()?;
        let tail = self.shared.appended();
        if tail == self.shared.durable() {
            return Ok(tail);
        }
        let Some(fence) = self.shared.fence.get() else {
            return Err(LogError::Unsupported {
                what: "sync before an epoch was begun",
            });
        };
        self.flush(*fence, tail)
            .map_err(|error| self.shared.stop(error))?;
        self.shared.set_durable(tail);
        Ok(tail)
    }
}

impl Syncer {
    fn flush(&self, fence: Fence, tail: Position) -> Result<(), LogError> {
        let failed = |failure: crate::session::Failure| failure.while_doing("syncing the log");
        let Fence { claim, epoch } = fence;
        let parameters: crate::session::Parameters<'_> =
            &[&self.shared.shard, &claim, &epoch, &to_database(tail.0)];
        let session = &self.session;
        session.take_warning();
        let Some(row) = session.query_opt(SYNC, parameters).map_err(failed)? else {
            return Err(LogError::Stopped {
                reason: "another instance has taken the shard over, or the server lost what was \
                         not synced"
                    .to_owned(),
            });
        };
        check_commit(&row)?;
        if self.level == Level::Replicated {
            check_replicated(session)?;
        }
        Ok(())
    }
}

/// After a commit that returned `synchronous_commit`: that it was flushed, as the session asked for.
pub(crate) fn check_commit(row: &Row) -> Result<(), LogError> {
    match row.get::<_, &str>(0) {
        "on" => Ok(()),
        other => Err(LogError::Stopped {
            reason: format!(
                "a commit was not flushed: synchronous_commit was {other}, which this session had set \
                 to on; a pooler before the database must be in session mode"
            ),
        }),
    }
}

/// After a commit: that it was waited for by a standby.
///
/// # Errors
/// If no standby counts any more, or the server gave the wait up; it says so in a warning only.
pub(crate) fn check_replicated(session: &Session) -> Result<(), LogError> {
    let failed = |failure: crate::session::Failure| failure.while_doing("looking for standbys");
    let reason = if let Some(warning) = session.take_warning() {
        format!("a commit was not replicated: {warning}")
    } else if session.query_opt(STANDBYS, &[]).map_err(failed)?.is_none() {
        "a commit was not replicated: synchronous_standby_names is empty".to_owned()
    } else {
        return Ok(());
    };
    Err(LogError::Stopped { reason })
}
