//! The coalescer of many processes, over a store of records.

pub(crate) mod codec;
pub mod protocol;

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, Key, LeaseRecord, Millis, NameError, PutRecord,
    Record, RecordName, Records, RecordsError, ReleaseRecord, WatchRecord,
};
use tokio::{runtime::Handle, time::Instant};

use self::protocol::{Answer, Ask, End, Ended, Enter, Op, Outcome, Seen, Step};
use super::{Batch, CoalesceCounts, Covered, Merge, Rejection, Stale, Token, options::millis};
use crate::{
    dispatch::OptionsError,
    sync::{Mutex, sleep_until},
    worker::WorkerClock,
};

/// How long one watch lasts, after which the caller looks again. A store that is embedded keeps a watch that is given up
/// for so long at most.
const WATCH: Duration = Duration::from_secs(300);

/// The first pause after a lost answer, or after a write that another one was before; it doubles each time.
const PAUSE: Duration = Duration::from_millis(2);

/// The longest pause: callers by the hundred, who all write one state, come through only if most of them wait.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many answers of the store one call misses at least before it gives up.
const MISSED_MIN: u32 = 10;

/// Options of a [`SharedCoalescer`].
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// What triggers that wait leave to the run that covers them. All processes must have the same. Default: the
    /// payload of the last one.
    pub merge: Merge<Bytes>,
    /// How long a run lasts without a heartbeat, and so how long a key waits for a process that has died: 1 s to 12 h.
    /// Default: 10 s. A call gives up when the store has not answered for so long.
    pub lease: Duration,
    /// What the names of its records begin with: up to 256 bytes. Coalescers with one prefix share their keys. Default:
    /// `coalesce/`.
    pub prefix: String,
    /// Who holds the leases, for people who look: up to 64 bytes. Default: `coalescer`.
    pub holder: String,
}

/// Runs one caller per key at a time, among all processes that share a store of records: see the
/// [module](super#across-processes). Clones are the same coalescer.
pub struct SharedCoalescer<S>(Arc<Inner<S>>);

struct Inner<S> {
    records: S,
    options: SharedOptions,
    writer: u64,
    calls: AtomicU64,
    counts: Mutex<CoalesceCounts>,
    clock: WorkerClock,
}

/// Why a caller does not enter, or a run does not end as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The trigger is not accepted.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The run is not the key's present one. Nobody is covered by it.
    #[error(transparent)]
    Stale(#[from] Stale),
    /// An answer of the store was lost, and the run's lease with it: whether the run's end is written is not known.
    /// Treat the run as failed; what it was for may run again.
    #[error("whether run {token} has ended is not known: its lease has ended with an answer lost")]
    Unknown {
        /// The run's.
        token: Token,
    },
    /// The store has refused, or does not answer. A caller that was waiting may have left its trigger: the next run
    /// does what it was for.
    #[error(transparent)]
    Store(#[from] RecordsError),
    /// The key and the prefix are too long for the name of a record.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The value of a record is none of a coalescer, or of a later version of it.
    #[error("the value of record {name} is no state of a coalescer that this version knows")]
    Damaged {
        /// Which record.
        name: RecordName,
    },
}

/// How a caller that entered goes on.
#[derive(Debug)]
#[must_use = "a run that is dropped has failed"]
pub enum SharedEntered<S: Records + 'static> {
    /// It runs now, for itself and for all whom the run covers.
    Run(SharedRun<S>),
    /// A run has succeeded that covers it. Results are not shared between processes.
    Covered(Covered<()>),
}

/// The right to run for a key until its lease ends. One that is dropped has failed: within a tokio runtime the store is
/// told at once, elsewhere the key waits until the lease ends.
#[must_use = "a run that is dropped has failed"]
pub struct SharedRun<S: Records + 'static> {
    coalescer: Arc<Inner<S>>,
    names: Names,
    token: Epoch,
    batch: Batch<Bytes>,
    failures: u32,
    /// When its lease ends, by a clock that began no later than the store's.
    until: AtomicU64,
    is_over: bool,
}

#[derive(Clone)]
struct Names {
    state: RecordName,
    run: RecordName,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self {
            merge: Merge::default(),
            lease: Duration::from_secs(10),
            prefix: "coalesce/".to_owned(),
            holder: "coalescer".to_owned(),
        }
    }
}

impl<S> Clone for SharedCoalescer<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S> fmt::Debug for SharedCoalescer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("SharedCoalescer");
        it.field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl<S: Records + 'static> fmt::Debug for SharedRun<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("SharedRun");
        it.field("token", &self.token).finish_non_exhaustive()
    }
}

