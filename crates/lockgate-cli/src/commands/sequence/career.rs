//! What a process does in its term, with what it tells of that, and what ends it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use lockgate_client::CallError;
use lockgate_coordination::{HandOver, InFlight, LeaderCareer, Next};
use lockgate_core::{
    ElectionName, Fate, QueueName, TransportError,
    coordination::{ElectionState, Fence, Term},
    ledger::LedgerError,
};
use lockgate_sequencer::{Sequencer, SequencerCounts, SequencerError};
use tokio::sync::Notify;
use tracing::info;

use super::source::Orders;
use crate::{
    client::exit_of,
    commands::lead::word,
    exit::{Exit, Failure},
    ledger::AnyLedger,
    telemetry,
};

/// Why the process cannot go on: the first reason is kept.
#[derive(Default)]
pub(super) struct Ending {
    why: Mutex<Option<Failure>>,
    told: Notify,
}

impl Ending {
    fn end(&self, why: Failure) {
        let mut first = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(why);
        self.told.notify_one();
    }

    /// Waits for a reason.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }

    pub(super) fn take(&self) -> Option<Failure> {
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        why.take()
    }
}

/// What others may know of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The epoch of its term, while it is active.
    pub(super) active: Option<u64>,
    /// The highest epoch that it has had.
    pub(super) epoch: u64,
    pub(super) counts: SequencerCounts,
    /// It can stand for the election: it has read the ledger.
    pub(super) is_warm: bool,
}

/// The same, as it changes.
#[derive(Debug, Default)]
pub(super) struct State(Mutex<Known>);

impl State {
    pub(super) fn known(&self) -> Known {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// So many terms in a row may end because the ledger has seen a later epoch, with nothing appended meanwhile.
const DEPOSED_MAX: u32 = 3;

/// A sequencer that ends the process at what does not go away by itself.
pub(super) struct Career {
    pub(super) sequencer: Sequencer<Orders, AnyLedger>,
    pub(super) from: QueueName,
    pub(super) election: ElectionName,
    /// How long before its end a lease that is not renewed is noticed.
    pub(super) notice: Duration,
    pub(super) state: Arc<State>,
    pub(super) ending: Arc<Ending>,
    pub(super) deposed: Deposed,
}

/// Terms in a row that were deposed while their lease held.
#[derive(Debug, Default)]
pub(super) struct Deposed {
    terms: u32,
    /// What the process had appended by the last of them.
    appended: u64,
}

impl Deposed {
    /// Counts one, and says whether the next one would fare no better. A later epoch is that of somebody else who leads by the same
    /// store, whose lease this process has not heard of yet, or who has written for once; or that of another store, for ever.
    fn again(&mut self, appended: u64) -> bool {
        if appended > self.appended {
            self.terms = 0;
        }
        self.appended = appended;
        self.terms += 1;
        self.terms >= DEPOSED_MAX
    }
}

impl Career {
    /// Looks at how a call has ended.
    fn judged<T>(
        &mut self,
        outcome: Result<T, SequencerError>,
        fence: Option<&Fence>,
    ) -> Result<T, SequencerError> {
        let counts = self.sequencer.counts();
        self.state.set(|known| known.counts = counts);
        if let Err(error) = &outcome
            && let Some(why) = self.lasting(error, fence)
        {
            self.ending.end(why);
        }
        outcome
    }

    /// Why the process ends, if the next term would fare no better.
    fn lasting(&mut self, error: &SequencerError, fence: Option<&Fence>) -> Option<Failure> {
        match error {
            SequencerError::Ledger(error) => match error {
                error if error.may_pass() => None,
                // Whoever has led since may be the one whom this term has lost its lease to.
                LedgerError::Deposed { .. } => {
                    let is_on = fence.is_some_and(|fence| fence.check().is_ok());
                    let appended = self.sequencer.counts().appended;
                    let lasts = is_on && self.deposed.again(appended);
                    lasts.then(|| {
                        Failure::from(error.clone()).hint(
                            "elections for this ledger were held in another store, or under another name: use --via and --election \
                             as they were",
                        )
                    })
                }
                other => Some(other.clone().into()),
            },
            SequencerError::Over(_) => None,
            SequencerError::Source(source)
                if matches!(source.fate, Fate::Retry | Fate::Unknown) =>
            {
                None
            }
            SequencerError::Source(source) => Some(Failure::new(exit(source), error)),
            SequencerError::Refused { source, .. } => Some(Failure::new(exit(source), error)),
            SequencerError::Unread { reader, why } => {
                let failure = Failure::from(why.clone()).context(format!("publishing to {reader}"));
                Some(match why {
                    LedgerError::Trimmed { first, .. } => failure.hint(format!(
                        "events were trimmed before the queue had them; to go on without them: lockgate ledger readers LEDGER \
                         --move {reader} --to {}",
                        first.0.saturating_sub(1)
                    )),
                    _ => failure,
                })
            }
            SequencerError::BatchMax { .. } | SequencerError::Sink { .. } => {
                Some(Failure::usage(error))
            }
            _ => Some(Failure::failed(error)),
        }
    }
}

/// The code for what a server has said.
fn exit(error: &TransportError) -> Exit {
    match error.source.downcast_ref() {
        Some(CallError::NoQueue { .. }) => Exit::NotFound,
        Some(CallError::Refused { status, code, .. }) => exit_of(*status, code),
        _ => Exit::Failed,
    }
}

impl LeaderCareer for Career {
    type Error = SequencerError;

    fn in_flight(&self) -> InFlight {
        let within = self.sequencer.in_flight().within();
        InFlight::Finish(within.min(self.notice))
    }

    async fn warm_up(&mut self, election: &ElectionState) -> Result<(), SequencerError> {
        let warm = self.sequencer.warm_up(election).await;
        self.state.set(|known| known.is_warm = warm.is_ok());
        if warm.is_ok() {
            let leader = election.leader.as_ref().map(|leader| leader.name.as_str());
            info!(target: telemetry::ALWAYS, from = %self.from, election = %self.election, leader, "stands by");
        }
        self.judged(warm, None)
    }

    async fn inaugurate(&mut self, term: &Term, fence: &Fence) -> Result<(), SequencerError> {
        let begun = self.sequencer.inaugurate(term, fence).await;
        self.judged(begun, Some(fence))?;
        let epoch = term.epoch.0;
        self.state.set(|known| {
            known.active = Some(epoch);
            known.epoch = epoch;
        });
        info!(target: telemetry::ALWAYS, from = %self.from, election = %self.election, epoch, "active");
        Ok(())
    }

    async fn execute(&mut self, fence: &Fence) -> Result<Next, SequencerError> {
        let done = self.sequencer.execute(fence).await;
        self.judged(done, Some(fence))
    }

    async fn hand_over(
        &mut self,
        hand_over: HandOver<'_>,
    ) -> Result<Option<Bytes>, SequencerError> {
        let reason = word(hand_over.reason);
        let fence = hand_over.fence;
        // Before anything is waited for: a hand-over after the end of a term is dropped at the first wait.
        if self.state.known().active.is_some() {
            self.state.set(|known| known.active = None);
            info!(target: telemetry::ALWAYS, from = %self.from, election = %self.election, reason, "no longer active");
        }
        let handed = self.sequencer.hand_over(hand_over).await;
        self.judged(handed, Some(fence))
    }
}
