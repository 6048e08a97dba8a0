//! Finds out whether connections keep their sessions. Through a pooler that gives each transaction
//! whichever session is free, settings and locks of a session end up with somebody else.

use crate::{
    options::OpenError,
    session::{Failure, Session},
};

/// Marks the session as nobody else marks one.
pub(crate) const MARK: &str = "SELECT set_config('lockgate.session', pg_backend_pid() || ' ' || clock_timestamp() || ' ' || random(), false)";

pub(crate) const LOOK: &str = "SELECT current_setting('lockgate.session', true)";

/// Makes sure that each of two connections has a session of its own.
///
/// A pooler that shares them has the second connection find the mark of the first, whose session is the free one
/// that was used last. One that takes them in turn, or resets them, has the first lose its mark while the
/// second is in a transaction.
///
/// # Errors
/// [`OpenError::Pooled`] if not.
pub(crate) fn check_sessions(first: &Session, second: &Session) -> Result<(), OpenError> {
    let failed = |failure: Failure| failure.while_doing("looking for a pooler");
    let mark = first.tell(MARK).map_err(failed)?;
    second.batch("BEGIN").map_err(failed)?;
    let seen = second.tell(LOOK).map_err(failed)?;
    let kept = first.tell(LOOK).map_err(failed)?;
    second.batch("ROLLBACK").map_err(failed)?;
    if mark.is_none() || seen == mark || kept != mark {
        return Err(OpenError::Pooled);
    }
    Ok(())
}
