//! How the sink does: when it is left alone, how much may be tried again, and how long batches take.

use lockgate_core::{Backoff, Millis};

use crate::options::{Breaker, RetryBudget};

/// A token of the retry budget, in the parts in which it comes.
const TOKEN: u64 = 1_000;
/// How many seconds' worth of tokens may be saved.
const SAVED_SECONDS: u64 = 10;

#[derive(Clone, Debug)]
pub(super) struct Health {
    breaker: Breaker,
    backoff: Backoff,
    /// Batches in a row of which the sink took nothing.
    failures: u32,
    /// Nothing is sent before.
    until: Millis,
    budget: Budget,
    /// How long batches take, in thousandths of a millisecond: a moving average over about eight.
    latency: u64,
}

#[derive(Clone, Debug)]
struct Budget {
    per_second: u64,
    percent: u64,
    tokens: u64,
    counted: Millis,
}

impl Health {
    pub(super) fn new(
        breaker: Breaker,
        backoff: Backoff,
        budget: RetryBudget,
        now: Millis,
    ) -> Self {
        let per_second = u64::from(budget.per_second);
        Self {
            breaker,
            backoff,
            failures: 0,
            until: 0,
            budget: Budget {
                per_second,
                percent: budget.percent.into(),
                tokens: per_second * TOKEN * SAVED_SECONDS,
                counted: now,
            },
            latency: 0,
        }
    }

    /// Until when nothing is sent.
    pub(super) fn until(&self) -> Millis {
        self.until
    }

    /// Whether the breaker is open, or one batch tries whether it can close.
    pub(super) fn is_open(&self) -> bool {
        self.failures >= self.breaker.failures
    }

    pub(super) fn latency(&self) -> Millis {
        self.latency / 1_000
    }

    /// The sink took something of a batch, or refused it for what it is.
    pub(super) fn succeeded(&mut self, was_retry: bool, took: Millis) {
        self.failures = 0;
        self.until = 0;
        let took = took.saturating_mul(1_000);
        self.latency = match self.latency {
            0 => took,
            latency => latency - latency / 8 + took / 8,
        };
        let earned = TOKEN * self.budget.percent / 100;
        self.budget.add(earned + if was_retry { TOKEN } else { 0 });
    }

    /// The sink took nothing.
    pub(super) fn failed(&mut self, now: Millis, random: u64) {
        self.failures = self.failures.saturating_add(1);
        let wait = match self.failures.checked_sub(self.breaker.failures) {
            Some(beyond) => self.breaker.open.after(beyond.saturating_add(1), random),
            None => self.backoff.after(self.failures, random),
        };
        self.until = now.saturating_add(wait);
    }

    /// Takes a token for a batch with records that were sent before.
    ///
    /// # Errors
    /// When there will be one.
    pub(super) fn take_token(&mut self, now: Millis) -> Result<(), Millis> {
        let budget = &mut self.budget;
        let passed = now.saturating_sub(budget.counted);
        budget.counted = now;
        budget.add(passed.saturating_mul(budget.per_second * TOKEN / 1_000));
        if budget.tokens >= TOKEN {
            budget.tokens -= TOKEN;
            return Ok(());
        }
        let missing = TOKEN - budget.tokens;
        Err(now + missing.div_ceil(budget.per_second * TOKEN / 1_000).max(1))
    }

    /// Gives back a token that was not needed.
    pub(super) fn give_token(&mut self) {
        self.budget.add(TOKEN);
    }
}

impl Budget {
    fn add(&mut self, parts: u64) {
        let most = self.per_second * TOKEN * SAVED_SECONDS;
        self.tokens = self.tokens.saturating_add(parts).min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        let breaker = Breaker {
            failures: 2,
            open: Backoff {
                first: 1_000,
                max: 4_000,
            },
        };
        let backoff = Backoff { first: 10, max: 10 };
        let budget = RetryBudget {
            percent: 50,
            per_second: 1,
        };
        Health::new(breaker, backoff, budget, 0)
    }

    #[test]
    fn the_breaker_opens_after_failures_in_a_row_and_closes_with_a_success() {
        let mut health = health();
        health.failed(0, 0);
        assert!(!health.is_open());
        assert_eq!(health.until(), 5);
        health.failed(100, 0);
        assert!(health.is_open());
        assert_eq!(health.until(), 600);
        health.failed(700, 0);
        assert_eq!(health.until(), 1_700);
        health.succeeded(false, 8);
        assert!(!health.is_open());
        assert_eq!((health.until(), health.latency()), (0, 8));
    }

    #[test]
    fn retries_that_fail_use_up_the_budget_and_time_and_successes_refill_it() {
        let mut health = health();
        for _ in 0..10 {
            assert_eq!(health.take_token(0), Ok(()));
        }
        assert_eq!(health.take_token(0), Err(1_000));
        assert_eq!(health.take_token(400), Err(1_000));
        assert_eq!(health.take_token(1_000), Ok(()));
        // One that succeeds gives its token back, and earns a half.
        health.succeeded(true, 1);
        assert_eq!(health.take_token(1_000), Ok(()));
        assert_eq!(health.take_token(1_000), Err(1_500));
    }
}