impl<S: Records + 'static> SharedCoalescer<S> {
    /// A coalescer over that store.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn new(records: S, options: SharedOptions) -> Result<Self, OptionsError> {
        let append_max = match options.merge {
            Merge::Append { max } => max as u64,
            _ => 1,
        };
        OptionsError::first([
            ("merge.max", append_max, 1, u64::MAX),
            ("lease", millis(options.lease), 1_000, 12 * 3_600 * 1_000),
            ("prefix", options.prefix.len() as u64, 0, 256),
            ("holder", options.holder.len() as u64, 1, 64),
        ])?;
        // Two writers with one number would take each other's writes for their own: each draws 64 random bits.
        let writer = RandomState::new().hash_one((process::id(), Instant::now()));
        Ok(Self(Arc::new(Inner {
            records,
            options,
            writer,
            calls: AtomicU64::new(0),
            counts: Mutex::default(),
            clock: WorkerClock::start(),
        })))
    }

    /// Runs for the key, or waits until a run covers the caller or it is the caller's turn to run.
    ///
    /// # Errors
    /// If the trigger is not accepted, or the store refuses.
    ///
    /// # Cancellation
    /// A caller that gives up blocks nobody for longer than a lease. Its trigger may stay, and the next run for the key
    /// has its payload.
    pub async fn enter(&self, key: &Key, payload: Bytes) -> Result<SharedEntered<S>, SharedError> {
        let inner = &self.0;
        let names = inner.names(key)?;
        let mut entering = Entering {
            enter: Enter::new(inner.op(), payload),
            inner,
            names: &names,
            is_covered: false,
            is_counted: false,
        };
        match entering.run().await? {
            (
                Outcome::Run {
                    token,
                    batch,
                    failures,
                },
                until,
            ) => {
                inner.count(|counts| counts.started += 1);
                Ok(SharedEntered::Run(SharedRun {
                    coalescer: inner.clone(),
                    names: names.clone(),
                    token,
                    batch,
                    failures,
                    until: AtomicU64::new(until),
                    is_over: false,
                }))
            }
            (Outcome::Covered(by), _) => Ok(SharedEntered::Covered(Covered {
                by: by.unwrap_or_default(),
                result: (),
                may_be_older: false,
            })),
            (Outcome::Rejected(why), _) => {
                inner.count(|counts| counts.rejected += 1);
                Err(why.into())
            }
        }
    }

    /// Who runs for the key.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn running(&self, key: &Key) -> Result<Option<Token>, SharedError> {
        let run = self.0.records.get(self.0.names(key)?.run).await?;
        Ok(run
            .and_then(|run| run.lease)
            .map(|lease| Token(lease.epoch.0)))
    }

    /// Takes the lease away from the key's run, if it is that one, whatever its process does: the next caller runs. The run
    /// is told when it asks: by a heartbeat, or when it ends. One that is ending just then may still succeed.
    ///
    /// # Errors
    /// If another one runs, or none, and if the store refuses.
    pub async fn expire(&self, key: &Key, token: Token) -> Result<(), SharedError> {
        let (name, epoch) = (self.0.names(key)?.run, Epoch(token.0));
        match self.0.records.release(ReleaseRecord { name, epoch }).await {
            Ok(()) => {
                self.0.count(|counts| counts.expired += 1);
                Ok(())
            }
            Err(RecordsError::LeaseLost { .. }) => {
                self.0.count(|counts| counts.stale += 1);
                Err(Stale { token }.into())
            }
            Err(other) => Err(other.into()),
        }
    }

    /// How many triggers and runs of this process there were. A run that no process has ended, because it died or lost its
    /// lease, is counted by none.
    #[must_use]
    pub fn counts(&self) -> CoalesceCounts {
        let mut counts = CoalesceCounts::default();
        self.0.count(|own| counts = *own);
        counts
    }
}

/// A caller that enters. If it is dropped with a lease, that is given back.
struct Entering<'a, S: Records + 'static> {
    inner: &'a Arc<Inner<S>>,
    names: &'a Names,
    enter: Enter,
    /// Whether others wait with it, by the last write that it has asked for.
    is_covered: bool,
    /// Its verdict is counted.
    is_counted: bool,
}

