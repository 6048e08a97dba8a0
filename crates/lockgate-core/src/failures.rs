//! What is kept of a message's failed attempts.

use std::sync::Arc;

use crate::WallTime;

/// The longest reason of a nack or a reject, in bytes.
pub const REASON_BYTES_MAX: usize = 1_024;

/// A reason of any length, or as much of its beginning as a queue keeps, with a sign that there was more.
#[must_use]
pub fn cut_reason(reason: Arc<str>) -> Arc<str> {
    const MORE: &str = "\u{2026}";
    if reason.len() <= REASON_BYTES_MAX {
        return reason;
    }
    let end = reason.floor_char_boundary(REASON_BYTES_MAX - MORE.len());
    format!("{}{MORE}", &reason[..end]).into()
}

/// An attempt at a message that failed with a reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Which attempt it was, from 1. Attempts begin at 1 again where the message is moved.
    pub attempt: u32,
    /// When it failed.
    pub at: WallTime,
    /// The reason.
    pub error: Arc<str>,
}

/// The failures of a message, in their order: the first one and the latest ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    kept: Vec<FailedAttempt>,
    left_out: u64,
}

impl Failures {
    /// How many failures are kept of a message.
    pub const MAX: usize = 10;

    /// How many bytes the reasons of a message's failures may have together.
    pub const BYTES_MAX: usize = 4_096;

    /// These failures, and the number of those that were left out.
    #[must_use]
    pub fn new(kept: Vec<FailedAttempt>, left_out: u64) -> Self {
        Self { kept, left_out }
    }

    /// The failures that were kept, oldest first.
    #[must_use]
    pub fn kept(&self) -> &[FailedAttempt] {
        &self.kept
    }

    /// How many failures with a reason are not among them.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Adds the latest failure. Where they become too many or too long, those behind the first one are
    /// left out, oldest first: the first one mostly says what is wrong, and the latest ones whether it
    /// still is.
    pub fn add(&mut self, failure: FailedAttempt) {
        self.kept.push(failure);
        while self.kept.len() > Self::MAX || (self.bytes() > Self::BYTES_MAX && self.kept.len() > 1)
        {
            // Of two, the latest one stays.
            let out = usize::from(self.kept.len() > 2);
            self.kept.remove(out);
            self.leave_out();
        }
    }

    /// Counts a failure that is not kept.
    pub fn leave_out(&mut self) {
        self.left_out = self.left_out.saturating_add(1);
    }

    /// How many bytes the reasons have together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.kept.iter().map(|failure| failure.error.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(failures: impl IntoIterator<Item = usize>) -> Failures {
        let mut all = Failures::default();
        for (attempt, bytes) in (1..).zip(failures) {
            all.add(FailedAttempt {
                attempt,
                at: WallTime(u64::from(attempt)),
                error: "e".repeat(bytes).into(),
            });
        }
        all
    }

    fn attempts(failures: &Failures) -> Vec<u32> {
        let kept = failures.kept().iter();
        kept.map(|failure| failure.attempt).collect()
    }

    #[test]
    fn the_first_failure_and_the_latest_ones_are_kept() {
        let all = after([1; Failures::MAX]);
        assert_eq!(attempts(&all), (1..=10).collect::<Vec<_>>());
        assert_eq!(all.left_out(), 0);
        let all = after([1; Failures::MAX + 3]);
        assert_eq!(attempts(&all), [1, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
        assert_eq!(all.left_out(), 3);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let short: Arc<str> = "x".repeat(REASON_BYTES_MAX).into();
        assert_eq!(cut_reason(short.clone()), short);
        let cut = cut_reason("\u{e9}".repeat(1_000).into());
        assert!(
            cut.len() <= REASON_BYTES_MAX && cut.ends_with("\u{e9}\u{2026}"),
            "{cut}"
        );
    }

    #[test]
    fn long_reasons_are_fewer() {
        let all = after([REASON_BYTES_MAX; 6]);
        assert_eq!((attempts(&all), all.left_out()), (vec![1, 4, 5, 6], 2));
        // From elsewhere they may be longer than anybody may give them.
        let all = after([Failures::BYTES_MAX, 1, Failures::BYTES_MAX + 1]);
        assert_eq!((attempts(&all), all.left_out()), (vec![3], 2));
    }
}
