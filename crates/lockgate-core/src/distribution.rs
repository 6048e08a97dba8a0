//! How long things take, in a few ranges.

use crate::Millis;

/// How many bounds a distribution has.
const BOUNDS: usize = 16;

/// How often spans of time were in each of a few ranges: the numbers behind a histogram.
///
/// ```
/// use lockgate_core::Distribution;
///
/// let mut syncs = Distribution::SHORT;
/// syncs.record_micros(700);
/// syncs.record_micros(30_000_000);
/// assert_eq!((syncs.count(), syncs.sum_micros()), (2, 30_000_700));
/// let up_to_a_millisecond: u64 = syncs.ranges().take_while(|(bound, _)| *bound <= 1_000).map(|(_, count)| count).sum();
/// assert_eq!(up_to_a_millisecond, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// In microseconds, rising.
    bounds: &'static [u64; BOUNDS],
    /// One more than there are bounds: the last one is of what exceeds them all.
    counts: [u64; BOUNDS + 1],
    sum: u64,
}

impl Distribution {
    /// Empty, with bounds of 0.1 ms to 10 s: for requests, writes and syncs.
    pub const SHORT: Self = Self::empty(&[
        100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
        1_000_000, 2_500_000, 5_000_000, 10_000_000,
    ]);

    /// Empty, with bounds of 1 ms to a day: for the age of messages and the time they are held.
    pub const LONG: Self = Self::empty(&[
        1_000,
        5_000,
        10_000,
        50_000,
        100_000,
        500_000,
        1_000_000,
        5_000_000,
        10_000_000,
        30_000_000,
        60_000_000,
        300_000_000,
        900_000_000,
        3_600_000_000,
        21_600_000_000,
        86_400_000_000,
    ]);

    const fn empty(bounds: &'static [u64; BOUNDS]) -> Self {
        Self {
            bounds,
            counts: [0; BOUNDS + 1],
            sum: 0,
        }
    }

    /// Adds a span of so many microseconds.
    pub fn record_micros(&mut self, micros: u64) {
        let range = self.bounds.iter().position(|bound| micros <= *bound);
        self.counts[range.unwrap_or(BOUNDS)] += 1;
        self.sum = self.sum.saturating_add(micros);
    }

    /// Adds a span of so many milliseconds.
    pub fn record(&mut self, span: Millis) {
        self.record_micros(span.saturating_mul(1_000));
    }

    /// How many spans there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All spans together, in microseconds.
    #[must_use]
    pub fn sum_micros(&self) -> u64 {
        self.sum
    }

    /// Each bound in microseconds, and how many spans were not longer and longer than the bound before; in the end `u64::MAX` with
    /// those that were longer than all bounds.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let bounds = self.bounds.iter().copied().chain([u64::MAX]);
        bounds.zip(self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_counts_in_the_first_range_that_holds_it() {
        let mut spans = Distribution::LONG;
        for span in [0, 1, 2, 86_400_000, 86_400_001, Millis::MAX] {
            spans.record(span);
        }
        let ranges: Vec<_> = spans.ranges().filter(|(_, count)| *count > 0).collect();
        assert_eq!(
            ranges,
            [(1_000, 2), (5_000, 1), (86_400_000_000, 1), (u64::MAX, 2)]
        );
        assert_eq!((spans.count(), spans.sum_micros()), (6, u64::MAX));
    }

    #[test]
    fn bounds_rise() {
        for spans in [Distribution::SHORT, Distribution::LONG] {
            assert!(
                spans
                    .ranges()
                    .map(|(bound, _)| bound)
                    .is_sorted_by(|a, b| a < b)
            );
        }
    }
}
