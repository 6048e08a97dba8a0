//! Receives messages and settles them.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate_core::{
    Failures, Header, HolderName, Key, KeyState, LeaseToken, MachineTime, Message, MessageId,
    Millis, QueueName, Sequence, UniqueId, WallTime, limits::HoldScope,
};
use lockgate_engine::{Engine, EngineError, Received};
use lockgate_machine::{Origin, Receive, Settle, SettleAction, Settled, StaleReason};

use crate::{Error, ErrorKind, error::kind, queue::millis, testing::TestLease};

/// Builds a receive. Await it to receive.
///
/// It returns as soon as there are messages, and empty if `wait` passes without one. It returns
/// before `max` messages are there: it takes what is available, at most 16 MiB.
///
/// Cancellation safe: if the future is dropped, its leases go back and the attempts do not count.
///
/// # Errors
/// [`Error::Name`] if the holder's name is not allowed; a rejection if the queue is gone, or if
/// `max` or `lease` is out of range; otherwise as [`Error::kind`] says.
#[derive(Clone)]
#[must_use = "nothing is received before it is awaited"]
pub struct ReceiveBuilder {
    engine: Engine,
    queue: QueueName,
    max: u16,
    key_max: Option<u16>,
    wait: Duration,
    lease: Option<Millis>,
    holder: Option<String>,
}

/// A leased message. It is yours alone until you settle it or the lease ends.
///
/// Settling consumes the delivery, so it cannot happen twice. If settling fails, the error returns
/// the delivery. Dropping a delivery does not settle it: the message comes again when the lease has
/// ended.
///
/// If the future of a settle is dropped, the settle may have happened or not. If it did not, the
/// message comes again when the lease has ended.
///
/// Delays are up to 366 days and reasons up to 1,024 bytes; more is refused ([`ErrorKind::Input`]).
/// [`Lockgate::settle_all`](crate::Lockgate::settle_all) settles many at once, and
/// [`TestDelivery`](crate::TestDelivery) makes a delivery for the test of a handler.
pub struct Delivery {
    pub(crate) holder: Holder,
    received: Box<Received>,
    /// When the leases of its receive end, its own at `place`.
    ends: Arc<[LeaseEnd]>,
    place: usize,
}

/// Where a delivery is settled.
pub(crate) enum Holder {
    Engine(Engine),
    Test(Arc<TestLease>),
}

/// When one of the leases of a receive ends. They know of each other, because those of a strict batch
/// are extended together.
struct LeaseEnd {
    key: Option<Key>,
    deadline: AtomicU64,
}

/// A settle that failed, with the delivery.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// The lease does not count any more, mostly because it has ended. Nothing was changed, and
    /// somebody else may have the message.
    #[error("the lease is not current any more ({reason:?}): nothing was changed")]
    Stale {
        /// Why the lease does not count any more.
        reason: StaleReason,
        /// The delivery that was to be settled.
        delivery: Delivery,
    },
    /// The engine refused the settle, or could not do it.
    #[error("settling failed")]
    Engine {
        /// What the engine says about it.
        #[source]
        source: EngineError,
        /// The delivery that was to be settled.
        delivery: Delivery,
    },
}

impl ReceiveBuilder {
    pub(crate) fn new(engine: Engine, queue: QueueName) -> Self {
        Self {
            engine,
            queue,
            max: 1,
            key_max: None,
            wait: Duration::ZERO,
            lease: None,
            holder: None,
        }
    }

    /// Sets how many messages to receive at most, from 1 to 1,000. Default: 1.
    pub fn max(mut self, max: u16) -> Self {
        self.max = max;
        self
    }

    /// Sets how many messages of one key to receive at most, from 1 to 1,000. Default: no limit of its
    /// own.
    pub fn key_max(mut self, max: u16) -> Self {
        self.key_max = Some(max);
        self
    }

    /// Sets how long to wait for a first message. Default: zero, which does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long the leases last, up to 12 h. Default: the queue's `lease`.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(millis(lease));
        self
    }

    /// Sets the name of the holder, up to 128 bytes. [`Queue::explain`](crate::Queue::explain)
    /// shows it to whoever asks why a key does not move. Default: `embedded`.
    pub fn holder(mut self, name: impl Into<String>) -> Self {
        self.holder = Some(name.into());
        self
    }

    async fn run(self) -> Result<Vec<Delivery>, Error> {
        let holder = self.holder.as_deref().unwrap_or("embedded");
        let receive = Receive {
            queue: self.queue,
            max: self.max,
            key_max: self.key_max,
            lease: self.lease,
            holder: HolderName::new(holder)?,
        };
        let entry = self.engine.directory().get(&receive.queue);
        let batch = self.engine.receive(receive, self.wait).await?;
        let keyed = entry.is_some_and(|entry| entry.settings.keyed);
        let engine = self.engine;
        let received = batch.keep();
        let ends = received.iter().map(|received| LeaseEnd {
            key: received.stored.message.key.clone().filter(|_| keyed),
            deadline: AtomicU64::new(received.delivery.deadline.0),
        });
        let ends: Arc<[LeaseEnd]> = ends.collect();
        Ok(received
            .into_iter()
            .enumerate()
            .map(|(place, mut received)| {
                let message = &mut received.stored.message;
                if !keyed {
                    message.group = message.key.take();
                }
                Delivery {
                    holder: Holder::Engine(engine.clone()),
                    received: Box::new(received),
                    ends: ends.clone(),
                    place,
                }
            })
            .collect())
    }
}

