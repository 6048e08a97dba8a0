//! Runs a career in one of many processes.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    Backoff,
    coordination::{
        Call, Campaign, CoordinationError, Coordinator, EndReason, Fence, Observe, Tenure, TermSpan,
    },
};
use tracing::{info, warn};

use crate::{
    career::{HandOver, InFlight, LeaderCareer, Next, Unit},
    time::drawn,
};

/// Runs a [`LeaderCareer`] in exactly one of the processes that run one for the same election.
///
/// ```
/// use std::{convert::Infallible, time::Duration};
///
/// use bytes::Bytes;
/// use lockgate_consumer::MemoryRecords;
/// use lockgate_coordination::{
///     Campaign, Fence, HandOver, LeaderCareer, Next, RecordsCoordinator, Singleton, Term,
/// };
/// use lockgate_core::{ElectionName, HolderName};
///
/// struct Reports { page: u8 }
///
/// impl LeaderCareer for Reports {
///     type Error = Infallible;
///
///     async fn inaugurate(&mut self, term: &Term, _: &Fence) -> Result<(), Infallible> {
///         if let Some(checkpoint) = &term.last_checkpoint {
///             self.page = checkpoint.value[0];
///         }
///         Ok(())
///     }
///
///     async fn execute(&mut self, fence: &Fence) -> Result<Next, Infallible> {
///         println!("page {}, for whoever refuses epochs below {:?}", self.page, fence.epoch());
///         self.page += 1;
///         Ok(if self.page < 10 { Next::Again } else { Next::Done })
///     }
///
///     async fn hand_over(&mut self, _: HandOver<'_>) -> Result<Option<Bytes>, Infallible> {
///         Ok(Some(vec![self.page].into()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let coordinator = RecordsCoordinator::new(MemoryRecords::new());
/// let campaign = Campaign::new(ElectionName::new("reports")?, HolderName::new("host-1")?);
/// Singleton::new(coordinator, campaign).run(&mut Reports { page: 0 }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Singleton<C> {
    coordinator: C,
    campaign: Campaign,
    backoff: Backoff,
    hand_over_within: Duration,
}

/// Why a singleton has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its career was [done](Next::Done) in this process.
    Done,
    /// It was told to stop.
    Stopped,
}

/// Why a term ends, and what has become of the unit.
type End = (EndReason, Unit);

impl<C: Coordinator> Singleton<C> {
    /// A singleton that stands with that campaign. Each process needs one.
    #[must_use]
    pub fn new(coordinator: C, campaign: Campaign) -> Self {
        Self {
            coordinator,
            campaign,
            backoff: Backoff {
                first: 500,
                max: 30_000,
            },
            hand_over_within: Duration::from_secs(30),
        }
    }

    /// How long it does not stand after its career has failed, or the store does not answer. Default: 0.5 s, doubling up
    /// to 30 s, each drawn between its half and itself.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How long a hand-over may take whose lease is renewed meanwhile. Default: 30 s.
    #[must_use]
    pub fn hand_over_within(mut self, within: Duration) -> Self {
        self.hand_over_within = within;
        self
    }

    /// Stands and leads until the career is done.
    ///
    /// # Errors
    /// As [`run_until`](Self::run_until).
    ///
    /// # Cancellation
    /// As `run_until`.
    pub async fn run<L: LeaderCareer>(&self, career: &mut L) -> Result<Ended, CoordinationError> {
        self.run_until(career, std::future::pending()).await
    }

