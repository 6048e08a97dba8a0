//! A holder, until it leads no more.

use lockgate_core::{Epoch, Millis, RecordVersion};

use super::{Answer, Elected, Timing};

/// Leads until it resigns, or until its lease is over by its own clock: see the [module](super).
///
/// Call [`next`](Self::next), do what it asks, and give the answer to [`answer`](Self::answer).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    timing: Timing,
    epoch: Epoch,
    step: Step,
    /// When the request was sent that has made the lease last as it does.
    counted_from: Millis,
    renew_at: Millis,
    /// When the renewal was sent that has not been answered.
    sent: Millis,
    /// Whether it was called because its lease was not renewed: it stays so.
    is_called: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Leads,
    Renews,
    /// The lease is over, or another's.
    Lost,
    /// Writes the end of the term.
    Closes(RecordVersion),
    /// Reads whether its end is written.
    Reads,
    Releases {
        /// Whether a refusal is no news: the end of the term is written, or a request to release it may have been done.
        is_closed: bool,
    },
    Over(Resigned),
}

/// What a holder asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HolderAsk {
    /// Nothing until that time. Answer: `Elapsed`.
    Wait(Millis),
    /// Let the lease last from now on. Answers: `Done`, `Refused`, `Lost`.
    Renew,
    /// Nothing: it leads no more, and may still [resign](Holder::resign).
    Lost,
    /// Write the end of the term under its lease. Answers: `Done`, `Refused`, `Lost`.
    Close {
        /// The version that the write replaces.
        replaces: RecordVersion,
    },
    /// Read the term's record. Answers: `Term`, `Lost`.
    Read,
    /// End the lease with that epoch. Answers: `Done`, `Refused`, `Lost`.
    Release,
    /// Nothing.
    Over(Resigned),
}

/// How it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resigned {
    /// The end of the term is written, and the lease is given back or has ended.
    Done,
    /// The lease had ended before.
    TooLate,
    /// Whether the end of the term is written is not known. The lease has ended by now.
    Unknown,
}

impl Holder {
    /// The holder of a term that has just begun.
    #[must_use]
    pub fn new(timing: Timing, elected: Elected) -> Self {
        let Elected {
            epoch,
            counted_from,
        } = elected;
        Self {
            timing,
            epoch,
            step: Step::Leads,
            counted_from,
            renew_at: counted_from.saturating_add(timing.renew_every()),
            sent: 0,
            is_called: false,
        }
    }

    /// The number of its term.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Until when it may work; 0: no more.
    #[must_use]
    pub fn stop_at(&self) -> Millis {
        match self.step {
            Step::Leads | Step::Renews => self.counted_from.saturating_add(self.timing.works()),
            _ => 0,
        }
    }

    /// When its lease ends at the latest that it can know, and its successor may lead.
    #[must_use]
    pub fn lease_end(&self) -> Millis {
        self.counted_from.saturating_add(self.timing.lease)
    }

    /// Whether it was called away because its lease was not renewed in time, or is lost.
    #[must_use]
    pub fn is_called(&self) -> bool {
        self.is_called
    }

    /// What to ask now. Look at [`stop_at`](Self::stop_at) and [`is_called`](Self::is_called) behind it.
    pub fn next(&mut self, now: Millis) -> HolderAsk {
        self.advance(now);
        match self.step {
            Step::Leads if self.renew_at <= now => {
                self.step = Step::Renews;
                self.sent = now;
                HolderAsk::Renew
            }
            Step::Leads => {
                let call = match self.is_called {
                    true => Millis::MAX,
                    false => self.call_at(),
                };
                HolderAsk::Wait(self.renew_at.min(self.stop_at()).min(call))
            }
            Step::Renews => HolderAsk::Renew,
            Step::Lost => HolderAsk::Lost,
            Step::Closes(replaces) => HolderAsk::Close { replaces },
            Step::Reads => HolderAsk::Read,
            Step::Releases { .. } => HolderAsk::Release,
            Step::Over(resigned) => HolderAsk::Over(resigned),
        }
    }