impl IntoFuture for ReceiveBuilder {
    type Output = Result<Vec<Delivery>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl Delivery {
    /// Returns the body of the message.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.message().body
    }

    /// Returns the whole message, as it was sent.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.received.stored.message
    }

    /// Returns the key of the message. Every message of a keyed queue has one, and no other.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.message().key.as_ref()
    }

    /// Returns the group of the message, if it has one. Only messages of unkeyed queues have
    /// groups.
    #[must_use]
    pub fn group(&self) -> Option<&Key> {
        self.message().group.as_ref()
    }

    /// Returns the unique id that the producer chose, if it chose one.
    #[must_use]
    pub fn unique_id(&self) -> Option<&UniqueId> {
        self.message().unique_id.as_ref()
    }

    /// Returns the headers, in the producer's order.
    #[must_use]
    pub fn headers(&self) -> &[Header] {
        &self.message().headers
    }

    /// Returns the id that the send returned. It stays the same when the message is moved.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.received.delivery.id
    }

    /// Returns the number of the message in the queue it was received from, from 1.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.received.delivery.token.sequence
    }

    /// Returns how many leases the message has had in this queue, this one included.
    #[must_use]
    pub fn attempt(&self) -> u16 {
        self.received.delivery.attempt
    }

    /// Returns when the first queue accepted the message.
    #[must_use]
    pub fn accepted(&self) -> WallTime {
        self.received.stored.accepted
    }

    /// Returns where the message comes from if it was moved here. For a dead letter that says why.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.received.delivery.origin.as_ref()
    }

    /// Returns the failures of the message that had a [reason](Self::nack_because), also of queues that it
    /// was in before; `None` if there were none.
    #[must_use]
    pub fn failures(&self) -> Option<&Failures> {
        self.received.delivery.failures.as_deref()
    }

    /// Returns the state of the key, if the queue is keyed and the key has one; only with the first message of the key
    /// that a receive returns.
    #[must_use]
    pub fn state(&self) -> Option<&KeyState> {
        self.received.delivery.state.as_deref()
    }

    /// Returns how much longer the lease lasts; zero if it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match &self.holder {
            Holder::Engine(engine) => {
                let deadline = self.ends[self.place].deadline.load(Relaxed);
                engine.remaining(MachineTime(deadline))
            }
            Holder::Test(lease) => lease.remaining(),
        }
    }

    /// Tells whether the lease still lasts, by the engine's clock. It does not see a purge of the
    /// queue or a settle under way: only settling itself is certain.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Acknowledges: the work is done, and the message leaves the queue.
    ///
    /// # Errors
    /// [`SettleError::Stale`] if the lease does not count any more. The error returns the delivery.
    pub async fn ack(self) -> Result<(), SettleError> {
        self.settle(SettleAction::Ack).await
    }

    /// Gives the message back as failed. It returns to its place and may be leased again after
    /// `delay`. The attempt counts.
    ///
    /// # Errors
    /// [`SettleError::Stale`] if the lease does not count any more. The error returns the delivery.
    pub async fn nack(self, delay: Duration) -> Result<(), SettleError> {
        let delay = millis(delay);
        let reason = None;
        self.settle(SettleAction::Nack { delay, reason }).await
    }

    /// As [`nack`](Self::nack), with the reason: the message keeps it among its
    /// [failures](Self::failures), also as a dead letter.
    ///
    /// # Errors
    /// [`SettleError::Stale`] if the lease does not count any more. The error returns the delivery.
    pub async fn nack_because(
        self,
        delay: Duration,
        reason: impl Into<Arc<str>>,
    ) -> Result<(), SettleError> {
        let delay = millis(delay);
        let reason = Some(reason.into());
        self.settle(SettleAction::Nack { delay, reason }).await
    }

    /// Puts the message off. It returns to its place and may be leased again after `delay`. The
    /// attempt does not count. In a keyed queue the message holds its key until then.
    ///
    /// # Errors
    /// [`SettleError::Stale`] if the lease does not count any more. The error returns the delivery.
    pub async fn defer(self, delay: Duration) -> Result<(), SettleError> {
        let delay = millis(delay);
        self.settle(SettleAction::Defer { delay }).await
    }

    /// Puts the message off, and holds its key or the whole queue for so long: nothing of it is leased to anybody
    /// before, such as when the answer of a partner asks for it. The attempt does not count. A message without a key
    /// or group holds its queue. See also [`Queue::hold`](crate::Queue::hold), which ends a hold too.
    ///
    /// # Errors
    /// [`SettleError::Stale`] if the lease does not count any more; a refusal if `delay` is zero. The error returns the
    /// delivery.
    pub async fn hold(self, delay: Duration, scope: HoldScope) -> Result<(), SettleError> {
        let delay = millis(delay);
        self.settle(SettleAction::Hold { delay, scope }).await
    }

    /// Rejects a message that can never be processed. It goes to the dead-letter queue at once,
    /// with the reason. If there is no dead-letter queue, it is dropped.
    ///
    /// # Errors
    /// [`SettleError::Stale`] if the lease does not count any more. The error returns the delivery.
    pub async fn reject(self, reason: impl Into<Arc<str>>) -> Result<(), SettleError> {
        let reason = Some(reason.into());
        self.settle(SettleAction::Reject { reason }).await
    }

    /// Gives the message back untried. It returns to its place, and the attempt does not count.
    ///
    /// # Errors
    /// [`SettleError::Stale`] if the lease does not count any more. The error returns the delivery.
    pub async fn give_back(self) -> Result<(), SettleError> {
        self.settle(SettleAction::GiveBack).await
    }

    /// Makes the lease last `lease` from now on, up to 12 h. In a queue of the strict profile this
    /// also extends the leases of all messages of its key that came with it, and their deliveries
    /// know it. Extend one delivery of a batch at a time, because [`remaining`](Self::remaining)
    /// follows the answer that was handled last.
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if `lease` is out of range; [`ExtendError::Stale`] if the lease has
    /// ended.
    pub async fn extend(&mut self, lease: Duration) -> Result<(), ExtendError> {
        let lease = millis(lease);
        match self.submit(SettleAction::Extend { lease }).await? {
            Settled::Extended {
                deadline,
                whole_key,
            } => {
                let own = &self.ends[self.place];
                own.deadline.store(deadline.0, Relaxed);
                for other in self.ends.iter() {
                    if whole_key && other.key == own.key {
                        other.deadline.store(deadline.0, Relaxed);
                    }
                }
                Ok(())
            }
            // In an unkeyed queue of Amazon's profile, when the lease had ended: the message is kept back.
            Settled::Done => Ok(()),
            Settled::Stale(reason) => Err(ExtendError::Stale { reason }),
        }
    }

    /// The engine that has the lease; `None` in a test.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        match &self.holder {
            Holder::Engine(engine) => Some(engine),
            Holder::Test(_) => None,
        }
    }

    pub(crate) fn token(&self) -> LeaseToken {
        self.received.delivery.token
    }

    /// A delivery by itself.
    pub(crate) fn of(received: Received, holder: Holder) -> Self {
        let end = LeaseEnd {
            key: received.stored.message.key.clone(),
            deadline: AtomicU64::new(received.delivery.deadline.0),
        };
        Self {
            holder,
            received: Box::new(received),
            ends: Arc::new([end]),
            place: 0,
        }
    }

    async fn settle(self, action: SettleAction) -> Result<(), SettleError> {
        match self.submit(action).await {
            Ok(Settled::Done | Settled::Extended { .. }) => Ok(()),
            Ok(Settled::Stale(reason)) => Err(SettleError::Stale {
                reason,
                delivery: self,
            }),
            Err(source) => Err(SettleError::Engine {
                source,
                delivery: self,
            }),
        }
    }

    async fn submit(&self, action: SettleAction) -> Result<Settled, EngineError> {
        let token = self.token();
        match &self.holder {
            Holder::Engine(engine) => engine.submit(Settle { token, action }).await,
            Holder::Test(lease) => Ok(lease.settle(action)),
        }
    }
}

/// An extension that failed. The lease ends when it would have ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lease does not count any more, mostly because it has ended. Nothing was changed, and
    /// somebody else may have the message.
    #[error("the lease is not current any more ({reason:?}): nothing was changed")]
    Stale {
        /// Why the lease does not count any more.
        reason: StaleReason,
    },
    /// The engine refused the extension, or could not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SettleError {
    /// Returns the delivery that was to be settled.
    #[must_use]
    pub fn into_delivery(self) -> Delivery {
        match self {
            Self::Stale { delivery, .. } | Self::Engine { delivery, .. } => delivery,
        }
    }

    /// Returns what to do about the error; `None` if the lease has ended, since nothing can be done
    /// then.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Stale { .. } => None,
            Self::Engine { source, .. } => Some(kind(source)),
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id())
            .field("attempt", &self.attempt())
            .field("key", &self.key())
            .finish_non_exhaustive()
    }
}
