//! What a process asks of the store, and what follows from the answers. It does no I/O.
//!
//! A key has two records. The *state* has the machine of the key as its value; it is never leased, so that everybody can
//! add a trigger by replacing the version that they have read. The *run* has no value: its lease says that somebody
//! runs, and the lease's epoch is the run's token. It is deleted when the lease ends.
//!
//! # Invariants
//! - Whoever changes the state replaces the version that it has decided on. A run starts in a write by the holder of the
//!   run's lease, with the lease's epoch as its token, and a look after the write that the lease still lasts: so no run
//!   with a higher token has started before. It ends in a write that finds its token in the state.
//! - The state is deleted only when every trigger in it is covered, or when its only trigger is that of the caller whose
//!   run has failed. So a trigger whose state has gone, or has been made anew, is covered.
//! - A caller that waits watches the run from the revision that it saw before it looked whether it is covered. Every run
//!   gives its lease back behind its last write, so who waits is woken once for each run, and not by those who come.
//! - A run ends by its own word only if its lease lasted when that was asked for.
//! - A write whose answer is lost is looked up: the state names the last writes. A read is asked again before it comes here.

use std::collections::VecDeque;

use bytes::Bytes;
use lockgate_core::{Epoch, RECORD_BYTES_MAX, RecordVersion, Revision};

use super::super::{Batch, KeyState, Merge, Rejection, Token};

/// Names a write: who writes, and which of its calls. No two calls have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// A random number of the writer's.
    pub writer: u64,
    /// The number of its call.
    pub call: u64,
}

/// How many writes a state names. A caller whose answer is lost, and that does not look before so many others have
/// written, enters again: its trigger may cause a run more.
pub(super) const RECENT_MAX: usize = 16;

/// The value of a key's state record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedState {
    /// The write that made it.
    pub(super) born: Op,
    pub(super) key: KeyState<Bytes>,
    /// The last writes, and the numbers of the triggers that they added.
    pub(super) recent: VecDeque<(Op, u64)>,
}

/// A state as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The version to replace.
    pub version: RecordVersion,
    /// The value.
    pub state: SharedState,
}

/// A call of the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ask {
    /// Lease the run, as a holder of one's own.
    Lease,
    /// Read the run.
    ReadRun,
    /// Read the state.
    ReadState,
    /// Write the state.
    Write {
        /// The new one.
        state: SharedState,
        /// In place of this.
        replaces: Option<RecordVersion>,
    },
    /// Delete the state.
    Delete {
        /// If it is this.
        replaces: RecordVersion,
    },
    /// Release the run's lease.
    Release(Epoch),
    /// Wait until the run is another than this revision.
    Watch(Option<Revision>),
}

impl Ask {
    /// Whether it changes nothing, so that it can be asked again.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, Self::ReadRun | Self::ReadState | Self::Watch(_))
    }
}

/// What the store has answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The run is leased to the caller.
    Leased(Epoch),
    /// The run is leased to another.
    Held,
    /// The run: its revision, and the epoch of its lease.
    Run(Option<(Revision, Option<Epoch>)>),
    /// The state.
    State(Option<Seen>),
    /// It is done.
    Done,
    /// It is not done: there is another version, or the lease has ended.
    Not,
    /// It may be done: the answer was lost.
    Lost,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step<T> {
    /// Ask this, and go on with the answer.
    Ask(Ask),
    /// It is over.
    Over(T),
}

/// How an [`Enter`] is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The caller runs.
    Run {
        /// The run's token.
        token: Epoch,
        /// What it has to do.
        batch: Batch<Bytes>,
        /// How many runs in a row have failed before.
        failures: u32,
    },
    /// A run has succeeded that covers the caller: the last one, if it can still be seen.
    Covered(Option<Token>),
    /// The trigger is not accepted.
    Rejected(Rejection),
}

/// How an [`End`] is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// It is written.
    Done,
    /// The run was not the present one.
    Stale,
    /// An answer was lost, and the run's lease with it: the end may be written.
    Unknown,
}

/// One caller that enters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Enter {
    op: Op,
    payload: Bytes,
    /// The number of its trigger, and the state that accepted it.
    accepted: Option<(u64, Op)>,
    /// The lease that it has.
    leased: Option<Epoch>,
    /// The run as it was seen before the state.
    run: Option<Revision>,
    /// The state has no room for the payload, so the run has it only here, and the trigger is not accepted before it runs.
    is_apart: bool,
    /// What comes of the write that it has asked for, and the trigger that is accepted with it.
    writes: Option<Box<(Outcome, u64, Op)>>,
    /// Its run, which has started if the lease still lasts.
    starts: Option<Box<Outcome>>,
    /// How it is over as soon as its lease is released.
    releases: Option<Box<Outcome>>,
}

/// One run that ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct End {
    op: Op,
    token: Epoch,
    succeeds: bool,
    /// It has looked whether its lease lasts.
    has_looked: bool,
    /// An answer was lost.
    is_lost: bool,
    /// How it is over as soon as its lease is released.
    releases: Option<Ended>,
}

