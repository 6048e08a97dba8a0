//! Limits as people write them: `10/s per key`, `100/s + 10/s burst 20 per key`, `3`, `200ms per key`.

use std::{fmt, num::NonZeroU32, str::FromStr};

use thiserror::Error;

use super::{Limits, PERIOD_MAX, Rate};
use crate::{Millis, units};

/// A limit of all members of a scope together, such as a queue, and one of each member, such as a key.
///
/// As text, the one, the other, or both joined by `+`; each member's ends in `per key`. The text of a limit itself
/// is `10/s` for a [`Rate`], where the period is any [time](units::millis) and a lone unit is one of it, and
/// `burst 20` may follow; a number for a concurrency; a time for a [`Gap`].
///
/// ```
/// use lockgate_core::limits::{Rate, Scoped};
///
/// let limit: Scoped<Rate> = "100/s + 10/m burst 2 per key".parse().unwrap();
/// assert_eq!(limit.queue.unwrap().units(), 100);
/// assert_eq!(limit.key.unwrap().period(), 60_000);
/// assert_eq!(limit.to_string(), "100/s + 10/m burst 2 per key");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scoped<T> {
    /// Of all members together; `None`: no limit.
    pub queue: Option<T>,
    /// Of each member; `None`: no limit.
    pub key: Option<T>,
}

/// The least time from one start to the next, in milliseconds: 1 to [`PERIOD_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap(Millis);

/// A text that is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it is not written as a limit is")]
pub struct LimitTextError;

impl Gap {
    /// `None`: out of range.
    #[must_use]
    pub fn new(gap: Millis) -> Option<Self> {
        (1..=PERIOD_MAX).contains(&gap).then_some(Self(gap))
    }

    /// The time, in milliseconds.
    #[must_use]
    pub fn get(self) -> Millis {
        self.0
    }
}

impl<T> Scoped<T> {
    /// No limit.
    pub const NONE: Self = Self {
        queue: None,
        key: None,
    };

    /// Whether there is no limit.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.queue.is_none() && self.key.is_none()
    }
}

impl Scoped<Limits> {
    /// The limits of both scopes that these say.
    #[must_use]
    pub fn of(rate: Scoped<Rate>, concurrency: Scoped<NonZeroU32>, gap: Scoped<Gap>) -> Self {
        let limits = |rate, concurrency: Option<NonZeroU32>, gap: Option<Gap>| {
            let limits = Limits {
                rate,
                concurrency: concurrency.map(NonZeroU32::get),
                gap: gap.map(Gap::get),
                window: None,
            };
            (limits != Limits::default()).then_some(limits)
        };
        Self {
            queue: limits(rate.queue, concurrency.queue, gap.queue),
            key: limits(rate.key, concurrency.key, gap.key),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Scoped<T> {
    /// Without a limit, `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.queue, &self.key) {
            (None, None) => f.write_str("none"),
            (Some(queue), None) => write!(f, "{queue}"),
            (None, Some(key)) => write!(f, "{key} per key"),
            (Some(queue), Some(key)) => write!(f, "{queue} + {key} per key"),
        }
    }
}

impl<T: FromStr> FromStr for Scoped<T> {
    type Err = LimitTextError;

    fn from_str(text: &str) -> Result<Self, LimitTextError> {
        let mut limits = Self::NONE;
        for part in text.split('+') {
            let words: Vec<&str> = part.split_whitespace().collect();
            let (limit, place) = match &words[..] {
                [limit @ .., "per", "key"] => (limit, &mut limits.key),
                limit => (limit, &mut limits.queue),
            };
            let limit = limit.join(" ").parse().map_err(|_| LimitTextError)?;
            if place.replace(limit).is_some() {
                return Err(LimitTextError);
            }
        }
        Ok(limits)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = units::show_millis(self.period);
        let unit = period.strip_prefix('1');
        let unit = unit.filter(|unit| unit.chars().all(char::is_alphabetic));
        write!(f, "{}/{}", self.units, unit.unwrap_or(&period))?;
        match Self::new(self.units, self.period) {
            Ok(usual) if usual.burst == self.burst => Ok(()),
            _ => write!(f, " burst {}", self.burst),
        }
    }
}

impl FromStr for Rate {
    type Err = LimitTextError;

    fn from_str(text: &str) -> Result<Self, LimitTextError> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (rate, burst) = match words[..] {
            [rate] => (rate, None),
            [rate, "burst", burst] => (rate, Some(burst)),
            _ => return Err(LimitTextError),
        };
        let (units, period) = rate.split_once('/').ok_or(LimitTextError)?;
        let one = format!("1{period}");
        let is_unit = !period.starts_with(|first: char| first.is_ascii_digit());
        let period = units::millis(if is_unit { &one } else { period });
        let rate = Self::new(number(units)?, period.map_err(|_| LimitTextError)?);
        let rate = rate.map_err(|_| LimitTextError)?;
        match burst {
            Some(burst) => rate.with_burst(number(burst)?).map_err(|_| LimitTextError),
            None => Ok(rate),
        }
    }
}

/// Digits only: a sign would not read back as it is shown.
fn number(text: &str) -> Result<u64, LimitTextError> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().map_err(|_| LimitTextError),
        false => Err(LimitTextError),
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&units::show_millis(self.0))
    }
}

impl FromStr for Gap {
    type Err = LimitTextError;

    fn from_str(text: &str) -> Result<Self, LimitTextError> {
        let gap = units::millis(text).ok().and_then(Self::new);
        gap.ok_or(LimitTextError)
    }
}
