//! What time supplies to each member of a scope, as a number that only grows.
//!
//! The usual bucket keeps a time for each member: when it is full again. A change of the rate would have to
//! change all of them. Here a member keeps a number of units, and one supply for all members says to how many
//! units time has come: a change of the rate changes how fast the supply grows, and nothing else.

use super::Rate;
use crate::Millis;

/// Parts of a unit: a wait is exact to so small a part of the time that a unit takes.
const PARTS: u128 = 1 << 20;

pub(super) fn parts(units: u64) -> u128 {
    u128::from(units) * PARTS
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Supply {
    /// The last one there was, which goes on supplying when it was removed: what is owed runs off as it would have.
    rate: Option<Rate>,
    /// Parts supplied until then.
    since: Millis,
    supplied: u128,
}

impl Supply {
    pub(super) fn new(rate: Option<Rate>, now: Millis) -> Self {
        Self {
            rate,
            since: now,
            supplied: 0,
        }
    }

    pub(super) fn change(&mut self, before: Option<Rate>, rate: Option<Rate>, now: Millis) {
        // The same rate again loses no part of a unit.
        if before == rate || rate.is_none() {
            return;
        }
        self.supplied = self.at(now);
        self.since = now;
        self.rate = rate;
    }

    /// The rate that supplies.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    /// When this rate began.
    pub(super) fn since(&self) -> Millis {
        self.since
    }

    /// The most that somebody owes who has not started since the rate changed.
    pub(super) fn most_at_change(&self) -> u128 {
        let burst = self.rate.map_or(0, |rate| rate.burst);
        self.supplied.saturating_add(parts(burst))
    }

    /// What has been supplied by now.
    pub(super) fn at(&self, now: Millis) -> u128 {
        let Some(rate) = self.rate else {
            return self.supplied;
        };
        let passed = now.saturating_sub(self.since);
        let since = u128::from(passed) * parts(rate.units) / u128::from(rate.period);
        self.supplied.saturating_add(since)
    }

    /// What is left now of a charge that was made at `at`, if nothing was owed then.
    pub(super) fn owed_first(&self, cost: u64, at: Millis, now: Millis) -> u128 {
        let owed = self.at(at).saturating_add(parts(cost));
        owed.saturating_sub(self.at(now))
    }

    pub(super) fn saved(&self) -> [u64; 3] {
        #[expect(clippy::cast_possible_truncation, reason = "split into its halves")]
        let [low, high] = [self.supplied as u64, (self.supplied >> 64) as u64];
        [self.since, low, high]
    }

    pub(super) fn restored(rate: Option<Rate>, [since, low, high]: [u64; 3]) -> Self {
        Self {
            rate,
            since,
            supplied: u128::from(high) << 64 | u128::from(low),
        }
    }

    /// When that will have been supplied; never without a rate.
    pub(super) fn reaches(&self, target: u128) -> Millis {
        let missing = target.saturating_sub(self.supplied);
        if missing == 0 {
            return 0;
        }
        let Some(rate) = self.rate else {
            return Millis::MAX;
        };
        // More than any time is what a change of the rate made of a great debt.
        let takes = missing
            .saturating_mul(rate.period.into())
            .div_ceil(parts(rate.units));
        let takes = Millis::try_from(takes).unwrap_or(Millis::MAX);
        self.since.saturating_add(takes)
    }

    /// When a start of that cost may be, for a member that owes nothing once `owed` is supplied.
    pub(super) fn admits(&self, owed: u128, cost: u64, burst: u64) -> Millis {
        let credit = parts(burst.saturating_sub(cost));
        self.reaches(owed.saturating_sub(credit))
    }

    /// What a member owes after a start.
    pub(super) fn charge(&self, owed: u128, cost: u64, now: Millis) -> u128 {
        owed.max(self.at(now)).saturating_add(parts(cost))
    }
}
