//! The seam to stores that elect leaders and grant locks.
//!
//! A [`Coordinator`] elects one of the candidates of an election. Its leader has a [`Term`], whose [`Epoch`] is higher
//! than that of every earlier term of the election, also after all that the store kept of it was deleted. The leader
//! gives its [`Fence`] to whatever it writes to, so that a leader from before cannot write any more.
//!
//! # Time
//! A leader may work until its lease ends less a [`margin`](Campaign::margin), by its own clock, counted from before it
//! asked for the lease or its renewal. The store ends the lease no earlier than that, so two leaders work at the same
//! time only if a clock goes wrong by more than the margin, or if a process is frozen between a look at its clock and a
//! write. The fence is for these.

mod fence;

use std::{future::Future, time::Duration};

use bytes::Bytes;

pub use self::fence::{Fence, FenceError, FenceMark, FenceMarkError, Guard, TermSpan};
use crate::{ElectionName, Epoch, HolderName, NameError, WallTime};

/// The most bytes of a checkpoint: 128 KiB. A coordinator may take less, and says so.
pub const CHECKPOINT_BYTES_MAX: usize = 128 << 10;

/// A candidate's wish to lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Campaign {
    /// Of which election.
    pub election: ElectionName,
    /// Who stands, for people who look: several candidates may have one name.
    pub candidate: HolderName,
    /// For how long the leader leads without a renewal, and so how long its successor waits after a crash. It is renewed
    /// each third of what remains of it without the margin. At least 1 s. Default: 10 s.
    pub lease: Duration,
    /// How long before the end of its lease the leader is over by its own clock: for what clocks differ in the course of
    /// a lease, and for what is under way. At least a hundredth of the lease. Default: 1 s.
    pub margin: Duration,
    /// How long before it is over a leader whose lease is not renewed is called, to end what is in its hands. With the
    /// margin, at most half the lease. Default: 2 s.
    pub notice: Duration,
    /// How long to wait for the election; `None`: for ever; zero: lead now, or not at all.
    pub wait: Option<Duration>,
}

impl Campaign {
    /// One with the defaults.
    #[must_use]
    pub fn new(election: ElectionName, candidate: HolderName) -> Self {
        Self {
            election,
            candidate,
            lease: Duration::from_secs(10),
            margin: Duration::from_secs(1),
            notice: Duration::from_secs(2),
            wait: None,
        }
    }

    /// Looks whether its durations go together.
    ///
    /// # Errors
    /// [`Invalid`](CoordinationError::Invalid).
    pub fn check(&self) -> Result<(), CoordinationError> {
        let invalid = |why: String| Err(CoordinationError::Invalid { why });
        let (lease, margin, notice) = (self.lease, self.margin, self.notice);
        if lease < Duration::from_secs(1) || lease > Duration::from_secs(12 * 3_600) {
            return invalid(format!(
                "a lease must be 1 s to 12 h, this one is {lease:?}"
            ));
        }
        if margin < lease / 100 {
            let least = lease / 100;
            return invalid(format!(
                "the margin of a lease of {lease:?} must be at least {least:?}, this one is {margin:?}"
            ));
        }
        if margin.saturating_add(notice) > lease / 2 {
            return invalid(format!(
                "margin and notice must be at most half the lease, these are {margin:?} and {notice:?} of {lease:?}"
            ));
        }
        Ok(())
    }
}

/// What a leader is told when its term begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Of which election.
    pub election: ElectionName,
    /// Higher than that of every earlier term of the election.
    pub epoch: Epoch,
    /// Whose term it is.
    pub leader: HolderName,
    /// The term before, if the coordinator still knows it. If that has no [end](PastTerm::ended), its leader has not
    /// handed over: it crashed, or lost its lease, and something of it may still be on its way to a sink.
    pub predecessor: Option<PastTerm>,
    /// The last checkpoint that any leader has written.
    pub last_checkpoint: Option<Checkpoint>,
}

