//! Decides when to log a failure that repeats: at once, then after growing pauses, and when the
//! work succeeds again.

use std::time::Duration;

use crate::sync::Instant;

/// The first pause between two messages, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3_600));

/// A kind of work that may fail for long.
#[derive(Debug, Default)]
pub(super) struct Trouble(Option<Failing>);

#[derive(Debug)]
struct Failing {
    since: Instant,
    said: Instant,
    pause: Duration,
}

impl Trouble {
    /// Records a failure. If it should be logged now, returns how long nothing more will be logged.
    pub(super) fn failed(&mut self, now: Instant) -> Option<Duration> {
        let (since, pause) = match &self.0 {
            None => (now, PAUSES.0),
            Some(failing) if now < failing.said + failing.pause => return None,
            Some(failing) => (failing.since, (failing.pause * 2).min(PAUSES.1)),
        };
        self.0 = Some(Failing {
            since,
            said: now,
            pause,
        });
        Some(pause)
    }

    /// Records a success. If the failure was logged, returns how long it lasted.
    pub(super) fn worked(&mut self, now: Instant) -> Option<Duration> {
        Some(now.duration_since(self.0.take()?.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_then_ever_more_seldom_and_when_it_is_over() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut trouble = Trouble::default();
        assert_eq!(trouble.worked(start), None);
        let said = |trouble: &mut Trouble, seconds| {
            let pause = trouble.failed(at(seconds))?;
            Some((seconds / 60, pause.as_secs() / 60))
        };
        // Ten failures a second for half a day would give the same.
        let all: Vec<_> = (0..43_200)
            .filter_map(|second| said(&mut trouble, second))
            .collect();
        let first = [(0, 1), (1, 2), (3, 4), (7, 8), (15, 16), (31, 32), (63, 60)];
        assert_eq!(all[..7], first);
        assert_eq!(all[7..10], [(123, 60), (183, 60), (243, 60)]);
        assert_eq!(
            trouble.worked(at(43_200)),
            Some(Duration::from_secs(43_200))
        );
        assert_eq!(trouble.worked(at(43_201)), None);
        assert_eq!(said(&mut trouble, 43_260), Some((721, 1)));
    }
}
