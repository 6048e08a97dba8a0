//! What a schedule does whose time has come.

use lockgate_core::{CatchUp, Millis, Timing, WallTime};

use crate::{
    Calendar, TimingError,
    calendar::{Passed, TIMES_MAX},
};

/// A schedule whose time has come.
#[derive(Clone, Copy, Debug)]
pub struct Due<'a> {
    /// When it fires.
    pub timing: &'a Timing,
    /// A time of its series, for [`Timing::Every`] without one.
    pub anchor: WallTime,
    /// What becomes of missed times.
    pub catch_up: CatchUp,
    /// A time to which it comes later than this is missed.
    pub late_max: Millis,
    /// The time that has come.
    pub next: WallTime,
    /// The time for which `next` stands in.
    pub planned: Option<WallTime>,
    /// Whether it was due in time and had to wait: then `next` is not missed.
    pub waited: bool,
}

/// What a schedule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The time for which it fires. `None`: for none.
    pub fires: Option<WallTime>,
    /// How many times pass without a firing.
    pub missed: u64,
    /// Its next time. It may have come too: then there is another step. `None`: there is none.
    pub next: Option<WallTime>,
}

/// What a schedule does at `now`. `None`: nothing, its time has not come.
///
/// Looks at a bounded number of times: after many missed ones, some steps only pass a thousand each.
///
/// # Errors
/// If the timing is none, such as a time zone that this machine does not know.
pub fn plan(due: &Due<'_>, now: WallTime) -> Result<Option<Planned>, TimingError> {
    if now < due.next {
        return Ok(None);
    }
    let calendar = Calendar::new(due.timing, due.anchor)?;
    // A time that was moved stands in for another one, which does not come again.
    let behind = due
        .planned
        .map_or(due.next, |planned| planned.max(due.next));
    let is_missed = !due.waited && now.since(due.next) > due.late_max;
    let fires_now = Planned {
        fires: Some(due.next),
        missed: 0,
        next: calendar.next_after(behind),
    };
    Ok(Some(match due.catch_up {
        CatchUp::Once if is_missed => {
            let Passed { count, last, next } = calendar.passed(behind, now);
            match last {
                None => fires_now,
                // There are more: the last of these may be the last one.
                Some(last) if count == TIMES_MAX && next.is_some_and(|next| next <= now) => {
                    Planned {
                        fires: None,
                        missed: count,
                        next: Some(last),
                    }
                }
                Some(last) => Planned {
                    fires: Some(last),
                    missed: count,
                    next,
                },
            }
        }
        CatchUp::Skip if is_missed => {
            let last_missed = WallTime((now.0 - due.late_max).saturating_sub(1));
            let Passed { count, next, .. } = calendar.passed(behind, last_missed);
            Planned {
                fires: None,
                missed: 1 + count,
                next,
            }
        }
        CatchUp::Skip | CatchUp::Once | CatchUp::All => fires_now,
    }))
}
