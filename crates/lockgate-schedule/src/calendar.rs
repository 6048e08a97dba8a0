//! The times of a timing.

use croner::{Cron, parser::CronParser};
use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};
use lockgate_core::{Millis, Timing, WallTime};

/// How many times [`Calendar::passed`] looks at, at most.
pub(crate) const TIMES_MAX: u64 = 1_000;

/// Why a timing is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimingError {
    /// The period is too short or too long.
    #[error(
        "a period has {} to {} milliseconds, and not {period}",
        Timing::PERIOD_MIN,
        Timing::PERIOD_MAX
    )]
    Period {
        /// The period.
        period: Millis,
    },
    /// The expression or the name of the zone is empty or too long.
    #[error("{what} has 1 to {} bytes, and not {len}", Timing::TEXT_BYTES_MAX)]
    Length {
        /// What it is.
        what: &'static str,
        /// Its length.
        len: usize,
    },
    /// There is no such time zone.
    #[error("there is no time zone {zone:?}: name one as Europe/Berlin or UTC")]
    Zone {
        /// The name.
        zone: String,
    },
    /// The expression cannot be read.
    #[error("cron expression {expression:?}: {reason}")]
    Cron {
        /// The expression.
        expression: String,
        /// What is wrong.
        reason: String,
    },
    /// No day is as the expression says.
    #[error("cron expression {expression:?} names no time that ever comes")]
    Never {
        /// The expression.
        expression: String,
    },
}

/// The times of a [`Timing`].
///
/// Each method takes a bounded time: a few microseconds, and some milliseconds for an expression whose next time is years away.
#[derive(Clone, Debug)]
pub struct Calendar(Times);

#[derive(Clone, Debug)]
enum Times {
    Once(WallTime),
    Every {
        period: Millis,
        from: WallTime,
    },
    Cron {
        cron: Box<Cron>,
        zone: TimeZone,
        /// Whether it names its times of day one by one, without a wildcard or step.
        is_fixed: bool,
    },
}

/// The times of a calendar in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// How many.
    pub(crate) count: u64,
    /// The last one of these.
    pub(crate) last: Option<WallTime>,
    /// The one behind it. Not later than the end of the stretch if there are more than [`TIMES_MAX`].
    pub(crate) next: Option<WallTime>,
}

impl Calendar {
    /// The times of that timing. At a fixed rate without a time of its own, `anchor` is the first one.
    ///
    /// # Errors
    /// If the timing is none. A cron expression that names no time after 1970 is one too.
    pub fn new(timing: &Timing, anchor: WallTime) -> Result<Self, TimingError> {
        Ok(Self(match timing {
            Timing::At(at) => Times::Once(*at),
            Timing::Every { period, from } => {
                let period = *period;
                if !(Timing::PERIOD_MIN..=Timing::PERIOD_MAX).contains(&period) {
                    return Err(TimingError::Period { period });
                }
                let from = from.unwrap_or(anchor);
                Times::Every { period, from }
            }
            Timing::Cron { expression, zone } => {
                for (what, text) in [("a cron expression", expression), ("a time zone", zone)] {
                    let len = text.len();
                    if len == 0 || len > Timing::TEXT_BYTES_MAX {
                        return Err(TimingError::Length { what, len });
                    }
                }
                let known = TimeZone::get(zone).ok();
                // These are another zone on another machine.
                let is_local = ["localtime", "posixrules"]
                    .iter()
                    .any(|local| zone.eq_ignore_ascii_case(local));
                let zone = known
                    .filter(|_| !is_local)
                    .ok_or_else(|| TimingError::Zone {
                        zone: zone.to_string(),
                    })?;
                let wrong = |reason: String| TimingError::Cron {
                    expression: expression.to_string(),
                    reason,
                };
                check_lists(expression).map_err(|what| wrong(what.to_owned()))?;
                let cron = CronParser::new().parse(expression);
                let cron = cron.map_err(|error| wrong(error.to_string()))?;
                let cron = Box::new(cron);
                let is_fixed = is_fixed(expression);
                let calendar = Times::Cron {
                    cron,
                    zone,
                    is_fixed,
                };
                if calendar.next_after(WallTime(0)).is_none() {
                    return Err(TimingError::Never {
                        expression: expression.to_string(),
                    });
                }
                calendar
            }
        }))
    }

    /// The first time of a schedule that is made now: of [`Timing::At`] the time itself, also if it has passed; at a fixed rate
    /// without a time of its own one period from now; else the first time after now. `None`: there is none.
    ///
    /// # Errors
    /// If the timing is none.
    pub fn first(timing: &Timing, now: WallTime) -> Result<Option<WallTime>, TimingError> {
        match timing {
            Timing::At(at) => Ok(Some(*at)),
            Timing::Every { period, from: None } => {
                let first = now.plus(*period);
                Self::new(timing, first).map(|_| Some(first))
            }
            Timing::Every { .. } | Timing::Cron { .. } => {
                Ok(Self::new(timing, now)?.next_after(now))
            }
        }
    }

