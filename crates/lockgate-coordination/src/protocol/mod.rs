//! How one of many comes to lead, and stops: two pure machines.
//!
//! A [`Candidate`] stands until it leads, a [`Holder`] leads until it stops. They say what to ask the store next and are
//! given its answers; time comes in with each call, by the clock of their process, which nobody else sees. What is asked
//! may be answered late or never, and may then happen late: such an answer is [`Answer::Lost`].
//!
//! # What the store has
//! - **The term**, a record whose lease is the leader's. The store gives it to one holder at a time, with an epoch that
//!   is higher than that of every earlier one, and ends it no earlier than it was asked for. Nothing else makes a leader.
//! - **The line**, a leased record for each candidate. The epoch of that lease is the candidate's *place*. Whoever is
//!   first in it watches the term; each other one watches the next place ahead of it. So the end of a term wakes one.
//!   The line only says who asks when: if it is wrong for a while, the term's lease still excludes.
//!
//! # States
//! ```text
//! Candidate   stands -> looks -> watches the place ahead, or the term -> looks ...
//!                             -> claims the term's lease -> opens the term -> over: it leads
//! Holder      leads, and renews -> (called) -> closes the term -> releases its lease -> over
//!                   |_ is over by its own clock, or is told that its lease is not its own: leads no more
//! ```
//! The term is *open* when its leader has written it into the record, and *closed* when it has written its end there.
//!
//! # Invariants
//! - **A holder limits itself**: it may work until [`Holder::stop_at`], which counts the lease less the margin from
//!   *before* the request was sent that the store has answered. Then it does not lead any more, whatever comes.
//! - **Released last**: the lease is given back only in [`Holder::resign`], which is called when nothing of the leader is
//!   under way any more.
//! - **By name**: whatever ends a lease names its epoch, so a late request ends nobody else's.
//! - **A lost answer is looked up**: a claim is asked for again, which gives the same lease with the same epoch as long
//!   as it lasts; a closing is read.
//! - **Whoever waits is woken**: a candidate watches something that changes when it must act, or looks again in time to
//!   keep its place.
//!
//! `crates/lockgate-sim/tests/election` visits every state of candidates, holders and store, and shows of each: no two
//! holders lead at one time, a guarded sink takes no write of a term before one that it has taken, no epoch comes twice,
//! nothing is released that still works, and somebody can always lead.

mod candidate;
mod holder;

use lockgate_core::{
    Epoch, Millis, RecordVersion, Revision,
    coordination::{Campaign, CoordinationError},
};

pub use self::{
    candidate::{Ahead, Candidate, CandidateAsk, Elected, Watched},
    holder::{Holder, HolderAsk, Resigned},
};

/// The durations of a campaign, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// For how long the store lets a holder lead without a renewal.
    pub lease: Millis,
    /// How much earlier the holder stops.
    pub margin: Millis,
    /// How much earlier still it is called.
    pub notice: Millis,
}

impl Timing {
    /// That of a campaign.
    ///
    /// # Errors
    /// If its durations do not go together.
    pub fn of(campaign: &Campaign) -> Result<Self, CoordinationError> {
        campaign.check()?;
        // They are bounded by now. A margin and a notice are not rounded down.
        let up = |span: std::time::Duration| {
            Millis::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(Millis::MAX)
        };
        Ok(Self {
            lease: Millis::try_from(campaign.lease.as_millis()).unwrap_or(Millis::MAX),
            margin: up(campaign.margin),
            notice: up(campaign.notice),
        })
    }

    /// How long a holder works after it has sent a request that renews its lease.
    #[must_use]
    pub fn works(&self) -> Millis {
        self.lease.saturating_sub(self.margin)
    }

    /// How long after such a request it sends the next one, and how long it waits for one answer.
    #[must_use]
    pub fn renew_every(&self) -> Millis {
        (self.works() / 3).max(1)
    }
}

/// What the store has said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The candidate has that place in the line.
    Standing(Epoch),
    /// What a look has seen.
    Seen {
        /// The candidate's own place; `None`: it has lost it.
        place: Option<Epoch>,
        /// The next place ahead of it, the leader's aside.
        ahead: Option<Ahead>,
        /// The revision of the term's record, if there is one.
        term: Option<Revision>,
        /// Whether somebody has the term's lease.
        is_led: bool,
    },
    /// What was watched is another now.
    Changed,
    /// The time to which something was watched has come.
    Elapsed,
    /// The caller has the term's lease.
    Claimed {
        /// Its epoch.
        epoch: Epoch,
        /// The version of the record.
        version: RecordVersion,
        /// Whether the term with that epoch is open.
        is_open: bool,
    },
    /// Somebody else has the term's lease.
    Held,
    /// It is done.
    Done,
    /// It is not done: the lease has ended, or the record has another version.
    Refused,
    /// What the term's record says.
    Term {
        /// Whether the asking holder has its lease.
        is_own: bool,
        /// Whether the asking holder's term is closed.
        is_closed: bool,
        /// The version of the record.
        version: RecordVersion,
    },
    /// The answer was lost, or the store does not answer now.
    Lost,
}
