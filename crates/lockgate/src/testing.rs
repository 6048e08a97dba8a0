//! Makes deliveries for tests of handlers, without a queue.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockgate_core::{
    Failures, KeyState, LeaseNumber, LeaseToken, Location, MachineTime, Message, MessageId,
    QueueId, Sequence, Term, WallTime,
};
use lockgate_engine::Received;
use lockgate_machine::{
    Delivery as Lease, Origin, SettleAction, Settled, StaleReason, StoredMessage,
};

use crate::{Delivery, Settlement, delivery::Holder, queue::millis};

/// Makes a [`Delivery`] that is of no queue, for the test of a handler.
///
/// ```
/// use lockgate::{Delivery, Message, SettleError, Settlement, TestDelivery};
///
/// async fn handle(delivery: Delivery) -> Result<(), SettleError> {
///     match &delivery.body()[..] {
///         b"bad" => delivery.reject("it is bad").await,
///         _ => delivery.ack().await,
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (delivery, watch) = TestDelivery::new(Message::new("good")).attempt(3).make();
/// assert_eq!(delivery.attempt(), 3);
/// handle(delivery).await?;
/// assert_eq!(watch.settled(), Some(Settlement::Ack));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TestDelivery {
    message: Message,
    sequence: Sequence,
    attempt: u16,
    accepted: WallTime,
    lease: Duration,
    origin: Option<Origin>,
    failures: Option<Arc<Failures>>,
    state: Option<KeyState>,
    stale: Option<StaleReason>,
}

/// Tells a test what its handler did with a [`TestDelivery`].
#[derive(Clone, Debug)]
pub struct TestWatch(Arc<TestLease>);

#[derive(Debug)]
pub(crate) struct TestLease {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: Duration,
    stale: Option<StaleReason>,
    settled: Option<SettleAction>,
    extended: Vec<Duration>,
}

impl TestDelivery {
    /// Starts to make a delivery of this message: number 1 of its queue, first attempt, with a
    /// lease of 30 s.
    pub fn new(message: Message) -> Self {
        Self {
            message,
            sequence: Sequence(1),
            attempt: 1,
            accepted: WallTime(0),
            lease: Duration::from_secs(30),
            origin: None,
            failures: None,
            state: None,
            stale: None,
        }
    }

    /// Sets the message's number in the queue, which its id also has. Default: 1.
    pub fn sequence(mut self, number: u64) -> Self {
        self.sequence = Sequence(number);
        self
    }

    /// Sets the number of the attempt, from 1. Default: 1.
    pub fn attempt(mut self, attempt: u16) -> Self {
        self.attempt = attempt;
        self
    }

    /// Sets when the message was accepted. Default: 0, the start of 1970.
    pub fn accepted(mut self, at: WallTime) -> Self {
        self.accepted = at;
        self
    }

    /// Sets how much longer the lease lasts, in whole milliseconds. No time passes by itself;
    /// [`TestWatch::set_remaining`] changes it. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets where the message comes from. Default: it was not moved.
    pub fn origin(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// Sets the failures that the message had before. Default: none.
    pub fn failures(mut self, failures: Failures) -> Self {
        self.failures = Some(Arc::new(failures));
        self
    }

    /// Sets the state of the message's key. Default: it has none.
    pub fn state(mut self, state: KeyState) -> Self {
        self.state = Some(state);
        self
    }

    /// Makes the lease stale, so that settling and extending fail. Default: it is not stale.
    pub fn stale(mut self, reason: StaleReason) -> Self {
        self.stale = Some(reason);
        self
    }

    /// Makes the delivery. A [`Transaction`](crate::Transaction) cannot settle it.
    #[must_use]
    pub fn make(self) -> (Delivery, TestWatch) {
        let term = Term::default();
        let queue = QueueId::default();
        let id = MessageId::new(queue, self.sequence, term);
        let lease = Arc::new(TestLease {
            state: Mutex::new(State {
                left: self.lease,
                stale: self.stale,
                settled: None,
                extended: Vec::new(),
            }),
        });
        let received = Received {
            delivery: Lease {
                token: LeaseToken {
                    queue,
                    sequence: self.sequence,
                    message: id,
                    lease: LeaseNumber::default(),
                    term,
                },
                id,
                location: Location::default(),
                attempt: self.attempt,
                first_leased: self.accepted,
                deadline: MachineTime::default(),
                origin: self.origin,
                failures: self.failures,
                state: self.state.map(Box::new),
            },
            stored: StoredMessage {
                queue,
                sequence: self.sequence,
                id,
                accepted: self.accepted,
                unique_until: None,
                key_sequence: None,
                marked_at: None,
                payload: lockgate_machine::Payload::Own,
                message: self.message,
            },
        };
        let delivery = Delivery::of(received, Holder::Test(lease.clone()));
        (delivery, TestWatch(lease))
    }
}

impl TestWatch {
    /// Returns how the handler settled the delivery; `None` if it did not.
    #[must_use]
    pub fn settled(&self) -> Option<Settlement> {
        let action = self.0.lock().settled.clone()?;
        Some(match action {
            // An extension is not kept as one, and no delivery changes its visibility.
            SettleAction::Ack
            | SettleAction::Extend { .. }
            | SettleAction::ChangeVisibility { .. } => Settlement::Ack,
            SettleAction::Nack { delay, reason } => Settlement::Nack {
                delay: Duration::from_millis(delay),
                reason,
            },
            SettleAction::Defer { delay } => Settlement::Defer {
                delay: Duration::from_millis(delay),
            },
            SettleAction::Hold { delay, scope } => Settlement::Hold {
                delay: Duration::from_millis(delay),
                scope,
            },
            SettleAction::Reject { reason } => Settlement::Reject { reason },
            SettleAction::GiveBack => Settlement::GiveBack,
        })
    }

    /// Returns the extensions of the lease, in order: how long each one was.
    #[must_use]
    pub fn extended(&self) -> Vec<Duration> {
        self.0.lock().extended.clone()
    }

    /// Sets how much longer the lease lasts from now on; zero: it has ended.
    pub fn set_remaining(&self, left: Duration) {
        self.0.lock().left = left;
    }

    /// Makes the lease stale from now on.
    pub fn set_stale(&self, reason: StaleReason) {
        self.0.lock().stale = Some(reason);
    }
}

impl TestLease {
    pub(crate) fn remaining(&self) -> Duration {
        self.lock().left
    }

    pub(crate) fn settle(&self, action: SettleAction) -> Settled {
        let mut state = self.lock();
        if let Some(reason) = state.stale {
            return Settled::Stale(reason);
        }
        match action {
            SettleAction::Extend { lease } => {
                state.left = Duration::from_millis(lease);
                state.extended.push(Duration::from_millis(lease));
                Settled::Extended {
                    deadline: MachineTime(millis(state.left)),
                    whole_key: false,
                }
            }
            action => {
                state.settled = Some(action);
                state.stale = Some(StaleReason::Gone);
                Settled::Done
            }
        }
    }

    /// Nothing that can panic runs under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
