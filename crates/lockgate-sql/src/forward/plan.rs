//! Decides what a forwarder sends, and what becomes of rows that were not accepted. It is pure: times and random
//! numbers come in.
//!
//! Rows of one key are one *lane*, and a row without a key is a lane of its own. A batch has one row of a lane at
//! most: a sink may accept a message though the one before it in the batch has failed, which would break the
//! order of a key.
//!
//! Two clocks are told apart. The database's wall clock (`database_now`, `first_sent`) judges how old a claim is,
//! and other forwarders read it too. The forwarder's own clock (`now`) never jumps, and measures what passes
//! while it runs.

use std::collections::{HashMap, HashSet, VecDeque};

use lockgate_core::{Fate, Millis};

use super::{Candidate, Found, Parked, Skipped};

/// Lanes whose failures are remembered. A forgotten one is tried sooner, in its order all the same.
const FAILING_MAX: usize = 1_000;

/// Rows of one key in a pass. They go one by one, and what was added meanwhile is seen by the next look.
const LANE_MAX: usize = 100;

/// The limits that a forwarder keeps.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// How long after its first send, as the database's clock tells, a row may be sent again.
    pub(crate) resend_max: Millis,
    pub(crate) batch_max: usize,
    pub(crate) batch_bytes_max: u64,
    pub(crate) backoff_min: Millis,
    pub(crate) backoff_max: Millis,
}

/// What a forwarder remembers from one look at the table to the next.
#[derive(Debug)]
pub(crate) struct Plan {
    rules: Rules,
    failing: HashMap<Lane, Failing>,
    /// Batches, one after the other, of which nothing was decided.
    away: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Lane {
    Key(String),
    Row(i64),
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    times: u32,
    until: Millis,
}

/// The rows of one look, in their order.
#[derive(Debug)]
pub(crate) struct Pass {
    waiting: VecDeque<Waiting>,
    /// Lanes of which a row has failed.
    blocked: HashSet<Lane>,
}

#[derive(Debug)]
struct Waiting {
    candidate: Candidate,
    /// By the forwarder's clock; `None`: it was not sent before.
    resend_until: Option<Millis>,
}

/// What the sink said of a row.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Accepted,
    Failed { fate: Fate, reason: String },
}

/// What follows from the answers for a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Accepted: they leave.
    pub(crate) done: Vec<i64>,
    /// It is certain that they were never accepted.
    pub(crate) unclaimed: Vec<i64>,
    pub(crate) parked: Vec<Parked>,
    /// Nothing was decided: do nothing for so long.
    pub(crate) wait: Option<Millis>,
}

impl Lane {
    fn of(candidate: &Candidate) -> Self {
        match &candidate.key {
            Some(key) => Self::Key(key.clone()),
            None => Self::Row(candidate.id),
        }
    }
}

impl Plan {
    pub(crate) fn new(rules: Rules) -> Self {
        Self {
            rules,
            failing: HashMap::new(),
            away: 0,
        }
    }

    /// The lanes that are not tried now.
    pub(crate) fn skipped(&self, now: Millis) -> Skipped {
        let mut skipped = Skipped::default();
        for (lane, failing) in &self.failing {
            if failing.until > now {
                match lane {
                    Lane::Key(key) => skipped.keys.push(key.clone()),
                    Lane::Row(id) => skipped.ids.push(*id),
                }
            }
        }
        skipped
    }

    /// The keys that have all rows of a full look, if they are too few to fill a batch. Others may wait behind them.
    pub(crate) fn crowding(&self, found: &Found) -> Option<Vec<String>> {
        if !found.more {
            return None;
        }
        let mut keys = HashSet::new();
        for candidate in &found.candidates {
            keys.insert(candidate.key.as_ref()?);
            if keys.len() == self.rules.batch_max {
                return None;
            }
        }
        (!keys.is_empty()).then(|| keys.into_iter().cloned().collect())
    }

