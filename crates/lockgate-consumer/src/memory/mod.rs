//! A bounded queue in the memory of this process.
//!
//! For work between parts of one service that needs order by key and back-pressure, and may be lost with
//! the process. A [`MemoryQueue`] is a [`Sink`] and a [`Source`], so a [`Worker`](crate::Worker) serves it
//! as it serves a durable queue, and tests can use it in the place of one.
//!
//! ```
//! use lockgate_consumer::{MemoryOptions, MemoryQueue};
//! use lockgate_core::{Key, Message};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = MemoryOptions { messages_max: 2, ..MemoryOptions::default() };
//! let queue = MemoryQueue::new(options)?;
//! let user = Key::new("user-42")?;
//! queue.push(Message::new("post").with_key(user.clone())).await?;
//! queue.push(Message::new("delete").with_key(user.clone())).await?;
//!
//! // It is full. `push` would wait for room; this does not, and the message is still there.
//! let refused = queue.try_push(Message::new("like").with_key(user)).unwrap_err();
//! assert_eq!(refused.message.body, "like");
//! # Ok(())
//! # }
//! ```

mod state;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use lockgate_core::{
    Accepted, Failures, Fate, Key, KeyOrder, Leased, Level, Message, Millis, REASON_BYTES_MAX,
    ReceiveRequest, Sequence, Settlement, Sink, SinkCapabilities, Source, SourceCapabilities,
    TransportError, WallTime,
};
use tokio::time::Instant;

use self::state::{Given, State};
use crate::{
    dispatch::OptionsError,
    sync::{AcquireError, Mutex, MutexGuard, Notify, Semaphore, TryAcquireError, sleep_until},
};

/// Options of a [`MemoryQueue`].
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// How many messages it holds, those that are leased included; 1 to 16,777,216. Default: 10,000.
    pub messages_max: usize,
    /// How many bytes of messages it holds, as [`Message::size`] counts them; 1 to 4,294,967,295.
    /// Default: 64 MiB.
    pub bytes_max: usize,
    /// How many messages of one key it holds, so that a busy key leaves room for the others; 1 to
    /// `messages_max`. Default: no limit of its own.
    pub key_messages_max: Option<usize>,
    /// How many attempts a message gets (1 or more), and what happens after the last one. Default: no
    /// limit; a message that fails holds up its key until it succeeds.
    pub attempts: Option<(u32, KeyPolicy)>,
    /// How long leases last if a receive says nothing; 1 ms to 12 h. Default: 30 s.
    pub lease: Duration,
    /// How many rejected messages it keeps for [`take_dead_letters`](MemoryQueue::take_dead_letters). The
    /// oldest one gives way to a new one, and is counted. Default: 1,000.
    pub dead_letters_max: usize,
}

/// What happens after the last attempt of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPolicy {
    /// It becomes a dead letter, and its key goes on.
    Skip,
    /// It stays, and its key stops until [`resume`](MemoryQueue::resume). A message without a key becomes
    /// a dead letter.
    Park,
}

/// A bounded queue in the memory of this process: see the [module](self). Clones are the same queue.
///
/// Messages of one key come in their order, and one receive at a time has messages of it; those without a
/// key wait for no others. Leases end by tokio's clock.
#[derive(Clone, Debug)]
pub struct MemoryQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    options: MemoryOptions,
    /// Places for messages, given out in the order of asking.
    messages: Semaphore,
    bytes: Semaphore,
    /// Something can be received, or the queue is over.
    changed: Notify,
    started: Instant,
    /// How far tests have moved the clock.
    #[cfg(test)]
    passed: std::sync::atomic::AtomicU64,
}

/// Names a lease.
#[derive(Clone, Debug)]
pub struct Receipt(u64);

/// A rejected message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message as it was pushed.
    pub message: Message,
    /// Its number in the queue.
    pub sequence: Sequence,
    /// How many attempts it had.
    pub attempts: u32,
    /// Why.
    pub reason: Option<Arc<str>>,
    /// Its failures with a reason.
    pub failures: Failures,
}

