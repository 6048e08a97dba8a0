//! Fills a new shard. Nobody can open it until it is whole.

use std::{fmt, sync::Arc};

use lockgate_core::LogError;
use tokio_postgres::error::SqlState;

use crate::{
    discard::Discard,
    log::{PostgresLog, check_name},
    options::{OpenError, PostgresLogOptions},
    session::{Failure, Session},
    shared::Handle,
};

/// The first number of the advisory lock that whoever fills a shard holds for as long as it lives; the second is the
/// shard's.
const FILLING: i32 = 0x6669_6c6c;

const LOCK: &str = "SELECT pg_try_advisory_lock($1, $2)";

/// What it is called, to be asked when it is locked: it may have been finished just before.
const LOOK: &str = "SELECT name, claim FROM lockgate.shard WHERE id = $1";

const IS_NEW: &str = "
    SELECT 1 FROM lockgate.shard
    WHERE id = $1 AND epoch = 0 AND tail = 1
        AND NOT EXISTS (SELECT FROM lockgate.snapshot WHERE shard = $1)
        AND NOT EXISTS (SELECT FROM lockgate.record WHERE shard = $1)";

const IS_TAKEN: &str = "SELECT 1 FROM lockgate.shard WHERE name = $1 AND (epoch > 0 OR tail > 1)";

/// One that was opened and never used.
const REMOVE_NEW: &str = "
    DELETE FROM lockgate.shard WHERE name = $1 AND epoch = 0 AND tail = 1";

/// The first owner of what was filled cannot know of the leases that were given since it was read.
const FORGET_MARK: &str = "DELETE FROM lockgate.unsynced WHERE shard = $1";

const RENAME: &str = "UPDATE lockgate.shard SET name = $3 WHERE id = $1 AND claim = $2";

const HIDDEN_END: &str = ".lockgate-restore";

/// What a shard is called until it is whole. Nobody opens one of such a name.
pub(crate) fn hidden(shard: &str) -> String {
    format!(".{shard}{HIDDEN_END}")
}

pub(crate) fn is_hidden(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(HIDDEN_END)
}

impl PostgresLog {
    /// Opens a new shard to fill it. It gets the name `shard` only from [`Filling::finish`]. This
    /// first removes what an earlier filling of that name left unfinished.
    ///
    /// # Errors
    /// [`OpenError::NotNew`] if a shard of that name was ever used; it is not touched.
    /// [`OpenError::BeingFilled`] if somebody else is filling it. Otherwise as [`OpenError`] says.
    pub fn open_to_fill(
        url: &str,
        shard: &str,
        options: &PostgresLogOptions,
    ) -> Result<(Self, Filling), OpenError> {
        check_name(shard)?;
        let being_filled = || OpenError::BeingFilled {
            name: shard.to_owned(),
        };
        let failed = |failure: Failure| failure.while_doing("looking for what a restore left");
        let hidden = hidden(shard);
        loop {
            let log = Self::open_named(url, &hidden, options.clone())?;
            let (shared, session) = log.parts();
            let number = shared.shard;
            let ask = |sql, what: &(dyn tokio_postgres::types::ToSql + Sync)| {
                session.query_opt(sql, &[what]).map_err(failed)
            };
            let row = session.query_opt(LOCK, &[&FILLING, &number]);
            if !row.map_err(failed)?.is_some_and(|row| row.get(0)) {
                return Err(being_filled());
            }
            let Some(row) = ask(LOOK, &number)? else {
                continue;
            };
            if row.get::<_, &str>(0) != hidden {
                return Err(being_filled());
            }
            if ask(IS_NEW, &number)?.is_none() {
                shared.claimed(row.get(1));
                Discard(shared).run()?;
                continue;
            }
            let is_taken = ask(IS_TAKEN, &shard)?.is_some();
            let filling = Filling {
                name: shard.to_owned(),
                shared,
                session,
            };
            if is_taken {
                filling.discard()?;
                return Err(OpenError::NotNew {
                    name: shard.to_owned(),
                });
            }
            return Ok((log, filling));
        }
    }
}

/// A shard that is being filled, from [`PostgresLog::open_to_fill`]. While this value exists,
/// nobody else can fill the shard.
pub struct Filling {
    name: String,
    shared: Handle,
    session: Arc<Session>,
}

impl Filling {
    /// Gives the shard its name. Call it when the log is whole and synced. If it fails, nothing has
    /// ended: call [`discard`](Self::discard).
    ///
    /// # Errors
    /// [`OpenError::NotNew`] if somebody used a shard of that name meanwhile; or if the database
    /// fails.
    pub fn finish(&self) -> Result<(), OpenError> {
        let session = &self.session;
        let (claim, _) = self.shared.held();
        let rename = || {
            session.batch("BEGIN")?;
            session.execute(REMOVE_NEW, &[&self.name])?;
            session.execute(FORGET_MARK, &[&self.shared.shard])?;
            let renamed = session.execute(RENAME, &[&self.shared.shard, &claim, &self.name])?;
            session.batch("COMMIT")?;
            Ok(renamed)
        };
        match rename() {
            Ok(0) => Err(self.shared.deposed().into()),
            Ok(_) => Ok(()),
            Err(failure) => {
                // The transaction that failed is still open.
                let _ = session.batch("ROLLBACK");
                Err(match failure {
                    Failure::Postgres(error)
                        if error.code() == Some(&SqlState::UNIQUE_VIOLATION) =>
                    {
                        OpenError::NotNew {
                            name: self.name.clone(),
                        }
                    }
                    failure => failure.while_doing("naming the shard").into(),
                })
            }
        }
    }

    /// Removes the shard with everything in it. Ends the log if it is still in use. It blocks until
    /// everything is deleted.
    ///
    /// # Errors
    /// As [`Discard::run`].
    pub fn discard(self) -> Result<(), LogError> {
        Discard(self.shared.clone()).run()
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filling")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