impl<S: Records + 'static> Entering<'_, S> {
    /// How it is over, and when the lease ends that it may have.
    async fn run(&mut self) -> Result<(Outcome, Millis), SharedError> {
        let inner = self.inner;
        let (mut ask, mut until, mut pauses) = (Ask::Lease, 0, Pauses::default());
        loop {
            if ask == Ask::Lease {
                until = inner
                    .clock
                    .now()
                    .saturating_add(millis(inner.options.lease));
            }
            let is_write = matches!(ask, Ask::Write { .. });
            if let Ask::Write { state, .. } = &ask {
                let waiting = state.key().waiting().map_or(0, Batch::triggers);
                self.is_covered = waiting > 1;
            }
            let op = self.enter.op();
            let answer = inner.answer(self.names, op, ask, &mut pauses).await?;
            // Whoever has the lease goes first: it keeps all others waiting.
            if is_write && answer == Answer::Not && self.enter.leased().is_none() {
                pauses.refused().await;
            }
            let step = self.enter.next(&inner.options.merge, answer);
            if self.enter.is_accepted() || matches!(step, Step::Over(Outcome::Run { .. })) {
                self.count();
            }
            match step {
                Step::Ask(next) => ask = next,
                Step::Over(outcome) => {
                    self.enter.forget_lease();
                    return Ok((outcome, until));
                }
            }
        }
    }

    /// Counts the verdict, once.
    fn count(&mut self) {
        if std::mem::replace(&mut self.is_counted, true) {
            return;
        }
        let (leads, is_covered) = (self.enter.leased().is_some(), self.is_covered);
        self.inner.count(|counts| match (leads, is_covered) {
            (true, _) => counts.run += 1,
            (false, true) => counts.covered += 1,
            (false, false) => counts.pending += 1,
        });
    }
}

impl<S: Records + 'static> Drop for Entering<'_, S> {
    fn drop(&mut self) {
        // A dead run in the state is found by whoever leases next.
        if let (Some(epoch), Ok(runtime)) = (self.enter.leased(), Handle::try_current()) {
            let (inner, name) = (self.inner.clone(), self.names.run.clone());
            runtime.spawn(async move {
                // If the store refuses, the lease ends by itself.
                let _ = inner.records.release(ReleaseRecord { name, epoch }).await;
            });
        }
    }
}