/// What a [`MemoryQueue`] holds, and what became of what it held: pushed = acknowledged + rejected +
/// waiting + leased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryCounts {
    /// Messages that were pushed.
    pub pushed: u64,
    /// Messages that were acknowledged.
    pub acknowledged: u64,
    /// Messages that became dead letters.
    pub rejected: u64,
    /// Dead letters that gave way to newer ones.
    pub dead_letters_dropped: u64,
    /// Messages that wait.
    pub waiting: u64,
    /// Messages that somebody has.
    pub leased: u64,
}

/// A message that was not pushed.
#[derive(Clone, Debug)]
pub struct PushError {
    /// Why.
    pub reason: PushRefusal,
    /// The message, unchanged.
    pub message: Box<Message>,
}

#[derive(Debug, thiserror::Error)]
#[error("a queue in memory holds no keys: defer the message")]
struct NoHold;

/// Why a message is not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushRefusal {
    /// There is no room.
    #[error(
        "the queue has no room (messages_max, bytes_max or key_messages_max): wait with `push`"
    )]
    Full,
    /// It can never have room.
    #[error("the message has {bytes} bytes, and the whole queue has room for {max} (bytes_max)")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The room of the queue.
        max: usize,
    },
    /// The queue carries nothing of the kind.
    #[error(transparent)]
    Unsupported(#[from] lockgate_core::Unsupported),
    /// The queue was closed.
    #[error("the queue is closed")]
    Closed,
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl std::error::Error for PushError {}

/// Settles and extensions of one call, and messages of one.
const BATCH_MAX: usize = 1_000;

/// The longest lease and the longest delay.
const LEASE_MAX: Duration = Duration::from_secs(12 * 3_600);
const DELAY_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            messages_max: 10_000,
            bytes_max: 64 << 20,
            key_messages_max: None,
            attempts: None,
            lease: Duration::from_secs(30),
            dead_letters_max: 1_000,
        }
    }
}

impl MemoryOptions {
    fn check(&self) -> Result<(), OptionsError> {
        let (bytes_max, attempts) = (
            self.bytes_max as u64,
            self.attempts.map_or(1, |(max, _)| max),
        );
        let messages_max = self.messages_max as u64;
        OptionsError::first([
            ("messages_max", messages_max, 1, 1 << 24),
            ("bytes_max", bytes_max, 1, u64::from(u32::MAX)),
            (
                "key_messages_max",
                self.key_messages_max.unwrap_or(1) as u64,
                1,
                messages_max,
            ),
            ("attempts", attempts.into(), 1, u64::MAX),
            ("lease", millis(self.lease), 1, millis(LEASE_MAX)),
        ])
    }
}

/// Places that a message has been given. What is not pushed gives them up.
struct Places<'a> {
    queue: &'a Inner,
    key: Option<&'a Key>,
    of_key: Option<Arc<Semaphore>>,
    key_places: usize,
    messages: usize,
    bytes: usize,
}

impl<'a> Places<'a> {
    fn of(queue: &'a Inner, message: &'a Message) -> Self {
        let key = message.key.as_ref();
        let of_key = match queue.options.key_messages_max {
            Some(_) => queue.state().places_of(key),
            None => None,
        };
        Self {
            queue,
            key,
            of_key,
            key_places: 0,
            messages: 0,
            bytes: 0,
        }
    }

    /// Waits for a place of the key first: who waits for that holds no other.
    async fn take(&mut self, bytes: u32) -> Result<(), AcquireError> {
        if let Some(places) = &self.of_key {
            places.acquire().await?.forget();
            self.key_places = 1;
        }
        self.queue.messages.acquire().await?.forget();
        self.messages = 1;
        self.queue.bytes.acquire_many(bytes).await?.forget();
        self.bytes = bytes as usize;
        Ok(())
    }

    fn try_take(&mut self, bytes: u32) -> Result<(), TryAcquireError> {
        if let Some(places) = &self.of_key {
            places.try_acquire()?.forget();
            self.key_places = 1;
        }
        self.queue.messages.try_acquire()?.forget();
        self.messages = 1;
        self.queue.bytes.try_acquire_many(bytes)?.forget();
        self.bytes = bytes as usize;
        Ok(())
    }

