//! Time as a value. Nothing in this crate reads a clock: a [`Now`] comes in with every command.

use std::{
    fmt,
    ops::Add,
    time::{Duration, SystemTime},
};

/// A length of time in whole milliseconds, the resolution of every deadline in Lockgate.
pub type Millis = u64;

/// Wall time: milliseconds since 1970-01-01T00:00:00Z. May step in either direction; used for due
/// times and retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub u64);

/// Machine time: milliseconds that never jump and never go back, also across a restart of the
/// process. Logged with the effects; used for leases, backoff and dedup windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MachineTime(pub u64);

/// The two readings that come in with a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Now {
    /// The wall clock's reading.
    pub wall: WallTime,
    /// The machine clock's reading; never lower than in an earlier command.
    pub machine: MachineTime,
}

impl WallTime {
    /// The latest instant that can be expressed; used as "never".
    pub const MAX: Self = Self(u64::MAX);

    /// This instant moved forward, stopping at [`WallTime::MAX`].
    #[must_use]
    pub const fn plus(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// Milliseconds from `earlier` to this instant; zero if `earlier` is later (the clock stepped
    /// back between the two readings).
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        self.0.saturating_sub(earlier.0)
    }
}

/// A reading of the system's clock, in whole milliseconds; 0 for one before 1970.
impl From<SystemTime> for WallTime {
    fn from(time: SystemTime) -> Self {
        let span = time.duration_since(SystemTime::UNIX_EPOCH);
        let millis = span.map_or(0, |span| span.as_millis());
        Self(Millis::try_from(millis).unwrap_or(Millis::MAX))
    }
}

/// This instant moved forward, rounded up to whole milliseconds, stopping at [`WallTime::MAX`].
impl Add<Duration> for WallTime {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        let millis = span.as_micros().div_ceil(1_000);
        self.plus(Millis::try_from(millis).unwrap_or(Millis::MAX))
    }
}

impl MachineTime {
    /// The latest instant that can be expressed; used as "never".
    pub const MAX: Self = Self(u64::MAX);

    /// This instant moved forward, stopping at [`MachineTime::MAX`].
    #[must_use]
    pub const fn plus(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// Milliseconds from `earlier` to this instant; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms since 1970", self.0)
    }
}

impl fmt::Display for MachineTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms of machine time", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_comes_from_the_systems_and_never_ends_early() {
        let second = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        assert_eq!(WallTime::from(second), WallTime(1_000));
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(WallTime::from(before), WallTime(0));
        let soon = WallTime(5) + Duration::from_micros(1_001);
        assert_eq!(soon, WallTime(7), "a span is rounded up");
        assert_eq!(WallTime(5) + Duration::MAX, WallTime::MAX);
    }
}