    /// Rows to send, and rows of which nobody can say whether they were accepted: they were sent, no answer
    /// came, and the sink may have forgotten their unique ids.
    pub(crate) fn pass(&self, found: Found, now: Millis) -> (Pass, Vec<Parked>) {
        let mut pass = Pass {
            waiting: VecDeque::with_capacity(found.candidates.len()),
            blocked: HashSet::new(),
        };
        let mut parked = Vec::new();
        let mut rows = HashMap::new();
        for candidate in found.candidates {
            let lane = Lane::of(&candidate);
            if pass.blocked.contains(&lane) {
                continue;
            }
            let rows: &mut usize = rows.entry(lane).or_default();
            *rows += 1;
            if *rows > LANE_MAX {
                continue;
            }
            let left = candidate.first_sent.map(|first_sent| {
                // A clock that was set back says nothing about the age.
                let age = u64::try_from(found.now.saturating_sub(first_sent)).ok()?;
                self.rules.resend_max.checked_sub(age)
            });
            match left {
                Some(None) => {
                    pass.blocked.insert(Lane::of(&candidate));
                    parked.push(Parked {
                        id: candidate.id,
                        reason: format!(
                            "it was sent {} ms after 1970 and not answered, and its unique id may be forgotten by \
                             now: it may have been accepted",
                            candidate.first_sent.unwrap_or_default()
                        ),
                        in_doubt: true,
                    });
                }
                left => pass.waiting.push_back(Waiting {
                    candidate,
                    resend_until: left.flatten().map(|left| now.saturating_add(left)),
                }),
            }
        }
        (pass, parked)
    }

    /// The next batch: the oldest rows, one of each lane, as many as the sink takes. Empty: the pass is over.
    pub(crate) fn batch(&self, pass: &mut Pass, now: Millis) -> Vec<Candidate> {
        let (mut batch, mut bytes) = (Vec::new(), 0_u64);
        let mut lanes = pass.blocked.clone();
        let mut rest = VecDeque::with_capacity(pass.waiting.len());
        while let Some(waiting) = pass.waiting.pop_front() {
            let lane = Lane::of(&waiting.candidate);
            // The next look at the table judges it.
            if waiting.resend_until.is_some_and(|until| until < now) {
                pass.blocked.insert(lane.clone());
                lanes.insert(lane);
                continue;
            }
            if lanes.contains(&lane) {
                if !pass.blocked.contains(&lane) {
                    rest.push_back(waiting);
                }
                continue;
            }
            let size = waiting.candidate.size;
            let fits = bytes.saturating_add(size) <= self.rules.batch_bytes_max;
            // One that is larger than a batch goes alone, and the sink says what it thinks of it.
            if batch.len() == self.rules.batch_max || !(fits || batch.is_empty()) {
                rest.push_back(waiting);
                rest.append(&mut pass.waiting);
                break;
            }
            bytes = bytes.saturating_add(size);
            lanes.insert(lane);
            batch.push(waiting.candidate);
        }
        pass.waiting = rest;
        batch
    }

    /// Takes the answers for a batch.
    pub(crate) fn answered(
        &mut self,
        pass: &mut Pass,
        answers: Vec<(Candidate, Outcome)>,
        now: Millis,
        random: u64,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        for (candidate, outcome) in answers {
            let (lane, id) = (Lane::of(&candidate), candidate.id);
            let (fate, reason) = match outcome {
                Outcome::Accepted => {
                    self.failing.remove(&lane);
                    verdict.done.push(id);
                    continue;
                }
                Outcome::Failed { fate, reason } => (fate, reason),
            };
            pass.blocked.insert(lane.clone());
            if fate.is_never() {
                self.failing.remove(&lane);
                let in_doubt = candidate.first_sent.is_some();
                verdict.parked.push(Parked {
                    id,
                    reason,
                    in_doubt,
                });
                continue;
            }
            if fate != Fate::Unknown && candidate.first_sent.is_none() {
                verdict.unclaimed.push(id);
            }
            let times = self.failing.get(&lane).map_or(0, |failing| failing.times);
            let until = now.saturating_add(self.delay(times, random ^ id.unsigned_abs()));
            let times = times.saturating_add(1);
            self.failing.insert(lane, Failing { times, until });
        }
        self.forget_some();
        if verdict.done.is_empty() && verdict.parked.is_empty() {
            verdict.wait = Some(self.delay(self.away, random));
            self.away = self.away.saturating_add(1);
        } else {
            self.away = 0;
        }
        verdict
    }

    /// How long to wait after so many failures: between a half and all of a span that doubles.
    pub(crate) fn delay(&self, times: u32, random: u64) -> Millis {
        let Rules {
            backoff_min,
            backoff_max,
            ..
        } = self.rules;
        let span = backoff_min
            .saturating_mul(1 << times.min(32))
            .min(backoff_max);
        let half = span / 2;
        half + random % (span - half + 1)
    }

    fn forget_some(&mut self) {
        while self.failing.len() > FAILING_MAX {
            let soonest = self.failing.iter().min_by_key(|(_, failing)| failing.until);
            let Some(soonest) = soonest.map(|(lane, _)| lane.clone()) else {
                return;
            };
            self.failing.remove(&soonest);
        }
    }
}