impl<S> Inner<S> {
    fn op(&self) -> Op {
        Op {
            writer: self.writer,
            call: self.calls.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn names(&self, key: &Key) -> Result<Names, NameError> {
        let name = |kind| RecordName::new(&format!("{}{kind}/{key}", self.options.prefix));
        Ok(Names {
            state: name("state")?,
            run: name("run")?,
        })
    }

    fn count(&self, count: impl FnOnce(&mut CoalesceCounts)) {
        let mut counts = self.counts.lock();
        count(
            counts
                .as_mut()
                .unwrap_or_else(|poisoned| poisoned.get_mut()),
        );
    }
}

impl<S: Records + 'static> Inner<S> {
    /// Asks the store once.
    async fn ask(&self, names: &Names, op: Op, ask: Ask) -> Result<Answer, SharedError> {
        let (records, lease) = (&self.records, millis(self.options.lease));
        let answer = match ask {
            Ask::Lease => {
                // A holder of its own for each call, so that a lost answer can be asked for again.
                let Op { writer, call } = op;
                let holder = format!("{}/{writer:x}/{call}", self.options.holder);
                let leased = LeaseRecord {
                    name: names.run.clone(),
                    holder: HolderName::new(&holder)?,
                    lease,
                    delete_at_end: true,
                };
                match records.lease(leased).await {
                    Ok(Record {
                        lease: Some(lease), ..
                    }) => Ok(Answer::Leased(lease.epoch)),
                    Ok(_) => Ok(Answer::Lost),
                    Err(error) => Err(error),
                }
            }
            Ask::ReadRun => records.get(names.run.clone()).await.map(|run| {
                let run = run.map(|run| (run.revision, run.lease.map(|lease| lease.epoch)));
                Answer::Run(run)
            }),
            Ask::ReadState => {
                let state = records.get(names.state.clone()).await?;
                Ok(Answer::State(state.map(seen).transpose()?))
            }
            Ask::Write { state, replaces } => {
                let put = PutRecord {
                    name: names.state.clone(),
                    value: codec::encode(&state),
                    replaces,
                    epoch: None,
                };
                records.put(put).await.map(|_| Answer::Done)
            }
            Ask::Delete { replaces } => {
                let delete = DeleteRecord {
                    name: names.state.clone(),
                    replaces,
                    epoch: None,
                };
                records.delete(delete).await.map(|()| Answer::Done)
            }
            Ask::Release(epoch) => {
                let name = names.run.clone();
                let released = records.release(ReleaseRecord { name, epoch }).await;
                // Whatever it says, the lease ends, at the latest by itself.
                return Ok(released.map_or(Answer::Not, |()| Answer::Done));
            }
            Ask::Watch(seen) => {
                let watch = WatchRecord {
                    name: names.run.clone(),
                    seen,
                    wait: WATCH,
                };
                records.watch(watch).await.map(|_| Answer::Done)
            }
        };
        match answer {
            Ok(answer) => Ok(answer),
            Err(RecordsError::Held { .. }) => Ok(Answer::Held),
            Err(RecordsError::Conflict { .. } | RecordsError::LeaseLost { .. }) => Ok(Answer::Not),
            Err(other) => Err(other.into()),
        }
    }

    /// Asks until the store answers: a change may have happened before its answer was lost, and everything else is asked again.
    /// Gives up with a store that has not answered for as long as a lease.
    async fn answer(
        &self,
        names: &Names,
        op: Op,
        ask: Ask,
        pauses: &mut Pauses,
    ) -> Result<Answer, SharedError> {
        loop {
            let missing = match self.ask(names, op, ask.clone()).await {
                Ok(answer) => {
                    // Of a store that answers reads only, nothing comes.
                    if !ask.is_read() || matches!(ask, Ask::Watch(_)) {
                        pauses.missing = None;
                    }
                    return Ok(answer);
                }
                Err(SharedError::Store(
                    missing @ (RecordsError::Unknown { .. } | RecordsError::Unavailable { .. }),
                )) => missing,
                Err(other) => return Err(other),
            };
            let is_lost = !ask.is_read() && matches!(missing, RecordsError::Unknown { .. });
            let now = self.clock.now();
            let (since, times) = *pauses.missing.get_or_insert((now, 0));
            if times >= MISSED_MIN && now.saturating_sub(since) >= millis(self.options.lease) {
                return Err(missing.into());
            }
            pauses.missing = Some((since, times + 1));
            // The first one is looked up at once: later, others may have gone on so far that it cannot be found.
            if let Some(times) = times.checked_sub(1) {
                pause(times).await;
            }
            if is_lost {
                return Ok(Answer::Lost);
            }
        }
    }

    /// Ends a run, whose lease it keeps until `until` at least: others may write the state again and again meanwhile.
    async fn end(
        &self,
        names: &Names,
        token: Epoch,
        succeeds: bool,
        until: &AtomicU64,
    ) -> Result<(), SharedError> {
        let op = self.op();
        let (mut end, mut ask) = (End::new(op, token, succeeds), Ask::ReadRun);
        let mut pauses = Pauses::default();
        let ended = loop {
            let left = until.load(Ordering::Relaxed);
            let left = left.saturating_sub(self.clock.now());
            if left < millis(self.options.lease) / 2 && !matches!(ask, Ask::Release(_)) {
                // What a lease that is lost means is found below.
                let _ = self.extend(names, token, until).await;
            }
            let answer = self.answer(names, op, ask, &mut pauses).await?;
            match end.next(answer) {
                Step::Ask(next) => ask = next,
                Step::Over(ended) => break ended,
            }
        };
        let token = Token(token.0);
        self.count(|counts| match (ended, succeeds) {
            (Ended::Done, true) => counts.succeeded += 1,
            (Ended::Stale, _) => counts.stale += 1,
            _ => counts.failed += 1,
        });
        match ended {
            Ended::Done => Ok(()),
            Ended::Stale => Err(Stale { token }.into()),
            Ended::Unknown => Err(SharedError::Unknown { token }),
        }
    }

    /// Lets a run's lease last from now on.
    async fn extend(
        &self,
        names: &Names,
        epoch: Epoch,
        until: &AtomicU64,
    ) -> Result<(), RecordsError> {
        let lease = millis(self.options.lease);
        let extended_until = self.clock.now().saturating_add(lease);
        let name = names.run.clone();
        let extend = ExtendRecord { name, epoch, lease };
        let extended = self.records.extend(extend).await;
        match &extended {
            Ok(()) => until.store(extended_until, Ordering::Relaxed),
            Err(RecordsError::LeaseLost { .. }) => until.store(0, Ordering::Relaxed),
            Err(_) => {}
        }
        extended
    }
}

/// What one call waits for beside the store.
#[derive(Default)]
struct Pauses {
    /// Since when answers are missing, and how many.
    missing: Option<(Millis, u32)>,
    refused: u32,
}

impl Pauses {
    /// Waits before the next write where another one was before.
    async fn refused(&mut self) {
        pause(self.refused).await;
        self.refused += 1;
    }
}

/// Waits longer each time, and another time for each caller.
async fn pause(times: u32) {
    let longest = (PAUSE * 2u32.pow(times.min(9))).min(PAUSE_MAX);
    // The hasher is seeded at random.
    let share = RandomState::new().hash_one(()) % 1_000;
    let pause = longest.mul_f64(share as f64 / 1_000.0);
    sleep_until(Instant::now() + pause).await;
}

fn seen(record: Record) -> Result<Seen, SharedError> {
    let Some(state) = codec::decode(record.value) else {
        let name = record.name;
        return Err(SharedError::Damaged { name });
    };
    Ok(Seen {
        version: record.version,
        state,
    })
}

impl<S: Records + 'static> SharedRun<S> {
    /// Its token: higher than that of every earlier run of the key. It fences what the run writes.
    #[must_use]
    pub fn token(&self) -> Token {
        Token(self.token.0)
    }