impl SharedState {
    fn new(born: Op) -> Self {
        Self {
            born,
            key: KeyState::default(),
            recent: VecDeque::new(),
        }
    }

    /// The machine of the key.
    #[must_use]
    pub fn key(&self) -> &KeyState<Bytes> {
        &self.key
    }

    /// The machine, for a model that plants a mistake in it.
    pub fn key_mut(&mut self) -> &mut KeyState<Bytes> {
        &mut self.key
    }

    fn note(&mut self, op: Op, trigger: u64) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((op, trigger));
    }

    fn find(&self, op: Op) -> Option<u64> {
        let mut recent = self.recent.iter();
        recent
            .find(|(of, _)| *of == op)
            .map(|(_, trigger)| *trigger)
    }
}

impl Enter {
    /// A caller with a trigger. The first thing to do is [`Ask::Lease`].
    #[must_use]
    pub fn new(op: Op, payload: Bytes) -> Self {
        Self {
            op,
            payload,
            accepted: None,
            leased: None,
            run: None,
            is_apart: false,
            writes: None,
            starts: None,
            releases: None,
        }
    }

    /// The name of its writes.
    #[must_use]
    pub fn op(&self) -> Op {
        self.op
    }

    /// The lease is no more the caller's to give back: it runs, or has given it back.
    pub fn forget_lease(&mut self) {
        self.leased = None;
    }

    /// Whether a state is known to have its trigger.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.accepted.is_some()
    }

    /// The lease that the caller has while it does not run yet.
    #[must_use]
    pub fn leased(&self) -> Option<Epoch> {
        self.leased
    }

    /// Goes on with the answer to what was asked last.
    pub fn next(&mut self, merge: &Merge<Bytes>, answer: Answer) -> Step<Outcome> {
        if let Some(outcome) = self.releases.take() {
            return Step::Over(*outcome);
        }
        if let Some(written) = self.writes.take() {
            if answer != Answer::Done {
                return Step::Ask(Ask::ReadState);
            }
            let (outcome, trigger, born) = *written;
            // What is apart is accepted when it runs: nobody else has its payload.
            if !self.is_apart {
                self.accepted = Some((trigger, born));
            }
            if self.leased.is_some() {
                self.starts = Some(Box::new(outcome));
            }
            // Or it waits now, and the other run may have ended meanwhile.
            return Step::Ask(Ask::ReadRun);
        }
        if let (Some(run), Answer::Run(now)) = (self.starts.take(), &answer) {
            // The state may have been deleted and made anew by runs with higher tokens since it was read. They have not
            // if the lease has lasted until now.
            if now.is_some_and(|(_, epoch)| epoch.is_some() && epoch == self.leased) {
                return Step::Over(*run);
            }
            self.leased = None;
        }
        match answer {
            Answer::Leased(epoch) => {
                self.leased = Some(epoch);
                Step::Ask(Ask::ReadState)
            }
            Answer::Run(None | Some((_, None))) => Step::Ask(Ask::Lease),
            Answer::Run(Some((revision, Some(_)))) => {
                self.run = Some(revision);
                Step::Ask(Ask::ReadState)
            }
            Answer::State(seen) => self.decide(merge, seen),
            // Leasing again gives the same lease, if there is one.
            Answer::Lost => Step::Ask(Ask::Lease),
            // Somebody else runs, or a watch has seen a change.
            Answer::Held | Answer::Done | Answer::Not => Step::Ask(Ask::ReadRun),
        }
    }

    fn decide(&mut self, merge: &Merge<Bytes>, seen: Option<Seen>) -> Step<Outcome> {
        let (mut state, replaces) = seen.map(|seen| (seen.state, seen.version)).unzip();
        // An answer may have been lost.
        if let (None, Some(state)) = (self.accepted, &state) {
            let trigger = state.find(self.op);
            self.accepted = trigger.map(|trigger| (trigger, state.born));
        }
        if let Some((trigger, born)) = self.accepted {
            let of_it = state.as_ref().filter(|state| state.born == born);
            match of_it.map(|state| &state.key) {
                Some(key) if key.covered() < trigger => {}
                key => {
                    let by = key.map(KeyState::covered_by);
                    return self.release(Outcome::Covered(by));
                }
            }
        }
        let mut state = state.take().unwrap_or_else(|| SharedState::new(self.op));
        let token = self.leased.map(|epoch| Token(epoch.0));
        if let (Some(token), Some(epoch)) = (token, self.leased)
            && state.key.running() == Some(token)
        {
            self.starts = Some(Box::new(self.run(merge, &state.key, epoch)));
            return Step::Ask(Ask::ReadRun);
        }
        let trigger;
        if let Some((accepted, _)) = self.accepted {
            trigger = accepted;
            if self.leased.is_none() {
                return Step::Ask(Ask::Watch(self.run));
            }
        } else {
            let before = state.key.clone();
            let accepted = state.key.accept(self.payload.clone(), merge);
            let bytes_max = RECORD_BYTES_MAX;
            let accepted = match accepted {
                Ok(_) if super::codec::encoded_len(&state) > bytes_max => {
                    Err(Rejection::Bytes { max: bytes_max })
                }
                accepted => accepted,
            };
            self.is_apart = accepted.is_err();
            trigger = match accepted {
                Ok(trigger) => trigger,
                // Triggers of callers that have gone must not close the key. Who runs next has its own payload in its
                // hands, and the state can do without: a run that fails covers nobody.
                Err(_) if token.is_some() && !before.is_idle() => {
                    state.key = before;
                    state.key.accept_apart()
                }
                Err(why) => return self.release(Outcome::Rejected(why)),
            };
            if !self.is_apart {
                state.note(self.op, trigger);
            }
        }
        let outcome = match (token, self.leased) {
            (Some(token), Some(epoch)) => {
                if state.key.start(merge, token, None).is_err() {
                    // A later run has started: the lease has ended.
                    self.leased = None;
                    return Step::Ask(Ask::ReadRun);
                }
                self.run(merge, &state.key, epoch)
            }
            _ => Outcome::Covered(None),
        };
        self.writes = Some(Box::new((outcome, trigger, state.born)));
        Step::Ask(Ask::Write { state, replaces })
    }

    fn run(&self, merge: &Merge<Bytes>, key: &KeyState<Bytes>, token: Epoch) -> Outcome {
        let batch = key.running_batch().map(|batch| (**batch).clone());
        let batch = batch.unwrap_or_default();
        Outcome::Run {
            token,
            batch: match self.is_apart {
                true => merge.join_safely(batch, merge.one(self.payload.clone())),
                false => batch,
            },
            failures: key.failures(),
        }
    }

    fn release(&mut self, outcome: Outcome) -> Step<Outcome> {
        match self.leased.take() {
            Some(epoch) => {
                self.releases = Some(Box::new(outcome));
                Step::Ask(Ask::Release(epoch))
            }
            None => Step::Over(outcome),
        }
    }
}

