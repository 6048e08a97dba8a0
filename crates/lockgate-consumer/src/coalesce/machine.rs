//! What decides: the state of one key, and how triggers that wait become one.
//!
//! # Invariants
//! - At most one run and one waiting batch. A run covers every trigger that was accepted before it started, and that
//!   no run had covered.
//! - `covered` is at most `running.upto`, which is at most `accepted`. A trigger is covered when `covered` has reached
//!   its number, and only a run that started after the trigger was accepted moves it there.
//! - Tokens rise. A call with a token that is not the running one's changes nothing.
//! - What a failed run had is in the next batch, before what came later.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use lockgate_core::Millis;
use smallvec::SmallVec;

/// Names a run: higher than that of every earlier run of the key. Hand it to whoever the run writes to, so that a run
/// from before can be refused (a *fencing token*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What triggers that wait leave to the run that covers them all.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Merge<P> {
    /// The payload of the first one: for payloads that are all alike.
    KeepFirst,
    /// The payload of the last one: for values of which only the newest counts.
    #[default]
    KeepLast,
    /// What the function makes of the earlier and the later payload. It runs under a lock, so it must be quick, and
    /// must not use the coalescer. If it panics, the trigger at hand is not accepted; if it does so after a failed run,
    /// the next run has both payloads. `f(f(a, b), c)` must be as good as `f(a, f(b, c))`.
    With(Arc<MergeFn<P>>),
    /// All payloads, in the order of the triggers. A trigger that finds `max` waiting, or `2 * max` waiting and running
    /// together, is rejected. So a run has at most `max`, and after a failure at most `2 * max`.
    Append {
        /// The most payloads that wait; 1 or more.
        max: usize,
    },
    /// No payload. The run is told the [number of triggers](Batch::triggers), as it is with any other policy.
    Count,
}

/// Makes one payload of an earlier and a later one.
pub type MergeFn<P> = dyn Fn(P, P) -> P + Send + Sync;

/// What one run has to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch<P> {
    payloads: SmallVec<[P; 1]>,
    triggers: u64,
}

/// What became of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Verdict {
    /// Nobody ran: it runs at once.
    Run(Token),
    /// Somebody runs, and it is the first to wait for the next run.
    Pending,
    /// Somebody runs, another waits, and the next run covers it too.
    Covered,
    /// It is not accepted.
    Rejected(Rejection),
}

/// Why a trigger is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// Somebody runs, and the caller did not want to wait.
    #[error("somebody runs for this key")]
    Busy,
    /// As many callers run or wait as may.
    #[error("{max} callers run or wait (callers_max): try again later")]
    Callers {
        /// How many may.
        max: usize,
    },
    /// The payloads have as many bytes as they may.
    #[error("the payloads have their {max} bytes (bytes_max): try again later")]
    Bytes {
        /// How many they may have together.
        max: usize,
    },
    /// As many payloads of this key wait as may.
    #[error("{max} payloads of this key wait (Merge::Append): try again later")]
    Pending {
        /// How many may.
        max: usize,
    },
}

/// The run is not the key's present one: it has ended, or it was expired and another may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("run {token} is not the present one of its key")]
pub struct Stale {
    /// The token that was given.
    pub token: Token,
}

/// The state of one key. It is pure: tokens and time come in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyState<P> {
    /// The number of the last trigger that was accepted.
    pub(super) accepted: u64,
    /// Every trigger up to this number is covered.
    pub(super) covered: u64,
    /// The last run that succeeded.
    pub(super) covered_by: Token,
    /// The last run that started.
    pub(super) started: Token,
    /// How many runs in a row have failed.
    pub(super) failures: u32,
    pub(super) running: Option<Running<P>>,
    pub(super) waiting: Option<Batch<P>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Running<P> {
    pub(super) token: Token,
    /// It covers the triggers up to this number.
    pub(super) upto: u64,
    pub(super) batch: Arc<Batch<P>>,
    /// When its lease ends.
    pub(super) until: Option<Millis>,
}

impl<P> fmt::Debug for Merge<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeepFirst => f.write_str("KeepFirst"),
            Self::KeepLast => f.write_str("KeepLast"),
            Self::With(_) => f.write_str("With(..)"),
            Self::Append { max } => f.debug_struct("Append").field("max", max).finish(),
            Self::Count => f.write_str("Count"),
        }
    }
}

impl<P> Merge<P> {
    /// [`With`](Self::With) that function.
    pub fn with(merge: impl Fn(P, P) -> P + Send + Sync + 'static) -> Self {
        Self::With(Arc::new(merge))
    }

