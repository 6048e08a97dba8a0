//! How long calls took, in little memory however many there were.

use std::time::Duration;

/// Classes for each doubling of the time: a quantile is at most a 64th too long.
const FINE: u64 = 64;

/// Counts of calls by their time in microseconds.
#[derive(Default)]
pub(super) struct Times {
    /// Each microsecond is a class of its own below [`FINE`]; from there each doubling has as many.
    counts: Vec<u64>,
    longest: Duration,
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let class = class(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.longest = self.longest.max(time);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (all, part) in self.counts.iter_mut().zip(&other.counts) {
            *all += part;
        }
        self.longest = self.longest.max(other.longest);
    }

    /// What so many of 1,000 calls did not exceed; zero if there were none.
    pub(super) fn quantile(&self, permille: u64) -> Duration {
        let total: u64 = self.counts.iter().sum();
        let wanted = (total * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (class, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_micros(longest_of(class)).min(self.longest);
            }
        }
        self.longest
    }
}

fn class(micros: u64) -> usize {
    let class = if micros < FINE {
        micros
    } else {
        let shift = u64::from(micros.ilog2() - FINE.ilog2());
        shift * FINE + (micros >> shift)
    };
    usize::try_from(class).unwrap_or(usize::MAX)
}

/// The longest time of a class, in microseconds.
fn longest_of(class: usize) -> u64 {
    let class = class as u64;
    if class < FINE {
        return class;
    }
    let shift = class / FINE - 1;
    let next = u128::from(class - shift * FINE + 1) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_a_64th_too_long() {
        let mut times = Times::default();
        assert_eq!(times.quantile(500), Duration::ZERO);
        let (mut low, mut high) = (Times::default(), Times::default());
        for millis in 1..=1000 {
            let half = if millis <= 500 { &mut low } else { &mut high };
            half.add(Duration::from_millis(millis));
        }
        times.merge(&high);
        times.merge(&low);
        for permille in [1, 10, 500, 900, 990] {
            let exact = Duration::from_millis(permille);
            let found = times.quantile(permille);
            assert!(
                exact <= found && found <= exact + exact / 64,
                "{permille}: {found:?}"
            );
        }
        assert_eq!(times.quantile(1000), Duration::from_secs(1));
    }

    #[test]
    fn classes_follow_one_another_without_gap() {
        assert_eq!(class(0), 0);
        for class_number in 0..class(u64::MAX) {
            let longest = longest_of(class_number);
            assert_eq!(class(longest), class_number);
            assert_eq!(class(longest + 1), class_number + 1);
        }
        assert_eq!(longest_of(class(u64::MAX)), u64::MAX);
    }
}
