//! Making durable what was appended.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lockgate_core::{AppendError, Level, LogError, LogProgress, Position, Progress, Watcher};
use tokio_postgres::Row;

use crate::{
    log::HEAD,
    pipeline::Pipeline,
    session::{Failure, Session},
    shared::{Broken, Fence, Handle, to_database},
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
    RETURNING current_setting('synchronous_commit'), pg_current_wal_insert_lsn()::text";

/// The setting, and how many of the standbys that count for it have flushed what lies before a place in the
/// server's own log.
const FLUSHED: &str = "
    SELECT coalesce(current_setting('synchronous_standby_names', true), ''),
           count(*) FILTER (
               WHERE sync_state IN ('sync', 'quorum') AND flush_lsn >= $1::text::pg_lsn
           )
    FROM pg_stat_replication";

/// Commits something behind what was committed before; returns a place between the two.
const MARK: &str = "
    UPDATE lockgate.durable SET position = position
    WHERE shard = $1
    RETURNING current_setting('synchronous_commit'), pg_current_wal_insert_lsn()::text";

/// How often it asks for standbys that are not there yet.
const POLL: Duration = Duration::from_millis(5);

/// Waits until the appends of these turns are committed: the first of them is on its way, or was committed.
const TURNS: &str =
    "SELECT count(pg_advisory_xact_lock_shared(turn)) FROM generate_series($1::bigint, $2) AS turn";

/// The progress handle of a log.
#[derive(Clone)]
pub(crate) struct Syncing {
    pub(crate) shared: Handle,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) level: Level,
}

impl LogProgress for Syncing {
    fn now(&self) -> Progress {
        self.shared.progress()
    }

    fn failure(&self) -> Option<AppendError> {
        self.shared.failure()
    }

    fn start_sync(&self) -> Result<(), LogError> {
        self.shared.check_running()?;
        let tail = self.shared.submitted();
        if tail <= self.shared.durable() {
            return Ok(());
        }
        let Some(&fence) = self.shared.fence.get() else {
            return Err(LogError::Unsupported {
                what: "sync before an epoch was begun",
            });
        };
        let send = || -> Result<(), Failure> {
            let session = self.pipeline.session();
            let turns = self.shared.turns_in_flight();
            if !turns.is_empty() {
                let [first, last] = [*turns.start(), *turns.end()].map(|turn| fence.turn(turn));
                let waiting = session.querying(TURNS, vec![Box::new(first), Box::new(last)])?;
                // Should that have failed, the sync finds another tail.
                self.pipeline.send(waiting, |_| true, drop);
            }
            let asking = session.querying(
                SYNC,
                vec![
                    Box::new(self.shared.shard),
                    Box::new(fence.claim),
                    Box::new(fence.epoch),
                    Box::new(to_database(tail.0)),
                ],
            )?;
            let is_quick: fn(&Option<Row>) -> bool = match self.level {
                Level::Replicated => |_| false,
                _ => |row| row.as_ref().is_some_and(|row| check_commit(row).is_ok()),
            };
            let syncing = self.clone();
            session.take_warning();
            self.pipeline.send(asking, is_quick, move |answer| {
                match syncing.judge(fence, tail, answer) {
                    Ok(()) => syncing.shared.set_durable(tail),
                    Err(error) => drop(syncing.shared.stop(error)),
                }
            });
            Ok(())
        };
        send().map_err(|failure| self.shared.stop(failure.while_doing(WHAT)))
    }

    fn sync(&self) -> Result<Position, LogError> {
        let tail = self.shared.submitted();
        self.start_sync()?;
        self.shared
            .wait_until(|_| self.shared.durable() >= tail || self.shared.has_stopped());
        let durable = self.shared.durable();
        if durable < tail {
            self.shared.check_running()?;
        }
        Ok(durable)
    }

    fn wait_written(&self, position: Position) -> Result<(), AppendError> {
        self.shared
            .wait_until(|_| self.shared.written() >= position || self.shared.has_stopped());
        if self.shared.written() >= position {
            return Ok(());
        }
        self.failure().map_or(Ok(()), Err)
    }

    fn watch(&self, watcher: Watcher) {
        self.shared.watch(watcher);
    }
}

const WHAT: &str = "syncing the log";