    /// Stands and leads, term after term, until the career is done or `stop` is. A leader that is told to stop hands over
    /// as one that was asked to resign.
    ///
    /// # Errors
    /// What does not go away by itself: `Invalid` for a campaign whose durations do not go together, or whose
    /// [notice](Campaign::notice) is shorter than a unit [may go on](LeaderCareer::in_flight); `Damaged`; `Unsupported`;
    /// and [`NotElected`](CoordinationError::NotElected) if the campaign does not wait for ever.
    ///
    /// # Cancellation
    /// A leader that is dropped hands nothing over, and its successor waits until its lease ends.
    pub async fn run_until<L: LeaderCareer>(
        &self,
        career: &mut L,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<Ended, CoordinationError> {
        self.campaign.check()?;
        let (within, notice) = (career.in_flight().within(), self.campaign.notice);
        if within > notice {
            return Err(CoordinationError::Invalid {
                why: format!(
                    "a unit may go on for {within:?}, so the notice must be at least as long, it is {notice:?}"
                ),
            });
        }
        let ended = self.stand_and_lead(career, pin!(stop)).await;
        // A process that ends now must not leave its place in the line behind.
        self.coordinator.left().await;
        ended
    }

    async fn stand_and_lead<L: LeaderCareer>(
        &self,
        career: &mut L,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<Ended, CoordinationError> {
        let mut failures = 0;
        loop {
            let elected = tokio::select! {
                biased;
                () = &mut stop => return Ok(Ended::Stopped),
                elected = self.stand(career) => elected,
            };
            let has_failed = match elected {
                Ok(Some(tenure)) => {
                    let end = self
                        .lead(career, tenure, stop.as_mut(), &mut failures)
                        .await;
                    match end {
                        Led::Ended(ended) => return Ok(ended),
                        Led::Again => false,
                        Led::Failed => true,
                    }
                }
                Ok(None) => true,
                Err(
                    error @ (CoordinationError::Unknown { .. }
                    | CoordinationError::Unavailable { .. }),
                ) => {
                    warn!(election = %self.campaign.election, %error, "a candidate does not stand now");
                    true
                }
                Err(other) => return Err(other),
            };
            if has_failed {
                failures += 1;
                let wait = self.backoff.after(failures, drawn());
                tokio::select! {
                    biased;
                    () = &mut stop => return Ok(Ended::Stopped),
                    () = tokio::time::sleep(Duration::from_millis(wait)) => {}
                }
            }
        }
    }

    /// Warms up, and stands. `None`: the career is not ready.
    async fn stand<L: LeaderCareer>(
        &self,
        career: &mut L,
    ) -> Result<Option<C::Tenure>, CoordinationError> {
        let observe = Observe {
            election: self.campaign.election.clone(),
            seen: None,
            wait: Duration::ZERO,
        };
        let election = self.coordinator.observe(observe).await?;
        if let Err(error) = career.warm_up(&election).await {
            warn!(election = %self.campaign.election, %error, "a candidate is not ready to lead");
            return Ok(None);
        }
        let tenure = self.coordinator.campaign(self.campaign.clone()).await?;
        Ok(Some(tenure))
    }

    /// Leads one term.
    async fn lead<L: LeaderCareer>(
        &self,
        career: &mut L,
        tenure: C::Tenure,
        mut stop: impl Future<Output = ()> + Send + Unpin,
        failures: &mut u32,
    ) -> Led {
        let (election, epoch) = (&self.campaign.election, tenure.term().epoch.0);
        info!(%election, epoch, "this process leads");
        let ending = Arc::new(Ending {
            fence: tenure.fence().clone(),
            is_ending: AtomicBool::new(false),
        });
        let fence = tenure.fence().clone().with_span(ending.clone());
        let mut is_stopped = false;
        let (reason, unit) = {
            let stop = async {
                (&mut stop).await;
                is_stopped = true;
            };
            work(career, &tenure, &fence, &ending, stop, failures).await
        };
        let left = self.hand_over(career, &tenure, &fence, reason, unit).await;
        info!(%election, epoch, ?reason, "this process leads no more");
        match left {
            Some(checkpoint) => {
                if let Err(error) = tenure.resign(reason, checkpoint).await {
                    warn!(%election, epoch, %error, "the end of a term is not written");
                }
            }
            // Something of it may be under way still, so its lease is not given back.
            None => drop(tenure),
        }
        match reason {
            _ if is_stopped => Led::Ended(Ended::Stopped),
            EndReason::EndOfTerm => Led::Ended(Ended::Done),
            EndReason::Error => Led::Failed,
            EndReason::Asked | EndReason::LeaseLost => Led::Again,
        }
    }

    /// `None`: it has not ended.
    async fn hand_over<L: LeaderCareer>(
        &self,
        career: &mut L,
        tenure: &C::Tenure,
        fence: &Fence,
        reason: EndReason,
        unit: Unit,
    ) -> Option<Option<Bytes>> {
        let (election, epoch) = (&self.campaign.election, tenure.term().epoch.0);
        let within = match reason {
            EndReason::LeaseLost => fence
                .remaining()
                .unwrap_or_default()
                .min(self.hand_over_within),
            _ => self.hand_over_within,
        };
        let hand_over = HandOver {
            reason,
            within,
            unit,
            fence,
        };
        let handed = tokio::select! {
            biased;
            handed = career.hand_over(hand_over) => handed,
            () = tokio::time::sleep(within) => {
                warn!(%election, epoch, ?within, "a hand-over has not ended in time");
                return None;
            }
            // Another one may lead soon, or leads already.
            () = tenure.over() => {
                warn!(%election, epoch, "a hand-over has not ended before its term");
                return None;
            }
        };
        let max = self.coordinator.capabilities().checkpoint_bytes_max;
        match handed {
            Ok(Some(checkpoint)) if checkpoint.len() > max => {
                let bytes = checkpoint.len();
                warn!(%election, epoch, bytes, max, "a checkpoint is too large, and is not written");
                Some(None)
            }
            Ok(checkpoint) => Some(checkpoint),
            Err(error) => {
                warn!(%election, epoch, %error, "a hand-over has failed");
                Some(None)
            }
        }
    }
}

enum Led {
    Ended(Ended),
    Again,
    Failed,
}

/// The span of a term whose unit is told when it ends.
struct Ending {
    fence: Fence,
    is_ending: AtomicBool,
}

impl TermSpan for Ending {
    fn remaining(&self) -> Duration {
        self.fence.remaining().unwrap_or(Duration::MAX)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire) || self.fence.is_ending()
    }
}

/// Begins the term, and does unit after unit until the leader is called away or has nothing more to do.
async fn work<L: LeaderCareer, T: Tenure>(
    career: &mut L,
    tenure: &T,
    fence: &Fence,
    ending: &Ending,
    stop: impl Future<Output = ()> + Send,
    failures: &mut u32,
) -> End {
    let policy = career.in_flight();
    let mut called = pin!(async {
        tokio::select! {
            biased;
            call = tenure.called() => match call {
                Call::Asked { .. } => EndReason::Asked,
                Call::LeaseLost => EndReason::LeaseLost,
            },
            () = stop => EndReason::Asked,
        }
    });
    let begun = unit(
        career.inaugurate(tenure.term(), fence),
        tenure,
        called.as_mut(),
        policy,
        ending,
    );
    match begun.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return failed(tenure, &error),
        Err(end) => return end,
    }
    loop {
        let done = unit(
            career.execute(fence),
            tenure,
            called.as_mut(),
            policy,
            ending,
        );
        match done.await {
            Ok(Ok(next)) => {
                *failures = 0;
                let idle = match next {
                    // Other tasks of the thread go on meanwhile.
                    Next::Again => Duration::ZERO,
                    Next::Idle(idle) => idle,
                    Next::Done => return (EndReason::EndOfTerm, Unit::Ended),
                };
                tokio::select! {
                    biased;
                    reason = called.as_mut() => return (reason, Unit::Ended),
                    () = async {
                        match idle.is_zero() {
                            true => tokio::task::yield_now().await,
                            false => tokio::time::sleep(idle).await,
                        }
                    } => {}
                }
            }
            Ok(Err(error)) => return failed(tenure, &error),
            Err(end) => return end,
        }
    }
}

fn failed(tenure: &impl Tenure, error: &impl std::fmt::Display) -> End {
    let term = tenure.term();
    warn!(election = %term.election, epoch = term.epoch.0, %error, "a leader has failed");
    (EndReason::Error, Unit::Ended)
}

/// Does a unit, or ends it by the policy when the leader is called away.
async fn unit<T>(
    unit: impl Future<Output = T> + Send,
    tenure: &impl Tenure,
    called: impl Future<Output = EndReason> + Send,
    policy: InFlight,
    ending: &Ending,
) -> Result<T, End> {
    let mut unit = pin!(unit);
    let reason = tokio::select! {
        biased;
        reason = called => reason,
        done = unit.as_mut() => return Ok(done),
    };
    if let InFlight::Checkpoint(_) = policy {
        ending.is_ending.store(true, Ordering::Release);
    }
    if policy == InFlight::Abort {
        return Err((reason, Unit::Dropped));
    }
    tokio::select! {
        biased;
        // What is over may not write any more.
        () = tenure.over() => Err((EndReason::LeaseLost, Unit::Dropped)),
        _ = unit => Err((reason, Unit::Ended)),
        () = tokio::time::sleep(policy.within()) => Err((reason, Unit::Dropped)),
    }
}