/// A term in the history of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastTerm {
    /// Its number.
    pub epoch: Epoch,
    /// Who led.
    pub leader: HolderName,
    /// When it began, by the leader's wall clock.
    pub began: WallTime,
    /// How it ended. `None`: it goes on, or its leader has not handed over.
    pub ended: Option<TermEnd>,
}

/// How a leader handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermEnd {
    /// When, by the leader's wall clock.
    pub at: WallTime,
    /// Why.
    pub reason: EndReason,
}

/// Why a term ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Somebody has asked the leader to resign, or its process stops.
    Asked,
    /// The leader has done what there was to do.
    EndOfTerm,
    /// Its lease was not renewed in time, or was taken away.
    LeaseLost,
    /// The leader has failed.
    Error,
}

/// What a leader leaves to its successor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// In which term it was written.
    pub epoch: Epoch,
    /// What the leader has made of it.
    pub value: Bytes,
}

/// An election as it was at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionState {
    /// Who leads.
    pub leader: Option<Leader>,
    /// Earlier terms, the newest first: as many as the coordinator keeps.
    pub history: Vec<PastTerm>,
    /// The last checkpoint that any leader has written.
    pub last_checkpoint: Option<Checkpoint>,
    /// Who stands, in the order in which they will lead.
    pub candidates: Vec<HolderName>,
}

/// A leader, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its name.
    pub name: HolderName,
    /// Its term.
    pub epoch: Epoch,
    /// When the term began, by the leader's wall clock. `None`: the leader has not said so yet.
    pub began: Option<WallTime>,
    /// How much longer its lease lasts without a renewal, as of the answer.
    pub remaining: Duration,
}

/// Waits until somebody else leads than the caller has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observe {
    /// Which election.
    pub election: ElectionName,
    /// Whose term the caller has seen; `None`: that nobody leads.
    pub seen: Option<Epoch>,
    /// How long to wait; zero: not at all.
    pub wait: Duration,
}

/// Asks a leader to hand over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskToResign {
    /// Of which election.
    pub election: ElectionName,
    /// Whose term shall end. If it is over already, nothing happens to a later one.
    pub epoch: Epoch,
    /// Who asks, for the leader's log.
    pub by: HolderName,
    /// Whether to ask also when nobody stands who could lead next.
    pub even_if_alone: bool,
}

/// What a coordinator can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoordinatorCapabilities {
    /// Whether epochs rise for ever, also when the store has lost or deleted what it kept. If false, they rise as long as
    /// the store lives, and a sink must not outlive it.
    pub epochs_last: bool,
    /// Whether candidates lead in the order in which they came.
    pub is_fair: bool,
    /// Whether the successor is woken as soon as the leader has gone. If false, it asks now and then.
    pub wakes: bool,
    /// Whether a leader can be asked to resign.
    pub can_ask: bool,
    /// The most earlier terms that it keeps.
    pub history_max: usize,
    /// The most bytes of a checkpoint; 0: it keeps none.
    pub checkpoint_bytes_max: usize,
}

impl CoordinatorCapabilities {
    /// One that can do nothing but elect.
    pub const NONE: Self = Self {
        epochs_last: false,
        is_fair: false,
        wakes: false,
        can_ask: false,
        history_max: 0,
        checkpoint_bytes_max: 0,
    };
}

