//! When to connect again.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use lockgate_core::RecordsError;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(640);

/// Whether a lost connection may be made again now. Until then, every command is answered with the last failure, so that
/// many callers do not knock at a server that is starting.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
    closed: Option<(Instant, RecordsError)>,
}

impl Backoff {
    /// Whether to connect now.
    ///
    /// # Errors
    /// [`Unavailable`](RecordsError::Unavailable) or [`Denied`](RecordsError::Denied) with the last failure, if it is too
    /// early.
    pub fn check(&self) -> Result<(), RecordsError> {
        match &self.closed {
            Some((until, error)) if Instant::now() < *until => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Takes the end of a connect: the pause is between a half of 10 ms and all of it, and doubles with each failure up to
    /// 640 ms.
    pub fn connected<T>(&mut self, result: &Result<T, RecordsError>) {
        let Err(error) = result else {
            *self = Self::default();
            return;
        };
        let longest = (FIRST * 2u32.saturating_pow(self.failures.min(16))).min(LONGEST);
        self.failures += 1;
        // The keys of the standard library's maps are random.
        let drawn = u32::try_from(RandomState::new().hash_one(0) >> 33).unwrap_or(0);
        let share = f64::from(drawn) / f64::from(1u32 << 31);
        let pause = longest.mul_f64(0.5 + share / 2.0);
        let error = match error {
            error @ (RecordsError::Unavailable { .. } | RecordsError::Denied { .. }) => {
                error.clone()
            }
            other => RecordsError::Unavailable {
                why: other.to_string(),
            },
        };
        self.closed = Some((Instant::now() + pause, error));
    }
}