    /// What a single trigger leaves.
    pub fn one(&self, payload: P) -> Batch<P> {
        let payloads = match self {
            Self::Count => SmallVec::new(),
            _ => SmallVec::from_iter([payload]),
        };
        Batch {
            payloads,
            triggers: 1,
        }
    }

    /// Makes one batch of two, whatever a function does: if it panics, the batch has the payloads of both.
    pub(super) fn join_safely(&self, earlier: Batch<P>, later: Batch<P>) -> Batch<P>
    where
        P: Clone,
    {
        let Self::With(_) = self else {
            return self.join(earlier, later);
        };
        let joined = {
            let (earlier, later) = (earlier.clone(), later.clone());
            // Both are copies, so nothing that the function has touched is used again.
            catch_unwind(AssertUnwindSafe(|| self.join(earlier, later)))
        };
        joined.unwrap_or_else(|_| {
            let triggers = earlier.triggers + later.triggers;
            let payloads = earlier.payloads.into_iter().chain(later.payloads);
            Batch {
                payloads: payloads.collect(),
                triggers,
            }
        })
    }

    /// Makes one batch of two.
    pub fn join(&self, earlier: Batch<P>, later: Batch<P>) -> Batch<P> {
        let triggers = earlier.triggers + later.triggers;
        let (mut first, last) = (earlier.payloads, later.payloads);
        let payloads = match self {
            Self::KeepFirst if first.is_empty() => last,
            Self::KeepFirst => first,
            Self::KeepLast if last.is_empty() => first,
            Self::KeepLast => last,
            Self::With(merge) => {
                let merged = first.into_iter().chain(last).reduce(&**merge);
                merged.into_iter().collect()
            }
            Self::Append { .. } => {
                first.extend(last);
                first
            }
            Self::Count => SmallVec::new(),
        };
        Batch { payloads, triggers }
    }
}

impl<P> Batch<P> {
    pub(super) fn from_parts(payloads: SmallVec<[P; 1]>, triggers: u64) -> Self {
        Self { payloads, triggers }
    }

    /// The payloads: one, or with [`Merge::Append`] one and more, or with [`Merge::Count`] none.
    #[must_use]
    pub fn payloads(&self) -> &[P] {
        &self.payloads
    }

    /// How many triggers it has, those included whose callers have given up.
    #[must_use]
    pub fn triggers(&self) -> u64 {
        self.triggers
    }
}

impl<P> Default for Batch<P> {
    fn default() -> Self {
        Self {
            payloads: SmallVec::new(),
            triggers: 0,
        }
    }
}

impl<P> Default for KeyState<P> {
    fn default() -> Self {
        Self {
            accepted: 0,
            covered: 0,
            covered_by: Token(0),
            started: Token(0),
            failures: 0,
            running: None,
            waiting: None,
        }
    }
}

impl<P: Clone> KeyState<P> {
    /// Takes a trigger. If nobody runs, a run starts under `token`, which must be higher than every earlier one, with a
    /// lease until `until`. If it is accepted, [`accepted`](Self::accepted) is its number.
    pub fn enter(
        &mut self,
        payload: P,
        merge: &Merge<P>,
        token: Token,
        until: Option<Millis>,
    ) -> Verdict {
        let is_first = self.waiting.is_none();
        if is_first && self.running.is_none() && token > self.started {
            self.accepted += 1;
            self.begin(Arc::new(merge.one(payload)), token, until);
            return Verdict::Run(token);
        }
        if let Err(why) = self.accept(payload, merge) {
            return Verdict::Rejected(why);
        }
        if self.running.is_none() && self.start(merge, token, until).is_ok() {
            return Verdict::Run(token);
        }
        match is_first {
            true => Verdict::Pending,
            false => Verdict::Covered,
        }
    }

    /// Lets a trigger wait for the next run. Returns its number.
    ///
    /// # Errors
    /// If the policy has no room for it.
    pub fn accept(&mut self, payload: P, merge: &Merge<P>) -> Result<u64, Rejection> {
        if let Some(why) = self.rejects(merge) {
            return Err(why);
        }
        let one = merge.one(payload);
        let earlier = match merge {
            // A function that panics leaves everything as it was.
            Merge::With(_) => self.waiting.clone(),
            _ => self.waiting.take(),
        };
        self.waiting = Some(match earlier {
            Some(earlier) => merge.join(earlier, one),
            None => one,
        });
        self.accepted += 1;
        Ok(self.accepted)
    }

    /// The same for a caller that has been accepted already in another way: a function that panics leaves its payload
    /// beside the others.
    pub(super) fn accept_safely(&mut self, payload: P, merge: &Merge<P>) -> u64 {
        let one = merge.one(payload);
        self.waiting = Some(match self.waiting.take() {
            Some(earlier) => merge.join_safely(earlier, one),
            None => one,
        });
        self.accepted += 1;
        self.accepted
    }