impl End {
    /// A run that has succeeded or failed. The first thing to do is [`Ask::ReadRun`].
    #[must_use]
    pub fn new(op: Op, token: Epoch, succeeds: bool) -> Self {
        Self {
            op,
            token,
            succeeds,
            has_looked: false,
            is_lost: false,
            releases: None,
        }
    }

    /// Goes on with the answer to what was asked last.
    pub fn next(&mut self, answer: Answer) -> Step<Ended> {
        if let Some(ended) = self.releases {
            return Step::Over(ended);
        }
        match answer {
            Answer::State(seen) => self.decide(seen),
            Answer::Run(run) => {
                let is_ours = run.is_some_and(|(_, epoch)| epoch == Some(self.token));
                match (std::mem::replace(&mut self.has_looked, true), is_ours) {
                    (false, true) => Step::Ask(Ask::ReadState),
                    (false, false) => Step::Over(Ended::Stale),
                    // Nobody else can have ended the run while its lease lasts.
                    (true, true) => self.release(Ended::Done),
                    (true, false) => self.release(Ended::Unknown),
                }
            }
            Answer::Done => self.release(Ended::Done),
            Answer::Lost => {
                self.is_lost = true;
                Step::Ask(Ask::ReadState)
            }
            _ => Step::Ask(Ask::ReadState),
        }
    }

    fn decide(&mut self, seen: Option<Seen>) -> Step<Ended> {
        let token = Token(self.token.0);
        let Some(seen) = seen else {
            return self.is_not_there();
        };
        let Seen {
            version: replaces,
            mut state,
            ..
        } = seen;
        if state.key.running() != Some(token) {
            let is_written = state.find(self.op).is_some() || state.key.covered_by() == token;
            return match is_written {
                true => self.release(Ended::Done),
                false => self.is_not_there(),
            };
        }
        if self.succeeds {
            // It is the present run.
            let _ = state.key.succeed(token);
            if state.key.is_idle() {
                return Step::Ask(Ask::Delete { replaces });
            }
            state.note(self.op, 0);
            let replaces = Some(replaces);
            return Step::Ask(Ask::Write { state, replaces });
        }
        // The run stays in the state: who leases next finds it dead, and has what it had. If nobody else has a trigger
        // there, nothing need stay.
        let open = state.key.accepted - state.key.covered;
        match open <= 1 && state.key.waiting().is_none() {
            true => Step::Ask(Ask::Delete { replaces }),
            false => self.release(Ended::Done),
        }
    }

    /// The state does not show the run: another has started in its place, or a lost answer said that it is ended.
    fn is_not_there(&mut self) -> Step<Ended> {
        match self.is_lost {
            true => Step::Ask(Ask::ReadRun),
            false => self.release(Ended::Stale),
        }
    }

    fn release(&mut self, ended: Ended) -> Step<Ended> {
        self.releases = Some(ended);
        Step::Ask(Ask::Release(self.token))
    }
}