    /// Goes on with the answer to what was asked last.
    pub fn answer(&mut self, now: Millis, answer: Answer) {
        self.advance(now);
        let is_past = now >= self.lease_end();
        self.step = match (self.step, answer) {
            (Step::Renews, Answer::Done) => {
                self.counted_from = self.sent;
                self.renew_at = self.sent.saturating_add(self.timing.renew_every());
                Step::Leads
            }
            (Step::Renews, Answer::Refused) => {
                self.is_called = true;
                Step::Lost
            }
            (Step::Renews, _) => {
                let pause = (self.timing.renew_every() / 8).max(1);
                self.renew_at = now.saturating_add(pause);
                Step::Leads
            }
            (Step::Closes(_), Answer::Done) => Step::Releases { is_closed: true },
            // It may have been written by a request whose answer was lost.
            (Step::Closes(_), _) => Step::Reads,
            (Step::Reads, Answer::Term { is_own: false, .. }) => Step::Over(Resigned::TooLate),
            (
                Step::Reads,
                Answer::Term {
                    is_closed, version, ..
                },
            ) => match is_closed {
                true => Step::Releases { is_closed: true },
                false => Step::Closes(version),
            },
            (Step::Reads, _) if is_past => Step::Over(Resigned::Unknown),
            (Step::Releases { .. }, Answer::Done) => Step::Over(Resigned::Done),
            (Step::Releases { is_closed }, Answer::Refused) => Step::Over(match is_closed {
                true => Resigned::Done,
                false => Resigned::TooLate,
            }),
            (Step::Releases { .. }, _) if is_past => Step::Over(Resigned::Done),
            (Step::Releases { .. }, Answer::Lost) => Step::Releases { is_closed: true },
            (step, _) => step,
        };
        self.advance(now);
    }

    /// The store has shown that another one has the lease, or nobody.
    pub fn taken(&mut self) {
        if matches!(self.step, Step::Leads | Step::Renews) {
            self.is_called = true;
            self.step = Step::Lost;
        }
    }

    /// Ends the term, when nothing of the leader is under way any more. `closes`: the version of the record into which
    /// its end is written; `None`: that is not written.
    pub fn resign(&mut self, closes: Option<RecordVersion>) {
        if matches!(self.step, Step::Leads | Step::Renews | Step::Lost) {
            self.step = match closes {
                Some(version) => Step::Closes(version),
                None => Step::Releases { is_closed: false },
            };
        }
    }

    /// When time alone changes what it is next: it is called, and then it is over. `None`: it is over.
    #[must_use]
    pub fn changes_at(&self) -> Option<Millis> {
        match (self.stop_at(), self.is_called) {
            (0, _) => None,
            (stop_at, true) => Some(stop_at),
            (_, false) => Some(self.call_at()),
        }
    }

    fn call_at(&self) -> Millis {
        self.stop_at().saturating_sub(self.timing.notice)
    }

    /// Looks at its clock, also while a request is not answered.
    pub fn advance(&mut self, now: Millis) {
        if !matches!(self.step, Step::Leads | Step::Renews) {
            return;
        }
        self.is_called |= now >= self.call_at();
        if now >= self.stop_at() {
            self.step = Step::Lost;
        }
    }

    /// The same holder at a time that is so much earlier than `now`: for a search, in which only differences of times
    /// matter, and of what is past only that it is.
    #[doc(hidden)]
    pub fn shift(&mut self, by: Millis, now: Millis) {
        let past = now.saturating_sub(self.timing.lease);
        self.counted_from = self.counted_from.saturating_sub(by).max(past);
        let leads = matches!(self.step, Step::Leads | Step::Renews);
        self.renew_at = match leads {
            true => self.renew_at.saturating_sub(by).max(now),
            false => 0,
        };
        self.sent = match self.step {
            Step::Renews => self.sent.saturating_sub(by).max(past),
            _ => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use lockgate_core::{ElectionName, HolderName, coordination::Campaign};

    use super::*;

    /// A release whose answer was lost may have been done: that the lease is gone then is no news.
    #[test]
    fn a_release_that_is_asked_for_again_is_not_too_late() {
        let (election, name) = (ElectionName::new("x"), HolderName::new("a"));
        let campaign = Campaign::new(election.unwrap(), name.unwrap());
        let elected = Elected {
            epoch: Epoch(1),
            counted_from: 0,
        };
        let lock = Holder::new(Timing::of(&campaign).unwrap(), elected);
        for (answers, expected) in [
            (&[Answer::Refused][..], Resigned::TooLate),
            (&[Answer::Lost, Answer::Refused], Resigned::Done),
            (&[Answer::Lost, Answer::Done], Resigned::Done),
        ] {
            let mut lock = lock.clone();
            lock.resign(None);
            for answer in answers {
                assert_eq!(lock.next(1), HolderAsk::Release);
                lock.answer(1, answer.clone());
            }
            assert_eq!(lock.next(1), HolderAsk::Over(expected));
        }
    }
}