    /// They belong to a message of the queue from now on.
    fn keep(mut self) {
        (self.key_places, self.messages, self.bytes) = (0, 0, 0);
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.queue.messages.add_permits(self.messages);
        self.queue.bytes.add_permits(self.bytes);
        if let Some(places) = self.of_key.take() {
            places.add_permits(self.key_places);
            drop(places);
            self.queue.state().tidy(self.key);
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        // What panics under it has changed nothing by halves: it would be a bug of this module.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Millis {
        let now = millis(self.started.elapsed());
        #[cfg(test)]
        let now = now + self.passed.load(std::sync::atomic::Ordering::Relaxed);
        now
    }

    /// What a receive gets, whether nothing can come any more, and when time changes something.
    fn give(
        &self,
        max: usize,
        key_max: usize,
        lease: Duration,
    ) -> (Vec<Given>, bool, Option<Millis>) {
        let mut state = self.state();
        let given = state.receive(max, key_max, millis(lease), self.now());
        let (over, next) = (state.is_over(), state.next_deadline());
        self.after(state);
        (given, over, next)
    }

    /// Gives up what has left, and wakes who waits for it.
    fn after(&self, mut state: MutexGuard<'_, State>) {
        let freed = state.take_freed();
        let (ready, over) = (state.is_ready(), state.is_over());
        let is_sooner = state.is_due_sooner();
        drop(state);
        self.messages.add_permits(freed.messages);
        self.bytes.add_permits(freed.bytes);
        // Those who wait sleep until the time that they knew.
        if over || is_sooner {
            self.changed.notify_waiters();
        }
        if ready && !over {
            self.changed.notify_one();
        }
    }
}

impl MemoryQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn new(options: MemoryOptions) -> Result<Self, OptionsError> {
        options.check()?;
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(State::new(options.clone(), wall_time())),
            messages: Semaphore::new(options.messages_max),
            bytes: Semaphore::new(options.bytes_max),
            changed: Notify::new(),
            started: Instant::now(),
            #[cfg(test)]
            passed: std::sync::atomic::AtomicU64::new(0),
            options,
        })))
    }

    /// Adds a message behind the others of its key, and waits for room if there is none; who waits
    /// longest is first. Returns its number.
    ///
    /// # Cancellation
    /// A push that is dropped while it waits adds nothing. Bound the wait with
    /// [`tokio::time::timeout`].
    ///
    /// # Errors
    /// If the queue is or becomes closed, or can never take the message; the message comes back.
    pub async fn push(&self, message: Message) -> Result<Sequence, PushError> {
        let bytes = match self.check(&message) {
            Ok(bytes) => bytes,
            Err(reason) => return Err(PushError::new(reason, message)),
        };
        let pushed = {
            let mut places = Places::of(&self.0, &message);
            match places.take(bytes).await {
                Ok(()) => self.add(&message, places),
                Err(_closed) => None,
            }
        };
        pushed.ok_or_else(|| PushError::new(PushRefusal::Closed, message))
    }

    /// As [`push`](Self::push), without waiting.
    ///
    /// # Errors
    /// If there is no room, the queue is closed, or it can never take the message; the message comes back.
    pub fn try_push(&self, message: Message) -> Result<Sequence, PushError> {
        let bytes = match self.check(&message) {
            Ok(bytes) => bytes,
            Err(reason) => return Err(PushError::new(reason, message)),
        };
        let pushed = {
            let mut places = Places::of(&self.0, &message);
            match places.try_take(bytes) {
                Ok(()) => self.add(&message, places).ok_or(PushRefusal::Closed),
                Err(TryAcquireError::Closed) => Err(PushRefusal::Closed),
                Err(TryAcquireError::NoPermits) => Err(PushRefusal::Full),
            }
        };
        pushed.map_err(|reason| PushError::new(reason, message))
    }

    /// How many bytes of room it needs.
    fn check(&self, message: &Message) -> Result<u32, PushRefusal> {
        self.sink_capabilities().check(message)?;
        let (bytes, max) = (message.size(), self.0.options.bytes_max);
        match u32::try_from(bytes) {
            Ok(fits) if bytes <= max => Ok(fits),
            _ => Err(PushRefusal::TooLarge { bytes, max }),
        }
    }

    /// `None`: the queue is closed.
    fn add(&self, message: &Message, places: Places<'_>) -> Option<Sequence> {
        let mut state = self.0.state();
        let sequence = (!state.closed).then(|| state.push(message.clone(), self.0.now()));
        self.0.after(state);
        if sequence.is_some() {
            places.keep();
        }
        sequence
    }

    /// Takes no more messages. Those that are there can be received; when the last one has left, receives
    /// answer [`Fate::Closed`], and a worker over the queue ends. A parked key keeps its messages.
    pub fn close(&self) {
        let mut state = self.0.state();
        state.closed = true;
        state.close_places();
        self.0.messages.close();
        self.0.bytes.close();
        self.0.after(state);
    }

    /// What it holds, and what became of what it held.
    #[must_use]
    pub fn counts(&self) -> MemoryCounts {
        self.0.state().counts
    }

    /// Takes the rejected messages, oldest first.
    #[must_use]
    pub fn take_dead_letters(&self) -> Vec<DeadLetter> {
        self.0.state().take_dead_letters()
    }

    /// The keys that are [parked](KeyPolicy::Park).
    #[must_use]
    pub fn parked_keys(&self) -> Vec<Key> {
        self.0.state().parked()
    }

    /// Lets a parked key go on, and gives its first message all its attempts again. Returns whether the
    /// key was parked.
    pub fn resume(&self, key: &Key) -> bool {
        let mut state = self.0.state();
        let was_parked = state.resume(key);
        self.0.after(state);
        was_parked
    }
}

