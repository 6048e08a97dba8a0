//! The coalescer of one process.

use std::{
    fmt,
    future::Future,
    hash::{BuildHasher as _, Hash, RandomState},
    pin::Pin,
    sync::{Arc, PoisonError, atomic::Ordering},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use lockgate_core::Millis;
use tokio::time::Instant;

use super::{
    Batch, CoalesceCounts, CoalesceOptions, Covered, Rejection, Stale, Token, Verdict,
    options::millis,
    shard::{End, Entering, Mode, Rules, Shard, Started, Tell},
};
use crate::{
    dispatch::OptionsError,
    sync::{AtomicUsize, Mutex, MutexGuard, oneshot, sleep_until},
    worker::WorkerClock,
};

/// Few enough that they fit into a cache, and many more than there are threads.
const SHARDS: usize = 64;

/// Runs one caller per key at a time: see the [module](super). Clones are the same coalescer.
///
/// `K` is the type of keys, `P` that of payloads, and `R` that of a run's result, which those get whom the run covers.
/// Payloads are cloned when a run that others wait for has failed; results for each of those whom it covers.
pub struct Coalescer<K: Hash + Eq + Clone, P: Clone = (), R: Clone = ()>(Arc<Inner<K, P, R>>);

type Tells<K, P, R> = oneshot::Sender<Result<Entered<K, P, R>, Refused<P>>>;
type Locked<K, P, R> = Mutex<Shard<K, P, Tells<K, P, R>>>;

struct Inner<K: Hash + Eq + Clone, P: Clone, R: Clone> {
    shards: Box<[Locked<K, P, R>]>,
    hasher: RandomState,
    rules: Rules<P>,
    callers: AtomicUsize,
    callers_max: usize,
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Triggers that found no room.
    rejected: AtomicUsize,
    clock: Option<Arc<dyn lockgate_core::Clock>>,
    own_clock: WorkerClock,
}

/// A trigger that was not accepted, with its payload.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused<P> {
    /// Why.
    pub reason: Rejection,
    /// What was given.
    pub payload: P,
}

/// How a caller that entered goes on.
#[derive(Debug)]
#[must_use = "a run that is dropped has failed"]
pub enum Entered<K: Hash + Eq + Clone, P: Clone, R: Clone> {
    /// It runs now, for itself and for all whom the run covers.
    Run(Run<K, P, R>),
    /// A run has succeeded that covers it.
    Covered(Covered<R>),
}

/// What became of a trigger at once.
#[derive(Debug)]
#[must_use = "a run that is dropped has failed, and a trigger that is dropped waits no more"]
pub enum Triggered<K: Hash + Eq + Clone, P: Clone, R: Clone> {
    /// It runs.
    Run(Run<K, P, R>),
    /// It waits for a run that covers it, or for its turn to run.
    Waiting(Waiting<K, P, R>),
}

/// The right to run for a key, until it is dropped: the only one of its key, unless its lease has ended.
///
/// [`succeed`](Self::succeed) covers all triggers that came before the run started. If it is dropped otherwise (the
/// handler fails, panics or is cancelled) the run has failed: nobody is covered, and the next caller runs.
#[must_use = "a run that is dropped has failed"]
pub struct Run<K: Hash + Eq + Clone, P: Clone, R: Clone> {
    coalescer: Arc<Inner<K, P, R>>,
    key: K,
    hash: u64,
    started: Started<P>,
    is_over: bool,
}