impl Syncing {
    /// What a sync came to.
    fn judge(
        &self,
        fence: Fence,
        tail: Position,
        answer: Result<Option<Row>, Failure>,
    ) -> Result<(), LogError> {
        let session = self.pipeline.session();
        let failed = |failure: Failure| failure.while_doing(WHAT);
        let mut row = answer.map_err(failed)?;
        if row.is_none() {
            // An append that was refused says it better.
            if self.wait_written(tail).is_err() {
                return self.shared.check_running();
            }
            // It may not have waited for that append.
            let parameters: crate::session::Parameters<'_> = &[
                &self.shared.shard,
                &fence.claim,
                &fence.epoch,
                &to_database(tail.0),
            ];
            row = session.query_opt(SYNC, parameters).map_err(failed)?;
        }
        let Some(row) = row else {
            let head = session.query_opt(HEAD, &[&self.shared.shard]);
            let head = head.map_err(failed)?;
            let is_ours =
                head.is_some_and(|head| (head.get(0), head.get(1)) == (fence.claim, fence.epoch));
            if !is_ours {
                return Err(self.shared.deposed());
            }
            return Err(Broken::Lost.into());
        };
        check_commit(&row)?;
        if self.level == Level::Replicated {
            // Everything up to the tail was committed before that place.
            check_replicated(session, row.get(1))?;
        }
        Ok(())
    }
}

/// After a commit that returned `synchronous_commit`: that it was flushed, as the session asked for.
pub(crate) fn check_commit(row: &Row) -> Result<(), LogError> {
    match row.get::<_, &str>(0) {
        "on" => Ok(()),
        other => Err(Broken::NotFlushed {
            setting: other.to_owned(),
        }
        .into()),
    }
}

/// That everything committed on this session so far has been flushed by the standbys that count.
///
/// # Errors
/// As [`check_replicated`].
pub(crate) fn check_all_replicated(session: &Session, shard: i32) -> Result<(), LogError> {
    let failed = |failure: Failure| failure.while_doing("looking for standbys");
    session.take_warning();
    let row = session.query_opt(MARK, &[&shard]).map_err(failed)?;
    let row = row.ok_or(Broken::NoShard)?;
    check_commit(&row)?;
    check_replicated(session, row.get(1))
}

/// After a commit: that everything before `lsn`, a place before that commit, has been flushed by as many standbys as the server's
/// setting asks for.
///
/// It is not enough that the server waits for them. A commit waits if the server's checkpointer has found
/// `synchronous_standby_names` set, and the checkpointer takes notice of a change when it comes to it: one
/// that was just emptied and set again, or a server that has just started, lets commits pass for a while although
/// every session sees the setting. So the positions of the standbys are looked at; if they are not there yet,
/// they are waited for.
///
/// # Errors
/// If no standby counts any more, or the server gave the wait up, which it says in a warning only; or if the
/// standbys do not come so far in time.
pub(crate) fn check_replicated(session: &Session, lsn: &str) -> Result<(), LogError> {
    let failed = |failure: Failure| failure.while_doing("looking how far the standbys are");
    if let Some(warning) = session.take_warning() {
        return Err(Broken::NotReplicated { warning }.into());
    }
    let deadline = Instant::now() + session.timeout();
    loop {
        let row = session.query_opt(FLUSHED, &[&lsn]).map_err(failed)?;
        let (names, flushed): (String, i64) =
            row.map_or_else(Default::default, |row| (row.get(0), row.get(1)));
        if names.is_empty() {
            return Err(Broken::NoStandbys.into());
        }
        if flushed >= standbys_needed(&names) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(failed(Failure::LateForStandbys {
                after: session.timeout(),
                standbys: names,
            }));
        }
        thread::sleep(POLL);
    }
}

/// How many standbys a commit waits for, by `synchronous_standby_names`: `2 (a, b, c)`, `FIRST 2 (...)` and
/// `ANY 2 (...)` say it, a mere list means one.
fn standbys_needed(names: &str) -> i64 {
    let names = names.trim().to_ascii_lowercase();
    let method = ["first", "any"].iter().find_map(|word| {
        let rest = names.strip_prefix(word)?;
        rest.starts_with(char::is_whitespace).then_some(rest)
    });
    let said = method.unwrap_or(&names).split_once('(');
    said.and_then(|(number, _)| number.trim().parse().ok())
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::standbys_needed;

    #[test]
    fn the_number_of_standbys_is_read_as_the_server_reads_it() {
        for (names, needed) in [
            ("standby", 1),
            ("*", 1),
            ("a, b", 1),
            ("2 (a, b, c)", 2),
            ("2(a,b)", 2),
            ("FIRST 3 (a, b, c)", 3),
            (" any 2 (\"x (2)\", b) ", 2),
            ("first, any", 1),
            ("firsts, b", 1),
        ] {
            assert_eq!(standbys_needed(names), needed, "{names}");
        }
    }
}