/// For the models.
#[cfg(test)]
#[cfg(feature = "shuttle")]
impl MemoryQueue {
    /// How many messages still fit.
    pub(crate) fn room(&self) -> usize {
        self.0.messages.available_permits()
    }

    /// Whether nothing is kept of any key.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.0.state().is_empty()
    }

    /// Moves the clock.
    pub(crate) fn pass(&self, span: Duration) {
        let passed = &self.0.passed;
        passed.fetch_add(millis(span), std::sync::atomic::Ordering::Relaxed);
    }

    /// A mistake: nobody is told of the message.
    pub(crate) fn push_quietly(&self, message: Message) {
        let now = self.0.now();
        self.0.state().push(message, now);
    }

    /// A mistake: room that is taken and not given up.
    pub(crate) fn take_room_and_forget(&self) {
        if let Ok(places) = self.0.messages.try_acquire() {
            places.forget();
        }
    }
}

impl PushError {
    fn new(reason: PushRefusal, message: Message) -> Self {
        Self {
            reason,
            message: Box::new(message),
        }
    }
}

impl Sink for MemoryQueue {
    type Id = Sequence;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let mut can = SinkCapabilities::bodies_only(Level::Memory);
        can.batch_max = BATCH_MAX;
        can.message_bytes_max = self.0.options.bytes_max as u64;
        can.keys = true;
        can.headers = true;
        can.priority = true;
        can
    }

    /// Waits for room for each message in turn.
    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<Sequence>, TransportError>> {
        if let Err(error) = check_count(messages.len()) {
            return messages.iter().map(|_| Err(error.clone())).collect();
        }
        let mut results = Vec::with_capacity(messages.len());
        for message in messages {
            let pushed = self.push(message).await;
            results.push(match pushed {
                Ok(sequence) => Ok(Accepted {
                    id: Some(sequence),
                    sequence: Some(sequence),
                    duplicate: false,
                }),
                Err(error) => Err(TransportError::new(error.reason.fate(), error.reason)),
            });
        }
        results
    }
}

impl PushRefusal {
    fn fate(self) -> Fate {
        match self {
            Self::Full => Fate::Retry,
            Self::TooLarge { .. } => Fate::Refused,
            Self::Unsupported(_) => Fate::Unsupported,
            Self::Closed => Fate::Closed,
        }
    }
}

