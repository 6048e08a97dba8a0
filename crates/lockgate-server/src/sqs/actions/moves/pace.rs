//! The speed of a task.

use std::time::Duration;

/// Messages of one step without a rate: few enough that others hardly wait.
const STEP: u16 = 250;

/// Steps in a second with a rate, if the rate is high enough for so many.
const STEPS_A_SECOND: u16 = 10;

/// How many messages each step moves, and the time between the beginnings of two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) step: u16,
    pub(super) every: Duration,
}

impl Pace {
    /// `rate`: the most messages in any second, 1 to 500.
    pub(super) fn of(rate: Option<u16>) -> Self {
        match rate {
            None => Self {
                step: STEP,
                every: Duration::ZERO,
            },
            Some(rate) => {
                let step = (rate / STEPS_A_SECOND).max(1);
                Self {
                    step,
                    every: Duration::from_secs(step.into()) / u32::from(rate.max(1)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rate_is_exceeded_and_every_rate_is_reached() {
        for rate in 1..=500 {
            let pace = Pace::of(Some(rate));
            let a_second = f64::from(pace.step) / pace.every.as_secs_f64();
            assert!(
                (a_second - f64::from(rate)).abs() < 0.01,
                "{rate}: {pace:?}"
            );
            assert!(pace.step <= 50, "{rate}: {pace:?}");
        }
        assert_eq!(Pace::of(Some(1)).every, Duration::from_secs(1));
        assert_eq!(Pace::of(None).every, Duration::ZERO);
    }
}