/// Why a coordinator did nothing, or may have done it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinationError {
    /// Somebody else led for as long as the candidate wanted to wait.
    #[error("{election} was not won within {} ms", wait.as_millis())]
    NotElected {
        /// Which election.
        election: ElectionName,
        /// How long the candidate has waited.
        wait: Duration,
    },
    /// The term is over: the leader has resigned, its lease has ended, or somebody else leads.
    #[error("the term {} of election {election} is over", epoch.0)]
    Over {
        /// Which election.
        election: ElectionName,
        /// Which term.
        epoch: Epoch,
    },
    /// Nobody stands who could lead next.
    #[error("election {election} has no other candidate")]
    NoSuccessor {
        /// Which election.
        election: ElectionName,
    },
    /// The request can never succeed: something is out of its bounds.
    #[error("{why}")]
    Invalid {
        /// What is wrong, and what is right.
        why: String,
    },
    /// A name that was made of the caller's names is none of the store's.
    #[error(transparent)]
    Name(#[from] NameError),
    /// This coordinator cannot do it: see its [capabilities](Coordinator::capabilities).
    #[error("this coordinator does not {what}")]
    Unsupported {
        /// What it does not do.
        what: &'static str,
    },
    /// What the store keeps of the election was not written by this version, or is damaged.
    #[error("what is kept of election {election} cannot be read: {why}")]
    Damaged {
        /// Which election.
        election: ElectionName,
        /// What is wrong, and where.
        why: String,
    },
    /// The request may have happened: its answer was lost.
    #[error("the outcome is not known: {why}")]
    Unknown {
        /// What happened to the answer.
        why: String,
    },
    /// The request did not happen, and may succeed later.
    #[error("the coordinator does not answer now: {why}")]
    Unavailable {
        /// Why.
        why: String,
    },
}

/// What calls a leader away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Somebody has asked it to resign. It leads until it does.
    Asked {
        /// Who.
        by: HolderName,
    },
    /// Its lease was not renewed in time, or was taken away: the term is over, or will be after the campaign's
    /// [notice](Campaign::notice).
    LeaseLost,
}

/// Elects one of many.
///
/// What it cannot do it says in its [capabilities](Self::capabilities), and refuses with
/// [`Unsupported`](CoordinationError::Unsupported).
pub trait Coordinator: Send + Sync + 'static {
    /// A term that its holder leads.
    type Tenure: Tenure;

    /// What this coordinator can do. Constant for the life of the instance.
    fn capabilities(&self) -> CoordinatorCapabilities;

    /// Stands as a candidate until it leads. Whoever stands is ready to lead: warm up before.
    ///
    /// # Errors
    /// [`NotElected`](CoordinationError::NotElected), `Invalid`, `Damaged`, and `Unavailable` or `Unknown` if the store does
    /// not answer for as long as a lease, or not at all within the campaign's [wait](Campaign::wait) if that is not zero.
    ///
    /// # Cancellation
    /// A candidate that is dropped stands no more, and one that was just elected leads no more; if the store cannot be
    /// told, at the latest when its lease ends.
    fn campaign(
        &self,
        campaign: Campaign,
    ) -> impl Future<Output = Result<Self::Tenure, CoordinationError>> + Send;

    /// Waits for a lock, which at most one holder has at a time: a campaign for what has no history and no checkpoint, and
    /// leaves nothing behind when it is [resigned](Tenure::resign). A lock and an election may have one name.
    ///
    /// # Errors
    /// As [`campaign`](Self::campaign).
    ///
    /// # Cancellation
    /// As `campaign`.
    fn lock(
        &self,
        campaign: Campaign,
    ) -> impl Future<Output = Result<Self::Tenure, CoordinationError>> + Send;

    /// The election as soon as another one leads than the caller has seen, or as it is when the wait is over.
    ///
    /// # Errors
    /// `Damaged` and `Unavailable`.
    ///
    /// # Cancellation
    /// Nothing changes.
    fn observe(
        &self,
        observe: Observe,
    ) -> impl Future<Output = Result<ElectionState, CoordinationError>> + Send;

    /// The names of all elections that have had a leader, in order, as far as the store still knows them. Each page of a
    /// long list is of another instant.
    ///
    /// # Errors
    /// `Unsupported` and `Unavailable`.
    ///
    /// # Cancellation
    /// Nothing changes.
    fn elections(
        &self,
    ) -> impl Future<Output = Result<Vec<ElectionName>, CoordinationError>> + Send;

    /// Waits until the store has been told that candidates which were dropped here stand no more, or does not answer. For
    /// a process that ends: otherwise whoever stands behind them waits until their leases end.
    ///
    /// # Cancellation
    /// Nothing changes.
    fn left(&self) -> impl Future<Output = ()> + Send;

    /// Asks a leader to hand over, and does not wait until it has: [observe](Self::observe) tells. A leader that does not
    /// listen goes on.
    ///
    /// # Errors
    /// [`Over`](CoordinationError::Over) if that term is over, [`NoSuccessor`](CoordinationError::NoSuccessor) if nobody
    /// else stands, `Unsupported`, `Unknown` and `Unavailable`.
    fn ask_to_resign(
        &self,
        ask: AskToResign,
    ) -> impl Future<Output = Result<(), CoordinationError>> + Send;
}

