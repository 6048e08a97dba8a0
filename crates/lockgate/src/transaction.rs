//! Acknowledgements, states of keys, sends and publishes that all happen, or none.

use lockgate_core::{KeyStateWrite, Message, RecordVersion, RoutingKey};
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::{
    Publication, Publish, SendMessage, Sent, Settle, SettleAction, Transact, Transacted, WriteState,
};

use crate::{Delivery, ErrorKind, Exchange, Queue, error::kind};

/// Consumes and produces in one step: the messages that it acknowledges leave exactly if the
/// messages that it sends and publishes are accepted. Nothing happens before [`commit`](Self::commit). It may
/// hold up to 1,000 acknowledgements, states, sends and publishes.
#[must_use = "nothing happens before it is committed"]
pub struct Transaction {
    engine: Engine,
    deliveries: Vec<Delivery>,
    states: Vec<WriteState>,
    sends: Vec<SendMessage>,
    publishes: Vec<Publish>,
    /// Engines of what is under a fence.
    others: Vec<Engine>,
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// One for each message that was sent, in order.
    pub sent: Vec<Sent>,
    /// The new version of each state, in order; `None` of one that was dropped.
    pub states: Vec<Option<RecordVersion>>,
    /// One for each message that was published, in order.
    pub published: Vec<Publication>,
}

/// A transaction that failed, with its deliveries. Nothing of it happened, unless
/// [`kind`](Self::kind) is [`ErrorKind::Unknown`]: then all of it happened, or nothing.
#[derive(Debug, thiserror::Error)]
#[error("the transaction failed")]
#[non_exhaustive]
pub struct TransactionError {
    /// What the engine says about it.
    pub source: EngineError,
    /// The deliveries that were to be acknowledged, in order. Their leases go on.
    pub deliveries: Vec<Delivery>,
}

impl Transaction {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            deliveries: Vec::new(),
            states: Vec::new(),
            sends: Vec::new(),
            publishes: Vec::new(),
            others: Vec::new(),
        }
    }

    /// What is fenced keeps its fence here.
    fn join(&mut self, engine: Option<&Engine>) {
        self.others
            .extend(engine.filter(|it| it.fence().is_some()).cloned());
    }

    /// Adds the acknowledgement of a message.
    pub fn ack(mut self, delivery: Delivery) -> Self {
        self.join(delivery.engine());
        self.deliveries.push(delivery);
        self
    }

    /// Adds the acknowledgement of a message, and the write of its key's state: a new value, or none. The state must
    /// have the version that the write replaces, mostly that of [`Delivery::state`]. Each key at most once.
    pub fn ack_with_state(mut self, delivery: Delivery, write: KeyStateWrite) -> Self {
        self.states.push(WriteState {
            token: delivery.token(),
            write,
        });
        self.ack(delivery)
    }

    /// Writes the state of a delivery's key, whose lease goes on: what is done so far survives a crash of the holder.
    pub fn write_state(mut self, delivery: &Delivery, write: KeyStateWrite) -> Self {
        self.join(delivery.engine());
        self.states.push(WriteState {
            token: delivery.token(),
            write,
        });
        self
    }

    /// Adds the send of a message to a queue of the same folder.
    pub fn send(mut self, queue: &Queue, message: Message) -> Self {
        self.join(Some(queue.engine()));
        self.sends.push(queue.to_send(message));
        self
    }

    /// Adds the publish of a message to an exchange of the same folder: each queue that it is routed to gets a copy.
    /// Keys, unique ids and envelopes of the copies of a transaction have up to 8 MiB together.
    pub fn publish(
        mut self,
        exchange: &Exchange,
        routing_key: RoutingKey,
        message: Message,
    ) -> Self {
        self.join(Some(exchange.engine()));
        self.publishes
            .push(exchange.to_publish(routing_key, message));
        self
    }

    /// Does all of it, and waits until it has reached its level.
    ///
    /// If the future is dropped, the transaction may have happened or not, but never in part.
    ///
    /// # Errors
    /// One stale lease, one refused message, also one that an exchange cannot route, or one state of another version
    /// ([`Rejection::KeyStateConflict`](crate::Rejection)) refuses everything. A part under a [fence](Queue::fenced) puts all
    /// of it under that fence; two different ones are refused. The error returns the deliveries.
    pub async fn commit(self) -> Result<Committed, TransactionError> {
        let Self {
            engine,
            deliveries,
            states,
            sends,
            publishes,
            others,
        } = self;
        let engine = match engine.joint(&others) {
            Ok(engine) => engine,
            Err(source) => return Err(TransactionError { source, deliveries }),
        };
        let settles = deliveries
            .iter()
            .map(|delivery| Settle {
                token: delivery.token(),
                action: SettleAction::Ack,
            })
            .collect();
        let transact = Transact {
            settles,
            states,
            sends,
            publishes,
        };
        match engine.submit(transact).await {
            Ok(Transacted {
                sent,
                states,
                published,
            }) => Ok(Committed {
                sent,
                states,
                published,
            }),
            Err(source) => Err(TransactionError { source, deliveries }),
        }
    }
}

impl TransactionError {
    /// Returns what to do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        kind(&self.source)
    }
}