    /// Lets a trigger wait for the next run whose payload is kept elsewhere. Returns its number.
    pub(super) fn accept_apart(&mut self) -> u64 {
        self.accepted += 1;
        self.accepted
    }

    /// Starts a run of all that waits, in the place of one that is known to be over.
    ///
    /// # Errors
    /// If the token is not above every earlier one; nothing changes.
    pub fn start(
        &mut self,
        merge: &Merge<P>,
        token: Token,
        until: Option<Millis>,
    ) -> Result<Arc<Batch<P>>, Stale> {
        if token <= self.started {
            return Err(Stale { token });
        }
        if let Some(Running { token, .. }) = self.running {
            self.fail(merge, token)?;
        }
        let batch = Arc::new(self.waiting.take().unwrap_or_default());
        self.begin(batch.clone(), token, until);
        Ok(batch)
    }

    fn begin(&mut self, batch: Arc<Batch<P>>, token: Token, until: Option<Millis>) {
        self.started = token;
        self.running = Some(Running {
            token,
            upto: self.accepted,
            batch,
            until,
        });
    }

    /// The run has succeeded: what it covers is covered.
    ///
    /// # Errors
    /// If the run is not the present one; nothing changes.
    pub fn succeed(&mut self, token: Token) -> Result<(), Stale> {
        let run = self.running.take_if(|run| run.token == token);
        self.covered = run.ok_or(Stale { token })?.upto;
        self.covered_by = token;
        self.failures = 0;
        Ok(())
    }

    /// The run has failed, or it is expired: what it had waits again, before what came later.
    ///
    /// # Errors
    /// If the run is not the present one; nothing changes.
    pub fn fail(&mut self, merge: &Merge<P>, token: Token) -> Result<(), Stale> {
        let run = self.running.as_ref().filter(|run| run.token == token);
        let earlier = Batch::clone(&run.ok_or(Stale { token })?.batch);
        self.waiting = Some(match self.waiting.take() {
            Some(later) => merge.join_safely(earlier, later),
            None => earlier,
        });
        self.running = None;
        self.failures = self.failures.saturating_add(1);
        Ok(())
    }

    /// Lets the lease of the run end at another time.
    ///
    /// # Errors
    /// If the run is not the present one; nothing changes.
    pub fn extend(&mut self, token: Token, until: Option<Millis>) -> Result<(), Stale> {
        match &mut self.running {
            Some(run) if run.token == token => {
                run.until = until;
                Ok(())
            }
            _ => Err(Stale { token }),
        }
    }

    /// Forgets what waits: nobody wants it any more.
    pub fn forget_waiting(&mut self) {
        self.waiting = None;
    }
}

impl<P> KeyState<P> {
    /// Why the policy has no room for another trigger.
    #[must_use]
    pub fn rejects(&self, merge: &Merge<P>) -> Option<Rejection> {
        let Merge::Append { max } = *merge else {
            return None;
        };
        let waiting = self.waiting.as_ref().map_or(0, |it| it.payloads.len());
        let running = (self.running.as_ref()).map_or(0, |it| it.batch.payloads.len());
        let is_full = waiting >= max || waiting + running >= max.saturating_mul(2);
        is_full.then_some(Rejection::Pending { max })
    }

    /// The run of now.
    #[must_use]
    pub fn running(&self) -> Option<Token> {
        self.running.as_ref().map(|run| run.token)
    }

    /// Up to which number the run of now covers triggers.
    #[must_use]
    pub fn running_upto(&self) -> Option<u64> {
        self.running.as_ref().map(|run| run.upto)
    }

    /// The batch of the run of now.
    #[must_use]
    pub fn running_batch(&self) -> Option<&Arc<Batch<P>>> {
        self.running.as_ref().map(|run| &run.batch)
    }

    /// When the lease of the run of now ends.
    #[must_use]
    pub fn until(&self) -> Option<Millis> {
        self.running.as_ref()?.until
    }

    /// What waits for the next run.
    #[must_use]
    pub fn waiting(&self) -> Option<&Batch<P>> {
        self.waiting.as_ref()
    }

    /// The number of the last trigger that was accepted.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Up to which number triggers are covered.
    #[must_use]
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// The last run that succeeded.
    #[must_use]
    pub fn covered_by(&self) -> Token {
        self.covered_by
    }

    /// How many runs in a row have failed.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether nobody runs and nothing waits: nothing need be kept.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_none()
    }
}