/// A term that its holder leads. The lease is renewed meanwhile. If it is dropped it is not renewed any more, and the
/// successor waits until it ends: what the leader has started may still go on.
pub trait Tenure: Send + Sync + 'static {
    /// Which term it is, and what came before.
    fn term(&self) -> &Term;

    /// What proves the term, and says how long it lasts.
    fn fence(&self) -> &Fence;

    /// Waits until the leader is called away. A call that has come stays; after `Asked`, [`lost`](Self::lost) waits for
    /// the other.
    ///
    /// # Cancellation
    /// No call is missed.
    fn called(&self) -> impl Future<Output = Call> + Send;

    /// Waits until the lease is [lost](Call::LeaseLost), or will be after the campaign's notice.
    ///
    /// # Cancellation
    /// Nothing is missed.
    fn lost(&self) -> impl Future<Output = ()> + Send;

    /// Waits until the leader may not work any more: its lease less the margin is over, or the lease is another's. Then
    /// the [fence](Self::fence) is over too.
    ///
    /// # Cancellation
    /// Nothing is missed.
    fn over(&self) -> impl Future<Output = ()> + Send;

    /// How long it is until the successor may lead, by the leader's own clock: the rest of the lease.
    fn remaining(&self) -> Duration;

    /// Writes a checkpoint in the middle of the term.
    ///
    /// # Errors
    /// [`Over`](CoordinationError::Over), `Invalid` for one that is too large, `Unsupported`, `Unknown` and
    /// `Unavailable`.
    fn save(&self, checkpoint: Bytes)
    -> impl Future<Output = Result<(), CoordinationError>> + Send;

    /// Ends the term: writes why, and the last checkpoint if there is one, and then lets the successor lead. Nothing of
    /// the leader may be under way any more.
    ///
    /// # Errors
    /// [`Over`](CoordinationError::Over) if the lease had ended before it was written; then the checkpoint is not. With
    /// `Unknown` and `Unavailable` it may be, and the successor leads when the lease ends.
    ///
    /// # Cancellation
    /// A call that is dropped may have happened.
    fn resign(
        self,
        reason: EndReason,
        checkpoint: Option<Bytes>,
    ) -> impl Future<Output = Result<(), CoordinationError>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_do_not_go_together_are_refused() {
        let name = |text| ElectionName::new(text).unwrap();
        let plain = Campaign::new(name("reports"), HolderName::new("host-1").unwrap());
        assert_eq!(plain.check(), Ok(()));
        let seconds = Duration::from_secs;
        let refused = |lease, margin, notice| {
            let campaign = Campaign {
                lease,
                margin,
                notice,
                ..plain.clone()
            };
            campaign.check().unwrap_err().to_string()
        };
        let short = refused(Duration::from_millis(999), seconds(1), seconds(0));
        assert!(short.contains("1 s to 12 h"), "{short}");
        let thin = refused(seconds(10), Duration::from_millis(99), seconds(0));
        assert!(thin.contains("at least 100ms"), "{thin}");
        let crowded = refused(seconds(10), seconds(3), seconds(3));
        assert!(crowded.contains("half the lease"), "{crowded}");
        let crowded = refused(seconds(10), seconds(3), Duration::MAX);
        assert!(crowded.contains("half the lease"), "{crowded}");
    }
}
