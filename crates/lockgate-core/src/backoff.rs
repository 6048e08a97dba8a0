//! How long a failed message waits.

use crate::Millis;

/// Waits that double: the first, twice the first, and so on up to the longest. Each is drawn between
/// its half and itself, so that messages which failed together do not come back together ("equal
/// jitter": Marc Brooker, *Exponential Backoff and Jitter*, AWS Architecture Blog, 2015).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first attempt, in milliseconds. Default: 1,000.
    pub first: Millis,
    /// The longest wait, in milliseconds. Default: 300,000.
    pub max: Millis,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: 1_000,
            max: 300_000,
        }
    }
}

impl Backoff {
    /// The wait after this attempt, counted from 1. `random` is any number, each equally likely.
    #[must_use]
    pub fn after(&self, attempt: u32, random: u64) -> Millis {
        let doublings = attempt.saturating_sub(1);
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let longest = self.first.saturating_mul(factor).min(self.max);
        let half = longest / 2;
        // As many outcomes as there are milliseconds in the other half, its end included.
        half + random % (longest - half + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_are_drawn_from_the_upper_half() {
        let backoff = Backoff {
            first: 100,
            max: 1_000,
        };
        let bounds = |attempt| {
            let drawn = (0..2_000).map(|random| backoff.after(attempt, random));
            (drawn.clone().min().unwrap(), drawn.max().unwrap())
        };
        assert_eq!(bounds(1), (50, 100));
        assert_eq!(bounds(2), (100, 200));
        assert_eq!(bounds(4), (400, 800));
        assert_eq!(bounds(5), (500, 1_000));
        assert_eq!(bounds(u32::MAX), (500, 1_000));
        let none = Backoff { first: 0, max: 0 };
        assert_eq!(none.after(3, 7), 0);
    }
}