/// A trigger that waits. Dropping it withdraws it: nobody waits for its coverage any more, though a later run may still
/// have its payload.
#[must_use = "a trigger that is dropped waits no more"]
pub struct Waiting<K: Hash + Eq + Clone, P: Clone, R: Clone> {
    coalescer: Arc<Inner<K, P, R>>,
    key: K,
    hash: u64,
    number: u64,
    verdict: Verdict,
    told: oneshot::Receiver<Result<Entered<K, P, R>, Refused<P>>>,
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Clone for Coalescer<K, P, R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> fmt::Debug for Coalescer<K, P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coalescer").finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Coalescer<K, P, R> {
    /// A coalescer for which nothing runs.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn new(options: CoalesceOptions<P>) -> Result<Self, OptionsError> {
        options.check()?;
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS);
        Ok(Self(Arc::new(Inner {
            shards: shards.collect(),
            hasher: RandomState::new(),
            rules: Rules {
                merge: options.merge,
                measure: options.measure,
                lease: options.lease.map(millis),
            },
            callers: AtomicUsize::new(0),
            callers_max: options.callers_max,
            bytes: AtomicUsize::new(0),
            bytes_max: options.bytes_max,
            rejected: AtomicUsize::new(0),
            clock: options.clock,
            own_clock: WorkerClock::start(),
        })))
    }

    /// Runs for the key, or waits until a run covers the caller or it is the caller's turn to run.
    ///
    /// # Errors
    /// If the trigger is not accepted.
    ///
    /// # Cancellation
    /// A caller that gives up while it waits is withdrawn, and blocks nobody.
    pub async fn enter(&self, key: K, payload: P) -> Result<Entered<K, P, R>, Refused<P>> {
        self.trigger(key, payload)?.entered().await
    }

    /// [`enter`](Self::enter) for a thread that may block. It needs no runtime, and must not be a thread of one.
    ///
    /// # Errors
    /// If the trigger is not accepted.
    pub fn enter_blocking(&self, key: K, payload: P) -> Result<Entered<K, P, R>, Refused<P>> {
        self.trigger(key, payload)?.entered_blocking()
    }

    /// Runs for the key if nobody does.
    ///
    /// # Errors
    /// [`Rejection::Busy`] if somebody runs, and if there is no room.
    pub fn try_enter(&self, key: K, payload: P) -> Result<Run<K, P, R>, Refused<P>> {
        match self.start(key, payload, Mode::Try)? {
            Triggered::Run(run) => Ok(run),
            // Who only tries does not wait.
            Triggered::Waiting(_) => unreachable!("a try waits"),
        }
    }

    /// Runs for the key, or says how the caller will wait.
    ///
    /// # Errors
    /// If the trigger is not accepted.
    pub fn trigger(&self, key: K, payload: P) -> Result<Triggered<K, P, R>, Refused<P>> {
        self.start(key, payload, Mode::Enter)
    }

    /// Runs for the key, or waits for the result of the run that goes on (*single flight*). That run may have started
    /// before the caller's reason to call, so the result [may be older](Covered::may_be_older). If that run fails, the
    /// caller waits as with [`enter`](Self::enter).
    ///
    /// # Errors
    /// If the caller or its payload has no room.
    ///
    /// # Cancellation
    /// As with `enter`.
    pub async fn join(&self, key: K, payload: P) -> Result<Entered<K, P, R>, Refused<P>> {
        self.start(key, payload, Mode::Join)?.entered().await
    }

    /// Ends the key's run as a failed one, if it is that one, whatever its guard does: the next caller runs.
    ///
    /// # Errors
    /// If another one runs, or none.
    pub fn expire(&self, key: &K, token: Token) -> Result<(), Stale> {
        let hash = self.0.hasher.hash_one(key);
        self.0.end(hash, key, token, End::Expired, None)
    }

    /// Who runs for the key.
    #[must_use]
    pub fn running(&self, key: &K) -> Option<Token> {
        let hash = self.0.hasher.hash_one(key);
        let now = self.0.now();
        let (token, until) = self.0.shard(hash).running(hash, key)?;
        until.is_none_or(|until| now < until).then_some(token)
    }

    /// For how many keys something runs. Nothing is kept of the others.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.0.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// How many callers run or wait, and the bytes of their payloads.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        let load = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        (load(&self.0.callers), load(&self.0.bytes))
    }

    /// How many triggers and runs there were.
    #[must_use]
    pub fn counts(&self) -> CoalesceCounts {
        let mut counts = CoalesceCounts::default();
        for shard in &self.0.shards {
            counts.add(&lock(shard).counts);
        }
        counts.rejected += self.0.rejected.load(Ordering::Relaxed) as u64;
        counts
    }

    /// Ends the key's run if its lease is over. Callers that wait do so by themselves, unless somebody has set the
    /// [clock](CoalesceOptions::clock).
    pub fn expire_due(&self, key: &K) {
        let hash = self.0.hasher.hash_one(key);
        self.0.expire_due(hash, key);
    }

    fn start(&self, key: K, payload: P, mode: Mode) -> Result<Triggered<K, P, R>, Refused<P>> {
        let inner = &self.0;
        let size = (inner.rules.measure)(&payload);
        let room = match inner.take_room(size) {
            Ok(room) => room,
            Err(reason) => {
                inner.rejected.fetch_add(1, Ordering::Relaxed);
                return Err(Refused { reason, payload });
            }
        };
        let hash = inner.hasher.hash_one(&key);
        let (mut told, mut after) = (None, Tell::default());
        let now = inner.now();
        let entering = inner.shard(hash).enter(
            &inner.rules,
            hash,
            &key,
            payload,
            size,
            mode,
            now,
            || {
                let (tell, tells) = oneshot::channel();
                told = Some(tells);
                tell
            },
            &mut after,
        );
        if let Entering::Rejected(payload, reason) = entering {
            drop(room);
            inner.tell(&key, hash, after, None);
            return Err(Refused { reason, payload });
        }
        room.keep();
        inner.tell(&key, hash, after, None);
        match (entering, told) {
            (Entering::Waits(number, verdict), Some(told)) => Ok(Triggered::Waiting(Waiting {
                coalescer: inner.clone(),
                key,
                hash,
                number,
                verdict,
                told,
            })),
            (Entering::Run(started), _) => Ok(Triggered::Run(Run {
                coalescer: inner.clone(),
                key,
                hash,
                started,
                is_over: false,
            })),
            _ => unreachable!("who waits is told by a channel"),
        }
    }
}