    /// The first time that is later than `time`. `None`: there is none.
    #[must_use]
    pub fn next_after(&self, time: WallTime) -> Option<WallTime> {
        self.0.next_after(time)
    }

    /// The times after `time`, in order. May have no end.
    pub fn after(&self, time: WallTime) -> impl Iterator<Item = WallTime> {
        std::iter::successors(self.next_after(time), |time| self.next_after(*time))
    }

    /// The times after `after` and up to `end`; of an expression at most [`TIMES_MAX`].
    pub(crate) fn passed(&self, after: WallTime, end: WallTime) -> Passed {
        if let Times::Every { period, from } = &self.0 {
            let first = self.next_after(after);
            let Some(first) = first.filter(|first| *first <= end) else {
                let (count, last, next) = (0, None, first);
                return Passed { count, last, next };
            };
            let more = end.since(first) / period;
            let last = WallTime(first.0 + more * period);
            debug_assert!(last >= *from);
            return Passed {
                count: more + 1,
                last: Some(last),
                next: self.next_after(last),
            };
        }
        let mut passed = Passed {
            count: 0,
            last: None,
            next: self.next_after(after),
        };
        while let Some(next) = passed.next
            && next <= end
            && passed.count < TIMES_MAX
        {
            passed.count += 1;
            passed.last = Some(next);
            passed.next = self.next_after(next);
        }
        passed
    }
}

impl Times {
    fn next_after(&self, time: WallTime) -> Option<WallTime> {
        match self {
            Self::Once(at) => Some(*at).filter(|at| *at > time),
            Self::Every { from, .. } if time < *from => Some(*from),
            Self::Every { period, from } => {
                let periods = time.since(*from) / period + 1;
                let span = periods.checked_mul(*period)?;
                from.0.checked_add(span).map(WallTime)
            }
            Self::Cron {
                cron,
                zone,
                is_fixed,
            } => {
                // Its times are whole seconds, so those after a time are those after its second.
                let second = i64::try_from(time.0 / 1_000).ok()?;
                let from = Timestamp::from_second(second).ok()?;
                let next = if *is_fixed {
                    fixed_after(cron, zone, from)?
                } else {
                    let from = from.to_zoned(zone.clone());
                    let next = cron.find_next_occurrence(&from, false).ok()?;
                    next.timestamp()
                };
                let next = WallTime(u64::try_from(next.as_millisecond()).ok()?);
                // A time that does not rise would come for ever.
                (next > time).then_some(next)
            }
        }
    }
}

/// Refuses what `croner` passes over, and nobody means.
fn check_lists(expression: &str) -> Result<(), &'static str> {
    if expression.contains(char::is_control) {
        return Err("it is one line of text");
    }
    let mut items = expression
        .split_whitespace()
        .flat_map(|field| field.split(','));
    if items.any(str::is_empty) {
        return Err("a list has an empty item");
    }
    Ok(())
}

/// Whether the seconds, minutes and hours of an expression are lists of fixed ones.
fn is_fixed(expression: &str) -> bool {
    if expression.trim().eq_ignore_ascii_case("@hourly") {
        return false;
    }
    let fields = expression.split_whitespace().count();
    let of_time = if fields > 5 { 3 } else { 2 };
    let mut of_time = expression.split_whitespace().take(of_time);
    !of_time.any(|field| field.contains(['*', '?', '/']))
}

/// The first time after `from` of an expression of fixed times. `croner` takes a list of them for a rate: it would leave out those
/// that a zone's clock passes over, and repeat those that it shows twice. So it finds what the clock shows, and this finds when.
fn fixed_after(cron: &Cron, zone: &TimeZone, from: Timestamp) -> Option<Timestamp> {
    let second = SignedDuration::from_secs(1);
    let mut shown = zone.to_datetime(from);
    if let AmbiguousOffset::Fold { before, .. } = zone.to_ambiguous_timestamp(shown).offset()
        && before.to_timestamp(shown).ok()? < from
    {
        // The clock was set back and shows all this for the second time: on to the last second of it.
        let end = from.checked_add(second).ok()?;
        let set_back = zone.preceding(end).next()?.timestamp();
        shown = before.to_datetime(set_back).checked_sub(second).ok()?;
    }
    let shown = shown.to_zoned(TimeZone::UTC).ok()?;
    let next = cron.find_next_occurrence(&shown, false).ok()?;
    first_shown(zone, next.datetime())
}

/// When a zone's clock shows that for the first time, or is set forward over it.
fn first_shown(zone: &TimeZone, shown: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(shown).offset() {
        AmbiguousOffset::Unambiguous { offset: before } | AmbiguousOffset::Fold { before, .. } => {
            before.to_timestamp(shown).ok()
        }
        AmbiguousOffset::Gap { before, after } => {
            let behind = before.to_timestamp(shown).ok()?;
            let set_forward = zone.following(after.to_timestamp(shown).ok()?).next();
            let set_forward = set_forward.map(|change| change.timestamp());
            Some(set_forward.map_or(behind, |change| change.min(behind)))
        }
    }
}