impl Source for MemoryQueue {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        let mut can = SourceCapabilities::plain();
        can.receive_max = BATCH_MAX;
        can.settle_max = BATCH_MAX;
        can.wait_max = Duration::MAX;
        can.key_order = KeyOrder::Locked;
        can.key_max = true;
        can.lease_max = LEASE_MAX;
        can.nack_delay_max = DELAY_MAX;
        can.nack_reasons = true;
        can.defer = true;
        can.reject = true;
        can.give_back = true;
        can
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        check_count(request.max)?;
        let key_max = request.key_max.unwrap_or(request.max);
        check_count(key_max.min(request.max))?;
        let lease = request.lease.unwrap_or(self.0.options.lease);
        check_span("lease", lease, LEASE_MAX)?;
        let until = Instant::now().checked_add(request.wait);
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (given, over, next) = self.0.give(request.max, key_max, lease);
            if !given.is_empty() {
                let leased = given.into_iter().map(|given| Leased {
                    receipt: given.receipt,
                    // Its numbers begin again in the next process.
                    name: None,
                    message: given.message,
                    sequence: Some(given.sequence),
                    attempt: given.attempt,
                    accepted: Some(given.accepted),
                    failures: given.failures,
                    state: None,
                    remaining: lease,
                });
                return Ok(leased.collect());
            }
            if over {
                return Err(TransportError::new(Fate::Closed, PushRefusal::Closed));
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(Vec::new());
            }
            let next = next.and_then(|at| self.0.started.checked_add(Duration::from_millis(at)));
            let sleep = async {
                match until.into_iter().chain(next).min() {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = sleep => {}
            }
        }
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        if let Err(error) = check_count(settles.len()) {
            return settles.iter().map(|_| Err(error.clone())).collect();
        }
        let mut state = self.0.state();
        let now = self.0.now();
        state.pass_time(now);
        let settles = settles.into_iter();
        let results = settles.map(|(receipt, settlement)| {
            if matches!(settlement, Settlement::Hold { .. }) {
                return Err(TransportError::new(Fate::Unsupported, NoHold));
            }
            if let Settlement::Nack { delay, .. } | Settlement::Defer { delay } = settlement {
                check_span("delay", delay, DELAY_MAX)?;
            }
            if let Settlement::Nack { reason, .. } | Settlement::Reject { reason } = &settlement {
                let bytes = reason.as_ref().map_or(0, |reason| reason.len());
                if bytes > REASON_BYTES_MAX {
                    let max = REASON_BYTES_MAX as u64;
                    return Err(refused("the bytes of a reason", bytes as u64, 0, max));
                }
            }
            let settled = state.settle(&receipt, settlement, now);
            settled.map_err(|stale| TransportError::new(Fate::Stale, stale))
        });
        let results = results.collect();
        self.0.after(state);
        results
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        let checked = check_count(receipts.len()).and(check_span("lease", lease, LEASE_MAX));
        if let Err(error) = checked {
            return receipts.iter().map(|_| Err(error.clone())).collect();
        }
        let mut state = self.0.state();
        let now = self.0.now();
        state.pass_time(now);
        let receipts = receipts.into_iter();
        let results = receipts.map(|receipt| match state.extend(&receipt, millis(lease), now) {
            Ok(()) => Ok(lease),
            Err(stale) => Err(TransportError::new(Fate::Stale, stale)),
        });
        let results = results.collect();
        self.0.after(state);
        results
    }
}

/// A number out of range.
fn refused(what: &'static str, given: u64, min: u64, max: u64) -> TransportError {
    let error = OptionsError {
        what,
        given,
        min,
        max,
    };
    TransportError::new(Fate::Refused, error)
}

fn check_count(count: usize) -> Result<(), TransportError> {
    match (1..=BATCH_MAX).contains(&count) {
        true => Ok(()),
        false => Err(refused(
            "the number of them",
            count as u64,
            1,
            BATCH_MAX as u64,
        )),
    }
}

/// In milliseconds.
fn check_span(what: &'static str, span: Duration, max: Duration) -> Result<(), TransportError> {
    match span <= max {
        true => Ok(()),
        false => Err(refused(what, millis(span), 0, millis(max))),
    }
}

/// The time by the clock on the wall; before 1970 it is 0.
fn wall_time() -> WallTime {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    WallTime(since_1970.map_or(0, millis))
}

fn millis(span: Duration) -> Millis {
    Millis::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(Millis::MAX)
}