    /// What it has to do.
    #[must_use]
    pub fn batch(&self) -> &Batch<Bytes> {
        &self.batch
    }

    /// The first payload: the only one unless the policy is [`Append`](Merge::Append), and none with
    /// [`Count`](Merge::Count).
    #[must_use]
    pub fn payload(&self) -> Option<&Bytes> {
        self.batch.payloads().first()
    }

    /// How many runs in a row have failed before this one.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether its lease lasts, as far as this process can know: no longer than the store thinks, also after the
    /// process was suspended. Somebody may have [expired](SharedCoalescer::expire) it; a
    /// [heartbeat](Self::heartbeat) asks.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.coalescer.clock.now() < self.until.load(Ordering::Relaxed)
    }

    /// Lets its lease last from now on.
    ///
    /// # Errors
    /// If it is not the key's run any more, or the store refuses.
    pub async fn heartbeat(&self) -> Result<(), SharedError> {
        let (inner, token) = (&self.coalescer, self.token());
        match inner.extend(&self.names, self.token, &self.until).await {
            Err(RecordsError::LeaseLost { .. }) => {
                inner.count(|counts| counts.stale += 1);
                Err(Stale { token }.into())
            }
            beaten => Ok(beaten?),
        }
    }

    /// Does the work with a heartbeat every third of a lease. If the lease is lost the work is dropped.
    ///
    /// # Errors
    /// If it is not the key's run any more. An answer of the store that is missing is asked for again until the lease
    /// is over.
    pub async fn alive<T>(&self, work: impl Future<Output = T>) -> Result<T, Stale> {
        let beats = async {
            loop {
                sleep_until(Instant::now() + self.coalescer.options.lease / 3).await;
                let left = self.until.load(Ordering::Relaxed);
                let left = left.saturating_sub(self.coalescer.clock.now());
                // The store may not answer for longer than the lease lasts.
                let beaten = tokio::select! {
                    beaten = self.heartbeat() => beaten,
                    () = sleep_until(Instant::now() + Duration::from_millis(left)) => return,
                };
                if matches!(beaten, Err(SharedError::Stale(_))) || !self.is_current() {
                    return;
                }
            }
        };
        tokio::select! {
            done = work => Ok(done),
            () = beats => Err(Stale { token: self.token() }),
        }
    }

    /// It has succeeded: it covers the triggers that came before it started, and the next caller runs. Its lease is kept
    /// meanwhile.
    ///
    /// # Errors
    /// If it is not the key's run any more, and nobody is covered. If the store refuses or its answer is lost, it is not
    /// known whether they are covered.
    ///
    /// # Cancellation
    /// If it is given up, the end may be written.
    pub async fn succeed(self) -> Result<(), SharedError> {
        self.end(true).await
    }

    /// It has failed: nobody is covered, and the next caller runs.
    ///
    /// # Errors
    /// If it is not the key's run any more, or the store refuses.
    pub async fn fail(self) -> Result<(), SharedError> {
        self.end(false).await
    }

    async fn end(mut self, succeeds: bool) -> Result<(), SharedError> {
        let (names, until) = (&self.names, &self.until);
        let ended = self.coalescer.end(names, self.token, succeeds, until).await;
        self.is_over = true;
        ended
    }
}

impl<S: Records + 'static> Drop for SharedRun<S> {
    fn drop(&mut self) {
        if let (false, Ok(runtime)) = (self.is_over, Handle::try_current()) {
            let (inner, names, token) = (self.coalescer.clone(), self.names.clone(), self.token);
            let until = AtomicU64::new(self.until.load(Ordering::Relaxed));
            runtime.spawn(async move {
                // If the store refuses, the lease ends by itself.
                let _ = inner.end(&names, token, false, &until).await;
            });
        }
    }
}
