//! What a leader does in its term.

use std::{fmt, future::Future, time::Duration};

use bytes::Bytes;
use lockgate_core::coordination::{ElectionState, EndReason, Fence, Term};

/// What a leader does in its term. A [`Singleton`](crate::Singleton) calls it:
///
/// ```text
/// warm_up -> (elected) -> inaugurate -> execute, again and again -> hand_over -> (its lease is given back)
/// ```
/// Each call is over before the next one begins. A call that is dropped was still under way: its future must be one that
/// may be dropped, and what it has spawned must look at the fence.
pub trait LeaderCareer: Send {
    /// Why a call fails. The term ends then, and another one may lead.
    type Error: fmt::Display + Send;

    /// What becomes of a unit that [`execute`](Self::execute) is in the middle of when the leader is called away. Default:
    /// it goes on for at most 2 s.
    fn in_flight(&self) -> InFlight {
        InFlight::Finish(Duration::from_secs(2))
    }

    /// Gets ready to lead, before the candidate stands: connects, fills caches, reads up to the last checkpoint. Whoever
    /// stands in the line is warm, so a switch does not wait for it. Default: nothing.
    ///
    /// # Errors
    /// Then it does not stand, and tries again later.
    fn warm_up(
        &mut self,
        election: &ElectionState,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        let _ = election;
        async { Ok(()) }
    }

    /// Begins a term: goes on from the last checkpoint. If the [predecessor](Term::predecessor) has not ended its term,
    /// something of it may be under way; write the fence to the sinks first, so that they refuse it.
    fn inaugurate(
        &mut self,
        term: &Term,
        fence: &Fence,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Does one unit of work, and says how to go on. Whatever it writes to is given the fence.
    fn execute(&mut self, fence: &Fence) -> impl Future<Output = Result<Next, Self::Error>> + Send;

    /// Ends a term: stops what is under way, and answers with what the successor goes on from. `None` leaves the
    /// checkpoint as it is. The successor does not lead before this has returned. If it takes longer than
    /// [`within`](HandOver::within), or until the term is over, it is dropped, and the successor waits until the lease ends.
    fn hand_over(
        &mut self,
        hand_over: HandOver<'_>,
    ) -> impl Future<Output = Result<Option<Bytes>, Self::Error>> + Send;
}

/// How a leader goes on after a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// With the next unit, at once.
    Again,
    /// With the next unit, after that long.
    Idle(Duration),
    /// Not at all: what there was to do is done.
    Done,
}

/// What becomes of a unit that is under way when the leader is called away. Whatever it is, a unit is dropped when the
/// term is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// It is dropped at once: for a unit that takes effect as a whole or not at all.
    Abort,
    /// It goes on to its end, for at most so long; then it is dropped.
    Finish(Duration),
    /// It is told by [`Fence::is_ending`] to stop at the next good place. After so long it is dropped.
    Checkpoint(Duration),
}

impl InFlight {
    /// How long a unit goes on.
    #[must_use]
    pub fn within(self) -> Duration {
        match self {
            Self::Abort => Duration::ZERO,
            Self::Finish(within) | Self::Checkpoint(within) => within,
        }
    }
}

/// Why and how a term ends.
#[derive(Clone, Copy, Debug)]
pub struct HandOver<'a> {
    /// Why.
    pub reason: EndReason,
    /// How long the hand-over may take: what is left of the term if its lease is lost. Zero if that is over: then the
    /// hand-over is polled once, so it stops what it can stop without waiting.
    pub within: Duration,
    /// What has become of the last unit.
    pub unit: Unit,
    /// The term's fence. It is over already if the lease is lost without notice: then nothing may be written any more.
    pub fence: &'a Fence,
}

/// What has become of a leader's last unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It has returned, or there was none.
    Ended,
    /// It was dropped in the middle.
    Dropped,
}