/// Room for one caller and its payload. Who does not enter, because a merge function panics too, gives it back.
struct Room<'a, K: Hash + Eq + Clone, P: Clone, R: Clone> {
    of: &'a Inner<K, P, R>,
    size: usize,
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Room<'_, K, P, R> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Drop for Room<'_, K, P, R> {
    fn drop(&mut self) {
        self.of.give_room(1, self.size);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A merge function that panics has changed nothing by halves; anything else that does is a bug of this module.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Inner<K, P, R> {
    /// The time, where leases end.
    fn now(&self) -> Millis {
        match (self.rules.lease, &self.clock) {
            (None, _) => 0,
            (_, Some(clock)) => clock.since_boot(),
            (_, None) => self.own_clock.now(),
        }
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard<K, P, Tells<K, P, R>>> {
        // The table takes the lowest bits and the highest.
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }

    fn take_room(&self, size: usize) -> Result<Room<'_, K, P, R>, Rejection> {
        if self.callers.fetch_add(1, Ordering::Relaxed) >= self.callers_max {
            self.callers.fetch_sub(1, Ordering::Relaxed);
            let max = self.callers_max;
            return Err(Rejection::Callers { max });
        }
        let max = self.bytes_max;
        if size > 0
            && self
                .bytes
                .fetch_add(size, Ordering::Relaxed)
                .saturating_add(size)
                > max
        {
            self.give_room(1, size);
            return Err(Rejection::Bytes { max });
        }
        Ok(Room { of: self, size })
    }

    fn give_room(&self, callers: usize, bytes: usize) {
        if callers > 0 {
            self.callers.fetch_sub(callers, Ordering::Relaxed);
        }
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Inner<K, P, R> {
    fn end(
        self: &Arc<Self>,
        hash: u64,
        key: &K,
        token: Token,
        end: End,
        result: Option<R>,
    ) -> Result<(), Stale> {
        let now = self.now();
        let (ended, after) = (self.shard(hash)).end(&self.rules, hash, key, token, end, now);
        self.tell(key, hash, after, result.map(|result| (token, result)));
        ended
    }

    fn expire_due(self: &Arc<Self>, hash: u64, key: &K) {
        let (now, mut after) = (self.now(), Tell::default());
        (self.shard(hash)).expire_due(&self.rules, hash, key, now, &mut after);
        self.tell(key, hash, after, None);
    }

    /// Tells those for whom there is something. The lock has been given back, so whatever they do can enter again.
    fn tell(
        self: &Arc<Self>,
        key: &K,
        hash: u64,
        after: Tell<P, Tells<K, P, R>>,
        result: Option<(Token, R)>,
    ) {
        if after.added > 0 {
            self.bytes.fetch_add(after.added, Ordering::Relaxed);
        }
        self.give_room(after.covered.len() + after.rejected.len(), after.freed);
        if let Some((tell, started)) = after.starts {
            let run = Run {
                coalescer: self.clone(),
                key: key.clone(),
                hash,
                started,
                is_over: false,
            };
            // If the caller has gone, the run comes back and is dropped here: it has failed, and the next one starts.
            drop(tell.send(Ok(Entered::Run(run))));
        }
        if let Some((by, result)) = result {
            for (tell, may_be_older) in after.covered {
                let covered = Covered {
                    by,
                    result: result.clone(),
                    may_be_older,
                };
                drop(tell.send(Ok(Entered::Covered(covered))));
            }
        }
        for (tell, payload, reason) in after.rejected {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            drop(tell.send(Err(Refused { reason, payload })));
        }
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Triggered<K, P, R> {
    /// What the trigger was told.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Run(run) => Verdict::Run(run.token()),
            Self::Waiting(waiting) => waiting.verdict,
        }
    }

    /// Waits for a run that covers it, or for its turn to run.
    ///
    /// # Errors
    /// If the run that it [joined](Coalescer::join) has failed, and as a trigger of its own it is not accepted.
    ///
    /// # Cancellation
    /// As with [`Coalescer::enter`].
    pub async fn entered(self) -> Result<Entered<K, P, R>, Refused<P>> {
        match self {
            Self::Run(run) => Ok(Entered::Run(run)),
            Self::Waiting(waiting) => waiting.entered().await,
        }
    }

    /// The same for a thread that may block.
    ///
    /// # Errors
    /// As with [`entered`](Self::entered).
    pub fn entered_blocking(self) -> Result<Entered<K, P, R>, Refused<P>> {
        match self {
            Self::Run(run) => Ok(Entered::Run(run)),
            Self::Waiting(waiting) => waiting.entered_blocking(),
        }
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Waiting<K, P, R> {
    async fn entered(mut self) -> Result<Entered<K, P, R>, Refused<P>> {
        loop {
            let left = self.lease_left();
            let told = Pin::new(&mut self.told);
            let told = match left {
                None => told.await,
                Some(left) => tokio::select! {
                    told = told => told,
                    () = sleep_until(Instant::now() + left) => {
                        self.coalescer.expire_due(self.hash, &self.key);
                        continue;
                    }
                },
            };
            return told.unwrap_or_else(|_| unreachable!("who waits is told"));
        }
    }

    fn entered_blocking(mut self) -> Result<Entered<K, P, R>, Refused<P>> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            let told = Pin::new(&mut self.told).poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(told) = told {
                return told.unwrap_or_else(|_| unreachable!("who waits is told"));
            }
            match self.lease_left() {
                None => thread::park(),
                Some(left) => thread::park_timeout(left),
            }
            self.coalescer.expire_due(self.hash, &self.key);
        }
    }

    /// How long the lease of the present run still lasts, if runs have leases.
    fn lease_left(&self) -> Option<Duration> {
        self.coalescer.rules.lease?;
        let now = self.coalescer.now();
        let running = self
            .coalescer
            .shard(self.hash)
            .running(self.hash, &self.key);
        // Where nobody runs any more, there is something to be told.
        let until = running?.1?;
        Some(Duration::from_millis(until.saturating_sub(now)))
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Drop for Waiting<K, P, R> {
    fn drop(&mut self) {
        let (inner, mut after) = (&self.coalescer, Tell::default());
        let was_there = {
            let mut shard = inner.shard(self.hash);
            shard.withdraw(&inner.rules, self.hash, &self.key, self.number, &mut after)
        };
        // One that was not there has been told, or will be: what it is told is dropped with the channel.
        inner.give_room(was_there.into(), after.freed);
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Run<K, P, R> {
    /// Its token: higher than that of every earlier run of the key. It fences what the run writes.
    #[must_use]
    pub fn token(&self) -> Token {
        self.started.token
    }

    /// For which key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// What it has to do.
    #[must_use]
    pub fn batch(&self) -> &Batch<P> {
        &self.started.batch
    }

    /// The first payload: the only one unless the policy is [`Append`](super::Merge::Append), and none with
    /// [`Count`](super::Merge::Count).
    #[must_use]
    pub fn payload(&self) -> Option<&P> {
        self.batch().payloads().first()
    }

    /// How many runs in a row have failed before this one, while others waited.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.started.failures
    }

    /// Whether it is still the key's run. If not, another may run, and what this one does now covers nobody.
    #[must_use]
    pub fn is_current(&self) -> bool {
        let now = self.coalescer.now();
        let running = self
            .coalescer
            .shard(self.hash)
            .running(self.hash, &self.key);
        running.is_some_and(|(token, until)| {
            token == self.token() && until.is_none_or(|until| now < until)
        })
    }

    /// Lets its lease last from now on.
    ///
    /// # Errors
    /// If it is not the key's run any more.
    pub fn heartbeat(&self) -> Result<(), Stale> {
        let (inner, mut after) = (&self.coalescer, Tell::default());
        let now = inner.now();
        let extended = inner.shard(self.hash).heartbeat(
            &inner.rules,
            self.hash,
            &self.key,
            self.token(),
            now,
            &mut after,
        );
        inner.tell(&self.key, self.hash, after, None);
        extended
    }

    /// It has succeeded: it covers the triggers that came before it started, and the next caller runs.
    ///
    /// # Errors
    /// If it is not the key's run any more. Nobody is covered.
    ///
    /// # Panics
    /// If a clone of the result panics. Callers that have not been told then panic too.
    pub fn succeed(mut self, result: R) -> Result<(), Stale> {
        self.end(End::Succeeded, Some(result))
    }

    /// It has failed: nobody is covered, and the next caller runs.
    ///
    /// # Errors
    /// If it is not the key's run any more.
    pub fn fail(mut self) -> Result<(), Stale> {
        self.end(End::Failed, None)
    }

    fn end(&mut self, end: End, result: Option<R>) -> Result<(), Stale> {
        self.is_over = true;
        let ended = (self.coalescer).end(self.hash, &self.key, self.token(), end, result);
        self.coalescer.give_room(1, 0);
        ended
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> fmt::Debug for Run<K, P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Run");
        it.field("token", &self.token()).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> fmt::Debug for Waiting<K, P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Waiting");
        it.field("verdict", &self.verdict).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq + Clone, P: Clone, R: Clone> Drop for Run<K, P, R> {
    fn drop(&mut self) {
        if !self.is_over {
            // One that is not the present one has nothing to give back.
            let _ = self.end(End::Failed, None);
        }
    }
}
