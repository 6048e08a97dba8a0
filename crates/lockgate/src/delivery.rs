//! Receiving and settling.

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
    Header, HolderName, Key, LeaseToken, MachineTime, Message, MessageId, Millis, QueueName,
    Sequence, UniqueId, WallTime,
};
use lockgate_engine::{Engine, EngineError, Received};
use lockgate_machine::{Origin, Receive, Settle, SettleAction, Settled, StaleReason};

use crate::{Error, ErrorKind, error::kind, queue::millis};

/// A receive about to be made: await it.
///
/// Cancellation safe: leases given to a receive that nobody waits for any more go back, and the
/// attempts do not count.
#[derive(Clone)]
#[must_use = "nothing is received before it is awaited"]
pub struct ReceiveBuilder {
    engine: Engine,
    queue: QueueName,
    max: u16,
    wait: Duration,
    lease: Option<Millis>,
    holder: Option<String>,
}

/// A leased message: its holder's alone until it is settled or the lease ends.
///
/// Settling consumes it, so it cannot happen twice; if settling fails it comes back in the error.
/// Dropping it unsettled does nothing: the message is delivered again when the lease has ended.
pub struct Delivery {
    engine: Engine,
    received: Box<Received>,
    /// When the leases of its receive end, its own at `place`.
    ends: Arc<[LeaseEnd]>,
    place: usize,
}

/// When one of the leases of a receive ends. They know of each other, because those of a strict batch
/// are extended together.
struct LeaseEnd {
    key: Option<Key>,
    deadline: AtomicU64,
}

/// A settling that did not take place, with the delivery.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettleError {
    /// The lease is not current any more: nothing was changed, and somebody else may have the
    /// message.
    #[error("the lease is not current any more ({reason:?}): nothing was changed")]
    Stale {
        /// Why.
        reason: StaleReason,
        /// What was to be settled.
        delivery: Delivery,
    },
    /// The engine refused it, or could not do it.
    #[error("settling failed")]
    Engine {
        /// Why.
        #[source]
        source: EngineError,
        /// What was to be settled.
        delivery: Delivery,
    },
}

impl ReceiveBuilder {
    pub(crate) fn new(engine: Engine, queue: QueueName) -> Self {
        Self {
            engine,
            queue,
            max: 1,
            wait: Duration::ZERO,
            lease: None,
            holder: None,
        }
    }

    /// At most so many messages; 1 to 1,000. Default: 1.
    pub fn max(mut self, max: u16) -> Self {
        self.max = max;
        self
    }

    /// How long to wait for a first message. Default: not at all.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long the leases last; up to 12 h. Default: the queue's.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(millis(lease));
        self
    }

    /// Who will hold the messages, for whoever asks why a key does not move. Default: `embedded`.
    pub fn holder(mut self, name: impl Into<String>) -> Self {
        self.holder = Some(name.into());
        self
    }

    async fn run(self) -> Result<Vec<Delivery>, Error> {
        let holder = self.holder.as_deref().unwrap_or("embedded");
        let receive = Receive {
            queue: self.queue,
            max: self.max,
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
                    engine: engine.clone(),
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
    /// The payload.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.message().body
    }

    /// The whole message, as it was sent.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.received.stored.message
    }

    /// Its key, in a keyed queue.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.message().key.as_ref()
    }

    /// Its group, in an unkeyed queue, if it has one.
    #[must_use]
    pub fn group(&self) -> Option<&Key> {
        self.message().group.as_ref()
    }

    /// Its unique id.
    #[must_use]
    pub fn unique_id(&self) -> Option<&UniqueId> {
        self.message().unique_id.as_ref()
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &[Header] {
        &self.message().headers
    }

    /// The id its send was answered with.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.received.delivery.id
    }

    /// Its number in the queue it was received from.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.received.delivery.token.sequence
    }

    /// How many leases it has had in this queue, this one included.
    #[must_use]
    pub fn attempt(&self) -> u16 {
        self.received.delivery.attempt
    }

    /// When the queue that first had it accepted it.
    #[must_use]
    pub fn accepted(&self) -> WallTime {
        self.received.stored.accepted
    }

    /// Where it comes from, if it was moved here: a dead-letter queue's "why".
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.received.delivery.origin.as_ref()
    }

    /// How much longer the lease lasts; zero if it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let deadline = self.ends[self.place].deadline.load(Relaxed);
        self.engine.remaining(MachineTime(deadline))
    }

    /// Whether the lease still lasts, by the engine's clock. A purge of the queue, or a settle
    /// under way, is not seen here: only settling itself is certain.
    #[must_use]
    pub fn is_current(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Done: the message leaves the queue.
    ///
    /// # Errors
    /// See [`SettleError`]; the delivery comes back in it.
    pub async fn ack(self) -> Result<(), SettleError> {
        self.settle(SettleAction::Ack).await
    }

    /// Failed: the message returns to its place and may be leased again after `delay`.
    ///
    /// # Errors
    /// See [`SettleError`]; the delivery comes back in it.
    pub async fn nack(self, delay: Duration) -> Result<(), SettleError> {
        let delay = millis(delay);
        self.settle(SettleAction::Nack { delay }).await
    }

    /// Not now: the message returns to its place, may be leased again after `delay`, and the attempt
    /// does not count. In a keyed queue it holds its key until then.
    ///
    /// # Errors
    /// See [`SettleError`]; the delivery comes back in it.
    pub async fn defer(self, delay: Duration) -> Result<(), SettleError> {
        let delay = millis(delay);
        self.settle(SettleAction::Defer { delay }).await
    }

    /// Can never succeed: the message goes to the dead-letter queue at once, or is dropped where
    /// there is none.
    ///
    /// # Errors
    /// See [`SettleError`]; the delivery comes back in it.
    pub async fn reject(self, reason: impl Into<Arc<str>>) -> Result<(), SettleError> {
        let reason = Some(reason.into());
        self.settle(SettleAction::Reject { reason }).await
    }

    /// Never tried: the message returns to its place, and the attempt does not count.
    ///
    /// # Errors
    /// See [`SettleError`]; the delivery comes back in it.
    pub async fn give_back(self) -> Result<(), SettleError> {
        self.settle(SettleAction::GiveBack).await
    }

    /// The lease lasts `lease` from now on. In a queue of the strict profile so do the leases of all
    /// messages of its key that came with it, and their deliveries know it: extend one of a batch at a time,
    /// since the answer handled last counts for [`remaining`](Self::remaining).
    ///
    /// # Errors
    /// [`ErrorKind::Input`] if `lease` is out of range; [`ExtendError::Stale`] if it has ended.
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

    pub(crate) fn token(&self) -> LeaseToken {
        self.received.delivery.token
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
        self.engine.submit(Settle { token, action }).await
    }
}

/// An extension that did not take place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lease is not current any more: nothing was changed, and somebody else may have the
    /// message.
    #[error("the lease is not current any more ({reason:?}): nothing was changed")]
    Stale {
        /// Why.
        reason: StaleReason,
    },
    /// The engine refused it, or could not do it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl SettleError {
    /// What was to be settled.
    #[must_use]
    pub fn into_delivery(self) -> Delivery {
        match self {
            Self::Stale { delivery, .. } | Self::Engine { delivery, .. } => delivery,
        }
    }

    /// What to do about it; `None` if the lease is stale and nothing can be done.
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
