//! A candidate, until it leads.

use lockgate_core::{Epoch, Millis, RecordVersion, Revision};

use super::{Answer, Timing};

/// Stands for an election until it leads: see the [module](super).
///
/// Call [`next`](Self::next), do what it asks, and give the answer to [`answer`](Self::answer).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    timing: Timing,
    step: Step,
    /// Its place in the line.
    place: Option<Epoch>,
    /// When to make its place last longer.
    stand_at: Millis,
    /// What it watched before that.
    watched: Option<Watched>,
    give_up_at: Option<Millis>,
    /// When the request was sent from whose time something is counted: that to stand, or to claim.
    sent: Millis,
    /// The lease that it has claimed.
    claimed: Option<Epoch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Stand,
    Look,
    Watch(Watched),
    Claim,
    Open {
        epoch: Epoch,
        version: RecordVersion,
        /// When the lease was asked for.
        counted_from: Millis,
    },
    Over(Option<Elected>),
}

/// The next place ahead in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ahead {
    /// The place, which tells it from others.
    pub place: Epoch,
    /// The revision of its record.
    pub revision: Revision,
}

/// What a candidate watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Watched {
    /// The term, until it is another than that.
    Term(Option<Revision>),
    /// The place ahead.
    Ahead(Ahead),
}

/// What a candidate asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CandidateAsk {
    /// Take a place in the line, or make it last longer. Answers: `Standing`, `Lost`.
    Stand,
    /// Read the line and the term. Answers: `Seen`, `Lost`.
    Look,
    /// Wait for a change, until that time. Answers: `Changed`, `Elapsed`, `Lost`.
    Watch {
        /// Of what.
        what: Watched,
        /// The time.
        until: Millis,
    },
    /// Lease the term. Answers: `Claimed`, `Held`, `Lost`.
    Claim,
    /// Write into the term's record that this term has begun. Answers: `Done`, `Refused`, `Lost`.
    Open {
        /// Under that lease.
        epoch: Epoch,
        /// The version that the write replaces.
        replaces: RecordVersion,
    },
    /// Nothing: it leads; or, with `None`, it has given up.
    Over(Option<Elected>),
}

/// A candidate that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elected {
    /// The number of its term.
    pub epoch: Epoch,
    /// When the request was sent that has given it its lease.
    pub counted_from: Millis,
}

impl Candidate {
    /// A candidate that gives up at that time if somebody else leads then.
    #[must_use]
    pub fn new(timing: Timing, give_up_at: Option<Millis>) -> Self {
        Self {
            timing,
            step: Step::Stand,
            place: None,
            stand_at: 0,
            watched: None,
            give_up_at,
            sent: 0,
            claimed: None,
        }
    }

    /// The lease that it has, or may have, and which must be given back if it does not lead.
    #[must_use]
    pub fn claimed(&self) -> Option<Epoch> {
        self.claimed
    }

    /// Its place in the line.
    #[must_use]
    pub fn place(&self) -> Option<Epoch> {
        self.place
    }

    /// What to ask now.
    pub fn next(&mut self, now: Millis) -> CandidateAsk {
        self.sent = match self.step {
            Step::Stand | Step::Claim => now,
            _ => 0,
        };
        match &self.step {
            Step::Stand => CandidateAsk::Stand,
            Step::Look => CandidateAsk::Look,
            Step::Watch(what) => {
                let until = self.give_up_at.unwrap_or(Millis::MAX);
                CandidateAsk::Watch {
                    what: *what,
                    until: until.min(self.stand_at),
                }
            }
            Step::Claim => CandidateAsk::Claim,
            Step::Open { epoch, version, .. } => CandidateAsk::Open {
                epoch: *epoch,
                replaces: *version,
            },
            Step::Over(elected) => CandidateAsk::Over(*elected),
        }
    }

    /// Goes on with the answer to what was asked last.
    pub fn answer(&mut self, now: Millis, answer: Answer) {
        self.step = match (&self.step, answer) {
            (Step::Stand, Answer::Standing(place)) => {
                self.stand_at = self.sent.saturating_add(self.timing.renew_every());
                // The same place: nothing is missed of what it watched.
                let watched = self.watched.take().filter(|_| self.place == Some(place));
                self.place = Some(place);
                watched.map_or(Step::Look, Step::Watch)
            }
            (Step::Look, Answer::Seen { place, .. }) if place.is_none() || place != self.place => {
                Step::Stand
            }
            (
                Step::Look,
                Answer::Seen {
                    ahead,
                    term,
                    is_led,
                    ..
                },
            ) => match ahead {
                Some(ahead) => self.watch(now, Watched::Ahead(ahead)),
                None if is_led => self.watch(now, Watched::Term(term)),
                None => Step::Claim,
            },
            (Step::Watch(watched), Answer::Elapsed) => {
                if self.give_up_at.is_some_and(|at| at <= now) {
                    Step::Over(None)
                } else {
                    self.watched = Some(*watched);
                    Step::Stand
                }
            }
            (
                Step::Claim,
                Answer::Claimed {
                    epoch,
                    version,
                    is_open,
                },
            ) => {
                self.claimed = Some(epoch);
                let counted_from = self.sent;
                match is_open {
                    true => self.lead(now, epoch, counted_from),
                    false => Step::Open {
                        epoch,
                        version,
                        counted_from,
                    },
                }
            }
            (Step::Claim, Answer::Held) => {
                self.claimed = None;
                Step::Look
            }
            (
                Step::Open {
                    epoch,
                    counted_from,
                    ..
                },
                Answer::Done,
            ) => self.lead(now, *epoch, *counted_from),
            // Whatever has become of it: if the lease is still its own, it is given again, from now on.
            (Step::Open { .. }, _) => Step::Claim,
            (Step::Watch(_), _) => Step::Look,
            (Step::Claim, _) => Step::Claim,
            (Step::Look, _) => Step::Look,
            (Step::Stand, _) => Step::Stand,
            (Step::Over(elected), _) => Step::Over(*elected),
        };
    }

    fn lead(&self, now: Millis, epoch: Epoch, counted_from: Millis) -> Step {
        // The answers may have taken so long that the term would be over.
        match now < counted_from.saturating_add(self.timing.works()) {
            true => Step::Over(Some(Elected {
                epoch,
                counted_from,
            })),
            false => Step::Claim,
        }
    }

    fn watch(&self, now: Millis, what: Watched) -> Step {
        match self.give_up_at {
            Some(at) if at <= now => Step::Over(None),
            _ => Step::Watch(what),
        }
    }

    /// The same candidate at a time that is so much earlier than `now`: for a search, in which only differences of times
    /// matter, and of what is past only that it is.
    #[doc(hidden)]
    pub fn shift(&mut self, by: Millis, now: Millis) {
        let give_up_at = self.give_up_at.as_mut();
        for time in [&mut self.stand_at].into_iter().chain(give_up_at) {
            *time = time.saturating_sub(by).max(now);
        }
        let counted = match &mut self.step {
            Step::Open { counted_from, .. } => counted_from,
            _ => &mut self.sent,
        };
        if *counted > 0 {
            let past = now.saturating_sub(self.timing.lease);
            *counted = counted.saturating_sub(by).max(past);
        }
    }
}
