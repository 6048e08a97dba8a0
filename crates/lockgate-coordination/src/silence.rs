//! A store that does not answer.

use std::time::Duration;

use lockgate_core::{
    Millis,
    coordination::{Campaign, CoordinationError},
};
use tokio::time::timeout;

use crate::time::{jittered, millis};

/// The first pause after a lost answer; it doubles each time.
const PAUSE: Duration = Duration::from_millis(2);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What waits between requests that the store does not answer: longer each time, and another time for each process.
#[derive(Debug, Default)]
pub struct Pauses(u32);

impl Pauses {
    /// The store has answered.
    pub fn over(&mut self) {
        self.0 = 0;
    }

    /// Waits, longer than the last time.
    pub async fn wait(&mut self) {
        let longest = (PAUSE * 2u32.saturating_pow(self.0.min(16))).min(PAUSE_MAX);
        self.0 += 1;
        tokio::time::sleep(jittered(longest)).await;
    }
}

/// How long a candidate hears nothing from its store. It gives the store up after a lease, counted from before it sent the
/// first request without an answer; and it waits for no answer when it wants to wait for the election no longer.
#[derive(Debug)]
pub struct Silence {
    campaign: Campaign,
    give_up_at: Option<Millis>,
    since: Option<Millis>,
    has_answered: bool,
    pauses: Pauses,
}

impl Silence {
    /// None yet, for a campaign that begins now.
    #[must_use]
    pub fn new(campaign: &Campaign, now: Millis) -> Self {
        // A candidate that leads now or not at all waits for its answers all the same.
        let wait = campaign.wait.filter(|wait| !wait.is_zero());
        Self {
            campaign: campaign.clone(),
            give_up_at: wait.map(|wait| now.saturating_add(millis(wait))),
            since: None,
            has_answered: false,
            pauses: Pauses::default(),
        }
    }

    /// The store has answered.
    pub fn over(&mut self) {
        self.since = None;
        self.has_answered = true;
        self.pauses.over();
    }

    /// How long a request that is sent now may go without an answer.
    #[must_use]
    pub fn left(&self, now: Millis) -> Duration {
        let end = self.since.unwrap_or(now);
        let end = end.saturating_add(millis(self.campaign.lease));
        let end = self.give_up_at.map_or(end, |at| end.min(at));
        Duration::from_millis(end.saturating_sub(now))
    }

    /// Waits before the next request: one that was sent then has got no answer by now, but that error.
    ///
    /// # Errors
    /// That error if the store is given up, and `NotElected` if the candidate wants to wait no longer and the store has
    /// answered it before.
    pub async fn wait(
        &mut self,
        sent: Millis,
        now: Millis,
        error: CoordinationError,
    ) -> Result<(), CoordinationError> {
        self.since.get_or_insert(sent);
        let left = self.left(now);
        // A pause that is cut short is the last one.
        if !left.is_zero() && timeout(left, self.pauses.wait()).await.is_ok() {
            return Ok(());
        }
        let Campaign { election, wait, .. } = &self.campaign;
        let is_late = self
            .give_up_at
            .is_some_and(|at| at <= now.saturating_add(millis(left)));
        Err(match wait {
            Some(wait) if is_late && self.has_answered => CoordinationError::NotElected {
                election: election.clone(),
                wait: *wait,
            },
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use lockgate_core::{ElectionName, HolderName};

    use super::*;

    fn silence(wait: Option<u64>) -> Silence {
        let (election, name) = (ElectionName::new("x"), HolderName::new("a"));
        let campaign = Campaign {
            wait: wait.map(Duration::from_millis),
            ..Campaign::new(election.unwrap(), name.unwrap())
        };
        Silence::new(&campaign, 1_000)
    }

    fn silent() -> CoordinationError {
        CoordinationError::Unavailable {
            why: "silent".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_store_is_given_up_a_lease_after_the_first_request_without_an_answer() {
        for wait in [None, Some(0), Some(60_000)] {
            let mut silence = silence(wait);
            assert_eq!(silence.left(5_000), Duration::from_secs(10));
            silence.wait(5_000, 8_000, silent()).await.unwrap();
            assert_eq!(silence.left(8_000), Duration::from_secs(7));
            silence.over();
            assert_eq!(silence.left(9_000), Duration::from_secs(10));
            silence.wait(9_000, 10_000, silent()).await.unwrap();
            let told = silence.wait(18_000, 19_000, silent()).await;
            assert_eq!(told, Err(silent()), "{wait:?}");
        }
    }

    #[tokio::test]
    async fn no_answer_is_waited_for_longer_than_for_the_election() {
        for has_answered in [false, true] {
            let mut silence = silence(Some(3_000));
            if has_answered {
                silence.over();
            }
            silence.wait(2_000, 2_500, silent()).await.unwrap();
            assert_eq!(silence.left(2_500), Duration::from_millis(1_500));
            let told = silence.wait(2_500, 4_000, silent()).await.unwrap_err();
            let is_lost = matches!(told, CoordinationError::NotElected { .. });
            assert_eq!(is_lost, has_answered, "{told}");
        }
    }
}
